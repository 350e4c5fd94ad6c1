package pacer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
)

// Ledger leases the units of shared limits to instances. Only this module can implement it: the method Ledger of
// redisstore.Store returns one, and [NewMemoryLedger] returns one for pacers in one process.
type Ledger = ledger.Ledger

// ErrPlanned means that three changes of a shared limit are planned already. Another one can be planned when the first
// of them holds, or in place of one of them.
var ErrPlanned = ledger.ErrPlanned

// ErrTooSoon means that a shared limit cannot change from a window on of which units have been leased already.
var ErrTooSoon = ledger.ErrTooSoon

// Shared makes pacers in many processes share one limit, so that all of them together never grant more units than the
// limit in any window. The pacers lease units ahead from the ledger, according to their needs. This takes some four
// calls to the ledger per second and pacer. While the ledger is unavailable, requests wait.
//
// Each pacer counts the windows of a shared limit by its own clock, so Guard must allow for the differences of the
// clocks. Without a Guard, the sum is exact only in the windows as the ledger numbers them, and not as the provider
// counts them.
//
// Until SetSharedLimit is called for the first time, Config.Limit of the pacers is the limit. If the limits of several
// pacers differ, the pacer whose call is the first for a window decides about the window. From then on the limit is in
// the ledger. Config.Limit then only decides which costs a pacer refuses before it has heard from the ledger.
//
// If the data of the ledger is lost, the pacers that are running give it back: the limit, and the limit that the
// provider has stated. It is lost if no pacer is running, and so is a change that is planned for later
// than the next window. Then call SetSharedLimit once more.
//
// A shared limit begins to grant units two to three windows after its first use. A Retry-After, and a limit that the
// provider states, hold for all pacers when one of them has heard it. What the provider says is left bounds only the
// pacer that has heard it. See [Pacer.Observe].
type Shared struct {
	Ledger Ledger
	Key    string // names the limit in the ledger; the same in all pacers that share it
}

// Bounds of the period of a shared limit. A shorter period leaves no time for calls to the ledger. With a longer one,
// requests would wait too long after the ledger's data was lost.
const (
	minSharedPeriod = 100 * time.Millisecond
	maxSharedPeriod = time.Minute
)

func (s *Shared) check(c *Config) error {
	switch {
	case s == nil:
		return nil
	case s.Ledger == nil:
		return fmt.Errorf("%w: Shared has no Ledger", ErrConfig)
	case c.Limit.Period < minSharedPeriod || c.Limit.Period > maxSharedPeriod:
		return fmt.Errorf("%w: the period of a shared limit is %s, and not within %s..%s", ErrConfig, c.Limit.Period,
			minSharedPeriod, maxSharedPeriod)
	}
	return nil
}

// shareRun makes the calls of a sharer, one after the other, in a goroutine.
type shareRun struct {
	*sharer
	ledger Ledger
	key    string
	wake   chan struct{} // tells the goroutine that there may be a call to make
	stop   context.CancelFunc
	call   chan struct{} // closed when the result of the present call is recorded; nil: no call is under way
}

// look wakes the goroutine if there may be a call to make. It is called with the pacer's lock held.
func (r *shareRun) look(c *core) {
	if r.busy || !r.needsUnits(c) && !r.mustReportPause(c) {
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (p *Pacer) beginSharing(s *Shared, limit Limit) {
	ctx, stop := context.WithCancel(context.Background())
	p.share = &shareRun{sharer: newSharer(limit.Units, rand.Uint64()), ledger: s.Ledger, key: s.Key,
		wake: make(chan struct{}, 1), stop: stop}
	go p.callLedger(ctx)
}

// callLedger makes calls until ctx ends.
func (p *Pacer) callLedger(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.share.wake:
		}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return
		}
		now := p.readBoth().Mono
		claim, ok := p.share.due(&p.core, now)
		next, period := p.share.wakeAt(&p.core, now), p.core.supply.limit.Period
		if ok {
			p.share.call = make(chan struct{})
		}
		p.mu.Unlock()
		if !ok {
			timer.Reset(min(max(next-now, shortestSleep), longestSleep))
			continue
		}
		// A call may take half a window at most, because the units of a later reply could hardly be spent.
		callCtx, cancel := context.WithTimeout(ctx, period/2)
		lease, err := p.share.ledger.Claim(callCtx, p.share.key, claim)
		cancel()
		p.mu.Lock()
		now = p.readBoth().Mono
		if p.share.done(&p.core, &claim, lease, err); err != nil {
			p.core.counts.LedgerErrors++
		}
		p.core.counts.LedgerCalls++
		close(p.share.call)
		p.share.call = nil
		p.serveAndUnlock(now)
		timer.Reset(0)
	}
}

// endSharing makes the goroutine end, and gives back the leased units that are not spent. It is called once, after the
// pacer was closed. It waits for a call that is under way, and not for the goroutine, because the goroutine may be
// calling the waker that called Close.
func (p *Pacer) endSharing() {
	r := p.share
	r.stop()
	p.mu.Lock()
	if call := r.call; call != nil {
		p.mu.Unlock()
		<-call
		p.mu.Lock()
	}
	p.readBoth()
	claims := r.returnAll(&p.core)
	period := p.core.supply.limit.Period
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), period)
	defer cancel()
	for _, claim := range claims {
		if _, err := r.ledger.Claim(ctx, r.key, claim); err != nil {
			return // the units are lost: too few are used, and the limit still holds
		}
	}
}

// SetSharedLimit changes the limit for all pacers that share it, from the first window that begins at the given time or
// later. Units of the window after the present one may be leased already, so the time must be at least two periods from
// now. The change replaces those that are planned for its window or later ones. Until its window, earlier changes hold.
// The error wraps ErrTooSoon if the time is too early, ErrPlanned, or ErrConfig. After any other error it is unknown
// whether the limit changes; the call can then be repeated.
//
// All pacers forget at once, and not only from that time on, what the provider has stated.
func (p *Pacer) SetSharedLimit(ctx context.Context, units int64, from time.Time) error {
	if p.share == nil {
		return fmt.Errorf("%w: the limit is not shared", ErrConfig)
	}
	p.mu.Lock()
	period := p.core.supply.limit.Period
	p.mu.Unlock()
	if err := (Limit{units, period}).check(); err != nil {
		return err
	}
	window := floorDiv(time.Duration(from.UnixNano())+period-1, period)
	if err := p.share.ledger.SetLimit(ctx, p.share.key, units, window); err != nil {
		return fmt.Errorf("pacer: change the shared limit %q: %w", p.share.key, err)
	}
	return nil
}

// NewMemoryLedger makes a ledger for pacers in one process.
func NewMemoryLedger() Ledger { return new(ledger.Memory) }
