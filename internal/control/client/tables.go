package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/call"
)

// Tables reads the control tables of another process, as they are stored. It is safe for concurrent use. Make it with
// Client.Tables.
type Tables struct {
	client *Client
	of     string
	turns  chan struct{}
}

// Tables returns the tables with the id of (admin.Config.Of). If another process answers, which has other tables, every
// call is an error. Tables makes no calls.
func (c *Client) Tables(of string) *Tables {
	const calls = 2 // made concurrently: a client keeps as many connections
	return &Tables{c, of, make(chan struct{}, calls)}
}

// badItem is what the other process says about an item that cannot be read.
type badItem string

func (b badItem) Error() string { return string(b) }
func (badItem) Unwrap() error   { return control.ErrBadItem }

// Get returns the newest version of an item. The error wraps control.ErrNotFound or control.ErrBadItem, or the item is
// not known.
func (t *Tables) Get(ctx context.Context, table control.Table, key string) (control.Item, error) {
	got, err := ask[call.Item](ctx, t, "documents/get", admin.GetRequest{Table: table, Key: key, Of: t.of})
	var refused *call.Error
	switch {
	case errors.As(err, &refused) && refused.Code == call.NotFound:
		return control.Item{}, fmt.Errorf("%s/%q: %w", table, key, control.ErrNotFound)
	case errors.As(err, &refused) && refused.Code == call.Damaged:
		return control.Item{}, badItem(refused.Message)
	case err != nil:
		return control.Item{}, err
	case got.Table != table || got.Key != key:
		return control.Item{}, fmt.Errorf("the answer to a call for %s/%q is %s/%q", table, key, got.Table, got.Key)
	}
	return got.Stored(), nil
}

// List returns a page of a table, as control.Tables does.
func (t *Tables) List(
	ctx context.Context, table control.Table, after string, most int,
) (items []control.Item, next string, err error) {
	got, err := ask[admin.ListResponse](ctx, t, "documents/list",
		admin.ListRequest{Table: table, After: after, Most: most, Of: t.of})
	if err != nil {
		return nil, "", err
	}
	for _, i := range got.Items {
		items = append(items, i.Stored())
	}
	if len(got.Damaged) > 0 {
		err = badItem(strings.Join(got.Damaged, "\n"))
	}
	return items, got.Next, err
}

func ask[Response any](ctx context.Context, t *Tables, path string, request any) (*Response, error) {
	select {
	case t.turns <- struct{}{}:
		defer func() { <-t.turns }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return Do[Response](ctx, t.client, path, request)
}
