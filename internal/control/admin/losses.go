package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events/canonical"
	"github.com/sluicelimits/sluice/internal/plan"
)

// LossKind says whether something is removed or weakened.
type LossKind string

// The kinds of losses.
const (
	Removes LossKind = "removes" // it no longer exists
	Weakens LossKind = "weakens" // it exists and admits more
)

// Loss is a protection that a change of a document removes or weakens. Apply makes no change with a loss unless the
// operator has agreed to it.
type Loss struct {
	Kind LossKind `json:"kind"`
	Text string   `json:"text"` // names the document, as in `plan "pro": limit burst: rate rises from 1 to 2 per 1s`
}

// String returns the loss as a predicate, as in `removes plan "pro"`.
func (l Loss) String() string { return string(l.Kind) + " " + l.Text }

// Plans returns a plan by its id, or nil if there is none or it cannot be read.
type Plans func(id string) (*plan.Plan, error)

// Losses lists what is lost when a stored document is replaced by d. If d has no body it is deleted; if stored is
// empty there is no document yet. was and will return the plans before and after the change. The losses of a plan are
// listed for the plan, not for the tenants that use it. The error is one of was or will.
func Losses(d plan.Document, stored []byte, was, will Plans, now time.Time) ([]Loss, error) {
	l := lossCollector{name: d.Name(), was: was, will: will, now: now}
	old := d
	old.Body = stored
	switch {
	case len(stored) == 0 && d.Kind != plan.KindSettings:
		return nil, nil
	case len(stored) == 0:
		old.Body = []byte("{}") // without settings, calls without a credential are refused
	case d.Body == nil:
		return []Loss{{Removes, l.name}}, nil
	}
	var err error
	switch d.Kind {
	case plan.KindPlan:
		before, bad := plan.CompilePlan(old)
		if after, worse := plan.CompilePlan(d); bad == nil && worse == nil {
			l.sets("", before.Set(), after.Set())
		}
	case plan.KindSettings:
		err = l.settings(old, d)
	case plan.KindTenant:
		err = l.tenant(old, d)
	case plan.KindKey:
		l.key(old, d)
	}
	return l.all, err
}

// lost collects the losses of one document.
type lossCollector struct {
	name      string
	was, will Plans
	now       time.Time
	all       []Loss
}

func (l *lossCollector) add(kind LossKind, format string, args ...any) {
	l.all = append(l.all, Loss{kind, l.name + ": " + fmt.Sprintf(format, args...)})
}

func (l *lossCollector) sets(prefix string, before, after *plan.Set) {
	for _, one := range plan.Losses(before, after) {
		kind := Weakens
		if one.Removed {
			kind = Removes
		}
		l.add(kind, "%s%s", prefix, one.Text)
	}
}

func (l *lossCollector) settings(old, now plan.Document) error {
	before, bad := plan.CompileSettings(old)
	after, worse := plan.CompileSettings(now)
	if bad != nil || worse != nil {
		return nil //nolint:nilerr // damaged settings are replaced; new ones were reported before
	}
	l.sets("ipLimits: ", before.IPLimits(), after.IPLimits())
	if had, has := before.IPv6Prefix(), after.IPv6Prefix(); has > had {
		l.add(Weakens, "ipv6Prefix rises from %d to %d, so a network of IPv6 has more counters", had, has)
	}
	switch had, has := before.AnonymousPlan(), after.AnonymousPlan(); {
	case had == has:
	case had == "":
		l.add(Weakens, "anonymousPlan goes from none to %s, so calls without a credential are admitted", has)
	case has == "":
		l.add(Removes, "anonymousPlan (%s), so calls without a credential get 401", had)
	default:
		p, err := l.was(had)
		if err != nil {
			return err
		}
		q, err := l.will(has)
		if err != nil {
			return err
		}
		if p != nil && q != nil {
			l.sets("calls without a credential: ", p.Set(), q.Set())
		}
	}
	l.routes(before.Routes(), after.Routes())
	return nil
}

func (l *lossCollector) routes(before, after []string) {
	for _, r := range before {
		if !slices.Contains(after, r) {
			l.add(Removes, "the route %s", r)
		}
	}
	if len(before) > 0 && len(after) == 0 {
		l.add(Weakens, "no route is declared, so every request is passed on")
	}
}

// tenantMembers is the part of a tenant's document that is compared by itself.
type tenantMembers struct {
	Plan      string
	Suspended bool
	Cells     []string
	Overrides []map[string]any
	Boosts    []boostMembers
}

type boostMembers struct {
	ID          string
	Factor      json.Number
	From, Until time.Time
}

// String describes the boost.
func (b *boostMembers) String() string {
	text := fmt.Sprintf("limit %s ×%s", b.ID, b.Factor)
	if !b.From.IsZero() {
		text += " from " + b.From.Format(time.RFC3339)
	}
	return text + " until " + b.Until.Format(time.RFC3339)
}

func membersOf(body []byte) (t tenantMembers, err error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	err = decoder.Decode(&t)
	return t, err
}

func (l *lossCollector) tenant(old, now plan.Document) error {
	before, err := membersOf(old.Body)
	if err != nil {
		return nil //nolint:nilerr // the stored tenant is damaged and is being replaced
	}
	after, err := membersOf(now.Body)
	if err != nil {
		return nil //nolint:nilerr // reported before
	}
	if before.Suspended && !after.Suspended {
		l.add(Weakens, "the tenant is resumed")
	}
	if before.Plan == "" && after.Plan != "" {
		l.add(Weakens, "plan goes from none to %s, so its calls are admitted", after.Plan)
	}
	if len(before.Cells) > 0 && len(after.Cells) == 0 {
		l.add(Removes, "cells (%s), so every cell serves the tenant", strings.Join(before.Cells, ", "))
	}
	l.overrides(before.Overrides, after.Overrides)
	moved := ""
	if before.Plan != "" && after.Plan != before.Plan {
		moved = fmt.Sprintf("plan %s in place of %s: ", after.Plan, before.Plan)
	}
	if err := l.effective(moved, old, now); err != nil {
		return err
	}
	l.boosts(before.Boosts, after.Boosts)
	return nil
}

func (l *lossCollector) overrides(before, after []map[string]any) {
	for _, old := range before {
		i := slices.IndexFunc(after, func(o map[string]any) bool { return o["id"] == old["id"] })
		if i < 0 {
			l.add(Removes, "the override of limit %s (%s)", old["id"], strings.Join(settingsOf(old), ", "))
			continue
		}
		for _, setting := range settingsOf(old) {
			if name, _, _ := strings.Cut(setting, " "); after[i][name] == nil {
				l.add(Removes, "%s of the override of limit %s", setting, old["id"])
			}
		}
	}
}

// settingsOf describes the settings of an override, as in "rate 500", sorted by name.
func settingsOf(override map[string]any) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(override)) {
		if name == "id" {
			continue
		}
		text, isText := override[name].(string)
		if !isText {
			raw, _ := json.Marshal(override[name]) // cannot fail: the value was decoded from JSON
			text = string(raw)
		}
		out = append(out, name+" "+text)
	}
	return out
}

// effective compares the limits of a tenant, without its boosts, before and after the change. Both are compiled with
// the plans after the change, since the changes of a plan are listed for the plan. If the tenant's old overrides do
// not fit the plans after the change, the old tenant is compiled with the plans before it.
func (l *lossCollector) effective(prefix string, old, now plan.Document) error {
	before, err := l.limits(old, l.will)
	if err == nil && before == nil {
		before, err = l.limits(old, l.was)
	}
	if err != nil || before == nil {
		return err
	}
	after, err := l.limits(now, l.will)
	if err == nil && after != nil {
		l.sets(prefix, before, after)
	}
	return err
}

// limits returns the limits of a tenant without its boosts; nil if it has no plan, or its overrides do not fit the
// plan.
func (l *lossCollector) limits(d plan.Document, plans Plans) (*plan.Set, error) {
	var body map[string]json.RawMessage
	if err := json.Unmarshal(d.Body, &body); err != nil {
		return nil, nil //nolint:nilerr,nilnil // a damaged tenant has no limits
	}
	delete(body, "boosts")
	text, err := canonical.Marshal(body)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // a damaged tenant has no limits
	}
	d.Body = text
	doc, err := plan.ReadTenant(d)
	if err != nil || doc.PlanID() == "" {
		return nil, nil //nolint:nilerr,nilnil // a damaged tenant has no limits
	}
	p, err := plans(doc.PlanID())
	if err != nil || p == nil {
		return nil, err
	}
	t, err := doc.Compile(p)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // the overrides do not fit
	}
	return t.Limits(l.now), nil
}

// boosts compares the boosts that have not ended.
func (l *lossCollector) boosts(before, after []boostMembers) {
	find := func(list []boostMembers, id string) *boostMembers {
		i := slices.IndexFunc(list, func(b boostMembers) bool { return b.ID == id && b.Until.After(l.now) })
		if i < 0 {
			return nil
		}
		return &list[i]
	}
	for i := range before {
		if b := &before[i]; b.Until.After(l.now) && find(after, b.ID) == nil {
			l.add(Removes, "the boost of %s", b)
		}
	}
	for i := range after {
		b := &after[i]
		switch old := find(before, b.ID); {
		case !b.Until.After(l.now):
		case old == nil:
			l.add(Weakens, "a boost of %s", b)
		case exceeds(b.Factor, old.Factor) || b.Until.After(old.Until) || b.From.Before(old.From):
			l.add(Weakens, "the boost of %s becomes one of %s", old, b)
		}
	}
}

// exceeds reports whether factor a is above factor b. Factors have up to three digits after the point and are at most
// 100.
func exceeds(a, b json.Number) bool {
	x, errX := a.Float64()
	y, errY := b.Float64()
	return errX != nil || errY != nil || x > y
}

func (l *lossCollector) key(old, now plan.Document) {
	before, bad := plan.CompileKey(old)
	after, worse := plan.CompileKey(now)
	if bad != nil || worse != nil {
		return
	}
	if after.Tenant != before.Tenant {
		l.add(Weakens, "it moves to tenant %q from tenant %q", after.Tenant, before.Tenant)
	}
	switch {
	case before.ExpiresAt.IsZero():
	case after.ExpiresAt.IsZero():
		l.add(Weakens, "it never expires instead of at %s", before.ExpiresAt.Format(time.RFC3339))
	case after.ExpiresAt.After(before.ExpiresAt):
		l.add(Weakens, "it expires at %s instead of at %s",
			after.ExpiresAt.Format(time.RFC3339), before.ExpiresAt.Format(time.RFC3339))
	}
}
