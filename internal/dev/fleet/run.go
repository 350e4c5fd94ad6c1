package fleet

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// epoch is when a run begins by the clock on the wall: 2027-01-15 08:00 UTC, at the start of a window of every size.
var epoch = time.Unix(1_800_000_000, 0)

// Options say what is run.
type Options struct {
	Scenario *Scenario
	Seed     uint64
	Costs    Costs

	// Config has the plans and tenants; if nil, the scenario makes some. Requests are GET Path.
	Config *plan.Config
	Path   string

	// MaxCounters bounds the counters that all processes hold together; 0 selects DefaultMaxCounters. Each process gets
	// an equal part. A request whose counters have no room asks the store.
	MaxCounters int

	// Progress, if it is not nil, is called every tenth of a simulated second with what is done, 0..1.
	Progress func(done float64)
}

// DefaultMaxCounters takes about 2.5 GB at some 600 bytes each, with their owners.
const DefaultMaxCounters = 4_000_000

// totalFallbackBytes bounds what the fallback limiters of all processes hold together.
const totalFallbackBytes = 1 << 30

// tenant is one tenant, and what was counted of it.
type tenant struct {
	req        limit.Request // always the same
	judges     []judge.Judge // of each tier of the request, in order; nil: not judged
	limits     []int32       // of each tier, the index in run.limits
	ops        int64         // calls of the store about its counters
	arrived    int64         // the same from the beginning of the run on
	degradedIn int64         // the last window in which the fallback limiter admitted a request
	decided    bool          // false: it is not in the sample, and only occupies environments
}

// run is one simulation.
type run struct {
	scenario *Scenario
	seed     uint64
	costs    Costs
	random   *rand.Rand
	ctx      context.Context

	now           int64 // ns since the beginning
	end           int64 // ns; no request comes after it
	draining      bool  // the end is over: what waits is answered, and nothing new begins
	partial       bool  // the run was interrupted
	queue         queue
	current       *worker
	resume        *worker // who goes on when the present worker hands over; nil: any idle worker
	idle, workers []*worker
	failed        error

	tenants       []tenant
	byName        map[string]*tenant
	limits        []*limitCount
	shards        []*shard
	processes     []*process // by number; nil: it is dead
	live          []*process
	unsampled     float64 // requests of all tenants for each of the tenants that are decided
	maxCounters   int     // of each process
	fallbackBytes int64
	traffic       traffic
	environments
	total, degradedUnits, forgotten int64

	measuring bool
	counts    counts
	ended     chainCounts // of processes that are dead
}

// Run simulates. If ctx ends, the report is about the time until then, and says so. The error names what is wrong with
// the scenario or the plans.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Scenario.check(); err != nil {
		return nil, fmt.Errorf("scenario %s: %w", o.Scenario.Name, err)
	}
	r := &run{scenario: o.Scenario, seed: o.Seed, costs: o.Costs.withDefaults(), ctx: ctx,
		random: rand.New(rand.NewPCG(o.Seed, 0)), byName: make(map[string]*tenant)}
	r.end = (o.Scenario.WarmUp + o.Scenario.Measured).Nanoseconds()
	maxCounters := o.MaxCounters
	if maxCounters == 0 {
		maxCounters = DefaultMaxCounters
	}
	most := o.Scenario.mostProcesses()
	r.maxCounters = max(maxCounters/most, 1)
	r.fallbackBytes = min(max(int64(totalFallbackBytes/most), 32<<10), 16<<20)
	if err := r.prepare(&o); err != nil {
		return nil, err
	}
	r.runAll()
	if r.failed != nil {
		return nil, r.failed
	}
	return r.report(maxCounters), nil
}

// prepare makes tenants, shards, processes and the first events.
func (r *run) prepare(o *Options) error {
	s := r.scenario
	loads, err := s.loads(o)
	if err != nil {
		return err
	}
	if err := r.addTenants(loads); err != nil {
		return err
	}
	if err := r.traffic.init(s, loads, r.random); err != nil {
		return err
	}
	for range s.Shards {
		sh, err := newShard()
		if err != nil {
			return err
		}
		r.shards = append(r.shards, sh)
	}
	if s.Shape == Serve {
		for i := range s.Instances {
			if err := r.startProcess(i); err != nil {
				return err
			}
		}
	}
	for i := range s.Faults {
		r.addFault(&s.Faults[i])
	}
	r.after(s.WarmUp, r.beginMeasuring)
	r.after(countEvery, r.countSecond)
	progress := func() {}
	progress = func() {
		if r.draining {
			return
		}
		if r.ctx.Err() != nil {
			r.partial, r.end = true, r.now
			return
		}
		if o.Progress != nil {
			o.Progress(float64(r.now) / float64(r.end))
		}
		r.after(countEvery/10, progress)
	}
	r.after(0, progress)
	return nil
}

const countEvery = time.Second

// load is one tenant's demand and limits.
type load struct {
	name    string
	rate    float64 // requests per second
	charges []limit.Charge
	decided bool
}

// addTenants makes the tenants, and a judge for each of their counters.
func (r *run) addTenants(loads []load) error {
	r.tenants = make([]tenant, len(loads))
	counted := map[string]int32{}
	all, decided := 0.0, 0.0
	for i := range loads {
		if all += loads[i].rate; loads[i].decided {
			decided += loads[i].rate
		}
	}
	if decided == 0 {
		return fmt.Errorf("no tenant is in a sample of every %d tenants", r.scenario.SampleEvery)
	}
	r.unsampled = all / decided
	for i := range loads {
		l, t := &loads[i], &r.tenants[i]
		t.req = limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: l.name}, Charges: l.charges}
		t.decided = l.decided && len(l.charges) > 0
		r.byName[l.name] = t
		for _, c := range l.charges {
			index, ok := counted[c.Limit.ID]
			if !ok {
				index = int32(len(r.limits))
				counted[c.Limit.ID] = index
				r.limits = append(r.limits, &limitCount{ID: c.Limit.ID})
			}
			for j := range c.Limit.Tiers {
				t.judges = append(t.judges, newJudge(c.Limit, &c.Limit.Tiers[j]))
				t.limits = append(t.limits, index)
				if t.judges[len(t.judges)-1] == nil && c.Limit.Mode == limit.Enforce {
					r.limits[index].NotJudged = true
				}
			}
		}
	}
	return nil
}

func newJudge(l *limit.Limit, t *limit.Tier) judge.Judge {
	if l.Mode != limit.Enforce || l.AlignOwner {
		return nil
	}
	return judge.New(judge.Counter{Algorithm: t.Algorithm, Most: t.Threshold, Burst: t.Capacity(), Period: t.Period})
}

// chargesOf returns what a request for the path charges by a tenant's plan.
func chargesOf(t *plan.Tenant, path *route.Path) []limit.Charge {
	set := t.Limits(epoch)
	if set == nil || t.Suspended {
		return nil
	}
	return set.AppendCharges(nil, &plan.Attributes{Method: "GET", Path: path})
}

func (r *run) timeAt(ns int64) time.Time { return epoch.Add(time.Duration(ns)) }

// after adds an action.
func (r *run) after(d time.Duration, action func()) {
	r.queue.push(event{at: r.now + d.Nanoseconds(), action: action})
}

// runAll lets one worker after the other handle events, until there are none.
func (r *run) runAll() {
	for !r.done() {
		w := r.resume
		if r.resume = nil; w == nil {
			w = r.idleWorker()
		}
		r.current = w
		w.next()
	}
	for _, w := range r.workers {
		w.stop()
	}
}

// done reports whether everything has been handled: nothing is to come, and no worker waits.
func (r *run) done() bool {
	return r.resume == nil && (r.failed != nil || r.draining && len(r.queue.events) == 0)
}

func (r *run) idleWorker() *worker {
	if n := len(r.idle); n > 0 {
		w := r.idle[n-1]
		r.idle = r.idle[:n-1]
		return w
	}
	w := new(worker)
	w.next, w.stop = iter.Pull(func(yield func(struct{}) bool) {
		w.yield = yield
		for {
			r.handleEvents(w)
			r.idle = append(r.idle, w)
			if !yield(struct{}{}) {
				return
			}
		}
	})
	r.workers = append(r.workers, w)
	return w
}

// handleEvents handles requests and events in the order of their times, until another worker is to go on or there is
// nothing left.
func (r *run) handleEvents(w *worker) {
	for r.failed == nil {
		arrival := r.traffic.next
		if !r.draining && arrival >= r.end && (len(r.queue.events) == 0 || r.queue.events[0].at >= r.end) {
			r.draining, r.now = true, r.end
		}
		if !r.draining && (len(r.queue.events) == 0 || arrival < r.queue.events[0].at) {
			r.now = arrival
			r.handleArrival(w)
			continue
		}
		if len(r.queue.events) == 0 {
			return
		}
		e := r.queue.pop()
		r.now = e.at
		switch {
		case e.call != nil:
			r.arrive(e.call)
		case e.action != nil:
			e.action()
		default:
			r.resume = e.resume
			return
		}
	}
}

// handleArrival takes the next request from the traffic, and decides it.
func (r *run) handleArrival(w *worker) {
	number := r.traffic.take(r.now)
	t := &r.tenants[number]
	var p *process
	switch {
	case r.scenario.Shape == Lambda:
		if p = r.placeOnEnvironment(); p == nil {
			r.counts.refused++
			return
		}
	case len(r.live) == 0:
		r.counts.refused++
		return
	default:
		p = r.choose(number)
	}
	if t.decided {
		r.decide(w, p, t)
	}
}

// choose returns the process that a request of a tenant comes to: any, or one of those that have affinity to it.
func (r *run) choose(tenant int) *process {
	n := uint64(len(r.live))
	u := r.traffic.fast()
	if a := uint64(r.scenario.Affinity); a > 0 && a < n {
		return r.live[(hashNumber(tenant)+(u>>32*a)>>32)%n]
	}
	return r.live[u>>32*n>>32]
}

// hashNumber spreads the tenants over the processes.
func hashNumber(n int) uint64 {
	h := uint64(n)*0x9e3779b97f4a7c15 + 0x7f4a7c15
	return (h ^ h>>32) >> 8
}

// decide makes one decision of the real chain and counts it.
func (r *run) decide(w *worker, p *process, t *tenant) {
	began := r.now
	d := &w.decision
	p.deciding = true
	err := p.chain.Decide(context.Background(), &t.req, p.time(), d)
	if r.scenario.Shape == Lambda { // what is due is done beside the request, before the environment is frozen
		p.chain.RunBackgroundTasks(context.Background(), p.time())
	}
	r.release(p)
	if p.dead {
		r.counts.lost++
		return
	}
	r.count(t, d, err, began)
}

// count judges a decision, and counts it.
func (r *run) count(t *tenant, d *limit.Decision, err error, began int64) {
	c := &r.counts
	r.total++
	if r.measuring {
		c.decisions++
		if r.now == began {
			c.local++
		} else {
			c.latency.add(r.now - began)
		}
	}
	if err != nil {
		if r.measuring {
			c.failed++
		}
		return
	}
	// The time of a decision by the store's clock, as far as it is credible: not before the request or after the
	// answer.
	from := epoch.UnixMicro()
	at := min(max(d.Now, from+began/1000), from+r.now/1000)
	if d.Degraded {
		if r.measuring {
			c.degraded++
		}
		if d.Allowed {
			r.degradedUnits += t.unitsOver(at)
		}
	}
	if !d.Allowed {
		r.countDenial(t, d, at)
		return
	}
	if r.measuring {
		c.allowed++
	}
	for i, j := range t.judges {
		if j == nil {
			continue
		}
		if over := j.Spend(at, d.Results[i].Cost); over > 0 {
			r.limits[t.limits[i]].Over += over
		}
	}
}

// unitsOver returns how many units over all tiers a decision of the fallback limiter can bring above the limits. In a
// sliding window a unit counts twice: when it was admitted, and by its weight in the next window, where the store does
// not know of it. Weights are rounded up, which can make one unit more of all the units of a window.
func (t *tenant) unitsOver(at int64) (units int64) {
	for _, c := range t.req.Charges {
		for i := range c.Limit.Tiers {
			tier := &c.Limit.Tiers[i]
			units += c.Cost
			if !judge.CountsTwice(tier.Algorithm) {
				continue
			}
			units += c.Cost
			if window := at / tier.Period.Microseconds(); t.degradedIn != window {
				t.degradedIn = window
				units++
			}
		}
	}
	return units
}

// countDenial counts a denial. It is early if by the judge there was room in every limit at that moment.
func (r *run) countDenial(t *tenant, d *limit.Decision, at int64) {
	if !r.measuring {
		return
	}
	r.counts.denied++
	fits := true
	for i, j := range t.judges {
		fits = fits && (j == nil || j.Fits(at, d.Results[i].Cost))
	}
	for i := range d.Results {
		if res := &d.Results[i]; !res.Admits && !res.Shadow() {
			l := r.limits[t.limits[i]]
			l.Denied++
			if fits {
				l.Early++
			}
			break
		}
	}
	if fits {
		r.counts.early++
	}
}

func (r *run) beginMeasuring() {
	r.measuring = true
	for _, s := range r.shards {
		s.ops, s.tenantOps, s.opsBefore, s.peak = 0, 0, 0, 0
	}
	for i := range r.tenants {
		r.tenants[i].ops = 0
	}
	r.counts = counts{}
	r.environments.starts = 0
}

// countSecond notes how many calls each shard took in the last second.
func (r *run) countSecond() {
	if r.draining {
		return
	}
	if r.measuring && r.now > r.scenario.WarmUp.Nanoseconds() {
		for _, s := range r.shards {
			s.peak = max(s.peak, s.ops-s.opsBefore)
		}
	}
	for _, s := range r.shards {
		s.opsBefore = s.ops
	}
	r.endIdle()
	r.after(countEvery, r.countSecond)
}

// hottest returns the tenants about which the store was called most.
func (r *run) hottest(n int) []HotKey {
	var keys []HotKey
	for i := range r.tenants {
		if t := &r.tenants[i]; t.ops > 0 {
			keys = append(keys, HotKey{t.req.Owner.Name, t.ops})
		}
	}
	slices.SortStableFunc(keys, func(a, b HotKey) int { return int(b.Ops - a.Ops) })
	return keys[:min(n, len(keys))]
}
