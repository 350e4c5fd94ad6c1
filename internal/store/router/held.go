package router

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

const (
	heldPerOwner = 64   // charges; more than an owner has requests under way in one process
	heldInAll    = 4096 // bounds the memory; a charge takes some hundred bytes
)

// heldCharges are units of quotas that were charged and that no request has spent yet.
type heldCharges struct {
	refund      func(ctx context.Context, r *limit.Receipt, now time.Time) error
	returnLater func(unitReturn) // refunds beside the decisions
	holdFor     time.Duration    // below 0: refund at once

	mu     sync.Mutex
	of     map[limit.Owner][]heldCharge // in the order in which they were added
	count  int
	timer  *time.Timer
	closed bool
}

// heldCharge is what one request was charged.
type heldCharge struct {
	key         string          // see keyOf
	decision    *limit.Decision // only its results are used: its request is gone
	receipt     *limit.Receipt
	since       time.Time // when it was charged, by the caller's clock
	clockOffset int64     // the quotas' clock less the caller's, µs
	until       int64     // when the first of the charged periods ends, µs by the quotas' clock
}

// keyOf returns the same key for two requests of an owner if and only if they need the same units of the same counters.
func keyOf(req *limit.Request) string {
	key := ""
	for i := range req.Charges {
		c := &req.Charges[i]
		for j := range c.Limit.Tiers {
			key += limit.Key{Identity: c.Limit.Tiers[j].Identity(), Value: c.Value}.String() + strconv.FormatInt(c.Cost, 10)
		}
	}
	return key
}

// take takes out and returns a held charge for just what the request needs; nil if there is none.
func (h *heldCharges) take(req *limit.Request, now time.Time) *heldCharge {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.of[req.Owner]) == 0 {
		return nil
	}
	key := keyOf(req)
	var found *heldCharge
	h.filter(req.Owner, func(e *heldCharge) bool {
		switch {
		case !e.open(now):
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

// filter removes the owner's charges that keep does not accept. The caller holds the lock.
func (h *heldCharges) filter(owner limit.Owner, keep func(*heldCharge) bool) {
	list := h.of[owner]
	kept := list[:0]
	for i := range list {
		if keep(&list[i]) {
			kept = append(kept, list[i])
		}
	}
	h.count -= len(list) - len(kept)
	clear(list[len(kept):])
	if len(kept) == 0 {
		delete(h.of, owner)
		return
	}
	h.of[owner] = kept
}

// giveBack refunds what is held for the owner, and reports whether anything was held. When a quota is nearly used up,
// units that are held for one kind of request may be what another kind lacks.
func (h *heldCharges) giveBack(ctx context.Context, owner limit.Owner, now time.Time) bool {
	h.mu.Lock()
	var all []heldCharge
	h.filter(owner, func(e *heldCharge) bool {
		all = append(all, *e)
		return false
	})
	h.mu.Unlock()
	for _, e := range all {
		_ = h.refund(ctx, e.receipt, now) // what cannot be given back is lost, not spent twice
	}
	return len(all) > 0
}

// open reports whether all charged periods are still open.
func (e *heldCharge) open(now time.Time) bool { return now.UnixMicro()+e.clockOffset < e.until }

// newHeldCharge returns what d charged for the request. It does not refer to the request afterwards.
func newHeldCharge(req *limit.Request, d *limit.Decision, now time.Time) *heldCharge {
	e := &heldCharge{
		key: keyOf(req), decision: d, receipt: d.Receipt(), since: now,
		clockOffset: d.Now - now.UnixMicro(), until: math.MaxInt64,
	}
	for i := range d.Results {
		if d.Results[i].Charged > 0 {
			e.until = min(e.until, d.Results[i].ResetAt())
		}
	}
	return e
}

// put holds a charge. If there is no room for it, it is refunded beside the decisions.
func (h *heldCharges) put(ctx context.Context, owner limit.Owner, e *heldCharge, now time.Time) {
	if h.holdFor < 0 {
		_ = h.refund(ctx, e.receipt, now) // what cannot be given back is lost, not spent twice
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.of[owner]) >= heldPerOwner || h.count >= heldInAll {
		h.returnLater(unitReturn{receipt: e.receipt, now: now})
		return
	}
	if h.of == nil {
		h.of = make(map[limit.Owner][]heldCharge)
	}
	h.of[owner] = append(h.of[owner], *e)
	h.count++
	if h.timer == nil {
		h.timer = time.AfterFunc(h.holdFor, h.sweep)
	}
}

// sweep refunds what has been held for h.holdFor, and runs again later as long as anything is held.
func (h *heldCharges) sweep() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	now := time.Now()
	for owner := range h.of {
		h.filter(owner, func(e *heldCharge) bool {
			if now.Sub(e.since) < h.holdFor {
				return true
			}
			h.returnLater(unitReturn{receipt: e.receipt, now: now})
			return false
		})
	}
	if h.timer = nil; h.count > 0 {
		h.timer = time.AfterFunc(h.holdFor, h.sweep)
	}
}

func (h *heldCharges) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// close refunds everything that is held.
func (h *heldCharges) close(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	var errs []error
	for _, list := range h.of {
		for _, e := range list {
			if err := h.refund(ctx, e.receipt, e.since); err != nil {
				errs = append(errs, err)
			}
		}
	}
	h.of, h.count = nil, 0
	return errors.Join(errs...)
}
