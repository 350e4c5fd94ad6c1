package sqsworker_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/pacer/sqsworker"
)

// counted handles messages, and counts them by second.
type counted struct {
	mu      sync.Mutex
	seconds map[int64]int
	handled map[string]int
	fail    func(id string) bool
	takes   time.Duration // of handling a message
	ended   int           // handlers whose context ended before they did
}

func (c *counted) handle(ctx context.Context, m *types.Message) error {
	c.mu.Lock()
	c.seconds[time.Now().Unix()]++
	c.handled[*m.Body]++
	failed := c.fail != nil && c.fail(*m.Body)
	takes := c.takes
	c.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ended++
		return ctx.Err()
	}
	if failed {
		return errors.New("the provider failed")
	}
	return nil
}

// mostInASecond returns the largest number of messages that were begun in a second.
func (c *counted) mostInASecond() (most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.seconds {
		most = max(most, n)
	}
	return most
}

// running is a worker that runs until stop.
type running struct {
	*counted

	p      *pacer.Pacer
	cancel context.CancelFunc
	done   chan struct{}
	counts sqsworker.Counts // once done is closed
}

// runWorker runs a worker until the test ends, or until stop.
func runWorker(t *testing.T, limit pacer.Limit, q *queue, bend func(*sqsworker.Config, *pacer.Config)) *running {
	t.Helper()
	of := pacer.Config{Limit: limit}
	r := &running{counted: &counted{seconds: map[int64]int{}, handled: map[string]int{}}, done: make(chan struct{})}
	config := sqsworker.Config{Client: q, Queue: "https://queue.test/1", Handle: r.handle,
		Log: slog.New(slog.DiscardHandler)}
	if bend != nil {
		bend(&config, &of)
	}
	var err error
	if r.p, err = pacer.New(of); err != nil {
		t.Fatal(err)
	}
	q.mayReceive(r.p, max(config.Cost, 1))
	config.Pacer = r.p
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(t.Context())
	go func() {
		defer close(r.done)
		counts, err := sqsworker.Run(ctx, config)
		if r.counts = counts; err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() {
		r.stop()
		r.p.Close()
		q.check(t)
	})
	return r
}

// stop ends the worker, and waits until it has ended.
func (r *running) stop() {
	r.cancel()
	<-r.done
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// A backlog of several minutes is handled at the limit, and each message is received once. So waiting does not bring
// messages closer to the dead-letter queue.
func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{delay: 20 * time.Millisecond, mostReceives: 1}
		messages := 3000
		if soak.RaceEnabled { // with so many, the race detector of Go 1.26 itself crashes in one run of three
			messages = 100
		}
		q.send(messages)
		r := runWorker(t, pacer.PerSecond(20), q, nil)
		pass(160 * time.Second)
		if n := r.mostInASecond(); n > 20 {
			t.Errorf("%d messages in a second, want at most 20", n)
		}
		for _, m := range q.all() {
			if m.received != 1 || !m.deleted || r.handled[strconv.Itoa(m.id)] != 1 {
				t.Fatalf("message %d was received %d times and handled %d times; deleted: %t", m.id, m.received,
					r.handled[strconv.Itoa(m.id)], m.deleted)
			}
		}
	})
}

// The worker asks an empty queue once per second, or waits with SQS if windows are long. It holds no units between the
// calls, and handles a new message within a second.
func TestEmptyQueue(t *testing.T) {
	for name, tt := range map[string]struct {
		limit pacer.Limit
		most  int // calls in 200 s
	}{
		"windows of a second": {pacer.PerSecond(5), 215},
		"windows of a minute": {pacer.Limit{Units: 5, Period: time.Minute}, 60},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &queue{}
				r := runWorker(t, tt.limit, q, nil)
				pass(200 * time.Second)
				if n := q.calls(); n > tt.most {
					t.Errorf("%d receives of an empty queue in 200 s, want at most %d", n, tt.most)
				}
				if s := r.p.Status(); s.Used > 1 || s.Granted-s.Returned-s.Lost > 1 {
					t.Errorf("%d units are used for an empty queue; %+v", s.Used, s.Counts)
				}
				q.send(1)
				pass(1100 * time.Millisecond)
				r.mu.Lock()
				defer r.mu.Unlock()
				if r.handled["0"] != 1 {
					t.Error("a message was not handled within a second")
				}
			})
		})
	}
}

// A message whose handling fails is received again after its visibility timeout. It does not delay other messages. A
// message that always fails becomes a dead letter by the queue's own rule.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{mostReceives: 3}
		q.send(50)
		r := runWorker(t, pacer.PerSecond(100), q, func(c *sqsworker.Config, _ *pacer.Config) {
			failures := 0
			r := c.Handle
			c.Handle = func(ctx context.Context, m *types.Message) error {
				if err := r(ctx, m); err != nil || *m.Body == "9" {
					return errors.Join(err, errors.New("the message makes no sense"))
				}
				if *m.Body == "7" && failures == 0 {
					failures++
					return errors.New("the provider failed")
				}
				return nil
			}
		})
		pass(10 * time.Second)
		for _, m := range q.all() {
			if m.deleted == (m.id == 7 || m.id == 9) {
				t.Errorf("message %d: deleted is %t", m.id, m.deleted)
			}
		}
		pass(2 * time.Minute)
		all := q.all()
		if m := all[7]; !m.deleted || m.received != 2 {
			t.Errorf("the message that failed once was received %d times; deleted: %t", m.received, m.deleted)
		}
		if m := all[9]; !m.dead || m.received != 3 {
			t.Errorf("the message that always fails was received %d times; a dead letter: %t", m.received, m.dead)
		}
		r.stop()
		if c := r.counts; c.Received != 53 || c.Deleted != 49 || c.Failed != 4 || c.BadCalls != 0 || c.GivenBack != 0 {
			t.Errorf("counts: %+v", c)
		}
	})
}

// The worker keeps asking a queue that is unavailable, with longer and longer pauses, and loses no units by that.
func TestQueueAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{away: true}
		q.send(10)
		r := runWorker(t, pacer.PerSecond(10), q, nil)
		pass(10 * time.Minute)
		if n := q.calls(); n < 5 || n > 20 {
			t.Errorf("a queue that is away was asked %d times in 10 minutes", n)
		}
		q.setAway(false)
		if s := r.p.Status(); s.Granted != s.Returned+s.Lost {
			t.Errorf("of %d units, %d were given back", s.Granted, s.Returned)
		}
		pass(2 * time.Minute)
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.handled) != 10 {
			t.Errorf("%d of 10 messages were handled", len(r.handled))
		}
	})
}

// If a receive takes longer than the window of its permits, the worker takes new units before it handles the messages.
func TestSlowReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{delay: 1500 * time.Millisecond}
		q.send(40)
		r := runWorker(t, pacer.PerSecond(4), q, nil)
		pass(2 * time.Minute)
		if n := r.mostInASecond(); n > 4 {
			t.Errorf("%d messages in a second, want at most 4", n)
		}
		for _, m := range q.all() {
			if !m.deleted || m.received != 1 {
				t.Errorf("message %d was received %d times; deleted: %t", m.id, m.received, m.deleted)
			}
		}
	})
}

// A message that was received, and whose units are no longer good, stays in flight until there are new units, for many
// visibility timeouts. It is not received again, and is handled in time.
func TestLongWaitKeepsMessageInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{delay: 8 * time.Second, mostReceives: 1}
		pass(52*time.Second + 10*time.Millisecond) // the receive ends in the next window
		q.send(1)
		r := runWorker(t, pacer.Limit{Units: 1, Period: time.Minute}, q, func(c *sqsworker.Config, _ *pacer.Config) {
			c.Visibility = 10 * time.Second
		})
		pass(time.Second)
		if _, err := r.p.Enqueue("other", 1, pacer.Forever, pacer.WakerFunc(func(pacer.Permit, error) {})); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute) // another request has the only unit of the window that began meanwhile
		if m := q.all()[0]; m.received != 1 || m.deleted || m.dead {
			t.Errorf("received %d times; deleted: %t; dead: %t", m.received, m.deleted, m.dead)
		}
		pass(time.Minute)
		if m := q.all()[0]; m.received != 1 || !m.deleted || r.handled["0"] != 1 {
			t.Errorf("received %d times, handled %d times; deleted: %t", m.received, r.handled["0"], m.deleted)
		}
	})
}

// While the queue is unavailable, a visibility timeout that cannot be extended is tried again with pauses, and the
// message is received again once its timeout has ended.
func TestVisibilityCannotBeExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{delay: 8 * time.Second}
		pass(52*time.Second + 10*time.Millisecond) // the receive ends in the next window
		q.send(1)
		r := runWorker(t, pacer.Limit{Units: 1, Period: time.Minute}, q, nil)
		pass(time.Second)
		if _, err := r.p.Enqueue("other", 1, pacer.Forever, pacer.WakerFunc(func(pacer.Permit, error) {})); err != nil {
			t.Fatal(err)
		}
		pass(8 * time.Second) // the message has arrived and waits for units
		q.setAway(true)
		pass(40 * time.Second) // longer than its visibility timeout, 30 s
		q.setAway(false)
		if n := q.visibilityCalls(); n < 2 || n > 10 {
			t.Errorf("the visibility timeout was changed or tried %d times in 40 s, want 2 to 10", n)
		}
		pass(2 * time.Minute)
		if m := q.all()[0]; !m.deleted || m.received != 2 {
			t.Errorf("received %d times, want 2; deleted: %t", m.received, m.deleted)
		}
	})
}

// When Run ends, messages that are being handled are finished and deleted, and nothing more is received. A message that
// still waits for units is visible again at once.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{}
		r := runWorker(t, pacer.PerSecond(5), q, func(*sqsworker.Config, *pacer.Config) {})
		r.mu.Lock()
		r.takes = 5 * time.Second
		r.mu.Unlock()
		q.send(100) // after takes is set, which the first handler reads
		pass(1500 * time.Millisecond)
		began := time.Now()
		r.stop()
		if took := time.Since(began); took < 3*time.Second || took > 5*time.Second {
			t.Errorf("the worker ended after %s, want when the last message is handled", took)
		}
		if c := r.counts; c.Received != 10 || c.Deleted != 10 || r.ended != 0 {
			t.Errorf("counts: %+v; %d handlers were ended", c, r.ended)
		}
	})
	synctest.Test(t, func(t *testing.T) { // handlers that take too long are ended
		q := &queue{}
		r := runWorker(t, pacer.PerSecond(5), q, func(c *sqsworker.Config, _ *pacer.Config) { c.Drain = time.Second })
		r.mu.Lock()
		r.takes = 20 * time.Second
		r.mu.Unlock()
		q.send(1) // after takes is set, which the first handler reads
		pass(1500 * time.Millisecond)
		began := time.Now()
		r.stop()
		if took := time.Since(began); took != time.Second || r.ended != 1 || r.counts.Failed != 1 {
			t.Errorf("the worker ended after %s, and ended %d handlers; %+v", took, r.ended, r.counts)
		}
	})
	synctest.Test(t, func(t *testing.T) { // a message without units
		q := &queue{delay: 8 * time.Second}
		pass(52*time.Second + 10*time.Millisecond)
		q.send(1)
		r := runWorker(t, pacer.Limit{Units: 1, Period: time.Minute}, q, nil)
		pass(time.Second)
		if _, err := r.p.Enqueue("other", 1, pacer.Forever, pacer.WakerFunc(func(pacer.Permit, error) {})); err != nil {
			t.Fatal(err)
		}
		pass(20 * time.Second)
		r.stop()
		if m := q.all()[0]; r.counts.GivenBack != 1 || r.handled["0"] != 0 || time.Now().Before(m.invisible) {
			t.Errorf("%+v; handled %d times; visible at %s", r.counts, r.handled["0"], m.invisible)
		}
	})
}

// awayLedger is a ledger that can be unavailable.
type awayLedger struct {
	pacer.Ledger

	mu   sync.Mutex
	away bool
}

func (l *awayLedger) set(away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = away
}

func (l *awayLedger) Claim(ctx context.Context, key string, c ledger.Claim) (ledger.Lease, error) {
	l.mu.Lock()
	away := l.away
	l.mu.Unlock()
	if away {
		return ledger.Lease{}, errors.New("the store is away")
	}
	return l.Ledger.Claim(ctx, key, c)
}

// Workers that share a limit stay under it together. While the store is away, they receive nothing: the messages wait
// in the queue, and no receive is counted.
func TestStoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{mostReceives: 1, delay: 10 * time.Millisecond}
		l := &awayLedger{Ledger: pacer.NewMemoryLedger()}
		var all []*running
		for range 3 {
			all = append(all, runWorker(t, pacer.PerSecond(30), q, func(_ *sqsworker.Config, c *pacer.Config) {
				c.Shared = &pacer.Shared{Ledger: l, Key: "provider"}
			}))
		}
		messages := 1000
		if soak.RaceEnabled { // see TestBacklog
			messages = 500
		}
		q.send(messages)
		pass(10 * time.Second)
		l.set(true)
		pass(5 * time.Second) // what was leased before may be spent
		before := q.calls()
		pass(5 * time.Minute)
		if n := q.calls() - before; n != 0 || q.waiting() == 0 {
			t.Errorf("%d receives while the store is away; %d messages wait", n, q.waiting())
		}
		l.set(false)
		pass(time.Minute)
		seconds, handled := map[int64]int{}, 0
		for _, r := range all {
			for second, n := range r.seconds {
				seconds[second] += n
				handled += n
			}
		}
		for second, n := range seconds {
			if n > 30 {
				t.Errorf("second %d: %d messages, want at most 30", second, n)
			}
		}
		if handled != messages || q.waiting() != 0 {
			t.Errorf("%d of %d messages were handled, and %d wait", handled, messages, q.waiting())
		}
	})
}

func TestRefuses(t *testing.T) {
	p, err := pacer.New(pacer.Config{Limit: pacer.PerSecond(10)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for want, bend := range map[string]func(*sqsworker.Config){
		"needs Client":     func(c *sqsworker.Config) { c.Queue = "" },
		"cost of -1":       func(c *sqsworker.Config) { c.Cost = -1 },
		"Parallel of -1":   func(c *sqsworker.Config) { c.Parallel = -1 },
		"timeout of 9s":    func(c *sqsworker.Config) { c.Visibility = 9 * time.Second },
		"timeout of 10.5s": func(c *sqsworker.Config) { c.Visibility = 10500 * time.Millisecond },
		"Drain of 31s":     func(c *sqsworker.Config) { c.Drain = 31 * time.Second },
		"Idle of 1ms":      func(c *sqsworker.Config) { c.Idle = time.Millisecond },
		"above the limit":  func(c *sqsworker.Config) { c.Cost = 11 },
	} {
		c := sqsworker.Config{Client: &queue{}, Queue: "q", Pacer: p,
			Handle: func(context.Context, *types.Message) error { return nil }}
		bend(&c)
		if _, err := sqsworker.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run: %v, want %q", err, want)
		}
	}
}
