package limit_test

import (
	"testing"
	"time"
	_ "time/tzdata" // so that every machine has the zones of the calendars

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// book keeps the states of one owner's counters. It is the simplest possible store, and has no bound on their number.
type book struct {
	testing.TB
	owner  limit.Owner
	states map[string]*limit.State
}

func newBook(tb testing.TB) *book {
	return &book{TB: tb, owner: limit.Owner{Kind: limit.Tenant, Name: "acme"}, states: map[string]*limit.State{}}
}

// charge decides a request for one unit of each limit.
func (b *book) charge(now time.Time, limits ...*limit.Limit) *limit.Decision {
	b.Helper()
	charges := make([]limit.Charge, len(limits))
	for i, l := range limits {
		charges[i] = limit.Charge{Limit: l, Cost: 1}
	}
	return b.decide(now, charges...)
}

func (b *book) decide(now time.Time, charges ...limit.Charge) *limit.Decision {
	b.Helper()
	req := &limit.Request{Owner: b.owner, Charges: charges}
	if err := req.Check(); err != nil {
		b.Fatal(err)
	}
	d := new(limit.Decision)
	e := d.BeginChecked(req, now.UnixMicro())
	states := make([]*limit.State, len(d.Results))
	for i := range d.Results {
		key := limit.Key{Owner: b.owner, Identity: d.Results[i].Tier.Identity(), Value: d.Value(i)}.String()
		if b.states[key] == nil {
			b.states[key] = new(limit.State)
		}
		states[i] = b.states[key]
		e.Evaluate(i, states[i], true)
	}
	e.Settle()
	for i := range d.Results {
		if d.Charges(i) {
			e.Charge(i, states[i])
		}
	}
	return d
}

// admits returns how many of n requests at one time are admitted.
func (b *book) admits(n int, now time.Time, limits ...*limit.Limit) int {
	b.Helper()
	admitted := 0
	for range n {
		if b.charge(now, limits...).Allowed {
			admitted++
		}
	}
	return admitted
}

func mustNew(tb testing.TB, l limit.Limit) *limit.Limit {
	tb.Helper()
	out, err := limit.New(l)
	if err != nil {
		tb.Fatalf("limit %s: %v", l.ID, err)
	}
	return out
}

func oneTier(tb testing.TB, id string, t limit.Tier) *limit.Limit {
	tb.Helper()
	return mustNew(tb, limit.Limit{ID: id, MaxCost: max(t.Threshold, t.Burst, 1), Tiers: []limit.Tier{t}})
}
