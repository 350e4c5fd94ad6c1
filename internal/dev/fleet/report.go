package fleet

import (
	"fmt"
	"io"
	"math/bits"

	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// Report is the result of a run. Counts are of the measured time, except for Over, which counts from the first request
// on.
type Report struct {
	Scenario string  `json:"scenario"`
	About    string  `json:"about,omitempty"` // the scenario, in a sentence
	Seed     uint64  `json:"seed"`
	Partial  bool    `json:"partial"` // the run was interrupted: all figures are of Seconds
	Seconds  float64 `json:"seconds"` // measured, in virtual time
	Costs    Costs   `json:"costs"`

	Instances int `json:"instances"` // at the end
	Tenants   int `json:"tenants"`

	Total      int64 `json:"total"` // decisions from the first request on
	Decisions  int64 `json:"decisions"`
	Allowed    int64 `json:"allowed"`
	Denied     int64 `json:"denied"`
	Early      int64 `json:"early"`    // denied, although by the judge there were units left
	Failed     int64 `json:"failed"`   // decisions that ended with an error
	Degraded   int64 `json:"degraded"` // decided by the fallback limiter
	Lost       int64 `json:"lost"`     // decisions under way in an instance that died
	Refused    int64 `json:"refused"`  // requests that reached no instance, because none was running or free
	Local      int64 `json:"local"`    // decided at once, from leases: without a call and without the fallback limiter
	Over       int64 `json:"over"`     // units admitted beyond a limit, by the judge
	ColdStarts int64 `json:"coldStarts"`

	// Of several cells, or of a cell whose configuration changes.
	Cells     []CellCount `json:"cells,omitempty"`
	Withheld  int64       `json:"withheld,omitempty"`  // denied, since the cell grants nothing of a limit
	NotLoaded int64       `json:"notLoaded,omitempty"` // came to an instance that did not know the tenant's limits
	Epochs    int64       `json:"epochs,omitempty"`    // changes of the shares since the run began

	// Broken has a sentence for each bound that the run broke: of those of the script, and of those of Check.
	Broken []string `json:"broken,omitempty"`

	// From the first request on: what may explain units above a limit, and what breaks a bound (see Check).
	DegradedUnits int64 `json:"degradedUnits"` // admitted by the fallback limiter, over all tiers
	Forgotten     int64 `json:"forgotten"`     // what counters that were lost may have held

	// BeyondPart is how many units the fallback limiters of single instances admitted beyond their parts of limits.
	BeyondPart int64 `json:"beyondPart"`

	// Unexplained is how many units of Over are in a window of a counter of which neither the fallback limiter admitted
	// as many, nor a store lost as many.
	Unexplained int64 `json:"unexplained"`

	Limits    []*limitCount `json:"limits"`
	NotJudged int           `json:"notJudged"` // how many of Limits the judge does not know in full

	// StoreOps is the number of calls that processes sent to the store, per second of the measured time, whether they
	// were answered or not. If only a sample of the tenants is decided, it is projected to all tenants.
	StoreOps float64      `json:"storeOps"`
	Shards   []ShardCount `json:"shards"`

	// Table is what the calls took, if the store is DynamoDB.
	Table *TableUse `json:"table,omitempty"`

	// ShardsNeeded is how many nodes the calls need if each is busy for half of the time at most, in all cells. If the
	// store is DynamoDB, it is how many partitions they need if each takes half of its write units.
	ShardsNeeded int      `json:"shardsNeeded"`
	HotKeys      []HotKey `json:"hotKeys"`

	P50ms  float64 `json:"p50ms"` // time of a decision
	P99ms  float64 `json:"p99ms"`
	P999ms float64 `json:"p999ms"`
	Maxms  float64 `json:"maxms"`

	Leases     chainCounts `json:"leases"`
	CounterMax int         `json:"counterMax"` // bound on the counters of all processes together

	// Log says which lines of an access log were simulated; nil if there was none.
	Log *LogUse `json:"log,omitempty"`

	Faults   []Effect `json:"faults"` // in the order of the scenario
	Timeline Timeline `json:"timeline"`
	Money    *Money   `json:"money"` // null if nothing was measured, or if package cost does not accept so many
}

// limitCount counts the decisions of one limit, over all tenants that have it.
type limitCount struct {
	ID        string `json:"id"`
	Over      int64  `json:"over"`
	Denied    int64  `json:"denied"`
	Early     int64  `json:"early"`
	NotJudged bool   `json:"notJudged,omitempty"` // the judge does not know the algorithm of one of its tiers
}

// CellCount is one cell.
type CellCount struct {
	Name      string  `json:"name"`
	Lost      bool    `json:"lost,omitempty"`
	Instances int     `json:"instances"` // at the end
	Allowed   int64   `json:"allowed"`
	Denied    int64   `json:"denied"`
	StoreOps  float64 `json:"storeOps"` // calls of its store in a second

	// PartPct is the mean part of a divided limit that the cell grants at the end, in percent: of the tenants that are
	// not pinned.
	PartPct float64 `json:"partPct"`
}

// ShardCount is one node of the store, or one partition of the table of DynamoDB.
type ShardCount struct {
	OpsPerSecond float64 `json:"opsPerSecond"` // calls that were sent to it; of a sample, projected to all tenants
	PeakPerS     int64   `json:"peakPerSecond"`
	Unserved     int64   `json:"unserved"` // calls that it did not serve: it was away, refused them, or had too many
	BusyPct      float64 `json:"busyPct"`  // of a partition: the write units, of those that it takes

	// Of a partition: write units, and calls that it refused since it had taken its units of the second.
	WriteUnits float64 `json:"writeUnitsPerSecond,omitempty"`
	PeakUnits  int64   `json:"peakWriteUnits,omitempty"` // in one second
	Refused    int64   `json:"refused,omitempty"`
}

// HotKey is one of the tenants about which the store was called most often.
type HotKey struct {
	Tenant string `json:"tenant"`
	Ops    int64  `json:"ops"`

	// What they wrote to the table of DynamoDB.
	WriteUnits int64 `json:"writeUnits,omitempty"`
	PeakUnits  int64 `json:"peakWriteUnits,omitempty"` // in one second
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

// counts are what is counted in the measured time.
type counts struct {
	decisions, allowed, denied, early, failed, degraded, lost, refused int64
	withheld, notLoaded                                                int64

	local        int64
	immediate    int64     // decisions that took no time, by leases or by the fallback limiter
	latency      histogram // of the other decisions
	slowest      int64     // the slowest decision of the present second, ns
	lastDegraded int64     // when the fallback limiter made its last decision, ns since the beginning
}

// histogram counts durations, in nanoseconds, in classes. A class is about a 32nd of its durations wide.
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

// quantile returns the duration, in nanoseconds, which the given part of all decisions does not exceed. The histogram
// does not hold the immediate decisions, which waited for nothing: localNS is how long each of them took.
func (h *histogram) quantile(part float64, immediate, localNS int64) int64 {
	rank := int64(part * float64(immediate+h.total))
	if rank <= immediate {
		return localNS
	}
	rank -= immediate
	for class, n := range h.classes {
		if rank -= n; rank <= 0 {
			return min(upperEdge(class), h.max)
		}
	}
	return h.max
}

// report sums up.
func (r *run) report(maxCounters int) (*Report, error) {
	s, c := r.scenario, &r.counts
	r.now = r.end
	r.endSecond()
	r.closeEffects()
	seconds := max(float64(r.end-s.WarmUp.Nanoseconds())/1e9, 0)
	if !r.measuring {
		seconds = 0
	}
	out := &Report{
		Scenario: s.Name, About: s.About, Seed: r.seed, Partial: r.partial, Seconds: seconds, Costs: r.costs,
		Instances: len(r.live), Tenants: len(r.tenants),
		Total: r.decisions, Decisions: c.decisions, Allowed: c.allowed, Denied: c.denied, Early: c.early,
		Failed: c.failed, Degraded: c.degraded, Lost: c.lost, Refused: c.refused, Local: c.local,
		ColdStarts: r.environments.starts,
		Withheld:   c.withheld, NotLoaded: c.notLoaded,
		DegradedUnits: r.bounds.degradedUnits, Forgotten: r.bounds.forgotten,
		BeyondPart: r.bounds.beyondPart, Unexplained: r.bounds.unexplained,
		Limits: r.limits, HotKeys: r.hottest(5), Leases: r.ended, CounterMax: maxCounters,
		Faults: r.effects.all, Timeline: Timeline{r.timeline.step, r.timeline.points},
	}
	for _, l := range r.limits {
		if out.Over += l.Over; l.NotJudged {
			out.NotJudged++
		}
	}
	for _, p := range r.live {
		out.Leases.add(p.chain)
	}
	if seconds > 0 {
		r.reportShards(out, seconds)
	}
	out.ShardsNeeded = r.shardsFor(out.StoreOps, out.Table)
	if r.plane != nil {
		if err := r.plane.report(out); err != nil {
			return nil, err
		}
	}
	local := r.costs.Local.Nanoseconds()
	trip := s.BehindAuthorizer.Nanoseconds()
	ms := func(part float64) float64 { return float64(c.latency.quantile(part, c.immediate, local)+trip) / 1e6 }
	out.P50ms, out.P99ms, out.P999ms = ms(0.5), ms(0.99), ms(0.999)
	out.Maxms = float64(c.latency.max+trip) / 1e6
	out.Money = r.money(out)
	out.Broken = s.Bounds.broken(out)
	if err := out.Check(); err != nil {
		out.Broken = append(out.Broken, err.Error())
	}
	return out, nil
}

// mostBusy is the part of the time for which a node may be busy. At one half, a call waits on average as long as its
// service takes, and one of two nodes can take over the calls of the other.
const mostBusy = 0.5

// shardsFor returns how many nodes a cell needs for so many calls per second, or how many partitions for what they take
// of a table.
func (r *run) shardsFor(perSecond float64, table *TableUse) int {
	if table != nil {
		return int(table.WriteUnits/partitionWrites/mostBusy) + 1
	}
	return int(perSecond*r.costs.StoreService.Seconds()/mostBusy) + 1
}

// reportShards sums up what the nodes or partitions of the store took in the measured time.
func (r *run) reportShards(out *Report, seconds float64) {
	for _, sh := range r.shards {
		ops := float64(sh.ops) + float64(sh.tenantOps)*(r.sampleWeight-1)
		one := ShardCount{OpsPerSecond: ops / seconds, Unserved: sh.unserved}
		one.BusyPct = 100 * float64(sh.busy) / 1e9 / seconds
		if sh.ops > 0 {
			one.PeakPerS = int64(float64(sh.peak) * ops / float64(sh.ops))
		}
		if sh.table != nil {
			one.WriteUnits, one.PeakUnits = float64(sh.writes.total)/seconds, sh.writes.peak
			one.Refused, one.BusyPct = sh.refused, 100*one.WriteUnits/partitionWrites
		}
		out.StoreOps += one.OpsPerSecond
		out.Shards = append(out.Shards, one)
	}
	if r.scenario.Store == DynamoDB {
		out.Table = r.tableUse(r.shards, seconds)
	}
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	p := &lines{w: w}
	if r.Partial {
		p.line("INTERRUPTED: this report is about the first %.1f measured seconds.", r.Seconds)
	}
	for _, broken := range r.Broken {
		p.line("BROKEN: %s", broken)
	}
	p.line("scenario %s, seed %d: %.1f s measured, %d tenants, %d instances at the end", r.Scenario, r.Seed, r.Seconds,
		r.Tenants, r.Instances)
	if l := r.Log; l != nil {
		p.line("access log   %12d  lines, each %d requests; %d cannot be used, %d name no tenant, %d a tenant without "+
			"a plan, %d a suspended one, %d come after the end", l.Read, l.Scale, l.Unusable, l.WithoutTenant,
			l.UnknownTenant, l.Suspended, l.Later)
	}
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
	if len(r.Cells) > 0 {
		p.line("not granted  %12d  of the denied came to a cell that grants nothing of the limit", r.Withheld)
		p.line("not loaded   %12d  came to an instance that did not know the tenant's limits", r.NotLoaded)
	}
	p.line("over a limit %12d  units, by the judge", r.Over)
	for _, l := range r.Limits {
		note := ""
		if l.NotJudged {
			note = "  (not judged: the judge does not know its algorithm)"
		}
		p.line("  limit %-20s over %d, denied %d, early %d%s", l.ID, l.Over, l.Denied, l.Early, note)
	}
	p.line("")
	for i := range r.Cells {
		c := &r.Cells[i]
		state := ""
		if c.Lost {
			state = "; it was lost"
		}
		p.line("cell %-20s allowed %d, denied %d, %.0f calls of its store per second, %d instances, %.1f %% of a "+
			"divided limit%s", c.Name, c.Allowed, c.Denied, c.StoreOps, c.Instances, c.PartPct, state)
	}
	if len(r.Cells) > 0 {
		p.line("shares       %12d  changes since the run began", r.Epochs)
		p.line("")
	}
	r.writeStore(p)
	p.line("")
	p.line("a decision takes p50 %.4f ms, p99 %.3f ms, p99.9 %.3f ms, at most %.3f ms; %.3f %% of them are the "+
		"fallback limiter's", r.P50ms, r.P99ms, r.P999ms, r.Maxms, percent(r.Degraded, r.Decisions))
	l := &r.Leases
	p.line("leases       %12d  calls, %d returns, %d units returned, %d lost; %d requests waited; %d counters held",
		l.Calls, l.Returns, l.Returned, l.Lost, l.Waited, l.Counters)
	p.line("breakers     %12d  opened; %d calls not made; %d decisions by the backstop, %d units replayed", l.Opened,
		l.Refused, l.Backstop, l.Replayed)
	if r.ColdStarts > 0 {
		p.line("cold starts  %12d", r.ColdStarts)
	}
	for i := range r.Faults {
		p.line("fault        %s: %s", r.Faults[i].What, r.Faults[i].Did())
	}
	if m := r.Money; m != nil {
		p.line("money        %12s  USD a month, without %s", m.Monthly, m.Without)
	}
	return p.err
}

// writeStore writes what the store did.
func (r *Report) writeStore(p *lines) {
	if r.Table != nil {
		r.writeTable(p)
		return
	}
	p.line("store calls  %12.0f  per second; %d nodes needed, each busy for half of the time at most", r.StoreOps,
		r.ShardsNeeded)
	for i, s := range r.Shards {
		p.line("  shard %-3d %14.0f  per second, at most %d in one second, busy for %.1f %% of the time; %d calls not "+
			"served", i, s.OpsPerSecond, s.PeakPerS, s.BusyPct, s.Unserved)
	}
	for _, k := range r.HotKeys {
		p.line("  hot key %-20s %d calls", k.Tenant, k.Ops)
	}
}

// writeTable writes what the table of DynamoDB did.
func (r *Report) writeTable(p *lines) {
	t := r.Table
	p.line("store calls  %12.0f  per second; %d with a condition that did not hold, %d refused", r.StoreOps,
		t.FailedConditions, t.Refused)
	p.line("write units  %12.0f  per second, and %.0f read units; %d partitions needed, each at half of its rate",
		t.WriteUnits, t.ReadUnits, r.ShardsNeeded)
	p.line("hot          %12d  partitions above their rate, which refused calls", t.PartitionsOver)
	for i, s := range r.Shards {
		p.line("  partition %-3d %10.0f  write units per second, at most %d in one second, %.1f %% of its rate; "+
			"%d calls refused", i, s.WriteUnits, s.PeakUnits, s.BusyPct, s.Refused)
	}
	for _, k := range r.HotKeys {
		p.line("  hot key %-20s %d calls, %d write units, at most %d in one second", k.Tenant, k.Ops, k.WriteUnits,
			k.PeakUnits)
	}
}

func percent(part, of int64) float64 {
	if of == 0 {
		return 0
	}
	return 100 * float64(part) / float64(of)
}

// lines writes lines until a write fails, and keeps the error.
type lines struct {
	w   io.Writer
	err error
}

func (p *lines) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}
