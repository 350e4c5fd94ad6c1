//go:build unix

package endtoend_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/lambdahost"
)

// told is every line that a function or the gateway wrote in this run, and everything that none of them may hold.
var told sink

// sink gathers lines and secrets.
type sink struct {
	mu      sync.Mutex
	lines   []string
	secrets map[string]string // what it is, by each of its spellings
}

// Write takes the lines of a slog handler.
func (s *sink) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, string(line))
	return len(line), nil
}

func (s *sink) log() *slog.Logger {
	return slog.New(slog.NewJSONHandler(s, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// line takes a function's line.
func (s *sink) line(l lambdahost.Line) { _, _ = s.Write([]byte(l.Text)) }

// secret notes what no line may hold, and returns it. Of a JWT each part counts, since a part is enough to say whose it
// was.
func (s *sink) secret(what, value string) string {
	spellings := []string{value, url.QueryEscape(value), base64.StdEncoding.EncodeToString([]byte(value)),
		strings.Trim(strconv.Quote(value), `"`)}
	if parts := strings.Split(value, "."); len(parts) == 3 && len(parts[1]) > 20 {
		spellings = append(spellings, parts...)
	}
	if a, err := netip.ParseAddr(value); err == nil {
		spellings = append(spellings, a.String(), a.Unmap().String(), a.StringExpanded())
	}
	const least = 7 // shorter is no secret, and stands in any line by chance
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secrets == nil {
		s.secrets = make(map[string]string)
	}
	for _, v := range spellings {
		if len(v) >= least {
			s.secrets[v] = what
		}
	}
	return value
}

// leaks are the lines that hold a secret, without the secret.
func (s *sink) leaks() (found []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := strings.Join(s.lines, "\n")
	for secret, what := range s.secrets {
		if at := strings.Index(all, secret); at >= 0 {
			found = append(found, fmt.Sprintf("%s: …%s<here>", what, all[max(0, at-200):at]))
		}
	}
	return found
}

// Guarantees that the check of this run's lines can fail: a function that prints what it is sent is found out,
// whichever of the things it prints is looked for, and one that does not is not.
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
			if got, want := len(s.leaks()) > 0, name == "whole"; got != want {
				t.Errorf("%s, %s: a leak was found: %v, want %v\n%q", what, name, got, want, s.lines)
			}
		}
	}
	var s sink
	s.secret("a token", "head1234.payload-payload-payload.signature")
	s.log().Info("refused", "payload", "payload-payload-payload")
	if len(s.leaks()) == 0 {
		t.Errorf("a part of a token was not found in %q", s.lines)
	}
}
