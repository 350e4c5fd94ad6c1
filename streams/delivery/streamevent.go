package delivery

import (
	"context"
	"fmt"

	"github.com/sluicelimits/sluice/internal/control"
)

// Decoder decodes the records of a stream. *dynamo.Decoder implements it.
type Decoder interface {
	Decode(event []byte) ([]control.Delivery, error)
}

// InvokeStream decodes the event, calls handle with its records, and answers in JSON. handle returns how many records
// are finished, and an error if the next one is not. InvokeStream itself returns an error if the event is not a batch
// of a stream, or if a record without a sequence number could not be kept as a dead letter. Lambda then delivers the
// whole batch again. The error begins with name.
func InvokeStream(ctx context.Context, name string, d Decoder, event []byte,
	handle func(context.Context, []control.Delivery) (int, error)) ([]byte, error) {
	deliveries, err := d.Decode(event)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var failed []string
	if done, err := handle(ctx, deliveries); err != nil {
		sequence := deliveries[done].Sequence
		if sequence == "" {
			return nil, fmt.Errorf("%s: a record without a sequence number: %w", name, err)
		}
		failed = append(failed, sequence)
	}
	return Answer(failed)
}
