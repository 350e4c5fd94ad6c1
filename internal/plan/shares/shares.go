// Package shares divides the limits of tenants between the cells that may grant them. What all cells grant together
// never exceeds the bound that the limit's algorithm has by itself; this also holds while the shares change, provided
// that every cell learns of each change within the grace. The package only computes: time is an argument, and it reads
// and sends nothing.
//
// # The rule
//
// A cell's share of a limit is limit × weight / Σ weights over the cells that serve the tenant, in integers that sum
// to the limit: the largest remainders are rounded up, and ties go by the order of the cells' ids. For a token bucket
// both the rate and the burst are divided. A limit whose smallest share is below its largest cost is homed: it is
// counted in the tenant's home cell, and every cell that serves the tenant asks that counter for all of it
// ([View.KeptIn]). The home is the first of the cells that the tenant is pinned to and that serves; for a tenant that
// is not pinned it is the cell with the highest hash of cell and tenant. A leaky bucket is always homed, since n cells
// could each grant its largest cost at once. A quota is never divided: see [View.QuotaHome].
//
// A homed sliding_log is granted only by the home cell, since the counters that other cells can reach cannot store it.
//
// The shares list the limits that are homed, by plan and limit (in a tenant's placement by limit). The list does not
// depend on the present numbers of the limits: a changed plan or tenant never moves a limit, only a transition does.
//
// # Changing the shares
//
// Each change is a [Generation] with an epoch of its own. The [State] makes one transition at a time, in phases:
//
//   - shrink: the generation is published without a time. A cell that knows it grants at most that generation's share
//     of each limit from then on. Each cell acknowledges this epoch and phase.
//   - the grace, which is longer than the sum of four times: the age of the oldest copy that decides without a poll,
//     the longest lease, the longest decision, and the difference of clocks. After it no cell decides by an earlier
//     generation alone.
//   - grow: the generation is published with the time From, the end of the grace. A share that it raises applies from
//     the first window that starts at From or later.
//   - steady: each cell has acknowledged the phase grow too.
//
// A document holds every generation under which a window that is still open may have started. What a cell may grant in
// a window is the smallest of its shares in the generation that governs the start of the window (the last with From ≤
// start) and in each later one. Generations in which other counters keep the limit give the cell nothing. In every
// window each cell therefore grants at most its share in one and the same generation; these shares sum to the limit,
// or one counter that has the whole limit counts all of them. The start of the window is, for
//
//	fixed_window     the window's start
//	sliding_window   the start of the window before, since its count is read: the formula then holds over all cells
//	sliding_buckets  the start of the oldest bucket that counts
//	sliding_log      now − period
//	leaky_bucket     now − period: one largest cost has leaked out
//
// and always less the difference of clocks, so that a store whose clock is slow does not count in an earlier window.
//
// A token bucket has no windows. The argument for it is an ideal bucket for each cell, which begins at From with what
// the cell has left at that time, and has the new rate and the new burst. The rates and bursts of all ideal buckets
// sum to the limit's, so what they admit together is within the limit. The real bucket must not be ahead of the ideal
// one. But a real bucket is refilled only when it is next used: at a higher rate it would be refilled also for the
// time before the raise, and it misses no more at a larger burst than before. Rate and burst are therefore raised
// together, and late: after Δburst/Δrate + burst/rate. A real bucket that is used after the first of these times is
// behind the ideal one by the growth of the burst. One that was last used before it is refilled as of then, and by the
// end of the second time the ideal one is full. If only the
// burst grows, the rate is one unit lower in the meantime; if the rate shrinks, the burst shrinks in proportion until
// then. The bucket of a cell that joins starts empty: it stays closed for the time that it takes to fill.
//
// The price is that nobody grants what a cell that shrank has not yet granted in an open window. A limit that becomes
// homed, gets another home, or becomes divided is granted by nobody from when a cell learns of the change until its
// first window after From (for a bucket: until it would be full).
//
// # Bounds
//
//   - While every cell learns of changes within the grace: the algorithm's bound of the whole limit.
//   - A cell that does not learn of a change (it cannot poll, and must use its copy for as long as that lasts) goes on
//     with the shares that it knows. A transition waits for it, so that nothing is given away, unless the operator
//     removes the cell by force. Then the cell may, for as long as it still runs, grant its last share in addition: the
//     limit + the shares of the cells so removed. The same holds for a Lambda environment that is thawed after its cell
//     has acknowledged, and whose own poll fails: until it learns of the change, it may grant in addition what its copy
//     gives its cell beyond the cell's present share.
//   - Each cell learns of a change of a limit's number at its own time. Each grants its share of the number that it
//     knows: at most max(old, new) plus one unit for each cell but one, since by largest remainders a cell may get less
//     of a larger limit. A tenant that moves to a plan which homes a limit that the old plan does not, or the reverse,
//     may be granted both the old limit and the new one in the windows open at that time.
//   - The history in a document is bounded. Windows that have been open since before its oldest generation, which takes
//     64 transitions, are granted nothing more.
package shares

import (
	"math"
	"slices"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Layout is the version of the JSON of placements and states.
const Layout = 2

// Bounds. A state is stored as one item of the control tables, whose body may have 200 KB (204,800 bytes), and is sent
// in one event. Of MaxStateBytes, MaxDocumentBytes are for what cells must know; the rest is for the queue, the ids of
// finished requests, and names. Every state that Step makes therefore fits. Two generations of the largest size fit
// into a document.
const (
	MaxCells         = 64
	MaxWeight        = 1_000_000
	MaxGenerations   = 64
	MaxHomed         = 192     // homed limits of one generation
	MaxPlaced        = 64      // placements changed by one transition; also homed limits of one placement
	MaxDocumentBytes = 128_000 // of a document's JSON
	MaxStateBytes    = 200_000 // of a state's JSON
	MaxQueue         = 256     // requests that wait in the queue
	MaxTenantBytes   = 128

	mostQueueBytes       = 32_000 // of the JSON of the queue
	mostPlacedBytes      = 16_000 // of the JSON of a transition's placements, not counting the last one
	maxPlacedGenerations = 4

	maxDone    = 128     // ids of finished requests that a state remembers
	maxIDBytes = 100     // of a request's id
	maxInstant = 1 << 52 // µs since 1970
	maxEpoch   = 1 << 52
	always     = 1 // From of a generation that has no predecessor
)

// Phase is a phase of a transition.
type Phase string

// The phases, in their order.
const (
	Shrink Phase = "shrink" // shares that become smaller do so at once
	Grow   Phase = "grow"   // shares that become larger do so from a set time
	Steady Phase = "steady" // no transition
)

// order returns the number of the phase, or -1 if there is no such phase.
func (p Phase) order() int64 { return int64(slices.Index([]Phase{Shrink, Grow, Steady}, p)) }

// Weight is the weight of a cell that serves.
type Weight struct {
	Cell   string `json:"cell"`
	Weight int64  `json:"weight"` // 1..MaxWeight
}

// PlanLimit names a limit of a plan.
type PlanLimit struct {
	Plan  string `json:"plan"`
	Limit string `json:"limit"`
}

// Generation holds the shares of one epoch.
type Generation struct {
	Epoch int64       `json:"epoch"`           // above 0, ascending
	From  int64       `json:"from"`            // µs since 1970; 0: not set yet, shares only shrink; 1: no predecessor
	Cells []Weight    `json:"cells"`           // the cells that serve, sorted by id
	Homed []PlanLimit `json:"homed,omitempty"` // limits that are not divided, sorted by plan and limit

	// HomeFrom is set in the oldest generation. It is the time since which tenants without a placement have had the
	// same home cells as in this generation: older generations that were dropped had the same cells. 0 stands for
	// From.
	HomeFrom int64 `json:"home_from,omitempty"`
}

// Placement says where a tenant is served if not every cell serves it, or if some of its limits are homed although its
// plan's are not. It applies together with the document whose transition made it, or with any later document.
type Placement struct {
	Version int    `json:"version"`
	Tenant  string `json:"tenant"`
	// ascending by epoch; the first applies to all earlier times, unless older ones were dropped
	Generations []Placed `json:"generations"`
}

// Placed is a tenant's placement from one epoch on.
type Placed struct {
	Epoch int64    `json:"epoch"`           // 0: from before the first transition that placed the tenant
	From  int64    `json:"from"`            // as in Generation
	Cells []string `json:"cells,omitempty"` // the cells of the pin, the home cell first; empty: all cells
	Homed []string `json:"homed,omitempty"` // ids of limits, ascending

	// HomeFrom is set in the oldest placement. It is the time since which the tenant has been pinned to the same
	// cells: older placements that were dropped had the same cells. 0 stands for From.
	HomeFrom int64 `json:"home_from,omitempty"`
}

// Document is what every cell must know. A document, together with the placement of a tenant if it has one, says what
// any cell may grant of any limit.
type Document struct {
	Version    int   `json:"version"`
	Epoch      int64 `json:"epoch"` // of the transition in progress, or of the last one
	Phase      Phase `json:"phase"`
	SkewMicros int64 `json:"skew_us"` // largest difference of clocks, µs
	// every cell, sorted by id: cells that serve, and cells that are drained and not removed
	Members     []string     `json:"members"`
	Generations []Generation `json:"generations"` // oldest first
	// the placements that the transition changes, complete; they take precedence over stored ones
	Placements []Placement `json:"placements,omitempty"`
}

// Revision orders documents: the document with the higher revision is newer. Documents of equal revision are equal.
func (d *Document) Revision() int64 { return d.Epoch*3 + d.Phase.order() }

// View says what one cell may grant to one tenant. It is immutable. A nil View grants everything: it is for a cell
// that is the only one.
type View struct {
	cell, tenant string
	skew         int64
	gens         []era
}

// era is a generation as it applies to one tenant.
type era struct {
	from     int64
	homeFrom int64 // time since which home has been the tenant's home; 0: unknown
	cells    []Weight
	pinned   []string
	homed    []PlanLimit
	homedBy  []string
	home     string
}

// View returns what cell may grant to tenant. stored is the placement that the cell has stored for the tenant, or nil.
// A placement of the tenant in the document itself takes precedence.
func (d *Document) View(cell, tenant string, stored *Placement) *View {
	v := &View{cell: cell, tenant: tenant, skew: d.SkewMicros}
	for i := range d.Placements {
		if d.Placements[i].Tenant == tenant {
			stored = &d.Placements[i]
		}
	}
	placed := []Placed{{From: always}}
	if stored != nil && len(stored.Generations) > 0 {
		placed = stored.Generations
	}
	// One era for each epoch of either history, beginning with the later of the two first ones.
	i, j := 0, 0
	for {
		e := v.era(&d.Generations[i], &placed[j])
		if n := len(v.gens); n > 0 && e.from != 0 && v.gens[n-1].from == e.from {
			// The previous era ends when it begins: one history begins later than the other.
			if v.gens[n-1].home == e.home {
				e.homeFrom = min(v.gens[n-1].homeFrom, e.homeFrom)
			}
			v.gens = v.gens[:n-1]
		}
		v.gens = append(v.gens, e)
		switch {
		case i+1 == len(d.Generations) && j+1 == len(placed):
			return v
		case i+1 == len(d.Generations):
			j++
		case j+1 == len(placed):
			i++
		default:
			next, also := d.Generations[i+1].Epoch, placed[j+1].Epoch
			if next <= also {
				i++
			}
			if also <= next {
				j++
			}
		}
	}
}

func (v *View) era(g *Generation, p *Placed) era {
	e := era{from: laterFrom(g.From, p.From), homeFrom: laterFrom(g.homeFrom(), p.homeFrom()), cells: g.Cells,
		pinned: p.Cells, homed: g.Homed, homedBy: p.Homed}
	if len(p.Cells) > 0 {
		e.cells = slices.DeleteFunc(slices.Clone(g.Cells),
			func(w Weight) bool { return !slices.Contains(p.Cells, w.Cell) })
	}
	e.home = homeOf(v.tenant, e.cells, p.Cells)
	return e
}

// homeFrom returns the time since which tenants have had the home cells that they have in the generation.
func (g *Generation) homeFrom() int64 {
	if g.HomeFrom != 0 {
		return g.HomeFrom
	}
	return g.From
}

// homeFrom returns the time since which the tenant has been pinned as in the placement.
func (p *Placed) homeFrom() int64 {
	if p.HomeFrom != 0 {
		return p.HomeFrom
	}
	return p.From
}

// laterFrom returns the later of two times From. 0 ("not set yet") is the latest.
func laterFrom(a, b int64) int64 {
	if a == 0 || b == 0 {
		return 0
	}
	return max(a, b)
}

// Home returns the tenant's home cell after the present transition has taken effect; "" if no cell serves the tenant.
func (v *View) Home() string {
	if v == nil {
		return ""
	}
	return v.gens[len(v.gens)-1].home
}

// Homed reports whether the limit of a plan is counted as a whole in the tenant's home cell, after the present
// transition has taken effect. It does not ask about quotas: see [View.QuotaHome].
func (v *View) Homed(plan string, l *limit.Limit) bool {
	return v != nil && v.gens[len(v.gens)-1].homes(plan, &l.Tiers[0])
}

// homeOf returns the first of the pinned cells that serves, or else the cell with the highest hash (rendezvous
// hashing: a cell that joins only takes tenants over, and a cell that leaves only gives its own tenants away).
func homeOf(tenant string, serving []Weight, pinned []string) string {
	for _, cell := range pinned {
		if serves(serving, cell) {
			return cell
		}
	}
	best, most := "", uint64(0)
	for _, w := range serving {
		if h := hash(w.Cell, tenant); best == "" || h > most {
			best, most = w.Cell, h
		}
	}
	return best
}

func serves(cells []Weight, cell string) bool {
	return slices.ContainsFunc(cells, func(w Weight) bool { return w.Cell == cell })
}

// hash is FNV-1a over both names, the first of which contains no zero byte, and a final mix. All cells must compute
// the same hash: it must never change.
func hash(cell, tenant string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(cell) {
		h = (h ^ uint64(cell[i])) * 1099511628211
	}
	h *= 1099511628211
	for i := range len(tenant) {
		h = (h ^ uint64(tenant[i])) * 1099511628211
	}
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}

// beginning is earlier than any time.
const beginning = math.MinInt64
