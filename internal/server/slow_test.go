package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluicelimits/sluice/internal/server"
)

// TestMain lets more tests run in parallel than there are processors, because those of slow clients only wait for the
// server.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for an event that must happen. The server's own time limits are at most 10 s.
const patience = time.Minute

// Guarantees that clients that connect and then send nothing, or stop in the middle of a handshake, a header or a body,
// are disconnected, even if they hold every connection that the server accepts; and that a client that comes after them
// is served.
func TestSlowClients(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits until the server has lost its patience, which is 5 to 10 s")
	}
	const most = 4 // connections
	dir := t.TempDir()
	servers := newAuthority(t)
	cert, key := servers.files(dir, "server")
	certificates, err := server.OpenCertificates(cert, key, "", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, server, sends string
		tls                 bool
	}{
		{"nothing over gRPC", "gRPC", "", false},
		{"half a preface over gRPC", "gRPC", "PRI * HTTP/2.0\r\n", false},
		{"a preface over gRPC, and no settings", "gRPC", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false},
		{"half a handshake of TLS over gRPC", "gRPC", "\x16\x03\x01\x02\x00\x01", true},
		{"nothing over HTTP", "HTTP", "", false},
		{"half a header over HTTP", "HTTP", "POST /json HTTP/1.1\r\nHost: x\r\nContent-Le", false},
		{"half a body over HTTP", "HTTP", "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", false},
		{"half a handshake of TLS over HTTP", "HTTP", "\x16\x03\x01\x02\x00\x01", true},
		{"half a header to the debug port", "debug", "GET /stats HTTP/1.1\r\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			config := server.Config{RateLimits: service(t, nil), MaxConnections: most}
			var trust *tls.Config // nil: plain text
			if c.tls {
				config.TLS = certificates.Config()
				trust = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
				trust.RootCAs.AddCert(servers.cert)
			}
			r := start(t, config)
			slow := make([]net.Conn, most)
			for i := range slow {
				conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.Addr(c.server).String())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				if _, err := io.WriteString(conn, c.sends); err != nil {
					t.Fatal(err)
				}
				slow[i] = conn
			}
			if err := served(t, r, c.server, trust); err != nil {
				t.Errorf("a client that comes later: %v", err)
			}
			for i, conn := range slow {
				_ = conn.SetReadDeadline(time.Now().Add(patience)) // it fails only for a connection that is closed
				if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
					t.Errorf("connection %d is still open", i)
				}
			}
		})
	}
}

// served makes a request as a client should, and waits until there is a connection for it.
func served(t *testing.T, r *running, name string, trust *tls.Config) error {
	t.Helper()
	if name == "gRPC" {
		secured := insecure.NewCredentials()
		if trust != nil {
			secured = credentials.NewTLS(trust)
		}
		_, err := rlsv3.NewRateLimitServiceClient(r.dial(t, secured)).ShouldRateLimit(t.Context(), request("x"),
			grpc.WaitForReady(true))
		return err
	}
	scheme, client := "http", &http.Client{Timeout: patience}
	client.Transport = &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true}
	if trust != nil {
		scheme = "https"
	}
	path := map[string]string{"HTTP": "/healthcheck", "debug": "/stats"}[name]
	resp, err := client.Get(scheme + "://" + r.Addr(name).String() + path)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error) //nolint:errorlint // as the connection returns it
	return ok && timeout.Timeout()
}
