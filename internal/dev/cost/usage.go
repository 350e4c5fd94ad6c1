package cost

import (
	"math"

	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// Usage holds the quantities of a workload, without prices.
type Usage struct {
	Environments int64 // environments of the authorizer in each cell, at the busiest time
	MemoryMB     int64 // memory of an environment of the authorizer
	Shards       int64 // shards of the cache in each full cell
	Nodes        int64 // nodes of all caches together
	AlarmMetrics int64 // metrics that alarms look at

	Metrics   float64 // metrics, each counted by the share of a month's hours in which it is written
	MeanMs    float64 // mean billed time of a request
	CallShare float64 // share of the requests that call a store
	Changes   float64 // changes in a month, with those of the canary

	perCell  float64 // requests per second of a cell
	admitted float64 // requests per second of a cell that are admitted
	denied   float64 // requests per second of a cell that are denied
	calls    float64 // calls to the store of rates, or write units if it is DynamoDB, per second of a cell
	quotas   float64 // write units of quotas, per second of a full cell
	polls    float64 // polls of the config table, per second of a cell
	beats    float64 // announcements of environments to the instance count, per second of a cell
	runs     float64 // runs of the canary in a month
}

// usage derives the quantities of a workload.
func usage(w *Workload) *Usage {
	u := &Usage{}
	authorizer, _ := grants.Of("authorizer")
	u.MemoryMB = int64(authorizer.MemoryMB)
	cells := float64(w.Cells)
	u.perCell = w.RPS / cells
	u.denied = u.perCell * w.DeniedShare
	u.admitted = u.perCell - u.denied

	storeMs := int64(dynamoMs)
	if w.Profile == Full {
		storeMs = redisMs
	}
	most := float64(localMs + storeMs)
	if w.Duration > 0 {
		most = float64(w.Duration.Microseconds()) / 1000
	}
	u.Environments = environments(u.perCell * (most / 1000) * w.Peak)
	u.calls, u.quotas = storeCalls(w, u)
	if u.admitted > 0 {
		u.CallShare = min(1, u.calls/u.perCell)
	}
	u.polls = min(float64(u.Environments), u.perCell)
	u.beats = min(float64(u.Environments)/beatEvery, u.perCell)

	u.MeanMs = most
	// A poll of the config table runs in parallel with a call to the store, and takes at least as long.
	if w.Duration == 0 {
		u.MeanMs = localMs + u.CallShare*float64(storeMs)
		if u.perCell > 0 {
			u.MeanMs += u.polls / u.perCell * (localMs + dynamoMs - u.MeanMs)
		}
	}
	if w.Profile == Full {
		u.Shards = max(1, up(u.calls*w.Peak/callsPerShard))
		u.Nodes = 2 * u.Shards * w.Cells // each with a replica in another zone
	}
	u.AlarmMetrics = alarmMetrics(w, u.Shards)
	if w.Canary > 0 {
		u.runs = every(w.Canary)
	}
	u.Changes = u.runs + float64(w.Changes*hours)/24
	u.Metrics = metrics(w, u)
	return u
}

// environments returns how many environments a load needs. load is the mean number of concurrent requests; the result
// is burst standard deviations of a Poisson distribution above that mean.
func environments(load float64) int64 {
	return up(load + burst*math.Sqrt(load))
}

// storeCalls returns Usage.calls and Usage.quotas. It assumes the worst case for leases: that the requests of each
// tenant are spread evenly over all environments.
func storeCalls(w *Workload, u *Usage) (rates, quotas float64) {
	exact := u.admitted * exactUnits
	if w.Profile == Full {
		exact = u.admitted
	}
	pairs := float64(w.Tenants * u.Environments)
	rates = exact
	if w.Leases {
		units := leasedUnits
		if u.denied > 0 {
			units = bindingUnits
		}
		rates = min(exact, pairs*units)
	}
	rates += u.denied * deniedUnits
	if w.Profile == Full && w.Quotas {
		quotas = u.admitted * exactUnits
		if w.Leases {
			quotas = min(quotas, pairs*quotaCalls)
		}
	}
	return rates, quotas
}
