package limit

import (
	"testing"
	"time"
)

// TestResetWithoutGrant guarantees that a request which needs nothing and is granted no lease leaves ResetAt where it was.
func TestResetWithoutGrant(t *testing.T) {
	l, err := New(Limit{ID: "l", MaxCost: 10, Tiers: []Tier{{Algorithm: SlidingLog, Threshold: 10, Period: 10 * time.Second}}})
	if err != nil {
		t.Fatal(err)
	}
	const now = int64(1_772_452_800_000_000)
	var s State
	reset := once(l, &s, now, 10).Results[0].ResetAt()
	d := ask(t, &l.Tiers[0], &s, now+1_000_000, 1, LeaseRequest{Most: 5, Ample: 5, Share: ShareOne, Life: 5_000_000})
	if d.Lease(0).Units != 0 {
		t.Fatalf("%d units are leased of a full log", d.Lease(0).Units)
	}
	if got := d.Results[0].ResetAt(); got != reset {
		t.Errorf("nothing was charged or leased, and ResetAt has moved by %d µs", got-reset)
	}
}

// TestReplayAddsNoEmptyEntries guarantees that a replay to a log that counts as much as it can adds no entry.
func TestReplayAddsNoEmptyEntries(t *testing.T) {
	l, err := New(Limit{ID: "l", Tiers: []Tier{{Algorithm: SlidingBuckets, Threshold: 10, Period: 10 * time.Second, Buckets: 10}}})
	if err != nil {
		t.Fatal(err)
	}
	const now = int64(1_772_452_800_000_000)
	var s State
	for i := range int64(3) {
		ask(t, &l.Tiers[0], &s, now, 1, LeaseRequest{Correction: MaxUnits, CorrectionAt: now - i*1_000_000})
	}
	if got := s.Log(); got.Sum != 2*MaxUnits || len(got.Entries) != 2 {
		t.Errorf("after two replays that the log counts in full, and one that it does not: %+v", got)
	}
}
