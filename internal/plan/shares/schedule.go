package shares

import (
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Span is what a cell may grant of a limit from a time until the next span's.
type Span struct {
	From  int64        // µs since 1970; of the first span before all time
	Limit *limit.Limit // nil: nothing
}

// At is the span that holds at a time, µs since 1970.
func At(spans []Span, now int64) (in Span, until int64) {
	i := 1
	for i < len(spans) && spans[i].From <= now {
		i++
	}
	if i < len(spans) {
		return spans[i-1], spans[i].From
	}
	return spans[i-1], math.MaxInt64
}

// Limit is what the cell may grant of the limit l of a plan, over time, to the tenant, whose name as an owner of
// counters is owner. The spans hold until another document or placement is known; there is at least one. Where all of
// the limit is granted, Limit is l itself, or a copy of l with the Home that keeps its counters: see [View.KeptIn].
// Quotas are never divided: see [View.QuotaHome].
func (v *View) Limit(plan string, l *limit.Limit, owner string) []Span {
	if v == nil {
		return []Span{{beginning, l}}
	}
	whole := l
	if home := v.KeptIn(plan, l); home != "" {
		whole = l.KeptIn(home)
		whole.Exact = l.Exact || !leasable(l)
	}
	steps := make([][]step, len(l.Tiers))
	edges := []int64{beginning}
	for i := range l.Tiers {
		steps[i] = v.schedule(plan, &l.Tiers[i], owner)
		for _, s := range steps[i] {
			edges = append(edges, s.from)
		}
	}
	slices.Sort(edges)
	var out []Span
	amounts := make([]amount, len(l.Tiers))
	var last []amount
	for _, edge := range slices.Compact(edges) {
		for i := range steps {
			amounts[i] = stepAt(steps[i], edge)
		}
		if last != nil && slices.Equal(last, amounts) {
			continue
		}
		last = slices.Clone(amounts)
		if to := sized(whole, amounts); len(out) == 0 || to != nil || out[len(out)-1].Limit != nil {
			out = append(out, Span{edge, to})
		}
	}
	return out
}

// sized is l with the amounts, or nil where one is nothing, or cannot be counted exactly.
func sized(l *limit.Limit, amounts []amount) *limit.Limit {
	same := true
	for i, a := range amounts {
		if a.closed() {
			return nil
		}
		same = same && a == amountOf(&l.Tiers[i])
	}
	if same {
		return l
	}
	out, err := resized(l, amounts)
	if err != nil {
		return nil // granting nothing is safe, and the balancer homes such a limit, see NeedsHome
	}
	return out
}

// KeptIn is the cell whose counters keep the limit of a plan for all cells that serve the tenant, once everything
// that is under way has taken effect: its home cell, in whose DynamoDB every cell asks for it, the home cell itself,
// too. It is "" where each cell grants from its own counters: a limit that is divided, a tenant that one cell serves
// alone, a quota (see [View.QuotaHome]), a sliding_log, which DynamoDB cannot keep, and generations that are not
// [Generation.Kept].
func (v *View) KeptIn(plan string, l *limit.Limit) string {
	if v == nil {
		return ""
	}
	return v.gens[len(v.gens)-1].keptIn(plan, l)
}

func (e *era) keptIn(plan string, l *limit.Limit) string {
	if !e.kept || len(e.cells) < 2 {
		return ""
	}
	homed := e.isListed(plan, l.ID)
	for i := range l.Tiers {
		t := &l.Tiers[i]
		if t.Calendar != nil || t.Counting().EachCharge { // DynamoDB has no room for an entry of each charge
			return ""
		}
		homed = homed || t.Algorithm.Indivisible()
	}
	if !homed {
		return ""
	}
	return e.home
}

// askedPerSecond is up to how many units a second a limit that is kept for all cells is never leased: each request
// asks the home. Leased, so few units lie in one process while another one is asked: in one simulated run of 30 s
// three processes that leased a window of 2 a second admitted 73 to 100 % of what one counter does, by the load, and
// of 30 a second 93 to 100 %. At 300 and 1,000 a second it is at least 97 % (TestKeptLimitsAreUsed in package lease).
// The bound itself is a choice: to be asked for 100 units a second takes a tenth of the 1,000 writes a second that
// DynamoDB makes to one key.
const askedPerSecond = 100

// leasable reports whether a limit that is kept for all cells may be leased from its home: where all of its tiers
// allow more than askedPerSecond, and units that were leased may be charged again after a denial of another store
// (package router).
func leasable(l *limit.Limit) bool {
	for i := range l.Tiers {
		t := &l.Tiers[i]
		if t.Leasing().Longest == 0 { // no lease of it ends by itself within a known time
			return false
		}
		if t.Threshold*1_000_000 <= askedPerSecond*t.Period.Microseconds() { // both below 2^61
			return false
		}
	}
	return true
}

// QuotaHome is the cell that keeps the count of a quota's calendar period at now, µs since 1970; from it others lease.
// A new home takes over when a period begins, since only the old one knows what is used: also one that was drained or
// removed keeps it until then. It is "" where no cell serves the tenant, around the edge at which the home changes,
// while clocks may take each other's period for the next one, and where the period began before all that is known of
// who kept it.
func (v *View) QuotaHome(t *limit.Tier, now int64) string {
	home := v.quotaHome(t, now-v.skew)
	if home != v.quotaHome(t, now+v.skew) {
		return ""
	}
	return home
}

func (v *View) quotaHome(t *limit.Tier, now int64) string {
	start, _ := t.Calendar.Period(now)
	if start < v.gens[0].homeFrom && v.gens[0].homeFrom > always {
		return ""
	}
	g := 0
	for g+1 < len(v.gens) && v.gens[g+1].from != 0 && v.gens[g+1].from <= start {
		g++
	}
	return v.gens[g].home
}

// HomeSpan is where a quota is kept from a time until the next span's.
type HomeSpan struct {
	From int64  // µs since 1970; of the first span before all time
	Home string // the cell; "": nowhere, and nothing is granted
}

// QuotaSpans is [View.QuotaHome] over time. A nil View, of a cell that is alone, has none.
func (v *View) QuotaSpans(t *limit.Tier) []HomeSpan {
	if v == nil {
		return nil
	}
	edges := []int64{beginning}
	next := func(from int64) {
		if from > always {
			_, edge := t.Calendar.Period(from - 1) // the first period that begins at from or later
			edges = append(edges, edge-v.skew, edge+v.skew)
		}
	}
	next(v.gens[0].homeFrom)
	for i := range v.gens {
		next(v.gens[i].from)
	}
	slices.Sort(edges)
	var out []HomeSpan
	for _, edge := range slices.Compact(edges) {
		at := edge
		if edge == beginning {
			at = always // no calendar goes back for ever, and there was none before
		}
		home := v.QuotaHome(t, at)
		if n := len(out); n == 0 || out[n-1].Home != home {
			out = append(out, HomeSpan{edge, home})
		}
	}
	return out
}

// Key stands for everything that two views of one cell and document may differ in, if neither tenant has a placement:
// where they are at home. Views of one key give the same spans of a limit that is not aligned to its owner.
type Key struct{ homes string }

// Key returns the view's; false where there is none, as for a tenant that has a placement.
func (v *View) Key() (k Key, ok bool) {
	if v == nil {
		return k, true
	}
	var homes strings.Builder
	for i := range v.gens {
		e := &v.gens[i]
		if len(e.pinned) > 0 || len(e.homedBy) > 0 {
			return Key{}, false
		}
		homes.WriteString(e.home)
		homes.WriteByte(',') // which no cell's name has
	}
	return Key{homes.String()}, true
}

// Weight is what part the cell has in limits that are divided, once everything under way has taken effect: its weight
// and that of all that serve the tenant.
func (v *View) Weight() (own, all int64) {
	if v == nil {
		return 1, 1
	}
	for _, w := range v.gens[len(v.gens)-1].cells {
		if all += w.Weight; w.Cell == v.cell {
			own = w.Weight
		}
	}
	return own, all
}

// step is what may be granted of a tier from a time on.
type step struct {
	from int64
	amount
}

func stepAt(steps []step, at int64) amount {
	i := 1
	for i < len(steps) && steps[i].from <= at {
		i++
	}
	return steps[i-1].amount
}

// part is the cell's share of a tier in an era.
func (v *View) part(e *era, plan string, t *limit.Tier) amount {
	all := amountOf(t)
	if e.keptIn(plan, t.Limit()) != "" {
		if slices.ContainsFunc(e.cells, func(w Weight) bool { return w.Cell == v.cell }) {
			return all
		}
		return amount{}
	}
	if e.homes(plan, t) {
		if e.home == v.cell && v.cell != "" {
			return all
		}
		return amount{}
	}
	for i := range e.cells {
		if e.cells[i].Cell == v.cell {
			return all.part(e.cells, i)
		}
	}
	return amount{}
}

func (e *era) homes(plan string, t *limit.Tier) bool {
	return t.Algorithm.Indivisible() || e.isListed(plan, t.Limit().ID)
}

// isListed reports whether the limit is homed by its id.
func (e *era) isListed(plan, id string) bool {
	return slices.Contains(e.homedBy, id) || slices.Contains(e.homed, PlanLimit{plan, id})
}

// schedule is what the cell may grant of the tier, over time.
func (v *View) schedule(plan string, t *limit.Tier, owner string) []step {
	if t.Calendar != nil {
		return []step{{beginning, amountOf(t)}}
	}
	parts := make([]amount, len(v.gens))
	home := v.KeptIn(plan, t.Limit())
	for i := range v.gens {
		// What other counters granted says nothing of these, so the limit moves as between cells: it is closed in each
		// window that a generation with other counters may still govern.
		if v.gens[i].keptIn(plan, t.Limit()) == home {
			parts[i] = v.part(&v.gens[i], plan, t)
		}
	}
	if t.Algorithm.HasBurst() {
		return v.bucketSchedule(t, parts)
	}
	var out []step
	if v.gens[0].from != always { // what was granted in windows from before is not known
		out = append(out, step{from: beginning})
	}
	for g := range parts {
		from := v.gens[g].from
		if from == 0 {
			break
		}
		at := int64(beginning)
		if from != always {
			at = v.countsFrom(t, owner, from)
		}
		least := parts[g]
		for _, later := range parts[g+1:] {
			least.threshold = min(least.threshold, later.threshold)
		}
		if n := len(out); n > 0 && out[n-1].from == at {
			out[n-1].amount = least
			continue
		}
		out = append(out, step{at, least})
	}
	return out
}

// countsFrom is when growth of the time from counts for a tier with windows: see the package comment.
func (v *View) countsFrom(t *limit.Tier, owner string, from int64) int64 {
	return t.ForgottenAt(owner, from) + v.skew
}

// bucketSchedule is schedule for a token bucket.
func (v *View) bucketSchedule(t *limit.Tier, parts []amount) []step {
	period := t.Period.Microseconds()
	now := amount{}
	first := 0
	if v.gens[0].from == always {
		now, first = parts[0], 1
	}
	out := []step{{beginning, now}}
	for g := first; g < len(parts); g++ {
		held := now
		for i := range out {
			out[i].amount = hold(out[i].amount, parts[g]) // at once, whatever it comes to
		}
		if held = hold(held, parts[g]); v.gens[g].from == 0 {
			break
		}
		from := v.gens[g].from
		out = append(out, step{from, held})
		now = held
		if held == parts[g] {
			continue
		}
		at := addSat(from+v.skew, ripens(held, parts[g], period))
		if g+1 < len(parts) && v.gens[g+1].from != 0 && v.gens[g+1].from <= at {
			continue // it never came to that
		}
		out = append(out, step{at, parts[g]})
		now = parts[g]
	}
	return out
}

// hold is what a bucket of the numbers now has from a shrink on until it grows to next: neither number above either's,
// and slower to fill than before in nothing, so that a state which is forgotten as full would be full by now. If only
// the burst is to grow, the rate makes room for that.
func hold(now, next amount) amount {
	to := amount{min(now.threshold, next.threshold), min(now.burst, next.burst)}.inProportion(now)
	if to.threshold == next.threshold && to.burst < next.burst {
		to.threshold--
		to = to.inProportion(now)
	}
	return to.whole()
}

// inProportion is a bucket that does not take longer to fill than that of the numbers before.
func (a amount) inProportion(before amount) amount {
	if a.threshold < before.threshold {
		hi, lo := bits.Mul64(uint64(before.burst), uint64(max(a.threshold, 0)))
		most, _ := bits.Div64(hi, lo, uint64(before.threshold)) // at most before.burst
		a.burst = min(a.burst, int64(most))
	}
	return a
}

// ripens is how long a bucket is held before it grows to next, µs: see the package comment.
func ripens(held, next amount, period int64) int64 {
	wait := mulDivUp(next.burst, period, next.threshold)
	if more := next.threshold - held.threshold; more > 0 {
		wait = max(wait, mulDivUp(next.burst-held.burst, period, more))
	}
	return wait
}

// mulDivUp is a·b/c rounded up, or the largest number where that does not fit.
func mulDivUp(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, rest := bits.Div64(hi, lo, uint64(c))
	if rest > 0 {
		q++
	}
	if q > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(q)
}

func addSat(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}
