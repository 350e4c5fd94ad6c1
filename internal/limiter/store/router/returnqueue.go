package router

import (
	"context"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

const (
	returnTimeout     = 2 * time.Second // time limit of a return; nobody waits for it
	maxReturnWorkers  = 8               // few, so that returns do not take the connections that decisions need
	maxWaitingReturns = 4096            // bounds the memory; further units are lost
)

// returnQueue returns units to a store after the decisions, on goroutines of its own. Units that cannot be returned are
// lost: too little is admitted then, and never too much.
type returnQueue struct {
	store *Backend

	mu      sync.Mutex
	waiting []unitReturn
	workers int
	running sync.WaitGroup
	ctx     context.Context // of all returns; stop and close end it
	stop    context.CancelFunc
}

// unitReturn returns units to a store: by a refund, or by a request that corrects.
type unitReturn struct {
	receipt   *limit.Receipt // if nil, request returns the units
	request   *limit.Request
	callerNow time.Time // the caller's time
}

// do makes one return.
func (r *returnQueue) do(ctx context.Context, g *unitReturn) error {
	if g.receipt != nil {
		_, err := r.store.refund(ctx, g.receipt, 0, g.callerNow)
		return err
	}
	return r.store.decide(ctx, g.request, g.callerNow, new(limit.Decision))
}

// later queues a return.
func (r *returnQueue) later(g unitReturn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) >= maxWaitingReturns {
		return
	}
	r.waiting = append(r.waiting, g)
	if r.workers < maxReturnWorkers {
		r.workers++
		r.running.Go(r.work)
	}
}

// work makes returns until none is left.
func (r *returnQueue) work() {
	for {
		r.mu.Lock()
		if len(r.waiting) == 0 {
			r.workers--
			r.waiting = nil
			r.mu.Unlock()
			return
		}
		g := r.waiting[0]
		r.waiting = r.waiting[1:]
		r.mu.Unlock()
		ctx, cancel := context.WithTimeout(r.ctx, returnTimeout)
		_ = r.do(ctx, &g) // units that cannot be returned are lost
		cancel()
	}
}

// close waits until all queued returns are made, or ctx ends. The rest is lost then, as is what is queued later.
func (r *returnQueue) close(ctx context.Context) error {
	defer r.stop()
	defer context.AfterFunc(ctx, r.stop)()
	r.running.Wait()
	return r.ctx.Err()
}
