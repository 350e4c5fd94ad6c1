package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// epoch is the time of day at which a run begins: 2027-01-15 08:00 UTC, which is the start of a window for every period
// that divides 8 hours.
var epoch = time.Unix(1_800_000_000, 0)

// Options select what is simulated.
type Options struct {
	Scenario *Scenario
	Seed     uint64
	Costs    Costs

	// Config has the plans and tenants; if nil, the scenario makes some. Requests are GET Path. A scenario with several
	// cells needs the Documents of the same plans too.
	Config    *plan.Config
	Documents []plan.Document
	Path      string

	// Arrivals, unless nil, are the requests, in the order of their times, in place of those that the scenario
	// describes. A storm of retries changes nothing then.
	Arrivals []Arrival

	// Log, unless nil, says who asks when, in place of the scenario. Its tenants are those of Config, or have a plan of
	// it. If the scenario does not say how long it measures, it measures until the log ends.
	Log *Log

	// MaxCounters bounds the counters that all processes hold together; 0 selects DefaultMaxCounters. Each process gets
	// an equal part. The store decides a request whose counters have no room.
	MaxCounters int

	// FallbackBytes bounds the memory of the fallback limiters of all processes together; 0 selects 1 GiB. Each process
	// gets an equal part, of 32 KiB to 16 MiB.
	FallbackBytes int64

	// Progress, unless nil, is called every tenth of a simulated second with the part of the run that is done, 0..1.
	Progress func(done float64)
}

// Arrival is a recorded request.
type Arrival struct {
	At     time.Duration // since the beginning of the run, which is the beginning of a window
	Tenant string        // name
	Busy   time.Duration // how long it occupies an environment of Lambda; 0: as long as the scenario says
}

// DefaultMaxCounters needs about 2.5 GB: some 600 bytes for a counter and its owner.
const DefaultMaxCounters = 4_000_000

// totalParts bounds the parts of limits that the fallback limiters of all processes cache together, at some 700 bytes
// each. Processes that count different numbers of instances have different parts.
const totalParts = 200_000

const defaultFallbackBytes = 1 << 30

// tenant is one tenant, and what is counted about it.
type tenant struct {
	req        limit.Request // always the same
	hash       uint64        // hashName of its name
	leaseHash  uint64        // by which each process's lease layer finds it, see touchNext
	judges     []judge.Judge // of each tier of the request, in order; nil: not judged
	costs      []int64       // of the request in each tier, units
	limits     []int32       // of each tier, the index in run.limits
	algorithms []limit.Algorithm
	ops        int64     // calls of the store about its counters
	units      unitCount // what they wrote to the table of DynamoDB
	arrived    int64     // the same from the beginning of the run on
	decided    bool      // false: it is not in the sample, and only occupies environments

	cells []*cell // with a control plane: to which its requests come
	pin   []int   // the cells that an operator pinned it to, by number from 0; nil: every cell serves it
}

// run is one simulation.
type run struct {
	scenario *Scenario
	seed     uint64
	costs    Costs
	random   *rand.Rand
	ctx      context.Context

	now      int64 // ns since the beginning of the run
	end      int64 // when the requests end, ns since the beginning of the run
	draining bool  // the end has come: decisions under way are completed, and nothing new begins
	partial  bool  // the run was interrupted
	queue    queue
	current  *worker
	resume   *worker // the worker that continues when the present one yields; nil: any idle worker
	idle     []*worker
	workers  map[*worker]bool // all, also those that wait or are idle
	failed   error

	tenants       []tenant
	byName        map[string]*tenant
	limits        []*limitCount
	cells         []*cell
	shards        []*shard   // of all cells
	processes     []*process // by number; nil: it is dead
	live          []*process // of all cells
	plane         *plane     // nil: there is one cell, and its configuration does not change
	documents     []plan.Document
	path          route.Path // of requests
	configBytes   int64      // of each process
	touches       bool       // see touchNext
	untouched     int        // requests until touchNext is due
	touched       int64      // a sum that means nothing
	unsampled     float64    // requests of all tenants for each of the tenants that are decided
	maxCounters   int        // of each process
	fallbackBytes int64
	parts         *resilience.Parts // of all processes
	traffic       traffic
	environments
	total  int64
	bounds bounds

	measuring   bool
	counts      counts
	secondBegan int64 // when the present second began, ns; endSecond ends it
	overBefore  int64 // units above limits, before the measured time began
	timeline    timeline
	effects     effects
	ended       chainCounts // sums of the processes that are dead
}

// Run simulates a scenario. If ctx ends, the report is about the time until then, and says so. An error names what is
// wrong with the scenario or the plans.
func Run(ctx context.Context, o Options) (*Report, error) {
	scenario := *o.Scenario
	err := scenario.checkInputs(o.Config != nil, o.Log != nil)
	if err == nil {
		if o.Log != nil {
			scenario.useLog(o.Log)
		}
		err = scenario.check()
	}
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", scenario.Name, err)
	}
	o.Scenario = &scenario
	r := &run{scenario: o.Scenario, seed: o.Seed, costs: o.Costs.withDefaults(o.Scenario.Store), ctx: ctx,
		random: rand.New(rand.NewPCG(o.Seed, 0)), byName: make(map[string]*tenant), bounds: newBounds(),
		workers: make(map[*worker]bool)}
	r.end = scenario.length().Nanoseconds()
	maxCounters := o.MaxCounters
	if maxCounters == 0 {
		maxCounters = DefaultMaxCounters
	}
	most := scenario.mostProcesses()
	r.maxCounters = max(maxCounters/most, 1)
	r.fallbackBytes = min(max(cmp.Or(o.FallbackBytes, defaultFallbackBytes)/int64(most), 32<<10), 16<<20)
	r.configBytes = min(max(int64(configBytes/most), 1<<20), 64<<20)
	var out *Report
	if r.parts, err = resilience.NewParts(totalParts); err == nil {
		err = r.prepare(&o)
	}
	if err == nil {
		r.runAll()
		err = r.failed
	}
	if err == nil {
		out, err = r.report(maxCounters)
	}
	if err == nil && o.Log != nil {
		out.Log = o.Log.use(time.Duration(r.end))
	}
	if err = errors.Join(err, r.plane.close()); err != nil {
		return nil, err
	}
	return out, nil
}

// prepare makes tenants, shards, processes and the first events.
func (r *run) prepare(o *Options) error {
	s := r.scenario
	loads, err := s.loads(o)
	if err != nil {
		return err
	}
	if err := s.checkTenants(len(loads)); err != nil {
		return fmt.Errorf("scenario %s: %w", s.Name, err)
	}
	if s.Store == DynamoDB {
		if err := checkTable(loads); err != nil {
			return err
		}
	}
	if err := r.addTenants(loads); err != nil {
		return err
	}
	if err := r.traffic.init(s, loads, r.random); err != nil {
		return err
	}
	switch {
	case o.Log != nil:
		r.traffic.replayLog(o.Log.replay(o.Seed))
	case o.Arrivals != nil:
		if err := r.traffic.replay(o.Arrivals, loads); err != nil {
			return err
		}
	}
	if err := r.prepareCells(o, loads); err != nil {
		return err
	}
	r.functions = make([]function, s.Functions)
	if s.Shape == Serve {
		for _, c := range r.cells {
			if err := r.startInstances(c); err != nil {
				return err
			}
		}
		if r.plane == nil && len(loads)*s.Instances >= touchFrom {
			r.beginTouching()
		}
	}
	r.timeline.step = 1
	r.followFaults()
	for i := range s.Faults {
		r.addFault(&s.Faults[i])
	}
	r.after(s.WarmUp, r.beginMeasuring)
	r.after(countEvery, r.countSecond)
	if fail := s.failAt; fail != nil {
		r.after(countEvery, func() { fail(r) })
	}
	r.followProgress(o.Progress)
	return nil
}

// followProgress tells, every tenth of a second, how far the run is, and ends it early if its context has ended.
func (r *run) followProgress(tell func(done float64)) {
	progress := func() {}
	progress = func() {
		if r.draining {
			return
		}
		if r.ctx.Err() != nil {
			r.partial, r.end = true, r.now
			return
		}
		if tell != nil {
			tell(float64(r.now) / float64(r.end))
		}
		r.after(countEvery/10, progress)
	}
	r.after(0, progress)
}

const countEvery = time.Second

// prepareCells makes the cells, without processes, and their control plane if the scenario needs one.
func (r *run) prepareCells(o *Options, loads []load) (err error) {
	r.documents, r.path = o.Documents, route.Clean(o.Path)
	if r.scenario.hasPlane() {
		if r.plane, err = r.newPlane(loads); err != nil {
			return err
		}
	}
	for range r.scenario.Cells {
		if err := context.Cause(r.ctx); err != nil {
			return fmt.Errorf("interrupted before the run began: %w", err)
		}
		if _, err := r.addCell(); err != nil {
			return err
		}
	}
	if r.plane == nil {
		return nil
	}
	for i := range r.tenants {
		t := &r.tenants[i]
		if t.cells = r.cells; t.pin == nil {
			continue
		}
		t.cells = nil
		for _, n := range t.pin {
			t.cells = append(t.cells, r.cells[n])
		}
	}
	if err := r.plane.settle(); err != nil {
		return err
	}
	return r.plane.begin()
}

// load is one tenant's demand and limits.
type load struct {
	name    string
	rate    float64 // requests per second
	charges []limit.Charge
	decided bool

	// The tenant's document in the control tables, for a tenant of the plans file.
	document []byte
	planID   string
	own      bool // it has limits that its plan has not
}

// addTenants makes the tenants, and a judge for each of their counters.
func (r *run) addTenants(loads []load) error {
	r.tenants = make([]tenant, len(loads))
	counted := map[string]int32{}
	all, decided, tiers := 0.0, 0.0, 0
	for i := range loads {
		if all += loads[i].rate; loads[i].decided {
			decided += loads[i].rate
		}
		for _, c := range loads[i].charges {
			tiers += len(c.Limit.Tiers)
		}
	}
	// Those of all tenants lie side by side, in few cache lines.
	judges, costs, limits := make([]judge.Judge, 0, tiers), make([]int64, 0, tiers), make([]int32, 0, tiers)
	if decided == 0 {
		return fmt.Errorf("no tenant is in a sample of every %d tenants", r.scenario.SampleEvery)
	}
	r.unsampled = all / decided
	for i := range loads {
		if err := context.Cause(r.ctx); err != nil {
			return fmt.Errorf("interrupted before the run began: %w", err)
		}
		l, t := &loads[i], &r.tenants[i]
		t.req = limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: l.name}, Charges: l.charges}
		t.decided, t.hash = l.decided && len(l.charges) > 0, hashName(l.name)
		r.byName[l.name] = t
		first := len(judges)
		for _, c := range l.charges {
			index, ok := counted[c.Limit.ID]
			if !ok {
				index = int32(len(r.limits))
				counted[c.Limit.ID] = index
				r.limits = append(r.limits, &limitCount{ID: c.Limit.ID})
			}
			for j := range c.Limit.Tiers {
				judges = append(judges, newJudge(l.name, c.Limit, &c.Limit.Tiers[j]))
				costs, limits = append(costs, c.Cost), append(limits, index)
				t.algorithms = append(t.algorithms, c.Limit.Tiers[j].Algorithm)
				if judges[len(judges)-1] == nil && c.Limit.Mode == limit.Enforce {
					r.limits[index].NotJudged = true
				}
			}
		}
		t.judges, t.costs, t.limits = judges[first:], costs[first:], limits[first:]
	}
	return nil
}

// newJudge returns the judge of an owner's tier, or nil if the algorithm has none. The judge takes only one value from
// the limiter: the offset at which the windows of an owner begin. Any offset would be correct.
func newJudge(owner string, l *limit.Limit, t *limit.Tier) judge.Judge {
	if l.Mode != limit.Enforce {
		return nil
	}
	c := judge.Counter{Algorithm: t.Algorithm, Most: t.Threshold, Burst: t.Capacity(), Period: t.Period,
		Buckets: t.Buckets, Calendar: t.Calendar}
	if period := t.Period.Microseconds(); l.AlignOwner && judge.Aligns(t.Algorithm) {
		c.Offset = time.Duration(t.LeaseEnd(owner, epoch.UnixMicro())%period) * time.Microsecond
	}
	return judge.New(c)
}

// chargesOf returns what a request for the path charges under the plan of a tenant.
func chargesOf(t *plan.Tenant, path *route.Path) []limit.Charge {
	set := t.Limits(epoch)
	if set == nil || t.Suspended {
		return nil
	}
	return chargesIn(set, path)
}

func (r *run) timeAt(ns int64) time.Time { return epoch.Add(time.Duration(ns)) }

// after adds an action that happens after d.
func (r *run) after(d time.Duration, action func()) {
	r.queue.push(event{at: r.now + d.Nanoseconds(), action: action})
}

// runAll lets one worker after the other handle events, until no events are left.
func (r *run) runAll() {
	for !r.done() {
		w := r.resume
		if r.resume = nil; w == nil {
			w = r.idleWorker()
		}
		r.current = w
		w.next()
	}
	for w := range r.workers {
		w.stop()
	}
}

// done reports whether everything was handled: no event is left, and no worker waits.
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
		defer func() {
			if e := recover(); e != nil && e != (runEnded{}) {
				panic(e)
			}
		}()
		for {
			r.handleEvents(w)
			if len(r.idle) >= maxIdle {
				delete(r.workers, w)
				return
			}
			r.idle = append(r.idle, w)
			if !yield(struct{}{}) {
				return
			}
		}
	})
	r.workers[w] = true
	return w
}

// maxIdle bounds the workers that are kept for later, each of which has a stack of some 16 KB. Thousands are at work
// for some milliseconds when many leases end together, or when the store does not answer.
const maxIdle = 1000

// handleEvents handles requests and events in the order of their times. It returns when another worker must continue,
// or when nothing is left.
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
		var starts time.Duration
		if p, starts = r.placeOnEnvironment(number); p == nil {
			r.counts.refused++
			return
		}
		if starts > 0 && t.decided {
			arrived := r.now
			r.after(starts, func() { r.decide(r.current, p, t, arrived) })
			return
		}
	case len(r.live) == 0:
		r.counts.refused++
		return
	default:
		if p = r.processFor(number, r.traffic.fast()); p == nil {
			r.counts.refused++
			return
		}
		if r.untouched--; r.touches && r.untouched < 0 {
			r.touchNext()
		}
	}
	if t.decided {
		r.decide(w, p, t, r.now)
	}
}

// processFor returns the process that random bits choose for a request of a tenant: any of the cell to which the
// request comes, or one of those that have affinity to the tenant. It returns nil if none runs there.
func (r *run) processFor(tenant int, u uint64) *process {
	live := r.cellFor(tenant, u).live
	n := uint64(len(live))
	if a := uint64(r.scenario.Affinity); a > 0 && a < n {
		return live[(hashNumber(tenant)+(u>>32*a)>>32)%n]
	}
	if n == 0 {
		return nil
	}
	return live[u>>32*n>>32]
}

// hashNumber returns a hash of n. It assigns the tenants to processes.
func hashNumber(n int) uint64 {
	h := uint64(n)*0x9e3779b97f4a7c15 + 0x7f4a7c15
	return (h ^ h>>32) >> 8
}

// decide makes one decision with the real chain, and counts it. The request arrived at a time, in ns.
func (r *run) decide(w *worker, p *process, t *tenant, arrived int64) {
	w.tenant = t
	d, req := &w.decision, &t.req
	if p.reader != nil {
		var given grant
		if req, given = p.requestOf(w, t); given != granted {
			r.countNotAsked(p, t, given)
			return
		}
	}
	m := moments{arrived: arrived, began: r.now}
	p.deciding = true
	var beside *background
	if r.scenario.Shape == Lambda {
		beside = r.beginBackground(p)
	}
	now := p.time()
	err := p.decides.Decide(context.Background(), req, now, d)
	m.decided = r.now
	beside.finish()
	m.answered = r.now
	r.release(p)
	if p.dead {
		r.counts.lost++
		return
	}
	if err == nil && d.Degraded && d.Allowed {
		r.bounds.noteFallback(p, t, req, now)
	}
	r.count(p, t, d, err, m)
}

// moments are the times of a request, ns since the beginning of the run.
type moments struct {
	arrived  int64
	began    int64 // when its process began to decide
	decided  int64
	answered int64 // when what its environment does beside the decision had ended, too
}

// background is a run of the background tasks of an environment, beside its request. If nil, there are none.
type background struct {
	process     *process
	begun, done bool
	waiting     *worker // of the request
}

// beginBackground lets the background tasks of an environment run while its request is decided.
func (r *run) beginBackground(p *process) *background {
	b := &background{process: p}
	r.after(0, b.run)
	return b
}

func (b *background) run() {
	if b.begun {
		return
	}
	b.begun = true
	b.process.chain.RunBackgroundTasks(context.Background(), b.process.time())
	if b.done = true; b.waiting != nil {
		b.process.run.queue.push(event{at: b.process.run.now, resume: b.waiting})
	}
}

// finish waits for the end of the background tasks. If the decision did not wait, they have not begun: then they run in
// the worker of the request.
func (b *background) finish() {
	switch {
	case b == nil:
	case !b.begun:
		b.run()
	case !b.done:
		b.waiting = b.process.run.current
		b.process.run.park()
	}
}

// count judges a decision, and counts it.
func (r *run) count(p *process, t *tenant, d *limit.Decision, err error, m moments) {
	c := &r.counts
	r.total++
	if r.measuring {
		c.decisions++
		if m.decided == m.began && err == nil && !d.Degraded {
			c.local++
		}
		if took := m.answered - m.arrived; took == 0 {
			c.immediate++
		} else {
			c.latency.add(took)
			c.slowest, r.effects.slowest = max(c.slowest, took), max(r.effects.slowest, took)
		}
	}
	if err != nil {
		if r.measuring {
			c.failed++
		}
		return
	}
	// The time of a decision is that of the store's clock, limited to the time in which it was made.
	from := epoch.UnixMicro()
	at := min(max(d.Now, from+m.began/1000), from+m.decided/1000)
	if d.Degraded {
		if r.measuring {
			c.degraded++
			c.lastDegraded = r.now
		}
	}
	if !d.Allowed {
		r.countDenial(p, t, d, at)
		return
	}
	if r.measuring {
		c.allowed++
		p.cell.allowed++
	}
	for i, j := range t.judges {
		if j == nil {
			continue
		}
		if d.Degraded {
			r.bounds.noteDegraded(t, i, at, t.costs[i])
		}
		if over := j.Spend(at, t.costs[i]); over > 0 {
			r.limits[t.limits[i]].Over += over
			r.bounds.noteOver(t, i, at, over)
		}
	}
}

// countDenial counts a denial. It is early if by the judge there was room in every limit at that moment.
func (r *run) countDenial(p *process, t *tenant, d *limit.Decision, at int64) {
	if !r.measuring {
		return
	}
	r.counts.denied++
	p.cell.denied++
	fits := t.fits(at)
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

// fits reports whether by the judge there is room for a request in every limit.
func (t *tenant) fits(at int64) bool {
	fits := true
	for i, j := range t.judges {
		fits = fits && (j == nil || j.Fits(at, t.costs[i]))
	}
	return fits
}

func (r *run) beginMeasuring() {
	r.measuring = true
	for _, s := range r.shards {
		s.ops, s.unserved, s.tenantOps, s.opsBefore, s.peak, s.busy = 0, 0, 0, 0, 0, 0
		s.partition.beginMeasuring()
	}
	for i := range r.tenants {
		r.tenants[i].ops, r.tenants[i].units = 0, unitCount{}
	}
	r.counts = counts{}
	r.environments.starts = 0
	for _, l := range r.limits {
		r.overBefore += l.Over
	}
	r.effects.before, r.effects.slowest = Happened{}, 0
}

// countSecond notes how many calls each shard received in the last second.
func (r *run) countSecond() {
	if r.draining {
		return
	}
	r.endSecond()
	r.endIdle()
	r.after(countEvery, r.countSecond)
}

// endSecond notes what happened in the second that ends now, or in the part of it that the run has simulated.
func (r *run) endSecond() {
	if r.measuring && r.now > r.scenario.WarmUp.Nanoseconds() {
		for _, s := range r.shards {
			s.peak = max(s.peak, s.ops-s.opsBefore)
		}
		r.timeline.addSecond(r.secondBegan, r.happened(), r.counts.slowest)
		r.counts.slowest = 0
	}
	for _, s := range r.shards {
		s.opsBefore = s.ops
	}
	r.secondBegan = max(r.now, r.scenario.WarmUp.Nanoseconds())
}

// hottest returns the n tenants about which the store was called most often.
func (r *run) hottest(n int) []HotKey {
	var keys []HotKey
	for i := range r.tenants {
		if t := &r.tenants[i]; t.ops > 0 {
			keys = append(keys, HotKey{t.req.Owner.Name, t.ops, t.units.total, t.units.peak})
		}
	}
	slices.SortStableFunc(keys, func(a, b HotKey) int { return int(b.Ops - a.Ops) })
	return keys[:min(n, len(keys))]
}
