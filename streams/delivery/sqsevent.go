package delivery

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// MaxMessages is how many messages one event may have if the event source has a batch window.
const MaxMessages = 10_000

const maxIDBytes = 100 // of a message's id, as the documentation of SQS says

// ErrMalformed is wrapped by the error of ParseMessages.
var ErrMalformed = errors.New("malformed SQS event")

// Message is a message of the queue. The subscription must use raw delivery, so that the body is what was published.
type Message struct {
	ID   string // identifies the message to SQS, for another delivery
	Body []byte

	Receipt  string // handle of this receive; "" if the event has none
	Receives int    // how often the message was received, this receive included; 0 if the event does not say
}

// Delay says when a received message becomes visible again.
type Delay struct {
	Receipt string        // of the message's latest receive
	After   time.Duration // in whole seconds, 0 to 12 h
}

// ParseMessages reads an event and ignores fields that it does not need. The error names the message by its index, from
// 0.
func ParseMessages(event []byte) ([]Message, error) {
	var batch struct {
		Records []struct {
			MessageID   string  `json:"messageId"`
			EventSource string  `json:"eventSource"`
			Body        *string `json:"body"`
			Receipt     string  `json:"receiptHandle"`
			Attributes  struct {
				Receives string `json:"ApproximateReceiveCount"`
			} `json:"attributes"`
		}
	}
	if err := json.Unmarshal(event, &batch); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if batch.Records == nil {
		return nil, fmt.Errorf("%w: no Records", ErrMalformed)
	}
	if len(batch.Records) > MaxMessages {
		return nil, fmt.Errorf("%w: %d messages, want at most %d", ErrMalformed, len(batch.Records), MaxMessages)
	}
	messages := make([]Message, len(batch.Records))
	seen := make(map[string]bool, len(batch.Records))
	for i, r := range batch.Records {
		switch {
		case r.EventSource != "aws:sqs":
			return nil, fmt.Errorf("%w: message %d comes from %.40q, want aws:sqs", ErrMalformed, i, r.EventSource)
		case r.MessageID == "" || len(r.MessageID) > maxIDBytes:
			return nil, fmt.Errorf("%w: message %d has an id of %d bytes, want 1..%d", ErrMalformed, i,
				len(r.MessageID), maxIDBytes)
		case seen[r.MessageID]:
			return nil, fmt.Errorf("%w: message %d has the id of another", ErrMalformed, i)
		case r.Body == nil:
			return nil, fmt.Errorf("%w: message %d has no body", ErrMalformed, i)
		}
		seen[r.MessageID] = true
		receives, err := strconv.Atoi(r.Attributes.Receives)
		if err != nil {
			receives = 0
		}
		messages[i] = Message{ID: r.MessageID, Body: []byte(*r.Body), Receipt: r.Receipt, Receives: receives}
	}
	return messages, nil
}

// Answer returns the answer of a function whose batches may fail in part. Lambda delivers what has these ids again:
// messages of a queue, or the record of a stream with this sequence number and all later ones of its shard.
func Answer(failed []string) ([]byte, error) {
	type failure struct {
		ID string `json:"itemIdentifier"`
	}
	answer := struct {
		Failures []failure `json:"batchItemFailures"`
	}{make([]failure, 0, len(failed))}
	for _, id := range failed {
		answer.Failures = append(answer.Failures, failure{id})
	}
	return json.Marshal(answer)
}
