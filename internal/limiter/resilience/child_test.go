package resilience_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
)

// childEnv is the environment variable that makes the test binary an instance of the limiter, which reads commands from
// its standard input. Its value is a spec.
const childEnv = "SLUICE_TEST_CHILD"

// A pool that has lost its server tries to reach it once a second, until it succeeds or notices that it was closed,
// which may be a second after Close.
var noLeak = goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := live(text, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, noLeak)
}

// spec is the configuration of an instance.
type spec struct {
	Addr       string
	Deadline   time.Duration // of a call
	Goroutines int
	Pause      time.Duration // of each goroutine between two decisions
	Cooldown   time.Duration // of the breaker; the longest is twice that
	Instances  int           // the largest number of instances
}

// The tenants, each with limits of its own. The units of a year do not become free while a test runs.
const (
	year    = "year"
	single  = "single" // never leased
	after   = "after"
	second  = "second"
	bucket  = "bucket"
	pair    = "pair"
	address = "address"
	open    = "open"
	closed  = "closed"
	turning = "turning"

	yearUnits   = 8000
	afterUnits  = 600
	secondUnits = 60
	turns       = 2 * time.Second
	turnUnits   = 2000
)

var backstopped = []string{year, single, second, bucket, pair, address}

// requests returns the request of each tenant.
func requests() (map[string]*limit.Request, error) {
	window := func(units int64, period time.Duration) limit.Tier {
		return limit.Tier{Algorithm: limit.FixedWindow, Threshold: units, Period: period}
	}
	calendar := &limit.Calendar{Every: limit.Year, Location: time.UTC, AnchorDay: 1, AnchorMonth: 1}
	of := make(map[string]*limit.Request)
	for name, limits := range map[string][]limit.Limit{
		year:   {{ID: "year", Tiers: []limit.Tier{window(yearUnits, limit.MaxPeriod)}}},
		single: {{ID: "single", Exact: true, Tiers: []limit.Tier{window(yearUnits, limit.MaxPeriod)}}},
		after:  {{ID: "after", Tiers: []limit.Tier{window(afterUnits, limit.MaxPeriod)}}},
		second: {{ID: "second", Tiers: []limit.Tier{window(secondUnits, time.Second)}}},
		bucket: {{ID: "bucket", Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: secondUnits,
			Period: time.Second}}}},
		address: {{ID: "address", Tiers: []limit.Tier{window(secondUnits, time.Second)}}},
		open:    {{ID: "open", OnStoreFailure: limit.Open, Tiers: []limit.Tier{window(1<<30, limit.MaxPeriod)}}},
		closed: {{ID: "closed", OnStoreFailure: limit.Closed, Exact: true,
			Tiers: []limit.Tier{window(1<<30, limit.MaxPeriod)}}},
		turning: {{ID: "turning", Tiers: []limit.Tier{window(turnUnits, turns)}}},
		pair: {
			{ID: "rate", Tiers: []limit.Tier{window(secondUnits, time.Second)}},
			{ID: "quota", Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 1 << 20, Calendar: calendar}}},
		},
	} {
		req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: name}}
		if name == address {
			req.Owner = limit.Owner{Kind: limit.Address, Name: "0123456789abcdef0123456789abcdef"}
		}
		for _, l := range limits {
			made, err := limit.New(l)
			if err != nil {
				return nil, err
			}
			req.Charges = append(req.Charges, limit.Charge{Limit: made, Cost: 1})
		}
		of[name] = req
	}
	return of, nil
}

// admitted counts admitted requests.
type admitted struct {
	Store   int64 // by the store, or from leases
	Without int64 // by the fallback limiter, marked as degraded
}

// report holds what an instance has done since its start.
type report struct {
	Spent map[string]map[int64]admitted // by tenant and second of the decision's time
	// by owner: the units of the first tier that the store granted, less those given back
	Granted   map[string]int64
	Decisions int64
	Closed    int64         // of these, ErrClosed for a closed limit
	Wrong     []string      // violations of a guarantee; only the first is kept
	Longest   time.Duration // of a decision

	Asked, Failed int64 // calls that reached the store, and those that failed
	ProbesAtOnce  int64 // the largest number of concurrent calls that began while the breaker was probing
	Probed        int64 // calls that began while the breaker was probing
	Fewest        int   // the smallest instance count

	Breaker  breaker.Stats
	Fallback resilience.FallbackStats
	Lease    lease.Stats
}

// sum returns the sum over all requests of a tenant.
func (r *report) sum(tenant string) (all admitted) {
	for _, a := range r.Spent[tenant] {
		all.Store += a.Store
		all.Without += a.Without
	}
	return all
}

// watched is the store of an instance. It counts the calls.
type watched struct {
	limit.Store
	first   map[string]*limit.Tier // by owner: the tier whose units are counted
	breaker atomic.Pointer[breaker.Breaker]

	asked, failed, probed, probing, atOnce atomic.Int64

	mu      sync.Mutex
	granted map[string]int64
}

// count makes a call of the store, and counts it.
func (w *watched) count(call func() error) error {
	w.asked.Add(1)
	if b := w.breaker.Load(); b != nil && b.State() == breaker.Probing {
		w.probed.Add(1)
		n := w.probing.Add(1)
		defer w.probing.Add(-1)
		for most := w.atOnce.Load(); n > most && !w.atOnce.CompareAndSwap(most, n); most = w.atOnce.Load() {
		}
	}
	err := call()
	if err != nil {
		w.failed.Add(1)
	}
	return err
}

func (w *watched) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return w.count(func() error { return w.Store.Peek(ctx, req, now, d) })
}

func (w *watched) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := w.count(func() error { return w.Store.Decide(ctx, req, now, d) })
	var lost *limit.LostReply
	switch {
	case err == nil:
		w.grant(req, d)
	case errors.As(err, &lost) && lost.Find != nil: // what is found to be granted is given back
		find := lost.Find
		lost.Find = func(ctx context.Context, d *limit.Decision) (bool, error) {
			charged, err := find(ctx, d)
			if charged {
				w.grant(lost.Request, d)
			}
			return charged, err
		}
	}
	return err
}

// grant counts what a decision grants.
func (w *watched) grant(req *limit.Request, d *limit.Decision) {
	for i := range d.Results {
		if d.Results[i].Tier != w.first[req.Owner.Name] || !d.Charges(i) {
			continue
		}
		units := d.Results[i].Charged + d.Lease(i).Units
		if len(req.Leases) > 0 {
			units += min(req.Leases[i].Correction, 0)
		}
		w.mu.Lock()
		w.granted[req.Owner.Name] += units
		w.mu.Unlock()
	}
}

// instance is one process of the limiter.
type instance struct {
	spec     spec
	requests map[string]*limit.Request
	store    *watched
	chain    *resilience.Chain

	halt    chan struct{}
	loading sync.WaitGroup

	mu  sync.Mutex
	did report
}

// live is the main function of an instance. It carries out the commands of in, and answers each line with a report:
// "load tenants", "halt", "spend tenant", "once tenant", "report", "close".
func live(text string, in io.Reader, out io.Writer) error {
	i := &instance{did: report{Spent: make(map[string]map[int64]admitted)}}
	err := json.Unmarshal([]byte(text), &i.spec)
	if err != nil {
		return err
	}
	if i.requests, err = requests(); err != nil {
		return err
	}
	store, err := redis.New(context.Background(), redis.Config{Addrs: []string{i.spec.Addr}, Deadline: i.spec.Deadline})
	if err != nil {
		return err
	}
	i.store = &watched{Store: store, granted: make(map[string]int64), first: make(map[string]*limit.Tier)}
	for _, req := range i.requests {
		i.store.first[req.Owner.Name] = &req.Charges[0].Limit.Tiers[0]
	}
	i.chain, err = resilience.NewChain(resilience.ChainConfig{
		Rates: resilience.NamedStore{Name: "redis", Store: i.store}, MaxInstances: i.spec.Instances, Log: quiet,
		Breaker:  breaker.Config{Cooldown: i.spec.Cooldown, MaxCooldown: 2 * i.spec.Cooldown},
		Fallback: resilience.FallbackConfig{PerSecond: 10_000},
	})
	if err != nil {
		return err
	}
	i.store.breaker.Store(i.chain.Breakers[0])
	answers := json.NewEncoder(out)
	if err := answers.Encode(i.report()); err != nil { // the first report says that the instance runs
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		word, args, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "load":
			i.load(strings.Split(args, ","))
		case "halt":
			i.stop()
		case "spend":
			i.spend(args)
		case "once":
			i.decide(args)
		case "report":
		case "close":
			i.stop()
			i.close(store)
		default:
			return fmt.Errorf("%q is no command", word)
		}
		if err := answers.Encode(i.report()); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (i *instance) load(tenants []string) {
	halt := make(chan struct{})
	i.halt = halt
	for g := range i.spec.Goroutines {
		i.loading.Go(func() {
			tick := time.NewTicker(i.spec.Pause)
			defer tick.Stop()
			for n := g; ; n++ {
				select {
				case <-halt:
					return
				case <-tick.C:
					i.decide(tenants[n%len(tenants)])
				}
			}
		})
	}
}

func (i *instance) stop() {
	if i.halt != nil {
		close(i.halt)
		i.halt = nil
	}
	i.loading.Wait()
}

// spend makes requests until each goroutine was denied once.
func (i *instance) spend(tenant string) {
	var all sync.WaitGroup
	for range i.spec.Goroutines {
		all.Go(func() {
			for i.decide(tenant) {
			}
		})
	}
	all.Wait()
}

// decide decides once, and reports whether the request was admitted.
func (i *instance) decide(tenant string) bool {
	req := i.requests[tenant]
	var d limit.Decision
	began := time.Now()
	err := i.chain.Decide(context.Background(), req, began, &d)
	took := time.Since(began)
	instances := i.chain.Instances.Count()

	i.mu.Lock()
	defer i.mu.Unlock()
	i.did.Decisions++
	i.did.Longest = max(i.did.Longest, took)
	if i.did.Fewest == 0 || instances < i.did.Fewest {
		i.did.Fewest = instances
	}
	switch {
	case errors.Is(err, resilience.ErrFailClosed) && tenant == closed:
		i.did.Closed++
		return false
	case err != nil:
		i.wrong("%s: %v", tenant, err)
		return false
	case len(d.Results) == 0:
		i.wrong("%s: no results", tenant)
	case d.Degraded && tenant == closed:
		i.wrong("a closed limit is decided without the store")
	case !d.Allowed && (tenant == open || d.Never || d.RetryAfter() <= 0):
		i.wrong("%s: denied, never %v, wait %s", tenant, d.Never, d.RetryAfter())
	}
	if !d.Allowed {
		return false
	}
	if i.did.Spent[tenant] == nil {
		i.did.Spent[tenant] = make(map[int64]admitted)
	}
	at := d.Now / 1_000_000
	a := i.did.Spent[tenant][at]
	if d.Degraded {
		a.Without++
	} else {
		a.Store++
	}
	i.did.Spent[tenant][at] = a
	return true
}

// wrong records a violation of a guarantee. The caller holds the lock.
func (i *instance) wrong(format string, args ...any) {
	if len(i.did.Wrong) < 5 {
		i.did.Wrong = append(i.did.Wrong, fmt.Sprintf(format, args...))
	}
}

func (i *instance) close(store *redis.Store) {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	err := errors.Join(i.chain.Close(ctx), store.Close(), goleak.Find(noLeak))
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil {
		i.wrong("close: %v", err)
	}
}

func (i *instance) report() report {
	i.mu.Lock()
	defer i.mu.Unlock()
	r := i.did
	r.Breaker, r.Fallback, r.Lease = i.chain.Breakers[0].Stats(), i.chain.Stats(), i.chain.Leases.Stats()
	r.Asked, r.Failed = i.store.asked.Load(), i.store.failed.Load()
	r.Probed, r.ProbesAtOnce = i.store.probed.Load(), i.store.atOnce.Load()
	r.Spent = make(map[string]map[int64]admitted, len(i.did.Spent))
	for tenant, by := range i.did.Spent {
		r.Spent[tenant] = make(map[int64]admitted, len(by))
		for at, a := range by {
			r.Spent[tenant][at] = a
		}
	}
	i.store.mu.Lock()
	defer i.store.mu.Unlock()
	r.Granted = make(map[string]int64, len(i.store.granted))
	for name, units := range i.store.granted {
		r.Granted[name] = units
	}
	return r
}
