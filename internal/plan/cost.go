package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// CostRule says how many units a request spends if the caller names no cost in the limit's unit. The client never
// chooses the cost: the operator's own edge must overwrite the header.
type CostRule struct {
	Header  string // canonical name; "": the cost is fixed
	Max     int64  // largest cost, in units
	Default int64  // the fixed cost, or the cost of a request without a valid header; in units

	least  int64 // smallest cost, in units; of a header, 0 unless the limit counts requests
	stated bool  // Default is written in the plan
}

// String describes the rule in the words of a plan.
func (c CostRule) String() string {
	if c.Header == "" {
		return fmt.Sprint(c.Default)
	}
	return fmt.Sprintf("header %s up to %d, default %d", strings.ToLower(c.Header), c.Max, c.Default)
}

// CheckCosts says what is wrong with the costs that a caller names for a request: cost is that in requests, and 0 names
// none; costs are those by unit, which may include requests. A valid unit that no limit has is no error.
func CheckCosts(cost int64, costs map[string]int64) error {
	if cost < 0 || cost > limit.MaxUnits {
		return fmt.Errorf("the cost %d is outside 0..%d", cost, int64(limit.MaxUnits))
	}
	if len(costs) == 0 {
		return nil // without the allocations below
	}
	for _, unit := range slices.Sorted(maps.Keys(costs)) {
		switch n := costs[unit]; {
		case !limit.ValidUnit(unit):
			return fmt.Errorf("costs: the unit %s is not %s", configfile.Quote(unit), limit.UnitGrammar)
		case n < 0 || n > limit.MaxUnits:
			return fmt.Errorf("costs: %s: %d is outside 0..%d", unit, n, int64(limit.MaxUnits))
		case unit == limit.ConcurrentRequests && n > 1:
			return fmt.Errorf("costs: %s: %d: a request is 1, or 0 if it is not to count", unit, n)
		case unit == limit.Requests && cost != 0:
			return fmt.Errorf("costs: requests: %d, beside the cost %d: name the cost in requests once", n, cost)
		}
	}
	return nil
}

// costOf returns what a request spends of the limit, in the limit's unit. A limit of which it spends 0 is not asked.
func (e *Effective) costOf(a *Attributes) int64 {
	if a.Costs != nil {
		if n, named := a.Costs[e.Limit.Unit]; named {
			return n
		}
	}
	if a.Cost != 0 && e.Limit.Unit == limit.Requests {
		return a.Cost
	}
	return e.Cost.costOf(a)
}

// costOf returns the cost of a request for which the caller names none, in units.
func (c CostRule) costOf(a *Attributes) int64 {
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
	if n < c.least {
		return c.Default
	}
	return min(n, c.Max)
}

// cost reads an integer, or a mapping {default} or {trustedHeader, max, default}. Which costs the limit's unit allows,
// checkCost says.
func (r *reader) cost(v value) (CostRule, bool) {
	defaultCost := func(v value) (int64, bool) { return r.Integer(v, 0, limit.MaxUnits) }
	if !isMapping(v) {
		n, ok := defaultCost(v)
		return CostRule{Max: n, Default: n, stated: true}, ok
	}
	o, ok := r.Object(v, costSchema)
	if !ok {
		return CostRule{}, false
	}
	usual := take(o, "default", "", defaultCost)
	if usual.set && len(o.Entries) == 1 {
		return CostRule{Max: usual.v, Default: usual.v, stated: true}, !usual.bad
	}
	header := need(r, o, "trustedHeader", "", "the header that your own edge sets", func(v value) (string, bool) {
		s, ok := r.Text(v)
		if ok && !validHeader(s) {
			r.Problem(v, "%s is not a header's name", configfile.Quote(s))
			ok = false
		}
		return textproto.CanonicalMIMEHeaderKey(s), ok
	})
	most := need(r, o, "max", "", "the largest cost that is believed", r.units)
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
	return CostRule{Header: header.v, Max: most.v, Default: usual.v, stated: usual.set}, true
}

// checkCost returns the rule of the limit's cost, and reports a cost that the limit's unit does not allow, or lacks.
func (r *reader) checkCost(s *spec) CostRule {
	cost, unit := s.cost.v, cmp.Or(s.unitName(), limit.Requests)
	switch {
	case s.form == formPlaces:
		cost = CostRule{Max: 1, Default: 1}
	case s.unit.bad || s.cost.bad:
	case unit == limit.Requests && !s.cost.set:
		cost = CostRule{Max: 1, Default: 1}
	case unit == limit.Requests && cost.Default == 0:
		r.problemAt(s.cost.from, "0 is no cost of a limit that counts requests, of which each request spends at "+
			"least 1; a limit with a unit, such as tokens, may have it")
	case unit != limit.Requests && !s.cost.set:
		r.problemAt(s.unit.from, "cost is missing: what a request spends that names no cost in %s, as in "+
			"cost: { default: 1000 }; with cost: { default: 0 } the limit is not asked about it", unit)
	case unit != limit.Requests && !cost.stated:
		r.problemAt(s.cost.from, "default is missing: what a request spends without a valid header, in %s; with "+
			"default: 0 the limit is not asked about it", unit)
	}
	switch {
	case cost.Header == "":
		cost.least = cost.Default
	case unit == limit.Requests:
		cost.least = 1
	}
	return cost
}

// validHeader accepts a token of RFC 9110 of at most 64 bytes.
func validHeader(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	return strings.IndexFunc(s, func(c rune) bool {
		alnum := (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')
		return !alnum && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	}) < 0
}
