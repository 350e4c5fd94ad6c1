// Package livepage shows what a running limiter does: tenants, limits, how much of each limit was used in the last
// minutes, and recent denials with their binding limits.
//
// A [Recorder] counts what the gateway observes, in memory that does not grow with the number of requests. [Handler]
// serves one static page and data.json, which the page requests repeatedly; [Data] is the format of data.json. Text
// from outside (names of tenants, paths) is sent as JSON only and shown as text, never as markup.
package livepage

import (
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Outcome says how a request ended.
type Outcome string

// The outcomes.
const (
	Allowed      Outcome = "allowed"
	Limited      Outcome = "limited"      // 429, by a limit of a plan
	IPLimited    Outcome = "ip_limited"   // 429, by an ipLimit, before authentication
	Unauthorized Outcome = "unauthorized" // 401
	Forbidden    Outcome = "forbidden"    // 403
	NotFound     Outcome = "not_found"    // 404, no such route
	StoreFailed  Outcome = "store_failed" // 429 because the store did not answer, and the limit denies in that case
)

// Observation is one request, as the gateway saw it. Observe reads the decisions and does not keep them. A request was
// decided without the store if a decision is Degraded or if the outcome is StoreFailed.
type Observation struct {
	At      time.Time
	Outcome Outcome // one of the constants; any other value counts as StoreFailed
	Tenant  string  // "" if it is not known
	Method  string
	Path    string // the limit's pattern or the cleaned path; kept up to 200 bytes
	// Decision is the decision about the plan's limits, or about the ipLimits if these denied. nil if there was none.
	Decision *limit.Decision
	// IPDecision is the decision about the ipLimits if these admitted, so that they are counted too. nil if there was
	// none.
	IPDecision *limit.Decision
	Denied     Denied // only for a denial: details that Decision does not contain
}

// Denied says why a request was denied, if there is no decision or if the decision alone would be misleading.
type Denied struct {
	Limit, Tier string        // the limit that denied, and its tier; if "", those of the decision
	Reason      string        // the reason in words; "" if a limit is used up
	Wait        time.Duration // until the request would be admitted; 0 if that is not known
	Never       bool          // the request will not be admitted however long the client waits
}

// Values of [Denied].Reason.
const (
	NotGranted  = "not granted in this cell"          // other cells grant the limit, or this cell's share is too small
	Uncountable = "costs more than a limit can count" // the store was not asked
)

// Status is what the page shows beside the counts.
type Status struct {
	Now      time.Time
	Gateway  Gateway       // its Tenants is the number of all tenants, of which Status.Tenants may hold only some
	Tenants  []TenantRow   // configured tenants, without Kind, Configured and Counts
	IPLimits []LimitStatus // without their use, since each address has a counter of its own
	Away     []string      // as in Data
	Cells    []CellStatus  // as in Data
}

// LimitStatus is how much of one tier of a limit is used.
type LimitStatus struct {
	ID        string `json:"id"`
	Tier      string `json:"tier"`
	Algorithm string `json:"algorithm"`
	Mode      string `json:"mode"`
	Per       string `json:"per"`
	Applies   string `json:"applies"`        // "PUT /product/*" or "every route"
	Unit      string `json:"unit,omitempty"` // what is counted; "": requests
	Capacity  int64  `json:"capacity"`       // units
	// Used is in units. It is -1 if each value of Per has a counter of its own, or if the use is not known.
	Used    int64 `json:"used"`
	ResetMs int64 `json:"reset_ms"` // until the counter is as if it had never been used
	// Leased is how many units this gateway has leased and not spent, of all values together. The store has counted
	// these units in addition to Used.
	Leased int64 `json:"leased"`
}

// StatusOf describes a tier. peeked is the tier's result in a peek at the tenant's counters at the time now; it is nil
// if there is none, as for a tier whose counters are per value. applies says to which requests the limit applies: "PUT
// /product/*" or "every route".
func StatusOf(t *limit.Tier, peeked *limit.Result, now time.Time, applies string) LimitStatus {
	l := t.Limit()
	s := LimitStatus{
		ID: l.ID, Tier: TierName(t), Algorithm: t.Algorithm.String(), Mode: l.Mode.String(), Per: l.Per,
		Applies: applies, Unit: l.OtherUnit(), Capacity: t.Capacity(), Used: -1,
	}
	if peeked != nil && !t.Valued() {
		s.Used = peeked.Used()
		s.ResetMs = max(0, (peeked.ResetAt()-now.UnixMicro()+999)/1000)
	}
	return s
}
