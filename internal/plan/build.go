package plan

import (
	"errors"
	"math/bits"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// build makes a limit of a spec. If limit.New refuses a setting, build reports the problem at that setting; but if the
// setting belongs to another layer than the one that is being built (an override that makes the plan's burst
// impossible), at layer. build returns nil if something is wrong.
func (r *reader) build(s *spec, shape *shape, layer *place) *Effective {
	if s.algorithm.bad || len(s.tiers) == 0 || s.buckets.bad {
		return nil // this was reported when the spec was read
	}
	before := r.Found()
	var l limit.Limit
	sound := true // all settings could be read
	for _, k := range limitKeys.keys {
		if k.into != nil {
			k.into(s, &l)
			sound = sound && !k.mark(s).bad
		}
	}
	if s.id.bad {
		l.ID = "unknown"
	}
	if s.unit.bad {
		l.Unit = limit.Requests
	}
	cost := r.checkCost(s)
	for i := range s.tiers {
		t, ok := s.tiers[i].tier(s)
		l.Tiers = append(l.Tiers, t)
		sound = sound && ok
	}
	made, err := limit.New(l)
	r.reportRefused(s, err, layer)
	if !sound || made == nil || r.Found() > before {
		return nil
	}
	return &Effective{Limit: made, Cost: cost, Group: s.group.v, spec: s, shape: shape}
}

// unitName returns what the limit counts; "" means requests.
func (s *spec) unitName() string {
	if s.form == formPlaces {
		return limit.ConcurrentRequests
	}
	return s.unit.v
}

// tier returns the tier for limit.New, with zero values for settings that could not be read. sound: all could be read.
func (t *tierSpec) tier(s *spec) (out limit.Tier, sound bool) {
	sound = !t.amount.bad && !t.period.bad && !t.burst.bad &&
		!t.every.bad && !t.timezone.bad && !t.anchorDay.bad && !t.anchorMonth.bad
	out = limit.Tier{
		Algorithm: s.algorithm.v, Period: t.period.v, Threshold: t.amount.v, Burst: t.burst.v, Buckets: s.buckets.v,
	}
	if s.algorithm.v.HasCalendar() {
		at := t.timezone.v
		if at == nil {
			at = time.UTC
		}
		out.Calendar = &limit.Calendar{
			Every: t.every.v, Location: at, AnchorDay: valueOrZero(t.anchorDay),
			AnchorMonth: time.Month(valueOrZero(t.anchorMonth)),
		}
	}
	return out, sound
}

// valueOrZero returns the number of the field, or 0 if the field is bad.
func valueOrZero(f field[int]) int {
	if f.bad {
		return 0
	}
	return f.v
}

// reportRefused reports each FieldError of limit.New, unless the field was reported when it was read.
func (r *reader) reportRefused(s *spec, err error, layer *place) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return
	}
	for _, one := range joined.Unwrap() {
		var fe *limit.FieldError
		if !errors.As(one, &fe) {
			r.problemAt(s.from, "%v", one)
			continue
		}
		m, at := s.locate(fe)
		if fe.Tier >= 0 {
			if t := &s.tiers[fe.Tier]; t.amount.bad || t.period.bad || t.burst.bad || t.every.bad {
				continue
			}
		} else if m.bad {
			continue
		}
		if layer != nil && (at.Doc != layer.Doc || at.layer != layer.layer) {
			at, m.set = *layer, false
		}
		if m.set {
			r.problemAt(at, "%s", fe.Reason)
		} else {
			r.problemAt(at, "%s: %s", fe.Field, fe.Reason)
		}
	}
}

// mark is the state and the place of a field of any type.
type mark struct {
	set, bad bool
	from     place
}

func markOf[T any](f *field[T]) mark { return mark{f.set, f.bad, f.from} }

// markNamed returns the mark of the key of that name.
func (m *mapping[S]) markNamed(name string, s *S) (mark, bool) {
	for _, k := range m.keys {
		if k.name == name && k.mark != nil {
			return k.mark(s), true
		}
	}
	return mark{}, false
}

// locate returns the mark of the field that limit.New refused, and its place; if the field is not set, the place of the
// limit or tier around it.
func (s *spec) locate(fe *limit.FieldError) (m mark, at place) {
	at = s.from
	m, ok := limitKeys.markNamed(fe.Field, s)
	if fe.Tier >= 0 {
		t := &s.tiers[fe.Tier]
		at = t.from
		if of, ok := tierKeys.markNamed(fe.Field, t); ok {
			m = of
		} else if of, ok := quotaKeys.markNamed(fe.Field, t); ok {
			m = of
		}
	} else if !ok {
		m = mark{set: true, from: s.tiersAt}
	}
	if m.set {
		at = m.from
	}
	return m, at
}

// applyBoost returns the limit with every amount multiplied by the boost's factor and rounded down.
func (r *reader) applyBoost(e *Effective, b *boost) *Effective {
	l := *e.Limit
	l.Tiers = make([]limit.Tier, len(e.Limit.Tiers))
	for i, t := range e.Limit.Tiers {
		l.Tiers[i] = limit.Tier{
			Algorithm: t.Algorithm, Period: t.Period, Buckets: t.Buckets, Calendar: t.Calendar,
			Threshold: raise(t.Threshold, b.factor.v), Burst: raise(t.Burst, b.factor.v),
		}
	}
	made, err := limit.New(l)
	if err != nil {
		r.reportRefused(e.spec, err, &b.factor.from)
		return nil
	}
	out := *e
	out.Limit, out.boost, out.base = made, b, e
	return &out
}

// raise returns n·milli/1000, rounded down. n is at most MaxUnits and milli at most 100,000, so the result fits.
func raise(n, milli int64) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(milli))
	q, _ := bits.Div64(hi, lo, 1000)
	return int64(q)
}

// warn reports limits that are valid but cannot do what they seem to do.
func (r *reader) warn(s *spec, e *Effective) {
	if s.in == ipLimit {
		r.warnLasting(s, e)
	}
	for i := range e.Limit.Tiers {
		t := &e.Limit.Tiers[i]
		if e.Cost.Max > t.Capacity() {
			_, at := s.locate(&limit.FieldError{Tier: i, Field: t.Algorithm.AmountField()})
			which, cost := "largest", e.Cost.Max
			if e.Cost.Default > t.Capacity() {
				which, cost = "usual", e.Cost.Default
			}
			r.warnAt(at, "can hold %d, which is below the %s cost %d: every such request is denied for ever",
				t.Capacity(), which, cost)
		}
		if t.Counting().EachCharge && t.Threshold < fewCosts*max(e.Limit.MaxCost, 1) {
			r.warnAt(s.tiers[i].from, "a %s of %d may be too small to be divided between several cells, and then "+
				"only the tenant's home cell grants it, since DynamoDB cannot keep a log for the others; a "+
				"sliding_buckets is granted by every cell", t.Algorithm, t.Threshold)
		}
		if t.Leasing().Weighs && t.Threshold < smallWindow {
			r.warnAt(s.tiers[i].from, "a sliding_window of %d admits about %d%% of it to a client that asks all the "+
				"time, because the last unit of the window before counts in full until that window no longer does; a "+
				"sliding_log or sliding_buckets of %d gives more", t.Threshold,
				100*max(t.Threshold-1, 1)/max(t.Threshold, 2), t.Threshold)
		}
		for j := range e.Limit.Tiers {
			if i != j && neverBinds(t, &e.Limit.Tiers[j]) {
				r.warnAt(s.tiers[i].from, "the tier of %s can never bind: the tier of %s admits no more than %d in it",
					t.Period, e.Limit.Tiers[j].Period, t.Threshold)
				break
			}
		}
	}
}

// fewCosts is the multiple of its largest cost below which a sliding_log gets a warning. Ten cells of equal weight can
// divide a limit that holds ten of its largest costs.
const fewCosts = 10

// smallWindow is the threshold below which a sliding_window gets a warning: with 10 it gives nine tenths of the limit.
const smallWindow = 10

// neverBinds reports whether tier a can never deny a request that tier b of the same limit admits. It can tell this of
// tiers that count one window each, if the windows nest, and of tiers that know the time of each charge. Of others it
// reports false.
func neverBinds(a, b *limit.Tier) bool {
	if a.Period == b.Period {
		return false
	}
	long, short := max(a.Period, b.Period), min(a.Period, b.Period)
	nest := a.Counting().Windows == 1 && long%short == 0
	if !nest && !a.Counting().EachCharge {
		return false
	}
	if a.Period < b.Period {
		return b.Threshold <= a.Threshold
	}
	pieces := int64((a.Period + b.Period - 1) / b.Period)
	return b.Threshold <= a.Threshold/pieces
}
