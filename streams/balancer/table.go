package balancer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/shares"
)

// table is what the control table of the cells says, beside the state.
type table struct {
	cells  []wish // by key
	pins   []wish // by key
	placed map[string]stored
	acks   []shares.Ack
	able   []string // cells that can ask others for limits too small to be divided
	unread int
}

// wish is what a cell, or a tenant's placement, is to be.
type wish struct {
	key     string
	version int64
	tenant  []byte // of a pin: as in [Wish]
	shares.Request
}

// stored is a tenant's placement and the version of its item.
type stored struct {
	placement *shares.Placement
	version   int64
}

// table reads it. Items that cannot be read, or make no sense, are left out and counted: they stop nothing.
func (b *Balancer) table(ctx context.Context) (*table, error) {
	t := &table{placed: map[string]stored{}}
	for item, err := range control.All(ctx, b.c.Tables, control.Cells) {
		if err == nil {
			if err = t.add(&item); err != nil {
				err = fmt.Errorf("%s: version %d: %w", item.Key, item.Version, err)
			}
		} else if !errors.Is(err, control.ErrBadItem) {
			return nil, fmt.Errorf("read the cells: %w", err)
		}
		if err != nil {
			t.unread++
			b.c.Log.ErrorContext(ctx, "an item of the cells cannot be read, and is left out", "error", err)
		}
	}
	byKey := func(a, b wish) int { return strings.Compare(a.key, b.key) }
	slices.SortFunc(t.cells, byKey)
	slices.SortFunc(t.pins, byKey)
	return t, nil
}

func (t *table) add(i *control.Item) error {
	switch {
	case i.Key == events.SharesKey:
		return nil
	case strings.HasPrefix(i.Key, shares.PlacementPrefix):
		if i.Deleted {
			return errors.New("a placement is not deleted: it says where a tenant was served, too")
		}
		p, err := shares.DecodePlacement(i.Body)
		if err != nil {
			return err
		}
		if shares.PlacementKey(p.Tenant) != i.Key {
			return errors.New("the placement of another tenant")
		}
		t.placed[p.Tenant] = stored{p, i.Version}
	case strings.HasPrefix(i.Key, shares.AckPrefix):
		var a Ack
		if i.Deleted {
			return nil
		}
		if err := json.Unmarshal(i.Body, &a); err != nil {
			return err
		}
		if shares.AckKey(a.Cell) != i.Key {
			return errors.New("the acknowledgement of another cell")
		}
		t.heard(&a)
	case strings.HasPrefix(i.Key, shares.PinPrefix):
		w, err := read(i)
		if err != nil || i.Deleted {
			return err
		}
		if w.Kind != shares.Place {
			return fmt.Errorf("want a request to place, got %.80q", string(w.Kind))
		}
		t.pins = append(t.pins, w)
	default:
		w, err := read(i)
		if err != nil {
			return err
		}
		if i.Deleted {
			w.Request = shares.Request{Kind: shares.Remove, Cell: i.Key}
		}
		if w.Cell != i.Key || w.Kind == shares.Place {
			return fmt.Errorf("the request is for %.80q, of kind %.80q", w.Cell, string(w.Kind))
		}
		t.cells = append(t.cells, w)
	}
	return nil
}

// heard notes what a cell has acknowledged, and whether its software can ask other cells.
func (t *table) heard(a *Ack) {
	t.acks = append(t.acks, shares.Ack{Cell: a.Cell, Epoch: a.Epoch, Phase: a.Phase, At: time.UnixMicro(a.AtUS)})
	if a.Asks {
		t.able = append(t.able, a.Cell)
	}
}

func read(i *control.Item) (wish, error) {
	var body Wish
	if !i.Deleted {
		if err := json.Unmarshal(i.Body, &body); err != nil {
			return wish{}, err
		}
	}
	return wish{i.Key, i.Version, body.Tenant, body.Request}, nil
}

// known are the placements of all tenants that requests may be about.
func (t *table) known(s *shares.State) map[string]*shares.Placement {
	out := make(map[string]*shares.Placement, len(t.pins))
	for i := range t.pins {
		out[t.pins[i].Tenant] = t.placed[t.pins[i].Tenant].placement
	}
	for i := range s.Queue {
		if s.Queue[i].Kind == shares.Place {
			out[s.Queue[i].Tenant] = t.placed[s.Queue[i].Tenant].placement
		}
	}
	return out
}

// requests are what brings the state nearer to the wishes: those of cells first, and of pins no more than one transition takes,
// so that they never fill the queue.
func (t *table) requests(s *shares.State) []shares.Request {
	var out []shares.Request
	add := func(w *wish, r shares.Request) {
		if slices.ContainsFunc(s.Queue, func(q shares.Request) bool { return alike(&q, &r) }) {
			return
		}
		// One that is refused is asked again in another epoch, when it may be right.
		r.ID = fmt.Sprintf("%s@%d.%d", w.key, w.version, s.Epoch)
		out = append(out, r)
	}
	for i := range t.cells {
		if r, ok := cellRequest(s, &t.cells[i].Request); ok {
			add(&t.cells[i], r)
		}
	}
	room := shares.MaxPlaced
	for i := range s.Queue {
		if s.Queue[i].Kind == shares.Place {
			room--
		}
	}
	for i := 0; i < len(t.pins) && room > 0; i++ {
		w := &t.pins[i]
		if t.isPlaced(s, &w.Request) || slices.ContainsFunc(w.Cells, func(cell string) bool { return !serves(s, cell) }) {
			continue
		}
		before := len(out)
		add(w, shares.Request{Kind: shares.Place, Tenant: w.Tenant, Cells: w.Cells, Homed: w.Homed})
		room -= len(out) - before
	}
	return out
}

func alike(a, b *shares.Request) bool {
	return a.Kind == b.Kind && a.Cell == b.Cell && a.Weight == b.Weight && a.Tenant == b.Tenant &&
		slices.Equal(a.Cells, b.Cells) && slices.Equal(a.Homed, b.Homed)
}

// cellRequest is the next step towards what a cell is to be; false where there is none now.
func cellRequest(s *shares.State, want *shares.Request) (shares.Request, bool) {
	at := slices.IndexFunc(s.Members, func(m shares.Member) bool { return m.Cell == want.Cell })
	if at < 0 {
		join := want.Kind == shares.Join || want.Kind == shares.Weigh
		return shares.Request{Kind: shares.Join, Cell: want.Cell, Weight: want.Weight}, join && len(s.Members) < shares.MaxCells
	}
	m := &s.Members[at]
	r := shares.Request{Cell: want.Cell}
	switch want.Kind {
	case shares.Join, shares.Weigh:
		r.Kind, r.Weight = shares.Weigh, want.Weight
		if m.State == shares.Drained {
			r.Kind = shares.Join
		}
		return r, m.State != shares.Draining && m.Weight != want.Weight && !m.Forced
	case shares.Drain, shares.Remove:
		r.Kind = shares.Drain
		if m.State == shares.Drained {
			r.Kind = shares.Remove
			return r, want.Kind == shares.Remove
		}
		return r, m.Weight > 0 && othersServe(s, want.Cell)
	case shares.Force:
		r.Kind = shares.Force
		return r, !m.Forced && othersServe(s, want.Cell)
	case shares.Place:
	}
	return r, false
}

func serves(s *shares.State, cell string) bool {
	return slices.ContainsFunc(s.Members, func(m shares.Member) bool { return m.Cell == cell && m.Weight > 0 && !m.Forced })
}

func othersServe(s *shares.State, cell string) bool {
	return slices.ContainsFunc(s.Members, func(m shares.Member) bool { return m.Cell != cell && m.Weight > 0 && !m.Forced })
}

// placement is the tenant's, once the transition under way has ended; nil where it has none.
func (t *table) placement(s *shares.State, tenant string) *shares.Placement {
	if s.Transition != nil {
		for i := range s.Transition.Placements {
			if s.Transition.Placements[i].Tenant == tenant {
				return &s.Transition.Placements[i]
			}
		}
	}
	return t.placed[tenant].placement
}

// isPlaced reports whether the tenant is where the request wants it, or on its way there.
func (t *table) isPlaced(s *shares.State, r *shares.Request) bool {
	p := t.placement(s, r.Tenant)
	if p == nil {
		return len(r.Cells) == 0 && len(r.Homed) == 0
	}
	last := &p.Generations[len(p.Generations)-1]
	return slices.Equal(last.Cells, r.Cells) && slices.Equal(last.Homed, r.Homed)
}
