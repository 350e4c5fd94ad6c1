package authorizer_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// requestWithShare is a request under the plan with that number, in a cell whose shares of the limits the function
// says.
func requestWithShare(f *fixture, number int, share func(*plan.Effective) plan.Share) *authorizer.Request {
	p := f.snap.Config.Plans()[number]
	return identifiedAs(authorizer.Caller{Tenant: "of its own", Plan: p.ID, Limits: p.Set().WithShares(share)}, nil)
}

// Guarantees that a limit of which the cell grants nothing denies every request without asking a store, also if its
// onStoreFailure is open and whatever the cost, and that Retry-After is when the cell's share begins, if that is known.
func TestNothingIsGrantedHere(t *testing.T) {
	store := &failingStore{} // wraps no store, so each decision fails
	away := errors.New("unavailable")
	store.down.Store(&away)
	f := newFixture(t, plans, store, 0)
	until := noon.Add(7 * time.Second)
	req := requestWithShare(f, 2,
		func(*plan.Effective) plan.Share { return plan.Share{Why: "share 0/1", Until: until.UnixMicro()} })
	for _, cost := range []int64{0, 1, limit.MaxUnits} {
		req.Cost = cost
		a := f.Authorize(t.Context(), req)
		if a.NotGranted != "l" {
			t.Errorf("cost %d: it names the limit %q, want l", cost, a.NotGranted)
		}
		if a.Kind != answer.NotHere || a.Kind.Status() != 429 || a.Header.RetryAfter != "7" || a.StoreFailed ||
			a.Decision() != nil {
			t.Errorf("cost %d: %s, retry after %q", cost, a.Kind, a.Header.RetryAfter)
		}
		if body := string(a.AppendProblem(nil)); !strings.Contains(body, "not-granted-here") ||
			!strings.Contains(body, `"retry-after-ms":7000`) ||
			!strings.Contains(body, "The limit is 'l'; this cell grants it in 7000 ms.") {
			t.Errorf("body %s", body)
		}
		a.Release()
	}
	req = requestWithShare(f, 2, func(*plan.Effective) plan.Share { return plan.Share{Why: "share 0/1"} })
	if h := f.ask(t, req, answer.NotHere); h.RetryAfter != "" {
		t.Errorf("retry after %q, want none: the time is not known", h.RetryAfter)
	}
	if n := f.Failures(); n > 0 {
		t.Errorf("the store was asked %d times", n)
	}
}

// Guarantees that the wait is known and positive if the share begins at this very moment, or has begun by this clock: a
// wait of zero would not be sent.
func TestShareBeginsNow(t *testing.T) {
	f := newFixture(t, plans, nil, 0)
	for _, until := range []time.Time{noon, noon.Add(-time.Second)} {
		req := requestWithShare(f, 2, func(*plan.Effective) plan.Share {
			return plan.Share{Why: "share 0/1", Until: until.UnixMicro()}
		})
		a := f.Authorize(t.Context(), req)
		if wait, known := a.RetryAfter(); a.Kind != answer.NotHere || !known || wait != time.Microsecond {
			t.Errorf("until %s: %s, wait %s, known %t; want not_here, 1µs", until, a.Kind, wait, known)
		}
		a.Release()
	}
}

// Guarantees that a cost which fits the whole limit, and not the cell's share, is NotHere. A cost that does not fit the
// whole limit is NeverFits, and a cost that fits the share is admitted.
func TestNeverIsJudgedAgainstThePlan(t *testing.T) {
	f := newFixture(t, plans, nil, 0)
	req := requestWithShare(f, 1, func(e *plan.Effective) plan.Share { // 4 of 10
		l := *e.Limit
		l.Tiers = []limit.Tier{{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 4, Burst: 4}}
		part := limittest.MustNew(t, l)
		return plan.Share{Limit: part, Why: "share 2/5 of cell eu-1, epoch 3"}
	})
	for _, tt := range []struct {
		cost int64
		want answer.Kind
	}{{4, answer.Allowed}, {1, answer.Limited}, {5, answer.NotHere}, {10, answer.NotHere}, {11, answer.NeverFits}} {
		req.Cost = tt.cost
		f.ask(t, req, tt.want)
	}
}
