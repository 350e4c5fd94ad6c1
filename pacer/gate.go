package pacer

import (
	"sync"
	"time"
)

// gate is the mutex of a pacer. While the gate is open, a request is granted if the clock shows a time before openUntil
// and the cost is not above the units that are left in the window: nothing else has to be looked at. Most requests are
// granted that way, and it takes half of the time.
//
// Lock closes the gate, because whatever is done with the lock held may add a reason not to grant. Only a grant that
// has looked at everything opens it.
type gate struct {
	sync.Mutex
	openUntil time.Duration // by the monotonic clock; 0: the gate is closed
}

// Lock locks the mutex and closes the gate.
func (g *gate) Lock() {
	g.Mutex.Lock()
	g.openUntil = 0
}

// grantByGate grants cost units if the gate is open and the units are left. It returns the fields of the permit, which
// are 0 if nothing was granted: fields are returned in registers, and a permit would be copied in memory.
func (p *Pacer) grantByGate(cost int64) (serial uint64, useBy time.Duration, total int64) {
	p.mu.Mutex.Lock()
	s, counts := &p.core.supply, &p.core.counts
	if time.Since(p.origin) < p.mu.openUntil && cost > 0 && cost <= s.units-s.used {
		s.used += cost
		counts.Granted += cost
		counts.Asked += cost
		counts.AtOnce++
		serial, useBy, total = s.serial, s.closes, counts.Granted
	}
	p.mu.Unlock()
	return serial, useBy, total
}

// openGate opens the gate. It is called with the lock held, after a grant to a request that found no other waiting. So
// the window is open, no pause lasts, and nothing but the rate of Spread and the budgets needs another look each time.
func (p *Pacer) openGate() {
	if s := &p.core.supply; s.smoothing == FrontLoaded && len(s.budgets) == 0 {
		p.mu.openUntil = p.readAt // the window does not close before the clocks are read again
	}
}
