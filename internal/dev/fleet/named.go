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
		RampUp: 10 * time.Second, WarmUp: 15 * time.Second, Measured: 60 * time.Second,
		Instances: 50, Shards: 2, Tenants: 10_000, Requests: 1_000_000, Zipf: 0.6,
		Limits: Limits{Algorithm: limit.FixedWindow, Period: time.Minute, Low: 100, High: 10_000},
	}
	affinity := million
	affinity.Name, affinity.Affinity = "million-seconds-affinity", 3
	affinity.About = "the same with limits over a second, where the requests of a tenant come to 3 of the 50 instances"
	affinity.Limits.Period = time.Second
	seconds := affinity
	seconds.Name, seconds.Affinity = "million-seconds", 0
	seconds.About = "the same with limits over a second, at any instance: leases cannot save much"
	seconds.Shards = 8
	all := []Scenario{million, seconds, affinity}
	all = append(all, lambdas()...)
	return append(all, faults()...)
}

// lambdas are Lambda environments. Every 100th tenant is decided; the others only occupy environments.
func lambdas() []Scenario {
	recent := Scenario{
		Name:   "lambda-recent",
		About:  "1,000,000 requests per second at Lambda environments that take 5 ms each; the most recent one first",
		RampUp: 10 * time.Second, WarmUp: 20 * time.Second, Measured: 10 * time.Second,
		Shape: Lambda, Placement: MostRecent, Instances: 8_000, SampleEvery: 100, Shards: 1, Tenants: 10_000,
		Requests: 1_000_000, Zipf: 0.6,
		Limits: Limits{Algorithm: limit.FixedWindow, Period: time.Minute, Low: 100, High: 10_000},
	}
	inTurn := recent
	inTurn.Name, inTurn.Placement = "lambda-in-turn", RoundRobin
	inTurn.About = "the same, where the environment that has waited longest gets the request"
	return []Scenario{recent, inTurn}
}

// faults are small fleets in which one thing goes wrong.
func faults() []Scenario {
	const second = time.Second
	base := Scenario{
		RampUp: 2 * second, WarmUp: 5 * second, Measured: 25 * second, Instances: 10, Shards: 2, Tenants: 200,
		Requests: 5_000, Zipf: 0.6,
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
		with("rolling-restart", "five instances are replaced, one after the other",
			Fault{Kind: InstancesDie, At: 8 * second, Instances: []int{0}},
			Fault{Kind: InstancesJoin, At: 10 * second, Instances: []int{0}},
			Fault{Kind: InstancesDie, At: 12 * second, Instances: []int{1}},
			Fault{Kind: InstancesJoin, At: 14 * second, Instances: []int{1}},
			Fault{Kind: InstancesDie, At: 16 * second, Instances: []int{2}},
			Fault{Kind: InstancesJoin, At: 18 * second, Instances: []int{2}}),
		with("retry-storm", "all clients ask ten times as often for a second",
			Fault{Kind: RetryStorm, At: 15 * second, For: second, Factor: 10}),
		with("failover-and-storm", "the store is away for 3 s, and then all clients retry in the same second",
			Fault{Kind: RedisFailover, At: 10 * second, For: 3 * second},
			Fault{Kind: RetryStorm, At: 13 * second, For: second, Factor: 10}),
	}
}
