package config_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/cell/table/tabletest"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Guarantees that nothing is decided without a configuration, and that a configuration is found as soon as it exists.
func TestBeforeTheFirstDocument(t *testing.T) {
	w := newWorld(t)
	c, _ := w.begin(noon)
	path := route.Clean("/any")
	if got := threshold(c, "t", noon); got != "not loaded" || !c.Stale() || len(c.IPLimits().Limits) != 0 ||
		!c.Routed("GET", &path) {
		t.Errorf("without a configuration: tenant %q, stale %v; want not loaded, and all requests routed", got,
			c.Stale())
	}
	if _, _, err := c.Anonymous(t.Context()); !errors.Is(err, authorizer.ErrNotLoaded) ||
		!errors.Is(err, table.ErrEmpty) {
		t.Errorf("anonymous: %v, want ErrNotLoaded since the table is empty", err)
	}
	if _, err := c.Key(t.Context(), "a", noon); !errors.Is(err, authorizer.ErrNotLoaded) {
		t.Errorf("key: %v, want ErrNotLoaded", err)
	}
	if err := w.r.Load(t.Context(), noon); !errors.Is(err, table.ErrEmpty) {
		t.Errorf("Load: %v, want ErrEmpty", err)
	}
	w.seed()
	w.want(noon.Add(time.Second), "t", "5")
	if got := w.keyAt(noon.Add(time.Second), "a"); got != "k" {
		t.Errorf("key is %q", got)
	}
}

// Guarantees that a request reads only what it needs, and only once: an equal request reads nothing.
func TestLazy(t *testing.T) {
	w := newWorld(t)
	w.seed()
	for i := range 100 {
		w.apply(tabletest.Tenant(fmt.Sprintf("other%d", i), "p", 1))
	}
	w.want(noon, "t", "5")
	if n := w.read.Load(); n != 3 {
		t.Errorf("%d documents were read, want the settings, the tenant and its plan", n)
	}
	for range 10 {
		w.want(noon, "t", "5")
		w.want(noon, "nobody", "unknown")
		if got := w.keyAt(noon, "a"); got != "k" {
			t.Errorf("key is %q", got)
		}
		if got := w.keyAt(noon, "b"); got != "unknown API key" {
			t.Errorf("a key that does not exist is %q, want unknown", got)
		}
	}
	if n := w.read.Load(); n != 6 || w.heads.Load() != 1 {
		t.Errorf("%d documents and %d heads were read, want three documents more and one head", n, w.heads.Load())
	}
}

// Guarantees the cost of polls: none within a second, one beside the decision up to two seconds, and one before the
// decision after that.
func TestPolls(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.want(noon, "t", "5")
	w.apply(tabletest.Plan("p", 6, 2))
	w.want(noon.Add(999*time.Millisecond), "t", "5")
	if n := w.heads.Load(); n != 1 {
		t.Fatalf("%d polls within a second, want 1", n)
	}
	// Beside: the decision may see either state, the answer waits for the poll, and the next request sees the change.
	c, join := w.r.Begin(t.Context(), noon.Add(time.Second))
	if join == nil || c.Stale() {
		t.Fatal("the copy is a second old, and no poll began")
	}
	join()
	if n := w.heads.Load(); n != 2 {
		t.Fatalf("%d polls, want 2", n)
	}
	w.want(noon.Add(time.Second), "t", "6")
	w.apply(tabletest.Plan("p", 7, 3))
	c, join = w.r.Begin(t.Context(), noon.Add(3001*time.Millisecond))
	if got := threshold(c, "t", noon); got != "7" || join != nil {
		t.Errorf("a copy older than 2 s decides %q, join %v; want 7 and nothing to join", got, join != nil)
	}
	// Neither an advance of the wall clock alone nor setting it back makes an old copy young.
	w.apply(tabletest.Plan("p", 8, 4))
	w.want(noon.AddDate(0, 0, 1), "t", "8")
}

// Guarantees that concurrent requests share one poll, and one read of what they all lack.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.seed()
		if err := w.r.Load(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		slow := func(ctx context.Context) error {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		w.onHead = func(ctx context.Context, _ *table.Head) error { return slow(ctx) }
		w.onGet = func(ctx context.Context, _ []table.Document) error { return slow(ctx) }
		<-time.After(5 * time.Second)
		heads, gets := w.heads.Load(), w.gets.Load()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if got := w.at(time.Now(), "t"); got != "5" {
					t.Errorf("tenant is %q", got)
				}
				if got := w.keyAt(time.Now(), "a"); got != "k" {
					t.Errorf("key is %q", got)
				}
			})
		}
		wg.Wait()
		if h, g := w.heads.Load()-heads, w.gets.Load()-gets; h != 1 || g != 3 {
			t.Errorf("50 requests polled %d times and read %d times, want 1 and 3 (tenant, plan, key)", h, g)
		}
	})
}

// Guarantees that a revoked key is refused within two seconds of its log entry, at whatever times requests come.
func TestRevokedKeyStops(t *testing.T) {
	for seed := range soak.Times(uint64(300)) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t)
		w.seed()
		now := noon
		pause := func() time.Duration {
			if random.IntN(5) == 0 {
				return time.Duration(random.Int64N(int64(24 * time.Hour))) // frozen
			}
			return time.Duration(random.Int64N(int64(1500 * time.Millisecond)))
		}
		for range random.IntN(5) {
			if got := w.keyAt(now, "a"); got != "k" {
				t.Fatalf("seed %d: a valid key is %q, want accepted", seed, got)
			}
			now = now.Add(pause())
		}
		w.apply(revoked("k", "t", 'a', 2))
		at, stopped := now, false
		for range 6 {
			got := w.keyAt(now, "a")
			if stopped = got == "revoked API key"; !stopped && got != "k" {
				t.Fatalf("seed %d: the key is %q, want accepted or revoked", seed, got)
			}
			if !stopped && now.Sub(at) > config.Fresh {
				t.Fatalf("seed %d: %s after its revocation the key is still accepted", seed, now.Sub(at))
			}
			now = now.Add(pause())
		}
		if now = now.Add(3 * time.Second); w.keyAt(now, "a") != "revoked API key" {
			t.Fatalf("seed %d: a request three seconds later accepts the revoked key again, or still", seed)
		}
	}
}

// Guarantees that a deleted key is unknown, and that a new key is found even if it was known to be absent.
func TestKeysComeAndGo(t *testing.T) {
	w := newWorld(t)
	w.seed()
	if got := w.keyAt(noon, "b"); got != "unknown API key" {
		t.Fatalf("key is %q", got)
	}
	w.apply(tabletest.Key("new", "t", 'b', 1), tabletest.Gone(table.Ref{Kind: plan.KindKey, ID: "k"}, 2))
	now := noon.Add(3 * time.Second)
	if a, b := w.keyAt(now, "a"), w.keyAt(now, "b"); a != "unknown API key" || b != "new" {
		t.Errorf("keys are %q and %q, want unknown and new", a, b)
	}
	w.apply(tabletest.Key("new", "t", 'c', 2)) // replaced by another hash
	now = now.Add(3 * time.Second)
	if b, c := w.keyAt(now, "b"), w.keyAt(now, "c"); b != "unknown API key" || c != "new" {
		t.Errorf("keys are %q and %q, want unknown and new", b, c)
	}
	if got := w.keyAt(now, ""); got != "malformed API key" {
		t.Errorf("an empty key is %q, want malformed", got)
	}
	if got := w.keyAt(now, "peppers away"); got != "not loaded" {
		t.Errorf("without peppers a key is %q, want not loaded", got)
	}
	expired := body(plan.KindKey, "new", 3, strings.Replace(string(tabletest.Key("new", "t", 'c', 3).Body), "{",
		`{"expires":"2026-06-15T12:00:20Z",`, 1))
	w.apply(expired)
	for after, want := range map[time.Duration]string{19 * time.Second: "new", 20 * time.Second: "expired API key"} {
		if got := w.keyAt(noon.Add(after), "c"); got != want {
			t.Errorf("the key after %s is %q, want %q", after, got, want)
		}
	}
}

// Guarantees that without a table the copy is used on and marked as stale after 30 s, and that what is not in the copy
// is an error.
func TestAway(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.apply(tabletest.Tenant("other", "p", 1))
	w.want(noon, "t", "5")
	if got := w.keyAt(noon, "a"); got != "k" {
		t.Fatal(got)
	}
	w.away(true)
	for second := range 60 {
		now := noon.Add(time.Duration(second) * time.Second)
		w.want(now, "t", "5")
		if got := w.keyAt(now, "a"); got != "k" {
			t.Fatalf("%d s after the table stopped answering the key is %q, want accepted", second, got)
		}
		w.want(now, "other", "not loaded")
		c, _ := w.begin(now)
		s := w.r.Stats(now)
		if want := second > 30; c.Stale() != want || s.Stale != want || s.Age != now.Sub(noon) {
			t.Fatalf("%d s after the table stopped answering: stale %v, by the stats %v at an age of %s; want stale "+
				"after 30 s", second, c.Stale(), s.Stale, s.Age)
		}
	}
	if n := strings.Count(w.logged(), "cannot be read"); n != 1 {
		t.Errorf("a minute without the table has %d log lines, want one\n%s", n, w.logged())
	}
	w.away(false)
	now := noon.Add(2 * time.Minute)
	w.want(now, "other", "5")
	if c, _ := w.begin(now); c.Stale() || !strings.Contains(w.logged(), "can be read again") {
		t.Errorf("after the table answers again: stale %v; want it not stale, and a log line\n%s", c.Stale(),
			w.logged())
	}
}

// Guarantees that a table that does not answer costs each request a bounded time, and soon almost none.
func TestHanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *config.Config) { c.Timeout, c.FirstTimeout = 0, 0 })
		w.seed()
		w.want(time.Now(), "t", "5")
		<-time.After(2 * time.Second) // the process is no longer new
		w.want(time.Now(), "t", "5")
		w.blockCalls()
		var total, longest time.Duration
		const requests = 200
		for i := range requests {
			<-time.After(50 * time.Millisecond)
			began := time.Now()
			w.want(began, "t", "5")
			w.want(began, fmt.Sprintf("unknown%d", i), "not loaded")
			took := time.Since(began)
			total, longest = total+took, max(longest, took)
		}
		if longest > 500*time.Millisecond || total > requests*25*time.Millisecond {
			t.Errorf("%d requests waited %s in all and %s at most, want at most 25ms each on average and 500ms at "+
				"most", requests, total, longest)
		}
		if s := w.r.Stats(time.Now()); s.Refused == 0 || s.ReadFailures == 0 || s.Failures == 0 {
			t.Errorf("stats %+v, want failures and refusals", s)
		}
	})
}

// Guarantees that an empty table counts as answering: once it is filled, no request waits because of the circuit
// breaker.
func TestAnEmptyTableAnswers(t *testing.T) {
	w := newWorld(t)
	for i := range 20 {
		w.want(noon.Add(time.Duration(2*i)*time.Second), "t", "not loaded")
	}
	if s := w.r.Stats(noon); s.Refused != 0 || s.ReadFailures != 0 || s.Polls < 20 {
		t.Errorf("%+v, want polls and no failure of the table", s)
	}
	w.seed()
	w.want(noon.Add(41*time.Second), "t", "5")
}

// Guarantees that a valid key is not refused because the process has just started or thawed and is slow: a read may
// take longer then, and only then.
func TestSlowBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *config.Config) { c.Timeout, c.FirstTimeout = 0, 0 })
		w.seed()
		for i := range 20 {
			w.apply(tabletest.Tenant(fmt.Sprint(i), "p", 1))
		}
		w.mu.Lock()
		w.onGet = func(ctx context.Context, _ []table.Document) error {
			select {
			case <-time.After(400 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		w.mu.Unlock()
		for i, c := range []struct {
			pause time.Duration
			want  string
		}{
			{0, "5"}, {0, "5"}, // a tenant and its plan, and another tenant
			{2 * time.Second, "not loaded"},
			{time.Second, "not loaded"},
			{6 * time.Second, "5"}, // as after a thaw
			{2 * time.Second, "not loaded"},
		} {
			<-time.After(c.pause)
			w.want(time.Now(), fmt.Sprint(i), c.want)
		}
	})
}

// Guarantees that a process that was frozen while the table did not answer asks it again when it thaws.
func TestThaws(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.want(noon, "t", "5")
	w.away(true)
	for i := range 20 {
		w.want(noon.Add(time.Duration(i)*time.Second), "t", "5")
		w.want(noon.Add(time.Duration(i)*time.Second), "nobody", map[bool]string{true: "unknown",
			false: "not loaded"}[false])
	}
	if w.r.Stats(noon).Refused == 0 {
		t.Fatal("no request is refused by the circuit breaker: each one calls the table that does not answer")
	}
	w.away(false)
	w.apply(tabletest.Plan("p", 9, 2), revoked("k", "t", 'a', 2))
	now := noon.AddDate(0, 0, 1)
	w.want(now, "t", "9")
	if got := w.keyAt(now, "a"); got != "revoked API key" {
		t.Errorf("a key that was revoked during the freeze is %q, want revoked", got)
	}
}

// Guarantees that requests after a thaw do not wait for a poll that was in progress when the process was frozen.
func TestThawsInAPoll(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.want(noon, "t", "5")
	release := make(chan struct{})
	var first atomic.Bool
	w.mu.Lock()
	w.onHead = func(_ context.Context, h *table.Head) error {
		if !first.Swap(true) {
			old := *h
			<-release // its connection is lost without an error
			*h = old
		}
		return nil
	}
	w.mu.Unlock()
	_, join := w.r.Begin(t.Context(), noon.Add(time.Second))
	for !first.Load() { // the poll has read its head
		select {
		case <-t.Context().Done():
			t.Fatal("the poll did not read the head")
		default:
		}
	}
	w.apply(tabletest.Plan("p", 9, 2))
	w.want(noon.AddDate(0, 0, 1), "t", "9")
	close(release)
	join()
	w.want(noon.AddDate(0, 0, 1), "t", "9")
	if s := w.r.Stats(noon.AddDate(0, 0, 1)); s.Seq != 2 || s.Age != 0 {
		t.Errorf("the poll from before the freeze has replaced a newer copy: %+v", s)
	}
}

// Guarantees that the copy is dropped if the log cannot say what changed.
func TestStartsAnew(t *testing.T) {
	for name, c := range map[string]struct {
		tamper func(w *world)
		after  time.Duration
		says   string
	}{
		"gap": {after: 3 * time.Second, says: "gap", tamper: func(w *world) {
			w.onLog = func(_ context.Context, e *[]table.Entry) error { *e = (*e)[1:]; return nil }
		}},
		"hole": {after: 3 * time.Second, says: "gap", tamper: func(w *world) {
			w.onLog = func(_ context.Context, e *[]table.Entry) error { (*e)[0].Seq = 7; return nil }
		}},
		"another table": {after: 3 * time.Second, says: "repaired or replaced", tamper: func(w *world) {
			w.onHead = func(_ context.Context, h *table.Head) error { h.Incarnation = "restored"; return nil }
		}},
		"far behind": {after: 3 * time.Second, says: "too many log entries behind", tamper: func(w *world) {
			for v := range int64(600) {
				w.apply(tabletest.Tenant("busy", "p", v+1))
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.seed()
			w.want(noon, "t", "5")
			w.want(noon, "nobody", "unknown")
			w.apply(tabletest.Plan("p", 6, 2))
			w.apply(tabletest.Tenant("nobody", "p", 1), settings(1, `{"anonymousPlan":"p"}`))
			c.tamper(w)
			now := noon.Add(c.after)
			w.want(now, "t", "6")
			w.want(now, "nobody", "6")
			view, _ := w.begin(now)
			if id, set, err := view.Anonymous(t.Context()); id != "p" || set == nil || err != nil {
				t.Errorf("anonymous: %q, %v", id, err)
			}
			if s := w.r.Stats(now); s.Resets != 1 || !strings.Contains(w.logged(), c.says) {
				t.Errorf("%d resets of the copy, want one, with its reason in the log:\n%s", s.Resets, w.logged())
			}
		})
	}
	t.Run("the head went back", func(t *testing.T) {
		w := newWorld(t)
		w.seed()
		w.apply(tabletest.Plan("p", 6, 2))
		w.want(noon, "t", "6")
		other, err := memtableOf(t, tabletest.Plan("p", 4, 1), tabletest.Tenant("t", "p", 1))
		if err != nil {
			t.Fatal(err)
		}
		before, err := w.table.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.table = other
		w.onHead = func(_ context.Context, h *table.Head) error { h.Incarnation = before.Incarnation; return nil }
		w.want(noon.Add(3*time.Second), "t", "4")
		if !strings.Contains(w.logged(), "went back") {
			t.Error(w.logged())
		}
	})
}

// Guarantees that a copy is used on if its table was emptied, until the table has content again.
func TestEmptied(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.want(noon, "t", "5")
	empty, err := memtableOf(t)
	if err != nil {
		t.Fatal(err)
	}
	w.table = empty
	w.want(noon.Add(time.Minute), "t", "5")
	if c, _ := w.begin(noon.Add(time.Minute)); !c.Stale() {
		t.Error("the copy of an emptied table is not marked as stale")
	}
}

// Guarantees that a key that is known to have changed and cannot be read is refused, while a tenant in this state
// keeps its limits.
func TestChangedAndUnreadable(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.want(noon, "t", "5")
	if got := w.keyAt(noon, "a"); got != "k" {
		t.Fatal(got)
	}
	w.apply(revoked("k", "t", 'a', 2), tabletest.Tenant("t", "q", 2), tabletest.Plan("p", 6, 2),
		tabletest.Plan("q", 7, 1))
	w.onGet = func(context.Context, []table.Document) error { return errAway }
	now := noon.Add(3 * time.Second)
	if got := w.keyAt(now, "a"); got != "not loaded" {
		t.Errorf("the key is %q, want not loaded", got)
	}
	w.want(now, "t", "5")
	w.away(false)
	w.want(now, "t", "7")
	if got := w.keyAt(now, "a"); got != "revoked API key" {
		t.Errorf("the key is %q", got)
	}
}

// Guarantees that a cell counts IPv6 addresses by the prefix in its settings, and by /64 if the settings have none.
func TestIPv6Prefix(t *testing.T) {
	w := newWorld(t)
	w.seed()
	for i, c := range []struct {
		body string
		want int
	}{{`{"anonymousPlan":"p"}`, 64}, {`{"ipv6Prefix":48}`, 48}, {`{"ipv6Prefix":129}`, 48}, {`{}`, 64}} {
		w.apply(settings(int64(i+1), c.body))
		view, _ := w.begin(noon.Add(time.Duration(3+3*i) * time.Second))
		if got := view.IPv6Prefix(); got != c.want {
			t.Errorf("settings %s: addresses are counted by /%d, want /%d", c.body, got, c.want)
		}
	}
}

// Guarantees that a document with errors never replaces a valid one, is logged once for each version, and affects only
// what needs it if there was no valid one.
func TestBadDocuments(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.apply(settings(1, `{"anonymousPlan":"p"}`), tabletest.Plan("q", 8, 1), tabletest.Tenant("u", "q", 1))
	w.want(noon, "t", "5")
	if got := w.keyAt(noon, "a"); got != "k" {
		t.Fatal(got)
	}
	bad := body(plan.KindKey, "k", 2, strings.Replace(string(tabletest.Key("k", "t", 'a', 2).Body), "{",
		`{"odd":1,`, 1))
	w.apply(body(plan.KindPlan, "p", 2, `{"id":"p","limits":[{"id":"all"}]}`),
		body(plan.KindTenant, "t", 2, `{"id":"t","plan":7}`), bad,
		settings(2, `{"anonymousPlan":"p","routes":7}`))
	for i := range 3 {
		now := noon.Add(time.Duration(3+3*i) * time.Second)
		w.want(now, "t", "5")
		if got := w.keyAt(now, "a"); got != "k" {
			t.Errorf("the key is %q", got)
		}
		c, _ := w.begin(now)
		if id, set, err := c.Anonymous(t.Context()); id != "p" || set == nil || err != nil {
			t.Errorf("anonymous: %q, %v", id, err)
		}
	}
	if s := w.r.Stats(noon); s.BadDocuments != 4 || strings.Count(w.logged(), "is not valid") != 4 ||
		!strings.Contains(w.logged(), "version=2") {
		t.Errorf("%d bad documents, want 4, each logged once\n%s", s.BadDocuments, w.logged())
	}
	if strings.Contains(w.logged(), strings.Repeat("a", 64)) {
		t.Error("the log shows the hash of a key")
	}
	w.apply(settings(3, `{}`))
	now := noon.Add(20 * time.Second)
	fresh := w.reader()
	c, _ := fresh.Begin(t.Context(), now)
	if got := threshold(c, "t", now); got != "not loaded" {
		t.Errorf("a tenant without any valid document is %q, want not loaded", got)
	}
	if _, err := c.Key(t.Context(), "a", now); !errors.Is(err, authorizer.ErrNotLoaded) {
		t.Errorf("a key without any valid document: %v, want ErrNotLoaded", err)
	}
	if got := threshold(c, "u", now); got != "8" {
		t.Errorf("the other tenant is %q, want 8", got)
	}
	w.apply(tabletest.Plan("p", 9, 3), tabletest.Tenant("t", "p", 3), tabletest.Key("k", "t", 'a', 3))
	w.want(noon.Add(30*time.Second), "t", "9")
	if got := w.keyAt(noon.Add(30*time.Second), "a"); got != "k" {
		t.Errorf("the key with a valid document is %q, want accepted", got)
	}
}

// Guarantees that settings that were never valid leave the whole configuration unloaded, since the limits that protect
// the cell are unknown.
func TestBadSettingsAtFirst(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.apply(settings(1, `{"ipLimits":[{}]}`))
	for i := range 4 {
		w.want(noon.Add(time.Duration(i-3)*time.Second), "t", "not loaded")
	}
	if n := strings.Count(w.logged(), "is not valid"); n != 1 || w.r.Stats(noon).BadDocuments != 1 {
		t.Errorf("one bad document is logged %d times and counted as %d, want once each", n,
			w.r.Stats(noon).BadDocuments)
	}
	w.apply(settings(2,
		`{"ipLimits":[{"id":"x","tiers":[{"period":1,"threshold":4}]}],"routes":[{"pathPattern":"/a"}]}`))
	now := noon.Add(2 * time.Second)
	w.want(now, "t", "5")
	c, _ := w.begin(now)
	a, b := route.Clean("/a"), route.Clean("/b")
	if len(c.IPLimits().Limits) != 1 || !c.Routed("GET", &a) || c.Routed("GET", &b) {
		t.Error("the settings differ from the document")
	}
}

// Guarantees that a tenant that does not fit its plan keeps its last limits, and gets the new ones when it fits.
func TestTenantAndPlanDisagree(t *testing.T) {
	w := newWorld(t)
	w.seed()
	override := func(version, threshold int64, id string) table.Document {
		return body(plan.KindTenant, "t", version,
			fmt.Sprintf(`{"id":"t","plan":"p","overrides":[{"id":%q,"tiers":[{"period":1,"threshold":%d}]}]}`, id,
				threshold))
	}
	w.apply(override(2, 50, "all"))
	w.want(noon, "t", "50")
	w.apply(body(plan.KindPlan, "p", 2, `{"id":"p","limits":[{"id":"renamed","tiers":[{"period":1,"threshold":1}]}]}`))
	for i := range 3 {
		w.want(noon.Add(time.Duration(3+i)*time.Second), "t", "50")
	}
	if n := w.r.Stats(noon).BadDocuments; n != 1 {
		t.Errorf("%d bad documents, want 1", n)
	}
	w.apply(override(3, 60, "renamed"))
	w.want(noon.Add(10*time.Second), "t", "60")
	w.apply(tabletest.Gone(table.Ref{Kind: plan.KindPlan, ID: "p"}, 3))
	w.want(noon.Add(20*time.Second), "t", "60")
	w.want(noon.Add(21*time.Second), "t", "60")
	if n := w.r.Stats(noon).BadDocuments; n != 2 {
		t.Errorf("%d bad documents, want 2", n)
	}
	w.apply(tabletest.Tenant("new", "p", 1))
	w.want(noon.Add(30*time.Second), "new", "not loaded")
	w.apply(tabletest.Plan("p", 3, 4), tabletest.Tenant("t", "p", 4))
	w.want(noon.Add(40*time.Second), "new", "3")
	w.want(noon.Add(40*time.Second), "t", "3")
	w.apply(body(plan.KindTenant, "t", 5, `{"id":"t"}`),
		tabletest.Gone(table.Ref{Kind: plan.KindTenant, ID: "new"}, 2))
	w.want(noon.Add(50*time.Second), "t", "no limits")
	w.want(noon.Add(50*time.Second), "new", "unknown")
}

// Guarantees that a limit that the store cannot keep is found when it is read, not at each request.
func TestAccepts(t *testing.T) {
	refuse := func(l *limit.Limit) error {
		if l.Tiers[0].Threshold > 100 {
			return errors.New("too large for the store")
		}
		return nil
	}
	w := newWorld(t, func(c *config.Config) { c.Accepts = refuse })
	w.seed()
	w.apply(tabletest.Plan("large", 101, 1), tabletest.Tenant("l", "large", 1),
		body(plan.KindTenant, "o", 1, `{"id":"o","plan":"p","overrides":[{"id":"all","tiers":[{"period":1,`+
			`"threshold":101}]}]}`))
	w.want(noon, "t", "5")
	w.want(noon, "l", "not loaded")
	w.want(noon, "o", "not loaded")
	w.apply(settings(1, `{"ipLimits":[{"id":"x","tiers":[{"period":1,"threshold":101}]}]}`))
	w.want(noon.Add(3*time.Second), "t", "5")
	if c, _ := w.begin(noon.Add(3 * time.Second)); len(c.IPLimits().Limits) != 0 ||
		!strings.Contains(w.logged(), "too large for the store") {
		t.Errorf("ipLimits that the store cannot keep are in force, or not logged:\n%s", w.logged())
	}
}

// Guarantees that a tenant is never resolved against a plan of another state of the table: the tenant of each state
// overrides a limit that only that state's plan has.
func TestOneState(t *testing.T) {
	w := newWorld(t)
	state := func(v int64) []table.Document {
		return []table.Document{
			body(plan.KindPlan, "p", v, fmt.Sprintf(`{"id":"p","limits":[{"id":"l%d","tiers":[{"period":1,`+
				`"threshold":1}]}]}`, v)),
			body(plan.KindTenant, "t", v, fmt.Sprintf(`{"id":"t","plan":"p","overrides":[{"id":"l%d",`+
				`"tiers":[{"period":1,"threshold":%d}]}]}`, v, v)),
		}
	}
	w.apply(state(1)...)
	var stop atomic.Bool
	var writer, readers sync.WaitGroup
	writer.Go(func() {
		for v := int64(2); !stop.Load() && v < 4000; v++ {
			if _, err := w.table.Apply(context.Background(), state(v)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 4 {
		readers.Go(func() {
			for i := range 200 {
				now := noon.Add(time.Duration(i) * 700 * time.Millisecond)
				r := w.r
				if i%3 == 0 {
					r = w.reader() // an empty cache, so that documents are read while they change
				}
				c, join := r.Begin(t.Context(), now)
				// A table that changes as fast as it is read may never be loaded completely.
				if got := threshold(c, "t", now); got == "unknown" || got == "no limits" {
					t.Errorf("tenant is %q", got)
				}
				if join != nil {
					join()
				}
			}
		})
	}
	readers.Wait()
	stop.Store(true)
	writer.Wait()
	if strings.Contains(w.logged(), "does not go with its plan") {
		t.Errorf("a tenant was combined with a plan of another state of the table:\n%.2000s", w.logged())
	}
	if w.at(noon.Add(time.Hour), "t") == "not loaded" {
		t.Error("the tenant is not loaded although the table no longer changes")
	}
}

// Guarantees that a document that is newer than the known log is used together with the other changes of its entry.
func TestAheadOfTheHead(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.want(noon, "t", "5") // the plan is now in the cache
	w.apply(tabletest.Plan("p", 6, 2), tabletest.Tenant("new", "p", 1))
	w.want(noon.Add(time.Millisecond), "new", "6") // not 5, which no state of the table had with this tenant
	if n := w.heads.Load(); n != 2 {
		t.Errorf("%d polls, want one more", n)
	}
	w.onHead = func(_ context.Context, h *table.Head) error { h.Seq = 2; return nil } // the head does not change
	w.apply(tabletest.Tenant("newer", "p", 1))
	w.want(noon.Add(2*time.Millisecond), "newer", "not loaded")
}

// Guarantees that ids and keys that do not exist displace nothing from the cache, however many come.
func TestFloodOfUnknown(t *testing.T) {
	w := newWorld(t, func(c *config.Config) { c.MaxDocuments, c.MaxAbsent = 16, 50 })
	w.seed()
	w.want(noon, "t", "5")
	if got := w.keyAt(noon, "a"); got != "k" {
		t.Fatal(got)
	}
	for i := range 2000 {
		w.want(noon, fmt.Sprintf("nobody%d", i), "unknown")
		if got := w.keyAt(noon, fmt.Sprintf("unknown key %d", i)); got != "unknown API key" {
			t.Fatal(got)
		}
	}
	before := w.read.Load()
	w.want(noon, "t", "5")
	if got := w.keyAt(noon, "a"); got != "k" || w.read.Load() != before {
		t.Errorf("the key is %q after %d more reads, want accepted from the cache, without a read", got,
			w.read.Load()-before)
	}
	if s := w.r.Stats(noon); s.Absent > 50 || s.Documents > 16 || s.Documents != 3 {
		t.Errorf("stats %+v, want 3 documents and at most 50 that are absent", s)
	}
}

// Guarantees that the cache is bounded by number and by bytes, and that dropped documents are read again.
func TestBounds(t *testing.T) {
	w := newWorld(t, func(c *config.Config) { c.MaxDocuments, c.MaxBytes = 100, 1<<20 })
	w.seed()
	for i := range 300 {
		w.apply(tabletest.Tenant(fmt.Sprintf("t%d", i), "p", 1))
	}
	for round := range 2 {
		for i := range 300 {
			w.want(noon, fmt.Sprintf("t%d", i), "5")
			if s := w.r.Stats(noon); s.Documents > 100 || s.Bytes > 1<<20 || s.Bytes <= 0 {
				t.Fatalf("round %d: stats %+v, want at most 100 documents and 1 MiB", round, s)
			}
		}
	}
	long := strings.Repeat(`{"period":1,"threshold":5},`, 1)
	for i := range 20 {
		var limits []string
		for j := range 200 {
			limits = append(limits, fmt.Sprintf(`{"id":"l%d","tiers":[%s]}`, j, strings.TrimSuffix(long, ",")))
		}
		id := fmt.Sprintf("big%d", i)
		w.apply(body(plan.KindPlan, id, 1, `{"id":"`+id+`","limits":[`+strings.Join(limits, ",")+`]}`),
			tabletest.Tenant(id, id, 1))
	}
	for i := range 20 {
		w.want(noon.Add(10*time.Second), fmt.Sprintf("big%d", i), "5")
		if s := w.r.Stats(noon); s.Bytes > 1<<20 || s.Documents < 2 {
			t.Fatalf("stats %+v, want at most 1 MiB and what is in use", s)
		}
	}
	w.apply(tabletest.Gone(table.Ref{Kind: plan.KindTenant, ID: "t1"}, 2))
	w.want(noon.Add(20*time.Second), "t1", "unknown")
}

// Guarantees that OnApply is called once for each change, in order, with the time at which it was read.
func TestOnApply(t *testing.T) {
	var mu sync.Mutex
	var seen []int64
	w := newWorld(t, func(c *config.Config) {
		c.OnApply = func(e table.Entry, now time.Time) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, e.Seq)
			if now.Before(noon.Add(3*time.Second)) || now.After(noon.Add(2*time.Minute)) || e.At.IsZero() ||
				len(e.Changes) == 0 {
				t.Errorf("OnApply is called with %+v at %s, want a change and the time at which it was read", e, now)
			}
		}
	})
	w.seed()
	w.want(noon, "t", "5")
	for v := range int64(3) {
		w.apply(tabletest.Plan("p", 6, v+2))
	}
	w.want(noon.Add(3*time.Second), "t", "6")
	w.want(noon.Add(6*time.Second), "t", "6")
	if !slices.Equal(seen, []int64{2, 3, 4}) {
		t.Errorf("OnApply was called for the entries %v, want 2 to 4, once each", seen)
	}
}

// Guarantees that a request keeps the settings that it began with.
func TestPinnedSettings(t *testing.T) {
	w := newWorld(t)
	w.seed()
	c, _ := w.begin(noon)
	w.apply(settings(1, `{"ipLimits":[{"id":"x","tiers":[{"period":1,"threshold":4}]}],"anonymousPlan":"p"}`))
	if err := w.r.Load(t.Context(), noon.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if id, set, err := c.Anonymous(t.Context()); len(c.IPLimits().Limits) != 0 || id != "" || set != nil || err != nil {
		t.Error("the settings changed during a request, want those with which it began")
	}
	if c, _ = w.begin(noon.Add(time.Second)); len(c.IPLimits().Limits) != 1 {
		t.Error("the next request has the old settings, want the new ones")
	}
	w.apply(settings(2, `{"anonymousPlan":"gone"}`))
	c, _ = w.begin(noon.Add(5 * time.Second))
	if _, _, err := c.Anonymous(t.Context()); !errors.Is(err, authorizer.ErrNotLoaded) {
		t.Errorf("an anonymousPlan that does not exist: %v, want ErrNotLoaded", err)
	}
}

// Guarantees that a panic of the table counts as a failure.
func TestPanics(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.want(noon, "t", "5")
	w.onHead = func(context.Context, *table.Head) error { panic("head") }
	w.onGet = func(context.Context, []table.Document) error { panic("get") }
	now := noon.Add(10 * time.Second)
	w.want(now, "t", "5")
	w.want(now, "other", "not loaded")
	w.away(false)
	w.onGet = func(_ context.Context, d []table.Document) error { d[0].Body = nil; return nil }
	w.apply(tabletest.Tenant("other", "p", 1))
	w.want(now.Add(10*time.Second), "other", "not loaded")
}

// Guarantees that a cancelled request stops waiting, and does not affect other requests.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.seed()
		if err := w.r.Load(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		w.onGet = func(context.Context, []table.Document) error {
			<-time.After(50 * time.Millisecond)
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		c, _ := w.r.Begin(ctx, time.Now())
		began := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			<-time.After(10 * time.Millisecond)
			if got := w.at(time.Now(), "t"); got != "5" {
				t.Errorf("the other request has the tenant's threshold %q, want 5", got)
			}
		})
		time.AfterFunc(20*time.Millisecond, cancel)
		if _, err := c.Tenant(ctx, "t"); !errors.Is(err, authorizer.ErrNotLoaded) ||
			time.Since(began) != 20*time.Millisecond {
			t.Errorf("%v after %s, want ErrNotLoaded after 20ms", err, time.Since(began))
		}
		wg.Wait()
	})
}

// Guarantees that an invalid configuration is refused with the name of the field.
func TestConfig(t *testing.T) {
	w := newWorld(t)
	for want, c := range map[string]config.Config{
		"Table":        {},
		"Timeout":      {Table: w, Timeout: time.Microsecond},
		"Timeout 11s":  {Table: w, Timeout: 11 * time.Second},
		"FirstTimeout": {Table: w, FirstTimeout: time.Hour},
		"MaxDocuments": {Table: w, MaxDocuments: 3},
		"MaxAbsent":    {Table: w, MaxAbsent: -1},
		"MaxBytes":     {Table: w, MaxBytes: 1000},
	} {
		if _, err := config.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v): %v, want it to name %s", c, err, want)
		}
	}
}

// Guarantees that a document that was read before a change and arrives after it is not used, whether the log names the
// change or the whole copy was dropped in between.
func TestChangedWhileRead(t *testing.T) {
	for name, restore := range map[string]bool{"named by the log": false, "another table": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.seed()
			if err := w.r.Load(t.Context(), noon); err != nil {
				t.Fatal(err)
			}
			var once sync.Once
			w.onGet = func(ctx context.Context, d []table.Document) error {
				if d[0].Kind != plan.KindTenant {
					return nil
				}
				once.Do(func() { // this read returns the tenant before the change
					w.apply(tabletest.Plan("q", 8, 1), tabletest.Tenant("t", "q", 2))
					if restore {
						w.mu.Lock()
						w.onHead = func(_ context.Context,
							h *table.Head) error {
							h.Incarnation = "restored"
							return nil
						}
						w.mu.Unlock()
					}
					if err := w.r.Load(ctx, noon.Add(time.Second)); err != nil {
						t.Error(err)
					}
				})
				return nil
			}
			c, _ := w.begin(noon)
			if got := threshold(c, "t", noon); got != "8" {
				t.Errorf("tenant is %q, want 8", got)
			}
		})
	}
}

// Guarantees that a key is found only by the hash under its own pepper.
func TestPepperOfAnotherKey(t *testing.T) {
	w := newWorld(t, func(c *config.Config) {
		c.Hashes = func(ctx context.Context, now time.Time, presented string) ([]identity.KeyHash, error) {
			all, err := hashes(ctx, now, presented)
			return all[:1], err // the same hash under the pepper "old"
		}
	})
	w.seed()
	if got := w.keyAt(noon, "a"); got != "unknown API key" {
		t.Errorf("the key is %q, want unknown", got)
	}
}

// Guarantees that the settings are of the same state as the head.
func TestSettingsOfTheHead(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.apply(settings(1, `{"anonymousPlan":"p"}`))
	w.want(noon, "t", "5")
	anonymous := func(now time.Time) string {
		c, _ := w.begin(now)
		id, _, err := c.Anonymous(t.Context())
		if err != nil {
			return err.Error()
		}
		return id
	}
	w.apply(settings(2, `{}`))
	var once sync.Once
	w.onGet = func(_ context.Context, d []table.Document) error {
		var err error
		once.Do(func() { // the settings change between the reads of the head and of the settings
			w.apply(tabletest.Plan("q", 8, 1), settings(3, `{"anonymousPlan":"q"}`))
			var now []table.Document
			now, err = w.table.Get(context.Background(), d[0].Ref)
			copy(d, now)
		})
		return err
	}
	if w.begin(noon.Add(6 * time.Second)); w.r.Stats(noon).Seq != 4 {
		t.Errorf("the settings are of entry 4, but the copy is at entry %d, want the same", w.r.Stats(noon).Seq)
	}
	if got := anonymous(noon.Add(6 * time.Second)); got != "q" {
		t.Errorf("anonymousPlan %q, want q", got)
	}
}

// Guarantees that a cell whose table may have a key or a plan says so, and that a table with Holds gives exact
// answers.
func TestWhatATableHolds(t *testing.T) {
	store, err := memtableOf(t, settings(1, `{}`))
	if err != nil {
		t.Fatal(err)
	}
	unknowing, err := config.New(config.Config{Table: store})
	if err != nil {
		t.Fatal(err)
	}
	knowing, err := config.New(config.Config{Table: store, Holds: store.Holds})
	if err != nil {
		t.Fatal(err)
	}
	gone := func(d table.Document) table.Document {
		d.Deleted, d.Body = true, nil
		return d
	}
	for _, step := range []struct {
		apply       table.Document
		keys, plans bool
	}{
		{settings(2, `{}`), false, false},
		{tabletest.Plan("p", 5, 1), false, true},
		{tabletest.Plan("p", 6, 2), false, true},
		{gone(tabletest.Plan("p", 6, 3)), false, false},
		{tabletest.Tenant("t", "p", 1), false, true},
		{gone(tabletest.Tenant("t", "p", 2)), false, false},
		{tabletest.Key("k", "t", 'a', 1), true, false},
		{revoked("k", "t", 'a', 2), true, false},
		{gone(tabletest.Key("k", "t", 'a', 3)), false, false},
		{gone(tabletest.Key("k", "t", 'a', 4)), false, false},
	} {
		if _, err := store.Apply(t.Context(), []table.Document{step.apply}); err != nil {
			t.Fatal(err)
		}
		if c, _ := knowing.Begin(t.Context(), noon); c.HasKeys() != step.keys || c.HasPlans() != step.plans {
			t.Errorf("after the change of %s, deleted %v: HasKeys %v, HasPlans %v; want what the table holds",
				step.apply.Ref, step.apply.Deleted, c.HasKeys(), c.HasPlans())
		}
		if c, _ := unknowing.Begin(t.Context(), noon); !c.HasKeys() || !c.HasPlans() {
			t.Errorf("HasKeys or HasPlans is false with a table that cannot tell, want true")
		}
	}
}
