package pacer

import "time"

// Permit is the right to spend units until [Permit.UseBy]. Nothing has to be done with a permit that is used as it was
// granted.
//
// Its methods may be called by one goroutine at a time. A copy of a permit stands for the same units: release or settle
// only one of them.
type Permit struct {
	pacer  *Pacer
	cost   int64
	serial uint64        // of the window
	useBy  time.Duration // by the monotonic clock
	total  int64         // units that the pacer had granted with this permit, since it was made
}

// Cost is the number of units that are granted and not given back.
func (p *Permit) Cost() int64 { return p.cost }

// UseBy is the latest time at which the request may be sent. A request that is sent later may arrive in the provider's
// next window, and exceed the limit there. A process that was held up beyond UseBy must release the permit and acquire
// another. The time carries a reading of the monotonic clock, so [time.Until] is right even if the wall clock is set.
func (p *Permit) UseBy() time.Time {
	if p.pacer == nil {
		return time.Time{}
	}
	return p.pacer.timeOf(p.useBy)
}

// Release gives back all units, because nothing was sent. Whoever waits gets them, if their window is still open.
// A second call does nothing.
func (p *Permit) Release() { p.Settle(0) }

// Settle says how many units were spent in fact, 0..MaxUnits. Units that were not spent are given back. Units that were
// spent beyond the cost are taken from the open window, so that others get less, as far as it has any left. Settle may
// be called again when the number changes.
func (p *Permit) Settle(spent int64) {
	spent = min(max(spent, 0), MaxUnits)
	unspent := p.cost - spent
	if p.pacer == nil || unspent == 0 {
		return
	}
	l := p.pacer
	l.mu.Lock()
	now := l.now()
	p.cost = spent
	if unspent < 0 {
		l.core.counts.Excess -= unspent
		l.core.supply.overspend(-unspent)
		l.mu.Unlock()
		return
	}
	if l.core.giveBack(unspent, p.serial, now) && l.core.queue.waiting > 0 {
		l.serveAndUnlock(now)
		return
	}
	l.mu.Unlock()
}
