package router

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

const (
	maxUnspentPerOwner = 64   // charges; an owner has fewer requests under way in one process
	maxUnspent         = 4096 // charges; bounds the memory: one takes some hundred bytes
)

// unspentCharges keeps charges of quotas whose requests were not admitted in the end, for later requests that need the
// same units. See the package comment.
type unspentCharges struct {
	// refunds a charge in the store
	refund      func(ctx context.Context, r *limit.Receipt, now time.Time) error
	returnLater func(unitReturn) // queues a refund
	keepFor     time.Duration    // how long a charge is kept; below 0: refund it at once

	mu      sync.Mutex
	byOwner map[limit.Owner][]unspentCharge // in the order in which they were added
	count   int
	timer   *time.Timer
	closed  bool
}

// unspentCharge is what one request was charged.
type unspentCharge struct {
	key         string          // see unitsKey
	decision    *limit.Decision // only its results are used; the request may not exist any more
	receipt     *limit.Receipt
	chargedAt   time.Time // by the caller's clock
	clockOffset int64     // the clock of the store less the caller's clock, µs
	periodEnd   int64     // when the first of the charged periods ends, µs by the clock of the store
}

// unitsKey returns the same text for two requests of an owner if and only if they need the same units of the same
// counters.
func unitsKey(req *limit.Request) string {
	key := ""
	for i := range req.Charges {
		c := &req.Charges[i]
		for j := range c.Limit.Tiers {
			counter := limit.Key{Identity: c.Limit.Tiers[j].Identity(), Value: c.Value}
			key += counter.String() + strconv.FormatInt(c.Cost, 10)
		}
	}
	return key
}

// take removes and returns a charge of just the units that the request needs, or nil if there is none. It drops the
// owner's charges whose periods have ended.
func (u *unspentCharges) take(req *limit.Request, now time.Time) *unspentCharge {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.byOwner[req.Owner]) == 0 {
		return nil
	}
	key := unitsKey(req)
	var found *unspentCharge
	u.filter(req.Owner, func(e *unspentCharge) bool {
		switch {
		case !e.isOpen(now):
			return false
		case found == nil && e.key == key:
			taken := *e
			found = &taken
			return false
		}
		return true
	})
	return found
}

// filter removes the owner's charges for which keep returns false. The caller holds the lock.
func (u *unspentCharges) filter(owner limit.Owner, keep func(*unspentCharge) bool) {
	list := u.byOwner[owner]
	kept := list[:0]
	for i := range list {
		if keep(&list[i]) {
			kept = append(kept, list[i])
		}
	}
	u.count -= len(list) - len(kept)
	clear(list[len(kept):])
	if len(kept) == 0 {
		delete(u.byOwner, owner)
		return
	}
	u.byOwner[owner] = kept
}

// refundOwner refunds all charges of the owner, and reports whether there were any. When a quota is nearly used up,
// units that are kept for one kind of request may be what another kind lacks.
func (u *unspentCharges) refundOwner(ctx context.Context, owner limit.Owner, now time.Time) bool {
	u.mu.Lock()
	var removed []unspentCharge
	u.filter(owner, func(e *unspentCharge) bool {
		removed = append(removed, *e)
		return false
	})
	u.mu.Unlock()
	for _, e := range removed {
		_ = u.refund(ctx, e.receipt, now) // what cannot be given back is lost, not spent twice
	}
	return len(removed) > 0
}

// isOpen reports whether all charged periods are still open.
func (c *unspentCharge) isOpen(now time.Time) bool {
	return now.UnixMicro()+c.clockOffset < c.periodEnd
}

// newUnspentCharge returns what d charged for the request. It does not refer to the request afterwards.
func newUnspentCharge(req *limit.Request, d *limit.Decision, now time.Time) *unspentCharge {
	e := &unspentCharge{
		key: unitsKey(req), decision: d, receipt: d.Receipt(), chargedAt: now,
		clockOffset: d.Now - now.UnixMicro(), periodEnd: math.MaxInt64,
	}
	for i := range d.Results {
		if d.Results[i].Charged > 0 {
			e.periodEnd = min(e.periodEnd, d.Results[i].ResetAt())
		}
	}
	return e
}

// keep keeps a charge. If there is no room for it, its refund is queued.
func (u *unspentCharges) keep(ctx context.Context, owner limit.Owner, e *unspentCharge, now time.Time) {
	if u.keepFor < 0 {
		_ = u.refund(ctx, e.receipt, now) // what cannot be given back is lost, not spent twice
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed || len(u.byOwner[owner]) >= maxUnspentPerOwner || u.count >= maxUnspent {
		u.returnLater(unitReturn{receipt: e.receipt, callerNow: now})
		return
	}
	if u.byOwner == nil {
		u.byOwner = make(map[limit.Owner][]unspentCharge)
	}
	u.byOwner[owner] = append(u.byOwner[owner], *e)
	u.count++
	if u.timer == nil {
		u.timer = time.AfterFunc(u.keepFor, u.refundExpired)
	}
}

// refundExpired queues the refund of charges that were kept for keepFor. As long as any charges are kept, it schedules
// itself for later.
func (u *unspentCharges) refundExpired() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return
	}
	now := time.Now()
	for owner := range u.byOwner {
		u.filter(owner, func(e *unspentCharge) bool {
			if now.Sub(e.chargedAt) < u.keepFor {
				return true
			}
			u.returnLater(unitReturn{receipt: e.receipt, callerNow: now})
			return false
		})
	}
	if u.timer = nil; u.count > 0 {
		u.timer = time.AfterFunc(u.keepFor, u.refundExpired)
	}
}

// len returns the number of charges.
func (u *unspentCharges) len() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.count
}

// close refunds all charges.
func (u *unspentCharges) close(ctx context.Context) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	if u.timer != nil {
		u.timer.Stop()
		u.timer = nil
	}
	var errs []error
	for _, list := range u.byOwner {
		for _, e := range list {
			if err := u.refund(ctx, e.receipt, e.chargedAt); err != nil {
				errs = append(errs, err)
			}
		}
	}
	u.byOwner, u.count = nil, 0
	return errors.Join(errs...)
}
