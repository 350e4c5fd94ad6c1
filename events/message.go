package events

import (
	"errors"
	"fmt"
)

// Bounds of one PublishBatch call of SNS. MaxBatchBytes counts all messages and their attributes.
const (
	MaxBatchEntries = 10
	MaxBatchBytes   = 256 << 10

	// AttributeBytes is reserved for the attributes of each message: names, types and values. See [Attributes].
	AttributeBytes = 256
)

// Message is an event, ready to be published.
type Message struct {
	Body       []byte
	Attributes map[string]string // see [Attributes]
}

// ErrRefused is wrapped by the error of a message that a topic will never accept.
var ErrRefused = errors.New("refused by the topic")

// Attributes returns the attributes of a message, all of them strings, so that a subscriber's filter can use them. They
// repeat what the event says.
func Attributes(h Header) map[string]string {
	return map[string]string{"type": string(h.Type), "version": fmt.Sprint(h.Version)}
}
