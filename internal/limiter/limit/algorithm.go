package limit

import (
	"slices"
	"strconv"
)

// Algorithm names how a tier counts. A cost above [Tier.Capacity] is never admitted: above the threshold or quota, the
// burst of a token bucket, the rate of a leaky bucket. The last column bounds what is admitted in any interval as long
// as the period or, where it names t, in any interval of length t. In the rows of the buckets rate means rate/period,
// units per time.
//
//	fixed_window     count of the window ⌊now/period⌋ + cost ≤ threshold               bound 2×, exact inside a window
//	sliding_window   ⌈prev·(period−elapsed)/period⌉ + cur + cost ≤ threshold           bound 2× at worst
//	sliding_buckets  sum of the current bucket and the n before it + cost ≤ threshold  bound threshold
//	sliding_log      units charged after now−period + cost ≤ threshold                 bound threshold
//	token_bucket     level ≥ cost; the level refills by rate·time, up to burst         bound burst + rate·t
//	leaky_bucket     nextFree ≤ now; a charge sets nextFree = now + cost/rate          bound rate·t + largest cost
//	quota            count of the calendar period + cost ≤ units                       exact inside a period
//
// A plan names the first six by the key algorithm. The seventh, quota, is that of limits with the key quota. The pages
// in docs therefore speak of six algorithms and of quotas.
//
// Each algorithm is one file of this package, with what some of them share in window.go and entries.go. No other Go
// code has its rules. Elsewhere are only the names of its numbers, and its implementations in Redis's Lua and in
// DynamoDB's expressions. To add an algorithm:
//
//  1. Write its file: its Algorithm constant, a [kind] that describes it, a type that names the numbers of its [State],
//     and the methods of the interface algorithm. quota.go (with windows of its own) and leakybucket.go (never leased)
//     are complete examples. The constant is the next number, below 32, because package redis adds it to the first
//     byte of marks. The kind's letter must be unique (grep 'letter:' shows those in use). A windowed algorithm also
//     has the methods of the interface windowed, one whose state grows with its entries those of growing. leaseEnd
//     must depend on the owner and the time alone, not on the state, and must return the same time for all leases of
//     one window or slot: package lease compares these times.
//  2. Add one line to kinds, below. If the stored numbers mean something else without a new field of [Tier], the field
//     must be part of the names in key.go.
//  3. Add a model of it to limittest, from its definition and not from its code: the methods of counter and entry in
//     model.go that switch by algorithm, and boundOf in bounds.go. Other files of limittest switch by algorithm, too
//     (grep "case limit\."); most of these switches have a default, so look whether it fits. The tests of limit,
//     limittest and store/memory pass from here on, once the tables of cases that name the algorithm have one.
//  4. Redis: add an entry to the table in store/redis/algorithms.go, and a branch to decide.lua and to settle.lua. The
//     comments above the branches say what a branch gets and must set. The branches name an algorithm by its number,
//     and some by a range of numbers (alg < 3): look at each comparison.
//  5. DynamoDB: write its file in store/dynamodb and add an entry to the table in algorithms.go there, nil if DynamoDB
//     cannot count it. Add the names of its fields to fields.go there. The comment of the interface algorithm says
//     which names have a meaning outside its own file.
//  6. Describe its stored form in the package comments of store/redis and store/dynamodb, and its numbers at [Params],
//     [ReceiptEntry] and [EntryParams].
//  7. Extend what lists the algorithms: the tables in docs/guarantees.md, docs/plans.md and docs/accuracy.md (there
//     also the table of leases); the package comment of internal/plan/shares, where it says when a window starts; and
//     the goldens of internal/plan and cmd/sluice, which their tests write with the flag -update.
//
// The contract suite (limittest) runs for every algorithm that kinds names, on every store. It is not enough: run all
// tests of package limit, the stores and package lease. These compare the stores with the core to the unit:
// TestLikeMemory, TestLeasesLikeCore and TestRefundsLikeCore of store/redis; TestAgreesWithMemory and
// TestLeasesAgreeWithMemory of store/dynamodb.
//
// Plans, the placement of limits on cells and the headers of answers need no code: they use the properties that
// [Algorithm] and [Tier] report.
type Algorithm uint8

// kinds has one line for each algorithm. The Algorithm constants are part of stored forms: they never change.
//
// Apart from this table, and one table in the Redis and one in the DynamoDB store, code outside the algorithms' own
// files must not look at which algorithm it has. It asks for a property instead, such as [Algorithm.HasBurst].
var kinds = [...]kind{
	FixedWindow:    fixedWindowKind,
	SlidingWindow:  slidingWindowKind,
	SlidingBuckets: slidingBucketsKind,
	SlidingLog:     slidingLogKind,
	TokenBucket:    tokenBucketKind,
	LeakyBucket:    leakyBucketKind,
	Quota:          quotaKind,
}

// kind describes an algorithm, apart from the numbers of a tier.
type kind struct {
	name    string // in plans and identities
	letter  byte   // unique, a to z; in the short names of counters, see [Tier.AppendName]
	largest int64  // the largest Threshold

	// amountField is the field of a plan that sets [Tier.Threshold]: amountThreshold, amountRate or amountUnits.
	amountField string

	// Which fields of a [Tier] are used. A tier that has a calendar has no period.
	hasBurst, hasBuckets, hasCalendar bool

	indivisible bool        // see [Algorithm.Indivisible]
	stricter    []Algorithm // with the same numbers these never admit more than this one, see [Algorithm.NeverLooser]

	// new checks the fields of t that only this algorithm has, fills in their defaults, and returns the algorithm with
	// the numbers of t. It is called only with a threshold and a period that are in range. After it has called bad, its
	// result is not used.
	new func(t *Tier, l *Limit, bad report) algorithm
}

// algorithm is one way to count, with the numbers of one tier. These methods are all that the rest of the system knows
// of it. An algorithm is immutable and shared by all counters of its tier. Its methods are called under locks, and so
// never wait. The exceptions are leaseEnd, forgottenAt and window: they may compute a calendar, and must not be called
// under a lock.
//
// Times are µs since 1970. Methods that get a Result and no State read the Result only: the State may have changed
// since.
type algorithm interface {
	// evaluate writes to r the content of the counter as of now, before any charge, and whether r.need fits. It changes
	// nothing but r. Of Admits, Never and RetryAt, which must be zero before, it sets one. It returns false if s holds
	// a time that lies more than MaxSkew after any that a correct clock could have written. r is then undefined, and
	// the caller must call repair and then evaluate again.
	evaluate(s *State, now int64, r *Result) bool

	// repair moves the times of a state for which evaluate returned false back to where a clock that shows now could
	// have set them. Units that were charged stay charged. Leases and receipts that name a moved time give nothing
	// back.
	repair(s *State, now int64, r *Result)

	// charge takes r.need units from s, which must be the state for which evaluate filled r. In r it notes what receipt
	// will need; the numbers that used reads stay as they were before the charge.
	charge(s *State, now int64, r *Result)

	// freshAt returns a time from which on s is no different from a state that was never used. It is the earliest such
	// time that s alone tells: windows do not know whether align has changed, and return one that is a period later.
	freshAt(s *State) int64

	// used returns how many units are used after the decision, including those that the decision charged.
	used(r *Result) int64

	// resetAt returns when nothing will be used any more, if nothing more is charged.
	resetAt(r *Result) int64

	// moreAt returns when more units will be left than after the decision, if nothing more is charged, see
	// [Result.MoreAt].
	moreAt(r *Result) int64

	// perUnit returns by how much numbers.amount of a Result changes for each unit that is used. See [Result.addUsed].
	perUnit() int64

	// receipt writes to e what refund will have to know of the charge of r.
	receipt(r *Result, e *ReceiptEntry)

	// refund gives back to s at most units of the charge that e describes, and returns how many it gave back.
	// Afterwards s never has more room than it would if the charge had not been made.
	refund(s *State, e *ReceiptEntry, units, now int64) int64

	// offer returns the lease that the request gets if it is admitted. The units of r.need are not part of it. If the
	// algorithm keeps leased units apart (see [Leasing]) and ask wants a lease, offer sets r.leaseAt. The charge of
	// r.need must then be counted as leased, too, also if no more is granted: the caller may spend it later.
	offer(s *State, owner string, now int64, ask *LeaseRequest, r *Result) Lease

	// chargeLease charges to s the units that offer granted. It is called after charge. If r.leaseAt is set, the two
	// together count r.need as leased: charge does so in logs, chargeLease in a token bucket.
	chargeLease(s *State, r *Result, granted *Lease)

	// returnUnspent takes off s units that were leased and not spent. The parameter at is [Lease].At: it names the
	// window, slot or entry in which the units were leased. returnUnspent does nothing once units in it no longer
	// count; a token bucket accepts them for one slot length after the slot's end. A leaky bucket ignores at.
	//
	// window is the window or calendar period that contains now. It is undefined for an algorithm that is not windowed.
	returnUnspent(s *State, units, at, now int64, window span)

	// replay charges to s units that were admitted without the store, and returns how many: fewer if the state can hold
	// no more. The parameter at is [LeaseRequest].CorrectionAt. replay does nothing if units of that time no longer
	// count. window is as for returnUnspent.
	replay(s *State, units, at, now int64, window span) (charged int64)

	// leasing says how the tier is leased.
	leasing() Leasing

	// leaseEnd returns when a lease, and when a ramp, that is granted now ends. Both are 0 if leases end when
	// [LeaseRequest].Life is over, or if there are none.
	leaseEnd(owner string, now int64) (lease, ramp int64)

	// leasedInSlot returns how many units of a token bucket are leased in the slot of the decision: those that r says,
	// and the given number of units that the decision itself leased. Other algorithms return 0.
	leasedInSlot(r *Result, units int64) int64

	// counting says how the tier counts.
	counting() Counting

	// forgottenAt returns a time from which on no unit counts any more that a request of the owner was charged before
	// another time, which is the parameter at. See [Tier.ForgottenAt].
	forgottenAt(owner string, at int64) int64

	// params returns the numbers of the tier, for stores that count elsewhere.
	params(owner string) Params
}

// windowed is an algorithm that counts by windows or calendar periods of its own.
type windowed interface {
	algorithm

	// window returns the window or calendar period that contains now.
	window(owner string, now int64) span
}

// span is an interval of time, µs since 1970: a window or a calendar period. It contains start, but not end.
type span struct{ start, end int64 }

// growing is an algorithm whose states grow with the requests that they count.
type growing interface {
	algorithm

	// room returns for how many entries in total s should have memory before the charge; 0 if it has enough.
	room(s *State, r *Result) (entries int)

	// grow gives s memory for that many entries, see [Evaluation.Grow].
	grow(s *State, r *Result, entries int)

	// undoCharge undoes what charge wrote to r. The caller resets r.Charged.
	undoCharge(r *Result)
}

// Algorithms lists every algorithm, for tables of tests and for error messages.
func Algorithms() []Algorithm {
	var all []Algorithm
	for a := range kinds {
		if kinds[a].new != nil {
			all = append(all, Algorithm(a))
		}
	}
	return all
}

func (a Algorithm) known() bool { return int(a) < len(kinds) && kinds[a].new != nil }

// String returns the name used in plans, or "algorithm(n)" for an unknown value.
func (a Algorithm) String() string {
	if a.known() {
		return kinds[a].name
	}
	return "algorithm(" + strconv.Itoa(int(a)) + ")"
}

// ParseAlgorithm is the inverse of String. It reports false for an unknown name.
func ParseAlgorithm(name string) (Algorithm, bool) {
	i := slices.IndexFunc(kinds[:], func(k kind) bool { return k.new != nil && k.name == name })
	return Algorithm(max(i, 0)), i >= 0
}

// The fields of a plan that set a [Tier.Threshold].
const (
	amountThreshold = "threshold"
	amountRate      = "rate"
	amountUnits     = "units"
)

// AmountField returns the field of a plan that sets [Tier.Threshold]: "threshold", "rate" or "units".
func (a Algorithm) AmountField() string { return kinds[a].amountField }

// HasBurst reports whether a tier has a [Tier.Burst].
func (a Algorithm) HasBurst() bool { return kinds[a].hasBurst }

// HasBuckets reports whether a tier has [Tier.Buckets].
func (a Algorithm) HasBuckets() bool { return kinds[a].hasBuckets }

// HasCalendar reports whether a tier has a [Tier.Calendar] in place of a period.
func (a Algorithm) HasCalendar() bool { return kinds[a].hasCalendar }

// HasRate reports whether the threshold is a rate: units come free evenly, so that the ratio Threshold/Period alone
// tells how many are admitted over time. Otherwise Threshold units can be admitted at once, and the length of the
// period matters.
func (a Algorithm) HasRate() bool { return kinds[a].amountField == amountRate }

// Indivisible reports that a limit of the algorithm must be kept by one counter. If several counters each kept a part
// of the threshold, they could together admit more than one counter with the whole threshold.
func (a Algorithm) Indivisible() bool { return kinds[a].indivisible }

// NeverLooser reports whether a never admits more in any interval than the algorithm than may admit, with the same
// threshold and period. If than has a burst, that is so only if the burst is at least the threshold. NeverLooser
// reports false for pairs of which nothing is known.
func (a Algorithm) NeverLooser(than Algorithm) bool {
	return a == than || slices.Contains(kinds[than].stricter, a)
}

// Counting says how a tier counts.
type Counting struct {
	// Lasts is the longest time, µs, for which a counter with a charge differs from one without it. If Entries is set,
	// each entry counts for that long from its own time on. 0 for a quota, whose periods differ in length. A bucket
	// whose level a replay has put below zero takes up to twice as long.
	Lasts int64

	// Windows is in how many windows units count: the present one, and those before it that still count. That many
	// corrections below zero (see [LeaseRequest].Correction), the first of the present time and each other one of a
	// time one Period earlier, empty the counter. A leaky_bucket counts as one window. 0 means that the tier has no
	// windows, and cannot be emptied in this way.
	Windows int

	Entries    bool // units are counted in entries, each with a time of its own
	EachCharge bool // each charge may have an entry of its own, so there are up to Threshold of them
}

// Counting says how the tier counts.
func (t *Tier) Counting() Counting { return t.counts.counting() }

// ForgottenAt returns a time from which on no unit counts any more that requests of the owner were charged before
// another time, which is the parameter at. Both are µs since 1970. Units that were leased before then may count for
// longer, and so may a charge that [Evaluation.Grow] counted together with a lease, or units of a bucket that was below
// zero. If a counter takes over a part of the limit at some time, it must not grant units of that part before
// ForgottenAt of that time. If the tier has a calendar, ForgottenAt must not be called under a
// lock, see [Tier.CalendarPeriod].
func (t *Tier) ForgottenAt(owner string, at int64) int64 { return t.counts.forgottenAt(owner, at) }
