package sqsworker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sluicelimits/sluice/internal/testkit/mistake"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/pacer/sqsworker"
)

// Whatever the limit, the queue's delays and failures, and the time at which the worker is stopped: never are more
// messages received than units were leased (the queue checks this at each receive), never more are handled in a window
// than the limit allows, each receive of a message is one attempt to handle it or is given back at the end, and all
// units that were not used for an attempt are given back.
func TestNeverReceivesMoreThanItMaySend(t *testing.T) {
	for seed := range soak.Times(uint64(60)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomRun(t, rand.New(rand.NewPCG(seed, 23))) })
		})
	}
}

// attempts notes each attempt to handle a message.
type attempts struct {
	mu      sync.Mutex
	begun   map[string]int
	windows map[int64]int64 // units by window
	under   int             // handlers that run
	all     int64
}

func randomRun(t *testing.T, r *rand.Rand) {
	limit := pacer.Limit{Units: 2 + r.Int64N(40),
		Period: []time.Duration{200 * time.Millisecond, time.Second, 4 * time.Second}[r.IntN(3)]}
	cost := 1 + r.Int64N(2)
	q := &queue{delay: []time.Duration{0, 30 * time.Millisecond, 1300 * time.Millisecond}[r.IntN(3)]}
	a := &attempts{begun: map[string]int{}, windows: map[int64]int64{}}
	takes := []time.Duration{0, 100 * time.Millisecond, 3 * time.Second}[r.IntN(3)]
	failures := r.IntN(30) // percent
	var random sync.Mutex  // held to use r
	p, err := pacer.New(pacer.Config{Limit: limit, Smoothing: pacer.Smoothing(r.IntN(2))})
	if err != nil {
		t.Fatal(err)
	}
	q.mayReceive(p, cost)
	handle := func(ctx context.Context, m *types.Message) error {
		a.mu.Lock()
		a.begun[*m.Body]++
		a.windows[time.Now().UnixNano()/int64(limit.Period)] += cost
		a.under++
		a.all++
		a.mu.Unlock()
		defer func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.under--
		}()
		random.Lock()
		fails := r.IntN(100) < failures
		random.Unlock()
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			return ctx.Err()
		}
		if fails {
			return errors.New("the provider failed")
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan sqsworker.Counts, 1)
	config := sqsworker.Config{Client: q, Queue: "q", Pacer: p, Handle: handle, Cost: cost, Parallel: 1 + r.IntN(20),
		Visibility: time.Duration(10+r.IntN(20)) * time.Second,
		Log:        slog.New(slog.DiscardHandler)}
	go func() {
		counts, err := sqsworker.Run(ctx, config)
		if err != nil {
			t.Error(err)
		}
		done <- counts
	}()
	for range 1 + r.IntN(20) {
		random.Lock()
		n, wait, toggle := r.IntN(60), time.Duration(r.Int64N(int64(8*time.Second))), r.IntN(6) == 0
		random.Unlock()
		q.send(n)
		if toggle {
			q.mu.Lock()
			q.away = !q.away
			q.mu.Unlock()
		}
		<-time.After(wait)
	}
	cancel()
	counts := <-done
	synctest.Wait()
	p.Close()
	a.check(t, q, p, limit, cost, counts)
	q.check(t)
}

// check compares what was done with what the queue and the pacer counted.
func (a *attempts) check(t *testing.T, q *queue, p *pacer.Pacer, limit pacer.Limit, cost int64, c sqsworker.Counts) {
	if a.under != 0 {
		t.Errorf("%d handlers run after Run has returned", a.under)
	}
	for window, units := range a.windows {
		if units > limit.Units {
			t.Errorf("window %d: %d units of %d", window, units, limit.Units)
		}
	}
	without, received, deleted := 0, 0, 0
	for _, m := range q.all() {
		received += m.received
		without += m.received - a.begun[strconv.Itoa(m.id)]
		if m.deleted {
			deleted++
		}
	}
	// A message in which nobody was interested any more when its units came: at most as many as wait at once.
	if int64(without) > c.Failed || c.Received != int64(received) || c.Received != c.Deleted+c.Failed ||
		int64(without) < c.GivenBack {
		t.Errorf("%d messages were received and %d of them not handled; %+v", received, without, c)
	}
	if int64(deleted) < c.Deleted {
		t.Errorf("%d messages are deleted; %+v", deleted, c)
	}
	if s := p.Status(); s.Granted-s.Returned-s.Lost != a.all*cost {
		t.Errorf("%d units are used for %d attempts of %d: %+v", s.Granted-s.Returned-s.Lost, a.all, cost, s.Counts)
	}
}

// At least one test fails for each of these mistakes.
func TestMistakesAreFound(t *testing.T) {
	var all []mistake.Mistake
	for _, m := range [][3]string{
		{"more is received than there are units for", "w.receive(ctx, len(permits), wait)",
			"w.receive(ctx, mostAtOnce, wait)"},
		{"messages are received before there are units", "\tpermits, err := w.takeUnits(ctx, n)\n",
			"\t_, _ = w.receive(ctx, 1, 0)\n\tpermits, err := w.takeUnits(ctx, n)\n"},
		{"units without a message are kept", "\t\tpermits[i].Release()\n", ""},
		{"old units are used", "for !permit.InTime() {", "for false {"},
		{"a message that waits does not stay in flight",
			"go func() { extended <- w.keepInFlight(held, m, visible) }()", "_ = held\n\textended <- visible"},
		{"a message that fails is deleted", "if err := w.Handle(handling, m); err != nil {",
			"if err := w.Handle(handling, m); err != nil && handling.Err() != nil {"},
		{"a message that was handled is not deleted", "ReceiptHandle: m.ReceiptHandle,\n\t}); err",
			"ReceiptHandle: aws.String(\"0.0\"),\n\t}); err"},
		{"the end of Run ends handlers", "context.WithCancel(context.WithoutCancel(ctx))",
			"context.WithCancel(ctx)"},
		{"Run does not wait for handlers", "\tw.running.Wait()\n", ""},
		{"Drain has no effect", "time.AfterFunc(w.Drain, stop)", "_ = stop"},
		{"a message is not given back at the end", "if err != nil && w.setVisibility(ctx, m, 0) == nil {",
			"if err != nil && w.setVisibility(ctx, m, w.Visibility) == nil {"},
		{"an empty queue is asked again and again", "1, min(max(2*w.idle, firstIdle), w.Idle)", "1, firstIdle"},
		{"calls wait for messages longer than the units are good",
			"return min(max(time.Until(permit.UseBy())-time.Second, 0).Truncate(time.Second), longPoll)",
			"return longPoll"},
	} {
		all = append(all, mistake.Mistake{Name: m[0], File: "worker.go", Old: m[1], New: m[2]})
	}
	mistake.FindAll(t, all)
}
