package balancer

import (
	"context"
	"encoding/json"
	"time"
)

// Invoke handles what Lambda calls with, a batch of the stream or the schedule's event, and answers in JSON. The records
// themselves are not read: they only say that it is time to look. The error has Lambda call again.
//
// On the schedule it also waits for the end of a grace that is near enough, since schedules come once a minute.
func (b *Balancer) Invoke(ctx context.Context, event []byte) ([]byte, error) {
	var stream struct{ Records []json.RawMessage }
	_ = json.Unmarshal(event, &stream) // whatever it is, it is time to look
	r, err := b.Run(ctx)
	for err == nil && len(stream.Records) == 0 && b.wait(ctx, r.Wake) {
		r, err = b.Run(ctx)
	}
	if err != nil {
		return nil, err
	}
	return []byte(`{"batchItemFailures":[]}`), nil
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
