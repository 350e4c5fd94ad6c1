package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/celldoc"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/streams/reconcile"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

// ordered is a cell's table that notices documents that are written too early.
type ordered struct {
	*world
	grace                   time.Duration
	placed, shares, tenants int
	wrong                   []string
}

// Commit implements [cellconfig.Store].
func (o *ordered) Commit(ctx context.Context, step cellconfig.Step) error {
	if err := o.world.Commit(ctx, step); err != nil {
		return err
	}
	for i := range step.Documents {
		switch d := &step.Documents[i]; d.Kind {
		case cellconfig.KindPlacement:
			if o.placed++; o.shares > 0 {
				o.wrong = append(o.wrong, "a placement after the shares")
			}
		case cellconfig.KindShares:
			o.shares++
		case "tenant":
			if o.tenants++; o.shares == 0 {
				o.wrong = append(o.wrong, "a tenant before the shares")
			}
		}
	}
	return nil
}

// placed returns the placement of a tenant that every cell serves.
func placed(tenant string) string {
	return fmt.Sprintf(`{"generations":[{"epoch":0,"from":1}],"tenant":%q,"version":1}`, tenant)
}

// fresh returns a world with shares, placements and tenants, and an empty cell.
func fresh(t *testing.T, placements, tenants int) *ordered {
	w := newWorld(t)
	for i := range placements {
		tenant := fmt.Sprintf("t%06d", i)
		w.put(control.Cells, shares.PlacementKey(tenant), placed(tenant))
		if i == placements/2 {
			w.put(control.Cells, events.SharesKey, `{"version":1}`)
		}
	}
	w.put(control.Cells, "eu-1", `{"id":"eu-1"}`) // cells do not need it
	for i := range tenants {
		id := fmt.Sprintf("t%06d", i)
		w.put(control.Tenants, id, tenant(id, 1))
	}
	return &ordered{world: w}
}

// reconcile runs until it is finished, each run for at most the time d.
func (o *ordered) reconcile(d time.Duration) (runs int) {
	o.t.Helper()
	for runs = 1; ; runs++ {
		ctx, cancel := context.WithTimeout(o.t.Context(), d)
		r, err := reconcile.New(reconcile.Config{Tables: tables{o.world}, Store: o, Meter: &o.meter,
			Log: slog.New(slog.NewTextHandler(&o.log, nil)),
			Now: func() time.Time { return o.now }, Grace: o.grace})
		if err != nil {
			o.t.Fatal(err)
		}
		result, err := r.Run(ctx)
		cancel()
		switch {
		case err != nil:
			o.t.Fatal(err)
		case result.Finished:
			return runs
		case runs > 100:
			o.t.Fatal("no end")
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
		runs                int // at least
	}{
		{"few", 5, 20, time.Hour, 1},
		{"many", 1500, 1500, time.Hour, 1},
		{"many in many runs", 1500, 700, 20 * time.Second, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := fresh(t, tt.placements, tt.tenants)
				o.onCell = func(refs []cellconfig.Ref) error {
					if len(refs) > 1 {
						<-time.After(time.Second) // each page takes a second to read and write
					}
					return nil
				}
				if runs := o.reconcile(tt.run); runs < tt.runs {
					t.Errorf("%d runs, want at least %d: nothing was cut", runs, tt.runs)
				}
				if len(o.wrong) > 0 {
					t.Errorf("%d times, first %s", len(o.wrong), o.wrong[0])
				}
				if o.placed != tt.placements || o.shares != 1 || o.tenants != tt.tenants {
					t.Errorf("%d placements, %d shares, %d tenants", o.placed, o.shares, o.tenants)
				}
				o.onCell = nil
				o.same()
			})
		})
	}
}

// Guarantees that a cell does not get its first shares while a placement may be missing, and gets them as soon as none
// is, and that existing shares are kept up to date nevertheless.
func TestFirstSharesWaitForEveryPlacement(t *testing.T) {
	for size, many := range map[string]int{"few": 5, "many": 1500} {
		t.Run(size, func(t *testing.T) {
			o := fresh(t, many, 3)
			lost := shares.PlacementKey("t000003")
			o.bad[name{control.Cells, lost}] = true
			o.reconcile(time.Hour)
			if o.shares != 0 {
				t.Fatal("the cell has shares, and lacks a placement")
			}
			clear(o.bad)
			o.reconcile(time.Hour)
			o.same()
			if o.shares != 1 {
				t.Fatalf("%d shares", o.shares)
			}
			o.put(control.Cells, events.SharesKey, `{"version":1,"done":["x"]}`)
			o.bad[name{control.Cells, lost}] = true
			o.reconcile(time.Hour)
			if o.shares != 2 {
				t.Error("a cell that has shares is not told of newer ones")
			}
		})
	}
}

// Guarantees that an unreadable item that no cell needs does not keep a cell from its first shares, and is reported
// with its key: a cell can spoil its own acknowledgement, and would keep others from joining.
func TestSpoiltAcknowledgement(t *testing.T) {
	for size, many := range map[string]int{"few": 5, "many": 1500} {
		t.Run(size, func(t *testing.T) {
			o := fresh(t, many, 3)
			o.put(control.Cells, shares.AckKey("us-1"), `{"cell":"us-1"}`)
			o.bad[name{control.Cells, shares.AckKey("us-1")}] = true
			o.reconcile(time.Hour)
			if o.same(); o.shares != 1 || o.tenants != 3 {
				t.Errorf("%d shares, %d tenants", o.shares, o.tenants)
			}
			if o.meter.Of("drift_unreadable") != 1 || !strings.Contains(o.log.String(), shares.AckKey("us-1")) {
				t.Errorf("%d unreadable items\n%s", o.meter.Of("drift_unreadable"), o.log.String())
			}
		})
	}
}

// Guarantees that a cell does not get its first shares while an earlier placement seems to be on its way, and gets them
// after that.
func TestFirstSharesWaitForPlacementsUnderWay(t *testing.T) {
	for size, many := range map[string]int{"few": 5, "many": 1500} {
		t.Run(size, func(t *testing.T) {
			cut := 0
			for range 12 { // the differences are handled in any order
				o := fresh(t, many, 0)
				o.grace = 2 * time.Minute
				o.now = streamstest.Written.Add(o.grace - time.Second)
				o.onCell = func(refs []cellconfig.Ref) error {
					if len(refs) == 1 && refs[0].Kind == cellconfig.KindShares {
						o.now = o.now.Add(2 * time.Second)
					}
					return nil
				}
				o.reconcile(time.Hour)
				if o.shares > 0 && o.placed < many {
					t.Fatalf("the cell has shares, and %d placements of %d", o.placed, many)
				}
				if o.shares == 0 {
					cut++
				}
				o.reconcile(time.Hour)
				if o.same(); o.shares != 1 || o.placed != many {
					t.Fatalf("%d shares and %d placements of %d", o.shares, o.placed, many)
				}
			}
			if cut == 0 {
				t.Error("no placement was taken to be under way")
			}
		})
	}
}

// Guarantees that the shares and placements of a cell are never replaced by unreadable ones, which are reported each
// time, and that it gets later readable ones. If it has no placement, it gets a tombstone.
func TestUnreadableSharesAreLeft(t *testing.T) {
	for size, many := range map[string]int{"few": 5, "many": 1500} {
		t.Run(size, func(t *testing.T) {
			o := fresh(t, 5, 0)
			o.reconcile(time.Hour)
			had := map[cellconfig.Ref]int64{}
			keys := []string{events.SharesKey, shares.PlacementKey("t000001"), shares.PlacementKey("t000002"),
				shares.PlacementKey("none")}
			for i, bad := range []string{`{"version":2}`, `{"version":2,"tenant":"t000001"}`, placed("t000001"),
				`{"version":2,"tenant":"none"}`} {
				o.put(control.Cells, keys[i], bad)
				ref, _ := celldoc.Ref(control.Cells, keys[i])
				if had[ref] = 1; i == 3 {
					had[ref] = 0
				}
			}
			for i := range many { // so that more differs than a sketch can show, or less
				tenant := fmt.Sprintf("more%06d", i)
				o.put(control.Cells, shares.PlacementKey(tenant), placed(tenant))
			}
			for range 2 {
				o.reconcile(time.Hour)
				for ref, version := range had {
					got, err := o.Table.Get(t.Context(), ref)
					if err != nil || got[0].Version != version || got[0].Deleted {
						t.Fatalf("%+v is %+v, %v; want version %d", ref, got, err, version)
					}
				}
			}
			if n := o.meter.Of("drift_unreadable"); n != 8 {
				t.Errorf("%d unreadable documents in two runs, want 4 in each", n)
			}
			for i, good := range []string{`{"version":1,"done":["x"]}`, placed("t000001"), placed("t000002"),
				placed("none")} {
				o.put(control.Cells, keys[i], good)
			}
			o.reconcile(time.Hour)
			o.same()
		})
	}
}

// Guarantees that a cell without shares gets them although a placement cannot be read: it first learns that it does not
// know that placement, and so serves all tenants but one.
func TestFirstSharesWithAnUnreadablePlacement(t *testing.T) {
	for size, many := range map[string]int{"few": 5, "many": 1500} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, told of shares %t", size, shared), func(t *testing.T) {
				o := fresh(t, many, 3)
				bad := shares.PlacementKey("t000003")
				o.put(control.Cells, bad, `{"version":2,"tenant":"t000003"}`)
				if shared { // which could not be read
					o.put(control.Cells, events.SharesKey, `{"version":1,"done":["x"]}`)
					if _, err := o.Table.Apply(t.Context(),
						[]cellconfig.Document{{Ref: cellconfig.Ref{Kind: cellconfig.KindShares,
							ID: cellconfig.SharesID},
							Version: 1, Deleted: true}}); err != nil {
						t.Fatal(err)
					}
				}
				o.reconcile(time.Hour)
				if len(o.wrong) > 0 || o.placed != many || o.shares != 1 || o.tenants != 3 {
					t.Fatalf("%d placements, %d shares, %d tenants, %q\n%s", o.placed, o.shares, o.tenants, o.wrong,
						o.log.String())
				}
				got, err := o.Table.Get(t.Context(), cellconfig.Ref{Kind: cellconfig.KindPlacement, ID: bad})
				if err != nil || got[0].Version != 2 || !got[0].Deleted {
					t.Errorf("the cell has %+v of the placement, %v; want a tombstone", got, err)
				}
				if n := o.meter.Of("drift_unreadable"); n == 0 {
					t.Error("the placement is not reported")
				}
				o.put(control.Cells, bad, placed("t000003"))
				o.reconcile(time.Hour)
				o.same()
			})
		}
	}
}

// Guarantees that a table of cells that does not answer leaves the cell without tenants.
func TestCellsAreAway(t *testing.T) {
	o := fresh(t, 5, 5)
	o.onList = func(table control.Table, _ string) error {
		if table == control.Cells {
			return errAway
		}
		return nil
	}
	r, err := reconcile.New(reconcile.Config{Tables: tables{o.world}, Store: o, Meter: &o.meter,
		Log: slog.New(slog.NewTextHandler(&o.log, nil)),
		Now: func() time.Time { return o.now }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Run(t.Context()); !errors.Is(err, errAway) || !strings.Contains(err.Error(), "cells") {
		t.Errorf("got %v, want that the cells are away", err)
	}
	if o.tenants != 0 {
		t.Errorf("the cell was given %d tenants", o.tenants)
	}
}
