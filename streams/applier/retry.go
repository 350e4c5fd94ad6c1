package applier

import (
	"context"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/streams/delivery"
)

// Delayer is the queue from which the messages come. *awsio.Delayer implements it.
type Delayer interface {
	// Delay sets when messages become visible again.
	Delay(ctx context.Context, delays []delivery.Delay) error
}

// The times of RetryAfter. The most likely cause of a first failure is a table that does not answer for a moment. The
// message is therefore tried again much sooner than after the queue's visibility timeout, 181 s, which is chosen for a
// function that ended without an answer. Each receive counts towards the queue's maximum of 1,000, after which a
// message becomes a dead letter. lastRetry is therefore 3 s above the visibility timeout: the first eight retries are
// 1,193 s sooner, and the other 992 together 2,976 s later, so that no message becomes a dead letter sooner than
// without the retries.
const (
	firstRetry = time.Second
	lastRetry  = 184 * time.Second

	// The random part is at most a quarter of the delay. It keeps the cells from asking the control tables together.
	jitterPart = 4
)

// RetryAfter returns when a message that could not be applied becomes visible again, in whole seconds. The delay
// doubles with each receive, so an outage delays a message by at most about its own length. receives counts from 1;
// random is 0 up to 1.
func RetryAfter(receives int, random float64) time.Duration {
	delay := lastRetry
	if retries := max(receives-1, 0); retries < 8 { // 2^8 s are above lastRetry
		delay = firstRetry << retries
	}
	return (delay + time.Duration(random*float64(delay/jitterPart))).Round(time.Second)
}

// delay sets when each failed message becomes visible again, by RetryAfter. All get the same random number, so that
// they arrive in one batch. A message becomes visible after the queue's visibility timeout if delay fails for it, or if
// the event did not have its receipt or its number of receives.
func (a *Applier) delay(ctx context.Context, messages []delivery.Message, failed []string) {
	if a.c.Delayer == nil || len(failed) == 0 {
		return
	}
	if deadline, ok := ctx.Deadline(); ok { // of the spare time, a fifth is enough for the answer
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-a.c.Spare/5))
		defer cancel()
	}
	random := a.c.Random()
	delays := make([]delivery.Delay, 0, len(failed))
	for i := range messages {
		m := &messages[i]
		if m.Receipt != "" && m.Receives > 0 && slices.Contains(failed, m.ID) {
			delays = append(delays, delivery.Delay{Receipt: m.Receipt, After: RetryAfter(m.Receives, random)})
		}
	}
	if len(delays) == 0 {
		return
	}
	if err := a.c.Delayer.Delay(ctx, delays); err != nil {
		a.c.Log.WarnContext(ctx, "failed messages are delivered again only after the queue's visibility timeout",
			"messages", len(delays), "error", err)
	}
}
