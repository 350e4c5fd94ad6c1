package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// truly is a store with a clock of its own, which ignores the caller's time.
type truly struct {
	limit.Store
	now *time.Time
}

func (s truly) Decide(ctx context.Context, req *limit.Request, _ time.Time, d *limit.Decision) error {
	return s.Store.Decide(ctx, req, *s.now, d)
}

// Guarantees that a lease ends before its window ends at the store, if the instance's clock is slower by up to a
// thousandth: units of one window are not spent in the next one, whose units others may have spent.
func TestClocksThatDrift(t *testing.T) {
	for _, slower := range []time.Duration{0, 100_000, 5000, 2000, 1010} { // by one part of that many; 0: not at all
		now := noon
		clock := func() time.Time {
			gone := now.Sub(noon)
			if slower > 0 {
				gone -= gone / slower
			}
			return noon.Add(gone)
		}
		below, l := newMemory(t), window(t, "w", time.Minute, 100)
		s := open(t, lease.Config{Store: truly{below, &now}, GiveBackEvery: -1, Clock: clock, Rule: greedy{},
			Life: time.Hour})
		if !decide(t, s, request(l), clock()).Allowed || leasedUnits(s, l) != 99 {
			t.Fatalf("%d units are leased, want all", leasedUnits(s, l))
		}
		now = noon.Add(59 * time.Second)
		if d := decide(t, s, request(l), clock()); !d.Allowed || leasedUnits(s, l) != 98 {
			t.Fatalf("in its window the lease is not spent: allowed %t, %d are leased", d.Allowed, leasedUnits(s, l))
		}
		now = noon.Add(time.Minute + 10*time.Microsecond)
		others := request(l)
		others.Charges[0].Cost = 100
		if !decide(t, below, others, now).Allowed {
			t.Fatal("the next window is not empty")
		}
		if decide(t, s, request(l), clock()).Allowed {
			t.Errorf("with a clock that is slower by 1/%d, 101 units are admitted in a window of 100", slower)
		}
	}
}
