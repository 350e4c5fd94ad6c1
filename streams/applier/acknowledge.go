package applier

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// ackAttempts is how often an acknowledgement is written if others write the same item at the same time.
const ackAttempts = 4

// AcknowledgerConfig sets up an Acknowledger. All fields but the last are required.
type AcknowledgerConfig struct {
	Cell string // its id
	// Tables are the control tables. Only the table of cells is used, and only the key shares.AckKey of the cell is
	// written.
	Tables control.Tables
	Store  table.Store // of the cell

	Now func() time.Time // default time.Now
}

// Acknowledger tells the balancer which shares a cell knows. The cell's applier calls it after the shares or a
// placement have arrived. The cell's reconcile calls it, too, in case a call of the applier was lost.
//
// An acknowledgement says that the cell's configuration table holds the document of an epoch and phase, and everything
// that belongs to it. Every environment of the cell that polls then knows it. The balancer's grace is longer than an
// environment may decide without a poll. The cell acknowledges
//
//   - a shrink as soon as it is stored. A cell that joins has not received the earlier placements, and fetches them
//     first.
//   - a growth once the placements of its transition are stored, too, because the shares that follow no longer contain
//     them.
//   - nothing if the stored document does not await the cell.
//   - nothing that the control tables do not have: such shares were forged, and an acknowledgement of a high epoch
//     would be newer than all later ones.
//
// A cell whose table has no shares, because the cell is new or lost its table, does not have the earlier placements
// either. With shares alone it would grant units to a tenant that is pinned to other cells. It therefore fetches every
// placement before it stores its first shares: see [Acknowledger.Prepare].
//
// An Acknowledger reads what is stored, not what arrived. It may be called at any time, any number of times, and
// concurrently. An older acknowledgement never replaces a newer one. Make it with NewAcknowledger.
type Acknowledger struct{ c AcknowledgerConfig }

// NewAcknowledger makes an acknowledger.
func NewAcknowledger(c AcknowledgerConfig) *Acknowledger {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Acknowledger{c}
}

// concerned reports whether one of the messages is about the shares or a placement. Run must then be called, even if
// the messages are old: Run also repeats an acknowledgement that failed.
func concerned(messages []byte) bool { return bytes.Contains(messages, []byte(events.SharesChanged)) }

// Run acknowledges what the cell has, if the balancer awaits it, and reports whether it wrote. After an error, call it
// again. But if the error wraps [control.ErrBadItem], an item cannot be read, and calling again does not help: the
// repair of the item is a change, after which Run is called.
func (a *Acknowledger) Run(ctx context.Context) (wrote bool, err error) {
	state, err := a.state(ctx)
	if err != nil {
		return false, fmt.Errorf("acknowledge: %w", err)
	}
	if state == nil || !a.awaited(state) {
		return false, nil
	}
	newest, err := a.newest(ctx)
	if err != nil {
		return false, fmt.Errorf("acknowledge: %w", err)
	}
	if state.Document().Revision() > newest {
		return false, nil // reconcile removes the forged shares
	}
	ready, err := a.complete(ctx, state)
	if err != nil {
		return false, fmt.Errorf("acknowledge: %w", err)
	}
	if !ready {
		return false, nil
	}
	for range ackAttempts {
		if wrote, err = a.write(ctx, state); !errors.Is(err, control.ErrConflict) {
			break
		}
	}
	if err != nil {
		return false, fmt.Errorf("acknowledge: %w", err)
	}
	return wrote, nil
}

// awaited reports whether the present transition waits for the cell's acknowledgement.
func (a *Acknowledger) awaited(s *shares.State) bool {
	return s.Transition != nil && slices.Contains(s.Transition.Awaiting, a.c.Cell)
}

// Prepare stores the placement of every tenant if the cell has no shares yet. It must be called before concerned
// messages are applied, because they may bring the cell's first shares. If it returns an error, the messages must not
// be applied.
func (a *Acknowledger) Prepare(ctx context.Context) error {
	d, err := a.stored(ctx, table.KindShares, table.SharesID)
	if err == nil && d == nil { // also if there is a tombstone, which says only that shares exist
		err = a.fetchAll(ctx)
	}
	if err != nil {
		return fmt.Errorf("prepare for the first shares: %w", err)
	}
	return nil
}

// stored returns a document of the cell, or nil if the cell has none or a tombstone.
func (a *Acknowledger) stored(ctx context.Context, kind table.Kind, id string) (*table.Document, error) {
	got, err := a.c.Store.Get(ctx, table.Ref{Kind: kind, ID: id})
	switch {
	case err != nil:
		return nil, err
	case len(got) != 1:
		return nil, fmt.Errorf("the store returned %d documents for one name", len(got))
	case got[0].Version == 0 || got[0].Deleted:
		return nil, nil
	}
	return &got[0], nil
}

// state returns the shares that the cell knows, or nil if it knows none.
func (a *Acknowledger) state(ctx context.Context) (*shares.State, error) {
	d, err := a.stored(ctx, table.KindShares, table.SharesID)
	if err != nil || d == nil {
		return nil, err
	}
	state, err := shares.DecodeState(d.Body)
	if err != nil {
		return nil, fmt.Errorf("the cell's own copy: %w: %w", control.ErrBadItem, err)
	}
	return state, nil
}

// newest returns the revision of the shares in the control tables, or 0 if there are none.
func (a *Acknowledger) newest(ctx context.Context) (int64, error) {
	item, err := a.c.Tables.Get(ctx, control.Cells, events.SharesKey)
	switch {
	case errors.Is(err, control.ErrNotFound):
		return 0, nil
	case err != nil:
		return 0, err
	}
	d, err := documentOf(&item)
	if err != nil {
		return 0, err
	}
	state, err := shares.DecodeState(d.Body)
	if err != nil {
		return 0, fmt.Errorf("the shares: %w: %w", control.ErrBadItem, err)
	}
	if doc := state.Document(); doc != nil {
		return doc.Revision(), nil
	}
	return 0, nil
}

// complete reports whether everything that belongs to the state is stored. It fetches what is missing.
func (a *Acknowledger) complete(ctx context.Context, s *shares.State) (bool, error) {
	joins := slices.ContainsFunc(s.Members,
		func(m shares.Member) bool { return m.Cell == a.c.Cell && m.State == shares.Joining })
	if joins {
		if err := a.fetchAll(ctx); err != nil {
			return false, err
		}
	}
	if s.Phase != shares.Grow {
		return true, nil
	}
	for i := range s.Transition.Placements {
		p := &s.Transition.Placements[i]
		there, err := a.hasPlacement(ctx, p)
		if err == nil && !there {
			if err = a.fetch(ctx, shares.PlacementKey(p.Tenant)); err == nil {
				there, err = a.hasPlacement(ctx, p)
			}
		}
		if err != nil || !there {
			return false, err
		}
	}
	return true, nil
}

// hasPlacement reports whether the cell has the placement, or a later one that it can read.
func (a *Acknowledger) hasPlacement(ctx context.Context, p *shares.Placement) (bool, error) {
	d, err := a.stored(ctx, table.KindPlacement, shares.PlacementKey(p.Tenant))
	if err != nil || d == nil {
		return false, err
	}
	have, err := shares.ReadPlacement(d.ID, d.Body)
	if err != nil {
		return false, nil //nolint:nilerr // the current placement is fetched
	}
	return have.Generations[len(have.Generations)-1].Epoch >= p.Generations[len(p.Generations)-1].Epoch, nil
}

// fetch copies the placement with the key from the control table to the cell. It does nothing if there is none, and
// returns an error if the placement cannot be read.
func (a *Acknowledger) fetch(ctx context.Context, key string) error {
	item, err := a.c.Tables.Get(ctx, control.Cells, key)
	if errors.Is(err, control.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	d, err := documentOf(&item)
	if err != nil {
		return err
	}
	return a.apply(ctx, []table.Document{d})
}

// documentOf returns the document of an item. The error wraps control.ErrBadItem if the item cannot be read.
func documentOf(item *control.Item) (d table.Document, err error) {
	d = table.DocumentOf(item.Event())
	if err = item.Verify(); err == nil {
		if err = table.Readable(&d); err != nil {
			err = fmt.Errorf("%s/%.140q: %w: version %d: %w", item.Table, item.Key, control.ErrBadItem, item.Version,
				err)
		}
	}
	return d, err
}

// fetchPage is how many placements fetchAll stores at once.
const fetchPage = 200

// fetchAll copies every placement to the cell. For a placement that cannot be read, the cell stores a tombstone, which
// says that the placement is unknown. It does so even if it has an older placement, because it may have missed some in
// between. The cell then grants nothing to that tenant, and serves all others.
func (a *Acknowledger) fetchAll(ctx context.Context) error {
	var page []table.Document
	for item, err := range control.All(ctx, a.c.Tables, control.Cells) {
		if errors.Is(err, control.ErrBadItem) && !control.MayHide(err, shares.IsPlacement) {
			continue // the item is no placement; the balancer logs it, and reconcile reports it
		}
		if err != nil {
			return err // this includes an unreadable item that may be a placement
		}
		if !shares.IsPlacement(item.Key) {
			continue
		}
		d, err := documentOf(&item)
		if err != nil {
			d = table.Unknown(d)
		}
		if page = append(page, d); len(page) == fetchPage {
			if err := a.apply(ctx, page); err != nil {
				return err
			}
			page = page[:0]
		}
	}
	return a.apply(ctx, page)
}

func (a *Acknowledger) apply(ctx context.Context, documents []table.Document) error {
	_, err := table.Apply(ctx, a.c.Store, documents, a.c.Now)
	return err
}

// write writes the acknowledgement, unless the same or a newer one is stored.
func (a *Acknowledger) write(ctx context.Context, s *shares.State) (bool, error) {
	key := shares.AckKey(a.c.Cell)
	item, err := a.c.Tables.Get(ctx, control.Cells, key)
	if err != nil && !errors.Is(err, control.ErrNotFound) {
		return false, err
	}
	var have shares.Ack
	if err == nil && !item.Deleted && item.Verify() == nil &&
		json.Unmarshal(item.Body, &have) == nil { // an acknowledgement that cannot be read is replaced
		then := shares.Document{Epoch: have.Epoch, Phase: have.Phase}
		if now := s.Document().Revision(); then.Revision() >= now {
			return false, nil
		}
	}
	now := a.c.Now()
	body, err := json.Marshal(shares.Ack{Cell: a.c.Cell, Epoch: s.Epoch, Phase: s.Phase, AtUS: now.UnixMicro()})
	if err != nil {
		return false, err
	}
	_, err = a.c.Tables.Put(ctx, control.Change{
		Table: control.Cells, Key: key, Expect: item.Version, Body: body, Actor: "sluice cell " + a.c.Cell,
		Reason: fmt.Sprintf("epoch %d, %s", s.Epoch, s.Phase), Now: now,
	})
	return err == nil, err
}
