package config_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/cell/table/tabletest"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// forgedVersion is higher than the version of any regular change.
const forgedVersion = 1 << 50

// hashOf returns the document of the key that is presented as a digit.
func hashOf(digit string) table.Ref {
	return table.Ref{Kind: table.KindKeyHash, ID: strings.Repeat(digit, 64)}
}

// decisionAt describes what decides a request at now.
func (w *world) decisionAt(now time.Time) string {
	c, join := w.begin(now)
	defer join()
	anonymous, _, err := c.Anonymous(context.Background())
	if err != nil {
		anonymous = err.Error()
	}
	out := ""
	for _, tenant := range []string{"t", "u", "none"} {
		out += tenant + " " + threshold(c, tenant, now) + ", "
	}
	out += fmt.Sprintf("anonymous %q", anonymous)
	for _, presented := range []string{"a", "b", "c"} {
		key, err := c.Key(context.Background(), presented, now)
		if err != nil {
			out += ", " + presented + " " + strings.TrimSuffix(err.Error(), " API key")
		} else {
			out += ", " + presented + " " + key.ID
		}
	}
	return out
}

// Guarantees that an environment that has loaded forged documents, together with log entries, drops them within MaxAge
// after the rows were restored without an entry, whatever its traffic. Nothing else would reveal them: the table is
// correct by then, and reconcile compares only the table.
func TestForgedAndPutBack(t *testing.T) {
	const (
		honest = `t 5, u 7, none unknown, anonymous "p", a k, b unknown, c l`
		forged = `t 500, u unknown, none 500, anonymous "q", a revoked, b evil, c unknown`
	)
	for name, every := range map[string]time.Duration{
		"a request a second": time.Second, "a request a minute": time.Minute, "a request an hour": time.Hour,
	} {
		for _, hidden := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", later changes are hidden: ", hidden), func(t *testing.T) {
				w := newWorld(t)
				w.seed()
				w.apply(tabletest.Plan("q", 7, 1), tabletest.Tenant("u", "q", 1),
					settings(1, `{"anonymousPlan":"p"}`),
					tabletest.Key("l", "t", 'c', 1))
				if got := w.decisionAt(noon); got != honest {
					t.Fatalf("at first %s\nwant %s", got, honest)
				}
				refs := []table.Ref{
					{Kind: plan.KindPlan, ID: "p"}, {Kind: plan.KindTenant, ID: "u"}, {Kind: plan.KindTenant,
						ID: "none"},
					{Kind: plan.KindSettings, ID: plan.SettingsID}, hashOf("a"), hashOf("b"), hashOf("c"),
				}
				before := w.rowsOf(refs...)
				w.apply(tabletest.Plan("p", 500, forgedVersion), tabletest.Gone(refs[1], forgedVersion),
					tabletest.Tenant("none", "p", forgedVersion), settings(forgedVersion, `{"anonymousPlan":"q"}`),
					revoked("k", "t", 'a', forgedVersion), tabletest.Key("evil", "t", 'b', forgedVersion),
					tabletest.Gone(table.Ref{Kind: plan.KindKey, ID: "l"}, forgedVersion))
				now := noon.Add(time.Minute)
				if got := w.decisionAt(now); got != forged {
					t.Fatalf("after the forgery %s\nwant %s", got, forged)
				}
				w.rewrite(before...)
				back := now
				for now = now.Add(every); now.Sub(back) < config.MaxAge; now = now.Add(every) {
					w.decisionAt(now)
				}
				if got := w.decisionAt(now); got != honest {
					t.Fatalf("%s after the rows were put back %s\nwant %s", now.Sub(back), got, honest)
				}
				w.commit(hidden, tabletest.Plan("p", 6, 2), tabletest.Tenant("u", "p", 2)) // by an operator
				for end := now.Add(config.MaxAge); now.Before(end); now = now.Add(every) {
					w.decisionAt(now)
				}
				if got := w.decisionAt(now); !strings.HasPrefix(got, "t 6, u 6,") {
					t.Errorf("after honest changes %s, want 6 for both", got)
				}
			})
		}
	}
}

// Guarantees the same for a cell's shares and placements.
func TestForgedSharesArePutBack(t *testing.T) {
	pinned := newBalanced(t, "eu-1", "us-1")
	before := pinned.document(1)
	pinned.do(shares.Request{Kind: shares.Place, Tenant: "t", Cells: []string{"eu-1"}})
	for name, c := range map[string]struct {
		honest table.Document // the shares
		forged []table.Document
	}{
		"shares":    {before, []table.Document{newBalanced(t, "eu-1").document(forgedVersion)}},
		"placement": {pinned.document(1), []table.Document{pinned.placement("t", forgedVersion)}},
		"both": {before, []table.Document{pinned.document(forgedVersion),
			pinned.placement("t", forgedVersion)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, inCell("eu-1"))
			w.apply(tabletest.Plan("p", 100, 1), tabletest.Tenant("t", "p", 1), c.honest)
			first := w.at(noon, "t")
			var refs []table.Ref
			for _, d := range c.forged {
				refs = append(refs, d.Ref)
			}
			rows := w.rowsOf(refs...)
			w.apply(c.forged...)
			now := noon.Add(time.Minute)
			if got := w.at(now, "t"); got == first {
				t.Fatalf("the test shows nothing: the forged shares do not change the threshold %s", got)
			}
			w.rewrite(rows...)
			w.want(now.Add(config.MaxAge), "t", first)
		})
	}
}

// Guarantees that a change without a log entry, or whose entry was removed, arrives within MaxAge. This includes
// revocations.
func TestHiddenChanges(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.want(noon, "t", "5")
	w.want(noon, "later", "unknown")
	if got := w.keyAt(noon, "a"); got != "k" {
		t.Fatal(got)
	}
	gone := revoked("k", "t", 'a', 2)
	w.commit(true, gone, table.Document{Ref: hashOf("a"), Version: 2, Body: gone.Body},
		tabletest.Plan("p", 6, 2),
		tabletest.Tenant("later", "p", 1))
	now := noon.Add(config.MaxAge)
	if got := w.keyAt(now, "a"); got != "revoked API key" {
		t.Errorf("the key is %q", got)
	}
	w.want(now, "t", "6")
	w.want(now, "later", "6")
}

// Guarantees that a log entry that names versions which the table does not have prevents answers for at most MaxAge.
func TestEntryOfNothing(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.want(noon, "t", "5")
	if got := w.keyAt(noon, "a"); got != "k" {
		t.Fatal(got)
	}
	was := w.rowsOf(table.Ref{Kind: plan.KindTenant, ID: "t"}, hashOf("a"))
	w.commit(false, tabletest.Tenant("t", "p", forgedVersion), settings(forgedVersion, `{}`),
		table.Document{Ref: was[1].Ref, Version: forgedVersion, Body: was[1].Body})
	w.rewrite(append(was, table.Document{Ref: table.Ref{Kind: plan.KindSettings, ID: plan.SettingsID}})...)
	for at := range int(config.MaxAge / time.Second) {
		w.at(noon.Add(time.Duration(at)*time.Second), "t")
	}
	now := noon.Add(config.MaxAge)
	w.want(now, "t", "5")
	if got := w.keyAt(now, "a"); got != "k" {
		t.Errorf("the key is %q", got)
	}
	if s := w.r.Stats(now); s.Stale {
		t.Errorf("the copy is marked as stale, want it not: %+v\n%s", s, w.logged())
	}
}

// Guarantees that the copy is used, however old it is, if the table cannot be read.
func TestAgeWithoutATable(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.apply(settings(1, `{"anonymousPlan":"p"}`))
	const want = `t 5, u unknown, none unknown, anonymous "p", a k, b unknown, c unknown`
	check := func(now time.Time) {
		t.Helper()
		if got := w.decisionAt(now); got != want {
			t.Fatalf("%s: %s\nwant %s", now.Sub(noon), got, want)
		}
	}
	check(noon)
	w.away(true)
	now := noon
	for ; now.Sub(noon) < 3*config.MaxAge; now = now.Add(700 * time.Millisecond) {
		check(now)
	}
	check(now.Add(24 * time.Hour))
	w.away(false)
	w.mu.Lock() // the head can be read, but no document
	w.onGet = func(context.Context, []table.Document) error { return errAway }
	w.mu.Unlock()
	for now = now.Add(25 * time.Hour); now.Sub(noon) < 26*time.Hour; now = now.Add(20 * time.Second) {
		check(now)
	}
	w.away(false)
	w.apply(tabletest.Plan("p", 6, 2))
	w.want(now.Add(10*time.Second), "t", "6")
	if s := w.r.Stats(now); s.Resets != 0 {
		t.Errorf("the copy was dropped, want it kept: %+v\n%s", s, w.logged())
	}
}

// Guarantees that a log that cannot be read delays corrections and changes for at most MaxAge.
func TestUnreadableLog(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.apply(tabletest.Tenant("u", "p", 1))
	w.want(noon, "t", "5")
	was := w.rowsOf(table.Ref{Kind: plan.KindPlan, ID: "p"})
	w.apply(tabletest.Plan("p", 500, forgedVersion))
	now := noon.Add(time.Minute)
	w.want(now, "t", "500")
	w.mu.Lock()
	w.onLog = func(context.Context, *[]table.Entry) error { return errors.New("attribute v is no number") }
	w.mu.Unlock()
	w.commit(false, was...)
	for end := now.Add(config.MaxAge); now.Before(end); now = now.Add(time.Second) {
		w.at(now, "t")
	}
	w.want(now, "t", "5")
	w.commit(false, tabletest.Plan("p", 6, 2))
	w.want(now.Add(config.MaxAge), "t", "6")
}

// Guarantees that a tenant keeps its limits if everything is old, the table cannot be read, and the copy no longer
// knows that its plan was deleted.
func TestAgeOfAPlanThatIsGone(t *testing.T) {
	w := newWorld(t, func(c *config.Config) { c.MaxAbsent = 16 })
	w.seed()
	w.want(noon, "t", "5")
	w.apply(tabletest.Gone(table.Ref{Kind: plan.KindPlan, ID: "p"}, 2))
	now := noon.Add(10 * time.Second)
	w.want(now, "t", "5")
	for i := range 30 {
		w.want(now, fmt.Sprint(i), "unknown")
	}
	w.away(true)
	w.want(now, "t", "5")
	w.want(now.Add(config.MaxAge), "t", "5")
}

// Guarantees that a read that returns when nobody waits for it any more does not replace the result of a later one.
func TestLateReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *config.Config) { c.Timeout, c.FirstTimeout = 0, 100*time.Millisecond })
		w.seed()
		if err := w.r.Load(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		var first atomic.Bool
		w.mu.Lock()
		w.onGet = func(_ context.Context, d []table.Document) error {
			if d[0].Kind == plan.KindTenant && !first.Swap(true) {
				<-time.After(500 * time.Millisecond)
			}
			return nil
		}
		w.mu.Unlock()
		w.want(time.Now(), "t", "not loaded")
		w.apply(tabletest.Tenant("t", "q", 2), tabletest.Plan("q", 7, 1))
		w.want(time.Now(), "t", "7")
		<-time.After(time.Second)
		w.want(time.Now(), "t", "7")
		<-time.After(time.Second)
		if s := w.r.Stats(time.Now()); s.Resets != 0 {
			t.Errorf("the copy was dropped because of a late read, want no reset: %+v\n%s", s, w.logged())
		}
	})
}

// Guarantees that a row that is not a document, and that requests need, does not prevent other documents from being
// read again.
func TestAgeBesideABadRow(t *testing.T) {
	w := newWorld(t)
	w.seed()
	w.apply(tabletest.Plan("q", 7, 1), tabletest.Tenant("u", "q", 1))
	was := w.rowsOf(table.Ref{Kind: plan.KindPlan, ID: "p"})
	w.decisionAt(noon)
	w.apply(tabletest.Plan("p", 500, forgedVersion))
	now := noon.Add(time.Minute)
	if got := w.decisionAt(now); !strings.HasPrefix(got, "t 500, u 7,") {
		t.Fatal(got)
	}
	w.rewrite(was...)
	w.mu.Lock()
	w.onGet = func(_ context.Context, d []table.Document) error {
		for i := range d {
			if d[i].ID == "q" {
				return &table.BadRow{Kind: plan.KindPlan, Ref: d[i].Ref,
					Err: errors.New("attribute v is no number")}
			}
		}
		return nil
	}
	w.mu.Unlock()
	before := w.read.Load()
	for end := now.Add(config.MaxAge); now.Before(end); now = now.Add(time.Second) {
		w.decisionAt(now)
	}
	w.want(now, "t", "5")
	w.away(false)
	w.want(now.Add(10*time.Second), "u", "7")
	if n := w.read.Load() - before; n > 500 {
		t.Errorf("%d documents were read in a quarter of an hour, want at most 500", n)
	}
}

// Guarantees that a table that hangs costs requests little time, even if everything that they need is old.
func TestAgeWithAHangingTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *config.Config) { c.Timeout, c.FirstTimeout = 0, 0 })
		w.seed()
		w.want(time.Now(), "t", "5")
		w.blockCalls()
		<-time.After(config.MaxAge)
		for range 10 { // as after a thaw
			w.at(time.Now(), "t")
			<-time.After(time.Second)
		}
		var total time.Duration
		const requests = 200
		for range requests {
			<-time.After(50 * time.Millisecond)
			began := time.Now()
			w.want(began, "t", "5")
			total += time.Since(began)
		}
		if total > requests*25*time.Millisecond {
			t.Errorf("%d requests waited %s in all, want at most 25ms each on average", requests, total)
		}
	})
}

// Guarantees the cost of reading documents again: a document in use is read every 9 to 15 minutes. Documents that are
// not used cost nothing.
func TestCostOfAge(t *testing.T) {
	w := newWorld(t)
	w.seed()
	for i := range 300 {
		w.apply(tabletest.Tenant(fmt.Sprint(i), "p", 1))
	}
	for i := range 300 {
		w.want(noon, fmt.Sprint(i), "5")
	}
	before, gets := w.read.Load(), w.gets.Load()
	const used, hours = 50, 10
	for second := range hours * 3600 {
		now := noon.Add(time.Duration(second) * time.Second)
		c, join := w.begin(now)
		if got := threshold(c, fmt.Sprint(second%used), now); got != "5" {
			t.Fatal(got)
		}
		join()
	}
	// 50 tenants, their plan, and the settings.
	read, most := w.read.Load()-before, int64((used+2)*hours*6)
	if read > most || read < most*10/15 {
		t.Errorf("%d documents were read again in %d h, want %d to %d", read, hours, most*10/15, most)
	}
	if calls := w.gets.Load() - gets; calls > hours*3600/2 {
		t.Errorf("%d calls of the table in %d h, want at most one in two seconds", calls, hours)
	}
	now := noon.Add(hours * time.Hour)
	if s := w.r.Stats(now); s.Resets != 0 || s.BadDocuments != 0 {
		t.Errorf("stats %+v, want no resets and no bad documents", s)
	}
}

// Guarantees that regular changes never cause the copy to be dropped, and that nothing in it returns to an earlier
// version: with changes at any time, reads that fail or take long, and pauses of any length.
func TestAgeNeverFlaps(t *testing.T) {
	for seed := range soak.Times(uint64(200)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			w := newWorld(t, func(c *config.Config) {
				c.Timeout, c.FirstTimeout, c.MaxDocuments = 100*time.Millisecond, time.Second, 16
			})
			w.apply(tabletest.Plan("p", 1, 1))
			const tenants = 20
			for i := range tenants {
				w.apply(tabletest.Tenant(fmt.Sprint(i), "p", 1))
			}
			var slow, failing atomic.Int64
			w.mu.Lock()
			w.onGet = func(context.Context, []table.Document) error {
				if n := slow.Load(); n > 0 {
					<-time.After(time.Duration(n)) // the answer arrives late, when nobody waits for it
				}
				if failing.Load() > 0 {
					return errAway
				}
				return nil
			}
			w.mu.Unlock()
			version, seen := int64(1), map[string]int64{}
			defer func() { <-time.After(10 * time.Second) }() // for reads that nobody waits for any more
			for range 150 {
				switch random.IntN(8) {
				case 0, 1:
					version++
					w.apply(tabletest.Plan("p", version, version))
				case 2:
					w.apply(tabletest.Plan("p", version+1, version+1), settings(version, `{"anonymousPlan":"p"}`))
					version++
				case 3:
					slow.Store(random.Int64N(int64(200 * time.Millisecond)))
				case 4:
					failing.Store(random.Int64N(2))
				case 5:
					slow.Store(0)
					failing.Store(0)
				}
				pause := time.Duration(random.Int64N(int64(2 * time.Second)))
				if random.IntN(3) == 0 {
					pause = time.Duration(random.Int64N(int64(2 * config.MaxAge)))
				}
				<-time.After(pause)
				now := time.Now()
				tenant := fmt.Sprint(random.IntN(tenants))
				got := w.at(now, tenant)
				if got == "not loaded" {
					continue
				}
				var n int64
				if _, err := fmt.Sscan(got, &n); err != nil || n > version {
					t.Fatalf("seed %d: the tenant's threshold is %q, want a version that was written", seed, got)
				}
				if n < seen[tenant] {
					t.Fatalf("seed %d: the tenant's threshold is %d after it was %d, want no return to an earlier "+
						"version", seed, n, seen[tenant])
				}
				seen[tenant] = n
			}
			slow.Store(0)
			failing.Store(0)
			<-time.After(10 * time.Second)
			w.want(time.Now(), "0", fmt.Sprint(version))
			if s := w.r.Stats(time.Now()); s.Resets != 0 || s.BadDocuments != 0 {
				t.Fatalf("seed %d: stats %+v, want no resets and no bad documents\n%s", seed, s, w.logged())
			}
		})
	}
}
