// Package local carries changes from the control tables to cells within one process, as `sluice dev` does, in place of
// DynamoDB's streams, SNS, SQS and Lambda. It passes the feed of changes to the publisher, and what the publisher
// publishes to an applier for each cell. The publisher and the appliers are those that are deployed.
//
// The feed is carried in groups: the next group is read when every cell has applied the one before it, and the feed's
// cursor has moved. A change is therefore applied in each cell at least once, and the next process repeats the group
// that was unfinished when this one ended. The cells of a process are tables in its memory, so that one of them does
// not fail while the others work. A cell that is added is first reconciled with the control tables, because it is
// empty.
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/streams/applier"
	"github.com/sluicelimits/sluice/streams/delivery"
	"github.com/sluicelimits/sluice/streams/publisher"
	"github.com/sluicelimits/sluice/streams/reconcile"
)

// Consumer is the publisher's name at the feed.
const Consumer = "publisher"

const (
	groupSize   = 100         // records of the feed
	applyAtOnce = 10          // messages, as in a batch of SQS
	retryEvery  = time.Second // the wait before messages that failed are applied again
)

// Config sets up a Pump. The first two fields are required.
type Config struct {
	Feed   control.Feed
	Tables reconcile.Tables // the same tables

	Keep  delivery.Keeper  // default: log lines
	Meter delivery.Meter   // default: nothing is counted
	Log   *slog.Logger     // default slog.Default()
	Now   func() time.Time // default time.Now
}

// Pump carries changes from the control tables to cells. It is safe for concurrent use. Make it with New, and call Run.
type Pump struct {
	c         Config
	publisher *publisher.Publisher

	turn      sync.Mutex         // held while a group is carried, and while a cell is added
	published []delivery.Message // of the group
	messages  int64              // how many messages were made, for their ids

	mu       sync.Mutex
	cells    map[string]*cell
	position string        // up to which every cell has applied the feed
	moved    chan struct{} // closed when position changes
}

// cell is a cell that receives changes.
type cell struct {
	*applier.Applier
	removed chan struct{} // closed by Remove
}

// New makes a pump without cells.
func New(c Config) *Pump {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Keep == nil {
		c.Keep = delivery.LogKeeper{Log: c.Log}
	}
	if c.Meter == nil {
		c.Meter = delivery.NoMeter{}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	p := &Pump{c: c, cells: map[string]*cell{}, moved: make(chan struct{})}
	p.publisher = publisher.New(publisher.Config{Topic: p, Keep: c.Keep, Meter: c.Meter, Log: c.Log, Now: c.Now})
	return p
}

// Add reconciles a cell with the control tables, and sends it all later changes. It returns an error if there is a cell
// with this id, or if the reconciliation failed. The cell is then not added.
func (p *Pump) Add(ctx context.Context, id string, store table.Store) error {
	a := applier.New(applier.Config{
		Cell: id, Tables: p.c.Tables, Store: store, Keep: p.c.Keep, Meter: p.c.Meter, Log: p.c.Log, Now: p.c.Now,
	})
	r := reconcile.New(reconcile.Config{Tables: p.c.Tables, Store: store, Meter: delivery.NoMeter{},
		Log: slog.New(slog.DiscardHandler), Now: p.c.Now})
	p.turn.Lock() // until the cell is added, so that it misses no change
	defer p.turn.Unlock()
	if slices.Contains(p.Cells(), id) {
		return fmt.Errorf("local: cell %q was added before", id)
	}
	result, err := r.Run(ctx)
	if err == nil && !result.Finished {
		err = errors.New("its first reconciliation did not finish in time")
	}
	if err != nil {
		return fmt.Errorf("local: cell %q: %w", id, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cells[id] = &cell{a, make(chan struct{})}
	return nil
}

// Remove stops sending changes to a cell.
func (p *Pump) Remove(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.cells[id]; c != nil {
		close(c.removed)
		delete(p.cells, id)
	}
}

// Cells returns the ids of all cells, sorted.
func (p *Pump) Cells() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.cells))
}

// Publish implements [publisher.Topic]. It adds the messages to the group.
func (p *Pump) Publish(_ context.Context, messages []events.Message) []error {
	for _, m := range messages {
		p.messages++
		p.published = append(p.published, delivery.Message{ID: strconv.FormatInt(p.messages, 10), Body: m.Body})
	}
	return nil
}

// Run carries changes until ctx ends or the feed fails. It returns nil if ctx ends. Call it once.
func (p *Pump) Run(ctx context.Context) error {
	position, err := p.c.Feed.Cursor(ctx, Consumer)
	for err == nil {
		p.move(position)
		if err = p.c.Feed.Wait(ctx, position); err == nil {
			position, err = p.step(ctx, position)
		}
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // err says that ctx has ended
	}
	return fmt.Errorf("local: %w", err)
}

// step carries the group after a position to every cell, moves the cursor, and returns the next position.
func (p *Pump) step(ctx context.Context, position string) (string, error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	records, err := p.c.Feed.Read(ctx, position, groupSize)
	if err != nil || len(records) == 0 {
		return position, err
	}
	p.published = nil
	done, err := p.publisher.Handle(ctx, records)
	if done == 0 {
		return position, err
	}
	p.mu.Lock()
	cells := slices.Collect(maps.Values(p.cells))
	p.mu.Unlock()
	var all sync.WaitGroup
	for _, c := range cells {
		all.Go(func() { p.apply(ctx, c) })
	}
	all.Wait()
	if ctx.Err() != nil {
		return position, ctx.Err()
	}
	position = records[done-1].Sequence
	return position, p.c.Feed.Commit(ctx, Consumer, position)
}

// apply applies the group in a cell, until all of it is applied, ctx ends or the cell is removed.
func (p *Pump) apply(ctx context.Context, c *cell) {
	for messages := range slices.Chunk(p.published, applyAtOnce) {
		for {
			failed, _ := c.Handle(ctx, messages) // Handle logs the error
			if len(failed) == 0 {
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-c.removed:
				return
			case <-time.After(retryEvery):
			}
		}
	}
}

// move sets the position and wakes the callers of Settle.
func (p *Pump) move(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.position = to
	close(p.moved)
	p.moved = make(chan struct{})
}

// Settle waits until every cell has applied all that was written. Run must be running. If others write all the time,
// Settle does not return. The error is that of ctx, or of the feed.
func (p *Pump) Settle(ctx context.Context) error {
	for {
		p.mu.Lock()
		position, moved := p.position, p.moved
		p.mu.Unlock()
		left, err := p.c.Feed.Read(ctx, position, 1)
		if err != nil || len(left) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		}
	}
}
