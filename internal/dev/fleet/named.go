package fleet

import (
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Named returns the scenarios that have names.
func Named() []Scenario {
	million := Scenario{
		Name: "million",
		About: "1,000,000 requests per second of 10,000 tenants, with limits of 100 to 10,000 per second each over a " +
			"minute, at 50 instances of serve",
		WarmUp: 15 * time.Second, Measured: 60 * time.Second,
		Instances: 50, Shards: 2, Tenants: 10_000, Requests: 1_000_000, Zipf: 0.6,
		Limits: Limits{Algorithm: limit.FixedWindow, Period: time.Minute, Low: 100, High: 10_000},
	}
	return []Scenario{million}
}
