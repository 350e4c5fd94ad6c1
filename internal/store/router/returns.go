package router

import (
	"context"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

const (
	returnWithin  = 2 * time.Second // deadline of a return, for which nobody waits
	returnsAtOnce = 8               // a few, so that returns do not take the connections that decisions need
	returnsInAll  = 4096            // that may wait, which bounds the memory; units beyond are lost
)

// returns gives units of quotas back beside the decisions. Units that cannot be given back are lost: too little is
// admitted then, and never too much.
type returns struct {
	quotas *Backend

	mu      sync.Mutex
	waiting []unitReturn
	workers int
	busy    sync.WaitGroup
	ctx     context.Context // what close ends
	stop    context.CancelFunc
}

// unitReturn gives units back: by a refund or by a correction.
type unitReturn struct {
	receipt *limit.Receipt // nil: none
	request *limit.Request
	now     time.Time // by the caller's clock
}

func (r *returns) do(ctx context.Context, g *unitReturn) error {
	if g.receipt != nil {
		_, err := r.quotas.refund(ctx, g.receipt, 0, g.now)
		return err
	}
	return r.quotas.decide(ctx, g.request, g.now, new(limit.Decision))
}

// later gives units back after those that wait already.
func (r *returns) later(g unitReturn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) >= returnsInAll {
		return
	}
	r.waiting = append(r.waiting, g)
	if r.workers < returnsAtOnce {
		r.workers++
		r.busy.Go(r.work)
	}
}

func (r *returns) work() {
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
		ctx, cancel := context.WithTimeout(r.ctx, returnWithin)
		_ = r.do(ctx, &g) // what cannot be given back is lost
		cancel()
	}
}

// close waits for what is being given back until ctx ends; the rest is lost then, and so is what comes later.
func (r *returns) close(ctx context.Context) error {
	defer r.stop()
	defer context.AfterFunc(ctx, r.stop)()
	r.busy.Wait()
	return r.ctx.Err()
}
