package shares

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Ack says that a cell has stored the document of an epoch and phase. Every environment of the cell that polls then
// knows the document. In the control table of the cells it is the body of the item at [AckKey].
type Ack struct {
	Cell  string `json:"cell"`
	Epoch int64  `json:"epoch"`
	Phase Phase  `json:"phase"`
	AtUS  int64  `json:"at_us"` // by the cell's clock, µs since 1970; 0 if unknown
}

// maxAckLead is the largest lead of an acknowledgement's clock over the balancer's that is believed, in µs. A larger
// one is cut to it.
const maxAckLead = int64(time.Hour / time.Microsecond)

// Limited is a limit of a plan, with its numbers.
type Limited struct {
	Plan  string
	Limit *limit.Limit
}

// Input is what has happened since the last step. It may be empty: time has passed.
type Input struct {
	Requests []Request
	Acks     []Ack

	// Limits are all limits of all plans. If nil, they are unknown, and the list of homed limits stays as it is. A
	// transition homes the limits that need it in the cells as they will be after the transition.
	Limits []Limited

	// Placements are the stored placements of tenants; a nil entry says that the tenant has none. See [Output.Load].
	Placements map[string]*Placement
}

// Refusal is a request that was refused, and why.
type Refusal struct {
	ID, Reason string
}

// Output is what the caller must do after a step.
type Output struct {
	// Publish is to be sent to every cell after the state is written; nil if nothing changed. Lost documents are
	// published again on a schedule.
	Publish *Document
	Store   []Placement // to be written in one transaction with the state
	Refused []Refusal   // refused requests; their ids count as done
	Later   []string    // ids of requests that did not fit the queue, and are to be given to a later step
	// Divided are limits that should be homed and are not, because there are more than MaxHomed. Their bound still
	// holds, but large costs are denied.
	Divided []PlanLimit
	Load    []string  // tenants whose stored placements the next step needs, for requests that wait for them
	Wake    time.Time // when the next step is due even if nothing happens; zero: never
}

// Step is the balancer. It returns the state after the input, and what the caller must do. It does not change s. Input
// that is repeated, late, or of another epoch or phase changes nothing. If the caller cannot write the resulting
// state, it may repeat the step.
func (s *State) Step(c Settings, in Input, now time.Time) (State, Output) {
	b := balancer{s: s.clone(), c: c.orDefaults(), in: in, now: min(max(now.UnixMicro(), always+1), maxInstant)}
	before := int64(-1)
	if s.Epoch > 0 {
		before = s.Document().Revision()
	}
	b.enqueue()
	b.takeAcks()
	for b.advance() {
	}
	if d := b.s.Document(); d != nil && d.Revision() != before {
		b.out.Publish = d
	}
	if t := b.s.Transition; t != nil && t.GrowAt > 0 {
		b.out.Wake = time.UnixMicro(t.GrowAt).UTC()
	}
	return b.s, b.out
}

type balancer struct {
	s   State
	c   Settings
	in  Input
	now int64
	out Output
}

func (b *balancer) refuse(r *Request, format string, args ...any) {
	b.out.Refused = append(b.out.Refused, Refusal{r.ID, fmt.Sprintf(format, args...)})
}

func (b *balancer) markDone(id string) {
	if b.s.Done = append(b.s.Done, id); len(b.s.Done) > maxDone {
		b.s.Done = slices.Clone(b.s.Done[len(b.s.Done)-maxDone:])
	}
}

// enqueue adds new requests to the queue.
func (b *balancer) enqueue() {
	size := sizeOf(b.s.Queue)
	for i := range b.in.Requests {
		r := &b.in.Requests[i]
		same := func(q Request) bool { return q.ID == r.ID }
		if slices.Contains(b.s.Done, r.ID) || slices.ContainsFunc(b.s.Queue, same) {
			continue
		}
		if err := r.check(); err != nil {
			b.refuse(r, "%v", err)
			b.markDone(r.ID)
			continue
		}
		size += sizeOf(r) + 1
		if len(b.s.Queue) >= MaxQueue || size > mostQueueBytes {
			b.out.Later = append(b.out.Later, r.ID)
			continue
		}
		b.s.Queue = append(b.s.Queue, *r)
		if r.Kind == Force {
			b.force(r.Cell)
		}
	}
}

// force stops waiting for a cell, including in the present transition.
func (b *balancer) force(cell string) {
	i, ok := b.s.member(cell)
	if !ok || !b.othersServe(cell) {
		return // refused when its turn comes
	}
	b.s.Members[i].Forced = true
	if t := b.s.Transition; t != nil {
		b.recordAck(cell, b.now)
	}
}

// othersServe reports whether a cell remains that serves if this one goes.
func (b *balancer) othersServe(cell string) bool {
	return slices.ContainsFunc(b.s.Members, func(m Member) bool { return m.Cell != cell && m.Weight > 0 && !m.Forced })
}

// takeAcks records the acknowledgements of the present epoch and phase.
func (b *balancer) takeAcks() {
	for _, a := range b.in.Acks {
		if b.s.Transition == nil || a.Epoch != b.s.Epoch || a.Phase != b.s.Phase {
			continue
		}
		b.recordAck(a.Cell, max(b.now, min(a.AtUS, b.now+maxAckLead)))
	}
}

func (b *balancer) recordAck(cell string, at int64) {
	t := b.s.Transition
	if i, ok := slices.BinarySearch(t.Awaiting, cell); ok {
		t.Awaiting = slices.Delete(t.Awaiting, i, i+1)
		t.HeardAt = max(t.HeardAt, at)
	}
}

// advance carries out the next change that is due, and reports whether there was one.
func (b *balancer) advance() bool {
	t := b.s.Transition
	switch {
	case t == nil:
		return b.begin()
	case len(t.Awaiting) > 0:
		return false
	case b.s.Phase == Grow:
		b.end()
		return true
	case t.GrowAt == 0:
		t.GrowAt = max(t.HeardAt, b.now) + b.c.Grace().Microseconds()
	}
	if b.now < t.GrowAt {
		return false
	}
	b.grow()
	return true
}

// begin starts a transition with everything that waits in the queue, and reports whether there was anything that
// changes the shares.
func (b *balancer) begin() bool {
	placements, moved := b.carryOutQueue()
	if len(b.s.Members) == 0 {
		return false
	}
	next := b.target()
	last := len(b.s.Generations) - 1
	changed := last < 0 || !sameShares(&b.s.Generations[last], &next)
	if !changed && !moved && len(placements) == 0 {
		return false
	}
	b.s.Epoch++
	b.s.SkewMicros = b.c.Skew.Microseconds()
	next.Epoch = b.s.Epoch
	if last < 0 { // nothing was granted before
		next.From = always
		b.s.Phase, b.s.Generations = Steady, []Generation{next}
		b.settle()
		return true
	}
	for i := range placements {
		gens := placements[i].Generations
		gens[len(gens)-1].Epoch = b.s.Epoch
	}
	b.s.Phase, b.s.Transition = Shrink, &Transition{Placements: placements}
	b.await(&b.s.Generations[last], &next)
	b.s.Members = slices.DeleteFunc(b.s.Members, func(m Member) bool { return m.Forced })
	if changed {
		b.s.Generations = append(b.s.Generations, next)
	}
	b.prune()
	return true
}

// await waits for the cells that serve in one of the generations, except those that are removed by force.
func (b *balancer) await(gens ...*Generation) {
	t := b.s.Transition
	t.Awaiting, t.HeardAt, t.GrowAt = []string{}, b.now, 0
	for _, g := range gens {
		for _, w := range g.Cells {
			if i, ok := b.s.member(w.Cell); ok && !b.s.Members[i].Forced {
				t.Awaiting = append(t.Awaiting, w.Cell)
			}
		}
	}
	slices.Sort(t.Awaiting)
	t.Awaiting = slices.Compact(t.Awaiting)
}

// grow gives everything that the transition changes the time from which it applies. By then every cell knows the
// change.
func (b *balancer) grow() {
	t := b.s.Transition
	from := max(b.now, t.GrowAt)
	last := len(b.s.Generations) - 1
	if g := &b.s.Generations[last]; g.From == 0 {
		g.From = max(from, b.s.Generations[last-1].From+1)
		from = g.From
	} else {
		from = max(from, g.From+1)
	}
	for i := range t.Placements {
		gens := t.Placements[i].Generations
		n := len(gens) - 1
		gens[n].From = max(from, gens[n-1].From+1)
	}
	b.out.Store = clonePlacements(t.Placements)
	b.s.Phase = Grow
	b.await(&b.s.Generations[last])
}

func (b *balancer) end() {
	b.s.Phase, b.s.Transition = Steady, nil
	b.settle()
}

// settle ends the states joining and draining. Members with Forced are removed by the next transition.
func (b *balancer) settle() {
	for i := range b.s.Members {
		switch m := &b.s.Members[i]; m.State {
		case Joining:
			m.State = Active
		case Draining:
			m.State = Drained
		case Active, Drained:
		}
	}
}

// target returns the generation that results from the members.
func (b *balancer) target() Generation {
	g := Generation{Cells: []Weight{}}
	for _, m := range b.s.Members {
		if m.Weight > 0 && !m.Forced {
			g.Cells = append(g.Cells, Weight{m.Cell, m.Weight})
		}
	}
	if b.in.Limits == nil {
		if n := len(b.s.Generations); n > 0 {
			g.Homed = slices.Clone(b.s.Generations[n-1].Homed)
		}
		return g
	}
	for _, l := range b.in.Limits {
		// An indivisible limit is homed without being listed.
		if !l.Limit.Tiers[0].Algorithm.Indivisible() && NeedsHome(l.Limit, g.Cells) {
			g.Homed = append(g.Homed, PlanLimit{l.Plan, l.Limit.ID})
		}
	}
	slices.SortFunc(g.Homed, comparePlanLimits)
	g.Homed = slices.Compact(g.Homed)
	if len(g.Homed) > MaxHomed {
		b.out.Divided = slices.Clone(g.Homed[MaxHomed:])
		g.Homed = g.Homed[:MaxHomed]
	}
	return g
}

func comparePlanLimits(a, b PlanLimit) int {
	return cmp.Or(cmp.Compare(a.Plan, b.Plan), cmp.Compare(a.Limit, b.Limit))
}

func sameShares(a, b *Generation) bool {
	return slices.Equal(a.Cells, b.Cells) && slices.Equal(a.Homed, b.Homed)
}

// prune drops the oldest generations if there are too many, or the document is too large.
func (b *balancer) prune() {
	for len(b.s.Generations) > 2 {
		if len(b.s.Generations) <= MaxGenerations && sizeOf(b.s.Document()) <= MaxDocumentBytes {
			return
		}
		dropped, kept := &b.s.Generations[0], &b.s.Generations[1]
		if sameCells(dropped.Cells, kept.Cells) { // the home cells are the same
			kept.HomeFrom = dropped.homeFrom()
		}
		b.s.Generations = slices.Delete(b.s.Generations, 0, 1)
	}
}

// sameCells reports whether the same cells serve, regardless of their weights.
func sameCells(a, b []Weight) bool {
	return slices.EqualFunc(a, b, func(a, b Weight) bool { return a.Cell == b.Cell })
}

// sizeOf returns the length of the JSON of v, which must be a value that can always be written as JSON.
func sizeOf(v any) int {
	text, err := json.Marshal(v)
	if err != nil {
		return 0
	}
	return len(text)
}

// carryOutQueue carries out the queued requests. It changes the members, and returns the placements that change. A
// request for a tenant whose stored placement is not known stays in the queue.
func (b *balancer) carryOutQueue() (placements []Placement, moved bool) {
	bytes := 0
	b.s.Queue = slices.DeleteFunc(b.s.Queue, func(r Request) bool {
		if r.Kind != Place {
			if err := b.carryOut(&r); err != nil {
				b.refuse(&r, "%v", err)
			} else if r.Kind == Remove || r.Kind == Force { // other kinds change the shares, which begin compares
				moved = true
			}
			b.markDone(r.ID)
			return true
		}
		p, wait := b.place(&r, placements)
		if wait || len(placements) == MaxPlaced || bytes > mostPlacedBytes {
			return false
		}
		if b.markDone(r.ID); p != nil {
			placements = append(placements, *p)
			bytes += sizeOf(p)
		}
		return true
	})
	return placements, moved
}

// carryOut carries out one request for a cell.
func (b *balancer) carryOut(r *Request) error {
	i, there := b.s.member(r.Cell)
	if r.Kind == Join && !there {
		if len(b.s.Members) >= MaxCells {
			return fmt.Errorf("there are %d cells already", MaxCells)
		}
		b.s.Members = slices.Insert(b.s.Members, i, Member{Cell: r.Cell, State: Joining, Weight: r.Weight})
		return nil
	}
	if !there {
		return fmt.Errorf("there is no cell %s", r.Cell)
	}
	m := &b.s.Members[i]
	switch r.Kind {
	case Join:
		if m.State != Drained {
			return fmt.Errorf("cell %s is %s already", r.Cell, m.State)
		}
		m.State, m.Weight = Joining, r.Weight
	case Weigh:
		if m.Weight == 0 {
			return fmt.Errorf("cell %s is %s", r.Cell, m.State)
		}
		m.Weight = r.Weight
	case Drain:
		if m.Weight == 0 {
			return fmt.Errorf("cell %s is %s already", r.Cell, m.State)
		}
		if !b.othersServe(r.Cell) {
			return fmt.Errorf("cell %s is the last one that serves", r.Cell)
		}
		m.State, m.Weight = Draining, 0
	case Remove:
		if m.State != Drained {
			return fmt.Errorf("cell %s is %s: drain it first", r.Cell, m.State)
		}
		b.s.Members = slices.Delete(b.s.Members, i, i+1)
	case Force:
		if !b.othersServe(r.Cell) {
			return fmt.Errorf("cell %s is the last one that serves", r.Cell)
		}
		m.Forced = true
	case Place: // has no cell
	}
	return nil
}

// place returns a tenant's placement after the request. It returns nil if the request is refused or changes nothing,
// or if it must wait.
func (b *balancer) place(r *Request, taken []Placement) (p *Placement, wait bool) {
	if len(b.s.Generations) == 0 {
		return nil, true
	}
	if slices.ContainsFunc(taken, func(p Placement) bool { return p.Tenant == r.Tenant }) {
		return nil, true // at most one change of a tenant in each transition
	}
	stored, known := b.in.Placements[r.Tenant]
	if !known {
		if !slices.Contains(b.out.Load, r.Tenant) && len(b.out.Load) < MaxPlaced {
			b.out.Load = append(b.out.Load, r.Tenant)
		}
		return nil, true
	}
	for _, cell := range r.Cells {
		if i, ok := b.s.member(cell); !ok || b.s.Members[i].Weight == 0 || b.s.Members[i].Forced {
			b.refuse(r, "cell %s does not serve", cell)
			return nil, false
		}
	}
	out := Placement{Version: Layout, Tenant: r.Tenant, Generations: []Placed{{From: always}}}
	if stored != nil {
		out = stored.clone()
	}
	gens := out.Generations
	last := &gens[len(gens)-1]
	if slices.Equal(last.Cells, r.Cells) && slices.Equal(last.Homed, r.Homed) {
		return nil, false // nothing changes
	}
	gens = append(gens, Placed{Cells: slices.Clone(r.Cells), Homed: slices.Clone(r.Homed)})
	for len(gens) > maxPlacedGenerations {
		if dropped, kept := &gens[0], &gens[1]; slices.Equal(dropped.Cells, kept.Cells) { // pinned to the same cells
			kept.HomeFrom = dropped.homeFrom()
		}
		gens = slices.Delete(gens, 0, 1)
	}
	out.Generations = gens
	return &out, false
}
