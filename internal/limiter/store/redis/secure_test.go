package redis_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// certificate writes a self-signed certificate for the loopback address, and returns its files and a pool that trusts
// it.
func certificate(tb testing.TB) (cert, key string, trust *x509.CertPool) {
	tb.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"}, NotBefore: now.Add(-time.Hour),
		NotAfter:    now.Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		tb.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			tb.Fatal(err)
		}
		return path
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	trust = x509.NewCertPool()
	trust.AddCert(parsed)
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", secret), trust
}

// secured starts a server that requires TLS and has the user sluice.
func secured(tb testing.TB) (server *redistest.Server, trust *x509.CertPool) {
	tb.Helper()
	cert, key, trust := certificate(tb)
	server = redistest.Start(tb, "--tls-port", fmt.Sprint(redistest.FreePort(tb)), "--tls-cert-file", cert,
		"--tls-key-file", key,
		"--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	admin := server.Client(tb)
	if err := admin.Do(tb.Context(), "ACL", "SETUSER", "sluice", "on", ">first", "~{rl:*", "+@all", "-@dangerous",
		"+role").Err(); err != nil {
		tb.Fatal(err)
	}
	return server, trust
}

// login returns a password that can change, like a token.
type login struct {
	mu    sync.Mutex
	token string
	asked int
}

func (l *login) credentials(context.Context) (user, password string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if l.token == "" {
		return "", "", errors.New("no token")
	}
	return "sluice", l.token, nil
}

func (l *login) set(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token = token
}

// Guarantees that the store works over TLS with a user that may access nothing else, and that each new connection uses
// the password of its time.
func TestTLSAndCredentials(t *testing.T) {
	server, trust := secured(t)
	l := &login{token: "first"}
	s := open(t, redis.Config{Addrs: []string{server.TLS}, TLS: &tls.Config{RootCAs: trust,
		MinVersion: tls.VersionTLS12}, Credentials: l.credentials})
	charges := threeCharges(t)
	if left, err := decideOnce(t, s, charges); err != nil || left != 999 {
		t.Fatalf("%d left, %v; want 999", left, err)
	}
	admin := server.Client(t)
	for _, args := range [][]any{
		{"ACL", "SETUSER", "sluice", "resetpass", ">second"},
		{"CLIENT", "KILL", "USER", "sluice"},
	} {
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// the first decision uses the old connection, which is closed, and nobody knows whether it was charged
	for range 3 {
		_, err := decideOnce(t, s, charges)
		if err == nil {
			t.Fatal("a new connection with the old password is accepted, want it refused")
		}
		if strings.Contains(err.Error(), "first") {
			t.Errorf("the error contains the password: %v", err)
		}
	}
	l.set("second")
	if left := recovers(t, s, charges); left != 998 {
		t.Errorf("with the new password %d are left, want 998", left)
	}
}

// Guarantees that a wrong certificate, a wrong password and a missing password each prevent a connection.
func TestTLSAndCredentialsRefused(t *testing.T) {
	server, trust := secured(t)
	good := &tls.Config{RootCAs: trust, MinVersion: tls.VersionTLS12}
	first := &login{token: "first"}
	for _, tt := range []struct {
		name string
		c    redis.Config
		want string
	}{
		{"a certificate that nobody vouches for", redis.Config{TLS: &tls.Config{MinVersion: tls.VersionTLS12},
			Credentials: first.credentials}, "certificate"},
		{"another name", redis.Config{TLS: &tls.Config{RootCAs: trust, ServerName: "example.com",
			MinVersion: tls.VersionTLS12}, Credentials: first.credentials}, "example.com"},
		{"a wrong password", redis.Config{TLS: good, Credentials: (&login{token: "wrong"}).credentials}, "WRONGPASS"},
		{"no token", redis.Config{TLS: good, Credentials: (&login{}).credentials}, "credentials: no token"},
		{"plain text", redis.Config{Credentials: first.credentials}, "connect to"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.c.Addrs = []string{server.TLS}
			s := open(t, tt.c)
			if left, err := decideOnce(t, s, threeCharges(t)); !contains(err, tt.want) {
				t.Errorf("%d left, %v; want an error with %q", left, err, tt.want)
			}
			if err := s.Ping(t.Context()); !contains(err, tt.want) {
				t.Errorf("Ping: %v, want an error with %q", err, tt.want)
			}
		})
	}
}

// Guarantees that a user that may not call ROLE gets an error that says what is missing: it cannot be sure to have a
// primary.
func TestRoleForbidden(t *testing.T) {
	server := redistest.Start(t)
	if err := server.Client(t).Do(t.Context(), "ACL", "SETUSER", "sluice", "on", ">first", "~*", "+@all",
		"-role").Err(); err != nil {
		t.Fatal(err)
	}
	s := open(t, redis.Config{Addrs: []string{server.Addr}, Credentials: (&login{token: "first"}).credentials})
	if _, err := decideOnce(t, s, threeCharges(t)); !contains(err, "ROLE") || !contains(err, "NOPERM") {
		t.Errorf("a user without +role: %v, want an error with ROLE and NOPERM", err)
	}
}

// Guarantees that a handshake that takes longer than a decision may take fails that decision, and serves a later one.
func TestSlowConnect(t *testing.T) {
	server := redistest.Start(t)
	slow := make(chan struct{})
	var once sync.Once
	s := open(t, redis.Config{Addrs: []string{server.Addr}, Deadline: 30 * time.Millisecond, PoolSize: 1,
		Credentials: func(ctx context.Context) (string, string, error) {
			select {
			case <-slow:
				return "default", "any", nil
			case <-ctx.Done():
				return "", "", ctx.Err()
			}
		}})
	defer once.Do(func() { close(slow) })
	charges := threeCharges(t)
	// The ping of New has waited for the first connection in vain. This decision does not wait longer than its time
	// limit.
	began := time.Now()
	if _, err := decideOnce(t, s, charges); err == nil {
		t.Fatal("the decision returns no error although there is no connection, want one")
	}
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("the decision took %s, want about 30ms", took)
	}
	once.Do(func() { close(slow) })
	recovers(t, s, charges)
}
