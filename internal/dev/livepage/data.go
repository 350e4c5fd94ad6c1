package livepage

import (
	"cmp"
	"slices"
	"time"
)

// MaxTenantRows is how many tenants data.json lists: those with most denials, then most requests, then by id.
const MaxTenantRows = 100

// Data is data.json: what the page shows. Times are milliseconds since 1970. Counts are listed per window, in the order
// of Windows. All slices are present, if empty.
type Data struct {
	Version          int          `json:"version"` // of this contract: 1
	NowMs            int64        `json:"now_ms"`
	Gateway          Gateway      `json:"gateway"`
	Windows          []Window     `json:"windows"`
	Tenants          []TenantRow  `json:"tenants"`
	TenantsNotListed int          `json:"tenants_not_listed"` // tenants in force that Tenants leaves out
	Limits           []LimitRow   `json:"limits"`             // by id, those before authentication first
	Denials          []Denial     `json:"denials"`            // newest first, at most MaxDenials
	Store            *StoreStatus `json:"store"`              // null where all counters are in the gateway's process
	// that share the limits, by name; empty where the gateway's is the only one
	Cells []CellStatus `json:"cells"`
}

// CellStatus is one of several cells that share the limits of tenants.
type CellStatus struct {
	Name string `json:"name"`
	URL  string `json:"url"`  // of its gateway; "" where none runs
	Here bool   `json:"here"` // it is the cell of this page
	// of the balancer: joining, active, draining or drained; "waiting" before it came to it
	State  string `json:"state"`
	Weight int64  `json:"weight"`

	Epoch  int64  `json:"epoch"`   // of the shares that it knows; 0: none
	Phase  string `json:"phase"`   // of these
	Await  bool   `json:"awaited"` // the change of shares under way waits to hear from it
	Head   int64  `json:"head"`    // number of the last change of its configuration
	Behind int64  `json:"behind"`  // changes that are there and not in force yet
	AgeMs  int64  `json:"age_ms"`  // of what is in force: since the cell looked last

	// What was measured last of how changes come to it, and whether it has all of them; times of 0 are those of nothing
	// yet.
	CanaryMs int64 `json:"canary_ms"` // when a change of the canary was sent
	// how long that took to be in the cell's table, at least 1; 0 where it is not known
	AppliedMs    int64 `json:"applied_ms"`
	EnforcedMs   int64 `json:"enforced_ms"`   // how long to where an authorizer enforces it that looks once per second
	Missed       bool  `json:"missed"`        // it was not enforced in its time
	ReconciledMs int64 `json:"reconciled_ms"` // when it was compared with the control tables
	Drift        int64 `json:"drift"`         // differences that were found then
	Repaired     int64 `json:"repaired"`      // of these, those that were made good

	Limits []CellLimit `json:"limits"` // of the busiest tenant that is configured: what this cell may grant of each
}

// CellLimit is what a cell may grant of a tier of a tenant's limit now.
type CellLimit struct {
	Tenant   string `json:"tenant"`
	ID       string `json:"id"`
	Tier     string `json:"tier"`
	Capacity int64  `json:"capacity"` // units of all cells
	Share    int64  `json:"share"`    // units that this cell may grant; 0 is none
}

// StoreStatus is what stands between the gateway and the stores that it shares with others. Counts are since the
// gateway's start.
type StoreStatus struct {
	Instances int             `json:"instances"` // that share the stores, as counted last
	Breakers  []BreakerStatus `json:"breakers"`  // one before each store
	Leases    *LeaseStatus    `json:"leases"`    // null where each decision asks the store
	Outage    OutageStatus    `json:"outage"`
}

// BreakerStatus is what stops asking a store that keeps failing.
type BreakerStatus struct {
	Name    string `json:"name"`    // of the store
	State   string `json:"state"`   // closed: the store is asked; open: it is not; probing: one call is let through
	Opened  int64  `json:"opened"`  // times, failed probes not included
	Probes  int64  `json:"probes"`  // calls let through to see whether the store is back
	Refused int64  `json:"refused"` // calls not let through
}

// LeaseStatus is units charged ahead, and the decisions made out of them.
type LeaseStatus struct {
	Counters int64 `json:"counters"` // remembered, now
	Units    int64 `json:"units"`    // in hand, now
	Local    int64 `json:"local"`    // decisions without a call
	Denied   int64 `json:"denied"`   // of these, denied
	Early    int64 `json:"early"`    // of those, denied although units turned out to be there before the wait was over
	Calls    int64 `json:"calls"`    // decisions that asked the store, answered or not
	Waited   int64 `json:"waited"`   // decisions that waited for another's call
	Returned int64 `json:"returned"` // units given back
	Lost     int64 `json:"lost"`     // units that ended unspent, or could not be given back
}

// OutageStatus is what became of decisions that the store did not make.
type OutageStatus struct {
	Failures    int64 `json:"failures"`     // such decisions
	Backstop    int64 `json:"backstop"`     // of these, those made by counting here
	Open        int64 `json:"open"`         // those admitted, for each limit said to admit
	Closed      int64 `json:"closed"`       // those denied, for a limit said to deny
	ChargedBack int64 `json:"charged_back"` // units charged in the store afterwards
	Dropped     int64 `json:"dropped"`      // units that should have been, and were not
	Waiting     int64 `json:"waiting"`      // owners whose units are still to be charged, now
}

// Gateway is what runs, and on what configuration.
type Gateway struct {
	PlansFile   string   `json:"plans_file"`
	LoadedMs    int64    `json:"loaded_ms"`         // 0 where nothing was loaded yet
	LastError   string   `json:"last_reload_error"` // "" where the last reload was good
	Listen      string   `json:"listen"`
	Upstream    string   `json:"upstream"` // "" is the built-in echo
	Tenants     int      `json:"tenants"`
	Routes      int      `json:"routes"` // 0: every path is forwarded
	StoreBytes  int64    `json:"store_bytes"`
	TryCommands []string `json:"try"`
}

// Window is what happened to all requests within one of the page's two windows, in total and cell by cell.
type Window struct {
	ID       string   `json:"id"`      // "minute" or "ten_minutes"
	StepMs   int64    `json:"step_ms"` // length of a cell
	FromMs   int64    `json:"from_ms"` // start of the first cell; the last one is still filling
	Totals   Counts   `json:"totals"`
	Allowed  []uint32 `json:"allowed"`  // requests per cell, oldest first
	Denied   []uint32 `json:"denied"`   // limited, by a plan or before authentication
	Other    []uint32 `json:"other"`    // every other outcome
	Degraded []uint32 `json:"degraded"` // of all these, decided without the store
}

// Counts is requests by outcome. They sum up to Requests, but for Degraded, which is about how they came to it.
type Counts struct {
	Requests     uint64 `json:"requests"`
	Allowed      uint64 `json:"allowed"`
	Limited      uint64 `json:"limited"`
	IPLimited    uint64 `json:"ip_limited"`
	Unauthorized uint64 `json:"unauthorized"`
	Forbidden    uint64 `json:"forbidden"`
	NotFound     uint64 `json:"not_found"`
	StoreFailed  uint64 `json:"store_failed"`
	Degraded     uint64 `json:"degraded"` // of Requests, decided without the store
}

// TenantRow is a tenant's counts, and its limits where it is configured.
type TenantRow struct {
	Kind       Kind     `json:"kind"` // tenant, anonymous, nobody or others
	ID         string   `json:"id"`   // of a tenant; "" for the other kinds
	Configured bool     `json:"configured"`
	Plan       string   `json:"plan"`
	Suspended  bool     `json:"suspended"`
	Counts     []Counts `json:"counts"`
	Limits     []Meter  `json:"limits"`
}

// Meter is use against one tier of a limit.
type Meter struct {
	ID        string `json:"id"`
	Tier      string `json:"tier"`
	Algorithm string `json:"algorithm"`
	Mode      string `json:"mode"`
	Per       string `json:"per"`
	Applies   string `json:"applies"`
	Period    string `json:"period"`
	Capacity  int64  `json:"capacity"` // units
	// units; -1 where each value of per has a counter of its own, or it is not known
	Used    int64    `json:"used"`
	ResetMs int64    `json:"reset_ms"` // from now until the counter is as if never used
	Counted Counting `json:"counted"`  // what used and capacity are of: store, here, open, closed or unknown
	Leased  int64    `json:"leased"`   // units in hand of this gateway's leases; the store counts used and these
}

// LimitRow is what a limit did, over all tenants. An admitted request counts for each limit that applied to it, a
// denied one for the limit that bound, as in the report of a simulation.
type LimitRow struct {
	Kind   Kind          `json:"kind"` // limit, ip_limit or others
	ID     string        `json:"id"`
	Modes  []string      `json:"modes"` // as configured, sorted; several where plans differ
	Counts []LimitCounts `json:"counts"`
}

// LimitCounts is requests that a limit applied to.
type LimitCounts struct {
	Allowed      uint64 `json:"allowed"`       // admitted, and this limit had room
	Denied       uint64 `json:"denied"`        // denied, and this limit was the binding one
	ShadowDenied uint64 `json:"shadow_denied"` // admitted, though this shadow limit had no room
}

// Denial is one limited request.
type Denial struct {
	AtMs     int64  `json:"at_ms"`
	Kind     Kind   `json:"kind"` // whose request: tenant, anonymous or nobody
	Tenant   string `json:"tenant"`
	Method   string `json:"method"`
	Path     string `json:"path"`
	Limit    string `json:"limit"` // the binding one; "" where it is not known, and Reason says more
	Tier     string `json:"tier"`
	Reason   string `json:"reason"`   // in words, where it is not that the limit is used up; "" where it is
	By       string `json:"by"`       // "plan" or "ip_limits"
	WaitMs   int64  `json:"wait_ms"`  // until the same request fits, rounded up; -1 is never, 0 is not known
	Degraded bool   `json:"degraded"` // decided without the store
}

// counts is a consistent copy of what a Recorder holds, taken under its lock.
type counts struct {
	windows []Window
	tenants map[name][windowCount][lanes]uint64
	limits  map[name][windowCount][lanes]uint64
	denials []Denial
}

// count copies the windows that end at now. A now before the newest observation is that observation's second.
func (r *Recorder) count(now time.Time) counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	second := max(now.Unix()+r.shift, r.newest)
	c := counts{windows: make([]Window, windowCount), tenants: r.tenants.totals(second),
		limits: r.limits.totals(second)}
	for i := range c.windows {
		c.windows[i] = r.window(i, second)
	}
	c.denials = make([]Denial, 0, min(r.denied, MaxDenials))
	for n := r.denied - 1; n >= 0 && n >= r.denied-MaxDenials; n-- {
		c.denials = append(c.denials, r.denials[n%MaxDenials].data())
	}
	return c
}

func (r *Recorder) window(i int, second int64) Window {
	last := floorDiv(second, stepSeconds[i])
	first := last - cellCount + 1
	w := Window{
		ID:       windowIDs[i],
		StepMs:   stepSeconds[i] * 1000,
		FromMs:   (first*stepSeconds[i] - r.shift) * 1000,
		Totals:   countsOf(r.all[i].total(last)),
		Allowed:  make([]uint32, 0, cellCount),
		Denied:   make([]uint32, 0, cellCount),
		Other:    make([]uint32, 0, cellCount),
		Degraded: make([]uint32, 0, cellCount),
	}
	for step := first; step <= last; step++ {
		c := r.all[i].at(step)
		w.Allowed = append(w.Allowed, c[laneAllowed])
		w.Denied = append(w.Denied, c[laneLimited]+c[laneIPLimited])
		w.Other = append(w.Other, c[laneUnauthorized]+c[laneForbidden]+c[laneNotFound]+c[laneStoreFailed])
		w.Degraded = append(w.Degraded, c[laneDegraded])
	}
	return w
}

// totals sums the windows of every name that has counts; the rest is under the name of the others.
func (t *table) totals(second int64) map[name][windowCount][lanes]uint64 {
	sums := make(map[name][windowCount][lanes]uint64, len(t.rows))
	for n, s := range t.rows {
		if !s.idle(second) {
			sums[n] = s.totals(second)
		}
	}
	if !t.rest.idle(second) {
		sums[name{KindOthers, ""}] = t.rest.totals(second)
	}
	return sums
}

func (d *denial) data() Denial {
	out := Denial{
		AtMs: d.at.UnixMilli(), Kind: d.who.kind, Tenant: d.who.text, Method: d.method, Path: d.path,
		Limit: d.limit, Tier: d.tier, Reason: d.reason, By: "plan",
		WaitMs:   (d.wait + time.Millisecond - 1).Milliseconds(),
		Degraded: d.degraded,
	}
	if d.byAddress {
		out.By = "ip_limits"
	}
	if d.never {
		out.WaitMs = -1
	}
	return out
}

// data joins the counts with the status.
func (r *Recorder) data(s *Status) Data {
	c := r.count(s.Now)
	d := Data{
		Version: 1,
		NowMs:   s.Now.UnixMilli(),
		Gateway: Gateway{
			PlansFile: s.PlansFile, LastError: s.LastError, Listen: s.Listen, Upstream: s.Upstream,
			Tenants: max(s.TenantsTotal, len(s.Tenants)), Routes: s.RoutesCount, StoreBytes: s.StoreBytes,
			TryCommands: append([]string{}, s.Try...),
		},
		Windows: c.windows,
		Limits:  limitRows(s, c.limits),
		Denials: c.denials,
		Store:   storeOf(s.Store),
		Cells:   cellsOf(s.Cells),
	}
	if !s.LoadedAt.IsZero() {
		d.Gateway.LoadedMs = s.LoadedAt.UnixMilli()
	}
	d.Tenants, d.TenantsNotListed = tenantRows(s, c.tenants)
	return d
}

// storeOf makes lists of what is there, so that none is null in the data.
func storeOf(s *StoreStatus) *StoreStatus {
	if s == nil {
		return nil
	}
	out := *s
	out.Breakers = append([]BreakerStatus{}, s.Breakers...)
	return &out
}

// cellsOf is the same of cells.
func cellsOf(cells []CellStatus) []CellStatus {
	out := append([]CellStatus{}, cells...)
	for i := range out {
		out[i].Limits = append([]CellLimit{}, out[i].Limits...)
	}
	return out
}

// tenantRows lists the busiest tenants, those that are configured or were seen, and then the rows that are no tenant.
func tenantRows(s *Status, sums map[name][windowCount][lanes]uint64) (_ []TenantRow, notListed int) {
	rows := make([]TenantRow, 0, len(s.Tenants)+4)
	for i := range s.Tenants {
		t := &s.Tenants[i]
		n := name{KindTenant, t.ID}
		rows = append(rows, tenantRow(n, sums[n]))
		row := &rows[len(rows)-1]
		row.Configured, row.Plan, row.Suspended, row.Limits = true, t.Plan, t.Suspended, meters(t.Limits)
		delete(sums, n)
	}
	for n, sum := range sums {
		row := tenantRow(n, sum)
		row.Configured = n.kind == KindTenant && s.TenantsTotal > len(s.Tenants) // the status holds only some
		rows = append(rows, row)
	}
	slices.SortFunc(rows, compareTenants)
	tenants := len(rows)
	for tenants > 0 && rows[tenants-1].Kind != KindTenant {
		tenants--
	}
	listed := min(tenants, MaxTenantRows)
	return slices.Delete(rows, listed, tenants), max(tenants, s.TenantsTotal) - listed
}

func tenantRow(n name, sum [windowCount][lanes]uint64) TenantRow {
	row := TenantRow{Kind: n.kind, ID: n.text, Limits: []Meter{}}
	for i := range sum {
		row.Counts = append(row.Counts, countsOf(sum[i]))
	}
	return row
}

// compareTenants puts tenants first, those who were denied most in the longest window ahead.
func compareTenants(a, b TenantRow) int {
	last := windowCount - 1
	x, y := a.Counts[last], b.Counts[last]
	return cmp.Or(
		cmp.Compare(rank(a.Kind), rank(b.Kind)),
		cmp.Compare(y.Limited+y.IPLimited, x.Limited+x.IPLimited),
		cmp.Compare(y.Requests, x.Requests),
		cmp.Compare(a.ID, b.ID))
}

func rank(k Kind) int {
	return slices.Index([]Kind{KindTenant, KindAnonymous, KindNobody, KindOthers}, k)
}

func meters(limits []LimitStatus) []Meter {
	out := make([]Meter, 0, len(limits))
	for i := range limits {
		l := &limits[i]
		out = append(out, Meter{
			ID: l.ID, Tier: l.Tier, Algorithm: l.Algorithm, Mode: l.Mode, Per: l.Per, Applies: l.Applies,
			Period: l.Period, Capacity: l.Capacity, Used: l.Used, ResetMs: max(0, l.ResetMs),
			Counted: cmp.Or(l.Counted, CountedInStore), Leased: max(0, l.Leased),
		})
	}
	return out
}

// limitRows lists every limit that is configured or was counted.
func limitRows(s *Status, sums map[name][windowCount][lanes]uint64) []LimitRow {
	modes := make(map[name][]string)
	note := func(kind Kind, limits []LimitStatus) {
		for i := range limits {
			n := name{kind, limits[i].ID}
			if had, ok := modes[n]; ok && slices.Contains(had, limits[i].Mode) {
				continue
			}
			if _, counted := sums[n]; counted || len(modes) < MaxLimits {
				modes[n] = append(modes[n], limits[i].Mode)
			}
		}
	}
	note(KindIPLimit, s.IPLimits)
	for i := range s.Tenants {
		note(KindLimit, s.Tenants[i].Limits)
	}
	for n := range sums {
		if _, ok := modes[n]; !ok {
			modes[n] = []string{}
		}
	}
	rows := make([]LimitRow, 0, len(modes))
	for n, m := range modes {
		slices.Sort(m)
		row := LimitRow{Kind: n.kind, ID: n.text, Modes: m}
		for _, sum := range sums[n] {
			row.Counts = append(row.Counts, LimitCounts{
				Allowed: sum[laneAllowed], Denied: sum[laneDenied], ShadowDenied: sum[laneShadowDenied],
			})
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b LimitRow) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) // "ip_limit", "limit", "others"
	})
	return rows
}

func countsOf(sum [lanes]uint64) Counts {
	c := Counts{
		Allowed: sum[laneAllowed], Limited: sum[laneLimited], IPLimited: sum[laneIPLimited],
		Unauthorized: sum[laneUnauthorized], Forbidden: sum[laneForbidden], NotFound: sum[laneNotFound],
		StoreFailed: sum[laneStoreFailed], Degraded: sum[laneDegraded],
	}
	for _, n := range sum[:outcomes] {
		c.Requests += n
	}
	return c
}

// Limits is what each limit did, as in Data; the status says which are configured.
func (r *Recorder) Limits(s *Status) []LimitRow { return limitRows(s, r.count(s.Now).limits) }

// Busiest is the ids of up to n tenants (at most MaxTenantRows), in the order of the page: those to peek at where there
// are too many to peek at all.
func (r *Recorder) Busiest(now time.Time, n int) []string {
	rows, _ := tenantRows(&Status{}, r.count(now).tenants)
	ids := make([]string, 0, min(n, len(rows)))
	for i := range rows {
		if rows[i].Kind == KindTenant && len(ids) < n {
			ids = append(ids, rows[i].ID)
		}
	}
	return ids
}
