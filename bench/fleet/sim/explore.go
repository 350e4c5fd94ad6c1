package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluicelimits/sluice/bench/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Found is the result of [Explore].
type Found struct {
	Runs      int    // seeds that were simulated
	Decisions int64  // in all runs together
	Seed      uint64 // the first seed that breaks a bound
	Broken    string // the error of Report.Check for that run; "" if no seed broke a bound
	Scenario  string // the scenario of that seed, as JSON
}

// Explore runs the given number of seeds, from first on, until one breaks a bound (see [Report.Check]) or ctx ends.
// Each has a small scenario of random tenants, limits and faults. The same seed makes the same scenario and the same
// run.
//
// progress, unless nil, is called after each seed with the fraction of the seeds that were run, 0..1.
func Explore(
	ctx context.Context, first uint64, seeds int, progress func(done float64),
) (Found, error) {
	return explore(ctx, first, seeds, nil, progress)
}

// explore does what Explore does. plant, unless nil, changes each scenario before it runs; tests use it to plant
// defects.
func explore(
	ctx context.Context, first uint64, seeds int, plant func(*Scenario), progress func(done float64),
) (found Found, err error) {
	interrupted := func() bool { return ctx.Err() != nil }
	for seed := first; seed-first < uint64(seeds); seed++ {
		s := randomScenario(seed)
		s.addLimits(seed)
		if plant != nil {
			plant(&s)
		}
		r, err := Run(ctx, Options{Scenario: &s, Seed: seed})
		if interrupted() { // the run of this seed may be incomplete, so it is not counted
			return found, nil
		}
		if err != nil {
			return found, fmt.Errorf("seed %d: %w", seed, err)
		}
		found.Runs++
		found.Decisions += r.Decisions
		if progress != nil {
			progress(float64(found.Runs) / float64(seeds))
		}
		if broken := r.Check(); broken != nil {
			text, err := json.Marshal(&s)
			found.Seed, found.Broken, found.Scenario = seed, broken.Error(), string(text)
			return found, err
		}
	}
	return found, nil
}

// randomScenario makes a small scenario of instances of serve: few tenants, short windows, limits close to the demand
// of the tenants, and one to four faults, less those that would come to an instance that dies. A third of the scenarios
// has affinity. If the algorithm allows it, the windows of a third of the scenarios begin at another time for each
// tenant.
func randomScenario(seed uint64) Scenario {
	random := rand.New(rand.NewPCG(seed, 0xfa17))
	between := func(low, high int) int { return low + random.IntN(high-low+1) }
	s := Scenario{
		Name: "random", Measured: time.Duration(between(4, 8)) * time.Second,
		Instances: between(2, 8), Shards: between(1, 2), Tenants: between(1, 6), Requests: float64(between(100, 1500)),
		Zipf: random.Float64(),
		Limits: Limits{
			Algorithm: madeUpAlgorithms()[random.IntN(len(madeUpAlgorithms()))],
			Period:    time.Duration(between(1, 3)) * time.Second, Low: 2,
			Ample: 0.6 + random.Float64(), Scarce: 0.3 + random.Float64()/2, BindEvery: between(1, 3),
		},
	}
	s.Limits.AlignTenant = judge.Aligns(s.Limits.Algorithm) && random.IntN(3) == 0
	if random.IntN(3) == 0 {
		s.Affinity = between(1, s.Instances)
	}
	sometime := func() time.Duration { return time.Duration(random.Int64N(int64(s.Measured - time.Second))) }
	alive := make([]bool, s.Instances)
	for i := range alive {
		alive[i] = true
	}
	for range between(1, 4) {
		f := Fault{At: sometime(), For: time.Duration(between(1, 2000)) * time.Millisecond}
		switch random.IntN(7) {
		case 0:
			f.Kind, f.Loses = RedisFailover, random.IntN(3) == 0
		case 1:
			f.Kind = StoreAway
		case 2:
			f.Kind, f.Factor = StoreSlow, float64(between(2, 2000))
		case 3:
			f.Kind, f.PerSecond = StoreThrottles, int64(between(1, 200))
		case 4:
			f.Kind, f.Factor = RetryStorm, float64(between(2, 10))
		case 5:
			f.Kind, f.By, f.For = ClockSkew, time.Duration(between(1, 3000))*time.Millisecond, 0
			f.Instances = []int{random.IntN(s.Instances)}
			if random.IntN(2) == 0 {
				f.At, f.By = 0, -f.By
			}
			if !alive[f.Instances[0]] {
				continue
			}
		default:
			n := random.IntN(s.Instances)
			if !alive[n] {
				continue
			}
			alive[n] = false
			f.Kind, f.Instances, f.For, f.At = InstancesDie, []int{n}, 0, s.Measured-time.Second/2
		}
		s.Faults = append(s.Faults, f)
	}
	return s
}

// addLimits adds up to two limits or tiers to those of a random scenario.
func (s *Scenario) addLimits(seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0x11a175))
	for i := range max(random.IntN(5)-2, 0) {
		s.More = append(s.More, Limits{
			Algorithm: madeUpAlgorithms()[random.IntN(len(madeUpAlgorithms()))],
			// Tiers of one limit must have different periods: those of randomScenario are 1 to 3 s, and these 4 to 7 s.
			Period: time.Duration(4+2*i+random.IntN(2)) * time.Second, Low: 2,
			Ample: 0.6 + random.Float64(), Scarce: 0.3 + random.Float64()/2, BindEvery: 1 + random.IntN(3),
			SameLimit: random.IntN(2) == 0,
		})
	}
}

// Check returns an error that names the bound that a run broke:
//
//   - No decision ends with an error: the fallback limiter decides if the store does not.
//   - If the fallback limiter decides nothing and no counters are lost, no limit is exceeded.
//   - Otherwise each tier of each tenant is exceeded in each window by at most the units that the fallback limiter
//     admitted of this tier in the window, and the units that its counter can have held when it was lost. See
//     docs/accuracy.md.
//   - The fallback limiter of an instance admits at most what [resilience.Fallback] states.
func (r *Report) Check() error {
	switch {
	case r.Failed > 0:
		return fmt.Errorf("%d decisions ended with an error", r.Failed)
	case r.Unexplained > 0:
		return fmt.Errorf("of %d units that were admitted above a limit, %d are in windows in which the fallback "+
			"limiter did not admit as many of the same limit of the same tenant, and no counter was lost that held as "+
			"many", r.Over, r.Unexplained)
	case r.BeyondPart > 0:
		return fmt.Errorf("the fallback limiters of single instances admitted %d units beyond their parts of limits",
			r.BeyondPart)
	case r.Allowed+r.Denied+r.Failed != r.Decisions:
		return fmt.Errorf("%d allowed, %d denied and %d failed are not %d decisions", r.Allowed, r.Denied, r.Failed,
			r.Decisions)
	}
	return nil
}

// defect changes the request of a call to the store. Tests use it to plant a defect of the lease layer that Explore
// must find. overtaken reports whether another call about the same counters reached the store while this call was under
// way.
type defect func(req *limit.Request, overtaken bool)
