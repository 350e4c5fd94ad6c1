package limittest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Start is the time at which the scripts begin: a Monday at ten o'clock. It is an edge of every window whose period
// divides an hour.
var Start = time.Date(2026, time.March, 2, 10, 0, 0, 0, time.UTC)

// acme is the owner of the counters in most scripts.
var acme = limit.Owner{Kind: limit.Tenant, Name: "acme"}

// subject is a store under test, with methods for the steps of scripts.
type subject struct {
	testing.TB
	c     Config
	store limit.Store
	owner limit.Owner
}

func newSubject(tb testing.TB, c Config) *subject {
	tb.Helper()
	return &subject{TB: tb, c: c, store: c.New(tb), owner: acme}
}

// of returns the same store for another owner.
func (s *subject) of(owner limit.Owner) *subject {
	o := *s
	o.owner = owner
	return &o
}

// clock sets the store's own clock to now.
func (s *subject) clock(now time.Time) {
	if s.c.SetClock != nil {
		s.c.SetClock(s.store, now)
	}
}

func (s *subject) request(charges []limit.Charge) *limit.Request {
	return &limit.Request{Owner: s.owner, Charges: charges}
}

func (s *subject) decide(now time.Time, charges ...limit.Charge) *limit.Decision {
	s.Helper()
	s.clock(now)
	d := new(limit.Decision)
	if err := s.store.Decide(s.Context(), s.request(charges), now, d); err != nil {
		s.Fatalf("Decide(%s at %s): %v", describe(charges), stamp(now), err)
	}
	s.checkDecision(now, charges, d)
	return d
}

func (s *subject) peek(now time.Time, charges ...limit.Charge) *limit.Decision {
	s.Helper()
	s.clock(now)
	d := new(limit.Decision)
	if err := s.store.Peek(s.Context(), s.request(charges), now, d); err != nil {
		s.Fatalf("Peek(%s at %s): %v", describe(charges), stamp(now), err)
	}
	s.checkDecision(now, charges, d)
	return d
}

// checkDecision checks the properties that every decision has.
func (s *subject) checkDecision(now time.Time, charges []limit.Charge, d *limit.Decision) {
	s.Helper()
	tiers := 0
	for _, c := range charges {
		tiers += len(c.Limit.Tiers)
	}
	at := now.UnixMicro()
	switch {
	case len(d.Results) != tiers:
		s.Fatalf("%s at %s: %d results, want %d, one for each tier", describe(charges), stamp(now), len(d.Results),
			tiers)
	case d.Now != at:
		s.Fatalf("%s at %s: decided at %d µs, want %d", describe(charges), stamp(now), d.Now, at)
	case d.Owner != s.owner:
		s.Fatalf("%s at %s: the decision is for owner %v, want %v", describe(charges), stamp(now), d.Owner, s.owner)
	case d.Allowed && (d.Never || d.RetryAt != 0 || d.RetryAfter() != 0):
		s.Fatalf("%s at %s: allowed, but never=%t, RetryAt=%d, RetryAfter=%s; want none of these", describe(charges),
			stamp(now), d.Never, d.RetryAt, d.RetryAfter())
	case d.Never && (d.RetryAt != 0 || d.RetryAfter() != 0):
		s.Fatalf("%s at %s: never allowed, but RetryAt=%d, RetryAfter=%s; want neither", describe(charges), stamp(now),
			d.RetryAt, d.RetryAfter())
	case !d.Allowed && !d.Never && d.RetryAt <= at:
		s.Fatalf("%s at %s: denied with RetryAt=%d, want it after %d", describe(charges), stamp(now), d.RetryAt, at)
	}
	b := d.Binding()
	if !d.Allowed && (b == nil || b.Admits || b.Shadow() || b.Never != d.Never ||
		(!d.Never && b.RetryAt != d.RetryAt)) {
		s.Fatalf("%s at %s: the binding result %+v does not agree with the denial (never=%t, RetryAt=%d)",
			describe(charges), stamp(now), b, d.Never, d.RetryAt)
	}
	for i := range d.Results {
		if r := &d.Results[i]; r.Remaining() < 0 || (!r.Admits && r.Remaining() >= r.Cost) ||
			(!d.Allowed && r.Charged != 0) ||
			(r.Charged != 0 && r.Charged != r.Cost) {
			s.Fatalf("%s at %s: result %d contradicts itself or the decision: admits=%t with %d remaining, charged "+
				"%d of a cost of %d, allowed=%t", describe(charges), stamp(now),
				i+1, r.Admits, r.Remaining(), r.Charged, r.Cost, d.Allowed)
		}
	}
}

func (s *subject) allowed(now time.Time, charges ...limit.Charge) *limit.Decision {
	s.Helper()
	d := s.decide(now, charges...)
	if !d.Allowed {
		s.Fatalf("%s at %s: denied (never=%t, retry at %s), want allowed", describe(charges), stamp(now), d.Never,
			stamp(time.UnixMicro(d.RetryAt)))
	}
	for i := range d.Results {
		if r := &d.Results[i]; !r.Shadow() && r.Charged != r.Cost {
			s.Fatalf("%s at %s: allowed, but result %d says that %d units are charged, want %d", describe(charges),
				stamp(now), i+1, r.Charged, r.Cost)
		}
	}
	return d
}

func (s *subject) denied(now time.Time, charges ...limit.Charge) *limit.Decision {
	s.Helper()
	d := s.decide(now, charges...)
	if d.Allowed {
		s.Fatalf("%s at %s: allowed, want denied", describe(charges), stamp(now))
	}
	return d
}

func (s *subject) refund(now time.Time, d *limit.Decision, units int64) limit.Settlement {
	s.Helper()
	s.clock(now)
	r, err := s.store.Settle(s.Context(), d.Receipt(), d.Receipt().Without(units), now)
	if err != nil {
		s.Fatalf("Refund(%d units at %s): %v", units, stamp(now), err)
	}
	if len(r.Returned) != len(d.Receipt().Entries()) {
		s.Fatalf("Refund(%d units at %s): %d entries, want %d, one for each entry of the receipt", units, stamp(now),
			len(r.Returned), len(d.Receipt().Entries()))
	}
	return r
}

// remaining returns how many units of the first tier of a limit remain, from a peek.
func (s *subject) remaining(now time.Time, l *limit.Limit) int64 {
	s.Helper()
	return s.peek(now, charge(l, 1)).Results[0].Remaining()
}

// counters returns everything that a caller can see of the counters, from a peek at each limit.
func (s *subject) counters(now time.Time, charges ...limit.Charge) []string {
	s.Helper()
	var seen []string
	for _, c := range charges {
		c.Cost = 1
		d := s.peek(now, c)
		for i := range d.Results {
			r := &d.Results[i]
			seen = append(seen, fmt.Sprintf("%s tier %d: used %d, remaining %d, admits one %t, retry %d, reset %d",
				c.Limit.ID, i+1, r.Used(), r.Remaining(), r.Admits, r.RetryAt, r.ResetAt()))
		}
	}
	return seen
}

// unchanged fails the test if before and after differ.
func (s *subject) unchanged(what string, before, after []string) {
	s.Helper()
	for i := range before {
		if before[i] != after[i] {
			s.Errorf("%s changed a counter\nbefore: %s\n after: %s", what, before[i], after[i])
		}
	}
}

// accepts reports whether the suite may use the algorithm on this store.
func (c Config) accepts(a limit.Algorithm) bool {
	for _, r := range c.Refuses {
		if r == a {
			return false
		}
	}
	return true
}

// placed is a test in which another cell keeps some of the limits.
type placed struct {
	testing.TB
	home  string
	homed func(l *limit.Limit) bool // if nil, the quotas
}

// homeIn returns the cell that keeps the limit in the test, or "" for the cell that decides.
func homeIn(tb testing.TB, l *limit.Limit) string {
	p, ok := tb.(placed)
	if !ok || len(l.Tiers) == 0 {
		return ""
	}
	if p.homed == nil && l.Tiers[0].Algorithm == limit.Quota || p.homed != nil && p.homed(l) {
		return p.home
	}
	return ""
}

// build returns a limit that the store's home keeps, see [Config].Home.
func build(tb testing.TB, l limit.Limit) *limit.Limit {
	tb.Helper()
	l.Home = homeIn(tb, &l)
	return MustNew(tb, l)
}

// MustNew returns a limit, or fails the test if limit.New refuses it.
func MustNew(tb testing.TB, l limit.Limit) *limit.Limit {
	tb.Helper()
	out, err := limit.New(l)
	if err != nil {
		tb.Fatalf("limit %s: %v", l.ID, err)
	}
	return out
}

func charge(l *limit.Limit, cost int64) limit.Charge { return limit.Charge{Limit: l, Cost: cost} }

func chargeValue(l *limit.Limit, value limit.Value, cost int64) limit.Charge {
	return limit.Charge{Limit: l, Value: value, Cost: cost}
}

func describe(charges []limit.Charge) string {
	var b strings.Builder
	for i, c := range charges {
		if i > 0 {
			b.WriteString(" + ")
		}
		if c.Limit == nil {
			b.WriteString("nil")
			continue
		}
		fmt.Fprintf(&b, "%d of %s", c.Cost, c.Limit.ID)
		if c.Limit.Mode == limit.Shadow {
			b.WriteString(" (shadow)")
		}
		if c.Value.Kind != limit.NoValue {
			fmt.Fprintf(&b, "[%c%s]", c.Value.Kind, c.Value.Text)
		}
		b.WriteString(" {")
		for j := range c.Limit.Tiers {
			t := &c.Limit.Tiers[j]
			fmt.Fprintf(&b, " %s %d/%s", t.Algorithm, t.Threshold, t.Period)
			if t.Algorithm == limit.TokenBucket {
				fmt.Fprintf(&b, " burst %d", t.Burst)
			}
			if t.Algorithm == limit.SlidingBuckets {
				fmt.Fprintf(&b, " in %d", t.Buckets)
			}
			if t.Calendar != nil {
				fmt.Fprintf(&b, " %s", t.Calendar)
			}
		}
		b.WriteString(" }")
	}
	return b.String()
}

func stamp(t time.Time) string {
	return fmt.Sprintf("%s (start%+dµs)", t.UTC().Format("2006-01-02T15:04:05.000000"), t.Sub(Start).Microseconds())
}

// sample is a limit of five units with one tier of the algorithm, together with the values that scripts derive from it.
type sample struct {
	algorithm limit.Algorithm
	period    time.Duration // after which five units are free again; for a quota, a day
}

// samples returns one sample for each algorithm that the store accepts.
func (c Config) samples() []sample {
	var all []sample
	for _, a := range limit.Algorithms() {
		if !c.accepts(a) {
			continue
		}
		s := sample{algorithm: a, period: 10 * time.Second}
		if a == limit.Quota {
			s.period = 24 * time.Hour
		}
		all = append(all, s)
	}
	return all
}

// tier returns a tier with the sample's algorithm and period, and with that capacity.
func (s sample) tier(units int64) limit.Tier {
	t := limit.Tier{Algorithm: s.algorithm, Threshold: units, Period: s.period}
	switch s.algorithm {
	case limit.SlidingBuckets:
		t.Buckets = 5
	case limit.Quota:
		t.Period, t.Calendar = 0, &limit.Calendar{Every: limit.Day, Location: time.UTC}
	}
	return t
}

// limit returns a limit with one such tier. Its largest cost is its capacity.
func (s sample) limit(tb testing.TB, id string, units int64) *limit.Limit {
	tb.Helper()
	return build(tb, limit.Limit{ID: id, MaxCost: units, Tiers: []limit.Tier{s.tier(units)}})
}

// oneAtATime reports whether the algorithm admits only a single charge until the counter has drained.
func (s sample) oneAtATime() bool { return s.algorithm == limit.LeakyBucket }

// each runs f for each sample on an empty store. Failures begin with the name of the algorithm.
func each(tb testing.TB, c Config, f func(s *subject, k sample)) {
	tb.Helper()
	for _, k := range c.samples() {
		s := newSubject(named{tb, k.algorithm.String()}, c)
		f(s, k)
	}
}

// named is a testing.TB whose failures begin with a name.
type named struct {
	testing.TB
	name string
}

func (n named) Errorf(format string, args ...any) {
	n.Helper()
	n.TB.Errorf(n.name+": "+format, args...)
}

func (n named) Fatalf(format string, args ...any) {
	n.Helper()
	n.TB.Fatalf(n.name+": "+format, args...)
}
