package resilience

import (
	"math"
	"math/bits"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

// derived is a limit as one of so many instances keeps it by itself.
type derived struct {
	limit       *limit.Limit
	instances   int64
	shares      []share // one for each tier
	from, until int64   // µs since 1970; between them the limit's quotas stay in the periods that it was derived for
}

// share is an instance's part of a tier: units per period, and at once.
type share struct{ units, atOnce, period int64 } // period in µs

const derivedLimits = 4096 // remembered

// derive is the instance's part of each tier of l: a token bucket of max(1, units/instances) per period, and as much at once;
// of a token bucket its rate and its burst, each divided so.
//
// It has a result for every limit and every number of instances: whatever the numbers are, bucket returns a tier that
// limit.New accepts, and the ordinals keep two tiers from being one counter. An error would be a mistake in this file.
func derive(l *limit.Limit, instances int64, now time.Time) (*derived, error) {
	d := &derived{instances: instances, shares: make([]share, len(l.Tiers)), from: math.MinInt64, until: math.MaxInt64}
	out := limit.Limit{ID: l.ID, Per: l.Per, MaxValues: l.MaxValues, Tiers: make([]limit.Tier, len(l.Tiers))}
	for i := range l.Tiers {
		t := &l.Tiers[i]
		s := share{units: max(1, t.Threshold/instances), period: t.Period.Microseconds()}
		if s.atOnce = s.units; t.Algorithm == limit.TokenBucket {
			s.atOnce = max(1, t.Burst/instances)
		}
		if t.Calendar != nil {
			start, end := t.CalendarPeriod(now.UnixMicro())
			s.period = max(end-start, limit.MinPeriod.Microseconds())
			d.from, d.until = max(d.from, start), min(d.until, end)
		}
		d.shares[i] = s
		out.Tiers[i] = s.bucket()
		out.Tiers[i].Ordinal = i
	}
	var err error
	d.limit, err = limit.New(out)
	return d, err
}

// holds reports whether d is what derive would return for so many instances at now.
func (d *derived) holds(instances int64, now time.Time) bool {
	at := now.UnixMicro()
	return d.instances == instances && d.from <= at && at < d.until
}

// exact bounds what the core counts a token bucket in: its burst times the period of its reduced rate, µs, stays below it.
const exact = 1 << 52

// bucket is the share as a token bucket that can be counted exactly. It never gives more than the share. Where the share
// itself cannot be counted exactly, the rate is rounded down by less than a hundredth. Only a token bucket that takes longer
// than a year to fill may lose more of its rate, and one that takes longer than a century some of its burst.
func (s share) bucket() limit.Tier {
	const ms, longest = int64(time.Millisecond / time.Microsecond), int64(limit.MaxPeriod / time.Microsecond)
	burst, period := s.atOnce, min(s.period, longest)/ms*ms
	units := max(s.within(period), 1)
	for round := int64(1); round <= max(units/100, 1); round *= 10 {
		rounded := units - units%round
		if hi, lo := bits.Mul64(uint64(burst), uint64(period/gcd(rounded, period))); hi == 0 && lo < exact {
			return bucketOf(rounded, period, burst)
		}
	}
	// With the burst, every rate over a period up to this one can be counted. It is rounded down to three binary digits, so
	// that a changed number of instances, which starts a new counter where it changes the period, seldom does.
	period = (exact - 1) / burst / ms
	digits := max(bits.Len64(uint64(period))-3, 0)
	period = min(period>>digits<<digits*ms, longest)
	if units = s.within(period); units >= 1 {
		return bucketOf(units, period, burst)
	}
	period = min((s.period/s.units/ms+1)*ms, longest)
	return bucketOf(1, period, min(burst, (exact-1)/period))
}

// within is how many units the share has in another period, µs, rounded down. The period is at most the share's own.
func (s share) within(period int64) int64 {
	hi, lo := bits.Mul64(uint64(s.units), uint64(period))
	units, _ := bits.Div64(hi, lo, uint64(s.period))
	return int64(units)
}

func bucketOf(units, period, burst int64) limit.Tier {
	return limit.Tier{Algorithm: limit.TokenBucket, Threshold: units, Period: time.Duration(period) * time.Microsecond, Burst: burst}
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
