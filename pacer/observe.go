package pacer

import (
	"net/http"
	"time"
)

// LongestPause is the longest time for which one reply can make a pacer pause.
const LongestPause = time.Hour

// Reply describes a reply of the provider, for [Pacer.Observe].
type Reply struct {
	Header   http.Header // may be nil
	Permit   Permit      // of the request
	Received time.Time   // when the header of the reply had arrived, with a reading of the monotonic clock
}

// Observe obeys what a reply of the provider says. It never makes the pacer send more than Config.Limit:
//
//   - After a Retry-After, nothing is granted for the time that it states, LongestPause at most. Other pacers that
//     share the limit pause, too, from their next call to the ledger on.
//   - No more units are granted than the reply says are left, until the time of the refill that it states, for
//     LongestPause at most. Units that were granted after the request of the reply are subtracted, because the provider
//     may not have counted them yet.
//   - A limit that the reply states bounds the units that are granted in each window, until a reply states another. It
//     bounds the units of all pacers that share the limit together, from the next call to the ledger on. Units that
//     were leased before are still granted.
//
// A stated limit need not be a whole number of units per window: of 100 units in a minute, windows of a second get 1 or
// 2 units in turn. A stated limit is at least one unit per LongestPause. A request that costs more than a window has
// gets a window of its own.
func (p *Pacer) Observe(r Reply) {
	a := ParseAdvice(r.Header, r.Received)
	p.mu.Lock()
	now := p.now()
	received := min(max(r.Received.Sub(p.origin), 0), now)
	p.core.supply.advise(&a, received, r.Permit.total, p.core.counts.Granted)
	p.serveAndUnlock(now)
}
