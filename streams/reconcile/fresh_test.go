package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
	"github.com/sluicelimits/sluice/streams/reconcile"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

// orderedCell is a cell whose table counts what is written, and records documents that are written too early.
type orderedCell struct {
	*world
	grace                   time.Duration
	placed, shares, tenants int
	tooEarly                []string
	refused                 string // the id of a document that the table refuses
}

// Commit implements [table.Store].
func (o *orderedCell) Commit(ctx context.Context, step table.Step) error {
	refused := func(d table.Document) bool { return o.refused != "" && d.ID == o.refused }
	if slices.ContainsFunc(step.Documents, refused) {
		return fmt.Errorf("commit: %w", table.ErrInvalid)
	}
	if err := o.world.Commit(ctx, step); err != nil {
		return err
	}
	for i := range step.Documents {
		switch d := &step.Documents[i]; d.Kind {
		case table.KindPlacement:
			if o.placed++; o.shares > 0 {
				o.tooEarly = append(o.tooEarly, "a placement after the shares")
			}
		case table.KindShares:
			o.shares++
		case "tenant":
			if o.tenants++; o.shares == 0 {
				o.tooEarly = append(o.tooEarly, "a tenant before the shares")
			}
		}
	}
	return nil
}

// placementBody returns the placement of a tenant that every cell serves.
func placementBody(tenant string) string {
	return fmt.Sprintf(`{"generations":[{"epoch":0,"from":1}],"tenant":%q,"version":2}`, tenant)
}

// newEmptyCell returns a world with shares, placements and tenants, and an empty cell.
func newEmptyCell(t *testing.T, placements, tenants int) *orderedCell {
	w := newWorld(t)
	for i := range placements {
		tenant := fmt.Sprintf("t%06d", i)
		w.put(control.Cells, shares.PlacementKey(tenant), placementBody(tenant))
		if i == placements/2 {
			w.put(control.Cells, events.SharesKey, `{"version":2}`)
		}
	}
	w.put(control.Cells, "eu-1", `{"id":"eu-1"}`) // cells do not need it
	for i := range tenants {
		id := fmt.Sprintf("t%06d", i)
		w.put(control.Tenants, id, tenantBody(id, 1))
	}
	return &orderedCell{world: w}
}

// runToEnd runs reconcile until it is finished, each run for at most the time d.
func (o *orderedCell) runToEnd(d time.Duration) (runs int) {
	o.t.Helper()
	for runs = 1; ; runs++ {
		ctx, cancel := context.WithTimeout(o.t.Context(), d)
		r := reconcile.New(reconcile.Config{Tables: tables{o.world}, Store: o, Meter: &o.meter,
			Log: slog.New(slog.NewTextHandler(&o.log, nil)),
			Now: func() time.Time { return o.now }, Grace: o.grace})
		result, err := r.Run(ctx)
		cancel()
		switch {
		case err != nil:
			o.t.Fatal(err)
		case result.Finished:
			return runs
		case runs > 100:
			o.t.Fatal("no run has finished after 100 runs")
		}
	}
}

// Guarantees that a new cell gets its shares before any tenant, and before its shares the placement of every tenant:
// otherwise it would grant a whole limit, or a share of it to a tenant that is pinned elsewhere. This holds also if
// there is so much that it takes many runs, each of which is interrupted.
func TestFreshCell(t *testing.T) {
	for _, tt := range []struct {
		name                string
		placements, tenants int
		run                 time.Duration
		leastRuns           int
	}{
		{"few", 5, 20, time.Hour, 1},
		{"many", 1500, 1500, time.Hour, 1},
		{"many in many runs", 1500, 700, 20 * time.Second, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newEmptyCell(t, tt.placements, tt.tenants)
				o.onCell = func(refs []table.Ref) error {
					if len(refs) > 1 {
						<-time.After(time.Second) // each page takes a second to read and write
					}
					return nil
				}
				if runs := o.runToEnd(tt.run); runs < tt.leastRuns {
					t.Errorf("got %d runs, want at least %d: no run was interrupted", runs, tt.leastRuns)
				}
				if len(o.tooEarly) > 0 {
					t.Errorf("%d documents were written in the wrong order; the first: %s", len(o.tooEarly),
						o.tooEarly[0])
				}
				if o.placed != tt.placements || o.shares != 1 || o.tenants != tt.tenants {
					t.Errorf("got %d placements, %d shares and %d tenants, want %d, 1 and %d", o.placed, o.shares,
						o.tenants, tt.placements, tt.tenants)
				}
				o.onCell = nil
				o.wantRepaired()
			})
		})
	}
}

// Guarantees that a cell does not get its first shares while it may lack a placement, and gets them as soon as it has
// all placements. A cell that has shares gets newer ones in any case.
func TestFirstSharesWaitForEveryPlacement(t *testing.T) {
	for size, placements := range map[string]int{"few": 5, "many": 1500} {
		t.Run(size, func(t *testing.T) {
			o := newEmptyCell(t, placements, 3)
			missing := shares.PlacementKey("t000003")
			o.unreadable[name{control.Cells, missing}] = true
			o.runToEnd(time.Hour)
			if o.shares != 0 {
				t.Fatal("the cell has shares although it lacks a placement, want none")
			}
			clear(o.unreadable)
			o.runToEnd(time.Hour)
			o.wantRepaired()
			if o.shares != 1 {
				t.Fatalf("the shares were written %d times, want once", o.shares)
			}
			o.put(control.Cells, events.SharesKey, `{"version":2,"done":["x"]}`)
			o.unreadable[name{control.Cells, missing}] = true
			o.runToEnd(time.Hour)
			if o.shares != 2 {
				t.Errorf("the shares were written %d times, want twice: newer ones replace those that the cell has",
					o.shares)
			}
		})
	}
}

// Guarantees that a cell does not get its first shares while its table refuses a placement, or while a placement is not
// as Sluice wrote it.
func TestFirstSharesWaitForSpoiltPlacements(t *testing.T) {
	key := shares.PlacementKey("t000003")
	for what, spoil := range map[string]func(o *orderedCell) (mend func()){
		"refused": func(o *orderedCell) func() {
			o.refused = key
			return func() { o.refused = "" }
		},
		"altered": func(o *orderedCell) func() {
			was := o.items[name{control.Cells, key}]
			altered := was
			altered.Body = []byte(strings.Replace(placementBody("t000003"), `"from":1`, `"from":2`, 1))
			o.items[name{control.Cells, key}] = altered
			return func() { o.items[name{control.Cells, key}] = was }
		},
	} {
		t.Run(what, func(t *testing.T) {
			o := newEmptyCell(t, 5, 3)
			mend := spoil(o)
			o.runToEnd(time.Hour)
			if o.shares != 0 || o.placed != 4 {
				t.Fatalf("got %d shares and %d placements, want none and 4", o.shares, o.placed)
			}
			mend()
			o.runToEnd(time.Hour)
			if o.wantRepaired(); o.shares != 1 {
				t.Errorf("the shares were written %d times, want once", o.shares)
			}
		})
	}
}

// Guarantees that an unreadable item that no cell needs does not keep a cell from its first shares, and is reported
// with its key. A cell can make its own acknowledgement unreadable; otherwise it would keep others from joining.
func TestSpoiltAcknowledgement(t *testing.T) {
	for size, placements := range map[string]int{"few": 5, "many": 1500} {
		t.Run(size, func(t *testing.T) {
			o := newEmptyCell(t, placements, 3)
			o.put(control.Cells, shares.AckKey("us-1"), `{"cell":"us-1"}`)
			o.unreadable[name{control.Cells, shares.AckKey("us-1")}] = true
			o.runToEnd(time.Hour)
			if o.wantRepaired(); o.shares != 1 || o.tenants != 3 {
				t.Errorf("got %d shares and %d tenants, want 1 and 3", o.shares, o.tenants)
			}
			if o.meter.Of("drift_unreadable") != 1 || !strings.Contains(o.log.String(), shares.AckKey("us-1")) {
				t.Errorf("got drift_unreadable %d, want 1, and a log that names the acknowledgement\n%s",
					o.meter.Of("drift_unreadable"), o.log.String())
			}
		})
	}
}

// Guarantees that a cell does not get its first shares while a placement is so new that it counts as on its way, and
// gets them after the grace.
func TestFirstSharesWaitForPlacementsUnderWay(t *testing.T) {
	soak.SkipUnderRace(t)
	for size, placements := range map[string]int{"few": 5, "many": 1500} {
		t.Run(size, func(t *testing.T) {
			waited := 0    // tries in which the cell got no shares in the first run
			for range 12 { // the differences are handled in a random order
				o := newEmptyCell(t, placements, 0)
				o.grace = 2 * time.Minute
				o.now = streamstest.Written.Add(o.grace - time.Second)
				o.onCell = func(refs []table.Ref) error {
					if len(refs) == 1 && refs[0].Kind == table.KindShares {
						o.now = o.now.Add(2 * time.Second)
					}
					return nil
				}
				o.runToEnd(time.Hour)
				if o.shares > 0 && o.placed < placements {
					t.Fatalf("the cell has shares, but only %d placements of %d", o.placed, placements)
				}
				if o.shares == 0 {
					waited++
				}
				o.runToEnd(time.Hour)
				if o.wantRepaired(); o.shares != 1 || o.placed != placements {
					t.Fatalf("got %d shares and %d placements, want 1 and %d", o.shares, o.placed, placements)
				}
			}
			if waited == 0 {
				t.Error("the shares never waited for a placement, want that they do at least once")
			}
		})
	}
}

// Guarantees that unreadable shares and placements never replace those of a cell, and are reported by each run. Later
// readable ones reach the cell.
func TestUnreadableSharesAreLeft(t *testing.T) {
	for size, placements := range map[string]int{"few": 5, "many": 1500} {
		t.Run(size, func(t *testing.T) {
			o := newEmptyCell(t, 5, 0)
			o.runToEnd(time.Hour)
			had := map[table.Ref]int64{} // the versions that the cell must keep; 0 for none
			keys := []string{events.SharesKey, shares.PlacementKey("t000001"), shares.PlacementKey("t000002"),
				shares.PlacementKey("none")}
			for i, bad := range []string{`{"version":3}`, `{"version":3,"tenant":"t000001"}`, placementBody("t000001"),
				`{"version":3,"tenant":"none"}`} {
				o.put(control.Cells, keys[i], bad)
				ref, _ := table.RefOf(control.Cells, keys[i])
				if had[ref] = 1; i == 3 {
					had[ref] = 0
				}
			}
			for i := range placements { // so that more than one page differs, or less
				tenant := fmt.Sprintf("more%06d", i)
				o.put(control.Cells, shares.PlacementKey(tenant), placementBody(tenant))
			}
			for range 2 {
				o.runToEnd(time.Hour)
				for ref, version := range had {
					got, err := o.Memory.Get(t.Context(), ref)
					if err != nil || got[0].Version != version || got[0].Deleted {
						t.Fatalf("%+v: got %+v, error %v; want version %d", ref, got, err, version)
					}
				}
			}
			if n := o.meter.Of("drift_unreadable"); n != 8 {
				t.Errorf("got drift_unreadable %d after two runs, want 8: 4 in each", n)
			}
			for i, good := range []string{`{"version":2,"done":["x"]}`, placementBody("t000001"),
				placementBody("t000002"), placementBody("none")} {
				o.put(control.Cells, keys[i], good)
			}
			o.runToEnd(time.Hour)
			o.wantRepaired()
		})
	}
}

// Guarantees that a cell without shares gets them although a placement cannot be read. The cell first gets a tombstone
// of that placement, so it serves all tenants but one.
func TestFirstSharesWithAnUnreadablePlacement(t *testing.T) {
	for size, placements := range map[string]int{"few": 5, "many": 1500} {
		for _, hadShares := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, unreadable shares before %t", size, hadShares), func(t *testing.T) {
				o := newEmptyCell(t, placements, 3)
				bad := shares.PlacementKey("t000003")
				o.put(control.Cells, bad, `{"version":3,"tenant":"t000003"}`)
				if hadShares { // a tombstone: an earlier version could not be read
					o.put(control.Cells, events.SharesKey, `{"version":2,"done":["x"]}`)
					if _, err := o.Memory.Apply(t.Context(),
						[]table.Document{{Ref: table.Ref{Kind: table.KindShares,
							ID: table.SharesID},
							Version: 1, Deleted: true}}); err != nil {
						t.Fatal(err)
					}
				}
				o.runToEnd(time.Hour)
				if len(o.tooEarly) > 0 || o.placed != placements || o.shares != 1 || o.tenants != 3 {
					t.Fatalf("got %d placements, %d shares, %d tenants, written in the wrong order: %q; want %d, 1, "+
						"3 and none\n%s", o.placed, o.shares, o.tenants, o.tooEarly, placements, o.log.String())
				}
				got, err := o.Memory.Get(t.Context(), table.Ref{Kind: table.KindPlacement, ID: bad})
				if err != nil || got[0].Version != 2 || !got[0].Deleted {
					t.Errorf("the placement in the cell: got %+v, error %v; want a tombstone of version 2", got, err)
				}
				if n := o.meter.Of("drift_unreadable"); n == 0 {
					t.Error("got drift_unreadable 0, want that the placement is reported")
				}
				o.put(control.Cells, bad, placementBody("t000003"))
				o.runToEnd(time.Hour)
				o.wantRepaired()
			})
		}
	}
}

// Guarantees that a table of cells that does not answer leaves the cell without tenants.
func TestCellsAreAway(t *testing.T) {
	o := newEmptyCell(t, 5, 5)
	o.onList = func(table control.Table, _ string) error {
		if table == control.Cells {
			return errAway
		}
		return nil
	}
	r := reconcile.New(reconcile.Config{Tables: tables{o.world}, Store: o, Meter: &o.meter,
		Log: slog.New(slog.NewTextHandler(&o.log, nil)),
		Now: func() time.Time { return o.now }})
	if _, err := r.Run(t.Context()); !errors.Is(err, errAway) || !strings.Contains(err.Error(), "cells") {
		t.Errorf("got the error %v, want errAway and the name of the table cells", err)
	}
	if o.tenants != 0 {
		t.Errorf("the cell got %d tenants, want none", o.tenants)
	}
}
