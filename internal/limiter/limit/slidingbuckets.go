package limit

import "time"

// SlidingBuckets divides time into buckets, n of them in a period, and admits a cost if no more than the threshold was
// charged in the current bucket and the n before it. It never admits more than the threshold in a period, but counts
// units for up to one bucket longer than a sliding log does. It needs memory for up to n+1 entries, and for up to as
// many again if units are leased: they lie in buckets of up to one period ahead.
//
// See the type log for all that it shares with the sliding log.
const SlidingBuckets Algorithm = 3

var slidingBucketsKind = kind{
	name: "sliding_buckets", letter: 'b', amountField: amountThreshold, largest: MaxUnits, hasBuckets: true,
	new: newSlidingBuckets,
}

type slidingBuckets struct {
	log
	buckets int64 // n, the number of buckets in a period
	places  bool  // the units are the places of requests in flight, most of which come back before they expire
}

// placeRetry is the longest wait for a place: places come back at any moment.
const placeRetry = int64(time.Second / time.Microsecond)

func newSlidingBuckets(t *Tier, l *Limit, bad report) algorithm {
	if t.Buckets == 0 {
		t.Buckets = DefaultBuckets
	}
	if t.Buckets < 1 || t.Buckets > MaxBuckets {
		bad("buckets", "%d is outside 1..%d", t.Buckets, MaxBuckets)
		return nil
	}
	// Rounded up: n whole buckets then cover at least the period, so the bound stays the threshold.
	n, period := int64(t.Buckets), t.Period.Microseconds()
	width := ceilDiv(period, n)
	return &slidingBuckets{log{threshold: t.Threshold, period: period, width: width, lasts: (n + 1) * width}, n,
		l.CountsPlaces()}
}

func (b *slidingBuckets) evaluate(s *State, now int64, r *Result) bool {
	sound := b.log.evaluate(s, now, r)
	if b.places && sound && !r.Admits && !r.Never {
		r.RetryAt = min(r.RetryAt, now+placeRetry)
	}
	return sound
}

func (b *slidingBuckets) resetAt(r *Result) int64 { return b.soon(r, b.log.resetAt(r)) }

func (b *slidingBuckets) moreAt(r *Result) int64 { return b.soon(r, b.log.moreAt(r)) }

// soon returns the time at which to look again for places, at most the given one.
func (b *slidingBuckets) soon(r *Result, at int64) int64 {
	if b.places {
		return min(at, r.logSeen().now+placeRetry)
	}
	return at
}

func (b *slidingBuckets) params(string) Params {
	return Params{Period: b.period, Width: b.width, Buckets: b.buckets}
}

func (b *slidingBuckets) counting() Counting {
	return Counting{Lasts: b.lasts, Entries: true}
}
