package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/streams/reconcile"
)

// controlReads counts the items that are read from the control tables.
type controlReads struct {
	reconcile.Tables
	items atomic.Int64
}

func (t *controlReads) Get(ctx context.Context, table control.Table, key string) (control.Item, error) {
	t.items.Add(1)
	return t.Tables.Get(ctx, table, key)
}

func (t *controlReads) List(
	ctx context.Context, table control.Table, after string, most int,
) ([]control.Item, string, error) {
	items, next, err := t.Tables.List(ctx, table, after, most)
	t.items.Add(int64(len(items)))
	return items, next, err
}

// reconcileCounts is what a run of reconcile returned, and what the tables counted during it.
type reconcileCounts struct {
	result reconcile.Result
	items  int64 // in the control tables, including those that are not sent to cells
	reads  int64
	writes int64 // transactions
	took   time.Duration
}

// reconcile reconciles the first cell.
func (p *plane) reconcile() (r reconcileCounts, err error) {
	cell, tables := p.cells[0], &controlReads{Tables: p.tables}
	cell.reads.Store(0)
	cell.commits.Store(0)
	run, err := reconcile.New(reconcile.Config{Tables: tables, Store: cell, Meter: &p.meter,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return r, err
	}
	for _, table := range events.DocumentTables() {
		for _, err := range control.All(context.Background(), p.tables, table) {
			if err != nil {
				return r, err
			}
			r.items++
		}
	}
	began := time.Now()
	r.result, err = run.Run(context.Background())
	r.took, r.reads, r.writes = time.Since(began), tables.items.Load()+cell.reads.Load(), cell.commits.Load()
	switch {
	case err != nil:
		return r, err
	case !r.result.Finished:
		return r, errors.New("the run did not finish")
	case r.result.ControlReads+r.result.CellReads > r.reads:
		return r, fmt.Errorf("the run reported %d reads, but only %d were counted",
			r.result.ControlReads+r.result.CellReads, r.reads)
	case r.reads < r.items+r.result.Documents:
		return r, fmt.Errorf("%d reads of %d items and %d documents: some were not counted", r.reads, r.items,
			r.result.Documents)
	}
	return r, nil
}

// runReconcile reconciles a cell that has everything, and returns what was counted. Then it reconciles the cell after a
// change that was not delivered to it, to check that reads and writes are counted.
func runReconcile(tenants int) (r reconcileCounts, err error) {
	const rate = 1
	p, err := newPlane(tenants, rate, false)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := errors.Join(p.addInMemory(inMemory), p.checkEnforced(rate)); err != nil {
		return r, err
	}
	if r, err = p.reconcile(); err != nil {
		return r, err
	}
	if want := int64(tenants) + 1; r.result.Items != want || r.result.Documents != want {
		return r, fmt.Errorf("%d items and %d documents were compared, want %d of each", r.result.Items,
			r.result.Documents, want)
	}
	file, err := tenantsFile(tenants, rate+1)
	if err != nil {
		return r, err
	}
	if err := p.operator.apply(file, 1); err != nil { // which is not delivered
		return r, err
	}
	missed, err := p.reconcile()
	if err != nil {
		return r, err
	}
	if missed.result.Repaired != 1 || missed.writes != 1 || missed.reads <= r.reads {
		return r, fmt.Errorf("after the cell missed a change, %d documents were repaired by %d writes after %d reads; "+
			"want 1, 1, and more than %d",
			missed.result.Repaired, missed.writes, missed.reads, r.reads)
	}
	return r, nil
}

// reconcileRun runs runReconcile once for all figures. The second one is for a short measurement.
var reconcileRun = [2]func() (reconcileCounts, error){
	sync.OnceValues(func() (reconcileCounts, error) { return runReconcile(planeTenants) }),
	sync.OnceValues(func() (reconcileCounts, error) { return runReconcile(planeTenantsShort) }),
}

// reconcileFigure returns a measurement of a cell that has everything. Its value is what of returns.
func reconcileFigure(of func(*reconcileCounts) float64) func(short bool) (Result, error) {
	return func(short bool) (r Result, err error) {
		run := reconcileRun[0]
		if short {
			run = reconcileRun[1]
		}
		got, err := run()
		if err != nil {
			return r, err
		}
		r.Value = of(&got)
		r.note("%d items, and a cell that has all %d documents: %d reads, %d writes, %.2f s with the cell in memory",
			got.items, got.result.Documents, got.reads, got.writes, got.took.Seconds())
		return r, nil
	}
}

func readsPerItem(r *reconcileCounts) float64 {
	return float64(r.reads) / float64(r.items+r.result.Documents)
}

func reconcileWrites(r *reconcileCounts) float64 { return float64(r.writes) }
