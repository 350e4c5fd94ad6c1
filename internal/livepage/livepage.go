// Package livepage shows what a running limiter does: tenants, limits, use against limit over the last minutes, and
// recent denials with the limit that bound.
package livepage

import (
	"net/http"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
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
	StoreFailed  Outcome = "store_failed" // decided without the store
)

// Observation is one request, as seen by the gateway. Decision is nil where none was made; it is not kept.
type Observation struct {
	At       time.Time
	Outcome  Outcome
	Tenant   string // "" where it is not known
	Method   string
	Path     string // the limit's pattern or the cleaned path, bounded; shown with recent denials
	Decision *limit.Decision
}

// Recorder remembers bounded counts of the last minutes. It is safe for concurrent use.
type Recorder struct{}

// NewRecorder makes an empty recorder.
func NewRecorder() *Recorder { panic("skeleton") }

// Observe counts a request. It takes a lock for well under a microsecond.
func (r *Recorder) Observe(o *Observation) { panic("skeleton") }

// Handler serves the page and its data below the path it is mounted at (as /_sluice/, already stripped).
func Handler(r *Recorder, status func() Status) http.Handler { panic("skeleton") }

// Status is what the page shows beside the counts.
type Status struct {
	PlansFile   string
	LoadedAt    time.Time
	LastError   string // of the last reload; "" if it was good
	Upstream    string
	Tenants     []TenantStatus
	Now         time.Time
	StoreBytes  int64
	Listen      string
	IPLimits    []LimitStatus
	RoutesCount int
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
}
