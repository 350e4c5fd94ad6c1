package livepage

import (
	"cmp"
	"slices"
	"time"
)

// MaxTenantRows is how many tenants data.json lists. They are ordered by denials, then by requests, then by id.
const MaxTenantRows = 100

// Data is the content of data.json, which the page shows. Times are milliseconds since 1970. Counts are given for each
// window, in the order of Windows. Slices are never null.
type Data struct {
	Version int         `json:"version"` // version of this format: 1
	NowMs   int64       `json:"now_ms"`
	Gateway Gateway     `json:"gateway"`
	Windows []Window    `json:"windows"`
	Tenants []TenantRow `json:"tenants"`
	// TenantsNotListed is the number of tenants with requests or a configuration that Tenants does not list.
	TenantsNotListed int          `json:"tenants_not_listed"`
	Limits           []LimitRow   `json:"limits"`  // by id; the ipLimits, which apply before authentication, first
	Denials          []Denial     `json:"denials"` // newest first, at most MaxDenials
	Store            *StoreStatus `json:"store"`   // null if all counters are in the gateway's process
	// Cells lists all cells that share the limits, by name. It is empty if there is only one cell.
	Cells []CellStatus `json:"cells"`
}

// CellStatus describes one of the cells that share the limits of tenants.
type CellStatus struct {
	Name string `json:"name"`
	URL  string `json:"url"`  // URL of the cell's gateway; "" if none runs
	Here bool   `json:"here"` // whether this page is served by the cell
	// State is the state of the cell that the balancer has stored: joining, active, draining or drained; "waiting"
	// until the balancer has seen the cell.
	State  string `json:"state"`
	Weight int64  `json:"weight"`

	Epoch  int64  `json:"epoch"`   // epoch of the shares that the cell knows; 0 if it knows none
	Phase  string `json:"phase"`   // phase of these shares
	Await  bool   `json:"awaited"` // whether a change of shares waits for the cell's acknowledgement
	Head   int64  `json:"head"`    // number of the last change of its configuration
	Behind int64  `json:"behind"`  // changes that exist and that the cell does not enforce yet
	AgeMs  int64  `json:"age_ms"`  // age of the configuration in force: time since the cell last looked for changes

	// Limits says what this cell may grant of each limit of the configured tenant with the most requests.
	Limits []CellLimit `json:"limits"`
}

// CellLimit is what a cell may now grant of one tier of a tenant's limit.
type CellLimit struct {
	Tenant   string `json:"tenant"`
	ID       string `json:"id"`
	Tier     string `json:"tier"`
	Capacity int64  `json:"capacity"` // units that all cells together may grant
	Share    int64  `json:"share"`    // units that this cell may grant
}

// StoreStatus describes the store chain between the gateway and the stores that it shares with others. Counts are since
// the start of the gateway.
type StoreStatus struct {
	Instances int             `json:"instances"` // processes that share the stores, by the latest count
	Breakers  []BreakerStatus `json:"breakers"`  // one for each store
	Leases    *LeaseStatus    `json:"leases"`    // null if every decision asks the store
	Outage    OutageStatus    `json:"outage"`
}

// BreakerStatus is the state of a circuit breaker, which stops calls to a store that keeps failing.
type BreakerStatus struct {
	Name string `json:"name"` // name of the store
	// State is closed (the store is called), open (it is not called) or probing (one call is made to test it).
	State   string `json:"state"`
	Opened  int64  `json:"opened"`  // how often the breaker opened, not counting failed probes
	Probes  int64  `json:"probes"`  // calls made to find out whether the store answers again
	Refused int64  `json:"refused"` // calls that were not made
}

// LeaseStatus describes the units that are charged ahead, and the decisions that are made from them.
type LeaseStatus struct {
	Counters int64 `json:"counters"` // counters that the lease layer holds now
	Units    int64 `json:"units"`    // leased units that are not spent, now
	Local    int64 `json:"local"`    // decisions without a call
	Denied   int64 `json:"denied"`   // those of Local that denied
	// Early counts those of Denied for which the store had units before the wait was over.
	Early    int64 `json:"early"`
	Calls    int64 `json:"calls"`    // decisions that called the store, whether or not it answered
	Waited   int64 `json:"waited"`   // decisions that waited for the call of another decision
	Returned int64 `json:"returned"` // units given back
	Lost     int64 `json:"lost"`     // units that expired unspent, or could not be given back
}

// OutageStatus counts the decisions for which the store gave no answer.
type OutageStatus struct {
	Failures    int64 `json:"failures"`     // decisions for which the store gave no answer
	Backstop    int64 `json:"backstop"`     // those of Failures that counted in the memory of the process
	Open        int64 `json:"open"`         // those of Failures that admitted because of onStoreFailure: open
	Closed      int64 `json:"closed"`       // those of Failures that denied because of onStoreFailure: closed
	ChargedBack int64 `json:"charged_back"` // units that were replayed: charged in the store afterwards
	Dropped     int64 `json:"dropped"`      // units that should have been replayed, and were not
	Waiting     int64 `json:"waiting"`      // owners with pending units, which are still to be replayed
}

// Gateway describes the gateway that runs, and its configuration.
type Gateway struct {
	PlansFile   string   `json:"plans_file"`
	LoadedMs    int64    `json:"loaded_ms"`         // 0 if nothing has been loaded yet
	LastError   string   `json:"last_reload_error"` // "" if the last reload succeeded
	Listen      string   `json:"listen"`
	Upstream    string   `json:"upstream"` // "" if the built-in echo answers
	Tenants     int      `json:"tenants"`
	Routes      int      `json:"routes"` // number of declared routes; 0: every path is forwarded
	StoreBytes  int64    `json:"store_bytes"`
	TryCommands []string `json:"try"`
}

// Window counts all requests within one of the two windows of the page.
type Window struct {
	ID     string `json:"id"` // "minute" or "ten_minutes"
	Totals Counts `json:"totals"`
}

// Counts are requests by outcome. Their sum is Requests; Degraded is not part of the sum, since it counts requests that
// have one of the other outcomes.
type Counts struct {
	Requests     uint64 `json:"requests"`
	Allowed      uint64 `json:"allowed"`
	Limited      uint64 `json:"limited"`
	IPLimited    uint64 `json:"ip_limited"`
	Unauthorized uint64 `json:"unauthorized"`
	Forbidden    uint64 `json:"forbidden"`
	NotFound     uint64 `json:"not_found"`
	StoreFailed  uint64 `json:"store_failed"`
	Degraded     uint64 `json:"degraded"` // those of Requests that were decided without the store
}

// TenantRow holds the counts of a tenant, and its limits if the tenant is configured.
type TenantRow struct {
	Kind       Kind          `json:"kind"` // tenant, anonymous, nobody or others
	ID         string        `json:"id"`   // id of the tenant; "" for the other kinds
	Configured bool          `json:"configured"`
	Plan       string        `json:"plan"`
	Suspended  bool          `json:"suspended"`
	Counts     []Counts      `json:"counts"`
	Limits     []LimitStatus `json:"limits"`
}

// LimitRow counts what a limit did, over all tenants. An admitted request counts for each limit that applied to it. A
// denied request counts for the binding limit only, as in the report of a simulation.
type LimitRow struct {
	Kind   Kind          `json:"kind"` // limit, ip_limit or others
	ID     string        `json:"id"`
	Modes  []string      `json:"modes"` // as configured, sorted; several if plans differ
	Counts []LimitCounts `json:"counts"`
}

// LimitCounts counts the requests that a limit applied to.
type LimitCounts struct {
	Allowed uint64 `json:"allowed"` // requests that were admitted, and that this limit admitted
	Denied  uint64 `json:"denied"`  // requests that were denied with this limit as the binding one
	// ShadowDenied counts requests that were admitted although this shadow limit would have denied them.
	ShadowDenied uint64 `json:"shadow_denied"`
}

// Denial is one request that a limit denied.
type Denial struct {
	AtMs     int64  `json:"at_ms"`
	Kind     Kind   `json:"kind"` // whose request: tenant, anonymous or nobody
	Tenant   string `json:"tenant"`
	Method   string `json:"method"`
	Path     string `json:"path"`
	Limit    string `json:"limit"` // the binding limit; "" if it is not known: see Reason then
	Tier     string `json:"tier"`
	Reason   string `json:"reason"`   // the reason in words; "" if the limit is used up
	By       string `json:"by"`       // "plan" or "ip_limits"
	WaitMs   int64  `json:"wait_ms"`  // until the same request would be admitted, rounded up; -1: never; 0: not known
	Degraded bool   `json:"degraded"` // decided without the store
}

// counts is a consistent copy of the counts of a Recorder, taken under its lock.
type counts struct {
	windows []Window
	tenants map[name][windowCount][lanes]uint64
	limits  map[name][windowCount][lanes]uint64
	denials []Denial
}

// count copies the windows that end at now. If now is before the newest observation, the windows end with the second of
// that observation.
func (r *Recorder) count(now time.Time) counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	second := max(now.Unix()+r.shift, r.newest)
	c := counts{windows: make([]Window, windowCount), tenants: r.tenants.totals(second),
		limits: r.limits.totals(second)}
	for i, sum := range r.all.totals(second) {
		c.windows[i] = Window{windowIDs[i], countsOf(sum)}
	}
	c.denials = make([]Denial, 0, min(r.denied, MaxDenials))
	for n := r.denied - 1; n >= 0 && n >= r.denied-MaxDenials; n-- {
		c.denials = append(c.denials, r.denials[n%MaxDenials])
	}
	return c
}

// totals sums up the windows of every name that has counts. Names that did not fit in the table are counted together,
// as KindOthers.
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

// data combines the counts with the status.
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

// storeOf returns a copy in which no list is nil, so that none is null in data.json.
func storeOf(s *StoreStatus) *StoreStatus {
	if s == nil {
		return nil
	}
	out := *s
	out.Breakers = append([]BreakerStatus{}, s.Breakers...)
	return &out
}

// cellsOf returns a copy in which no list is nil, so that none is null in data.json.
func cellsOf(cells []CellStatus) []CellStatus {
	out := append([]CellStatus{}, cells...)
	for i := range out {
		out[i].Limits = append([]CellLimit{}, out[i].Limits...)
	}
	return out
}

// tenantRows lists the tenants with most denials, of those that are configured or made requests, and then the rows that
// are not about a tenant.
func tenantRows(s *Status, sums map[name][windowCount][lanes]uint64) (_ []TenantRow, notListed int) {
	rows := make([]TenantRow, 0, len(s.Tenants)+4)
	for i := range s.Tenants {
		t := &s.Tenants[i]
		n := name{KindTenant, t.ID}
		rows = append(rows, tenantRow(n, sums[n]))
		row := &rows[len(rows)-1]
		row.Configured, row.Plan, row.Suspended = true, t.Plan, t.Suspended
		row.Limits = append(row.Limits, t.Limits...)
		delete(sums, n)
	}
	for n, sum := range sums {
		row := tenantRow(n, sum)
		// If the status holds only some of the tenants, this tenant is one of the others.
		row.Configured = n.kind == KindTenant && s.TenantsTotal > len(s.Tenants)
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
	row := TenantRow{Kind: n.kind, ID: n.text, Limits: []LimitStatus{}}
	for i := range sum {
		row.Counts = append(row.Counts, countsOf(sum[i]))
	}
	return row
}

// compareTenants orders tenants before other rows, and tenants by their denials in the longest window, most first.
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

// limitRows lists every limit that is configured or has counts.
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

// Limits returns what each limit did, as in Data. The status says which limits are configured.
func (r *Recorder) Limits(s *Status) []LimitRow { return limitRows(s, r.count(s.Now).limits) }

// Busiest returns the ids of up to n tenants (at most MaxTenantRows), in the order of the page. If there are too many
// tenants to peek at all their counters, these are the ones to peek at.
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
