package balancer

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// Invoke handles the events of the stream and of the schedule, and answers in JSON. The balancer ignores the content of
// records: they only say that it is time to run. A record that cannot be read is left to the publisher, and does not
// stop the balancer. If Invoke returns an error, Lambda calls again.
//
// On the schedule, Invoke also waits for the end of a grace if that is near, because the schedule runs once a minute.
func (b *Balancer) Invoke(ctx context.Context, event []byte) (answer []byte, err error) {
	var stream struct{ Records []json.RawMessage }
	_ = json.Unmarshal(event, &stream) // whatever the event is, it is time to run
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

// wait waits until at. It returns false if there is nothing to wait for within the time of the call.
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
