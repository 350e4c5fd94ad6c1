package cost

import (
	"math/big"

	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// Usage holds the quantities of a workload, without prices.
type Usage struct {
	Environments int64 // environments of the authorizer in each cell, at the busiest time
	MemoryMB     int64 // memory of an environment of the authorizer
	Shards       int64 // shards of the cache in each full cell
	Nodes        int64 // nodes of all caches together
	AlarmMetrics int64 // metrics that alarms look at

	Metrics   *big.Rat // metrics, each counted by the share of a month's hours in which it is written
	MeanMs    *big.Rat // mean billed time of a request
	CallShare *big.Rat // share of the requests that call a store
	Changes   *big.Rat // changes in a month, with those of the canary

	perCell  *big.Rat // requests per second of a cell
	admitted *big.Rat // requests per second of a cell that are admitted
	denied   *big.Rat // requests per second of a cell that are denied
	calls    *big.Rat // calls to the store of rates, or write units if it is DynamoDB, per second of a cell
	quotas   *big.Rat // write units of quotas, per second of a full cell
	polls    *big.Rat // polls of the config table, per second of a cell
	beats    *big.Rat // announcements of environments to the instance count, per second of a cell
	runs     *big.Rat // runs of the canary in a month
}

// usage derives the quantities of a workload.
func usage(w *Workload) *Usage {
	u := &Usage{}
	authorizer, _ := grants.Of("authorizer")
	u.MemoryMB = int64(authorizer.MemoryMB)
	cells := num(w.Cells)
	u.perCell = over(w.RPS, cells)
	u.denied = product(u.perCell, w.DeniedShare)
	u.admitted = minus(u.perCell, u.denied)

	storeMs := int64(dynamoMs)
	if w.Profile == Full {
		storeMs = redisMs
	}
	most := num(localMs + storeMs)
	if w.Duration > 0 {
		most = frac(w.Duration.Microseconds(), 1000)
	}
	u.Environments = environments(product(u.perCell, over(most, num(1000)), w.Peak))
	u.calls, u.quotas = storeCalls(w, u)
	if w.StoreCalls != nil {
		u.calls = over(w.StoreCalls, cells)
	}
	u.CallShare = new(big.Rat)
	if u.admitted.Sign() > 0 {
		u.CallShare = least(num(1), over(u.calls, u.perCell))
	}
	u.polls = least(num(u.Environments), u.perCell)
	u.beats = least(over(num(u.Environments), beatEvery), u.perCell)

	u.MeanMs = most
	// A poll of the config table runs in parallel with a call to the store, and takes at least as long.
	if w.Duration == 0 {
		u.MeanMs = sum(num(localMs), product(u.CallShare, num(storeMs)))
		if u.perCell.Sign() > 0 {
			longer := minus(num(localMs+dynamoMs), u.MeanMs)
			u.MeanMs = sum(u.MeanMs, product(over(u.polls, u.perCell), longer))
		}
	}
	if w.Profile == Full {
		u.Shards = max(1, up(over(product(u.calls, w.Peak), num(callsPerShard))).Int64())
		if w.Shards > 0 {
			u.Shards = w.Shards
		}
		u.Nodes = 2 * u.Shards * w.Cells // each with a replica in another zone
	}
	u.AlarmMetrics = alarmMetrics(w, u.Shards)
	u.runs = new(big.Rat)
	if w.Canary > 0 {
		u.runs = every(w.Canary)
	}
	u.Changes = sum(u.runs, over(num(w.Changes*hours), num(24)))
	u.Metrics = metrics(w, u)
	return u
}

// asking returns the calls per second of a cell if each environment makes one call in so many seconds. An environment
// runs only while it serves a request, so there are at most as many calls as requests.
func (u *Usage) asking(seconds int64) *big.Rat {
	return least(over(num(u.Environments), num(seconds)), u.perCell)
}

// environments returns how many environments a load needs. load is the mean number of concurrent requests; the result
// is burst standard deviations of a Poisson distribution above that mean.
func environments(load *big.Rat) int64 {
	if load.Sign() == 0 {
		return 0
	}
	return up(sum(load, product(num(burst), root(load)))).Int64()
}

// storeCalls returns Usage.calls and Usage.quotas. It assumes the worst case for leases: that the requests of each
// tenant are spread evenly over all environments.
func storeCalls(w *Workload, u *Usage) (rates, quotas *big.Rat) {
	exact := product(u.admitted, exactUnits)
	if w.Profile == Full {
		exact = u.admitted
	}
	pairs := num(w.Tenants * u.Environments)
	rates = exact
	if w.Leases {
		units := leasedUnits
		if u.denied.Sign() > 0 {
			units = bindingUnits
		}
		rates = least(exact, product(pairs, units))
	}
	rates = sum(rates, product(u.denied, deniedUnits))
	quotas = new(big.Rat)
	if w.Profile == Full && w.Quotas {
		quotas = product(u.admitted, exactUnits)
		if w.Leases {
			quotas = least(quotas, product(pairs, quotaCalls))
		}
	}
	return rates, quotas
}
