package limittest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var requestCases = []testCase{
	{"an invalid request is an error and charges nothing", testBadRequests},
	{"a cancelled request charges nothing", testCancelled},
	{"a request of any size is charged in whole, and the store forgets no counter", testSizes},
}

func testBadRequests(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		good := k.limit(tb, "good", 50)
		tiers := []limit.Tier{k.tier(5)}
		off := build(tb, limit.Limit{ID: "off", Mode: limit.Off, Tiers: tiers})
		valued := build(tb, limit.Limit{ID: "valued", Per: "subject", Tiers: tiers})
		again := k.limit(tb, "good", 70) // another threshold, but the same counter
		v := limit.ValueOf
		bad := []struct {
			name    string
			charges []limit.Charge
			want    error
		}{
			{"no limit", []limit.Charge{{Cost: 1}}, limit.ErrInvalidRequest},
			{"a limit not made by New", []limit.Charge{charge(&limit.Limit{ID: "raw", Tiers: tiers}, 1)},
				limit.ErrInvalidRequest},
			{"a limit that is off", []limit.Charge{charge(off, 1)}, limit.ErrInvalidRequest},
			{"cost 0", []limit.Charge{charge(good, 0)}, limit.ErrInvalidCost},
			{"a negative cost", []limit.Charge{charge(good, -1)}, limit.ErrInvalidCost},
			{"the least cost", []limit.Charge{charge(good, -1<<63)}, limit.ErrInvalidCost},
			{"a cost too large", []limit.Charge{charge(good, limit.MaxUnits+1)}, limit.ErrInvalidCost},
			{"the largest cost", []limit.Charge{charge(good, 1<<63-1)}, limit.ErrInvalidCost},
			{"the same limit twice", []limit.Charge{charge(good, 1), charge(good, 2)}, limit.ErrDuplicateCounter},
			{"the same counter by two limits", []limit.Charge{charge(good, 1), charge(again, 1)},
				limit.ErrDuplicateCounter},
			{"the same value twice", []limit.Charge{chargeValue(valued, v("a"), 1), chargeValue(valued, v("a"), 1)},
				limit.ErrDuplicateCounter},
			{"a value that is missing", []limit.Charge{charge(valued, 1)}, limit.ErrInvalidRequest},
			{"a value that is too many", []limit.Charge{chargeValue(good, v("a"), 1)}, limit.ErrInvalidRequest},
			{"a value that is too long", []limit.Charge{chargeValue(valued, v(strings.Repeat("x", 1<<16)), 1)},
				limit.ErrInvalidRequest},
			{"a text without a value", []limit.Charge{chargeValue(good, limit.Value{Text: "a"}, 1)},
				limit.ErrInvalidRequest},
			{"a text of an absent value", []limit.Charge{chargeValue(valued, limit.Value{Kind: limit.ValueAbsent,
				Text: "a"}, 1)}, limit.ErrInvalidRequest},
			{"an unknown kind of value", []limit.Charge{chargeValue(valued, limit.Value{Kind: 'x'}, 1)},
				limit.ErrInvalidRequest},
		}
		first := k.limit(tb, "first", 50)
		for _, b := range bad {
			before := s.counters(Start, charge(first, 1), charge(good, 1), chargeValue(valued, v("a"), 1))
			for _, charges := range [][]limit.Charge{b.charges, append([]limit.Charge{charge(first, 1)},
				b.charges...)} {
				s.refused(b.name, s.owner, charges, b.want)
			}
			s.unchanged(b.name, before, s.counters(Start, charge(first, 1), charge(good, 1),
				chargeValue(valued, v("a"), 1)))
		}
		long := limit.Owner{Kind: limit.Tenant, Name: strings.Repeat("x", limit.MaxNameBytes+1)}
		s.refused("an owner's name that is too long", long, []limit.Charge{charge(good, 1)}, limit.ErrInvalidRequest)
		// Two values of one limit are no duplicates, and neither is one counter in two modes.
		s.allowed(Start, chargeValue(valued, v("x"), 1), chargeValue(valued, v("y"), 1))
		s.allowed(Start, charge(good, 1), charge(build(tb, limit.Limit{ID: "good", Mode: limit.Shadow, MaxCost: 50,
			Tiers: []limit.Tier{k.tier(50)}}), 1))
	})
}

// refused fails unless Decide and Peek refuse the request and leave no outcome in the decision.
func (s *subject) refused(name string, owner limit.Owner, charges []limit.Charge, want error) {
	s.Helper()
	s.clock(Start)
	req := &limit.Request{Owner: owner, Charges: charges}
	for _, call := range []struct {
		name string
		do   func(d *limit.Decision) error
	}{
		{"Decide", func(d *limit.Decision) error { return s.store.Decide(s.Context(), req, Start, d) }},
		{"Peek", func(d *limit.Decision) error { return s.store.Peek(s.Context(), req, Start, d) }},
	} {
		var d limit.Decision
		if err := call.do(&d); !errors.Is(err, want) {
			s.Errorf("%s: %s returns %v, want %v", name, call.name, err, want)
		}
		if d.Allowed || len(d.Receipt().Entries()) != 0 {
			s.Errorf("%s: %s leaves an outcome in the decision, allowed=%t; want none", name, call.name, d.Allowed)
		}
	}
}

func testCancelled(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "five", 5)
		held := s.allowed(Start, charge(l, 2))
		before := s.counters(Start, charge(l, 1))
		ctx, cancel := context.WithCancel(s.Context())
		cancel()
		var d limit.Decision
		req := s.request([]limit.Charge{charge(l, 1)})
		if err := s.store.Decide(ctx, req, Start, &d); !errors.Is(err, context.Canceled) || d.Allowed {
			s.Errorf("Decide with a cancelled context: allowed=%t, %v; want context.Canceled", d.Allowed, err)
		}
		if err := s.store.Peek(ctx, req, Start, &d); !errors.Is(err, context.Canceled) {
			s.Errorf("Peek with a cancelled context: %v, want context.Canceled", err)
		}
		if _, err := s.store.Settle(ctx, held.Receipt(), nil, Start); !errors.Is(err, context.Canceled) {
			s.Errorf("Refund with a cancelled context: %v, want context.Canceled", err)
		}
		s.unchanged("a cancelled request", before, s.counters(Start, charge(l, 1)))
		if r := s.refund(Start, held, 0); r.Repeated || r.Returned[0] != 2 {
			s.Errorf("after a cancelled refund the next one gives back %d units, repeated=%t; want 2 and false",
				r.Returned[0], r.Repeated)
		}
	})
}

// An owner may have many limits, and a request names only those that apply to it. The counters of the others must not
// be forgotten. If a store bounds what one request may name ([limit.ErrTooLarge]), it must keep to that bound. A limit
// can have as many values as its bound says, which is 10,000 by default.
func testSizes(tb testing.TB, c Config) {
	for i, size := range []struct{ limits, tiers int }{
		{1, 1}, {1, limit.MaxTiers}, {10, 2}, {10, limit.MaxTiers}, {64, 1}, {65, 1}, {65, 3}, {100, 1}, {500, 1},
		{500, limit.MaxTiers},
	} {
		if testing.Short() && size.limits*size.tiers > 1000 { // thousands of counters take long
			continue
		}
		for _, leases := range []bool{false, true} {
			// the largest size takes long
			if leases && !c.Leases || !leases && c.Leases && size.limits*size.tiers > 1000 {
				continue
			}
			s := newSubject(named{tb, fmt.Sprintf("%d limits of %d tiers, leases=%t", size.limits, size.tiers,
				leases)}, c)
			m := &sizes{subject: s, leases: leases, used: map[*limit.Limit]int64{}}
			all := m.limits(size.limits, size.tiers)
			// thousands of counters in many small requests take long
			if size.limits*size.tiers > 1000 && m.tooLarge(all) {
				all = all[:50]
				size.limits = len(all)
			}
			m.ask(all)
			m.ask(all[:1])
			m.ask(all[size.limits-1:])
			m.ask(all[size.limits/2:])
			r := rand.New(rand.NewPCG(uint64(i), c.Seed))
			for _, part := range []int{2, 64} {
				var some []*limit.Limit
				for _, l := range all {
					if r.IntN(part) == 0 {
						some = append(some, l)
					}
				}
				m.ask(some)
			}
			m.ask(all)
			m.look(all)
			for range 5 {
				m.look([]*limit.Limit{all[r.IntN(len(all))]})
			}
		}
	}
	s, k := newSubject(tb, c), c.samples()[0]
	for _, values := range []int{1, 10, min(10*c.Repeats, 10_000)} {
		l := build(tb, limit.Limit{ID: fmt.Sprint("values-", values), Per: "subject", Tiers: []limit.Tier{k.tier(1)}})
		for i := range values {
			s.allowed(Start, chargeValue(l, limit.ValueOf(fmt.Sprint("u-", i)), 1))
		}
		for i := range values {
			if d := s.denied(Start, chargeValue(l, limit.ValueOf(fmt.Sprint("u-", i)), 1)); d.Results[0].Other {
				s.Fatalf("value %d of %d is counted in the shared counter, want one of its own", i+1, values)
			}
		}
	}
}

// sizes charges limits of three units, and counts how many units of each are used.
type sizes struct {
	*subject
	leases bool
	used   map[*limit.Limit]int64
}

const sizeUnits = 3

// limits returns n limits. It uses the algorithms that can be charged twice at once and whose tiers can have any
// period.
func (m *sizes) limits(n, tiers int) (all []*limit.Limit) {
	m.Helper()
	samples := slices.DeleteFunc(m.c.samples(), func(k sample) bool {
		return k.oneAtATime() || k.algorithm == limit.Quota
	})
	for i := range n {
		l := limit.Limit{ID: fmt.Sprint("limit-", i)}
		for j := range tiers {
			t := samples[i%len(samples)].tier(sizeUnits)
			t.Period += time.Duration(j) * time.Hour
			l.Tiers = append(l.Tiers, t)
		}
		all = append(all, build(m.TB, l))
	}
	return all
}

func (m *sizes) request(limits []*limit.Limit) *limit.Request {
	req := &limit.Request{Owner: m.owner}
	for _, l := range limits {
		req.Charges = append(req.Charges, charge(l, 1))
		if m.leases {
			req.Leases = append(req.Leases, slices.Repeat([]limit.LeaseRequest{{Need: 1}}, len(l.Tiers))...)
		}
	}
	return req
}

// tooLarge reports whether the store refuses one request for all of the limits. It uses an owner that has no counters.
func (m *sizes) tooLarge(limits []*limit.Limit) bool {
	probe := sizes{subject: m.of(limit.Owner{Kind: limit.Tenant, Name: "probe"}), leases: m.leases}
	probe.clock(Start)
	var d limit.Decision
	return errors.Is(probe.store.Decide(probe.Context(), probe.request(limits), Start, &d), limit.ErrTooLarge)
}

// ask charges a unit of each limit. If that is too large for the store, it charges each half.
func (m *sizes) ask(limits []*limit.Limit) {
	m.Helper()
	m.clock(Start)
	req := m.request(limits)
	var d limit.Decision
	err := m.store.Decide(m.Context(), req, Start, &d)
	if errors.Is(err, limit.ErrTooLarge) && len(limits) > 1 {
		var again, look limit.Decision
		if err := m.store.Decide(m.Context(), req, Start, &again); !errors.Is(err, limit.ErrTooLarge) {
			m.Errorf("a request for %d limits was too large for an unused owner; a second one: %v, want ErrTooLarge "+
				"again", len(limits), err)
		}
		if err := m.store.Peek(m.Context(), req, Start, &look); err != nil && !errors.Is(err, limit.ErrTooLarge) {
			m.Errorf("a request for %d limits is too large for Decide; Peek: %v, want no error or ErrTooLarge",
				len(limits), err)
		}
		m.ask(limits[:len(limits)/2])
		m.ask(limits[len(limits)/2:])
		return
	}
	if err != nil {
		m.Fatalf("Decide for %d limits in one request: %v", len(limits), err)
	}
	want := true
	for _, l := range limits {
		want = want && m.used[l] < sizeUnits
	}
	if d.Allowed != want {
		m.Errorf("%d limits at once: allowed=%t, want %t", len(limits), d.Allowed, want)
	}
	for _, l := range limits {
		if d.Allowed {
			m.used[l]++
		}
	}
	m.compare(limits, &d)
}

// look compares what a peek reports about the limits with what was charged.
func (m *sizes) look(limits []*limit.Limit) {
	m.Helper()
	m.clock(Start)
	var d limit.Decision
	err := m.store.Peek(m.Context(), m.request(limits), Start, &d)
	if errors.Is(err, limit.ErrTooLarge) && len(limits) > 1 {
		m.look(limits[:len(limits)/2])
		m.look(limits[len(limits)/2:])
		return
	}
	if err != nil {
		m.Fatalf("Peek at %d limits in one request: %v", len(limits), err)
	}
	m.compare(limits, &d)
}

// compare fails at the first counter that differs from what was charged.
func (m *sizes) compare(limits []*limit.Limit, d *limit.Decision) {
	m.Helper()
	i, wrong := 0, 0
	for _, l := range limits {
		for range l.Tiers {
			if r := &d.Results[i]; r.Used() != m.used[l] {
				if wrong++; wrong == 1 {
					m.Errorf("of %d limits at once, %s (%s) has used %d, want %d",
						len(limits), l.ID, r.Tier.Algorithm, r.Used(), m.used[l])
				}
			}
			i++
		}
	}
	if wrong > 1 {
		m.Errorf("of %d limits in one request, %d counters differ from what was charged", len(limits), wrong)
	}
}
