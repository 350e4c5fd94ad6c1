package bench

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Figure is a measured number for which the project has a goal.
type Figure struct {
	Name        string
	Unit        string
	Goal        float64 // 0 means that there is no goal, unless ZeroGoal is set
	ZeroGoal    bool    // the goal is 0
	MinimumGoal bool    // the goal is a minimum; otherwise it is a maximum
	Digits      int     // digits after the decimal point

	// Measure measures the number. A short measurement only shows that the measurement works. An error means that the
	// workload was not the intended one, so that there is no number.
	Measure func(short bool) (Result, error)
}

// Result is a measured number with notes for the reader.
type Result struct {
	Value float64
	Notes []string
}

func (r *Result) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// measuredOnce returns a function that measures once for all figures that are taken from the same measurement, and once
// more for a short one.
func measuredOnce[T any](measure func(short bool) (T, error)) func(short bool) (T, error) {
	full := sync.OnceValues(func() (T, error) { return measure(false) })
	brief := sync.OnceValues(func() (T, error) { return measure(true) })
	return func(short bool) (T, error) {
		if short {
			return brief()
		}
		return full()
	}
}

// Figures lists all figures, in the order in which they are measured.
func Figures() []Figure {
	return []Figure{
		{Name: "memory_1_limit", Unit: "x", Goal: 0.7, Digits: 2,
			Measure: benchmarkFigure("Memory/1_limit", 301, timeRatio)},
		{Name: "memory_3_limits", Unit: "x", Goal: 0.8, Digits: 2,
			Measure: benchmarkFigure("Memory/3_limits", 301, timeRatio)},
		{Name: "memory_3_mixed", Unit: "x", Goal: 1.0, Digits: 2,
			Measure: benchmarkFigure("Memory/3_mixed", 301, timeRatio)},
		{Name: "memory_1m_keys", Unit: "x", Goal: 1.3, Digits: 2,
			Measure: benchmarkFigure("Memory/1m_keys", 21, timeRatio)},
		{Name: "memory_bytes", Unit: "bytes/key", Goal: 110, Digits: 0,
			Measure: benchmarkFigure("MemoryBytes", 1, inUnit("bytes/key"))},
		{Name: "pacer_acquires", Unit: "acquires/s", Goal: 20_000_000, MinimumGoal: true,
			Measure: benchmarkFigure("Pacer", 301, perSecond)},
		{Name: "pacer_acquires_x", Unit: "x", Goal: 0.5, Digits: 2, Measure: benchmarkFigure("Pacer", 301, timeRatio)},
		{Name: "pacer_waiters", Unit: "bytes/ticket", Goal: 100, Digits: 0,
			Measure: benchmarkFigure("PacerWaiters", 1, inUnit("bytes/ticket"))},
		{Name: "pacer_wake_p99_ms", Unit: "ms", Goal: 5, Digits: 2,
			Measure: benchmarkFigure("PacerWake", 1, inUnit("p99-ms"))},
		{Name: "pacer_over", Unit: "units", ZeroGoal: true, Measure: pacerSharedFigure(overLimit)},
		{Name: "pacer_used_pct", Unit: "%", Goal: 99, MinimumGoal: true, Digits: 2,
			Measure: pacerSharedFigure(usedOfLimit)},
		{Name: "redis_3_limits", Unit: "x", Goal: 0.85, Digits: 2, Measure: benchmarkFigure("Redis", 51, timeRatio)},
		{Name: "redis_leased_hot_key", Unit: "x", Goal: 400, MinimumGoal: true, Digits: 0,
			Measure: benchmarkFigure("RedisHotKey", 101, speedRatio)},
		{Name: "lease_local_3", Unit: "x", Goal: 1.0, Digits: 2,
			Measure: benchmarkFigure("LeaseLocal/100_keys", 301, timeRatio)},
		{Name: "shared_ops_per_s", Unit: "calls/s", Goal: 20, Digits: 1, Measure: workloadFigure(0, 0, storeOps)},
		{Name: "shared_ops_per_s_binding", Unit: "calls/s", Goal: 75, Digits: 1,
			Measure: workloadFigure(1, 3, storeOps)},
		{Name: "shared_over", Unit: "units", ZeroGoal: true, Measure: workloadFigure(0, 3, over)},
		{Name: "shared_early_pct", Unit: "%", Goal: 1, Digits: 2, Measure: workloadFigure(1, 3, earlyPct)},
		{Name: "shared_short_pct", Unit: "%", Goal: 1, Digits: 2, Measure: workloadFigure(1, 3, shortPct)},
		{Name: "shared_p95_ms", Unit: "ms", Goal: 1, Digits: 3, Measure: workloadFigure(0, 3, p95)},
		{Name: "dynamodb_wcu_hot", Unit: "units/1,000", Goal: 50, Digits: 1, Measure: dynamoHotFigure(false)},
		{Name: "dynamodb_wcu_hot_binding", Unit: "units/1,000", Goal: 100, Digits: 1, Measure: dynamoHotFigure(true)},
		{Name: "dynamodb_wcu_exact", Unit: "units/1,000", Goal: 1100, Digits: 0,
			Measure: benchmarkFigure("DynamoDBExact", 1, inUnit("units/1,000"))},
		{Name: "dynamodb_wcu_denied", Unit: "units/1,000", Goal: 2, Digits: 2,
			Measure: benchmarkFigure("DynamoDBDenied", 1, inUnit("units/1,000"))},
		{Name: "authorizer_cold_start", Unit: "x", Goal: 2, Digits: 2, Measure: coldStartFigure},
		{Name: "authorizer_warm", Unit: "x", Goal: 1.3, Digits: 2, Measure: warmFigure},
		{Name: "authorizer_jwt_us", Unit: "µs", Goal: 20, Digits: 1,
			Measure: benchmarkFigure("AuthorizerJWT", 101, cpuMicros)},
		{Name: "authorizer_p99_ms", Unit: "ms", Goal: 10, Digits: 2, Measure: concurrentFigure},
		{Name: "authorizer_zip_mb", Unit: "MB", Goal: 5, Digits: 1, Measure: zipFigure},
		{Name: "rls_decisions", Unit: "x", Digits: 2,
			Measure: rlsCostFigure(true, rlsProcessorRatio(rlsPeer))},
		{Name: "rls_of_ceiling", Unit: "x", Goal: rlsCeilingGoal, MinimumGoal: true, Digits: 2,
			Measure: rlsCostFigure(false, rlsProcessorRatio(rlsUndecided))},
		{Name: "rls_redis_ops", Unit: "commands/decision", Digits: 2,
			Measure: rlsCostFigure(false, rlsRedisOps)},
		{Name: "rls_p99", Unit: "x", Goal: 0.33, Digits: 2, Measure: rlsP99Figure},
		{Name: "rls_over", Unit: "units", ZeroGoal: true, Measure: rlsOverFigure},
		{Name: "rls_new_values_redis", Unit: "x", Goal: 1.3, Digits: 2, Measure: rlsNewValuesFigure(rlsNewValues, 1)},
		{Name: "rls_5m_descriptors", Unit: "x", Goal: 1.5, Digits: 2,
			Measure: rlsNewValuesFigure(rlsManyValues, newValuesPerRequest)},
		{Name: "rls_bytes", Unit: "bytes/descriptor", Digits: 0, Measure: rlsBytesFigure},
		{Name: "proxy_p99", Unit: "x", Goal: 1.5, Digits: 2, Measure: proxyP99Figure},
		{Name: "proxy_processor", Unit: "x", Digits: 2, Measure: proxyProcessorFigure},
		{Name: "simulate_lines_per_s", Unit: "lines/s", Goal: 300_000, MinimumGoal: true,
			Measure: benchmarkFigure("Simulate", 7, perSecond)},
		{Name: "fleet_store_ops", Unit: "calls/s", Goal: 100_000, Measure: fleetFigure(fleetStoreOps)},
		{Name: "fleet_p99_ms", Unit: "ms", Goal: 10, Digits: 3, Measure: fleetFigure(fleetP99)},
		{Name: "fleet_over", Unit: "units", ZeroGoal: true, Measure: fleetOverFigure},
		{Name: "fleet_speed", Unit: "decisions/s", Goal: 300_000, MinimumGoal: true,
			Measure: fleetFigure(fleetSpeed)},
		{Name: "propagation_p99_s", Unit: "s", Goal: 5, Digits: 2, Measure: propagationFigure},
	}
}

func (f *Figure) hasNoGoal() bool { return f.Goal == 0 && !f.ZeroGoal }

// Met reports whether v reaches the goal.
func (f *Figure) Met(v float64) bool {
	switch {
	case f.hasNoGoal():
		return true
	case f.MinimumGoal:
		return v >= f.Goal
	default:
		return v <= f.Goal
	}
}

// Line returns the figure as it is printed: "figure NAME VALUE UNIT GOAL", or a comment if it has no goal.
func (f *Figure) Line(v float64) string {
	if f.hasNoGoal() {
		return fmt.Sprintf("# %s %.*f %s", f.Name, f.Digits, v, f.Unit)
	}
	sign := "<="
	if f.MinimumGoal {
		sign = ">="
	}
	goal := strconv.FormatFloat(f.Goal, 'f', -1, 64)
	if f.Digits > 0 && !strings.Contains(goal, ".") {
		goal += ".0"
	}
	return fmt.Sprintf("figure %s %.*f %s %s%s", f.Name, f.Digits, v, f.Unit, sign, goal)
}
