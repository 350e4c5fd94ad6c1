package limittest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // so that every machine has the time zones of the quotas

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var scriptCases = []testCase{
	{"random scripts agree with the model", testScripts},
}

// testScripts compares random charges, peeks, refunds, changes and steps of time with the model. A failure reports the
// seed and prints the script up to the step that differs. Scripts are short, because a person has to read them.
func testScripts(tb testing.TB, c Config) {
	differing := 0
	for i := range uint64(c.Scripts) {
		w := newWorld(tb, c, c.Seed+i)
		if w.run() {
			continue
		}
		if differing++; differing == 3 {
			tb.Fatalf("in three scripts the store differs from the model; the remaining scripts are not run")
		}
	}
}

// world is what one script works on: a store, the model, and the limits.
type world struct {
	s      *subject
	r      *rand.Rand
	seed   uint64
	model  *Model
	now    int64
	plans  []limit.Limit // the present versions of the limits
	limits []*limit.Limit
	owners []limit.Owner
	made   []made // decisions that can be refunded
	times  []int64
	trace  strings.Builder
	diffs  []string
}

type made struct {
	d        *limit.Decision
	o        *Outcome
	refunded bool
	kept     *limit.Receipt // nil: the decision is refunded, and not settled
}

func newWorld(tb testing.TB, c Config, seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 0x51))
	w := &world{
		s: newSubject(tb, c), r: r, seed: seed, model: NewModel(tb),
		now:    Start.UnixMicro() + r.Int64N(int64(400*24*time.Hour/time.Microsecond)),
		owners: []limit.Owner{acme, {Kind: limit.Tenant, Name: "zeta"}},
	}
	for i := range 1 + r.IntN(4) {
		w.plans = append(w.plans, w.randomLimit(fmt.Sprint("l", i)))
		w.limits = append(w.limits, build(tb, w.plans[i]))
	}
	return w
}

// randomLimit returns a limit that New and the store accept. Most limits are small, so that scripts reach their edges;
// some are as large as the arithmetic allows.
func (w *world) randomLimit(id string) limit.Limit {
	samples := w.s.c.samples()
	for range 1000 {
		l := limit.Limit{ID: id, MaxCost: 1}
		large := w.r.IntN(8) == 0
		for range 1 + w.r.IntN(2)*w.r.IntN(3) {
			l.Tiers = append(l.Tiers, w.randomTier(samples[w.r.IntN(len(samples))].algorithm, large))
		}
		for i := range l.Tiers {
			l.MaxCost = max(l.MaxCost, capacity(&l.Tiers[i]))
		}
		if w.r.IntN(4) == 0 {
			l.Mode = limit.Shadow
		}
		if w.r.IntN(3) == 0 {
			l.Per = "subject"
		}
		if made, err := limit.New(l); err == nil && w.s.store.Accepts(made) == nil {
			return l
		}
	}
	w.s.Fatalf("seed %d: New or the store accepts none of a thousand random limits", w.seed)
	return limit.Limit{}
}

func (w *world) randomTier(a limit.Algorithm, large bool) limit.Tier {
	// Up to a period of a second, the weight of a sliding window changes every µs, as in the model.
	periods := []time.Duration{time.Millisecond, 7 * time.Millisecond, 100 * time.Millisecond,
		333 * time.Millisecond, time.Second}
	t := limit.Tier{Algorithm: a, Period: periods[w.r.IntN(len(periods))]}
	if a != limit.SlidingWindow && w.r.IntN(3) == 0 {
		t.Period = []time.Duration{10 * time.Second, 59999 * time.Millisecond, time.Hour, 36 * time.Hour,
			limit.MaxPeriod}[w.r.IntN(5)]
	}
	units := func() int64 {
		if large {
			return 1 + w.r.Int64N(1<<(1+w.r.IntN(40)))
		}
		return 1 + w.r.Int64N(12)
	}
	t.Threshold = units()
	switch a {
	case limit.SlidingWindow:
		t.Threshold = min(t.Threshold, limit.MaxSlidingUnits)
	case limit.SlidingLog:
		t.Threshold = min(t.Threshold, limit.MaxLogEntries)
	case limit.SlidingBuckets:
		t.Buckets = 1 + w.r.IntN(7)
	case limit.TokenBucket:
		t.Burst = units()
	case limit.Quota:
		t.Period, t.Calendar = 0, w.randomCalendar()
	}
	return t
}

func (w *world) randomCalendar() *limit.Calendar {
	zones := []string{"UTC", "Europe/Paris", "America/St_Johns", "America/New_York", "Australia/Lord_Howe",
		"Africa/Cairo"}
	zone, err := time.LoadLocation(zones[w.r.IntN(len(zones))])
	if err != nil {
		w.s.Fatalf("time zone: %v", err)
	}
	c := &limit.Calendar{Every: limit.Day + limit.Every(w.r.IntN(4)), Location: zone}
	switch c.Every {
	case limit.Month:
		c.AnchorDay = 1 + w.r.IntN(31)
	case limit.Year:
		c.AnchorDay, c.AnchorMonth = 1+w.r.IntN(31), time.Month(1+w.r.IntN(12))
	}
	return c
}

// run runs the script and reports whether the store and the model agreed.
func (w *world) run() bool {
	ended := false
	defer func() {
		if !ended { // an error of the store ends the test
			w.s.Logf("seed %d, after these steps, at µs since %s:\n%s", w.seed, Start.Format(time.RFC3339),
				w.trace.String())
		}
	}()
	agreed := w.runSteps()
	ended = true
	return agreed
}

func (w *world) runSteps() bool {
	for step := range w.s.c.Steps {
		switch p := w.r.IntN(100); {
		case p < 30:
			w.pass()
		case p < 80:
			w.decide(true)
		case p < 87:
			w.decide(false)
		case p < 96:
			w.refund()
		default:
			w.change()
		}
		if len(w.diffs) > 0 {
			w.s.Errorf("seed %d, step %d: %s\nafter these steps, at µs since %s:\n%s",
				w.seed, step+1, strings.Join(w.diffs, "\n"), Start.Format(time.RFC3339), w.trace.String())
			return false
		}
	}
	if over := w.model.OverBound(); over != "" {
		w.s.Errorf("seed %d: %s\n%s", w.seed, over, w.trace.String())
		return false
	}
	return true
}

func (w *world) log(format string, args ...any) {
	fmt.Fprintf(&w.trace, "  +%d: %s\n", w.now-Start.UnixMicro(), fmt.Sprintf(format, args...))
}

func (w *world) differ(what string, got, want any) {
	w.diffs = append(w.diffs, fmt.Sprintf("%s: the store says %v, the model %v", what, got, want))
}

// pass lets time pass: a little, or until shortly before a counter changes.
func (w *world) pass() {
	if len(w.times) > 0 && w.r.IntN(2) == 0 {
		to := w.times[w.r.IntN(len(w.times))] - w.r.Int64N(2)
		if to >= w.now && to-w.now < (500*24*time.Hour).Microseconds() {
			w.now = to
			w.times = nil
			return
		}
	}
	most := []int64{2, 1000, 100_000, 1_000_000, 5_000_000, 3_600_000_000, 90_000_000_000}
	w.now += w.r.Int64N(most[min(w.r.IntN(len(most)), w.r.IntN(len(most)))])
}

func (w *world) decide(commit bool) {
	owner := w.owners[w.r.IntN(len(w.owners))]
	var charges []limit.Charge
	for _, l := range w.limits {
		if w.r.IntN(4) == 0 {
			continue
		}
		ch := charge(l, w.randomCost(l))
		if l.Per != limit.PerTenant {
			ch.Value = []limit.Value{limit.ValueOf("u-1"), limit.ValueOf("u-2"), {Kind: limit.ValueAbsent}}[w.r.IntN(3)]
		}
		if w.model.mayBeForgotten(owner, ch, w.now) {
			continue // the store may have forgotten the counter, and then differs from the model
		}
		charges = append(charges, ch)
	}
	w.r.Shuffle(len(charges), func(i, j int) { charges[i], charges[j] = charges[j], charges[i] })
	s, now := w.s.of(owner), time.UnixMicro(w.now)
	var d *limit.Decision
	name := "peek"
	if commit {
		name = "charge"
		d = s.decide(now, charges...)
	} else {
		d = s.peek(now, charges...)
	}
	o := w.model.Decide(owner, charges, w.now, commit)
	w.log("%s %s %s: allowed %t", owner.Name, name, describe(charges), d.Allowed)
	w.compare(d, o)
	if d.Allowed && commit {
		m := made{d: d, o: o}
		if w.r.IntN(2) == 0 {
			m.kept = d.Receipt()
			m.kept.KeepFor(keptInScripts)
		}
		w.made = append(w.made, m)
	}
}

func (w *world) randomCost(l *limit.Limit) int64 {
	most := capacity(&l.Tiers[0])
	for i := range l.Tiers {
		most = min(most, capacity(&l.Tiers[i]))
	}
	switch w.r.IntN(12) {
	case 0:
		return most
	case 1:
		return min(most+w.r.Int64N(3), limit.MaxUnits)
	case 2, 3, 4:
		return 1
	}
	return 1 + w.r.Int64N(most+1)/2
}

func (w *world) compare(d *limit.Decision, o *Outcome) {
	if d.Allowed != o.Allowed {
		w.differ("allowed", d.Allowed, o.Allowed)
	}
	if d.Never != o.Never {
		w.differ("never", d.Never, o.Never)
	}
	if d.RetryAt != o.RetryAt {
		w.differ("retry at", d.RetryAt, o.RetryAt)
	}
	binding := -1
	for i := range d.Results {
		r := &d.Results[i]
		if r == d.Binding() {
			binding = i
		}
		got := TierOutcome{Admits: r.Admits, Never: r.Never, Charged: r.Charged, Remaining: r.Remaining(),
			RetryAt: r.RetryAt, Used: r.Used(), ResetAt: r.ResetAt(), MoreAt: r.MoreAt()}
		if want := o.Tiers[i]; got != want {
			w.differ(fmt.Sprintf("result %d (%s)", i+1, r.Limit().ID), fmt.Sprintf("%+v", got),
				fmt.Sprintf("%+v", want))
		}
		w.times = append(w.times, r.ResetAt())
		if r.RetryAt > 0 {
			w.times = append(w.times, r.RetryAt)
		}
	}
	if binding != o.Binding {
		w.differ("index of the binding result", binding, o.Binding)
	}
}

func (w *world) refund() {
	if len(w.made) == 0 {
		return
	}
	m := &w.made[max(w.r.IntN(len(w.made)), w.r.IntN(len(w.made)))] // most often a recent one
	if m.kept != nil {
		w.settle(m)
		return
	}
	units := int64(0)
	if w.r.IntN(2) == 0 {
		units = 1 + w.r.Int64N(12)
	}
	got := w.s.refund(time.UnixMicro(w.now), m.d, units)
	want := make([]int64, len(m.o.receipt))
	if !m.refunded {
		want = w.model.Refund(m.o, units, w.now)
	}
	w.log("%s refund %d of the charge at +%d: %v", m.d.Owner.Name, units, m.d.Now-Start.UnixMicro(), got.Returned)
	if !slices.Equal(got.Returned, want) {
		w.differ("units", got.Returned, want)
	}
	open, expired := false, w.now >= m.d.Now+limit.MaxReceiptAge.Microseconds()
	for _, e := range m.o.receipt {
		open = open || w.now < e.end() && !expired
	}
	if len(want) > 0 && !m.refunded && got.Expired != expired {
		w.differ("expired", got.Expired, expired)
	}
	if open && got.Repeated != m.refunded {
		w.differ("repeated", got.Repeated, m.refunded)
	}
	m.refunded = true
}

// keptInScripts is for how long the receipts that settle settles are kept.
const keptInScripts = 10 * time.Minute

// settle settles a decision: less, the same or more was used.
func (w *world) settle(m *made) {
	used := m.kept.Without(0)
	for i, e := range m.kept.Entries() {
		switch w.r.IntN(4) {
		case 0: // nothing
		case 1:
			used[i] = e.Units
		case 2:
			used[i] = w.r.Int64N(e.Units + 1)
		default:
			// a leaky bucket, and one whose units are a long time, can owe few units
			if used[i] = e.Units; e.Tier.Algorithm != limit.LeakyBucket && e.Tier.Period <= time.Hour {
				used[i] = min(e.Units+1+w.r.Int64N(12), limit.MaxUnits)
			}
		}
	}
	got := w.s.settle(time.UnixMicro(w.now), m.kept, used...)
	none := make([]int64, len(used))
	returned, charged, uncharged := none, none, none
	expired := w.now >= m.d.Now+keptInScripts.Microseconds()
	if !m.refunded && !expired {
		returned, charged, uncharged = w.model.Settle(m.o, used, w.now)
	}
	w.log("%s settle %d of the charge at +%d: %+v", m.d.Owner.Name, used, m.d.Now-Start.UnixMicro(), got)
	if !slices.Equal(got.Returned, returned) || !slices.Equal(got.Charged, charged) ||
		!slices.Equal(got.Uncharged, uncharged) {
		w.differ("settlement", got, fmt.Sprint(returned, " returned, ", charged, " charged, ", uncharged, " not"))
	}
	if len(used) > 0 && (got.Expired != expired || got.Repeated != (m.refunded && !expired)) {
		w.differ("expired and repeated", fmt.Sprint(got.Expired, got.Repeated), fmt.Sprint(expired, m.refunded))
	}
	m.refunded = true
}

// change changes the numbers of a limit, or its identity.
func (w *world) change() {
	i := w.r.IntN(len(w.plans))
	l := w.plans[i]
	if w.r.IntN(4) == 0 {
		l = w.randomLimit(l.ID)
	} else {
		l.Tiers = slices.Clone(l.Tiers)
		for j := range l.Tiers {
			other := w.randomTier(l.Tiers[j].Algorithm, w.r.IntN(8) == 0)
			l.Tiers[j].Threshold, l.Tiers[j].Burst = other.Threshold, other.Burst
			l.MaxCost = max(l.MaxCost, capacity(&l.Tiers[j]))
		}
	}
	l.Home = homeIn(w.s.TB, &l)
	made, err := limit.New(l)
	if err != nil || w.s.store.Accepts(made) != nil {
		return
	}
	w.plans[i], w.limits[i] = l, made
	w.log("limit %s is changed", l.ID)
}
