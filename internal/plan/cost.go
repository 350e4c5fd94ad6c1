package plan

import (
	"fmt"
	"net/textproto"
	"strings"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// CostRule says how many units a request spends. The client never chooses the cost: the operator's own edge must
// overwrite the header.
type CostRule struct {
	Header  string // canonical name; "": the cost is fixed
	Max     int64  // largest cost, in units
	Default int64  // the fixed cost, or the cost of a request without a valid header; in units
}

// String describes the rule in the words of a plan.
func (c CostRule) String() string {
	if c.Header == "" {
		return fmt.Sprint(c.Default)
	}
	return fmt.Sprintf("header %s up to %d, default %d", strings.ToLower(c.Header), c.Max, c.Default)
}

// costOf returns the cost of a request, in units.
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
	if n < 1 {
		return c.Default
	}
	return min(n, c.Max)
}

// cost reads an integer, or a mapping {trustedHeader, max, default}.
func (r *reader) cost(v value) (CostRule, bool) {
	if !isMapping(v) {
		n, ok := r.units(v)
		return CostRule{Max: n, Default: n}, ok
	}
	o, ok := r.Object(v, costSchema)
	if !ok {
		return CostRule{}, false
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
	usual := take(o, "default", "", r.units)
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
