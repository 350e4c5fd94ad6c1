package lease_test

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that a process gives back units that it will not spend when the store is about to run out of units: other
// processes would be denied.
func TestUnitsAreGivenBackBeforeTheStoreRunsOut(t *testing.T) {
	const threshold, perSecond = 330, 50 // units; half of them are requested here, and half from another process
	below, now := newMemory(t), noon.Truncate(10*time.Second)
	s := open(t, lease.Config{Store: below, GiveBackEvery: -1, Clock: func() time.Time { return now },
		Rule:      leaseSixty{},
		Instances: func(*limit.Limit) int { return 2 }})
	l := window(t, "a", 10*time.Second, threshold)
	for left := int64(threshold); left >= 40; left = threshold - usedUnits(t, below, l, now) {
		decide(t, s, request(l), now)
		decide(t, below, request(l), now)
		now = now.Add(2 * time.Second / perSecond)
	}
	before, left := leasedUnits(s, l), threshold-usedUnits(t, below, l, now)
	s.GiveBackSpare(t.Context(), now)
	after := leasedUnits(s, l)
	t.Logf("the store had %d units left; %d were leased before the return, and %d after it", left, before, after)
	// Until the store runs out, each process spends half of the units that the store has left. A third is added for
	// errors of the estimates.
	if most := left/2 + left/3; before < 2*most || after > most {
		t.Errorf("with %d units left, %d were leased before the return, and %d after it; want at most %d",
			left, before, after, most)
	}
}

// leaseSixty is a rule that leases 60 units at a time.
type leaseSixty struct{ greedy }

func (leaseSixty) SizeLease(_ *lease.View, a *limit.LeaseRequest) {
	a.Most, a.Ample, a.Share = 60, 60, limit.ShareOne
}

// Guarantees that a process that gets few of the requests leases no minimum of units of a window: it would spend them
// late, while other processes deny. Units of a token bucket are soon refilled.
func TestLeastUnitsNeedRequests(t *testing.T) {
	tests := []struct {
		algorithm limit.Algorithm
		// units per second that this process is asked for, of 40 that three processes together are asked for
		rate   float64
		leases bool
	}{
		{limit.FixedWindow, 4, false},
		{limit.FixedWindow, 13, true},
		{limit.FixedWindow, 32, true},
		{limit.TokenBucket, 4, true},
	}
	for _, tt := range tests {
		l := newLimit(t, "a", nil, limit.Tier{Algorithm: tt.algorithm, Period: 10 * time.Second, Threshold: 3000})
		v := lease.View{Tier: &l.Tiers[0], Cost: 1, Lacks: 1, Left: 20, EndsIn: 5 * time.Second, Rate: tt.rate,
			Total:     40,
			Instances: 3}
		var ask limit.LeaseRequest
		if (lease.Adaptive{}).SizeLease(&v, &ask); ask.Least > 0 != tt.leases {
			t.Errorf("%s, asked for %g units per second: a lease has at least %d units; want such a minimum: %t",
				tt.algorithm, tt.rate, ask.Least, tt.leases)
		}
	}
}
