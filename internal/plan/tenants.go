package plan

import (
	"fmt"
	"math"
	"slices"
	"sort"
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
	spec                               // the new settings; its amounts are for a limit with one tier
	list   []tierSpec                  // of the key tiers
	listed bool                        // the key tiers is there
	bad    bool                        // the value of tiers or quota cannot be read
	byForm map[string]configfile.Place // where it has keys that only limits of some forms have
}

// boost temporarily raises a limit of a tenant.
type boost struct {
	id          field[string]
	factor      field[int64]     // in thousandths
	from, until field[time.Time] // active in [from, until); without from, active at any time before until
}

func (b *boost) active(at int64) bool {
	return at < b.until.v.UnixMicro() && (!b.from.set || at >= b.from.v.UnixMicro())
}

func (b *boost) factorText() string {
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatInt(b.factor.v/milliFactor, 10)+"."+
		strconv.FormatInt(milliFactor+b.factor.v%milliFactor, 10)[1:], "0"), ".")
}

// changesIdentity is what an override answers to the keys of a limit that it cannot change.
var changesIdentity = "an override changes numbers, " + overridableNames() +
	", not what a limit is: make another limit"

// overridableNames lists the keys that an override may change, apart from amounts.
func overridableNames() string {
	var names []string
	for _, k := range limitKeys.keys {
		if k.into != nil && k.override != "" {
			names = append(names, k.name)
		}
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

var (
	tenantKeys = mappingOf("a tenant", nil,
		bind(key[rawTenant]{name: "id", need: "1 to 128 bytes of text", doc: "unique over all files"}, tenantKind,
			func(t *rawTenant) *field[string] { return &t.id }),
		bind(key[rawTenant]{name: "plan", kind: "id of a plan",
			usual: "`slas` where the SLA form is used, else required", doc: "whose limits the tenant has"}, idKind,
			func(t *rawTenant) *field[string] { return &t.plan }),
		bind(key[rawTenant]{name: "suspended", usual: "false", doc: "every request is answered 403"}, booleanKind,
			func(t *rawTenant) *field[bool] { return &t.suspended }),
		key[rawTenant]{name: "overrides", kind: "list of overrides", usual: "none",
			doc: "changes to limits of the plan"},
		key[rawTenant]{name: "boosts", kind: "list of boosts", usual: "none",
			doc: fmt.Sprintf("temporary raises, at most %d", maxBoosts)},
		key[rawTenant]{name: "cells", kind: "list of ids", usual: "all",
			doc: fmt.Sprintf("the cells it is pinned to, at most %d", maxCells)},
	)
	overrideKeys      = overridableKeys()
	quotaOverrideKeys = mappingOf("an override's quota",
		map[string]string{"every": changesIdentity, "timezone": changesIdentity, "anchorDay": changesIdentity,
			"anchorMonth": changesIdentity}, *quotaKeys.keys[0])
	boostKeys = mappingOf("a boost", nil,
		bind(key[boost]{name: "id", kind: "id of a limit of the plan", need: "the limit's id"}, idKind,
			func(b *boost) *field[string] { return &b.id }),
		bind(key[boost]{name: "factor", need: "above 1, at most 100, such as 2 or 1.5",
			doc: "above 1, at most 100, with up to three digits after the point"},
			kind[int64]{"number", (*reader).factor}, func(b *boost) *field[int64] { return &b.factor }),
		bind(key[boost]{name: "from", usual: "always", doc: "when it begins"}, instantKind,
			func(b *boost) *field[time.Time] { return &b.from }),
		bind(key[boost]{name: "until", need: "when the boost ends, as in 2026-12-01T00:00:00Z",
			doc: "when it ends; at most 366 days after `from`, or after the file is loaded"}, instantKind,
			func(b *boost) *field[time.Time] { return &b.until }),
	)
)

// overridableKeys are the keys of a limit that a tenant may change.
func overridableKeys() *mapping[spec] {
	id := *limitKeys.keys[0]
	id.kind, id.need, id.byForm = "id of a limit of the plan", "the limit's id", false
	keys, refused := []key[spec]{id}, map[string]string{"units": "write it inside quota: {units}"}
	for _, k := range limitKeys.keys[1:] {
		if k.override == "" {
			refused[k.name] = changesIdentity
			continue
		}
		k := *k
		k.need, k.byForm = "", false
		keys = append(keys, k)
	}
	return mappingOf("an override", refused, keys...)
}

// rawTenant is a tenant as written. Its plan is looked up when every file is read.
type rawTenant struct {
	tenant    *Tenant
	at        place
	id        field[string]
	plan      field[string]
	suspended field[bool]
	overrides []*override
	boosts    []*boost
}

func (r *reader) tenant(v value) (*rawTenant, bool) {
	t := &rawTenant{at: placeOf(v, "")}
	o, ok := tenantKeys.read(r, v, t, "")
	if !ok {
		return nil, false
	}
	if o.Misspelt("plan") {
		t.plan.set, t.plan.bad = true, true
	}
	t.tenant = &Tenant{ID: t.id.v, Plan: t.plan.v, Suspended: t.suspended.v, File: v.Doc.Name, Line: v.Node.Line}
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
	return t, true
}

func (r *reader) cells(v value) []string {
	cells := each(r, v, "cell ids", func(v value) (field[string], bool) {
		id := valueOf(r, v, "", idKind)
		return id, !id.bad
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
	return canonicalJSON(tree("", doc.Root)), nil
}

func (r *reader) override(v value, layer string) (*override, bool) {
	out := &override{spec: spec{from: placeOf(v, layer)}, byForm: map[string]configfile.Place{}}
	out.spec.tiers = make([]tierSpec, 1)
	o, ok := overrideKeys.read(r, v, &out.spec, layer)
	if !ok {
		return nil, false
	}
	for _, e := range o.Entries {
		switch e.Key {
		case "tiers":
			out.list, out.listed, out.tiersAt = r.tiers(e.Value, layer), true, placeOf(e.Value, layer)
			out.bad = out.bad || len(out.list) == 0
		case "quota":
			_, ok := quotaOverrideKeys.read(r, e.Value, &out.tiers[0], layer)
			out.bad = out.bad || !ok || out.tiers[0].amount.bad
		case "rate", "threshold", "burst", "concurrency", "cost":
		default:
			continue
		}
		out.byForm[e.Key] = e.Place()
	}
	if len(v.Node.Content) == 2 && !out.id.bad {
		r.Problem(v, "the override changes nothing")
	}
	return out, true
}

// merge returns the plan's limit with the changes of the override. It reports amounts that do not fit the limit's
// form.
func (r *reader) merge(base *spec, o *override) (*spec, bool) {
	before := r.Found()
	for key, at := range o.byForm {
		r.fits(base, key, at)
	}
	if r.Found() > before {
		return nil, false
	}
	s := *base
	s.tiers = slices.Clone(base.tiers)
	for _, k := range overrideKeys.keys {
		if k.replace != nil && k.name != "id" {
			k.replace(&s, &o.spec)
		}
	}
	if o.listed {
		s.tiers, s.tiersAt = o.list, o.tiersAt
	}
	return &s, !o.bad
}

// fits adds a problem if the limit's form does not have the key of an override.
func (r *reader) fits(s *spec, key string, at configfile.Place) {
	has, says, fits := formNames[s.form], formNames[s.form], key == formNames[s.form]
	if s.form == formSingle {
		says = s.algorithm.v.AmountField()
		has, fits = says+" ("+s.algorithm.v.String()+")", key == says
	}
	switch key {
	case "burst":
		fits = s.algorithm.v.HasBurst()
	case "cost":
		fits = s.form != formPlaces
	}
	if !fits {
		r.ProblemAt(at, "limit %s has %s: override %s", s.id.v, has, says)
	}
}

func (r *reader) boost(v value) (*boost, bool) {
	b := &boost{}
	if _, ok := boostKeys.read(r, v, b, ""); !ok {
		return nil, false
	}
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
	return b, !b.factor.bad && !b.until.bad && !b.from.bad
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
	at := now.UnixMicro()
	after := sort.Search(len(t.spans), func(i int) bool { return t.spans[i].from > at })
	return t.spans[max(after-1, 0)].set
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
	r.problemAt(id.from, "plan %s has no limit %s%s", p.ID, configfile.Quote(id.v), configfile.DidYouMean(id.v, p.ids))
}
