package fleet

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// TestExplore tests that random faults break no bound.
func TestExplore(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 20
	}
	found, err := Explore(t.Context(), 1, seeds, Costs{})
	if err != nil || found.Broken != "" || found.Runs != seeds {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestExploreFindsDefect plants a defect of the lease layer: it gives back one unit too many when another call about
// the same counter overtakes the one that gives units back. The explorer has to find it, and the seed has to show it
// again.
func TestExploreFindsDefect(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of runs")
	}
	planted := 0
	plant := func(req *limit.Request, overtaken bool) {
		for i := range req.Leases {
			if ask := &req.Leases[i]; overtaken && ask.Correction < 0 {
				ask.Correction--
				planted++
			}
		}
	}
	const seeds = 1000
	found, err := explore(t.Context(), 1, seeds, Costs{}, plant)
	if err != nil || found.Broken == "" {
		t.Fatalf("not found in %d seeds: %+v, %v", seeds, found, err)
	}
	t.Logf("seed %d: %s; planted in %d calls of %d decisions", found.Seed, found.Broken, planted, found.Decisions)
	again, err := explore(t.Context(), found.Seed, 1, Costs{}, plant)
	if err != nil || again.Broken != found.Broken {
		t.Errorf("the seed gives %+v, %v", again, err)
	}
	if sound, err := Explore(t.Context(), found.Seed, 1, Costs{}); err != nil || sound.Broken != "" {
		t.Errorf("without the defect the seed gives %+v, %v", sound, err)
	}
}
