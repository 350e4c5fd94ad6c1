package shares

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// ErrLayout says that a placement or state has a layout that this version of the software does not know.
var ErrLayout = errors.New("unknown layout")

// DecodePlacement reads a placement as strictly as DecodeState reads a state.
func DecodePlacement(text []byte) (*Placement, error) {
	p := &Placement{}
	if err := decode("placement", text, p, &p.Version, p.check); err != nil {
		return nil, err
	}
	return p, nil
}

// ReadPlacement reads the placement that is stored under a key. It is an error if the placement belongs to another
// tenant than the key.
func ReadPlacement(key string, text []byte) (*Placement, error) {
	p, err := DecodePlacement(text)
	if err == nil && PlacementKey(p.Tenant) != key {
		err = errors.New("placement: it belongs to another tenant than its key")
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// DecodeState reads a state strictly: unknown members, wrong order and values out of bounds are errors that name the
// place.
func DecodeState(text []byte) (*State, error) {
	s := &State{}
	if err := decode("state of the shares", text, s, &s.Version, s.check); err != nil {
		return nil, err
	}
	return s, nil
}

func decode(what string, text []byte, into any, version *int, check func() error) error {
	if len(text) > MaxStateBytes {
		return fmt.Errorf("%s: %d bytes, want at most %d", what, len(text), MaxStateBytes)
	}
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if head.Version != Layout {
		return fmt.Errorf("%s: %w %d, this version knows %d: another version of Sluice wrote it", what, ErrLayout,
			head.Version, Layout)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: more follows after its end", what)
	}
	if *version != Layout { // another spelling of "version" has overwritten the field, as encoding/json ignores case
		return fmt.Errorf("%s: %w %d", what, ErrLayout, *version)
	}
	if err := check(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// check returns an error that says what is wrong with a request, or nil.
func (r *Request) check() error {
	if r.ID == "" || len(r.ID) > maxIDBytes || !utf8.ValidString(r.ID) {
		return fmt.Errorf("id: want 1 to %d bytes of text", maxIDBytes)
	}
	least, most := int64(0), int64(0)
	switch r.Kind {
	case Join, Weigh:
		least, most = 1, MaxWeight
	case Drain, Remove, Force, Place:
	default:
		return fmt.Errorf("kind: %.80q is not a kind of request", string(r.Kind))
	}
	if r.Weight < least || r.Weight > most {
		return fmt.Errorf("weight: %d is outside %d..%d for %s", r.Weight, least, most, r.Kind)
	}
	if r.Kind == Place {
		return r.checkPlace()
	}
	if !limit.ValidID(r.Cell) {
		return fmt.Errorf("cell: %.80q is not 1 to 64 of A-Z a-z 0-9 . _ -", r.Cell)
	}
	if r.Tenant != "" || len(r.Cells) > 0 || len(r.Homed) > 0 {
		return fmt.Errorf("%s: tenant, cells and homed are for place", r.Kind)
	}
	return nil
}

func (r *Request) checkPlace() error {
	if r.Cell != "" {
		return errors.New("cell: place has cells")
	}
	if err := checkTenant(r.Tenant); err != nil {
		return err
	}
	return checkPlaced(r.Cells, r.Homed)
}

func checkTenant(id string) error {
	if id == "" || len(id) > MaxTenantBytes || !utf8.ValidString(id) {
		return fmt.Errorf("tenant: want 1 to %d bytes of text", MaxTenantBytes)
	}
	return nil
}

func checkHomeFrom(homeFrom, from int64) error {
	if homeFrom < 0 || homeFrom > maxInstant || (homeFrom != 0 && from != 0 && homeFrom > from) {
		return fmt.Errorf("home_from: %d is outside 0..%d", homeFrom, from)
	}
	return nil
}

func checkPlaced(cells, homed []string) error {
	if len(cells) > MaxCells || len(homed) > MaxPlaced {
		return fmt.Errorf("placement: %d cells and %d homed limits, want at most %d and %d", len(cells), len(homed),
			MaxCells, MaxPlaced)
	}
	for i, cell := range cells {
		if !limit.ValidID(cell) || slices.Contains(cells[:i], cell) {
			return fmt.Errorf("cells: %.80q is no cell's id, or there twice", cell)
		}
	}
	for i, id := range homed {
		if !limit.ValidID(id) || (i > 0 && homed[i-1] >= id) {
			return fmt.Errorf("homed: %.80q is no limit's id, or not in order", id)
		}
	}
	return nil
}

func checkCells(what string, cells []string) error {
	if len(cells) > MaxCells {
		return fmt.Errorf("%s: %d cells, want at most %d", what, len(cells), MaxCells)
	}
	for i, cell := range cells {
		if !limit.ValidID(cell) || (i > 0 && cells[i-1] >= cell) {
			return fmt.Errorf("%s: %.80q is no cell's id, or not in order", what, cell)
		}
	}
	return nil
}

func (g *Generation) check() error {
	ids := make([]string, len(g.Cells))
	for i, w := range g.Cells {
		ids[i] = w.Cell
		if w.Weight < 1 || w.Weight > MaxWeight {
			return fmt.Errorf("weight of cell %.80q: %d is outside 1..%d", w.Cell, w.Weight, MaxWeight)
		}
	}
	if err := checkCells("cells", ids); err != nil {
		return err
	}
	if len(ids) == 0 {
		return errors.New("cells: no cell serves")
	}
	if err := checkHomeFrom(g.HomeFrom, g.From); err != nil {
		return err
	}
	if len(g.Homed) > MaxHomed {
		return fmt.Errorf("homed: %d limits, want at most %d", len(g.Homed), MaxHomed)
	}
	for i, h := range g.Homed {
		if !limit.ValidID(h.Plan) || !limit.ValidID(h.Limit) || (i > 0 && comparePlanLimits(g.Homed[i-1], h) >= 0) {
			return fmt.Errorf("homed: %.80q of plan %.80q is no limit's id, or not in order", h.Limit, h.Plan)
		}
	}
	return nil
}

// order returns an error unless a generation may follow the generation of another epoch and time. Only the last
// generation may lack a time, and only while the transition shrinks.
func order(epoch, from, epochBefore, fromBefore int64, last, shrinks bool) error {
	switch {
	case epoch <= epochBefore || epoch > maxEpoch:
		return fmt.Errorf("epoch: %d after %d", epoch, epochBefore)
	case from == 0 && last && shrinks && fromBefore > 0:
		return nil
	case from <= fromBefore || from > maxInstant:
		return fmt.Errorf("from: %d after %d", from, fromBefore)
	}
	return nil
}

func checkGenerations(gens []Generation, phase Phase, epoch int64) error {
	if len(gens) == 0 || len(gens) > MaxGenerations {
		return fmt.Errorf("generations: %d, want 1..%d", len(gens), MaxGenerations)
	}
	beforeEpoch, beforeFrom := int64(0), int64(0)
	for i := range gens {
		g := &gens[i]
		err := order(g.Epoch, g.From, beforeEpoch, beforeFrom, i == len(gens)-1, phase == Shrink && g.Epoch == epoch)
		if err == nil {
			err = g.check()
		}
		if err != nil {
			return fmt.Errorf("generation %d: %w", i+1, err)
		}
		beforeEpoch, beforeFrom = g.Epoch, g.From
	}
	if beforeEpoch > epoch {
		return fmt.Errorf("generations: epoch %d in a document of epoch %d", beforeEpoch, epoch)
	}
	return nil
}

func checkHead(epoch int64, phase Phase, skew int64) error {
	if epoch < 1 || epoch > maxEpoch {
		return fmt.Errorf("epoch: %d is outside 1..%d", epoch, int64(maxEpoch))
	}
	if phase.order() < 0 {
		return fmt.Errorf("phase: %.80q is not a phase", string(phase))
	}
	if skew < 0 || skew > maxAckLead {
		return fmt.Errorf("skew_us: %d is outside 0..%d", skew, maxAckLead)
	}
	return nil
}

func checkPlacements(placements []Placement, phase Phase, epoch int64) error {
	if len(placements) > MaxPlaced || (len(placements) > 0 && phase == Steady) {
		return fmt.Errorf("placements: %d in phase %s", len(placements), phase)
	}
	for i := range placements {
		p := &placements[i]
		if slices.ContainsFunc(placements[:i], func(q Placement) bool { return q.Tenant == p.Tenant }) {
			return fmt.Errorf("placements: tenant %.80q twice", p.Tenant)
		}
		if p.Version != Layout {
			return fmt.Errorf("placement %d: %w %d", i+1, ErrLayout, p.Version)
		}
		err := p.checkIn(phase == Shrink)
		if err == nil && p.Generations[len(p.Generations)-1].Epoch != epoch {
			err = errors.New("belongs to another transition")
		}
		if err != nil {
			return fmt.Errorf("placement %d: %w", i+1, err)
		}
	}
	return nil
}

func (p *Placement) check() error { return p.checkIn(false) }

func (p *Placement) checkIn(shrinks bool) error {
	if err := checkTenant(p.Tenant); err != nil {
		return err
	}
	if n := len(p.Generations); n == 0 || n > maxPlacedGenerations {
		return fmt.Errorf("generations: %d, want 1..%d", n, maxPlacedGenerations)
	}
	beforeEpoch, beforeFrom := int64(-1), int64(0)
	for i := range p.Generations {
		g := &p.Generations[i]
		err := order(g.Epoch, g.From, beforeEpoch, beforeFrom, i == len(p.Generations)-1, shrinks)
		if err == nil {
			err = errors.Join(checkPlaced(g.Cells, g.Homed), checkHomeFrom(g.HomeFrom, g.From))
		}
		if err != nil {
			return fmt.Errorf("generation %d: %w", i+1, err)
		}
		beforeEpoch, beforeFrom = g.Epoch, g.From
	}
	return nil
}

func (s *State) check() error {
	if err := s.checkMembers(); err != nil {
		return err
	}
	if len(s.Queue) > MaxQueue || len(s.Done) > maxDone {
		return fmt.Errorf("queue: %d wait and %d are done, want at most %d and %d", len(s.Queue), len(s.Done),
			MaxQueue, maxDone)
	}
	for i := range s.Queue {
		if err := s.Queue[i].check(); err != nil {
			return fmt.Errorf("request %d: %w", i+1, err)
		}
	}
	if s.Epoch == 0 {
		if s.Phase != "" || s.Transition != nil || len(s.Generations) > 0 || len(s.Members) > 0 {
			return errors.New("epoch: 0, although there are cells")
		}
		return nil
	}
	if err := checkHead(s.Epoch, s.Phase, s.SkewMicros); err != nil {
		return err
	}
	if err := checkGenerations(s.Generations, s.Phase, s.Epoch); err != nil {
		return err
	}
	return s.checkTransition()
}

func (s *State) checkMembers() error {
	ids := make([]string, len(s.Members))
	for i := range s.Members {
		m := &s.Members[i]
		ids[i] = m.Cell
		serves := m.State == Joining || m.State == Active
		if !serves && m.State != Draining && m.State != Drained {
			return fmt.Errorf("state of cell %.80q: %.80q is not a state", m.Cell, string(m.State))
		}
		if m.Weight < 0 || m.Weight > MaxWeight || serves != (m.Weight > 0) {
			return fmt.Errorf("weight of cell %.80q, which is %s: %d", m.Cell, m.State, m.Weight)
		}
	}
	return checkCells("members", ids)
}

func (s *State) checkTransition() error {
	t := s.Transition
	if (t == nil) != (s.Phase == Steady) {
		return fmt.Errorf("transition: phase %s", s.Phase)
	}
	if t == nil {
		return nil
	}
	if err := checkCells("awaiting", t.Awaiting); err != nil {
		return err
	}
	for _, cell := range t.Awaiting {
		if _, ok := s.member(cell); !ok {
			return fmt.Errorf("awaiting: %s is no member", cell)
		}
	}
	if t.HeardAt < 0 || t.HeardAt > 2*maxInstant || t.GrowAt < 0 || t.GrowAt > 2*maxInstant ||
		(t.GrowAt > 0 && len(t.Awaiting) > 0) {
		return fmt.Errorf("transition: heard at %d, grows at %d, awaits %d", t.HeardAt, t.GrowAt, len(t.Awaiting))
	}
	return checkPlacements(t.Placements, s.Phase, s.Epoch)
}
