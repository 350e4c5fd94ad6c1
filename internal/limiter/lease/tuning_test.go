package lease

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// This file has the measurement from which the constants of [tuning] were chosen. Several processes lease one counter
// from one store, in virtual time, with each constant varied around its value. To repeat it for all constants, or for
// some:
//
//	go test -v -timeout 30m -run '^TestTuning$' ./internal/limiter/lease -tuning .
//	go test -v -run '^TestTuning$' ./internal/limiter/lease -tuning 'shareParts|leastParts'
var measured = flag.String("tuning", "", "a regular expression: the constants to measure")

// workload is one limit with its requests.
type workload struct {
	name      string
	tiers     []limit.Tier
	instances int
	rate      float64 // units per second of all instances together
	maxCost   int64
	route     router
	plenty    bool // the limit is never reached
}

// router returns the instance that gets a request at t seconds, or a number below 0 if there is no request then.
type router func(r *rand.Rand, t float64, instances int) int

func anyInstance(r *rand.Rand, _ float64, n int) int { return r.IntN(n) }

// mostlyOne sends 80 % of the requests to one instance, and after every seconds to the next one.
func mostlyOne(every float64) router {
	return func(r *rand.Rand, t float64, n int) int {
		if r.IntN(5) > 0 {
			return int(t/every) % n
		}
		return r.IntN(n)
	}
}

// inBursts sends requests for two seconds and then none for three, at each instance at other times.
func inBursts(r *rand.Rand, t float64, n int) int {
	i := r.IntN(n)
	if math.Mod(t+1.3*float64(i), 5) >= 2 {
		return -1
	}
	return i
}

const forever = 1e9 // s

// workloads lists the workloads. The limit of each admits three quarters of the requested units, unless it says
// otherwise.
var workloads = []workload{
	{"window, plenty", fixedWindowTier(10, 7500), 3, 300, 1, anyInstance, true},
	{"window, plenty, moving", fixedWindowTier(10, 7500), 3, 300, 1, mostlyOne(7), true},
	{"window, as much as asked for", fixedWindowTier(10, 3000), 3, 300, 1, anyInstance, false},
	{"window", fixedWindowTier(10, 2250), 3, 300, 1, anyInstance, false},
	{"window, one hot", fixedWindowTier(10, 2250), 3, 300, 1, mostlyOne(forever), false},
	{"window, moving", fixedWindowTier(10, 2250), 3, 300, 1, mostlyOne(7), false},
	{"window, bursts", fixedWindowTier(10, 900), 3, 300, 1, inBursts, false},
	{"window, costs to 20", fixedWindowTier(10, 2250), 3, 300, 20, anyInstance, false},
	{"window, 10 instances", fixedWindowTier(10, 2250), 10, 300, 1, anyInstance, false},
	{"window, few units", fixedWindowTier(10, 75), 3, 10, 1, anyInstance, false},
	{"window of a minute", fixedWindowTier(60, 13500), 3, 300, 1, anyInstance, false},
	{"windows of 1 s and 10 s", slices.Concat(fixedWindowTier(1, 270), fixedWindowTier(10, 2250)), 3, 300, 1,
		anyInstance, false},
	{"bucket, plenty", bucket(10, 7500), 3, 300, 1, anyInstance, true},
	{"bucket", bucket(10, 2250), 3, 300, 1, anyInstance, false},
	{"bucket, moving", bucket(10, 2250), 3, 300, 1, mostlyOne(7), false},
	{"bucket, few units", bucket(10, 75), 3, 10, 1, anyInstance, false},
	{"bucket, bursts", bucket(10, 900), 3, 300, 1, inBursts, false},
	{"sliding, plenty", slidingWindowTier(10, 7500), 3, 300, 1, anyInstance, true},
	{"sliding, just enough", slidingWindowTier(10, 3600), 3, 300, 1, anyInstance, true},
	{"sliding", slidingWindowTier(10, 2250), 3, 300, 1, anyInstance, false},
	{"sliding, moving", slidingWindowTier(10, 2250), 3, 300, 1, mostlyOne(7), false},
	{"sliding, bursts", slidingWindowTier(10, 900), 3, 300, 1, inBursts, false},
}

func fixedWindowTier(seconds, units int64) []limit.Tier {
	return []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Duration(seconds) * time.Second, Threshold: units}}
}

// bucket returns a token bucket that holds what it refills in a second.
func bucket(seconds, units int64) []limit.Tier {
	period := time.Duration(seconds) * time.Second
	return []limit.Tier{{Algorithm: limit.TokenBucket, Period: period, Threshold: units, Burst: units / seconds}}
}

func slidingWindowTier(seconds, units int64) []limit.Tier {
	period := time.Duration(seconds) * time.Second
	return []limit.Tier{{Algorithm: limit.SlidingWindow, Period: period, Threshold: units}}
}

// outcome holds the results of a run. Costs are in units.
type outcome struct {
	decisions, calls             int64
	asked, admitted              int64
	possible                     int64 // units that one counter without leases admits of the same requests
	wronglyDenied                int64 // denied units that would have fitted beside all admitted ones
	deniedRequests, overRequests int64
}

func (a *outcome) add(b outcome) {
	a.decisions += b.decisions
	a.calls += b.calls
	a.asked += b.asked
	a.admitted += b.admitted
	a.possible += b.possible
	a.wronglyDenied += b.wronglyDenied
	a.deniedRequests += b.deniedRequests
	a.overRequests += b.overRequests
}

func (a *outcome) callsPercent() float64   { return 100 * float64(a.calls) / float64(a.decisions) }
func (a *outcome) usedPercent() float64    { return 100 * float64(a.admitted) / float64(a.possible) }
func (a *outcome) wronglyPercent() float64 { return 100 * float64(a.wronglyDenied) / float64(a.asked) }

// countingStore counts the calls of all instances.
type countingStore struct {
	*memory.Store
	calls *int64
}

func (s countingStore) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	*s.calls++
	return s.Store.Decide(ctx, req, now, d)
}

// simulate runs the workload for that many seconds of virtual time. The same arguments give the same outcome.
func simulate(tb testing.TB, w *workload, k *tuning, seed uint64, seconds float64) (sum outcome) {
	tb.Helper()
	l := limittest.MustNew(tb, limit.Limit{ID: "l", MaxCost: w.maxCost, Tiers: w.tiers})
	owner := limit.Owner{Kind: limit.Tenant, Name: "acme"}
	start := time.Unix(1_800_000_000, 0) // where windows of a second to a minute begin
	now := start
	newMemory := func() *memory.Store {
		s := memorytest.New(tb)
		return s
	}
	// The counter alone gets each request: it shows what one counter without leases admits. The counter spent is
	// charged for the requests that the instances admit: it shows whether a denial was right.
	alone, spent, shared := newMemory(), newMemory(), countingStore{newMemory(), &sum.calls}
	stores := make([]*Store, w.instances)
	for i := range stores {
		s, err := New(Config{Store: shared, Instances: func(*limit.Limit) int { return w.instances }, GiveBackEvery: -1,
			Clock: func() time.Time { return now }, tuning: k})
		if err != nil {
			tb.Fatal(err)
		}
		stores[i] = s
	}
	decide := func(s limit.Store, req *limit.Request) bool {
		var d limit.Decision
		if err := s.Decide(tb.Context(), req, now, &d); err != nil {
			tb.Fatal(err)
		}
		return d.Allowed
	}
	r := rand.New(rand.NewPCG(seed, 3))
	lastReturn, meanCost := now, float64(1+w.maxCost)/2
	for t := 0.0; t < seconds; {
		t += r.ExpFloat64() / (w.rate / meanCost)
		i, cost := w.route(r, t, w.instances), 1+r.Int64N(w.maxCost)
		now = start.Add(time.Duration(t * float64(time.Second)))
		if now.Sub(lastReturn) >= DefaultGiveBackEvery {
			lastReturn = now
			for _, s := range stores {
				s.GiveBackSpare(tb.Context(), now)
			}
		}
		if i < 0 {
			continue
		}
		req := &limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: l, Cost: cost}}}
		sum.decisions++
		sum.asked += cost
		if decide(alone, req) {
			sum.possible += cost
		}
		if decide(stores[i], req) {
			sum.admitted += cost
			if !decide(spent, req) {
				sum.overRequests++
			}
			continue
		}
		sum.deniedRequests++
		var d limit.Decision
		if err := spent.Peek(tb.Context(), req, now, &d); err != nil {
			tb.Fatal(err)
		}
		if d.Allowed {
			sum.wronglyDenied += cost
		}
	}
	for _, s := range stores {
		if err := s.Close(tb.Context()); err != nil {
			tb.Fatal(err)
		}
	}
	return sum
}

// simulateAll runs all workloads, and fails the test if one of them does not have the property for which it was made.
func simulateAll(t *testing.T, k tuning, seeds uint64, seconds float64) []outcome {
	t.Helper()
	sums := make([]outcome, len(workloads))
	for i := range workloads {
		w := &workloads[i]
		for seed := range seeds {
			sums[i].add(simulate(t, w, &k, seed, seconds))
		}
		sum := &sums[i]
		least := int64(w.rate * seconds * float64(seeds) / float64(w.maxCost) / 4)
		if sum.decisions < least || sum.calls == 0 {
			t.Errorf("%s: %d decisions with %d calls, want %d at least", w.name, sum.decisions, sum.calls, least)
		}
		binds, mayBind := sum.possible < sum.asked, seconds > w.tiers[0].Period.Seconds()
		if binds && w.plenty || !binds && !w.plenty && mayBind {
			t.Errorf("%s: without leases %d of %d units would be admitted; want fewer than all only if the workload "+
				"is to reach its limit", w.name, sum.possible, sum.asked)
		}
		if sum.overRequests > 0 {
			t.Errorf("%s: %d requests were admitted beyond the limit, want 0", w.name, sum.overRequests)
		}
	}
	return sums
}

// variation is one constant of [tuning], with the values that it is measured at besides its own.
type variation struct {
	name   string
	values []float64 // durations in seconds
	of     func(*tuning) any
}

var variations = []variation{
	{"plentyTimes", []float64{1, 1.5, 3, 4}, func(k *tuning) any { return &k.plentyTimes }},
	{"ampleDeviations", []float64{0, 1, 2, 5}, func(k *tuning) any { return &k.ampleDeviations }},
	{"scarceFor", []float64{0.5, 1, 4, 8}, func(k *tuning) any { return &k.scarceFor }},
	{"shareParts", []float64{1, 1.5, 2, 2.2, 3, 4}, func(k *tuning) any { return &k.shareParts }},
	{"leastParts", []float64{25, 50, 75, 200, 400}, func(k *tuning) any { return &k.leastParts }},
	{"leastFrom", []float64{0, 0.35, 1, 1.4}, func(k *tuning) any { return &k.leastFrom }},
	{"enoughPart", []float64{0, 0.25, 1, 2}, func(k *tuning) any { return &k.enoughPart }},
	{"leastInSlot", []float64{0, 10, 50}, func(k *tuning) any { return &k.leastInSlot }},
	{"rampLeast", []float64{0, 1, 4, 8}, func(k *tuning) any { return &k.rampLeast }},
	{"rampPart", []float64{0.5, 0.65, 0.9, 1}, func(k *tuning) any { return &k.rampPart }},
	{"rampMore", []float64{1, 1.25, 2, 3}, func(k *tuning) any { return &k.rampMore }},
	{"rampPlenty", []float64{0.9, 1, 1.25, 1.5}, func(k *tuning) any { return &k.rampPlenty }},
	{"denyFor", []float64{0.5, 1, 2, 8}, func(k *tuning) any { return &k.denyFor }},
	{"denyForMost", []float64{1, 2.5, 10}, func(k *tuning) any { return &k.denyForMost }},
	{"keepFor", []float64{0.5, 1, 1.5, 2, 4}, func(k *tuning) any { return &k.keepFor }},
	{"returnParts", []float64{10, 25, 50, 100, 1000}, func(k *tuning) any { return &k.returnParts }},
}

func (v *variation) set(k *tuning, value float64) {
	switch to := v.of(k).(type) {
	case *float64:
		*to = value
	case *int64:
		*to = int64(value)
	case *time.Duration:
		*to = time.Duration(value * float64(time.Second))
	}
}

func (v *variation) value() float64 {
	switch of := v.of(&defaultTuning).(type) {
	case *int64:
		return float64(*of)
	case *time.Duration:
		return of.Seconds()
	default:
		return *of.(*float64)
	}
}

// TestTuning prints the effect of each constant of [tuning], see the flag -tuning. Without the flag it guarantees that
// the measurement works: it is deterministic, its workloads have their properties, every constant is measured, and no
// limit is exceeded.
func TestTuning(t *testing.T) {
	soak.SkipUnderRace(t)
	fields := reflect.TypeFor[tuning]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		if !slices.ContainsFunc(variations, func(v variation) bool { return v.name == name }) {
			t.Errorf("the constant %s of tuning has no line in variations: it is not measured", name)
		}
	}
	if *measured == "" {
		const seeds, seconds = 1, 5
		first, second := simulateAll(t, defaultTuning, seeds, seconds), simulateAll(t, defaultTuning, seeds, seconds)
		if !slices.Equal(first, second) {
			t.Errorf("two runs with the same seed differ: %+v and %+v", first, second)
		}
		return
	}
	selected, err := regexp.Compile(*measured)
	if err != nil {
		t.Fatal(err)
	}
	const seeds, seconds = 3, 90
	usual := simulateAll(t, defaultTuning, seeds, seconds)
	var all outcome
	for i := range usual {
		all.add(usual[i])
		t.Logf("%-30s %s", workloads[i].name, &usual[i])
	}
	t.Logf("%-30s %s", "all", &all)
	count := 0
	for _, v := range variations {
		if selected.MatchString(v.name) {
			v.measure(t, usual, seeds, seconds)
			count++
		}
	}
	if count == 0 {
		t.Errorf("no constant is called %q", *measured)
	}
}

func (a *outcome) String() string {
	return fmt.Sprintf("%6.2f calls for 100 decisions, %6.2f %% used, %5.2f %% wrongly denied",
		a.callsPercent(), a.usedPercent(), a.wronglyPercent())
}

// measure prints the sum of all workloads for each value of the constant, and the workloads for which the value makes a
// difference.
func (v *variation) measure(t *testing.T, usual []outcome, seeds uint64, seconds float64) {
	changes := false
	var text strings.Builder
	for _, value := range v.values {
		k := defaultTuning
		v.set(&k, value)
		sums := simulateAll(t, k, seeds, seconds)
		var all outcome
		var differing []string
		for i := range sums {
			all.add(sums[i])
			a, b := &sums[i], &usual[i]
			changes = changes || *a != *b
			calls := a.callsPercent()/b.callsPercent() - 1
			used, wrongly := a.usedPercent()-b.usedPercent(), a.wronglyPercent()-b.wronglyPercent()
			if math.Abs(calls) > 0.05 || math.Abs(used) > 0.3 || math.Abs(wrongly) > 0.5 {
				differing = append(differing, fmt.Sprintf("    %-28s %s (calls %+.0f %%, %+.2f used, %+.2f wrongly)\n",
					workloads[i].name, a, 100*calls, used, wrongly))
			}
		}
		fmt.Fprintf(&text, "  %6g instead of %g:%14s%s\n%s", value, v.value(), "", &all, strings.Join(differing, ""))
	}
	t.Logf("%s\n%s", v.name, text.String())
	if !changes {
		t.Errorf("no value of %s changes any result: the workloads do not measure this constant", v.name)
	}
}
