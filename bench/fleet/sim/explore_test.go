package sim

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Guarantees that random faults break none of the bounds of Report.Check.
func TestExplore(t *testing.T) {
	soak.SkipUnderRace(t)
	seeds := soak.Times(300)
	found, err := Explore(t.Context(), 1, seeds, nil)
	if err != nil || found.Broken != "" || found.Runs != seeds {
		t.Errorf("Explore(%d seeds) = %+v, %v; want %d runs, and no broken bound", seeds, found, err, seeds)
	}
}

// Guarantees that Explore can find a defect of the lease layer. The planted defect returns one unit too many whenever
// another call about the same counter overtakes the call that returns units. The seed that Explore reports must show
// the defect again, and must break no bound without it.
func TestExploreFindsDefect(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of runs")
	}
	planted := 0
	plant := func(s *Scenario) {
		s.plant = func(req *limit.Request, overtaken bool) {
			for i := range req.Leases {
				if ask := &req.Leases[i]; overtaken && ask.Correction < 0 {
					ask.Correction--
					planted++
				}
			}
		}
	}
	const seeds = 1000
	found, err := explore(t.Context(), 1, seeds, plant, nil)
	if err != nil || found.Broken == "" {
		t.Fatalf("the planted defect was not found in %d seeds: %+v, %v", seeds, found, err)
	}
	t.Logf("seed %d: %s; planted in %d calls of %d decisions", found.Seed, found.Broken, planted, found.Decisions)
	again, err := explore(t.Context(), found.Seed, 1, plant, nil)
	if err != nil || again.Broken != found.Broken {
		t.Errorf("seed %d, run again, gives %+v, %v; want the same broken bound, %q",
			found.Seed, again, err, found.Broken)
	}
	if sound, err := Explore(t.Context(), found.Seed, 1, nil); err != nil || sound.Broken != "" {
		t.Errorf("seed %d without the defect gives %+v, %v; want no broken bound", found.Seed, sound, err)
	}
}

// Guarantees that Explore can find a defect of the fallback limiter. In the planted one, each instance takes the whole
// limit for its part.
func TestExploreFindsWholePart(t *testing.T) {
	soak.SkipUnderRace(t)
	plant := func(s *Scenario) {
		s.plantFallback = func(chain *resilience.Chain, runtime *clock.Runtime) (limit.Store, error) {
			return resilience.NewFallback(resilience.FallbackConfig{Store: chain.Leases, Runtime: runtime,
				Log: slog.New(slog.DiscardHandler), Instances: func(*limit.Limit) int { return 1 }})
		}
	}
	const seeds = 200
	found, err := explore(t.Context(), 1, seeds, plant, nil)
	if err != nil || !strings.Contains(found.Broken, "beyond their parts") {
		t.Fatalf("the planted defect was not found in %d seeds: %+v, %v", seeds, found, err)
	}
	if sound, err := Explore(t.Context(), found.Seed, 1, nil); err != nil || sound.Broken != "" {
		t.Errorf("seed %d without the defect gives %+v, %v; want no broken bound", found.Seed, sound, err)
	}
}

// Guarantees that an exploration which is interrupted counts only the seeds that ran to their ends.
func TestExploreInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	runs := 0
	plant := func(s *Scenario) {
		if runs++; runs == 3 {
			s.plant = func(*limit.Request, bool) { cancel() }
		}
	}
	found, err := explore(ctx, 5, 10, plant, nil)
	if err != nil || found.Runs != 2 || found.Broken != "" {
		t.Errorf("explore = %+v, %v; want 2 runs", found, err)
	}
}
