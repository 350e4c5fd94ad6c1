package fleet

import "context"

// handleRequest takes the next request from the traffic, and lets the worker decide it.
func (r *run) handleRequest(w *worker) {
	number := r.traffic.take(r.now)
	t := &r.tenants[number]
	if r.scenario.Shape == Lambda {
		r.handleOnLambda(w, number, t)
		return
	}
	if len(r.live) == 0 {
		r.counts.refused++
		return
	}
	p := r.processFor(number, r.traffic.bits.Uint64())
	if p == nil {
		r.counts.refused++
		return
	}
	if t.decided {
		r.decide(w, p, t, r.now)
	}
}

// handleOnLambda lets an environment of Lambda serve the present request. The request of a tenant that is not decided
// only occupies the environment.
func (r *run) handleOnLambda(w *worker, number int, t *tenant) {
	p, starts := r.placeOnEnvironment(number)
	switch {
	case p == nil:
		r.counts.refused++
	case !t.decided:
	case starts > 0:
		arrived := r.now
		// The event may be handled by another worker than w, so the decision is made by the one that is current then.
		r.after(starts, func() { r.decide(r.current, p, t, arrived) })
	default:
		r.decide(w, p, t, r.now)
	}
}

// processFor returns the process that random bits choose for a request of a tenant: any of the cell to which the
// request comes, or one of those that have affinity to the tenant. It returns nil if no process of that cell runs.
func (r *run) processFor(tenant int, u uint64) *process {
	live := r.cellFor(tenant, u).live
	n := uint64(len(live))
	if n == 0 {
		return nil
	}
	affinity := uint64(r.scenario.Affinity)
	if affinity > 0 && affinity < n {
		return live[(hashNumber(tenant)+choose(u, affinity))%n]
	}
	return live[choose(u, n)]
}

// choose returns one of the numbers 0..n-1, by the upper 32 of random bits. Each is equally likely.
func choose(u, n uint64) uint64 { return (u >> 32) * n >> 32 }

// hashNumber returns a hash of n, below 2^56: a small number can be added without an overflow. By it, tenants are
// assigned to processes and functions, and calls of a sample to nodes.
func hashNumber(n int) uint64 {
	h := uint64(n)*0x9e3779b97f4a7c15 + 0x7f4a7c15 // the first is 2^64 divided by the golden ratio
	return (h ^ h>>32) >> 8
}

// decide makes one decision with the real chain, and counts it. arrived is when the request came, in ns.
func (r *run) decide(w *worker, p *process, t *tenant, arrived int64) {
	w.tenant = t
	d, req := &w.decision, &t.req
	if p.reader != nil {
		var outcome lookup
		req, outcome = p.requestOf(w, t)
		if outcome != loaded {
			r.countNotAsked(p, t, outcome)
			return
		}
	}
	m := moments{arrived: arrived, began: r.now}
	p.deciding = true
	var tasks *background
	if r.scenario.Shape == Lambda {
		tasks = r.beginBackground(p)
	}
	now := p.time()
	err := p.decides.Decide(context.Background(), req, now, d)
	m.decided = r.now // later than m.began if the decision waited for a call
	if tasks != nil {
		tasks.finish()
	}
	m.answered = r.now // later than m.decided if the background tasks took longer
	r.release(p)
	if p.dead {
		r.counts.lost++
		return
	}
	if err == nil && d.Degraded && d.Allowed {
		r.bounds.checkPart(p, t, req, now)
	}
	r.count(p, t, d, err, m)
}

// moments are the times of a request, ns since the beginning of the run.
type moments struct {
	arrived  int64
	began    int64 // when its process began to decide
	decided  int64
	answered int64 // when the background tasks of its environment had ended, too
}

// background is a run of the background tasks of an environment of Lambda, at the same time as its request.
type background struct {
	process     *process
	begun, done bool
	waiting     *worker // the worker of the request, if it waits for the tasks
}

// beginBackground lets the background tasks of an environment run while its request is decided.
func (r *run) beginBackground(p *process) *background {
	b := &background{process: p}
	r.after(0, b.run)
	return b
}

// run runs the tasks, unless finish has done so.
func (b *background) run() {
	if b.begun {
		return
	}
	b.begun = true
	b.process.chain.RunBackgroundTasks(context.Background(), b.process.time())
	b.done = true
	if b.waiting != nil {
		b.process.run.queue.push(event{at: b.process.run.now, resume: b.waiting})
	}
}

// finish waits for the end of the background tasks. If the decision did not wait for a call, the event of run has not
// come yet, and the tasks run in the worker of the request.
func (b *background) finish() {
	switch {
	case !b.begun:
		b.run()
	case !b.done:
		b.waiting = b.process.run.current
		b.process.run.park()
	}
}
