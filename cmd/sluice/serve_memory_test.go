package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/sluicelimits/sluice/internal/testkit/built"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// mostResident is the most memory, in bytes, that the service may have taken at any time of a flood.
const mostResident = 256 << 20

// victim is a `sluice serve` in a process of its own, which is flooded.
type victim struct {
	process    *redistest.Process
	pid        int
	grpc, http string
	tls        *tls.Config // of its clients; nil: plain text
}

// Guarantees that `sluice serve` takes at most 256 MB and answers every other caller while clients hold as many
// unfinished requests as it lets them, in the forms that take the most memory for what they send. The log of the test
// has the peak and the times of the other callers.
func TestServeMemoryIsBounded(t *testing.T) {
	soak.SkipInQuick(t)
	soak.SkipUnderRace(t) // the service is a process of its own, and the attackers would take minutes
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("this system does not tell how much memory a process has taken")
	}
	program := filepath.Join(t.TempDir(), "sluice")
	if err := built.Build(program, "."); err != nil {
		t.Fatal(err)
	}
	for _, encrypted := range []bool{false, true} {
		name := map[bool]string{false: "plain", true: "TLS"}[encrypted]
		t.Run(name, func(t *testing.T) {
			v := startVictim(t, program, encrypted)
			idle := v.memory(t, "VmRSS")
			for _, f := range floods {
				t.Run(f.name, func(t *testing.T) {
					times, failed := v.flood(t, f)
					slices.Sort(times)
					t.Logf("peak %d MiB (%d MiB when it started), %d calls of others, p50 %s, p99 %s",
						v.memory(t, "VmHWM")>>20, idle>>20, len(times), times[len(times)/2], times[len(times)*99/100])
					if failed != nil {
						t.Errorf("another caller was not answered: %v", failed)
					}
					if peak := v.memory(t, "VmHWM"); peak > mostResident {
						t.Errorf("the service has taken %d MiB, want at most %d", peak>>20, mostResident>>20)
					}
				})
			}
		})
	}
}

// floods are ways to occupy the memory of a server. Each attacker begins anew when the server cuts it off.
var floods = []struct {
	name      string
	http      bool // the HTTP server; false: the gRPC server
	attackers int
	attack    func(net.Conn) error // until the server closes the connection
}{
	{"messages that do not end", false, 16, func(c net.Conn) error {
		return holdStreams(c, unfinished(4<<20), 16<<10, nil)
	}},
	{"messages of the largest size that do not end", false, 16, func(c net.Conn) error {
		return holdStreams(c, unfinished(64<<10), 16<<10, nil)
	}},
	{"messages in frames that take a larger buffer", false, 16, func(c net.Conn) error {
		return holdStreams(c, unfinished(64<<10), 4097, nil)
	}},
	{"messages in frames of one byte", false, 16, func(c net.Conn) error {
		return holdStreams(c, unfinished(64<<10), 1, nil)
	}},
	{"connections with one message each", false, 300, func(c net.Conn) error {
		return holdStreams(c, unfinished(64 << 10)[:1], 16<<10, nil)
	}},
	{"requests without messages", false, 200, func(c net.Conn) error {
		return holdStreams(c, slices.Repeat([][]byte{unfinished(64 << 10)[0][:5]}, 250), 16<<10, nil)
	}},
	{"answers that are not let through", false, 16, func(c net.Conn) error {
		return holdStreams(c, slices.Repeat([][]byte{manyDescriptors}, 200), 16<<10,
			[]http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}})
	}},
	{"bodies that do not end", true, 100, func(c net.Conn) error {
		return holdHTTP(c, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
			"Content-Length: 4194304\r\n\r\n"+strings.Repeat(" ", 4<<20-1))
	}},
	{"bodies of the largest size that do not end", true, 300, func(c net.Conn) error {
		return holdHTTP(c, "POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
			"Content-Length: 65000\r\n\r\n"+strings.Repeat(" ", 64999))
	}},
	{"connections with a part of a body each", true, 700, func(c net.Conn) error {
		return holdHTTP(c, "POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
			"Content-Length: 65000\r\n\r\n"+strings.Repeat(" ", 3500))
	}},
	{"connections that say nothing", true, 2300, func(c net.Conn) error { return holdHTTP(c, "") }},
	{"bodies in chunks of one byte", true, 100, func(c net.Conn) error {
		return holdHTTP(c, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
			"Transfer-Encoding: chunked\r\n\r\n"+strings.Repeat("1\r\n \r\n", 64000))
	}},
	{"headers that do not end", true, 300, func(c net.Conn) error {
		var header strings.Builder
		for i := range 5000 {
			header.WriteString(strconv.FormatInt(int64(i), 36) + ":\n")
		}
		return holdHTTP(c, "GET /healthcheck HTTP/1.1\r\nHost: x\r\n"+header.String())
	}},
}

// unfinished returns the beginnings of messages of a size, each as long as a stream's window lets a client send.
func unfinished(size uint32) [][]byte {
	message := binary.BigEndian.AppendUint32([]byte{0}, size)
	message = append(message, bytes.Repeat([]byte{0xff}, 65535)...)[:min(65535, int(size)+4)]
	return slices.Repeat([][]byte{message}, 400)
}

// manyDescriptors is a complete request whose answer is long.
var manyDescriptors = func() []byte {
	r := &rlsv3.RateLimitRequest{Domain: "api"}
	for range 1000 {
		r.Descriptors = append(r.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: "flood"}}})
	}
	text, err := proto.Marshal(r)
	if err != nil {
		panic(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...)
}()

// holdStreams opens a stream for each message, sends the messages in frames of the given size, and answers whatever a
// server asks to find out whether the client is alive. A message that is complete ends its stream.
func holdStreams(conn net.Conn, messages [][]byte, frame int, settings []http2.Setting) error {
	buffer := bufio.NewWriterSize(conn, 64<<10)
	framer := http2.NewFramer(buffer, conn)
	var mu sync.Mutex // held while frames are written, so that two goroutines do not mix them
	ended := make(chan error, 1)
	go func() {
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				ended <- err
				return
			}
			mu.Lock()
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if !f.IsAck() {
					err = framer.WriteSettingsAck()
				}
			case *http2.PingFrame:
				if !f.IsAck() {
					err = framer.WritePing(true, f.Data)
				}
			}
			err = errors.Join(err, buffer.Flush())
			mu.Unlock()
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	var header bytes.Buffer
	encoder := hpack.NewEncoder(&header)
	write := func(do func() error) error {
		mu.Lock()
		defer mu.Unlock()
		return do()
	}
	err := write(func() error {
		_, err := buffer.WriteString(http2.ClientPreface)
		return errors.Join(err, framer.WriteSettings(settings...))
	})
	for i, message := range messages {
		if err != nil {
			return err
		}
		stream := uint32(2*i + 1)
		err = write(func() error {
			header.Reset()
			for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "x"},
				{":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"},
				{"content-type", "application/grpc"}, {"te", "trailers"}} {
				if err := encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
					return err
				}
			}
			return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: header.Bytes(),
				EndHeaders: true})
		})
		complete := int(binary.BigEndian.Uint32(message[1:]))+5 == len(message)
		for rest := message; len(rest) > 0 && err == nil; {
			part := rest[:min(frame, len(rest))]
			rest = rest[len(part):]
			err = write(func() error { return framer.WriteData(stream, complete && len(rest) == 0, part) })
		}
	}
	if err == nil {
		err = write(buffer.Flush)
	}
	if err != nil {
		return err
	}
	return <-ended
}

// holdHTTP sends a text and then waits.
func holdHTTP(conn net.Conn, text string) error {
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, conn)
	return err
}

// startVictim starts the program, and waits until it listens.
func startVictim(t *testing.T, program string, encrypted bool) *victim {
	t.Helper()
	args := []string{"serve", "--config", limitsFile(t, 1_000_000_000), "--grpc", "127.0.0.1:0",
		"--http", "127.0.0.1:0", "--debug", "127.0.0.1:0"}
	v := new(victim)
	if encrypted {
		cert, key := certificateFiles(t)
		text, err := os.ReadFile(cert)
		if err != nil {
			t.Fatal(err)
		}
		v.tls = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
		v.tls.RootCAs.AppendCertsFromPEM(text)
		args = append(args, "--tls-cert", cert, "--tls-key", key)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	// make test sets GOGC for the tests, and nobody sets it for the service.
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GOGC=") })
	if v.process, err = redistest.Run(nil, nil, log, env, program, args...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.process.Kill)
	waitWithin(t, "sluice serve listens", func() error {
		text, err := os.ReadFile(log.Name())
		found := regexp.MustCompile(`server=(gRPC|HTTP|debug) address=(\S+)`).FindAllStringSubmatch(string(text), -1)
		if err == nil && len(found) < 3 {
			err = fmt.Errorf("its log: %s", text)
		}
		for _, f := range found {
			switch f[1] {
			case "gRPC":
				v.grpc = f[2]
			case "HTTP":
				v.http = f[2]
			}
		}
		return err
	})
	v.pid = pidOf(t, program)
	return v
}

// pidOf returns the process whose program is the file.
func pidOf(t *testing.T, program string) int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == program {
			pid, _ = strconv.Atoi(strings.Split(link, "/")[2]) // the pattern has digits there
		}
	}
	if pid == 0 {
		t.Fatalf("no process runs %s", program)
	}
	return pid
}

// memory returns a line of the process's status, such as VmHWM, the most memory that it has taken, in bytes.
func (v *victim) memory(t *testing.T, line string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", v.pid))
	found := regexp.MustCompile(line + `:\s+(\d+) kB`).FindSubmatch(text)
	if err != nil || found == nil {
		t.Fatalf("the service has ended, or its status has no %s: %v", line, err)
	}
	kib, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// flood runs the attackers of a flood for some seconds. It returns how long the calls of other callers took in the
// meantime, and an error of one of them.
func (v *victim) flood(t *testing.T, f struct {
	name      string
	http      bool
	attackers int
	attack    func(net.Conn) error
}) ([]time.Duration, error) {
	t.Helper()
	const lasts = 1 * time.Second
	ctx, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	var attackers, others sync.WaitGroup
	address, protocol := v.grpc, "h2"
	if f.http {
		address, protocol = v.http, "http/1.1"
	}
	for range f.attackers {
		attackers.Go(func() {
			for ctx.Err() == nil {
				conn, err := v.dial(ctx, address, protocol)
				if err != nil {
					continue
				}
				cut := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_ = f.attack(conn) // the server closed the connection
				cut()
				_ = conn.Close()
				select { // an attacker on the same machine must leave the service a processor
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
	}
	var mu sync.Mutex
	var times []time.Duration
	var failed error
	for _, call := range v.callers(t) {
		others.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for first := true; first || ctx.Err() == nil; first = false {
				began := time.Now()
				err := call()
				took := time.Since(began)
				mu.Lock()
				times, failed = append(times, took), errors.Join(failed, err)
				mu.Unlock()
				if err != nil {
					return
				}
				<-tick.C
			}
		})
	}
	others.Wait()
	attackers.Wait()
	return times, failed
}

func (v *victim) dial(ctx context.Context, address, protocol string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil || v.tls == nil {
		return conn, err
	}
	config := v.tls.Clone()
	config.NextProtos = []string{protocol}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secured, nil
}

// callers returns functions that make calls as clients should: two over gRPC, one over HTTP that keeps its connection,
// and one that makes a connection for each call.
func (v *victim) callers(t *testing.T) []func() error {
	t.Helper()
	secured, scheme := insecure.NewCredentials(), "http"
	if v.tls != nil {
		secured, scheme = credentials.NewTLS(v.tls), "https"
	}
	var all []func() error
	for range 2 {
		conn, err := grpc.NewClient(v.grpc, grpc.WithTransportCredentials(secured))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		all = append(all, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			out, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{
				Domain: "api",
				Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
					{Key: "tenant", Value: "honest"}}}}})
			if err == nil && out.GetOverallCode() != rlsv3.RateLimitResponse_OK {
				err = fmt.Errorf("gRPC: %s", out.GetOverallCode())
			}
			return err
		})
	}
	for _, each := range []bool{false, true} {
		client := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: v.tls,
			DisableKeepAlives: each}}
		t.Cleanup(client.CloseIdleConnections)
		all = append(all, func() error {
			req, err := http.NewRequest("POST", scheme+"://"+v.http+"/json", strings.NewReader(
				`{"domain": "api", "descriptors": [{"entries": [{"key": "tenant", "value": "honest"}]}]}`))
			if err != nil {
				return err
			}
			// With this header the client sends the request once more if the server has closed the connection since the
			// last answer, as a server may.
			req.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {"1"}}
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			text, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("HTTP: %d %s", resp.StatusCode, text)
			}
			return err
		})
	}
	return all
}
