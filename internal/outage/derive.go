package outage

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

// derived is a limit as one of so many instances keeps it by itself.
type derived struct {
	limit     *limit.Limit
	instances int64
	shares    []share // one for each tier
}

// share is an instance's part of a tier: units per period, and at once.
type share struct{ units, atOnce, period int64 } // period in µs

const derivedLimits = 4096 // remembered

// derive is the instance's part of each tier of l: a token bucket of max(1, units/instances) per period, and as much at once;
// of a token bucket its rate and its burst, each divided so.
func derive(l *limit.Limit, instances int64, now time.Time) (*derived, error) {
	d := &derived{instances: instances, shares: make([]share, len(l.Tiers))}
	out := limit.Limit{ID: l.ID, Per: l.Per, MaxValues: l.MaxValues, Tiers: make([]limit.Tier, len(l.Tiers))}
	for i := range l.Tiers {
		t := &l.Tiers[i]
		s := share{units: max(1, t.Threshold/instances), period: t.Period.Microseconds()}
		if s.atOnce = s.units; t.Algorithm == limit.TokenBucket {
			s.atOnce = max(1, t.Burst/instances)
		}
		if t.Calendar != nil {
			start, end := t.Calendar.Period(now.UnixMicro())
			s.period = (end - start) / 1000 * 1000
		}
		for j := range i { // two tiers of one period, of different algorithms, would be one bucket
			if d.shares[j].period == s.period {
				s.period += 1000
			}
		}
		d.shares[i] = s
		var err error
		if out.Tiers[i], err = s.tier(l); err != nil {
			return nil, err
		}
	}
	var err error
	d.limit, err = limit.New(out)
	return d, err
}

// coarser are the periods over which a rate is counted that cannot be counted exactly over its own.
var coarser = [...]time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second, time.Millisecond}

// tier is the share as a bucket. A large quota's rate over a month has too many digits to be counted exactly; it is then
// rounded down to three digits, over a shorter period.
func (s share) tier(l *limit.Limit) (limit.Tier, error) {
	t := limit.Tier{Algorithm: limit.TokenBucket, Threshold: s.units, Burst: s.atOnce, Period: time.Duration(s.period) * time.Microsecond}
	err := countable(t)
	for _, p := range coarser {
		if err == nil {
			return t, nil
		}
		hi, lo := bits.Mul64(uint64(s.units), uint64(p.Microseconds()))
		if p.Microseconds() >= s.period || hi >= uint64(s.period) {
			continue
		}
		q, _ := bits.Div64(hi, lo, uint64(s.period))
		rounded := int64(q)
		for unit := int64(1); rounded >= 1000*unit; unit *= 10 {
			rounded -= rounded % (10 * unit)
		}
		if rounded >= 1 {
			t.Threshold, t.Period = rounded, p
			err = countable(t)
		}
	}
	for err != nil && t.Burst > 1 {
		t.Burst /= 2
		err = countable(t)
	}
	if err != nil {
		return t, fmt.Errorf("the backstop of limit %s: %w", l.ID, err)
	}
	return t, nil
}

func countable(t limit.Tier) error {
	_, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{t}})
	return err
}
