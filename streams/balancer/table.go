package balancer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// table holds what the control table of the cells says, except the state.
type table struct {
	cells      []wish // by key
	pins       []wish // by key
	placements map[string]storedPlacement
	acks       []shares.Ack
	unread     int // number of errors about items that cannot be read or are not valid

	// keys of placements that cannot be read, with the versions of their items; 0 if unknown
	unreadable      map[string]int64
	unreadablePages int // pages with rows that cannot be read at all and may be placements
}

// wish is the desired state of a cell, or of a tenant's placement.
type wish struct {
	key     string
	version int64
	tenant  []byte // of a pin: see [Wish]
	shares.Request
}

// storedPlacement is a tenant's placement and the version of its item.
type storedPlacement struct {
	placement *shares.Placement
	version   int64
}

// readTable reads the control table of the cells. It leaves out and counts items that cannot be read or are not valid,
// so that one such item does not stop the balancer. It remembers which placements cannot be read, because an unreadable
// placement must not be taken for an absent one.
func (b *Balancer) readTable(ctx context.Context) (*table, error) {
	t := &table{placements: map[string]storedPlacement{}, unreadable: map[string]int64{}}
	placementErrors, otherErrors := map[string]error{}, []error{}
	for item, err := range control.All(ctx, b.c.Tables, control.Cells) {
		if err == nil {
			if err = t.add(&item); err != nil {
				err = fmt.Errorf("%s: version %d: %w", item.Key, item.Version, err)
			}
		} else if !errors.Is(err, control.ErrBadItem) {
			return nil, fmt.Errorf("read the cells: %w", err)
		} else if control.MayHide(err, shares.IsPlacement) {
			t.unreadablePages++
		}
		if err == nil {
			continue
		}
		t.unread++
		if _, ok := t.unreadable[item.Key]; ok {
			placementErrors[item.Key] = err
			continue
		}
		otherErrors = append(otherErrors, err)
	}
	for _, err := range otherErrors {
		b.c.Log.ErrorContext(ctx, "an item of the table of cells cannot be read, and is ignored", "error", t.named(err))
	}
	for i := range t.pins {
		key := shares.PlacementKey(t.pins[i].Tenant)
		if err := placementErrors[key]; err != nil {
			placementErrors[key] = fmt.Errorf("tenant %q: %w", t.pins[i].Tenant, err)
		}
	}
	for _, err := range placementErrors {
		b.c.Log.ErrorContext(ctx, unreadablePlacement, "error", err)
	}
	byKey := func(a, b wish) int { return strings.Compare(a.key, b.key) }
	slices.SortFunc(t.cells, byKey)
	slices.SortFunc(t.pins, byKey)
	return t, nil
}

// named adds to an error the names of the cells whose acknowledgements it mentions, because the keys are hashes.
func (t *table) named(err error) error {
	for i := range t.cells {
		if cell := t.cells[i].key; strings.Contains(err.Error(), shares.AckKey(cell)) {
			err = fmt.Errorf("the acknowledgement of cell %q: %w", cell, err)
		}
	}
	return err
}

// unreadablePlacement is the log message for a placement that cannot be read.
const unreadablePlacement = "a placement cannot be read: nothing changes for its tenant until the item is repaired"

func (t *table) add(i *control.Item) error {
	if shares.IsPlacement(i.Key) {
		p, err := readPlacement(i)
		if err != nil {
			t.unreadable[i.Key] = i.Version
			return err
		}
		t.placements[p.Tenant] = storedPlacement{p, i.Version}
		return nil
	}
	// An item that was altered outside Sluice is not a wish, and not an acknowledgement.
	if err := i.Verify(); err != nil {
		return err
	}
	switch {
	case i.Key == events.SharesKey, strings.HasPrefix(i.Key, shares.PacePrefix):
	case strings.HasPrefix(i.Key, shares.AckPrefix):
		var a shares.Ack
		if i.Deleted {
			return nil
		}
		if err := json.Unmarshal(i.Body, &a); err != nil {
			return err
		}
		if shares.AckKey(a.Cell) != i.Key {
			return errors.New("the key belongs to the acknowledgement of another cell")
		}
		t.acks = append(t.acks, a)
	case strings.HasPrefix(i.Key, shares.PinPrefix):
		w, err := readWish(i)
		if err != nil || i.Deleted {
			return err
		}
		if w.Kind != shares.Place {
			return fmt.Errorf("want a request to place, got %.80q", string(w.Kind))
		}
		t.pins = append(t.pins, w)
	default:
		w, err := readWish(i)
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

// readPlacement reads an item as cells do. A placement that was altered is never published, so no cell knows it.
func readPlacement(i *control.Item) (*shares.Placement, error) {
	if i.Deleted {
		return nil,
			errors.New("a placement must not be deleted, because it also says which cells served the tenant before")
	}
	if err := i.Verify(); err != nil {
		return nil, err
	}
	return shares.ReadPlacement(i.Key, i.Body)
}

func readWish(i *control.Item) (wish, error) {
	var body Wish
	if !i.Deleted {
		if err := json.Unmarshal(i.Body, &body); err != nil {
			return wish{}, err
		}
	}
	return wish{i.Key, i.Version, body.Tenant, body.Request}, nil
}

// hasUnreadablePlacement reports whether a tenant has a placement that cannot be read. It is then unknown which cells
// serve the tenant.
func (b *Balancer) hasUnreadablePlacement(ctx context.Context, t *table, tenant string) (bool, error) {
	if len(t.unreadable) == 0 && t.unreadablePages == 0 {
		return false, nil
	}
	key := shares.PlacementKey(tenant)
	_, unreadable := t.unreadable[key]
	if unreadable || t.unreadablePages == 0 || t.placements[tenant].placement != nil {
		return unreadable, nil
	}
	// The row of the tenant's placement may be the one that cannot be read.
	_, err := b.c.Tables.Get(ctx, control.Cells, key)
	switch {
	case errors.Is(err, control.ErrNotFound):
		return false, nil
	case errors.Is(err, control.ErrBadItem):
		t.unreadable[key] = 0
		b.c.Log.ErrorContext(ctx, unreadablePlacement, "error", fmt.Errorf("tenant %q: %w", tenant, err))
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read a placement: %w", err)
	}
	return false, fmt.Errorf("%w: the placement of tenant %q", errTableChanged, tenant)
}

// readablePlacements returns the stored placement of each tenant that a request is about; nil for a tenant without one.
// A tenant whose placement cannot be read has no entry, and the requests about the tenant wait.
func (b *Balancer) readablePlacements(
	ctx context.Context, t *table, requests ...[]shares.Request,
) (map[string]*shares.Placement, error) {
	out := map[string]*shares.Placement{}
	for _, r := range slices.Concat(requests...) {
		if r.Kind != shares.Place {
			continue
		}
		unreadable, err := b.hasUnreadablePlacement(ctx, t, r.Tenant)
		if err != nil {
			return nil, err
		}
		if !unreadable {
			out[r.Tenant] = t.placements[r.Tenant].placement
		}
	}
	return out, nil
}

// requests returns the requests that bring the state closer to the wishes: first those of cells, then pins, at most as
// many as one transition takes, so that pins never fill the queue.
func (b *Balancer) requests(ctx context.Context, s *shares.State, t *table) ([]shares.Request, error) {
	var out []shares.Request
	add := func(w *wish, r shares.Request) {
		if slices.ContainsFunc(s.Queue, func(q shares.Request) bool { return sameRequest(&q, &r) }) {
			return
		}
		// A request that is refused is made again in a later epoch, in which it may be valid.
		r.ID = fmt.Sprintf("%s@%d.%d", w.key, w.version, s.Epoch)
		out = append(out, r)
	}
	for i := range t.cells {
		r, ok := cellRequest(s, &t.cells[i].Request)
		if ok && r.Kind == shares.Join && t.unreadablePages > 0 {
			b.c.Log.ErrorContext(ctx,
				"no cell joins while a row of the table of cells cannot be read: it may be a placement, and the new "+
					"cell would not receive it",
				"cell", r.Cell)
			continue
		}
		if ok {
			add(&t.cells[i], r)
		}
	}
	room := shares.MaxPlaced
	queued, err := b.readablePlacements(ctx, t, s.Queue)
	if err != nil {
		return nil, err
	}
	for i := range s.Queue {
		if _, ok := queued[s.Queue[i].Tenant]; ok && s.Queue[i].Kind == shares.Place {
			room--
		}
	}
	for i := 0; i < len(t.pins) && room > 0; i++ {
		w := &t.pins[i]
		if t.isPlaced(s, &w.Request) || slices.ContainsFunc(w.Cells,
			func(cell string) bool { return !serves(s, cell) }) {
			continue
		}
		unreadable, err := b.hasUnreadablePlacement(ctx, t, w.Tenant)
		if err != nil {
			return nil, err
		}
		if unreadable {
			continue
		}
		before := len(out)
		add(w, shares.Request{Kind: shares.Place, Tenant: w.Tenant, Cells: w.Cells, Homed: w.Homed})
		room -= len(out) - before
	}
	return out, nil
}

func sameRequest(a, b *shares.Request) bool {
	return a.Kind == b.Kind && a.Cell == b.Cell && a.Weight == b.Weight && a.Tenant == b.Tenant &&
		slices.Equal(a.Cells, b.Cells) && slices.Equal(a.Homed, b.Homed)
}

// cellRequest returns the next step towards the desired state of a cell. It returns false if there is none at the
// moment.
func cellRequest(s *shares.State, want *shares.Request) (shares.Request, bool) {
	at := slices.IndexFunc(s.Members, func(m shares.Member) bool { return m.Cell == want.Cell })
	if at < 0 {
		join := want.Kind == shares.Join || want.Kind == shares.Weigh
		return shares.Request{Kind: shares.Join, Cell: want.Cell, Weight: want.Weight}, join &&
			len(s.Members) < shares.MaxCells
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
	return slices.ContainsFunc(s.Members,
		func(m shares.Member) bool { return m.Cell == cell && m.Weight > 0 && !m.Forced })
}

func othersServe(s *shares.State, cell string) bool {
	return slices.ContainsFunc(s.Members,
		func(m shares.Member) bool { return m.Cell != cell && m.Weight > 0 && !m.Forced })
}

// nextPlacement returns the tenant's placement after the current transition, or nil if the tenant has none.
func (t *table) nextPlacement(s *shares.State, tenant string) *shares.Placement {
	if s.Transition != nil {
		for i := range s.Transition.Placements {
			if s.Transition.Placements[i].Tenant == tenant {
				return &s.Transition.Placements[i]
			}
		}
	}
	return t.placements[tenant].placement
}

// isPlaced reports whether the tenant is, or is about to be, where the request wants it.
func (t *table) isPlaced(s *shares.State, r *shares.Request) bool {
	p := t.nextPlacement(s, r.Tenant)
	if p == nil {
		return len(r.Cells) == 0 && len(r.Homed) == 0
	}
	last := &p.Generations[len(p.Generations)-1]
	return slices.Equal(last.Cells, r.Cells) && slices.Equal(last.Homed, r.Homed)
}
