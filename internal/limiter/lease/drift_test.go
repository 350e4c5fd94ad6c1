package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// ownClock is a store with a clock of its own, which ignores the caller's time.
type ownClock struct {
	limit.Store
	now *time.Time
}

func (s ownClock) Decide(ctx context.Context, req *limit.Request, _ time.Time, d *limit.Decision) error {
	return s.Store.Decide(ctx, req, *s.now, d)
}

// Guarantees that a lease ends before its window ends at the store, even if the instance's clock is slower by up to a
// thousandth. Otherwise units of one window would be spent in the next one, in addition to the units of that window.
func TestClocksThatDrift(t *testing.T) {
	for _, slower := range []time.Duration{0, 100_000, 5000, 2000, 1010} { // by one part in this many; 0: not at all
		now := noon
		clock := func() time.Time {
			gone := now.Sub(noon)
			if slower > 0 {
				gone -= gone / slower
			}
			return noon.Add(gone)
		}
		below, l := newMemory(t), window(t, "w", time.Minute, 100)
		s := open(t, lease.Config{Store: ownClock{below, &now}, GiveBackEvery: -1, Clock: clock, Rule: greedy{},
			Life: time.Hour})
		if !decide(t, s, request(l), clock()).Allowed || leasedUnits(s, l) != 99 {
			t.Fatalf("%d units are leased, want all", leasedUnits(s, l))
		}
		now = noon.Add(59 * time.Second)
		if d := decide(t, s, request(l), clock()); !d.Allowed || leasedUnits(s, l) != 98 {
			t.Fatalf("a request in the window of the lease: allowed %t, %d units leased after it; want it admitted "+
				"from the lease, with 98 left", d.Allowed, leasedUnits(s, l))
		}
		now = noon.Add(time.Minute + 10*time.Microsecond)
		others := request(l)
		others.Charges[0].Cost = 100
		if !decide(t, below, others, now).Allowed {
			t.Fatal("all units of the next window are requested elsewhere, and denied; want them admitted")
		}
		if decide(t, s, request(l), clock()).Allowed {
			t.Errorf("with a clock that is slower by 1/%d, 101 units are admitted in a window of 100, want 100", slower)
		}
	}
}

// Guarantees that the retry time of a denial is by the store's clock, as the decision's own time is, if the process's
// clock differs by an hour: also if no call was made because the ramp of the lease frees the units later, and if a call
// returned such a ramp. Otherwise the client would wait for an hour, or not at all.
func TestRetryIsByTheStoresClock(t *testing.T) {
	// how far the store's clock is ahead of the process's
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		l := newLimit(t, "a", func(l *limit.Limit) { l.MaxCost = 100 },
			limit.Tier{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 10, Burst: 100})
		here, there := noon, noon.Add(ahead)
		below := newMemory(t)
		calls := &counted{Store: ownClock{below, &there}}
		s := openAt(t, &here, calls, ramping{})
		decide(t, below, requestOfCost(l, 100), there)
		withCall, withoutCall := 0, 0
		for range 400 {
			here, there = here.Add(7*time.Millisecond), there.Add(7*time.Millisecond)
			before := calls.calls.Load()
			d := decide(t, s, request(l), here)
			switch {
			case d.Allowed:
				continue
			case calls.calls.Load() == before:
				withoutCall++
			default:
				withCall++
			}
			if d.Now != there.UnixMicro() || d.RetryAt <= d.Now || d.RetryAfter() > time.Second {
				t.Fatalf("the store's clock is ahead by %s: denied at %d until %d; want it denied at %d, for at "+
					"most a second", ahead, d.Now, d.RetryAt, there.UnixMicro())
			}
		}
		if withCall == 0 || withoutCall < 10 {
			t.Errorf("ahead by %s: %d denials with a call and %d without: the test shows too little", ahead, withCall,
				withoutCall)
		}
	}
}
