package resilience_test

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// part returns what an instance may admit of a tier without the store: units in a period, and at once.
func part(t *limit.Tier, instances int64) (units, atOnce int64) {
	units = max(1, t.Threshold/instances)
	if t.Algorithm == limit.TokenBucket {
		return units, max(1, t.Burst/instances)
	}
	return units, units
}

// period returns the length of the tier's present period, µs.
func period(t *limit.Tier, now time.Time) int64 {
	if t.Calendar == nil {
		return t.Period.Microseconds()
	}
	start, end := t.Calendar.Period(now.UnixMicro())
	return end - start
}

// refillIn returns how many units a bucket refills in a time, µs, rounded down.
func refillIn(bucket limit.Params, in int64) int64 {
	hi, lo := bits.Mul64(uint64(bucket.Num), uint64(in))
	q, _ := bits.Div64(hi, lo, uint64(bucket.Den))
	return int64(q)
}

// checkDerived fails unless the limit has a fallback for that many instances: for each of its tiers a bucket that
// admits at most the instance's part at once, and at most that again during a period. It must not admit much less
// either, except for token buckets that take more than a year to fill.
func checkDerived(t *testing.T, l *limit.Limit, instances int64, now time.Time) {
	t.Helper()
	d, err := resilience.Derive(l, instances, now)
	if err != nil {
		t.Fatalf("%s on %d instances: %v", describe(l), instances, err)
	}
	if len(d.Tiers) != len(l.Tiers) || d.ID != l.ID || d.Per != l.Per || d.MaxValues != l.MaxValues {
		t.Fatalf("%s on %d instances: the fallback is %s, want the same number of tiers, and the same id, per and "+
			"maxValues", describe(l), instances, describe(d))
	}
	for i := range l.Tiers {
		bucket := d.Tiers[i].Params(limit.Owner{})
		units, atOnce := part(&l.Tiers[i], instances)
		length := period(&l.Tiers[i], now)
		refilled := refillIn(bucket, length)
		if bucket.Capacity > atOnce || refilled > units {
			t.Errorf("%s on %d instances: tier %d admits %d at once and %d more in a period, want at most %d and %d",
				describe(l), instances,
				i+1, bucket.Capacity, refilled, atOnce, units)
		}
		least, longest := units-units/100-1, limit.MaxPeriod.Microseconds()
		if l.Tiers[i].Algorithm == limit.TokenBucket && atOnce/units >= longest/length {
			continue
		}
		if bucket.Capacity < atOnce || refilled < least {
			t.Errorf("%s on %d instances: tier %d admits %d at once and %d more in a period, want %d and at least %d",
				describe(l), instances,
				i+1, bucket.Capacity, refilled, atOnce, least)
		}
	}
}

func describe(l *limit.Limit) string {
	text := ""
	for i := range l.Tiers {
		t := &l.Tiers[i]
		text += fmt.Sprintf(", %s of %d (burst %d) per %s", t.Algorithm, t.Threshold, t.Burst, t.Period)
		if t.Calendar != nil {
			text += t.Calendar.String()
		}
	}
	return "limit " + l.ID + text
}

// Guarantees that every pair of tiers with round numbers, as in plans, has a fallback for every algorithm that accepts
// them. Two tiers whose rates are rounded to the same period must not become one counter.
func TestEveryPairOfTiersHasAFallback(t *testing.T) {
	soak.SkipUnderRace(t)
	const hour = time.Hour
	periods := []time.Duration{5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute, hour, 2 * hour,
		4 * hour, 6 * hour,
		8 * hour, 12 * hour, 24 * hour, 7 * 24 * hour, 30 * 24 * hour}
	var amounts []int64
	for unit := int64(1000); unit <= 100_000_000; unit *= 10 {
		amounts = append(amounts, unit, 2*unit, 5*unit)
	}
	pairs := 0
	for _, algorithm := range limit.Algorithms() {
		if algorithm == limit.Quota {
			continue
		}
		for i, short := range periods {
			for _, long := range periods[i+1:] {
				for _, few := range amounts {
					for _, many := range amounts {
						if many <= few || many > few*int64(long/short) {
							continue // one of the two would never deny
						}
						l, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{
							{Algorithm: algorithm, Period: short, Threshold: few}, {Algorithm: algorithm, Period: long,
								Threshold: many}}})
						if err != nil {
							continue // more than the algorithm can count
						}
						pairs++
						for _, instances := range []int64{1, 3, 7, 20, 150} {
							checkDerived(t, l, instances, noon)
						}
					}
				}
			}
		}
	}
	if pairs < 20_000 {
		t.Errorf("only %d pairs of tiers were tried, want at least 20,000", pairs)
	}
}

// Guarantees the same for the largest and the smallest numbers that can be counted, and for quotas, in months and years
// of any length.
func TestEveryExtremeHasAFallback(t *testing.T) {
	almaty, err := time.LoadLocation("Asia/Almaty")
	if err != nil {
		t.Fatal(err)
	}
	calendar := func(every limit.Every, zone *time.Location) *limit.Calendar {
		return &limit.Calendar{Every: every, Location: zone}
	}
	tiers := []limit.Tier{ // two instances cannot count half of them with the whole burst
		{Algorithm: limit.TokenBucket, Period: limit.MaxPeriod, Threshold: 3, Burst: 427},
		{Algorithm: limit.TokenBucket, Period: limit.MaxPeriod, Threshold: 30, Burst: 4270},
	}
	for _, threshold := range []int64{1, 2, 3, 999, 1001, 9999, 142_857, 1<<32 - 5, 1 << 39, limit.MaxUnits - 1,
		limit.MaxUnits} {
		for _, length := range []time.Duration{time.Millisecond, 997 * time.Millisecond, time.Hour + time.Millisecond,
			limit.MaxPeriod - time.Millisecond, limit.MaxPeriod} {
			for _, algorithm := range limit.Algorithms() {
				tiers = append(tiers, limit.Tier{Algorithm: algorithm, Period: length, Threshold: threshold})
			}
			for _, burst := range []int64{1, 7, 100_003, limit.MaxUnits} {
				tiers = append(tiers, limit.Tier{Algorithm: limit.TokenBucket, Period: length, Threshold: threshold,
					Burst: burst})
			}
		}
		for _, zone := range []*time.Location{time.UTC, almaty} {
			for every := limit.Day; every <= limit.Year; every++ {
				tiers = append(tiers, limit.Tier{Algorithm: limit.Quota, Threshold: threshold,
					Calendar: calendar(every, zone)})
			}
		}
	}
	// on the day after, the clocks of Almaty are set back for good
	times := []time.Time{noon, time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC),
		time.Date(2026, 2, 3, 0, 0, 0, 0, time.UTC), time.Date(2028, 12, 31, 23, 0, 0, 0, time.UTC)}
	made := 0
	for i, tier := range tiers {
		for _, other := range [][]limit.Tier{nil, {tiers[(i*7+1)%len(tiers)]}} {
			l, err := limit.New(limit.Limit{ID: "l", Tiers: append([]limit.Tier{tier}, other...)})
			if err != nil {
				continue
			}
			made++
			for _, instances := range []int64{1, 2, 3, 7, 1000, 1 << 30, 1<<62 + 1} {
				for _, now := range times {
					checkDerived(t, l, instances, now)
				}
			}
		}
	}
	if made < 300 {
		t.Errorf("only %d limits were tried, want at least 300", made)
	}
}

// Guarantees the bound of each of two tiers of a limit, for a client that requests as much as it can for a month. The
// rates of both are rounded: a seventh of 20,000 in 720 hours cannot be counted exactly.
func TestBoundOfADayAndAMonth(t *testing.T) {
	const instances, day, month = 7, 24 * time.Hour, 720 * time.Hour
	l := newLimit(t, limit.Limit{ID: "l", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Period: day, Threshold: 1000}, {Algorithm: limit.FixedWindow, Period: month,
			Threshold: 20_000}}})
	s := newStore(t, resilience.FallbackConfig{Store: newFailingStore(t),
		Instances: func(*limit.Limit) int { return instances }})
	var d limit.Decision
	if err := s.Peek(t.Context(), requestOf(l), noon, &d); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"l/1d", "l/30d"} {
		if got := answer.PolicyName(d.Results[i].Tier, false); got != want {
			t.Errorf("clients see tier %d as %s, want %s", i+1, got, want)
		}
	}
	var times []time.Time // of each admitted unit
	for now := noon; now.Before(noon.Add(2 * month)); now = now.Add(10 * time.Minute) {
		for range countAdmitted(t, s, requestOf(l), now) {
			times = append(times, now)
		}
	}
	for _, tt := range []struct {
		period time.Duration
		part   int
	}{{day, 1000 / instances}, {month, 20_000 / instances}} {
		most, from := 0, 0
		for i, at := range times {
			for at.Sub(times[from]) >= tt.period {
				from++
			}
			most = max(most, i-from+1)
		}
		if most > 2*tt.part || most < tt.part {
			t.Errorf("%d units were admitted within %s, want at most twice the instance's part of %d, and at least "+
				"that", most, tt.period, tt.part)
		}
	}
}

// FuzzDerive guarantees that every limit has a fallback for every instance count. A limit without one would deny every
// request without the store, whatever its onStoreFailure says.
func FuzzDerive(f *testing.F) {
	f.Add(int64(7), int64(0), []byte("0123456789abcdef0123456789abcdef0123456789abcdef"))
	f.Add(int64(1), int64(1)<<50, []byte("\x06\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\x00\x00"))
	f.Add(int64(1)<<62, int64(-1), []byte{4, 255, 255, 255, 255, 255, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 9, 9, 9})
	paris, err := time.LoadLocation("Europe/Paris")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, instances, now int64, data []byte) {
		l := limit.Limit{ID: "l", MaxCost: 1 + now&0xff}
		var made *limit.Limit
		for len(data) >= 18 && len(l.Tiers) < limit.MaxTiers {
			tier := tierOf(data, paris)
			data = data[18:]
			if with, err := limit.New(limit.Limit{ID: l.ID, MaxCost: l.MaxCost,
				Tiers: append(l.Tiers[:len(l.Tiers):len(l.Tiers)], tier)}); err == nil {
				l.Tiers, made = append(l.Tiers, tier), with
			}
		}
		if made != nil {
			const century = 100 * 366 * 24 * int64(time.Hour/time.Microsecond)
			checkDerived(t, made, max(instances, 1), time.UnixMicro(now%(2*century)))
		}
	})
}

// tierOf returns a tier made of 18 bytes: the algorithm, how large each number may be, its period, its threshold, and
// one more.
func tierOf(data []byte, zone *time.Location) limit.Tier {
	number := func(b []byte, most uint64) int64 { return 1 + int64(binary.LittleEndian.Uint64(b)%most) }
	algorithm := limit.Algorithms()[int(data[0])%len(limit.Algorithms())]
	periods := []uint64{1000, 60_000, 3_600_000, 86_400_000, uint64(limit.MaxPeriod / time.Millisecond)}
	tier := limit.Tier{Algorithm: algorithm, Threshold: number(data[2:10], 1<<(data[1]%41)),
		Period: time.Duration(number(data[10:18], periods[int(data[1]/41)%len(periods)])) * time.Millisecond}
	if data[1]&1 == 0 { // round numbers
		tier.Period = max(tier.Period.Truncate(time.Hour), time.Hour)
	}
	switch more := int64(data[17]) << (data[16] % 33); algorithm {
	case limit.TokenBucket:
		tier.Burst = more
	case limit.SlidingBuckets:
		tier.Buckets = int(more % limit.MaxBuckets)
	case limit.Quota:
		tier.Period, tier.Calendar = 0, &limit.Calendar{Every: limit.Day + limit.Every(more%4), Location: zone}
	default:
	}
	return tier
}

// Guarantees that the fallback of a quota admits no more in a long month than in a short one, whichever it was made in.
func TestFallbackOfAQuotaInEachMonth(t *testing.T) {
	s := newStore(t, resilience.FallbackConfig{Store: newFailingStore(t)})
	l := newLimit(t, limit.Limit{ID: "l", Tiers: []limit.Tier{
		{Algorithm: limit.Quota, Threshold: 28_000, Calendar: &limit.Calendar{Every: limit.Month,
			Location: time.UTC}}}})
	for _, month := range []time.Month{time.February, time.March, time.April, time.February} {
		now := time.Date(2026, month, 3, 0, 0, 0, 0, time.UTC)
		var d limit.Decision
		if err := s.Peek(t.Context(), requestOf(l), now, &d); err != nil {
			t.Fatal(err)
		}
		if n := refillIn(d.Results[0].Tier.Params(acme), period(&l.Tiers[0], now)); n > 28_000 || n < 27_700 {
			t.Errorf("in %s the fallback refills %d units, want those of the quota, 28000", month, n)
		}
	}
}
