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

// costKeys are the keys of a cost. Only trustedHeader and max need each other.
var costKeys = mappingOf("a cost", nil,
	bind(key[rawCost]{name: "trustedHeader", usual: "none", need: "the header that your own edge sets",
		doc: "its value is a whole number in digits only"}, kind[string]{"name", (*reader).header},
		func(c *rawCost) *field[string] { return &c.header }),
	bind(key[rawCost]{name: "max", usual: "required beside `trustedHeader`", need: "the largest cost that is believed",
		doc: "a larger value counts as this"}, unitsKind, func(c *rawCost) *field[int64] { return &c.most }),
	bind(key[rawCost]{name: "default", kind: "units; with a `unit` also 0", usual: "1; with a `unit` required",
		doc: "the cost without a header, or if the header is absent or malformed; at most `max`. Of requests, a " +
			"header of 0 counts as malformed"},
		kind[int64]{read: (*reader).defaultCost}, func(c *rawCost) *field[int64] { return &c.usual }),
)

type rawCost struct {
	header      field[string]
	most, usual field[int64]
}

func (r *reader) defaultCost(v value) (int64, bool) { return r.Integer(v, 0, limit.MaxUnits) }

// header reads the name of a header, and returns its canonical form.
func (r *reader) header(v value) (string, bool) {
	s, ok := r.Text(v)
	if ok && !validHeader(s) {
		r.Problem(v, "%s is not a header's name", configfile.Quote(s))
		ok = false
	}
	return textproto.CanonicalMIMEHeaderKey(s), ok
}

// cost reads an integer, or a mapping {default} or {trustedHeader, max, default}. Which costs the limit's unit allows,
// checkCost says.
func (r *reader) cost(v value) (CostRule, bool) {
	if !isMapping(v) {
		n, ok := r.defaultCost(v)
		return CostRule{Max: n, Default: n, stated: true}, ok
	}
	o, ok := r.Object(v, &costKeys.schema)
	if !ok {
		return CostRule{}, false
	}
	var c rawCost
	costKeys.take(r, o, &c, "", "default")
	if c.usual.set && len(o.Entries) == 1 {
		return CostRule{Max: c.usual.v, Default: c.usual.v, stated: true}, !c.usual.bad
	}
	costKeys.take(r, o, &c, "", "trustedHeader", "max")
	if !c.usual.set {
		c.usual.v = 1
	}
	if c.header.bad || c.most.bad || c.usual.bad {
		return CostRule{}, false
	}
	if c.usual.v > c.most.v {
		r.problemAt(c.usual.from, "default %d is above max %d", c.usual.v, c.most.v)
		return CostRule{}, false
	}
	return CostRule{Header: c.header.v, Max: c.most.v, Default: c.usual.v, stated: c.usual.set}, true
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
