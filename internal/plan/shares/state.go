package shares

import (
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Settings are what the grace is made of. The zero value of each is its default.
type Settings struct {
	Copy     time.Duration // oldest copy of the documents that decides without a poll in front; default 2 s
	Lease    time.Duration // longest life of a lease; default 10 s
	Decision time.Duration // longest time between reading the copy and the charge; default 1 s
	// by how much two clocks may differ; default 5 s, as much as stores repair. Assumption: clocks
	Skew time.Duration
}

func (c Settings) orDefaults() Settings {
	for _, d := range []struct {
		at    *time.Duration
		usual time.Duration
	}{{&c.Copy, 2 * time.Second}, {&c.Lease, 10 * time.Second}, {&c.Decision, time.Second}, {&c.Skew, limit.MaxSkew}} {
		if *d.at == 0 {
			*d.at = d.usual
		}
	}
	return c
}

// Grace is the time from the last acknowledgement of a shrink to the growth: 18 s by default.
func (c Settings) Grace() time.Duration {
	c = c.orDefaults()
	return c.Copy + c.Lease + c.Decision + c.Skew
}

// MemberState is what a cell does.
type MemberState string

// The states of a member.
const (
	Joining  MemberState = "joining"  // the transition under way gives it its first share
	Active   MemberState = "active"   // serves
	Draining MemberState = "draining" // the transition under way takes its share
	Drained  MemberState = "drained"  // serves no more; it still has the counts of quotas whose periods are open
)

// Member is a cell.
type Member struct {
	Cell   string      `json:"cell"`
	State  MemberState `json:"state"`
	Weight int64       `json:"weight"`           // 0 where it drains or is drained
	Forced bool        `json:"forced,omitempty"` // is being removed by force: nothing waits for it
}

// Kind is what a request asks for.
type Kind string

// The kinds of requests.
const (
	Join   Kind = "join"   // Cell serves, with Weight; also a drained one, again
	Weigh  Kind = "weigh"  // Cell gets another Weight
	Drain  Kind = "drain"  // Cell serves no more
	Remove Kind = "remove" // the drained Cell is no member any more
	Force  Kind = "force"  // Cell is removed without being heard: the operator says that it has stopped
	// Tenant is pinned to Cells, the home cell first, and its limits Homed are homed; both empty: as others
	Place Kind = "place"
)

// Request is a change that an operator asks for.
type Request struct {
	ID     string   `json:"id"` // 1..100 bytes; a request of the same id is done once
	Kind   Kind     `json:"kind"`
	Cell   string   `json:"cell,omitempty"`
	Weight int64    `json:"weight,omitempty"`
	Tenant string   `json:"tenant,omitempty"`
	Cells  []string `json:"cells,omitempty"`
	Homed  []string `json:"homed,omitempty"`
}

// Transition is what goes on.
type Transition struct {
	Awaiting []string `json:"awaiting"` // cells that have not acknowledged the phase, by id
	HeardAt  int64    `json:"heard_at"` // of the acknowledgements so far the last, µs since 1970
	// shrink: when the grace is over, once nothing is awaited; else 0
	GrowAt     int64       `json:"grow_at"`
	Placements []Placement `json:"placements,omitempty"` // what it changes
}

// State is everything that the balancer remembers: one item, written under the condition that nobody else wrote it. The
// zero State has no cells. Make one of stored JSON with [DecodeState].
type State struct {
	Version     int          `json:"version"`
	Epoch       int64        `json:"epoch"`
	Phase       Phase        `json:"phase"`
	SkewMicros  int64        `json:"skew_us"`
	Members     []Member     `json:"members"`     // by cell
	Generations []Generation `json:"generations"` // as in Document
	Transition  *Transition  `json:"transition,omitempty"`
	Queue       []Request    `json:"queue,omitempty"`
	Done        []string     `json:"done,omitempty"` // ids of requests that were done or refused, the last ones
}

// Document is what every cell must know now; nil before there is a cell. It is the same as long as epoch and phase are,
// and is published again on a schedule: cells that have it lose nothing by that.
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

// Awaited are the cells for whose acknowledgement the transition waits, by id. A transition that waits for long waits
// for one of them: it has to be brought back, or removed by force.
func (s *State) Awaited() []string {
	if s.Transition == nil {
		return nil
	}
	return slices.Clone(s.Transition.Awaiting)
}

func (s *State) member(cell string) (int, bool) {
	return slices.BinarySearchFunc(s.Members, cell, func(m Member, cell string) int { return compare(m.Cell, cell) })
}

// clone is a copy that shares no memory with s.
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

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
