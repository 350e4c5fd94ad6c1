package fleet

import (
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Named returns the scenarios that can be chosen by name.
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
	aligned := million
	aligned.Name, aligned.Limits.AlignTenant = "million-aligned", true
	aligned.About = "the scenario million with windows that begin at another time for each tenant (align: tenant)"
	all := []Scenario{million, aligned, seconds, affinity}
	all = append(all, lambdas()...)
	all = append(all, faults()...)
	all = append(all, tables()...)
	return append(all, cells()...)
}

// lambdas returns scenarios with Lambda environments: a plain one, and others that each have a measure by which leases
// save more calls. One tenant of 100 is decided; the others only occupy environments. The windows of all limits end
// once in the measured time, at second 60.
func lambdas() []Scenario {
	recent := Scenario{
		Name:   "lambda-recent",
		About:  "1,000,000 requests per second at Lambda environments that take 5 ms each; the most recent one first",
		RampUp: 10 * time.Second, WarmUp: 50 * time.Second, Measured: 20 * time.Second,
		Shape: Lambda, Placement: MostRecent, Instances: 8_000, SampleEvery: 100, Shards: 9, Tenants: 10_000,
		Requests: 1_000_000, Zipf: 0.6,
		Limits: Limits{Algorithm: limit.FixedWindow, Period: time.Minute, Low: 100, High: 10_000},
	}
	inTurn := recent
	inTurn.Name, inTurn.Placement = "lambda-in-turn", RoundRobin
	inTurn.About = "the same, where the environment that has waited longest gets the request"
	long := recent
	long.Name, long.LeaseLife = "lambda-long-leases", time.Minute
	long.About = "the same with leases that last for up to a minute, which is the period of the limits"
	functions := recent
	functions.Name, functions.Functions = "lambda-functions", 100
	functions.Instances, functions.Shards = 12_000, 2
	functions.Limits.AlignTenant = true // calls at a common end of all windows would open the circuit breakers
	functions.About = "the same with 100 functions, each with the environments of a hundredth of the tenants, and " +
		"with windows that begin at another time for each tenant (align: tenant)"
	tier := recent
	tier.Name, tier.Shape, tier.Instances, tier.SampleEvery, tier.Shards = "lambda-serve", Serve, 50, 1, 2
	tier.BehindAuthorizer = 500 * time.Microsecond
	tier.About = "the same where each environment asks one of 50 instances of serve, which decide"
	return []Scenario{recent, inTurn, long, functions, tier}
}

// fewInstances returns a scenario of ten instances and 200 tenants.
func fewInstances() Scenario {
	return Scenario{
		RampUp: 2 * time.Second, WarmUp: 5 * time.Second, Measured: 25 * time.Second, Instances: 10, Shards: 2,
		Tenants: 200, Requests: 5_000, Zipf: 0.6,
		Limits: Limits{Algorithm: limit.FixedWindow, Period: 10 * time.Second, Low: 2, High: 10_000},
	}
}

// tables returns scenarios of few instances whose counters are in a table of DynamoDB.
func tables() []Scenario {
	plain := fewInstances()
	plain.Name, plain.Store, plain.Shards = "dynamodb", DynamoDB, newTablePartitions
	plain.About = "the counters are in a table of DynamoDB, and nothing goes wrong"
	throttles := plain
	throttles.Name = "dynamodb-throttles"
	throttles.About = "each partition of the table takes 10 write units per second for 10 s, and refuses the rest"
	throttles.Faults = []Fault{{Kind: StoreThrottles, At: 10 * time.Second, For: 10 * time.Second, PerSecond: 10}}
	hot := plain
	hot.Name, hot.Instances, hot.Tenants, hot.Requests, hot.Zipf = "dynamodb-hot-key", 250, 10, 20_000, 2
	hot.About = "250 instances and limits per second: the counters of the first tenant need more than a partition takes"
	hot.Measured, hot.Limits.Period = 8*time.Second, time.Second
	return []Scenario{plain, throttles, hot}
}

// faults returns scenarios of few instances in which one thing goes wrong.
func faults() []Scenario {
	const second = time.Second
	base := fewInstances()
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

// cells returns scenarios of three cells, in which a third of the tenants is pinned to one or two cells. The runs are
// long enough for a change of the shares, which takes up to a minute and a half.
func cells() []Scenario {
	const second = time.Second
	base := Scenario{
		RampUp: 2 * second, WarmUp: 5 * second, Measured: 115 * second, Cells: 3, PinEvery: 3, Instances: 4,
		Tenants: 60, Requests: 2_000, Zipf: 0.6,
		Limits: Limits{Algorithm: limit.FixedWindow, Period: 10 * second, Low: 2, High: 10_000},
	}
	with := func(name, about string, faults ...Fault) Scenario {
		s := base
		s.Name, s.About, s.Faults = name, about, faults
		return s
	}
	return []Scenario{
		with("cell-lost", "one of three cells ends; its requests move after 5 s, and an operator removes it after 15 s",
			Fault{Kind: CellLost, Cell: 2, At: 15 * second, TrafficAfter: 5 * second, RemovedAfter: 15 * second}),
		with("cell-joins", "a fourth cell joins three, and requests come to it after 40 s",
			Fault{Kind: CellJoins, Cell: 4, At: 15 * second, TrafficAfter: 40 * second}),
		with("poisoned-configuration", "for 20 s no plan can be read: the instances keep what they have",
			Fault{Kind: PoisonedConfiguration, At: 15 * second, For: 20 * second}),
		with("configuration-away", "a cell's table of configuration is away for 20 s, while a fourth cell joins",
			Fault{Kind: ConfigurationAway, Cell: 1, At: 12 * second, For: 20 * second},
			Fault{Kind: CellJoins, Cell: 4, At: 15 * second, TrafficAfter: 60 * second}),
	}
}
