//go:build unix

package endtoend_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sluicelimits/sluice/internal/testkit/lambdahost"
)

// told holds every line that a function or the gateway wrote in this run, and every secret that no line may contain.
var told sink

// sink collects lines and secrets.
type sink struct {
	mu      sync.Mutex
	text    []byte             // all lines, each with a line feed; only ever appended to
	secrets map[string]*secret // by each of its spellings

	searching sync.Mutex // held by leaks
}

// secret is a text that no line may contain.
type secret struct {
	what string

	// guarded by sink.searching
	searched int    // how many bytes of the text were searched for it
	leak     string // where it was found first, or ""
}

// Write receives the lines of a slog handler.
func (s *sink) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(append(s.text, line...), '\n')
	return len(line), nil
}

func (s *sink) log() *slog.Logger {
	return slog.New(slog.NewJSONHandler(s, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// line adds a line of a function.
func (s *sink) line(l lambdahost.Line) { _, _ = s.Write([]byte(l.Text)) }

// secret adds a text that no line may contain, and returns it. Of a JWT, each part is added, because one part is enough
// to identify its user.
func (s *sink) secret(what, value string) string {
	spellings := []string{value, url.QueryEscape(value), base64.StdEncoding.EncodeToString([]byte(value)),
		strings.Trim(strconv.Quote(value), `"`)}
	if parts := strings.Split(value, "."); len(parts) == 3 && len(parts[1]) > 20 {
		spellings = append(spellings, parts...)
	}
	if a, err := netip.ParseAddr(value); err == nil {
		spellings = append(spellings, a.String(), a.Unmap().String(), a.StringExpanded())
	}
	const least = 7 // a shorter text is not a secret: it can be in a line by chance
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secrets == nil {
		s.secrets = make(map[string]*secret)
	}
	for _, v := range spellings {
		if len(v) >= least && s.secrets[v] == nil {
			s.secrets[v] = &secret{what: what}
		}
	}
	return value
}

// findSecrets describes where a secret is in the lines, without the secret itself. Each call searches the text that is
// new since the last call, and returns everything that was ever found. Functions can write lines meanwhile: a function
// that had to wait for a search would not answer in time.
func (s *sink) findSecrets() (found []string) {
	s.searching.Lock()
	defer s.searching.Unlock()
	s.mu.Lock()
	text, secrets := s.text, maps.Clone(s.secrets)
	s.mu.Unlock()
	for value, secret := range secrets {
		from := max(0, secret.searched-len(value)+1) // the end of what was searched may be the secret's beginning
		if at := bytes.Index(text[from:], []byte(value)); at >= 0 && secret.leak == "" {
			at += from
			secret.leak = fmt.Sprintf("%s: …%s<here>", secret.what, text[max(0, at-200):at])
		}
		secret.searched = len(text)
		if secret.leak != "" {
			found = append(found, secret.leak)
		}
	}
	return found
}

// Guarantees that the check of the lines can fail: a function that prints what it receives is detected for each kind of
// secret, and a function that does not is not reported.
func TestLeaksAreFound(t *testing.T) {
	for what, value := range map[string]string{
		"an API key":         "slk_0123456789abcdef",
		"a token":            "eyJhbGciOiJub25lIn0.eyJ0ZW5hbnRfaWQiOiJhY21lIn0.c2lnbmF0dXJlc2lnbmF0dXJl",
		"an address":         "203.0.113.77",
		"an address of IPv6": "2001:db8:9:8::77",
	} {
		for name, sent := range map[string]string{"whole": value, "none": "nothing to see"} {
			var s sink
			s.secret(what, value)
			w := &world{t: t, dir: t.TempDir(), sink: &s}
			host := w.function(leaky)
			event, err := json.Marshal(map[string]any{"headers": map[string]string{"x": sent}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := host.Invoke(t.Context(), event); err != nil {
				t.Fatal(err)
			}
			closeHost(t, host)
			if got, want := len(s.findSecrets()) > 0, name == "whole"; got != want {
				t.Errorf("%s, %s: a leak was found: %v, want %v\n%q", what, name, got, want, s.text)
			}
		}
	}
	var s sink
	s.secret("a token", "head1234.payload-payload-payload.signature")
	s.log().Info("refused", "payload", "payload-payload-payload")
	if len(s.findSecrets()) == 0 {
		t.Errorf("a part of a token was not found in %q", s.text)
	}

	s.secret("another", "another-secret")
	for i, c := range []struct {
		line string
		want int
	}{
		{"nothing to see", 1}, {"ends with another-secret", 2}, {"nothing to see", 2}, {"later-secret", 2},
	} {
		s.log().Info(c.line)
		if n := len(s.findSecrets()); n != c.want {
			t.Errorf("%d leaks after the line %d, want %d in %q", n, i, c.want, s.text)
		}
	}
	if s.secret("a secret that becomes known after its line", "later-secret"); len(s.findSecrets()) != 3 {
		t.Errorf("a secret was not found in a line from before it was known: %q", s.text)
	}
}
