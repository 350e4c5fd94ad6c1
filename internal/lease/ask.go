package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// errAnswer is a store's answer that cannot be: nothing is admitted for it.
var errAnswer = errors.New("the store's answer makes no sense")

// ask is one call on its way, reusable.
type ask struct {
	req     limit.Request
	reply   limit.Decision
	tiers   []asked
	flights []*counter
}

// asked is one tier of it.
type asked struct {
	k      *counter
	tier   *limit.Tier // as it was asked about: the plan may change meanwhile
	charge int         // of the request
	had    int64       // units that were in hand and are set aside for this request
	back   int64       // units of an ended lease, which the call gives back
	need   int64       // units that the call asks for
	got    int64       // of these, charged,
	gotAt  int64       // in this window
	own    int64       // units that there are for this request, after the call
	at     int64       // the window of had, and its end
	until  int64
	leased bool // whether what comes goes into the hand
	never  bool

	refused bool // what rode back was not taken: the store denied
}

// remote decides the request with at most one call of its own, after at most one wait for another's.
func (s *Store) remote(ctx context.Context, hash uint64, sh *shard, req *limit.Request, now time.Time, d *limit.Decision) error {
	if err := req.Check(); err != nil {
		return err
	}
	at, since := clock.At(now), s.c.Clock()
	a := s.asks.Get().(*ask)
	defer s.release(a)
	sh.mu.Lock()
	var h *holder
	if len(req.Charges) > 0 && len(req.Leases) == 0 {
		h = s.take(sh, hash, req, at)
	}
	if h == nil {
		sh.stats.Calls++
		sh.mu.Unlock()
		return s.c.Store.Decide(ctx, req, now, d) // no room to remember anything, or nothing to
	}
	h.meet(s, sh, req, a)
	if f := h.inFlight(at, req, a); f != nil {
		sh.stats.Waited++
		sh.mu.Unlock()
		select {
		case <-f.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if f.err != nil && !f.left { // to ask again, one after the other, would take longer than a decision may
			return f.err
		}
		woken := s.c.Clock()
		now, at = now.Add(woken.Round(0).Sub(since.Round(0))), at.Advance(clock.At(since), clock.At(woken))
		sh.mu.Lock()
		if h = s.take(sh, hash, req, at); h == nil { // forgotten meanwhile
			sh.stats.Calls++
			sh.mu.Unlock()
			return s.c.Store.Decide(ctx, req, now, d)
		}
		if h.local(s, sh, req, at, d) {
			sh.mu.Unlock()
			return nil
		}
		h.meet(s, sh, req, a)
	}
	for again := true; ; again = false {
		t := h.clock.At(at)
		asOf := t - h.clock.Behind(at)
		h.prepare(s, t, req, a)
		sh.stats.Calls++
		sh.mu.Unlock()

		sent := s.c.Clock()
		err := s.c.Store.Decide(ctx, &a.req, now, &a.reply)
		back := s.c.Clock()
		received := at.Advance(clock.At(sent), clock.At(back))

		sh.mu.Lock()
		if err == nil {
			err = a.check()
		}
		s.heard(ctx, a, err)
		arrived := h.clock.At(received)
		if err != nil {
			h.setBack(sh, arrived, a)
			a.land(err, ownAffair(ctx, err))
			sh.mu.Unlock()
			return err
		}
		h.receive(sh, s, asOf, arrived, a)
		over := again && h.ranOut(arrived, req, a)
		h.answer(s, sh, req, arrived, a, d)
		a.land(nil, false)
		if !over || d.Allowed {
			s.leaseAhead(h, sh, req, now)
			sh.mu.Unlock()
			return nil
		}
		now, at = now.Add(back.Round(0).Sub(sent.Round(0))), received
		h.meet(s, sh, req, a)
	}
}

// ranOut reports whether all that keeps the request from being admitted is that leases ended while the call was away, which is
// no reason to deny it. A request that an exact limit was charged for is not asked about twice.
func (h *holder) ranOut(t int64, req *limit.Request, a *ask) bool {
	if !a.reply.Allowed {
		return false
	}
	short := false
	for i := range a.tiers {
		x := &a.tiers[i]
		if !x.leased {
			return false
		}
		short = short || x.had > 0 && x.own < x.had && x.own+x.k.free(t) < req.Charges[x.charge].Cost
	}
	return short
}

// meet finds the counters of the request, and makes those that are new. A counter whose limit has changed gives its lease
// back with the call, and what was denied is forgotten.
func (h *holder) meet(s *Store, sh *shard, req *limit.Request, a *ask) {
	a.tiers = a.tiers[:0]
	for i := range req.Charges {
		charge := &req.Charges[i]
		for j := range charge.Limit.Tiers {
			t := &charge.Limit.Tiers[j]
			k := h.counter(t, charge.Value, len(a.tiers))
			if k == nil {
				k = h.add(t, charge.Value)
			}
			if k.tier != t {
				sh.stats.Lost += k.become(t)
			}
			leased := s.leases(charge.Limit) && !t.Leasing().None
			a.tiers = append(a.tiers, asked{k: k, tier: t, charge: i, leased: leased, never: charge.Cost > t.Capacity()})
		}
	}
}

// become makes the counter one of a tier of the same identity, as a reload of the plan makes it. It returns how many units are
// lost by that.
func (k *counter) become(t *limit.Tier) (lost int64) {
	if !alike(k.tier, t) {
		k.until = 0 // the units ride back
		k.denial = denial{}
	}
	if moved(k.tier, t) {
		lost = k.leave()
	}
	k.lease.Rebind(t)
	k.tier, k.far = t, isFar(t)
	return lost
}

// alike reports whether what is known of one tier holds for another of the same identity.
func alike(a, b *limit.Tier) bool {
	return a == b || a.Threshold == b.Threshold && a.Capacity() == b.Capacity() && a.Limit().Exact == b.Limit().Exact && !moved(a, b)
}

// moved reports whether two tiers of the same identity are counted in different places.
func moved(a, b *limit.Tier) bool { return a.Limit().Home != b.Limit().Home }

// leave forgets what was leased where the counter is not any more: it must never come back to where it was not charged.
func (k *counter) leave() (lost int64) {
	lost = k.lease.Units
	k.lease, k.until, k.locked, k.denial, k.supply = limit.Leftover{}, 0, 0, denial{}, supply{}
	return lost
}

// inFlight is a call that may bring what the request lacks, nil if there is none.
func (h *holder) inFlight(now clock.Instant, req *limit.Request, a *ask) *flight {
	t := h.clock.At(now)
	n := 0
	for i := range req.Charges {
		for range req.Charges[i].Limit.Tiers {
			x := &a.tiers[n]
			n++
			if f := x.k.flight; f != nil && x.leased && x.k.free(t) < req.Charges[i].Cost {
				return f
			}
		}
	}
	return nil
}

// prepare sets aside what is in hand for the request and writes the call for the rest.
func (h *holder) prepare(s *Store, t int64, req *limit.Request, a *ask) {
	a.req.Owner, a.req.Charges, a.req.Leases, a.flights = req.Owner, req.Charges, a.req.Leases[:0], a.flights[:0]
	n, plain, mustFit := 0, true, false
	for i := range a.tiers { // what such a limit is charged cannot be kept for another request
		mustFit = mustFit || !a.tiers[i].leased
	}
	for i := range req.Charges {
		cost := req.Charges[i].Cost
		for range req.Charges[i].Limit.Tiers {
			x := &a.tiers[n]
			n++
			k := x.k
			k.demand.add(t, cost)
			ahead := limit.LeaseRequest{Need: cost}
			switch {
			case !x.leased: // it was leased before a change of the plan
				x.at, x.until = k.lease.At, k.until
				k.rideBack(x, &ahead)
			case !x.never:
				k.prepare(h, s, t, cost, mustFit, x, &ahead)
			}
			x.need = ahead.Need
			plain = plain && ahead == (limit.LeaseRequest{Need: cost})
			a.req.Leases = append(a.req.Leases, ahead)
		}
	}
	if plain { // what stores are quickest at
		a.req.Leases = a.req.Leases[:0]
		return
	}
	var f *flight
	for i := range a.tiers {
		if x, ahead := &a.tiers[i], &a.req.Leases[i]; x.leased && x.k.flight == nil && (ahead.Need > 0 || ahead.Largest() > 0) {
			if f == nil {
				f = &flight{done: make(chan struct{})}
			}
			x.k.flight = f
			a.flights = append(a.flights, x.k)
		}
	}
}

// prepare is holder.prepare for one counter that is leased.
func (k *counter) prepare(h *holder, s *Store, t, cost int64, mustFit bool, x *asked, ahead *limit.LeaseRequest) {
	free := k.free(t)
	x.had, x.at, x.until = min(free, cost), k.lease.At, k.until
	ended := t >= k.until
	if hasStamps(k.tier) && free < cost { // the lease's units have one stamp: what is left rides back
		x.had, ended = 0, true
	}
	k.lease.Units -= x.had
	if ended {
		k.rideBack(x, ahead)
	}
	ahead.Need = cost - x.had
	if k.flight != nil || k.lease.Other() || s.isSilent(k) {
		return
	}
	v := k.view(h, s, t, cost, ahead.Need)
	v.MustFit = mustFit
	need := ahead.Need
	s.c.Rule.Ask(&v, ahead)
	if ahead.Need != need && (mustFit || !ahead.Ramp || ahead.Need != 0) {
		ahead.Need = need
	}
	if hasStamps(k.tier) && ahead.Largest() > 0 {
		ahead.Life = s.stampLife(k.tier)
	}
}

// rideBack gives what is in hand back with the call.
func (k *counter) rideBack(x *asked, ahead *limit.LeaseRequest) {
	if k.lease.Units == 0 {
		return
	}
	if !k.lease.Other() {
		x.back = k.lease.Units
		ahead.Correction, ahead.CorrectionAt = -x.back, k.lease.At
	}
	k.lease.Units, k.locked = 0, 0
}

// stampLife is for how long a sliding log or buckets are leased, µs.
func (s *Store) stampLife(t *limit.Tier) int64 {
	return min(t.Period.Microseconds()/stampLives, s.life, maxStampLife)
}

const (
	stampLives   = 20        // of a period: for how long a sliding log or buckets are leased,
	maxStampLife = 1_000_000 // µs
)

// hasSlots reports whether units can only be spent later where they were charged as a lease.
func hasSlots(t *limit.Tier) bool { return t.Leasing().Apart }

func hasStamps(t *limit.Tier) bool {
	l := t.Leasing()
	return !l.None && !l.Ends
}

// check says whether the answer can be one to the question.
func (a *ask) check() error {
	d := &a.reply
	if len(d.Results) != len(a.tiers) {
		return fmt.Errorf("%w: %d results for %d tiers", errAnswer, len(d.Results), len(a.tiers))
	}
	if !sane(d.Now) {
		return fmt.Errorf("%w: its time is %d", errAnswer, d.Now)
	}
	for i := range d.Results {
		r, g, need, most := &d.Results[i], d.Lease(i), a.tiers[i].need, int64(0)
		if len(a.req.Leases) > 0 {
			most = a.req.Leases[i].Largest()
		}
		if !d.Allowed {
			most += need // a store may lease what was needed, and deny
		}
		switch {
		case r.Tier != a.tiers[i].tier || r.Cost != a.req.Charges[a.tiers[i].charge].Cost || r.Shadow() != (r.Limit().Mode == limit.Shadow):
			return fmt.Errorf("%w: result %d is about something else", errAnswer, i)
		case !sane(g.Until) || !sane(g.At) || !sane(r.RetryAt):
			return fmt.Errorf("%w: a lease of limit %s at %d until %d, or a retry at %d", errAnswer, r.Limit().ID, g.At, g.Until, r.RetryAt)
		case g.Units < 0 || g.Units > most || g.Upfront < 0 || g.Upfront > g.Units:
			return fmt.Errorf("%w: %d units, %d of them at once, are leased of limit %s, at most %d were asked for", errAnswer,
				g.Units, g.Upfront, r.Limit().ID, most)
		case d.Charges(i) && r.Charged != need:
			return fmt.Errorf("%w: %d units of limit %s are charged, want %d", errAnswer, r.Charged, r.Limit().ID, need)
		}
	}
	return nil
}

// sane reports whether a time, µs since 1970, is one that can be counted with.
func sane(at int64) bool { return -latest <= at && at <= latest }

const latest = 1 << 53

// setBack puts what was set aside back after a call that failed. What rode back with it may have arrived: it is lost.
func (h *holder) setBack(sh *shard, t int64, a *ask) {
	for i := range a.tiers {
		x := &a.tiers[i]
		x.restore(sh, x.had, t)
		sh.stats.Lost += x.back
	}
}

// receive takes what was granted into the hand; what there is for the request itself is set aside.
func (h *holder) receive(sh *shard, s *Store, sent, t int64, a *ask) {
	d := &a.reply
	h.lag = d.Now - sent
	for i := range d.Results {
		x, r, g := &a.tiers[i], &d.Results[i], d.Lease(i)
		k, committed := x.k, d.Charges(i)
		x.settle(sh, committed || g.Units > 0)
		x.gather(sh, t, committed, g.At, a.ahead(i).Largest() > 0)
		if r.Unasked && k.lease.Known() { // what is known of it stays
			continue
		}
		if moved(k.tier, x.tier) {
			sh.stats.Lost += g.Units
			continue
		}
		x.take(s, sh, sent, t, d, i)
		same := alike(k.tier, x.tier)
		if k.lease.Rebind(k.tier); !same { // the plan has changed meanwhile: the units ride back with the next call
			k.until = min(k.until, t)
		}
		if x.leased {
			k.supply.note(h.owner, t, d.Now, r, d.Leased(i), max(x.need, 1))
		}
		if x.leased && same && !r.Never {
			h.learn(sh, s, t, a, i)
		}
	}
}

// gather counts what there is for the request: what was set aside, if its window is still open, and what was charged now.
func (x *asked) gather(sh *shard, t int64, committed bool, at int64, leases bool) {
	x.own = x.had
	if x.had > 0 && (t >= x.until || x.need > 0 && at != 0 && at != x.at) {
		sh.stats.Lost += x.had // the window has ended meanwhile
		x.own = 0
	}
	if !committed {
		return
	}
	x.got, x.gotAt = x.need, at
	x.own += x.got
	if hasSlots(x.tier) && !leases {
		x.gotAt = 0 // charged, but not as a lease is: it cannot be spent later
	}
}

// learn remembers what result i denies, or that it admits.
func (h *holder) learn(sh *shard, s *Store, t int64, a *ask, i int) {
	d, x := &a.reply, &a.tiers[i]
	switch r, g := &d.Results[i], d.Lease(i); {
	case !r.Admits:
		x.k.deny(s, h, t, r.Cost, r.RetryAt, d.Now)
	case a.ahead(i).Ramp && g.Units == 0 && x.need == 0 && x.own < r.Cost: // nothing comes free in this slot that others have not
		x.k.deny(s, h, t, r.Cost, g.Until, d.Now)
	case x.need > 0:
		x.k.admitted(sh, d.Now)
	}
}

// settle is what became of what rode back with the call. A store that leases on a denial has taken it, too.
func (x *asked) settle(sh *shard, taken bool) {
	k := x.k
	x.refused = x.back > 0 && !taken
	switch {
	case x.back == 0:
	case taken:
		sh.stats.Returned += x.back
	case k.lease.Units == 0 && k.lease.At == x.at && k.until == x.until && !moved(k.tier, x.tier): // a denial changed nothing
		k.lease.Units = x.back
	default: // the plan has changed meanwhile: the next call would give them back to a window or home that was not charged
		sh.stats.Lost += x.back
	}
}

// said is what the store said of result i. A denial was evaluated without what rode back, and changed nothing: the store counts
// that still, and where it is in hand again it is taken off what is used there.
func (x *asked) said(d *limit.Decision, i int) limit.Leftover {
	l := d.Leftover(i)
	if x.refused {
		l.AddUsed(x.back)
	}
	return l
}

var nothing limit.LeaseRequest

func (a *ask) ahead(i int) *limit.LeaseRequest {
	if i < len(a.req.Leases) {
		return &a.req.Leases[i]
	}
	return &nothing
}

// take puts what result i was granted into the hand. Where that is nothing, what is in hand stays as it is.
func (x *asked) take(s *Store, sh *shard, sent, t int64, d *limit.Decision, i int) {
	k := x.k
	g, said, was := d.Lease(i), x.said(d, i), k.lease
	if k.lease = said; g.At == 0 || !x.leased || g.Units == 0 && was.Units > 0 {
		k.lease.Keep(was.Units, was.At)
		return
	}
	left, locked := int64(0), int64(0)
	switch {
	case was.Units == 0:
	case t < k.until && was.At == g.At:
		left, locked = was.Units, k.lockedAt(t)
	default:
		sh.stats.Lost += was.Units
	}
	life := min(g.Until-d.Now, s.lifeOf(k))
	life -= life / driftPart
	if sent+life <= t { // a window that ended before the answer came
		sh.stats.Lost += g.Units
		g.Units, g.Upfront = 0, 0
	}
	k.lease.Keep(left+g.Units, g.At)
	if left == 0 {
		k.until = t
	}
	if g.Units == 0 {
		return
	}
	k.until = max(k.until, sent+life)
	// A ramp begins after the store's own time, and ends with the slot, as those do that it is added to.
	k.locked, k.from, k.to = locked+g.Units-g.Upfront, t, max(t+g.Until-d.Now, t+1)
	if k.locked > 0 {
		step := x.tier.Leasing().Step
		k.from, k.to = k.from+step, k.to+step
	}
}

const driftPart = 1000 // by so much of a lease's life two clocks may drift apart

// answer writes the decision over what there is for the request, and charges it.
func (h *holder) answer(s *Store, sh *shard, req *limit.Request, t int64, a *ask, d *limit.Decision) {
	r := &a.reply
	e := d.BeginLeased(req, r.Now, r.ID)
	for i := range a.tiers {
		x, res := &a.tiers[i], &r.Results[i]
		l := x.k.lease
		switch {
		case x.need > 0:
			l = x.said(r, i)
		case x.own > 0: // another call may have brought another lease meanwhile: a refund must find the units where they are
			l.Keep(l.Units, x.at)
		}
		l.Rebind(x.tier)
		l.Units = x.k.lease.Units + x.own
		retryAt := int64(0)
		switch {
		case !res.Admits:
			retryAt = max(res.RetryAt, 1)
		case !r.Charges(i) && x.own+x.need >= res.Cost: // another limit denied: what the store would have charged of this one fits
		case x.own < res.Cost && x.free(t) < res.Cost-x.own:
			retryAt = x.k.later(t, res.Cost-x.own, r.Now)
		}
		e.FromLeftover(x.charge, &l, retryAt)
	}
	if !d.Allowed {
		d.ID = limit.ReceiptID{}
	} else if d.ID == (limit.ReceiptID{}) {
		d.ID = s.nextID(sh, h.hash)
	}
	for i := range a.tiers {
		x := &a.tiers[i]
		if d.Charges(i) {
			x.own -= e.ChargeLeftover(i)
		}
		// Below zero it takes from the hand. Above, the request was denied by another limit, or does not commit this one: what
		// it had goes back to the hand. (An exact limit has none: the store charged it only if it admitted all.)
		if x.own != 0 && x.leased {
			x.restore(sh, x.own, t)
		}
	}
}

// free is how many units in hand may be spent for the request.
func (x *asked) free(t int64) int64 {
	if moved(x.k.tier, x.tier) { // they were charged elsewhere, and could not be refunded there
		return 0
	}
	return x.k.free(t)
}

// restore puts units that were set aside, and those that the call charged, back into the hand, where their window is still
// that of the lease. Below zero it takes them.
func (x *asked) restore(sh *shard, units, t int64) {
	k := x.k
	if units < 0 {
		k.lease.Units += units
		return
	}
	got := min(x.got, units)
	switch had := units - got; {
	case had == 0:
	case t >= x.until || k.lease.At != x.at || !alike(k.tier, x.tier) || t >= k.until && k.lease.Units > 0:
		sh.stats.Lost += had
	default:
		k.lease.Units, k.until = k.lease.Units+had, max(k.until, x.until)
	}
	switch {
	case got == 0:
	case x.gotAt == 0 || k.lease.At != x.gotAt || moved(k.tier, x.tier):
		sh.stats.Lost += got
	default: // what was charged now, in a window that is open, rides back with the next call if it cannot be spent here
		k.lease.Units, k.until = k.lease.Units+got, max(k.until, t)
	}
}

// deny remembers what the store did not admit, for as long as the rule says.
func (k *counter) deny(s *Store, h *holder, t, cost, retryAt, now int64) {
	n := &k.denial
	if n.covers(cost, t) {
		return
	}
	fits := max(retryAt-now, 0)
	k.supply.dry(k.supply.end, now)
	v := k.view(h, s, t, cost, cost)
	again := s.c.Rule.Again(&v, time.Duration(fits)*time.Microsecond, n.times)
	until := min(t+max(again.Microseconds(), 0), retryAt-h.lag) // not after the store's own time, however long the reply took
	*n = denial{cost: cost, until: until, at: retryAt, times: n.times + 1}
}

// admitted forgets the denials: what they waited for has come. If it came before its time, they were early.
func (k *counter) admitted(sh *shard, now int64) {
	if k.denial.count > 0 && now < k.denial.at {
		sh.stats.Early += k.denial.count
	}
	k.denial = denial{}
}

// later is when, by the store's clock, what is in hand may suffice for the cost.
func (k *counter) later(t, cost, now int64) int64 {
	if at := k.fitsAt(t, cost); at > t {
		return now + (at - t)
	}
	return now + max(k.until-t, 1000)
}

// land ends the call for those who wait for it. left says that the error is the affair of its own request alone: that was
// given up, or the store answered that it cannot be decided.
func (a *ask) land(err error, left bool) {
	var f *flight
	for _, k := range a.flights {
		f, k.flight = k.flight, nil
	}
	if f != nil {
		f.err, f.left = err, left
		close(f.done)
	}
}

// ownAffair reports whether a call that failed says nothing to those who waited for it. That others change the counters all the
// time does: to ask for them, too, each by itself, would make it worse.
func ownAffair(ctx context.Context, err error) bool {
	return ctx.Err() != nil || limit.Answered(err) && !errors.Is(err, limit.ErrContended)
}

func (s *Store) release(a *ask) {
	clear(a.tiers)
	clear(a.flights)
	a.req.Owner, a.req.Charges = limit.Owner{}, nil
	s.asks.Put(a)
}
