package livepage

import (
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Bounds on what a Recorder keeps. The tables need at most about 1 MB together.
const (
	MaxTenants = 256 // tenants with counts of their own; the others are counted together
	MaxLimits  = 256 // limits with counts of their own, by id; the others are counted together
	MaxDenials = 200 // newest denials that are kept

	maxNameBytes   = limit.MaxNameBytes
	maxPathBytes   = 200
	maxMethodBytes = 24

	// maxBackSeconds is by how much the times of concurrent requests may be out of order. A larger step back means that
	// the clock was set back.
	maxBackSeconds = 5
)

// Kind says what a row of counts is about.
type Kind string

// The kinds of rows.
const (
	KindTenant    Kind = "tenant"
	KindAnonymous Kind = "anonymous" // requests without a credential, under the anonymous plan
	KindNobody    Kind = "nobody"    // requests that ended before their tenant was known
	KindLimit     Kind = "limit"     // a limit of plans
	KindIPLimit   Kind = "ip_limit"  // a limit before authentication
	KindOthers    Kind = "others"    // all names that came when the table was full
)

// Indices of the counters in a cell: one for each outcome, and one for degraded requests. Counters of limits use only
// the first three, with another meaning: admitted, denied, and admitted although the shadow limit would have denied.
const (
	laneAllowed = iota
	laneLimited
	laneIPLimited
	laneUnauthorized
	laneForbidden
	laneNotFound
	laneStoreFailed
	outcomes
	laneDegraded = outcomes // counted in addition to the outcome

	laneDenied       = laneLimited
	laneShadowDenied = laneIPLimited
)

// Recorder keeps counts of the last ten minutes, in bounded memory. It is safe for concurrent use.
type Recorder struct {
	mu      sync.Mutex
	all     ring
	totals  [outcomes]int64 // requests by outcome, since the start
	tenants table
	limits  table
	denials [MaxDenials]Denial
	denied  int64 // denials since the start; the newest is at (denied-1) % MaxDenials
	newest  int64 // second of the newest observation, with shift added
	shift   int64 // seconds added to the clock's time, so that recorded time never goes back
	started bool
}

// NewRecorder makes an empty recorder.
func NewRecorder() *Recorder {
	return &Recorder{
		tenants: table{rows: make(map[name]*ring), most: MaxTenants},
		limits:  table{rows: make(map[name]*ring), most: MaxLimits},
	}
}

// Observe counts a request. It holds a lock for less than a microsecond.
func (r *Recorder) Observe(o *Observation) {
	lane := laneOf(o.Outcome)
	who := whose(o)
	r.mu.Lock()
	defer r.mu.Unlock()
	second := r.second(o.At)
	of := r.tenants.at(who, second)
	r.all.add(second, lane)
	r.totals[lane]++
	of.add(second, lane)
	if degraded(o, lane) {
		r.all.add(second, laneDegraded)
		of.add(second, laneDegraded)
	}
	r.countLimits(o.Decision, second)
	r.countLimits(o.IPDecision, second)
	if lane == laneLimited || lane == laneIPLimited {
		r.deny(o, who)
	}
}

// Totals returns how many requests had each outcome since the start. Outcomes without requests are missing.
func (r *Recorder) Totals() map[Outcome]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[Outcome]int64{}
	for lane, n := range r.totals {
		if n > 0 {
			out[lanesOf[lane]] = n
		}
	}
	return out
}

// degraded reports whether any part of the request was decided without the store.
func degraded(o *Observation, lane int) bool {
	return lane == laneStoreFailed || o.Decision != nil && o.Decision.Degraded || o.IPDecision != nil &&
		o.IPDecision.Degraded
}

// lanesOf are the outcomes, each at the index of its counter.
var lanesOf = [outcomes]Outcome{Allowed, Limited, IPLimited, Unauthorized, Forbidden, NotFound, StoreFailed}

// laneOf returns the index of the counter for an outcome.
func laneOf(o Outcome) int {
	if lane := slices.Index(lanesOf[:], o); lane >= 0 {
		return lane
	}
	return laneStoreFailed
}

// whose returns the row to which a request belongs.
func whose(o *Observation) name {
	switch {
	case o.Tenant != "":
		return name{KindTenant, o.Tenant}
	case o.Decision != nil && o.Decision.Owner.Kind == limit.Anonymous:
		return name{KindAnonymous, ""}
	default:
		return name{KindNobody, ""}
	}
}

// second returns the time under which an observation is recorded, in seconds. It is the time of the observation, unless
// the clock was set back. Then recorded time goes on from the newest observation, so that the last minutes stay on the
// page, and new requests are counted after them.
func (r *Recorder) second(at time.Time) int64 {
	s := at.Unix() + r.shift
	if r.started && s < r.newest-maxBackSeconds {
		r.shift += r.newest - s
		s = r.newest
	}
	r.newest, r.started = max(r.newest, s), true
	return s
}

// countLimits counts each limit of a decision once, however many tiers it has. An admitted request counts as allowed
// for each limit, except for a shadow limit that would have denied it. A denied request counts for the binding limit
// only.
func (r *Recorder) countLimits(d *limit.Decision, second int64) {
	switch {
	case d == nil:
		return
	case !d.Allowed:
		if b := d.Binding(); b != nil {
			r.limits.at(limitName(d, b.Limit()), second).add(second, laneDenied)
		}
		return
	}
	for i := 0; i < len(d.Results); {
		l, admits := d.Results[i].Limit(), true
		for ; i < len(d.Results) && d.Results[i].Limit() == l; i++ {
			admits = admits && d.Results[i].Admits
		}
		lane := laneAllowed
		if !admits { // the request was admitted, so this is a shadow limit
			lane = laneShadowDenied
		}
		r.limits.at(limitName(d, l), second).add(second, lane)
	}
}

func limitName(d *limit.Decision, l *limit.Limit) name {
	if d.Owner.Kind == limit.Address {
		return name{KindIPLimit, l.ID}
	}
	return name{KindLimit, l.ID}
}

func (r *Recorder) deny(o *Observation, who name) {
	d := Denial{
		AtMs: o.At.UnixMilli(), Kind: who.kind, Tenant: cut(who.text, maxNameBytes),
		Method: cut(o.Method, maxMethodBytes), Path: cut(o.Path, maxPathBytes),
		Limit: cut(o.Denied.Limit, maxNameBytes), Tier: cut(o.Denied.Tier, maxNameBytes),
		Reason: o.Denied.Reason, By: "plan",
	}
	if o.Outcome == IPLimited {
		d.By = "ip_limits"
	}
	never, wait := o.Denied.Never, o.Denied.Wait
	if o.Decision != nil {
		if d.Reason == "" {
			never, wait = o.Decision.Never, o.Decision.RetryAfter()
		}
		if b := o.Decision.Binding(); b != nil {
			d.Limit, d.Tier = b.Limit().ID, TierName(b.Tier)
		}
	}
	if d.WaitMs = (wait + time.Millisecond - 1).Milliseconds(); never {
		d.WaitMs = -1
	}
	r.denials[r.denied%MaxDenials] = d
	r.denied++
}

// cut shortens a text to at most n bytes, at the beginning of a character. The result is a copy, so that a longer text
// is not kept in memory.
func cut(s string, n int) string {
	if len(s) <= n {
		return strings.Clone(s)
	}
	for n -= len("…"); n > 0 && !utf8.RuneStart(s[n]); n-- {
	}
	return s[:n] + "…"
}

// TierName returns the window of a tier in the form that people write: "1s", "10m", "24h", "month".
func TierName(t *limit.Tier) string {
	if t.Calendar != nil {
		return t.Calendar.Every.String()
	}
	return limit.DurationText(t.Period)
}
