package sim

import (
	"slices"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// count counts a decision, and lets the judges say how many units were admitted above each limit.
func (r *run) count(t *tenant, d *limit.Decision, err error, began int64) {
	c := &r.counts
	r.decisions++
	if r.measuring {
		c.decisions++
		if r.now == began && err == nil && !d.Degraded { // from leases
			c.local++
		}
		took := r.now - began
		if took == 0 { // from leases or by the fallback limiter
			c.immediate++
		} else {
			c.latency.add(took)
			c.slowest = max(c.slowest, took)                 // of this second
			r.effects.slowest = max(r.effects.slowest, took) // since the last fault began
		}
	}
	if err != nil {
		if r.measuring {
			c.failed++
		}
		return
	}
	// The decision says by the store's clock at which moment it was made. It cannot have been made before it began, nor
	// after it ended. µs since 1970.
	from := epoch.UnixMicro()
	at := min(max(d.Now, from+began/1000), from+r.now/1000)
	if d.Degraded && r.measuring {
		c.degraded++
		c.lastDegraded = r.now
	}
	if !d.Allowed {
		r.countDenial(t, d, at)
		return
	}
	if r.measuring {
		c.allowed++
	}
	for i, j := range t.judges {
		if d.Degraded {
			r.bounds.addDegraded(t, i, at, t.costs[i])
		}
		over := j.Spend(at, t.costs[i])
		if over > 0 {
			r.limits[t.limits[i]].Over += over
			r.bounds.addOver(t, i, at, over)
		}
	}
}

// countDenial counts a denial. The denial is early if the judges say that the request fitted in every limit then. It is
// counted for the first limit that did not admit it.
func (r *run) countDenial(t *tenant, d *limit.Decision, at int64) {
	if !r.measuring {
		return
	}
	r.counts.denied++
	fits := t.fits(at)
	for i := range d.Results {
		res := &d.Results[i]
		if !res.Admits && !res.Shadow() {
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

// fits reports whether the judges say that a request fits in every limit. Each judge is asked, also after one that has
// no room, since asking moves a judge on to the time.
func (t *tenant) fits(at int64) bool {
	fits := true
	for i, j := range t.judges {
		fits = fits && j.Fits(at, t.costs[i])
	}
	return fits
}

// beginMeasuring ends the warm-up: what is counted in the measured time begins with zero. Units above limits are
// counted from the beginning of the run on; those of the warm-up are remembered, for the timeline.
func (r *run) beginMeasuring() {
	r.measuring = true
	for _, s := range r.shards {
		s.ops, s.unserved, s.opsBefore, s.peak, s.busy = 0, 0, 0, 0, 0
	}
	for i := range r.tenants {
		r.tenants[i].ops = 0
	}
	r.counts = counts{}
	for _, l := range r.limits {
		r.overInWarmUp += l.Over
	}
	r.effects.before, r.effects.slowest = Happened{}, 0
}

// countSecond ends a second of the run, and adds the event at which the next one ends.
func (r *run) countSecond() {
	if r.draining {
		return
	}
	r.endSecond()
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
		t := &r.tenants[i]
		if t.ops > 0 {
			keys = append(keys, HotKey{t.req.Owner.Name, t.ops})
		}
	}
	slices.SortStableFunc(keys, func(a, b HotKey) int { return int(b.Ops - a.Ops) })
	return keys[:min(n, len(keys))]
}
