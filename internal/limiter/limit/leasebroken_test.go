package limit_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// leaseFault is a mistake of a store, or of a holder of leases, by which leases exceed the bound of the algorithm.
type leaseFault string

const (
	noLeaseFault   leaseFault = ""
	uncharged      leaseFault = "a lease is not charged"
	oneMore        leaseFault = "a lease is one unit more than was charged"
	outlivesWindow leaseFault = "a lease outlives its window"
	stampedNow     leaseFault = "leased units are stamped with the time of the grant"
	heldIgnored    leaseFault = "a bucket with held units refills up to its whole burst"
	outlivesSlot   leaseFault = "a lease outlives its slot"
	needNotHeld    leaseFault = "the need is not held together with its lease"
	debtForgiven   leaseFault = "a level below zero counts as zero"
	rampAtOnce     leaseFault = "all units of a ramp may be spent at once"
	rampSteep      leaseFault = "the units of a ramp become free in half of its time"
	rampTooFar     leaseFault = "a ramp leases twice the units that become free"
	keepsSlope     leaseFault = "the holder gives units of a ramp back and keeps its slope"
	backTwice      leaseFault = "units that are given back are counted twice"
	backAnywhere   leaseFault = "units that are given back reduce the present window"
	backLate       leaseFault = "held units are given back after their slot, to a bucket that is full without them"
	refundLate     leaseFault = "spent units of a lease are refunded after its slot"
	owedDropped    leaseFault = "units that were admitted without the store are dropped"
)

// leaseFaults lists the faults, and the algorithms that can have them.
var leaseFaults = []struct {
	fault leaseFault
	of    []limit.Algorithm
}{
	{uncharged, leasable},
	{oneMore, leasable},
	{outlivesWindow, []limit.Algorithm{limit.FixedWindow, limit.Quota, limit.SlidingWindow}},
	{stampedNow, []limit.Algorithm{limit.SlidingLog, limit.SlidingBuckets}},
	{heldIgnored, []limit.Algorithm{limit.TokenBucket}},
	{outlivesSlot, []limit.Algorithm{limit.TokenBucket}},
	{needNotHeld, []limit.Algorithm{limit.TokenBucket}},
	{debtForgiven, []limit.Algorithm{limit.TokenBucket}},
	{rampAtOnce, []limit.Algorithm{limit.TokenBucket, limit.SlidingWindow}},
	{rampSteep, []limit.Algorithm{limit.TokenBucket, limit.SlidingWindow}},
	{rampTooFar, []limit.Algorithm{limit.TokenBucket, limit.SlidingWindow}},
	{keepsSlope, []limit.Algorithm{limit.TokenBucket, limit.SlidingWindow}},
	{backTwice, leasable},
	{backAnywhere, []limit.Algorithm{limit.FixedWindow, limit.Quota, limit.SlidingWindow}},
	{backLate, []limit.Algorithm{limit.TokenBucket}},
	{refundLate, []limit.Algorithm{limit.TokenBucket}},
	{owedDropped, leasable},
}

// TestBrokenLeases guarantees that the checkers catch each fault, in each algorithm that can have it.
func TestBrokenLeases(t *testing.T) {
	const scripts = 5000
	for _, tt := range leaseFaults {
		for _, a := range tt.of {
			t.Run(string(tt.fault)+"/"+a.String(), func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(scripts) {
					w := randomLeaseWorld(t, rand.New(rand.NewPCG(seed, uint64(a))), tt.fault, a, false)
					if wrong := w.run(60); len(wrong) > 0 {
						t.Logf("caught by script %d: %s", seed+1, strings.Join(wrong, "; "))
						return
					}
				}
				t.Errorf("no checker notices this fault in %d scripts, want at least one error", scripts)
			})
		}
	}
}

// decide stands for a store of one counter: it decides as package limit does, with the fault of the script.
func (w *leaseWorld) decide(req *limit.Request) *limit.Decision {
	w.falsifyRequest(req)
	d := new(limit.Decision)
	if err := req.Check(); err != nil {
		w.wrong = append(w.wrong, err.Error())
		return d
	}
	e := d.BeginChecked(req, w.now)
	e.Evaluate(0, &w.state, true)
	e.Settle()
	if d.Charges(0) {
		e.Charge(0, &w.state)
		w.falsifyState(d)
	}
	if n := d.Results[0].Charged; n > 0 && (w.fault == noLeaseFault || w.fault == owedDropped) && !w.admits(n) {
		w.wrong = append(w.wrong, "charged where what was spent leaves no room")
	}
	return d
}

// falsifyRequest changes the request before the store gets it, as the fault says.
func (w *leaseWorld) falsifyRequest(req *limit.Request) {
	if w.fault == heldIgnored && w.tier().Algorithm == limit.TokenBucket {
		st := w.state.TokenBucket()
		st.Leased, st.Late = limit.Leased{}, limit.Late{}
		w.state = st.State()
	}
	if len(req.Leases) == 0 || req.Leases[0].Correction == 0 {
		return
	}
	req.Leases = slices.Clone(req.Leases)
	switch a := &req.Leases[0]; {
	case a.Correction > 0 && w.fault == owedDropped:
		a.Correction = 0
	case a.Correction < 0 && w.fault == backTwice:
		a.Correction *= 2
	case a.Correction < 0 && w.fault == backAnywhere:
		a.CorrectionAt = w.now
	}
}

// falsifyState changes the state after a charge, as the fault says.
func (w *leaseWorld) falsifyState(d *limit.Decision) {
	t, s, g, p := w.tier(), &w.state, d.Lease(0), w.tier().Params(w.owner)
	switch w.fault {
	case uncharged:
		w.charge(-g.Units, g.At)
	case rampTooFar:
		w.charge(g.Units-g.Upfront, g.At)
	case stampedNow:
		w.charge(-g.Units, g.At)
		at := w.now
		if t.Algorithm == limit.SlidingBuckets {
			at -= at % p.Width
		}
		w.charge(g.Units, at)
	case needNotHeld:
		if st := s.TokenBucket(); t.Algorithm == limit.TokenBucket && st.Leased.Until == g.At {
			st.Leased.Units = max(st.Leased.Units-d.Results[0].Charged, 0)
			*s = st.State()
		}
	case debtForgiven:
		if t.Algorithm == limit.TokenBucket {
			st := s.TokenBucket()
			st.Missing = min(st.Missing, p.Full)
			*s = st.State()
		}
	}
}

// charge takes units of a lease from the state, or puts them back below zero, as a faulty store does.
func (w *leaseWorld) charge(units, at int64) {
	s := &w.state
	if units == 0 {
		return
	}
	switch w.tier().Algorithm {
	case limit.TokenBucket:
		st := s.TokenBucket()
		st.Missing += units * w.tier().Params(w.owner).Den
		if st.Leased.Units > 0 && st.Leased.Until == at {
			st.Leased.Units += units
		}
		*s = st.State()
	case limit.SlidingLog, limit.SlidingBuckets:
		st := s.Log()
		i, found := slices.BinarySearchFunc(st.Entries, at,
			func(x limit.Entry, at int64) int { return int(min(max(x.At-at, -1), 1)) })
		if !found {
			st.Entries = slices.Insert(st.Entries, i, limit.Entry{At: at})
		}
		st.Entries[i].Units += units
		st.Sum += units
		*s = st.State()
	case limit.Quota:
		st := s.Quota()
		st.Count += units
		*s = st.State()
	default:
		st := s.Window()
		st.Count += units
		*s = st.State()
	}
}

// grantOf returns the lease that the holder assumes, which the fault may change.
func (w *leaseWorld) grantOf(d *limit.Decision) limit.Lease {
	g := d.Lease(0)
	if g.Units == 0 {
		return g
	}
	switch w.fault {
	case oneMore:
		g.Units++
		g.Upfront++
	case outlivesWindow:
		g.Until += w.period() / 2
	case outlivesSlot:
		g.Until += g.Until - w.now
	case rampAtOnce:
		g.Upfront = g.Units
	case rampSteep:
		if g.Upfront < g.Units {
			g.Until = w.now + (g.Until-w.now)/2
		}
	case rampTooFar:
		g.Units += g.Units - g.Upfront
	}
	return g
}

// apply refunds, as the fault says.
func (w *leaseWorld) apply(e *limit.ReceiptEntry, r receipt, units int64) int64 {
	back := e.GiveBack(&w.state, cmp.Or(units, e.Units), w.now)
	if w.fault == refundLate && r.leased && back == 0 && e.Tier.Algorithm == limit.TokenBucket {
		if back = units; back == 0 {
			back = r.of.units
		}
		st := w.state.TokenBucket()
		st.Missing -= back * e.Tier.Params(w.owner).Den
		w.state = st.State()
	}
	return back
}
