package events

import "fmt"

// Bounds of one PublishBatch of SNS. The bytes are those of all messages and their attributes.
const (
	MaxBatchEntries = 10
	MaxBatchBytes   = 256 << 10

	// AttributeBytes is set aside for the attributes of each message: names, types and values, see [Attributes].
	AttributeBytes = 256
)

// Batch is the messages From..To-1 of a list.
type Batch struct{ From, To int }

// Batches cuts a list of messages into as few batches as there can be without changing the order. Each fits into one
// PublishBatch. The error wraps ErrTooLarge and names the message that fits into none, which an event of [Encode]
// always does unless it is an audit record.
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

// Attributes are those that a message carries beside the event, all of them strings, so that a subscriber's filter can
// go by them. They never say what the event does not.
func Attributes(h Header) map[string]string {
	return map[string]string{"type": string(h.Type), "version": fmt.Sprint(h.Version)}
}
