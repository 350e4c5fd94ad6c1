package redis

import "github.com/sluicelimits/sluice/internal/limit"

// algorithm is how one algorithm is counted in Redis. decide.lua and refund.lua have a branch for each, by its number; what
// they and the scripts of shapes are asked, and how their states are read, is here. To add an algorithm, add an entry to
// algorithms and a branch to both scripts.
type algorithm struct {
	width int // doubles of a record that are its state

	// inSet says that what was charged lies in a sorted set of its own, and that the record only has its sum. There is no
	// script of a shape for such an algorithm.
	inSet bool

	// marked says that a pack may have marks for the counter: what was refunded, is leased, and may be given back late.
	marked bool

	// rate is what the state is counted in, which a change of the rate changes; nil: nothing.
	rate func(t *limit.Tier) int64

	// ask returns the seven numbers that decide.lua gets, where so many units must fit: need is the same in grains, or 0 if the
	// cost never fits.
	ask func(q *question, c *limit.Charge, t *limit.Tier, p limit.Params, units, need int64) [7]int64

	// correction returns what decide.lua corrects the counter by, and where the owner's slots begin; nil: as asked, and 0.
	correction func(q *question, t *limit.Tier, ask *limit.LeaseRequest) (correction, offset int64)

	// params names the numbers that a script of a shape gets, shape writes them, and lua evaluates the counter by them, see
	// shapeScript. # stands for the tier's number; a, u, m are the state (m where it has three numbers), b, v, w the state
	// after the charge, f the time from which it is no different from unused.
	params []string
	shape  func(q *question, t *limit.Tier, p limit.Params, cost, need int64)
	lua    string

	// state is the core's state for a record of these numbers: the third one is rate, if there is one and the counter was used.
	state func(a, b, c int64) limit.State

	// refund returns what refund.lua gets of an entry beside what it gets of each; nil: the period.
	refund func(t limit.Params, e *limit.ReceiptEntry, p limit.EntryParams) [8]int64
}

// algorithms has one entry for each algorithm. It is one of the few places that index by algorithm: how Redis counts by
// one is the affair of this store and its scripts, and nothing that package limit should know.
var algorithms = [...]algorithm{
	limit.TokenBucket: {
		width: 2, marked: true,
		rate: func(t *limit.Tier) int64 { return t.Threshold },
		ask: func(_ *question, _ *limit.Charge, t *limit.Tier, p limit.Params, _, need int64) [7]int64 {
			return [7]int64{need, p.Num, p.Den, p.Full, p.SlotLength, t.Threshold, p.Period}
		},
		correction: func(q *question, t *limit.Tier, ask *limit.LeaseRequest) (int64, int64) {
			return ask.Correction, t.Params(q.req.Owner).SlotOffset
		},
		params: []string{"need", "num", "full"},
		shape: func(q *question, _ *limit.Tier, p limit.Params, _, need int64) {
			q.add(need, p.Num, p.Full)
		},
		lua: `
if a# > far then return 0 end
local b#, v# = a#, u#
if now > b# then
  v# = v# + (now - b#) * num# -- exact below full; beyond, it is cut
  b# = now
end
if v# > full# or a# == 0 then v# = full# end
local ok# = v# >= need#
v# = v# - need#
local f# = b# + (full# - v#) / num#
`,
		state: func(a, b, c int64) limit.State { return limit.TokenBucketState{AsOf: a, Level: b, Rate: c}.State() },
		refund: func(t limit.Params, _ *limit.ReceiptEntry, p limit.EntryParams) [8]int64 {
			return [8]int64{t.Num, t.Den, t.Full, t.FullIn, p.Headroom, p.Refunded % era, p.Refunded / era, p.SlotEnd}
		},
	},
	limit.FixedWindow: {
		width: 3, ask: askWindow,
		params: []string{"cost", "threshold", "period", "offset"},
		shape: func(q *question, t *limit.Tier, p limit.Params, cost, _ int64) {
			q.add(cost, t.Threshold, p.Period, p.Offset)
		},
		lua: `
if a# > far or u# < 0 or m# < 0 then return 0 end
local b#, v#, w# = fmod(now - offset#, period#), 0, 0
if b# < 0 then b# = b# + period# end
b# = now - b#
if a# ~= b# and a# > b# - 2 * period# and fmod(b# - a#, period#) ~= 0 then return 0 end -- of another grid
if a# >= b# then b#, v#, w# = a#, u#, m# elseif a# >= b# - period# then w# = u# end
v# = v# + cost#
local ok#, f# = v# <= threshold#, b# + 2 * period#
`,
		state: windowState,
	},
	limit.SlidingWindow: {
		width: 3, ask: askWindow,
		params: []string{"cost", "threshold", "period", "offset", "tick", "ticks"},
		shape: func(q *question, t *limit.Tier, p limit.Params, cost, _ int64) {
			q.add(cost, t.Threshold, p.Period, p.Offset, p.Tick, p.Ticks)
		},
		lua: `
if a# > far or u# < 0 or m# < 0 then return 0 end
local b#, v#, w# = fmod(now - offset#, period#), 0, 0
if b# < 0 then b# = b# + period# end
b# = now - b#
if a# ~= b# and a# > b# - 2 * period# and fmod(b# - a#, period#) ~= 0 then return 0 end -- of another grid
if a# >= b# then b#, v#, w# = a#, u#, m# elseif a# >= b# - period# then w# = u# end
local f# = b# + period# - now
if f# > period# then f# = period# elseif f# < 0 then f# = 0 end
local r# = fmod(f#, tick#)
f# = (f# - r#) / tick# + (r# > 0 and 1 or 0)
if f# > ticks# then f# = ticks# end
f# = w# * f#
r# = fmod(f#, ticks#)
v# = v# + cost#
local ok# = (f# - r#) / ticks# + (r# > 0 and 1 or 0) + v# <= threshold#
f# = b# + 3 * period#
`,
		state: windowState,
	},
	limit.LeakyBucket: {
		width: 2,
		rate:  func(t *limit.Tier) int64 { return t.Params(limit.Owner{}).Num },
		ask: func(_ *question, _ *limit.Charge, _ *limit.Tier, p limit.Params, _, need int64) [7]int64 {
			return [7]int64{need, p.Num, p.Period}
		},
		correction: leakyCorrection,
		params:     []string{"need", "num", "period"},
		shape: func(q *question, _ *limit.Tier, p limit.Params, _, need int64) {
			q.add(need, p.Num, p.Period)
		},
		lua: `
if a# > now + period# + 5000000 or need# == 4503599627370496 then return 0 end
local ok# = a# < now or (a# == now and u# == 0)
local v# = fmod(need#, num#)
local b# = now + (need# - v#) / num#
local f# = b# + 1
`,
		state: func(a, b, c int64) limit.State { return limit.LeakyBucketState{NextFree: a, Fraction: b, Num: c}.State() },
		refund: func(t limit.Params, e *limit.ReceiptEntry, p limit.EntryParams) [8]int64 {
			return [8]int64{t.Den, e.Units, p.NextFree, p.Fraction}
		},
	},
	limit.Quota: {
		width: 3,
		ask: func(q *question, _ *limit.Charge, t *limit.Tier, _ limit.Params, units, _ int64) [7]int64 {
			before, start, end, after := edges(t, q.now)
			return [7]int64{units, t.Threshold, before, start, end, after}
		},
		params: []string{"cost", "threshold", "before", "start", "stop", "after"},
		shape: func(q *question, t *limit.Tier, _ limit.Params, cost, _ int64) {
			before, start, end, after := edges(t, q.now)
			q.add(cost, t.Threshold, before, start, end, after)
		},
		lua: `
if a# > far or u# < 0 or now < before# or now >= after# then return 0 end
local b#, v#, w# = a#, u#, m#
if (m# == 0 and u# == 0) or now >= m# then
  v# = 0
  if now < start# then b#, w# = before#, start# elseif now < stop# then b#, w# = start#, stop# else b#, w# = stop#, after# end
end
v# = v# + cost#
local ok#, f# = v# <= threshold#, w#
`,
		state: func(a, b, c int64) limit.State { return limit.QuotaState{Start: a, Count: b, End: c}.State() },
	},
	limit.SlidingBuckets: {width: 2, inSet: true, ask: askSet},
	limit.SlidingLog:     {width: 2, inSet: true, ask: askSet},
}

func of(t *limit.Tier) *algorithm { return &algorithms[t.Algorithm] }

// rateOf is what the state of a tier's counter is counted in; 0: nothing.
func rateOf(t *limit.Tier) int64 {
	if rate := of(t).rate; rate != nil {
		return rate(t)
	}
	return 0
}

func askWindow(_ *question, _ *limit.Charge, t *limit.Tier, p limit.Params, units, _ int64) [7]int64 {
	return [7]int64{units, t.Threshold, p.Period, p.Offset, p.Tick, p.Ticks, p.SlotLength}
}

func windowState(a, b, c int64) limit.State {
	return limit.WindowState{Start: a, Count: b, Previous: c}.State()
}

// askSet names the sorted set of the counter, and the one of all other values.
func askSet(q *question, c *limit.Charge, t *limit.Tier, p limit.Params, units, _ int64) [7]int64 {
	digest := t.Digest()
	key := q.stampsKey(c.Limit, c.Value, digest)
	other := key
	if c.Value.Kind != limit.NoValue {
		other = q.stampsKey(c.Limit, q.req.Owner.OtherValue(c.Value), digest)
	}
	return [7]int64{units, t.Threshold, p.Period, p.Width, p.Buckets, key, other}
}

// leakyCorrection is in grains, and no more than keeps below 2^53.
func leakyCorrection(q *question, t *limit.Tier, ask *limit.LeaseRequest) (correction, offset int64) {
	p := t.Params(q.req.Owner)
	most := min(t.Threshold, (1<<52-1)/p.Den)
	if ask.Correction <= -most {
		return -1 << 52, 0
	}
	return min(ask.Correction, most) * p.Den, 0
}

// edges are the starts of the period before the one of now, of that one, and of the two after it.
func edges(t *limit.Tier, now int64) (before, start, end, after int64) {
	start, end = t.Calendar.Period(now)
	before, _ = t.Calendar.Period(start - 1)
	_, after = t.Calendar.Period(end)
	return before, start, end, after
}
