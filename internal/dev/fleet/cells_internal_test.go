package fleet

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// TestNoGraceIsFound tests that the judge counts over all cells: if the balancer waits for none of what a grace is for,
// a cell that joins with a clock that is ahead grants units of windows in which the other cells have granted all. With
// the grace, no limit is exceeded.
func TestNoGraceIsFound(t *testing.T) {
	soak.SkipUnderRace(t)
	over := func(grace shares.Settings) int64 {
		s := &Scenario{Name: "grace", Cells: 2, Instances: 2, Tenants: 3, Requests: 3000, Measured: 80 * time.Second,
			Limits: Limits{Period: 10 * time.Second, Ample: 0.1, Scarce: 0.1},
			Faults: []Fault{{Kind: CellJoins, Cell: 3, At: time.Second, TrafficAfter: 100 * time.Millisecond},
				{Kind: ClockSkew, Instances: []int{4, 5}, At: 1500 * time.Millisecond, By: 3 * time.Second}}}
		s.shares = grace
		r, err := Run(t.Context(), Options{Scenario: s, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		if r.Epochs != 1 || r.Denied == 0 || r.Cells[2].Allowed == 0 {
			t.Errorf("%d changes of the shares, %d denied, %d allowed in the new cell: nothing was tried", r.Epochs,
				r.Denied, r.Cells[2].Allowed)
		}
		return r.Over
	}
	const none = time.Microsecond
	if n := over(shares.Settings{Copy: none, Lease: none, Decision: none, Skew: none}); n == 0 {
		t.Error("without a grace no limit is exceeded: the judge does not see all cells")
	}
	if n := over(shares.Settings{}); n != 0 {
		t.Errorf("%d units above a limit", n)
	}
}

// TestExploreCells tests that the scenarios of several cells that the explorer runs are possible, and that they have
// every kind of fault of cells.
func TestExploreCells(t *testing.T) {
	kinds := map[FaultKind]bool{}
	for seed := range uint64(50) {
		s := randomCells(seed * cellsEvery)
		for i := range s.Faults {
			kinds[s.Faults[i].Kind] = true
		}
		if err := s.check(); err != nil {
			t.Errorf("seed %d: %v", seed*cellsEvery, err)
		}
	}
	for _, kind := range []FaultKind{CellLost, CellJoins, PoisonedConfiguration, ConfigurationAway} {
		if !kinds[kind] {
			t.Errorf("no scenario has the fault %s", kind)
		}
	}
}
