package limit_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// The tests of this file run random scripts, and check that leases stay within the bound of the algorithm. Several
// holders lease from one counter. They keep units, spend them at the first or at the last permitted time, give units
// back, stop for good, report units that were admitted without the store, and refund. Requests without leases come in
// between. The checkers know only when units were spent, which of them were refunded when, and the formula of the
// algorithm (design §5). Units that were leased and never spent do not count.

// dice makes the choices of a script, at random or from the bytes of a fuzz test.
type dice interface {
	IntN(n int) int // returns 0..n-1; n is above 0
}

// spent is a number of units that were spent at one time.
type spent struct {
	at, seq    int64
	units      int64
	owed       bool  // admitted without the store
	reportedAt int64 // when the store was charged for them, if owed
	back       int64 // this many of the units were refunded,
	backSeq    int64 // by the event with this number;
	parts      int64 // units refunded to a bucket, in 1/period units
}

// heldLease holds the units of one grant. Its holder may spend Upfront of them at once, and the others one by one along
// a line of time that ends at Until.
type heldLease struct {
	limit.Lease
	from  int64
	used  int64
	lease limit.Leftover
	habit habit
	slope int64 // of the ramp as it was granted: units beyond Upfront, for a faulty holder that keeps it
}

// habit says when a holder spends its units.
type habit int

const (
	spendsAtOnce   habit = iota // each unit as soon as it may
	spendsLast                  // all units at the last moment
	spendsTogether              // nothing until a moment at which all holders spend
	spendsRandomly
	neverSpends // nothing at all
	numHabits
)

// due returns when the holder may spend its k-th unit, counted from 1.
func (h *heldLease) due(k int64) int64 {
	if k <= h.Upfront {
		return h.from
	}
	rise, run := h.slope, h.Until-h.from
	return h.from + ((k-h.Upfront)*run+rise-1)/rise
}

// free returns how many units the holder may have spent by now.
func (h *heldLease) free(now int64) int64 {
	if now >= h.Until {
		return h.Units
	}
	return min(h.Upfront+h.slope*(now-h.from)/(h.Until-h.from), h.Units)
}

// leaseWorld is a script: one counter and the holders of its leases.
type leaseWorld struct {
	dice
	fault leaseFault

	limits []*limit.Limit // one, or several if the limit changes
	l      *limit.Limit   // the limit in force
	owner  limit.Owner
	state  limit.State
	now    int64
	seq    int64
	busy   bool // there are many events in a period
	greedy bool // all units are leased, and spent as soon as possible

	debtDropped bool // more than a burst was admitted without the store, which the core does not remember

	leases   []*heldLease
	spends   []*spent
	receipts []receipt
	wrong    []string // errors that a checker of one step has found
	trace    strings.Builder
	traced   bool

	// how much happened, so that a test can check that it shows something
	granted, ramped, late, gaveBack, refunded, owedUnits, denied int64
}

type receipt struct {
	*limit.Receipt
	of     *spent
	leased bool // the units were part of a lease
}

func newLeaseWorld(d dice, f leaseFault, limits ...*limit.Limit) *leaseWorld {
	w := &leaseWorld{dice: d, fault: f, limits: limits, l: limits[0], owner: limit.Owner{Kind: limit.Tenant,
		Name: "acme"}}
	w.busy, w.greedy = d.IntN(2) == 0, d.IntN(4) == 0
	w.now = time.Date(2026, 3, 2, 23, 59, 50, 0, time.UTC).UnixMicro() // shortly before midnight, for a quota
	return w
}

func (w *leaseWorld) tier() *limit.Tier { return &w.l.Tiers[0] }

// period returns the period of the algorithm. For a quota it is ten seconds, so that scripts reach midnight.
func (w *leaseWorld) period() int64 {
	if p := w.tier().Period.Microseconds(); p > 0 {
		return p
	}
	return 10_000_000
}

func (w *leaseWorld) log(format string, args ...any) {
	if w.traced {
		fmt.Fprintf(&w.trace, "  %d: %s\n", w.now, fmt.Sprintf(format, args...))
	}
}

// randomBelow returns 0..n-1 for any n above 0.
func (w *leaseWorld) randomBelow(n int64) int64 { return int64(w.IntN(int(min(n, 1<<30)))) }

// run runs a script and returns the errors.
func (w *leaseWorld) run(steps int) []string {
	for range steps {
		w.passTime()
		switch p := w.IntN(20); {
		case p < 13:
			w.ask()
		case p < 16:
			w.refund()
		case p < 18 && len(w.limits) > 1:
			w.l = w.limits[w.IntN(len(w.limits))]
			w.log("the limit is %d, burst %d", w.tier().Threshold, w.tier().Burst)
		}
		if len(w.wrong) > 0 {
			break
		}
	}
	last := w.now
	for _, h := range w.leases {
		last = max(last, w.lastOf(h))
	}
	w.advance(last)
	return append(w.wrong, w.overBound()...)
}

// passTime lets time pass, often to a time at which something changes.
func (w *leaseWorld) passTime() {
	next := w.now
	switch p := w.IntN(10); {
	case p < 2:
	case w.busy && p < 9:
		next += w.randomBelow(w.period()/40 + 1)
	case p < 5:
		next += w.randomBelow(w.period()/20 + 1)
	case p < 7:
		next += w.randomBelow(w.period() + 1)
	case p < 8:
		next += w.randomBelow(3*w.period() + 1)
	default:
		if n := len(w.leases); n > 0 {
			next = max(next, w.leases[n-1-w.IntN(min(n, 4))].Until+int64(w.IntN(3))-1)
		} else {
			next += w.period() - w.now%w.period() + int64(w.IntN(3)) - 1
		}
	}
	w.advance(next)
}

// advance lets the holders spend until the time to.
func (w *leaseWorld) advance(to int64) {
	sharedTime := int64(0)
	if to > w.now && w.IntN(6) == 0 {
		sharedTime = w.now + 1 + w.randomBelow(to-w.now)
	}
	open := w.leases[:0]
	for _, h := range w.leases {
		last := w.lastOf(h)
		if w.IntN(12) == 0 {
			h.habit = w.randomHabit()
		}
		switch by := min(to, last); h.habit {
		case spendsAtOnce:
			for h.used < h.Units && h.due(h.used+1) <= by {
				at := max(h.due(h.used+1), w.now)
				if at > by {
					break
				}
				w.spendLease(h, at, min(h.free(at), h.Units)-h.used)
			}
		case spendsLast:
			if to >= last && last >= w.now {
				w.spendLease(h, last, h.free(last)-h.used)
			}
		case spendsTogether:
			if sharedTime != 0 && sharedTime <= last {
				w.spendLease(h, sharedTime, h.free(sharedTime)-h.used)
			}
		case spendsRandomly:
			if by >= w.now {
				at := w.now + w.randomBelow(by-w.now+1)
				if n := h.free(at) - h.used; n > 0 {
					w.spendLease(h, at, 1+w.randomBelow(n))
				}
			}
		case neverSpends, numHabits:
		}
		if h.used < h.Units || to < last {
			open = append(open, h)
		}
	}
	w.now = to
	// Leases that ended long ago are dropped. For a while their holders still try to give units back.
	w.leases = slices.DeleteFunc(open, func(h *heldLease) bool { return to > h.Until+2*w.period() })
}

// lastOf returns the last time at which the holder may spend. A window that ends then is a different one.
func (w *leaseWorld) lastOf(h *heldLease) int64 {
	switch w.tier().Algorithm {
	case limit.FixedWindow, limit.Quota:
		return h.Until - 1
	case limit.SlidingWindow:
		if h.Until%w.period() == 0 {
			return h.Until - 1
		}
	}
	return h.Until
}

func (w *leaseWorld) spend(at, units int64) *spent {
	w.seq++
	s := &spent{at: at, seq: w.seq, units: units}
	w.spends = append(w.spends, s)
	return s
}

// spendLease spends units of a lease, through the Leftover that the holder keeps.
func (w *leaseWorld) spendLease(h *heldLease, at, units int64) {
	if units <= 0 {
		return
	}
	h.used += units
	w.late += units
	w.log("spends %d of the lease of %d at %d", units, h.from, at)
	s := w.spend(at, units)
	var d limit.Decision
	req := limit.Request{Owner: w.owner, Charges: []limit.Charge{{Limit: w.l, Cost: units}}}
	e := d.BeginLeased(&req, at, limit.ReceiptID{Lo: uint64(w.seq)})
	e.FromLeftover(0, &h.lease, 0)
	h.lease.Units -= e.ChargeLeftover(0)
	if h.lease.Units < 0 && w.fault == noLeaseFault {
		w.wrong = append(w.wrong, fmt.Sprintf("the lease has %d units after %d were spent", h.lease.Units, units))
	}
	if rec := d.Receipt(); len(rec.Entries()) > 0 { // there are none if a broken store leased more than the capacity
		w.receipts = append(w.receipts, receipt{rec, s, true})
	} else if w.fault == noLeaseFault {
		w.wrong = append(w.wrong, fmt.Sprintf("%d leased units leave no receipt", units))
	}
}

// ask makes a request: a plain one, or one that leases.
func (w *leaseWorld) ask() {
	t := w.tier()
	cost := 1 + w.randomBelow(t.Capacity())
	if w.IntN(3) > 0 {
		cost = 1 + w.randomBelow(min(t.Capacity(), 3))
	}
	req := &limit.Request{Owner: w.owner, Charges: []limit.Charge{{Limit: w.l, Cost: cost}}}
	if w.IntN(4) == 0 {
		if d := w.decide(req); d.Allowed {
			w.log("plain request for %d", cost)
			w.receipts = append(w.receipts, receipt{d.Receipt(), w.spend(w.now, cost), false})
		}
		return
	}
	a := w.randomAhead(cost)
	back, owed := w.randomCorrection(&a)
	req.Leases = []limit.LeaseRequest{a}
	d := w.decide(req)
	g := w.grantOf(d)
	if w.fault == noLeaseFault && (g.Units < 0 || g.Upfront < 0 || g.Upfront > g.Units ||
		(g.Units > 0 && g.Until < w.now) || g.Units > a.Largest() ||
		(!d.Allowed && g != limit.Lease{})) {
		w.wrong = append(w.wrong, fmt.Sprintf("at %d the grant of %+v is %+v", w.now, a, g))
	}
	w.log("asks for %d, ahead %+v: allowed %t, %+v; state %+v", cost, a, d.Allowed, g, w.state)
	if w.fault == noLeaseFault {
		w.checkFresh()
	}
	if !d.Allowed {
		w.denied++
		if !d.Never && a.Correction == 0 && w.fault == noLeaseFault {
			w.checkRetry(req, d.RetryAt)
		}
		return
	}
	if back != nil {
		w.giveBack(back, -a.Correction)
	}
	if owed != nil {
		owed.reportedAt = w.now
		w.seq++
		owed.seq = w.seq
		w.spends = append(w.spends, owed)
		w.owedUnits += owed.units
		w.debtDropped = w.debtDropped || (t.Algorithm == limit.TokenBucket &&
			w.state.TokenBucket().Missing >= 2*t.Params(w.owner).Full)
	}
	if charged := d.Results[0].Charged; charged > 0 {
		s := w.spend(w.now, charged)
		w.receipts = append(w.receipts, receipt{d.Receipt(), s, a.Largest() > 0})
	}
	if g.Units > 0 {
		w.granted += g.Units
		w.ramped += g.Units - g.Upfront
		lease := d.Leftover(0)
		lease.Units = g.Units
		if lease.At != g.At {
			w.wrong = append(w.wrong, fmt.Sprintf("the lease is at %d, the grant at %d", lease.At, g.At))
		}
		w.leases = append(w.leases, &heldLease{Lease: g, from: w.now, lease: lease, slope: g.Units - g.Upfront,
			habit: w.randomHabit()})
	}
}

// giveBack gives units of a lease back. Units that have not become free yet are given back first. The remaining units
// become free evenly until the end of the ramp: from now on, or as if the ramp had had only these units from the
// beginning. If the holder kept the slope, it would spend its units too early: others may have been granted the units
// that become free after that.
func (w *leaseWorld) giveBack(h *heldLease, units int64) {
	free := h.free(w.now)
	h.Units -= units
	h.lease.Units -= units
	w.gaveBack += units
	switch {
	case w.fault == keepsSlope:
		h.Upfront = min(h.Upfront, h.Units)
	case w.IntN(2) == 0 && w.now < h.Until:
		h.from, h.Upfront = w.now, min(free, h.Units)
		h.slope = h.Units - h.Upfront
	default:
		h.Upfront = min(h.Upfront, h.Units)
		h.slope = h.Units - h.Upfront
	}
	if w.fault == backLate && w.tier().Algorithm == limit.TokenBucket && w.now >= h.Until {
		st := w.state.TokenBucket()
		st.Missing -= units * w.tier().Params(w.owner).Den
		w.state = st.State()
	}
}

// peekAt peeks at the counter at a given time, as if nobody charged it until then.
func (w *leaseWorld) peekAt(req *limit.Request, at int64) *limit.Decision {
	d := new(limit.Decision)
	e := d.BeginChecked(req, at)
	e.Evaluate(0, &w.state, false)
	e.Settle()
	return d
}

// checkRetry checks a denial: the cost must fit at the time that it named, and not before.
func (w *leaseWorld) checkRetry(req *limit.Request, retryAt int64) {
	if retryAt <= w.now || !w.peekAt(req, retryAt).Allowed || w.peekAt(req, retryAt-1).Allowed {
		w.wrong = append(w.wrong, fmt.Sprintf("denied at %d with RetryAt %d: allowed then: %t, a µs before: %t; "+
			"want true and false", w.now,
			retryAt,
			w.peekAt(req, retryAt).Allowed, w.peekAt(req, retryAt-1).Allowed))
	}
}

// checkFresh checks that nothing is used at the time at which a store may forget the counter.
func (w *leaseWorld) checkFresh() {
	req := &limit.Request{Owner: w.owner, Charges: []limit.Charge{{Limit: w.l, Cost: 1}}}
	at := max(w.tier().FreshAt(&w.state)-limit.MaxSkew.Microseconds(), w.now)
	if used := w.peekAt(req, at).Results[0].Used(); used != 0 {
		w.wrong = append(w.wrong, fmt.Sprintf("FreshAt says %d, but %d units are used then, want none: %+v", at, used,
			w.state))
	}
}

func (w *leaseWorld) randomHabit() habit {
	if w.greedy && w.IntN(4) > 0 {
		return spendsAtOnce
	}
	return habit(w.IntN(int(numHabits)))
}

func (w *leaseWorld) randomAhead(cost int64) limit.LeaseRequest {
	t := w.tier()
	some := func() int64 {
		switch w.IntN(4) {
		case 0:
			return 0
		case 1:
			return 1 + w.randomBelow(3)
		case 2:
			return t.Capacity() + w.randomBelow(10)
		}
		return 1 + w.randomBelow(t.Capacity())
	}
	a := limit.LeaseRequest{Need: cost, Least: some(), Most: some(), Ample: some(), Plenty: some(),
		Share: limit.ShareOne}
	if w.IntN(2) == 0 {
		a.Need = int64(w.IntN(int(min(cost, 1<<20)) + 1))
	}
	if w.IntN(2) == 0 {
		a.Share = w.randomBelow(limit.ShareOne + 1)
	}
	switch t.Algorithm {
	case limit.SlidingLog, limit.SlidingBuckets:
		if a.Life = w.randomBelow(w.period() + 1); w.IntN(4) == 0 {
			a.Life = w.period()
		}
	case limit.TokenBucket, limit.SlidingWindow:
		a.Ramp = w.IntN(3) > 0 || w.greedy
	}
	if w.greedy && w.IntN(4) > 0 {
		a.Need, a.Least, a.Ample, a.Plenty, a.Share = 0, 0, 2*t.Capacity(), 0, limit.ShareOne
	}
	return a
}

// randomCorrection gives back some units of a lease, or reports units that were admitted without the store.
func (w *leaseWorld) randomCorrection(a *limit.LeaseRequest) (back *heldLease, owed *spent) {
	switch p := w.IntN(8); {
	case p < 2 && len(w.leases) > 0:
		h := w.leases[w.IntN(len(w.leases))]
		if left := h.Units - h.used; left > 0 {
			a.Correction, a.CorrectionAt = -(1 + w.randomBelow(left)), h.At
			return h, nil
		}
	case p < 3:
		owed = &spent{at: w.now - w.randomBelow(w.period()), units: 1 + w.randomBelow(min(w.tier().Capacity(), 4)),
			owed: true}
		a.Correction, a.CorrectionAt = owed.units, owed.at
		return nil, owed
	}
	return nil, nil
}

// refund refunds a receipt.
func (w *leaseWorld) refund() {
	if len(w.receipts) == 0 {
		return
	}
	i := len(w.receipts) - 1 - w.IntN(min(len(w.receipts), 8))
	r := w.receipts[i]
	w.receipts = slices.Delete(w.receipts, i, i+1)
	if len(w.limits) > 1 && !r.leased {
		return // a refund of parts of a unit, after which the parts cannot be told apart
	}
	units := w.randomBelow(r.of.units + 1)
	e := &r.Entries()[0]
	before := int64(0)
	if e.Tier.Algorithm == limit.TokenBucket {
		before = w.state.TokenBucket().Refunds.Total
	}
	back := w.apply(e, r, units)
	w.seq++
	r.of.back, r.of.backSeq = back, w.seq
	if e.Tier.Algorithm == limit.TokenBucket {
		r.of.parts = back * w.period()
		if total := w.state.TokenBucket().Refunds.Total; total != before {
			r.of.parts = (total - before) * (w.period() / e.Tier.Params(w.owner).Den)
		}
	}
	w.refunded += back
	w.log("refund of %d of what was spent at %d gives %d", units, r.of.at, back)
	if back < 0 || back > r.of.units || (units > 0 && back > units) {
		w.wrong = append(w.wrong, fmt.Sprintf("a refund of %d of %d units gave %d", units, r.of.units, back))
	}
}

// overBound checks all units that were spent.
func (w *leaseWorld) overBound() []string {
	all := slices.Clone(w.spends)
	slices.SortStableFunc(all, func(a, b *spent) int {
		return cmp.Or(cmp.Compare(a.at, b.at),
			cmp.Compare(a.seq, b.seq))
	})
	own := slices.DeleteFunc(slices.Clone(all), func(s *spent) bool { return s.owed })
	threshold, burst := int64(0), int64(0)
	for _, l := range w.limits { // a limit that was changed may admit by its largest numbers
		threshold, burst = max(threshold, l.Tiers[0].Threshold), max(burst, l.Tiers[0].Burst)
	}
	switch w.tier().Algorithm {
	case limit.FixedWindow:
		return overWindows(own, threshold, func(at int64) int64 { return at / w.period() })
	case limit.Quota:
		return overWindows(own, threshold, func(at int64) int64 { return at / 86_400_000_000 })
	case limit.SlidingWindow:
		return overSliding(own, threshold, w.period())
	case limit.SlidingLog, limit.SlidingBuckets:
		return overLog(own, threshold, w.period())
	default:
		return overBucket(own, burst, threshold, w.period())
	}
}

// overWindows checks that at most threshold units were spent in each window.
func overWindows(all []*spent, threshold int64, window func(at int64) int64) []string {
	count := map[int64]int64{}
	for _, s := range all {
		w := window(s.at)
		if count[w] += s.units - s.back; count[w] > threshold {
			return []string{fmt.Sprintf("%d units in window %d, threshold %d", count[w], w, threshold)}
		}
	}
	return nil
}

// overSliding checks that ⌈prev·(period−elapsed)/period⌉ + cur ≤ threshold at each time at which units were spent,
// counting the units that had been spent and not refunded by then.
func overSliding(all []*spent, threshold, period int64) []string {
	for i, s := range all {
		window, cur, prev := s.at/period, int64(0), int64(0)
		for _, o := range all[:i+1] {
			net := o.units
			if o.backSeq < s.seq {
				net -= o.back
			}
			switch o.at / period {
			case window:
				cur += net
			case window - 1:
				prev += net
			}
		}
		if used := (prev*(period-s.at%period)+period-1)/period + cur; used > threshold {
			return []string{fmt.Sprintf("at %d %d of %d are used: %d in this window, %d in the last", s.at, used,
				threshold, cur, prev)}
		}
	}
	return nil
}

// overLog checks that at most threshold units were spent in each interval of a period.
func overLog(all []*spent, threshold, period int64) []string {
	for i := range all {
		sum := int64(0)
		for j := i; j < len(all) && all[j].at < all[i].at+period; j++ {
			if sum += all[j].units - all[j].back; sum > threshold {
				return []string{fmt.Sprintf("%d units within [%d, %d], threshold %d", sum, all[i].at, all[j].at,
					threshold)}
			}
		}
	}
	return nil
}

// overBucket checks that in each interval [a, b] at most burst + rate·(b−a) units were spent. It counts exactly, in
// parts of a period.
func overBucket(all []*spent, burst, threshold, period int64) []string {
	for i := range all {
		sum := int64(0)
		for j := i; j < len(all); j++ {
			sum += all[j].units*period - all[j].parts
			bound := burst*period + threshold*(all[j].at-all[i].at)
			if sum > bound {
				return []string{fmt.Sprintf("%.3f units within [%d, %d] of %d µs, bound %.3f",
					float64(sum)/float64(period),
					all[i].at, all[j].at, all[j].at-all[i].at, float64(bound)/float64(period))}
			}
		}
	}
	return nil
}

// admits reports whether the formula of the algorithm admits need units now, beside the units that were spent until
// now. Units that were admitted without the store are included: a store that knows of them must not admit more than the
// limit.
func (w *leaseWorld) admits(need int64) bool {
	t := w.tier()
	all := slices.Clone(w.spends)
	slices.SortStableFunc(all, func(a, b *spent) int { return cmp.Compare(a.at, b.at) })
	sum := func(counts func(at int64) bool) int64 {
		total := int64(0)
		for _, s := range all {
			if counts(s.at) {
				total += s.units - s.back
			}
		}
		return total
	}
	period := w.period()
	switch t.Algorithm {
	case limit.FixedWindow:
		return sum(func(at int64) bool { return at/period == w.now/period })+need <= t.Threshold
	case limit.Quota:
		return sum(func(at int64) bool { return at/86_400_000_000 == w.now/86_400_000_000 })+need <= t.Threshold
	case limit.SlidingWindow:
		prev := sum(func(at int64) bool { return at/period == w.now/period-1 })
		cur := sum(func(at int64) bool { return at/period == w.now/period })
		return (prev*(period-w.now%period)+period-1)/period+cur+need <= t.Threshold
	case limit.SlidingLog, limit.SlidingBuckets:
		return sum(func(at int64) bool { return at > w.now-period })+need <= t.Threshold
	default:
		return w.bucketAdmits(all, need)
	}
}

// bucketAdmits computes the level of a bucket from what was spent. Units that were admitted without the store count
// from the time at which the store heard of them.
func (w *leaseWorld) bucketAdmits(all []*spent, need int64) bool {
	t, period := w.tier(), w.period()
	if len(w.limits) > 1 || w.debtDropped {
		return true // the script does not record which rate was in force at which time
	}
	when := func(s *spent) int64 {
		if s.owed {
			return s.reportedAt
		}
		return s.at
	}
	slices.SortStableFunc(all, func(a, b *spent) int { return cmp.Compare(when(a), when(b)) })
	full := t.Burst * period
	level, at := full, int64(0)
	for _, s := range all {
		if s.owed && (s.reportedAt-s.at)*t.Threshold >= full {
			continue // refilled by then
		}
		if at == 0 {
			at = when(s)
		}
		level = min(full, level+(when(s)-at)*t.Threshold)
		at = when(s)
		level -= s.units*period - s.parts
	}
	return min(full, level+(w.now-at)*t.Threshold) >= need*period
}

// randomLeaseWorld returns a script for the algorithm. With changed, it has several limits.
func randomLeaseWorld(tb testing.TB, d dice, f leaseFault, a limit.Algorithm, changed bool) *leaseWorld {
	tb.Helper()
	n := 1
	if changed {
		n = 3
	}
	periods := []time.Duration{time.Millisecond, 7 * time.Millisecond, 100 * time.Millisecond, 333 * time.Millisecond,
		time.Second, 10 * time.Second}
	period := periods[d.IntN(len(periods))]
	var limits []*limit.Limit
	for range n {
		t := limit.Tier{Algorithm: a, Period: period, Threshold: int64(1 + d.IntN(40))}
		switch a {
		case limit.TokenBucket:
			t.Burst = int64(1 + d.IntN(60))
		case limit.SlidingBuckets:
			t.Buckets = 5
		case limit.Quota:
			t.Period, t.Calendar = 0, &limit.Calendar{Every: limit.Day, Location: time.UTC}
		}
		limits = append(limits, oneTier(tb, "l", t))
	}
	return newLeaseWorld(d, f, limits...)
}

// leasable lists the algorithms that have leases.
var leasable = []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow, limit.SlidingBuckets, limit.SlidingLog,
	limit.TokenBucket, limit.Quota}

// Guarantees that the units that are spent stay within the bound of the algorithm, whichever holder spends its leased
// units, and however late.
func TestLeasesKeepTheBound(t *testing.T) {
	soak.SkipUnderRace(t)
	scripts := soak.Times(uint64(3000))
	for _, a := range leasable {
		for _, changed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s changed=%t", a, changed), func(t *testing.T) {
				t.Parallel()
				var sum leaseWorld
				for seed := range scripts {
					w := randomLeaseWorld(t, rand.New(rand.NewPCG(seed, uint64(a))), noLeaseFault, a, changed)
					wrong := w.run(60)
					if len(wrong) > 0 {
						w = randomLeaseWorld(t, rand.New(rand.NewPCG(seed, uint64(a))), noLeaseFault, a, changed)
						w.traced = true
						w.run(60)
						t.Fatalf("seed %d, %s %d per %s, burst %d:\n%s\n%s", seed, a, w.limits[0].Tiers[0].Threshold,
							w.limits[0].Tiers[0].Period, w.limits[0].Tiers[0].Burst, strings.Join(wrong, "\n"),
							w.trace.String())
					}
					sum.add(w)
				}
				t.Logf("%d scripts: %d units leased, of them %d along ramps; %d spent later, %d given back, %d "+
					"refunded, %d owed; %d denials",
					scripts, sum.granted, sum.ramped, sum.late, sum.gaveBack, sum.refunded, sum.owedUnits, sum.denied)
				ramps := a == limit.TokenBucket || a == limit.SlidingWindow
				least := int64(scripts)
				if sum.granted < 10*least || sum.late < 5*least || sum.gaveBack < least || sum.refunded < least/2 ||
					sum.owedUnits < least || sum.denied < least || (ramps && sum.ramped < least) {
					t.Errorf("too little happened: the test shows nothing")
				}
			})
		}
	}
}

func (w *leaseWorld) add(o *leaseWorld) {
	w.granted += o.granted
	w.ramped += o.ramped
	w.late += o.late
	w.gaveBack += o.gaveBack
	w.refunded += o.refunded
	w.owedUnits += o.owedUnits
	w.denied += o.denied
}
