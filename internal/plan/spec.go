package plan

import (
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/route"
)

// form is how a limit's counting is written.
type form uint8

const (
	formNone   form = iota
	formSingle      // algorithm, rate or threshold, period
	formTiers       // tiers
	formQuota       // quota
)

var formNames = [...]string{"", "algorithm", "tiers", "quota"}

// spec is a limit as written, with the place of each setting. Overrides replace settings in a copy.
type spec struct {
	kind      kind
	from      place
	form      form
	id        field[string]
	per       field[string] // canonical
	parts     []part
	methods   field[[]string]
	pattern   field[string]
	rule      route.Rule
	group     field[string]
	algorithm field[limit.Algorithm]
	buckets   field[int]
	tiersAt   place
	tiers     []tierSpec // one for the forms single and quota
	mode      field[limit.Mode]
	onFailure field[limit.FailurePolicy]
	cost      field[CostRule]
	align     field[bool] // to the tenant
	exact     field[bool]
	maxValues field[int]
}

// tierSpec is one window of a spec.
type tierSpec struct {
	from        place
	amount      field[int64] // rate, threshold or units
	period      field[time.Duration]
	burst       field[int64]
	every       field[limit.Every]
	timezone    field[*time.Location]
	anchorDay   field[int]
	anchorMonth field[int]
}

// amountName is what the algorithm calls its number.
func amountName(a limit.Algorithm) string {
	switch a {
	case limit.TokenBucket, limit.LeakyBucket:
		return "rate"
	case limit.Quota:
		return "units"
	}
	return "threshold"
}

// kind says which list a limit is in.
type kind uint8

const (
	planLimit kind = iota
	ipLimit
	slaLimit
)

// part is one component of a per.
type part struct {
	kind  partKind
	claim string
}

type partKind uint8

const (
	perEndpoint partKind = iota + 1
	perSubject
	perAPIKey
	perIP
	perClaim
)

var perWords = []string{limit.PerTenant, "endpoint", "subject", "api_key", "ip", "claim:NAME"}

const (
	maxParts     = 8
	maxClaimName = 64
)

// take reads a key into a field where it is there.
func take[T any](r *reader, o object, key, layer string, read func(value) (T, bool)) field[T] {
	v, ok := o.get(key)
	if !ok {
		return field[T]{}
	}
	got, ok := read(v)
	return field[T]{v: got, set: true, bad: !ok, from: v.place(layer)}
}

// need is take, and a problem where the key is not there.
func need[T any](r *reader, o object, key, layer, what string, read func(value) (T, bool)) field[T] {
	if _, ok := r.required(o, key, what); !ok {
		return field[T]{bad: true, from: o.place(layer)}
	}
	return take(r, o, key, layer, read)
}

// limit reads one limit of a plan, of ipLimits or of slas; nil where it is not even a mapping.
func (r *reader) limit(v value, k kind, layer string) *spec {
	o, ok := r.object(v, limitSchemas[k])
	if !ok {
		return nil
	}
	s := &spec{kind: k, from: v.place(layer)}
	s.id = need(r, o, "id", layer, "1 to 64 of A-Z a-z 0-9 . _ -", r.id)
	r.matchOf(o, s, layer)
	if k == slaLimit {
		r.sla(o, s, layer)
		return s
	}
	s.per = take(r, o, "per", layer, func(v value) (string, bool) {
		var text string
		text, s.parts, ok = r.per(v)
		return text, ok
	})
	s.group = take(r, o, "group", layer, r.id)
	r.formOf(o, s, layer)
	r.policies(o, s, layer)
	s.align = take(r, o, "align", layer, func(v value) (bool, bool) {
		return choice(r, v, func(w string) (bool, bool) { return w == "tenant", w == "tenant" || w == "clock" }, []string{"tenant", "clock"})
	})
	s.exact = take(r, o, "exact", layer, r.boolean)
	return s
}

// sla reads the rest of the SLA form: fixed windows for each endpoint.
func (r *reader) sla(o object, s *spec, layer string) {
	s.per = field[string]{v: "endpoint", set: true, from: s.from}
	s.parts = []part{{kind: perEndpoint}}
	s.form = formTiers
	s.algorithm = field[limit.Algorithm]{v: limit.FixedWindow}
	s.mode = take(r, o, "enabled", layer, func(v value) (limit.Mode, bool) {
		on, ok := r.boolean(v)
		if on {
			return limit.Enforce, ok
		}
		return limit.Off, ok
	})
	if v, ok := r.required(o, "tiers", "a list of {period, threshold}"); ok {
		s.tiers, s.tiersAt = r.tiers(v, layer), v.place(layer)
	}
}

// policies reads what says how a limit's outcome is used; overrides may change these.
func (r *reader) policies(o object, s *spec, layer string) {
	s.mode = take(r, o, "mode", layer, func(v value) (limit.Mode, bool) {
		return choice(r, v, limit.ParseMode, []string{"enforce", "shadow", "off"})
	})
	s.onFailure = take(r, o, "onStoreFailure", layer, func(v value) (limit.FailurePolicy, bool) {
		return choice(r, v, limit.ParseFailurePolicy, []string{"backstop", "open", "closed"})
	})
	s.cost = take(r, o, "cost", layer, r.cost)
	s.maxValues = take(r, o, "maxValues", layer, func(v value) (int, bool) {
		n, ok := r.integer(v, 1, 1_000_000)
		return int(n), ok
	})
}

// formOf reads how the limit counts, in exactly one of the three forms.
func (r *reader) formOf(o object, s *spec, layer string) {
	tiers, hasTiers := o.get("tiers")
	quota, hasQuota := o.get("quota")
	s.algorithm = take(r, o, "algorithm", layer, r.algorithm)
	switch {
	case hasQuota:
		s.form = formQuota
		r.clash(o, "quota", "algorithm", "rate", "threshold", "period", "burst", "buckets", "tiers", "align")
		s.algorithm = field[limit.Algorithm]{v: limit.Quota, set: true, from: quota.place(layer)}
		s.tiers, s.tiersAt = r.quota(quota, layer), quota.place(layer)
	case hasTiers:
		s.form = formTiers
		r.clash(o, "tiers", "rate", "threshold", "period", "burst")
		if a := s.algorithm; !a.set {
			s.algorithm.v = limit.FixedWindow
		} else if a.bad {
			s.algorithm.v = limit.FixedWindow
		} else if a.v == limit.TokenBucket || a.v == limit.LeakyBucket {
			r.problemAt(a.from, "%s has no tiers: give it rate and period; tiers are windows", a.v)
			s.algorithm.bad = true
		}
		s.tiers, s.tiersAt = r.tiers(tiers, layer), tiers.place(layer)
	case s.algorithm.set:
		s.form = formSingle
		s.tiers, s.tiersAt = r.single(o, s.algorithm, layer), s.from
	default:
		r.problem(o.value, "the limit counts nothing: give it algorithm (with rate or threshold, and period), tiers, or quota")
		s.algorithm.bad = true
	}
	s.buckets = take(r, o, "buckets", layer, func(v value) (int, bool) {
		n, ok := r.integer(v, 1, limit.MaxBuckets)
		return int(n), ok
	})
	if b := s.buckets; b.set && s.form != formQuota && !s.algorithm.bad && s.algorithm.v != limit.SlidingBuckets {
		r.problemAt(b.from, "only sliding_buckets has buckets, this is %s", s.algorithm.v)
		s.buckets.bad = true
	}
}

func (r *reader) clash(o object, with string, keys ...string) {
	for _, key := range keys {
		if v, ok := o.get(key); ok {
			r.problem(v, "%s cannot be beside %s: a limit has one form", key, with)
		}
	}
}

func (r *reader) algorithm(v value) (limit.Algorithm, bool) {
	var words []string
	for _, a := range limit.Algorithms() {
		if a != limit.Quota {
			words = append(words, a.String())
		}
	}
	if v.node.Value == limit.Quota.String() {
		r.problem(v, "write a quota as quota: {units, every}")
		return 0, false
	}
	return choice(r, v, limit.ParseAlgorithm, words)
}

// single reads algorithm, rate or threshold, period, burst.
func (r *reader) single(o object, a field[limit.Algorithm], layer string) []tierSpec {
	t := tierSpec{from: o.place(layer)}
	amount, other := amountName(a.v), "threshold"
	if amount == "threshold" {
		other = "rate"
	}
	if a.bad { // which of the two it should be is not known
		if _, ok := o.get("rate"); ok {
			amount, other = "rate", ""
		}
	}
	if v, ok := o.get(other); ok && !a.bad {
		if _, both := o.get(amount); both {
			r.problem(v, "%s has %s, not %s", a.v, amount, other)
			t.amount = take(r, o, amount, layer, r.units)
		} else {
			r.problem(v, "%s has %s, not %s", a.v, amount, other)
			t.amount = take(r, o, other, layer, r.units)
			t.amount.bad = true
		}
	} else {
		t.amount = need(r, o, amount, layer, "units per period", r.units)
	}
	t.period = need(r, o, "period", layer, "a duration such as 1s", r.duration)
	t.burst = take(r, o, "burst", layer, r.units)
	if t.burst.set && !a.bad && a.v != limit.TokenBucket {
		r.problemAt(t.burst.from, "only a token_bucket has a burst, this is %s", a.v)
		t.burst = field[int64]{}
	}
	return []tierSpec{t}
}

func (r *reader) tiers(v value, layer string) []tierSpec {
	items, ok := r.list(v, "tiers, {period, threshold}")
	if !ok {
		return nil
	}
	if len(items) < 1 || len(items) > limit.MaxTiers {
		r.problem(v, "%d tiers, want 1 to %d", len(items), limit.MaxTiers)
		return nil
	}
	tiers := make([]tierSpec, 0, len(items))
	for _, item := range items {
		t := tierSpec{from: item.place(layer)}
		if o, ok := r.object(item, tierSchema); ok {
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
	t := tierSpec{from: v.place(layer)}
	o, ok := r.object(v, quotaSchema)
	if !ok {
		t.amount.bad, t.every.bad = true, true
		return []tierSpec{t}
	}
	t.amount = need(r, o, "units", layer, "units per calendar period", r.units)
	t.every = need(r, o, "every", layer, "day, week, month or year", func(v value) (limit.Every, bool) {
		return choice(r, v, limit.ParseEvery, []string{"day", "week", "month", "year"})
	})
	t.timezone = take(r, o, "timezone", layer, r.timezone)
	t.anchorDay = take(r, o, "anchorDay", layer, func(v value) (int, bool) {
		n, ok := r.integer(v, 1, 31)
		return int(n), ok
	})
	t.anchorMonth = take(r, o, "anchorMonth", layer, func(v value) (int, bool) {
		n, ok := r.integer(v, 1, 12)
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

// timezone reads a name of the IANA database. "Local" would mean another zone on another machine.
func (r *reader) timezone(v value) (*time.Location, bool) {
	s, ok := r.text(v)
	if !ok {
		return nil, false
	}
	if s == "" || s == "Local" {
		r.problem(v, "%s is not a time zone: write UTC or a name such as Europe/Paris", quote(s))
		return nil, false
	}
	at, err := time.LoadLocation(s)
	if err != nil {
		r.problem(v, "%s is not a time zone: write UTC or a name such as Europe/Paris", quote(s))
		return nil, false
	}
	return at, true
}

// per reads what names the counter: one word or a list. The canonical text is sorted and joined with "+".
func (r *reader) per(v value) (text string, parts []part, ok bool) {
	items := []value{v}
	if isList(v) {
		if items, ok = r.list(v, "words"); !ok {
			return "", nil, false
		}
		if len(items) < 1 || len(items) > maxParts {
			r.problem(v, "%d words, want 1 to %d", len(items), maxParts)
			return "", nil, false
		}
	}
	byWord := make(map[string]part, len(items))
	words := make([]string, 0, len(items))
	ok = true
	for _, item := range items {
		word, p, good := r.perWord(item)
		_, twice := byWord[word]
		switch {
		case !good:
		case twice:
			r.problem(item, "%s is there twice", word)
		case word == limit.PerTenant && len(items) > 1:
			r.problem(item, "tenant is redundant in a list: every counter is one tenant's")
		default:
			byWord[word] = p
			words = append(words, word)
			continue
		}
		ok = false
	}
	slices.Sort(words)
	for _, w := range words {
		if w != limit.PerTenant {
			parts = append(parts, byWord[w])
		}
	}
	if text = strings.Join(words, "+"); len(text) > limit.MaxNameBytes {
		r.problem(v, "the words have %d bytes together, want at most %d", len(text), limit.MaxNameBytes)
		ok = false
	}
	return text, parts, ok
}

func (r *reader) perWord(v value) (string, part, bool) {
	type word struct {
		text string
		part part
	}
	w, ok := choice(r, v, func(s string) (word, bool) {
		if name, is := strings.CutPrefix(s, "claim:"); is {
			return word{s, part{kind: perClaim, claim: name}}, true
		}
		for k, known := range perWords[:perClaim] {
			if s == known {
				return word{s, part{kind: partKind(k)}}, true
			}
		}
		return word{}, false
	}, perWords)
	if ok && w.part.kind == perClaim && !validClaim(w.part.claim) {
		r.problem(v, "claim name %s is not 1 to %d printable ASCII characters other than space and +", quote(w.part.claim), maxClaimName)
		ok = false
	}
	return w.text, w.part, ok
}

// validClaim keeps "+" out, which joins the words of a list.
func validClaim(name string) bool {
	if name == "" || len(name) > maxClaimName {
		return false
	}
	return strings.IndexFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || c == '+' }) < 0
}

var methodNames = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

// matchOf reads match: {methods, pathPattern}.
func (r *reader) matchOf(o object, s *spec, layer string) {
	s.rule.Any = true
	v, ok := o.get("match")
	if !ok {
		return
	}
	if m, ok := r.object(v, matchSchema); ok {
		s.methods, s.pattern, s.rule = r.routeRule(m, layer)
	}
}

// routeRule reads methods and pathPattern of a match or a route.
func (r *reader) routeRule(o object, layer string) (methods field[[]string], pattern field[string], rule route.Rule) {
	rule.Any = true
	methods = take(r, o, "methods", layer, r.methods)
	rule.Methods = methods.v
	pattern = take(r, o, "pathPattern", layer, func(v value) (string, bool) {
		s, ok := r.text(v)
		if !ok {
			return "", false
		}
		p, err := route.ParsePattern(s)
		if err != nil {
			var bad *route.SyntaxError
			if errors.As(err, &bad) {
				r.problem(v, "pattern %s, character %d: %s", quote(s), bad.Position, bad.Message)
			} else {
				r.problem(v, "pattern %s: %v", quote(s), err)
			}
			return "", false
		}
		rule.Pattern, rule.Any = p, false
		return p.String(), true
	})
	return methods, pattern, rule
}

func (r *reader) methods(v value) ([]string, bool) {
	items, ok := []value{v}, true
	if isList(v) {
		if items, ok = r.list(v, "methods"); !ok {
			return nil, false
		}
	}
	if len(items) == 0 {
		r.problem(v, "no method is named, so nothing matches: leave methods out for any")
		return nil, false
	}
	out := make([]string, 0, len(items))
	for _, item := range items {
		m, good := choice(r, item, func(s string) (string, bool) { return s, slices.Contains(methodNames, s) }, methodNames)
		switch {
		case !good:
			ok = false
		case slices.Contains(out, m):
			r.problem(item, "%s is there twice", m)
			ok = false
		default:
			out = append(out, m)
		}
	}
	return out, ok
}

// CostRule says how many units a request spends. It is never chosen by the client: the header is one that the operator's
// own edge overwrites.
type CostRule struct {
	Header  string // canonical name; "" where the cost is fixed
	Max     int64  // largest cost, units
	Default int64  // units where the header is absent or malformed, and the fixed cost
}

// String is the rule in the words of a plan.
func (c CostRule) String() string {
	if c.Header == "" {
		return fmt.Sprint(c.Default)
	}
	return fmt.Sprintf("header %s up to %d, default %d", strings.ToLower(c.Header), c.Max, c.Default)
}

// of is the cost of a request.
func (c CostRule) of(a *Attributes) int64 {
	if c.Header == "" || a.Header == nil {
		return c.Default
	}
	text, ok := a.Header(c.Header)
	if !ok || text == "" {
		return c.Default
	}
	n := int64(0)
	for i := range len(text) {
		d := text[i] - '0'
		if d > 9 {
			return c.Default
		}
		n = min(n*10+int64(d), c.Max+1) // no overflow: Max is at most MaxUnits
	}
	if n < 1 {
		return c.Default
	}
	return min(n, c.Max)
}

// cost reads an integer, or {trustedHeader, max, default}.
func (r *reader) cost(v value) (CostRule, bool) {
	if !isMapping(v) {
		n, ok := r.units(v)
		return CostRule{Max: n, Default: n}, ok
	}
	o, ok := r.object(v, costSchema)
	if !ok {
		return CostRule{}, false
	}
	header := need(r, o, "trustedHeader", "", "the header that your own edge sets", func(v value) (string, bool) {
		s, ok := r.text(v)
		if ok && !validHeader(s) {
			r.problem(v, "%s is not a header's name", quote(s))
			ok = false
		}
		return textproto.CanonicalMIMEHeaderKey(s), ok
	})
	most := need(r, o, "max", "", "the largest cost that is believed", r.units)
	usual := take(r, o, "default", "", r.units)
	if !usual.set {
		usual.v = 1
	}
	if header.bad || most.bad || usual.bad {
		return CostRule{}, false
	}
	if usual.v > most.v {
		r.problemAt(usual.from, "default %d is above max %d", usual.v, most.v)
		return CostRule{}, false
	}
	return CostRule{Header: header.v, Max: most.v, Default: usual.v}, true
}

// validHeader accepts a token of RFC 9110, at most 64 bytes.
func validHeader(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	return strings.IndexFunc(s, func(c rune) bool {
		alnum := (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')
		return !alnum && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	}) < 0
}
