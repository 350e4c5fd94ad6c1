package devcells

import (
	"context"
	"errors"
	"time"

	"github.com/sluicelimits/sluice/streams/canary"
	"github.com/sluicelimits/sluice/streams/reconcile"
)

// What runs on a schedule, as often as it does in AWS. The first time comes sooner, for people who look.
const (
	canaryEvery    = time.Minute
	reconcileEvery = 15 * time.Minute
	firstAfter     = 2 * time.Second

	canaryWait       = 30 * time.Second // for all cells
	reconcileTimeout = 5 * time.Minute
	underWay         = 2 * time.Minute // what is younger is no drift
)

// Who changes the canary, as the audit trail has it.
const canaryActor = "function:canary"

// Checked is what the canary and reconcile have found out about a cell last. The times are zero where they have not
// yet.
type Checked struct {
	CanaryAt time.Time     // when its change was written
	Applied  time.Duration // from that write to when the cell's table had it; 0 where it has not, or Missed
	Enforced time.Duration // to when a reader enforced it that looks once per second, as authorizers do; 0 where Missed
	Missed   bool          // it was not enforced within 30 s

	ReconciledAt time.Time // when the last comparison began that came to an end
	Drift        int64     // differences that it found and that were not under way
	Repaired     int64     // of these, documents that it wrote
}

func (c *Cell) lastChecked() Checked {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.checked
}

func (c *Cell) check(change func(*Checked)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.checked)
}

// every does something on a schedule, until ctx ends.
func (p *Plane) every(ctx context.Context, interval time.Duration, do func(context.Context)) {
	next := time.NewTimer(min(interval, firstAfter))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			do(ctx)
			next.Reset(interval)
		}
	}
}

// canary sends a change of its own through all cells that there are.
func (p *Plane) canary(ctx context.Context) {
	cells := p.all()
	if len(cells) == 0 {
		return
	}
	config := canary.Config{Tables: p.tables, Actor: canaryActor, Log: p.c.Log, Now: p.c.Now, Wait: canaryWait}
	for _, c := range cells {
		config.Cells = append(config.Cells, canary.Cell{ID: c.Name, Table: c.table,
			Meter: p.board.Meter("canary", c.Name)})
	}
	began := p.c.Now()
	run, err := canary.New(config)
	var seen []canary.Seen
	if err == nil {
		seen, err = run.Run(ctx)
	}
	if err != nil && ctx.Err() == nil {
		p.c.Log.Warn("how long changes take was not measured", "error", err)
	}
	for i, s := range seen {
		if !errors.Is(s.Err, context.Canceled) {
			cells[i].check(func(k *Checked) {
				k.CanaryAt, k.Applied, k.Enforced, k.Missed = began, s.Applied,
					s.Enforced, s.Missed
			})
		}
	}
}

// reconcile compares each cell with the control tables, and repairs it.
func (p *Plane) reconcile(ctx context.Context) {
	for _, c := range p.all() {
		began := p.c.Now()
		result, err := p.reconcileCell(ctx, c)
		switch {
		case err == nil && result.Finished:
			drift := int64(0)
			for _, n := range result.Drift {
				drift += n
			}
			c.check(func(k *Checked) { k.ReconciledAt, k.Drift, k.Repaired = began, drift, result.Repaired })
		case ctx.Err() == nil:
			p.c.Log.Warn("a cell was not compared with the control tables; it is tried again", "cell", c.Name, "error",
				err)
		}
	}
}

func (p *Plane) reconcileCell(ctx context.Context, c *Cell) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	r, err := reconcile.New(reconcile.Config{
		Tables: p.tables, Store: c.store, Meter: p.board.Meter("reconcile", c.Name), Log: p.c.Log, Now: p.c.Now,
		Grace: underWay,
	})
	if err != nil {
		return reconcile.Result{}, err
	}
	return r.Run(ctx)
}
