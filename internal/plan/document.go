package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// Kind says what a [Document] holds.
type Kind = events.Kind

// The kinds of documents that a plans file is split into.
const (
	KindPlan   = events.KindPlan
	KindTenant = events.KindTenant
	KindKey    = events.KindKey
	// KindSettings holds ipLimits, ipv6Prefix, anonymousPlan and routes. There is one such document; its id is
	// SettingsID.
	KindSettings = events.KindSettings
)

// Kinds are all kinds, in the order of [Split]: a document refers only to documents of kinds before its own. Do not
// change the slice.
var Kinds = []Kind{KindPlan, KindSettings, KindTenant, KindKey}

// SettingsID is the id of the only document of KindSettings.
const SettingsID = "settings"

// Document is a part of a plans file that is stored and sent by itself: one plan, one tenant, one key, or the
// settings.
type Document struct {
	Kind Kind
	ID   string
	Body []byte // canonical JSON (events.Canonical), instants in UTC; the members are the keys of a plans file
}

// Name describes the document, as in `tenant "acme"`. Problems have it in place of a file's name.
func (d Document) Name() string {
	if d.Kind == KindSettings {
		return string(d.Kind)
	}
	return string(d.Kind) + " " + strconv.Quote(configfile.Clip(d.ID))
}

// Split parses the sources as one configuration, as [ParseAt] does, and divides it into documents: plans first, then
// the settings, tenants and keys, each kind in file order. A document therefore refers only to documents before it.
// The SLA form becomes the plan that it stands for. The error is an *Error with all problems and their places in the
// sources.
func Split(now time.Time, sources ...Source) ([]Document, error) {
	s, err := split(now, sources)
	if err != nil {
		return nil, err
	}
	return s.documents(), nil
}

// split parses the sources and divides them. The result still has the settings as a tree.
func split(now time.Time, sources []Source) (*splitter, error) {
	r := &reader{now: now}
	raw, err := r.parse(sources)
	if err != nil {
		return nil, err
	}
	return r.split(raw), nil
}

// split divides sources that parse has found valid.
func (r *reader) split(raw *rawConfig) *splitter {
	s := splitter{lists: map[string][]Document{}, settings: map[string]any{}, slas: raw.slas != nil, slasAt: -1,
		slaLimits: []any{}}
	for _, d := range r.documents {
		s.source(d.Root)
	}
	if s.slasAt >= 0 {
		s.lists["plans"][s.slasAt] = newDocument(KindPlan, slasPlan,
			map[string]any{"id": slasPlan, "limits": s.slaLimits})
	}
	return &s
}

// documents returns the documents in the order of [Split].
func (s *splitter) documents() []Document {
	settings := newDocument(KindSettings, SettingsID, s.settings)
	return slices.Concat(s.lists["plans"], []Document{settings}, s.lists["tenants"], s.lists["keys"])
}

// JSON parses the sources as one configuration, as [ParseAt] does, and writes it as one plans file in canonical JSON:
// keys sorted, no spaces, instants in UTC, the SLA form as the plan that it stands for, and each plan, tenant and key
// on a line of its own. Sources with the same meaning and order give the same bytes. The error is an *Error with all
// problems.
func JSON(now time.Time, sources ...Source) ([]byte, error) {
	s, err := split(now, sources)
	if err != nil {
		return nil, err
	}
	var sections []string
	for key, value := range s.settings {
		section := canonicalJSON(map[string]any{key: value})
		sections = append(sections, string(section[1:len(section)-1]))
	}
	for section, documents := range s.lists {
		bodies := make([][]byte, len(documents))
		for i, d := range documents {
			bodies[i] = d.Body
		}
		sections = append(sections, fmt.Sprintf("%q:[\n%s\n]", section, bytes.Join(bodies, []byte(",\n"))))
	}
	slices.Sort(sections)
	return []byte("{" + strings.Join(sections, ",\n") + "}\n"), nil
}

// splitter divides valid sources into documents.
type splitter struct {
	lists     map[string][]Document // by section: plans, tenants, keys
	settings  map[string]any
	slas      bool  // the sources have an SLA form; it is the plan of tenants without one
	slasAt    int   // index of the SLA form's plan in the plans; -1 until the form is read
	slaLimits []any // the SLAs of all sources, as limits
}

func newDocument(kind Kind, id string, body map[string]any) Document {
	return Document{Kind: kind, ID: id, Body: canonicalJSON(body)}
}

func (s *splitter) source(root *configfile.Node) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, section := root.Content[i].Text, tree("", root.Content[i+1])
		list, _ := section.([]any)
		switch key {
		case "plans", "tenants", "keys":
			for _, one := range list {
				body := one.(map[string]any)
				if key == "tenants" && s.slas && body["plan"] == nil {
					body["plan"] = slasPlan
				}
				s.lists[key] = append(s.lists[key],
					newDocument(Kind(strings.TrimSuffix(key, "s")), body["id"].(string), body))
			}
		case "slas":
			if s.slasAt < 0 {
				s.slasAt = len(s.lists["plans"])
				s.lists["plans"] = append(s.lists["plans"], Document{}) // split puts the plan here at the end
			}
			for _, one := range list {
				s.slaLimits = append(s.slaLimits, slaAsLimit(one.(map[string]any)))
			}
		case "ipLimits", "routes":
			if before, ok := s.settings[key].([]any); ok {
				list = append(before, list...)
			}
			if len(list) > 0 {
				s.settings[key] = list
			}
		case "ipv6Prefix", "anonymousPlan":
			s.settings[key] = section
		}
	}
}

// slaAsLimit writes an entry of the SLA form as the limit that it stands for; see reader.limit.
func slaAsLimit(sla map[string]any) map[string]any {
	sla["per"] = "endpoint"
	if on, ok := sla["enabled"].(bool); ok {
		sla["mode"] = map[bool]string{true: "enforce", false: "off"}[on]
		delete(sla, "enabled")
	}
	return sla
}

// tree returns a valid node in the types that encoding/json decodes to; numbers stay text. key is the key whose value
// the node is.
func tree(key string, n *configfile.Node) any {
	switch n.Kind {
	case configfile.Mapping:
		out := make(map[string]any, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i].Text
			out[k] = tree(k, n.Content[i+1])
		}
		return out
	case configfile.List:
		out := make([]any, len(n.Content))
		for i, item := range n.Content {
			out[i] = tree(key, item)
		}
		return out
	case configfile.Boolean:
		return strings.EqualFold(n.Text, "true")
	case configfile.Integer, configfile.Float:
		return json.Number(canonicalNumber(n.Text))
	default: // text
	}
	if key == "from" || key == "until" || key == "expires" {
		if at, err := time.Parse(time.RFC3339, n.Text); err == nil {
			return at.UTC().Format(time.RFC3339Nano)
		}
	}
	return n.Text
}

// canonicalNumber writes a decimal that the reader accepts (1_000, +5, 2.50) in its shortest form (1000, 5, 2.5).
func canonicalNumber(text string) string {
	whole, fraction, _ := strings.Cut(strings.TrimLeft(strings.ReplaceAll(text, "_", ""), "+"), ".")
	if whole = strings.TrimLeft(whole, "0"); whole == "" {
		whole = "0"
	}
	if fraction = strings.TrimRight(fraction, "0"); fraction != "" {
		return whole + "." + fraction
	}
	return whole
}

// canonicalJSON writes an object that tree has returned, which always has a canonical form.
func canonicalJSON(object any) []byte {
	text, _ := events.MarshalCanonical(object)
	return text
}

// open reads the body. The value is valid only if its Node is not nil.
func (d Document) open(kind Kind) (*reader, value) {
	r := &reader{stored: true}
	bad := func(format string, args ...any) (*reader, value) {
		r.ProblemAt(configfile.Place{Doc: &configfile.Document{Name: d.Name()}}, format, args...)
		return r, value{}
	}
	switch {
	case d.Kind != kind:
		return bad("want a document of kind %s", kind)
	case len(d.Body) > MaxFileBytes:
		return bad("the document is larger than %d MiB", MaxFileBytes>>20)
	}
	doc := r.open(Source{Name: d.Name(), Data: d.Body, Parse: parseBody})
	if doc.Root == nil {
		return r, value{}
	}
	return r, value{Doc: doc, Node: doc.Root}
}

// parseBody parses a stored document. Its problems have no line and column, since the document is one line.
func parseBody(body []byte) (*configfile.Node, *Problem) {
	root, problem := configfile.ParseJSON(body)
	switch {
	case problem != nil || len(bytes.TrimSpace(body)) == 0:
		return nil, &Problem{Message: "the document is not valid JSON"}
	case root == nil:
		return nil, &Problem{Message: "the document is empty"}
	}
	return root, nil
}

// compile reads the document with the function read, which returns the id that it found. It is a problem if the id is
// not the document's.
func compile[T any](d Document, kind Kind, read func(*reader, value) (T, field[string])) (T, error) {
	r, v := d.open(kind)
	if v.Node != nil {
		out, id := read(r, v)
		if r.Found() == 0 && id.v != d.ID {
			r.problemAt(id.from, "the document's id is %s, want %s", configfile.Quote(id.v), configfile.Quote(d.ID))
		}
		if r.dropTrees(); r.Found() == 0 {
			return out, nil
		}
	}
	var none T
	return none, r.Err()
}

// CompilePlan makes a plan of a document. The error is an *Error whose problems have the document's name in place of a
// file's.
func CompilePlan(d Document) (*Plan, error) {
	return compile(d, KindPlan, func(r *reader, v value) (*Plan, field[string]) {
		raw, ok := r.plan(v)
		if !ok {
			return nil, field[string]{}
		}
		return r.buildPlan(raw, nil), raw.id
	})
}

// TenantDocument is a tenant that is read but not yet resolved against its plan. It is immutable.
type TenantDocument struct{ raw *rawTenant }

// ReadTenant reads the document of a tenant, as far as that is possible without the tenant's plan. It does not check
// how long a boost without a from lasts: that is checked when the document is written. The error is an *Error.
func ReadTenant(d Document) (*TenantDocument, error) {
	return compile(d, KindTenant, func(r *reader, v value) (*TenantDocument, field[string]) {
		raw, ok := r.tenant(v)
		if !ok {
			return nil, field[string]{}
		}
		return &TenantDocument{raw}, raw.id
	})
}

// PlanID returns the id of the plan that Compile needs; "" if the tenant has no plan.
func (t *TenantDocument) PlanID() string { return t.raw.plan.v }

// Compile makes the tenant's effective limits from the limits of its plan, whose id must be PlanID. A tenant with
// neither overrides nor boosts shares the plan's set, so that many tenants of one plan need little memory. If the
// tenant has no plan, p is nil and the tenant has no limits. The error is an *Error: an override or a boost does not
// fit the plan.
func (t *TenantDocument) Compile(p *Plan) (*Tenant, error) {
	raw, tenant := *t.raw, *t.raw.tenant
	raw.tenant = &tenant
	if p == nil && tenant.Plan == "" {
		tenant.spans = []span{{math.MinInt64, &Set{match: emptyMatcher}}}
		return &tenant, nil
	}
	if p == nil || p.ID != tenant.Plan {
		at := t.raw.at
		if t.raw.plan.set {
			at = t.raw.plan.from
		}
		return nil, &Error{Problems: []Problem{at.Says("the plan at hand is not %s", configfile.Quote(tenant.Plan))}}
	}
	r := &reader{stored: true}
	r.effective(&raw, p)
	if err := r.Err(); err != nil {
		return nil, err
	}
	return &tenant, nil
}

// Sets returns every set that Limits returns at some time, in the order of time.
func (t *Tenant) Sets() []*Set {
	sets := make([]*Set, len(t.spans))
	for i := range t.spans {
		sets[i] = t.spans[i].set
	}
	return sets
}

// Settings are the parts of a configuration that are neither plans, tenants nor keys. They are immutable and safe for
// concurrent use.
type Settings struct {
	ipLimits  *Set
	prefix    int
	anonymous string
	routes    *route.Index // nil if no routes are declared
	rules     []route.Rule // the rules of routes, in the order of the document
}

// NoSettings returns the settings of an empty document: no ipLimits, no anonymousPlan, no declared routes (so that
// every request is routed), and DefaultIPv6Prefix.
func NoSettings() *Settings {
	return &Settings{ipLimits: &Set{match: emptyMatcher}, prefix: DefaultIPv6Prefix}
}

// IPLimits returns the limits that are checked before authentication. The set may be empty; it is never nil.
func (s *Settings) IPLimits() *Set { return s.ipLimits }

// IPv6Prefix returns the length of the prefix, in bits, by which IPv6 addresses are counted:
// MinIPv6Prefix..MaxIPv6Prefix.
func (s *Settings) IPv6Prefix() int { return s.prefix }

// AnonymousPlan returns the id of the plan of calls without a credential, or "". Of a document, the plan need not
// exist.
func (s *Settings) AnonymousPlan() string { return s.anonymous }

// Routes describes the declared routes, as in "GET, PUT /product/*", in the order of the document. No two of them are
// equal.
func (s *Settings) Routes() []string {
	out := make([]string, len(s.rules))
	for i, r := range s.rules {
		r.Methods = slices.Sorted(slices.Values(r.Methods))
		out[i] = ruleText(r)
	}
	return out
}

// Routed reports whether the request is for a declared route. If its path can be read in several ways, each reading
// must match a declared route. If no routes are declared, Routed returns true for every request.
func (s *Settings) Routed(method string, path *route.Path) bool {
	return s.routes == nil || s.routes.MatchesEveryForm(method, path)
}

// CompileSettings makes the settings of a document. The error is an *Error.
func CompileSettings(d Document) (*Settings, error) {
	return compile(d, KindSettings, func(r *reader, v value) (*Settings, field[string]) {
		return r.settings(v), field[string]{v: SettingsID, from: placeOf(v, "")}
	})
}

func (r *reader) settings(v value) *Settings {
	s := NoSettings()
	o, ok := r.Object(v, &settingsKeys.schema)
	if !ok {
		return s
	}
	if v, ok := o.Get("anonymousPlan"); ok {
		s.anonymous, _ = r.id(v)
	}
	if v, ok := o.Get("ipv6Prefix"); ok {
		s.prefix, _ = ipv6Prefix.read(r, v)
	}
	if list, ok := o.Get("ipLimits"); ok {
		if limits := each(r, list, "limits", r.limitsOf(ipLimit, "ipLimits", routeOptions{})); len(limits) > 0 {
			s.ipLimits = r.buildSet(limits, nil)
		}
	}
	if list, ok := o.Get("routes"); ok {
		if rules := r.routes(each(r, list, "routes", r.route)); len(rules) > 0 {
			s.routes, s.rules = route.NewIndex(rules), rules
		}
	}
	return s
}

// CompileKey makes the stored API key of a document. The tenant of the key need not exist. The error is an *Error.
func CompileKey(d Document) (*Key, error) {
	return compile(d, KindKey, func(r *reader, v value) (*Key, field[string]) {
		raw, _ := r.key(v)
		k := raw.key()
		return &k, raw.id
	})
}
