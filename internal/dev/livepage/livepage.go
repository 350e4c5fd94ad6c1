// Package livepage shows what a running limiter does: tenants, limits, use against limit over the last minutes, and
// recent denials with the limit that bound.
//
// A [Recorder] counts what the gateway observes, in memory that does not grow with traffic. [Handler] serves one static
// page and data.json, which the page polls; [Data] is the contract between the two. What comes from outside (tenant
// names, paths) travels as JSON only and is shown as text, never as markup.
package livepage

import (
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Outcome is what became of a request.
type Outcome string

// The outcomes.
const (
	Allowed      Outcome = "allowed"
	Limited      Outcome = "limited"      // 429 by a plan's limit
	IPLimited    Outcome = "ip_limited"   // 429 by an ipLimit, before authentication
	Unauthorized Outcome = "unauthorized" // 401
	Forbidden    Outcome = "forbidden"    // 403
	NotFound     Outcome = "not_found"    // 404, no route
	StoreFailed  Outcome = "store_failed" // 429 without an answer of the store, where a limit is closed then
)

// Observation is one request, as seen by the gateway. The decisions are read while it is observed and not kept. One
// that is Degraded, or StoreFailed as the outcome, makes it a request that was decided without the store.
type Observation struct {
	At       time.Time
	Outcome  Outcome // one of the constants; anything else counts as StoreFailed
	Tenant   string  // "" where it is not known
	Method   string
	Path     string          // the limit's pattern or the cleaned path; cut to 200 bytes where it is kept
	Decision *limit.Decision // over the plan's limits, or the ipLimits where these denied; nil where none was made
	// over the ipLimits where these admitted, so that they are counted too; nil where there are none
	IPDecision *limit.Decision
	Denied     Denied // of a denial: what Decision does not tell
}

// Denied says why a request was denied where no decision says so, or where the decision alone would mislead.
type Denied struct {
	Limit, Tier string        // the limit that refused, and its window; "" is that of the decision
	Reason      string        // in words, where it is not that the limit is used up; "" where it is
	Wait        time.Duration // until the request fits; 0 where that is not known
	Never       bool          // no wait helps
}

// Reasons of [Denied].
const (
	NotGranted  = "not granted in this cell"          // other cells grant the limit, or more of it
	Uncountable = "costs more than a limit can count" // no store was asked
)

// Status is what the page shows beside the counts.
type Status struct {
	PlansFile    string
	LoadedAt     time.Time
	LastError    string // of the last reload; "" if it was good
	Upstream     string
	Tenants      []TenantStatus
	TenantsTotal int // tenants in the plans file, where Tenants holds only some; 0 means len(Tenants)
	Now          time.Time
	StoreBytes   int64
	Listen       string
	IPLimits     []LimitStatus
	RoutesCount  int
	Try          []string     // commands that make traffic, a curl line for each tenant; shown while there is none
	Store        *StoreStatus // nil where all counters are in this process
	Cells        []CellStatus // of all that share the limits, by name; none where there is only this one
}

// TenantStatus is a tenant as configured, with a peek at its tenant-wide counters.
type TenantStatus struct {
	ID, Plan  string
	Suspended bool
	Limits    []LimitStatus
}

// LimitStatus is one tier of a limit.
type LimitStatus struct {
	ID, Tier, Algorithm, Mode, Per, Applies string // Applies: "PUT /product/*" or "every route"
	Capacity, Used                          int64  // units; Used is -1 where the counter is per value
	ResetMs                                 int64
	Period                                  string

	Counted Counting // what Used and Capacity are of; "" is CountedInStore
	Leased  int64    // units in hand of this gateway's leases, of all values together. The store counts Used and these
}

// Counting is where the use of a limit is counted now, as far as is known.
type Counting string

// The ways to count.
const (
	CountedInStore Counting = "store"
	// the store is away: by this gateway's backstop; Capacity is its part of the limit
	CountedHere    Counting = "here"
	CountedOpen    Counting = "open"    // the store is away, and the limit admits; Used is -1
	CountedClosed  Counting = "closed"  // the store is away, and the limit denies; Used is -1
	CountedUnknown Counting = "unknown" // the store could not be asked; Used is -1
)

// StatusOf describes a tier. peeked is its result in a peek at the tenant's counters, whose time is now; nil where
// there is none, as for a tier whose counters are per value. applies says which requests: "PUT /product/*" or "every
// route".
func StatusOf(t *limit.Tier, peeked *limit.Result, now time.Time, applies string) LimitStatus {
	l := t.Limit()
	s := LimitStatus{
		ID: l.ID, Tier: TierName(t), Algorithm: t.Algorithm.String(), Mode: l.Mode.String(), Per: l.Per,
		Applies:  applies,
		Capacity: t.Capacity(), Used: -1, Period: TierName(t),
	}
	if peeked != nil && !t.Valued() {
		s.Used = peeked.Used()
		s.ResetMs = max(0, (peeked.ResetAt()-now.UnixMicro()+999)/1000)
	}
	return s
}
