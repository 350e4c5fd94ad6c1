package server_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/gateway"
	"github.com/sluicelimits/sluice/internal/server"
)

// Guarantees that the proxy waits at its end for connections that speak WebSocket by now, as for requests in flight,
// and that it tells their handlers when it cuts them off, and waits until these have given back what they hold.
func TestProxyAwaitsUpgrades(t *testing.T) {
	for _, c := range []struct {
		name  string
		grace time.Duration
		want  string // in the error of Serve
	}{{"it ends", time.Minute, ""}, {"it goes on", time.Millisecond, "were cut off"}} {
		t.Run(c.name, func(t *testing.T) {
			gaveBack := false
			upgraded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, both, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
				ended := make(chan bool)
				go func() {
					_, _ = both.ReadString('\n')
					close(ended)
				}()
				select {
				case <-ended:
				case <-r.Context().Done():
				}
				gaveBack = true
			})
			s, err := server.Listen(server.Config{Proxy: upgraded, Listen: "127.0.0.1:0", Grace: c.grace,
				Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- s.Serve(ctx, nil) }()
			at := s.Addr("proxy").String()
			conn, err := net.Dial("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "101") {
				t.Fatalf("the answer is %q, %v", line, err)
			}
			stop()
			for c.want == "" { // until the server no longer listens, so that it waits for this connection alone
				probe, err := net.Dial("tcp", at)
				if err != nil {
					break
				}
				_ = probe.Close()
			}
			if c.want == "" {
				if _, err := io.WriteString(conn, "end\n"); err != nil {
					t.Errorf("the connection was cut off: %v", err)
				}
			}
			err = <-served
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("Serve returned %v, want %q", err, c.want)
			}
			if !gaveBack {
				t.Error("Serve returned before the handler had ended")
			}
		})
	}
}

// Guarantees that a proxy that is not ready says so at the path for health checks, and answers requests with a problem.
func TestProxyIsNotReady(t *testing.T) {
	s, err := server.Listen(server.Config{Listen: "127.0.0.1:0", Ready: make(chan struct{}),
		Proxy: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request was passed on") }),
		Log:   slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, nil) }()
	for path, want := range map[string]int{gateway.HealthPath: 500, "/x": 429} {
		got, err := http.Get("http://" + s.Addr("proxy").String() + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(got.Body)
		_ = got.Body.Close() // it was read
		if isProblem := strings.Contains(string(text), "limiter-unavailable"); err != nil || got.StatusCode != want ||
			isProblem != (want == 429) {
			t.Errorf("%s: %d %s, %v; want %d", path, got.StatusCode, text, err, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
