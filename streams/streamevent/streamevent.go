// Package streamevent is how a function answers the event of a DynamoDB stream whose batches may fail in part.
package streamevent

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/sluicelimits/sluice/internal/control"
)

// Decoder reads what a stream brings; a *streamrecord.Decoder is one.
type Decoder interface {
	Decode(event []byte) ([]control.Delivery, error)
}

// answer is what Lambda reads: the first record of the shard that is to come again. Lambda goes on from the lowest one
// that is named, so there is never another.
type answer struct {
	Failures []failure `json:"batchItemFailures"`
}

// failure names a record by its sequence number.
type failure struct {
	Sequence string `json:"itemIdentifier"`
}

// Invoke decodes the event, has handle take its records, and answers in JSON. handle returns how many are done with,
// and an error where the one after them is not. An error of Invoke begins with name and has Lambda deliver the whole
// batch again: it is for what is no batch, and for a record without a sequence number that could not even be kept.
func Invoke(ctx context.Context, name string, d Decoder, event []byte,
	handle func(context.Context, []control.Delivery) (int, error)) ([]byte, error) {
	deliveries, err := d.Decode(event)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	a := answer{Failures: []failure{}}
	if done, err := handle(ctx, deliveries); err != nil {
		sequence := deliveries[done].Sequence
		if sequence == "" {
			return nil, fmt.Errorf("%s: a record without a sequence number: %w", name, err)
		}
		a.Failures = append(a.Failures, failure{sequence})
	}
	return json.Marshal(a)
}
