package limit

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestResetAfterAlign guarantees what ResetAt and MoreAt return after a change of align: units are used until ResetAt
// and none from then on, and more remains at MoreAt but not a microsecond before. The next window of the owner's grid
// takes over the count of the window that was open at the change.
func TestResetAfterAlign(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, algorithm := range []Algorithm{FixedWindow, SlidingWindow} {
		ahead := 0
		for range 4000 {
			in := Limit{ID: "l", MaxCost: 10, AlignOwner: r.IntN(2) == 0,
				Tiers: []Tier{{Algorithm: algorithm, Threshold: 10, Period: time.Second}}}
			was := mustNew(t, in)
			in.AlignOwner = !in.AlignOwner
			is := mustNew(t, in)
			var s State
			now := int64(1_772_452_800_000_000) + r.Int64N(1e12)
			for range 3 {
				decideOnce(was, &s, now, 1+r.Int64N(5))
				now += r.Int64N(800_000)
			}
			before := s.Clone()
			d := decideOnce(is, &s, now, 1+r.Int64N(5))
			res := &d.Results[0]
			grid := is.Tiers[0].counts.(interface{ nextOnGrid(*Result) int64 })
			if grid.nextOnGrid(res) != 0 {
				ahead++
			}
			if res.Used() == 0 {
				continue
			}
			usedAt := func(now int64) int64 { return decideOnce(is, s.Clone(), now, 11).Results[0].Used() }
			reset := res.ResetAt()
			if at, early := usedAt(reset), usedAt(reset-1); at != 0 || early == 0 {
				t.Fatalf("%s: state %+v at %d, then %+v: at ResetAt, %d µs later, %d units are used, and %d a µs "+
					"before; want 0, and some before", algorithm, before, now, s, reset-now, at, early)
			}
			left, more := res.Remaining(), res.MoreAt()
			if at, early := 10-min(usedAt(more), 10), 10-min(usedAt(more-1), 10); at <= left || early > left {
				t.Fatalf("%s: state %+v at %d, then %+v, with %d units left: at MoreAt, %d µs later, %d are left, "+
					"and %d a µs before; want more only from MoreAt on",
					algorithm, before, now, s, left, more-now, at, early)
			}
		}
		if ahead < 500 {
			t.Errorf("%s: only %d decisions counted a window of the grid before the change, want 500 or more: the "+
				"test shows little", algorithm, ahead)
		}
	}
}

// TestResetWithoutGrant guarantees that a request which needs nothing and is granted no lease leaves ResetAt where it
// was.
func TestResetWithoutGrant(t *testing.T) {
	tier := Tier{Algorithm: SlidingLog, Threshold: 10, Period: 10 * time.Second}
	l := mustNew(t, Limit{ID: "l", MaxCost: 10, Tiers: []Tier{tier}})
	const now = int64(1_772_452_800_000_000)
	var s State
	reset := decideOnce(l, &s, now, 10).Results[0].ResetAt()
	d := decideOnState(t, &l.Tiers[0], &s, now+1_000_000, 1, LeaseRequest{Most: 5, Ample: 5, Share: ShareOne,
		Life: 5_000_000})
	if d.Lease(0).Units != 0 {
		t.Fatalf("%d units of a full log are leased, want none", d.Lease(0).Units)
	}
	if got := d.Results[0].ResetAt(); got != reset {
		t.Errorf("nothing was charged or leased, but ResetAt has moved by %d µs, want no change", got-reset)
	}
}

// TestReplayAddsNoEmptyEntries guarantees that a replay to a log that counts as much as it can adds no entry.
func TestReplayAddsNoEmptyEntries(t *testing.T) {
	tier := Tier{Algorithm: SlidingBuckets, Threshold: 10, Period: 10 * time.Second, Buckets: 10}
	l := mustNew(t, Limit{ID: "l", Tiers: []Tier{tier}})
	const now = int64(1_772_452_800_000_000)
	var s State
	for i := range int64(3) {
		decideOnState(t, &l.Tiers[0], &s, now, 1, LeaseRequest{Correction: MaxUnits, CorrectionAt: now - i*1_000_000})
	}
	if got := s.Log(); got.Sum != 2*MaxUnits || len(got.Entries) != 2 {
		t.Errorf("after two replays that the log counts in full, and one for which it has no room: %+v; want two "+
			"entries of MaxUnits", got)
	}
}
