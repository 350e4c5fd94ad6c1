package redis

import "github.com/sluicelimits/sluice/internal/limiter/limit"

// algorithm holds what this store knows of one algorithm: what the scripts get for a tier, and how the states in their
// replies are read. decide.lua and refund.lua have a branch for each algorithm, by its number. To add an algorithm, add
// an entry to algorithms and a branch to both scripts. The comments above the branches say what a branch gets and must
// set.
type algorithm struct {
	width int // how many doubles the state of a record has: 2 or 3

	// inSet says that the charged units are entries of a sorted set, and that the record in the pack has only their
	// sum. A request with such an algorithm has no generated script.
	inSet bool

	// hasMarks says that the pack may have marks for the counter: records of what was refunded, what is leased, and
	// what may still be given back after the end of a slot.
	hasMarks bool

	// rateOf returns the rate by which the state is counted: a change of the limit's rate changes the state. If nil,
	// the state does not depend on a rate.
	rateOf func(t *limit.Tier) int64

	// numbers returns the seven numbers that decide.lua gets for a tier that is charged units. need is the same amount
	// in grains, or 0 if the cost never fits.
	numbers func(q *query, c *limit.Charge, t *limit.Tier, p limit.Params, units, need int64) [7]int64

	// correction returns the correction in the measure of decide.lua, and the time at which a slot of the owner begins.
	// If nil, these are the correction as requested, and 0.
	correction func(q *query, t *limit.Tier, ask *limit.LeaseRequest) (correction, offset int64)

	// shapeParams names the numbers that a generated script gets, addShapeNumbers writes them, and shapeLua is the Lua
	// code that evaluates the counter by them (see generateShapeScript). In shapeLua, # stands for the number of the
	// tier. a, u and m are the state (m only if it has three numbers), b, v and w the state after the charge, and f is
	// the time from which that state equals an unused one.
	shapeParams     []string
	addShapeNumbers func(q *query, t *limit.Tier, p limit.Params, cost, need int64)
	shapeLua        string

	// toState returns the core's state for the numbers of a record. The third one is the rate, if the algorithm has one
	// and the counter was used.
	toState func(a, b, c int64) limit.State

	// refundNumbers returns the numbers that refund.lua gets for an entry in addition to those that all algorithms
	// have. If nil, only the period is sent.
	refundNumbers func(t limit.Params, e *limit.ReceiptEntry, p limit.EntryParams) [8]int64
}

// algorithms has one entry for each algorithm, by its number. The table is here and not in package limit because how
// Redis counts by an algorithm concerns this store and its scripts only.
var algorithms = [...]algorithm{
	limit.TokenBucket: {
		width: 2, hasMarks: true,
		rateOf: func(t *limit.Tier) int64 { return t.Threshold },
		numbers: func(_ *query, _ *limit.Charge, t *limit.Tier, p limit.Params, _, need int64) [7]int64 {
			return [7]int64{need, p.Num, p.Den, p.Full, p.SlotLength, t.Threshold, p.Period}
		},
		correction: func(q *query, t *limit.Tier, ask *limit.LeaseRequest) (int64, int64) {
			return ask.Correction, t.Params(q.req.Owner).SlotOffset
		},
		shapeParams: []string{"need", "num", "full"},
		addShapeNumbers: func(q *query, _ *limit.Tier, p limit.Params, _, need int64) {
			q.addNumbers(need, p.Num, p.Full)
		},
		shapeLua: `
if a# > far then return 0 end
local b#, v# = a#, u#
if now > b# then
  v# = v# - (now - b#) * num# -- exact above 0; what is less than 0 is cut to 0
  b# = now
end
if v# < 0 or a# == 0 then v# = 0 end
v# = v# + need#
local ok#, f# = v# <= full#, b# + v# / num#
`,
		toState: func(a, b, c int64) limit.State {
			return limit.TokenBucketState{AsOf: a, Missing: b, Rate: c}.State()
		},
		refundNumbers: func(t limit.Params, _ *limit.ReceiptEntry, p limit.EntryParams) [8]int64 {
			return [8]int64{
				t.Num, t.Den, t.Full, t.FullIn, p.Headroom, p.Refunded % refundEra, p.Refunded / refundEra, p.SlotEnd,
			}
		},
	},
	limit.FixedWindow: {
		width: 3, numbers: windowNumbers,
		shapeParams: []string{"cost", "threshold", "period", "offset"},
		addShapeNumbers: func(q *query, t *limit.Tier, p limit.Params, cost, _ int64) {
			q.addNumbers(cost, t.Threshold, p.Period, p.Offset)
		},
		shapeLua: `
if a# > far or u# < 0 or m# < 0 then return 0 end
local b#, v#, w# = fmod(now - offset#, period#), 0, 0
if b# < 0 then b# = b# + period# end
b# = now - b#
if a# ~= b# and a# > b# - 2 * period# and fmod(b# - a#, period#) ~= 0 then return 0 end -- the limit's align has changed
if a# >= b# then b#, v#, w# = a#, u#, m# elseif a# >= b# - period# then w# = u# end
v# = v# + cost#
local ok#, f# = v# <= threshold#, b# + 2 * period#
`,
		toState: windowState,
	},
	limit.SlidingWindow: {
		width: 3, numbers: windowNumbers,
		shapeParams: []string{"cost", "threshold", "period", "offset", "tick", "ticks"},
		addShapeNumbers: func(q *query, t *limit.Tier, p limit.Params, cost, _ int64) {
			q.addNumbers(cost, t.Threshold, p.Period, p.Offset, p.Tick, p.Ticks)
		},
		shapeLua: `
if a# > far or u# < 0 or m# < 0 then return 0 end
local b#, v#, w# = fmod(now - offset#, period#), 0, 0
if b# < 0 then b# = b# + period# end
b# = now - b#
if a# ~= b# and a# > b# - 2 * period# and fmod(b# - a#, period#) ~= 0 then return 0 end -- the limit's align has changed
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
		toState: windowState,
	},
	limit.LeakyBucket: {
		width:  2,
		rateOf: func(t *limit.Tier) int64 { return t.Params(limit.Owner{}).Num },
		numbers: func(_ *query, _ *limit.Charge, _ *limit.Tier, p limit.Params, _, need int64) [7]int64 {
			return [7]int64{need, p.Num, p.Period}
		},
		correction:  leakyCorrection,
		shapeParams: []string{"need", "num", "period"},
		addShapeNumbers: func(q *query, _ *limit.Tier, p limit.Params, _, need int64) {
			q.addNumbers(need, p.Num, p.Period)
		},
		shapeLua: `
if a# > now + period# + 5000000 or need# == 4503599627370496 then return 0 end
local ok# = a# < now or (a# == now and u# == 0)
local v# = fmod(need#, num#)
local b# = now + (need# - v#) / num#
local f# = b# + 1
`,
		toState: func(a, b, c int64) limit.State {
			return limit.LeakyBucketState{NextFree: a, Fraction: b, Num: c}.State()
		},
		refundNumbers: func(t limit.Params, e *limit.ReceiptEntry, p limit.EntryParams) [8]int64 {
			return [8]int64{t.Den, e.Units, p.NextFree, p.Fraction}
		},
	},
	limit.Quota: {
		width: 3,
		numbers: func(q *query, _ *limit.Charge, t *limit.Tier, _ limit.Params, units, _ int64) [7]int64 {
			before, start, end, after := calendarEdges(t, q.callerNow)
			return [7]int64{units, t.Threshold, before, start, end, after}
		},
		shapeParams: []string{"cost", "threshold", "before", "start", "stop", "after"},
		addShapeNumbers: func(q *query, t *limit.Tier, _ limit.Params, cost, _ int64) {
			before, start, end, after := calendarEdges(t, q.callerNow)
			q.addNumbers(cost, t.Threshold, before, start, end, after)
		},
		shapeLua: `
if a# > far or u# < 0 or now < before# or now >= after# then return 0 end
local b#, v#, w# = a#, u#, m#
if (m# == 0 and u# == 0) or now >= m# then
  v# = 0
  if now < start# then b#, w# = before#, start#
  elseif now < stop# then b#, w# = start#, stop#
  else b#, w# = stop#, after# end
end
v# = v# + cost#
local ok#, f# = v# <= threshold#, w#
`,
		toState: func(a, b, c int64) limit.State { return limit.QuotaState{Start: a, Count: b, End: c}.State() },
	},
	limit.SlidingBuckets: {width: 2, inSet: true, numbers: setNumbers},
	limit.SlidingLog:     {width: 2, inSet: true, numbers: setNumbers},
}

// algorithmOf returns the entry of a tier's algorithm.
func algorithmOf(t *limit.Tier) *algorithm { return &algorithms[t.Algorithm] }

// rateOf returns the rate by which the state of a tier's counter is counted, or 0 if it does not depend on a rate.
func rateOf(t *limit.Tier) int64 {
	if rate := algorithmOf(t).rateOf; rate != nil {
		return rate(t)
	}
	return 0
}

// windowNumbers is algorithm.numbers of fixed_window and sliding_window.
func windowNumbers(_ *query, _ *limit.Charge, t *limit.Tier, p limit.Params, units, _ int64) [7]int64 {
	return [7]int64{units, t.Threshold, p.Period, p.Offset, p.Tick, p.Ticks, p.SlotLength}
}

// windowState is algorithm.toState of fixed_window and sliding_window.
func windowState(a, b, c int64) limit.State {
	return limit.WindowState{Start: a, Count: b, Previous: c}.State()
}

// setNumbers is algorithm.numbers of sliding_log and sliding_buckets. It sends the key of the counter's sorted set, and
// the key of the set that all values beyond MaxValues share.
func setNumbers(q *query, c *limit.Charge, t *limit.Tier, p limit.Params, units, _ int64) [7]int64 {
	digest := t.Digest()
	key := q.addSetKey(c.Limit, c.Value, digest)
	other := key
	if c.Value.Kind != limit.NoValue {
		other = q.addSetKey(c.Limit, q.req.Owner.OtherValue(c.Value), digest)
	}
	return [7]int64{units, t.Threshold, p.Period, p.Width, p.Buckets, key, other}
}

// leakyCorrection is algorithm.correction of leaky_bucket: in grains, and limited so that all products stay below 2^53.
func leakyCorrection(q *query, t *limit.Tier, ask *limit.LeaseRequest) (correction, offset int64) {
	p := t.Params(q.req.Owner)
	most := min(t.Threshold, (1<<52-1)/p.Den)
	if ask.Correction <= -most {
		return -1 << 52, 0
	}
	return min(ask.Correction, most) * p.Den, 0
}

// calendarEdges returns four consecutive edges of calendar periods: now lies between start and end.
func calendarEdges(t *limit.Tier, now int64) (before, start, end, after int64) {
	start, end = t.Calendar.Period(now)
	before, _ = t.Calendar.Period(start - 1)
	_, after = t.Calendar.Period(end)
	return before, start, end, after
}
