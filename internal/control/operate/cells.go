package operate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/loopback"
)

// CellDocument is the body of an item of the table cells. The item belongs to a cell, under the cell's name, or to a
// tenant's pin, under PinKey.
type CellDocument struct {
	ID      string         `json:"id"`            // the item's key
	Ops     string         `json:"ops,omitempty"` // of a cell: URL of its operators' API
	Request shares.Request `json:"request"`       // the newest request; its id is key@version

	// Tenant is set in a pin if the tenant has limits that differ from its plan's. It holds the parts of the tenant's
	// document that say so. The balancer homes those of the limits that are too small to be divided.
	Tenant json.RawMessage `json:"tenant,omitempty"`
}

// PinKey returns the key, in the table cells, of the requests that place a tenant.
func PinKey(tenant string) string {
	sum := sha256.Sum256([]byte(tenant))
	return shares.PinPrefix + hex.EncodeToString(sum[:20])
}

// ReadCell decodes the body of an item of the table cells, except for the item events.SharesKey. Of the result, the
// balancer uses the Request, as an element of shares.Input.
func ReadCell(body []byte) (*CellDocument, error) {
	var c CellDocument
	if err := decodeKnown(body, &c); err != nil {
		return nil, fmt.Errorf("not a valid document of a cell: %w", err)
	}
	return &c, nil
}

// decodeKnown decodes a stored object, and refuses members that into does not have.
func decodeKnown(body []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// AddCellRequest asks for a cell to serve, or for a new weight.
type AddCellRequest struct {
	Cell   string `json:"cell"`
	Weight int64  `json:"weight,omitempty"` // 1..shares.MaxWeight; 0 selects 1
	Ops    string `json:"ops,omitempty"`    // URL of the cell's operators' API; empty: keep the stored one
	Yes    bool   `json:"yes,omitempty"`    // accept that Ops replaces another URL
	Reason string `json:"reason"`
	Expect *int64 `json:"expect,omitempty"`
}

// AddCell asks the balancer to let the cell serve, or, if the cell serves already, to change its weight. The cell's
// share changes in the two phases of package shares, not at once. The call is refused with [Confirm] if it would
// change the URL of the operators' API and does not say yes.
func (s *Control) AddCell(ctx context.Context, actor string, r *AddCellRequest) (*control.Item, error) {
	weight := r.Weight
	if weight == 0 {
		weight = 1
	}
	if weight < 1 || weight > shares.MaxWeight {
		return nil, Refuse(Invalid, "weight: %d, want 1..%d", weight, shares.MaxWeight)
	}
	if err := s.checkOps(r.Cell, r.Ops); err != nil {
		return nil, err
	}
	return s.writeDesiredState(ctx, actor, r.Cell, r.Reason, r.Expect, func(have *CellDocument) (*CellDocument, error) {
		kind := shares.Join
		if have != nil && (have.Request.Kind == shares.Join || have.Request.Kind == shares.Weigh) {
			kind = shares.Weigh
		}
		doc := &CellDocument{Ops: r.Ops, Request: shares.Request{Kind: kind, Cell: r.Cell, Weight: weight}}
		if have == nil || have.Ops == "" {
			return doc, nil
		}
		if doc.Ops == "" {
			doc.Ops = have.Ops
		}
		if !r.Yes && strings.TrimSuffix(doc.Ops, "/") != strings.TrimSuffix(have.Ops, "/") {
			return nil, Refuse(Confirm, "operators' calls about counters of cell %q would go to %s instead "+
				"of %s: say yes (--yes) if you intend that; nothing was written", r.Cell, doc.Ops, have.Ops)
		}
		return doc, nil
	})
}

// checkOps checks the URL of a cell's operators' API. Operators send signed calls to this URL, so somebody who may add
// a cell must not be able to direct these calls to an arbitrary server.
func (s *Control) checkOps(cell, text string) error {
	if text == "" || s.c.Local && isLocalURL(text) {
		return nil
	}
	stage, err := ParseStage(text)
	if err != nil && s.c.Local {
		return Refuse(Invalid, "ops: %v, nor a URL on this machine such as http://127.0.0.1:8080/ops", err)
	} else if err != nil {
		return Refuse(Invalid, "ops: %v", err)
	}
	if region := s.c.Regions[cell]; region != "" && region != stage.Region {
		return Refuse(Invalid, "ops: %s is in region %s, but cell %s is in %s", text, stage.Region, cell,
			region)
	}
	return nil
}

// isLocalURL reports whether the text is a URL of a server on this machine.
func isLocalURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && len(text) <= 1024 && u.User == nil && u.RawQuery == "" && u.Fragment == "" &&
		(u.Scheme == "http" || u.Scheme == "https") && loopback.Host(u.Hostname())
}

// CellRequest names a cell.
type CellRequest struct {
	Cell string `json:"cell"`
	// Force is for a removal: the balancer does not wait for the cell. Package shares says what that may cost.
	Force  bool   `json:"force,omitempty"`
	Reason string `json:"reason"`
	Expect *int64 `json:"expect,omitempty"`
}

// DrainCell asks the balancer to give the cell's share to the other cells.
func (s *Control) DrainCell(ctx context.Context, actor string, r *CellRequest) (*control.Item, error) {
	if r.Force {
		return nil, Refuse(Invalid, "force is only for a removal: a drain waits for the cell to acknowledge")
	}
	return s.requestChange(ctx, actor, r, shares.Drain)
}

// RemoveCell asks the balancer to forget a drained cell, or any cell if Force is set.
func (s *Control) RemoveCell(ctx context.Context, actor string, r *CellRequest) (*control.Item, error) {
	if r.Force {
		return s.requestChange(ctx, actor, r, shares.Force)
	}
	return s.requestChange(ctx, actor, r, shares.Remove)
}

// requestChange writes a request of the kind about an existing cell.
func (s *Control) requestChange(
	ctx context.Context, actor string, r *CellRequest, kind shares.Kind,
) (*control.Item, error) {
	return s.writeDesiredState(ctx, actor, r.Cell, r.Reason, r.Expect, func(have *CellDocument) (*CellDocument, error) {
		switch {
		case have == nil:
			return nil, Refuse(NotFound, "there is no cell %q", r.Cell)
		case kind == shares.Remove && have.Request.Kind != shares.Drain && have.Request.Kind != shares.Remove:
			return nil, Refuse(Invalid, "cell %q serves: drain it first, or, if it has stopped for good, "+
				"remove it by force", r.Cell)
		}
		return &CellDocument{Ops: have.Ops, Request: shares.Request{Kind: kind, Cell: r.Cell}}, nil
	})
}

// writeDesiredState writes the desired state of a cell. next gets the stored document, or nil if there is none, and
// returns the new one.
func (s *Control) writeDesiredState(
	ctx context.Context, actor, cell, reason string, expect *int64,
	next func(have *CellDocument) (*CellDocument, error),
) (*control.Item, error) {
	if err := events.CheckKey(control.Cells, cell); err != nil || shares.Reserved(cell) {
		return nil, Refuse(Invalid, "cell: %.80q is not the name of a cell: want 1 to 64 of A-Z a-z 0-9 . "+
			"_ -, not beginning with pin., placed., ack. or pace.", cell)
	}
	return s.revise(ctx, actor, reason, expect, control.Cells, cell, func(item *control.Item) (body any, err error) {
		var have *CellDocument
		if item != nil && !item.Deleted {
			if have, err = ReadCell(item.Body); err != nil {
				return nil, Refuse(Internal, "cell %q: %v", cell, err)
			}
		}
		doc, err := next(have)
		if err != nil {
			return nil, err
		}
		return doc.named(cell, item), nil
	})
}

// named returns the document with its id and that of its request, for the version after item.
func (d *CellDocument) named(key string, item *control.Item) *CellDocument {
	d.ID, d.Request.ID = key, fmt.Sprintf("%s@%d", key, versionOf(item)+1)
	return d
}

// pinEdit writes the pin of the tenant of an edit, which tells the balancer which cells shall serve the tenant, and
// what limits of its own the tenant has. The pin is written before the tenant's document. If an Apply stops between the
// two writes, the document still differs from the desired one, so that a repeated Apply writes it.
func (s *Control) pinEdit(ctx context.Context, actor, reason string, e *edit) error {
	now := placementOf(e.Body)
	var before placementFields
	if !e.absent() {
		before = placementOf(e.have.Body)
	}
	if !now.isSpecial() && !before.isSpecial() {
		return nil // most tenants: there is no pin to read
	}
	return s.pin(ctx, actor, reason, e.Key, &now)
}

// repin writes the pin again, from the tenant's stored document. It is called if the document could not be written
// after the pin, because another operator has changed the document.
func (s *Control) repin(ctx context.Context, actor, reason, tenant string) {
	item, err := s.item(ctx, control.Tenants, tenant)
	if err == nil && item != nil {
		now := placementOf(item.Body)
		err = s.pin(ctx, actor, reason, tenant, &now)
	}
	if err != nil {
		s.c.Log.ErrorContext(ctx, "a tenant's pin does not agree with its document; the next change of the tenant "+
			"corrects it",
			"tenant", tenant, "error", err)
	}
}

// placementFields are the members of a tenant's document that decide which cells grant its limits.
type placementFields struct {
	ID        string          `json:"id"`
	Plan      string          `json:"plan,omitempty"`
	Cells     []string        `json:"cells,omitempty"`
	Overrides json.RawMessage `json:"overrides,omitempty"`
	Boosts    json.RawMessage `json:"boosts,omitempty"`
}

// placementOf returns the placement fields of a tenant's document; empty for a tombstone.
func placementOf(body []byte) (p placementFields) {
	_ = json.Unmarshal(body, &p) // a tombstone has no body, and other bodies were compiled
	return p
}

// isSpecial reports whether the tenant is placed differently from a tenant without any of the fields.
func (p *placementFields) isSpecial() bool { return len(p.Cells) > 0 || p.hasOwnLimits() }

// hasOwnLimits reports whether a cell's share of one of the tenant's limits may differ from the share that follows from
// the plan alone: several named cells divide the limit, or it has an override or a boost. The balancer then decides by
// the tenant's document which limits are too small to be divided. If only one cell serves the tenant, nothing is
// divided.
func (p *placementFields) hasOwnLimits() bool {
	return len(p.Cells) != 1 && (len(p.Cells) > 1 || len(p.Overrides) > 0 || len(p.Boosts) > 0)
}

// document returns the tenant's pin. Its request has no id yet.
func (p *placementFields) document(tenant string) (*CellDocument, error) {
	doc := &CellDocument{Request: shares.Request{Kind: shares.Place, Tenant: tenant, Cells: p.Cells}}
	if p.hasOwnLimits() {
		own := *p
		own.Cells = nil
		text, err := events.MarshalCanonical(own)
		if err != nil {
			return nil, Refuse(Invalid, "tenant %.140q: %v", tenant, err)
		}
		doc.Tenant = text
	}
	return doc, nil
}

// samePlacement reports whether two pins place their tenant in the same way.
func (d *CellDocument) samePlacement(o *CellDocument) bool {
	return d.Request.Tenant == o.Request.Tenant && slices.Equal(d.Request.Cells, o.Request.Cells) &&
		bytes.Equal(d.Tenant, o.Tenant)
}

// PinOf reports whether a pin agrees with the placement fields of a tenant's document. If it does, the author of the
// pin is the operator who last changed the tenant's plan, cells, overrides or boosts. PinOf returns false for a tenant
// without overrides and boosts, and for a tenant that is served by a single cell, since their pins do not hold these
// fields.
func PinOf(pin []byte, tenant string, body []byte) bool {
	have, err := ReadCell(pin)
	now := placementOf(body)
	if err != nil || !now.hasOwnLimits() {
		return false
	}
	doc, err := now.document(tenant)
	return err == nil && have.samePlacement(doc)
}

// pin writes the tenant's pin unless the stored pin already agrees with it.
func (s *Control) pin(ctx context.Context, actor, reason, tenant string, p *placementFields) error {
	doc, err := p.document(tenant)
	if err != nil {
		return err
	}
	key := PinKey(tenant)
	item, err := s.item(ctx, control.Cells, key)
	if err != nil {
		return err
	}
	if item != nil {
		if have, err := ReadCell(item.Body); err == nil && have.samePlacement(doc) {
			return nil
		}
	} else if !p.isSpecial() {
		return nil
	}
	body, err := events.MarshalCanonical(doc.named(key, item))
	if err != nil {
		return Refuse(Invalid, "%v", err)
	}
	_, err = s.put(ctx, control.Change{Table: control.Cells, Key: key, Expect: versionOf(item), Body: body,
		Actor:  actor,
		Reason: reason})
	return err
}

// CellsRequest asks for all cells.
type CellsRequest struct {
	Tenant string `json:"tenant,omitempty"` // if set, the answer names this tenant's home cell
}

// CellRow is one cell.
type CellRow struct {
	Cell      string      `json:"cell"`
	Asked     shares.Kind `json:"asked"` // kind of the newest request
	Weight    int64       `json:"weight,omitempty"`
	Version   int64       `json:"version"`
	Actor     string      `json:"actor"`
	ChangedAt time.Time   `json:"changed_at"`
	Region    string      `json:"region,omitempty"` // AWS region; "" if unknown
	Ops       string      `json:"ops,omitempty"`    // as stored: earlier releases did not check the URL
	// State is the balancer's: joining, active, draining or drained. "waiting": the balancer has not carried out the
	// newest request, or has refused it. "removed": it has removed the cell.
	State   string `json:"state"`
	Share   int64  `json:"share,omitempty"`   // the weight in effect
	Awaited bool   `json:"awaited,omitempty"` // the present transition waits for this cell's acknowledgement
}

// CellsResponse holds all cells, sorted by name.
type CellsResponse struct {
	Cells []CellRow    `json:"cells"`
	Epoch int64        `json:"epoch"` // 0: the balancer has not begun
	Phase shares.Phase `json:"phase,omitempty"`
	Note  string       `json:"note,omitempty"`

	// Home is the cell that counts the tenant's quotas after the present transition has taken effect. It is "" if no
	// cell serves the tenant, if the balancer has not begun, or if the tenant's placement cannot be read.
	Home string `json:"home,omitempty"`

	// Alone is the only cell that runs. It grants all of every limit, whatever Cells says: see ControlConfig.Alone.
	Alone string `json:"alone,omitempty"`

	Unreadable []UnreadableCell `json:"unreadable,omitempty"` // sorted by key
}

// UnreadableCell is an item of the table cells that cannot be read. The balancer ignores it.
type UnreadableCell struct {
	Key     string `json:"key,omitempty"` // empty if only Error contains it
	Tenant  string `json:"tenant,omitempty"`
	Version int64  `json:"version,omitempty"`
	Error   string `json:"error"`
}

// add adds an item of the table cells to the list. The error says why the balancer cannot read the item.
func (out *CellsResponse) add(i *control.Item, tenants, regions map[string]string) error {
	switch {
	case shares.IsPlacement(i.Key):
		if i.Deleted {
			return errors.New("a placement was deleted, although cells need it to know what they may grant")
		}
		if err := i.Verify(); err != nil {
			return err
		}
		_, err := shares.ReadPlacement(i.Key, i.Body)
		return err
	case i.Deleted || shares.Reserved(i.Key) && !strings.HasPrefix(i.Key, shares.PinPrefix):
		return nil
	}
	doc, err := ReadCell(i.Body)
	switch {
	case err != nil:
		return err
	case strings.HasPrefix(i.Key, shares.PinPrefix):
		tenants[shares.PlacementKey(doc.Request.Tenant)] = doc.Request.Tenant
	default:
		out.Cells = append(out.Cells, CellRow{Cell: i.Key, Asked: doc.Request.Kind, Weight: doc.Request.Weight,
			Version: i.Version, Actor: i.Actor, ChangedAt: i.ChangedAt, Region: regions[i.Key], Ops: doc.Ops,
			State: "waiting"})
	}
	return nil
}

// Cells lists the cells: the newest request about each, and how far the balancer has carried it out.
func (s *Control) Cells(ctx context.Context, _ string, r *CellsRequest) (*CellsResponse, error) {
	out := &CellsResponse{Cells: []CellRow{}, Alone: s.c.Alone}
	placement := ""
	if r.Tenant != "" {
		if err := events.CheckKey(control.Tenants, r.Tenant); err != nil {
			return nil, Refuse(Invalid, "tenant: %v", err)
		}
		placement = shares.PlacementKey(r.Tenant)
	}
	var state *shares.State
	var placed *shares.Placement
	placeKnown := true
	tenants := map[string]string{} // keys of placements → tenants
	for i, err := range control.All(ctx, s.c.Tables, control.Cells) {
		switch {
		case errors.Is(err, control.ErrBadItem):
			out.Unreadable = append(out.Unreadable, UnreadableCell{Error: err.Error()})
			continue
		case err != nil:
			return nil, s.tableError(ctx, "list "+string(control.Cells), err)
		case i.Key == events.SharesKey && !i.Deleted:
			if state, err = shares.DecodeState(i.Body); err != nil {
				out.Note = "the balancer's state cannot be read here: " + err.Error()
			}
			continue
		case i.Key == placement: // out.add below reports a placement that cannot be read
			placed, err = shares.ReadPlacement(i.Key, i.Body)
			placeKnown = err == nil && !i.Deleted
		}
		if err := out.add(&i, tenants, s.c.Regions); err != nil {
			out.Unreadable = append(out.Unreadable, UnreadableCell{Key: i.Key, Version: i.Version, Error: err.Error()})
		}
	}
	for i := range out.Unreadable {
		out.Unreadable[i].Tenant = tenants[out.Unreadable[i].Key]
	}
	slices.SortFunc(out.Unreadable, func(a, b UnreadableCell) int { return strings.Compare(a.Key, b.Key) })
	slices.SortFunc(out.Cells, func(a, b CellRow) int { return strings.Compare(a.Cell, b.Cell) })
	if state == nil {
		return out, nil
	}
	out.Epoch, out.Phase = state.Epoch, state.Phase
	if doc := state.Document(); doc != nil && r.Tenant != "" && placeKnown {
		out.Home = doc.View("", r.Tenant, placed).Home()
	}
	out.addShares(state)
	return out, nil
}

// addShares adds to each cell its place in the balancer's state.
func (out *CellsResponse) addShares(state *shares.State) {
	awaited := state.Awaited()
	for i := range out.Cells {
		c := &out.Cells[i]
		c.Awaited = slices.Contains(awaited, c.Cell)
		at := slices.IndexFunc(state.Members, func(m shares.Member) bool { return m.Cell == c.Cell })
		switch {
		case at >= 0:
			c.State, c.Share = string(state.Members[at].State), state.Members[at].Weight
		case c.Asked == shares.Remove || c.Asked == shares.Force:
			c.State = "removed"
		}
	}
}
