package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	goredis "github.com/redis/go-redis/v9"
	"google.golang.org/grpc"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
)

// The load of the figures on the rate limit service. The limit of the key wide is never reached; those of the keys
// second and year are soon reached.
const (
	rlsConnections = 32
	rlsValues      = 1000 // values of the key wide
	rlsFile        = "domain: d\ndescriptors:\n" +
		"- {key: wide, rate_limit: {unit: year, requests_per_unit: 100000000}}\n" +
		"- {key: second, rate_limit: {unit: second, requests_per_unit: 20}}\n" +
		"- {key: year, rate_limit: {unit: year, requests_per_unit: 500}}\n"

	rlsRate = 2000 // requests a second that rls_p99 offers: far below what any of the servers can do on two cores
)

// rlsRequest returns a request for the given number of units of each of n values of a key, from the value first on.
func rlsRequest(key string, first, n int, units uint32) *rlsv3.RateLimitRequest {
	req := &rlsv3.RateLimitRequest{Domain: "d", HitsAddend: units}
	for value := first; value < first+n; value++ {
		req.Descriptors = append(req.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: strconv.Itoa(value)}}})
	}
	return req
}

// askRLS sends a request, and reports whether it was admitted.
func askRLS(client rlsv3.RateLimitServiceClient, req *rlsv3.RateLimitRequest) (admitted bool, err error) {
	out, err := client.ShouldRateLimit(context.Background(), req, grpc.WaitForReady(true))
	return out.GetOverallCode() == rlsv3.RateLimitResponse_OK, err
}

// each calls do for every connection, all at once.
func (s *rlsServer) each(do func(c int, client rlsv3.RateLimitServiceClient) error) error {
	errs := make([]error, len(s.clients))
	var group sync.WaitGroup
	for c, client := range s.clients {
		group.Go(func() { errs[c] = do(c, client) })
	}
	group.Wait()
	return errors.Join(errs...)
}

var errDenied = errors.New("a request below its limit was denied")

// load sends the given number of requests on each connection, one after the other. The function request returns the
// i-th of the requests of all connections. All of them must be admitted.
func (s *rlsServer) load(requests int, request func(i int) *rlsv3.RateLimitRequest) error {
	return s.each(func(c int, client rlsv3.RateLimitServiceClient) error {
		for i := range requests {
			if admitted, err := askRLS(client, request(c*requests+i)); err != nil {
				return err
			} else if !admitted {
				return errDenied
			}
		}
		return nil
	})
}

// wideRequest returns the i-th of the requests that ask for one unit of each of rlsValues values in turn.
func wideRequest(i int) *rlsv3.RateLimitRequest { return rlsRequest("wide", i%rlsValues, 1, 1) }

// offer sends requests to a server at random times. All must be admitted.
func (s *rlsServer) offer(perSecond float64, length time.Duration, seed uint64) (took []float64, err error) {
	return offerLoad(perSecond, length, seed, func(random *rand.Rand) func() error {
		client, req := s.clients[random.IntN(len(s.clients))], wideRequest(random.IntN(rlsValues))
		return func() error {
			admitted, err := askRLS(client, req)
			if err == nil && !admitted {
				err = errDenied
			}
			return err
		}
	})
}

// offerLoad sends requests at random times, perSecond of them on average, for the given time. Each is sent when its
// time has come, even if earlier ones have not been answered. It returns how long after its time each was answered, in
// ms. The function next chooses a request and returns what sends it.
//
// A delay in the client would be the same for each server and hide their differences. A timer of Go can be late by a
// millisecond, so a thread that only sleeps starts all requests. And the client collects no garbage meanwhile.
func offerLoad(
	perSecond float64, length time.Duration, seed uint64, next func(*rand.Rand) func() error,
) (took []float64, err error) {
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var mu sync.Mutex
	var inFlight sync.WaitGroup
	random, began := rand.New(rand.NewPCG(seed, 0)), time.Now()
	for at := time.Duration(0); ; {
		if at += time.Duration(random.ExpFloat64() / perSecond * float64(time.Second)); at >= length {
			break
		}
		send, due := next(random), began.Add(at)
		for wait := time.Until(due); wait > 0; wait = time.Until(due) { // a signal ends a sleep early
			pause := syscall.NsecToTimespec(wait.Nanoseconds())
			_ = syscall.Nanosleep(&pause, nil)
		}
		inFlight.Go(func() {
			e := send()
			answered := time.Since(due).Seconds() * 1e3
			mu.Lock()
			defer mu.Unlock()
			if took = append(took, answered); e != nil {
				err = e
			}
		})
	}
	inFlight.Wait()
	return took, err
}

// rlsKinds are all kinds of servers, in the order in which they are measured.
var rlsKinds = []string{rlsUndecided, rlsOurs, rlsPeer, rlsPeerDefault}

// rlsNumbers holds what was measured of each kind of server: by the kind, for each number its values in all rounds.
type rlsNumbers map[string][][]float64

// ratio returns the median over the rounds of a number of one kind divided by that of another. Both are measured in
// each round, so that a machine that is busy for a while disturbs both.
func (n rlsNumbers) ratio(kind, by string, number int) float64 {
	ratios := slices.Clone(n[kind][number])
	for round, value := range n[by][number] {
		ratios[round] /= value
	}
	return median(ratios)
}

func (n rlsNumbers) median(kind string, number int) float64 {
	return median(n[kind][number])
}

func (n rlsNumbers) mean(kind string, number int) float64 {
	sum := 0.0
	for _, value := range n[kind][number] {
		sum += value
	}
	return sum / float64(len(n[kind][number]))
}

// measureRLS measures each kind of server in turn, in the given number of rounds. All of them share one Redis.
func measureRLS(
	rounds int, measure func(s *rlsServer, redis *goredis.Client, round int) ([]float64, error),
) (rlsNumbers, error) {
	store, end, err := launchRedis()
	if err != nil {
		return nil, err
	}
	defer end()
	client := redisClient(store.Addr)
	defer func() { _ = client.Close() }()
	var servers []*rlsServer
	for _, kind := range rlsKinds {
		s, err := startRLS(kind, store.Addr)
		if err != nil {
			return nil, err
		}
		defer s.close()
		if err := s.load(rlsValues*4/rlsConnections, wideRequest); err != nil { // makes connections, leases and pools
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		servers = append(servers, s)
	}
	all := rlsNumbers{}
	for round := range rounds {
		for i, s := range servers {
			kind := rlsKinds[i]
			numbers, err := measure(s, client, round)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", kind, err)
			}
			if all[kind] == nil {
				all[kind] = make([][]float64, len(numbers))
			}
			for i, n := range numbers {
				all[kind][i] = append(all[kind][i], n)
			}
		}
	}
	return all, nil
}

// The numbers of rlsCosts: the first two are about values that the server has leases of, the others about values that
// nobody has asked for before.
const (
	rlsProcessor = iota // processor time of the server for a decision, ns
	rlsCommands         // commands that Redis carries out for a decision, those of scripts included
	rlsNewProcessor
	rlsNewCommands
)

// rlsCosts measures what a decision costs each kind of server when each connection sends its next request as soon as
// the last one was answered.
var rlsCosts = measuredOnce(func(short bool) (rlsNumbers, error) {
	rounds, requests := 21, 400 // requests on each connection in each round, and as many for new values
	if short {
		rounds, requests = 1, 20
	}
	return measureRLS(rounds, func(s *rlsServer, redis *goredis.Client, round int) ([]float64, error) {
		if err := s.load(requests/4, wideRequest); err != nil { // takes leases, which have been returned meanwhile
			return nil, err
		}
		processor, commands, err := s.costs(redis, requests, wideRequest)
		if err != nil {
			return nil, err
		}
		newProcessor, newCommands, err := s.costs(redis, requests, func(i int) *rlsv3.RateLimitRequest {
			return rlsRequest("wide", (round+1)*rlsValues+i%rlsValues, 1, 1)
		})
		return []float64{processor, commands, newProcessor, newCommands}, err
	})
})

// costs returns the processor time and the commands of Redis for each decision about these requests.
func (s *rlsServer) costs(
	redis *goredis.Client, requests int, request func(i int) *rlsv3.RateLimitRequest,
) (processor, commands float64, err error) {
	var used, carriedOut [2]float64
	for i := range used {
		if i == 1 {
			if err := s.load(requests, request); err != nil {
				return 0, 0, err
			}
		}
		if used[i], err = s.ask("processor"); err != nil {
			return 0, 0, err
		}
		if carriedOut[i], err = redisCommands(redis, exceptInfo); err != nil {
			return 0, 0, err
		}
	}
	decisions := float64(requests * len(s.clients))
	return (used[1] - used[0]) / decisions, (carriedOut[1] - carriedOut[0]) / decisions, nil
}

// rlsCeilingGoal is the goal of rls_of_ceiling, which takes the place of that of rls_decisions if no server could reach
// that.
const rlsCeilingGoal = 0.8

// rlsCostFigure returns a measurement whose value is computed from rlsCosts. One of these figures has the numbers in
// its notes.
func rlsCostFigure(noted bool, value func(costs rlsNumbers) float64) func(bool) (Result, error) {
	return func(short bool) (r Result, err error) {
		costs, err := rlsCosts(short)
		if err != nil {
			return r, err
		}
		r.Value = value(costs)
		if !noted {
			r.note("measured together with rls_decisions, whose note has the numbers")
			return r, nil
		}
		for _, kind := range rlsKinds {
			r.note("%s: %.1f µs of a processor and %.2f commands of Redis for a decision; %.1f µs and %.2f for new "+
				"values",
				kind, costs.median(kind, rlsProcessor)/1e3, costs.median(kind, rlsCommands),
				costs.median(kind, rlsNewProcessor)/1e3, costs.median(kind, rlsNewCommands))
		}
		r.note("%d connections, %d values, about 13 requests of each in each round; GOMAXPROCS %d", rlsConnections,
			rlsValues, runtime.GOMAXPROCS(0))
		return r, nil
	}
}

// rlsProcessorRatio returns the processor time of a kind of server for a decision, divided by ours.
func rlsProcessorRatio(kind string) func(rlsNumbers) float64 {
	return func(costs rlsNumbers) float64 { return costs.ratio(kind, rlsOurs, rlsProcessor) }
}

// rlsRedisOps returns the number of Redis commands for one of our decisions about new values, which take the most.
func rlsRedisOps(costs rlsNumbers) float64 { return costs.median(rlsOurs, rlsNewCommands) }

// rlsP99Figure measures the 99th percentile of our response times divided by that of the tuned peer, under the same
// load.
func rlsP99Figure(short bool) (r Result, err error) {
	rounds, length := 21, time.Second
	if short {
		rounds, length = 1, 500*time.Millisecond
	}
	times, err := measureRLS(rounds, func(s *rlsServer, _ *goredis.Client, round int) ([]float64, error) {
		took, err := s.offer(rlsRate, length, uint64(round))
		if err != nil {
			return nil, err
		}
		return []float64{quantile(took, 0.5), quantile(took, 0.99), quantile(took, 0.999)}, nil
	})
	if err != nil {
		return r, err
	}
	r.Value = times.ratio(rlsOurs, rlsPeer, 1)
	for _, kind := range rlsKinds {
		least := func(number int) float64 { return slices.Min(times[kind][number]) }
		r.note("%s: p50 %.2f ms, p99 %.2f ms, p99.9 %.2f ms in the least disturbed round", kind, least(0), least(1),
			least(2))
	}
	r.note("a server that decides nothing: %.2f x the tuned peer, so no server can do better here",
		times.ratio(rlsUndecided, rlsPeer, 1))
	r.note("%d requests a second at random times on %d connections, each measured from its time on, not from when it "+
		"could be sent; the median of %d rounds of %s", rlsRate, rlsConnections, rounds, length)
	return r, nil
}

// rlsJudge counts the units that were certainly admitted within one window. It counts a request only if it was sent and
// answered in the same window, so it never counts one that the server counted in the next window.
type rlsJudge struct {
	mu               sync.Mutex
	units            map[rlsWindow]int64
	admitted, denied int // requests
}

type rlsWindow struct {
	key          string
	value, index int
}

// rlsBinding are the limits of rlsFile that are reached. There are so few values that each server gets requests for
// all of them.
var rlsBinding = []struct {
	key            string
	window         time.Duration
	limit          int64
	values, weight int // weight is the percentage of the requests
}{{"second", time.Second, 20, 10, 70}, {"year", 365 * 24 * time.Hour, 500, 5, 30}}

// flood sends requests for 1 to 3 units of the limits of rlsBinding until the given time, on each connection one after
// the other. It returns an error if the server ends.
func (s *rlsServer) flood(until time.Time, seed uint64, j *rlsJudge) error {
	return s.each(func(c int, client rlsv3.RateLimitServiceClient) error {
		random := rand.New(rand.NewPCG(seed, uint64(c)))
		for time.Now().Before(until) {
			of := &rlsBinding[0]
			if random.IntN(100) >= of.weight {
				of = &rlsBinding[1]
			}
			value, units, sent := random.IntN(of.values), 1+random.IntN(3), time.Now()
			ctx, cancel := context.WithDeadline(context.Background(), until.Add(10*time.Second))
			out, err := client.ShouldRateLimit(ctx, rlsRequest(of.key, value, 1, uint32(units)))
			cancel()
			if err != nil {
				return err
			}
			window := rlsWindow{of.key, value, int(sent.UnixNano() / of.window.Nanoseconds())}
			same := window.index == int(time.Now().UnixNano()/of.window.Nanoseconds())
			j.mu.Lock()
			if out.GetOverallCode() != rlsv3.RateLimitResponse_OK {
				j.denied++
			} else if j.admitted++; same {
				j.units[window] += int64(units)
			}
			j.mu.Unlock()
		}
		return nil
	})
}

// rlsProcesses is how many servers of one kind share the limits of the figure rls_over.
const rlsProcesses = 3

// floodAll floods servers of one kind that share a Redis. After half of the time, one of them is killed and another one
// takes its place.
func floodAll(kind string, length time.Duration) (*rlsJudge, error) {
	store, end, err := launchRedis()
	if err != nil {
		return nil, err
	}
	defer end()
	j, until := &rlsJudge{units: map[rlsWindow]int64{}}, time.Now().Add(length)
	errs := make([]error, rlsProcesses+1)
	var group sync.WaitGroup
	start := func(i int) (*rlsServer, error) {
		s, err := startRLS(kind, store.Addr)
		if err == nil {
			group.Go(func() { errs[i] = s.flood(until, uint64(i), j) })
		}
		return s, err
	}
	var servers []*rlsServer
	defer func() {
		group.Wait()
		for _, s := range servers {
			s.close()
		}
	}()
	for i := range rlsProcesses + 1 {
		if i == rlsProcesses {
			time.Sleep(time.Until(until) / 2)
			if err := servers[0].cmd.Process.Kill(); err != nil {
				return nil, err
			}
		}
		s, err := start(i)
		if err != nil {
			return nil, err
		}
		servers = append(servers, s)
	}
	group.Wait()
	return j, errors.Join(errs[1:]...) // the first one was killed
}

// rlsOverFigure counts the units that our servers admit above limits that they share.
func rlsOverFigure(short bool) (r Result, err error) {
	length := 10 * time.Second
	if short {
		length = 2 * time.Second
	}
	for _, kind := range []string{rlsOurs, rlsPeer, rlsPeerDefault} {
		j, err := floodAll(kind, length)
		if err != nil {
			return r, fmt.Errorf("%s: %w", kind, err)
		}
		over, yearly := int64(0), int64(0)
		for window, units := range j.units {
			for _, of := range rlsBinding {
				if of.key == window.key {
					over += max(0, units-of.limit)
				}
			}
			if window.key == "year" {
				yearly += units
			}
		}
		if j.denied == 0 || j.admitted == 0 {
			return r, fmt.Errorf("%s: %d requests were admitted and %d denied", kind, j.admitted, j.denied)
		}
		if kind == rlsOurs {
			r.Value = float64(over)
		}
		year := rlsBinding[1]
		r.note("%s: %d units over in %d windows; %d requests admitted, %d denied; of the yearly limits %.1f %% "+
			"admitted", kind, over, len(j.units), j.admitted, j.denied,
			100*float64(yearly)/float64(year.limit*int64(year.values)))
	}
	r.note("%d processes on one Redis, flooded for %s on %d connections each; one is killed in the middle and "+
		"replaced. A request counts for a window if it was sent and answered in it", rlsProcesses, length,
		rlsConnections)
	return r, nil
}

// newValuesPerRequest is how many values each request of rls_5m_descriptors has: as many as our server charges at the
// same time.
const newValuesPerRequest = 64

// rlsNewValues and rlsManyValues measure what values cost that nobody has asked for before: one in each request, and
// many.
var (
	rlsNewValues = measuredOnce(func(short bool) (rlsNumbers, error) {
		if short {
			return measureNewValues(1, 20, 1)
		}
		return measureNewValues(21, 400, 1)
	})
	rlsManyValues = measuredOnce(func(short bool) (rlsNumbers, error) {
		if short {
			return measureNewValues(1, 16, newValuesPerRequest)
		}
		return measureNewValues(10, 5_000_000/10/newValuesPerRequest/rlsConnections+1, newValuesPerRequest)
	})
)

// The numbers of measureNewValues, for each new value.
const (
	newRedisTime  = iota // processor time of Redis, ns
	newProcessor         // processor time of the server, ns
	newCommands          // commands that Redis carries out, those of scripts included
	newRedisBytes        // by how much Redis's used_memory grows
	newHeapBytes         // by how much the server's heap grows
)

// measureNewValues measures our server and the tuned peer, each with a Redis of its own, in the given number of rounds.
// In each round each connection sends so many requests, each for perRequest values that nobody has asked for before.
func measureNewValues(rounds, requests, perRequest int) (rlsNumbers, error) {
	all := rlsNumbers{}
	var sides []*rlsSide
	for _, kind := range []string{rlsOurs, rlsPeer} {
		side, err := startSide(kind)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		defer side.end()
		sides = append(sides, side)
		all[kind] = make([][]float64, newHeapBytes+1)
	}
	for round := range rounds {
		for _, side := range sides {
			var readings [2][]float64
			var err error
			for i := range readings {
				if i == 1 {
					err = side.load(requests, func(i int) *rlsv3.RateLimitRequest {
						first := rlsValues + (round*requests*rlsConnections+i)*perRequest
						return rlsRequest("wide", first, perRequest, 1)
					})
				}
				if err == nil {
					readings[i], err = side.read()
				}
				if err != nil {
					return nil, fmt.Errorf("%s: %w", side.kind, err)
				}
			}
			for i := range readings[0] {
				used := (readings[1][i] - readings[0][i]) / float64(requests*rlsConnections*perRequest)
				all[side.kind][i] = append(all[side.kind][i], used)
			}
		}
	}
	return all, nil
}

// rlsSide is a server with a Redis of its own.
type rlsSide struct {
	*rlsServer
	kind  string
	redis *goredis.Client
	end   func()
}

func startSide(kind string) (*rlsSide, error) {
	store, end, err := launchRedis()
	if err != nil {
		return nil, err
	}
	s, err := startRLS(kind, store.Addr)
	if err != nil {
		end()
		return nil, err
	}
	client := redisClient(store.Addr)
	side := &rlsSide{s, kind, client, func() {
		s.close()
		_ = client.Close() // nothing is under way
		end()
	}}
	if err := s.load(1, wideRequest); err != nil { // makes the connections before the first reading
		side.end()
		return nil, err
	}
	return side, nil
}

// read returns the readings of which the differences are the numbers of measureNewValues.
func (s *rlsSide) read() (readings []float64, err error) {
	heap, err := s.ask("heap") // the garbage collection that it needs belongs to the round before
	if err != nil {
		return nil, err
	}
	processor, err := s.ask("processor")
	if err != nil {
		return nil, err
	}
	commands, err := redisCommands(s.redis, exceptInfo)
	if err != nil {
		return nil, err
	}
	seconds, err := redisInfo(s.redis, "cpu", "used_cpu_user", "used_cpu_sys")
	if err != nil {
		return nil, err
	}
	bytes, err := redisInfo(s.redis, "memory", "used_memory")
	return []float64{seconds * 1e9, processor, commands, bytes, heap}, err
}

// rlsNewValuesFigure measures the processor time of Redis for a new value of ours, divided by that of the tuned peer.
func rlsNewValuesFigure(measure func(short bool) (rlsNumbers, error), perRequest int) func(bool) (Result, error) {
	return func(short bool) (r Result, err error) {
		numbers, err := measure(short)
		if err != nil {
			return r, err
		}
		r.Value = numbers.ratio(rlsOurs, rlsPeer, newRedisTime)
		for _, kind := range []string{rlsOurs, rlsPeer} {
			r.note("%s: for each value %.1f µs of Redis, %.2f commands, %.1f µs of the server; %.0f bytes of "+
				"Redis's used_memory and %.0f of the server's heap", kind, numbers.median(kind, newRedisTime)/1e3,
				numbers.median(kind, newCommands), numbers.median(kind, newProcessor)/1e3,
				numbers.mean(kind, newRedisBytes), numbers.mean(kind, newHeapBytes))
		}
		rounds := len(numbers[rlsOurs][0])
		r.note("%d rounds; %d connections, %d values in each request; each value is asked for once", rounds,
			rlsConnections, perRequest)
		return r, nil
	}
}

// rlsBytesFigure returns how many bytes each of many descriptors takes, in the server's heap and in Redis together.
func rlsBytesFigure(short bool) (r Result, err error) {
	numbers, err := rlsManyValues(short)
	if err != nil {
		return r, err
	}
	r.Value = numbers.mean(rlsOurs, newRedisBytes) + numbers.mean(rlsOurs, newHeapBytes)
	r.note("measured together with rls_5m_descriptors, whose note has the numbers; ours leases units of at most %d of "+
		"the descriptors", lease.DefaultMaxCounters)
	return r, nil
}
