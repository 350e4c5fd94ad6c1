package server_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/sluicelimits/sluice/internal/server"
)

// pipes is a listener in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// Guarantees that clients are disconnected that go silent after a complete handshake, never read their answers, or send
// a byte a second. In virtual time, over connections without buffers.
func TestStalledClients(t *testing.T) {
	const header = "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
	for _, c := range []struct {
		name, server string
		within       time.Duration
		talk         func(net.Conn) error // until the server closes the connection
	}{
		{"silent over gRPC", "gRPC", 40 * time.Second, func(conn net.Conn) error {
			if _, err := openHTTP2(conn); err != nil {
				return err
			}
			_, err := io.Copy(io.Discard, conn) // pings get no answer
			return err
		}},
		{"reads no answers over gRPC", "gRPC", 40 * time.Second, func(conn net.Conn) error {
			framer, err := openHTTP2(conn)
			for stream := uint32(1); err == nil; stream += 2 {
				err = ask(framer, stream)
			}
			return err
		}},
		{"reads no answers over HTTP", "HTTP", 10 * time.Second, func(conn net.Conn) (err error) {
			for err == nil {
				_, err = io.WriteString(conn, "GET /healthcheck HTTP/1.1\r\nHost: x\r\n\r\n")
			}
			return err
		}},
		{"a byte a second of a handshake over gRPC", "gRPC", 5 * time.Second, func(conn net.Conn) error {
			return trickle(conn, http2.ClientPreface)
		}},
		{"a byte a second of a frame over gRPC", "gRPC", 40 * time.Second, func(conn net.Conn) error {
			if _, err := openHTTP2(conn); err != nil {
				return err
			}
			return trickle(conn, "\x00\x40\x00\x01\x04\x00\x00\x00\x01"+strings.Repeat("\x00", 0x4000))
		}},
		{"an unfinished message over gRPC", "gRPC", 20 * time.Second, func(conn net.Conn) error {
			framer, err := openHTTP2(conn)
			if err == nil {
				err = begin(framer, 1)
			}
			for err == nil { // the client answers pings, so it does not look silent
				var frame http2.Frame
				if frame, err = framer.ReadFrame(); err != nil {
					break
				}
				if ping, ok := frame.(*http2.PingFrame); ok && !ping.IsAck() {
					err = framer.WritePing(true, ping.Data)
				}
			}
			return err
		}},
		{"a byte a second of a header over HTTP", "HTTP", 5 * time.Second, func(conn net.Conn) error {
			return trickle(conn, header)
		}},
		{"a byte a second of a body over HTTP", "HTTP", 10 * time.Second, func(conn net.Conn) error {
			if _, err := io.WriteString(conn, header+"\r\n"); err != nil {
				return err
			}
			return trickle(conn, strings.Repeat(" ", 100))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := server.Config{RateLimits: service(t, nil), Log: slog.New(slog.DiscardHandler)}
				*map[string]*string{"gRPC": &config.GRPC, "HTTP": &config.HTTP}[c.server] = "127.0.0.1:0"
				s, err := server.Listen(config)
				if err != nil {
					t.Fatal(err)
				}
				listener := &pipes{make(chan net.Conn), make(chan struct{})}
				s.ServeOn(c.server, listener)
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); _ = s.Serve(ctx, nil) }()
				defer func() { stop(); <-ended }()
				conn, accepted := net.Pipe()
				defer func() { _ = conn.Close() }()
				listener.conns <- accepted
				_ = conn.SetDeadline(time.Now().Add(time.Hour)) // it fails only for a connection that is closed
				began := time.Now()
				err = c.talk(conn)
				if took := time.Since(began); isTimeout(err) || took > c.within+time.Second {
					t.Errorf("after %s: %v; want the connection closed within %s", took, err, c.within)
				}
			})
		})
	}
}

// trickle sends a byte a second, and reads what the server sends, until the connection is closed.
func trickle(conn net.Conn, text string) error {
	read := make(chan struct{})
	defer func() { <-read }()
	go func() { defer close(read); _, _ = io.Copy(io.Discard, conn) }()
	for i := range text {
		if _, err := io.WriteString(conn, text[i:i+1]); err != nil {
			return err
		}
		select {
		case <-read:
			return io.EOF
		case <-time.After(time.Second):
		}
	}
	return errors.New("everything was sent")
}

// openHTTP2 opens an HTTP/2 connection as a client, until the server has acknowledged the client's settings.
func openHTTP2(conn net.Conn) (*http2.Framer, error) {
	framer := http2.NewFramer(conn, conn)
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(conn, http2.ClientPreface)
		sent <- errors.Join(err, framer.WriteSettings())
	}()
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return nil, err
		}
		settings, ok := frame.(*http2.SettingsFrame)
		switch {
		case ok && settings.IsAck():
			return framer, nil
		case ok:
			if err := errors.Join(<-sent, framer.WriteSettingsAck()); err != nil {
				return nil, err
			}
		}
	}
}

// begin sends the header of a request for a decision in a stream, as gRPC does, and no message.
func begin(framer *http2.Framer, stream uint32) error {
	var header bytes.Buffer
	encoder := hpack.NewEncoder(&header)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "x"},
		{Name: ":path", Value: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	} {
		if err := encoder.WriteField(f); err != nil {
			return err
		}
	}
	return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: header.Bytes(),
		EndHeaders: true})
}

// ask sends a request for a decision in a stream, as gRPC does.
func ask(framer *http2.Framer, stream uint32) error {
	body, err := proto.Marshal(request("x"))
	if err != nil {
		return err
	}
	if err := begin(framer, stream); err != nil {
		return err
	}
	message := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
	return framer.WriteData(stream, true, append(message, body...))
}
