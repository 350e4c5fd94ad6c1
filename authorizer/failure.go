package authorizer

import (
	"context"
	"time"

	"github.com/sluicelimits/sluice/internal/answer"
	"github.com/sluicelimits/sluice/internal/limit"
)

// DefaultBackstopBytes holds the counters of some 40,000 owners.
const DefaultBackstopBytes = 16 << 20

const (
	sharedBytes = 1 << 20

	unavailableFor = time.Second // what a client is told to wait where nobody knows
)

// fallback is where limits with the policy "backstop" are counted while the store does not answer: in this process, with
// the limit as it stands, each owner for itself; addresses for which even that has no room share one owner, so a flood of
// addresses is limited as one. Then a request is denied.
//
// Bound: an owner can spend its limit once more than in the store, that is 2 × the limit while the store is away.
// To size it by the number of instances comes with the first store that several instances share.
type fallback struct {
	own, shared limit.Store
}

// overflow is the owner of the addresses without room. An address's name is 32 hex digits, so it cannot be one.
var overflow = limit.Owner{Kind: limit.Address, Name: "overflow"}

// withoutStore applies each limit's onStoreFailure to a step that the store did not decide. Shadow limits are left out.
// A request that was given up meanwhile is denied, since nobody waits for it, and charged nowhere.
func (z *Authorizer) withoutStore(ctx context.Context, a *Answer, s *step, cause error) answer.Kind {
	a.StoreFailed = true
	z.noteFailure(a.At, cause)
	if ctx.Err() != nil {
		return a.unavailable()
	}
	a.fromBackup = a.fromBackup[:0]
	for i := range s.request.Charges {
		c := s.request.Charges[i]
		switch {
		case c.Limit.Mode != limit.Enforce || c.Limit.OnStoreFailure == limit.Open:
		case c.Limit.OnStoreFailure == limit.Closed:
			return a.unavailable()
		default:
			a.fromBackup = append(a.fromBackup, c)
		}
	}
	if len(a.fromBackup) == 0 {
		return answer.Allowed
	}
	s.request.Charges = append(s.request.Charges[:0], a.fromBackup...)
	if s.store = z.backstop.own; s.store.Decide(ctx, &s.request, a.At, &s.decision) == nil {
		s.made = true
		return answer.Allowed // the caller looks at the decision
	}
	if s.request.Owner.Kind == limit.Address {
		s.request.Owner = overflow
		if s.store = z.backstop.shared; s.store.Decide(ctx, &s.request, a.At, &s.decision) == nil {
			s.made = true
			return answer.Allowed
		}
	}
	return a.unavailable()
}

func (a *Answer) unavailable() answer.Kind {
	a.wait = answer.Wait{Micros: unavailableFor.Microseconds(), Known: true}
	return answer.Unavailable
}

// Failures is how many steps the store has not decided.
func (z *Authorizer) Failures() int64 { return z.failures.Load() }

// noteFailure counts, and logs at most once in a second: a store that is away must not fill the disk too.
func (z *Authorizer) noteFailure(now time.Time, cause error) {
	n := z.failures.Add(1)
	last, s := z.logged.Load(), now.Unix()
	if s != last && z.logged.CompareAndSwap(last, s) {
		z.c.Log.Warn("the store did not decide; each limit's onStoreFailure applies", "error", cause, "failures", n)
	}
}
