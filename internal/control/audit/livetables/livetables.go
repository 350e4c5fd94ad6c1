// Package livetables lets a program verify an audit trail against tables that another process has open. That process
// answers calls for items and pages; the verifying program makes the calls.
//
// Items are sent exactly as they are stored, since their hashes are compared.
package livetables

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/control/client"
)

const (
	itemPath = "audit/item"
	pagePath = "audit/page"

	maxPageBytes = 2 << 20 // largest size of a page
	calls        = 2       // made concurrently: a client keeps as many connections
)

// itemRequest asks for the newest version of an item.
type itemRequest struct {
	Of    string        `json:"of"`
	Table control.Table `json:"table"`
	Key   string        `json:"key"`
}

// pageRequest asks for a page of a table.
type pageRequest struct {
	Of    string        `json:"of"`
	Table control.Table `json:"table"`
	After string        `json:"after"`
	Most  int           `json:"most"`
}

// answer holds items in the form of control.Item.Encode.
type answer struct {
	Items []string `json:"items"`
	Next  string   `json:"next,omitempty"`
	Bad   string   `json:"bad,omitempty"` // what is wrong with items that cannot be read
}

// Register makes a mux answer calls about tables. of names the tables: a call about other tables, which has reached
// this process by mistake, is refused.
func Register(m *call.Mux, of string, tables audit.Tables) {
	register(m, &served{of, tables, maxPageBytes})
}

func register(m *call.Mux, s *served) {
	call.Register(m, "/"+itemPath, s.item)
	call.Register(m, "/"+pagePath, s.page)
}

type served struct {
	of        string
	tables    audit.Tables
	pageBytes int
}

func (s *served) check(of string) error {
	if of != s.of {
		return call.Refuse(call.NotFound, "this process does not have the requested tables")
	}
	return nil
}

func (s *served) item(ctx context.Context, _ string, r *itemRequest) (*answer, error) {
	if err := s.check(r.Of); err != nil {
		return nil, err
	}
	if err := control.CheckGet(r.Table, r.Key); err != nil {
		return nil, call.Refuse(call.Invalid, "%v", err)
	}
	out := &answer{Items: []string{}}
	i, err := s.tables.Get(ctx, r.Table, r.Key)
	if errors.Is(err, control.ErrNotFound) {
		return out, nil
	}
	if err == nil {
		_, err = out.add(&i)
	}
	return out, out.addBadItems(err)
}

func (s *served) page(ctx context.Context, _ string, r *pageRequest) (*answer, error) {
	if err := s.check(r.Of); err != nil {
		return nil, err
	}
	most := cmp.Or(r.Most, control.MaxPage)
	if err := control.CheckList(r.Table, most); err != nil {
		return nil, call.Refuse(call.Invalid, "%v", err)
	}
	for {
		items, next, err := s.tables.List(ctx, r.Table, r.After, most)
		out, size := &answer{Items: []string{}, Next: next}, 0
		for i := range items {
			n, bad := out.add(&items[i])
			size += n
			err = errors.Join(err, bad)
		}
		if size <= s.pageBytes || most == 1 {
			return out, out.addBadItems(err)
		}
		most = max(1, most*s.pageBytes/size/2)
	}
}

func (a *answer) add(i *control.Item) (size int, err error) {
	text, err := i.Encode()
	if err == nil {
		a.Items = append(a.Items, string(text))
	}
	return len(text), err
}

// addBadItems stores in the answer an error about items that cannot be read, and returns nil. It returns any other
// error unchanged.
func (a *answer) addBadItems(err error) error {
	if !errors.Is(err, control.ErrBadItem) {
		return err
	}
	a.Bad = err.Error()
	return nil
}

// Tables are the tables of another process. They are safe for concurrent use. Make them with New.
type Tables struct {
	client *client.Client
	of     string
	turns  chan struct{}
}

var _ audit.Tables = (*Tables)(nil)

// New makes tables of the process that c calls. of is the name under which the process has registered them. New makes
// no calls.
func New(c *client.Client, of string) *Tables {
	return &Tables{c, of, make(chan struct{}, calls)}
}

// badItem is what the other process says about an item that cannot be read.
type badItem string

func (b badItem) Error() string { return string(b) }
func (badItem) Unwrap() error   { return control.ErrBadItem }

// Get implements [audit.Tables].
func (t *Tables) Get(ctx context.Context, table control.Table, key string) (control.Item, error) {
	items, _, err := t.ask(ctx, itemPath, itemRequest{t.of, table, key})
	switch {
	case err != nil:
		return control.Item{}, err
	case len(items) == 0:
		return control.Item{}, fmt.Errorf("%s/%q: %w", table, key, control.ErrNotFound)
	case items[0].Table != table || items[0].Key != key:
		return control.Item{}, fmt.Errorf("the answer to a call for %s/%q is %s/%q", table, key, items[0].Table,
			items[0].Key)
	}
	return items[0], nil
}

// List implements [audit.Tables].
func (t *Tables) List(
	ctx context.Context, table control.Table, after string, most int,
) (items []control.Item, next string, err error) {
	return t.ask(ctx, pagePath, pageRequest{t.of, table, after, most})
}

func (t *Tables) ask(ctx context.Context, path string, request any) (items []control.Item, next string, err error) {
	select {
	case t.turns <- struct{}{}:
		defer func() { <-t.turns }()
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
	got, err := client.Do[answer](ctx, t.client, path, request)
	if err != nil {
		return nil, "", err
	}
	for _, text := range got.Items {
		i, err := control.DecodeItem([]byte(text))
		if err != nil {
			return nil, "", fmt.Errorf("call %s: an item of the answer: %w", path, err)
		}
		items = append(items, i)
	}
	if got.Bad != "" {
		err = badItem(got.Bad)
	}
	return items, got.Next, err
}
