// Package controltest tests the contract of control.Tables.
//
// The test of an implementation calls [Run] with a [Config] that makes new tables. [Broken] runs the cases without
// failing a test, and returns those that fail for deliberately broken tables.
package controltest

//lint:file-ignore ST1005 the errors begin with names of methods

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
)

// Config connects an implementation to the cases.
type Config struct {
	// New makes empty tables. It may skip or fail tb, and register clean-ups with it. Required.
	New func(tb testing.TB) control.Tables

	// Peer makes another handle on the same tables, as a second process would have. nil if there can be only one
	// handle.
	Peer func(tb testing.TB, tables control.Tables) control.Tables

	// Feed returns what the feed delivers from its beginning, in order for each key, as soon as there are n deliveries
	// or when ctx ends. Required.
	Feed func(ctx context.Context, tables control.Tables, n int) ([]control.Delivery, error)

	Parallel bool // run the cases in parallel, for tables whose calls mostly wait
	Steps    int  // length of each random history; 0 selects 60
}

// noon is an arbitrary time.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 123456000, time.UTC)

// timeout bounds one case, so that it fails if a delivery never comes.
const timeout = 2 * time.Minute

// guarantee is one case. check returns an error if the guarantee does not hold.
type guarantee struct {
	name  string
	check func(*subject) error
}

// subject holds the tables of one case.
type subject struct {
	Config
	tb     testing.TB
	ctx    context.Context //nolint:containedctx // a subject lives as long as one test case
	tables control.Tables
}

func guarantees() []guarantee {
	return []guarantee{
		{"versions begin at 1 and have no gaps, including deletions", gapless},
		{"a conflict names the present version, and writes nothing", conflict},
		{"a repeated Put makes one version", repeated},
		{"a deletion leaves a permanent tombstone", tombstones},
		{"32 writers on one key make 32 versions", concurrent},
		{"versions decide, not clocks", clocks},
		{"values out of bounds are refused, and nothing is written", bounds},
		{"a body is stored in canonical form, byte for byte", bodies},
		{"an API key keeps its hash, and is never deleted", apiKeys},
		{"different keys and tables are separate", apart},
		{"a list holds each item once", lists},
		{"a list holds each item once while others write", listsWhileWriting},
		{"histories keep their chain, and the feed delivers all of them in order", histories},
		{"a Put with a canceled context writes nothing", canceled},
	}
}

// Run runs all cases, each on new tables.
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

// Broken returns the names of the cases that fail, with their errors.
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

// put writes a body as an arbitrary writer.
func (s *subject) put(t control.Table, key string, expect int64, body string) (control.Item, error) {
	return s.tables.Put(s.ctx, change(t, key, expect, body))
}

// change returns a change to the body, or a deletion if body is "".
func change(t control.Table, key string, expect int64, body string) control.Change {
	return control.Change{
		Table: t, Key: key, Expect: expect, Body: []byte(body), Delete: body == "", Actor: "arn:aws:iam::1:user/jo",
		Reason: fmt.Sprintf("after %d", expect), Now: noon,
	}
}

// checkPut compares the item that a Put returned, and the item that Get returns, with the version that the change
// should have made.
func (s *subject) checkPut(got control.Item, c control.Change, before *control.Item) error {
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

// same returns an error unless got is valid and equals want.
func same(got, want control.Item) error {
	if err := got.Verify(); err != nil {
		return err
	}
	if !got.Equal(&want) {
		return fmt.Errorf("got  %+v\nwant %+v", got, want)
	}
	return nil
}

// feed reads the feed twice, and returns its records. There must be n records, equal both times.
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
		return nil, fmt.Errorf("the feed has %d records, on a second read %d, want %d", len(first),
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
			return nil, fmt.Errorf("delivery %d is %+v, on a second read %+v", i, d, again[i])
		}
		if err := d.Record.Check(); err != nil {
			return nil, err
		}
		name := string(d.Record.New.Table) + "/" + d.Sequence
		if sequences[name] {
			return nil, fmt.Errorf("two records have the sequence %s", name)
		}
		sequences[name] = true
		records[i] = *d.Record
	}
	return records, nil
}
