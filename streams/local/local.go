// Package local carries changes from the control tables to cells within one process, as `sluice dev` does, in place of
// DynamoDB's streams, SNS, SQS and Lambda. It connects the feed of changes, the publisher, a topic, and for each cell a
// queue and an applier. The publisher and the appliers are those that are deployed.
//
// A change is applied in each cell at least once. The feed's cursor moves when every cell has applied everything before
// it, so the next process repeats the changes that were unfinished when this one ended. A cell that is added is first
// reconciled with the control tables, because it may be empty: a cell in memory is empty after each start.
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
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/streams/applier"
	"github.com/sluicelimits/sluice/streams/delivery"
	"github.com/sluicelimits/sluice/streams/publisher"
	"github.com/sluicelimits/sluice/streams/reconcile"
)

// Consumer is the publisher's name at the feed.
const Consumer = "publisher"

const (
	readAtOnce    = 100 // records of the feed
	applyAtOnce   = 10  // messages, as in a batch of SQS
	maxUnfinished = 16  // groups, so that a cell that does not answer cannot fill the memory with messages

	// The first and the longest wait before messages that failed are applied again.
	firstWait = 10 * time.Millisecond
	lastWait  = time.Second
)

// Meter counts. *telemetry.Meter implements it.
type Meter interface {
	Count(name string, n int64)
	Took(name string, d time.Duration)
}

// Config sets up a Pump. The first two fields are required.
type Config struct {
	Feed   control.Feed
	Tables reconcile.Tables // the same tables

	Keep  delivery.Keeper  // default: log lines
	Meter Meter            // default: nothing is counted
	Log   *slog.Logger     // default slog.Default()
	Now   func() time.Time // default time.Now
}

// Pump carries changes from the control tables to cells. It is safe for concurrent use. Make it with New, and call Run.
type Pump struct {
	c         Config
	publisher *publisher.Publisher

	mu       sync.Mutex
	cells    map[string]*cell
	workers  func(*cell)   // starts the goroutines of a cell; nil unless Run is running
	group    *group        // the group that is being published
	messages int64         // how many messages were made, for their ids
	position string        // up to which every cell has applied the feed
	moved    chan struct{} // closed when position changes
}

// NoMeter is a Meter that counts nothing.
type NoMeter struct{}

// Count implements [Meter].
func (NoMeter) Count(string, int64) {}

// Took implements [Meter].
func (NoMeter) Took(string, time.Duration) {}

// New makes a pump without cells. The error names the field.
func New(c Config) (*Pump, error) {
	switch {
	case c.Feed == nil:
		return nil, errors.New("local: Feed is missing")
	case c.Tables == nil:
		return nil, errors.New("local: Tables is missing")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Keep == nil {
		c.Keep = delivery.LogKeeper{Log: c.Log}
	}
	if c.Meter == nil {
		c.Meter = NoMeter{}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	p := &Pump{c: c, cells: map[string]*cell{}, moved: make(chan struct{})}
	var err error
	p.publisher, err = publisher.New(publisher.Config{Topic: p, Keep: c.Keep, Meter: c.Meter, Log: c.Log, Now: c.Now})
	return p, err
}

// cell is a cell that receives changes.
type cell struct {
	id      string
	applier *applier.Applier

	mu      sync.Mutex
	queue   []message
	removed bool
	wake    chan struct{} // has a buffer of one: the queue has messages, or the cell was removed
}

// message is a message in a cell's queue.
type message struct {
	delivery.Message
	group *group
}

// group holds the changes of one read of the feed. It ends when they were published and every cell has applied them.
type group struct {
	position string        // of its last record
	open     atomic.Int64  // messages in queues, plus 1 while the group is being published
	over     chan struct{} // closed when open is 0
}

func newGroup() *group {
	g := &group{over: make(chan struct{})}
	g.open.Store(1)
	return g
}

// done says that a cell has applied a message of the group, or that the group was published.
func (g *group) done() {
	if g.open.Add(-1) == 0 {
		close(g.over)
	}
}

// Add adds a cell, reconciles it with the control tables, and sends it all later changes. It returns an error if there
// is a cell with this id, or if the reconciliation failed. The cell is then not added.
func (p *Pump) Add(ctx context.Context, id string, store cellconfig.Store) error {
	a, err := applier.New(applier.Config{
		Cell: id, Tables: p.c.Tables, Store: store, Keep: p.c.Keep, Meter: p.c.Meter, Log: p.c.Log, Now: p.c.Now,
	})
	if err != nil {
		return err
	}
	c := &cell{id: id, applier: a, wake: make(chan struct{}, 1)}
	p.mu.Lock()
	if p.cells[id] != nil {
		p.mu.Unlock()
		return fmt.Errorf("local: cell %q was added before", id)
	}
	p.cells[id] = c // later messages wait in its queue
	p.mu.Unlock()
	r, err := reconcile.New(reconcile.Config{Tables: p.c.Tables, Store: store, Meter: NoMeter{},
		Log: slog.New(slog.DiscardHandler), Now: p.c.Now})
	if err == nil {
		var result reconcile.Result
		if result, err = r.Run(ctx); err == nil && !result.Finished {
			err = errors.New("its first reconciliation did not finish in time")
		}
	}
	if err != nil {
		p.Remove(id)
		return fmt.Errorf("local: cell %q: %w", id, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.workers != nil {
		p.workers(c)
	}
	return nil
}

// Remove stops sending changes to a cell, and drops its queue.
func (p *Pump) Remove(id string) {
	p.mu.Lock()
	c := p.cells[id]
	delete(p.cells, id)
	p.mu.Unlock()
	if c == nil {
		return
	}
	c.mu.Lock()
	c.removed = true
	left := c.queue
	c.queue = nil
	c.mu.Unlock()
	for _, m := range left {
		m.group.done()
	}
	c.signal()
}

// Cells returns the ids of all cells, sorted.
func (p *Pump) Cells() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.cells))
}

// Publish implements [publisher.Topic]. It puts each message into each cell's queue.
func (p *Pump) Publish(_ context.Context, messages []publisher.Message) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range messages {
		p.messages++
		id := strconv.FormatInt(p.messages, 10)
		for _, c := range p.cells {
			p.group.open.Add(1)
			c.put(message{delivery.Message{ID: id, Body: m.Body}, p.group})
		}
	}
	return nil
}

// put appends messages to the queue.
func (c *cell) put(messages ...message) {
	c.mu.Lock()
	removed := c.removed
	if !removed {
		c.queue = append(c.queue, messages...)
	}
	c.mu.Unlock()
	if removed {
		for _, m := range messages {
			m.group.done()
		}
		return
	}
	c.signal()
}

func (c *cell) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// take waits for messages. It returns none if ctx ends or the cell was removed.
func (c *cell) take(ctx context.Context) []message {
	for {
		c.mu.Lock()
		n := min(len(c.queue), applyAtOnce)
		got := slices.Clone(c.queue[:n])
		c.queue = c.queue[n:]
		removed := c.removed
		c.mu.Unlock()
		if n > 0 || removed {
			return got
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		}
	}
}

// work applies messages until ctx ends or the cell is removed.
func (c *cell) work(ctx context.Context) {
	wait := firstWait
	for {
		got := c.take(ctx)
		if len(got) == 0 {
			return
		}
		messages := make([]delivery.Message, len(got))
		for i := range got {
			messages[i] = got[i].Message
		}
		failed, _ := c.applier.Handle(ctx, messages) // Handle logs the error
		var again []message
		for _, m := range got {
			if slices.Contains(failed, m.ID) {
				again = append(again, m)
			} else {
				m.group.done()
			}
		}
		if len(again) == 0 {
			wait = firstWait
			continue
		}
		c.put(again...)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
			wait = min(2*wait, lastWait)
		}
	}
}

// Run carries changes until ctx ends or the feed fails. It returns nil if ctx ends. Call it once.
func (p *Pump) Run(ctx context.Context) error {
	position, err := p.c.Feed.Cursor(ctx, Consumer)
	if err != nil {
		return fmt.Errorf("local: %w", err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop(nil)
	p.mu.Lock()
	p.move(position)
	p.workers = func(c *cell) { all.Go(func() { c.work(ctx) }) }
	for _, c := range p.cells {
		p.workers(c)
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.workers = nil
		p.mu.Unlock()
	}()
	groups := make(chan *group, maxUnfinished)
	defer close(groups)
	all.Go(func() {
		for g := range groups {
			if err := p.finish(ctx, g); err != nil {
				stop(err)
			}
		}
	})
	for {
		next, err := p.step(ctx, position, groups)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
				return nil
			}
			return fmt.Errorf("local: %w", err)
		}
		position = next
	}
}

// step publishes the changes after a position, and returns the next position.
func (p *Pump) step(ctx context.Context, position string, groups chan<- *group) (string, error) {
	if err := p.c.Feed.Wait(ctx, position); err != nil {
		return "", err
	}
	records, err := p.c.Feed.Read(ctx, position, readAtOnce)
	if err != nil || len(records) == 0 {
		return position, err
	}
	g := newGroup()
	p.mu.Lock()
	p.group = g
	p.mu.Unlock()
	done, err := p.publisher.Handle(ctx, records)
	g.done()
	if done == 0 {
		return "", err
	}
	g.position = records[done-1].Sequence
	select {
	case groups <- g:
		return g.position, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// finish waits until every cell has applied a group, and moves the cursor.
func (p *Pump) finish(ctx context.Context, g *group) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-g.over:
	}
	if err := p.c.Feed.Commit(ctx, Consumer, g.position); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.move(g.position)
	return nil
}

// move sets the position and wakes the callers of Settle. The caller holds p.mu.
func (p *Pump) move(to string) {
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
