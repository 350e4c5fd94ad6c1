package events

import "fmt"

// Bounds of one PublishBatch call of SNS. MaxBatchBytes counts all messages and their attributes.
const (
	MaxBatchEntries = 10
	MaxBatchBytes   = 256 << 10

	// AttributeBytes is reserved for the attributes of each message: names, types and values. See [Attributes].
	AttributeBytes = 256
)

// Attributes returns the attributes of a message, all of them strings, so that a subscriber's filter can use them. They
// repeat what the event says.
func Attributes(h Header) map[string]string {
	return map[string]string{"type": string(h.Type), "version": fmt.Sprint(h.Version)}
}
