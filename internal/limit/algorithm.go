package limit

import (
	"slices"
	"strconv"
)

// Algorithm names how a tier counts. The bound is the most that any interval as long as the period can admit.
//
//	fixed_window     count of the window ⌊now/period⌋; admits iff count+cost ≤ threshold           bound 2×, exact inside a window
//	sliding_window   ⌈prev·(period−elapsed)/period⌉ + cur + cost ≤ threshold                       bound 2× at worst
//	sliding_buckets  sum of the current bucket and the n before it + cost ≤ threshold              bound threshold
//	sliding_log      units charged after now−period + cost ≤ threshold                             bound threshold
//	token_bucket     level ≥ cost; the level refills by rate/period, up to burst                   bound burst + rate·t
//	leaky_bucket     slot ≤ now, then slot = now + cost·period/rate; a cost above rate is never    bound rate·t + largest cost
//	quota            count of the calendar period + cost ≤ units                                   exact inside a period
//
// Each algorithm is one file of this package, which holds all that the system does with it. To add one:
//
//  1. Write its file: its number, a [kind] that describes it, a type that names the numbers of its [State], and the
//     methods of the interface algorithm. quota.go (with windows of its own) and leakybucket.go (never leased) are
//     complete examples. The kind's letter must be unique. leaseEnd must follow from the owner and the time alone, not
//     from the state, and must name the same time for all leases of one window or slot: package lease compares it.
//  2. Add one line to kinds, below. A new field of [Tier] without which the stored numbers mean something else must be
//     part of the names in key.go.
//  3. Add a model of it to limittest, from its definition and not from its code: the methods of counter and entry in
//     model.go that switch by algorithm, and boundOf in bounds.go. The tests of limit, limittest and
//     store/memory pass from here on, once the tables of cases that name the algorithm have one.
//  4. Redis: add an entry to the table in store/redis/algorithms.go, and a branch to decide.lua and to refund.lua. The
//     comments above the branches say what a branch gets and must set. The entry's shapeLua is the branch of the
//     generated scripts.
//  5. DynamoDB: write its file in store/dynamodb and add an entry to the table in algorithms.go there, nil if DynamoDB
//     cannot count it. The comment of the interface algorithm there says which names of fields have a meaning.
//  6. Describe its stored form in the package comments of store/redis and store/dynamodb, and its numbers at [Params],
//     [ReceiptEntry] and [EntryParams].
//  7. Extend what lists the algorithms: the tables in README.md, docs/plans.md and docs/accuracy.md; and the goldens of
//     internal/plan and cmd/sluice, which their tests write with the flag -update.
//
// The contract suite (limittest) runs for every algorithm that kinds names, on every store. It is not enough: run all
// tests of package limit, the stores and package lease. These compare the stores with the core to the unit:
// TestLikeMemory, TestLeasesLikeCore and TestRefundsLikeCore of store/redis; TestAgreesWithMemory and
// TestLeasesAgreeWithMemory of store/dynamodb.
//
// Plans, placement of limits on cells and the answers' headers need no code: they go by what [Algorithm] and [Tier] say
// of an algorithm.
type Algorithm uint8

// kinds has one line for each algorithm, in the order of the table above. The numbers are part of stored forms: they
// never change. With the tables of the two stores it is all that indexes, compares or switches by algorithm outside the
// algorithms' own files, since something must lead from a tier's number to its algorithm. Others ask for a property.
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
	amount  string // the field of a plan that sets [Tier.Threshold]
	largest int64  // the largest Threshold

	hasBurst, hasBuckets, hasCalendar bool // which fields of a [Tier] it has; with a calendar it has no period

	indivisible bool        // see [Algorithm.Indivisible]
	neverLooser []Algorithm // those that are never looser than this one, see [Algorithm.NeverLooser]

	// new checks what is particular to the algorithm, fills in defaults of t, and returns what counts by t. It is called
	// only with a threshold and a period that are in range. If it reports an error its result is not used.
	new func(t *Tier, l *Limit, bad report) algorithm
}

// algorithm is one way to count, with the numbers of one tier. These methods are all that the rest of the system knows of
// it. They are called under locks, so they never wait; an algorithm is immutable and shared by all counters of its tier.
//
// Times are µs since 1970. A [Result] is filled by evaluate, and is complete from then on: what the methods below say of
// it never reads a State, which others may have changed by then.
type algorithm interface {
	// evaluate writes to r what the counter comes to at the time now, before any charge, and whether r.need fits. It changes
	// nothing but r. It returns false, and r is undefined, if only a clock that was far ahead can have written s: the state
	// is then to be repaired first.
	evaluate(s *State, now int64, r *Result) bool

	// repair brings a state for which evaluate returned false back to now. What was counted stays counted.
	repair(s *State, now int64, r *Result)

	// charge takes r.need units from s, the state for which evaluate filled r.
	charge(s *State, now int64, r *Result)

	// freshAt is the first time from which s is no different from a state that was never used.
	freshAt(s *State) int64

	// used is how many units are taken after the decision; resetAt is when none will be, and moreAt when more will be left,
	// if nothing more is charged.
	used(r *Result) int64
	resetAt(r *Result) int64
	moreAt(r *Result) int64

	// free counts so many units of r, after the decision, as not taken; below zero as taken.
	free(r *Result, units int64)

	// receipt writes to e what a refund has to know of the charge, and refund gives back at most so many of its units to s,
	// and returns how many. It never gives back more than s would have gained had the charge not been made.
	receipt(r *Result, e *ReceiptEntry)
	refund(s *State, e *ReceiptEntry, units, now int64) int64

	// offer is what could be leased beside r, were it allowed; it sets r.leaseAt if units are charged otherwise for a lease
	// than for a request. lease charges to s what was granted, after charge.
	offer(s *State, owner string, now int64, ask *LeaseRequest, r *Result) Lease
	lease(s *State, r *Result, granted *Lease)

	// giveBack returns units of a lease that were not spent to the window, slot or entry at in which they were leased, and
	// replay counts units that were admitted without the store at the time at. Neither does anything once that is over.
	// window is that of the time now.
	giveBack(s *State, units, at, now int64, window period)
	replay(s *State, units, at, now int64, window period)

	// leasing says how the tier is leased. leaseEnd is when a lease and a ramp that are granted now end, 0 if leases have no
	// end of their own. leased is Decision.Leased of a decision that leased so many units itself.
	leasing() Leasing
	leaseEnd(owner string, now int64) (lease, ramp int64)
	leased(r *Result, units int64) int64

	// counting says how the tier counts. forgottenAt is a time from which no unit counts that a request of the owner was
	// charged before the time at. It may take long, and must not be called under a lock.
	counting() Counting
	forgottenAt(owner string, at int64) int64

	// params are the numbers of the tier, for stores that count elsewhere.
	params(owner string) Params
}

// windowed is an algorithm that counts by windows or calendar periods of its own.
type windowed interface {
	algorithm

	// window is the one of the time now. It may take long, and must not be called under a lock.
	window(owner string, now int64) period
}

// period is a time from its start up to but without its end, µs since 1970.
type period struct{ start, end int64 }

// growing is an algorithm whose states grow with the requests that they count.
type growing interface {
	algorithm

	// room is how many entries the state should have room for before it is charged, 0 if it has enough. grow gives it room for
	// so many, see [Evaluation.Grow].
	room(s *State, r *Result) (entries int)
	grow(s *State, r *Result, entries int)

	// uncharge makes r say what it would had charge and lease not been called.
	uncharge(r *Result)
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

// String is the name used in plans, or "algorithm(n)" for a value that is none of them.
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

// Amount is the field of a plan that sets [Tier.Threshold]: "threshold", "rate" or "units".
func (a Algorithm) Amount() string { return kinds[a].amount }

// HasBurst reports whether a tier has a [Tier.Burst].
func (a Algorithm) HasBurst() bool { return kinds[a].hasBurst }

// HasBuckets reports whether a tier has [Tier.Buckets].
func (a Algorithm) HasBuckets() bool { return kinds[a].hasBuckets }

// HasCalendar reports whether a tier has a [Tier.Calendar] in place of a period.
func (a Algorithm) HasCalendar() bool { return kinds[a].hasCalendar }

// HasRate reports whether the amount is a rate: units come free evenly, so only Threshold/Period tells how many are
// admitted over time. Otherwise a window admits its Threshold at once, and its length matters.
func (a Algorithm) HasRate() bool { return kinds[a].amount == amountRate }

// Indivisible reports whether only one counter can keep a limit of the algorithm. Parts of the threshold that several
// counters keep may together admit more than one counter of the whole.
func (a Algorithm) Indivisible() bool { return kinds[a].indivisible }

// NeverLooser reports whether the algorithm never admits more in any interval than the other one may, with the same
// numbers. It reports false for pairs of which that is not known.
func (a Algorithm) NeverLooser(than Algorithm) bool {
	return a == than || slices.Contains(kinds[than].neverLooser, a)
}

// Counting says how a tier counts.
type Counting struct {
	// AtOnce bounds what can be admitted at once, units. In any time t the tier admits at most
	// AtOnce + Threshold·t/Period. A quota has no Period; it admits at most AtOnce where two calendar periods meet.
	AtOnce int64

	// Lasts is for how long a charge can be told from none at most, µs. With Entries, it is for how long an entry counts
	// from its own time on. 0 for a quota, whose periods differ in length.
	Lasts int64

	// Windows is how many windows are counted apart, the present one and those before it that still count. As many
	// corrections (see [LeaseRequest.Correction]), each of a time one Period before the other's, empty the counter. The
	// queue of a leaky_bucket is one. 0 if the tier has no windows, and corrections by them do nothing.
	Windows int

	Entries    bool // units are counted in entries, each with a time of its own
	EachCharge bool // each charge may have an entry of its own, so there are up to Threshold of them
}

// Counting says how the tier counts.
func (t *Tier) Counting() Counting { return t.counts.counting() }

// ForgottenAt is a time from which no unit counts that a request of the owner was charged before the time at, both µs
// since 1970. Leases may last longer. A counter that may grant more from the time at on must wait until then.
// If the tier has a calendar, ForgottenAt must not be called under a lock, see [Tier.CalendarPeriod].
func (t *Tier) ForgottenAt(owner string, at int64) int64 { return t.counts.forgottenAt(owner, at) }
