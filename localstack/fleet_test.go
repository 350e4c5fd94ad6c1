package localstack_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev/fleet"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/localstack/stand"
)

// The load of TestFleet: at each moment, fleetClients clients send one request each.
const (
	fleetClients = 3
	fleetPace    = 100 * time.Millisecond
	fleetWindow  = 5 * time.Second

	// Counting begins in the middle of a window: at its beginning a moment would make a difference of many calls.
	fleetWarmUp   = fleetWindow * 3 / 2
	fleetMeasured = 6 * fleetWindow

	// Of the full cell in deployment.yaml.
	maxEnvironments = 4
	redisDeadline   = 500 * time.Millisecond
)

// fleetTenants are the tenants of TestFleet, with their part of the requests and their limit in a window. The limits
// are what the full cell grants. Together they ask for 150 units in a window.
var fleetTenants = []struct {
	name  string
	part  int // of 20
	units int
}{{"scarce", 8, 24}, {"tight", 5, 21}, {"even", 4, 21}, {"ample", 2, 45}, {"idle", 1, 45}}

// fleetPlans returns the plans of the tenants. Their limits are the given number of times what the full cell grants.
func fleetPlans(id string, times int) string {
	var b strings.Builder
	b.WriteString("plans:\n")
	for _, of := range fleetTenants {
		fmt.Fprintf(&b, "  - { id: %s-%s, limits: [ { id: %[2]s, match: { methods: [GET], pathPattern: "+
			"\"/product/*\" }, algorithm: fixed_window, tiers: [ { period: %[3]s, threshold: %[4]d } ] } ] }\n", id,
			of.name, fleetWindow,
			times*of.units)
	}
	b.WriteString("tenants:\n")
	for _, of := range fleetTenants {
		fmt.Fprintf(&b, "  - { id: %s-%s, plan: %[1]s-%[2]s }\n", id, of.name)
	}
	return b.String()
}

// fleetCall is a request to the deployment, and its answer.
type fleetCall struct {
	tenant string
	sent   time.Time
	took   time.Duration
	status int
}

// decided returns when the request is taken to be decided: in the middle of the time that its answer took.
func (c *fleetCall) decided() time.Time { return c.sent.Add(c.took / 2) }

// sendFleet sends the load until a time, and returns all requests in the order in which they were sent.
func sendFleet(t *testing.T, s *stand.Stand, cell, id string, keys []string, begin, end time.Time) []fleetCall {
	t.Helper()
	var mu sync.Mutex
	var calls []fleetCall
	var all sync.WaitGroup
	for client := range fleetClients {
		random := rand.New(rand.NewPCG(1, uint64(client))) // the same requests in each run
		all.Go(func() {
			// After a late answer, moments are left out, so that a client never has two requests at once.
			for at := begin; at.Before(end); at = at.Add(max(time.Since(at), fleetPace).Truncate(fleetPace)) {
				select {
				case <-time.After(time.Until(at)):
				case <-t.Context().Done():
					return
				}
				which, left := 0, random.IntN(20)
				for ; left >= fleetTenants[which].part; which++ {
					left -= fleetTenants[which].part
				}
				sent := time.Now()
				a, err := s.Call(t.Context(), cell, product, keys[which])
				if err == nil && a.Status == answer.Unidentified.Status() &&
					strings.Contains(a.Body, answer.Unidentified.Type()) {
					continue // not decided: on a busy machine an environment may read its first key too late
				}
				if err != nil || a.Status != http.StatusOK && a.Status != http.StatusTooManyRequests {
					t.Errorf("%s: %+v, %v", fleetTenants[which].name, a, err)
					return
				}
				mu.Lock()
				calls = append(calls, fleetCall{id + "-" + fleetTenants[which].name, sent, time.Since(sent), a.Status})
				mu.Unlock()
			}
		})
	}
	all.Wait()
	slices.SortFunc(calls, func(a, b fleetCall) int { return a.sent.Compare(b.sent) })
	return calls
}

// scriptCalls returns how many scripts a Redis has run since it started: decisions, returns of leases, and
// announcements of the environments.
func scriptCalls(t *testing.T, client *redis.Client) (n float64) {
	t.Helper()
	info, err := client.InfoMap(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cmdstat_eval", "cmdstat_evalsha"} {
		calls, _, _ := strings.Cut(strings.TrimPrefix(info["Commandstats"][name], "calls="), ",")
		if calls == "" { // none
			continue
		}
		count, err := strconv.ParseFloat(calls, 64)
		if err != nil {
			t.Fatal(err)
		}
		n += count
	}
	return n
}

// decisionTimes returns how long the decisions of a function took that it made in a span of time, by its metrics.
func decisionTimes(t *testing.T, s *stand.Stand, function string, from, to time.Time) (all []time.Duration) {
	t.Helper()
	text, err := s.Logs(function)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		var m struct {
			AWS     struct{ Timestamp int64 } `json:"_aws"` // ms
			Latency struct {
				Values []float64 // µs
				Counts []float64
			} `json:"limiter_latency"`
		}
		if json.Unmarshal([]byte(line), &m) != nil || m.AWS.Timestamp < from.UnixMilli() ||
			m.AWS.Timestamp >= to.UnixMilli() {
			continue
		}
		for i, v := range m.Latency.Values {
			for range int(m.Latency.Counts[i]) {
				all = append(all, time.Duration(v*float64(time.Microsecond)))
			}
		}
	}
	return all
}

// fleetCounts are what is compared.
type fleetCounts struct{ admitted, denied, storeCalls float64 }

// simulateFleet simulates the requests of the deployment with several seeds, and returns the mean of the counts and the
// reports.
func simulateFleet(
	t *testing.T, id string, calls []fleetCall, began time.Time, trip time.Duration,
) (mean fleetCounts, reports []*fleet.Report) {
	t.Helper()
	config, err := plan.Parse(configyaml.Source("plans.yaml", []byte(fleetPlans(id, 1))))
	if err != nil {
		t.Fatal(err)
	}
	arrivals := make([]fleet.Arrival, len(calls))
	for i, c := range calls {
		arrivals[i] = fleet.Arrival{At: c.decided().Sub(began), Tenant: c.tenant, Busy: max(c.took/2, 1)}
	}
	slices.SortFunc(arrivals, func(a, b fleet.Arrival) int { return cmp.Compare(a.At, b.At) })
	const seeds = 5
	for seed := range seeds {
		r, err := fleet.Run(t.Context(), fleet.Options{
			Scenario: &fleet.Scenario{Name: "LocalStack", Shape: fleet.Lambda, Instances: maxEnvironments,
				WarmUp: fleetWarmUp, Measured: fleetMeasured, Requests: 30},
			Seed: uint64(seed + 1), Costs: fleet.Costs{RoundTrip: trip, Deadline: redisDeadline},
			Config: config, Path: "/product/1", Arrivals: arrivals,
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Refused > 0 || r.Degraded > 0 || r.Over > 0 {
			t.Errorf("simulated: %d requests without an environment, %d decided by the fallback limiter, %d above a "+
				"limit",
				r.Refused, r.Degraded, r.Over)
		}
		mean.admitted += float64(r.Allowed) / seeds
		mean.denied += float64(r.Denied) / seeds
		mean.storeCalls += r.StoreOps * r.Seconds / seeds
		reports = append(reports, r)
	}
	return mean, reports
}

// compareFleet fails the test if a simulated count is wrong by more than 10 %.
func compareFleet(t *testing.T, counted, simulated fleetCounts) {
	t.Helper()
	for _, c := range []struct {
		what               string
		counted, simulated float64
	}{
		{"admitted", counted.admitted, simulated.admitted}, {"denied", counted.denied, simulated.denied},
		{"calls of the store", counted.storeCalls, simulated.storeCalls},
	} {
		wrong := 100 * math.Abs(c.simulated-c.counted) / c.counted
		t.Logf("%s: %.0f counted, %.1f simulated: wrong by %.1f %%", c.what, c.counted, c.simulated, wrong)
		if !(wrong <= 10) { // also if nothing was counted
			t.Errorf("%s: the simulation is wrong by %.1f %%, want at most 10 %%", c.what, wrong)
		}
	}
}

// Guarantees that the simulation of sluice fleet counts what the deployed authorizer counts: requests admitted,
// requests denied, and calls of the store, each within 10 %. The full cell, with Redis and leases, gets some nine
// hundred requests of five tenants over six windows; then the same requests are simulated. The latencies of both are
// logged, and not compared, since LocalStack shares the processors of this machine. It takes 50 s.
func TestFleet(t *testing.T) {
	s := open(t)
	_, full := smallAndFull(t, s)
	id := unique("fleet")
	apply(t, s, fleetPlans(id, len(s.Cells()))) // each cell grants an equal part
	keys := make([]string, len(fleetTenants))
	for i, of := range fleetTenants {
		keys[i] = key(t, s, id+"-"+of.name)
	}
	for i, of := range fleetTenants {
		waitUntilKeyIsKnown(t, s, full.ID, keys[i])
		enforces(t, s, full, keys[i], of.units)
	}
	waitFor(t, func(ctx context.Context) error { return warmUp(ctx, s, full.ID, keys[len(keys)-1]) })

	client := redis.NewClient(&redis.Options{Addr: os.Getenv("SLUICE_LOCALSTACK_REDIS")})
	defer func() { _ = client.Close() }()
	trip := redisTrip(t, client)
	began := time.Now().Truncate(fleetWindow).Add(fleetWindow)
	measured := began.Add(fleetWarmUp)
	end := measured.Add(fleetMeasured)
	var all []fleetCall
	var sending sync.WaitGroup
	sending.Go(func() { all = sendFleet(t, s, full.ID, id, keys, began, end) })
	lasts(t, time.Until(measured))
	before := scriptCalls(t, client)
	sending.Wait()
	counted := fleetCounts{storeCalls: scriptCalls(t, client) - before}
	if t.Failed() {
		return
	}
	var took []time.Duration
	for _, c := range all {
		if at := c.decided(); at.Before(measured) || !at.Before(end) {
			continue
		}
		took = append(took, c.took)
		if c.status == http.StatusOK {
			counted.admitted++
		} else {
			counted.denied++
		}
	}
	simulated, reports := simulateFleet(t, id, all, began, trip)
	compareFleet(t, counted, simulated)

	var p50, p99 float64
	for _, r := range reports {
		p50, p99 = p50+r.P50ms/float64(len(reports)), p99+r.P99ms/float64(len(reports))
	}
	decided := decisionTimes(t, s, full.Function("authorizer"), measured, end)
	t.Logf("a request took p50 %.1f ms and p99 %.1f ms; a ping of Redis %s", percentile(took, 50), percentile(took, 99),
		trip)
	t.Logf("a decision took p50 %.4f ms and p99 %.2f ms; simulated: %.4f ms and %.2f ms, by factors of %.1f and "+
		"%.1f less",
		percentile(decided, 50), percentile(decided, 99), p50, p99, percentile(decided, 50)/p50,
		percentile(decided, 99)/p99)
}

// percentile returns a percentile of durations in milliseconds, NaN if there are none.
func percentile(of []time.Duration, p int) float64 {
	if len(of) == 0 {
		return math.NaN()
	}
	slices.Sort(of)
	return of[(len(of)-1)*p/100].Seconds() * 1e3
}

// redisTrip returns the median time of some pings.
func redisTrip(t *testing.T, client *redis.Client) time.Duration {
	t.Helper()
	took := make([]time.Duration, 201)
	for i := range took {
		began := time.Now()
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[len(took)/2]
}
