package redis

import "github.com/sluicelimits/sluice/internal/limiter/limit"

// algorithm holds what this store knows of one algorithm: what the scripts get for a tier, and how the states in their
// replies are read. decide.lua and settle.lua have a branch for each algorithm, by its number. To add an algorithm, add
// an entry to algorithms and a branch to both scripts. The comments above the branches say what a branch gets and must
// set.
type algorithm struct {
	// inSet says that the charged units are entries of a sorted set, and that the record in the pack has only their
	// sum.
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

	// toState returns the core's state for the numbers of a record. The third one is the rate, if the algorithm has one
	// and the counter was used.
	toState func(a, b, c int64) limit.State

	// refundNumbers returns the numbers that settle.lua gets for an entry in addition to those that all algorithms
	// have. If nil, only the period is sent.
	refundNumbers func(t limit.Params, e *limit.ReceiptEntry, p limit.EntryParams) [8]int64
}

// algorithms has one entry for each algorithm, by its number. The table is here and not in package limit because how
// Redis counts by an algorithm concerns this store and its scripts only.
var algorithms = [...]algorithm{
	limit.TokenBucket: {
		hasMarks: true,
		rateOf:   func(t *limit.Tier) int64 { return t.Threshold },
		numbers: func(_ *query, _ *limit.Charge, t *limit.Tier, p limit.Params, _, need int64) [7]int64 {
			return [7]int64{need, p.Num, p.Den, p.Full, p.SlotLength, t.Threshold, p.Period}
		},
		correction: func(q *query, t *limit.Tier, ask *limit.LeaseRequest) (int64, int64) {
			return ask.Correction, t.Params(q.req.Owner).SlotOffset
		},
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
		numbers: windowNumbers,
		toState: windowState,
	},
	limit.SlidingWindow: {
		numbers: windowNumbers,
		toState: windowState,
	},
	limit.LeakyBucket: {
		rateOf: func(t *limit.Tier) int64 { return t.Params(limit.Owner{}).Num },
		numbers: func(_ *query, _ *limit.Charge, _ *limit.Tier, p limit.Params, _, need int64) [7]int64 {
			return [7]int64{need, p.Num, p.Period}
		},
		correction: leakyCorrection,
		toState: func(a, b, c int64) limit.State {
			return limit.LeakyBucketState{NextFree: a, Fraction: b, Num: c}.State()
		},
		refundNumbers: func(t limit.Params, e *limit.ReceiptEntry, p limit.EntryParams) [8]int64 {
			return [8]int64{t.Den, e.Units, p.NextFree, p.Fraction}
		},
	},
	limit.Quota: {
		numbers: func(q *query, _ *limit.Charge, t *limit.Tier, _ limit.Params, units, _ int64) [7]int64 {
			before, start, end, after := calendarEdges(t, q.callerNow)
			return [7]int64{units, t.Threshold, before, start, end, after}
		},
		toState: func(a, b, c int64) limit.State { return limit.QuotaState{Start: a, Count: b, End: c}.State() },
	},
	limit.SlidingBuckets: {inSet: true, numbers: setNumbers},
	limit.SlidingLog:     {inSet: true, numbers: setNumbers},
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
