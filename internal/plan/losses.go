package plan

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// Loss is a protection that limits no longer give after a change.
type Loss struct {
	Removed bool   // a limit or a tier is gone; false: it exists and admits more
	Text    string // without a full stop, as in "limit burst: rate rises from 100 to 150 per 1s"
}

// Losses returns what is lost if the limits of before are replaced by those of after: limits and tiers that are gone,
// and changed settings with which a limit admits requests that it denied, or denies fewer requests while its store is
// unavailable. Limits are compared by their ids, in the order of before. The numbers of a limit that does not enforce
// are not compared, since they deny nothing.
func Losses(before, after *Set) []Loss {
	c := comparison{before: before.byID(), after: after.byID(), groups: map[string][]*Effective{}}
	for _, now := range after.Limits { // a limit that the tenant does not override is the plan's own *Effective
		if now.Group != "" && now != c.before[now.Limit.ID] {
			c.groups[now.Group] = append(c.groups[now.Group], now)
		}
	}
	for _, old := range before.Limits {
		now := c.after[old.Limit.ID]
		if now == nil {
			c.removes("limit %s (%s)", old.Limit.ID, old.describe())
			continue
		}
		c.prefix = "limit " + old.Limit.ID + ": "
		if now != old {
			c.limit(old, now)
		}
		c.displacements(old, now)
		c.prefix = ""
	}
	return c.losses
}

func (s *Set) byID() map[string]*Effective {
	out := make(map[string]*Effective, len(s.Limits))
	for _, e := range s.Limits {
		out[e.Limit.ID] = e
	}
	return out
}

// comparison compares two sets and collects the losses.
type comparison struct {
	before, after map[string]*Effective
	groups        map[string][]*Effective // group → its limits that are new or changed
	prefix        string                  // of the text of each loss
	losses        []Loss
}

func (c *comparison) removes(format string, args ...any) {
	c.losses = append(c.losses, Loss{true, c.prefix + fmt.Sprintf(format, args...)})
}

func (c *comparison) weakens(format string, args ...any) {
	c.losses = append(c.losses, Loss{false, c.prefix + fmt.Sprintf(format, args...)})
}

// limit compares two limits with the same id.
func (c *comparison) limit(old, now *Effective) {
	if now.Limit.Mode > old.Limit.Mode {
		what := "denies"
		if old.Limit.Mode == limit.Shadow {
			what = "reports"
		}
		c.weakens("mode goes from %s to %s, so it %s nothing", old.Limit.Mode, now.Limit.Mode, what)
	}
	if now.Limit.Mode != limit.Enforce || old.Limit.Mode != limit.Enforce {
		return
	}
	if slices.ContainsFunc(now.shape.parts, func(p part) bool { return !slices.Contains(old.shape.parts, p) }) {
		c.weakens("per goes from %s to %s, so requests that shared a counter have counters of their own",
			old.spec.perText(), now.spec.perText())
	}
	if !route.Covers(now.spec.rule, old.spec.rule) {
		c.weakens("match goes from %s to %s, so it leaves out requests that it counted",
			ruleText(old.spec.rule), ruleText(now.spec.rule))
	}
	if now.Group != old.Group && now.Group != "" {
		c.weakens("group goes from %s to %s, so a more specific limit of that group takes its place",
			orNone(old.Group), now.Group)
	}
	if now.Limit.Unit == old.Limit.Unit {
		c.amounts(old, now)
	} else {
		c.weakens("unit goes from %s to %s, so it no longer limits %s, and what it has counted stays counted",
			old.Limit.Unit, now.Limit.Unit, old.Limit.Unit)
	}
	for _, k := range limitKeys.keys {
		if k.loss != nil {
			if text := k.loss(old.Limit, now.Limit); text != "" {
				c.weakens("%s", text)
			}
		}
	}
}

// amounts compares what two limits of one unit admit, and what requests spend of them.
func (c *comparison) amounts(old, now *Effective) {
	c.tiers(old, now)
	if now.Cost.mayBeBelow(old.Cost) {
		c.weakens("cost goes from %s to %s%s, so a request may spend less", old.Cost, now.Cost,
			now.Limit.UnitSuffix())
	}
}

// strictness orders what a limit does on a failure by how much they deny while the store is unavailable.
func strictness(p limit.FailurePolicy) int {
	return slices.Index([]limit.FailurePolicy{limit.Open, limit.Backstop, limit.Closed}, p)
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// mayBeBelow reports whether some request may spend less by c than by other.
func (c CostRule) mayBeBelow(other CostRule) bool {
	otherHeader := c.Header != "" && other.Header != "" && c.Header != other.Header
	return c.least < other.least || c.Default < other.Default || c.Max < other.Max || otherHeader
}

// tiers compares the tiers of two limits.
func (c *comparison) tiers(old, now *Effective) {
	before, after := old.Limit.Tiers, now.Limit.Tiers
	if was, is := before[0].Algorithm, after[0].Algorithm; !is.NeverLooser(was) {
		c.weakens("algorithm goes from %s to %s, which may admit more in a short time", was, is)
	}
	if was, is := before[0].Buckets, after[0].Buckets; was > 0 && is > was {
		c.weakens("buckets rise from %d to %d, so units come back sooner", was, is)
	}
	burst := old.spec.tiers[0].burst.set || now.spec.tiers[0].burst.set
	if len(before) == 1 && len(after) == 1 {
		c.tier(&before[0], &after[0], burst)
		return
	}
	for i := range before {
		t := &before[i]
		j := slices.IndexFunc(after, func(o limit.Tier) bool { return o.Period == t.Period })
		if j < 0 {
			c.removes("the tier of %s", amountText(t))
			continue
		}
		c.tier(t, &after[j], burst)
	}
}

// tier compares two tiers: the units per period, and the units at once. burst says that one of the two limits has a
// burst that differs from its rate.
func (c *comparison) tier(t, o *limit.Tier, burst bool) {
	name := o.Algorithm.AmountField()
	if o.Limit().CountsPlaces() {
		name = formNames[formPlaces]
	}
	rises, goes := "rises", "goes"
	if name == "units" {
		rises, goes = "rise", "go"
	}
	higher := o.Capacity() > t.Capacity()
	switch more := faster(t, o) || higher && !burst; {
	case more && t.Algorithm == o.Algorithm && periodText(t) == periodText(o):
		c.weakens("%s %s from %d to %s", name, rises, t.Threshold, amountText(o))
	case more:
		c.weakens("%s %s from %s to %s", name, goes, amountText(t), amountText(o))
	}
	if higher && burst {
		c.weakens("burst rises from %d to %d%s", t.Capacity(), o.Capacity(), o.Limit().UnitSuffix())
	}
}

// faster reports whether o may admit more than t over some time, apart from what both admit at once.
func faster(t, o *limit.Tier) bool {
	longest, _ := lengths(t)
	_, shortest := lengths(o)
	if t.Algorithm.HasRate() && o.Algorithm.HasRate() {
		// o.Threshold/shortest > t.Threshold/longest; products have up to 76 bits
		highO, lowO := bits.Mul64(uint64(o.Threshold), uint64(longest/time.Millisecond))
		highT, lowT := bits.Mul64(uint64(t.Threshold), uint64(shortest/time.Millisecond))
		return highO > highT || highO == highT && lowO > lowT
	}
	// A window admits its threshold at once. While one window of t lasts, this many windows of o begin. If together
	// they hold no more than the one window of t, the same is true of any number of windows of t.
	begin := int64((longest + shortest - 1) / shortest)
	if periodText(t) == periodText(o) {
		begin = 1
	}
	return o.Threshold > t.Threshold/begin // begin·o.Threshold > t.Threshold, without overflow
}

// lengths returns the longest and the shortest duration of a tier's period, apart from the hours that daylight saving
// adds and takes. For a month the shortest is a twelfth of a year, not 28 days: twelve months never take less than a
// year.
func lengths(t *limit.Tier) (longest, shortest time.Duration) {
	const day = 24 * time.Hour
	if t.Calendar == nil {
		return t.Period, t.Period
	}
	switch t.Calendar.Every {
	case limit.Day:
		return day, day
	case limit.Week:
		return 7 * day, 7 * day
	case limit.Month:
		return 31 * day, 366 * day / 12
	default:
		return 366 * day, 365 * day
	}
}

// displacements reports other limits of the group that apply instead of the limit after the change and not before it.
func (c *comparison) displacements(old, now *Effective) {
	if now.Group != old.Group || old.Limit.Mode != limit.Enforce || now.Limit.Mode != limit.Enforce {
		return
	}
	for _, other := range c.groups[now.Group] {
		if !other.displaces(now) {
			continue
		}
		// The other limit may have applied to all of these requests before the change too.
		was := c.before[other.Limit.ID]
		if was == nil || !was.displaces(old) || !route.Covers(was.spec.rule, other.spec.rule) {
			c.weakens("limit %s of its group takes its place for %s", other.Limit.ID, ruleText(other.spec.rule))
		}
	}
}

// displaces reports whether, for some request, e applies instead of o, which is in the same group.
func (e *Effective) displaces(o *Effective) bool {
	a, b := e.spec.rule, o.spec.rule
	return e.Group == o.Group && e.Limit.Mode == limit.Enforce && route.Compare(a, b) < 0 && route.Overlap(a, b)
}

// describe returns what the limit admits, as in "token_bucket: 100 per 1s, burst 200".
func (e *Effective) describe() string {
	var tiers []string
	for i := range e.Limit.Tiers {
		tiers = append(tiers, amountText(&e.Limit.Tiers[i]))
	}
	text := e.Limit.Tiers[0].Algorithm.String() + ": " + strings.Join(tiers, " and ")
	if e.spec.tiers[0].burst.set {
		text += fmt.Sprintf(", burst %d", e.Limit.Tiers[0].Burst)
	}
	if e.Limit.Mode != limit.Enforce {
		text += ", mode " + e.Limit.Mode.String()
	}
	return text
}

func amountText(t *limit.Tier) string {
	return fmt.Sprintf("%d%s per %s", t.Threshold, t.Limit().UnitSuffix(), periodText(t))
}

func periodText(t *limit.Tier) string {
	if t.Calendar != nil {
		return t.Calendar.Every.String()
	}
	return limit.DurationText(t.Period)
}

// ruleText describes a match, as in "GET, PUT /product/*".
func ruleText(r route.Rule) string {
	return strings.TrimSpace(strings.Join(r.Methods, ", ") + " " + pathText(r))
}
