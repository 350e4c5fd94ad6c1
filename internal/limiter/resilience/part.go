package resilience

import (
	"math"
	"math/bits"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

// part is an instance's part of a limit: what one of several instances keeps by itself while the store is away.
type part struct {
	limit     *limit.Limit // token buckets, which the fallback limiter counts
	instances int64        // that the limit was divided by
	tiers     []tierPart   // one for each tier

	// Between these times, µs since 1970, the limit's quotas stay in the periods that the part was made for.
	from, until int64
}

// tierPart is an instance's part of a tier: units per period, and at once.
type tierPart struct{ units, atOnce, period int64 } // period in µs

// rememberedParts is how many parts are kept, so that they are not computed for each decision. A part takes some 500
// bytes, and few deployments have as many limits.
const rememberedParts = 4096

// partOf makes the instance's part of each tier of l: a token bucket of max(1, units/instances) per period, and as much
// at once. Of a token bucket the rate and the burst are each divided so.
//
// There is a part of every limit for every number of instances: whatever the numbers are, tierPart.bucket returns a
// tier that limit.New accepts, and the ordinals keep two tiers from being one counter. An error would be a mistake in
// this file.
func partOf(l *limit.Limit, instances int64, now time.Time) (*part, error) {
	p := &part{instances: instances, tiers: make([]tierPart, len(l.Tiers)), from: math.MinInt64, until: math.MaxInt64}
	out := limit.Limit{ID: l.ID, Per: l.Per, MaxValues: l.MaxValues, Tiers: make([]limit.Tier, len(l.Tiers))}
	for i := range l.Tiers {
		t := &l.Tiers[i]
		tp := tierPart{units: max(1, t.Threshold/instances), period: t.Period.Microseconds()}
		if tp.atOnce = tp.units; t.Algorithm.HasBurst() {
			tp.atOnce = max(1, t.Burst/instances)
		}
		if t.Calendar != nil {
			start, end := t.CalendarPeriod(now.UnixMicro())
			tp.period = max(end-start, limit.MinPeriod.Microseconds())
			p.from, p.until = max(p.from, start), min(p.until, end)
		}
		p.tiers[i] = tp
		out.Tiers[i] = tp.bucket()
		out.Tiers[i].Ordinal = i
	}
	var err error
	p.limit, err = limit.New(out)
	return p, err
}

// holds reports whether p is what partOf would return for so many instances at now.
func (p *part) holds(instances int64, now time.Time) bool {
	at := now.UnixMicro()
	return p.instances == instances && p.from <= at && at < p.until
}

// exactBelow bounds what the core counts a token bucket in: its burst times the period of its reduced rate, µs, must
// stay below it. It is the bound of package limit, so that every intermediate value is exact in a double, too.
const exactBelow = 1 << 52

// bucket returns the part as a token bucket that can be counted exactly. The bucket never gives more than the part. If
// the part itself cannot be counted exactly, the rate is rounded down by less than a hundredth. Only a token bucket
// that takes longer than a year to fill may lose more of its rate, and only one that takes longer than a century some
// of its burst.
func (p tierPart) bucket() limit.Tier {
	const ms, longest = int64(time.Millisecond / time.Microsecond), int64(limit.MaxPeriod / time.Microsecond)
	burst, period := p.atOnce, min(p.period, longest)/ms*ms
	units := max(p.within(period), 1)
	for round := int64(1); round <= max(units/100, 1); round *= 10 {
		rounded := units - units%round
		if hi, lo := bits.Mul64(uint64(burst), uint64(period/gcd(rounded, period))); hi == 0 && lo < exactBelow {
			return bucketOf(rounded, period, burst)
		}
	}
	// With this burst, every rate over a period up to the following one can be counted. The period is rounded down to
	// three binary digits: a changed number of instances starts a new counter if it changes the period, and then seldom
	// does.
	period = (exactBelow - 1) / burst / ms
	digits := max(bits.Len64(uint64(period))-3, 0)
	period = min(period>>digits<<digits*ms, longest)
	if units = p.within(period); units >= 1 {
		return bucketOf(units, period, burst)
	}
	period = min((p.period/p.units/ms+1)*ms, longest)
	return bucketOf(1, period, min(burst, (exactBelow-1)/period))
}

// within returns how many units the part has in another period, in µs, rounded down. That period is at most the part's
// own.
func (p tierPart) within(period int64) int64 {
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
