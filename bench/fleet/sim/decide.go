package sim

import "context"

// handleRequest takes the next request from the traffic, and lets the worker decide it.
func (r *run) handleRequest(w *worker) {
	number := r.traffic.take(r.now)
	bits := r.traffic.bits.Uint64()
	if len(r.live) == 0 {
		r.counts.refused++
		return
	}
	r.decide(w, r.processFor(number, bits), &r.tenants[number])
}

// processFor returns the process that random bits choose for a request of a tenant: any, or one of those that have
// affinity to the tenant. A process must be running.
func (r *run) processFor(tenant int, u uint64) *process {
	n, affinity := uint64(len(r.live)), uint64(r.scenario.Affinity)
	if affinity > 0 && affinity < n {
		return r.live[(hashNumber(tenant)+choose(u, affinity))%n]
	}
	return r.live[choose(u, n)]
}

// choose returns one of the numbers 0..n-1, by the upper 32 of random bits. Each is equally likely.
func choose(u, n uint64) uint64 { return (u >> 32) * n >> 32 }

// hashNumber returns a hash of n, below 2^56: a small number can be added without an overflow. By it, tenants are
// assigned to processes.
func hashNumber(n int) uint64 {
	h := uint64(n)*0x9e3779b97f4a7c15 + 0x7f4a7c15 // the first is 2^64 divided by the golden ratio
	return (h ^ h>>32) >> 8
}

// decide makes one decision with the real chain, and counts it.
func (r *run) decide(w *worker, p *process, t *tenant) {
	w.tenant = t
	d, began, now := &w.decision, r.now, p.time()
	err := p.decides.Decide(context.Background(), &t.req, now, d)
	if p.dead {
		r.counts.lost++
		return
	}
	if err == nil && d.Degraded && d.Allowed {
		r.bounds.checkPart(p, t, now)
	}
	r.count(t, d, err, began)
}
