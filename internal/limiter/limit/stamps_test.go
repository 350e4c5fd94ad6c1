package limit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

const threshold = 20 // of the limits, in units

// Guarantees that a store can bound the stamps of a counter. The limit is then stricter than with all stamps, and never
// looser, and its results and receipts stay right.
func TestFitStamps(t *testing.T) {
	soak.SkipUnderRace(t)
	const period = 10 * time.Second
	for _, tier := range []Tier{
		{Algorithm: SlidingLog, Threshold: threshold, Period: period},
		{Algorithm: SlidingBuckets, Threshold: threshold, Period: period, Buckets: 10},
	} {
		for _, most := range []int{1, 2, 5, 40} {
			t.Run(fmt.Sprintf("%s, %d stamps", tier.Algorithm, most), func(t *testing.T) { fitStamps(t, tier, most) })
		}
	}
}

func fitStamps(t *testing.T, in Tier, most int) {
	l := mustNew(t, Limit{ID: "l", MaxCost: 3, Tiers: []Tier{in}})
	tier, r := &l.Tiers[0], rand.New(rand.NewPCG(uint64(most), 3))
	type charge struct{ at, units int64 }
	var kept []charge
	var s State
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC).UnixMicro()
	allowed, denied, refunded := 0, 0, 0
	for range 20_000 {
		now += r.Int64N(int64(in.Period / time.Microsecond / 10))
		var d Decision
		req := Request{Owner: Owner{Kind: Tenant, Name: "acme"}, Charges: []Charge{{Limit: l, Cost: 1 + r.Int64N(3)}}}
		e := d.BeginChecked(&req, now)
		e.Evaluate(0, &s, true)
		if !e.Settle() {
			denied++
			if at := d.RetryAt; at <= now || !decideOnce(l, s.Clone(), at, req.Charges[0].Cost).Allowed {
				t.Fatalf("state %+v at %d: denied until %d, want a later time at which the cost is admitted", s, now,
					at)
			}
			continue
		}
		if _, entries := e.Room(0, &s); entries > 0 {
			e.Grow(0, &s, min(entries, most))
		}
		e.Charge(0, &s)
		if cap(s.entries()) > most {
			t.Fatalf("the counter has %d entries, want at most %d", cap(s.entries()), most)
		}
		allowed++
		kept = append(kept, charge{now, req.Charges[0].Cost})
		for kept[0].at <= now-in.Period.Microseconds() {
			kept = kept[1:]
		}
		used := int64(0)
		for i := range kept {
			used += kept[i].units
		}
		if left := &d.Results[0]; used > threshold || left.Used() < used || s.b != left.Used() {
			t.Fatalf("%d units were charged in a period, and the counter has %d; want at most %d charged, and all "+
				"of them counted", used, s.b, threshold)
		}
		more := decideOnce(l, s.Clone(), d.Results[0].MoreAt(), threshold+1).Results[0].Remaining()
		if more <= d.Results[0].Remaining() {
			t.Fatalf("state %+v: at MoreAt %d units are left, and now %d; want more at MoreAt", s, more,
				d.Results[0].Remaining())
		}
		if r.IntN(4) == 0 {
			entry := &d.Receipt().Entries()[0]
			before := s.b
			if back := entry.GiveBack(&s, MaxUnits, now); back != entry.Units || s.b != before-back {
				t.Fatalf("a refund gave back %d of %d units, and the counter has %d units after it, %d before; want "+
					"all given back and no longer counted", back, entry.Units, s.b, before)
			}
			kept = kept[:len(kept)-1]
			refunded++
		}
	}
	if allowed < 2000 || denied < 2000 || refunded < 500 {
		t.Errorf("%d allowed, %d denied, %d refunded: the script shows too little", allowed, denied, refunded)
	}
	if tier.FreshAt(&s) <= now {
		t.Error("FreshAt of a counter in use is not after now: a store would forget it")
	}
}
