package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

const (
	slasPlan     = "slas" // id of the plan that is made of the SLA form
	maxLimits    = 2000   // of one plan, of ipLimits, and of slas
	maxRoutes    = 5000   // declared routes
	hashHexBytes = 64
)

// Parse parses the sources as one configuration, at the present time. The error is an *Error with all problems.
func Parse(sources ...Source) (*Config, error) { return ParseAt(time.Now(), sources...) }

// ParseAt parses the sources as one configuration. The time now matters only to boosts without a from: they may last
// at most 366 days from now. A file that is valid at one time is valid at any later time. The error is an *Error with
// all problems.
func ParseAt(now time.Time, sources ...Source) (*Config, error) {
	r := &reader{now: now}
	raw, err := r.parse(sources)
	if err != nil {
		return nil, err
	}
	r.dropTrees()
	return raw.config, nil
}

// parse reads the sources and resolves the ids in them. The syntax trees stay in memory until dropTrees is called.
func (r *reader) parse(sources []Source) (*rawConfig, error) {
	raw := &rawConfig{config: &Config{byID: map[string]*Tenant{}, Settings: *NoSettings()}}
	if len(sources) == 0 {
		return nil, &Error{Problems: []Problem{{File: "-", Message: "no file is given"}}}
	}
	for _, src := range sources {
		doc := r.open(src)
		raw.config.files = append(raw.config.files, File{Name: src.Name})
		if doc.Root != nil {
			r.read(value{Doc: doc, Node: doc.Root}, raw)
		}
	}
	r.resolve(raw)
	if err := r.Err(); err != nil {
		return nil, err
	}
	raw.config.warnings = r.Warnings()
	return raw, nil
}

func (r *reader) open(src Source) *configfile.Document {
	d := r.Open(src, "it needs at least one of "+strings.Join(topKeys.Keys, ", "))
	r.documents = append(r.documents, d)
	return d
}

// dropTrees releases the syntax trees of the sources. The places of problems need only the names of the documents.
func (r *reader) dropTrees() {
	for _, d := range r.documents {
		d.Root = nil
	}
}

// rawConfig is what the files hold, before the ids in them are looked up.
type rawConfig struct {
	config    *Config
	plans     []*rawPlan
	slas      *rawPlan
	ipLimits  []*spec
	tenants   []*rawTenant
	prefixes  []field[int]
	anonymous []field[string]
	routes    []rawRoute
	keys      []rawKey
}

type rawPlan struct {
	at place
	id field[string]
	routeOptions
	limits []*spec
}

type rawRoute struct {
	at place
	match
}

type rawKey struct {
	id, tenant, subject, hash, pepper field[string]
	expires                           field[time.Time]
	revoked                           field[bool]
}

func (k *rawKey) key() Key {
	return Key{k.id.v, k.tenant.v, k.subject.v, k.hash.v, k.pepper.v, k.expires.v, k.revoked.v}
}

// read reads the sections of one file.
func (r *reader) read(root value, raw *rawConfig) {
	if r.ofServe(root) {
		return
	}
	o, ok := r.Object(root, &topKeys.schema)
	if !ok {
		return
	}
	r.plansUnread = r.plansUnread || o.Misspelt("plans", "slas")
	r.tenantsUnread = r.tenantsUnread || o.Misspelt("tenants")
	file := &raw.config.files[root.Doc.Number]
	for _, e := range o.Entries { // in file order, so that the plan of the SLA form gets the place of its list
		switch e.Key {
		case "plans":
			plans := each(r, e.Value, "plans", r.plan)
			raw.plans = append(raw.plans, plans...)
			file.Plans = len(plans)
			for _, p := range plans {
				file.Limits += len(p.limits)
			}
		case "slas":
			limits := each(r, e.Value, "SLAs", r.limitsOf(slaLimit, slasPlan, routeOptions{}))
			if raw.slas == nil {
				raw.slas = &rawPlan{at: placeOf(e.Value, ""), id: field[string]{v: slasPlan, set: true,
					from: placeOf(e.Value, "")}}
				raw.plans = append(raw.plans, raw.slas)
			}
			raw.slas.limits = append(raw.slas.limits, limits...)
			file.SLAs = len(limits)
		case "ipLimits":
			limits := each(r, e.Value, "limits", r.limitsOf(ipLimit, "ipLimits", routeOptions{}))
			raw.ipLimits = append(raw.ipLimits, limits...)
			file.IPLimits = len(limits)
		case "ipv6Prefix":
			raw.prefixes = append(raw.prefixes, valueOf(r, e.Value, "", ipv6Prefix))
		case "tenants":
			tenants := each(r, e.Value, "tenants", r.tenant)
			raw.tenants = append(raw.tenants, tenants...)
			file.Tenants = len(tenants)
		case "anonymousPlan":
			raw.anonymous = append(raw.anonymous, valueOf(r, e.Value, "", idKind))
		case "routes":
			routes := each(r, e.Value, "routes", r.route)
			raw.routes = append(raw.routes, routes...)
			file.Routes = len(routes)
		case "keys":
			keys := each(r, e.Value, "keys", r.key)
			raw.keys = append(raw.keys, keys...)
			file.Keys = len(keys)
		}
	}
}

// ofServe reports a file for 'sluice serve --config', which is easily taken for a plans file.
func (r *reader) ofServe(root value) bool {
	if !isMapping(root) {
		return false
	}
	var first *configfile.Node
	for i := 0; i+1 < len(root.Node.Content); i += 2 {
		switch key := root.Node.Content[i]; {
		case slices.Contains(topKeys.Keys, key.Text):
			return false
		case first == nil && (key.Text == "domain" || key.Text == "descriptors"):
			first = key
		}
	}
	if first == nil {
		return false
	}
	r.Problem(value{Doc: root.Doc, Node: first}, "the key %s belongs to a file for 'sluice serve --config'; a plans "+
		"file has at least one of %s", first.Text, strings.Join(topKeys.Keys, ", "))
	return true
}

// each reads the items of a list with the function read, and leaves out the items that cannot be read at all.
func each[T any](r *reader, v value, what string, read func(value) (T, bool)) []T {
	items, ok := r.List(v, what)
	if !ok {
		return nil
	}
	out := make([]T, 0, len(items))
	for _, item := range items {
		if got, ok := read(item); ok {
			out = append(out, got)
		}
	}
	return out
}

// reportDuplicates reports every id that occurs more than once.
func reportDuplicates[T any](r *reader, items []T, what string, id func(T) field[string]) {
	first := make(map[string]place, len(items))
	for _, item := range items {
		f := id(item)
		if f.bad || !f.set {
			continue
		}
		if at, twice := first[f.v]; twice {
			r.problemAt(f.from, "%s %s is there twice, first at %s:%d", what, configfile.Quote(f.v), at.Doc.Name,
				at.Line)
		} else {
			first[f.v] = f.from
		}
	}
}

// limitsOf returns a function for each that reads the limits of one list.
func (r *reader) limitsOf(in list, layer string, options routeOptions) func(value) (*spec, bool) {
	return func(v value) (*spec, bool) { return r.limit(v, in, layer, options) }
}

func (r *reader) plan(v value) (*rawPlan, bool) {
	p := &rawPlan{at: placeOf(v, "")}
	o, ok := planKeys.read(r, v, p, "")
	if !ok {
		return nil, false
	}
	layer := "plan " + configfile.Clip(p.id.v)
	p.caseInsensitive.from.layer, p.impliesHead.from.layer = layer, layer
	if list, ok := r.Required(o, "limits", "a list of limits; [] for none"); ok {
		p.limits = each(r, list, "limits", r.limitsOf(planLimit, layer, p.routeOptions))
	}
	return p, true
}

func (r *reader) route(v value) (rawRoute, bool) {
	out := rawRoute{at: placeOf(v, "")}
	o, ok := routeKeys.read(r, v, &out.match, "")
	if ok && !out.methods.set && !out.pattern.set && !o.Misspelt("methods", "pathPattern") {
		r.Problem(v, "a route needs methods or pathPattern")
	}
	out.setRule()
	return out, ok && !out.methods.bad && !out.pattern.bad
}

func (r *reader) key(v value) (rawKey, bool) {
	var k rawKey
	_, ok := keyKeys.read(r, v, &k, "")
	return k, ok
}

func (r *reader) hash(v value) (string, bool) {
	s, ok := r.Text(v)
	if ok && (len(s) != hashHexBytes || strings.Trim(s, "0123456789abcdef") != "") {
		r.Problem(v, "want %d hex digits in lower case, got %d characters", hashHexBytes, len([]rune(s)))
		return s, false
	}
	return s, ok
}

// resolve looks up ids over all files and builds the limits.
func (r *reader) resolve(raw *rawConfig) {
	c := raw.config
	rules := r.routes(raw.routes)
	if len(rules) > 0 {
		c.routes = route.NewIndex(rules)
	}
	reportDuplicates(r, raw.plans, "plan", func(p *rawPlan) field[string] { return p.id })
	plans := make(map[string]*Plan, len(raw.plans))
	ids := make([]string, 0, len(raw.plans))
	c.rules = rules
	if r.draft {
		rules = nil // Draft.Check uses the routes of the server too
	}
	for _, rp := range raw.plans {
		p := r.buildPlan(rp, rules)
		where := "in the plan"
		if rp == raw.slas {
			where = "in each match"
		}
		r.warnOfSpellings(rp.limits, rp.at, where)
		if !r.draft {
			r.warnOfMethods(rp.limits, rules, rp.at)
		}
		c.plans = append(c.plans, p)
		if _, twice := plans[p.ID]; !twice && !rp.id.bad {
			plans[p.ID] = p
			ids = append(ids, p.ID)
		}
	}
	if len(raw.ipLimits) > 0 {
		c.ipLimits = r.buildSet(raw.ipLimits, nil)
		r.warnOfSpellings(raw.ipLimits, raw.ipLimits[0].from, "in the match of each entry of ipLimits")
	}
	r.ipv6Prefixes(raw)
	r.anonymous(raw, plans, ids)
	r.tenants(raw, plans, ids)
	r.keys(raw)
}

// buildPlan makes a plan and its limits.
func (r *reader) buildPlan(raw *rawPlan, routes []route.Rule) *Plan {
	p := &Plan{ID: raw.id.v, set: r.buildSet(raw.limits, routes)}
	p.ids, p.at = make([]string, 0, len(raw.limits)), make(map[string]int, len(raw.limits))
	for i, s := range raw.limits {
		if _, twice := p.at[s.id.v]; !twice {
			p.at[s.id.v] = i
		}
		p.ids = append(p.ids, s.id.v)
	}
	return p
}

func (r *reader) ipv6Prefixes(raw *rawConfig) {
	if f, ok := single(r, "ipv6Prefix", raw.prefixes); ok {
		raw.config.prefix = f.v
		r.warnPrefix(f)
	}
}

// single returns the value of a key that may stand in one file only, and reports the others. ok: there is one, and it
// could be read.
func single[T any](r *reader, key string, values []field[T]) (f field[T], ok bool) {
	for i, f := range values {
		if first := values[0].from; i > 0 {
			r.problemAt(f.from, "%s is there twice, first at %s:%d", key, first.Doc.Name, first.Line)
		}
	}
	if len(values) == 0 {
		return f, false
	}
	return values[0], !values[0].bad
}

// ipv6Prefix is the kind of the value of the key ipv6Prefix.
var ipv6Prefix = between(MinIPv6Prefix, MaxIPv6Prefix)

func (r *reader) anonymous(raw *rawConfig, plans map[string]*Plan, ids []string) {
	f, ok := single(r, "anonymousPlan", raw.anonymous)
	switch p := plans[f.v]; {
	case !ok:
	case p == nil && r.draft: // Draft.Check looks for the plan on the server
	case p == nil:
		r.unknownPlan(f, ids)
	default:
		raw.config.anonymous, raw.config.Settings.anonymous = p, p.ID
	}
}

func (r *reader) unknownPlan(f field[string], ids []string) {
	if r.plansUnread {
		return
	}
	switch hint := configfile.DidYouMean(f.v, ids); {
	case hint != "":
		r.problemAt(f.from, "there is no plan %s%s", configfile.Quote(f.v), hint)
	case len(ids) == 0:
		r.problemAt(f.from, "there is no plan %s: no plan is defined", configfile.Quote(f.v))
	case len(ids) > 20:
		r.problemAt(f.from, "there is no plan %s", configfile.Quote(f.v))
	default:
		r.problemAt(f.from, "there is no plan %s; plans: %s", configfile.Quote(f.v), strings.Join(ids, ", "))
	}
}

func (r *reader) tenants(raw *rawConfig, plans map[string]*Plan, ids []string) {
	c := raw.config
	reportDuplicates(r, raw.tenants, "tenant", func(t *rawTenant) field[string] { return t.id })
	c.tenants = make([]*Tenant, 0, len(raw.tenants))
	c.byID = make(map[string]*Tenant, len(raw.tenants))
	for _, t := range raw.tenants {
		if !t.plan.set && raw.slas != nil {
			t.plan = field[string]{v: slasPlan, set: true, from: t.at}
			t.tenant.Plan = slasPlan
		}
		switch p := plans[t.plan.v]; {
		case r.draft && (!t.plan.set || p == nil): // Draft.Check looks for the plan on the server
		case !t.plan.set && len(plans) == 0:
			r.problemAt(t.at, "plan is missing: the id of a plan. If the server has the plans, 'sluice plan diff' "+
				"checks the file against them")
		case !t.plan.set:
			r.problemAt(t.at, "plan is missing: the id of a plan")
		case t.plan.bad:
		case p == nil:
			r.unknownPlan(t.plan, ids)
		default:
			r.effective(t, p)
		}
		c.tenants = append(c.tenants, t.tenant)
		c.byID[t.tenant.ID] = t.tenant
	}
	slices.SortFunc(c.tenants, func(a, b *Tenant) int { return cmp.Compare(a.ID, b.ID) })
}

func (r *reader) keys(raw *rawConfig) {
	reportDuplicates(r, raw.keys, "key", func(k rawKey) field[string] { return k.id })
	type stored struct{ hash, pepper string }
	first := map[stored]string{}
	for _, k := range raw.keys {
		if !k.tenant.bad && raw.config.byID[k.tenant.v] == nil && !r.draft && !r.tenantsUnread {
			r.problemAt(k.tenant.from, "there is no tenant %s", configfile.Quote(k.tenant.v))
		}
		at := stored{k.hash.v, k.pepper.v}
		if id, twice := first[at]; twice && !k.hash.bad {
			r.problemAt(k.hash.from, "key %s has this hash already", configfile.Quote(id))
		}
		first[at] = k.id.v
		raw.config.keys = append(raw.config.keys, k.key())
	}
}

// routes returns the rules of the declared routes. It reports routes that occur twice.
func (r *reader) routes(raw []rawRoute) []route.Rule {
	if len(raw) > maxRoutes {
		r.problemAt(raw[maxRoutes].at, "%d routes, want at most %d", len(raw), maxRoutes)
		return nil
	}
	rules := make([]route.Rule, len(raw))
	first := make(map[string]place, len(raw))
	for i, one := range raw {
		rules[i] = one.rule
		methods := slices.Sorted(slices.Values(one.rule.Methods))
		text := strings.Join(methods, ",") + " " + patternText(one.rule)
		if at, twice := first[text]; twice {
			r.problemAt(one.at, "the route is there twice, first at %s:%d", at.Doc.Name, at.Line)
		} else {
			first[text] = one.at
		}
	}
	return rules
}
