// Package canary measures how long a change takes from its write in the control tables until cells enforce it, with a
// change of its own that goes the way of a plan's: the goal is 5 s at p99.
//
// A run writes the next version of the canary (events.CanaryKey), and then watches each cell as an authorizer does,
// which polls the change log once per second. A cell that does not have the change within the time is counted as
// missed, with that time: an outage must not make the distribution look better.
//
// Its changes are on record as others are: each run is a version of the item, and an object in the archive.
//
// Metrics, for each cell: propagation_seconds (from the write to when a reader of the cell enforces it; told in each
// run, so its silence means that none runs), canary_applied_seconds (to when it is in the cell's table), canary_missed.
package canary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/celldoc"
)

// Goal is how long a change may take at p99.
const Goal = 5 * time.Second

// look is how often a cell is looked at.
const look = 50 * time.Millisecond

// tries is how often the canary is written, where another one writes at the same time.
const tries = 3

// Tables is the part of control.Tables that is used.
type Tables interface {
	Get(ctx context.Context, t control.Table, key string) (control.Item, error)
	Put(ctx context.Context, c control.Change) (control.Item, error)
}

// Meter counts; a *telemetry.Meter is one.
type Meter interface {
	Count(name string, n int64)
	Took(name string, d time.Duration)
}

// Cell is one that is watched.
type Cell struct {
	ID    string
	Table cellconfig.Table
	Meter Meter // of this cell
}

// Config sets up a Canary. All but the last three are required.
type Config struct {
	Tables Tables
	Cells  []Cell
	Actor  string // who writes, in the audit trail: the function's own identity

	Log  *slog.Logger     // default slog.Default()
	Now  func() time.Time // default time.Now
	Wait time.Duration    // for all cells together, 1 s or more; 0 is 30 s
}

// Seen is what became of the canary in a cell.
type Seen struct {
	Cell     string        `json:"cell"`
	Applied  time.Duration `json:"applied_ns"`  // from the write to when the cell's table had it; 0 where it had not
	Enforced time.Duration `json:"enforced_ns"` // from the write to when a reader had it; 0 where none had
	Missed   bool          `json:"missed"`
	// of the last look, where it was missed; context.Canceled where the run was called off
	Err error `json:"-"`
}

// Canary measures. Make it with New.
type Canary struct{ c Config }

// New makes a canary. The error names the field.
func New(c Config) (*Canary, error) {
	if c.Wait == 0 {
		c.Wait = 30 * time.Second
	}
	switch {
	case c.Tables == nil:
		return nil, errors.New("canary: Tables is missing")
	case len(c.Cells) == 0:
		return nil, errors.New("canary: Cells is missing")
	case events.CheckText(c.Actor) != nil:
		return nil, fmt.Errorf("canary: Actor: %w", events.CheckText(c.Actor))
	case c.Wait < time.Second:
		return nil, fmt.Errorf("canary: Wait %s is below 1s", c.Wait)
	}
	for i, cell := range c.Cells {
		if cell.ID == "" || cell.Table == nil || cell.Meter == nil ||
			slices.ContainsFunc(c.Cells[:i], func(o Cell) bool { return o.ID == cell.ID }) {
			return nil, fmt.Errorf("canary: Cells[%d] has no id of its own, no Table or no Meter", i)
		}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Canary{c}, nil
}

// Run writes a change and watches it, and returns what became of it in each cell, in the order of Config.Cells. The
// error is for a change that could not be written.
func (c *Canary) Run(ctx context.Context) ([]Seen, error) {
	readers := make([]*watcher, len(c.c.Cells))
	var all sync.WaitGroup
	for i := range c.c.Cells {
		w, err := c.watcher(&c.c.Cells[i])
		if err != nil {
			return nil, err
		}
		readers[i] = w
		all.Go(func() { w.load(ctx) })
	}
	all.Wait()
	version, began, err := c.write(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.c.Wait)
	defer cancel()
	seen := make([]Seen, len(readers))
	for i, w := range readers {
		all.Go(func() { seen[i] = w.watch(ctx, version, began) })
	}
	all.Wait()
	return seen, nil
}

// write makes the next version of the canary. It began before the write was sent: who writes waits for that, too.
func (c *Canary) write(ctx context.Context) (version int64, began time.Time, err error) {
	for range tries {
		before, err := c.c.Tables.Get(ctx, control.Plans, events.CanaryKey)
		if err != nil && !errors.Is(err, control.ErrNotFound) {
			return 0, began, fmt.Errorf("canary: %w", err)
		}
		began = c.c.Now()
		body, err := json.Marshal(map[string]string{"at": began.UTC().Format(control.TimeLayout)})
		if err != nil {
			return 0, began, err
		}
		next, err := c.c.Tables.Put(ctx, control.Change{
			Table: control.Plans, Key: events.CanaryKey, Expect: before.Version, Body: body, Actor: c.c.Actor,
			Reason: "canary: how long a change takes", Now: began,
		})
		if err == nil {
			return next.Version, began, nil
		}
		if !errors.Is(err, control.ErrConflict) {
			return 0, began, fmt.Errorf("canary: %w", err)
		}
	}
	return 0, began, fmt.Errorf("canary: others write it all the time: %w", control.ErrConflict)
}

// watcher is a reader of one cell.
type watcher struct {
	*Canary
	cell   *Cell
	reader *cellconfig.Reader
	entry  int64 // of the change log, with which the change came; 0 where the table does not have it
}

func (c *Canary) watcher(cell *Cell) (*watcher, error) {
	w := &watcher{Canary: c, cell: cell}
	var err error
	w.reader, err = cellconfig.New(cellconfig.Config{
		Table: cell.Table, Log: slog.New(slog.DiscardHandler), Timeout: 2 * time.Second, FirstTimeout: 10 * time.Second,
		MaxDocuments: 16, MaxAbsent: 16,
	})
	if err != nil {
		return nil, fmt.Errorf("canary: cell %s: %w", cell.ID, err)
	}
	return w, nil
}

// load has the reader know where the log is, so that it is told what comes. What cannot be loaded now may be in time.
func (w *watcher) load(ctx context.Context) {
	if err := w.reader.Load(ctx, w.c.Now()); err != nil && !errors.Is(err, cellconfig.ErrEmpty) {
		w.c.Log.WarnContext(ctx, "the canary cannot read a cell yet", "cell", w.cell.ID, "error", err)
	}
}

// watch waits until a reader of the cell has the version, or ctx ends.
func (w *watcher) watch(ctx context.Context, version int64, began time.Time) Seen {
	seen := Seen{Cell: w.cell.ID}
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		enforced, err := w.look(ctx, version)
		if w.entry != 0 && seen.Applied == 0 {
			seen.Applied = max(w.c.Now().Sub(began), 1)
			w.cell.Meter.Took("canary_applied_seconds", seen.Applied)
		}
		if enforced {
			seen.Enforced = max(w.c.Now().Sub(began), 1)
			w.cell.Meter.Count("canary_missed", 0)
			w.cell.Meter.Took("propagation_seconds", seen.Enforced)
			return seen
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) { // nobody waits any more: it says nothing of the cell
				seen.Err = ctx.Err()
				return seen
			}
			seen.Missed, seen.Err = true, err
			w.cell.Meter.Count("canary_missed", 1)
			w.cell.Meter.Took("propagation_seconds", w.c.Wait)
			w.c.Log.ErrorContext(ctx, "a change was not enforced in time", "cell", w.cell.ID, "version", version,
				"applied", seen.Applied != 0,
				"waited", w.c.Wait, "error", err)
			return seen
		case <-ticker.C:
		}
	}
}

// look does what a request does, which has the reader poll the log where a second has gone by, and reports whether the
// reader has the version in force: all up to the log's entry with which the table got it.
func (w *watcher) look(ctx context.Context, version int64) (bool, error) {
	if _, join := w.reader.Begin(ctx, w.c.Now()); join != nil {
		join()
	}
	if w.entry == 0 {
		d, err := w.cell.Table.Get(ctx, cellconfig.Ref{Kind: celldoc.KindCanary, ID: celldoc.CanaryID})
		if err != nil {
			return false, err
		}
		if len(d) != 1 || d[0].Version < version {
			return false, nil
		}
		w.entry = d[0].Seq
	}
	s := w.reader.Stats(w.c.Now())
	return s.Loaded && s.Seq >= w.entry, nil
}
