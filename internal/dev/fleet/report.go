package fleet

import (
	"fmt"
	"io"
	"math/bits"

	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// Report is what a run found. Counts are of the measured time, but for Over, which counts from the first request on.
type Report struct {
	Scenario string  `json:"scenario"`
	Seed     uint64  `json:"seed"`
	Partial  bool    `json:"partial"` // the run was interrupted: everything is about Seconds
	Seconds  float64 `json:"seconds"` // measured, virtual
	Costs    Costs   `json:"costs"`

	Instances int `json:"instances"` // at the end
	Tenants   int `json:"tenants"`

	Total      int64 `json:"total"` // decisions from the first request on
	Decisions  int64 `json:"decisions"`
	Allowed    int64 `json:"allowed"`
	Denied     int64 `json:"denied"`
	Early      int64 `json:"early"`    // denied, though by the judge there was room
	Failed     int64 `json:"failed"`   // decisions that ended with an error
	Degraded   int64 `json:"degraded"` // decided by the fallback limiter
	Lost       int64 `json:"lost"`     // under way in an instance that died
	Refused    int64 `json:"refused"`  // came to no instance, since none was there or free
	Local      int64 `json:"local"`    // decided at once, without a call
	Over       int64 `json:"over"`     // units beyond all limits, by the judge
	ColdStarts int64 `json:"coldStarts"`

	// From the first request on: what Check allows to be admitted too much.
	DegradedUnits int64 `json:"degradedUnits"` // admitted by the fallback limiter, over all tiers
	Forgotten     int64 `json:"forgotten"`     // what counters that were lost may have held

	Limits []*limitCount `json:"limits"`

	// StoreOps is the calls of the store in a second of the measured time; with a sample of the tenants, what all
	// would have made.
	StoreOps float64      `json:"storeOps"`
	Shards   []ShardCount `json:"shards"`

	// ShardsNeeded is how many nodes the calls need if each is busy for half of the time at most.
	ShardsNeeded int      `json:"shardsNeeded"`
	HotKeys      []HotKey `json:"hotKeys"`

	P50ms  float64 `json:"p50ms"` // of a decision
	P99ms  float64 `json:"p99ms"`
	P999ms float64 `json:"p999ms"`
	Maxms  float64 `json:"maxms"`

	Leases     chainCounts `json:"leases"`
	CounterMax int         `json:"counterMax"` // counters that all processes may hold together
}

// limitCount is one limit of all tenants that have it.
type limitCount struct {
	ID        string `json:"id"`
	Over      int64  `json:"over"`
	Denied    int64  `json:"denied"`
	Early     int64  `json:"early"`
	NotJudged bool   `json:"notJudged,omitempty"` // the judge does not know the algorithm of one of its tiers
}

// ShardCount is one node of the store.
type ShardCount struct {
	OpsPerSecond float64 `json:"opsPerSecond"`
	PeakPerS     int64   `json:"peakPerSecond"`
	BusyPct      float64 `json:"busyPct"`
}

// HotKey is a tenant about which the store was called often.
type HotKey struct {
	Tenant string `json:"tenant"`
	Ops    int64  `json:"ops"`
}

// chainCounts are sums over the chains of processes, from the beginning of the run.
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

// counts are of the measured time.
type counts struct {
	decisions, allowed, denied, early, failed, degraded, lost, refused int64

	local   int64
	latency histogram // of the decisions that waited
}

// histogram counts durations in classes that are a 32nd wide, ns.
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

// upperEdge is the largest duration of a class.
func upperEdge(class int) int64 {
	if class < 64 {
		return int64(class)
	}
	exponent := class/32 - 1
	return int64(class-exponent*32+1)<<exponent - 1
}

// quantile returns the duration that a part of all decisions does not exceed. local decisions, of which the histogram
// knows nothing, took a time of their own.
func (h *histogram) quantile(part float64, local, localNS int64) int64 {
	rank := int64(part * float64(local+h.total))
	if rank <= local {
		return localNS
	}
	rank -= local
	for class, n := range h.classes {
		if rank -= n; rank <= 0 {
			return min(upperEdge(class), h.max)
		}
	}
	return h.max
}

// report sums up.
func (r *run) report(maxCounters int) *Report {
	s, c := r.scenario, &r.counts
	seconds := max(float64(r.end-s.WarmUp.Nanoseconds())/1e9, 0)
	if !r.measuring {
		seconds = 0
	}
	out := &Report{
		Scenario: s.Name, Seed: r.seed, Partial: r.partial, Seconds: seconds, Costs: r.costs,
		Instances: len(r.live), Tenants: len(r.tenants),
		Total: r.total, Decisions: c.decisions, Allowed: c.allowed, Denied: c.denied, Early: c.early, Failed: c.failed,
		Degraded: c.degraded, Lost: c.lost, Refused: c.refused, Local: c.local, ColdStarts: r.starts,
		DegradedUnits: r.degradedUnits, Forgotten: r.forgotten,
		Limits: r.limits, HotKeys: r.hottest(5), Leases: r.ended, CounterMax: maxCounters,
	}
	for _, l := range r.limits {
		out.Over += l.Over
	}
	for _, p := range r.live {
		out.Leases.add(p.chain)
	}
	service := r.costs.StoreService.Seconds()
	for _, sh := range r.shards {
		if seconds > 0 {
			perSecond := float64(sh.ops) / seconds
			out.StoreOps += perSecond + float64(sh.tenantOps)/seconds*(r.unsampled-1)
			out.Shards = append(out.Shards, ShardCount{perSecond, sh.peak, 100 * perSecond * service})
		}
	}
	out.ShardsNeeded = int(out.StoreOps*service/mostBusy) + 1
	local := r.costs.Local.Nanoseconds()
	ms := func(part float64) float64 { return float64(c.latency.quantile(part, c.local, local)) / 1e6 }
	out.P50ms, out.P99ms, out.P999ms = ms(0.5), ms(0.99), ms(0.999)
	out.Maxms = float64(c.latency.max) / 1e6
	return out
}

// mostBusy is the part of the time that a node may be busy: at half, a call waits as long as it takes on average, and
// one of two nodes can take over the other's calls.
const mostBusy = 0.5

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	p := &lines{w: w}
	if r.Partial {
		p.line("INTERRUPTED: this report is about the first %.1f measured seconds.", r.Seconds)
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
	p.line("degraded     %12d  decided by the fallback limiter", r.Degraded)
	p.line("errors       %12d  and %d lost with their instance, %d that no instance took", r.Failed, r.Lost, r.Refused)
	p.line("over a limit %12d  units, by the judge", r.Over)
	for _, l := range r.Limits {
		note := ""
		if l.NotJudged {
			note = "  (not judged: the judge does not know its algorithm)"
		}
		p.line("  limit %-20s over %d, denied %d, early %d%s", l.ID, l.Over, l.Denied, l.Early, note)
	}
	p.line("")
	p.line("store calls  %12.0f  per second; %d nodes needed, each busy for half of the time at most", r.StoreOps,
		r.ShardsNeeded)
	for i, s := range r.Shards {
		p.line("  shard %-3d %14.0f  per second, at most %d in one second, busy for %.1f %% of the time", i,
			s.OpsPerSecond, s.PeakPerS, s.BusyPct)
	}
	for _, k := range r.HotKeys {
		p.line("  hot key %-20s %d calls", k.Tenant, k.Ops)
	}
	p.line("")
	p.line("a decision takes p50 %.4f ms, p99 %.3f ms, p99.9 %.3f ms, at most %.3f ms", r.P50ms, r.P99ms, r.P999ms,
		r.Maxms)
	l := &r.Leases
	p.line("leases       %12d  calls, %d returns, %d units returned, %d lost; %d requests waited; %d counters held",
		l.Calls, l.Returns, l.Returned, l.Lost, l.Waited, l.Counters)
	p.line("breakers     %12d  opened; %d calls not made; %d decisions by the backstop, %d units replayed", l.Opened,
		l.Refused, l.Backstop, l.Replayed)
	if r.ColdStarts > 0 {
		p.line("cold starts  %12d", r.ColdStarts)
	}
	return p.err
}

func percent(part, of int64) float64 {
	if of == 0 {
		return 0
	}
	return 100 * float64(part) / float64(of)
}

// lines writes lines until one fails.
type lines struct {
	w   io.Writer
	err error
}

func (p *lines) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}
