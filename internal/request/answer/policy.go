package answer

import (
	"math/bits"
	"strconv"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// appendName writes the name of a tier's policy. It is the limit's id; if the limit has several tiers, it is
// "id/period", as in "put-product/10s", and "id/period.2" for a second tier with this period. The name of an ipLimit
// begins with "ip:". Ids contain none of these signs, so no two policies share a name.
func appendName(b []byte, t *limit.Tier, ip bool) []byte {
	l := t.Limit()
	if ip {
		b = append(b, "ip:"...)
	}
	b = append(b, l.ID...)
	if len(l.Tiers) == 1 {
		return b
	}
	b = append(b, '/')
	b = appendPeriod(b, t)
	same := 1
	for i := range l.Tiers {
		o := &l.Tiers[i]
		if o == t {
			break
		}
		if o.Period == t.Period && (t.Calendar == nil || o.Calendar != nil && o.Calendar.Every == t.Calendar.Every) {
			same++
		}
	}
	if same > 1 {
		b = append(b, '.')
		b = strconv.AppendInt(b, int64(same), 10)
	}
	return b
}

// PolicyName returns the name under which clients see a tier. ip says that it is a tier of an ipLimit.
func PolicyName(t *limit.Tier, ip bool) string { return string(appendName(nil, t, ip)) }

// appendPeriod writes a period in the largest unit of which it is a multiple: "10s", "1m", "250ms", "1d", "month".
func appendPeriod(b []byte, t *limit.Tier) []byte {
	if t.Calendar != nil {
		return append(b, t.Calendar.Every.String()...)
	}
	for _, u := range [...]struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if t.Period%u.length == 0 {
			return append(strconv.AppendInt(b, int64(t.Period/u.length), 10), u.name...)
		}
	}
	return append(b, t.Period.String()...) // not reached: periods are whole milliseconds
}

// WindowSeconds returns the w of a policy in whole seconds, rounded up, so that q in w is never more than the limit
// grants. For a token bucket it is the time in which an empty bucket fills, because its q is the burst, and q/w is then
// its rate. For every other algorithm it is the period, or the calendar period that contains now (µs since 1970).
func WindowSeconds(t *limit.Tier, now int64) int64 {
	switch {
	case t.Calendar != nil:
		start, end := t.CalendarPeriod(now)
		return CeilSeconds(end - start)
	case t.Algorithm.HasBurst():
		hi, lo := bits.Mul64(uint64(t.Burst), uint64(t.Period.Microseconds()))
		rate := uint64(t.Threshold)
		if hi >= rate {
			return 0 // not reached: the quotient is below 2^52, because newTokenBucket of package limit sees to that
		}
		micros, rest := bits.Div64(hi, lo, rate)
		if rest > 0 {
			micros++
		}
		return CeilSeconds(int64(micros))
	default:
		return CeilSeconds(t.Period.Microseconds())
	}
}

// CeilSeconds converts µs to whole seconds, rounded up. It returns 0 for a negative time.
func CeilSeconds(us int64) int64 {
	if us <= 0 {
		return 0
	}
	return (us-1)/1e6 + 1
}
