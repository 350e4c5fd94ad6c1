// Package controltest is the contract that every implementation of control.Tables must keep.
//
// An implementation's own test is a few lines: [Run] with a [Config] that makes fresh tables. [Broken] runs the suite
// without failing a test, and tells what broken tables were caught at.
package controltest

//lint:file-ignore ST1005 the errors begin with names of methods

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
)

// Config plugs an implementation into the suite.
type Config struct {
	// New makes empty tables. Required. It may skip or fail tb, and register clean-ups there.
	New func(tb testing.TB) control.Tables

	// Peer makes another handle on the same tables, as a second process would have. Nil where there can be only one.
	Peer func(tb testing.TB, tables control.Tables) control.Tables

	// Feed returns what the feed delivers from its beginning on, in order for each key, as soon as there are n
	// deliveries, or when ctx ends. Required.
	Feed func(ctx context.Context, tables control.Tables, n int) ([]control.Delivery, error)

	Parallel bool // runs the cases side by side, for tables that wait much
	Steps    int  // of each random history; 0 means 60
}

// noon is a time of no meaning.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 123456000, time.UTC)

// timeout bounds one case, for what waits for a delivery that never comes.
const timeout = 2 * time.Minute

// guarantee is a case: it returns what does not hold.
type guarantee struct {
	name  string
	check func(*subject) error
}

// subject is the tables of one case.
type subject struct {
	Config
	tb     testing.TB
	ctx    context.Context //nolint:containedctx // that of one test case, which is all this is
	tables control.Tables
}

func guarantees() []guarantee {
	return []guarantee{
		{"versions are gapless from 1 on, through deletes", gapless},
		{"a conflict carries the version that is there, and writes nothing", conflict},
		{"a repeated Put makes one version", repeated},
		{"a delete leaves a tombstone that stays", tombstones},
		{"32 writers on one key make 32 versions", concurrent},
		{"versions decide, not clocks", clocks},
		{"what is out of bounds is refused, and writes nothing", bounds},
		{"a body is kept in canonical form, byte for byte", bodies},
		{"an API key keeps its hash, and is never deleted", apiKeys},
		{"keys are kept apart, and tables", apart},
		{"a list holds each item once", lists},
		{"a list holds each item once while others write", listsWhileWriting},
		{"histories keep their chain, and the feed tells all of them in order", histories},
		{"a Put whose time is over writes nothing", canceled},
	}
}

// Run runs the whole contract, each case on fresh tables.
func Run(t *testing.T, c Config) {
	for _, g := range guarantees() {
		t.Run(g.name, func(t *testing.T) {
			if c.Parallel {
				t.Parallel()
			}
			if err := run(t, c, g); err != nil {
				t.Error(err)
			}
		})
	}
}

// Broken returns the names of the cases that do not hold, with what was found.
func Broken(t *testing.T, c Config) map[string]error {
	found := make(map[string]error)
	for _, g := range guarantees() {
		if err := run(t, c, g); err != nil {
			found[g.name] = err
		}
	}
	return found
}

func run(t *testing.T, c Config, g guarantee) error {
	if c.Steps == 0 {
		c.Steps = 60
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return g.check(&subject{Config: c, tb: t, ctx: ctx, tables: c.New(t)})
}

// put writes a body by a writer of no meaning.
func (s *subject) put(t control.Table, key string, expect int64, body string) (control.Item, error) {
	return s.tables.Put(s.ctx, change(t, key, expect, body))
}

// change is one with a body, or a delete where that is empty.
func change(t control.Table, key string, expect int64, body string) control.Change {
	return control.Change{
		Table: t, Key: key, Expect: expect, Body: []byte(body), Delete: body == "", Actor: "arn:aws:iam::1:user/jo",
		Reason: fmt.Sprintf("after %d", expect), Now: noon,
	}
}

// is compares the item with what a change should have made of the version before, and with what Get returns.
func (s *subject) is(got control.Item, c control.Change, before *control.Item) error {
	c, err := c.Check()
	if err != nil {
		return err
	}
	want, _, err := control.Next(before, c)
	if err != nil {
		return err
	}
	if err := same(got, want); err != nil {
		return fmt.Errorf("Put: %w", err)
	}
	there, err := s.tables.Get(s.ctx, c.Table, c.Key)
	if err != nil {
		return err
	}
	if err := same(there, want); err != nil {
		return fmt.Errorf("Get after Put: %w", err)
	}
	return nil
}

func same(got, want control.Item) error {
	if err := got.Verify(); err != nil {
		return err
	}
	if !got.Equal(&want) {
		return fmt.Errorf("got  %+v\nwant %+v", got, want)
	}
	return nil
}

// feed returns the records so far, of which there must be n, twice the same.
func (s *subject) feed(n int) ([]control.Record, error) {
	first, err := s.Feed(s.ctx, s.tables, n)
	if err != nil {
		return nil, err
	}
	again, err := s.Feed(s.ctx, s.tables, n)
	if err != nil {
		return nil, err
	}
	if len(first) != n || len(again) != n {
		return nil, fmt.Errorf("the feed has %d records, and from the beginning again %d, want %d", len(first),
			len(again), n)
	}
	records := make([]control.Record, n)
	sequences := make(map[string]bool)
	for i, d := range first {
		switch {
		case d.Err != nil:
			return nil, d.Err
		case d.Record == nil || d.Sequence == "" || d.Record.Sequence != d.Sequence:
			return nil, fmt.Errorf("delivery %+v of the feed: want a record with its sequence", d)
		case again[i].Sequence != d.Sequence || again[i].Record == nil || !again[i].Record.New.Equal(&d.Record.New):
			return nil, fmt.Errorf("delivery %d is %+v, and from the beginning again %+v", i, d, again[i])
		}
		if err := d.Record.Check(); err != nil {
			return nil, err
		}
		name := string(d.Record.New.Table) + "/" + d.Sequence
		if sequences[name] {
			return nil, fmt.Errorf("the sequence %s comes twice", name)
		}
		sequences[name] = true
		records[i] = *d.Record
	}
	return records, nil
}
