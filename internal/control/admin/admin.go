// Package admin is what operators do to the control tables: each operation is a conditional write with an actor, a
// reason and a version that the operator saw.
//
// # Operations
//
// Each is a POST of a JSON object to a path of its own (package call says how, and who the actor is); its Go form is
// the method of [Service] that is named.
//
//	path                  method           does
//	/documents/get        Get              one item
//	/documents/list       List             a page of a table
//	/apply                Apply            plans, settings, tenants and keys: all that is asked for is checked together first,
//	                                       and what it removes or weakens is refused unless the call accepts that
//	/tenants/set          SetTenant        plan, cells and overrides of one tenant
//	/tenants/suspend      Suspend          all of its calls are refused; and /tenants/resume
//	/boosts/add           AddBoost         raises a limit of a tenant for a while; and /boosts/remove
//	/limits/promote       Promote          a shadow limit of a plan enforces from now on
//	/keys/create          CreateKey        the key is in the answer, and nowhere else
//	/keys/revoke          RevokeKey
//	/cells/add            AddCell          asks the balancer for a share; and /cells/drain, /cells/remove
//	/cells/list           Cells            what was asked for, and where the balancer is
//	/config/status        ConfigStatus     how far each cell's copy is
//	/shadow/report        ShadowReport     what shadow limits would have denied
//
// # Cells
//
// An item of the table cells holds what a cell is to be, as the request of package shares that would make it so: see
// [CellDocument]. The balancer reads it, and carries it out in its own time. A tenant's pin is such a request, too, in
// an item of its own: see [PinKey].
package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Config sets up a Service.
type Config struct {
	Tables control.Tables // required

	// Accepts says whether the cells' stores can keep a limit; plans with one that they cannot are refused. nil is any.
	Accepts func(*limit.Limit) error

	// AcceptsPlan is [limit.PlanAccepter] of the cells' stores: plans of which they cannot decide a request are
	// refused. nil is any.
	AcceptsPlan func(all []*limit.Limit, together ...[]*limit.Limit) error

	// Hash is what a new key is stored as: hex of HMAC-SHA256(pepper, key), and the pepper's id. Without it, CreateKey
	// takes hashes that were made elsewhere.
	Hash func(ctx context.Context, key string) (pepper, hash string, err error)

	// CellTables are the cells' copies, by cell, for ConfigStatus.
	CellTables map[string]CellTable

	// Regions are the cells' regions of AWS, by cell. A cell that is not there may be in any region.
	Regions map[string]string

	// Local says that the control plane runs in one process with its cells: URLs of operators' APIs may then be of this
	// machine, too. Without it they are of API Gateway.
	Local bool

	// Alone is the one cell that there is, where cells do not share the limits; "" where they may.
	Alone string

	// Shadow counts what shadow limits did, where that can be had; nil: ShadowReport says where to look instead.
	Shadow func(ctx context.Context) (*ShadowReport, error)

	Now func() time.Time // default time.Now
	Log *slog.Logger     // default slog.Default()
}

// Service carries out operations. It is safe for concurrent use. Make it with New.
type Service struct{ c Config }

// New makes a service. It calls nothing yet. The error names the field.
func New(c Config) (*Service, error) {
	if c.Tables == nil {
		return nil, errors.New("admin: Tables is missing")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Log = cmp.Or(c.Log, slog.Default())
	return &Service{c}, nil
}

// NewMux is the operations of a service by their paths, for call.Lambda and call.Local.
func NewMux(s *Service) *call.Mux {
	m := call.NewMux(s.c.Log)
	call.Register(m, "/documents/get", s.Get)
	call.Register(m, "/documents/list", s.List)
	call.Register(m, "/apply", s.Apply)
	call.Register(m, "/tenants/set", s.SetTenant)
	call.Register(m, "/tenants/suspend", s.Suspend)
	call.Register(m, "/tenants/resume", s.Resume)
	call.Register(m, "/boosts/add", s.AddBoost)
	call.Register(m, "/boosts/remove", s.RemoveBoost)
	call.Register(m, "/limits/promote", s.Promote)
	call.Register(m, "/keys/create", s.CreateKey)
	call.Register(m, "/keys/revoke", s.RevokeKey)
	call.Register(m, "/cells/add", s.AddCell)
	call.Register(m, "/cells/drain", s.DrainCell)
	call.Register(m, "/cells/remove", s.RemoveCell)
	call.Register(m, "/cells/list", s.Cells)
	call.Register(m, "/config/status", s.ConfigStatus)
	call.Register(m, "/shadow/report", s.ShadowReport)
	return m
}

// Write is what every operation that writes says.
type Write struct {
	Reason string // 1..512 characters, one line
	Expect *int64 // the version that the operator saw; nil: whatever is there when the operation begins
}

// GetRequest names an item.
type GetRequest struct {
	Table control.Table `json:"table"`
	Key   string        `json:"key"`
}

// Get returns an item, which may be a tombstone.
func (s *Service) Get(ctx context.Context, _ string, r *GetRequest) (*call.Item, error) {
	if err := control.CheckGet(r.Table, r.Key); err != nil {
		return nil, call.Refuse(call.Invalid, "%v", err)
	}
	item, err := s.item(ctx, r.Table, r.Key)
	if err != nil {
		return nil, err
	}
	if item == nil {
		return nil, call.Refuse(call.NotFound, "there is no %s", name(r.Table, r.Key))
	}
	return call.ItemOf(item), nil
}

// ListRequest asks for a page.
type ListRequest struct {
	Table control.Table `json:"table"`
	After string        `json:"after,omitempty"` // Next of the page before
	Most  int           `json:"most,omitempty"`  // items, 1..1000; 0 is 500
}

// ListResponse is a page.
type ListResponse struct {
	Items   []*call.Item `json:"items"`
	Next    string       `json:"next,omitempty"`    // empty at the end
	Damaged []string     `json:"damaged,omitempty"` // items that cannot be read, one sentence each
}

// maxPageBytes is where a page ends, so that an answer fits into what Lambda carries.
const maxPageBytes = 2 << 20

// List returns a page of a table, tombstones included, in the table's own order.
func (s *Service) List(ctx context.Context, _ string, r *ListRequest) (*ListResponse, error) {
	most := cmp.Or(r.Most, 500)
	if err := control.CheckList(r.Table, most); err != nil {
		return nil, call.Refuse(call.Invalid, "%v", err)
	}
	for {
		items, next, err := s.c.Tables.List(ctx, r.Table, r.After, most)
		out := &ListResponse{Items: []*call.Item{}, Next: next}
		switch {
		case errors.Is(err, control.ErrBadItem):
			out.Damaged = []string{err.Error()}
		case err != nil:
			return nil, s.failed(ctx, "list "+string(r.Table), err)
		}
		size := 0
		for i := range items {
			size += len(items[i].Body) + 512
			out.Items = append(out.Items, call.ItemOf(&items[i]))
		}
		if size <= maxPageBytes || most == 1 {
			return out, nil
		}
		// a page from the same place, of fewer: where a page ends is the table's affair
		most = max(1, most*maxPageBytes/size/2)
	}
}

// item reads an item; nil where there never was one.
func (s *Service) item(ctx context.Context, t control.Table, key string) (*control.Item, error) {
	item, err := s.c.Tables.Get(ctx, t, key)
	switch {
	case errors.Is(err, control.ErrNotFound):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, s.failed(ctx, fmt.Sprintf("get %s/%q", t, key), err)
	}
	return &item, nil
}

// live is item, and refuses tombstones.
func (s *Service) live(ctx context.Context, t control.Table, key, what string) (*control.Item, error) {
	if err := events.CheckKey(t, key); err != nil {
		return nil, call.Refuse(call.Invalid, "%s: %v", what, err)
	}
	item, err := s.item(ctx, t, key)
	switch {
	case err != nil:
		return nil, err
	case item == nil:
		return nil, call.Refuse(call.NotFound, "there is no %s %q", what, key)
	case item.Deleted:
		return nil, call.Refuse(call.NotFound, "%s %q was deleted by %s at %s: %s", what, key, item.Actor,
			item.ChangedAt.Format(time.RFC3339), item.Reason)
	}
	return item, nil
}

// put writes a version. What it returns in place of a conflict says what is there now.
func (s *Service) put(ctx context.Context, c control.Change) (*control.Item, error) {
	c.Now = s.c.Now()
	item, err := s.c.Tables.Put(ctx, c)
	switch {
	case err == nil:
		return &item, nil
	case errors.Is(err, control.ErrConflict):
		clash := call.Clash{Table: c.Table, Key: c.Key, Expect: c.Expect}
		if have, err := s.item(ctx, c.Table, c.Key); err == nil && have != nil {
			clash.Have = call.ItemOf(have)
		}
		return nil, conflict(clash)
	case errors.Is(err, control.ErrInvalid):
		return nil, call.Refuse(call.Invalid, "%v", err)
	case errors.Is(err, control.ErrTooLarge):
		return nil, call.Refuse(call.TooLarge, "%v", err)
	case errors.Is(err, control.ErrNotFound):
		return nil, call.Refuse(call.NotFound, "%v", err)
	}
	return nil, s.failed(ctx, fmt.Sprintf("put %s/%q", c.Table, c.Key), err)
}

func conflict(clashes ...call.Clash) *call.Error {
	e := call.Refuse(call.Conflict, "changed by another since you looked; nothing was overwritten")
	e.Conflicts = clashes
	return e
}

// failed is a table that did not answer. The log has the cause, which may name what operators need not see.
func (s *Service) failed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.c.Log.ErrorContext(ctx, "a control table failed", "operation", what, "error", err)
	if errors.Is(err, control.ErrBadItem) {
		return call.Refuse(call.Internal, "%s: what is stored was not written by Sluice: %v", what, err)
	}
	return call.Refuse(call.Unavailable, "%s: the control table did not answer; try again", what)
}

func checkReason(reason string) error {
	if err := events.CheckText(reason); err != nil {
		return call.Refuse(call.Invalid, "reason: %v", err)
	}
	return nil
}

// seen refuses an item that is not at the version that the operator saw.
func seen(t control.Table, key string, have *control.Item, expect *int64) error {
	version := int64(0)
	if have != nil {
		version = have.Version
	}
	if expect == nil || *expect == version {
		return nil
	}
	clash := call.Clash{Table: t, Key: key, Expect: *expect}
	if have != nil {
		clash.Have = call.ItemOf(have)
	}
	return conflict(clash)
}

// each goes through the items of a table that are not deleted. One that cannot be read is an error, because what it
// holds is not known; with readable it is left out, and is in the log.
func (s *Service) each(ctx context.Context, t control.Table, readable bool, f func(*control.Item) error) error {
	for item, err := range control.All(ctx, s.c.Tables, t) {
		switch {
		case readable && errors.Is(err, control.ErrBadItem):
			s.c.Log.ErrorContext(ctx, "items cannot be read, and are left out", "table", t, "error", err)
		case err != nil:
			return s.failed(ctx, "list "+string(t), err)
		case item.Deleted:
		default:
			if err := f(&item); err != nil {
				return err
			}
		}
	}
	return nil
}

// body reads a stored body as a tree, numbers as they are written.
func body(item *control.Item, into any) error {
	if err := json.Unmarshal(item.Body, into); err != nil {
		return call.Refuse(call.Internal, "%s/%q cannot be read: %v", item.Table, item.Key, err)
	}
	return nil
}

// few is the first of a list, and how many more there are.
func few(all []string) []string {
	const most = 20
	if len(all) <= most {
		return all
	}
	return append(slices.Clone(all[:most]), fmt.Sprintf("and %d more", len(all)-most))
}
