package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/aws/grants"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/streams/applier"
	"github.com/sluicelimits/sluice/streams/publisher"
	"github.com/sluicelimits/sluice/streams/reconcile"
	"github.com/sluicelimits/sluice/streams/sqsevent"
)

// The assumed times of Lambda and SNS.
const (
	streamPolls = 250 * time.Millisecond // how often Lambda polls a stream: four times a second, by its documentation
	snsAway     = 20 * time.Millisecond  // how long a publish takes
)

// sources brings changes to the cells as the deployed event sources do, with the batches and windows with which the
// functions are deployed. Lambda polls a stream and calls the publisher. The publisher publishes to a topic, which has
// a queue for each cell. Lambda calls the applier of a cell with the messages of its queue.
type sources struct {
	plane     *plane
	publisher *publisher.Publisher
	stream    grants.Streams
	queue     grants.Queue

	mu       sync.Mutex
	queues   []*cellQueue
	calls    int64 // calls of the topic
	messages int64
}

// cellQueue is the queue of a cell, with the applier that gets its messages.
type cellQueue struct {
	applier  *applier.Applier
	messages chan sqsevent.Message
}

func newSources(p *plane) (*sources, error) {
	s := &sources{plane: p}
	publishes, ok := grants.Of("publisher")
	if !ok || publishes.Streams == nil {
		return nil, errors.New("package grants does not say how the publisher is deployed")
	}
	applies, ok := grants.Of("applier")
	if !ok || applies.Queue == nil {
		return nil, errors.New("package grants does not say how the applier is deployed")
	}
	s.stream, s.queue = *publishes.Streams, *applies.Queue
	var err error
	s.publisher, err = publisher.New(publisher.Config{Topic: s, Keep: &p.setAside, Meter: &p.meter,
		Log: slog.New(slog.DiscardHandler)})
	return s, err
}

// add copies the control tables to a cell, and sends it every later change.
func (s *sources) add(id string, store cellconfig.Store) error {
	r, err := reconcile.New(reconcile.Config{
		Tables: s.plane.tables, Store: store, Meter: &s.plane.meter, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	if result, err := r.Run(context.Background()); err != nil || !result.Finished {
		return fmt.Errorf("bring up %s: %+v, %w", id, result, err)
	}
	q := &cellQueue{messages: make(chan sqsevent.Message, 2*planeTenants)}
	q.applier, err = applier.New(applier.Config{
		Cell: id, Tables: s.plane.tables, Store: store, Keep: &s.plane.setAside, Meter: &s.plane.meter,
		Log: slog.New(slog.DiscardHandler),
	})
	s.queues = append(s.queues, q)
	return err
}

// Publish implements [publisher.Topic].
func (s *sources) Publish(_ context.Context, messages []publisher.Message) []error {
	<-time.After(snsAway)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	for _, m := range messages {
		s.messages++
		for _, q := range s.queues {
			q.messages <- sqsevent.Message{ID: strconv.FormatInt(s.messages, 10), Body: m.Body}
		}
	}
	return nil
}

// run brings the changes that follow the position after to the cells, until ctx ends.
func (s *sources) run(ctx context.Context, after string) error {
	var all sync.WaitGroup
	defer all.Wait()
	for _, q := range s.queues {
		all.Go(func() { s.apply(ctx, q) })
	}
	tick := time.NewTicker(streamPolls)
	defer tick.Stop()
	for {
		records, err := s.plane.tables.Read(ctx, after, s.stream.Batch)
		if err == nil && len(records) > 0 {
			var done int
			if done, err = s.publisher.Handle(ctx, records); done > 0 {
				after = records[done-1].Sequence
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case len(records) == s.stream.Batch:
			continue // there may be more records
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// apply calls the applier of a cell with batches of messages: those that the queue gets within a window.
func (s *sources) apply(ctx context.Context, q *cellQueue) {
	var calls sync.WaitGroup
	defer calls.Wait()
	slots := make(chan struct{}, s.queue.MaxConcurrent)
	for {
		var batch []sqsevent.Message
		select {
		case <-ctx.Done():
			return
		case m := <-q.messages:
			batch = append(batch, m)
		}
		for over := time.After(s.queue.Window); over != nil && len(batch) < s.queue.Batch; {
			select {
			case m := <-q.messages:
				batch = append(batch, m)
			case <-over:
				over = nil
			}
		}
		slots <- struct{}{}
		calls.Go(func() {
			defer func() { <-slots }()
			failed, _ := q.applier.Handle(ctx, batch) // messages that failed are delivered again
			for _, m := range batch {
				if slices.Contains(failed, m.ID) {
					q.messages <- m
				}
			}
		})
	}
}

// end returns the position in the feed after everything that was written so far.
func end(ctx context.Context, feed control.Feed) (after string, err error) {
	for {
		records, err := feed.Read(ctx, after, control.MaxPage)
		if err != nil || len(records) == 0 {
			return after, err
		}
		after = records[len(records)-1].Sequence
	}
}
