package resilience

import (
	"math"
	"math/bits"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// part is an instance's part of a limit: what one of several instances may admit by itself while the store is away.
type part struct {
	limit *limit.Limit // has a token bucket for each tier, or the part of the places; the fallback limiter counts it
	tiers []tierPart   // one for each tier

	// The part is valid from one time until before another, µs since 1970: in the calendar periods of the limit's
	// quotas for which it was made. The part of a limit without quotas is always valid.
	from, until int64
}

// tierPart is an instance's part of a tier: units per period, and the burst, which is how many may be spent at once.
type tierPart struct{ units, burst, period int64 } // period in µs

// maxCachedParts is how many parts a fallback limiter caches, because computing one takes longer than the rest of a
// decision. Few deployments have as many limits. A part takes some 700 bytes.
const maxCachedParts = 4096

type partKey struct {
	limit     *limit.Limit
	instances int64
}

// partOf makes the instance's part of each tier of l: a token bucket of max(1, units/instances) per period, with a
// burst of as many units. If the tier is a token bucket itself, its rate and its burst are each divided. If it counts
// requests in flight, the part is a tier of the same algorithm.
//
// Every limit has a part for every number of instances: tierPart.bucket returns a tier that limit.New accepts, whatever
// the numbers are, and the ordinals keep two tiers from sharing a counter. An error would be a mistake in this file.
func partOf(l *limit.Limit, instances int64, now time.Time) (*part, error) {
	p := &part{tiers: make([]tierPart, len(l.Tiers)), from: math.MinInt64, until: math.MaxInt64}
	out := limit.Limit{ID: l.ID, Per: l.Per, Unit: l.Unit, MaxValues: l.MaxValues, PartOf: l,
		Tiers: make([]limit.Tier, len(l.Tiers))}
	for i := range l.Tiers {
		t := &l.Tiers[i]
		tp := tierPart{units: max(1, t.Threshold/instances), period: t.Period.Microseconds()}
		if tp.burst = tp.units; t.Algorithm.HasBurst() {
			tp.burst = max(1, t.Burst/instances)
		}
		if t.Calendar != nil {
			start, end := t.CalendarPeriod(now.UnixMicro())
			tp.period = max(end-start, limit.MinPeriod.Microseconds())
			p.from, p.until = max(p.from, start), min(p.until, end)
		}
		p.tiers[i] = tp
		out.Tiers[i] = tp.bucket()
		if l.CountsPlaces() { // places come back, which a bucket cannot do
			out.Tiers[i] = limit.Tier{Algorithm: t.Algorithm, Threshold: tp.units, Period: t.Period, Buckets: t.Buckets}
		}
		out.Tiers[i].Ordinal = i
	}
	var err error
	p.limit, err = limit.New(out)
	return p, err
}

// isCurrent reports whether partOf would return the same part at now.
func (p *part) isCurrent(now time.Time) bool {
	at := now.UnixMicro()
	return p.from <= at && at < p.until
}

// exactBound is the bound of package limit on token buckets: the burst times the period of the reduced rate, in µs,
// must be below it. Every intermediate value is then exact, also in the double-precision numbers of Redis's scripts.
const exactBound = 1 << 52

// bucket returns the part as a token bucket that can be counted exactly. The bucket never admits more than the part. If
// the part itself cannot be counted exactly, the rate is rounded down, by less than a hundredth. More of the rate is
// lost only if the bucket takes longer than a year to fill, and some of the burst only if it takes longer than a
// century.
func (p tierPart) bucket() limit.Tier {
	const ms, longest = int64(time.Millisecond / time.Microsecond), int64(limit.MaxPeriod / time.Microsecond)
	burst, period := p.burst, min(p.period, longest)/ms*ms
	units := max(p.unitsIn(period), 1)
	for round := int64(1); round <= max(units/100, 1); round *= 10 {
		rounded := units - units%round
		if hi, lo := bits.Mul64(uint64(burst), uint64(period/gcd(rounded, period))); hi == 0 && lo < exactBound {
			return bucketOf(rounded, period, burst)
		}
	}
	// With this burst, every rate over this period, or a shorter one, can be counted exactly. A bucket with another
	// period is another counter, which begins unused. The period is therefore rounded down to three binary digits, so
	// that it seldom changes with the number of instances.
	period = (exactBound - 1) / burst / ms
	digits := max(bits.Len64(uint64(period))-3, 0)
	period = min(period>>digits<<digits*ms, longest)
	if units = p.unitsIn(period); units >= 1 {
		return bucketOf(units, period, burst)
	}
	period = min((p.period/p.units/ms+1)*ms, longest)
	return bucketOf(1, period, min(burst, (exactBound-1)/period))
}

// unitsIn returns how many units the part has in another period, in µs, rounded down. The other period must not be
// longer than the part's own.
func (p tierPart) unitsIn(period int64) int64 {
	hi, lo := bits.Mul64(uint64(p.units), uint64(period))
	units, _ := bits.Div64(hi, lo, uint64(p.period))
	return int64(units)
}

func bucketOf(units, period, burst int64) limit.Tier {
	return limit.Tier{
		Algorithm: limit.TokenBucket, Threshold: units, Period: time.Duration(period) * time.Microsecond, Burst: burst,
	}
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
