package pacer

import (
	"fmt"
	"math"
	"net/http"
	"time"
)

// Learning makes a pacer find out a provider's limit from the provider's replies, see [Pacer.Observe]. The learned
// limit is at most Config.Limit.
//
// Replies are judged once in each interval, which is the longer of the limit's period and a second:
//
//   - Before the first refusal the rate grows by half in each interval.
//   - If requests were refused, the rate falls to 99 % of the units that were accepted in the interval, but to no less
//     than 70 % of the rate before. Refusals of requests that were sent before the rate fell are ignored.
//   - Then the rate climbs back to 99 % of what it was at the refusal, by a quarter of the gap in each interval. It
//     stays there for ten intervals. After that it probes whether the limit has risen: it grows by 1 %, and by
//     1.3 times as much in each further interval, up to 25 %.
//
// The rate grows only after intervals in which at least 90 % of it was used. Other intervals prove nothing.
//
// A pacer that shares its limit ([Shared]) cannot learn.
type Learning struct {
	// Start is the rate to begin with, in units per period, 1..Config.Limit.Units; 0 means a tenth of
	// Config.Limit.Units.
	Start int64

	// Bans means that the provider bans clients that exceed its limit. The rate then begins at Config.Limit, unless
	// Start is set, and never rises. SetLimit starts the learning anew.
	Bans bool
}

// The constants of the rule, found by simulation of fixed windows and token buckets whose limit falls to 40 % and rises
// to 375 %, with delays of 2 to 12 ms (docs/consumer.md).
const (
	learnGrowth    = 1.5   // per interval, before the first refusal
	learnAccepted  = 0.99  // of what was accepted, after a refusal
	learnLeast     = 0.7   // of the rate, after a refusal
	learnTarget    = 0.99  // of the rate that was refused
	learnClimb     = 0.25  // of the gap to the target, per interval
	learnHold      = 10    // intervals at the target
	learnProbe     = 0.01  // of the rate, at first
	learnProbeMore = 1.3   // of the last probe
	learnProbeMost = 0.25  // of the rate
	learnUsed      = 0.9   // of the rate: less is no evidence
	learnReached   = 0.995 // of the target: the climb is over
)

// shortestJudgement is the shortest interval in which replies are judged.
const shortestJudgement = time.Second

// LongestPause is the longest time for which one reply can make a pacer pause.
const LongestPause = time.Hour

func (l *Learning) check(limit Limit) error {
	if l != nil && (l.Start < 0 || l.Start > limit.Units) {
		return fmt.Errorf("%w: to learn from %d units is not within 0..%d", ErrConfig, l.Start, limit.Units)
	}
	return nil
}

// start returns the rate to begin with, in units per period.
func (l *Learning) start(limit Limit) float64 {
	switch {
	case l.Start > 0:
		return float64(l.Start)
	case l.Bans:
		return float64(limit.Units)
	}
	return max(float64(limit.Units)/10, 1)
}

// learned is the state of the rule of [Learning].
type learned struct {
	rate   float64 // units per period
	target float64 // what the rate climbs to; 0 before the first refusal
	held   int64   // number of intervals at the target
	probe  float64 // latest growth, as a part of the rate; 0 while the rule does not probe
}

// fall applies the rule after refusals, if the provider has accepted so many units per period.
func (l *learned) fall(accepted, most float64) {
	l.target = learnTarget * l.rate
	l.rate = min(max(learnAccepted*accepted, learnLeast*l.rate, 1), most)
	l.target = max(l.target, l.rate)
	l.held, l.probe = 0, 0
}

// isUsed reports whether so many accepted units per period are evidence that the rate is not too high. Only whole units
// can be used: of a rate of 1.5 units, one can.
func (l *learned) isUsed(accepted float64) bool { return accepted >= learnUsed*math.Floor(l.rate) }

// rise applies the rule after an interval without refusals in which the rate was used. The rate is at most most.
func (l *learned) rise(most float64) {
	switch {
	case l.target == 0:
		l.rate *= learnGrowth
	case l.probe == 0 && l.rate < learnReached*l.target:
		l.rate += learnClimb * (l.target - l.rate)
	case l.held < learnHold:
		l.held++
	default:
		l.probe = min(max(l.probe*learnProbeMore, learnProbe), learnProbeMost)
		l.rate *= 1 + l.probe
	}
	l.rate = min(l.rate, most)
}

// learner applies the rule of [Learning] in one process. It reads no clock; its times are monotonic.
type learner struct {
	learned
	most float64 // units per period; the configured limit
	bans bool

	interval time.Duration
	perJudge float64       // periods per interval
	judgeAt  time.Duration // end of the present interval
	cutAt    time.Duration // when the rate fell last; refusals of requests that were sent earlier are ignored

	accepted float64 // units in the present interval
	refused  float64 // units in the present interval
}

func newLearner(l Learning, limit Limit, now time.Duration) *learner {
	r := &learner{learned: learned{rate: l.start(limit)}, most: float64(limit.Units), bans: l.Bans, cutAt: -never}
	r.interval = max(limit.Period, shortestJudgement)
	r.perJudge = float64(r.interval) / float64(limit.Period)
	r.judgeAt = now + r.interval
	return r
}

// observe counts the reply to a request of the given cost that was sent at the given time.
func (r *learner) observe(refused bool, cost int64, sent time.Duration) {
	switch {
	case !refused:
		r.accepted += float64(cost)
	case sent >= r.cutAt:
		r.refused += float64(cost)
	}
}

// judge applies the rule once per interval, and reports whether the rate may have changed.
func (r *learner) judge(now time.Duration) bool {
	if now < r.judgeAt {
		return false
	}
	idle := now-r.judgeAt >= r.interval // judge was not called for an interval: the counts are those of a longer time
	accepted, refused := r.accepted/r.perJudge, r.refused
	r.accepted, r.refused, r.judgeAt = 0, 0, now+r.interval
	switch {
	case refused > 0:
		r.fall(accepted, r.most)
		r.cutAt = now
	case r.bans || idle || !r.isUsed(accepted):
		return false
	default:
		r.rise(r.most)
	}
	return true
}

// Reply describes a reply of the provider, for [Pacer.Observe]. Both times have a reading of the monotonic clock, as
// those of time.Now do.
type Reply struct {
	Status   int         // of HTTP
	Header   http.Header // may be nil
	Permit   Permit      // of the request
	Sent     time.Time   // when the request was sent
	Received time.Time   // when the header of the reply had arrived
}

// Observe learns from a reply of the provider. It never makes the pacer send more than Config.Limit:
//
//   - After a Retry-After, nothing is granted for the time that it states, LongestPause at most. Other pacers that
//     share the limit pause, too, from their next call to the ledger on.
//   - No more units are granted than the reply says are left, until the time of the refill that it states, for
//     LongestPause at most. Units that were granted after the request of the reply are subtracted, because the provider
//     may not have counted them yet.
//   - A limit that the reply states bounds the units that are granted in each window, until a reply states another. It
//     bounds the units of all pacers that share the limit together, from the next call to the ledger on. Units that
//     were leased before are still granted.
//   - With Config.Learning, refusals lower the rate. Without refusals the rate rises again.
//
// A stated limit need not be a whole number of units per window: of 100 units in a minute, windows of a second get 1 or
// 2 units in turn. A stated limit is at least one unit per LongestPause, and a learned limit at least one unit in each
// window. A request that costs more than these limits gets a window of its own.
func (p *Pacer) Observe(r Reply) {
	a := ParseAdvice(r.Status, r.Header, r.Received)
	p.mu.Lock()
	now := p.now()
	received := min(max(r.Received.Sub(p.origin), 0), now)
	sent := r.Sent.Sub(p.origin)
	if p.learner != nil {
		p.learner.observe(a.Refused, r.Permit.cost, sent)
	}
	p.core.supply.advise(&a, received, r.Permit.total, p.core.counts.Granted)
	p.serveAndUnlock(now)
}
