package bench

import (
	"math"
	"time"

	"github.com/sluicelimits/sluice/bench/fleet/sim"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// calibratedKeys is how many tenants one process of the scenario million has.
const calibratedKeys = 10_000

// calibrate measures on this machine the costs that the simulation needs: the processor time of a decision from leases,
// and that of a Redis server for one call of the script. Each is the least of several trials, because other programs
// use the machine, too. Round trips are not measured, because they need a second machine.
func calibrate(short bool) (costs sim.Costs, err error) {
	rounds, perKey := 9, 100
	if short {
		rounds, perKey = 1, 10
	}
	store, err := memory.New(memory.Config{})
	if err != nil {
		return costs, err
	}
	local, _, err := leasing(store, calibratedKeys, tiers[:1]...)
	if err != nil {
		return costs, err
	}
	defer local.close()
	local.workers = 1
	least := math.Inf(1)
	for range rounds {
		perOp, _, err := local.trial(perKey * local.unit())
		if err != nil {
			return costs, err
		}
		least = min(least, perOp.processor)
	}
	costs.Local = time.Duration(math.Ceil(least))

	server, end, err := launchRedis()
	if err != nil {
		return costs, err
	}
	defer end()
	calls, err := sluiceRedis(server.Addr, tiers[:1]...)
	if err != nil {
		return costs, err
	}
	defer calls.close()
	if _, _, err := calls.trial(calls.unit()); err != nil { // creates the counters
		return costs, err
	}
	usage, err := usageOf(server.Addr, calls, perKey*calls.unit()/10)
	if err != nil {
		return costs, err
	}
	costs.StoreService = time.Duration(math.Ceil(usage.server * 1e9 / usage.decisions))
	return costs, nil
}
