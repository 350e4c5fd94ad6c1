package events

import "fmt"

// Bounds of one PublishBatch call of SNS. MaxBatchBytes counts all messages and their attributes.
const (
	MaxBatchEntries = 10
	MaxBatchBytes   = 256 << 10

	// AttributeBytes is reserved for the attributes of each message: names, types and values. See [Attributes].
	AttributeBytes = 256
)

// Batch stands for the messages From..To-1 of a list.
type Batch struct{ From, To int }

// Batches cuts a list of messages into as few batches as possible without changing the order. Each batch fits into one
// PublishBatch call. If a message fits into no batch, the error wraps ErrTooLarge and names the message. Events that
// [Encode] returns always fit, except audit records.
func Batches(messages [][]byte) ([]Batch, error) {
	var batches []Batch
	size := 0
	for i, m := range messages {
		n := len(m) + AttributeBytes
		if n > MaxBatchBytes {
			return nil, fmt.Errorf("%w: message %d has %d bytes, want at most %d", ErrTooLarge, i, len(m),
				MaxBatchBytes-AttributeBytes)
		}
		size += n
		if last := len(batches) - 1; last >= 0 && size <= MaxBatchBytes && i-batches[last].From < MaxBatchEntries {
			batches[last].To = i + 1
			continue
		}
		batches = append(batches, Batch{i, i + 1})
		size = n
	}
	return batches, nil
}

// Attributes returns the attributes of a message, all of them strings, so that a subscriber's filter can use them. They
// repeat what the event says.
func Attributes(h Header) map[string]string {
	return map[string]string{"type": string(h.Type), "version": fmt.Sprint(h.Version)}
}
