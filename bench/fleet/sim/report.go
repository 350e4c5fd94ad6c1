package sim

import (
	"fmt"
	"io"
	"math/bits"

	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// Report is the result of a run. Counts cover the measured time, except where their comment says that they count from
// the first request on.
type Report struct {
	Scenario string  `json:"scenario"`
	About    string  `json:"about,omitempty"` // describes the scenario in a sentence
	Seed     uint64  `json:"seed"`
	Partial  bool    `json:"partial"` // the run was interrupted, so Seconds is shorter than the scenario says
	Seconds  float64 `json:"seconds"` // length of the measured time, which is virtual time
	Costs    Costs   `json:"costs"`

	Instances int `json:"instances"` // at the end
	Tenants   int `json:"tenants"`

	Total     int64 `json:"total"` // decisions from the first request on
	Decisions int64 `json:"decisions"`
	Allowed   int64 `json:"allowed"`
	Denied    int64 `json:"denied"`
	Early     int64 `json:"early"`    // those of Denied for which units were left, as the judge counts
	Failed    int64 `json:"failed"`   // decisions that ended with an error
	Degraded  int64 `json:"degraded"` // decided by the fallback limiter
	Lost      int64 `json:"lost"`     // decisions that an instance had not finished when it died
	Refused   int64 `json:"refused"`  // requests that reached no instance, because none was running
	Local     int64 `json:"local"`    // decided at once, from leases: without a call and without the fallback limiter
	Over      int64 `json:"over"`     // units admitted above a limit, as the judge counts, from the first request on

	Broken string `json:"broken,omitempty"` // the bound that the run broke, see Check

	// Units of all tiers, from the first request on. The first two may explain units above a limit; the other two must
	// be 0 (see Check).
	DegradedUnits int64 `json:"degradedUnits"` // admitted by fallback limiters
	Forgotten     int64 `json:"forgotten"`     // the most that lost counters can have held
	BeyondPart    int64 `json:"beyondPart"`    // admitted by fallback limiters beyond their instances' parts
	Unexplained   int64 `json:"unexplained"`   // of Over: more than the first two are, in the same window and tier

	Limits []*limitCount `json:"limits"`

	// StoreOps is the number of calls that processes sent to the store, per second of the measured time, whether they
	// were answered or not.
	StoreOps float64      `json:"storeOps"`
	Shards   []ShardCount `json:"shards"`

	// ShardsNeeded is how many nodes of Redis the calls need if each node is busy for at most half of the time.
	ShardsNeeded int      `json:"shardsNeeded"`
	HotKeys      []HotKey `json:"hotKeys"`

	P50ms  float64 `json:"p50ms"` // percentiles of the time that a decision takes
	P99ms  float64 `json:"p99ms"`
	P999ms float64 `json:"p999ms"`
	Maxms  float64 `json:"maxms"`

	Leases chainCounts `json:"leases"`

	Faults   []Effect `json:"faults"` // in the order of the scenario
	Timeline Timeline `json:"timeline"`
}

// limitCount counts the decisions of one limit, over all tenants that have it.
type limitCount struct {
	ID     string `json:"id"`
	Over   int64  `json:"over"`
	Denied int64  `json:"denied"`
	Early  int64  `json:"early"`
}

// ShardCount holds the counts of one node of Redis.
type ShardCount struct {
	OpsPerSecond float64 `json:"opsPerSecond"` // calls that were sent to it
	PeakPerS     int64   `json:"peakPerSecond"`
	Unserved     int64   `json:"unserved"` // calls that it did not serve: it was away, refused them, or had too many
	BusyPct      float64 `json:"busyPct"`  // the part of the time for which it was busy, in percent
}

// HotKey is one of the tenants with the most calls to the store.
type HotKey struct {
	Tenant string `json:"tenant"`
	Ops    int64  `json:"ops"`
}

// chainCounts are sums over the store chains of all processes, from the beginning of the run.
type chainCounts struct {
	Calls    int64 `json:"calls"`
	Waited   int64 `json:"waited"`
	Returns  int64 `json:"returns"`
	Returned int64 `json:"returned"`
	Lost     int64 `json:"lost"`
	Counters int64 `json:"counters"` // held at the end
	Opened   int64 `json:"breakersOpened"`
	Refused  int64 `json:"breakersRefused"`
	Backstop int64 `json:"backstop"`
	Replayed int64 `json:"replayed"`
}

func (c *chainCounts) add(chain *resilience.Chain) {
	l, f := chain.Leases.Stats(), chain.Stats()
	c.Calls += l.Calls
	c.Waited += l.Waited
	c.Returns += l.Returns
	c.Returned += l.Returned
	c.Lost += l.Lost
	c.Counters += l.Counters
	c.Backstop += f.Backstop
	c.Replayed += f.ChargedBack
	for _, b := range chain.Breakers {
		s := b.Stats()
		c.Opened += s.Opened
		c.Refused += s.Refused
	}
}

// counts holds what a run counts during the measured time.
type counts struct {
	decisions, allowed, denied, early, failed, degraded, lost, refused int64

	local        int64
	immediate    int64     // decisions that took no time, by leases or by the fallback limiter
	latency      histogram // of the other decisions
	slowest      int64     // the slowest decision of the present second, ns
	lastDegraded int64     // when the fallback limiter made its last decision, ns since the beginning
}

// histogram counts durations, in nanoseconds, in classes. The width of a class is 1/32 to 1/64 of the durations in it,
// so a quantile is at most 1/32 too large. Durations below 64 ns have a class each.
type histogram struct {
	classes [64 * 32]int64
	total   int64
	max     int64
}

func (h *histogram) add(ns int64) {
	h.classes[classOf(ns)]++
	h.total++
	h.max = max(h.max, ns)
}

func classOf(ns int64) int {
	if ns < 32 {
		return int(max(ns, 0))
	}
	exponent := bits.Len64(uint64(ns)) - 6
	return exponent*32 + int(ns>>exponent)
}

// upperEdge returns the largest duration of a class, in nanoseconds.
func upperEdge(class int) int64 {
	if class < 64 {
		return int64(class)
	}
	exponent := class/32 - 1
	return int64(class-exponent*32+1)<<exponent - 1
}

// quantile returns the duration, in nanoseconds, which the given part of all decisions does not exceed. Beside the
// decisions of the histogram there are the immediate ones, which waited for nothing and took localNS each.
func (h *histogram) quantile(part float64, immediate, localNS int64) int64 {
	rank := int64(part * float64(immediate+h.total))
	if rank <= immediate {
		return localNS
	}
	rank -= immediate
	for class, n := range h.classes {
		rank -= n
		if rank <= 0 {
			return min(upperEdge(class), h.max)
		}
	}
	return h.max
}

// report makes the report of the run.
func (r *run) report() *Report {
	s, c := r.scenario, &r.counts
	r.now = r.end
	r.endSecond()
	r.closeEffects()
	seconds := 0.0
	if r.measuring {
		seconds = max(float64(r.end-s.WarmUp.Nanoseconds())/1e9, 0)
	}
	out := &Report{
		Scenario: s.Name, About: s.About, Seed: r.seed, Partial: r.partial, Seconds: seconds, Costs: r.costs,
		Instances: len(r.live), Tenants: len(r.tenants),
		Total: r.decisions, Decisions: c.decisions, Allowed: c.allowed, Denied: c.denied, Early: c.early,
		Failed: c.failed, Degraded: c.degraded, Lost: c.lost, Refused: c.refused, Local: c.local,
		DegradedUnits: r.bounds.degradedUnits, Forgotten: r.bounds.forgotten,
		BeyondPart: r.bounds.beyondPart, Unexplained: r.bounds.unexplained,
		Limits: r.limits, HotKeys: r.hottest(5), Leases: r.ended,
		Faults: r.effects.all, Timeline: Timeline{r.timeline.step, r.timeline.points},
	}
	for _, l := range r.limits {
		out.Over += l.Over
	}
	for _, p := range r.live {
		out.Leases.add(p.chain)
	}
	for _, sh := range r.shards {
		one := ShardCount{Unserved: sh.unserved, PeakPerS: sh.peak}
		if seconds > 0 {
			one.OpsPerSecond, one.BusyPct = float64(sh.ops)/seconds, 100*float64(sh.busy)/1e9/seconds
		}
		out.StoreOps += one.OpsPerSecond
		out.Shards = append(out.Shards, one)
	}
	out.ShardsNeeded = int(out.StoreOps*r.costs.StoreService.Seconds()/mostBusy) + 1
	local := r.costs.Local.Nanoseconds()
	ms := func(part float64) float64 { return float64(c.latency.quantile(part, c.immediate, local)) / 1e6 }
	out.P50ms, out.P99ms, out.P999ms = ms(0.5), ms(0.99), ms(0.999)
	out.Maxms = float64(c.latency.max) / 1e6
	if err := out.Check(); err != nil {
		out.Broken = err.Error()
	}
	return out
}

// mostBusy is the part of the time for which a node may be busy. At one half, a call waits on average for half of its
// service time (the queue M/D/1), and one of two nodes can take over the calls of the other.
const mostBusy = 0.5

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	p := &lines{w: w}
	if r.Partial {
		p.line("INTERRUPTED: this report is about the first %.1f measured seconds.", r.Seconds)
	}
	if r.Broken != "" {
		p.line("BROKEN: %s", r.Broken)
	}
	p.line("scenario %s, seed %d: %.1f s measured, %d tenants, %d instances at the end", r.Scenario, r.Seed, r.Seconds,
		r.Tenants, r.Instances)
	p.line("")
	perSecond := 0.0
	if r.Seconds > 0 {
		perSecond = float64(r.Decisions) / r.Seconds
	}
	p.line("decisions    %12d  %.0f per second, %.2f %% without a call of the store", r.Decisions, perSecond,
		percent(r.Local, r.Decisions))
	p.line("allowed      %12d", r.Allowed)
	p.line("denied       %12d  %d of them early (%.3f %% of the decisions)", r.Denied, r.Early,
		percent(r.Early, r.Decisions))
	p.line("degraded     %12d  decided by the fallback limiter (%.3f %% of the decisions)", r.Degraded,
		percent(r.Degraded, r.Decisions))
	p.line("errors       %12d  and %d lost with their instance, %d that no instance took", r.Failed, r.Lost, r.Refused)
	p.line("over a limit %12d  units, by the judge", r.Over)
	for _, l := range r.Limits {
		p.line("  limit %-20s over %d, denied %d, early %d", l.ID, l.Over, l.Denied, l.Early)
	}
	p.line("")
	p.line("store calls  %12.0f  per second; %d nodes needed, each busy for half of the time at most", r.StoreOps,
		r.ShardsNeeded)
	for i, s := range r.Shards {
		p.line("  shard %-3d %14.0f  per second, at most %d in one second, busy for %.1f %% of the time; %d calls not "+
			"served", i, s.OpsPerSecond, s.PeakPerS, s.BusyPct, s.Unserved)
	}
	for _, k := range r.HotKeys {
		p.line("  hot key %-20s %d calls", k.Tenant, k.Ops)
	}
	p.line("")
	p.line("a decision takes p50 %.4f ms, p99 %.3f ms, p99.9 %.3f ms, at most %.3f ms; %.3f %% of them are the "+
		"fallback limiter's", r.P50ms, r.P99ms, r.P999ms, r.Maxms, percent(r.Degraded, r.Decisions))
	l := &r.Leases
	p.line("leases       %12d  calls, %d returns, %d units returned, %d lost; %d requests waited; %d counters held",
		l.Calls, l.Returns, l.Returned, l.Lost, l.Waited, l.Counters)
	p.line("breakers     %12d  opened; %d calls not made; %d decisions by the backstop, %d units replayed", l.Opened,
		l.Refused, l.Backstop, l.Replayed)
	for i := range r.Faults {
		p.line("fault        %s: %s", r.Faults[i].What, r.Faults[i].Did())
	}
	return p.err
}

func percent(part, of int64) float64 {
	if of == 0 {
		return 0
	}
	return 100 * float64(part) / float64(of)
}

// lines writes lines until a write fails. It keeps the error of that write in err.
type lines struct {
	w   io.Writer
	err error
}

func (p *lines) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}
