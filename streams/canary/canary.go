// Package canary measures how long it takes from the write of a change in the control tables until cells enforce it. It
// makes a change of its own, which is propagated like the change of a plan. The goal is 5 s at p99.
//
// A run writes the next version of the canary (events.CanaryKey). Then it watches each cell as an authorizer does,
// which polls the change log once per second. A cell that does not have the change in time counts as missed, and its
// propagation time as the whole wait, because an outage must not make the distribution look better.
//
// The canary's changes are recorded like others: each run makes a version of the item, and an object in the archive.
//
// Metrics, for each cell: propagation_seconds (from the write to when a reader of the cell enforces the change; written
// by each run, so missing data means that no run took place), canary_applied_seconds (to when the change is in the
// cell's table), canary_missed.
package canary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// Goal is the time within which 99 % of changes must be enforced.
const Goal = 5 * time.Second

// lookEvery is the interval at which a cell is read.
const lookEvery = 50 * time.Millisecond

// tries is how often the write of the canary is tried if another canary writes at the same time.
const tries = 3

// Tables is the part of control.Tables that the canary uses.
type Tables interface {
	Get(ctx context.Context, t control.Table, key string) (control.Item, error)
	Put(ctx context.Context, c control.Change) (control.Item, error)
}

// Cell is a cell that is watched.
type Cell struct {
	ID    string
	Table table.Table
	Meter delivery.Meter // of this cell
}

// Config sets up a Canary. All fields but the last three are required.
type Config struct {
	Tables Tables
	Cells  []Cell
	Actor  string // who writes, for the audit trail: the function's own identity

	Log  *slog.Logger     // default slog.Default()
	Now  func() time.Time // default time.Now
	Wait time.Duration    // for all cells together, 1 s or more; 0 means 30 s
}

// Seen says how the change arrived in a cell.
type Seen struct {
	Cell     string        `json:"cell"`
	Applied  time.Duration `json:"applied_ns"`  // from the write to when it was in the cell's table; 0 if it was not
	Enforced time.Duration `json:"enforced_ns"` // from the write to when a reader enforced it; 0 if none did
	Missed   bool          `json:"missed"`
	// Err is the error of the last read if the change was missed. It is context.Canceled if the run was cancelled.
	Err error `json:"-"`
}

// Canary measures propagation. Make it with New.
type Canary struct{ c Config }

// New makes a canary.
func New(c Config) *Canary {
	if c.Wait == 0 {
		c.Wait = 30 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Canary{c}
}

// Run writes a change, watches it, and returns how it arrived in each cell, in the order of Config.Cells. It returns an
// error if the change could not be written.
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

// write writes the next version of the canary. began is the time before the write was sent, because an operator's wait
// begins then, too.
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
	return 0, began, fmt.Errorf("canary: other writers change it at the same time: %w", control.ErrConflict)
}

// watcher reads one cell.
type watcher struct {
	*Canary
	cell   *Cell
	reader *config.Reader
	entry  int64 // entry of the change log that has the change; 0 if the cell's table does not have the change yet
}

func (c *Canary) watcher(cell *Cell) (*watcher, error) {
	w := &watcher{Canary: c, cell: cell}
	var err error
	w.reader, err = config.New(config.Config{
		Table: cell.Table, Log: slog.New(slog.DiscardHandler), Timeout: 2 * time.Second, FirstTimeout: 10 * time.Second,
		MaxDocuments: 16, MaxAbsent: 16,
	})
	if err != nil {
		return nil, fmt.Errorf("canary: cell %s: %w", cell.ID, err)
	}
	return w, nil
}

// load makes the reader read the current end of the log, so that it sees later entries. A failure is only logged,
// because a later read may succeed.
func (w *watcher) load(ctx context.Context) {
	if err := w.reader.Load(ctx, w.c.Now()); err != nil && !errors.Is(err, table.ErrEmpty) {
		w.c.Log.WarnContext(ctx, "the canary cannot read the cell at its start", "cell", w.cell.ID, "error", err)
	}
}

// watch waits until a reader of the cell has the version, or ctx ends.
func (w *watcher) watch(ctx context.Context, version int64, began time.Time) Seen {
	seen := Seen{Cell: w.cell.ID}
	ticker := time.NewTicker(lookEvery)
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
			if errors.Is(ctx.Err(), context.Canceled) { // the caller gave up, which says nothing about the cell
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

// look reads the cell as a request does: the reader polls the log if a second has passed. It reports whether the reader
// enforces the version, which means that it has all entries up to the one with the change.
func (w *watcher) look(ctx context.Context, version int64) (bool, error) {
	if _, join := w.reader.Begin(ctx, w.c.Now()); join != nil {
		join()
	}
	if w.entry == 0 {
		d, err := w.cell.Table.Get(ctx, table.Ref{Kind: table.KindCanary, ID: table.CanaryID})
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
