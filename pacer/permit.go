package pacer

import "time"

// Permit is the right to spend units until [Permit.UseBy]. If the request is sent in time and costs what was granted,
// nothing has to be done with its permit.
//
// The methods of a permit may be called by one goroutine at a time. A copy of a permit stands for the same units, so
// only one of the copies may be released or settled.
type Permit struct {
	pacer  *Pacer
	cost   int64         // units that are granted and not given back
	serial uint64        // of the window, see supply.serial
	useBy  time.Duration // by the monotonic clock
	total  int64         // units that the pacer had granted in its lifetime, with this permit
}

// Cost returns the number of units that are granted and not given back.
func (p *Permit) Cost() int64 { return p.cost }

// UseBy returns the latest time at which the request may be sent. A request that is sent later may arrive in the
// provider's next window, and exceed the limit there. The time carries a reading of the monotonic clock, so
// [time.Until] is right even if the wall clock is set. The monotonic clock stands still while a machine is suspended,
// so call [Permit.InTime] before you send the request.
func (p *Permit) UseBy() time.Time {
	if p.pacer == nil {
		return time.Time{}
	}
	return p.pacer.timeOf(p.useBy)
}

// InTime reports whether the request may still be sent. It is false if UseBy has passed, or if the machine was
// suspended or its wall clock was set since the permit was granted. Call it right before you send the request. If it
// returns false, release the permit and acquire another.
func (p *Permit) InTime() bool {
	l := p.pacer
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.readBoth().Mono
	s := &l.core.supply
	return p.serial == s.serial && now < min(p.useBy, s.closes)
}

// Release gives back all units of a request that was not sent. Waiting requests get them if their window is still open.
// A second call does nothing.
func (p *Permit) Release() { p.Settle(0) }

// Settle states how many units the request really cost, 0..MaxUnits. Units that were not spent are given back. If the
// request cost more than was granted, the difference is taken from the open window, as far as units are left in it, so
// that other requests get less. Settle may be called again when the number changes.
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
	l.core.supply.returnToBudgets(unspent, p.total)
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
