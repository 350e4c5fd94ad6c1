package router

import (
	"context"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

const (
	returnWithin = 2 * time.Second // deadline of a return that nobody waits for
	returning    = 8               // at a time
	returnsInAll = 4096            // that wait; those beyond are lost
)

// returns gives units of quotas back beside the decisions. What cannot be given back is lost: too little is admitted for it,
// never too much.
type returns struct {
	quotas *Backend

	mu      sync.Mutex
	waiting []giveBack
	workers int
	busy    sync.WaitGroup
	ctx     context.Context // what close ends
	stop    context.CancelFunc
}

// giveBack is a refund or a correction.
type giveBack struct {
	receipt *limit.Receipt // nil: none
	request *limit.Request
	now     time.Time // by the caller's clock
}

func (r *returns) do(ctx context.Context, g *giveBack) error {
	if g.receipt != nil {
		_, err := r.quotas.refund(ctx, g.receipt, 0, g.now)
		return err
	}
	return r.quotas.decide(ctx, g.request, g.now, new(limit.Decision))
}

// later gives back as soon as others have been.
func (r *returns) later(g giveBack) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) >= returnsInAll {
		return
	}
	r.waiting = append(r.waiting, g)
	if r.workers < returning {
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
