package devcells

import (
	"context"
	"errors"
	"time"

	"github.com/sluicelimits/sluice/streams/canary"
	"github.com/sluicelimits/sluice/streams/reconcile"
)

// Schedules, as in AWS. The first run comes earlier, so that the live page soon shows a result.
const (
	canaryEvery    = time.Minute
	reconcileEvery = 15 * time.Minute
	firstAfter     = 2 * time.Second

	canaryWait       = 30 * time.Second // how long a run of the canary waits for all cells
	reconcileTimeout = 5 * time.Minute
	underWay         = 2 * time.Minute // a difference younger than this is a change on its way, not drift
)

// canaryActor is the actor of the canary's changes in the audit trail.
const canaryActor = "function:canary"

// Checked is the last result of the canary and of the reconcile function for a cell. A time is zero if there is no
// result yet.
type Checked struct {
	CanaryAt time.Time     // when the canary's change was written
	Applied  time.Duration // time until the cell's table had the change; 0 if it does not have it, or if Missed
	Enforced time.Duration // time until a reader that looks once per second, as authorizers do, enforced it; or 0
	Missed   bool          // the change was not enforced within canaryWait

	ReconciledAt time.Time // when the last complete comparison began
	Drift        int64     // differences that the comparison found, without changes on their way
	Repaired     int64     // differences that the comparison repaired
}

func (c *Cell) lastChecked() Checked {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.checked
}

func (c *Cell) setChecked(change func(*Checked)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.checked)
}

// every calls do on a schedule, until ctx ends. After a cell was added, it calls do within firstAfter, so that the new
// cell does not wait for the schedule.
func (p *Plane) every(ctx context.Context, interval time.Duration, do func(context.Context)) {
	poll := time.NewTicker(min(interval, firstAfter))
	defer poll.Stop()
	var due time.Time
	included := 0 // the value of addedCells at the last call of do
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		}
		added := p.addedCells()
		if added == included && time.Now().Before(due) {
			continue
		}
		included = added
		do(ctx)
		due = time.Now().Add(interval - min(interval, firstAfter)/2) // at the tick that is nearest to the interval
	}
}

// canary sends a change of the canary through all cells, and measures how long it takes.
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
		p.c.Log.Warn("the canary failed, so it is not known how long changes take", "error", err)
	}
	for i, s := range seen {
		if !errors.Is(s.Err, context.Canceled) {
			cells[i].setChecked(func(k *Checked) {
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
			c.setChecked(func(k *Checked) { k.ReconciledAt, k.Drift, k.Repaired = began, drift, result.Repaired })
		case ctx.Err() == nil:
			p.c.Log.Warn("a cell was not compared with the control tables; the next run tries again", "cell", c.Name,
				"error",
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
