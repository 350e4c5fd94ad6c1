package devcells

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/streams/applier"
)

// Bounds of a reader. Its cache may hold everything, since the table is in the same memory.
const (
	keptDocuments = 200_000
	keptBytes     = 1 << 30
	readTimeout   = time.Second // the table answers at once, unless the machine is busy
)

// Cell is the configuration of one cell: its table, the applier that fills it, and a reader for its authorizer.
type Cell struct {
	Name   string
	Reader *config.Reader // an [authorizer.Source]

	table   *table.Memory
	store   *signallingTable      // the table, which signals each write
	shares  *applier.Acknowledger // acknowledges shares; nil if the cell is the only one
	applied chan struct{}         // holds at most one signal that the table changed
	stop    context.CancelFunc
	running sync.WaitGroup
}

var _ authorizer.Source = (*config.Reader)(nil)

// AddCell makes a cell, copies the control tables to it, and sends it every change from then on. Its reader sees a
// change as soon as the change is applied, before its next poll.
func (p *Plane) AddCell(ctx context.Context, name string) (*Cell, error) {
	memory := table.NewMemory(0)
	c := &Cell{Name: name, table: memory, applied: make(chan struct{}, 1)}
	c.store = &signallingTable{memory, c.applied}
	sharedAs := ""
	var err error
	if p.c.Several {
		sharedAs = name
		c.shares = applier.NewAcknowledger(applier.AcknowledgerConfig{Cell: name, Tables: p.tables, Store: c.store,
			Now: p.c.Now})
	}
	c.Reader, err = config.New(config.Config{
		Table: memory, Cell: sharedAs, Accepts: p.c.Store.Accepts, Reaches: p.c.Reaches, Log: p.c.Log,
		Timeout: readTimeout, FirstTimeout: 10 * readTimeout,
		Holds: memory.Holds, MaxDocuments: keptDocuments, MaxBytes: keptBytes,
		Hashes: func(_ context.Context, _ time.Time, presented string) ([]identity.KeyHash, error) {
			return p.peppers.Hashes(presented)
		},
	})
	if err != nil {
		return nil, err
	}
	if err := p.pump.Add(ctx, name, c.store); err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.Background())
	c.stop = stop
	if err := p.loadChanges(run, c); err != nil { // before the first request
		c.store.signal() // makes followTable try again
	}
	c.running.Go(func() { p.followTable(run, c) })
	p.mu.Lock()
	p.cells[name] = c
	p.mu.Unlock()
	p.serveOperators()
	return c, nil
}

// followTable calls loadChanges after each change of the cell's table, until ctx ends.
func (p *Plane) followTable(ctx context.Context, c *Cell) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.applied:
		case <-again:
		}
		again = nil
		if err := p.loadChanges(ctx, c); err != nil && ctx.Err() == nil {
			p.c.Log.Warn("a cell's shares are not acknowledged; it is tried again in a second", "cell", c.Name, "error",
				err)
			again = time.After(lookEvery)
		}
	}
}

// loadChanges makes the cell's reader read the changes of the table, and acknowledges new shares to the balancer. It
// returns nil if the reader fails, for example because the table is still empty: the reader tries again by itself.
func (p *Plane) loadChanges(ctx context.Context, c *Cell) error {
	if err := c.Reader.Load(ctx, p.c.Now()); err != nil || c.shares == nil {
		return nil //nolint:nilerr // the reader has logged the error, and goes on with what it has
	}
	wrote, err := c.shares.Run(ctx)
	if wrote {
		p.wakeBalancer()
	}
	return err
}

// signallingTable is a table that signals each write to it.
type signallingTable struct {
	*table.Memory
	applied chan<- struct{}
}

// Commit implements [table.Store].
func (t *signallingTable) Commit(ctx context.Context, step table.Step) error {
	err := t.Memory.Commit(ctx, step)
	t.signal()
	return err
}

func (t *signallingTable) signal() {
	select {
	case t.applied <- struct{}{}:
	default: // a signal is already waiting
	}
}

// RemoveCell ends a cell. It gets no more changes.
func (p *Plane) RemoveCell(name string) {
	p.mu.Lock()
	c := p.cells[name]
	delete(p.cells, name)
	p.mu.Unlock()
	if c == nil {
		return
	}
	p.pump.Remove(name)
	c.close()
	p.serveOperators()
}

// Store returns the cell's config table.
func (c *Cell) Store() table.Store { return c.store }

func (c *Cell) close() {
	c.stop()
	c.running.Wait()
}

// Settle waits until every cell enforces what was written before the call.
func (p *Plane) Settle(ctx context.Context) error {
	if err := p.pump.Settle(ctx); err != nil {
		return err
	}
	for _, c := range p.all() {
		if _, err := c.table.Head(ctx); err != nil {
			continue // nothing has been written to the table
		}
		if err := c.Reader.Load(ctx, p.c.Now()); err != nil {
			return fmt.Errorf("cell %s: %w", c.Name, err)
		}
	}
	return nil
}
