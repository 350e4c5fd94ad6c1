package limittest

import (
	"fmt"
	"math/big"
	"slices"
	"sort"
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Model decides by the formulas of the algorithms, from a list of all charges that it has ever admitted. It is slow,
// forgets nothing, and shares no code with the core except for the exported fields of limits. Its time must not step
// back.
//
// It has neither a bound on values nor an alignment to owners, so scripts that are compared with it use neither.
type Model struct {
	tb       testing.TB
	counters map[counterName]*counter
}

// NewModel returns a model without charges. The model fails tb if it is asked about an algorithm that it does not know.
func NewModel(tb testing.TB) *Model { return &Model{tb: tb, counters: map[counterName]*counter{}} }

// counterName identifies a counter: the owner, the value, and the identity of design §3.
type counterName struct {
	owner    limit.Owner
	value    limit.Value
	id, tier string
	shadow   bool
}

// counter holds the history of one tier for one value.
type counter struct {
	tb        testing.TB
	tier      limit.Tier // as at the last charge; period and calendar never change
	spends    []*spend   // in ascending order of time
	missing   *big.Rat   // token_bucket: the units that are missing at missingAt from a full bucket; nil: none
	missingAt int64
	refunded  *big.Rat // token_bucket: all units that were ever given back
	nextFree  *big.Rat // leaky_bucket: when the next charge is admitted; nil: at once
}

// spend is one admitted charge.
type spend struct {
	at    int64
	units int64    // net of refunds; those of a token bucket are in kept
	cost  int64    // units as charged
	over  bool     // used beyond a receipt, and so not admitted by the limit
	kept  *big.Rat // token_bucket: units net of refunds
	tier  limit.Tier

	headroom *big.Rat // token_bucket: how much the bucket could gain before the charge
	refunded *big.Rat // token_bucket: the units that had been given back before the charge
}

// Outcome is a decision of the model.
type Outcome struct {
	Allowed, Never bool
	RetryAt        int64
	Binding        int // the index, in Tiers, of the result that limit.Decision.Binding returns; -1 if it returns nil
	Tiers          []TierOutcome

	receipt []entry
}

// TierOutcome is the outcome of one tier, as in limit.Result.
type TierOutcome struct {
	Admits, Never               bool
	Charged, Remaining, RetryAt int64
	Used, ResetAt, MoreAt       int64
}

type entry struct {
	counter *counter
	spend   *spend
}

// Decide decides all charges. It charges them if it admits them and commit is set.
func (m *Model) Decide(owner limit.Owner, charges []limit.Charge, now int64, commit bool) *Outcome {
	o := &Outcome{Allowed: true}
	type ask struct {
		limit  *limit.Limit
		charge int
		tier   *limit.Tier
		cost   int64
		c      *counter
	}
	var asks []ask
	admits := make([]bool, len(charges))
	for i, ch := range charges {
		admits[i] = true
		for j := range ch.Limit.Tiers {
			t := &ch.Limit.Tiers[j]
			c := m.counter(owner, ch, t)
			out := TierOutcome{Never: ch.Cost > capacity(t), Admits: c.admits(t, now, ch.Cost)}
			if !out.Admits {
				admits[i] = false
				if !out.Never {
					out.RetryAt = c.fits(t, now, ch.Cost)
				}
			}
			if !out.Admits && ch.Limit.Mode == limit.Enforce {
				o.Allowed = false
				o.Never = o.Never || out.Never
				o.RetryAt = max(o.RetryAt, out.RetryAt)
			}
			o.Tiers = append(o.Tiers, out)
			asks = append(asks, ask{ch.Limit, i, t, ch.Cost, c})
		}
	}
	if o.Never || o.Allowed {
		o.RetryAt = 0
	}
	for i, a := range asks {
		if o.Allowed && commit && admits[a.charge] {
			o.Tiers[i].Charged = a.cost
			o.receipt = append(o.receipt, entry{a.c, a.c.charge(a.tier, now, a.cost)})
		}
		o.Tiers[i].Used = a.c.used(a.tier, now)
		o.Tiers[i].Remaining = a.c.remaining(a.tier, now)
		o.Tiers[i].ResetAt = a.c.resetAt(a.tier, now)
		o.Tiers[i].MoreAt = a.c.moreAt(a.tier, now)
	}
	o.Binding = -1
	for i, a := range asks {
		if a.limit.Mode == limit.Enforce && (o.Binding < 0 || o.binds(i, o.Binding, a.tier, asks[o.Binding].tier)) {
			o.Binding = i
		}
	}
	return o
}

// binds reports whether the outcome of tier i, which is t, decides more than that of the earlier tier j, which is u: of
// a denial, the one that can never fit, or else the one that waits longest; otherwise the one with the smallest part of
// its capacity left.
func (o *Outcome) binds(i, j int, t, u *limit.Tier) bool {
	a, b := o.Tiers[i], o.Tiers[j]
	if !o.Allowed {
		return a.Never && !b.Never || !b.Never && a.RetryAt > b.RetryAt
	}
	return big.NewRat(a.Remaining, capacity(t)).Cmp(big.NewRat(b.Remaining, capacity(u))) < 0
}

// counter returns the counter for a tier of a charge, which it adds if it is missing.
func (m *Model) counter(owner limit.Owner, ch limit.Charge, t *limit.Tier) *counter {
	name := counterName{owner: owner, value: ch.Value, id: ch.Limit.ID, shadow: ch.Limit.Mode == limit.Shadow}
	name.tier = fmt.Sprintf("%d %d %d per %q", t.Algorithm, t.Period, t.Buckets, ch.Limit.Per)
	if t.Calendar != nil {
		name.tier += fmt.Sprintf(" %+v", *t.Calendar)
	}
	c := m.counters[name]
	if c == nil {
		c = &counter{tb: m.tb, tier: *t, refunded: new(big.Rat)}
		m.counters[name] = c
	}
	return c
}

// mayBeForgotten reports whether the decision depends on whether a store has forgotten the counter by now. This is so
// if a bucket that was full at its old rate or burst is charged at another one.
func (m *Model) mayBeForgotten(owner limit.Owner, ch limit.Charge, now int64) bool {
	for i := range ch.Limit.Tiers {
		t := &ch.Limit.Tiers[i]
		c := m.counter(owner, ch, t)
		if t.Algorithm != limit.TokenBucket || c.missing == nil || (c.tier.Threshold == t.Threshold &&
			c.tier.Burst == t.Burst) {
			continue
		}
		if now >= c.resetAt(&c.tier, c.missingAt)+limit.MaxSkew.Microseconds() {
			return true
		}
	}
	return false
}

// lacks fails the test because the model does not know the tier's algorithm.
func (c *counter) lacks(t *limit.Tier) {
	c.tb.Helper()
	c.tb.Fatalf("limittest's model lacks %s: add it to model.go and bounds.go", t.Algorithm)
}

func capacity(t *limit.Tier) int64 {
	if t.Algorithm == limit.TokenBucket {
		return t.Burst
	}
	return t.Threshold
}

// admits implements the third column of the table in design §5.
func (c *counter) admits(t *limit.Tier, now, cost int64) bool {
	if cost > capacity(t) {
		return false
	}
	switch t.Algorithm {
	case limit.TokenBucket:
		return c.levelOf(t, now).Cmp(rat(cost)) >= 0
	case limit.LeakyBucket:
		return c.nextFree == nil || c.nextFree.Cmp(rat(now)) <= 0
	default:
		return c.used(t, now)+cost <= t.Threshold
	}
}

// used returns the units that count against the capacity at now.
func (c *counter) used(t *limit.Tier, now int64) int64 {
	period := t.Period.Microseconds()
	switch t.Algorithm {
	case limit.TokenBucket:
		return t.Burst - floor(c.levelOf(t, now)).Int64()
	case limit.LeakyBucket:
		if c.admits(t, now, 1) {
			return 0
		}
		return t.Threshold
	case limit.FixedWindow:
		return c.sum(func(at int64) bool { return floorDiv(at, period) == floorDiv(now, period) })
	case limit.SlidingWindow:
		window := floorDiv(now, period)
		cur := c.sum(func(at int64) bool { return floorDiv(at, period) == window })
		prev := c.sum(func(at int64) bool { return floorDiv(at, period) == window-1 })
		elapsed := now - window*period
		return cur + ceil(new(big.Rat).Mul(rat(prev), big.NewRat(period-elapsed, period)))
	case limit.SlidingBuckets:
		width := bucketWidth(t)
		bucket := floorDiv(now, width)
		return c.sum(func(at int64) bool { return floorDiv(at, width) >= bucket-int64(t.Buckets) })
	case limit.SlidingLog:
		return c.sum(func(at int64) bool { return at > now-period })
	case limit.Quota:
		start, end := calendarPeriod(t.Calendar, now)
		return c.sum(func(at int64) bool { return start <= at && at < end })
	}
	c.lacks(t)
	return 0
}

// bucketWidth returns the n-th part of the period, in whole µs.
func bucketWidth(t *limit.Tier) int64 {
	return ceil(big.NewRat(t.Period.Microseconds(), int64(t.Buckets)))
}

func (c *counter) sum(counts func(at int64) bool) int64 {
	total := int64(0)
	for _, s := range c.spends {
		if counts(s.at) {
			total += s.units
		}
	}
	return total
}

// levelOf returns the level of the bucket at now, under the tier's rate and burst.
func (c *counter) levelOf(t *limit.Tier, now int64) *big.Rat {
	if c.missing == nil {
		return rat(t.Burst)
	}
	level := new(big.Rat).Sub(rat(t.Burst), c.missing)
	if c.tier.Threshold != t.Threshold {
		// What is missing beyond the present burst refills at the faster rate.
		if level.Sign() < 0 && t.Threshold < c.tier.Threshold {
			level.Mul(level, big.NewRat(t.Threshold, c.tier.Threshold))
		}
		// The level is rounded down to what the new rate can count: the largest fraction of a unit with which the
		// refill in each µs is a whole number. At most 2^52 of these fractions are missing beyond the burst.
		den := new(big.Rat).SetInt(new(big.Rat).Quo(rat(t.Threshold), rat(t.Period.Microseconds())).Denom())
		level.SetInt(floor(level.Mul(level, den)))
		if lowest := rat(-1 << 52); level.Cmp(lowest) < 0 {
			level = lowest
		}
		level.Quo(level, den)
	}
	level.Add(level, new(big.Rat).Mul(rate(t), rat(now-c.missingAt)))
	return least(level, rat(t.Burst))
}

// fits returns the first time after now at which a cost is admitted that is denied now, but not for ever. With all
// algorithms, the used units only decrease while time passes, so a binary search finds the time.
func (c *counter) fits(t *limit.Tier, now, cost int64) int64 {
	horizon := 2*t.Period.Microseconds() + 1
	switch t.Algorithm {
	case limit.TokenBucket:
		missing := new(big.Rat).Sub(rat(t.Burst), c.levelOf(t, now))
		horizon = ceil(missing.Quo(missing, rate(t))) + 1
	case limit.LeakyBucket:
		horizon = ceil(c.nextFree) - now
	case limit.SlidingBuckets:
		horizon = int64(t.Buckets+1) * bucketWidth(t)
	case limit.Quota:
		_, end := calendarPeriod(t.Calendar, now)
		return end
	}
	return now + int64(sort.Search(int(horizon), func(wait int) bool { return c.admits(t, now+int64(wait), cost) }))
}

// charge charges the cost.
func (c *counter) charge(t *limit.Tier, now, cost int64) *spend {
	s := &spend{at: now, units: cost, cost: cost, tier: *t}
	switch t.Algorithm {
	case limit.TokenBucket:
		missing := new(big.Rat).Sub(rat(t.Burst), c.levelOf(t, now))
		s.kept, s.headroom, s.refunded = rat(cost), missing, new(big.Rat).Set(c.refunded)
		c.missing, c.missingAt = new(big.Rat).Add(missing, rat(cost)), now
	case limit.LeakyBucket:
		c.nextFree = c.nextFreeAfter(s, cost)
	}
	c.tier = *t
	c.spends = append(c.spends, s)
	return s
}

// chargeMore charges what was used beyond a receipt of the tier, and returns how much of it the counter can hold.
func (c *counter) chargeMore(t *limit.Tier, now, units int64) int64 {
	if t.Algorithm == limit.SlidingWindow { // whose count has a bound, because it is multiplied
		period := t.Period.Microseconds()
		present := c.sum(func(at int64) bool { return floorDiv(at, period) == floorDiv(now, period) })
		units = min(units, max(0, limit.MaxSlidingUnits-present))
	}
	before, beyond := c.tier, new(big.Rat)
	if t.Algorithm == limit.TokenBucket && c.missing != nil && t.Threshold < before.Threshold {
		beyond.Neg(c.levelOf(t, now))
	}
	tier := *t
	c.charge(&tier, now, units).over = true
	if beyond.Sign() > 0 {
		// More is missing than the burst, by the faster rate of another limit, at which it goes on to refill. It is
		// written by this rate, read by the tier's, and written again, each time rounded up.
		faster := big.NewRat(before.Threshold, t.Threshold)
		slower := new(big.Rat).Inv(faster)
		missing := roundedUp(beyond.Mul(beyond, faster), &before)
		missing.Add(missing, rat(units))
		missing = roundedUp(missing.Mul(missing, slower), t)
		missing = roundedUp(missing.Mul(missing, faster), &before)
		c.missing, c.tier = missing.Add(missing, rat(t.Burst)), before
	}
	return units
}

// roundedUp rounds units up to what the tier's rate can count, see levelOf.
func roundedUp(units *big.Rat, t *limit.Tier) *big.Rat {
	den := new(big.Rat).SetInt(new(big.Rat).Quo(rat(t.Threshold), rat(t.Period.Microseconds())).Denom())
	up := new(big.Rat).SetInt(floor(units.Neg(units.Mul(units, den))))
	return up.Quo(up.Neg(up), den)
}

// nextFreeAfter returns when the next charge is admitted after s, if s had that many units.
func (c *counter) nextFreeAfter(s *spend, units int64) *big.Rat {
	return new(big.Rat).Add(rat(s.at), new(big.Rat).Quo(rat(units), rate(&s.tier)))
}

// remaining returns the largest cost that is admitted now.
func (c *counter) remaining(t *limit.Tier, now int64) int64 {
	return max(0, capacity(t)-c.used(t, now))
}

// moreAt returns the first time at which more remains than now. If nothing is used, it is the first time at which
// anything would remain if the whole capacity were charged now. What remains only grows while time passes, so a binary
// search finds the time.
func (c *counter) moreAt(t *limit.Tier, now int64) int64 {
	if t.Algorithm == limit.FixedWindow || t.Algorithm == limit.Quota {
		return c.resetAt(t, now)
	}
	if c.used(t, now) == 0 {
		charged := *c
		charged.spends = slices.Clone(c.spends)
		charged.charge(t, now, capacity(t))
		c = &charged
	}
	left, horizon := c.remaining(t, now), int64(1)
	for c.remaining(t, now+horizon) <= left {
		horizon *= 2
	}
	return now + int64(sort.Search(int(horizon), func(wait int) bool { return c.remaining(t, now+int64(wait)) > left }))
}

// resetAt returns when the counter will be like an unused one. A window ends at its edge even if it is empty.
func (c *counter) resetAt(t *limit.Tier, now int64) int64 {
	period := t.Period.Microseconds()
	switch t.Algorithm {
	case limit.FixedWindow:
		return (floorDiv(now, period) + 1) * period
	case limit.SlidingWindow:
		window := floorDiv(now, period)
		if c.sum(func(at int64) bool { return floorDiv(at, period) == window }) > 0 {
			return (window + 2) * period
		}
		return (window + 1) * period
	case limit.TokenBucket:
		missing := new(big.Rat).Sub(rat(t.Burst), c.levelOf(t, now))
		return now + ceil(missing.Quo(missing, rate(t)))
	case limit.LeakyBucket:
		if c.nextFree == nil {
			return now
		}
		return max(now, ceil(c.nextFree))
	case limit.Quota:
		_, end := calendarPeriod(t.Calendar, now)
		return end
	case limit.SlidingLog, limit.SlidingBuckets:
		last := now
		for _, s := range c.spends {
			if s.units != 0 {
				last = max(last, entry{c, s}.end())
			}
		}
		return last
	}
	c.lacks(t)
	return 0
}

// Refund gives back at most units of each counter that the outcome charged; 0 selects all. Later than
// limit.MaxReceiptAge after the charge it gives back nothing.
func (m *Model) Refund(o *Outcome, units, now int64) []int64 {
	out := make([]int64, len(o.receipt))
	for i, e := range o.receipt {
		if now >= e.spend.at+limit.MaxReceiptAge.Microseconds() {
			continue
		}
		out[i] = e.refund(units, now)
	}
	return out
}

// Settle corrects what the outcome charged to what was used. Units beyond are charged now, or are more than the counter
// can hold.
func (m *Model) Settle(o *Outcome, used []int64, now int64) (returned, charged, uncharged []int64) {
	n := len(o.receipt)
	returned, charged, uncharged = make([]int64, n), make([]int64, n), make([]int64, n)
	for i, e := range o.receipt {
		switch more := used[i] - e.spend.cost; {
		case more > 0:
			charged[i] = e.counter.chargeMore(&e.spend.tier, now, more)
			uncharged[i] = more - charged[i]
		case more < 0:
			returned[i] = e.refund(-more, now)
		}
	}
	return returned, charged, uncharged
}

func (e entry) refund(units, now int64) int64 {
	c, s, t := e.counter, e.spend, &e.spend.tier
	if units == 0 || units > s.units {
		units = s.units
	}
	if now >= e.end() {
		return 0
	}
	switch t.Algorithm {
	case limit.TokenBucket:
		return e.refundBucket(units, now)
	case limit.LeakyBucket: // only the last charge can be undone: the waits after the others are over
		if c.nextFree.Cmp(c.nextFreeAfter(s, s.units)) != 0 {
			return 0
		}
		c.nextFree = c.nextFreeAfter(s, s.units-units)
	}
	s.units -= units
	return units
}

// end returns the time at which the window of the charge ends.
func (e entry) end() int64 {
	s, t := e.spend, &e.spend.tier
	period := t.Period.Microseconds()
	switch t.Algorithm {
	case limit.FixedWindow:
		return (floorDiv(s.at, period) + 1) * period
	case limit.SlidingWindow:
		return (floorDiv(s.at, period) + 2) * period
	case limit.SlidingBuckets:
		return (floorDiv(s.at, bucketWidth(t)) + int64(t.Buckets) + 1) * bucketWidth(t)
	case limit.SlidingLog:
		return s.at + period
	case limit.LeakyBucket:
		return floor(e.counter.nextFreeAfter(s, s.units)).Int64() + 1
	case limit.Quota:
		_, end := calendarPeriod(t.Calendar, s.at)
		return end
	case limit.TokenBucket:
		missing := new(big.Rat).Add(s.headroom, rat(s.units))
		return s.at + ceil(missing.Quo(missing, rate(t)))
	}
	e.counter.lacks(t)
	return 0
}

// refundBucket gives back the units that the bucket would hold in addition if there had been no charge. At the time of
// the charge it could have gained headroom units. What it has gained since then beyond that, by time and by other
// refunds, would have overflowed.
func (e entry) refundBucket(units, now int64) int64 {
	c, s, t := e.counter, e.spend, &e.spend.tier
	if c.tier.Threshold != t.Threshold {
		return 0
	}
	gained := new(big.Rat).Mul(rate(t), rat(now-s.at))
	gained.Add(gained, new(big.Rat).Sub(c.refunded, s.refunded))
	lost := gained.Sub(gained, s.headroom)
	if lost.Sign() < 0 {
		lost.SetInt64(0)
	}
	level := c.levelOf(t, now)
	give := new(big.Rat).Sub(rat(units), lost)
	give = least(give, new(big.Rat).Sub(rat(t.Burst), level))
	if give.Sign() <= 0 {
		return 0
	}
	c.missing, c.missingAt = new(big.Rat).Sub(rat(t.Burst), level.Add(level, give)), now
	c.refunded.Add(c.refunded, give)
	s.kept.Sub(s.kept, give)
	return floor(give).Int64()
}

func rat(v int64) *big.Rat { return new(big.Rat).SetInt64(v) }

// rate returns the units per µs.
func rate(t *limit.Tier) *big.Rat { return big.NewRat(t.Threshold, t.Period.Microseconds()) }

func least(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

func floor(r *big.Rat) *big.Int {
	return new(big.Int).Div(r.Num(),
		r.Denom())
} // Div rounds down, because the denominator is positive

func ceil(r *big.Rat) int64 { return -floor(new(big.Rat).Neg(r)).Int64() }

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
