package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
)

// ControlConfig sets up a Control.
type ControlConfig struct {
	Tables control.Tables // required

	// Accepts returns an error if the cells' stores cannot keep a limit. Plans with such a limit are refused. If nil,
	// every limit is accepted.
	Accepts func(*limit.Limit) error

	// AcceptsPlan is the [limit.PlanAccepter] of the cells' stores. Plans are refused if the stores cannot decide some
	// request over their limits. If nil, every plan is accepted.
	AcceptsPlan func(all []*limit.Limit, together ...[]*limit.Limit) error

	// Hash returns the hash under which a new key is stored, hex of HMAC-SHA256(pepper, key), and the id of the
	// pepper. If nil, CreateKey requires hashes that the caller has made.
	Hash func(ctx context.Context, key string) (pepper, hash string, err error)

	// CellTables are the cells' copies of the tables, by cell. ConfigStatus reads them.
	CellTables map[string]CellTable

	// Regions are the AWS regions of the cells, by cell. A cell that is not listed may be in any region.
	Regions map[string]string

	// Local says that the control plane runs in one process with its cells. Then URLs of operators' APIs may be on
	// this machine; otherwise they must be URLs of API Gateway.
	Local bool

	// Alone is the id of the only cell, which grants the whole of each limit; "" if cells share limits.
	Alone string

	Now func() time.Time // default time.Now
	Log *slog.Logger     // default slog.Default()
}

// Control carries out operations. It is safe for concurrent use. Make it with NewControl.
type Control struct{ c ControlConfig }

// NewControl makes a service. It does not read or write anything.
func NewControl(c ControlConfig) *Control {
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Log = cmp.Or(c.Log, slog.Default())
	return &Control{c}
}

// Mux returns the operations of the control plane's API, for Lambda and Local.
func (s *Control) Mux() *Mux { return newMux(s, s.c.Log, controlTable) }

// GetRequest names an item.
type GetRequest struct {
	Table control.Table `json:"table"`
	Key   string        `json:"key"`
}

// Get returns an item, which may be a tombstone.
func (s *Control) Get(ctx context.Context, _ string, r *GetRequest) (*control.Item, error) {
	if err := control.CheckGet(r.Table, r.Key); err != nil {
		return nil, Refuse(Invalid, "%v", err)
	}
	item, err := s.item(ctx, r.Table, r.Key)
	if err != nil {
		return nil, err
	}
	if item == nil {
		return nil, Refuse(NotFound, "there is no %s", name(r.Table, r.Key))
	}
	return item, nil
}

// ListRequest asks for a page of a table.
type ListRequest struct {
	Table control.Table `json:"table"`
	After string        `json:"after,omitempty"` // Next of the previous page; "" for the first page
	Most  int           `json:"most,omitempty"`  // largest number of items, 1..1000; 0 selects 500
}

// ListResponse is a page of a table.
type ListResponse struct {
	Items   []*control.Item `json:"items"`
	Next    string          `json:"next,omitempty"`    // After of the next request; empty at the end
	Damaged []string        `json:"damaged,omitempty"` // items that cannot be read, one sentence each
}

// maxPageBytes is the largest size of a page. Lambda limits an answer to 6 MB.
const maxPageBytes = 2 << 20

// List returns a page of a table, tombstones included, in the table's own order.
func (s *Control) List(ctx context.Context, _ string, r *ListRequest) (*ListResponse, error) {
	most := cmp.Or(r.Most, 500)
	if err := control.CheckList(r.Table, most); err != nil {
		return nil, Refuse(Invalid, "%v", err)
	}
	for {
		items, next, err := s.c.Tables.List(ctx, r.Table, r.After, most)
		out := &ListResponse{Items: []*control.Item{}, Next: next}
		switch {
		case errors.Is(err, control.ErrBadItem):
			out.Damaged = []string{err.Error()}
		case err != nil:
			return nil, s.tableError(ctx, "list "+string(r.Table), err)
		}
		size := 0
		for i := range items {
			size += len(items[i].Body) + 512
			out.Items = append(out.Items, &items[i])
		}
		if size <= maxPageBytes || most == 1 {
			return out, nil
		}
		// Read a smaller page from the same place: only the table can say where a page ends.
		most = max(1, most*maxPageBytes/size/2)
	}
}

// item reads an item. It returns nil if the item has never existed.
func (s *Control) item(ctx context.Context, t control.Table, key string) (*control.Item, error) {
	item, err := s.c.Tables.Get(ctx, t, key)
	switch {
	case errors.Is(err, control.ErrNotFound):
		return nil, nil //nolint:nilnil // callers check for nil
	case err != nil:
		return nil, s.tableError(ctx, fmt.Sprintf("get %s/%q", t, key), err)
	}
	return &item, nil
}

// liveItem reads an item and refuses an absent or deleted one. what names the item in the refusal.
func (s *Control) liveItem(ctx context.Context, t control.Table, key, what string) (*control.Item, error) {
	if err := events.CheckKey(t, key); err != nil {
		return nil, Refuse(Invalid, "%s: %v", what, err)
	}
	item, err := s.item(ctx, t, key)
	switch {
	case err != nil:
		return nil, err
	case item == nil && t == control.Tenants:
		return nil, s.noTenant(ctx, key)
	case item == nil:
		return nil, Refuse(NotFound, "there is no %s %q", what, key)
	case item.Deleted:
		return nil, Refuse(NotFound, "%s %q was deleted by %s at %s: %s", what, key, item.Actor,
			item.ChangedAt.Format(time.RFC3339), item.Reason)
	}
	return item, nil
}

// noTenant refuses a tenant that has never existed. The refusal names the nearest of the first tenants.
func (s *Control) noTenant(ctx context.Context, id string) error {
	var ids []string
	items, _, _ := s.c.Tables.List(ctx, control.Tenants, "", control.MaxPage) // without a list there is no suggestion
	for i := range items {
		if !items[i].Deleted {
			ids = append(ids, items[i].Key)
		}
	}
	meant := ""
	if near := plan.NearestID(id, ids); near != "" {
		meant = fmt.Sprintf(" (did you mean %q?)", near)
	}
	return Refuse(NotFound, "there is no tenant %q%s; 'sluice tenant list' shows the tenants, and 'sluice "+
		"tenant set --create' creates one", id, meant)
}

// put writes a version. After a conflict, the error says which version the table has.
func (s *Control) put(ctx context.Context, c control.Change) (*control.Item, error) {
	c.Now = s.c.Now()
	item, err := s.c.Tables.Put(ctx, c)
	switch {
	case err == nil:
		return &item, nil
	case errors.Is(err, control.ErrConflict):
		have, _ := s.item(ctx, c.Table, c.Key) // if it cannot be read, the refusal says only what was expected
		return nil, conflict(Clash{c.Table, c.Key, c.Expect, have})
	case errors.Is(err, control.ErrInvalid):
		return nil, Refuse(Invalid, "%v", err)
	case errors.Is(err, control.ErrTooLarge):
		return nil, Refuse(TooLarge, "%v", err)
	case errors.Is(err, control.ErrNotFound):
		return nil, Refuse(NotFound, "%v", err)
	}
	return nil, s.tableError(ctx, fmt.Sprintf("put %s/%q", c.Table, c.Key), err)
}

// revise writes the next version of an item, whose body next makes of the stored item; nil if no item is stored. A body
// of nil deletes the item.
func (s *Control) revise(
	ctx context.Context, actor, reason string, expect *int64, t control.Table, key string,
	next func(have *control.Item) (body any, err error),
) (*control.Item, error) {
	if err := checkReason(reason); err != nil {
		return nil, err
	}
	have, err := s.item(ctx, t, key)
	if err != nil {
		return nil, err
	}
	body, err := next(have)
	if err != nil {
		return nil, err
	}
	if err := checkVersion(t, key, have, expect); err != nil {
		return nil, err
	}
	c := control.Change{Table: t, Key: key, Expect: versionOf(have), Delete: body == nil, Actor: actor, Reason: reason}
	if !c.Delete {
		if c.Body, err = events.MarshalCanonical(body); err != nil {
			return nil, Refuse(Invalid, "%v", err)
		}
	}
	return s.put(ctx, c)
}

// versionOf returns the version of an item; 0 if item is nil, because no item is stored.
func versionOf(item *control.Item) int64 {
	if item == nil {
		return 0
	}
	return item.Version
}

func conflict(clashes ...Clash) *Error {
	e := Refuse(Conflict, "changed by another since you looked; nothing was overwritten")
	e.Conflicts = clashes
	return e
}

// tableError logs the error of a table and returns the refusal for the operator. The refusal leaves out the cause,
// which may contain what operators need not see.
func (s *Control) tableError(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.c.Log.ErrorContext(ctx, "a control table failed", "operation", what, "error", err)
	if errors.Is(err, control.ErrBadItem) {
		return Refuse(Damaged, "%s: what is stored was not written by Sluice: %v", what, err)
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return Refuse(Unavailable,
			"%s: the disk of the control tables is full: make room there, and try again",
			what)
	}
	return Refuse(Unavailable, "%s: the control table did not answer; try again", what)
}

func checkReason(reason string) error {
	if err := events.CheckText(reason); err != nil {
		return Refuse(Invalid, "reason: %v", err)
	}
	return nil
}

// checkVersion refuses an item that is not at the version that the operator saw.
func checkVersion(t control.Table, key string, have *control.Item, expect *int64) error {
	if expect == nil || *expect == versionOf(have) {
		return nil
	}
	return conflict(Clash{t, key, *expect, have})
}

// eachLive calls f for each item of a table that is not deleted. If skipDamaged is set, items that cannot be read are
// logged and left out; otherwise they are an error, because their content is unknown.
func (s *Control) eachLive(ctx context.Context, t control.Table, skipDamaged bool, f func(*control.Item) error) error {
	for item, err := range control.All(ctx, s.c.Tables, t) {
		switch {
		case skipDamaged && errors.Is(err, control.ErrBadItem):
			s.c.Log.ErrorContext(ctx, "items of a control table cannot be read and are left out", "table", t, "error",
				err)
		case err != nil:
			return s.tableError(ctx, "list "+string(t), err)
		case item.Deleted:
		default:
			if err := f(&item); err != nil {
				return err
			}
		}
	}
	return nil
}

// body decodes the body of a stored item.
func body(item *control.Item, into any) error {
	if err := json.Unmarshal(item.Body, into); err != nil {
		return Refuse(Internal, "%s/%q cannot be read: %v", item.Table, item.Key, err)
	}
	return nil
}

// firstFew returns the first 20 elements of a list, and, if there are more, a text that says how many.
func firstFew(all []string) []string {
	const most = 20
	if len(all) <= most {
		return all
	}
	return append(slices.Clone(all[:most]), fmt.Sprintf("and %d more", len(all)-most))
}
