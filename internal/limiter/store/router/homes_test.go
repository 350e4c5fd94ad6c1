package router_test

import (
	"errors"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// cells holds a cell's own store and the stores of other cells. Each of them can be made to fail.
type cells struct {
	*router.Store
	own, a, b *unavailable
}

func newCells(tb testing.TB) *cells {
	tb.Helper()
	c := &cells{own: newMemory(tb), a: newMemory(tb), b: newMemory(tb)}
	var err error
	c.Store, err = router.New(router.Config{Cell: "here", Rates: router.Backend{Store: c.own},
		Homes: map[string]router.Backend{"a": {Store: c.a}, "b": {Store: c.b}}})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// Guarantees that the stores of several cells together keep the contract of one store, whichever of them keeps the
// quotas.
func TestContractOfHomes(t *testing.T) {
	for _, home := range []string{"a", "b"} {
		t.Run(home, func(t *testing.T) {
			limittest.RunStoreContract(t, limittest.Config{
				New:    func(tb testing.TB) limit.Store { return newCells(tb) },
				Leases: true, Undoes: true, Home: home, Scripts: soak.Times(60), Goroutines: 16,
			})
		})
	}
	for name, homed := range map[string]func(*limit.Limit) bool{
		"everything": func(*limit.Limit) bool { return true },
		"some":       func(l *limit.Limit) bool { return l.ID[len(l.ID)-1]%2 == 0 },
	} {
		t.Run(name, func(t *testing.T) {
			limittest.RunStoreContract(t, limittest.Config{
				New:    func(tb testing.TB) limit.Store { return newCells(tb) },
				Leases: true, Undoes: true, Home: "a", Homed: homed, Scripts: soak.Times(60), Goroutines: 16,
			})
		})
	}
}

// Guarantees that a limit which the deciding cell keeps for all cells is counted in the store of its quotas, which
// other cells call, and not with its other rates. Counted in two places, its units would be granted twice.
func TestKeptHere(t *testing.T) {
	own, other := newPair(t), newMemory(t)
	all, err := router.New(router.Config{Cell: "here", Rates: router.Backend{Store: own.rates},
		Quotas: router.Backend{Store: own.quotas},
		Homes:  map[string]router.Backend{"there": {Store: other}}})
	if err != nil {
		t.Fatal(err)
	}
	r, l := rate(t, 9), newLimit(t, "tiny", limit.Tier{Algorithm: limit.TokenBucket, Threshold: 2,
		Period: time.Second})
	here := l.KeptIn("here")
	for _, req := range []*limit.Request{requestOf(here), requestOf(here, r)} {
		var d limit.Decision
		if err := all.Decide(t.Context(), req, start, &d); err != nil || !d.Allowed {
			t.Fatalf("allowed %t, %v", d.Allowed, err)
		}
	}
	used := func(s limit.Store, l *limit.Limit) int64 {
		var d limit.Decision
		if err := s.Peek(t.Context(), requestOf(l), start, &d); err != nil {
			t.Fatal(err)
		}
		return d.Results[0].Used()
	}
	if got := used(own.quotas.Store, l); got != 2 {
		t.Errorf("%d charged beside the quotas, want 2", got)
	}
	if got := used(own.rates.Store, l) + used(other.Store, l); got != 0 {
		t.Errorf("%d units are charged in the store of the rates, or in another cell, want none", got)
	}
	if err := all.Accepts(here); err != nil {
		t.Error(err)
	}
}

// Guarantees that a process without other cells' stores counts a limit with a home in the store of its quotas: its own
// cell keeps the limit.
func TestHomesAreNotLookedAt(t *testing.T) {
	p := newPair(t)
	l := rate(t, 9).KeptIn("anywhere")
	own := newLimit(t, "own", limit.Tier{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 9})
	if d := p.decide(start, l, own); !d.Allowed {
		t.Fatal("a request is denied, although units are left")
	}
	if n, m := p.quotas.decided.Load(), p.rates.decided.Load(); n != 1 || m != 1 {
		t.Errorf("the quotas' store was asked %d times, that of the rates %d times; want one limit in each", n, m)
	}
	if err := p.Accepts(l); err != nil {
		t.Errorf("Accepts = %v, want no error", err)
	}
}

// Guarantees that a denial by another limit leaves a rate that another cell keeps as it was.
func TestDenialLeavesARateOfAHome(t *testing.T) {
	c := newCells(t)
	r, tiny := rate(t, 1), newLimit(t, "tiny", limit.Tier{Algorithm: limit.TokenBucket, Threshold: 5,
		Period: time.Second}).KeptIn("a")
	var d limit.Decision
	for range 5 {
		if err := c.Decide(t.Context(), requestOf(r, tiny), start, &d); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.used(t, c.a, tiny); got != 1 {
		t.Errorf("%d units of the bucket are charged, want 1, for the one request that was admitted", got)
	}
	admitted := 0
	for range 20 {
		if err := c.Decide(t.Context(), requestOf(tiny), start.Add(2*time.Second), &d); err != nil {
			t.Fatal(err)
		} else if d.Allowed {
			admitted++
		}
	}
	for range 20 {
		if err := c.Decide(t.Context(), requestOf(rate(t, 100), tiny), start.Add(2*time.Second), &d); err != nil {
			t.Fatal(err)
		} else if d.Allowed {
			admitted++
		}
	}
	if admitted != 5 {
		t.Errorf("a bucket of 5 admits %d units at once, want at most 5", admitted)
	}
}

// quotaOfOtherCell returns a daily quota that another cell keeps.
func quotaOfOtherCell(tb testing.TB, id, home string, units int64) *limit.Limit {
	tb.Helper()
	return newLimit(tb, id, limit.Tier{
		Algorithm: limit.Quota, Threshold: units, Calendar: &limit.Calendar{Every: limit.Day, Location: time.UTC},
	}).KeptIn(home)
}

func (c *cells) used(tb testing.TB, s *unavailable, l *limit.Limit) int64 {
	tb.Helper()
	var d limit.Decision
	if err := s.Store.Peek(tb.Context(), requestOf(l), start, &d); err != nil {
		tb.Fatal(err)
	}
	return d.Results[0].Used()
}

// want fails unless these amounts, and no others, are charged in the cell's own store and in each home.
func (c *cells) want(tb testing.TB, what string, r, qa, qb *limit.Limit, own, a, b int64) {
	tb.Helper()
	for _, x := range []struct {
		name string
		s    *unavailable
		l    *limit.Limit
		want int64
	}{{"own", c.own, r, own}, {"a", c.a, qa, a}, {"b", c.b, qb, b}, {"own", c.own, qa, 0}, {"own", c.own, qb, 0},
		{"a", c.a, qb, 0}, {"b", c.b, qa, 0}} {
		if got := c.used(tb, x.s, x.l); got != x.want {
			tb.Errorf("%s: %s has %d of %s charged, want %d", what, x.name, got, x.l.ID, x.want)
		}
	}
}

// Guarantees that a decision over the stores of three cells charges each store its own part, or none, whichever of them
// denies or fails. Otherwise a tenant whose quotas are being moved would pay for calls that were refused.
func TestHomesAllOrNothing(t *testing.T) {
	for _, tt := range []struct {
		name       string
		r, qa, qb  int64 // threshold of each limit
		away       string
		wantDenial string
	}{
		{"all admit", 9, 9, 9, "", ""},
		{"the rate denies", 1, 9, 9, "", "rate"},
		{"the quota of a denies", 9, 1, 9, "", "qa"},
		{"the quota of b denies", 9, 9, 1, "", "qb"},
		{"the own store fails", 9, 9, 9, "own", ""},
		{"a fails", 9, 9, 9, "a", ""},
		{"b fails", 9, 9, 9, "b", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCells(t)
			r, qa, qb := rate(t, tt.r), quotaOfOtherCell(t, "qa", "a", tt.qa), quotaOfOtherCell(t, "qb", "b", tt.qb)
			req := requestOf(qb, r, qa)
			var d limit.Decision
			if err := c.Decide(t.Context(), req, start, &d); err != nil || !d.Allowed {
				t.Fatalf("the first: allowed %t, %v", d.Allowed, err)
			}
			c.want(t, "after the first", r, qa, qb, 1, 1, 1)
			fails := map[string]*unavailable{"own": c.own, "a": c.a, "b": c.b}[tt.away]
			if fails != nil {
				fails.failing.Store(true)
			}
			err := c.Decide(t.Context(), req, start, &d)
			switch {
			case tt.away != "":
				if !errors.Is(err, errUnavailable) || d.Allowed {
					t.Errorf("allowed %t, %v; want the error", d.Allowed, err)
				}
				c.want(t, "after a failure", r, qa, qb, 1, 1, 1)
			case tt.wantDenial != "":
				if err != nil || d.Allowed || d.Binding().Limit().ID != tt.wantDenial {
					t.Errorf("allowed %t, %v; want a denial by %s", d.Allowed, err, tt.wantDenial)
				}
				c.want(t, "after a denial", r, qa, qb, 1, 1, 1)
			default:
				if err != nil || !d.Allowed {
					t.Errorf("allowed %t, %v", d.Allowed, err)
				}
				c.want(t, "after the second", r, qa, qb, 2, 2, 2)
				if _, err := c.Settle(t.Context(), d.Receipt(), nil, start); err != nil {
					t.Fatal(err)
				}
				c.want(t, "after a refund", r, qa, qb, 1, 1, 1)
			}
		})
	}
}

// Guarantees that a decision that asks nothing of a home cell does not call its store, whatever its state, and marks
// its results as not asked. Otherwise each renewal of a lease of a rate would wait for another region.
func TestHomesAreAskedForWhatIsLacking(t *testing.T) {
	c := newCells(t)
	r, qa := rate(t, 9), quotaOfOtherCell(t, "qa", "a", 100)
	ask := func(rates, quotas limit.LeaseRequest) *limit.Decision {
		t.Helper()
		req, d := requestOf(r, qa), new(limit.Decision)
		req.Leases = []limit.LeaseRequest{rates, quotas}
		if err := c.Decide(t.Context(), req, start, d); err != nil || !d.Allowed {
			t.Fatalf("allowed %t, %v", d.Allowed, err)
		}
		return d
	}
	if d := ask(leaseOf(1, 2), leaseOf(1, 10)); d.Results[1].Unasked || d.Lease(1).Units != 10 ||
		c.a.decided.Load() != 1 {
		t.Errorf("lacking: unasked %t, %+v, %d calls", d.Results[1].Unasked, d.Lease(1), c.a.decided.Load())
	}
	c.a.failing.Store(true)
	if d := ask(leaseOf(1, 2), limit.LeaseRequest{}); !d.Results[1].Unasked || d.Results[0].Unasked ||
		d.Lease(0).Units != 2 || c.a.decided.Load() != 1 {
		t.Errorf("in hand: unasked %t, %+v, %d calls; want no call of the home", d.Results[1].Unasked, d.Lease(0),
			c.a.decided.Load())
	}
	if d := ask(limit.LeaseRequest{Correction: -2, CorrectionAt: start.UnixMicro()},
		limit.LeaseRequest{}); !d.Results[1].Unasked {
		t.Error("a correction of a rate calls the store of the home, want no call")
	}
	var d limit.Decision
	if err := c.Decide(t.Context(), requestOf(r), start, &d); err != nil || !d.Allowed {
		t.Errorf("rates alone, with the home away: allowed %t, %v", d.Allowed, err)
	}
	c.want(t, "at last", r, qa, quotaOfOtherCell(t, "qb", "b", 1), 7-2, 11, 0)
}

// Guarantees that a request that another store denies only reads the store of a home, which may be far away, and that a
// request that is admitted calls it once. It calls it twice if what the other store was charged could not be undone
// without a trace.
func TestCallsOfAHome(t *testing.T) {
	c := newCells(t)
	bucket := newLimit(t, "bucket", limit.Tier{Algorithm: limit.TokenBucket, Period: time.Hour, Threshold: 1})
	qa := quotaOfOtherCell(t, "qa", "a", 100)
	for _, tt := range []struct {
		r             *limit.Limit
		allowed       bool
		decided, read int64
	}{{rate(t, 1), true, 1, 0}, {rate(t, 1), false, 0, 1}, {bucket, true, 1, 1}, {bucket, false, 0, 1}} {
		c.a.decided.Store(0)
		c.a.peeked.Store(0)
		var d limit.Decision
		if err := c.Decide(t.Context(), requestOf(tt.r, qa), start, &d); err != nil || d.Allowed != tt.allowed {
			t.Fatalf("%s: allowed %t, %v; want %t", tt.r.ID, d.Allowed, err, tt.allowed)
		}
		if decided, read := c.a.decided.Load(), c.a.peeked.Load(); decided != tt.decided || read != tt.read {
			t.Errorf("%s, allowed %t: the store of the home was charged %d times and read %d times, want %d and %d",
				tt.r.ID, tt.allowed, decided, read, tt.decided, tt.read)
		}
	}
}

// Guarantees that a home which is not known is an error that charges nothing, also before it was added, and that a
// rate which is kept elsewhere is counted only there.
func TestUnknownHome(t *testing.T) {
	c := newCells(t)
	r, q := rate(t, 9), quotaOfOtherCell(t, "q", "c", 5)
	var d limit.Decision
	for name, call := range map[string]func() error{
		"Decide":  func() error { return c.Decide(t.Context(), requestOf(r, q), start, &d) },
		"Peek":    func() error { return c.Peek(t.Context(), requestOf(r, q), start, &d) },
		"Accepts": func() error { return c.Accepts(q) },
	} {
		if err := call(); !errors.Is(err, router.ErrNoHome) || d.Allowed {
			t.Errorf("%s: allowed %t, %v; want ErrNoHome", name, d.Allowed, err)
		}
	}
	if n := c.own.decided.Load() + c.a.decided.Load() + c.b.decided.Load(); n != 0 {
		t.Errorf("%d stores were called, want none", n)
	}
	if err := c.Decide(t.Context(), requestOf(r.KeptIn("a")), start, &d); err != nil || !d.Allowed ||
		c.used(t, c.a, r) != 1 || c.used(t, c.own, r) != 0 {
		t.Errorf("a rate that is kept elsewhere: allowed %t, %v, %d charged there, %d here", d.Allowed, err,
			c.used(t, c.a, r), c.used(t, c.own, r))
	}
	late := newMemory(t)
	if err := c.Add("c", router.Backend{Store: late}); err != nil {
		t.Fatal(err)
	}
	if err := c.Decide(t.Context(), requestOf(q, quotaOfOtherCell(t, "qa", "a", 5), r), start, &d); err != nil ||
		!d.Allowed ||
		c.used(t, late, q) != 1 {
		t.Errorf("once it was added: allowed %t, %v, %d charged there", d.Allowed, err, c.used(t, late, q))
	}
	for _, twice := range []string{"c", "", "here"} {
		if err := c.Add(twice, router.Backend{Store: late}); err == nil {
			t.Errorf("the home %q is accepted a second time, or without a name; want an error", twice)
		}
	}
}
