package router

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// partsError is the error of a correction that at least one part is not known to have made.
type partsError struct{ first, second error }

// Error says what is known of each part.
func (e *partsError) Error() string {
	switch {
	case e.second == nil:
		return "quotas: " + e.first.Error() + "; the rates are corrected"
	case e.first == nil:
		return "rates: " + e.second.Error() + "; the quotas are corrected"
	}
	return "quotas: " + e.first.Error() + "; rates: " + e.second.Error()
}

// Is reports whether the target is true of both parts: a caller that learns that a correction was not sent may send all
// of it again. "The store answered" is true of both parts if each part that failed says so.
func (e *partsError) Is(target error) bool {
	firstAnswered := e.first == nil || limit.Answered(e.first)
	secondAnswered := e.second == nil || limit.Answered(e.second)
	if firstAnswered && secondAnswered && limit.Answered(target) {
		return errors.Is(e.first, target) || errors.Is(e.second, target)
	}
	return e.first != nil && e.second != nil && errors.Is(e.first, target) && errors.Is(e.second, target)
}

// correctBoth lets both parts correct what they count, whatever the other one answers, and waits for both.
func (p *pair) correctBoth(
	ctx context.Context, req *limit.Request, split *splitRequest, now time.Time, d *limit.Decision,
) error {
	var both sync.WaitGroup
	var failed partsError
	both.Go(func() {
		if p.home != "" && asksForNothing(&split.first.request) {
			split.first.fillAsUnused(now.UnixMicro())
			return
		}
		err := p.first.decide(ctx, &split.first.request, now, &split.first.decision)
		failed.first = split.first.dropErrorIfUnasked(err, now)
	})
	err := p.second.decide(ctx, &split.second.request, now, &split.second.decision)
	failed.second = split.second.dropErrorIfUnasked(err, now)
	both.Wait()
	if failed != (partsError{}) {
		d.Clear(now.UnixMicro())
		return &failed
	}
	p.join(d, req, &split.first.decision, &split.second.decision)
	d.ID = split.second.decision.ID
	d.Revise().Settle()
	return nil
}
