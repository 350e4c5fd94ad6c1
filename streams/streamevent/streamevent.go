// Package streamevent handles the Lambda event of a DynamoDB stream, whose batches may fail in part.
package streamevent

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/sluicelimits/sluice/internal/control"
)

// Decoder decodes the records of a stream. *row.Decoder implements it.
type Decoder interface {
	Decode(event []byte) ([]control.Delivery, error)
}

// answer tells Lambda the first record of the shard that failed. Lambda delivers that record and all later ones again,
// so there is never more than one.
type answer struct {
	Failures []failure `json:"batchItemFailures"`
}

// failure names a record by its sequence number.
type failure struct {
	Sequence string `json:"itemIdentifier"`
}

// Invoke decodes the event, calls handle with its records, and answers in JSON. handle returns how many records are
// finished, and an error if the next one is not. Invoke itself returns an error if the event is not a batch of a
// stream, or if a record without a sequence number could not be kept as a dead letter. Lambda then delivers the whole
// batch again. The error begins with name.
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
