package shared

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"sort"
	"strconv"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Period is that of every limit here.
const Period = 10 * time.Second

// Scenario is who asks how often, where, and what is allowed.
type Scenario struct {
	Name      string
	Algorithm limit.Algorithm
	Instances int
	Rates     []float64 // of each tenant, requests per second
	Limits    []int64   // of each tenant, units per Period; a token bucket's burst, too
	Route     Route
	Frozen    bool // instances run during requests only, as Lambda environments do
}

// Route says how requests find their instance.
type Route uint8

// The routes.
const (
	Evenly        Route = iota // any instance
	Favourite                  // 80 % of a tenant's requests at one instance, another one for each tenant
	Jumping                    // so, and every 7 s it is the next instance
	MostRecent                 // of the instances that are free, the one that answered last
	RoundRobin                 // the instance that has waited longest
	AnyFree                    // any instance that is free
	favourite     = 0.8        // of a tenant's requests
	jumpEvery     = 7 * time.Second
	answersWithin = 40 * time.Millisecond // how long an instance of one request at a time is busy
)

// Demand is how many units all tenants ask for per second.
func (s *Scenario) Demand() float64 {
	sum := 0.0
	for _, r := range s.Rates {
		sum += r
	}
	return sum
}

// Arrival is one request.
type Arrival struct {
	At       time.Duration // since the start
	Tenant   int
	Instance int
}

// Arrivals are the requests until a time, in order: a Poisson process for each tenant, the same for the same seed.
func (s *Scenario) Arrivals(seed uint64, until time.Duration) iter.Seq[Arrival] {
	return func(yield func(Arrival) bool) {
		random := rand.New(rand.NewPCG(seed, uint64(len(s.Rates))))
		// independent Poisson processes together are one, of which each takes its share
		sums := make([]float64, len(s.Rates))
		total := 0.0
		for i, r := range s.Rates {
			total += r
			sums[i] = total
		}
		route := s.router()
		at := 0.0
		for {
			at += random.ExpFloat64() / total
			a := Arrival{At: time.Duration(at * float64(time.Second))}
			if a.At >= until {
				return
			}
			a.Tenant = min(sort.SearchFloat64s(sums, random.Float64()*total), len(sums)-1)
			a.Instance = route(&a, random.Float64())
			if !yield(a) {
				return
			}
		}
	}
}

// router returns what chooses the instance of each arrival in turn; u is random, below 1.
func (s *Scenario) router() func(a *Arrival, u float64) int {
	n := s.Instances
	apart := func(first int, u float64) int { // the first has its share, the others have the same of the rest
		if u < favourite || n == 1 {
			return first % n
		}
		return (first + 1 + int((u-favourite)/(1-favourite)*float64(n-1))) % n
	}
	switch s.Route {
	case Favourite:
		return func(a *Arrival, u float64) int { return apart(a.Tenant, u) }
	case Jumping:
		return func(a *Arrival, u float64) int { return apart(a.Tenant+int(a.At/jumpEvery), u) }
	case MostRecent, RoundRobin, AnyFree:
		return environments(n, s.Route)
	default:
		return func(_ *Arrival, u float64) int { return int(u * float64(n)) }
	}
}

// environments are instances that serve one request at a time.
func environments(n int, route Route) func(a *Arrival, u float64) int {
	type busy struct {
		until    time.Duration
		instance int
	}
	free := make([]int, n) // the last is the most recent
	for i := range free {
		free[i] = n - 1 - i
	}
	var serving []busy // by the time at which they end, for all take the same time
	return func(a *Arrival, u float64) int {
		// with none free, the next to be waits for it
		for len(serving) > 0 && (serving[0].until <= a.At || len(free) == 0) {
			free = append(free, serving[0].instance)
			serving = serving[1:]
		}
		i := len(free) - 1
		switch route {
		case RoundRobin:
			i = 0
		case AnyFree:
			i = int(u * float64(len(free)))
		default:
		}
		chosen := free[i]
		free = append(free[:i], free[i+1:]...)
		serving = append(serving, busy{a.At + answersWithin, chosen})
		return chosen
	}
}

// requests are what the tenants ask: each its own, one unit of its one limit.
func (s *Scenario) requests() ([]limit.Request, error) {
	out := make([]limit.Request, len(s.Rates))
	for i := range out {
		l, err := limit.New(limit.Limit{ID: "shared",
			Tiers: []limit.Tier{{Algorithm: s.Algorithm, Period: Period, Threshold: s.Limits[i]}}})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		out[i] = limit.Request{
			Owner:   limit.Owner{Kind: limit.Tenant, Name: "tenant-" + strconv.Itoa(i)},
			Charges: []limit.Charge{{Limit: l, Cost: 1}},
		}
	}
	return out, nil
}

// never is a limit that is not reached, as a multiple of the demand.
const never = 2.5

// withRates makes a scenario whose tenants may each spend a share of what they ask for.
func withRates(name string, alg limit.Algorithm, instances int, rates []float64, share float64) Scenario {
	s := Scenario{Name: name, Algorithm: alg, Instances: instances, Rates: rates}
	for _, r := range rates {
		s.Limits = append(s.Limits, max(int64(math.Round(r*Period.Seconds()*share)), 1))
	}
	return s
}

func evenly(tenants int, each float64) []float64 {
	rates := make([]float64, tenants)
	for i := range rates {
		rates[i] = each
	}
	return rates
}

// zipf are rates that together are total; the n-th tenant asks 1/n as often as the first.
func zipf(tenants int, total float64) []float64 {
	rates, sum := make([]float64, tenants), 0.0
	for i := range rates {
		rates[i] = 1 / float64(i+1)
		sum += rates[i]
	}
	for i := range rates {
		rates[i] *= total / sum
	}
	return rates
}

// The published workload.
const (
	tenants   = 25
	instances = 3
	perTenant = 40.0 // requests per second
)

// shares are what the limits are of the demand, in the order of the table.
var shares = [...]struct {
	name string
	of   float64
}{{"never binds", never}, {"0.75 of demand", 0.75}, {"0.95 of demand", 0.95}, {"1.05 of demand", 1.05}}

// Published is the published workload with its four limits, as many times as large as it was published.
func Published(alg limit.Algorithm, times float64) []Scenario {
	var out []Scenario
	for _, share := range shares {
		name := share.name
		if times != 1 {
			name = fmt.Sprintf("%gx load, %s", times, name)
		}
		out = append(out, withRates(name, alg, instances, evenly(tenants, times*perTenant), share.of))
	}
	return out
}

// Uneven is the published workload with limits of 0.75 of the demand, unevenly spread over tenants or instances.
func Uneven(alg limit.Algorithm) []Scenario {
	const share = 0.75
	half := evenly(tenants, perTenant*tenants/2/(tenants-1))
	half[0] = perTenant * tenants / 2
	hot := withRates("one tenant takes half", alg, instances, half, share)
	hammer := withRates("so, all limits alike", alg, instances, half, share)
	for i := range hammer.Limits {
		hammer.Limits[i] = int64(math.Round(perTenant * Period.Seconds() * share))
	}
	pinned := withRates("80 % at one instance", alg, instances, evenly(tenants, perTenant), share)
	pinned.Route = Favourite
	return []Scenario{hot, hammer, pinned, Jump(alg)}
}

// Jump is the published workload with limits of 0.75 of the demand, where most requests of a tenant go to one instance,
// and every 7 s to the next one.
func Jump(alg limit.Algorithm) Scenario {
	const share = 0.75
	s := withRates("so, jumping every 7 s", alg, instances, evenly(tenants, perTenant), share)
	s.Route = Jumping
	return s
}

// Hot is one tenant, with the four limits of the published workload.
func Hot(alg limit.Algorithm, instances int, rate float64) []Scenario {
	var out []Scenario
	for _, share := range shares {
		out = append(out, withRates(share.name, alg, instances, evenly(1, rate), share.of))
	}
	return out
}

// Many is what no machine of ours can run as processes: Lambda environments, and many tenants.
func Many(alg limit.Algorithm) []Scenario {
	var out []Scenario
	for _, fleet := range []struct {
		name      string
		instances int
		route     Route
	}{{"40 environments", 40, AnyFree}, {"400, most recent first", 400, MostRecent}, {"400, round robin", 400,
		RoundRobin}} {
		for _, s := range Hot(alg, fleet.instances, 1000) {
			s.Name = fleet.name + ", " + s.Name
			s.Route, s.Frozen = fleet.route, true
			out = append(out, s)
		}
	}
	for _, plan := range []struct {
		name  string
		units int64
	}{{"never binds", 100_000}, {"1,000 units each", 1000}} {
		s := Scenario{Name: "10,000 tenants, " + plan.name, Algorithm: alg, Instances: 10, Rates: zipf(10_000, 20_000)}
		for range s.Rates {
			s.Limits = append(s.Limits, plan.units)
		}
		out = append(out, s)
	}
	return out
}
