package lease

import (
	"math"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// demand estimates how many units per second this process is asked for, of one counter. It is the lesser of two
// averages: one that fades over about a second, which follows a fall quickly, and one over the last 32 to 63 requests,
// which is steady if requests are few.
type demand struct {
	fading      float64 // units, fading with age
	fadedAt     int64   // µs; up to when fading was faded
	lastRequest int64   // µs

	// Of the present epoch [1] and the one before [0]. An epoch has epochRequests requests.
	requests   int // in the present epoch
	epochUnits [2]int64
	epochBegan [2]int64
}

const (
	// fadeOver is the time, in seconds, in which an old request's weight falls to 1/e. It is the time in which a busy
	// counter makes about one call, so that each call knows of a change since the one before.
	fadeOver = 1.0
	fadeTick = 250_000 // µs; fading is done four times a second, since an exponential for each request would cost more

	// epochRequests bounds the error of the steady average: the number of requests of a Poisson process, if 32 are
	// expected, is off by √32 in standard deviation, which is 18 %. Twice as many would be off by 13 %, and follow a
	// change half as fast.
	epochRequests = 32

	// newCounterFor is the time, in µs, over which the first requests of a counter are spread at least: two requests in
	// a row are no rate of thousands a second. It is half the usual life of a lease (DefaultLife).
	newCounterFor = 5_000_000
)

var fadePerTick = math.Exp(-fadeTick / 1e6 / fadeOver)

// addRequest counts one request.
func (d *demand) addRequest(t, cost int64) {
	if d.requests == 0 && d.epochUnits[0] == 0 && d.epochUnits[1] == 0 {
		d.epochBegan[0], d.epochBegan[1], d.fadedAt = t, t, t
	}
	if t-d.fadedAt >= fadeTick {
		d.fade(t)
	}
	d.fading += float64(cost)
	d.lastRequest = t
	d.epochUnits[1] += cost
	if d.requests++; d.requests >= epochRequests {
		d.epochBegan[0], d.epochUnits[0] = d.epochBegan[1], d.epochUnits[1]
		d.epochBegan[1], d.epochUnits[1], d.requests = t, 0, 0
	}
}

func (d *demand) fade(t int64) {
	ticks := (t - d.fadedAt) / fadeTick
	d.fading *= math.Pow(fadePerTick, float64(ticks))
	d.fadedAt += ticks * fadeTick
}

// rate returns units per second.
func (d *demand) rate(t int64) float64 {
	units := d.epochUnits[0] + d.epochUnits[1]
	if units == 0 {
		return 0
	}
	if t-d.fadedAt >= fadeTick {
		d.fade(t)
	}
	over := t - d.epochBegan[0]
	if d.epochUnits[0] == 0 || d.epochBegan[0] == d.epochBegan[1] { // the first epoch has not ended
		over = max(over, newCounterFor)
	}
	const leastOver = 1000 // µs; keeps requests of one instant from being an infinite rate
	steady := float64(units) * 1e6 / float64(max(over, leastOver))
	return min(steady, d.fading/fadeOver)
}

// supply estimates, from the store's answers, how fast all processes together use one counter.
type supply struct {
	used      int64   // units, at the last answer that was sampled
	at        int64   // when that was, by the shard's clock
	end       int64   // of the window that the last answer was about, by the store's clock; 0: there was no answer
	left      int64   // units that the store had left at the last answer
	leftAt    int64   // when that answer came, by the shard's clock
	total     float64 // units per second that all processes use
	saturated bool    // see View
}

// noteAnswer updates the estimate by one answer of the store. The parameter leased is how many units of a token bucket
// are leased in its slot, and need is how many units the store was asked for.
func (s *supply) noteAnswer(owner limit.Owner, t, storeNow int64, r *limit.Result, leased, need int64) {
	tier, used, left := r.Tier, r.Used(), r.Remaining()
	leasing := tier.Leasing()
	if leasing.Refills { // the level tells nothing of the use: a full bucket refills nothing
		used = leased
	}
	end := r.ResetAt() // a quota's: its period must not be computed under the shard's lock
	if tier.Calendar == nil {
		end = tier.LeaseEnd(owner.Name, storeNow)
	}
	rate, seconds, ok := s.sampleRate(leasing, t, storeNow, used, end)
	ok = ok && rate >= 0 // units that were given back count below zero
	s.saturated = !r.Admits || left < max(need, 1)
	if ok && (r.Admits || rate > s.total) { // while a counter denies, less is used than is asked for
		s.total += (1 - math.Exp(-seconds/fadeOver)) * (rate - s.total)
	}
	if ok || end != s.end {
		s.used, s.at = used, t
	}
	s.end, s.left, s.leftAt = end, left, t
}

// sampleRate returns how fast the counter was used since the answer before, or since its window began, and over which
// time. ok is false if that is not known.
func (s *supply) sampleRate(leasing limit.Leasing, t, storeNow, used, end int64) (rate, seconds float64, ok bool) {
	const (
		leastSeconds = 0.05 // two answers that are closer together tell more of chance than of a rate
		leastParts   = 20   // the same at the beginning of a window: at least a twentieth of it must have passed
	)
	seconds = float64(t-s.at) / 1e6
	switch length := leasing.Longest; {
	case !leasing.Ends: // an entry leaves when it is a period old: there is no time since which used counts
		return 0, 0, false
	case end == s.end:
		return float64(used-s.used) / seconds, seconds, seconds >= leastSeconds
	case length > 0 && !leasing.Weighs:
		seconds = (float64(storeNow-end) + float64(length)) / 1e6
		return float64(used) / seconds, seconds, seconds >= float64(length)/(leastParts*1e6)
	}
	return 0, 0, false
}
