package controltest

//lint:file-ignore ST1005 the errors begin with names of methods

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
)

// Cells and the archive rely on versions: a version that is left out is a lost change, and one that is made twice
// overwrites a record.
func gapless(s *subject) error {
	var last *control.Item
	for i, body := range []string{`{"plan":"free"}`, `{"plan":"pro"}`, "", `{"plan":"pro"}`, `{"plan":"pro"}`, ""} {
		c := change(control.Tenants, "acme", int64(i), body)
		got, err := s.tables.Put(s.ctx, c)
		if err != nil {
			return err
		}
		if got.Version != int64(i)+1 {
			return fmt.Errorf("write %d made version %d", i+1, got.Version)
		}
		if err := s.checkPut(got, c, last); err != nil {
			return err
		}
		last = &got
	}
	records, err := s.feed(6)
	if err != nil {
		return err
	}
	for i := range records {
		if records[i].New.Version != int64(i)+1 {
			return fmt.Errorf("record %d is of version %d", i, records[i].New.Version)
		}
	}
	return nil
}

// Two operators write at once: one must be told of the other, and the other's change must stay.
func conflict(s *subject) error {
	expects := func(expect, have int64, body string) error {
		_, err := s.put(control.Plans, "pro", expect, body)
		var c *control.ConflictError
		if !errors.As(err, &c) || !errors.Is(err, control.ErrConflict) || c.Have != have || c.Expect != expect {
			return fmt.Errorf("a Put that expects version %d of an item at version %d returns %s, want a "+
				"ConflictError that says so", expect, have, said(err))
		}
		return nil
	}
	if err := expects(3, 0, `{"a":1}`); err != nil {
		return err
	}
	var last control.Item
	for i, body := range []string{`{"a":1}`, `{"a":2}`, ""} {
		var err error
		if last, err = s.put(control.Plans, "pro", int64(i), body); err != nil {
			return err
		}
		for _, expect := range []int64{0, 1, 2, 3, 4, events.MaxVersion - 1} {
			if expect == last.Version {
				continue
			}
			if err := expects(expect, last.Version, `{"a":9}`); err != nil {
				return err
			}
		}
		there, err := s.tables.Get(s.ctx, control.Plans, "pro")
		if err != nil {
			return err
		}
		if err := same(there, last); err != nil {
			return fmt.Errorf("after conflicts: %w", err)
		}
	}
	_, err := s.feed(3)
	return err
}

// A writer whose connection broke does not know whether it wrote. It repeats the Put, which must not write twice.
func repeated(s *subject) error {
	for i, body := range []string{`{"a":1}`, `{"a":2}`, "", `{"a":1}`} {
		c := change(control.Plans, "pro", int64(i), body)
		first, err := s.tables.Put(s.ctx, c)
		if err != nil {
			return err
		}
		again, err := s.tables.Put(s.ctx, c)
		if err != nil {
			return fmt.Errorf("the same Put again: %w", err)
		}
		if err := same(again, first); err != nil {
			return fmt.Errorf("the same Put again: %w", err)
		}
		for what, other := range map[string]func(*control.Change){
			"actor":  func(c *control.Change) { c.Actor = "another" },
			"reason": func(c *control.Change) { c.Reason = "another" },
			"time":   func(c *control.Change) { c.Now = c.Now.Add(time.Microsecond) },
			"body":   func(c *control.Change) { c.Body, c.Delete = []byte(`{"other":1}`), false },
		} {
			c := c
			other(&c)
			if got, err := s.tables.Put(s.ctx, c); !errors.Is(err, control.ErrConflict) {
				return fmt.Errorf("the same Put with another %s returns version %d, %s; want a conflict", what,
					got.Version, said(err))
			}
		}
	}
	_, err := s.feed(4)
	return err
}

// Without a tombstone a deleted item would begin again at version 1, and cells that missed the deletion would keep the
// old item for ever.
func tombstones(s *subject) error {
	none := func(expect int64) error {
		if _, err := s.put(control.Tenants, "acme", expect, ""); !errors.Is(err, control.ErrNotFound) {
			return fmt.Errorf("a deletion of an absent item returns %s, want ErrNotFound", said(err))
		}
		return nil
	}
	if _, err := s.tables.Get(s.ctx, control.Tenants, "acme"); !errors.Is(err, control.ErrNotFound) {
		return fmt.Errorf("Get of an item that never existed returns %s, want ErrNotFound", said(err))
	}
	if err := none(0); err != nil {
		return err
	}
	for i, body := range []string{`{"a":1}`, ""} {
		if _, err := s.put(control.Tenants, "acme", int64(i), body); err != nil {
			return err
		}
	}
	if err := none(2); err != nil {
		return err
	}
	there, err := s.tables.Get(s.ctx, control.Tenants, "acme")
	if err != nil {
		return err
	}
	if !there.Deleted || there.Body != nil || there.Version != 2 {
		return fmt.Errorf("Get of a deleted item returns %+v, want its tombstone", there)
	}
	items, next, err := s.tables.List(s.ctx, control.Tenants, "", 10)
	if err != nil {
		return err
	}
	if len(items) != 1 || !items[0].Equal(&there) || next != "" {
		return fmt.Errorf("List returns %+v and %q, want the tombstone", items, next)
	}
	if again, err := s.put(control.Tenants, "acme", 2, `{"a":1}`); err != nil || again.Version != 3 || again.Deleted {
		return fmt.Errorf("created again: %+v, %s", again, said(err))
	}
	_, err = s.feed(3)
	return err
}

const writers = 32

// Under concurrency, each version has one writer, and each write that succeeded is a version.
func concurrent(s *subject) error {
	handles := []control.Tables{s.tables}
	if s.Peer != nil {
		handles = append(handles, s.Peer(s.tb, s.tables))
	}
	var wg sync.WaitGroup
	errs := make([]error, writers)
	made := make([]control.Item, writers)
	for w := range writers {
		wg.Go(func() { made[w], errs[w] = write(s.ctx, handles[w%len(handles)], w) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	records, err := s.feed(writers)
	if err != nil {
		return err
	}
	byVersion := make(map[int64]string)
	for _, i := range made {
		if by, twice := byVersion[i.Version]; twice {
			return fmt.Errorf("version %d was made by %s and by %s", i.Version, by, i.Actor)
		}
		byVersion[i.Version] = i.Actor
	}
	chain := control.NewChain(control.Tenants, "acme")
	for _, r := range records {
		if by := byVersion[r.New.Version]; by != r.New.Actor {
			return fmt.Errorf("version %d is by %s, and was returned to %q", r.New.Version, r.New.Actor, by)
		}
		if breaks := chain.AddRecord(r.Audit()); len(breaks) > 0 {
			return breaks[0]
		}
	}
	return s.end(chain, control.Tenants, "acme")
}

// write makes one version, after any number of conflicts.
func write(ctx context.Context, tables control.Tables, w int) (control.Item, error) {
	expect := int64(0)
	for range writers { // each conflict is a version of another writer, and each writer makes one
		c := change(control.Tenants, "acme", expect, fmt.Sprintf(`{"writer":%d}`, w))
		c.Actor = fmt.Sprintf("writer %d", w)
		i, err := tables.Put(ctx, c)
		var lost *control.ConflictError
		if !errors.As(err, &lost) {
			return i, err
		}
		if lost.Have <= expect {
			return i, fmt.Errorf("a conflict at version %d carries version %d", expect, lost.Have)
		}
		expect = lost.Have
	}
	return control.Item{}, fmt.Errorf("writer %d had %d conflicts, more than there are other writers", w, writers)
}

// said returns the text of an error that may be nil.
func said(err error) string { return fmt.Sprint(err) }

// end compares the chain with the table.
func (s *subject) end(chain *control.Chain, t control.Table, key string) error {
	head, err := s.tables.Get(s.ctx, t, key)
	if err != nil {
		return err
	}
	if breaks := chain.End(head.Head()); len(breaks) > 0 {
		return breaks[0]
	}
	return nil
}

// A writer whose clock is wrong by an hour must neither block the others nor take precedence over them.
func clocks(s *subject) error {
	var last *control.Item
	for i, off := range []time.Duration{time.Hour, 0, -time.Hour, 999 * time.Nanosecond, 0} {
		c := change(control.Plans, "pro", int64(i), fmt.Sprintf(`{"a":%d}`, i))
		c.Now = noon.Add(off).In(time.FixedZone("", 3600))
		got, err := s.tables.Put(s.ctx, c)
		if err != nil {
			return err
		}
		if err := s.checkPut(got, c, last); err != nil {
			return err
		}
		if want := noon.Add(off).Truncate(time.Microsecond); got.Version != int64(i)+1 || !got.ChangedAt.Equal(want) {
			return fmt.Errorf("version %d of %s, want version %d of %s", got.Version, got.ChangedAt, i+1, want)
		}
		last = &got
	}
	_, err := s.feed(5)
	return err
}

// Bad input gives a clear error and changes nothing.
func bounds(s *subject) error {
	tests := map[string]func(*control.Change){
		"no table":       func(c *control.Change) { c.Table = "counters" },
		"no key":         func(c *control.Change) { c.Key = "" },
		"a plan's key":   func(c *control.Change) { c.Key = "a/b" },
		"a tenant's key": func(c *control.Change) { c.Table, c.Key = control.Tenants, "a\x00b" },
		"a long key": func(c *control.Change) {
			c.Table, c.Key = control.Tenants,
				strings.Repeat("x", 129)
		},
		"a key that is no text":  func(c *control.Change) { c.Table, c.Key = control.Tenants, "\xff" },
		"a negative version":     func(c *control.Change) { c.Expect = -1 },
		"a large version":        func(c *control.Change) { c.Expect = events.MaxVersion },
		"no actor":               func(c *control.Change) { c.Actor = "" },
		"an actor of two lines":  func(c *control.Change) { c.Actor = "a\nb" },
		"a long actor":           func(c *control.Change) { c.Actor = strings.Repeat("x", 513) },
		"no reason":              func(c *control.Change) { c.Reason = " " },
		"a reason with a bell":   func(c *control.Change) { c.Reason = "a\a" },
		"a reason of no text":    func(c *control.Change) { c.Reason = "\xff" },
		"no time":                func(c *control.Change) { c.Now = time.Time{} },
		"no body":                func(c *control.Change) { c.Body = nil },
		"a body of no object":    func(c *control.Change) { c.Body = []byte(`[]`) },
		"a body of half a text":  func(c *control.Change) { c.Body = []byte(`{"a":`) },
		"a body with a name two": func(c *control.Change) { c.Body = []byte(`{"a":1,"a":2}`) },
		"a delete with a body":   func(c *control.Change) { c.Delete = true },
	}
	for name, edit := range tests {
		c := change(control.Plans, "pro", 0, `{"a":1}`)
		edit(&c)
		if i, err := s.tables.Put(s.ctx, c); !errors.Is(err, control.ErrInvalid) {
			return fmt.Errorf("%s: Put returns version %d, %s; want ErrInvalid", name, i.Version, said(err))
		}
	}
	for _, size := range []int{control.MaxBodyBytes + 1, 3 << 20} {
		if i, err := s.put(control.Plans, "pro", 0, large(size)); !errors.Is(err, control.ErrTooLarge) {
			return fmt.Errorf("a body of %d bytes: Put returns version %d, %s; want ErrTooLarge", size, i.Version,
				said(err))
		}
	}
	for _, key := range []string{"", "a/b"} {
		if _, err := s.tables.Get(s.ctx, control.Plans, key); !errors.Is(err, control.ErrInvalid) {
			return fmt.Errorf("Get of %q returns %s, want ErrInvalid", key, said(err))
		}
	}
	for _, most := range []int{-1, 0, control.MaxPage + 1} {
		if _, _, err := s.tables.List(s.ctx, control.Plans, "", most); !errors.Is(err, control.ErrInvalid) {
			return fmt.Errorf("List of %d items returns %s, want ErrInvalid", most, said(err))
		}
	}
	if _, _, err := s.tables.List(s.ctx, "counters", "", 1); !errors.Is(err, control.ErrInvalid) {
		return fmt.Errorf("List of no table returns %s, want ErrInvalid", said(err))
	}
	if items, next, err := s.tables.List(s.ctx, control.Plans, "", 10); err != nil || len(items) > 0 || next != "" {
		return fmt.Errorf("after Puts that were refused there are %+v, %s", items, said(err))
	}
	if _, err := s.put(control.Plans, "pro", 0, `{"a":1}`); err != nil {
		return err
	}
	_, err := s.feed(1)
	return err
}

// large returns a body of this many bytes.
func large(size int) string {
	return `{"a":"` + strings.Repeat("é", (size-8)/2) + strings.Repeat("x", size%2) + `"}`
}

// Hashes are over bytes: a store that spells a body differently breaks every chain.
func bodies(s *subject) error {
	tests := []struct{ in, want string }{
		{" { \"b\" : [ 1.50 , \"\\u00e9\" ] ,\n\"a\" : null } ", `{"a":null,"b":[1.50,"é"]}`},
		{`{"":"<&>\u2028\u0000\"\\"}`, "{\"\":\"<&>\u2028\\u0000\\\"\\\\\"}"},
		{`{"n":9007199254740993}`, `{"n":9007199254740993}`},
		{`{}`, `{}`},
		{large(control.MaxBodyBytes), large(control.MaxBodyBytes)},
	}
	for i, tt := range tests {
		if _, err := s.put(control.Plans, "pro", int64(i), tt.in); err != nil {
			return err
		}
		there, err := s.tables.Get(s.ctx, control.Plans, "pro")
		if err != nil {
			return err
		}
		if string(there.Body) != tt.want {
			return fmt.Errorf("the body %.80s is %.80s, want %.80s", tt.in, there.Body, tt.want)
		}
	}
	records, err := s.feed(len(tests))
	if err != nil {
		return err
	}
	for i := range records {
		if string(records[i].New.Body) != tests[i].want {
			return fmt.Errorf("the body %.80s is delivered as %.80s, want %.80s", tests[i].in, records[i].New.Body,
				tests[i].want)
		}
		if _, err := events.Encode(records[i].Event()); err != nil {
			return err
		}
		if _, err := events.Encode(records[i].Audit()); err != nil {
			return err
		}
	}
	return nil
}

// A cell looks up keys by hash. If the hash could change, or be deleted with the body, a cell that misses a message
// would accept the old key for ever.
func apiKeys(s *subject) error {
	body := func(hash, pepper string, more string) string {
		return `{"hash":"` + strings.Repeat(hash, 64) + `","pepper":"` + pepper + `","tenant":"acme"` + more + `}`
	}
	for _, bad := range []string{
		`{}`, `{"tenant":"acme"}`, body("A", "p", ""), body("g", "p", ""), body("a", "", ""),
		`{"hash":"ab","pepper":"p"}`,
		`{"HASH":"` + strings.Repeat("a", 64) + `","pepper":"p"}`, `{"hash":1,"pepper":"p"}`,
		`{"hash":null,"pepper":null}`,
	} {
		if _, err := s.put(control.Keys, "k1", 0, bad); !errors.Is(err, control.ErrInvalid) {
			return fmt.Errorf("a key %s: %s, want ErrInvalid", bad, said(err))
		}
	}
	if _, err := s.put(control.Keys, "k1", 0, body("a", "p", "")); err != nil {
		return err
	}
	for _, bad := range []string{body("b", "p", ""), body("a", "q", ""), ""} {
		if _, err := s.put(control.Keys, "k1", 1, bad); !errors.Is(err, control.ErrInvalid) {
			return fmt.Errorf("a key that becomes %q: %s, want ErrInvalid", bad, said(err))
		}
	}
	if _, err := s.put(control.Keys, "k1", 1, body("a", "p", `,"revoked":true`)); err != nil {
		return err
	}
	_, err := s.feed(2)
	return err
}

// Items with similar names are distinct.
func apart(s *subject) error {
	names := []string{"a", "A", "a ", " a", "a/1", "a/", "a.b", "%61", "á", "a\u0301", "😀", "'\"\\", "@settings",
		strings.Repeat("x", 128)}
	tables := []control.Table{control.Tenants, control.Plans, control.Cells, control.Operations}
	n := 0
	for _, t := range tables {
		for _, name := range names {
			if events.CheckKey(t, name) != nil {
				continue
			}
			n++
			if _, err := s.put(t, name, 0, fmt.Sprintf(`{"n":%d}`, n)); err != nil {
				return err
			}
		}
	}
	want := n
	n = 0
	for _, t := range tables {
		for _, name := range names {
			if events.CheckKey(t, name) != nil {
				continue
			}
			n++
			i, err := s.tables.Get(s.ctx, t, name)
			if err != nil {
				return err
			}
			if i.Key != name || i.Table != t || string(i.Body) != fmt.Sprintf(`{"n":%d}`, n) {
				return fmt.Errorf("%s/%q is %s/%q with %s", t, name, i.Table, i.Key, i.Body)
			}
		}
	}
	_, err := s.feed(want)
	return err
}

// all lists a table in pages of at most most items, and calls between after each page.
func (s *subject) all(t control.Table, most int, between func(page int) error) (map[string]control.Item, error) {
	seen := make(map[string]control.Item)
	after := ""
	for page := 1; ; page++ {
		items, next, err := s.tables.List(s.ctx, t, after, most)
		if err != nil {
			return nil, err
		}
		if len(items) > most || page > 1000 {
			return nil, fmt.Errorf("page %d has %d items, want at most %d", page, len(items), most)
		}
		for _, i := range items {
			if _, twice := seen[i.Key]; twice {
				return nil, fmt.Errorf("%q is listed twice", i.Key)
			}
			if err := i.Verify(); err != nil {
				return nil, err
			}
			seen[i.Key] = i
		}
		if next == "" {
			return seen, nil
		}
		if err := between(page); err != nil {
			return nil, err
		}
		after = next
	}
}

const listed = 23

func (s *subject) fill() error {
	for n := range listed {
		if _, err := s.put(control.Tenants, fmt.Sprintf("tenant/%d", n), 0, `{"a":1}`); err != nil {
			return err
		}
	}
	_, err := s.put(control.Cells, "eu-1", 0, `{}`) // in another table
	return err
}

// Reconcile reads whole tables: an item that a list leaves out is never repaired.
func lists(s *subject) error {
	if err := s.fill(); err != nil {
		return err
	}
	for _, most := range []int{1, 7, listed, control.MaxPage} {
		seen, err := s.all(control.Tenants, most, func(int) error { return nil })
		if err != nil {
			return err
		}
		if len(seen) != listed {
			return fmt.Errorf("%d items are listed by pages of %d, want %d", len(seen), most, listed)
		}
	}
	n := 0
	for i, err := range control.All(s.ctx, s.tables, control.Tenants) {
		if err != nil || i.Version != 1 {
			return fmt.Errorf("All: %+v, %s", i, said(err))
		}
		n++
	}
	if n != listed {
		return fmt.Errorf("All has %d items, want %d", n, listed)
	}
	return nil
}

func listsWhileWriting(s *subject) error {
	if err := s.fill(); err != nil {
		return err
	}
	seen, err := s.all(control.Tenants, 4, func(page int) error {
		for n := range listed {
			if n%3 != page%3 {
				continue
			}
			key := fmt.Sprintf("tenant/%d", n)
			i, err := s.tables.Get(s.ctx, control.Tenants, key)
			if err != nil {
				return err
			}
			body := `{"a":2}`
			if !i.Deleted && n%2 == 0 {
				body = ""
			}
			if _, err := s.put(control.Tenants, key, i.Version, body); err != nil {
				return err
			}
		}
		_, err := s.put(control.Tenants, fmt.Sprintf("tenant/1/%d", page), 0, `{}`)
		return err
	})
	if err != nil {
		return err
	}
	for n := range listed {
		if _, ok := seen[fmt.Sprintf("tenant/%d", n)]; !ok {
			return fmt.Errorf("tenant/%d existed all the time but is not listed", n)
		}
	}
	return nil
}

// Random histories of several items are written and compared with a model.
func histories(s *subject) error {
	r := rand.New(rand.NewPCG(7, uint64(s.Steps)))
	type name struct {
		t   control.Table
		key string
	}
	names := []name{{control.Plans, "pro"}, {control.Plans, events.SettingsKey}, {control.Tenants, "pro"},
		{control.Tenants, "a/b"}, {control.Cells, events.SharesKey}}
	heads := make(map[name]*control.Item)
	written := 0
	for step := range s.Steps {
		n := names[r.IntN(len(names))]
		expect, live := int64(0), false
		if h := heads[n]; h != nil {
			expect, live = h.Version, !h.Deleted
		}
		body := ""
		if !live || r.IntN(4) > 0 {
			body = fmt.Sprintf(`{"step":%d}`, step)
		}
		if r.IntN(5) == 0 {
			expect += int64(r.IntN(3)) - 1
		}
		c := change(n.t, n.key, max(expect, 0), body)
		c.Now = noon.Add(time.Duration(r.IntN(7200)-3600) * time.Second)
		checked, err := c.Check()
		if err != nil {
			return err
		}
		want, done, wantErr := control.Next(heads[n], checked)
		got, err := s.tables.Put(s.ctx, c)
		if (err == nil) != (wantErr == nil) || errors.Is(err, control.ErrConflict) != errors.Is(wantErr,
			control.ErrConflict) {
			return fmt.Errorf("step %d: Put of %s/%s expecting version %d returns %s, want %s", step, n.t, n.key,
				c.Expect, said(err), said(wantErr))
		}
		if err != nil {
			continue
		}
		if err := same(got, want); err != nil {
			return err
		}
		if !done {
			written++
		}
		heads[n] = &got
	}
	records, err := s.feed(written)
	if err != nil {
		return err
	}
	chains := make(map[name]*control.Chain)
	for _, r := range records {
		n := name{r.New.Table, r.New.Key}
		if chains[n] == nil {
			chains[n] = control.NewChain(n.t, n.key)
		}
		if breaks := chains[n].AddRecord(r.Audit()); len(breaks) > 0 {
			return breaks[0]
		}
	}
	for n, chain := range chains {
		if err := s.end(chain, n.t, n.key); err != nil {
			return err
		}
	}
	return nil
}

// If a caller has given up, its change must not be made later.
func canceled(s *subject) error {
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	if i, err := s.tables.Put(ctx, change(control.Plans, "pro", 0, `{}`)); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("Put returns version %d, %s; want the context's error", i.Version, said(err))
	}
	if _, err := s.tables.Get(ctx, control.Plans, "pro"); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("Get returns %s, want the context's error", said(err))
	}
	if _, _, err := s.tables.List(ctx, control.Plans, "", 1); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("List returns %s, want the context's error", said(err))
	}
	if _, err := s.tables.Get(s.ctx, control.Plans, "pro"); !errors.Is(err, control.ErrNotFound) {
		return fmt.Errorf("after a canceled Put, Get returns %s, want ErrNotFound", said(err))
	}
	return nil
}
