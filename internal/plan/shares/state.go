package shares

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Settings are the durations that the grace is made of. 0 selects the default of each.
type Settings struct {
	Copy     time.Duration // oldest copy of the documents on which a cell decides without polling first; default 2 s
	Lease    time.Duration // longest lifetime of a lease; default 10 s
	Decision time.Duration // longest time between reading the copy and the charge; default 1 s
	Skew     time.Duration // largest difference of two clocks; default 5 s, as in stores. Assumption: clocks
}

func (c Settings) orDefaults() Settings {
	return Settings{Copy: cmp.Or(c.Copy, 2*time.Second), Lease: cmp.Or(c.Lease, 10*time.Second),
		Decision: cmp.Or(c.Decision, time.Second), Skew: cmp.Or(c.Skew, limit.MaxSkew)}
}

// Grace returns the time between the last acknowledgement of a shrink and the growth: 18 s by default.
func (c Settings) Grace() time.Duration {
	c = c.orDefaults()
	return c.Copy + c.Lease + c.Decision + c.Skew
}

// MemberState says whether a cell serves.
type MemberState string

// The states of a member.
const (
	Joining  MemberState = "joining"  // the present transition gives the cell its first share
	Active   MemberState = "active"   // serves
	Draining MemberState = "draining" // the present transition takes the cell's share away
	Drained  MemberState = "drained"  // does not serve; it still holds the counts of quotas whose periods are open
)

// Member is a cell that the balancer knows.
type Member struct {
	Cell   string      `json:"cell"`
	State  MemberState `json:"state"`
	Weight int64       `json:"weight"`           // 0 if the cell is draining or drained
	Forced bool        `json:"forced,omitempty"` // the cell is being removed by force, and nothing waits for it
}

// Kind is the kind of a request.
type Kind string

// The kinds of requests.
const (
	Join   Kind = "join"   // Cell begins to serve with Weight; a drained cell may join again
	Weigh  Kind = "weigh"  // Cell gets a new Weight
	Drain  Kind = "drain"  // Cell stops serving
	Remove Kind = "remove" // Cell, which is drained, is forgotten
	Force  Kind = "force"  // Cell is removed without waiting for it: the operator asserts that it has stopped
	// Tenant is pinned to Cells, the home cell first, and its limits Homed are homed. If both are empty, the tenant is
	// treated as every other.
	Place Kind = "place"
)

// Request is a change that an operator asks for.
type Request struct {
	ID     string   `json:"id"` // 1..100 bytes; only the first of several requests with the same id is carried out
	Kind   Kind     `json:"kind"`
	Cell   string   `json:"cell,omitempty"`
	Weight int64    `json:"weight,omitempty"`
	Tenant string   `json:"tenant,omitempty"`
	Cells  []string `json:"cells,omitempty"`
	Homed  []string `json:"homed,omitempty"`
}

// Transition is the state of a change of the shares that is in progress.
type Transition struct {
	Awaiting []string `json:"awaiting"` // cells that have not acknowledged the phase, sorted by id
	HeardAt  int64    `json:"heard_at"` // time of the last acknowledgement so far, µs since 1970
	// GrowAt is the end of the grace, in the phase shrink and once no acknowledgement is awaited; otherwise 0.
	GrowAt     int64       `json:"grow_at"`
	Placements []Placement `json:"placements,omitempty"` // the placements that it changes
}

// State is everything that the balancer remembers. It is stored as one item, which is written on the condition that
// nobody else has written it in between. The zero State has no cells. [DecodeState] reads stored JSON.
type State struct {
	Version     int          `json:"version"`
	Epoch       int64        `json:"epoch"`
	Phase       Phase        `json:"phase"`
	SkewMicros  int64        `json:"skew_us"`
	Members     []Member     `json:"members"`     // sorted by cell
	Generations []Generation `json:"generations"` // as in Document
	Transition  *Transition  `json:"transition,omitempty"`
	Queue       []Request    `json:"queue,omitempty"`
	Done        []string     `json:"done,omitempty"` // ids of the requests last carried out or refused
}

// Document returns what every cell must know at present; nil if there has never been a cell. It depends only on the
// epoch and the phase. It is published repeatedly; a cell that has it already ignores it.
func (s *State) Document() *Document {
	if s.Epoch == 0 {
		return nil
	}
	d := &Document{
		Version: Layout, Epoch: s.Epoch, Phase: s.Phase, SkewMicros: s.SkewMicros,
		Generations: cloneGenerations(s.Generations),
	}
	for i := range s.Members {
		d.Members = append(d.Members, s.Members[i].Cell)
	}
	if s.Transition != nil {
		d.Placements = clonePlacements(s.Transition.Placements)
	}
	return d
}

// Awaited returns the cells whose acknowledgement the transition waits for, sorted by id. If a transition waits for
// long, one of these cells must be repaired, or removed by force.
func (s *State) Awaited() []string {
	if s.Transition == nil {
		return nil
	}
	return slices.Clone(s.Transition.Awaiting)
}

func (s *State) member(cell string) (int, bool) {
	return slices.BinarySearchFunc(s.Members, cell,
		func(m Member, cell string) int { return cmp.Compare(m.Cell, cell) })
}

// clone returns a copy that shares no memory with s.
func (s *State) clone() State {
	out := *s
	out.Version = Layout
	out.Members = slices.Clone(s.Members)
	out.Generations = cloneGenerations(s.Generations)
	out.Queue = slices.Clone(s.Queue) // requests are never changed
	out.Done = slices.Clone(s.Done)
	if s.Transition != nil {
		t := *s.Transition
		t.Awaiting = slices.Clone(t.Awaiting)
		t.Placements = clonePlacements(t.Placements)
		out.Transition = &t
	}
	return out
}

func cloneGenerations(in []Generation) []Generation {
	out := slices.Clone(in)
	for i := range out {
		out[i].Cells = slices.Clone(out[i].Cells)
		out[i].Homed = slices.Clone(out[i].Homed)
	}
	return out
}

func clonePlacements(in []Placement) []Placement {
	out := slices.Clone(in)
	for i := range out {
		out[i] = out[i].clone()
	}
	return out
}

func (p Placement) clone() Placement {
	p.Generations = slices.Clone(p.Generations)
	for i := range p.Generations {
		p.Generations[i].Cells = slices.Clone(p.Generations[i].Cells)
		p.Generations[i].Homed = slices.Clone(p.Generations[i].Homed)
	}
	return p
}
