package bench

import (
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
)

// The workload of the figures shared_…: processes that share the fixed windows of some tenants through a Redis.
const (
	workloadTenants   = 25
	workloadProcesses = 3
	workloadRate      = 1000.0 // requests per second of all tenants, at random times and at random processes
	workloadPeriod    = 10 * time.Second
)

// workloadShares are the limits of the workload, as multiples of what each tenant asks for. The first one never binds.
var workloadShares = [...]float64{2.5, 0.75, 0.95, 1.05}

// workloadOrder is the first message to a process of the workload. The second message is the time of its first request.
type workloadOrder struct {
	Redis  string // address
	Limit  int64  // of each tenant, in a window
	Length time.Duration
	Seed   uint64
}

// workloadEvent is a decision.
type workloadEvent struct {
	At      int64 // µs since 1970, by the store's clock
	Took    time.Duration
	Tenant  int
	Allowed bool
}

// workloadReport is what a process answers at the end.
type workloadReport struct {
	Events []workloadEvent
	Failed string // the error of a request that was not decided
}

// workloadChild is the main function of a process of the workload. It sends each request at its time, even if earlier
// ones have not been answered.
func workloadChild(from *gob.Decoder, to *gob.Encoder) error {
	var o workloadOrder
	if err := from.Decode(&o); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store, err := redis.New(ctx, redis.Config{Addrs: []string{o.Redis}, Deadline: redisTimeout})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	l, err := limit.New(limit.Limit{ID: "shared", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow,
		Period: workloadPeriod, Threshold: o.Limit}}})
	if err != nil {
		return err
	}
	processes, err := resilience.NewInstances(resilience.InstancesConfig{Store: store, Max: workloadProcesses})
	if err != nil {
		return err
	}
	leases, err := lease.New(lease.Config{Store: store, Instances: func(*limit.Limit) int { return processes.Count() }})
	if err != nil {
		return err
	}
	go processes.Run(ctx)
	if err := errors.Join(store.Ping(ctx), to.Encode("ready")); err != nil {
		return err
	}
	var start time.Time
	if err := from.Decode(&start); err != nil {
		return err
	}
	var r workloadReport
	var mu sync.Mutex
	var all sync.WaitGroup
	random, at := rand.New(rand.NewPCG(o.Seed, 0)), 0.0
	for {
		at += random.ExpFloat64() / (workloadRate / workloadProcesses)
		due, tenant := time.Duration(at*float64(time.Second)), random.IntN(workloadTenants)
		if due >= o.Length {
			break
		}
		time.Sleep(time.Until(start.Add(due)))
		all.Go(func() {
			e, err := decideWorkload(ctx, leases, l, tenant)
			mu.Lock()
			defer mu.Unlock()
			if r.Events = append(r.Events, e); err != nil {
				r.Failed = err.Error()
			}
		})
	}
	all.Wait()
	return errors.Join(leases.Close(ctx), to.Encode(&r))
}

// decideWorkload makes a decision. Its time is the one that the decision has, bounded by the times before and after the
// call: Redis runs on the same machine and has the same clock.
func decideWorkload(ctx context.Context, store limit.Store, l *limit.Limit, tenant int) (workloadEvent, error) {
	var d limit.Decision
	req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "tenant-" + strconv.Itoa(tenant)},
		Charges: []limit.Charge{{Limit: l, Cost: 1}}}
	before := time.Now()
	err := store.Decide(ctx, req, before, &d)
	took := time.Since(before)
	at := min(max(d.Now, before.UnixMicro()), before.Add(took).UnixMicro())
	return workloadEvent{At: at, Took: took, Tenant: tenant, Allowed: d.Allowed}, err
}

// workloadScore is the result of a run with one of the limits.
type workloadScore struct {
	Requests, Admitted, Over int64
	EarlyPct, ShortPct       float64
	P95ms, OpsPerS           float64
}

// judgeWorkload returns the score of the events in a span of whole windows, in µs since 1970; Over counts from the
// first request on. It sorts the events. A denial is early if the window had units left then. Short is what was left of
// the limit at the end of windows in which more was asked for.
func judgeWorkload(events []workloadEvent, most, from, until int64) (s workloadScore) {
	slices.SortFunc(events, func(a, b workloadEvent) int {
		if a.At == b.At && a.Allowed != b.Allowed { // the admissions that caused a denial come before it
			if a.Allowed {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.At, b.At)
	})
	type window struct {
		tenant int
		number int64
	}
	asked, admitted := map[window]int64{}, map[window]int64{}
	var early, possible, missing int64
	var took []time.Duration
	for _, e := range events {
		w, inside := window{e.Tenant, e.At / workloadPeriod.Microseconds()}, e.At >= from && e.At < until
		if inside {
			s.Requests++
			asked[w]++
			took = append(took, e.Took)
		}
		switch {
		case e.Allowed:
			if admitted[w]++; admitted[w] > most {
				s.Over++
			}
			if inside {
				s.Admitted++
			}
		case inside && admitted[w] < most:
			early++
		}
	}
	for w, n := range asked {
		if n > most {
			possible += most
			missing += most - admitted[w]
		}
	}
	if s.Requests > 0 {
		slices.Sort(took)
		s.P95ms = took[len(took)*95/100].Seconds() * 1e3
		s.EarlyPct = 100 * float64(early) / float64(s.Requests)
	}
	if possible > 0 {
		s.ShortPct = 100 * float64(missing) / float64(possible)
	}
	return s
}

// runWorkload runs the workload with one of its limits, on a new Redis, for warm windows and then for those that are
// measured.
func runWorkload(share float64, warm, measured int) (s workloadScore, err error) {
	server, end, err := launchRedis()
	if err != nil {
		return s, err
	}
	defer end()
	client := redisClient(server.Addr)
	defer func() { _ = client.Close() }()
	length := func(windows int) time.Duration { return time.Duration(windows) * workloadPeriod }
	o := workloadOrder{Redis: server.Addr, Limit: int64(share * workloadRate / workloadTenants * length(1).Seconds()),
		Length: length(warm + measured)}
	var processes []*child
	for o.Seed = range uint64(workloadProcesses) {
		p, err := startChild("workload", &o)
		if err != nil {
			return s, err
		}
		defer p.close()
		processes = append(processes, p)
	}
	for _, p := range processes {
		var ready string
		if err := p.from.Decode(&ready); err != nil {
			return s, fmt.Errorf("a process of the workload does not start: %w", err)
		}
	}
	begin := time.Now().Add(time.Second).Truncate(workloadPeriod).Add(workloadPeriod)
	for _, p := range processes {
		if err := p.to.Encode(begin); err != nil {
			return s, err
		}
	}
	from, until := begin.Add(length(warm)), begin.Add(o.Length)
	var calls [2]float64
	for i, at := range [2]time.Time{from, until} {
		time.Sleep(time.Until(at))
		if calls[i], err = redisCommands(client, func(name string) bool { // each call of the store runs a script
			return strings.HasPrefix(name, "eval") || strings.HasPrefix(name, "fcall")
		}); err != nil {
			return s, err
		}
	}
	var events []workloadEvent
	for _, p := range processes {
		var r workloadReport
		if err := p.from.Decode(&r); err != nil {
			return s, fmt.Errorf("the report of a process: %w", err)
		}
		if r.Failed != "" {
			return s, fmt.Errorf("a request was not decided: %s", r.Failed)
		}
		events = append(events, r.Events...)
	}
	s = judgeWorkload(events, o.Limit, from.UnixMicro(), until.UnixMicro())
	s.OpsPerS = (calls[1] - calls[0]) / until.Sub(from).Seconds()
	// The number of requests has a Poisson distribution, whose variance is its mean. Six standard deviations are
	// allowed.
	want := workloadRate * until.Sub(from).Seconds()
	if off := float64(s.Requests) - want; off*off > 36*want {
		return s, fmt.Errorf("%d requests were made, want about %.0f", s.Requests, want)
	}
	return s, nil
}

// workload runs the workload with each of its limits, all at the same time, once for all figures.
var workload = measuredOnce(func(short bool) (scores [len(workloadShares)]workloadScore, err error) {
	warm, measured := 1, 3
	if short {
		warm, measured = 0, 1
	}
	var errs [len(workloadShares)]error
	var all sync.WaitGroup
	for i, share := range workloadShares {
		all.Go(func() { scores[i], errs[i] = runWorkload(share, warm, measured) })
	}
	all.Wait()
	return scores, errors.Join(errs[:]...)
})

// workloadFigure returns a measurement of the workload. Its value is the largest with the limits from first on, up to
// last.
func workloadFigure(first, last int, of func(*workloadScore) float64) func(short bool) (Result, error) {
	return func(short bool) (r Result, err error) {
		scores, err := workload(short)
		if err != nil {
			return r, err
		}
		for i := first; i <= last; i++ {
			s := &scores[i]
			r.Value = max(r.Value, of(s))
			r.note("limit of %g of the demand: %.4g; %d requests, %d admitted", workloadShares[i], of(s), s.Requests,
				s.Admitted)
		}
		return r, nil
	}
}

func storeOps(s *workloadScore) float64 { return s.OpsPerS }
func over(s *workloadScore) float64     { return float64(s.Over) }
func earlyPct(s *workloadScore) float64 { return s.EarlyPct }
func shortPct(s *workloadScore) float64 { return s.ShortPct }
func p95(s *workloadScore) float64      { return s.P95ms }
