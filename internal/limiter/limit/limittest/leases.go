package limittest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// leaseCases are run if Config.Leases says that the store honours [limit.Request.Leases].
var leaseCases = []testCase{
	{"leases: the grant follows the rule", testLeaseRule},
	{"leases: a denial leases nothing", testLeaseDenied},
	{"leases: a denial gives nothing back", testLeaseDeniedBack},
	{"leases: units count until they end", testLeaseEnds},
	{"leases: a ramp grants the units that become free until it ends", testLeaseRamp},
	{"leases: units that are given back can be charged again", testLeaseBack},
	{"leases: units given back make the next free time of a leaky bucket earlier", testNextFreeTimeBack},
	{"leases: all units of a counter can be given back", testAllBack},
	{"leases: units that were admitted elsewhere count", testLeaseOwed},
	{"leases: units that were admitted elsewhere before now count in an unused counter", testReplayBeforeNow},
	{"leases: a correction at the time of the decision counts like a charge", testCorrectionAtDecision},
	{"leases: a counter that was corrected to 0 goes on counting", testCorrectionToZero},
	{"leases: a peek leases nothing", testLeasePeek},
	{"leases: a request that needs nothing is admitted", testLeaseNeedsNothing},
	{"leases: spent units are refunded once", testLeaseRefund},
	{"leases: invalid requests are refused", testLeaseBadRequests},
	{"leases: concurrent requests never lease too many units", testLeaseConcurrent},
	{"leases: random scripts agree with a count of each window", testLeaseScripts},
}

// runs reports whether the case applies to the store.
func (c Config) runs(tc testCase) bool {
	return c.Leases || !slices.ContainsFunc(leaseCases, func(l testCase) bool { return l.name == tc.name })
}

// eachLeased is like each, without the algorithm that cannot be leased.
func eachLeased(tb testing.TB, c Config, f func(s *subject, k sample)) {
	tb.Helper()
	each(tb, c, func(s *subject, k sample) {
		if !k.oneAtATime() {
			f(s, k)
		}
	})
}

// life returns for how long the scripts lease from a counter with stamps, in µs. The leases of other counters end by
// themselves.
func (k sample) life() int64 {
	if k.algorithm == limit.SlidingLog || k.algorithm == limit.SlidingBuckets {
		return (2 * time.Second).Microseconds()
	}
	return 0
}

// most returns a lease request for a need, and for up to units beyond it.
func (k sample) most(need, units int64) limit.LeaseRequest {
	return limit.LeaseRequest{Need: need, Ample: units, Share: limit.ShareOne, Life: k.life()}
}

// ask decides on charges with lease requests, one for each charge.
func (s *subject) ask(now time.Time, leases []limit.LeaseRequest, charges ...limit.Charge) *limit.Decision {
	s.Helper()
	s.clock(now)
	d := new(limit.Decision)
	req := s.request(charges)
	req.Leases = leases
	if err := s.store.Decide(s.Context(), req, now, d); err != nil {
		s.Fatalf("Decide(%s, leases %+v at %s): %v", describe(charges), leases, stamp(now), err)
	}
	if len(d.Results) != len(leases) {
		s.Fatalf("%s, leases %+v: %d results, want one for each lease request", describe(charges), leases,
			len(d.Results))
	}
	for i := range d.Results {
		r, g, a := &d.Results[i], d.Lease(i), &leases[i]
		most := a.Largest()
		if !d.Allowed {
			most = 0
		}
		want := a.Need
		if !d.Charges(i) {
			want = 0
		}
		if r.Charged != want || g.Units < 0 || g.Units > most || g.Upfront < 0 || g.Upfront > g.Units || (g.Units > 0 &&
			g.Until < d.Now) {
			s.Fatalf("%s, leases %+v at %s: allowed %t, result %d is charged %d, want %d, and leases %+v, want at "+
				"most %d",
				describe(charges), *a, stamp(now), d.Allowed, i+1, r.Charged, want, g, most)
		}
	}
	return d
}

// leased asks for a lease of one limit, and fails unless the request is allowed and gets want units.
func (s *subject) leased(now time.Time, a limit.LeaseRequest, want int64, c limit.Charge) *limit.Decision {
	s.Helper()
	d := s.ask(now, []limit.LeaseRequest{a}, c)
	if g := d.Lease(0); !d.Allowed || g.Units != want {
		s.Fatalf("%s, leases %+v at %s: allowed %t, leases %+v; want %d units", describe([]limit.Charge{c}), a,
			stamp(now), d.Allowed, g,
			want)
	}
	return d
}

// left fails the test unless want units of the limit remain.
func (s *subject) left(what string, now time.Time, l *limit.Limit, want int64) {
	s.Helper()
	if got := s.remaining(now, l); got != want {
		s.Errorf("%s: %d units of %s remain at %s, want %d", what, got, l.ID, stamp(now), want)
	}
}

func testLeaseRule(tb testing.TB, c Config) {
	eachLeased(tb, c, func(s *subject, k sample) {
		for i, tt := range []struct {
			ask  limit.LeaseRequest
			want int64 // of 20, of which 4 are used
		}{
			{limit.LeaseRequest{}, 0},
			{limit.LeaseRequest{Need: 3}, 0},
			{limit.LeaseRequest{Most: 6, Plenty: 20, Share: 1024}, 6},
			{limit.LeaseRequest{Most: 60, Plenty: 20, Share: 1024}, 16},
			{limit.LeaseRequest{Most: 60, Plenty: 20, Share: 512}, 8},
			{limit.LeaseRequest{Most: 60, Plenty: 20, Share: 63}, 0}, // 1008/1024 of a unit
			{limit.LeaseRequest{Most: 60, Plenty: 20, Share: 64}, 1},
			{limit.LeaseRequest{Most: 60, Plenty: 20, Share: 64, Least: 5}, 5},
			{limit.LeaseRequest{Most: 2, Plenty: 20, Share: 1024, Least: 5}, 5},
			{limit.LeaseRequest{Least: 50}, 16},
			{limit.LeaseRequest{Most: 6, Ample: 12, Plenty: 16, Share: 1024}, 12},
			{limit.LeaseRequest{Most: 6, Ample: 12, Plenty: 17, Share: 1024}, 6},
			{limit.LeaseRequest{Need: 3, Most: 6, Ample: 12, Plenty: 13, Share: 1024}, 12},
			{limit.LeaseRequest{Need: 3, Most: 6, Ample: 12, Plenty: 14, Share: 1024}, 6},
			{limit.LeaseRequest{Need: 3, Most: 60, Plenty: 20, Share: 1024}, 13},
			{limit.LeaseRequest{Need: 16, Least: 1, Most: 60, Plenty: 20, Share: 1024}, 0},
		} {
			l := k.limit(tb, fmt.Sprint("rule-", i), 20)
			s.allowed(Start, charge(l, 4))
			tt.ask.Life = k.life()
			g := s.leased(Start, tt.ask, tt.want, charge(l, max(tt.ask.Need, 1))).Lease(0)
			if g.Upfront != g.Units {
				s.Errorf("lease request %+v, without a ramp: only %d of %d units may be spent at once, want all",
					tt.ask, g.Upfront, g.Units)
			}
			s.left(fmt.Sprintf("leases %+v", tt.ask), Start, l, 16-tt.ask.Need-tt.want)
		}
	})
}

// A limit that denies must not lease units of another limit. A store that leases them nevertheless must report it; the
// units then count as leased.
func testLeaseDenied(tb testing.TB, c Config) {
	samples := c.samples()
	eachLeased(tb, c, func(s *subject, k sample) {
		for j, other := range samples {
			if other.oneAtATime() {
				continue
			}
			l, full := k.limit(tb, fmt.Sprint("l", j), 20), other.limit(tb, fmt.Sprint("full", j), 20)
			s.allowed(Start, charge(full, 18))
			for _, order := range [][]int{{0, 1}, {1, 0}} {
				before := s.remaining(Start, l)
				charges := []limit.Charge{charge(l, 4), charge(full, 4)}
				leases := []limit.LeaseRequest{k.most(4, 2), other.most(3, 2)}
				d := s.ask(Start, []limit.LeaseRequest{leases[order[0]], leases[order[1]]}, charges[order[0]],
					charges[order[1]])
				if d.Allowed {
					s.Fatalf("a need of 3 units of %s is allowed, where 2 are left; want a denial", other.algorithm)
				}
				s.left("a denial by "+other.algorithm.String(), Start, l, before-d.Lease(order[0]).Units)
				s.left("a denial by itself", Start, full, 2)
			}
		}
	})
}

// Units that a denied request would have given back stay with their holder. If they came back nevertheless, there would
// be twice as many. A store might write counters of several values one after the other, and do it wrong for a handle
// that has not seen these counters.
func testLeaseDeniedBack(tb testing.TB, c Config) {
	samples := c.samples()
	eachLeased(tb, c, func(s *subject, k sample) {
		for j, other := range samples {
			if other.oneAtATime() {
				continue
			}
			l := k.limit(tb, fmt.Sprint("l", j), 40)
			full := build(tb, limit.Limit{ID: fmt.Sprint("full", j), Per: "subject", MaxCost: 20,
				Tiers: []limit.Tier{other.tier(20)}})
			user := limit.ValueOf("u")
			s.allowed(Start, chargeValue(full, user, 18))
			g := s.leased(Start, k.most(2, 10), 10, charge(l, 2)).Lease(0)
			for _, handle := range s.handles() {
				for _, back := range []int64{3, 0, 10} {
					fresh := *s
					fresh.store = handle
					before := s.remaining(Start, l)
					a := k.most(2, 2)
					a.Correction, a.CorrectionAt = -back, g.At
					d := fresh.ask(Start, []limit.LeaseRequest{a, other.most(3, 2)}, charge(l, 2),
						chargeValue(full, user, 4))
					if d.Allowed {
						s.Fatalf("a need of 3 units of %s is allowed, where 2 are left; want a denial", other.algorithm)
					}
					s.left(fmt.Sprintf("%d rode back on what %s denied", back, other.algorithm), Start, l,
						before-d.Lease(0).Units)
				}
			}
			before := s.remaining(Start, l)
			a := k.most(before+4, 2)
			a.Correction, a.CorrectionAt = -3, g.At
			if d := s.ask(Start, []limit.LeaseRequest{a}, charge(l, before+4)); d.Allowed {
				s.Fatalf("a need of %d is allowed, where %d units are left, and 3 are given back; want a denial",
					before+4, before)
			}
			s.left("3 rode back on what the limit itself denied", Start, l, before)
		}
	})
}

func testLeaseEnds(tb testing.TB, c Config) {
	eachLeased(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "twenty", 20)
		g := s.leased(Start, k.most(4, 50), 16, charge(l, 4)).Lease(0)
		until := time.UnixMicro(g.Until)
		s.denied(until.Add(-time.Microsecond), charge(l, 1))
		half, all := until, until // the times at which ten and all twenty units are free again
		switch k.algorithm {
		case limit.SlidingWindow:
			half, all = until.Add(k.period/2), until.Add(k.period)
		case limit.TokenBucket:
			s.left("at the slot's end", until, l, 0)
			half, all = until.Add(k.period/2), until.Add(k.period)
		case limit.SlidingLog:
			half, all = until.Add(k.period), until.Add(k.period)
		case limit.SlidingBuckets:
			half = until.Truncate(k.period / 5).Add(k.period * 6 / 5)
			all = half
		}
		if half == all && k.algorithm != limit.FixedWindow && k.algorithm != limit.Quota {
			s.left("a µs before", all.Add(-time.Microsecond), l, 0)
		}
		if half != all {
			s.left("half of the time", half, l, 10)
		}
		s.left("after it", all, l, 20)
		s.allowed(all, charge(l, 20))
	})
}

func testLeaseRamp(tb testing.TB, c Config) {
	eachLeased(tb, c, func(s *subject, k sample) {
		var now time.Time
		var upfront, units int64
		l := k.limit(tb, "twenty", 20)
		until := int64(0)
		switch k.algorithm {
		// 20 units in the previous window weigh 15 after a quarter of this window, and 13 at the end of a ramp
		case limit.SlidingWindow:
			now, upfront, units = Start.Add(k.period*5/4), 5, 7
			until = Start.Add(k.period * 11 / 8).UnixMicro()
		case limit.TokenBucket: // it refills two units a second
			now = Start
			until = l.Tiers[0].RampEnd(s.owner.Name, now.UnixMicro())
			units = (until - now.UnixMicro()) * 2 / 1_000_000
		default:
			return
		}
		s.allowed(Start, charge(l, 20))
		a := k.most(0, 50)
		a.Ramp = true
		a.Ample = units - 1
		g := s.leased(now, a, units-1, charge(l, 1)).Lease(0)
		if g.Upfront != min(upfront, units-1) || g.Until != until {
			s.Errorf("a ramp at %s is %+v, want %d units at once and the others until %d", stamp(now), g, upfront,
				until)
		}
		s.left("a ramp", now, l, 0)
		a.Ample = 50 // with the first ramp the counter is more than full now, but has room again when both ramps end
		if g := s.leased(now, a, 1, charge(l, 1)).Lease(0); g.Upfront != max(upfront-units+1, 0) || g.Until != until {
			s.Errorf("a second ramp at %s is %+v, want no unit at once and one until %d", stamp(now), g, until)
		}
		s.leased(now, a, 0, charge(l, 1))
		s.denied(time.UnixMicro(until-1), charge(l, 1))
	})
}

func testLeaseBack(tb testing.TB, c Config) {
	eachLeased(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "twenty", 20)
		s.allowed(Start, charge(l, 4))
		g := s.leased(Start, k.most(2, 12), 12, charge(l, 2)).Lease(0)
		s.leased(Start, limit.LeaseRequest{Correction: -5, CorrectionAt: g.At}, 0, charge(l, 1))
		s.left("5 of 12 came back", Start, l, 7)
		more := k.most(8, 1) // 2 come back, 8 are needed, and one is leased: that is all there is
		more.Correction, more.CorrectionAt = -2, g.At
		s.leased(Start, more, 1, charge(l, 8))
		s.left("all is used", Start, l, 0)
		if k.algorithm == limit.FixedWindow || k.algorithm == limit.Quota || k.algorithm == limit.TokenBucket {
			end := time.UnixMicro(g.Until)
			before := s.remaining(end, l)
			s.leased(end, limit.LeaseRequest{Correction: -5, CorrectionAt: g.At}, 0, charge(l, 1))
			// the store may ignore units that come back after the end of a slot
			if left := s.remaining(end, l); left != before && (k.algorithm != limit.TokenBucket || left != before+5) {
				s.Errorf("5 of 16 units are given back after the end of their window or slot: %d remain, %d before; "+
					"want no change", left, before)
			}
		}
	})
}

// A leaky bucket is never leased, but an operator can give units back to it: its next free time then comes earlier, but
// never before now.
func testNextFreeTimeBack(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		if !k.oneAtATime() {
			return
		}
		l := k.limit(tb, "twenty", 20)
		give := func(at time.Time, units int64) {
			s.leased(at, limit.LeaseRequest{Correction: -units, CorrectionAt: at.UnixMicro()}, 0, charge(l, 1))
		}
		wait := func(at time.Time, units int64) {
			s.Helper()
			if got, want := s.denied(at, charge(l, 1)).RetryAfter(), k.period*time.Duration(units)/20; got != want {
				s.Errorf("at %s: RetryAfter is %s, want %s, for %d units", stamp(at), got, want, units)
			}
		}
		give(Start, 5) // to a counter that was never used
		s.allowed(Start, charge(l, 10))
		wait(Start, 10)
		give(Start, 4)
		wait(Start, 6)
		later := Start.Add(k.period / 10)
		give(later, 1)
		wait(later, 3)
		give(later, limit.MaxUnits)
		s.allowed(later, charge(l, 20)) // more units than were charged cannot be given back
		wait(later, 20)
	})
}

// Operators empty a counter in this way: they give back more than it can hold, window by window and stamp by stamp.
func testAllBack(tb testing.TB, c Config) {
	eachLeased(tb, c, func(s *subject, k sample) {
		if k.algorithm == limit.TokenBucket { // only leased units can be given back to it
			return
		}
		l, other := k.limit(tb, "twenty", 20), k.limit(tb, "others", 20)
		s.allowed(Start, charge(l, 4), charge(other, 4))
		g := s.leased(Start, k.most(2, 6), 6, charge(l, 2)).Lease(0)
		for _, at := range []int64{g.At, Start.UnixMicro()} {
			s.leased(Start, limit.LeaseRequest{Correction: -limit.MaxUnits, CorrectionAt: at}, 0, charge(l, 1))
		}
		s.left("12 were used, and all came back", Start, l, 20)
		s.left("none of another limit's came back", Start, other, 16)
		s.allowed(Start, charge(l, 20))
		s.denied(Start, charge(l, 1))
	})
}

func testLeaseOwed(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "twenty", 20)
		owe := func(units int64) {
			s.leased(Start, limit.LeaseRequest{Correction: units, CorrectionAt: Start.UnixMicro()}, 0, charge(l, 1))
		}
		owe(3)
		if k.oneAtATime() {
			if got, want := s.denied(Start, charge(l, 1)).RetryAfter(), k.period*3/20; got != want {
				s.Errorf("3 units were admitted without the store: RetryAfter is %s, want %s", got, want)
			}
		} else {
			s.left("3 were admitted elsewhere", Start, l, 17)
			owe(30)
			s.denied(Start, charge(l, 1))
			s.left("33 were admitted elsewhere", Start, l, 0)
		}
		s.allowed(Start.Add(3*k.period), charge(l, 20))
	})
}

func testLeasePeek(tb testing.TB, c Config) {
	eachLeased(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "twenty", 20)
		s.allowed(Start, charge(l, 4))
		before := s.counters(Start, charge(l, 1))
		req := s.request([]limit.Charge{charge(l, 2)})
		req.Leases = []limit.LeaseRequest{k.most(2, 10)}
		d := new(limit.Decision)
		if err := s.store.Peek(s.Context(), req, Start, d); err != nil || !d.Allowed {
			s.Fatalf("a peek with lease requests: allowed %t, error %v; want it allowed", d.Allowed, err)
		}
		s.unchanged("a peek", before, s.counters(Start, charge(l, 1)))
	})
}

func testLeaseNeedsNothing(tb testing.TB, c Config) {
	eachLeased(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "twenty", 20)
		s.allowed(Start, charge(l, 20))
		d := s.leased(Start, k.most(0, 10), 0, charge(l, 20))
		if len(d.Receipt().Entries()) != 0 {
			s.Errorf("nothing was charged, but the receipt has the entries %+v, want none", d.Receipt().Entries())
		}
		if d := s.ask(Start, []limit.LeaseRequest{{}}, charge(l, 21)); d.Allowed || !d.Never {
			s.Errorf("a cost of 21 of a limit of 20: allowed %t, never %t; want never allowed", d.Allowed, d.Never)
		}
	})
}

// The holder of a lease has a receipt for the units that it spent from the lease. The store that charged the lease
// refunds them.
func testLeaseRefund(tb testing.TB, c Config) {
	eachLeased(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "twenty", 20)
		d := s.leased(Start, k.most(2, 10), 10, charge(l, 2))
		lease := d.Leftover(0)
		lease.Units = 10
		spent := new(limit.Decision)
		e := spent.BeginLeased(s.request([]limit.Charge{charge(l, 6)}), Start.UnixMicro(),
			limit.ReceiptID{Hi: rand.Uint64(), Lo: 1})
		e.FromLeftover(0, &lease, 0)
		e.ChargeLeftover(0)
		if back := s.refund(Start, spent, 4); back.Returned[0] != 4 || back.Repeated {
			s.Errorf("a refund of 4 of 6 units that were spent from a lease: %+v, want 4 units", back)
		}
		s.left("10 leased and 2 needed, 4 refunded", Start, l, 12)
		if back := s.refund(Start, spent, 0); back.Returned[0] != 0 || !back.Repeated {
			s.Errorf("a repeated refund: %+v, want 0 units and Repeated", back)
		}
		if back := s.refund(Start, d, 0); back.Returned[0] != 2 {
			s.Errorf("the refund of the need of 2: %+v, want 2 units", back)
		}
		s.left("the need, too", Start, l, 14)
	})
}

func testLeaseBadRequests(tb testing.TB, c Config) {
	eachLeased(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "twenty", 20)
		s.allowed(Start, charge(l, 4))
		before := s.counters(Start, charge(l, 1))
		for _, leases := range [][]limit.LeaseRequest{
			{{Need: 3}}, {{Need: -1}}, {{Most: limit.MaxUnits + 1}}, {{Share: limit.ShareOne + 1}}, {{Least: -1}},
			{{}, {}},
			{{Correction: limit.MaxUnits + 1}}, {{Life: -1}},
		} {
			req := s.request([]limit.Charge{charge(l, 2)})
			req.Leases = leases
			if err := s.store.Decide(s.Context(), req, Start, new(limit.Decision)); err == nil {
				s.Errorf("lease requests %+v with a cost of 2 are accepted, want an error", leases)
			}
		}
		s.unchanged("a bad request", before, s.counters(Start, charge(l, 1)))
	})
}

// Many goroutines lease units, and in the second round give some back. Leased units may be spent at any time, so they
// count as soon as they are leased.
func testLeaseConcurrent(tb testing.TB, c Config) {
	eachLeased(tb, c, func(s *subject, k sample) {
		for round, gives := range []bool{false, true} {
			l := k.limit(tb, fmt.Sprint("fifty-", round), 50)
			s.clock(Start)
			var taken, returned atomic.Int64
			s.concurrently(func(g int, store limit.Store) {
				var d limit.Decision
				r := rand.New(rand.NewPCG(uint64(g), s.c.Seed))
				for range 4 {
					a := k.most(int64(r.IntN(2)), r.Int64N(4))
					a.Least = r.Int64N(2)
					req := s.request([]limit.Charge{charge(l, 1)})
					req.Leases = []limit.LeaseRequest{a}
					if !s.tryLease(store, req, &d) {
						taken.Add(d.Lease(0).Units)
						continue
					}
					held := d.Lease(0)
					taken.Add(held.Units + d.Results[0].Charged)
					if !gives || held.Units == 0 {
						continue
					}
					back := 1 + r.Int64N(held.Units)
					req.Leases = []limit.LeaseRequest{{Correction: -back, CorrectionAt: held.At}}
					if s.tryLease(store, req, &d) {
						returned.Add(back)
					}
				}
			})
			net := taken.Load() - returned.Load()
			left := s.remaining(Start, l)
			if net > 50 || left > 50-net || (!s.c.MayFail && left != 50-net) {
				s.Errorf("%d units of 50 were charged or leased, %d of them given back, but %d remain; want them to "+
					"add up", taken.Load(), returned.Load(), left)
			}
			if !gives && !s.c.MayFail && s.c.Goroutines >= 64 && net != 50 {
				s.Errorf("%d goroutines that request more than 50 units got %d, want 50", s.c.Goroutines, net)
			}
		}
	})
}

// tryLease makes one decision, and reports whether it is allowed. An error fails the test, unless Config.MayFail is
// set: the request then counts as denied.
func (s *subject) tryLease(store limit.Store, req *limit.Request, d *limit.Decision) bool {
	err := store.Decide(s.Context(), req, Start, d)
	if err != nil && !s.c.MayFail {
		s.Errorf("Decide(%s, leases %+v): %v", describe(req.Charges), req.Leases, err)
	}
	return err == nil && d.Allowed
}

// testLeaseScripts leases at random from fixed windows and quotas, and compares the store with a count of each window.
func testLeaseScripts(tb testing.TB, c Config) {
	if !c.accepts(limit.FixedWindow) || !c.accepts(limit.Quota) {
		return
	}
	for seed := range uint64(max(c.Scripts/5, 4)) {
		s := newSubject(tb, c)
		r := rand.New(rand.NewPCG(seed, c.Seed))
		limits := []*limit.Limit{
			build(tb, limit.Limit{ID: "window", MaxCost: 50,
				Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: 10 * time.Second, Threshold: 30}}}),
			build(tb, limit.Limit{ID: "day", MaxCost: 50, Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 90,
				Calendar: &limit.Calendar{Every: limit.Day, Location: time.UTC}}}}),
		}
		periods := []time.Duration{10 * time.Second, 24 * time.Hour}
		// units used, by the start of the window; 1 µs is added to that of a quota, so that the two limits differ
		used := map[time.Time]int64{}
		now := Start.Add(14*time.Hour - time.Minute)
		var held []limit.Lease // leases of the first limit
		for step := range c.Steps {
			now = now.Add(time.Duration(r.IntN(3)) * time.Duration(r.IntN(3_000_000)) * time.Microsecond)
			var charges []limit.Charge
			var leases []limit.LeaseRequest
			var windows []time.Time
			allowed := true
			for i, l := range limits {
				cost := 1 + r.Int64N(5)
				a := limit.LeaseRequest{Need: r.Int64N(cost + 1), Least: r.Int64N(3), Most: r.Int64N(9),
					Ample: r.Int64N(20), Plenty: r.Int64N(40),
					Share: r.Int64N(limit.ShareOne + 1)}
				window := now.Truncate(periods[i]).Add(time.Duration(i) * time.Microsecond)
				if i == 0 && len(held) > 0 && r.IntN(3) == 0 {
					h := &held[r.IntN(len(held))]
					if back := min(1+r.Int64N(4), h.Units); back > 0 && time.UnixMicro(h.Until).After(now) {
						h.Units -= back
						a.Correction, a.CorrectionAt = -back, h.At
					}
				} else if r.IntN(8) == 0 {
					a.Correction, a.CorrectionAt = r.Int64N(4), now.UnixMicro()
				}
				charges, leases, windows = append(charges, charge(l, cost)), append(leases, a), append(windows, window)
				allowed = allowed && (a.Need == 0 || used[window]+a.Correction+a.Need <= l.Tiers[0].Threshold)
			}
			d := s.ask(now, leases, charges...)
			if d.Allowed != allowed {
				s.Fatalf("seed %d, step %d: %s, leases %+v, used %v: allowed %t, want %t", seed, step+1,
					describe(charges), leases, used, d.Allowed,
					allowed)
			}
			for i := range charges {
				g, a, n := d.Lease(i), &leases[i], used[windows[i]]
				if allowed {
					n += a.Correction + a.Need
					if want := byRule(a, limits[i].Tiers[0].Threshold-n); g.Units != want {
						s.Fatalf("seed %d, step %d: leases %+v with %d used leases %+v, want %d units", seed, step+1,
							*a, n, g, want)
					}
				} else if a.Correction < 0 { // the fixed window has no leased units that could be given back
					h := slices.IndexFunc(held, func(h limit.Lease) bool { return h.At == a.CorrectionAt })
					held[h].Units -= a.Correction
				}
				used[windows[i]] = n + g.Units
				if i == 0 && g.Units > 0 {
					held = append(held, g)
				}
				s.left(fmt.Sprintf("seed %d, step %d", seed, step+1), now, limits[i],
					max(limits[i].Tiers[0].Threshold-used[windows[i]], 0))
			}
		}
	}
}

// byRule returns how many units the request must be granted if left units are left.
func byRule(a *limit.LeaseRequest, left int64) int64 {
	want := a.Most
	if left >= a.Plenty {
		want = a.Ample
	}
	if share := left * a.Share / limit.ShareOne; want > share {
		want = share
	}
	if want < a.Least {
		want = a.Least
	}
	return max(min(want, left), 0)
}
