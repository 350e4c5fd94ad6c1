package redisstore_test

import (
	"context"
	"crypto/tls"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/redisstore"
)

// Guarantees that a password is not sent in plain text unless the program says so or the server is on this machine.
func TestPasswordInPlainText(t *testing.T) {
	ended, end := context.WithCancel(t.Context()) // so that New does not wait for servers that are not there
	end()
	asked := false
	login := func(context.Context) (user, password string, err error) {
		asked = true
		return "", "secret", nil
	}
	for _, c := range []struct {
		name    string
		config  redisstore.Config
		refused bool
	}{
		{"a password", redisstore.Config{Addrs: []string{"cache.example.com:6379"}, Credentials: login}, true},
		{"a password to an address", redisstore.Config{Addrs: []string{"10.0.0.7:6379"}, Credentials: login}, true},
		{"no port", redisstore.Config{Addrs: []string{"127.0.0.1"}, Credentials: login}, true},
		{"a name that only begins like loopback",
			redisstore.Config{Addrs: []string{"127.0.0.1.example.com:6379"}, Credentials: login}, true},
		{"one node of several is elsewhere",
			redisstore.Config{Addrs: []string{"127.0.0.1:1", "10.0.0.7:1"}, Cluster: true, Credentials: login}, true},
		{"a cluster, which may name nodes elsewhere",
			redisstore.Config{Addrs: []string{"127.0.0.1:1"}, Cluster: true, Credentials: login}, true},

		{"TLS", redisstore.Config{Addrs: []string{"cache.example.com:6379"}, Credentials: login,
			TLS: &tls.Config{MinVersion: tls.VersionTLS12}}, false},
		{"allowed", redisstore.Config{Addrs: []string{"cache.example.com:6379"}, Credentials: login,
			AllowPlaintextPassword: true}, false},
		{"a cluster, allowed", redisstore.Config{Addrs: []string{"127.0.0.1:1"}, Cluster: true, Credentials: login,
			AllowPlaintextPassword: true}, false},
		{"no password", redisstore.Config{Addrs: []string{"cache.example.com:6379"}}, false},
		{"this machine, IPv4", redisstore.Config{Addrs: []string{"127.0.0.1:1"}, Credentials: login}, false},
		{"this machine, IPv6", redisstore.Config{Addrs: []string{"[::1]:1"}, Credentials: login}, false},
		{"this machine, IPv4 in IPv6", redisstore.Config{Addrs: []string{"[::ffff:127.0.0.1]:1"}, Credentials: login},
			false},
		{"this machine, by name", redisstore.Config{Addrs: []string{"localhost:1"}, Credentials: login}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked = false
			s, err := redisstore.New(ended, c.config)
			if s != nil {
				t.Cleanup(func() { _ = s.Close() })
			}
			if (err != nil) != c.refused {
				t.Fatalf("New: %v", err)
			}
			if !c.refused {
				return
			}
			for _, text := range []string{"plain text", "TLS", "AllowPlaintextPassword"} {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("the error lacks %q: %v", text, err)
				}
			}
			if asked || strings.Contains(err.Error(), "secret") {
				t.Errorf("the password was asked for: %v, %v", asked, err)
			}
		})
	}
}
