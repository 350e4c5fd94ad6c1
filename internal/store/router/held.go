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
	heldPerOwner = 64 // more than are ever in flight together
	heldInAll    = 4096
)

// leases are charged quotas that no request has used yet.
type leases struct {
	refund  func(ctx context.Context, r *limit.Receipt, now time.Time) error
	later   func(giveBack) // refunds beside the decisions
	holdFor time.Duration  // below 0: refund at once

	mu     sync.Mutex
	of     map[limit.Owner][]lease // in the order in which they were put
	count  int
	timer  *time.Timer
	closed bool
}

type lease struct {
	key      string          // of the question that it answers
	decision *limit.Decision // its results only: the request it was about is gone
	receipt  *limit.Receipt
	since    time.Time // by the caller's clock
	lag      int64     // the quotas' clock less the caller's, µs
	until    int64     // the end of the first period it was charged in, µs by the quotas' clock
}

// keyOf names the question: two requests of an owner with the same key need the same units of the same counters.
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

// take returns a lease for the question, or nil.
func (l *leases) take(req *limit.Request, now time.Time) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.of[req.Owner]) == 0 {
		return nil
	}
	key := keyOf(req)
	var found *lease
	l.filter(req.Owner, func(e *lease) bool {
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

// filter keeps the owner's leases that keep accepts. The caller holds the lock.
func (l *leases) filter(owner limit.Owner, keep func(*lease) bool) {
	list := l.of[owner]
	kept := list[:0]
	for i := range list {
		if keep(&list[i]) {
			kept = append(kept, list[i])
		}
	}
	l.count -= len(list) - len(kept)
	clear(list[len(kept):])
	if len(kept) == 0 {
		delete(l.of, owner)
		return
	}
	l.of[owner] = kept
}

// giveBack refunds what is held for the owner and reports whether that was anything. At the edge of a quota units held
// for one question would else be missing to another.
func (l *leases) giveBack(ctx context.Context, owner limit.Owner, now time.Time) bool {
	l.mu.Lock()
	var all []lease
	l.filter(owner, func(e *lease) bool {
		all = append(all, *e)
		return false
	})
	l.mu.Unlock()
	for _, e := range all {
		_ = l.refund(ctx, e.receipt, now) // what cannot be given back is lost, not spent twice
	}
	return len(all) > 0
}

// open reports whether the periods it was charged in are still going on.
func (e *lease) open(now time.Time) bool { return now.UnixMicro()+e.lag < e.until }

// newLease is the lease of what d charged for the request, which it does not refer to afterwards.
func newLease(req *limit.Request, d *limit.Decision, now time.Time) *lease {
	e := &lease{key: keyOf(req), decision: d, receipt: d.Receipt(), since: now, lag: d.Now - now.UnixMicro(), until: math.MaxInt64}
	for i := range d.Results {
		if d.Results[i].Charged > 0 {
			e.until = min(e.until, d.Results[i].ResetAt())
		}
	}
	return e
}

// put holds a lease; one too many is refunded beside the decisions.
func (l *leases) put(ctx context.Context, owner limit.Owner, e *lease, now time.Time) {
	if l.holdFor < 0 {
		_ = l.refund(ctx, e.receipt, now) // what cannot be given back is lost, not spent twice
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.of[owner]) >= heldPerOwner || l.count >= heldInAll {
		l.later(giveBack{receipt: e.receipt, now: now})
		return
	}
	if l.of == nil {
		l.of = make(map[limit.Owner][]lease)
	}
	l.of[owner] = append(l.of[owner], *e)
	l.count++
	if l.timer == nil {
		l.timer = time.AfterFunc(l.holdFor, l.sweep)
	}
}

// sweep refunds what has waited for l.holdFor, and comes again while anything is held.
func (l *leases) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	now := time.Now()
	for owner := range l.of {
		l.filter(owner, func(e *lease) bool {
			if now.Sub(e.since) < l.holdFor {
				return true
			}
			l.later(giveBack{receipt: e.receipt, now: now})
			return false
		})
	}
	if l.timer = nil; l.count > 0 {
		l.timer = time.AfterFunc(l.holdFor, l.sweep)
	}
}

func (l *leases) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// close refunds everything.
func (l *leases) close(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	var errs []error
	for _, list := range l.of {
		for _, e := range list {
			if err := l.refund(ctx, e.receipt, e.since); err != nil {
				errs = append(errs, err)
			}
		}
	}
	l.of, l.count = nil, 0
	return errors.Join(errs...)
}
