package sim

import (
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Named returns the scenarios that can be chosen by name: million, and those in which one thing goes wrong.
func Named() []Scenario {
	return append([]Scenario{{
		Name: "million",
		About: "1,000,000 requests per second of 10,000 tenants, with limits of 100 to 10,000 per second each over a " +
			"minute, at 50 instances of serve",
		RampUp: 10 * time.Second, WarmUp: 15 * time.Second, Measured: 60 * time.Second,
		Instances: 50, Shards: 2, Tenants: 10_000, Requests: 1_000_000, Zipf: 0.6,
		Limits: Limits{Algorithm: limit.FixedWindow, Period: time.Minute, Low: 100, High: 10_000},
	}}, faults()...)
}

// faults returns scenarios of ten instances and 200 tenants in which one thing goes wrong.
func faults() []Scenario {
	const second = time.Second
	base := Scenario{
		RampUp: 2 * second, WarmUp: 5 * second, Measured: 25 * second, Instances: 10, Shards: 2,
		Tenants: 200, Requests: 5_000, Zipf: 0.6,
		Limits: Limits{Algorithm: limit.FixedWindow, Period: 10 * second, Low: 2, High: 10_000},
	}
	with := func(name, about string, faults ...Fault) Scenario {
		s := base
		s.Name, s.About, s.Faults = name, about, faults
		return s
	}
	return []Scenario{
		with("redis-failover", "the primary is away for 5 s; the replica has all counters",
			Fault{Kind: RedisFailover, At: 12 * second, For: 5 * second}),
		with("redis-failover-loses", "the primary is away for 5 s; the replica has none of the counters",
			Fault{Kind: RedisFailover, At: 12 * second, For: 5 * second, Loses: true}),
		with("store-away", "the store answers nothing for 10 s", Fault{Kind: StoreAway, At: 10 * second,
			For: 10 * second}),
		with("store-throttles", "each shard refuses all but 10 calls per second for 10 s",
			Fault{Kind: StoreThrottles, At: 10 * second, For: 10 * second, PerSecond: 10}),
		with("store-slow", "a call takes 200 times as long for 10 s",
			Fault{Kind: StoreSlow, At: 10 * second, For: 10 * second, Factor: 200}),
		with("clock-skew", "two clocks are 3 s behind, one is 5 s ahead, and one jumps ahead by 20 s",
			Fault{Kind: ClockSkew, By: -3 * second, Instances: []int{1, 2}},
			Fault{Kind: ClockSkew, By: 5 * second, Instances: []int{3}},
			Fault{Kind: ClockSkew, At: 12 * second, By: 20 * second, Instances: []int{4}}),
		with("instances-die", "four of ten instances die, without giving anything back",
			Fault{Kind: InstancesDie, At: 12 * second, Instances: []int{0, 1, 2, 3}}),
		with("instances-join", "ten instances join ten",
			Fault{Kind: InstancesJoin, At: 12 * second, Instances: []int{10, 11, 12, 13, 14, 15, 16, 17, 18, 19}}),
		with("retry-storm", "all clients ask ten times as often for a second",
			Fault{Kind: RetryStorm, At: 15 * second, For: second, Factor: 10}),
		with("failover-and-storm", "the store is away for 3 s, and then all clients retry in the same second",
			Fault{Kind: RedisFailover, At: 10 * second, For: 3 * second},
			Fault{Kind: RetryStorm, At: 13 * second, For: second, Factor: 10}),
	}
}
