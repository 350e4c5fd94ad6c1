package control_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 123456000, time.UTC)

// next makes the version after current.
func next(tb testing.TB, current *control.Item, table control.Table, key, body string) control.Item {
	tb.Helper()
	c := control.Change{
		Table: table, Key: key, Body: []byte(body), Delete: body == "", Actor: "arn:aws:iam::1:user/jo",
		Reason: "ticket \"4711\"", Now: noon,
	}
	if current != nil {
		c.Expect = current.Version
	}
	c, err := c.Check()
	if err != nil {
		tb.Fatal(err)
	}
	i, done, err := control.Next(current, c)
	if err != nil || done {
		tb.Fatal(done, err)
	}
	return i
}

// history returns n versions of an item.
func history(tb testing.TB, n int) []control.Item {
	tb.Helper()
	var items []control.Item
	var last *control.Item
	for v := range n {
		i := next(tb, last, control.Tenants, "acme", fmt.Sprintf(`{"n":%d}`, v+1))
		items, last = append(items, i), &i
	}
	return items
}

// Guarantees that BadItems recognises an error that is about other things than items: its caller goes on without the
// named items, and must not ignore anything else.
func TestBadItems(t *testing.T) {
	a := &control.BadItemError{Table: control.Cells, Key: "ack.a", Err: errors.New("layout is 2")}
	other := errors.New("throttled")
	for _, tt := range []struct {
		err   error
		items int
		whole bool
	}{
		{nil, 0, true}, {a, 1, true}, {errors.Join(a, a), 2, true}, {fmt.Errorf("list: %w", errors.Join(a)), 1, true},
		{other, 0, false}, {errors.Join(a, other), 1, false}, {control.ErrBadItem, 0, false},
		{fmt.Errorf("cells: %w: %w", control.ErrBadItem, other), 0, false},
		{errors.Join(a, control.ErrBadItem), 1, false},
	} {
		items, whole := control.BadItems(tt.err)
		if len(items) != tt.items || whole != tt.whole {
			t.Errorf("%v: %v, %t; want %d, %t", tt.err, items, whole, tt.items, tt.whole)
		}
	}
	if !errors.Is(a, control.ErrBadItem) || !strings.Contains(a.Error(), `cells/"ack.a"`) {
		t.Errorf("got the error %v, want ErrBadItem with its table and key", a)
	}
}

// Guarantees that an error may hide an item unless it names all that were left out, and the item is none of them: an
// unreadable placement must not be taken for an absent one.
func TestMayHide(t *testing.T) {
	a := &control.BadItemError{Table: control.Cells, Key: "ack.a", Err: errors.New("layout is 2")}
	for _, tt := range []struct {
		err    error
		prefix string
		want   bool
	}{
		{nil, "ack.", false}, {a, "ack.", true}, {a, "placed.", false}, {control.ErrBadItem, "placed.", true},
		{errors.Join(a, errors.New("throttled")), "placed.", true},
	} {
		got := control.MayHide(tt.err, func(key string) bool { return strings.HasPrefix(key, tt.prefix) })
		if got != tt.want {
			t.Errorf("%v may hide %s…: %t, want %t", tt.err, tt.prefix, got, tt.want)
		}
	}
}

// Guarantees what is hashed, byte for byte. A change would break every existing chain.
func TestHash(t *testing.T) {
	first := next(t, nil, control.Tenants, "acmé/1", `{"b":1.50,"a":"<é>"}`)
	gone := next(t, &first, control.Tenants, "acmé/1", "")
	for _, tt := range []struct {
		item control.Item
		text string
	}{
		{first, `{"actor":"arn:aws:iam::1:user/jo","body":{"a":"<é>","b":1.50},` +
			`"changed_at":"2026-11-21T12:00:00.123456Z","deleted":false,` +
			`"key":"acmé/1","layout":1,"prev_hash":"","reason":"ticket \"4711\"","table":"tenants","version":1}`},
		{gone, `{"actor":"arn:aws:iam::1:user/jo","body":null,"changed_at":"2026-11-21T12:00:00.123456Z",` +
			`"deleted":true,` +
			`"key":"acmé/1","layout":1,"prev_hash":"` + first.Hash +
			`","reason":"ticket \"4711\"","table":"tenants","version":2}`},
	} {
		sum := sha256.Sum256([]byte(tt.text))
		if want := hex.EncodeToString(sum[:]); tt.item.Hash != want {
			t.Errorf("version %d has the hash %s, want that of %s, %s", tt.item.Version, tt.item.Hash, tt.text, want)
		}
		if err := tt.item.Verify(); err != nil {
			t.Error(err)
		}
	}
	if first.Hash != "a339761b3e8b7e5ca09a9419800b9cb0c6905a49713e3f8f4f4dd182e428a14d" {
		t.Errorf("got the hash %s of version 1, want the one that stored items have", first.Hash)
	}
}

// Guarantees that every field is hashed, so that altering one is found.
func TestEveryFieldIsHashed(t *testing.T) {
	items := history(t, 2)
	for name, edit := range map[string]func(*control.Item){
		"Table":     func(i *control.Item) { i.Table = control.Keys },
		"Key":       func(i *control.Item) { i.Key = "acme2" },
		"Version":   func(i *control.Item) { i.Version++ },
		"Actor":     func(i *control.Item) { i.Actor = "another" },
		"Reason":    func(i *control.Item) { i.Reason = "another" },
		"ChangedAt": func(i *control.Item) { i.ChangedAt = i.ChangedAt.Add(time.Microsecond) },
		"Deleted":   func(i *control.Item) { i.Deleted, i.Body = true, nil },
		"Body":      func(i *control.Item) { i.Body = json.RawMessage(`{"n":3}`) },
		"PrevHash":  func(i *control.Item) { i.PrevHash = strings.Repeat("0", 64) },
		"Hash":      func(i *control.Item) { i.Hash = strings.Repeat("0", 64) },
	} {
		i := items[1]
		edit(&i)
		if err := i.Verify(); !errors.Is(err, control.ErrBadItem) || !strings.Contains(err.Error(), "altered") {
			t.Errorf("an item whose %s was altered: got the error %v, want ErrBadItem that says so", name, err)
		}
		if i.Equal(&items[1]) || items[1].Equal(&i) {
			t.Errorf("an item whose %s was altered equals the original, want that it differs", name)
		}
	}
	if n := reflect.TypeFor[control.Item]().NumField(); n != 10 {
		t.Errorf("an item has %d fields, want 10, because each is tested here", n)
	}
}

// Guarantees that an item out of bounds is refused, whatever its hash.
func TestItemBounds(t *testing.T) {
	for name, edit := range map[string]func(*control.Item){
		"no table":            func(i *control.Item) { i.Table = "" },
		"no key":              func(i *control.Item) { i.Key = "" },
		"version 0":           func(i *control.Item) { i.Version = 0 },
		"version 1 with prev": func(i *control.Item) { i.Version = 1 },
		"no actor":            func(i *control.Item) { i.Actor = "" },
		"a reason of lines":   func(i *control.Item) { i.Reason = "a\nb" },
		"no time":             func(i *control.Item) { i.ChangedAt = time.Time{} },
		"nanoseconds":         func(i *control.Item) { i.ChangedAt = i.ChangedAt.Add(1) },
		"another zone":        func(i *control.Item) { i.ChangedAt = i.ChangedAt.In(time.FixedZone("", 3600)) },
		"no body":             func(i *control.Item) { i.Body = nil },
		"a deleted body":      func(i *control.Item) { i.Deleted = true },
		"a list as a body":    func(i *control.Item) { i.Body = json.RawMessage(`[]`) },
		"fields after a body": func(i *control.Item) { i.Body = json.RawMessage(`{},"deleted":false`) },
		"no prev":             func(i *control.Item) { i.PrevHash = "" },
	} {
		i := history(t, 2)[1]
		edit(&i)
		i.Hash = i.ComputeHash()
		if err := i.Verify(); !errors.Is(err, control.ErrBadItem) {
			t.Errorf("%s: got the error %v, want ErrBadItem", name, err)
		}
		if data, err := i.Encode(); !errors.Is(err, control.ErrBadItem) {
			t.Errorf("%s: Encode = %s, error %v; want ErrBadItem", name, data, err)
		}
	}
}

// Guarantees that an item is read as it was written, and that nothing else is read as an item.
func TestEncode(t *testing.T) {
	first := next(t, nil, control.Plans, "pro", `{"a":1}`)
	gone := next(t, &first, control.Plans, "pro", "")
	for _, i := range []control.Item{first, gone} {
		data, err := i.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := control.DecodeItem(data); err != nil || !reflect.DeepEqual(got, i) {
			t.Errorf("DecodeItem(%s) = %+v, %v; want %+v", data, got, err, i)
		}
		event, err := events.Encode(i.Event())
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"", "{}", string(data[:len(data)-1]), string(event),
			`{"type":"audit.record","version":2}`} {
			if got, err := control.DecodeItem([]byte(bad)); !errors.Is(err, control.ErrBadItem) {
				t.Errorf("DecodeItem(%s) = %+v, error %v; want ErrBadItem", bad, got, err)
			}
		}
	}
}

// Guarantees that a record in a feed is the change that was made, and that what was written without the tables is
// refused.
func TestRecordCheck(t *testing.T) {
	items := history(t, 3)
	other := next(t, nil, control.Tenants, "other", `{}`)
	altered, moved := items[0], items[0]
	altered.Body = json.RawMessage(`{"n":100}`)
	moved.Version = 7
	forged := next(t, nil, control.Tenants, "acme", `{"n":100}`)
	tests := []struct {
		name string
		r    control.Record
		want string // part of the error; "": no error
	}{
		{"the first", control.Record{New: items[0]}, ""},
		{"the next", control.Record{Old: &items[1], New: items[2]}, ""},
		{"over one that was altered", control.Record{Old: &altered, New: items[1]}, ""},
		{"a later one in the place of none", control.Record{New: items[1]}, "replaces no version"},
		{"one left out", control.Record{Old: &items[0], New: items[2]}, "not linked"},
		{"the same again", control.Record{Old: &items[1], New: items[1]}, "not linked"},
		{"backwards", control.Record{Old: &items[2], New: items[1]}, "not linked"},
		{"of another item", control.Record{Old: &other, New: items[1]}, `tenants/"other"`},
		{"over a forged one", control.Record{Old: &forged, New: items[1]}, "not linked"},
		{"over one whose version was altered", control.Record{Old: &moved, New: items[1]}, "not linked"},
		{"altered", control.Record{New: altered}, "altered"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.r.Check()
			if (err == nil) != (tt.want == "") || err != nil && (!errors.Is(err, control.ErrBadItem) ||
				!strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Check = %v, want %q", err, tt.want)
			}
		})
	}
}

// Guarantees that a repeated change is not reported as done if its version was altered in between.
func TestRepeatedOverAltered(t *testing.T) {
	c, err := control.Change{Table: control.Plans, Key: "pro", Body: []byte(`{"n":1}`), Actor: "jo", Reason: "r",
		Now: noon}.Check()
	if err != nil {
		t.Fatal(err)
	}
	first, _, err := control.Next(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	if again, done, err := control.Next(&first, c); err != nil || !done || !again.Equal(&first) {
		t.Errorf("the same change again: got %+v, done %t, error %v; want the same item, and done", again, done, err)
	}
	first.Body = json.RawMessage(`{"n":1000}`) // under the old hash
	if again, done, err := control.Next(&first, c); !errors.Is(err, control.ErrConflict) || done {
		t.Errorf("repeated over what was altered: %+v, %t, %v; want a conflict", again, done, err)
	}
}

// Guarantees who is told of what: each change has one event, except for items that only the balancer or the archive
// reads.
func TestEvent(t *testing.T) {
	tests := []struct {
		table control.Table
		key   string
		want  events.Type
	}{
		{control.Plans, "pro", events.PlanChanged},
		{control.Plans, events.SettingsKey, events.SettingsChanged},
		{control.Plans, events.CanaryKey, events.Canary},
		{control.Tenants, "acme", events.TenantChanged},
		{control.Tenants, events.SettingsKey, events.TenantChanged}, // a tenant may have any name
		{control.Keys, "k1", events.KeyChanged},
		{control.Cells, events.SharesKey, events.SharesChanged},
		{control.Cells, "eu-1", ""},
		{control.Operations, "op", ""},
	}
	body := `{"hash":"` + strings.Repeat("a", 64) + `","pepper":"p"}`
	for _, tt := range tests {
		r := control.Record{New: next(t, nil, tt.table, tt.key, body)}
		e := r.Event()
		if tt.want == "" {
			if e != nil {
				t.Errorf("%s/%s: %+v, want no event", tt.table, tt.key, e)
			}
			continue
		}
		want := &events.Changed{Type: tt.want, Key: tt.key, ItemVersion: 1, Time: noon, Hash: r.New.Hash,
			Body: json.RawMessage(body)}
		if !reflect.DeepEqual(e, want) {
			t.Errorf("%s/%s: %+v, want %+v", tt.table, tt.key, e, want)
		}
		data, err := events.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.Header().ID; got != string(tt.table)+"/"+tt.key+"/1" || !strings.Contains(string(data),
			`"id":"`+got+`"`) {
			t.Errorf("%s/%s: got the id %s, want table, key and version", tt.table, tt.key, got)
		}
	}
	first := next(t, nil, control.Tenants, "acme", `{}`)
	gone := next(t, &first, control.Tenants, "acme", "")
	if e := gone.Event(); e == nil || !e.Deleted || e.Body != nil || e.ItemVersion != 2 {
		t.Errorf("a tombstone: got %+v, want a deletion of version 2 without a body", e)
	}
}

// Guarantees that an archived record holds everything that is hashed, and the body that was replaced.
func TestAudit(t *testing.T) {
	items := history(t, 2)
	gone := next(t, &items[1], control.Tenants, "acme", "")
	again := next(t, &gone, control.Tenants, "acme", `{"n":4}`)
	for _, tt := range []struct {
		r      control.Record
		before string
	}{
		{control.Record{New: items[0]}, ""},
		{control.Record{Old: &items[0], New: items[1]}, `{"n":1}`},
		{control.Record{Old: &items[1], New: gone}, `{"n":2}`},
		{control.Record{Old: &gone, New: again}, ""},
	} {
		data, err := events.Encode(tt.r.Audit())
		if err != nil {
			t.Fatal(err)
		}
		e, err := events.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		record := e.(*events.AuditRecord)
		if got := control.FromAudit(record); !reflect.DeepEqual(got, tt.r.New) || got.Verify() != nil {
			t.Errorf("from the archive: %+v, want %+v", got, tt.r.New)
		}
		if string(record.Before) != tt.before {
			t.Errorf("version %d says it replaced %q, want %q", tt.r.New.Version, record.Before, tt.before)
		}
	}
}

// pages are tables whose List returns prepared pages, one for each call.
type pages struct {
	control.Tables
	errs []error
}

func (p *pages) List(_ context.Context, _ control.Table, after string, _ int) ([]control.Item, string, error) {
	n := len(after)
	next := after + "x"
	if n == len(p.errs)-1 {
		next = ""
	}
	return []control.Item{{Version: int64(n) + 1}}, next, p.errs[n]
}

// Guarantees that items that cannot be read prevent nobody from reading the others, and that any other error ends the
// list.
func TestAll(t *testing.T) {
	down := errors.New("down")
	for _, tt := range []struct {
		name  string
		errs  []error
		items int
		bad   int
	}{
		{"in order", []error{nil, nil, nil}, 3, 0},
		{"a bad item", []error{nil, fmt.Errorf("x: %w", control.ErrBadItem), nil}, 3, 1},
		{"down", []error{nil, down, nil}, 1, 1},
	} {
		items, bad := 0, 0
		for i, err := range control.All(t.Context(), &pages{errs: tt.errs}, control.Plans) {
			if err != nil {
				bad++
			} else if items++; i.Version != int64(items) {
				t.Errorf("%s: item %d has version %d, want that items come in the order of their pages", tt.name,
					items, i.Version)
			}
		}
		if items != tt.items || bad != tt.bad {
			t.Errorf("%s: %d items and %d errors, want %d and %d", tt.name, items, bad, tt.items, tt.bad)
		}
	}
	for _, err := range control.All(t.Context(), &pages{errs: []error{nil, nil}}, control.Plans) {
		if err != nil {
			t.Error(err)
		}
		break // a second call of yield would panic
	}
}
