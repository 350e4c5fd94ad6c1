package shares

import (
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Span says what a cell may grant of a limit from a time until the next span begins.
type Span struct {
	From  int64        // µs since 1970; of the first span: the beginning of time
	Limit *limit.Limit // nil: nothing
}

// At returns the span that applies at now, µs since 1970, and when it ends.
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

// Limit returns what the cell may grant, over time, of the limit l of a plan to a tenant. owner is the tenant's name
// as an owner of counters. The spans apply until another document or placement is known; there is at least one. If all
// of the limit is granted, Span.Limit is l itself, or a copy of l with the Home that keeps its counters: see
// [View.KeptIn]. Quotas are never divided: see [View.QuotaHome].
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

// sized returns l with the amounts. It returns nil if an amount is zero, or cannot be counted exactly.
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
		return nil // nil is safe, since it grants nothing; and the balancer homes such a limit, see NeedsHome
	}
	return out
}

// KeptIn returns the cell whose counters keep the limit of a plan for all cells that serve the tenant, after the
// present transition has taken effect. This is the tenant's home cell. Every cell, including the home cell, asks for
// the limit in the home cell's DynamoDB. KeptIn returns "" if each cell grants from its own counters: for a limit that
// is divided, a tenant that only one cell serves, a quota (see [View.QuotaHome]), and a sliding_log, which DynamoDB
// cannot keep.
func (v *View) KeptIn(plan string, l *limit.Limit) string {
	if v == nil {
		return ""
	}
	return v.gens[len(v.gens)-1].keptIn(plan, l)
}

func (e *era) keptIn(plan string, l *limit.Limit) string {
	if len(e.cells) < 2 {
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

// askedPerSecond is the largest rate, in units a second, up to which a limit that is kept for all cells is never
// leased: each request asks the home cell. At low rates, leased units would lie unused in one process while another
// needs them. In one simulated run of 30 s, three processes that leased from a window of 2 a second admitted,
// depending on the load, 73 to 100 % of what one counter admits; with 30 a second, 93 to 100 %. At 300 and 1,000 a
// second they admit at least 97 % (TestKeptLimitsAreUsed in package lease). The bound itself is a choice: asking for
// 100 units a second takes a tenth of the 1,000 writes a second that DynamoDB makes to one key.
const askedPerSecond = 100

// leasable reports whether a limit that is kept for all cells may be leased from its home: all of its tiers allow more
// than askedPerSecond, and leased units can be charged again after a denial by another store (package router).
func leasable(l *limit.Limit) bool {
	for i := range l.Tiers {
		t := &l.Tiers[i]
		if t.Leasing().Longest == 0 { // its leases do not end by themselves within a known time
			return false
		}
		if t.Threshold*1_000_000 <= askedPerSecond*t.Period.Microseconds() { // both below 2^61
			return false
		}
	}
	return true
}

// QuotaHome returns the cell that keeps the count of a quota's calendar period at now, µs since 1970. Other cells
// lease from that count. A new home takes over when a period begins, since only the old home knows what is used; also
// a home that was drained or removed keeps the count until then. QuotaHome returns "" if no cell serves the tenant;
// around the time at which the home changes, while clocks may disagree on which period it is; and if the period began
// before the history of homes that is known.
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

// HomeSpan says where a quota is kept from a time until the next span begins.
type HomeSpan struct {
	From int64  // µs since 1970; of the first span: the beginning of time
	Home string // the cell; "": no cell, and nothing is granted
}

// QuotaSpans returns [View.QuotaHome] over time. A nil View, of a cell that is the only one, has no spans.
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
			at = always // no calendar can compute a period at the beginning of time, and nothing changed before this
		}
		home := v.QuotaHome(t, at)
		if n := len(out); n == 0 || out[n-1].Home != home {
			out = append(out, HomeSpan{edge, home})
		}
	}
	return out
}

// Key identifies everything in which two views of the same cell and document may differ, if neither tenant has a
// placement: the tenants' home cells. Views with equal keys give the same spans for a limit that is not aligned to its
// owner.
type Key struct{ homes string }

// Key returns the view's key; ok is false if the view has none, as for a tenant with a placement.
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
		homes.WriteByte(',') // no cell's name contains a comma
	}
	return Key{homes.String()}, true
}

// Weight returns the cell's part in limits that are divided, after the present transition has taken effect: its own
// weight, and the sum of the weights of all cells that serve the tenant.
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

// part returns the cell's share of a tier in an era.
func (v *View) part(e *era, plan string, t *limit.Tier) amount {
	all := amountOf(t)
	if e.keptIn(plan, t.Limit()) != "" {
		if serves(e.cells, v.cell) {
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

// isListed reports whether the limit is in the list of homed limits of the plan or of the tenant.
func (e *era) isListed(plan, id string) bool {
	return slices.Contains(e.homedBy, id) || slices.Contains(e.homed, PlanLimit{plan, id})
}

// schedule returns what the cell may grant of the tier, over time.
func (v *View) schedule(plan string, t *limit.Tier, owner string) []step {
	if t.Calendar != nil {
		return []step{{beginning, amountOf(t)}}
	}
	parts := make([]amount, len(v.gens))
	home := v.KeptIn(plan, t.Limit())
	for i := range v.gens {
		// A cell does not know what other counters granted. The limit therefore moves as it would between cells: it is
		// closed in each window that a generation with other counters may still govern.
		if v.gens[i].keptIn(plan, t.Limit()) == home {
			parts[i] = v.part(&v.gens[i], plan, t)
		}
	}
	if t.Algorithm.HasBurst() {
		return v.bucketSchedule(t, parts)
	}
	var out []step
	if v.gens[0].from != always { // what was granted in earlier windows is unknown
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

// countsFrom returns when growth at the time from takes effect for a tier with windows: see the package comment.
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
			out[i].amount = hold(out[i].amount, parts[g]) // a shrink applies at once, whatever the later growth is
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
		at := addSat(from+v.skew, holdTime(held, parts[g], period))
		if g+1 < len(parts) && v.gens[g+1].from != 0 && v.gens[g+1].from <= at {
			continue // the next change comes before this growth
		}
		out = append(out, step{at, parts[g]})
		now = parts[g]
	}
	return out
}

// hold returns the numbers of a bucket from a shrink until it grows from now to next. Neither number is above that of
// now or of next, and the bucket does not take longer to fill than before, so that a bucket whose state was deleted
// because it was full would be full at this time too. If only the burst is to grow, the rate is lowered so that the
// ideal bucket gets ahead.
func hold(now, next amount) amount {
	to := amount{min(now.threshold, next.threshold), min(now.burst, next.burst)}.inProportion(now)
	if to.threshold == next.threshold && to.burst < next.burst {
		to.threshold--
		to = to.inProportion(now)
	}
	return to.wholeOrZero()
}

// inProportion lowers the burst so that the bucket does not take longer to fill than one with the numbers before.
func (a amount) inProportion(before amount) amount {
	if a.threshold < before.threshold {
		hi, lo := bits.Mul64(uint64(before.burst), uint64(max(a.threshold, 0)))
		most, _ := bits.Div64(hi, lo, uint64(before.threshold)) // at most before.burst
		a.burst = min(a.burst, int64(most))
	}
	return a
}

// holdTime returns how long a bucket is held before it grows to next, in µs: see the package comment.
func holdTime(held, next amount, period int64) int64 {
	wait := mulDivUp(next.burst, period, next.threshold)
	if more := next.threshold - held.threshold; more > 0 {
		wait = addSat(wait, mulDivUp(next.burst-held.burst, period, more))
	}
	return wait
}

// mulDivUp returns a·b/c rounded up, or math.MaxInt64 if the result is larger.
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
