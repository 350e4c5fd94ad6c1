package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Guarantees that counters are in the store that the flags name: a cluster, a Redis with TLS, a user and a password, or
// DynamoDB. A second service continues with the counters of the first one, whether units are leased or not.
func TestServeStores(t *testing.T) {
	for _, c := range []struct {
		name  string
		store func(t *testing.T) []string // returns the flags
	}{
		{"cluster", func(t *testing.T) []string {
			addresses := redistest.Addrs(redistest.StartCluster(t))
			return []string{"--redis", strings.Join(addresses, ","), "--redis-cluster", "--redis-deadline", "10s"}
		}},
		{"TLS", func(t *testing.T) []string {
			server, authority := securedRedis(t)
			password := filepath.Join(t.TempDir(), "password")
			if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return []string{"--redis", server.TLS, "--redis-tls", "--redis-ca", authority, "--redis-user", "sluice",
				"--redis-password-file", password, "--redis-namespace", "test", "--redis-deadline", "10s"}
		}},
		{"DynamoDB", func(t *testing.T) []string {
			return []string{"--dynamodb", dynamodbtest.Need(t), "--dynamodb-table", tableName(t),
				"--dynamodb-deadline", "10s"}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			flags := append(c.store(t), "--config", limitsFile(t, 3))
			first := startServe(t, flags...)
			for i := range 2 {
				if got := first.ask(t, "tenant", "acme"); got != rlsv3.RateLimitResponse_OK {
					t.Errorf("request %d: the answer is %s", i, got)
				}
			}
			first.stop() // returns the leased units
			if err := <-first.done; err != nil {
				t.Errorf("the first service ended with %v", err)
			}
			second := startServe(t, append(flags, "--leases=false")...)
			for i, want := range []rlsv3.RateLimitResponse_Code{1, 2} {
				if got := second.ask(t, "tenant", "acme"); got != want {
					t.Errorf("request %d of the second service: %s, want %s", i, got, want)
				}
			}
			if log := second.stderr.String(); strings.Contains(log, "the store did not decide") {
				t.Errorf("the store was not used:\n%s", log)
			}
		})
	}
}

// Guarantees that a file with a limit that the store cannot keep is refused, with the name of the limit, before
// anything is served.
func TestServeStoreRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limits.yaml")
	text := "domain: api\ndescriptors:\n  - key: tenant\n    sluice:\n" +
		"      limits: [{id: log, algorithm: sliding_log, threshold: 10000, period: 1h}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := sluice(t, "", "serve", "--config", file, "--dynamodb", dynamodbtest.Need(t), "--dynamodb-table",
		tableName(t))
	if got.code != exitFailed || !strings.Contains(got.stderr, file+": api.tenant: ") {
		t.Errorf("a limit that the store cannot keep: exit %d, %s", got.code, got.stderr)
	}
}

// securedRedis starts a Redis that requires TLS and has the user sluice with the password "secret". It also returns the
// file with the certificate authority.
func securedRedis(t *testing.T) (server *redistest.Server, authority string) {
	t.Helper()
	authority, key := certificateFiles(t)
	server = redistest.Start(t, "--tls-port", fmt.Sprint(redistest.FreePort(t)), "--tls-cert-file", authority,
		"--tls-key-file", key, "--tls-ca-cert-file", authority, "--tls-auth-clients", "no")
	err := server.Client(t).Do(t.Context(), "ACL", "SETUSER", "sluice", "on", ">secret", "~{rl:*", "+@all",
		"-@dangerous",
		"+role").Err()
	if err != nil {
		t.Fatal(err)
	}
	return server, authority
}

// certificateFiles writes a certificate for 127.0.0.1 and client.example, which is its own authority, and its key.
func certificateFiles(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true,
		DNSNames:              []string{"client.example"},
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
