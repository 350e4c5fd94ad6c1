// Package shares divides the limits of tenants between the cells that may grant them, so that what the cells grant
// together never passes a limit over its algorithm's own bound, through any change of the shares that every cell hears
// within the grace. It is pure: time is an argument, and nothing is read or sent.
//
// # The rule
//
// A cell's share of a limit is limit × weight / Σ weights over the cells that serve the tenant, in integers that sum to
// the limit: largest remainders first, ties in the order of the cells' ids. Of a token bucket the rate and the burst
// are both divided. A limit whose smallest share is below its largest cost is homed: it is counted in the tenant's home
// cell, and every cell that serves the tenant asks that counter for all of it ([View.KeptIn]). The home is the first
// serving one of the cells that the tenant is pinned to, else the one with the highest hash of cell and tenant. A leaky
// bucket is always homed, since n cells could each grant its largest cost at once. A quota is never divided: see
// [View.QuotaHome].
//
// Two kinds of homed limits are granted by the home cell alone: those of a generation that is not [Generation.Kept],
// and a sliding_log, which the counters that other cells reach cannot keep.
//
// Which limits are homed stands in the shares, by plan and limit (by limit in a tenant's placement), and not in the
// limits' numbers: so a plan or a tenant event never moves one, only a transition does.
//
// # Changing the shares
//
// Each change is a [Generation] with an epoch of its own. The [State] goes through one transition at a time:
//
//   - shrink: the generation is published without a time. A cell that knows it grants of each limit at most what it gives
//     it, at once. Each cell acknowledges it, for that epoch and phase.
//   - the grace: longer than the oldest copy that decides unpolled, the longest lease, a decision under way and the
//     difference of clocks together. From then on no cell decides on the generation before.
//   - grow: the generation is published with the time From, at which all of that was over. What it raises counts from the
//     first window that starts at From or later.
//   - steady: each cell has acknowledged that, too.
//
// A document holds the generations that a window which is still open may have started under. What a cell may grant in a
// window is the least of its shares in the generation that governs the start of the window (the last with From ≤ start)
// and in each one since; generations in which other counters keep the limit give it nothing. So in every window each
// cell has at most its share in one and the same generation, and those sum to the limit, or are all counted by one
// counter that has the limit. What is looked at as the start of the window is for
//
//	fixed_window     the window's start
//	sliding_window   the start of the window before, since its count is read: the formula then holds over all cells
//	sliding_buckets  the start of the oldest bucket that counts
//	sliding_log      now − period
//	leaky_bucket     now − period: one largest cost has leaked out
//
// and always as of the difference of clocks ago, so that a store whose clock is behind does not count in the window
// before.
//
// A token bucket has no windows. Its argument is an ideal bucket for each cell, with the new rate and the new burst
// from From on, which begins with what the cell has left then: their rates and bursts sum to the limit's, so what is
// within them is within the limit's. The real bucket must not be ahead of it. But the core refills lazily: at a higher
// rate it would refill for the time before it was raised, too, and a bucket whose state was forgotten, since it was
// full, is full at any burst. So rate and burst are raised together and late, when the ideal bucket of a cell that was
// empty at From is full, and is as far ahead of the real one as the burst grows: after max(burst/rate, Δburst/Δrate).
// Where only the burst grows, the rate is one unit lower meanwhile; where the rate shrinks, the burst shrinks in
// proportion until then. A bucket of a cell that joins starts empty: it is closed for as long as it would take to fill.
//
// The price: what a cell that shrank has not granted in a window that is open, nobody grants. A limit that becomes
// homed, gets another home or becomes divided is granted by nobody from when a cell hears of that until its first
// window after From (a bucket: until it would be full).
//
// # Bounds
//
//   - While every cell hears within the grace: the algorithm's bound of the whole limit.
//   - Cells that do not hear (a copy that cannot be polled is used for as long as it must be) go on with the shares they
//     know. A transition waits for them, so nothing is given away; unless the operator removes one by force. Then, for
//     as long as it still runs, its last share may be granted on top: limit + the shares of the cells so removed. The
//     same holds for an environment that thaws, if its cell acknowledged and its own poll fails: until it hears, what its copy
//     gives its cell beyond the cell's present share comes on top.
//   - A change of a limit's number is heard by each cell in its own time. Each grants its share of the one it knows: at most
//     max(old, new) plus one unit for each cell but one, since largest remainders may give a cell less of a larger limit.
//     A tenant that moves to a plan which homes a limit that the old one does not, or the other way round, may be granted
//     both the old limit and the new one in the windows open at that time.
//   - A document of a cell's history is bounded. Windows that are open since before its oldest generation, which takes 64
//     transitions, are granted nothing more.
package shares

import (
	"math"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Layout is the version of the JSON of documents, placements and states.
const Layout = 1

// Bounds. A state is one item of the control tables, whose body may have 200 KB (204,800 bytes), and an event that
// carries it: MaxDocumentBytes for what cells must know, and the rest of MaxStateBytes for what waits, what is done,
// and names. So every state that Step makes fits. Two generations with all that they may hold fit into a document, too.
const (
	MaxCells         = 64
	MaxWeight        = 1_000_000
	MaxGenerations   = 64
	MaxHomed         = 192     // homed limits of a generation
	MaxPlaced        = 64      // placements changed by one transition, and homed limits of a placement
	MaxDocumentBytes = 128_000 // of a document's JSON
	MaxStateBytes    = 200_000 // of a state's JSON
	MaxQueue         = 256     // requests that wait
	MaxTenantBytes   = 128

	mostQueueBytes       = 32_000 // of the JSON of what waits
	mostPlacedBytes      = 16_000 // of the JSON of a transition's placements, but one
	maxPlacedGenerations = 4

	maxDone    = 128     // requests that are remembered as done
	maxIDBytes = 100     // of a request's id
	maxInstant = 1 << 52 // µs since 1970
	maxEpoch   = 1 << 52
	always     = 1 // From of a generation before which there was none
)

// Phase is where a transition is.
type Phase string

// The phases, in their order.
const (
	Shrink Phase = "shrink" // what shrinks does so at once
	Grow   Phase = "grow"   // what grows has a time from which it does
	Steady Phase = "steady" // no transition
)

func (p Phase) order() int64 {
	switch p {
	case Shrink:
		return 0
	case Grow:
		return 1
	case Steady:
		return 2
	}
	return -1
}

// Weight is a cell that serves.
type Weight struct {
	Cell   string `json:"cell"`
	Weight int64  `json:"weight"` // 1..MaxWeight
}

// PlanLimit names a limit of a plan.
type PlanLimit struct {
	Plan  string `json:"plan"`
	Limit string `json:"limit"`
}

// Generation is the shares of one epoch.
type Generation struct {
	Epoch int64       `json:"epoch"`           // above 0, ascending
	From  int64       `json:"from"`            // µs since 1970; 0: not yet, it only shrinks; 1: there was none before
	Cells []Weight    `json:"cells"`           // those that serve, by id
	Homed []PlanLimit `json:"homed,omitempty"` // limits that are not divided, by plan and limit

	// Kept says that every cell that serves a tenant asks the tenant's home cell for its homed limits. Where it is
	// false the home cell grants them alone: so it is in generations made before every cell's software could ask.
	Kept bool `json:"kept,omitempty"`

	// HomeFrom is, in the oldest generation, since when tenants without a placement are at home where they are in it:
	// older ones that were dropped had the same cells. 0: From.
	HomeFrom int64 `json:"home_from,omitempty"`
}

// Placement is where a tenant is served that is not served by every cell, or some of whose limits are homed though its
// plan's are not. It counts together with the document whose transition made it, or any later one.
type Placement struct {
	Version int    `json:"version"`
	Tenant  string `json:"tenant"`
	// ascending by epoch; the first is from always, unless older ones were dropped
	Generations []Placed `json:"generations"`
}

// Placed is a tenant's placement in one epoch and those after it.
type Placed struct {
	Epoch int64    `json:"epoch"`           // 0: before the first transition that placed the tenant
	From  int64    `json:"from"`            // as in Generation
	Cells []string `json:"cells,omitempty"` // the cells it is pinned to, the home cell first; none: all
	Homed []string `json:"homed,omitempty"` // ids of limits, ascending

	// HomeFrom is, in the oldest, since when the tenant is pinned as it is in it: older ones that were dropped had the
	// same cells. 0: From.
	HomeFrom int64 `json:"home_from,omitempty"`
}

// Document is what every cell must know. One document, together with the placement of a tenant that has one, says what
// any cell may grant of any limit.
type Document struct {
	Version    int   `json:"version"`
	Epoch      int64 `json:"epoch"` // of the transition that is under way, or was the last
	Phase      Phase `json:"phase"`
	SkewMicros int64 `json:"skew_us"` // by how much clocks may differ
	// every cell, by id: those that serve, and those that are drained and not removed
	Members     []string     `json:"members"`
	Generations []Generation `json:"generations"` // oldest first
	// those that the transition changes, whole: they go before stored ones
	Placements []Placement `json:"placements,omitempty"`
}

// Revision orders documents: of two, the one with the higher revision is newer. Documents of one revision are equal.
func (d *Document) Revision() int64 { return d.Epoch*3 + d.Phase.order() }

// Serves reports whether the cell has a share, or is to have one. A cell that stores the first document in which it
// serves must store every placement before it, for it was not sent those from before: only then may it acknowledge.
func (d *Document) Serves(cell string) bool {
	for _, w := range d.Generations[len(d.Generations)-1].Cells {
		if w.Cell == cell {
			return true
		}
	}
	return false
}

// View is what one cell may grant to one tenant. It is immutable. A nil View grants everything: it is for a cell that
// is alone.
type View struct {
	cell, tenant string
	skew         int64
	gens         []era
}

// era is a generation as it is for one tenant.
type era struct {
	from     int64
	homeFrom int64 // since when home is known to be
	cells    []Weight
	pinned   []string
	homed    []PlanLimit
	homedBy  []string
	home     string
	kept     bool // every cell asks home for what is homed
}

// View returns what cell may grant to tenant. stored is the placement that the cell has stored for the tenant, or nil;
// what the document itself says of the tenant goes before it.
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
	// One era for each epoch of either history, from the later of the two beginnings on.
	i, j := 0, 0
	for {
		e := v.era(&d.Generations[i], &placed[j])
		if n := len(v.gens); n > 0 && e.from != 0 && v.gens[n-1].from == e.from { // of before the other history begins
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
		pinned: p.Cells, homed: g.Homed, homedBy: p.Homed,
		kept: g.Kept}
	if len(p.Cells) > 0 {
		e.cells = make([]Weight, 0, len(p.Cells))
		for _, w := range g.Cells {
			for _, cell := range p.Cells {
				if cell == w.Cell {
					e.cells = append(e.cells, w)
					break
				}
			}
		}
	}
	e.home = homeOf(v.tenant, e.cells, p.Cells)
	return e
}

// homeFrom is since when tenants are at home where they are in the generation.
func (g *Generation) homeFrom() int64 {
	if g.HomeFrom != 0 {
		return g.HomeFrom
	}
	return g.From
}

// homeFrom is since when the tenant is pinned as it is in the placement.
func (p *Placed) homeFrom() int64 {
	if p.HomeFrom != 0 {
		return p.HomeFrom
	}
	return p.From
}

// laterFrom is the later of two times from which generations count; not yet is the latest.
func laterFrom(a, b int64) int64 {
	if a == 0 || b == 0 {
		return 0
	}
	return max(a, b)
}

// Home is the tenant's home cell once everything that is under way has taken effect; "" where no cell serves the
// tenant.
func (v *View) Home() string {
	if v == nil {
		return ""
	}
	return v.gens[len(v.gens)-1].home
}

// Homed reports whether the limit of a plan is whole in the tenant's home cell, once everything under way has taken
// effect. Quotas always are, see [View.QuotaHome].
func (v *View) Homed(plan string, l *limit.Limit) bool {
	return v != nil && v.gens[len(v.gens)-1].homes(plan, &l.Tiers[0])
}

// homeOf is the first serving one of the pinned cells, or else the one with the highest hash (rendezvous: a cell that
// joins only takes tenants over, and one that leaves only gives its own away).
func homeOf(tenant string, serving []Weight, pinned []string) string {
	for _, cell := range pinned {
		for _, w := range serving {
			if w.Cell == cell {
				return cell
			}
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

// hash is FNV-1a over both names, of which the first has no zero byte, and a final mix. It is part of what cells agree
// on: it must never change.
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

// beginning is before all time.
const beginning = math.MinInt64
