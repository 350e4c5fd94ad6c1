package limittest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/limit"
)

var requestCases = []testCase{
	{"a request that is wrong is an error and charges nothing", testBadRequests},
	{"a cancelled request charges nothing", testCancelled},
}

func testBadRequests(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		good := k.limit(tb, "good", 50)
		tiers := []limit.Tier{k.tier(5)}
		off := build(tb, limit.Limit{ID: "off", Mode: limit.Off, Tiers: tiers})
		valued := build(tb, limit.Limit{ID: "valued", Per: "subject", Tiers: tiers})
		again := k.limit(tb, "good", 70) // another threshold, the same counter
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
			{"the same counter by two limits", []limit.Charge{charge(good, 1), charge(again, 1)}, limit.ErrDuplicateCounter},
			{"the same value twice", []limit.Charge{chargeValue(valued, v("a"), 1), chargeValue(valued, v("a"), 1)},
				limit.ErrDuplicateCounter},
			{"a value that is missing", []limit.Charge{charge(valued, 1)}, limit.ErrInvalidRequest},
			{"a value that is too many", []limit.Charge{chargeValue(good, v("a"), 1)}, limit.ErrInvalidRequest},
			{"a value that is too long", []limit.Charge{chargeValue(valued, v(strings.Repeat("x", 1<<16)), 1)},
				limit.ErrInvalidRequest},
			{"a text without a value", []limit.Charge{chargeValue(good, limit.Value{Text: "a"}, 1)}, limit.ErrInvalidRequest},
			{"a text of an absent value", []limit.Charge{chargeValue(valued, limit.Value{Kind: limit.ValueAbsent,
				Text: "a"}, 1)}, limit.ErrInvalidRequest},
			{"an unknown kind of value", []limit.Charge{chargeValue(valued, limit.Value{Kind: 'x'}, 1)},
				limit.ErrInvalidRequest},
		}
		first := k.limit(tb, "first", 50)
		for _, b := range bad {
			before := s.counters(Start, charge(first, 1), charge(good, 1), chargeValue(valued, v("a"), 1))
			for _, charges := range [][]limit.Charge{b.charges, append([]limit.Charge{charge(first, 1)}, b.charges...)} {
				s.refused(b.name, s.owner, charges, b.want)
			}
			s.unchanged(b.name, before, s.counters(Start, charge(first, 1), charge(good, 1), chargeValue(valued, v("a"), 1)))
		}
		long := limit.Owner{Kind: limit.Tenant, Name: strings.Repeat("x", limit.MaxNameBytes+1)}
		s.refused("an owner's name that is too long", long, []limit.Charge{charge(good, 1)}, limit.ErrInvalidRequest)
		// Two values of one limit, and one counter in two modes, are no duplicates.
		s.allowed(Start, chargeValue(valued, v("x"), 1), chargeValue(valued, v("y"), 1))
		s.allowed(Start, charge(good, 1), charge(build(tb, limit.Limit{ID: "good", Mode: limit.Shadow, MaxCost: 50,
			Tiers: []limit.Tier{k.tier(50)}}), 1))
	})
}

// refused checks that neither Decide nor Peek takes the request, and that no outcome is left behind.
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
			s.Errorf("%s: %s leaves an outcome behind: allowed=%t", name, call.name, d.Allowed)
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
			s.Errorf("Decide under a cancelled context: allowed=%t, %v; want context.Canceled", d.Allowed, err)
		}
		if err := s.store.Peek(ctx, req, Start, &d); !errors.Is(err, context.Canceled) {
			s.Errorf("Peek under a cancelled context: %v, want context.Canceled", err)
		}
		if _, err := s.store.Refund(ctx, held.Receipt(), 0, Start); !errors.Is(err, context.Canceled) {
			s.Errorf("Refund under a cancelled context: %v, want context.Canceled", err)
		}
		s.unchanged("a cancelled request", before, s.counters(Start, charge(l, 1)))
		if r := s.refund(Start, held, 0); r.Repeated || r.Units[0] != 2 {
			s.Errorf("after a cancelled refund the real one gives back %d units, repeated=%t; want 2 and false",
				r.Units[0], r.Repeated)
		}
	})
}
