package sqsworker_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/pacer/sqsworker"
)

// queue is a queue of SQS in virtual time.
type queue struct {
	mu       sync.Mutex
	messages []*message
	receives int           // calls
	away     bool          // the queue is unavailable: calls fail
	delay    time.Duration // of a receive
}

type message struct {
	id        int
	received  int
	invisible time.Time // until then
	deleted   bool
}

func (q *queue) send(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for range n {
		q.messages = append(q.messages, &message{id: len(q.messages)})
	}
}

func (q *queue) ReceiveMessage(
	ctx context.Context, in *sqs.ReceiveMessageInput, _ ...func(*sqs.Options),
) (*sqs.ReceiveMessageOutput, error) {
	end := time.Now().Add(time.Duration(in.WaitTimeSeconds) * time.Second)
	q.mu.Lock()
	q.receives++
	delay := q.delay
	q.mu.Unlock()
	if delay > 0 {
		<-time.After(delay)
	}
	for {
		out, err := q.take(int(in.MaxNumberOfMessages), time.Duration(in.VisibilityTimeout)*time.Second)
		if err != nil || len(out.Messages) > 0 || !time.Now().Before(end) {
			return out, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (q *queue) take(n int, visibility time.Duration) (*sqs.ReceiveMessageOutput, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.away {
		return nil, errors.New("the queue is away")
	}
	out := &sqs.ReceiveMessageOutput{}
	for _, m := range q.messages {
		if len(out.Messages) == n {
			break
		}
		if m.deleted || time.Now().Before(m.invisible) {
			continue
		}
		m.received++
		m.invisible = time.Now().Add(visibility)
		id := strconv.Itoa(m.id)
		out.Messages = append(out.Messages, types.Message{MessageId: &id, ReceiptHandle: &id, Body: &id})
	}
	return out, nil
}

func (q *queue) of(handle *string) *message {
	n, err := strconv.Atoi(aws.ToString(handle))
	if err != nil {
		panic(err)
	}
	return q.messages[n]
}

func (q *queue) DeleteMessage(
	_ context.Context, in *sqs.DeleteMessageInput, _ ...func(*sqs.Options),
) (*sqs.DeleteMessageOutput, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of(in.ReceiptHandle).deleted = true
	return &sqs.DeleteMessageOutput{}, nil
}

func (q *queue) ChangeMessageVisibility(
	_ context.Context, in *sqs.ChangeMessageVisibilityInput, _ ...func(*sqs.Options),
) (*sqs.ChangeMessageVisibilityOutput, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of(in.ReceiptHandle).invisible = time.Now().Add(time.Duration(in.VisibilityTimeout) * time.Second)
	return &sqs.ChangeMessageVisibilityOutput{}, nil
}

// counted handles messages, and counts them by second.
type counted struct {
	mu      sync.Mutex
	seconds map[int64]int
	handled map[string]int
	fail    func(id string) bool
}

func (c *counted) handle(_ context.Context, m *types.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seconds[time.Now().Unix()]++
	c.handled[*m.Body]++
	if c.fail != nil && c.fail(*m.Body) {
		return errors.New("the provider failed")
	}
	return nil
}

// work runs a worker until the test ends.
func work(t *testing.T, limit int64, q *queue, bend func(*sqsworker.Config)) (*counted, *pacer.Pacer) {
	t.Helper()
	p, err := pacer.New(pacer.Config{Limit: pacer.PerSecond(limit)})
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{seconds: map[int64]int{}, handled: map[string]int{}}
	config := sqsworker.Config{Client: q, Queue: "https://queue.test/1", Pacer: p, Handle: c.handle}
	if bend != nil {
		bend(&config)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- sqsworker.Run(ctx, config) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		p.Close()
	})
	return c, p
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// A backlog of several minutes is handled at the limit, and each message is received once. So waiting does not bring
// messages closer to the dead-letter queue.
func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{delay: 20 * time.Millisecond}
		q.send(3000)
		c, _ := work(t, 20, q, nil)
		pass(160 * time.Second)
		c.mu.Lock()
		defer c.mu.Unlock()
		for second, n := range c.seconds {
			if n > 20 {
				t.Errorf("second %d: %d messages, want at most 20", second, n)
			}
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, m := range q.messages {
			if m.received != 1 || !m.deleted || c.handled[strconv.Itoa(m.id)] != 1 {
				t.Fatalf("message %d was received %d times and handled %d times; deleted: %t", m.id, m.received,
					c.handled[strconv.Itoa(m.id)], m.deleted)
			}
		}
	})
}

// The worker polls an empty queue for as long as SQS allows, and holds no units meanwhile. It handles a new message at
// once.
func TestEmptyQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{}
		c, p := work(t, 5, q, nil)
		pass(200 * time.Second)
		if q.receives > 15 {
			t.Errorf("%d receives of an empty queue in 200 s", q.receives)
		}
		if s := p.Status(); s.Used != 0 {
			t.Errorf("%d units are held for an empty queue", s.Used)
		}
		q.send(1)
		pass(200 * time.Millisecond)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.handled["0"] != 1 {
			t.Error("a message was not handled at once")
		}
	})
}

// A message whose handling fails is received again after its visibility timeout. It does not delay other messages.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{}
		q.send(50)
		c, _ := work(t, 100, q, nil)
		failures := 0
		c.mu.Lock()
		c.fail = func(id string) bool { failures++; return id == "7" && failures <= 50 }
		c.mu.Unlock()
		pass(10 * time.Second)
		q.mu.Lock()
		for _, m := range q.messages {
			if m.deleted == (m.id == 7) {
				t.Errorf("message %d: deleted is %t", m.id, m.deleted)
			}
		}
		q.mu.Unlock()
		pass(60 * time.Second)
		q.mu.Lock()
		defer q.mu.Unlock()
		if m := q.messages[7]; !m.deleted || m.received != 2 {
			t.Errorf("the message that failed was received %d times; deleted: %t", m.received, m.deleted)
		}
	})
}

// The worker keeps asking a queue that is unavailable, with longer and longer pauses, and loses no units by that.
func TestQueueAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{away: true}
		q.send(10)
		c, p := work(t, 10, q, nil)
		pass(10 * time.Minute)
		q.mu.Lock()
		if q.receives < 5 || q.receives > 20 {
			t.Errorf("a queue that is away was asked %d times in 10 minutes", q.receives)
		}
		q.away = false
		q.mu.Unlock()
		if s := p.Status(); s.Granted != s.Returned+s.Lost {
			t.Errorf("of %d units, %d were given back", s.Granted, s.Returned)
		}
		pass(2 * time.Minute)
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.handled) != 10 {
			t.Errorf("%d of 10 messages were handled", len(c.handled))
		}
	})
}

// If a receive takes longer than the window of its permits, the worker takes new units before it handles the messages.
func TestSlowReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{delay: 1500 * time.Millisecond}
		q.send(40)
		c, _ := work(t, 4, q, nil)
		pass(2 * time.Minute)
		c.mu.Lock()
		defer c.mu.Unlock()
		for second, n := range c.seconds {
			if n > 4 {
				t.Errorf("second %d: %d messages, want at most 4", second, n)
			}
		}
		if len(c.handled) != 40 {
			t.Errorf("%d of 40 messages were handled", len(c.handled))
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
		"above the limit":  func(c *sqsworker.Config) { c.Cost = 11 },
	} {
		c := sqsworker.Config{Client: &queue{}, Queue: "q", Pacer: p,
			Handle: func(context.Context, *types.Message) error { return nil }}
		bend(&c)
		if err := sqsworker.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run: %v, want %q", err, want)
		}
	}
}
