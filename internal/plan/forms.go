package plan

import (
	"time"

	// A quota names its time zone, and a plan must mean the same on every machine, with and without zone files (Lambda
	// has none). Each program that reads plans therefore carries Go's zone data, about 400 KB; this includes the
	// programs of the library's users. If a machine has zone files, Go uses those.
	_ "time/tzdata"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// formOf reads how the limit counts. A limit has exactly one of four forms: algorithm, tiers, quota or
// concurrency.
func (r *reader) formOf(o object, s *spec, layer string) {
	tiers, hasTiers := o.Get("tiers")
	quota, hasQuota := o.Get("quota")
	places, hasPlaces := o.Get("concurrency")
	s.algorithm = take(o, "algorithm", layer, r.algorithm)
	switch {
	case hasPlaces:
		s.form = formPlaces
		r.refuseBeside(o, "concurrency", "algorithm", "rate", "threshold", "period", "burst", "buckets", "tiers",
			"quota")
		for _, key := range []string{"align", "unit", "cost", "exact"} {
			if v, ok := o.Get(key); ok {
				r.Problem(v, "leave %s out beside concurrency: each request is one, and is counted in the store", key)
			}
		}
		s.algorithm = field[limit.Algorithm]{v: limit.SlidingBuckets, set: true, from: placeOf(places, layer)}
		s.tiers, s.tiersAt = r.places(o, layer), placeOf(places, layer)
		s.buckets.v = placeBuckets
		return
	case hasQuota:
		s.form = formQuota
		r.refuseBeside(o, "quota", "algorithm", "rate", "threshold", "period", "burst", "buckets", "tiers", "align")
		s.algorithm = field[limit.Algorithm]{v: limit.Quota, set: true, from: placeOf(quota, layer)}
		s.tiers, s.tiersAt = r.quota(quota, layer), placeOf(quota, layer)
	case hasTiers:
		s.form = formTiers
		r.refuseBeside(o, "tiers", "rate", "threshold", "period", "burst")
		if a := s.algorithm; !a.set {
			s.algorithm.v = limit.FixedWindow
		} else if a.bad {
			s.algorithm.v = limit.FixedWindow
		} else if a.v.HasRate() {
			r.problemAt(a.from, "%s has no tiers: give it rate and period; tiers are windows", a.v)
			s.algorithm.bad = true
		}
		s.tiers, s.tiersAt = r.tiers(tiers, layer), placeOf(tiers, layer)
	case s.algorithm.set:
		s.form = formSingle
		s.tiers, s.tiersAt = r.singleTier(o, s.algorithm, layer), s.from
	default:
		if !o.Misspelt("algorithm", "tiers", "quota", "concurrency") {
			forms := "algorithm (with rate or threshold, and period), tiers, quota, or concurrency (with holdFor)"
			if s.kind == ipLimit {
				forms = "algorithm (with rate or threshold, and period), tiers, or quota"
			}
			r.Problem(o.Value, "the limit counts nothing: give it %s", forms)
		}
		s.algorithm.bad = true
	}
	if v, ok := o.Get("holdFor"); ok && !o.Misspelt("concurrency") {
		r.Problem(v, "only a limit with concurrency has holdFor")
	}
	s.buckets = take(o, "buckets", layer, func(v value) (int, bool) {
		n, ok := r.Integer(v, 1, limit.MaxBuckets)
		return int(n), ok
	})
	if b := s.buckets; b.set && s.form != formQuota && !s.algorithm.bad && !s.algorithm.v.HasBuckets() {
		r.problemAt(b.from, "only sliding_buckets has buckets, this is %s", s.algorithm.v)
		s.buckets.bad = true
	}
}

func (r *reader) refuseBeside(o object, with string, keys ...string) {
	for _, key := range keys {
		if v, ok := o.Get(key); ok {
			r.Problem(v, "%s cannot be beside %s: a limit has one form", key, with)
		}
	}
}

func (r *reader) algorithm(v value) (limit.Algorithm, bool) {
	var words []string
	for _, a := range limit.Algorithms() {
		if !a.HasCalendar() {
			words = append(words, a.String())
		}
	}
	if a, ok := limit.ParseAlgorithm(v.Node.Text); ok && a.HasCalendar() {
		r.Problem(v, "write a quota as quota: {units, every}")
		return 0, false
	}
	return choice(r, v, limit.ParseAlgorithm, words)
}

// singleTier reads the form of one tier: algorithm, rate or threshold, period, burst.
func (r *reader) singleTier(o object, a field[limit.Algorithm], layer string) []tierSpec {
	t := tierSpec{from: placeOf(o.Value, layer)}
	amount, other := "threshold", "rate"
	if a.bad { // without the algorithm, rate and threshold are equally good
		if _, ok := o.Get("rate"); ok {
			amount, other = "rate", ""
		}
	} else if a.v.HasRate() {
		amount, other = "rate", "threshold"
	}
	if v, ok := o.Get(other); ok && !a.bad {
		if _, both := o.Get(amount); both {
			r.Problem(v, "%s has %s, not %s", a.v, amount, other)
			t.amount = take(o, amount, layer, r.units)
		} else {
			r.Problem(v, "%s has %s, not %s", a.v, amount, other)
			t.amount = take(o, other, layer, r.units)
			t.amount.bad = true
		}
	} else {
		t.amount = need(r, o, amount, layer, "units per period", r.units)
	}
	t.period = need(r, o, "period", layer, "a duration such as 1s", r.duration)
	t.burst = take(o, "burst", layer, r.units)
	if t.burst.set && !a.bad && !a.v.HasBurst() {
		r.problemAt(t.burst.from, "only a token_bucket has a burst, this is %s", a.v)
		t.burst = field[int64]{}
	}
	return []tierSpec{t}
}

// placeBuckets is the number of buckets of a limit on requests in flight: a place that nobody gives back counts for
// holdFor, and an eighth of it more.
const placeBuckets = 8

// leastHold is the shortest holdFor. Places are renewed every quarter of it.
const leastHold = time.Second

// places reads the form of a limit on requests in flight: concurrency and holdFor.
func (r *reader) places(o object, layer string) []tierSpec {
	t := tierSpec{from: placeOf(o.Value, layer)}
	t.amount = need(r, o, "concurrency", layer, "requests in flight", r.units)
	t.period = need(r, o, "holdFor", layer, "how long a request counts whose end nobody reports, such as 30s",
		func(v value) (time.Duration, bool) {
			d, ok := r.duration(v)
			if ok && (d < leastHold || d > limit.MaxKept) {
				r.Problem(v, "%s is not within %s to %s", d, leastHold, limit.DurationText(limit.MaxKept))
				ok = false
			}
			return d, ok
		})
	return []tierSpec{t}
}

func (r *reader) tiers(v value, layer string) []tierSpec {
	items, ok := r.List(v, "tiers, {period, threshold}")
	if !ok {
		return nil
	}
	if len(items) < 1 || len(items) > limit.MaxTiers {
		r.Problem(v, "%d tiers, want 1 to %d", len(items), limit.MaxTiers)
		return nil
	}
	tiers := make([]tierSpec, 0, len(items))
	for _, item := range items {
		t := tierSpec{from: placeOf(item, layer)}
		if o, ok := r.Object(item, tierSchema); ok {
			t.period = need(r, o, "period", layer, "a duration such as 10s; a bare number is seconds", r.duration)
			t.amount = need(r, o, "threshold", layer, "units per period", r.units)
		} else {
			t.period.bad, t.amount.bad = true, true
		}
		tiers = append(tiers, t)
	}
	return tiers
}

func (r *reader) quota(v value, layer string) []tierSpec {
	t := tierSpec{from: placeOf(v, layer)}
	o, ok := r.Object(v, quotaSchema)
	if !ok {
		t.amount.bad, t.every.bad = true, true
		return []tierSpec{t}
	}
	t.amount = need(r, o, "units", layer, "units per calendar period", r.units)
	t.every = need(r, o, "every", layer, "day, week, month or year", func(v value) (limit.Every, bool) {
		return choice(r, v, limit.ParseEvery, []string{"day", "week", "month", "year"})
	})
	t.timezone = take(o, "timezone", layer, r.timezone)
	t.anchorDay = take(o, "anchorDay", layer, func(v value) (int, bool) {
		n, ok := r.Integer(v, 1, 31)
		return int(n), ok
	})
	t.anchorMonth = take(o, "anchorMonth", layer, func(v value) (int, bool) {
		n, ok := r.Integer(v, 1, 12)
		return int(n), ok
	})
	if d := t.anchorDay; d.set && !t.every.bad && t.every.v != limit.Month && t.every.v != limit.Year {
		r.problemAt(d.from, "anchorDay is for month and year, not for %s", t.every.v)
		t.anchorDay.bad = true
	}
	if m := t.anchorMonth; m.set && !t.every.bad && t.every.v != limit.Year {
		r.problemAt(m.from, "anchorMonth is for year, not for %s", t.every.v)
		t.anchorMonth.bad = true
	}
	return []tierSpec{t}
}

// timezone reads a name of the IANA database. It refuses "Local", which is a different zone on each machine.
func (r *reader) timezone(v value) (*time.Location, bool) {
	s, ok := r.Text(v)
	if !ok {
		return nil, false
	}
	if s == "" || s == "Local" {
		r.Problem(v, "%s is not a time zone: write UTC or a name such as Europe/Paris", configfile.Quote(s))
		return nil, false
	}
	at, err := time.LoadLocation(s)
	if err != nil {
		r.Problem(v, "%s is not a time zone: write UTC or a name such as Europe/Paris", configfile.Quote(s))
		return nil, false
	}
	return at, true
}
