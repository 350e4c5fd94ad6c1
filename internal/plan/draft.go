package plan

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// Draft is plans files that are to be laid over the configuration of a server. They may name plans and tenants that
// only the server has, and a tenant that the server has needs no plan. A Draft is immutable.
type Draft struct {
	now       time.Time
	raw       *rawConfig
	documents []Document
}

// ReadDraft parses the sources as one configuration and takes it apart, as [Split] does. The error is an *Error with
// all problems that can be seen without the server; [Draft.Check] finds the others.
func ReadDraft(now time.Time, sources ...Source) (*Draft, error) {
	r := &reader{now: now, draft: true}
	raw, err := r.parse(sources)
	if err != nil {
		return nil, err
	}
	d := &Draft{now, raw, r.split(raw)}
	r.drop()
	return d, nil
}

// Documents returns the documents of the files, in the order of [Split].
func (d *Draft) Documents() []Document { return d.documents }

// Base is the configuration of a server that a draft is laid over.
type Base struct {
	Plans   map[string]*Plan  // by id; nil for a plan that cannot be read
	Tenants map[string]string // the id of the plan of each tenant, by the tenant's id

	// Settings have the routes that stay beside those of the files; nil for none.
	Settings *Settings

	Pruned bool // plans or tenants of the server are left out above, since they will not stay
}

// Check looks in the base for what the files name and do not hold. The error is an *Error with all problems, in file
// order.
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
	rules := d.raw.rules
	if b.Settings != nil && len(rules) > 0 {
		rules = slices.Concat(rules, b.Settings.rules)
	}
	for _, p := range d.raw.plans {
		c.r.unrouted(p.limits, rules)
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

// checker holds a draft to a base.
type checker struct {
	r    *reader
	base Base
	own  map[string]*Plan // the plans of the files, by id
	ids  []string         // of all plans

	nowhere string // where plans and tenants were looked for
}

// plan finds a plan in the files or in the base. It reports one that is in neither, and returns nil for that and for
// one that cannot be read.
func (c *checker) plan(f field[string]) *Plan {
	if p := c.own[f.v]; p != nil {
		return p
	}
	p, there := c.base.Plans[f.v]
	if there {
		return p
	}
	hint := ""
	if near := configfile.Nearest(f.v, c.ids); near != "" {
		hint = " (did you mean " + strconv.Quote(near) + "?)"
	}
	c.r.problemAt(f.from, "there is no plan %s, %s%s", configfile.Quote(f.v), c.nowhere, hint)
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
			return // it has no plan, and gets none
		}
		id = field[string]{v: stored, from: t.at}
	}
	p := c.plan(id)
	if p == nil || t.plan.set && c.own[id.v] != nil {
		return // or ReadDraft has compiled it
	}
	tenant := *t.tenant
	copied := *t
	copied.tenant = &tenant
	c.r.effective(&copied, p)
}

// Kept returns the problems of a tenant that is compiled with what it keeps from the server. They are placed at the
// tenant's entry in the files, since the files do not hold what does not fit.
func (d *Draft) Kept(tenant string, err error) error {
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
