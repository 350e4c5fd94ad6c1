package addresskey

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/testkit/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var client = netip.MustParseAddr("192.0.2.1")

// shelf is a store that keeps one value.
type shelf struct {
	mu    sync.Mutex
	value string
	away  error         // returned by each call
	slow  time.Duration // how long each call takes
	calls int
}

var errAway = errors.New("connection refused")

// Keep implements [store.Keeper].
func (s *shelf) Keep(ctx context.Context, _ string, value []byte) ([]byte, string, error) {
	s.mu.Lock()
	slow := s.slow
	s.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.away != nil {
		return nil, "", s.away
	}
	if s.value == "" {
		s.value = string(value)
	}
	return []byte(s.value), "the shelf", nil
}

func (s *shelf) set(f func(*shelf)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func open(t *testing.T, s *shelf) (*Names, *logtest.Buffer) {
	t.Helper()
	log := new(logtest.Buffer)
	n := New(s, slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(n.Close)
	return n, log
}

// Guarantees that all processes that share a store name an address alike, whoever of them makes the key, and that
// another store has another key.
func TestShared(t *testing.T) {
	s := new(shelf)
	var many sync.WaitGroup
	names := make([]string, 8)
	for i := range names {
		n, _ := open(t, s)
		many.Go(func() { names[i] = n.Anonymise(client) })
	}
	many.Wait()
	for _, name := range names {
		if name != names[0] || len(name) != 32 {
			t.Errorf("processes name an address %q", names)
		}
	}
	if other, _ := open(t, new(shelf)); other.Anonymise(client) == names[0] {
		t.Error("two stores have the same key")
	}
}

// Guarantees that a store which is away at the start delays no request for longer than a second, is logged, and that
// the process uses the store's key soon after the store has come back.
func TestAwayAtTheStart(t *testing.T) {
	for name, away := range map[string]*shelf{"refuses": {away: errAway}, "hangs": {slow: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, log := open(t, away)
				began := time.Now()
				own := n.Anonymise(client)
				if took := time.Since(began); took > firstWait {
					t.Errorf("the first request waited for %s", took)
				}
				for range 600 { // the store is away for ten minutes
					<-time.After(time.Second)
					if n.Anonymise(client) != own {
						t.Fatal("the name changes while the store is away")
					}
				}
				if !strings.Contains(log.String(), "this process counts addresses by itself") {
					t.Errorf("the log says %q", log)
				}
				away.set(func(s *shelf) { s.away, s.slow = nil, 0 })
				for range 80 { // reads are at most 72 s apart, and one may be under way
					<-time.After(time.Second)
					n.Anonymise(client)
				}
				synctest.Wait()
				other, _ := open(t, away)
				if got := n.Anonymise(client); got == own || got != other.Anonymise(client) {
					t.Error("the process still uses a key of its own after the store has come back")
				}
				if !strings.Contains(log.String(), "was read from the store") {
					t.Errorf("the log says %q", log)
				}
				other.Close()
				n.Close()
			})
		})
	}
}

// Guarantees that a key in an unknown version, or in no known form, is refused and reported with its place, without its
// bytes, that it is not overwritten, and that a key that was read before stays in use.
func TestUnknownForms(t *testing.T) {
	secret := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("secret", 6)))
	for _, c := range []struct{ text, want string }{
		{`{"version": 2, "key": "` + secret + `"}`, "version 2, and this program knows version 1"},
		{`{"key": "` + secret + `"}`, "version 0"},
		{secret, "not of the form"},
		{`{"version": 1, "key": "` + secret[:20] + `"}`, "want at least 32"},
		{`{"version": 1, "key": "` + secret + `!"}`, "not base64"},
		{`{"version": 1, "key": "` + strings.Repeat("AAAA", 400) + `"}`, "want at most 1024"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &shelf{value: c.text}
			n, log := open(t, s)
			own := n.Anonymise(client)
			if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, c.want) ||
				!strings.Contains(text, "the shelf") || strings.Contains(text, secret[:16]) {
				t.Errorf("%s: the log says %q", c.text, text)
			}
			if n.Anonymise(client) != own || s.value != c.text {
				t.Errorf("%s: the key is not refused, or it was overwritten", c.text)
			}
			n.Close()

			s = new(shelf)
			n, log = open(t, s)
			before := n.Anonymise(client)
			s.set(func(s *shelf) { s.value = c.text })
			<-time.After(2 * refreshAfter)
			n.Anonymise(client)
			synctest.Wait()
			if n.Anonymise(client) != before || !strings.Contains(log.String(), "stays in use") {
				t.Errorf("%s takes the place of a key that was read; the log says %q", c.text, log)
			}
			n.Close()
		})
	}
}

// Guarantees that a key that was deleted in the store is replaced, that all processes use the new one within 72 s, and
// that this is logged.
func TestReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(shelf)
		a, log := open(t, s)
		b, _ := open(t, s)
		before := a.Anonymise(client)
		b.Anonymise(client)
		s.set(func(s *shelf) { s.value = "" })
		for range 72 {
			<-time.After(time.Second)
			a.Anonymise(client)
			b.Anonymise(client)
		}
		synctest.Wait()
		if after := a.Anonymise(client); after == before || after != b.Anonymise(client) {
			t.Error("not all processes use the new key")
		}
		if !strings.Contains(log.String(), "was replaced in the store") {
			t.Errorf("the log says %q", log)
		}
		if s.calls > 6 {
			t.Errorf("%d reads in 72 s", s.calls)
		}
		a.Close()
		b.Close()
	})
}

// Guarantees that no verb prints the key.
func TestNamesHideTheKey(t *testing.T) {
	s := new(shelf)
	n, _ := open(t, s)
	n.Anonymise(client)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if text := fmt.Sprintf(verb, n); text != "address key of a store" {
			t.Errorf("%s prints %q", verb, text)
		}
	}
}

// FuzzParse checks that no text that a store keeps causes a panic, that what write writes is read, and that no error
// shows a part of the text.
func FuzzParse(f *testing.F) {
	f.Add(write([]byte(strings.Repeat("k", 32))))
	f.Add([]byte(`{"version": 2}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if names, err := parse(text); (names == nil) != (err != nil) {
			t.Errorf("%q: %v, %v", text, names, err)
		}
		long := append([]byte(strings.Repeat("k", 32)), text...)
		if _, err := parse(write(long)); (err != nil) != (len(long) > maxKeyBytes) {
			t.Errorf("a key of %d bytes: %v", len(long), err)
		}
	})
}
