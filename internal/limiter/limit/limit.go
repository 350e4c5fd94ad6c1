// Package limit decides whether a key may spend units now, over every limit that applies, all or nothing.
//
// It is pure: no I/O, no clock, no floats, no AWS. Time is an argument of every call, so a test or a reader of logs can
// repeat a decision exactly. The units that were charged are in a [State] for each counter. A [Store] keeps the states.
// Every store passes the contract suite in limittest.
//
// # Terms
//
// A [Limit] has tiers, and each [Tier] counts by one [Algorithm]. An [Owner] is whoever spends: a tenant, an address.
// One tier, one owner and, if the limit tells values apart, one [Value] have one counter; its content is a [State]. A
// [Request] charges the counters of one owner. The [Decision] has one [Result] for each tier. A shadow limit only
// reports.
//
// Besides requests, a counter can serve leases (a process charges units ahead and spends them later, see
// [LeaseRequest]), refunds of earlier charges ([Receipt]), and the replay of charges that were admitted without the
// store ([LeaseRequest.Correction]).
//
// # Arithmetic
//
// The algorithms are exact: each admits what its formula in [Algorithm] says, to the unit. Only a sliding_window reads
// the time in ticks, and so admits up to a tick's worth less, never more; see slidingWindow. Values that a store in Lua
// computes as well stay below 2^53, because Lua counts in doubles, and both must get the same answers. Two values may
// be larger. The total of a token bucket's refunds ([Refunds]) is sent to Lua in two parts. The product that converts a
// token bucket's level to another rate has 128 bits here, and Lua divides it digit by digit. Each algorithm is one
// file; see [Algorithm] for how to add one.
//
// # The sequence of a decision
//
// A store makes a decision in one sequence, whatever the algorithms are. The example of the package runs it.
//
//  1. [Decision.Begin] checks the request. The [Evaluation] that it returns has one Result for each tier of each limit.
//  2. [Evaluation.Evaluate] fills one Result from the State of its counter, and charges nothing. It must be called for
//     each Result.
//  3. [Evaluation.Settle] returns whether the request is allowed: whether all limits that enforce admit it.
//  4. [Evaluation.Charge] charges one counter. After Settle it must be called for each Result for which
//     [Evaluation.Charges] is true. In an allowed decision that is false only for shadow limits that would have denied.
//
// A store that bounds its memory asks [Evaluation.Room] between 3 and 4, and calls [Evaluation.Grow].
//
// [Program.Decide] is the same sequence in one call, for a store that keeps the states of an owner's counters side by
// side.
//
// An [Evaluation] is a [Decision] that is still being made. Its methods are for stores. Whoever asked for the decision
// reads the Decision.
//
// # Extending the package
//
// A charge has one cost, in units of its limit. Limits that count something else than requests (bytes, tokens of a
// model) need nothing but their own cost in each [Charge]. If the true cost of a charge is known only afterwards, a
// [LeaseRequest] can correct the counter: [LeaseRequest.Correction] charges units that were missing, or takes off units
// that were charged too much. Of a token bucket it takes off only units that are leased; a [Receipt] gives back others.
package limit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of the arithmetic. Outside them [New] refuses a limit.
const (
	MaxUnits = 1 << 40 // largest threshold, rate, burst, quota and cost, in units
	// largest threshold of a sliding_window: it is multiplied by up to 2^20 ticks
	MaxSlidingUnits = 1 << 32
	MaxLogEntries   = 10_000               // largest threshold of a sliding_log: each unit may be an entry of its own
	MaxBuckets      = 128                  // largest number of buckets of a sliding_buckets limit
	DefaultBuckets  = 24                   // buckets of a sliding_buckets limit that names none
	MinPeriod       = time.Millisecond     // shortest period; periods are whole milliseconds
	MaxPeriod       = 366 * 24 * time.Hour // longest period
	MaxTiers        = 16                   // tiers in one limit
	MaxNameBytes    = 128                  // bytes in an owner's name or a counter's value component

	// MaxSkew is how far a time in a state may lie ahead of the latest one that a correct clock could have written. A
	// state with a later time is repaired.
	MaxSkew = 5 * time.Second

	maxExact        = 1 << 52 // bound on intermediates; twice it still fits a double exactly
	maxSkew         = int64(MaxSkew / time.Microsecond)
	longAgo         = math.MinInt64 // µs; before all time
	defaultValues   = 10_000
	maxIDBytes      = 64
	maxValuesPerKey = 1_000_000
)

// Mode says what a limit's outcome does to the request.
type Mode uint8

// The modes. Limits that are off must not be sent to a store.
const (
	Enforce Mode = iota // counted, and denies
	Shadow              // counted apart, only reports what it would have denied
	Off                 // not evaluated
)

var modeNames = [...]string{"enforce", "shadow", "off"}

// String is the name used in plans.
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return "mode(" + strconv.Itoa(int(m)) + ")"
}

// ParseMode is the inverse of String. It reports false for an unknown name.
func ParseMode(name string) (Mode, bool) {
	i := slices.Index(modeNames[:], name)
	return Mode(max(i, 0)), i >= 0
}

// FailurePolicy says what a limit does while its store cannot answer.
type FailurePolicy uint8

// The failure policies.
const (
	Backstop FailurePolicy = iota // a local token bucket sized by the number of instances
	Open                          // admit
	Closed                        // deny
)

var failurePolicyNames = [...]string{"backstop", "open", "closed"}

// String is the name used in plans.
func (p FailurePolicy) String() string {
	if int(p) < len(failurePolicyNames) {
		return failurePolicyNames[p]
	}
	return "policy(" + strconv.Itoa(int(p)) + ")"
}

// ParseFailurePolicy is the inverse of String. It reports false for an unknown name.
func ParseFailurePolicy(name string) (FailurePolicy, bool) {
	i := slices.Index(failurePolicyNames[:], name)
	return FailurePolicy(max(i, 0)), i >= 0
}

// Limit is a rule with an ID. All of its tiers must admit a request. Build it with [New]; after that it is immutable
// and safe for concurrent use.
type Limit struct {
	ID string // [A-Za-z0-9._-]{1,64}; part of the counter's identity

	// Per says which parts of a request, apart from the owner, select the counter, in canonical form: "subject",
	// "ip+subject". "tenant", the default, means that an owner has one counter.
	Per string

	// Unit is what the limit counts: [a-z][a-z0-9-]{0,31}; "" means Requests. The cost of a [Charge] is in this unit.
	// It is no part of the counter's identity.
	Unit string

	// PartOf is the limit of which this one is an instance's part, while the store is away; nil if it is no part.
	PartOf *Limit

	Mode           Mode          // default Enforce
	OnStoreFailure FailurePolicy // default Backstop
	Tiers          []Tier        // 1..MaxTiers
	Exact          bool          // never leased: each decision asks the store. New sets it for some units
	AlignOwner     bool          // shift fixed and sliding windows by a hash of the owner's name (align: tenant)

	// MaxCost is the largest cost that requests are expected to have, units; 0 means 1. New refuses a limit that cannot
	// count this cost exactly. A request with a larger cost is not refused because of MaxCost.
	MaxCost int64

	// MaxValues is how many values of an owner have counters of their own; 0 means 10,000. The other values share the
	// counter of Owner.OtherValue.
	MaxValues int

	// Scope names the limit's place in a configuration, such as a descriptor's keys, if callers can choose for how many
	// owners of the kind AnyKey it counts. It is no part of the counter's identity. The store in memory bounds together
	// what such owners of one Scope take.
	Scope string

	// Home is the cell whose stores keep the counters, under the same names. "" means the cell that decides.
	Home string

	renewal  *Limit // see Renewal
	compiled bool
	valued   bool   // Per is not "tenant"
	usable   bool   // compiled, and Mode is not Off
	costMost int64  // largest cost the arithmetic carries, units
	idHash   uint64 // of ID
}

// Tier is one window of a limit. Set the exported fields, then call [New] on the limit.
type Tier struct {
	Algorithm Algorithm
	Period    time.Duration // whole milliseconds, MinPeriod..MaxPeriod; zero for a quota
	Threshold int64         // units per period: the threshold of a window, the rate of a bucket, the units of a quota
	Burst     int64         // token_bucket only: most units it can hold; 0 means Threshold
	Buckets   int           // sliding_buckets only: n, 1..MaxBuckets; 0 means DefaultBuckets
	Calendar  *Calendar     // quota only
	Ordinal   int           // 0..MaxTiers; tells apart tiers with the same algorithm and period. Tiers of plans have 0

	// Each decision reads these. They lie side by side, in one or two cache lines.
	limit    *Limit
	capacity int64     // largest cost that can ever fit, units
	perUnit  int64     // counts.perUnit()
	shadow   bool      // the limit is a shadow
	counts   algorithm // the algorithm, with the numbers of this tier
	windows  windowed  // the same algorithm, if it has windows, else nil
	grows    growing   // the same algorithm, if its states grow, else nil

	identity string // see Identity
	hash     uint64 // of identity
	digest   [16]byte
}

// FieldError says which field of a limit is wrong.
type FieldError struct {
	Tier int // the tier's index, or -1 if the field is one of the limit itself

	// Field is the name that the field has in a plan: id, per, unit, mode, onStoreFailure, maxValues, tiers, cost,
	// algorithm, period, every, threshold, rate, units, burst or buckets.
	Field  string
	Reason string
}

// Error names the field and the reason.
func (e *FieldError) Error() string {
	if e.Tier >= 0 {
		return fmt.Sprintf("tier %d: %s: %s", e.Tier+1, e.Field, e.Reason)
	}
	return e.Field + ": " + e.Reason
}

// New returns a copy of l that is checked and ready for decisions. If something is wrong, the error joins one
// [*FieldError] for each wrong field.
func New(l Limit) (*Limit, error) {
	out := l
	out.Tiers, out.costMost = slices.Clone(l.Tiers), MaxUnits
	var errs []error
	bad := func(tier int, field, format string, args ...any) {
		errs = append(errs, &FieldError{Tier: tier, Field: field, Reason: fmt.Sprintf(format, args...)})
	}
	out.check(func(field, format string, args ...any) { bad(-1, field, format, args...) })
	seen := make(map[string]int, len(out.Tiers))
	for i := range out.Tiers {
		t := &out.Tiers[i]
		before := len(errs)
		t.check(&out, func(field, format string, args ...any) { bad(i, field, format, args...) })
		if len(errs) > before {
			continue
		}
		t.limit, t.shadow, t.perUnit = &out, out.Mode == Shadow, t.counts.perUnit()
		t.identity = t.identityText(&out)
		t.hash = hashText(t.identity)
		sum := sha256.Sum256([]byte(t.identity))
		copy(t.digest[:], sum[:])
		if j, ok := seen[t.identity]; ok {
			bad(i, "period", "tiers %d and %d have the same algorithm and period, so they would be one counter", j+1,
				i+1)
		}
		seen[t.identity] = i
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	// What a request turns out to use can pass what a lease of a bucket or of a window that slides holds: the bound
	// would then hold as of the last lease only, and not as of the last request.
	out.Exact = out.Exact || out.Unit != Requests && slices.ContainsFunc(out.Tiers, func(t Tier) bool {
		leasing := t.Leasing()
		return !leasing.Ends || leasing.Weighs || leasing.Apart
	})
	out.compiled, out.valued, out.idHash = true, out.Per != PerTenant, hashText(out.ID)
	out.usable = out.Mode != Off
	if t := out.Tiers[0]; out.CountsPlaces() && t.Threshold < MaxUnits {
		open := out
		open.Tiers = []Tier{{Algorithm: t.Algorithm, Period: t.Period, Buckets: t.Buckets, Threshold: MaxUnits}}
		renewal, err := New(open)
		if err != nil {
			return nil, err
		}
		out.renewal = renewal
	}
	return &out, nil
}

// CountsPlaces reports whether l limits requests in flight, each of which takes a place: see ConcurrentRequests.
func (l *Limit) CountsPlaces() bool { return l.Unit == ConcurrentRequests }

// Renewal returns, of a limit on ConcurrentRequests, the limit that renews a place: it has the same counters, and never
// denies. The place of a request that goes on is charged anew before the old one is given back. So the request never
// goes without a place, and nobody else gets the place, although the limit may be full.
func (l *Limit) Renewal() *Limit {
	switch {
	case l.PartOf != nil:
		return l.PartOf.Renewal()
	case l.renewal != nil:
		return l.renewal
	}
	return l
}

// KeptIn returns a copy of l whose counters are kept by the stores of the cell home. l must have been made by [New].
func (l *Limit) KeptIn(home string) *Limit {
	out := *l
	out.Home, out.Tiers = home, slices.Clone(l.Tiers)
	for i := range out.Tiers {
		out.Tiers[i].limit = &out
	}
	if l.renewal != nil {
		out.renewal = l.renewal.KeptIn(home)
	}
	return &out
}

// report says what is wrong with a field.
type report func(field, format string, args ...any)

// check validates the limit's own fields and fills in their defaults.
func (l *Limit) check(bad report) {
	if !ValidID(l.ID) {
		bad("id", "%q is not 1 to %d of A-Z a-z 0-9 . _ -", l.ID, maxIDBytes)
	}
	if l.Per == "" {
		l.Per = PerTenant
	}
	if len(l.Per) > MaxNameBytes {
		bad("per", "longer than %d bytes", MaxNameBytes)
	}
	l.checkUnit(bad)
	if l.Mode > Off {
		bad("mode", "%s is not a mode", l.Mode)
	}
	if l.OnStoreFailure > Closed {
		bad("onStoreFailure", "%s is not a policy", l.OnStoreFailure)
	}
	if l.MaxCost == 0 {
		l.MaxCost = 1
	}
	if l.MaxCost < 1 || l.MaxCost > MaxUnits {
		bad("cost", "%d is outside 1..%d", l.MaxCost, int64(MaxUnits))
	}
	if l.MaxValues == 0 {
		l.MaxValues = defaultValues
	}
	if l.MaxValues < 1 || l.MaxValues > maxValuesPerKey {
		bad("maxValues", "%d is outside 1..%d", l.MaxValues, maxValuesPerKey)
	}
	if n := len(l.Tiers); n < 1 || n > MaxTiers {
		bad("tiers", "%d tiers, want 1..%d", n, MaxTiers)
	}
}

// checkUnit validates what the limit counts.
func (l *Limit) checkUnit(bad report) {
	if l.Unit == "" {
		l.Unit = Requests
	}
	if !ValidUnit(l.Unit) {
		bad("unit", "%q is not %s", l.Unit, UnitGrammar)
	}
	if l.CountsPlaces() && (len(l.Tiers) != 1 || l.Tiers[0].Algorithm != SlidingBuckets) {
		bad("unit", "%s need one tier of %s", l.Unit, SlidingBuckets)
	}
}

// check validates the tier and sets t.counts, the algorithm with the tier's numbers.
func (t *Tier) check(l *Limit, bad report) {
	if !t.Algorithm.known() {
		bad("algorithm", "%s is not an algorithm", t.Algorithm)
		return
	}
	k := &kinds[t.Algorithm]
	sound := t.Threshold >= 1 && t.Threshold <= k.largest
	if !sound {
		bad(k.amountField, "%d is outside 1..%d for %s", t.Threshold, k.largest, t.Algorithm)
	}
	if t.Ordinal < 0 || t.Ordinal > MaxTiers {
		bad("tiers", "the ordinal %d is outside 0..%d", t.Ordinal, MaxTiers)
	}
	if k.hasCalendar {
		if t.Period != 0 {
			bad("period", "a quota has a calendar period, not %s", t.Period)
			return
		}
	} else if !t.checkPeriod(k, bad) || !sound {
		return
	}
	t.capacity = t.Threshold
	t.counts = k.new(t, l, bad)
	if k.hasBurst {
		t.capacity = t.Burst
	}
	t.windows, _ = t.counts.(windowed)
	t.grows, _ = t.counts.(growing)
}

// checkPeriod validates the fields of a tier without a calendar. It returns whether the period is in range.
func (t *Tier) checkPeriod(k *kind, bad report) (sound bool) {
	if t.Calendar != nil {
		bad("every", "only a quota has a calendar")
	}
	sound = t.Period >= MinPeriod && t.Period <= MaxPeriod && t.Period%time.Millisecond == 0
	if !sound {
		bad("period", "%s is not whole milliseconds within %s..%s", t.Period, MinPeriod, MaxPeriod)
	}
	if t.Burst != 0 && !k.hasBurst {
		bad("burst", "only a token_bucket has a burst")
	}
	if t.Buckets != 0 && !k.hasBuckets {
		bad("buckets", "only sliding_buckets has buckets")
	}
	return sound
}

// Limit is the limit the tier belongs to.
func (t *Tier) Limit() *Limit { return t.limit }

// Capacity is the largest cost, in units, that the tier can ever admit.
func (t *Tier) Capacity() int64 { return t.capacity }

// Identity is a text that tells the counters of the tier from those of all other tiers: limit id, algorithm, period or
// calendar, number of buckets, per, ordinal, and whether the limit is a shadow. It is injective. A tier with another
// identity begins with counters that were never used. A tier with another threshold, rate or burst keeps its counters.
func (t *Tier) Identity() string { return t.identity }

// IdentityHash is a stable hash of Identity.
func (t *Tier) IdentityHash() uint64 { return t.hash }

// Digest is half of the SHA-256 of Identity, for stores that keep counters under short names.
func (t *Tier) Digest() [16]byte { return t.digest }

// Valued reports whether counters of the tier are told apart by a [Value], that is, whether per is not "tenant".
func (t *Tier) Valued() bool { return t.limit.valued }

// ValidID reports whether id may name a plan or a limit: [A-Za-z0-9._-]{1,64}.
func ValidID(id string) bool {
	if id == "" || len(id) > maxIDBytes {
		return false
	}
	return strings.IndexFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	}) < 0
}

const (
	// Requests is the unit of a limit that names none.
	Requests = "requests"

	// ConcurrentRequests is the unit of a limit on requests in flight, as in the registry of
	// draft-ietf-httpapi-ratelimit-headers. Such a limit is one tier of SlidingBuckets. A request charges 1, its place,
	// and gives it back when it ends. The period is how long a place counts that nobody gives back.
	ConcurrentRequests = "concurrent-requests"
)

// UnitGrammar says, for messages, what ValidUnit accepts.
const UnitGrammar = "1 to 32 of a-z 0-9 -, beginning with a letter"

// ValidUnit reports whether unit can be the Unit of a limit.
func ValidUnit(unit string) bool {
	return unit != "" && len(unit) <= 32 && unit[0] >= 'a' && unit[0] <= 'z' &&
		strings.Trim(unit, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// OtherUnit returns what the limit counts, or "" if that is requests, which nobody needs to be told.
func (l *Limit) OtherUnit() string {
	if l.Unit == Requests {
		return ""
	}
	return l.Unit
}

// UnitSuffix returns what follows an amount of the limit in a text: "" if the limit counts requests, otherwise a space
// and the unit, as in " tokens".
func (l *Limit) UnitSuffix() string {
	if unit := l.OtherUnit(); unit != "" {
		return " " + unit
	}
	return ""
}

// lowestTerms returns a/b as num/den in lowest terms, which keeps products with them small and exact.
func lowestTerms(a, b int64) (num, den int64) {
	g := gcd(a, b)
	return a / g, b / g
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// ceilDiv returns a/b rounded up, for a of at least 0 and b above 0.
func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// floorTo rounds v down to a multiple of step, also below zero.
func floorTo(v, step int64) int64 {
	r := v % step
	if r < 0 {
		r += step
	}
	return v - r
}

// productFits reports whether a·b is below maxExact. Neither may be below 0.
func productFits(a, b int64) bool {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return hi == 0 && lo < maxExact
}

// addSat adds without wrapping around: a far future time stays in the far future.
func addSat(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
