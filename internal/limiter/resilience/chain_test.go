package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

var errUnavailable = errors.New("the store is unavailable")

// fake is a store in memory that records its calls, and can fail or hang.
type fake struct {
	*memory.Store

	mu    sync.Mutex
	away  bool
	hangs bool // until the context of the call ends
	calls []call
}

// call is one call of the store, and its purpose.
type call struct {
	owner    limit.Owner
	ids      []string
	back     int64 // units of leases that it gives back
	replayed int64 // units admitted without the store that it charges
}

func newFake(tb testing.TB) *fake {
	tb.Helper()
	s := memorytest.New(tb)
	return &fake{Store: s}
}

func (f *fake) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	c := call{owner: req.Owner}
	for i := range req.Charges {
		c.ids = append(c.ids, req.Charges[i].Limit.ID)
	}
	for i := range req.Leases {
		c.replayed += max(req.Leases[i].Correction, 0)
		c.back -= min(req.Leases[i].Correction, 0)
	}
	f.mu.Lock()
	f.calls = append(f.calls, c)
	away, hangs := f.away, f.hangs
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if away {
		return errUnavailable
	}
	return f.Store.Decide(ctx, req, now, d)
}

func (f *fake) set(away, hangs bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away, f.hangs = away, hangs
}

// all returns every call.
func (f *fake) all() []call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// of returns the calls for an owner.
func (f *fake) of(owner limit.Owner) []call {
	var all []call
	for _, c := range f.all() {
		if c.owner == owner {
			all = append(all, c)
		}
	}
	return all
}

// rejectingStore accepts no limit.
type rejectingStore struct{ *fake }

func (rejectingStore) Accepts(*limit.Limit) error { return errors.New("no limit is accepted") }

func newChain(tb testing.TB, c resilience.ChainConfig) *resilience.Chain {
	tb.Helper()
	c.Log = quiet
	l, err := resilience.NewChain(c)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func closeChain(tb testing.TB, l *resilience.Chain) {
	tb.Helper()
	if err := l.Close(context.Background()); err != nil {
		tb.Errorf("Close: %v", err)
	}
}

func hourly(tb testing.TB, id string, units int64) *limit.Limit {
	return newLimit(tb, limit.Limit{ID: id, Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: units,
		Period: time.Hour}}})
}

func monthly(tb testing.TB, id string, units int64) *limit.Limit {
	return newLimit(tb, limit.Limit{ID: id, Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: units,
		Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC, AnchorDay: 1}}}})
}

func newRequest(owner limit.Owner, limits ...*limit.Limit) *limit.Request {
	req := &limit.Request{Owner: owner}
	for _, l := range limits {
		req.Charges = append(req.Charges, limit.Charge{Limit: l, Cost: 1})
	}
	return req
}

// decides makes n decisions, a millisecond apart, and returns how many requests were admitted, and how many decisions
// were marked as degraded, which means that they were made without the store.
func decides(tb testing.TB, s limit.Store, req *limit.Request, n int) (allowed, marked int64) {
	tb.Helper()
	var d limit.Decision
	for range n {
		if err := s.Decide(context.Background(), req, time.Now(), &d); err != nil {
			tb.Fatal(err)
		}
		if d.Allowed {
			allowed++
		}
		if d.Degraded {
			marked++
		}
		<-time.After(time.Millisecond)
	}
	return allowed, marked
}

// usedOf returns what a store counts of each limit.
func usedOf(tb testing.TB, s limit.Store, req *limit.Request) (used []int64) {
	tb.Helper()
	var d limit.Decision
	if err := s.Peek(context.Background(), req, time.Now(), &d); err != nil {
		tb.Fatal(err)
	}
	for i := range d.Results {
		used = append(used, d.Results[i].Used())
	}
	return used
}

// Guarantees that New refuses an invalid configuration with an error that says what is wrong, and leaves no goroutine.
func TestConfig(t *testing.T) {
	store := newFake(t)
	good := resilience.ChainConfig{Rates: resilience.NamedStore{Name: "redis", Store: store}, Log: quiet}
	for _, tt := range []struct {
		name   string
		change func(c *resilience.ChainConfig)
		want   []string
	}{
		{"no store", func(c *resilience.ChainConfig) { c.Rates.Store = nil }, []string{"Rates is missing"}},
		{"instances below zero", func(c *resilience.ChainConfig) { c.MaxInstances = -1 }, []string{"Max -1"}},
		{"a store that cannot count instances",
			func(c *resilience.ChainConfig) { c.Rates.Store = rejectingStore{store} },
			[]string{"no limit is accepted"}},
		{"leases without life", func(c *resilience.ChainConfig) { c.Lease.Life = -1 }, []string{"Life -1ns"}},
		{"no room for the backstop", func(c *resilience.ChainConfig) { c.Fallback.Bytes = 1 }, []string{"Bytes 1"}},
		{"no room for the backstop, and no leases", func(c *resilience.ChainConfig) {
			c.Fallback.Bytes, c.NoLeases = 1,
				true
		}, []string{"Bytes 1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := good
			tt.change(&c)
			l, err := resilience.NewChain(c)
			if err == nil {
				closeChain(t, l)
			}
			for _, want := range append(tt.want, "store chain: ") {
				if !strings.Contains(fmt.Sprint(err), want) {
					t.Errorf("New: %v, want an error with %q", err, want)
				}
			}
		})
	}
	closeChain(t, newChain(t, good))
}

// Guarantees that leases make most calls of a busy limit unnecessary, that without leases each decision is a call, and
// that both admit each unit once.
func TestLeasesOnAndOff(t *testing.T) {
	for _, off := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := newFake(t)
			l := newChain(t, resilience.ChainConfig{Rates: resilience.NamedStore{Name: "redis", Store: store},
				NoLeases: off})
			req := newRequest(acme, hourly(t, "l", 500))
			allowed, marked := decides(t, l, req, 600)
			calls := len(store.of(acme))
			if allowed != 500 || marked != 0 || (l.Leases == nil) != off {
				t.Errorf("leases off %v: %d admitted, %d marked as degraded, leases %v; want 500 and none", off,
					allowed, marked, l.Leases)
			}
			if off && calls != 600 || !off && calls > 60 {
				t.Errorf("leases off %v: %d calls of the store for 600 decisions, want 600 without leases, and at "+
					"most 60 with them", off, calls)
			}
			closeChain(t, l)
			if got := usedOf(t, store, req); got[0] != 500 {
				t.Errorf("leases off %v: the store counts %d units, want 500", off, got[0])
			}
		})
	}
}

// Guarantees that instances are counted in the store of the rates, where each of them announces itself.
func TestInstancesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, quotas := newFake(t), newFake(t)
		c := resilience.ChainConfig{Rates: resilience.NamedStore{Name: "redis", Store: store},
			Quotas: resilience.NamedStore{Name: "dynamodb", Store: quotas}, MaxInstances: 40}
		store.set(true, false)
		a, b := newChain(t, c), newChain(t, c)
		synctest.Wait()
		if a.Instances.Count() != 40 || b.Instances.Count() != 40 {
			t.Errorf("before the store answers, the instance counts are %d and %d, want 40, the largest number",
				a.Instances.Count(), b.Instances.Count())
		}
		store.set(false, false)
		<-time.After(time.Minute) // an instance that has just started counts more than once
		for _, n := range []int{a.Instances.Count(), b.Instances.Count()} {
			if n < 2 || n > 4 { // some announcements count twice
				t.Errorf("the instance count is %d, want 2 to 4", n)
			}
		}
		closeChain(t, a)
		closeChain(t, b)
		if asked := quotas.all(); len(asked) > 0 {
			t.Errorf("the quotas' store was called, want no call: %v", asked)
		}
	})
}

// Guarantees that quotas with a store of their own are counted there and rates in theirs, each behind a breaker of its
// own: while the quotas' store fails, requests without a quota are decided as usual.
func TestQuotasApart(t *testing.T) {
	for _, off := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			rates, quotas := newFake(t), newFake(t)
			l := newChain(t, resilience.ChainConfig{Rates: resilience.NamedStore{Name: "redis", Store: rates},
				Quotas: resilience.NamedStore{Name: "dynamodb", Store: quotas}, NoLeases: off})
			rate, quota := hourly(t, "rate", 1000), monthly(t, "quota", 300)
			both, alone := newRequest(acme, rate, quota), newRequest(acme, rate)

			if allowed, marked := decides(t, l, both, 200); allowed != 200 || marked != 0 {
				t.Errorf("leases off %v: %d admitted and %d marked as degraded, want 200 and none", off, allowed,
					marked)
			}
			for name, f := range map[string]*fake{"rate": rates, "quota": quotas} {
				for _, c := range f.of(acme) {
					if slices.ContainsFunc(c.ids, func(id string) bool { return id != name }) {
						t.Fatalf("leases off %v: the store of %s was asked about the limits %v, want only its own",
							off, name, c.ids)
					}
				}
			}

			quotas.set(true, false)
			if _, marked := decides(t, l, both, 400); marked < 200 {
				t.Errorf("leases off %v: %d decisions of 400 without the quotas' store are marked as degraded, want "+
					"at least 200", off, marked)
			}
			if allowed, marked := decides(t, l, alone, 50); allowed != 50 || marked != 0 {
				t.Errorf("leases off %v: without the quotas' store, %d of 50 requests without a quota are admitted, "+
					"%d marked as degraded; want all and none", off, allowed, marked)
			}
			states := ""
			for _, b := range l.Breakers {
				states += fmt.Sprintf("%s %s ", b.Name(), b.State())
			}
			if states != "redis closed dynamodb open " {
				t.Errorf("leases off %v: the breakers are %s; want that of redis closed, and that of dynamodb open",
					off, states)
			}

			quotas.set(false, false)
			<-time.After(5 * time.Second)
			if allowed, marked := decides(t, l, both, 5); marked != 0 {
				t.Errorf("leases off %v: after the quotas' store answers again, %d of 5 are admitted, %d marked as "+
					"degraded; want none marked", off, allowed, marked)
			}
			closeChain(t, l)
			// 200 units were admitted before, and without the store the remaining leased units and at most 300 more.
			if got := usedOf(t, quotas, newRequest(acme, quota)); got[0] < 300 || got[0] > 605 {
				t.Errorf("leases off %v: the store counts %d units of the quota, want 300 to 605", off, got[0])
			}
		})
	}
}

// Guarantees that Close first charges the store for what was admitted without it, and then gives back the leases: units
// given back too late are lost, and units that are not charged are admitted twice. The store then counts exactly what
// was admitted.
func TestCloseGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := newChain(t, resilience.ChainConfig{Rates: resilience.NamedStore{Name: "redis", Store: store},
			Lease:    lease.Config{GiveBackEvery: -1},
			Fallback: resilience.FallbackConfig{PerSecond: 1}})
		busy, exact := hourly(t, "busy", 10_000), newLimit(t, limit.Limit{ID: "exact", Exact: true, Tiers: []limit.Tier{
			{Algorithm: limit.FixedWindow, Threshold: 1000, Period: time.Hour}}})
		many := make([]limit.Owner, 5)
		for i := range many {
			many[i] = limit.Owner{Kind: limit.Tenant, Name: fmt.Sprint("tenant ", i)}
			decides(t, l, newRequest(many[i], busy), 300)
		}
		store.set(true, false)
		for _, owner := range many {
			if allowed, marked := decides(t, l, newRequest(owner, exact), 10); allowed != 10 || marked != 10 {
				t.Fatalf("without the store, %d are admitted and %d marked as degraded, want 10", allowed, marked)
			}
		}
		store.set(false, false)
		<-time.After(5 * time.Second) // the cooldown of the breaker; the pending units wait for a successful call
		if st, fallback := l.Leases.Stats(), l.Stats(); st.Units == 0 || fallback.Waiting != 5 {
			t.Fatalf("%d units are leased, and %d owners have pending units; want some units, and 5 owners: the "+
				"test shows nothing", st.Units, fallback.Waiting)
		}
		before := len(store.all())
		closeChain(t, l)
		order := ""
		for _, c := range store.all()[before:] {
			switch {
			case c.replayed > 0 && !strings.HasSuffix(order, "charge "):
				order += "charge "
			case c.back > 0 && !strings.HasSuffix(order, "return "):
				order += "return "
			}
		}
		if order != "charge return " {
			t.Errorf("the calls of Close are %q, want that it charges first and then gives back", order)
		}
		for _, owner := range many {
			if got := usedOf(t, store, newRequest(owner, busy, exact)); got[0] != 300 || got[1] != 10 {
				t.Errorf("%s: the store counts %v, want 310, as many as were admitted", owner.Name, got)
			}
		}
	})
}

// Guarantees that Close ends with its context if a store hangs, and reports what is lost.
func TestCloseIsBounded(t *testing.T) {
	for _, apart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			rates, quotas := newFake(t), newFake(t)
			c := resilience.ChainConfig{Rates: resilience.NamedStore{Name: "redis", Store: rates},
				Lease: lease.Config{GiveBackEvery: -1}}
			req := newRequest(acme, hourly(t, "busy", 10_000))
			if apart {
				c.Quotas = resilience.NamedStore{Name: "dynamodb", Store: quotas}
				req = newRequest(acme, hourly(t, "busy", 10_000), monthly(t, "quota", 10_000))
			}
			l := newChain(t, c)
			decides(t, l, req, 300)
			rates.set(false, true)
			quotas.set(false, true)
			<-time.After(9 * time.Second) // the next announcement may be in progress, too
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			defer cancel()
			began := time.Now()
			err := l.Close(ctx)
			if took := time.Since(began); took > 500*time.Millisecond || err == nil ||
				!strings.Contains(err.Error(), "units are lost") {
				t.Errorf("quotas apart %v: Close took %s: %v; want at most 500ms, and an error that says what is lost",
					apart, took, err)
			}
		})
	}
}

// Guarantees that addresses and tenants are counted separately in one chain, whatever their names, with the store and
// without it.
func TestAddressesAndTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := newChain(t, resilience.ChainConfig{Rates: resilience.NamedStore{Name: "redis", Store: store},
			MaxInstances: 1})
		same := "0123456789abcdef0123456789abcdef"
		tenant, address := limit.Owner{Kind: limit.Tenant, Name: same}, limit.Owner{Kind: limit.Address, Name: same}
		rule := hourly(t, "l", 100)
		for _, owner := range []limit.Owner{tenant, address} {
			if allowed, marked := decides(t, l, newRequest(owner, rule), 120); allowed != 100 || marked != 0 {
				t.Errorf("owner kind %c: %d admitted, %d marked as degraded; want 100 and none", owner.Kind, allowed,
					marked)
			}
			if got := usedOf(t, store, newRequest(owner, rule)); got[0] != 100 {
				t.Errorf("owner kind %c: the store counts %d, want 100", owner.Kind, got[0])
			}
		}
		store.set(true, false)
		other := hourly(t, "other", 100)
		for _, owner := range []limit.Owner{tenant, address} {
			if allowed, marked := decides(t, l, newRequest(owner, other), 120); allowed != 100 || marked != 120 {
				t.Errorf("owner kind %c: without the store %d admitted, %d marked as degraded; want 100 and all",
					owner.Kind, allowed, marked)
			}
		}
		store.set(false, false)
		<-time.After(5 * time.Second)
		closeChain(t, l)
		for _, owner := range []limit.Owner{tenant, address} {
			if got := usedOf(t, store, newRequest(owner, other)); got[0] != 100 {
				t.Errorf("owner kind %c: the store counts %d of the units that were admitted without it, want 100",
					owner.Kind, got[0])
			}
		}
	})
}
