package redact

import "testing"

// Guarantees that Text removes network addresses from the text of a log line, and leaves similar text such as times.
func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"http: TLS handshake error from 203.0.113.7:1234: EOF": "http: TLS handshake error from [address]: EOF",
		"read tcp 10.0.0.1:80->[2001:db8::1]:5: reset":         "read tcp [address]->[address]: reset",
		"from [fe80::1%eth0]:5":                                "from [address]",
		"superfluous WriteHeader call from a.b (server.go:12)": "superfluous WriteHeader call from a.b " +
			"(server.go:12)",
		"Go 1.26.8 at 12:30:45, index out of range [3] with length 3": "Go 1.26.8 at 12:30:45, index out of range " +
			"[3] with length 3",
	} {
		if got := Text(in); got != want {
			t.Errorf("Text(%q) = %q, want %q", in, got, want)
		}
	}
}
