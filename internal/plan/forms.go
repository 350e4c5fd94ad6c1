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

// formOf reads how the limit counts. A limit has exactly one of four forms: algorithm, tiers, quota or concurrency. The
// one tier that s has is read by most of them.
func (r *reader) formOf(o object, s *spec, layer string) {
	tiers, hasTiers := o.Get("tiers")
	quota, hasQuota := o.Get("quota")
	places, hasPlaces := o.Get("concurrency")
	limitKeys.take(r, o, s, layer, "id", "algorithm")
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
		limitKeys.take(r, o, s, layer, "concurrency", "holdFor")
		s.tiersAt = placeOf(places, layer)
		s.buckets.v = placeBuckets
		return
	case hasQuota:
		s.form = formQuota
		r.refuseBeside(o, "quota", "algorithm", "rate", "threshold", "period", "burst", "buckets", "tiers", "align")
		s.algorithm = field[limit.Algorithm]{v: limit.Quota, set: true, from: placeOf(quota, layer)}
		s.tiers[0], s.tiersAt = r.quota(quota, layer), placeOf(quota, layer)
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
		s.tiersAt = s.from
		r.singleTier(o, s, layer)
	default:
		if !o.Misspelt("algorithm", "tiers", "quota", "concurrency") {
			forms := "algorithm (with rate or threshold, and period), tiers, quota, or concurrency (with holdFor)"
			if s.in == ipLimit {
				forms = "algorithm (with rate or threshold, and period), tiers, or quota"
			}
			r.Problem(o.Value, "the limit counts nothing: give it %s", forms)
		}
		s.algorithm.bad = true
	}
	if v, ok := o.Get("holdFor"); ok && !o.Misspelt("concurrency") {
		r.Problem(v, "only a limit with concurrency has holdFor")
	}
	limitKeys.take(r, o, s, layer, "buckets")
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
func (r *reader) singleTier(o object, s *spec, layer string) {
	a, t := s.algorithm, &s.tiers[0]
	amount, other := "threshold", "rate"
	if a.bad { // without the algorithm, rate and threshold are equally good
		if _, ok := o.Get("rate"); ok {
			amount, other = "rate", ""
		}
	} else if a.v.HasRate() {
		amount, other = "rate", "threshold"
	}
	if v, ok := o.Get(other); ok && !a.bad {
		r.Problem(v, "%s has %s, not %s", a.v, amount, other)
		if _, both := o.Get(amount); !both {
			limitKeys.take(r, o, s, layer, other)
			t.amount.bad = true
			amount = ""
		}
	}
	limitKeys.take(r, o, s, layer, amount, "period", "burst")
	if t.burst.set && !a.bad && !a.v.HasBurst() {
		r.problemAt(t.burst.from, "only a token_bucket has a burst, this is %s", a.v)
		t.burst = field[int64]{}
	}
}

// placeBuckets is the number of buckets of a limit on requests in flight: a place that nobody gives back counts for
// holdFor, and an eighth of it more.
const placeBuckets = 8

// leastHold is the shortest holdFor. Places are renewed every quarter of it.
const leastHold = time.Second

// hold reads how long a place counts that nobody gives back.
func (r *reader) hold(v value) (time.Duration, bool) {
	d, ok := r.duration(v)
	if ok && (d < leastHold || d > limit.MaxKept) {
		r.Problem(v, "%s is not within %s to %s", d, leastHold, limit.DurationText(limit.MaxKept))
		ok = false
	}
	return d, ok
}

var (
	tierKeys = mappingOf("a tier", nil,
		bind(key[tierSpec]{name: "period", need: "a duration such as 10s; a bare number is seconds",
			doc: "no two tiers have the same"}, durationKind,
			func(t *tierSpec) *field[time.Duration] { return &t.period }),
		bind(key[tierSpec]{name: "threshold", need: "units per period", doc: "most units in a period"}, unitsKind,
			func(t *tierSpec) *field[int64] { return &t.amount }),
	)
	quotaKeys = mappingOf("a quota", nil,
		bind(key[tierSpec]{name: "units", need: "units per calendar period", doc: "most units in a period"}, unitsKind,
			func(t *tierSpec) *field[int64] { return &t.amount }),
		bind(key[tierSpec]{name: "every", need: "day, week, month or year", doc: "a week begins on Monday"},
			oneOf(limit.ParseEvery, "day", "week", "month", "year"),
			func(t *tierSpec) *field[limit.Every] { return &t.every }),
		bind(key[tierSpec]{name: "timezone", usual: "`UTC`", doc: "of the IANA database, as in `Europe/Paris`. Every " +
			"function, the command and the library contain the database, so the machine needs no zone files"},
			kind[*time.Location]{"name", (*reader).timezone},
			func(t *tierSpec) *field[*time.Location] { return &t.timezone }),
		bind(key[tierSpec]{name: "anchorDay", usual: "1",
			doc: "`month`, `year`: the day on which it begins; if the month is shorter, its last day"},
			between(1, 31), func(t *tierSpec) *field[int] { return &t.anchorDay }),
		bind(key[tierSpec]{name: "anchorMonth", usual: "1", doc: "`year`: the month in which it begins"},
			between(1, 12), func(t *tierSpec) *field[int] { return &t.anchorMonth }),
	)
)

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
		if _, ok := tierKeys.read(r, item, &t, layer); !ok {
			t.period.bad, t.amount.bad = true, true
		}
		tiers = append(tiers, t)
	}
	return tiers
}

func (r *reader) quota(v value, layer string) tierSpec {
	t := tierSpec{from: placeOf(v, layer)}
	if _, ok := quotaKeys.read(r, v, &t, layer); !ok {
		t.amount.bad, t.every.bad = true, true
		return t
	}
	if d := t.anchorDay; d.set && !t.every.bad && t.every.v != limit.Month && t.every.v != limit.Year {
		r.problemAt(d.from, "anchorDay is for month and year, not for %s", t.every.v)
		t.anchorDay.bad = true
	}
	if m := t.anchorMonth; m.set && !t.every.bad && t.every.v != limit.Year {
		r.problemAt(m.from, "anchorMonth is for year, not for %s", t.every.v)
		t.anchorMonth.bad = true
	}
	return t
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
