package dynamo_test

import (
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
)

func items(tb testing.TB) (first, gone control.Item) {
	tb.Helper()
	c, err := control.Change{
		Table: control.Tenants, Key: "acmé/1", Body: []byte(`{"a":"<é>"}`), Actor: "jo", Reason: "r",
		Now: time.Date(2026, 11, 21, 12, 0, 0, 1000, time.UTC),
	}.Check()
	if err != nil {
		tb.Fatal(err)
	}
	first, _, err = control.Next(nil, c)
	if err != nil {
		tb.Fatal(err)
	}
	c.Expect, c.Delete, c.Body = 1, true, nil
	gone, _, err = control.Next(&first, c)
	if err != nil {
		tb.Fatal(err)
	}
	return first, gone
}

// Guarantees that an item is read from its attributes as it was written, including its hash.
func TestRow(t *testing.T) {
	first, gone := items(t)
	for _, i := range []control.Item{first, gone} {
		got, err := dynamo.ItemOf(control.Tenants, dynamo.RowOf(&i))
		if err != nil || !reflect.DeepEqual(got, i) || got.Verify() != nil {
			t.Errorf("a row of %+v: got the item %+v, error %v; want the same item", i, got, err)
		}
	}
	if _, there := dynamo.RowOf(&gone)[dynamo.Body]; there {
		t.Error("the row of a tombstone has a body, want none")
	}
}

// Guarantees that an attribute that is missing, of another type or out of bounds is an error that names the item and
// the attribute.
func TestBadRow(t *testing.T) {
	first, gone := items(t)
	text := func(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }
	number := func(s string) types.AttributeValue { return &types.AttributeValueMemberN{Value: s} }
	null := &types.AttributeValueMemberNULL{Value: true}
	bad := map[string][]types.AttributeValue{ // nil: missing
		dynamo.ID:     {nil, number("1"), text(""), text("a\x00b")},
		dynamo.Layout: {nil, text("1"), number("2"), number("1.0")},
		dynamo.Version: {nil, text("1"), number("0"), number("-1"), number("1.5"), number("1e3"),
			number("9007199254740992"), number("")},
		dynamo.Actor:  {nil, number("1"), text(""), text("a\nb")},
		dynamo.Reason: {nil, null, text(" ")},
		dynamo.ChangedAt: {nil, number("1"), text("2026-11-21T12:00:00Z"), text("2026-11-21T12:00:00.000001+00:00"),
			text("2026-11-21T12:00:00,000001Z"), text("noon")},
		dynamo.Deleted:  {nil, text("false"), number("0")},
		dynamo.Body:     {nil, number("1"), text(""), text("[]"), text("{}}"), text(" {}")},
		dynamo.PrevHash: {nil, number("1"), text("ab")},
		dynamo.Hash:     {nil, number("1"), text(""), text(strings.Repeat("G", 64))},
	}
	for name := range dynamo.RowOf(&first) {
		if len(bad[name]) == 0 {
			t.Errorf("there are no bad values for %s, want some", name)
		}
	}
	names := map[string]string{dynamo.ID: "key", dynamo.Version: "version", dynamo.Body: "after"}
	for name, values := range bad {
		for _, v := range values {
			r := maps.Clone(dynamo.RowOf(&first))
			delete(r, name)
			if v != nil {
				r[name] = v
			}
			got, err := dynamo.ItemOf(control.Tenants, r)
			if !errors.Is(err, control.ErrBadItem) {
				t.Errorf("%s = %+v: got the item %+v, error %v; want ErrBadItem", name, v, got, err)
			} else if text := err.Error(); !strings.Contains(text, name) && !strings.Contains(text, names[name]) &&
				name != dynamo.PrevHash && name != dynamo.Deleted {
				t.Errorf("%s = %+v: got the error %v, want the name of the attribute in it", name, v, err)
			} else if name != dynamo.ID && !strings.Contains(text, `tenants/"acmé/1"`) {
				t.Errorf("%s = %+v: got the error %v, want the item in it", name, v, err)
			}
			if bad, whole := control.BadItems(errors.Join(err, err)); name != dynamo.ID &&
				(!whole || len(bad) != 2 || bad[1].Key != "acmé/1" || bad[1].Table != control.Tenants) {
				t.Errorf("%s = %+v: got the bad items %v, whole %t; want table and key of both", name, v, bad, whole)
			}
		}
	}
	r := dynamo.RowOf(&gone)
	r[dynamo.Body] = text("{}")
	if got, err := dynamo.ItemOf(control.Tenants, r); !errors.Is(err, control.ErrBadItem) {
		t.Errorf("a tombstone with a body: got %+v, error %v; want ErrBadItem", got, err)
	}
	if got, err := dynamo.ItemOf(control.Plans, dynamo.RowOf(&first)); !errors.Is(err, control.ErrBadItem) {
		t.Errorf("a tenant in the table of plans: got %+v, error %v; want ErrBadItem", got, err)
	}
	delete(r, dynamo.Body)
	r["aws:rep:region"] = null
	if got, err := dynamo.ItemOf(control.Tenants, r); err != nil || !got.Equal(&gone) {
		t.Errorf("with an unknown attribute: got %+v, error %v; want the same item", got, err)
	}
}
