// Package tabletest tests the contract of table.Store.
package tabletest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/plan"
)

// Run runs all cases. open is called for each case, and returns several handles of one new, empty table.
func Run(t *testing.T, open func(t *testing.T, handles int) []table.Store) {
	for name, test := range map[string]func(*testing.T, table.Store){
		"an empty table is reported as such":            empty,
		"a document is applied once":                    applied,
		"tombstones stay and can be followed":           tombstones,
		"a key is found by its hash":                    keys,
		"two keys never share a hash":                   sharedHash,
		"a change that is too large is several steps":   large,
		"large bodies and odd ids are stored unchanged": testUnusualDocuments,
		"a step from another head is refused":           conflict,
		"a bad document is refused by name":             invalid,
		"a kind is listed with its tombstones":          listed,
		"a repair replaces whatever was found":          repaired,
		"a repair gives a key's hash back":              repairedKeys,
		"a repair leaves later changes alone":           overtaken,
		"a repair brings keys and hashes together":      repairedHashes,
		"a bad repair is refused":                       badRepairs,
		"a row that is a document is not deleted":       goodRows,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t, 1)[0]) })
	}
	t.Run("concurrent writers leave no gap in the log and lose nothing", func(t *testing.T) { writers(t, open(t, 4)) })
	t.Run("a reader that polls after a write sees it", func(t *testing.T) { readers(t, open(t, 3)) })
}

func ref(kind table.Kind, id string) table.Ref { return table.Ref{Kind: kind, ID: id} }

// Tenant returns the document of a tenant with a plan.
func Tenant(id, planID string, version int64) table.Document {
	return table.Document{Ref: ref(plan.KindTenant, id), Version: version,
		Body: fmt.Appendf(nil, `{"id":%q,"plan":%q}`, id, planID)}
}

// Plan returns the document of a plan with one limit.
func Plan(id string, threshold, version int64) table.Document {
	return table.Document{Ref: ref(plan.KindPlan, id), Version: version,
		Body: fmt.Appendf(nil, `{"id":%q,"limits":[{"id":"all","tiers":[{"period":"1s","threshold":%d}]}]}`, id,
			threshold)}
}

// Key returns the document of an API key. Its hash consists of 64 times the same hex digit.
func Key(id, tenant string, digit byte, version int64) table.Document {
	return table.Document{Ref: ref(plan.KindKey, id), Version: version,
		Body: fmt.Appendf(nil, `{"hash":%q,"id":%q,"pepper":"dev","tenant":%q}`, hash(digit), id, tenant)}
}

// Gone returns the tombstone of a document.
func Gone(r table.Ref, version int64) table.Document {
	return table.Document{Ref: r, Version: version, Deleted: true}
}

func hash(digit byte) string { return strings.Repeat(string(digit), 64) }

func apply(t *testing.T, s table.Store, want int, documents ...table.Document) {
	t.Helper()
	if n, err := table.Apply(t.Context(), s, documents, time.Now); err != nil || n != want {
		t.Fatalf("Apply(%d documents) = %d, %v; want %d", len(documents), n, err, want)
	}
}

func head(t *testing.T, s table.Store, want int64) table.Head {
	t.Helper()
	h, err := s.Head(t.Context())
	if err != nil || h.Seq != want || h.Incarnation == "" {
		t.Fatalf("head = %+v, %v; want %d of an incarnation", h, err, want)
	}
	return h
}

func get(t *testing.T, s table.Store, refs ...table.Ref) []table.Document {
	t.Helper()
	got, err := s.Get(t.Context(), refs...)
	if err != nil || len(got) != len(refs) {
		t.Fatalf("Get(%v) = %d documents, %v; want one for each reference", refs, len(got), err)
	}
	for i, ref := range refs {
		if got[i].Ref != ref {
			t.Fatalf("document %d is %v, want %v", i, got[i].Ref, ref)
		}
	}
	return got
}

// entries returns the whole log, which must have no gap.
func entries(t *testing.T, s table.Store) []table.Entry {
	t.Helper()
	h, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	log, err := s.Log(t.Context(), 0, h.Seq)
	if err != nil || int64(len(log)) != h.Seq {
		t.Fatalf("%d log entries, %v; want %d", len(log), err, h.Seq)
	}
	for i, e := range log {
		if e.Seq != int64(i)+1 || len(e.Changes) == 0 || e.At.IsZero() {
			t.Fatalf("entry %d is %+v", i+1, e)
		}
	}
	return log
}

func empty(t *testing.T, s table.Store) {
	if h, err := s.Head(t.Context()); !errors.Is(err, table.ErrEmpty) {
		t.Errorf("head = %+v, %v; want ErrEmpty", h, err)
	}
	if d := get(t, s, ref(plan.KindPlan, "p"))[0]; d.Version != 0 || d.Body != nil {
		t.Errorf("an empty table has the document %+v", d)
	}
	if log, err := s.Log(t.Context(), 0, 5); err != nil || len(log) != 0 {
		t.Errorf("log = %v, %v; want none", log, err)
	}
	apply(t, s, 0)
	if _, err := s.Head(t.Context()); !errors.Is(err, table.ErrEmpty) {
		t.Errorf("Head after an Apply without documents: %v, want ErrEmpty", err)
	}
}

func applied(t *testing.T, s table.Store) {
	apply(t, s, 2, Plan("p", 5, 3), Tenant("t", "p", 1))
	first := head(t, s, 1)
	apply(t, s, 0, Plan("p", 6, 3), Plan("p", 7, 2), Tenant("t", "q", 1))
	head(t, s, 1)
	got := get(t, s, ref(plan.KindPlan, "p"), ref(plan.KindTenant, "t"), ref(plan.KindTenant, "p"),
		ref(plan.KindPlan, "p"))
	if !bytes.Equal(got[0].Body, Plan("p", 5, 3).Body) || got[0].Version != 3 || got[0].Seq != 1 ||
		got[2].Version != 0 || got[3].Version != 3 {
		t.Errorf("the documents are %+v, which differs from what was applied", got)
	}
	apply(t, s, 1, Tenant("t", "x", 2), Tenant("t", "q", 7), Tenant("t", "y", 3), Plan("p", 6, 3))
	if h := head(t, s, 2); h.Incarnation != first.Incarnation {
		t.Errorf("the incarnation is %q, want %q, unchanged", h.Incarnation, first.Incarnation)
	}
	if d := get(t, s, ref(plan.KindTenant, "t"))[0]; d.Version != 7 || d.Seq != 2 ||
		!bytes.Equal(d.Body, Tenant("t", "q", 7).Body) {
		t.Errorf("document %+v, want version 7", d)
	}
	log := entries(t, s)
	want := []table.Change{{Ref: ref(plan.KindPlan, "p"), Version: 3}, {Ref: ref(plan.KindTenant, "t"),
		Version: 1}}
	if !slices.Equal(log[0].Changes, want) || !slices.Equal(log[1].Changes,
		[]table.Change{{Ref: ref(plan.KindTenant, "t"), Version: 7}}) {
		t.Errorf("the log is %+v, want a second entry with version 7 of the tenant alone", log)
	}
	if part, err := s.Log(t.Context(), 1, 2); err != nil || len(part) != 1 || part[0].Seq != 2 {
		t.Errorf("log after 1 = %+v, %v; want entry 2", part, err)
	}
}

func tombstones(t *testing.T, s table.Store) {
	at := ref(plan.KindTenant, "t")
	apply(t, s, 1, Tenant("t", "p", 1))
	apply(t, s, 1, Gone(at, 2))
	if d := get(t, s, at)[0]; !d.Deleted || d.Version != 2 || len(d.Body) != 0 {
		t.Errorf("document %+v, want a tombstone of version 2", d)
	}
	apply(t, s, 0, Tenant("t", "p", 1), Tenant("t", "p", 2))
	apply(t, s, 1, Tenant("t", "p", 3))
	if d := get(t, s, at)[0]; d.Deleted || d.Version != 3 {
		t.Errorf("document %+v, want version 3", d)
	}
	log := entries(t, s)
	if !log[1].Changes[0].Deleted || log[2].Changes[0].Deleted {
		t.Errorf("log %+v, want the second entry to be a deletion", log)
	}
}

// keysByDigit returns the ids of the keys that are stored under each digit's hash; "-" for none.
func keysByDigit(t *testing.T, s table.Store, digits string) string {
	t.Helper()
	var out []string
	for _, digit := range []byte(digits) {
		d := get(t, s, ref(table.KindKeyHash, hash(digit)))[0]
		_, id, _ := bytes.Cut(d.Body, []byte(`"id":"`))
		id, _, _ = bytes.Cut(id, []byte(`"`))
		if d.Deleted || d.Version == 0 {
			id = []byte("-")
		}
		out = append(out, string(id))
	}
	return strings.Join(out, " ")
}

func keys(t *testing.T, s table.Store) {
	check := func(want string) {
		t.Helper()
		if got := keysByDigit(t, s, "abc"); got != want {
			t.Fatalf("the hashes belong to the keys %q, want %q", got, want)
		}
	}
	apply(t, s, 2, Key("one", "t", 'a', 1), Key("two", "t", 'b', 1))
	check("one two -")
	apply(t, s, 2, Key("one", "t", 'b', 2), Key("two", "t", 'a', 2))
	check("two one -")
	apply(t, s, 1, Key("one", "t", 'c', 3))
	check("two - one")
	apply(t, s, 2, Gone(ref(plan.KindKey, "two"), 3), Key("three", "t", 'a', 1))
	check("three - one")
	apply(t, s, 1, Gone(ref(plan.KindKey, "three"), 2))
	check("- - one")
	apply(t, s, 1, Key("two", "t", 'b', 4))
	check("- two one")
	seen := map[table.Ref]int64{}
	for _, e := range entries(t, s) {
		for _, c := range e.Changes {
			if c.Version <= seen[c.Ref] {
				t.Errorf("entry %d: version %d of a %s after %d", e.Seq, c.Version, c.Kind, seen[c.Ref])
			}
			seen[c.Ref] = c.Version
		}
	}
	if d := get(t, s, ref(table.KindKeyHash, hash('b')))[0]; d.Version != seen[d.Ref] {
		t.Errorf("hash b has version %d, the log says %d", d.Version, seen[d.Ref])
	}
}

func sharedHash(t *testing.T, s table.Store) {
	apply(t, s, 1, Key("one", "t", 'a', 1))
	for _, documents := range [][]table.Document{
		{Key("two", "t", 'a', 1)},
		{Key("two", "t", 'b', 1), Key("three", "t", 'b', 1)},
		{Tenant("t", "p", 1), Key("two", "t", 'a', 1)},
		{Key("two", "u", 'a', 1)},
		{Key("two", "u", 'b', 1), Key("three", "t", 'b', 1)},
	} {
		n, err := table.Apply(t.Context(), s, documents, time.Now)
		if !errors.Is(err, table.ErrInvalid) || n != 0 || strings.Contains(err.Error(), hash('a')) {
			t.Errorf("Apply = %d, %v; want a refusal that does not show the hash", n, err)
		}
	}
	head(t, s, 1)
	if got := keysByDigit(t, s, "ab"); got != "one -" {
		t.Errorf("the hashes belong to the wrong keys: %q", got)
	}
}

func large(t *testing.T, s table.Store) {
	var documents []table.Document
	for i := range 250 {
		documents = append(documents, Tenant(fmt.Sprintf("t%03d", i), "p", 1))
	}
	for i := range 40 {
		k := Key(fmt.Sprintf("k%02d", i), "t", 'a', 1)
		k.Body = bytes.Replace(k.Body, []byte(hash('a')), fmt.Appendf(nil, "%064x", i), 1)
		documents = append(documents, k)
	}
	apply(t, s, len(documents), documents...)
	log, named := entries(t, s), 0
	for _, e := range log {
		named += len(e.Changes)
		for _, c := range e.Changes {
			if d := get(t, s, c.Ref)[0]; d.Seq != e.Seq || d.Version != c.Version {
				t.Fatalf("entry %d names %+v, but the document is %+v", e.Seq, c, d)
			}
		}
	}
	if len(log) < 3 || named != 250+2*40 {
		t.Errorf("%d entries name %d documents, want some entries and 330", len(log), named)
	}
	apply(t, s, 0, documents...)
	if again := entries(t, s); len(again) != len(log) {
		t.Errorf("after the same documents were applied again the log has %d entries, want %d", len(again), len(log))
	}
	refs := make([]table.Ref, len(documents))
	for i := range documents {
		refs[i] = documents[i].Ref
	}
	for i, d := range get(t, s, refs...) {
		if !bytes.Equal(d.Body, documents[i].Body) {
			t.Fatalf("document %v is %s", d.Ref, d.Body)
		}
	}
}

func testUnusualDocuments(t *testing.T, s table.Store) {
	body := []byte(`{"routes":[` + strings.TrimSuffix(strings.Repeat(`{"pathPattern":"/a/long/path/with/{name}/*"},`,
		30_000), ",") + `]}`)
	documents := []table.Document{
		{Ref: ref(plan.KindSettings, plan.SettingsID), Version: 1, Body: body},
		Tenant("a#b", "p", 1), Tenant("#", "p", 1), Tenant("é😀 \u2028", "p", 1),
		Tenant(strings.Repeat("x", table.MaxIDBytes), "p", 1),
		{Ref: ref("shares", "s"), Version: 1, Body: []byte("7")},
	}
	apply(t, s, len(documents), documents...)
	for _, d := range documents {
		if got := get(t, s, d.Ref)[0]; !bytes.Equal(got.Body, d.Body) || got.Version != 1 {
			t.Errorf("%s %q is read with %d bytes of version %d, want it as it was written", d.Kind, d.ID,
				len(got.Body), got.Version)
		}
	}
}

func conflict(t *testing.T, s table.Store) {
	step := func(incarnation string, seq int64) table.Step {
		d := Tenant("t", "p", seq)
		d.Seq = seq
		return table.Step{Incarnation: incarnation, Documents: []table.Document{d},
			Entry: table.Entry{Seq: seq, At: time.Now(), Changes: []table.Change{{Ref: d.Ref, Version: seq}}}}
	}
	if err := s.Commit(t.Context(), step("", 1)); err != nil {
		t.Fatal(err)
	}
	h := head(t, s, 1)
	for _, refused := range []table.Step{step("", 1), step(h.Incarnation, 1), step(h.Incarnation, 3),
		step("other", 2)} {
		if err := s.Commit(t.Context(), refused); !errors.Is(err, table.ErrConflict) {
			t.Errorf("step to %d of incarnation %q: %v, want ErrConflict", refused.Entry.Seq, refused.Incarnation, err)
		}
	}
	if d := get(t, s, ref(plan.KindTenant, "t"))[0]; d.Version != 1 || len(entries(t, s)) != 1 {
		t.Errorf("after refused steps the document is %+v, want version 1, and one log entry", d)
	}
	if err := s.Commit(t.Context(), step(h.Incarnation, 2)); err != nil {
		t.Errorf("Commit of a step from the head: %v, want no error", err)
	}
}

func invalid(t *testing.T, s table.Store) {
	good := Tenant("good", "p", 1)
	for want, d := range map[string]table.Document{
		`tenant "v0": version 0`: Tenant("v0", "p", 0),
		`tenant "": the id`:      Tenant("", "p", 1),
		`the id is not 1 to 512`: Tenant(strings.Repeat("x", 513), "p", 1),
		"\\xff\": the id":        Tenant("\xff", "p", 1),
		`the kind is not`:        {Ref: ref("Plan", "p"), Version: 1, Body: []byte("{}")},
		`keyhash: a key is applied`: {Ref: ref(table.KindKeyHash, hash('a')), Version: 1,
			Body: []byte("{}")},
		`plan "j": the body is not JSON`: {Ref: ref(plan.KindPlan, "j"), Version: 1, Body: []byte("id: j")},
		`plan "n": the body is not JSON`: {Ref: ref(plan.KindPlan, "n"), Version: 1},
		`tenant "d": a tombstone`: {Ref: ref(plan.KindTenant, "d"), Version: 1, Deleted: true,
			Body: []byte("{}")},
		`key "k": a key needs its id`: {Ref: ref(plan.KindKey, "k"), Version: 1,
			Body: []byte(`{"id":"k","hash":"AB"}`)},
		`key "other": a key needs its id`: {Ref: ref(plan.KindKey, "other"), Version: 1,
			Body: Key("k", "t", 'a', 1).Body},
		`plan "big": 4194306 bytes, want at m`: {Ref: ref(plan.KindPlan, "big"), Version: 1,
			Body: []byte(`"` + strings.Repeat("x", 4<<20) + `"`)},
	} {
		n, err := table.Apply(t.Context(), s, []table.Document{good, d}, time.Now)
		if n != 0 || !errors.Is(err, table.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("Apply = %d, %v; want an invalid document: %s", n, err, want)
		}
	}
	if _, err := s.Head(t.Context()); !errors.Is(err, table.ErrEmpty) {
		t.Errorf("Head = %v, want ErrEmpty: an invalid document must not be written", err)
	}
}

func listed(t *testing.T, s table.Store) {
	want := map[string]int64{}
	var documents []table.Document
	for i := range 60 {
		id := fmt.Sprintf("t%d", i)
		documents = append(documents, Tenant(id, "p", 1))
		want[id] = 1
	}
	apply(t, s, 62, append(documents, Plan("p", 1, 1), Key("k", "t", 'a', 1))...)
	apply(t, s, 1, Gone(ref(plan.KindTenant, "t7"), 2))
	want["t7"] = -2
	got := map[string]int64{}
	for d, err := range s.List(t.Context(), plan.KindTenant) {
		if err != nil {
			t.Fatal(err)
		}
		if got[d.ID] = d.Version; d.Deleted {
			got[d.ID] = -d.Version
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
	for _, err := range s.List(t.Context(), plan.KindTenant) {
		if err != nil {
			t.Error(err)
		}
		break // List must accept that the caller ends the iteration
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var last error
	for _, err := range s.List(ctx, plan.KindTenant) {
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("a list with a cancelled context ends with %v, want context.Canceled", last)
	}
}

// replacementsOf returns replacements of the stored documents by the wanted ones.
func replacementsOf(t *testing.T, s table.Store, want ...table.Document) (out []table.Replacement) {
	t.Helper()
	for _, d := range want {
		out = append(out, table.Replacement{Found: get(t, s, d.Ref)[0], Want: d})
	}
	return out
}

func repair(t *testing.T, s table.Store, want int, replacements ...table.Replacement) {
	t.Helper()
	if n, err := table.Repair(t.Context(), s, replacements, time.Now); err != nil || n != want {
		t.Fatalf("Repair(%d documents) = %d, %v; want %d", len(replacements), n, err, want)
	}
}

// repaired restores a plan to an earlier version, removes a tenant, and corrects the content of another document,
// while a reader has all of them in its copy.
func repaired(t *testing.T, s table.Store) {
	r, err := config.New(config.Config{Table: s, Timeout: 10 * time.Second, FirstTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	reads := func(want string) {
		t.Helper()
		if err := r.Load(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		c, _ := r.Begin(t.Context(), time.Now())
		got := ""
		for _, id := range []string{"t", "forged"} {
			switch tenant, err := c.Tenant(t.Context(), id); {
			case err != nil:
				t.Fatal(err)
			case tenant == nil:
				got += " none"
			default:
				got += fmt.Sprint(" ", tenant.Limits(time.Now()).Limits[0].Limit.Tiers[0].Threshold)
			}
		}
		if got != want {
			t.Fatalf("a reader finds%s, want%s", got, want)
		}
	}
	apply(t, s, 3, Plan("p", 5, 1<<53-1), Tenant("t", "p", 1), Tenant("forged", "p", 1<<53-1))
	before := head(t, s, 1)
	reads(" 5 5")
	gone := ref(plan.KindTenant, "forged")
	repair(t, s, 2, replacementsOf(t, s, Plan("p", 6, 2), table.Document{Ref: gone})...)
	if h := head(t, s, 2); h.Incarnation == before.Incarnation {
		t.Error("a repair keeps the table's incarnation: readers would not see a lower version")
	}
	if d := get(t, s, gone)[0]; d.Version != 0 || d.Deleted || len(d.Body) != 0 {
		t.Errorf("the removed document is read as %+v, want it absent", d)
	}
	for d, err := range s.List(t.Context(), plan.KindTenant) {
		if err != nil || d.Ref == gone {
			t.Errorf("the list has %+v, %v; want no error, and not the removed document", d, err)
		}
	}
	reads(" 6 none")
	repair(t, s, 1, replacementsOf(t, s, Plan("p", 7, 2))...)
	reads(" 7 none")
	apply(t, s, 2, Plan("p", 8, 3), Tenant("forged", "p", 1))
	reads(" 8 8")
	want := []table.Change{{Ref: gone, Deleted: true}, {Ref: ref(plan.KindPlan, "p"), Version: 2}}
	if log := entries(t, s); !slices.Equal(log[1].Changes, want) {
		t.Errorf("the log entry of the repair has the changes %+v, which differ from the repaired documents",
			log[1].Changes)
	}
}

// goodRows guarantees that rows are not deleted if they have become documents before they are deleted.
func goodRows(t *testing.T, s table.Store) {
	apply(t, s, 2, Plan("p", 5, 1), Tenant("t", "p", 1))
	before := head(t, s, 1)
	rows := []table.BadRow{{Kind: plan.KindPlan, Ref: ref(plan.KindPlan, "p")},
		{Kind: plan.KindPlan, Ref: ref(plan.KindPlan, "none")}}
	if n, err := table.DeleteRows(t.Context(), s, rows, time.Now); n != 0 || err != nil {
		t.Errorf("%d rows were deleted, %v; want none", n, err)
	}
	if after := head(t, s, 1); after.Incarnation != before.Incarnation {
		t.Error("the incarnation has changed although nothing was repaired: readers would drop their copies")
	}
	// A row that is not in the place of any document.
	rows = []table.BadRow{{Kind: plan.KindPlan, Key: [2]string{"plan#none", "p"}}}
	if n, err := table.DeleteRows(t.Context(), s, rows, time.Now); n != 1 || err != nil {
		t.Errorf("%d rows were deleted, %v; want one", n, err)
	}
	if after := head(t, s, 2); after.Incarnation == before.Incarnation {
		t.Error("the incarnation has not changed although a row was deleted: readers would keep their copy of it")
	}
	got := get(t, s, ref(plan.KindPlan, "p"), ref(plan.KindTenant, "t"))
	if got[0].Version != 1 || got[1].Version != 1 {
		t.Errorf("the documents are %+v, want version 1 of both", got)
	}
}

// badRepairs guarantees that invalid repairs are refused and change nothing.
func badRepairs(t *testing.T, s table.Store) {
	apply(t, s, 1, Plan("p", 5, 3))
	another := replacementsOf(t, s, Plan("p", 9, 3))
	another[0].Want.Ref = ref(plan.KindTenant, "t")
	for what, bad := range map[string][]table.Replacement{
		"a document in the place of another": another, "a version below 0": replacementsOf(t, s, Plan("p", 9, -1)),
	} {
		if n, err := table.Repair(t.Context(), s, bad, time.Now); n != 0 ||
			!errors.Is(err, table.ErrInvalid) {
			t.Errorf("Repair, %s: %d, %v; want ErrInvalid, and nothing changed", what, n, err)
		}
	}
	head(t, s, 1)
}

// repairedKeys removes a key that was given the hash of another key, whose own hash was changed to make that possible.
func repairedKeys(t *testing.T, s table.Store) {
	apply(t, s, 1, Key("good", "t", 'a', 1))
	apply(t, s, 1, Key("good", "t", 'b', 1<<53-1))
	apply(t, s, 1, Key("evil", "t", 'a', 1))
	repair(t, s, 2, replacementsOf(t, s, Key("good", "t", 'a', 1),
		table.Document{Ref: ref(plan.KindKey, "evil")})...)
	if got := keysByDigit(t, s, "ab"); got != "good -" {
		t.Errorf("the hashes belong to the wrong keys: %q", got)
	}
}

// repairedHashes repairs states that only a writer without this package can make: a hash without its key, a key
// without its hash, and a key with the hash of another key.
func repairedHashes(t *testing.T, s table.Store) {
	apply(t, s, 3, Key("one", "t", 'a', 1), Key("two", "t", 'b', 1), Key("three", "t", 'c', 1))
	thief := Key("one", "t", 'b', 1)
	stolen := Key("nobody", "t", 'd', 1)
	stolen.Ref = ref(table.KindKeyHash, hash('d'))
	lost := table.Document{Ref: ref(table.KindKeyHash, hash('c')), Version: 1, Deleted: true}
	h := head(t, s, 1)
	past := table.Step{Incarnation: h.Incarnation, Documents: []table.Document{thief, stolen, lost},
		Entry: table.Entry{Seq: 2, At: time.Now(), Changes: []table.Change{{Ref: thief.Ref, Version: 1}}}}
	for i := range past.Documents {
		past.Documents[i].Seq = 2
	}
	if err := s.Commit(t.Context(), past); err != nil {
		t.Fatal(err)
	}
	if got := keysByDigit(t, s, "abcd"); got != "one two - nobody" {
		t.Fatalf("the hashes belong to the wrong keys: %q", got)
	}
	kept := Key("three", "t", 'c', 1)
	kept.Ref = lost.Ref
	repair(t, s, 3, replacementsOf(t, s, Key("one", "t", 'a', 1), table.Document{Ref: stolen.Ref}, kept)...)
	if got := keysByDigit(t, s, "abcd"); got != "one two three -" {
		t.Errorf("the hashes belong to the wrong keys: %q", got)
	}
	if d := get(t, s, kept.Ref)[0]; d.Version != 3 || d.Seq != 3 {
		t.Errorf("the hash has version %d of entry %d, want 3", d.Version, d.Seq)
	}
	wrong := replacementsOf(t, s, kept)
	wrong[0].Want.Body = Key("three", "t", 'e', 1).Body
	if n, err := table.Repair(t.Context(), s, wrong, time.Now); n != 0 || !errors.Is(err, table.ErrInvalid) {
		t.Errorf("Repair of a key with a hash that is not its own: %d, %v; want ErrInvalid", n, err)
	}
}

// overtaken guarantees that a repair does not overwrite a document that was written after the repair has read it.
func overtaken(t *testing.T, s table.Store) {
	apply(t, s, 1, Tenant("t", "forged", 5))
	before := replacementsOf(t, s, Tenant("t", "p", 1))
	apply(t, s, 1, Tenant("t", "q", 6))
	h := head(t, s, 2)
	repair(t, s, 0, before...)
	if again := head(t, s, 2); again.Incarnation != h.Incarnation {
		t.Error("the incarnation has changed although nothing was repaired: readers would drop their copies")
	}
	if d := get(t, s, ref(plan.KindTenant, "t"))[0]; d.Version != 6 {
		t.Errorf("document %+v, want version 6", d)
	}
	// A writer without this package may also write another body with the same version and Seq.
	before = replacementsOf(t, s, Tenant("t", "p", 1))
	other := Tenant("t", "other", 6)
	other.Seq = before[0].Found.Seq
	if err := s.Commit(t.Context(), table.Step{Incarnation: h.Incarnation, Documents: []table.Document{other},
		Entry: table.Entry{Seq: 3, At: time.Now(), Changes: []table.Change{{Ref: other.Ref, Version: 6}}},
	}); err != nil {
		t.Fatal(err)
	}
	repair(t, s, 0, before...)
	if d := get(t, s, other.Ref)[0]; !bytes.Equal(d.Body, other.Body) {
		t.Errorf("a repair replaced a body that was written after it was read: %s, want %s", d.Body, other.Body)
	}
}

func writers(t *testing.T, handles []table.Store) {
	const each, shared = 12, 5
	var wg sync.WaitGroup
	for w, s := range handles {
		wg.Go(func() {
			for i := range each {
				documents := []table.Document{
					Tenant(fmt.Sprintf("own-%d-%d", w, i), "p", 1),
					// every writer uses the same versions
					Tenant(fmt.Sprintf("shared-%d", i%shared), fmt.Sprintf("p%d", w), int64(i)+1),
				}
				if _, err := table.Apply(t.Context(), s, documents, time.Now); err != nil {
					t.Errorf("writer %d: %v", w, err)
				}
			}
		})
	}
	wg.Wait()
	s := handles[0]
	seen := map[table.Ref]int64{}
	for _, e := range entries(t, s) {
		for _, c := range e.Changes {
			if c.Version <= seen[c.Ref] {
				t.Errorf("entry %d takes %s %s from version %d to %d", e.Seq, c.Kind, c.ID, seen[c.Ref], c.Version)
			}
			seen[c.Ref] = c.Version
		}
	}
	if len(seen) != len(handles)*each+shared {
		t.Errorf("%d documents were written, want %d", len(seen), len(handles)*each+shared)
	}
	for at, version := range seen {
		if d := get(t, s, at)[0]; d.Version != version {
			t.Errorf("%v has version %d, but version %d in the log", at, d.Version, version)
		}
	}
}

// readers guarantees that a reader which polls after a write sees it. Two writers write, and a reader with all
// documents in its cache reads after each write.
func readers(t *testing.T, handles []table.Store) {
	r, err := config.New(config.Config{Table: handles[2], Timeout: 10 * time.Second,
		FirstTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, handles[0], 3, Plan("p", 1, 1), Tenant("t0", "p", 1), Tenant("t1", "p", 1))
	var wg sync.WaitGroup
	for w, s := range handles[:2] {
		wg.Go(func() {
			id := fmt.Sprintf("t%d", w)
			for v := range int64(15) {
				documents := []table.Document{Plan("own-"+id, v+1, v+1), Tenant(id, "own-"+id, v+2)}
				if _, err := table.Apply(t.Context(), s, documents, time.Now); err != nil {
					t.Error(err)
					return
				}
				if err := r.Load(t.Context(), time.Now()); err != nil {
					t.Error(err)
					return
				}
				c, _ := r.Begin(t.Context(), time.Now())
				got, err := c.Tenant(t.Context(), id)
				if err != nil || got.Plan != "own-"+id ||
					got.Limits(time.Now()).Limits[0].Limit.Tiers[0].Threshold != v+1 {
					t.Errorf("after version %d was written, a reader has the tenant %+v, %v; want that version", v+1,
						got, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if s := r.Stats(time.Now()); s.BadDocuments != 0 || s.Resets != 0 {
		t.Errorf("the reader reports bad documents or resets, want none: %+v", s)
	}
}
