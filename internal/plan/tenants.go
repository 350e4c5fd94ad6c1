package plan

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// Bounds of tenants.
const (
	MaxBoost    = 366 * 24 * time.Hour // longest duration of a boost
	maxFactor   = 100                  // largest factor of a boost
	maxBoosts   = 64                   // boosts of one tenant
	maxCells    = 64                   // cells of one tenant
	milliFactor = 1000                 // a factor has up to three digits after the point
)

// override holds what a tenant changes in a limit of its plan.
type override struct {
	from      place
	id        field[string]
	rate      field[int64]
	threshold field[int64]
	burst     field[int64]
	places    field[int64]
	tiers     field[[]tierSpec]
	quota     field[field[int64]] // units
	policies  spec                // only policies that are overridable are set
}

// boost temporarily raises a limit of a tenant.
type boost struct {
	id          field[string]
	milli       int64 // factor in thousandths
	factorAt    place
	from, until field[time.Time] // active in [from, until); without from, active at any time before until
}

func (b *boost) active(at int64) bool {
	return at < b.until.v.UnixMicro() && (!b.from.set || at >= b.from.v.UnixMicro())
}

func (b *boost) factor() string {
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatInt(b.milli/milliFactor, 10)+"."+
		strconv.FormatInt(milliFactor+b.milli%milliFactor, 10)[1:], "0"), ".")
}

// rawTenant is a tenant as written. Its plan is looked up when every file is read.
type rawTenant struct {
	tenant    *Tenant
	at        place
	id        field[string]
	plan      field[string]
	overrides []*override
	boosts    []*boost
}

func (r *reader) tenant(v value) *rawTenant {
	o, ok := r.Object(v, tenantSchema)
	if !ok {
		return nil
	}
	t := &rawTenant{at: placeOf(v, "")}
	t.id = need(r, o, "id", "", "1 to 128 bytes of text",
		func(v value) (string, bool) { return r.name(v, "tenant id") })
	if t.plan = take(o, "plan", "", r.id); o.Misspelt("plan") {
		t.plan.set, t.plan.bad = true, true
	}
	suspended := take(o, "suspended", "", r.Boolean)
	t.tenant = &Tenant{ID: t.id.v, Plan: t.plan.v, Suspended: suspended.v, File: v.Doc.Name, Line: v.Node.Line}
	if list, ok := o.Get("overrides"); ok {
		layer := "override of tenant " + configfile.Clip(t.id.v)
		t.overrides = each(r, list, "overrides", func(v value) (*override, bool) { return r.override(v, layer) })
		reportDuplicates(r, t.overrides, "override of limit", func(o *override) field[string] { return o.id })
	}
	if list, ok := o.Get("boosts"); ok {
		t.boosts = each(r, list, "boosts", r.boost)
		reportDuplicates(r, t.boosts, "boost of limit", func(b *boost) field[string] { return b.id })
		if len(t.boosts) > maxBoosts {
			r.Problem(list, "%d boosts, want at most %d", len(t.boosts), maxBoosts)
			t.boosts = nil
		}
	}
	if list, ok := o.Get("cells"); ok {
		t.tenant.Cells = r.cells(list)
	}
	return t
}

func (r *reader) cells(v value) []string {
	cells := each(r, v, "cell ids", func(v value) (field[string], bool) {
		s, ok := r.id(v)
		return field[string]{v: s, set: true, from: placeOf(v, "")}, ok
	})
	reportDuplicates(r, cells, "cell", func(f field[string]) field[string] { return f })
	if len(cells) > maxCells {
		r.Problem(v, "%d cells, want at most %d", len(cells), maxCells)
	}
	out := make([]string, len(cells))
	for i, c := range cells {
		out[i] = c.v
	}
	return out
}

// ReadOverride reads one override, as it stands in the list of a tenant, and returns it in canonical JSON. The error is
// an *Error with all problems that can be found without the plan.
func ReadOverride(src Source) ([]byte, error) {
	r := &reader{}
	doc := r.Open(src, "it needs an id and a setting, as in { id: burst, rate: 500 }")
	if doc.Root != nil {
		r.override(value{Doc: doc, Node: doc.Root}, "")
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return appendJSON(nil, tree("", doc.Root)), nil
}

func (r *reader) override(v value, layer string) (*override, bool) {
	o, ok := r.Object(v, overrideSchema)
	if !ok {
		return nil, false
	}
	out := &override{from: placeOf(v, layer)}
	out.id = need(r, o, "id", layer, "the limit's id", r.id)
	out.rate = take(o, "rate", layer, r.units)
	out.threshold = take(o, "threshold", layer, r.units)
	out.burst = take(o, "burst", layer, r.units)
	out.places = take(o, "concurrency", layer, r.units)
	out.tiers = take(o, "tiers", layer, func(v value) ([]tierSpec, bool) {
		tiers := r.tiers(v, layer)
		return tiers, len(tiers) > 0
	})
	out.quota = take(o, "quota", layer, func(v value) (field[int64], bool) {
		q, ok := r.Object(v, quotaOverrideSchema)
		if !ok {
			return field[int64]{}, false
		}
		units := need(r, q, "units", layer, "units per calendar period", r.units)
		return units, !units.bad
	})
	for i := range policies {
		policies[i].read(r, o, &out.policies, layer) // the schema leaves those that may not be overridden out
	}
	if len(v.Node.Content) == 2 && !out.id.bad {
		r.Problem(v, "the override changes nothing")
	}
	return out, true
}

// merge returns the plan's limit with the changes of the override. It reports amounts that do not fit the limit's
// form.
func (r *reader) merge(base *spec, o *override) (*spec, bool) {
	if !r.fits(base, o) {
		return nil, false
	}
	s := *base
	s.tiers = slices.Clone(base.tiers)
	for i := range policies {
		policies[i].replace(&s, &o.policies)
	}
	switch {
	case o.tiers.set:
		s.tiers, s.tiersAt = o.tiers.v, o.tiers.from
	case o.quota.set:
		s.tiers[0].amount = o.quota.v
	default:
		replace(&s.tiers[0].amount, o.rate)
		replace(&s.tiers[0].amount, o.threshold)
		replace(&s.tiers[0].burst, o.burst)
		replace(&s.tiers[0].amount, o.places)
	}
	return &s, !o.tiers.bad && !o.quota.bad
}

// fits reports whether the override's amounts are written in the limit's form, and adds a problem for each that is
// not.
func (r *reader) fits(s *spec, o *override) bool {
	before := r.Found()
	unfit := func(at place, is bool, key, want string) {
		if is {
			r.problemAt(at, "limit %s has %s: %s", s.id.v, want, key)
		}
	}
	single := s.form == formSingle
	amount := s.algorithm.v.AmountField()
	says := "override " + amount
	if !single {
		says = "override " + formNames[s.form]
	}
	has := formNames[s.form]
	if single {
		has = amount + " (" + s.algorithm.v.String() + ")"
	}
	unfit(o.rate.from, o.rate.set && (!single || amount != "rate"), says, has)
	unfit(o.threshold.from, o.threshold.set && (!single || amount != "threshold"), says, has)
	unfit(o.burst.from, o.burst.set && !s.algorithm.v.HasBurst(), says, has)
	unfit(o.tiers.from, o.tiers.set && s.form != formTiers, says, has)
	unfit(o.quota.from, o.quota.set && s.form != formQuota, says, has)
	unfit(o.policies.cost.from, o.policies.cost.set && s.form == formPlaces, says, has)
	unfit(o.places.from, o.places.set && s.form != formPlaces, says, has)
	return r.Found() == before
}

func replace[T any](f *field[T], by field[T]) {
	if by.set {
		*f = by
	}
}

func (r *reader) boost(v value) (*boost, bool) {
	o, ok := r.Object(v, boostSchema)
	if !ok {
		return nil, false
	}
	b := &boost{}
	b.id = need(r, o, "id", "", "the limit's id", r.id)
	factor := need(r, o, "factor", "", "above 1, at most 100, such as 2 or 1.5", r.factor)
	b.milli, b.factorAt = factor.v, factor.from
	b.from = take(o, "from", "", r.instant)
	b.until = need(r, o, "until", "", "when the boost ends, as in 2026-12-01T00:00:00Z", r.instant)
	begins, since := r.now, " from now"
	if b.from.set {
		begins, since = b.from.v, ""
	}
	switch lasts := b.until.v.Sub(begins); {
	case b.until.bad || b.from.bad:
	case b.from.set && lasts <= 0:
		r.problemAt(b.until.from, "the boost ends before it begins")
	case lasts > MaxBoost && (b.from.set || !r.stored):
		r.problemAt(b.until.from, "the boost lasts longer than %d days%s", MaxBoost/(24*time.Hour), since)
	}
	return b, !factor.bad && !b.until.bad && !b.from.bad
}

// factor reads a decimal with up to three digits after the point, in thousandths.
func (r *reader) factor(v value) (int64, bool) {
	text := v.Node.Text
	if !v.IsNumber() {
		r.Problem(v, "want a number above 1 and at most %d, got %s", maxFactor, configfile.Describe(v.Node))
		return 0, false
	}
	whole, part, point := strings.Cut(text, ".")
	n, err := strconv.ParseUint(whole, 10, 32)
	m, fractionErr := strconv.ParseUint((part + "000")[:3], 10, 32)
	if err != nil || fractionErr != nil || (point && part == "") || len(part) > 3 {
		r.Problem(v, "%s is not a decimal number with at most three digits after the point", configfile.Clip(text))
		return 0, false
	}
	if milli := n*milliFactor + m; milli > milliFactor && milli <= maxFactor*milliFactor {
		return int64(milli), true
	}
	r.Problem(v, "%s is not above 1 and at most %d", configfile.Clip(text), maxFactor)
	return 0, false
}

// span is a set that applies from a time until the beginning of the next span.
type span struct {
	from int64 // µs since 1970
	set  *Set
}

// Limits returns the tenant's effective limits at now: those of the plan, with overrides, then with the boosts that
// are active. It does not allocate, since the sets between the edges of boosts are made when the file is read.
func (t *Tenant) Limits(now time.Time) *Set {
	if len(t.spans) == 1 {
		return t.spans[0].set
	}
	at := now.UnixMicro()
	low, high := 0, len(t.spans)
	for high-low > 1 {
		if mid := (low + high) / 2; t.spans[mid].from <= at {
			low = mid
		} else {
			high = mid
		}
	}
	return t.spans[low].set
}

// effective resolves a tenant against its plan. It applies the overrides, and then makes the set of each span between
// the edges of boosts.
func (r *reader) effective(t *rawTenant, p *Plan) {
	set := p.set
	if changed := r.overridden(t, p); changed != nil {
		set = changed
	}
	raised := make([]*Effective, len(t.boosts))
	at := make([]int, len(t.boosts))
	edges := []int64{math.MinInt64}
	for i, b := range t.boosts {
		if b.id.bad {
			continue
		}
		if at[i] = p.find(b.id.v); at[i] < 0 {
			r.unknownLimit(b.id, p)
			continue
		}
		if e := set.Limits[at[i]]; e != nil {
			raised[i] = r.applyBoost(e, b)
		}
		edges = append(edges, b.until.v.UnixMicro())
		if b.from.set {
			edges = append(edges, b.from.v.UnixMicro())
		}
	}
	slices.Sort(edges)
	for _, edge := range slices.Compact(edges) {
		now := set
		for i, b := range t.boosts {
			if raised[i] != nil && b.active(edge) {
				if now == set {
					now = &Set{Limits: slices.Clone(set.Limits), match: set.match}
				}
				now.Limits[at[i]] = raised[i]
			}
		}
		t.tenant.spans = append(t.tenant.spans, span{edge, now})
	}
}

// overridden returns the plan's set with the tenant's overrides, or nil if it has none.
func (r *reader) overridden(t *rawTenant, p *Plan) *Set {
	var set *Set
	for _, o := range t.overrides {
		if o.id.bad {
			continue
		}
		i := p.find(o.id.v)
		if i < 0 {
			r.unknownLimit(o.id, p)
			continue
		}
		if set == nil {
			set = &Set{Limits: slices.Clone(p.set.Limits), match: p.set.match}
		}
		base := p.set.Limits[i]
		if base == nil {
			continue // reported at the plan
		}
		set.Limits[i] = nil
		if s, ok := r.merge(base.spec, o); ok {
			if e := r.build(s, base.shape, &o.from); e != nil {
				set.Limits[i] = e
				r.warn(s, e)
			}
		}
	}
	return set
}

func (r *reader) unknownLimit(id field[string], p *Plan) {
	hint := ""
	if near := configfile.Nearest(id.v, p.ids); near != "" {
		hint = " (did you mean " + strconv.Quote(near) + "?)"
	}
	r.problemAt(id.from, "plan %s has no limit %s%s", p.ID, configfile.Quote(id.v), hint)
}
