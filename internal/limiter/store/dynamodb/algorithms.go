package dynamodb

import "github.com/sluicelimits/sluice/internal/limiter/limit"

// algorithm says how the counters of one algorithm are stored, and which conditions and assignments charge them. Each
// algorithm has a file of its own. To add one, write its file and add it to algorithms.
//
// Code outside those files also reads the fields by their names (see fields.go). A new algorithm takes a name only for
// what the name means there:
//
//   - expectedGrowth expects that a counter with fieldCount, and without fieldPrevious and fieldEnd, gets a second
//     window.
//   - subtractCount requires for a refund that fieldStart is unchanged, and compareWhole keeps a counter's
//     fieldLateCharges.
//
// The package comment lists the fields of each algorithm.
type algorithm interface {
	// decode reads the fields of a counter into the core's state. The fields are not nil.
	decode(t *limit.Tier, p *limit.Params, f fields) (limit.State, error)
	// encode returns the fields of a state, as of now.
	encode(p *limit.Params, st *limit.State, now int64) fields

	// charge adds to the update of a counter the condition under which the core admits the charge, and the assignments
	// that lead to the core's next state. The condition allows other values of the counter than c.stored wherever the
	// same assignments are right.
	charge(c *counterCharge, u counterUpdate)
	// refund does the same as charge for a refund.
	refund(c *counterRefund, u counterUpdate)

	// relevantFor returns for how long after now a counter in the state can influence a decision, µs, whatever other
	// processes charge to it.
	relevantFor(t *limit.Tier, p *limit.Params, st *limit.State, now int64) int64

	// largestFields returns all fields that a counter can have, each as long as it can be.
	largestFields(t *limit.Tier) fields
	// newCounterBytes returns about how many bytes a new counter takes without its name, as estimatedBytes counts them:
	// times have 16 digits, and counts are small.
	newCounterBytes(t *limit.Tier) int
}

// algorithms holds the algorithms that DynamoDB counts. The entry of sliding_log is nil: a condition cannot count the
// entries of a log. The table is here and not in package limit because which conditions count by an algorithm concerns
// this store only.
var algorithms = [...]algorithm{
	limit.FixedWindow:    fixedWindow{},
	limit.SlidingWindow:  slidingWindow{},
	limit.SlidingBuckets: slidingBuckets{},
	limit.SlidingLog:     nil,
	limit.TokenBucket:    tokenBucket{},
	limit.LeakyBucket:    leakyBucket{},
	limit.Quota:          quota{},
}

// algorithmOf returns the algorithm of a tier, or nil if [Store.Accepts] refuses it.
func algorithmOf(t *limit.Tier) algorithm { return algorithms[t.Algorithm] }

// relevantUntilFresh implements algorithm.relevantFor for algorithms whose counters matter until limit.Tier.FreshAt.
// Charges by other processes cannot prolong that time.
type relevantUntilFresh struct{}

func (relevantUntilFresh) relevantFor(t *limit.Tier, _ *limit.Params, st *limit.State, now int64) int64 {
	return max(t.FreshAt(st), now) - now // FreshAt of a state that was never used lies far in the past
}
