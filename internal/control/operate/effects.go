package operate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
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
	// What is removed comes first, as in `limit burst (…) from plan "pro"`. What weakens names the document first, as
	// in `plan "pro": limit burst: rate rises from 1 to 2 per 1s`.
	Text string `json:"text"`
}

// String returns the loss as a predicate, as in `removes plan "pro"`.
func (l Loss) String() string { return string(l.Kind) + " " + l.Text }

// Plans returns a plan by its id, or nil if there is none or it cannot be read.
type Plans func(id string) (*plan.Plan, error)

// Effects are what a change of a document does to limits and credentials.
type Effects struct {
	Losses []Loss `json:"losses,omitempty"` // what the change removes and weakens
	// Afresh has a sentence for each limit whose counters start afresh. It begins with the name of the document.
	Afresh []string `json:"afresh,omitempty"`
}

// EffectsOf compares a stored document with d, which replaces it. If d has no body, the document is deleted; if stored
// is empty, there is no document yet. was and will return the plans before and after the change. The effects of a
// changed plan are listed once, for the plan, and not for each tenant that uses it. The error is that of was or will.
func EffectsOf(d plan.Document, stored []byte, was, will Plans, now time.Time) (Effects, error) {
	e := effects{name: d.Name(), was: was, will: will, now: now}
	old := d
	old.Body = stored
	switch {
	case len(stored) == 0 && d.Kind != plan.KindSettings:
		return Effects{}, nil
	case len(stored) == 0:
		old.Body = []byte("{}") // without settings, calls without a credential are refused
	case d.Body == nil:
		return Effects{Losses: []Loss{{Removes, e.name}}}, nil
	}
	err := kinds[d.Kind].compare(&e, old, d)
	if len(stored) == 0 {
		e.all.Afresh = nil // there are no counters yet
	}
	return e.all, err
}

// effects collects the effects of a change of one document.
type effects struct {
	name      string
	was, will Plans
	now       time.Time
	all       Effects
}

// weakens adds a loss of something that exists and admits more.
func (f *effects) weakens(format string, args ...any) {
	f.all.Losses = append(f.all.Losses, Loss{Weakens, f.name + ": " + fmt.Sprintf(format, args...)})
}

// removes adds a loss: the document no longer has what, such as a limit. why gives the reason or the effect, and is ""
// if the text needs none.
func (f *effects) removes(what, why string) {
	text := what + " from " + f.name
	if why != "" {
		text += ": " + why
	}
	f.all.Losses = append(f.all.Losses, Loss{Removes, text})
}

// sets adds the losses when the limits of before are replaced by those of after. where says which limits these are, or
// why they change. It is "" if the name of the document says enough.
func (f *effects) sets(where string, before, after *plan.Set) {
	for _, one := range plan.Losses(before, after) {
		switch {
		case one.Removed:
			f.removes(one.Text, where)
		case where != "":
			f.weakens("%s: %s", where, one.Text)
		default:
			f.weakens("%s", one.Text)
		}
	}
}

func (f *effects) plan(_, now plan.Document) error {
	before, err := f.was(now.ID)
	if err != nil {
		return err
	}
	after, err := f.will(now.ID)
	if err != nil || before == nil || after == nil {
		return err // nil if the stored plan is damaged, or if the new one is not valid, which has been reported
	}
	f.sets("", before.Set(), after.Set())
	f.afresh(before.Set(), after.Set())
	return nil
}

func (f *effects) settings(old, now plan.Document) error {
	before, errBefore := plan.CompileSettings(old)
	after, errAfter := plan.CompileSettings(now)
	if errBefore != nil || errAfter != nil {
		return nil //nolint:nilerr // the stored settings are damaged, or the problem of the new ones has been reported
	}
	f.sets("ipLimits", before.IPLimits(), after.IPLimits())
	f.afresh(before.IPLimits(), after.IPLimits())
	had, has := before.IPv6Prefix(), after.IPv6Prefix()
	if has != had {
		f.startsAfresh("counters of IPv6 addresses start afresh: they were by /%d, and are by /%d", had, has)
	}
	if has > had {
		f.weakens("ipv6Prefix rises from %d to %d, so a network of IPv6 has more counters", had, has)
	}
	switch had, has := before.AnonymousPlan(), after.AnonymousPlan(); {
	case had == has:
	case had == "":
		f.weakens("anonymousPlan goes from none to %s, so calls without a credential are admitted", has)
	case has == "":
		f.removes("anonymousPlan ("+had+")", "calls without a credential get 401")
	default:
		p, err := f.was(had)
		if err != nil {
			return err
		}
		q, err := f.will(has)
		if err != nil {
			return err
		}
		if p != nil && q != nil {
			f.sets("calls without a credential", p.Set(), q.Set())
		}
	}
	f.routes(before.Routes(), after.Routes())
	return nil
}

func (f *effects) routes(before, after []string) {
	for _, r := range before {
		if !slices.Contains(after, r) {
			f.removes("the route "+r, "")
		}
	}
	if len(before) > 0 && len(after) == 0 {
		f.weakens("no route is declared, so every request is passed on")
	}
}

// tenantMembers holds the members of a tenant's document that are compared directly, not by their effect on limits.
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
	err = decodeTree(body, &t)
	return t, err
}

func (f *effects) tenant(old, now plan.Document) error {
	before, err := membersOf(old.Body)
	if err != nil {
		return nil //nolint:nilerr // the stored tenant is damaged and is being replaced
	}
	after, err := membersOf(now.Body)
	if err != nil {
		return nil //nolint:nilerr // the problem has been reported
	}
	if before.Suspended && !after.Suspended {
		f.weakens("the tenant is resumed")
	}
	if before.Plan == "" && after.Plan != "" {
		f.weakens("plan goes from none to %s, so its calls are admitted", after.Plan)
	}
	if len(before.Cells) > 0 && len(after.Cells) == 0 {
		f.removes("cells ("+strings.Join(before.Cells, ", ")+")", "every cell serves the tenant")
	}
	f.overrides(before.Overrides, after.Overrides)
	moved := ""
	if before.Plan != "" && after.Plan != before.Plan {
		moved = fmt.Sprintf("plan %s in place of %s", after.Plan, before.Plan)
	}
	if err := f.effective(moved, old, now); err != nil {
		return err
	}
	f.boosts(before.Boosts, after.Boosts)
	return nil
}

func (f *effects) overrides(before, after []map[string]any) {
	for _, old := range before {
		i := slices.IndexFunc(after, func(o map[string]any) bool { return o["id"] == old["id"] })
		if i < 0 {
			f.removes(fmt.Sprintf("the override of limit %s (%s)", old["id"], strings.Join(settingsOf(old), ", ")), "")
			continue
		}
		for _, setting := range settingsOf(old) {
			if name, _, _ := strings.Cut(setting, " "); after[i][name] == nil {
				f.removes(fmt.Sprintf("%s of the override of limit %s", setting, old["id"]), "")
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
// the plans after the change, since the effects of a changed plan are listed for the plan. If the tenant's old
// overrides do not fit the plans after the change, effective uses the plans before the change to find the losses.
func (f *effects) effective(where string, old, now plan.Document) error {
	after, err := f.limits(now, f.will)
	if err != nil || after == nil {
		return err
	}
	before, err := f.limits(old, f.will)
	if before != nil {
		f.afresh(before, after)
	} else if err == nil {
		before, err = f.limits(old, f.was)
	}
	if before != nil {
		f.sets(where, before, after)
	}
	return err
}

// limits returns the limits of a tenant without its boosts; nil if it has no plan, or its overrides do not fit the
// plan.
func (f *effects) limits(d plan.Document, plans Plans) (*plan.Set, error) {
	var body map[string]json.RawMessage
	if err := json.Unmarshal(d.Body, &body); err != nil {
		return nil, nil //nolint:nilerr,nilnil // a damaged tenant has no limits
	}
	delete(body, "boosts")
	text, err := events.MarshalCanonical(body)
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
	return t.Limits(f.now), nil
}

// boosts adds the losses of boosts that have not ended.
func (f *effects) boosts(before, after []boostMembers) {
	find := func(list []boostMembers, id string) *boostMembers {
		i := slices.IndexFunc(list, func(b boostMembers) bool { return b.ID == id && b.Until.After(f.now) })
		if i < 0 {
			return nil
		}
		return &list[i]
	}
	for i := range before {
		if b := &before[i]; b.Until.After(f.now) && find(after, b.ID) == nil {
			f.removes("the boost of "+b.String(), "")
		}
	}
	for i := range after {
		b := &after[i]
		switch old := find(before, b.ID); {
		case !b.Until.After(f.now):
		case old == nil:
			f.weakens("a boost of %s", b)
		case exceeds(b.Factor, old.Factor) || b.Until.After(old.Until) || b.From.Before(old.From):
			f.weakens("the boost of %s becomes one of %s", old, b)
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

func (f *effects) key(old, now plan.Document) error {
	before, errBefore := plan.CompileKey(old)
	after, errAfter := plan.CompileKey(now)
	if errBefore != nil || errAfter != nil {
		return nil //nolint:nilerr // the stored key is damaged, or the problem of the new one has been reported
	}
	if after.Tenant != before.Tenant {
		f.weakens("it moves to tenant %q from tenant %q", after.Tenant, before.Tenant)
	}
	switch {
	case before.ExpiresAt.IsZero():
	case after.ExpiresAt.IsZero():
		f.weakens("it never expires instead of at %s", before.ExpiresAt.Format(time.RFC3339))
	case after.ExpiresAt.After(before.ExpiresAt):
		f.weakens("it expires at %s instead of at %s",
			after.ExpiresAt.Format(time.RFC3339), before.ExpiresAt.Format(time.RFC3339))
	}
	return nil
}

func (f *effects) startsAfresh(format string, args ...any) {
	f.all.Afresh = append(f.all.Afresh, f.name+": "+fmt.Sprintf(format, args...))
}

// afresh lists the limits whose counters start afresh when the limits of before are replaced by those of after. These
// are the limits with the same id in both whose tiers have another identity, or whose pattern changes if the pattern
// is part of the names of their counters. A limit that is off has no counters.
func (f *effects) afresh(before, after *plan.Set) {
	had := map[string]*plan.Effective{}
	for _, e := range before.Limits {
		had[e.Limit.ID] = e
	}
	for _, e := range after.Limits {
		was := had[e.Limit.ID]
		if was == nil || was.Limit.Mode == limit.Off || e.Limit.Mode == limit.Off {
			continue
		}
		if perEndpoint(was.Limit) && perEndpoint(e.Limit) && was.Pattern() != e.Pattern() {
			f.startsAfresh("limit %s starts afresh: its endpoints were those of %s, and are those of %s", e.Limit.ID,
				was.Pattern(), e.Pattern())
			continue
		}
		known := map[string]bool{}
		for i := range was.Limit.Tiers {
			known[was.Limit.Tiers[i].Identity()] = true
		}
		for i := range e.Limit.Tiers {
			if !known[e.Limit.Tiers[i].Identity()] {
				f.startsAfresh("limit %s starts afresh: it was a %s, and is a %s", e.Limit.ID,
					describeCounters(was.Limit),
					describeCounters(e.Limit))
				break
			}
		}
	}
}

// perEndpoint reports whether the limit's pattern is part of the names of its counters.
func perEndpoint(l *limit.Limit) bool {
	return slices.Contains(strings.Split(l.Per, "+"), "endpoint")
}

// describeCounters describes everything that identifies the counters of a limit.
func describeCounters(l *limit.Limit) string {
	var windows []string
	for i := range l.Tiers {
		if t := &l.Tiers[i]; t.Calendar != nil {
			windows = append(windows, t.Calendar.String())
		} else {
			windows = append(windows, limit.DurationText(t.Period))
		}
	}
	text := fmt.Sprintf("%s of %s per %s", l.Tiers[0].Algorithm, strings.Join(windows, " and "), l.Per)
	if l.Mode == limit.Shadow {
		text += ", as a shadow"
	}
	return text
}
