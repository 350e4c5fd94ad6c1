package resilience

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that pending units make room at the moment from which the store no longer counts them, and not before:
// also if others, which came earlier or later, are counted for longer. The look for them is due all the time.
func TestExpiredUnitsMakeRoom(t *testing.T) {
	const minute = int64(60_000_000)
	newLimit := func(period time.Duration) *limit.Limit {
		l, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 10,
			Period: period}}})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	short, long := newLimit(time.Minute), newLimit(time.Hour)
	for _, firstShort := range []bool{true, false} {
		p := pendingCharges{byOwner: make(map[limit.Owner]*ownerPending), bound: 1 << 40}
		add := func(name string, l *limit.Limit, at int64) {
			p.swept = 0
			owner := limit.Owner{Kind: limit.Tenant, Name: name}
			p.add(owner, &limit.Charge{Limit: l, Cost: 1}, make([]tierPart, 1), at)
		}
		if firstShort {
			add("a", short, 10*minute)
			add("b", long, 10*minute)
		} else {
			add("b", long, 10*minute)
			add("a", short, 10*minute)
		}
		p.bound = p.bytes
		if add("c", short, 11*minute-1); p.byOwner[limit.Owner{Kind: limit.Tenant, Name: "c"}] != nil {
			t.Error("there was room for c before the minute of a had ended")
		}
		if add("d", short, 11*minute); len(p.byOwner) != 2 || p.dropped.Load() != 1 {
			t.Errorf("when the minute of a has ended, units of %d owners are pending, and %d were dropped; want those "+
				"of b and d, and one that was dropped", len(p.byOwner), p.dropped.Load())
		}
		if add("e", short, 12*minute); len(p.byOwner) != 2 || p.dropped.Load() != 1 {
			t.Errorf("when the minute of d has ended, units of %d owners are pending, and %d were dropped; want those "+
				"of b and e, and no more dropped", len(p.byOwner), p.dropped.Load())
		}
	}
}
