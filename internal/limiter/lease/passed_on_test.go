package lease_test

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that a request which leases or corrects by itself reaches the store, also if the layer has leased units of
// its counter: from leases alone it would spend them, and the correction would be lost.
func TestRequestsWithLeasesArePassedOn(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	below := newMemory(t)
	s := openAt(t, &now, below, nil)
	l := window(t, "w", time.Hour, 100)
	decide(t, s, request(l), now)
	used := func() int64 {
		t.Helper()
		var d limit.Decision
		if err := below.Peek(t.Context(), request(l), now, &d); err != nil {
			t.Fatal(err)
		}
		return d.Results[0].Used() - d.Results[0].Charged
	}
	before := used()
	if before < 2 {
		t.Fatalf("%d units are charged: nothing was leased", before)
	}
	req := request(l)
	req.Leases = []limit.LeaseRequest{{Correction: 5, CorrectionAt: now.UnixMicro()}}
	decide(t, s, req, now)
	if got := used(); got != before+5 {
		t.Errorf("%d units are used after a correction by 5, want %d", got, before+5)
	}
}
