package balancer

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// Invoke handles what Lambda calls with, a batch of the stream or the schedule's event, and answers in JSON. The
// balancer itself does not read the records, which only say that it is time to look: one that cannot be read is the
// publisher's to keep, and stops nothing. The error has Lambda call again.
//
// On the schedule it also waits for the end of a grace that is near enough, since schedules come once a minute.
func (b *Balancer) Invoke(ctx context.Context, event []byte) (answer []byte, err error) {
	var stream struct{ Records []json.RawMessage }
	_ = json.Unmarshal(event, &stream) // whatever it is, it is time to look
	answer = []byte(`{"batchItemFailures":[]}`)
	var unpublished error
	if len(stream.Records) > 0 && b.c.Publish != nil {
		answer, unpublished = b.c.Publish(ctx, event)
	}
	r, err := b.Run(ctx)
	for err == nil && len(stream.Records) == 0 && b.wait(ctx, r.Wake) {
		r, err = b.Run(ctx)
	}
	if err = errors.Join(unpublished, err); err != nil {
		return nil, err
	}
	return answer, nil
}

// wait waits until at; false where there is nothing to wait for in the time of the call.
func (b *Balancer) wait(ctx context.Context, at time.Time) bool {
	if at.IsZero() {
		return false
	}
	left := at.Sub(b.c.Now())
	if end, ok := ctx.Deadline(); ok && time.Until(end)-b.c.Spare < left {
		return false
	}
	timer := time.NewTimer(max(left, 0))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
