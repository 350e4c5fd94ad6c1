package limittest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var keyCases = []testCase{
	{"no two owners share a counter", testOwners},
	{"no two values share a counter", testValues},
	{"no two limits share a counter", testIdentities},
	{"values beyond the bound share one counter", testManyValues},
	{"anonymous values beyond the bound share many counters", testManyAnonymousValues},
	{"two values of one limit in one decision", testTwoValues},
	{"a window aligned to the owner is exact", testAlign},
}

// One tenant must not use up the units of another.
func testOwners(tb testing.TB, c Config) {
	long := strings.Repeat("x", limit.MaxNameBytes)
	owners := []limit.Owner{
		{Kind: limit.Tenant, Name: "acme"}, {Kind: limit.Tenant, Name: "acm"}, {Kind: limit.Tenant, Name: "acmee"},
		{Kind: limit.Tenant, Name: "ACME"}, {Kind: limit.Tenant, Name: ""}, {Kind: limit.Tenant, Name: "a,4:acme"},
		{Kind: limit.Tenant, Name: "{acme}"}, {Kind: limit.Tenant, Name: "acme}"}, {Kind: limit.Tenant,
			Name: "acme:five"},
		{Kind: limit.Tenant, Name: "acme\x00"}, {Kind: limit.Tenant, Name: "\xff\xfe"}, {Kind: limit.Tenant,
			Name: "\ufffd"},
		{Kind: limit.Tenant, Name: "tenant#acme"}, {Kind: limit.Tenant, Name: long}, {Kind: limit.Tenant,
			Name: long[1:] + "y"},
		{Kind: limit.Address, Name: "acme"}, {Kind: limit.Anonymous, Name: "acme"}, {Kind: limit.AnyKey, Name: "acme"},
	}
	each(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "five", 5)
		for _, owner := range owners {
			s := s.of(owner)
			if left := s.remaining(Start, l); left != 5 {
				s.Fatalf("owner %q: %d units remain before its first request, want 5", owner, left)
			}
			s.allowed(Start, charge(l, 5))
			s.denied(Start, charge(l, 1))
		}
	})
}

func testValues(tb testing.TB, c Config) {
	values := []limit.Value{
		limit.ValueOf("u-1"), limit.ValueOf("u-2"), limit.ValueOf(""), {Kind: limit.ValueAbsent}, limit.ValueOf("~"),
		limit.ValueOf("*"),
		limit.ValueOf("="), limit.ValueOf("U-1"), limit.ValueOf("u-1\x00"), limit.ValueOf("u-1,"),
		limit.ValueOf("\xff"),
		limit.JoinValues(limit.ValueOf("a"), limit.ValueOf("bc")), limit.JoinValues(limit.ValueOf("ab"),
			limit.ValueOf("c")),
		limit.JoinValues(limit.ValueOf("a"), limit.Value{Kind: limit.ValueAbsent}),
		limit.JoinValues(limit.Value{Kind: limit.ValueAbsent}, limit.ValueOf("a")),
	}
	each(tb, c, func(s *subject, k sample) {
		l := build(tb, limit.Limit{ID: "five", Per: "subject", MaxCost: 5, Tiers: []limit.Tier{k.tier(5)}})
		for _, v := range values {
			d := s.allowed(Start, chargeValue(l, v, 5))
			if got := d.Value(0); got != v {
				s.Errorf("a charge for the value %q was counted for %q, want the same value", v, got)
			}
			s.denied(Start, chargeValue(l, v, 1))
		}
		s.of(limit.Owner{Kind: limit.Tenant, Name: "other"}).allowed(Start, chargeValue(l, values[0], 5))
	})
}

func testIdentities(tb testing.TB, c Config) {
	s := newSubject(tb, c)
	var limits []limit.Limit
	for _, k := range c.samples() {
		limits = append(limits, limit.Limit{ID: "five", MaxCost: 5,
			Tiers: []limit.Tier{k.tier(5)}}) // the same id for all algorithms
	}
	k := c.samples()[0]
	longer := k.tier(5)
	switch k.algorithm {
	case limit.Quota:
		longer.Calendar = &limit.Calendar{Every: limit.Week, Location: time.UTC}
	default:
		longer.Period *= 2
	}
	limits = append(limits,
		limit.Limit{ID: "five", MaxCost: 5, Tiers: []limit.Tier{longer}},
		limit.Limit{ID: "Five", MaxCost: 5, Tiers: []limit.Tier{k.tier(5)}},
		limit.Limit{ID: "five.", MaxCost: 5, Tiers: []limit.Tier{k.tier(5)}},
		limit.Limit{ID: "five", Per: "subject", MaxCost: 5, Tiers: []limit.Tier{k.tier(5)}},
		limit.Limit{ID: "five", Per: "ip", MaxCost: 5, Tiers: []limit.Tier{k.tier(5)}},
		limit.Limit{ID: "five", Per: "ip+subject", MaxCost: 5, Tiers: []limit.Tier{k.tier(5)}},
	)
	for _, l := range limits {
		ch := charge(build(tb, l), 5)
		if l.Per != "" {
			ch.Value = limit.ValueOf("u-1")
		}
		s.allowed(Start, ch)
		ch.Cost = 1
		s.denied(Start, ch)
	}
}

// An attacker who invents values must neither use up the memory of the store nor get an unused counter with each value.
func testManyValues(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := build(tb, limit.Limit{ID: "five", Per: "subject", MaxCost: 5, MaxValues: 3,
			Tiers: []limit.Tier{k.tier(5)}})
		for i := range 3 {
			s.allowed(Start, chargeValue(l, limit.ValueOf(fmt.Sprint("known-", i)), 1))
		}
		admitted := int64(0)
		for i := range 40 {
			d := s.decide(Start, chargeValue(l, limit.ValueOf(fmt.Sprint("new-", i)), 1))
			if got, want := d.Value(0), (limit.Value{Kind: limit.ValueOther}); got != want {
				s.Fatalf("value %d beyond the bound was counted for %q, want the shared counter", i+1, got)
			}
			if d.Allowed {
				admitted++
			}
		}
		want := int64(5)
		if k.oneAtATime() {
			want = 1
		}
		if admitted != want {
			s.Errorf("40 values beyond the bound were admitted %d units, want %d together", admitted, want)
		}
		if !k.oneAtATime() {
			for i := range 3 {
				// each of them still has a counter of its own
				s.allowed(Start, chargeValue(l, limit.ValueOf(fmt.Sprint("known-", i)), 4))
			}
		}
		s.of(limit.Owner{Kind: limit.Tenant, Name: "other"}).allowed(Start, chargeValue(l, limit.ValueOf("new-1"), 5))
	})
}

// Anybody can invent values of calls without a credential. Those beyond the bound therefore share many counters and not
// one: a caller with many addresses could otherwise make all new addresses be denied.
func testManyAnonymousValues(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		s = s.of(limit.Owner{Kind: limit.Anonymous})
		l := build(tb, limit.Limit{ID: "five", Per: "ip", MaxCost: 5, MaxValues: 3, Tiers: []limit.Tier{k.tier(5)}})
		for i := range 3 {
			s.allowed(Start, chargeValue(l, limit.ValueOf(fmt.Sprint("known-", i)), 1))
		}
		seen := map[limit.Value]bool{}
		for i := range 40 {
			ch := chargeValue(l, limit.ValueOf(fmt.Sprint("new-", i)), 5)
			group := s.owner.OtherValue(ch.Value)
			d := s.decide(Start, ch)
			if got := d.Value(0); got != group || got.Kind != limit.ValueOther {
				s.Fatalf("value %d beyond the bound was counted for %q, want %q", i+1, got, group)
			}
			if d.Allowed == seen[group] {
				s.Fatalf("value %d beyond the bound, in group %q: used up: %t, allowed: %t; want it allowed unless "+
					"it is used up", i+1, group.Text, seen[group], d.Allowed)
			}
			if !seen[group] && !k.oneAtATime() {
				s.refund(Start, d, 5)
				s.allowed(Start, ch)
			}
			seen[group] = true
		}
		if len(seen) < 20 {
			s.Errorf("40 values beyond the bound share %d counters, want at least 20", len(seen))
		}
		if !k.oneAtATime() {
			s.allowed(Start, chargeValue(l, limit.ValueOf("known-1"), 4)) // the value still has a counter of its own
		}
	})
}

// A request may have charges for two values of one limit. Both are counted, also if both values are beyond the bound
// and so share a counter. A store may refuse that last case with ErrDuplicateCounter.
func testTwoValues(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := build(tb, limit.Limit{ID: "five", Per: "subject", MaxCost: 5, MaxValues: 2,
			Tiers: []limit.Tier{k.tier(5)}})
		v := func(name string, cost int64) limit.Charge { return chargeValue(l, limit.ValueOf(name), cost) }
		s.allowed(Start, v("a", 3), v("b", 4))
		s.denied(Start, v("a", 1), v("b", 2))
		if !k.oneAtATime() {
			s.allowed(Start, v("a", 2), v("b", 1))
		}
		// The values c and d are beyond the bound of two.
		units, errs := int64(0), 0
		for range 10 {
			s.clock(Start)
			var d limit.Decision
			err := s.store.Decide(s.Context(), s.request([]limit.Charge{v("c", 1), v("d", 1)}), Start, &d)
			switch {
			case errors.Is(err, limit.ErrDuplicateCounter):
				errs++
			case err != nil:
				s.Fatalf("two values that share a counter: %v, want no error or ErrDuplicateCounter", err)
			case d.Allowed:
				units += 2
			}
		}
		left := s.peek(Start, v("e", 1)).Results[0].Remaining()
		if errs > 0 && (units > 0 || left != 5) {
			s.Errorf("two values that share a counter: %d errors, but %d units admitted, and %d of 5 remain; want "+
				"nothing charged", errs, units, left)
		}
		if k.oneAtATime() {
			return // both charges would need the same next free time
		}
		if errs == 0 && (units != 4 || left != 1) {
			s.Errorf("two values that share a counter of 5: %d units admitted in pairs, %d remain; want 4 and 1",
				units, left)
		}
	})
}

// Alignment moves the windows of an owner, all by the same time and for ever. Their length and their counts stay the
// same.
func testAlign(tb testing.TB, c Config) {
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow} {
		if !c.accepts(a) {
			continue
		}
		s := newSubject(named{tb, a.String()}, c)
		const period = 10 * time.Second
		l := build(tb, limit.Limit{ID: "aligned", AlignOwner: true, MaxCost: 5, Tiers: []limit.Tier{{Algorithm: a,
			Threshold: 5, Period: period}}})
		offsets := map[time.Duration]bool{}
		for i := range 20 {
			s := s.of(limit.Owner{Kind: limit.Tenant, Name: fmt.Sprint("tenant-", i)})
			// for an unused counter, this is the end of the window
			edge := time.UnixMicro(s.peek(Start, charge(l, 1)).Results[0].ResetAt())
			if wait := edge.Sub(Start); wait <= 0 || wait > period {
				s.Fatalf("the window ends %s after now, want it within a period", wait)
			}
			offsets[edge.Sub(Start)] = true
			s.allowed(edge.Add(-time.Microsecond), charge(l, 5))
			s.denied(edge.Add(-time.Microsecond), charge(l, 1))
			if a == limit.FixedWindow {
				s.allowed(edge, charge(l, 5))
			}
			s.denied(edge, charge(l, 1))
			later := edge.Add(1000 * period)
			if got := time.UnixMicro(s.peek(later, charge(l, 1)).Results[0].ResetAt()); !got.Equal(later.Add(period)) {
				s.Errorf("a thousand windows later the window ends at %s, want %s", stamp(got),
					stamp(later.Add(period)))
			}
		}
		if len(offsets) < 15 {
			s.Errorf("the windows of 20 tenants begin at %d different times, want them spread", len(offsets))
		}
	}
}
