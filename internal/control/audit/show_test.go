package audit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
)

func (w *world) show(f audit.Filter) []audit.Shown {
	w.t.Helper()
	var all []audit.Shown
	err := audit.Show(w.t.Context(), w.archive, f, func(s audit.Shown) bool {
		all = append(all, s)
		return true
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// Guarantees that each change that a filter selects is shown once, oldest first, and no other.
func TestShow(t *testing.T) {
	w := newWorld(t)
	r := rand.New(rand.NewPCG(5, 5))
	w.archiveRandom(r, 40)
	half := noon.Add(30 * time.Minute)
	for name, f := range map[string]audit.Filter{
		"all":        {},
		"a table":    {Table: control.Tenants},
		"an item":    {Table: control.Tenants, Key: "acme"},
		"a version":  {Table: control.Tenants, Key: "acme", Version: 2},
		"no version": {Table: control.Tenants, Key: "acme", Version: 2000},
		"from":       {From: half},
		"to":         {To: half},
		"between":    {From: half, To: half.Add(10 * time.Minute)},
		"somebody":   {Actor: "ANN"},
		"nobody":     {Actor: "bob"},
	} {
		want := make(map[string]bool)
		for p, h := range w.history {
			for i := range h {
				at := h[i].New.ChangedAt
				if (f.Table == "" || f.Table == p.table) && (f.Key == "" || f.Key == p.key) &&
					(f.Version == 0 || f.Version == h[i].New.Version) &&
					!at.Before(f.From) && (f.To.IsZero() || at.Before(f.To)) && f.Actor != "bob" {
					want[nameOf(&h[i])] = true
				}
			}
		}
		got := w.show(f)
		if len(got) != len(want) {
			t.Errorf("%s: %d changes, want %d", name, len(got), len(want))
		}
		for i, s := range got {
			if !want[s.Name] || s.Err != nil || s.Hidden || s.Others || i > 0 &&
				s.Record.Time.Before(got[i-1].Record.Time) {
				t.Errorf("%s: got the change %d as %+v, want one of the filter, readable, in the order of time", name,
					i, s)
			}
			delete(want, s.Name)
		}
	}
}

// Guarantees that tampering is shown beside the record, and that the record is the first content of its name.
func TestShowTampered(t *testing.T) {
	w := newWorld(t)
	for i := range 4 {
		w.archiveRecord(w.write(control.Plans, "pro", fmt.Sprintf(`{"n":%d}`, i), noon.Add(time.Duration(i)*time.Hour)))
	}
	h := w.history[place{control.Plans, "pro"}]
	w.bucket.Hide(nameOf(&h[0]))
	w.bucket.Overwrite(nameOf(&h[1]), []byte("forged"))
	w.rewrite(&h[2], false, setActor("nobody"))
	w.bucket.Alter(nameOf(&h[3]), func([]byte) []byte { return []byte("forged") })
	got := w.show(audit.Filter{Table: control.Plans, Key: "pro"})
	if len(got) != 4 || !got[0].Hidden || got[0].Err != nil || !got[1].Others ||
		string(got[1].Record.After) != `{"n":1}` || got[2].Err == nil ||
		got[2].Record.Actor != "nobody" || got[3].Record != nil || got[3].Err == nil {
		t.Errorf("got %+v, want one hidden, one with other contents, one unreadable, and one without a record", got)
	}
}

func TestFilter(t *testing.T) {
	w := newWorld(t)
	for _, f := range []audit.Filter{
		{Key: "acme"}, {Table: "nothing"}, {Table: control.Plans, Version: 1}, {Table: control.Plans, Key: "a b"},
		{Table: control.Plans, Key: "a", Version: -1},
		{From: noon, To: noon},
	} {
		if err := audit.Show(t.Context(), w.archive, f, func(audit.Shown) bool { return true }); err == nil {
			t.Errorf("the filter %+v: got no error, want one", f)
		}
	}
}

// Guarantees that a difference names exactly the fields that changed.
func TestDiff(t *testing.T) {
	for _, tt := range []struct{ name, before, after, want string }{
		{"created", ``, `{"id":"pro","n":1}`, `id: → "pro"; n: → 1`},
		{"deleted", `{"n":1}`, ``, `n: 1 →`},
		{"same", `{"n":1}`, `{"n":1}`, ``},
		{"a value", `{"a":{"b":1,"c":2}}`, `{"a":{"b":3,"c":2}}`, `a.b: 1 → 3`},
		{"by id, moved", `{"l":[{"id":"x","r":1},{"id":"y","r":2}]}`, `{"l":[{"id":"y","r":2},{"id":"x","r":5}]}`,
			`l[x].r: 1 → 5`},
		{"an element more", `{"l":[{"id":"x"}]}`, `{"l":[{"id":"x"},{"id":"y","r":[1]}]}`,
			`l[y].id: → "y"; l[y].r[0]: → 1`},
		{"by place", `{"c":["a","b"]}`, `{"c":["a","c","d"]}`, `c[1]: "b" → "c"; c[2]: → "d"`},
		{"an id twice", `{"l":[{"id":"x","r":1},{"id":"x","r":2}]}`, `{"l":[{"id":"x","r":1},{"id":"x","r":3}]}`,
			`l[1].r: 2 → 3`},
		{"empty ones", `{"a":{},"b":[]}`, `{"a":[],"b":[]}`, `a: {} → []`},
		{"names that are no words", `{}`, `{"a.b":1,"":{"[0]":2}}`, `[""]["[0]"]: → 2; ["a.b"]: → 1`},
		{"an id that is a number", `{}`, `{"l":[{"id":"1"},{"id":"a]b"}]}`,
			`l["1"].id: → "1"; l["a]b"].id: → "a]b"`},
		{"large numbers", `{"n":9007199254740993}`, `{"n":9007199254740992}`, `n: 9007199254740993 → 9007199254740992`},
		{"null and false", `{"a":null,"b":false}`, `{"a":false,"b":null}`, `a: null → false; b: false → null`},
	} {
		var got []string
		for _, f := range audit.Diff([]byte(tt.before), []byte(tt.after)) {
			got = append(got, strings.TrimSpace(strings.ReplaceAll(fmt.Sprintf("%s: %s → %s", f.Path, f.Before,
				f.After), ":  ", ": ")))
		}
		if got := strings.Join(got, "; "); got != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

// FuzzDiff guarantees that a change is never hidden: different bodies have a difference, unless only the order of a
// list with ids differs.
func FuzzDiff(f *testing.F) {
	f.Add([]byte(`{"a":1}`), []byte(`{"a":{"b":1}}`))
	f.Add([]byte(`{"a.b":1}`), []byte(`{"a":{"b":1}}`))
	f.Add([]byte(`{"a":{"0":1}}`), []byte(`{"a":[1]}`))
	f.Add([]byte(`{"l":[{"id":"0"},{"id":"x"}]}`), []byte(`{"l":[{"id":"x"},{"id":"0"}]}`))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		if !json.Valid(before) || !json.Valid(after) || bytes.Contains(before, []byte(`"id"`)) &&
			bytes.Contains(after, []byte(`"id"`)) || bytes.ContainsAny(before, `\`) || bytes.ContainsAny(after, `\`) {
			return
		}
		var x, y any
		for data, into := range map[*[]byte]*any{&before: &x, &after: &y} {
			d := json.NewDecoder(bytes.NewReader(*data))
			d.UseNumber()
			if d.Decode(into) != nil {
				return
			}
		}
		a, _ := json.Marshal(x)
		b, _ := json.Marshal(y)
		diff := audit.Diff(before, after)
		if (len(diff) == 0) != bytes.Equal(a, b) {
			t.Fatalf("%s and %s: got the difference %+v, want none exactly if they are equal", a, b, diff)
		}
	})
}
