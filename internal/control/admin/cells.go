package admin

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
	"github.com/sluicelimits/sluice/events/canonical"
	"github.com/sluicelimits/sluice/internal/aws/executeapi"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/loopback"
)

// CellDocument is the body of an item of the table cells: of a cell, under its name, or of a tenant's pin, under
// PinKey.
type CellDocument struct {
	ID      string         `json:"id"`            // the item's key
	Ops     string         `json:"ops,omitempty"` // of a cell: URL of its operators' API
	Request shares.Request `json:"request"`       // the newest; its id is key@version

	// Tenant is, of a pin, what of the tenant's document says which of its limits are not those of its plan. The
	// balancer has those homed that are too small to be divided.
	Tenant json.RawMessage `json:"tenant,omitempty"`
}

// PinKey is the key, in the table cells, of the requests that place a tenant.
func PinKey(tenant string) string {
	sum := sha256.Sum256([]byte(tenant))
	return shares.PinPrefix + hex.EncodeToString(sum[:20])
}

// ReadCell reads the body of an item of the table cells, but that of events.SharesKey. For the balancer it is enough:
// the request is what to put into shares.Input.
func ReadCell(body []byte) (*CellDocument, error) {
	var c CellDocument
	decoder := json.NewDecoder(strings.NewReader(string(body)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return nil, fmt.Errorf("not the document of a cell: %w", err)
	}
	return &c, nil
}

// AddCellRequest asks for a share.
type AddCellRequest struct {
	Cell   string `json:"cell"`
	Weight int64  `json:"weight,omitempty"` // 1..shares.MaxWeight; 0 is 1
	Ops    string `json:"ops,omitempty"`    // URL of the cell's operators' API; empty: as it was
	Yes    bool   `json:"yes,omitempty"`    // Ops may take the place of another URL
	Reason string `json:"reason"`
	Expect *int64 `json:"expect,omitempty"`
}

// AddCell asks the balancer to have the cell serve, or, where it serves, for another weight. Its share comes through
// the two phases of package shares, not at once. It is refused with [call.Confirm] if the URL of the operators' API
// would change and the request does not say yes.
func (s *Service) AddCell(ctx context.Context, actor string, r *AddCellRequest) (*call.Item, error) {
	weight := r.Weight
	if weight == 0 {
		weight = 1
	}
	if weight < 1 || weight > shares.MaxWeight {
		return nil, call.Refuse(call.Invalid, "weight: %d, want 1..%d", weight, shares.MaxWeight)
	}
	if err := s.checkOps(r.Cell, r.Ops); err != nil {
		return nil, err
	}
	return s.ask(ctx, actor, r.Cell, r.Reason, r.Expect, func(have *CellDocument) (*CellDocument, error) {
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
			return nil, call.Refuse(call.Confirm, "operators' calls about counters of cell %q would go to %s, and "+
				"no longer to %s: say yes (--yes) if that is meant; nothing was written", r.Cell, doc.Ops, have.Ops)
		}
		return doc, nil
	})
}

// checkOps checks the URL of a cell's operators' API. Operators' calls go there with a signature, so whoever may add
// a cell must not be able to have them go to any server.
func (s *Service) checkOps(cell, text string) error {
	if text == "" || s.c.Local && ofThisMachine(text) {
		return nil
	}
	stage, err := executeapi.ParseStage(text)
	if err != nil && s.c.Local {
		return call.Refuse(call.Invalid, "ops: %v, nor of this machine, such as http://127.0.0.1:8080/ops", err)
	} else if err != nil {
		return call.Refuse(call.Invalid, "ops: %v", err)
	}
	if region := s.c.Regions[cell]; region != "" && region != stage.Region {
		return call.Refuse(call.Invalid, "ops: %s is in %s, and cell %s is in %s", text, stage.Region, cell, region)
	}
	return nil
}

// ofThisMachine reports whether the text is a URL of a server on this machine.
func ofThisMachine(text string) bool {
	u, err := url.Parse(text)
	return err == nil && len(text) <= 1024 && u.User == nil && u.RawQuery == "" && u.Fragment == "" &&
		(u.Scheme == "http" || u.Scheme == "https") && loopback.Host(u.Hostname())
}

// CellRequest names a cell.
type CellRequest struct {
	Cell string `json:"cell"`
	// of a removal: nobody waits to hear from it; see package shares on what that may cost
	Force  bool   `json:"force,omitempty"`
	Reason string `json:"reason"`
	Expect *int64 `json:"expect,omitempty"`
}

// DrainCell asks the balancer to give the cell's share to the others.
func (s *Service) DrainCell(ctx context.Context, actor string, r *CellRequest) (*call.Item, error) {
	if r.Force {
		return nil, call.Refuse(call.Invalid, "force goes with a removal: a drain waits until the cell was heard")
	}
	return s.askMore(ctx, actor, r, shares.Drain)
}

// RemoveCell asks the balancer to forget a drained cell, or with force any.
func (s *Service) RemoveCell(ctx context.Context, actor string, r *CellRequest) (*call.Item, error) {
	if r.Force {
		return s.askMore(ctx, actor, r, shares.Force)
	}
	return s.askMore(ctx, actor, r, shares.Remove)
}

func (s *Service) askMore(ctx context.Context, actor string, r *CellRequest, kind shares.Kind) (*call.Item, error) {
	return s.ask(ctx, actor, r.Cell, r.Reason, r.Expect, func(have *CellDocument) (*CellDocument, error) {
		switch {
		case have == nil:
			return nil, call.Refuse(call.NotFound, "there is no cell %q", r.Cell)
		case kind == shares.Remove && have.Request.Kind != shares.Drain && have.Request.Kind != shares.Remove:
			return nil, call.Refuse(call.Invalid, "cell %q serves: drain it first, or remove it by force if it has "+
				"stopped for good", r.Cell)
		}
		return &CellDocument{Ops: have.Ops, Request: shares.Request{Kind: kind, Cell: r.Cell}}, nil
	})
}

// ask writes what a cell is to be.
func (s *Service) ask(
	ctx context.Context, actor, cell, reason string, expect *int64, next func(have *CellDocument) (*CellDocument,
		error),
) (*call.Item, error) {
	if err := checkReason(reason); err != nil {
		return nil, err
	}
	if err := events.CheckKey(control.Cells, cell); err != nil || shares.Reserved(cell) {
		return nil, call.Refuse(call.Invalid, "cell: %.80q is no name of a cell: 1 to 64 of A-Z a-z 0-9 . _ -, and "+
			"none that begins with pin., placed. or ack.", cell)
	}
	item, err := s.item(ctx, control.Cells, cell)
	if err != nil {
		return nil, err
	}
	if err := seen(control.Cells, cell, item, expect); err != nil {
		return nil, err
	}
	var have *CellDocument
	version := int64(0)
	if item != nil {
		if version = item.Version; !item.Deleted {
			if have, err = ReadCell(item.Body); err != nil {
				return nil, call.Refuse(call.Internal, "cell %q: %v", cell, err)
			}
		}
	}
	doc, err := next(have)
	if err != nil {
		return nil, err
	}
	return s.request(ctx, actor, reason, cell, version, doc)
}

// request writes a document of the table cells.
func (s *Service) request(
	ctx context.Context, actor, reason, key string, version int64, doc *CellDocument,
) (*call.Item, error) {
	doc.ID, doc.Request.ID = key, fmt.Sprintf("%s@%d", key, version+1)
	body, err := canonical.Marshal(doc)
	if err != nil {
		return nil, call.Refuse(call.Invalid, "%v", err)
	}
	written, err := s.put(ctx, control.Change{Table: control.Cells, Key: key, Expect: version, Body: body,
		Actor: actor, Reason: reason})
	if err != nil {
		return nil, err
	}
	return call.ItemOf(written), nil
}

// pinEdit tells the balancer where the tenant of an edit is to be served, and which limits it has for itself. It comes
// before the document is written: an Apply that is cut between the two is found and repeated by whoever compares the
// documents.
func (s *Service) pinEdit(ctx context.Context, actor, reason string, e *edit) error {
	now := placed(e.Body)
	var before placing
	if !e.gone() {
		before = placed(e.have.Body)
	}
	if !now.needed() && !before.needed() {
		return nil // most tenants: nothing to read
	}
	return s.pin(ctx, actor, reason, e.Key, &now)
}

// repin makes the pin that of the tenant as it is stored. It follows a tenant's document that was not written, as
// another operator had changed it, after its pin was.
func (s *Service) repin(ctx context.Context, actor, reason, tenant string) {
	item, err := s.item(ctx, control.Tenants, tenant)
	if err == nil && item != nil {
		now := placed(item.Body)
		err = s.pin(ctx, actor, reason, tenant, &now)
	}
	if err != nil {
		s.c.Log.ErrorContext(ctx, "a tenant's pin is not that of its document; the next change of the tenant mends it",
			"tenant", tenant, "error", err)
	}
}

// placing is what of a tenant's document decides where its limits are granted.
type placing struct {
	ID        string          `json:"id"`
	Plan      string          `json:"plan,omitempty"`
	Cells     []string        `json:"cells,omitempty"`
	Overrides json.RawMessage `json:"overrides,omitempty"`
	Boosts    json.RawMessage `json:"boosts,omitempty"`
}

func placed(body []byte) (p placing) {
	_ = json.Unmarshal(body, &p) // a tombstone has none of it, and others were compiled
	return p
}

// needed reports whether the tenant is not placed as every other.
func (p *placing) needed() bool { return len(p.Cells) > 0 || p.own() }

// own reports whether limits of the tenant may be smaller, in a cell, than those of its plan.
func (p *placing) own() bool {
	return len(p.Cells) != 1 && (len(p.Cells) > 1 || len(p.Overrides) > 0 || len(p.Boosts) > 0)
}

// document is the pin of a tenant that is placed so. The request has no id yet.
func (p *placing) document(tenant string) (*CellDocument, error) {
	doc := &CellDocument{Request: shares.Request{Kind: shares.Place, Tenant: tenant, Cells: p.Cells}}
	if p.own() {
		own := *p
		own.Cells = nil
		text, err := canonical.Marshal(own)
		if err != nil {
			return nil, call.Refuse(call.Invalid, "tenant %.140q: %v", tenant, err)
		}
		doc.Tenant = text
	}
	return doc, nil
}

// same reports whether two pins place their tenant in the same way.
func (d *CellDocument) same(o *CellDocument) bool {
	return d.Request.Tenant == o.Request.Tenant && slices.Equal(d.Request.Cells, o.Request.Cells) &&
		bytes.Equal(d.Tenant, o.Tenant)
}

// PinOf reports whether a pin holds all of a tenant's document that decides its limits. The author of such a pin is the
// last who changed the tenant's plan, cells, overrides or boosts. A tenant without overrides and boosts has none, and
// neither has one of a single cell.
func PinOf(pin []byte, tenant string, body []byte) bool {
	have, err := ReadCell(pin)
	now := placed(body)
	if err != nil || !now.own() {
		return false
	}
	doc, err := now.document(tenant)
	return err == nil && have.same(doc)
}

// pin writes the tenant's placement, where it is not so already.
func (s *Service) pin(ctx context.Context, actor, reason, tenant string, p *placing) error {
	doc, err := p.document(tenant)
	if err != nil {
		return err
	}
	key := PinKey(tenant)
	item, err := s.item(ctx, control.Cells, key)
	if err != nil {
		return err
	}
	version := int64(0)
	if item != nil {
		version = item.Version
		if have, err := ReadCell(item.Body); err == nil && have.same(doc) {
			return nil
		}
	} else if !p.needed() {
		return nil
	}
	_, err = s.request(ctx, actor, reason, key, version, doc)
	return err
}

// CellsRequest asks for all cells.
type CellsRequest struct {
	Tenant string `json:"tenant,omitempty"` // whose home is told; "": nobody's
}

// CellRow is one cell.
type CellRow struct {
	Cell      string      `json:"cell"`
	Asked     shares.Kind `json:"asked"` // the newest request
	Weight    int64       `json:"weight,omitempty"`
	Version   int64       `json:"version"`
	Actor     string      `json:"actor"`
	ChangedAt time.Time   `json:"changed_at"`
	Region    string      `json:"region,omitempty"` // of AWS; "" where it is not known
	Ops       string      `json:"ops,omitempty"`    // as it is stored: an older version may have stored any URL
	// of the balancer: joining, active, draining, drained; "waiting": it has not come to it, or refused; "removed"
	State   string `json:"state"`
	Share   int64  `json:"share,omitempty"`   // weight that counts now
	Awaited bool   `json:"awaited,omitempty"` // the transition under way waits to hear from it
}

// CellsResponse is all cells, by name.
type CellsResponse struct {
	Cells []CellRow    `json:"cells"`
	Epoch int64        `json:"epoch"` // 0: the balancer has not begun
	Phase shares.Phase `json:"phase,omitempty"`
	Note  string       `json:"note,omitempty"`

	// Home is the cell that counts the tenant's quotas once everything that is under way has taken effect; "" if no
	// cell serves the tenant, if the balancer has not begun, or if the tenant's placement cannot be read.
	Home string `json:"home,omitempty"`

	// Alone is the one cell that runs and grants all of every limit, whatever Cells says: Config.Alone.
	Alone string `json:"alone,omitempty"`

	Unreadable []UnreadableCell `json:"unreadable,omitempty"` // by key
}

// UnreadableCell is an item of the table cells that cannot be read, so that the balancer carries out nothing of it.
type UnreadableCell struct {
	Key     string `json:"key,omitempty"` // empty where only Error names it
	Tenant  string `json:"tenant,omitempty"`
	Version int64  `json:"version,omitempty"`
	Error   string `json:"error"`
}

// add lists an item of the table cells. The error says why it cannot be read, as the balancer reads it.
func (out *CellsResponse) add(i *control.Item, tenants, regions map[string]string) error {
	switch {
	case strings.HasPrefix(i.Key, shares.PlacementPrefix):
		if i.Deleted {
			return errors.New("a placement was deleted, and it says what cells may still grant")
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

// Cells lists the cells: what was asked for, and what the balancer made of it.
func (s *Service) Cells(ctx context.Context, _ string, r *CellsRequest) (*CellsResponse, error) {
	out := &CellsResponse{Cells: []CellRow{}, Alone: s.c.Alone}
	placement := ""
	if r.Tenant != "" {
		if err := events.CheckKey(control.Tenants, r.Tenant); err != nil {
			return nil, call.Refuse(call.Invalid, "tenant: %v", err)
		}
		placement = shares.PlacementKey(r.Tenant)
	}
	var state *shares.State
	var placed *shares.Placement
	placeKnown := true
	tenants := map[string]string{} // by the keys of their placements
	for i, err := range control.All(ctx, s.c.Tables, control.Cells) {
		switch {
		case errors.Is(err, control.ErrBadItem):
			out.Unreadable = append(out.Unreadable, UnreadableCell{Error: err.Error()})
			continue
		case err != nil:
			return nil, s.failed(ctx, "list "+string(control.Cells), err)
		case i.Key == events.SharesKey && !i.Deleted:
			if state, err = shares.DecodeState(i.Body); err != nil {
				out.Note = "what the balancer wrote cannot be read here: " + err.Error()
			}
			continue
		case i.Key == placement: // whether it can be read is said below
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

// addShares tells of each cell what the balancer has made of its request.
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
