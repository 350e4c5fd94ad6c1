package resilience

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
)

// Guarantees that pending units make room at the moment from which the store no longer counts them, and not before:
// also if others, which came earlier or later, are counted for longer. The look for them is due all the time.
func TestExpiredUnitsMakeRoom(t *testing.T) {
	const minute = int64(60_000_000)
	newLimit := func(period time.Duration) *limit.Limit {
		l := limittest.MustNew(t, limit.Limit{ID: "l", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 10,
			Period: period}}})
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

// Guarantees that expired units make room also when the clock has stepped back since the last search for them.
// Otherwise all further units would be dropped until the clock is where it was.
func TestExpiredUnitsMakeRoomAfterAStepBack(t *testing.T) {
	l := limittest.MustNew(t, limit.Limit{ID: "l", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Second},
	}})
	const noon, hour = 1_772_452_800_000_000, 3_600_000_000
	p := pendingCharges{byOwner: make(map[limit.Owner]*ownerPending), bound: 1 << 40}
	add := func(name string, at int64, dropped int64) {
		t.Helper()
		p.add(limit.Owner{Kind: limit.Tenant, Name: name}, &limit.Charge{Limit: l, Cost: 1}, make([]tierPart, 1), at)
		if got := p.dropped.Load(); got != dropped {
			t.Fatalf("after a unit of owner %s: %d units are dropped, want %d", name, got, dropped)
		}
	}
	add("a", noon, 0)
	add("b", noon, 0)
	p.bound = p.size()
	add("c", noon, 1) // searches, and finds nothing that has expired
	p.takeNext()
	p.done()
	add("c", noon-hour, 1)
	add("d", noon-hour+5_000_000, 1) // the unit of c has expired
}

// Guarantees that the memory is counted once if units are put back beside units that became pending meanwhile.
// Otherwise each replay that fails would take room from units that come later.
func TestUnitsPutBackAreCountedOnce(t *testing.T) {
	l := limittest.MustNew(t, limit.Limit{ID: "l", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Second},
	}})
	p := pendingCharges{byOwner: make(map[limit.Owner]*ownerPending), bound: 1 << 40}
	owner, charge := limit.Owner{Kind: limit.Tenant, Name: "a"}, &limit.Charge{Limit: l, Cost: 1}
	p.add(owner, charge, make([]tierPart, 1), 1_772_452_800_000_000)
	for range 3 {
		_, o := p.takeNext()
		p.add(owner, charge, make([]tierPart, 1), 1_772_452_800_000_000)
		p.putBack(owner, o)
		if got, want := p.size(), p.byOwner[owner].size(owner); got != want {
			t.Fatalf("%d bytes are counted, and the units take %d", got, want)
		}
	}
}
