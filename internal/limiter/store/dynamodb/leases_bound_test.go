package dynamodb_test

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// grantTo holds a decision of a process: what it may spend, and from when to when.
type grantTo struct {
	limit.Lease
	now  int64
	need int64
	ramp bool
}

// leaseHolders holds processes that lease from one counter at the same time.
type leaseHolders struct {
	*testing.T
	l      *limit.Limit
	mu     sync.Mutex
	now    time.Time
	grants []*grantTo
	failed int
	denied int

	asking map[int]time.Time // by process, the times of the decisions in progress
	done   *sync.Cond        // signalled when a decision is done
}

const (
	holderCount     = 8
	callsPerHolder  = 120
	timeStep        = 5 * time.Millisecond
	clockSkew       = 2 * time.Millisecond  // difference between the clocks of two neighbouring processes
	longestDecision = 40 * time.Millisecond // time that may pass during a decision

	// µs by which decisions can overtake each other
	mostLate = int64((longestDecision + holderCount*clockSkew) / time.Microsecond)
)

// next returns the time of a process's next decision.
func (w *leaseHolders) next(i int) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.isRefused() {
		w.done.Wait()
	}
	w.now = w.now.Add(timeStep)
	w.asking[i] = w.now
	return w.now.Add(time.Duration(i) * clockSkew)
}

func (w *leaseHolders) isRefused() bool {
	for _, at := range w.asking {
		if w.now.Add(timeStep).Sub(at) > longestDecision {
			return true
		}
	}
	return false
}

// run lets the processes decide at times that advance for all of them together, with clocks that differ, and give back
// some of the units that they were granted.
func (w *leaseHolders) run() {
	c := config(server(w.T))
	var wg sync.WaitGroup
	for i := range holderCount {
		s := open(w.T, c)
		r := rand.New(rand.NewPCG(uint64(i), 29))
		wg.Go(func() {
			var own *grantTo
			for range callsPerHolder {
				own = w.ask(s, r, i, own)
			}
		})
	}
	wg.Wait()
	w.Logf("%d grants, %d denied, %d undecided", len(w.grants), w.denied, w.failed)
	if w.failed > holderCount*callsPerHolder/50 {
		w.Errorf("%d of %d decisions ended in an error, want few", w.failed, holderCount*callsPerHolder)
	}
	if len(w.grants) < 30 || w.denied == 0 {
		w.Errorf("%d grants and %d denials: the script shows too little", len(w.grants), w.denied)
	}
}

func (w *leaseHolders) ask(s *dynamodb.Store, r *rand.Rand, i int, own *grantTo) *grantTo {
	at := w.next(i)
	t := &w.l.Tiers[0]
	a := limit.LeaseRequest{Need: 1 + r.Int64N(3), Least: r.Int64N(3), Most: r.Int64N(12), Ample: r.Int64N(30),
		Plenty: 40, Share: limit.ShareOne / 4}
	switch t.Algorithm {
	case limit.TokenBucket, limit.SlidingWindow:
		a.Ramp = r.IntN(3) == 0
	case limit.SlidingBuckets:
		a.Life = r.Int64N(200_000)
	}
	back := int64(0)
	if own != nil && own.Units > 0 && r.IntN(3) == 0 {
		back = 1 + r.Int64N(own.Units)
		a.Correction, a.CorrectionAt = -back, own.At
		own.Upfront = max(own.Upfront-back, 0)
	}
	var d limit.Decision
	err := s.Decide(w.Context(), &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: w.l, Cost: a.Need}},
		Leases: []limit.LeaseRequest{a}}, at, &d)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.asking, i)
	w.done.Broadcast()
	switch {
	case errors.Is(err, dynamodb.ErrUndecided):
		w.failed++
		return own
	case err != nil:
		w.Error(err)
		return own
	case !d.Allowed:
		w.denied++
		return own
	}
	if back > 0 {
		own.Units -= back
	}
	g := &grantTo{Lease: d.Lease(0), now: d.Now, need: a.Need, ramp: a.Ramp}
	if g.Units < 0 || g.Units > a.Largest() || g.Upfront > g.Units {
		w.Errorf("the lease %+v was granted for the request %+v, which does not allow it", g.Lease, a)
	}
	w.grants = append(w.grants, g)
	return g
}

// spend is units that are spent at a time.
type spend struct{ at, units int64 }

// spends returns what is spent if some leases are spent at once, and others at their end.
func (w *leaseHolders) spends() []spend {
	var all []spend
	for i, g := range w.grants {
		all = append(all, spend{g.now, g.need})
		if g.Units == 0 {
			continue
		}
		if i%3 == 0 && !g.ramp {
			all = append(all, spend{g.now, g.Units})
		} else {
			all = append(all, spend{g.Until - 1, g.Units})
		}
	}
	slices.SortFunc(all, func(a, b spend) int { return cmp.Compare(a.at, b.at) })
	return all
}

// Guarantees that processes which lease from one counter together stay within the algorithm's bound. Eight processes
// with clocks that differ lease, return units, and stop with units left, and each of them spends its units at a time of
// its choice. A lease must never cost the bound.
func TestLeasedBounds(t *testing.T) {
	t.Parallel()
	start := func(tier limit.Tier) *leaseHolders {
		w := &leaseHolders{l: must(t, limit.Limit{ID: "l", MaxCost: 3, Tiers: []limit.Tier{tier}}), now: noon,
			asking: map[int]time.Time{}}
		w.done = sync.NewCond(&w.mu)
		return w
	}
	t.Run("token_bucket", func(t *testing.T) {
		t.Parallel()
		for name, burst := range map[string]int64{"small": 60, "with slack": 300} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				const rate = 400
				w := start(limit.Tier{Algorithm: limit.TokenBucket, Threshold: rate, Period: time.Second, Burst: burst})
				w.T = t
				w.run()
				all := w.spends()
				for i := range all {
					units := int64(0)
					for _, s := range all[i:] {
						units += s.units
						if most := burst + (s.at-all[i].at+mostLate)*rate/1_000_000; units > most {
							t.Fatalf("%d units within %d µs, want at most %d", units, s.at-all[i].at, most)
						}
					}
				}
			})
		}
	})
	if soak.RaceEnabled { // each process has a store of its own, and the other algorithms share no memory either
		return
	}
	t.Run("sliding_buckets", func(t *testing.T) {
		t.Parallel()
		w := start(limit.Tier{Algorithm: limit.SlidingBuckets, Threshold: 200, Period: time.Second, Buckets: 10})
		w.T = t
		w.run()
		all := w.spends()
		for i := range all {
			units := int64(0)
			for _, s := range all[i:] {
				// a process whose clock is ahead removes sliding buckets that another process still counts
				if s.at-all[i].at >= 1_000_000-mostLate {
					break
				}
				if units += s.units; units > 200 {
					t.Fatalf("%d units within a second, want at most 200", units)
				}
			}
		}
	})
	for name, tier := range map[string]limit.Tier{
		"fixed_window": {Algorithm: limit.FixedWindow, Threshold: 200, Period: time.Second},
		"quota": {Algorithm: limit.Quota, Threshold: 900, Calendar: &limit.Calendar{Every: limit.Day,
			Location: time.UTC}},
		"sliding_window": {Algorithm: limit.SlidingWindow, Threshold: 200, Period: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(tier)
			w.T = t
			w.run()
			inWindow, last := map[int64]int64{}, map[int64]int64{}
			for _, g := range w.grants {
				inWindow[g.At] += g.need + g.Units
				by := g.now
				if g.ramp {
					by = g.Until
				}
				last[g.At] = max(last[g.At], by)
			}
			for at, units := range inWindow {
				weight := int64(0)
				if before := inWindow[at-1_000_000]; tier.Algorithm == limit.SlidingWindow {
					weight = before * max(at+1_000_000-last[at], 0) / 1_000_000
				}
				if units+weight > tier.Threshold {
					t.Errorf("%d units in the window of %d, beside a weight of %d; want at most %d", units, at, weight,
						tier.Threshold)
				}
			}
		})
	}
}
