package plan

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// Draft is a set of plans files that will be added to the configuration of a server. The files may name plans and
// tenants that only the server has, and may leave out the plan of a tenant that the server has. A Draft is immutable.
type Draft struct {
	now       time.Time
	raw       *rawConfig
	documents []Document
}

// ReadDraft parses the sources as one configuration and divides it into documents, as [Split] does. The error is an
// *Error with all problems that can be found without the server's configuration; [Draft.Check] finds the others.
func ReadDraft(now time.Time, sources ...Source) (*Draft, error) {
	r := &reader{now: now, draft: true}
	raw, err := r.parse(sources)
	if err != nil {
		return nil, err
	}
	d := &Draft{now, raw, r.split(raw).documents()}
	r.dropTrees()
	return d, nil
}

// Documents returns the documents of the files, in the order of [Split].
func (d *Draft) Documents() []Document { return d.documents }

// Plan returns a plan of the files; nil if they have no plan of that id.
func (d *Draft) Plan(id string) *Plan {
	i := slices.IndexFunc(d.raw.config.plans, func(p *Plan) bool { return p.ID == id })
	if i < 0 {
		return nil
	}
	return d.raw.config.plans[i]
}

// Base is the configuration of a server that a draft is added to.
type Base struct {
	Plans   map[string]*Plan  // by id; nil: the plan cannot be read
	Tenants map[string]string // tenant id → id of its plan; "": the tenant has no plan

	// Settings hold the server's routes that stay in force beside those of the files. nil: there are none.
	Settings *Settings

	Pruned bool // plans or tenants that the prune will delete are left out of Plans and Tenants
}

// Check looks in the base for everything that the files refer to and do not define. The error is an *Error with all
// problems, in file order.
func (d *Draft) Check(b Base) error {
	c := checker{r: &reader{now: d.now}, base: b, own: map[string]*Plan{}, ids: slices.Sorted(maps.Keys(b.Plans))}
	c.nowhere = "neither in the files nor on the server"
	if b.Pruned {
		c.nowhere += " after the prune"
	}
	for _, p := range d.raw.config.plans {
		c.own[p.ID] = p
		c.ids = append(c.ids, p.ID)
	}
	rules := d.raw.config.rules
	if b.Settings != nil && len(rules) > 0 {
		rules = slices.Concat(rules, b.Settings.rules)
	}
	for _, p := range d.raw.plans {
		c.r.reportUnrouted(p.limits, rules)
	}
	for _, f := range d.raw.anonymous {
		c.plan(f)
	}
	for _, t := range d.raw.tenants {
		c.tenant(t)
	}
	for _, k := range d.raw.keys {
		if _, there := b.Tenants[k.tenant.v]; !there && d.raw.config.byID[k.tenant.v] == nil {
			c.r.problemAt(k.tenant.from, "there is no tenant %s, %s", configfile.Quote(k.tenant.v), c.nowhere)
		}
	}
	return c.r.Err()
}

// checker checks a draft against a base.
type checker struct {
	r    *reader
	base Base
	own  map[string]*Plan // the plans of the files, by id
	ids  []string         // of the plans in the files and in the base

	nowhere string // for messages: where plans and tenants were looked for
}

// plan finds a plan in the files or in the base. It reports a plan that is in neither. It returns nil for such a plan,
// and for one that cannot be read.
func (c *checker) plan(f field[string]) *Plan {
	if p := c.own[f.v]; p != nil {
		return p
	}
	p, there := c.base.Plans[f.v]
	if there {
		return p
	}
	c.r.problemAt(f.from, "there is no plan %s, %s%s", configfile.Quote(f.v), c.nowhere,
		configfile.DidYouMean(f.v, c.ids))
	return nil
}

func (c *checker) tenant(t *rawTenant) {
	id := t.plan
	if !id.set {
		stored, there := c.base.Tenants[t.id.v]
		switch {
		case !there:
			c.r.problemAt(t.at, "plan is missing: the id of a plan, since the server has no tenant %s",
				configfile.Quote(t.id.v))
			return
		case stored == "":
			return // the tenant keeps having no plan
		}
		id = field[string]{v: stored, from: t.at}
	}
	p := c.plan(id)
	if p == nil || t.plan.set && c.own[id.v] != nil {
		return // ReadDraft has compiled a tenant whose plan is in the files
	}
	tenant := *t.tenant
	copied := *t
	copied.tenant = &tenant
	c.r.effective(&copied, p)
}

// PlaceKeptProblems changes the places of the problems in err, which occurred when a tenant was compiled together with
// the settings that it keeps from the server. It places them at the tenant's entry in the files, since the settings
// themselves are not in the files.
func (d *Draft) PlaceKeptProblems(tenant string, err error) error {
	var bad *Error
	i := slices.IndexFunc(d.raw.tenants, func(t *rawTenant) bool { return t.id.v == tenant })
	if i < 0 || !errors.As(err, &bad) {
		return err
	}
	out := &Error{}
	for _, p := range bad.Problems {
		said := d.raw.tenants[i].at.Says("with what the tenant keeps from the server, %s: %s", p.Path, p.Message)
		out.Problems = append(out.Problems, said)
	}
	return out
}
