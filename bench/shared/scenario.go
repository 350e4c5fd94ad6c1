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

// Period is the period of every limit in this package.
const Period = 10 * time.Second

// Scenario describes a workload: how many requests each tenant sends, to which instances, and its limit.
type Scenario struct {
	Name      string
	Algorithm limit.Algorithm
	Instances int
	Rates     []float64 // requests per second of each tenant
	Limits    []int64   // limit of each tenant, in units per Period; for a token bucket, also its burst
	Route     Route
	Frozen    bool // instances run only during requests, as Lambda environments do
}

// Route says which instance gets a request.
type Route uint8

// The routes.
const (
	Evenly        Route = iota // any instance
	Favourite                  // 80 % of a tenant's requests go to one instance, the next one for each further tenant
	Jumping                    // as Favourite, and every 7 s the tenant's instance is the next one
	MostRecent                 // the free instance that answered last
	RoundRobin                 // the instance that has been free for the longest time
	AnyFree                    // any free instance
	favourite     = 0.8        // the part of a tenant's requests that go to its instance
	jumpEvery     = 7 * time.Second
	answersWithin = 40 * time.Millisecond // how long an instance that serves one request at a time is busy with it
)

// Demand returns how many units all tenants together ask for per second.
func (s *Scenario) Demand() float64 {
	sum := 0.0
	for _, r := range s.Rates {
		sum += r
	}
	return sum
}

// Arrival is one request.
type Arrival struct {
	At       time.Duration // time since the beginning of the run
	Tenant   int
	Instance int
}

// Arrivals returns the requests until a time, in the order of time. The requests of each tenant are a Poisson process.
// The same seed gives the same requests.
func (s *Scenario) Arrivals(seed uint64, until time.Duration) iter.Seq[Arrival] {
	return func(yield func(Arrival) bool) {
		random := rand.New(rand.NewPCG(seed, uint64(len(s.Rates))))
		// The sum of independent Poisson processes is a Poisson process. Each of its events belongs to a tenant at
		// random, in proportion to the tenants' rates.
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

// router returns a function that chooses the instance of each arrival. It must be called in the order of the arrivals,
// with a random number u in 0..1.
func (s *Scenario) router() func(a *Arrival, u float64) int {
	n := s.Instances
	apart := func(first int, u float64) int { // first with the probability favourite, or any of the others
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

// environments does what router does for instances that serve one request at a time.
func environments(n int, route Route) func(a *Arrival, u float64) int {
	type busy struct {
		until    time.Duration
		instance int
	}
	free := make([]int, n) // in the order in which they became free
	for i := range free {
		free[i] = n - 1 - i
	}
	var serving []busy // in the order in which they end, since all requests take the same time
	return func(a *Arrival, u float64) int {
		// If no instance is free, the request gets the one that is free next.
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

// requests returns the request of each tenant, which costs one unit of the tenant's only limit.
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

// never is a limit that is never reached, as a multiple of the demand.
const never = 2.5

// withRates returns a scenario in which the limit of each tenant is its demand times share.
func withRates(name string, alg limit.Algorithm, instances int, rates []float64, share float64) Scenario {
	s := Scenario{Name: name, Algorithm: alg, Instances: instances, Rates: rates}
	for _, r := range rates {
		s.Limits = append(s.Limits, max(int64(math.Round(r*Period.Seconds()*share)), 1))
	}
	return s
}

// evenly returns the same rate for each tenant.
func evenly(tenants int, each float64) []float64 {
	rates := make([]float64, tenants)
	for i := range rates {
		rates[i] = each
	}
	return rates
}

// zipf returns rates whose sum is total. The rate of the n-th tenant is 1/n of the first tenant's.
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

// shares lists the four limits of the published workload, as multiples of the demand.
var shares = [...]struct {
	name string
	of   float64
}{{"never binds", never}, {"0.75 of demand", 0.75}, {"0.95 of demand", 0.95}, {"1.05 of demand", 1.05}}

// Published returns the published workload with each of its four limits. The load is times as large as it was
// published.
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

// Uneven returns scenarios like the published workload with limits of 0.75 of the demand, whose requests are unevenly
// distributed over tenants or instances.
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

// Jump returns the published workload with limits of 0.75 of the demand, in which most requests of a tenant go to one
// instance, and every 7 s to the next one.
func Jump(alg limit.Algorithm) Scenario {
	const share = 0.75
	s := withRates("so, jumping every 7 s", alg, instances, evenly(tenants, perTenant), share)
	s.Route = Jumping
	return s
}

// Hot returns scenarios with one tenant, with each of the four limits of the published workload.
func Hot(alg limit.Algorithm, instances int, rate float64) []Scenario {
	var out []Scenario
	for _, share := range shares {
		out = append(out, withRates(share.name, alg, instances, evenly(1, rate), share.of))
	}
	return out
}

// Many returns scenarios with too many instances or tenants to be run as processes on one machine: Lambda environments,
// and many tenants.
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
