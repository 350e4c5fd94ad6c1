// Package redistest starts real Redis servers for tests, on the loopback address and in memory: single servers, or a
// cluster of three. They end with the test, and also if the process of the test is killed.
package redistest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Server is a redis-server process.
type Server struct {
	Addr string // 127.0.0.1:port
	TLS  string // the address for TLS; "" if the server was started without the option --tls-port
	Dir  string // its working folder

	binary  string
	args    []string
	process *Process
}

const startWithin = 20 * time.Second

// Missing skips the test because there is no server, or fails it if REQUIRE_STORES names redis.
func Missing(tb testing.TB, why error) {
	tb.Helper()
	if slices.Contains(strings.Split(os.Getenv("REQUIRE_STORES"), ","), "redis") {
		tb.Fatalf("REQUIRE_STORES names redis: %v", why)
	}
	tb.Skipf("%v; install redis-server", why)
}

// Find returns the path of redis-server or valkey-server.
func Find() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no redis-server and no valkey-server in PATH")
}

// Start starts a server that ends with the test. The options are added to its command line.
func Start(tb testing.TB, options ...string) *Server {
	tb.Helper()
	if _, err := Find(); err != nil {
		Missing(tb, err)
	}
	s, err := Launch(tb.TempDir(), options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Kill)
	return s
}

// Launch starts a server whose working folder is dir. The caller must kill it. If this process ends before that, the
// server ends, too.
func Launch(dir string, options ...string) (*Server, error) {
	binary, err := Find()
	if err != nil {
		return nil, err
	}
	for range 5 { // another process may take the port before the server does
		var port int
		if port, err = freePort(); err != nil {
			return nil, err
		}
		s := &Server{Addr: "127.0.0.1:" + strconv.Itoa(port), Dir: dir, binary: binary}
		s.args = append([]string{
			"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
			"--enable-debug-command", "yes", "--repl-diskless-load", "swapdb", "--repl-diskless-sync-delay", "0",
			"--logfile", filepath.Join(dir, "redis.log"),
		}, options...)
		if i := slices.Index(options, "--tls-port"); i >= 0 {
			s.TLS = "127.0.0.1:" + options[i+1]
		}
		if err = s.Start(); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// Start starts a killed server again, at the same address and without data.
func (s *Server) Start() error {
	var err error
	if s.process, err = Run(nil, nil, nil, nil, s.binary, s.args...); err != nil {
		return err
	}
	if err := s.ready(); err != nil {
		s.Kill()
		log, _ := os.ReadFile(filepath.Join(s.Dir, "redis.log"))
		return fmt.Errorf("%s at %s: %w\n%s", s.binary, s.Addr, err, log)
	}
	return nil
}

// ready waits until the server answers a PING, if only that a password is required.
func (s *Server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	return Until(ctx, func() error {
		c, err := net.DialTimeout("tcp", s.Addr, time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if _, err := io.WriteString(c, "PING\r\n"); err != nil {
			return err
		}
		var answer [5]byte
		if _, err := io.ReadFull(c, answer[:]); err != nil {
			return err
		}
		if a := string(answer[:]); a != "+PONG" && a != "-NOAU" {
			return fmt.Errorf("answers %q", a)
		}
		return nil
	})
}

// Until calls f until it returns nil, and returns its last error when ctx is done.
func Until(ctx context.Context, f func() error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// Kill ends the server with signal 9 and waits for its end. Its data is lost.
func (s *Server) Kill() { s.process.Kill() }

// Freeze stops the server: connections are accepted, but it answers nothing. It carries out commands that arrive
// meanwhile after Thaw.
func (s *Server) Freeze() error { return s.process.Freeze() }

// Thaw lets a frozen server continue.
func (s *Server) Thaw() error { return s.process.Thaw() }

// Client returns a client of the server, for commands that a test sends without the store.
func (s *Server) Client(tb testing.TB) *goredis.Client {
	tb.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr, Protocol: 2, ReadTimeout: 30 * time.Second,
		DisableIdentity: true})
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// freePort returns a free port in 10000..29999. Linux, macOS and Windows use ports above that range for outgoing
// connections, and for listeners that ask for any port. Therefore other tests that run at the same time rarely take it.
func freePort() (int, error) {
	var failed error
	for range 100 {
		port := 10_000 + rand.IntN(20_000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
		failed = err
	}
	return 0, failed
}

// FreePort returns a port on which nobody listens at the moment.
func FreePort(tb testing.TB) int {
	tb.Helper()
	port, err := freePort()
	if err != nil {
		tb.Fatal(err)
	}
	return port
}
