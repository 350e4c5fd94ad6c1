package dynamodb

import "github.com/sluicelimits/sluice/internal/limit"

// algorithm is how the counters of one algorithm are stored, and charged by conditions. Each has a file of its own. To add
// one, write its file and add it to algorithms.
type algorithm interface {
	// state reads the fields of a counter, which are not nil, and fields writes a state, as of now.
	decode(t *limit.Tier, p *limit.Params, f fields) (limit.State, error)
	encode(p *limit.Params, st *limit.State, now int64) fields

	// charge adds to the write of c the condition under which the core admits the charge, whatever the counter holds by then
	// as long as it is of the class that was guessed, and the assignments that make of it what the core would. giveBack does
	// so for a refund.
	charge(c *counterCharge, u counterUpdate)
	refund(c *counterRefund, u counterUpdate)

	// lasts is how long after now a counter in the state can matter, µs, however full others make it.
	relevantFor(t *limit.Tier, p *limit.Params, st *limit.State, now int64) int64

	// widest has all fields that a counter can have, each as long as it can be; bytes is about what a new counter takes beside
	// its name.
	largestFields(t *limit.Tier) fields
	newCounterBytes(t *limit.Tier) int
}

// algorithms are those that DynamoDB counts; nil is one that it does not: a condition cannot count the entries of a sliding
// log. It is one of the few places that index by algorithm: which conditions and updates count by one is the affair of
// this store, and nothing that package limit should know.
var algorithms = [...]algorithm{
	limit.FixedWindow:    fixedWindow{},
	limit.SlidingWindow:  slidingWindow{},
	limit.SlidingBuckets: slidingBuckets{},
	limit.SlidingLog:     nil,
	limit.TokenBucket:    tokenBucket{},
	limit.LeakyBucket:    leakyBucket{},
	limit.Quota:          quota{},
}

func algorithmOf(t *limit.Tier) algorithm { return algorithms[t.Algorithm] }

// lastsFresh is algorithm.lasts for a counter that nobody can make matter for longer than the core says.
type relevantUntilFresh struct{}

func (relevantUntilFresh) relevantFor(t *limit.Tier, _ *limit.Params, st *limit.State, now int64) int64 {
	return max(t.FreshAt(st), now) - now // one that was never used is fresh since before all time
}
