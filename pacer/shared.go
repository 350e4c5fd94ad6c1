package pacer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
)

// Ledger leases the units of shared limits to instances. Ledgers are of this module: redisstore.Store and
// dynamodbstore.Store have one each, and [NewMemoryLedger] makes one for instances in the same process.
type Ledger = ledger.Ledger

// ErrTooSoon means that a shared limit cannot change from a window on of which units have been leased already.
var ErrTooSoon = ledger.ErrTooSoon

// Shared has pacers in many processes share one limit, so that all of them together never grant more than it has in any
// window. Units are leased ahead, to whoever needs them, with some four calls to the ledger per second and pacer. While
// the ledger is away, requests wait.
//
// The windows of a shared limit are by each pacer's clock, so Guard must allow for the differences of clocks. Without a
// Guard the sum is exact only in windows as the ledger numbers them, and not as the provider sees them.
//
// A shared limit begins to grant units two to three windows after its first use. It cannot be used with Learning.
type Shared struct {
	Ledger Ledger
	Key    string // names the limit in the ledger; the same in all pacers that share it
}

// Bounds of the period of a shared limit. A shorter one leaves no time for calls to a ledger. A longer one would wait
// too long after a ledger was lost.
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
	case c.Learning != nil:
		return fmt.Errorf("%w: a shared limit cannot be learned", ErrConfig)
	case c.Limit.Period < minSharedPeriod || c.Limit.Period > maxSharedPeriod:
		return fmt.Errorf("%w: the period of a shared limit is %s, and not within %s..%s", ErrConfig, c.Limit.Period,
			minSharedPeriod, maxSharedPeriod)
	}
	return nil
}

// shareRun makes the calls that a sharer decides on, one after the other, in a goroutine.
type shareRun struct {
	*sharer
	ledger Ledger
	key    string
	wake   chan struct{} // something has changed: there may be a call to make
	stop   context.CancelFunc
	ended  chan struct{}
}

// look wakes the goroutine if there is a call to make. It is called with the lock held.
func (r *shareRun) look(c *core) {
	if r.busy || !r.lacks(c) {
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (p *Pacer) beginSharing(s *Shared, limit int64) {
	ctx, stop := context.WithCancel(context.Background())
	p.share = &shareRun{sharer: newSharer(limit, rand.Uint64()), ledger: s.Ledger, key: s.Key,
		wake: make(chan struct{}, 1),
		stop: stop, ended: make(chan struct{})}
	go p.callLedger(ctx)
}

// callLedger makes calls until ctx ends.
func (p *Pacer) callLedger(ctx context.Context) {
	defer close(p.share.ended)
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
		now := p.readBoth().Mono
		claim, ok := p.share.due(&p.core, now)
		next, period := p.share.wakeAt(&p.core, now), p.core.supply.limit.Period
		p.mu.Unlock()
		if !ok {
			timer.Reset(min(max(next-now, shortestSleep), longestSleep))
			continue
		}
		// A reply after half a window is of little use.
		callCtx, cancel := context.WithTimeout(ctx, period/2)
		lease, err := p.share.ledger.Claim(callCtx, p.share.key, claim)
		cancel()
		p.mu.Lock()
		now = p.readBoth().Mono
		if p.share.done(&p.core, &claim, lease, err); err != nil {
			p.core.counts.LedgerErrors++
		}
		p.core.counts.LedgerCalls++
		p.serveAndUnlock(now)
		timer.Reset(0)
	}
}

// endSharing ends the goroutine, and gives back what was leased and is not spent.
func (p *Pacer) endSharing() {
	r := p.share
	r.stop()
	<-r.ended
	p.mu.Lock()
	p.readBoth()
	claims := r.rest(&p.core)
	period := p.core.supply.limit.Period
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), period)
	defer cancel()
	for _, claim := range claims {
		if _, err := r.ledger.Claim(ctx, r.key, claim); err != nil {
			return // the units are lost, which is safe
		}
	}
}

// SetSharedLimit changes the limit for all pacers that share it, from a time on. The time is rounded up to the next
// window. Units of the window after the present one may be leased already, so it must be two periods from now at least.
// The error wraps ErrTooSoon if it is not, or ErrConfig. After any other error it is not known whether the limit
// changes; to repeat the call is safe.
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
