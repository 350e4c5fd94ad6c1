package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections are pipes. With it, a server and its clients can run in the simulated time of
// synctest.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	ended chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.ended) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080} }

// dial starts a server with the handler and returns a connection to it. It must be called in a bubble of synctest.
func dial(t *testing.T, bodyTimeout time.Duration, h http.Handler) (net.Conn, *bufio.Reader) {
	t.Helper()
	l := &pipes{conns: make(chan net.Conn), ended: make(chan struct{})}
	server := NewServer(h, bodyTimeout, slog.New(slog.DiscardHandler))
	go func() { _ = server.Serve(l) }()
	client, conn := net.Pipe()
	t.Cleanup(func() { _ = errors.Join(client.Close(), server.Close()) })
	l.conns <- conn
	// in simulated time: a test that hangs ends after an hour of it
	if err := client.SetDeadline(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	return client, bufio.NewReader(client)
}

// send writes a request with a body of n bytes. It pauses before each part of the body, and stops when the connection
// is closed.
func send(conn net.Conn, header string, n, part int, pause time.Duration) {
	if _, err := io.WriteString(conn, "POST /x HTTP/1.1\r\nHost: localhost\r\n"+header+"\r\n"); err != nil {
		return
	}
	for n > 0 {
		k := min(n, part)
		if _, err := io.WriteString(conn, strings.Repeat("x", k)); err != nil {
			return
		}
		n -= k
		<-time.After(pause) // of simulated time
	}
}

// Guarantees that a client cannot keep a connection by sending a body slowly or not at all, whether or not the handler
// reads the body. A body that arrives steadily, or that waits for a slow upstream, may take any time.
func TestSlowBodies(t *testing.T) {
	const limit, soon = 30 * time.Second, 31 * time.Second
	echo := http.HandlerFunc(new(Gateway).echo)
	denies := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) })
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // an upstream that takes a KiB in a minute
		for b := make([]byte, 1<<10); ; <-time.After(time.Minute) {
			if _, err := io.ReadFull(r.Body, b); err != nil {
				w.WriteHeader(http.StatusAccepted)
				return
			}
		}
	})
	const sized, chunked = "Content-Length: 200000\r\n", "Transfer-Encoding: chunked\r\n"
	for _, c := range []struct {
		name     string
		timeout  time.Duration
		handler  http.Handler
		header   string
		n, part  int
		pause    time.Duration
		status   int
		from, to time.Duration // bounds of the time after which the answer must come
	}{
		{"nothing of it", 0, echo, sized, 0, 1, 0, 408, limit, soon},
		{"nothing of it in chunks", 0, echo, chunked, 0, 1, 0, 408, limit, soon},
		{"a byte now and then", 0, echo, sized, 200_000, 1, 5 * time.Second, 408, limit, soon},
		{"a byte each second", 0, echo, sized, 200_000, 1, time.Second, 408, limit, soon},
		{"all but the end", 0, echo, sized, 199_999, 199_999, 0, 408, limit, soon},
		{"a long pause in the middle", 0, echo, sized, 200_000, 100_000, 40 * time.Second, 408, limit, soon},
		{"short pauses", 0, echo, sized, 200_000, 50_000, 20 * time.Second, 200, time.Minute, 90 * time.Second},
		{"2 KiB/s", 0, echo, sized, 200_000, 2 << 10, time.Second, 200, 90 * time.Second, 100 * time.Second},
		{"half a KiB/s", 0, echo, sized, 200_000, 512, time.Second, 408, 50 * time.Second, 70 * time.Second},
		{"a slow upstream", 0, slow, "Content-Length: 9216\r\n", 9 << 10, 9 << 10, 0, 202, 9 * time.Minute,
			10 * time.Minute},
		{"a body that nobody reads", 0, denies, sized, 200_000, 1, 5 * time.Second, 429, 0, soon},
		{"chunks that nobody reads", 0, denies, chunked, 0, 1, 0, 429, 0, soon},
		{"a large body that nobody reads", 0, denies, "Content-Length: 9000000\r\n", 0, 1, 0, 429, 0, time.Second},
		{"a body that nobody asks for", 0, denies, sized + "Expect: 100-continue\r\n", 0, 1, 0, 429, 0, time.Second},
		{"another limit", 5 * time.Second, echo, sized, 0, 1, 0, 408, 5 * time.Second, 6 * time.Second},
		{"no limit", -1, echo, sized, 200_000, 199_999, 20 * time.Minute, 200, 20 * time.Minute, 50 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn, answers := dial(t, c.timeout, c.handler)
				began := time.Now()
				var sent sync.WaitGroup
				sent.Go(func() { send(conn, c.header, c.n, c.part, c.pause) })
				defer sent.Wait()
				defer func() { _ = conn.Close() }()
				res, err := http.ReadResponse(answers, nil)
				if took := time.Since(began); err != nil || res.StatusCode != c.status || took < c.from || took > c.to {
					t.Fatalf("after %s: %v, %v; want %d after %s to %s", took, res, err, c.status, c.from, c.to)
				}
				defer res.Body.Close()
				if c.status == http.StatusOK || c.status == http.StatusAccepted {
					return
				}
				_, _ = io.Copy(io.Discard, answers)
				if took := time.Since(began); took > soon+limit {
					t.Errorf("the connection is closed after %s", took)
				}
			})
		})
	}
}

// Guarantees that an answer may take any time, even if it begins before the whole body has arrived, and that the next
// request of the connection has the full time for its own body.
func TestLongAnswers(t *testing.T) {
	streams := func(read int64) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.CopyN(io.Discard, r.Body, read) // the client sends all of it
			_ = r.Body.Close()
			for i := range 20 {
				select {
				case <-r.Context().Done():
					fmt.Fprintf(w, "ended after %d minutes: %v", i, context.Cause(r.Context()))
					return
				case <-time.After(time.Minute):
					fmt.Fprintln(w, "data")
				}
			}
		})
	}
	for name, read := range map[string]int64{"all was read": 2000, "some was read": 1, "none was read": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn, answers := dial(t, 0, streams(read))
				for range 2 {
					go send(conn, "Content-Length: 1000\r\n", 1000, 1000, 0)
					res, err := http.ReadResponse(answers, nil)
					if err != nil {
						t.Fatal(err)
					}
					defer res.Body.Close()
					if body, err := io.ReadAll(res.Body); err != nil || strings.Count(string(body), "data\n") != 20 {
						t.Errorf("the answer is %q, %v; want 20 lines", body, err)
					}
				}
			})
		})
	}
}

// Guarantees that an upgraded connection, such as a WebSocket, may be silent for a long time.
func TestUpgradedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, answers := dial(t, 0, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			own, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = own.Close() }()
			_, _ = io.WriteString(own, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			line, err := buffered.ReadString('\n')
			_, _ = fmt.Fprintf(own, "%q %v\n", line, err)
		}))
		go func() {
			_, _ = io.WriteString(conn, "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: "+
				"x\r\n\r\n")
			<-time.After(20 * time.Minute)
			_, _ = io.WriteString(conn, "hello\n")
		}()
		res, err := http.ReadResponse(answers, nil)
		if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("the upgrade is answered with %v, %v", res, err)
		}
		defer res.Body.Close()
		if line, err := answers.ReadString('\n'); line != `"hello\n" <nil>`+"\n" {
			t.Errorf("after 20 silent minutes the connection gives %q, %v", line, err)
		}
	})
}
