package sqsworker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sluicelimits/sluice/pacer"
)

// queue is a standard queue of SQS in virtual time: visibility timeouts, receive counts, and a redrive policy, by its
// own count. It also checks that its clients never receive more messages than they have units for.
type queue struct {
	mostReceives int           // a message that was received so often is a dead letter instead of being received again
	delay        time.Duration // of a receive, before and after SQS looks for messages: half each

	mu        sync.Mutex
	messages  []*message
	receives  int  // calls
	changes   int  // calls of ChangeMessageVisibility
	delivered int  // messages, each time that they were received
	away      bool // the queue is unavailable: calls fail
	pacers    []*pacer.Pacer
	cost      int64
	wrong     []string
}

type message struct {
	id        int
	received  int
	invisible time.Time // until then
	deleted   bool
	dead      bool // a dead letter
}

// mayReceive adds a pacer whose units are for messages of the queue, each of the given cost.
func (q *queue) mayReceive(p *pacer.Pacer, cost int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pacers, q.cost = append(q.pacers, p), cost
}

func (q *queue) send(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for range n {
		q.messages = append(q.messages, &message{id: len(q.messages)})
	}
}

func (q *queue) calls() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.receives
}

// visibilityCalls returns how many calls of ChangeMessageVisibility there were.
func (q *queue) visibilityCalls() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.changes
}

// setAway makes the queue unavailable, or available again.
func (q *queue) setAway(away bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.away = away
}

// all returns copies of all messages that were sent.
func (q *queue) all() []message {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := make([]message, len(q.messages))
	for i, m := range q.messages {
		all[i] = *m
	}
	return all
}

// waiting returns how many messages were never received.
func (q *queue) waiting() int {
	all := q.all()
	return len(slices.DeleteFunc(all, func(m message) bool { return m.received > 0 }))
}

// check fails the test if a client did what it must not do.
func (q *queue) check(t *testing.T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.wrong) > 0 {
		t.Errorf("%d mistakes: %s", len(q.wrong), strings.Join(q.wrong[:min(5, len(q.wrong))], "; "))
	}
}

func (q *queue) failIf(is bool, format string, args ...any) {
	if is {
		q.wrong = append(q.wrong, fmt.Sprintf(format, args...))
	}
}

var errAway = errors.New("the queue is away")

func (q *queue) ReceiveMessage(
	ctx context.Context, in *sqs.ReceiveMessageInput, _ ...func(*sqs.Options),
) (*sqs.ReceiveMessageOutput, error) {
	q.mu.Lock()
	q.receives++
	delay := q.delay
	q.failIf(in.MaxNumberOfMessages < 1 || in.MaxNumberOfMessages > 10, "a receive of %d messages",
		in.MaxNumberOfMessages)
	q.failIf(in.WaitTimeSeconds < 0 || in.WaitTimeSeconds > 20, "a receive that waits %d s", in.WaitTimeSeconds)
	q.mu.Unlock()
	<-time.After(delay / 2)
	end := time.Now().Add(time.Duration(in.WaitTimeSeconds) * time.Second)
	for {
		out, err := q.take(int(in.MaxNumberOfMessages), time.Duration(in.VisibilityTimeout)*time.Second)
		if err != nil || len(out.Messages) > 0 || !time.Now().Before(end) {
			<-time.After(delay - delay/2)
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
		return nil, errAway
	}
	out := &sqs.ReceiveMessageOutput{}
	for _, m := range q.messages {
		if len(out.Messages) == n {
			break
		}
		if m.deleted || m.dead || time.Now().Before(m.invisible) {
			continue
		}
		if q.mostReceives > 0 && m.received >= q.mostReceives {
			m.dead = true
			continue
		}
		m.received++
		m.invisible = time.Now().Add(visibility)
		id, handle := strconv.Itoa(m.id), fmt.Sprintf("%d.%d", m.id, m.received)
		out.Messages = append(out.Messages, types.Message{MessageId: &id, ReceiptHandle: &handle, Body: &id})
	}
	q.delivered += len(out.Messages)
	var units int64 // that were leased, and not given back in time to be leased again
	for _, p := range q.pacers {
		s := p.Status()
		units += s.Granted - s.Returned
	}
	q.failIf(int64(q.delivered)*q.cost > units, "%d messages were received, with %d units", q.delivered, units)
	return out, nil
}

// messageOf returns the message of a receipt handle, or nil if the message was received again since.
func (q *queue) messageOf(handle *string) *message {
	text, receive, _ := strings.Cut(aws.ToString(handle), ".")
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	if m := q.messages[n]; strconv.Itoa(m.received) == receive {
		return m
	}
	return nil
}

func (q *queue) DeleteMessage(
	_ context.Context, in *sqs.DeleteMessageInput, _ ...func(*sqs.Options),
) (*sqs.DeleteMessageOutput, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.away {
		return nil, errAway
	}
	if m := q.messageOf(in.ReceiptHandle); m != nil {
		q.failIf(m.deleted, "message %d is deleted twice", m.id)
		m.deleted = true
	}
	return &sqs.DeleteMessageOutput{}, nil
}

func (q *queue) ChangeMessageVisibility(
	_ context.Context, in *sqs.ChangeMessageVisibilityInput, _ ...func(*sqs.Options),
) (*sqs.ChangeMessageVisibilityOutput, error) {
	<-time.After(10 * time.Millisecond) // the round trip
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changes++
	m := q.messageOf(in.ReceiptHandle)
	if q.away || m == nil || m.deleted || !time.Now().Before(m.invisible) {
		return nil, errors.New("the message is not in flight")
	}
	m.invisible = time.Now().Add(time.Duration(in.VisibilityTimeout) * time.Second)
	return &sqs.ChangeMessageVisibilityOutput{}, nil
}
