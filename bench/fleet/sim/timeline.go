package sim

import (
	"slices"
	"time"
)

// maxPoints bounds the timeline: 24 minutes at one point per second. In longer runs, each point covers more seconds.
const maxPoints = 1440

// Timeline shows how the measured time went, point by point.
type Timeline struct {
	StepSeconds int64   `json:"stepSeconds"` // length of each point; the last one may be shorter
	Points      []Point `json:"points"`
}

// Point is one step of the timeline.
type Point struct {
	At float64 `json:"at"` // when the point begins, in seconds since the beginning of the run
	Happened
	Maxms float64 `json:"maxms"` // how long the slowest decision took; 0 if none waited
}

// Happened counts what happened in a span of time.
type Happened struct {
	Allowed  int64 `json:"allowed"`
	Denied   int64 `json:"denied"`
	Early    int64 `json:"early"`    // those of Denied that are early, see Report
	Degraded int64 `json:"degraded"` // decided by the fallback limiter
	Unserved int64 `json:"unserved"` // not decided: the sum of Failed, Lost and Refused, see Report
	Over     int64 `json:"over"`     // units above all limits, as the judge counts
	StoreOps int64 `json:"storeOps"` // calls that the nodes of the store took
}

func (h *Happened) minus(o *Happened) Happened {
	return Happened{h.Allowed - o.Allowed, h.Denied - o.Denied, h.Early - o.Early, h.Degraded - o.Degraded,
		h.Unserved - o.Unserved, h.Over - o.Over, h.StoreOps - o.StoreOps}
}

func (h *Happened) add(o *Happened) {
	h.Allowed += o.Allowed
	h.Denied += o.Denied
	h.Early += o.Early
	h.Degraded += o.Degraded
	h.Unserved += o.Unserved
	h.Over += o.Over
	h.StoreOps += o.StoreOps
}

// happened returns the counts since the measured time began, and zeros before that.
func (r *run) happened() (h Happened) {
	if !r.measuring {
		return h
	}
	c := &r.counts
	h = Happened{Allowed: c.allowed, Denied: c.denied, Early: c.early, Degraded: c.degraded,
		Unserved: c.failed + c.lost + c.refused, Over: -r.overInWarmUp}
	for _, l := range r.limits {
		h.Over += l.Over
	}
	for _, s := range r.shards {
		h.StoreOps += s.ops
	}
	return h
}

// timeline is a Timeline under construction.
type timeline struct {
	points []Point
	step   int64    // seconds that each point covers
	within int64    // seconds that the last point covers so far
	before Happened // counts at the end of the last second of the last point
}

// addSecond adds what happened in the second that began at the given time. Both the time and the slowest decision of
// the second are in nanoseconds.
func (t *timeline) addSecond(at int64, now Happened, slowest int64) {
	h := now.minus(&t.before)
	t.before = now
	maxms := float64(slowest) / 1e6
	if n := len(t.points); n > 0 && t.within < t.step {
		t.points[n-1].add(&h)
		t.points[n-1].Maxms = max(t.points[n-1].Maxms, maxms)
		t.within++
		return
	}
	if len(t.points) == maxPoints {
		t.widen()
	}
	t.points = append(t.points, Point{float64(at) / 1e9, h, maxms})
	t.within = 1
}

// widen joins each pair of neighbouring points into one, and doubles the step.
func (t *timeline) widen() {
	for i := range maxPoints / 2 {
		p, next := t.points[2*i], &t.points[2*i+1]
		p.add(&next.Happened)
		p.Maxms = max(p.Maxms, next.Maxms)
		t.points[i] = p
	}
	t.points = t.points[:maxPoints/2]
	t.step *= 2
}

// Effect is a fault, and what happened from its beginning until another fault began or the run ended. Faults that begin
// together have the same counts.
type Effect struct {
	Kind  FaultKind `json:"kind"`
	What  string    `json:"what"`
	At    float64   `json:"at"`    // seconds since the beginning of the run
	Until float64   `json:"until"` // when the scenario ends the fault; equal to At if it has no end
	To    float64   `json:"to"`    // the end of the time that Happened covers, within the measured time
	Happened

	// DegradedFor is the time from the beginning of the fault to the last decision of the fallback limiter, in seconds;
	// 0 if the fallback limiter decided nothing.
	DegradedFor float64 `json:"degradedFor"`
	Maxms       float64 `json:"maxms"` // how long the slowest decision took; 0 if none waited
}

// effects collects the effects of the faults during a run.
type effects struct {
	all     []Effect
	open    []int    // indices in all: the faults that began last
	before  Happened // the counts when these faults began
	slowest int64    // the slowest decision since then, ns
}

// countEffects adds, for each fault, the event at which its effect begins to be counted.
func (r *run) countEffects() {
	r.effects.all = make([]Effect, len(r.scenario.Faults))
	var times []time.Duration
	for i := range r.scenario.Faults {
		f := &r.scenario.Faults[i]
		r.effects.all[i] = Effect{Kind: f.Kind, What: f.text(), At: f.At.Seconds(),
			Until: (f.At + f.For).Seconds(), To: f.At.Seconds()}
		times = append(times, f.At)
	}
	slices.Sort(times)
	for _, at := range slices.Compact(times) {
		r.after(at, func() {
			r.closeEffects()
			for i := range r.scenario.Faults {
				if r.scenario.Faults[i].At == at {
					r.effects.open = append(r.effects.open, i)
				}
			}
		})
	}
}

// closeEffects completes the effects of the faults that began last, because another fault or the end of the run comes.
func (r *run) closeEffects() {
	e := &r.effects
	now := r.happened()
	h := now.minus(&e.before)
	for _, i := range e.open {
		one := &e.all[i]
		one.Happened, one.To, one.Maxms = h, float64(r.now)/1e9, float64(e.slowest)/1e6
		if h.Degraded > 0 {
			one.DegradedFor = float64(r.counts.lastDegraded)/1e9 - one.At
		}
	}
	e.open, e.before, e.slowest = e.open[:0], now, 0
}
