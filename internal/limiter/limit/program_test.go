package limit

import (
	"fmt"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// programLimits returns random limits with different IDs, of all algorithms. Some have several tiers, are shadows, or
// are aligned to owners.
func programLimits(r *rand.Rand, n int) []*Limit {
	var out []*Limit
	for len(out) < n {
		l := Limit{ID: fmt.Sprint("l", len(out)), MaxCost: 3, AlignOwner: r.IntN(3) == 0}
		if r.IntN(5) == 0 {
			l.Mode = Shadow
		}
		for range 1 + r.IntN(2)*r.IntN(3) {
			algorithms := Algorithms()
			tier := Tier{Algorithm: algorithms[r.IntN(len(algorithms))], Threshold: 3 + r.Int64N(6)}
			if tier.Algorithm.HasCalendar() {
				tier.Calendar = &Calendar{Every: Day + Every(r.IntN(3)), Location: time.UTC}
			} else {
				tier.Period = time.Duration(1+r.IntN(6)) * time.Second
			}
			l.Tiers = append(l.Tiers, tier)
		}
		if made, err := New(l); err == nil { // New refuses two tiers that are the same counter
			out = append(out, made)
		}
	}
	return out
}

// decideStepwise makes a decision step by step, by calls of Evaluate, Settle and Charge, which is what a Program does
// at once.
func decideStepwise(t *testing.T, d *Decision, req *Request, now int64, states []State, charge bool) {
	t.Helper()
	e, err := d.Begin(req, now)
	if err != nil {
		t.Fatal(err)
	}
	for i := range d.Results {
		e.Evaluate(i, &states[i], charge)
	}
	if !e.Settle() || !charge {
		return
	}
	for i := range d.Results {
		if e.Charges(i) {
			_, entries := e.Room(i, &states[i])
			e.Grow(i, &states[i], entries)
			e.Charge(i, &states[i])
		}
	}
}

// readable returns everything that callers can read of a decision.
func readable(d *Decision) string {
	out := fmt.Sprintln(d.Allowed, d.Never, d.RetryAt, d.RetryAfter(), d.Fullest(), d.Now, d.Owner, d.Degraded)
	for i := range d.Results {
		r := &d.Results[i]
		out += fmt.Sprintln(r.Limit().ID, r.Cost, r.Charged, r.RetryAt, r.Admits, r.Never, r.Other, r.Shadow(),
			r.Used(), r.Remaining(),
			r.ResetAt(), r.MoreAt(), d.Charges(i), d.ChargeIndex(i), d.Value(i), r == d.Binding())
	}
	for _, e := range d.Receipt().Entries() {
		out += fmt.Sprintln(e.Tier.Identity(), e.Value, e.Units, e.Params())
	}
	return out
}

// Guarantees that a Program either makes the same decision as the sequence of single calls, in everything that callers
// can read and in every state, or declines the request and leaves the states as they are. Decisions are reused for
// different owners and requests, and the clock sometimes steps back.
func TestProgramDecidesLikeTheSequence(t *testing.T) {
	soak.SkipUnderRace(t)
	decided, denied := map[Algorithm]int{}, 0
	for seed := range max(soak.Times(uint64(300)), 100) { // with fewer scripts, some algorithm has too few decisions
		r := rand.New(rand.NewPCG(seed, 1))
		limits := programLimits(r, 1+r.IntN(5))
		var tiers []*Tier
		for _, l := range limits {
			for i := range l.Tiers {
				tiers = append(tiers, &l.Tiers[i])
			}
		}
		p := NewProgram(tiers)
		names := [...]string{"acme", "globex"}
		var states, plain [len(names)][]State
		for i := range names {
			states[i], plain[i] = make([]State, len(tiers)), make([]State, len(tiers))
		}
		var d, want Decision
		now := int64(1_772_445_600_000_000)
		for range 300 {
			now += r.Int64N(2_000_000)
			switch r.IntN(60) {
			case 0:
				now -= r.Int64N(4_000_000)
			case 1:
				now += 40 * 86_400_000_000
			case 2:
				now -= 10_000_000 // so far that states must be repaired
			}
			owner := r.IntN(len(names))
			req := Request{Owner: Owner{Tenant, names[owner]}}
			for _, l := range limits[:r.IntN(len(limits)+1)] {
				req.Charges = append(req.Charges, Charge{Limit: l, Cost: 1 + r.Int64N(3)})
			}
			charge := r.IntN(4) > 0
			before := append([]State(nil), states[owner]...)
			for i := range before {
				before[i] = *before[i].Clone()
			}
			done := p.Decide(&d, &req, now, states[owner], charge)
			if !done {
				if !reflect.DeepEqual(before, states[owner]) {
					t.Fatalf("seed %d: the Program declined the request, but changed a state", seed)
				}
				decideStepwise(t, &d, &req, now, states[owner], charge)
			}
			decideStepwise(t, &want, &req, now, plain[owner], charge)
			if got, want := readable(&d), readable(&want); got != want {
				t.Fatalf("seed %d: with the Program (made by it: %t) the decision is\n%s\nwithout it\n%s", seed, done,
					got, want)
			}
			for i := range tiers {
				if !states[owner][i].Equal(&plain[owner][i]) {
					t.Fatalf("seed %d: the state of %s differs between the Program and the sequence of single calls",
						seed, tiers[i].Identity())
				}
			}
			for i := range d.Results {
				if done {
					decided[d.Results[i].Tier.Algorithm]++
				}
			}
			if done && !d.Allowed {
				denied++
			}
		}
	}
	for _, a := range Algorithms() {
		if grows := a == SlidingLog || a == SlidingBuckets; decided[a] > 0 == grows || !grows && decided[a] < 1000 {
			t.Errorf("a Program decided %d results of %s; want some: %t", decided[a], a, !grows)
		}
	}
	if denied < 1000 {
		t.Errorf("only %d decisions were denials, want 1000 or more: the test shows little", denied)
	}
}

// Guarantees that a Program declines each request that it was not made for: it would charge such a request wrongly.
func TestProgramDeclines(t *testing.T) {
	make1 := func(l Limit) *Limit {
		made := mustNew(t, l)
		return made
	}
	bucket := Tier{Algorithm: TokenBucket, Threshold: 5, Period: time.Second}
	window := Tier{Algorithm: FixedWindow, Threshold: 5, Period: time.Second}
	a, b := make1(Limit{ID: "a", Tiers: []Tier{bucket, window}}), make1(Limit{ID: "b", Tiers: []Tier{bucket}})
	again := make1(Limit{ID: "a", Tiers: []Tier{bucket, window}})
	subject := make1(Limit{ID: "s", Per: "subject", Tiers: []Tier{bucket}})
	log := make1(Limit{ID: "log", Tiers: []Tier{{Algorithm: SlidingLog, Threshold: 5, Period: time.Second}}})
	monthly := make1(Limit{ID: "q", Tiers: []Tier{{Algorithm: Quota, Threshold: 5, Calendar: &Calendar{Every: Month,
		Location: time.UTC}}}})
	now := int64(1_772_445_600_000_000)
	of := func(charges ...Charge) Request { return Request{Owner: Owner{Tenant, "acme"}, Charges: charges} }
	one := func(l *Limit) Charge { return Charge{Limit: l, Cost: 1} }
	both := []*Tier{&a.Tiers[0], &a.Tiers[1], &b.Tiers[0]}
	late := State{a: now + 3600_000_000, b: 0, c: 5} // a time that is an hour ahead
	withLeases := of(one(a), one(b))
	withLeases.Leases = make([]LeaseRequest, 3)
	for name, tc := range map[string]struct {
		tiers []*Tier
		req   Request
		want  bool
		state State
	}{
		"both":                     {both, of(one(a), one(b)), true, State{}},
		"the first":                {both, of(one(a)), true, State{}},
		"none":                     {both, of(), true, State{}},
		"the second":               {both, of(one(b)), false, State{}},
		"another order":            {both, of(one(b), one(a)), false, State{}},
		"twice":                    {both, of(one(a), one(a)), false, State{}},
		"more than there are":      {both, of(one(a), one(b), one(monthly)), false, State{}},
		"another version":          {both, of(one(again), one(b)), false, State{}},
		"no limit":                 {both, of(Charge{Cost: 1}), false, State{}},
		"cost 0":                   {both, of(Charge{Limit: a}), false, State{}},
		"cost below 0":             {both, of(Charge{Limit: a, Cost: -1}), false, State{}},
		"too large a cost":         {both, of(Charge{Limit: a, Cost: MaxUnits + 1}), false, State{}},
		"a value":                  {both, of(Charge{Limit: a, Cost: 1, Value: ValueOf("x")}), false, State{}},
		"a text without a kind":    {both, of(Charge{Limit: a, Cost: 1, Value: Value{Text: "x"}}), false, State{}},
		"leases":                   {both, withLeases, false, State{}},
		"a state to repair":        {both, of(one(a), one(b)), false, late},
		"tiers not side by side":   {[]*Tier{&a.Tiers[0], &b.Tiers[0], &a.Tiers[1]}, of(one(a)), false, State{}},
		"part of a limit":          {both[:1], of(one(a)), false, State{}},
		"part of the last limit":   {[]*Tier{&b.Tiers[0], &a.Tiers[0]}, of(one(b)), true, State{}},
		"with a value of its own":  {[]*Tier{&subject.Tiers[0]}, of(one(subject)), false, State{}},
		"a state that grows":       {[]*Tier{&log.Tiers[0]}, of(one(log)), false, State{}},
		"before one that grows":    {[]*Tier{&b.Tiers[0], &log.Tiers[0]}, of(one(b)), true, State{}},
		"a calendar to compute":    {[]*Tier{&monthly.Tiers[0]}, of(one(monthly)), false, State{}},
		"a calendar not asked for": {[]*Tier{&b.Tiers[0], &monthly.Tiers[0]}, of(one(b)), true, State{}},
	} {
		t.Run(name, func(t *testing.T) {
			states := make([]State, len(tc.tiers))
			states[0] = tc.state
			var d Decision
			if got := NewProgram(tc.tiers).Decide(&d, &tc.req, now, states, true); got != tc.want {
				t.Errorf("the Program has made the decision: %t, want %t", got, tc.want)
			}
			charged := false
			for i := range states {
				charged = charged || states[i].Used() && !states[i].Equal(&tc.state)
			}
			if want := tc.want && len(tc.req.Charges) > 0; charged != want {
				t.Errorf("a counter was charged: %t, want %t", charged, want)
			}
		})
	}
	// A decision from leases must not keep its leases when it is reused.
	var d Decision
	if _, err := d.Begin(&withLeases, now); err != nil {
		t.Fatal(err)
	}
	plain := of(one(a))
	if NewProgram(both).Decide(&d, &plain, now, make([]State, 3), true) {
		t.Error("a Program accepts a decision that still has leases, want that it declines")
	}
}
