package shared

import (
	"math"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// prototype is an earlier rule of leases, which the tables compare with the present one. It leases no ramps. A cost
// that was denied is denied without a call until it fits.
type prototype struct{ scarceFor time.Duration }

const (
	longRunning = 2 * time.Second // scarceFor of instances that run all the time: for how long they lease scarce units
	shortLived  = time.Second     // scarceFor of instances that may be frozen after each request
	fewEach     = 10              // if the limit divided by the instance count is at most this, leases are smaller
)

// SizeLease implements [lease.Rule].
func (p prototype) SizeLease(v *lease.View, a *limit.LeaseRequest) {
	n := float64(max(v.Instances, 1))
	rate, total, left := v.Rate, max(v.Total, v.Rate), v.EndsIn.Seconds()
	if v.Total == 0 {
		total = n * rate
	}
	ratio := 1.0
	if total > 0 {
		ratio = rate / total
	}
	part := 1.25
	if float64(v.Tier.Capacity())/n <= fewEach {
		part = 2
	}
	expected := rate * left
	a.Plenty = wholeUnits(2 * total * left)
	a.Ample = wholeUnits(expected + 3*math.Sqrt(expected) + 1)
	a.Most = wholeUnits(rate * min(left, p.scarceFor.Seconds()))
	a.Share = int64(max(ratio, 1/n) / part * limit.ShareOne)
	a.Least = wholeUnits(min(math.Ceil(float64(v.Tier.Capacity())*ratio/100), expected+1))
}

// DenyFor implements [lease.Rule].
func (prototype) DenyFor(_ *lease.View, fits time.Duration, _ int) time.Duration { return fits }

func wholeUnits(v float64) int64 { return int64(min(math.Ceil(v), limit.MaxUnits)) }
