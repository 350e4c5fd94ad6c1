package livepage

import (
	"cmp"
	"slices"
	"time"
)

// MaxTenantRows is how many tenants data.json lists. They are ordered by denials, then by requests, then by id.
const MaxTenantRows = 100

// Data is the content of data.json, which the page shows. Times are milliseconds since 1970. Counts are those of the
// last ten minutes. Slices are never null.
type Data struct {
	Version int         `json:"version"` // version of this format: 2
	NowMs   int64       `json:"now_ms"`
	Gateway Gateway     `json:"gateway"`
	Totals  Counts      `json:"totals"`
	Tenants []TenantRow `json:"tenants"`
	// TenantsNotListed is the number of tenants with requests or a configuration that Tenants does not list.
	TenantsNotListed int        `json:"tenants_not_listed"`
	Limits           []LimitRow `json:"limits"`  // by id; the ipLimits, which apply before authentication, first
	Denials          []Denial   `json:"denials"` // newest first, at most MaxDenials
	Away             []string   `json:"away"`    // names of the shared stores that do not answer
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

	// Limits says what this cell may grant of each limit of the configured tenant with the most requests.
	Limits []CellLimit `json:"limits"`
}

// CellLimit is what a cell may now grant of one tier of a tenant's limit.
type CellLimit struct {
	Tenant   string `json:"tenant"`
	ID       string `json:"id"`
	Tier     string `json:"tier"`
	Unit     string `json:"unit,omitempty"` // what is counted; "": requests
	Capacity int64  `json:"capacity"`       // units that all cells together may grant
	Share    int64  `json:"share"`          // units that this cell may grant
}

// Gateway describes the gateway that runs, and its configuration.
type Gateway struct {
	PlansFile   string   `json:"plans_file"`
	LoadedMs    int64    `json:"loaded_ms"`         // 0 if nothing has been loaded yet
	LastError   string   `json:"last_reload_error"` // "" if the last reload succeeded
	Listen      string   `json:"listen"`
	Upstream    string   `json:"upstream"` // its URL, or that the built-in echo answers
	Tenants     int      `json:"tenants"`
	Routes      int      `json:"routes"` // number of declared routes; 0: every path is forwarded
	StoreBytes  int64    `json:"store_bytes"`
	TryCommands []string `json:"try"`
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

// TenantRow holds the counts of a tenant, and its limits if the tenant is configured, with a peek at the counters that
// it has for the tenant as a whole.
type TenantRow struct {
	Kind       Kind          `json:"kind"` // tenant, anonymous, nobody or others
	ID         string        `json:"id"`   // id of the tenant; "" for the other kinds
	Configured bool          `json:"configured"`
	Plan       string        `json:"plan"`
	Suspended  bool          `json:"suspended"`
	Counts     Counts        `json:"counts"`
	Limits     []LimitStatus `json:"limits"`
}

// LimitRow counts what a limit did, over all tenants. An admitted request counts for each limit that applied to it. A
// denied request counts for the binding limit only, as in the report of a simulation.
type LimitRow struct {
	Kind   Kind        `json:"kind"` // limit, ip_limit or others
	ID     string      `json:"id"`
	Modes  []string    `json:"modes"` // as configured, sorted; several if plans differ
	Counts LimitCounts `json:"counts"`
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
	AtMs   int64  `json:"at_ms"`
	Kind   Kind   `json:"kind"` // whose request: tenant, anonymous or nobody
	Tenant string `json:"tenant"`
	Method string `json:"method"`
	Path   string `json:"path"`
	Limit  string `json:"limit"` // the binding limit; "" if it is not known: see Reason then
	Tier   string `json:"tier"`
	Reason string `json:"reason"`  // the reason in words; "" if the limit is used up
	By     string `json:"by"`      // "plan" or "ip_limits"
	WaitMs int64  `json:"wait_ms"` // until the same request would be admitted, rounded up; -1: never; 0: not known
}

// data combines the counts with the status. If the time of the status is before the newest observation, the ten minutes
// end with that observation.
func (r *Recorder) data(s *Status) Data {
	d := Data{
		Version: 2, NowMs: s.Now.UnixMilli(), Gateway: s.Gateway, Denials: []Denial{},
		Away: append([]string{}, s.Away...), Cells: cellsOf(s.Cells),
	}
	d.Gateway.Tenants = max(d.Gateway.Tenants, len(s.Tenants))
	d.Gateway.TryCommands = append([]string{}, s.Gateway.TryCommands...)
	r.mu.Lock() // requests wait for it, so the rows are made after it
	second := max(s.Now.Unix()+r.shift, r.newest)
	total, limits, tenants := r.all.total(second), r.limits.totals(second), r.tenants.totals(second)
	for n := r.denied - 1; n >= 0 && n >= r.denied-MaxDenials; n-- {
		d.Denials = append(d.Denials, r.denials[n%MaxDenials])
	}
	r.mu.Unlock()
	d.Totals, d.Limits = countsOf(total), limitRows(s, limits)
	d.Tenants, d.TenantsNotListed = tenantRows(s, tenants)
	return d
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
func tenantRows(s *Status, sums map[name][lanes]uint64) (_ []TenantRow, notListed int) {
	rows := make([]TenantRow, 0, len(s.Tenants)+4)
	for _, row := range s.Tenants {
		n := name{KindTenant, row.ID}
		row.Kind, row.Configured, row.Counts = KindTenant, true, countsOf(sums[n])
		row.Limits = append([]LimitStatus{}, row.Limits...)
		rows = append(rows, row)
		delete(sums, n)
	}
	for n, sum := range sums {
		// If the status holds only some of the tenants, this tenant is one of the others.
		configured := n.kind == KindTenant && s.Gateway.Tenants > len(s.Tenants)
		rows = append(rows, TenantRow{Kind: n.kind, ID: n.text, Configured: configured, Counts: countsOf(sum),
			Limits: []LimitStatus{}})
	}
	slices.SortFunc(rows, compareTenants)
	tenants := len(rows)
	for tenants > 0 && rows[tenants-1].Kind != KindTenant {
		tenants--
	}
	listed := min(tenants, MaxTenantRows)
	return slices.Delete(rows, listed, tenants), max(tenants, s.Gateway.Tenants) - listed
}

// compareTenants orders tenants before other rows, and tenants by their denials, most first.
func compareTenants(a, b TenantRow) int {
	x, y := a.Counts, b.Counts
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
func limitRows(s *Status, sums map[name][lanes]uint64) []LimitRow {
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
		sum := sums[n]
		rows = append(rows, LimitRow{Kind: n.kind, ID: n.text, Modes: m, Counts: LimitCounts{
			Allowed: sum[laneAllowed], Denied: sum[laneDenied], ShadowDenied: sum[laneShadowDenied],
		}})
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

// Busiest returns the id of the tenant that the page lists first, or "" if no tenant has made a request.
func (r *Recorder) Busiest(now time.Time) string {
	if rows := r.data(&Status{Now: now}).Tenants; len(rows) > 0 {
		return rows[0].ID // "" if it is not about a tenant
	}
	return ""
}
