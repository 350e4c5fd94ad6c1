package plan_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
)

// budgets is a plan with limits in four units.
const budgets = `plans:
- id: p
  limits:
  - {id: rpm, algorithm: sliding_window, period: 1m, threshold: 60}
  - {id: tpm, unit: tokens, cost: {default: 1000}, algorithm: sliding_window, period: 1m, threshold: 100000}
  - {id: tpd, unit: tokens, cost: {trustedHeader: x-tokens, max: 5000, default: 700}, quota: {units: 50000, every: day}}
  - {id: bytes, unit: bytes, cost: 0, algorithm: fixed_window, period: 1h, threshold: 1000000}
  - {id: spend, unit: micro-usd, cost: {default: 0}, quota: {units: 50000000, every: month}}
`

// Guarantees that a limit charges the cost in its own unit, or what its plan says if the request names none, and that
// a limit of which a request spends 0 is not asked.
func TestCostsByUnit(t *testing.T) {
	set := parse(t, budgets).Plans()[0].Set()
	for _, tt := range []struct {
		name   string
		cost   int64
		costs  map[string]int64
		tokens string // value of the header
		want   []string
	}{
		{"nothing is named", 0, nil, "", []string{"rpm=-:1", "tpm=-:1000", "tpd=-:700"}},
		{"requests", 3, nil, "", []string{"rpm=-:3", "tpm=-:1000", "tpd=-:700"}},
		{"requests by unit", 0, map[string]int64{"requests": 3}, "", []string{"rpm=-:3", "tpm=-:1000", "tpd=-:700"}},
		{"each unit", 2, map[string]int64{"tokens": 5, "bytes": 7, "micro-usd": 9}, "",
			[]string{"rpm=-:2", "tpm=-:5", "tpd=-:5", "bytes=-:7", "spend=-:9"}},
		{"a zero is a cost", 0, map[string]int64{"tokens": 0, "requests": 0, "bytes": 1}, "4", []string{"bytes=-:1"}},
		{"a unit that no limit has", 0, map[string]int64{"output-tokens": 5}, "",
			[]string{"rpm=-:1", "tpm=-:1000", "tpd=-:700"}},
		{"header", 0, nil, "42", []string{"rpm=-:1", "tpm=-:1000", "tpd=-:42"}},
		{"header of zero", 0, nil, "0", []string{"rpm=-:1", "tpm=-:1000"}},
		{"header above max", 0, nil, strings.Repeat("9", 30), []string{"rpm=-:1", "tpm=-:1000", "tpd=-:5000"}},
		{"a negative header", 0, nil, "-5", []string{"rpm=-:1", "tpm=-:1000", "tpd=-:700"}},
		{"rubbish in the header", 0, nil, "1e3\x00 tokens", []string{"rpm=-:1", "tpm=-:1000", "tpd=-:700"}},
		{"two lines of the header", 0, nil, "5, 6", []string{"rpm=-:1", "tpm=-:1000", "tpd=-:700"}},
		{"the program has the last word", 0, map[string]int64{"tokens": 8}, "42",
			[]string{"rpm=-:1", "tpm=-:8", "tpd=-:8"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := request("POST", "/")
			a.Cost, a.Costs = tt.cost, tt.costs
			a.Header = func(name string) (string, bool) { return tt.tokens, name == "X-Tokens" && tt.tokens != "" }
			got := charged(set.AppendCharges(nil, a))
			if !slices.Equal(got, tt.want) {
				t.Errorf("charges %q, want %q", got, tt.want)
			}
			for _, v := range set.Explain(a) {
				applies := slices.ContainsFunc(got, func(c string) bool {
					return strings.HasPrefix(c, v.Limit.Limit.ID+"=")
				})
				if want := map[bool]plan.Status{true: plan.Applies, false: plan.Free}[applies]; v.Status != want {
					t.Errorf("explain says that %s %s (%s), want %s", v.Limit.Limit.ID, v.Status, v.Why, want)
				}
				if v.Status == plan.Free && !strings.Contains(v.Why, v.Limit.Limit.Unit) {
					t.Errorf("the reason for %s does not name its unit: %s", v.Limit.Limit.ID, v.Why)
				}
			}
		})
	}
}

// Guarantees that costs that cannot be charged are refused with the name of their unit.
func TestCheckCosts(t *testing.T) {
	for _, tt := range []struct {
		cost  int64
		costs map[string]int64
		want  string // what the error contains; "" for none
	}{
		{0, nil, ""}, {limit.MaxUnits, map[string]int64{"tokens": limit.MaxUnits, "bytes": 0}, ""},
		{0, map[string]int64{"requests": 1, "unknown-to-the-plan": 5}, ""},
		{-1, nil, "the cost -1"}, {math.MaxInt64, nil, "the cost 9223372036854775807"},
		{1, map[string]int64{"tokens": -1}, "tokens: -1"},
		{1, map[string]int64{"tokens": math.MinInt64}, "tokens: -9223372036854775808"},
		{1, map[string]int64{"ok": 1, "micro-usd": limit.MaxUnits + 1}, "micro-usd: 1099511627777"},
		{1, map[string]int64{"tokens": math.MaxInt64}, "tokens: 9223372036854775807"},
		{1, map[string]int64{"Tokens": 1}, `"Tokens"`}, {1, map[string]int64{"": 1}, `""`},
		{1, map[string]int64{"in put": 1}, `"in put"`}, {1, map[string]int64{"a\"\r\nx": 1}, `"a\"\r\nx"`},
		{1, map[string]int64{strings.Repeat("t", 1000): 1}, `"ttt`},
		{1, map[string]int64{"requests": 1}, "requests: 1"},
	} {
		err := plan.CheckCosts(tt.cost, tt.costs)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("CheckCosts(%d, %.60v) = %v, want %q", tt.cost, tt.costs, err, tt.want)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("the error has %d bytes: %.80s…", len(err.Error()), err)
		}
	}
}

// Guarantees that 64 limits of 64 units are charged together, each with the cost in its own unit, and that costs do not
// make a plain request allocate.
func TestManyUnits(t *testing.T) {
	var b strings.Builder
	b.WriteString("plans:\n- id: p\n  limits:\n")
	a, want := request("GET", "/"), []string{}
	a.Costs = map[string]int64{}
	for i := range 64 {
		fmt.Fprintf(&b, "  - {id: l%d, unit: u%d, cost: 1, tiers: [{period: 1m, threshold: 100}]}\n", i, i)
		a.Costs[fmt.Sprintf("u%d", i)] = int64(i)
		if i > 0 {
			want = append(want, fmt.Sprintf("l%d=-:%d", i, i))
		}
	}
	set := parse(t, b.String()).Plans()[0].Set()
	got := set.AppendCharges(nil, a)
	if !slices.Equal(charged(got), want) {
		t.Errorf("charges %q, want %q", charged(got), want)
	}
	for _, costs := range []map[string]int64{nil, a.Costs} {
		a.Costs = costs
		if n := testing.AllocsPerRun(100, func() { got = set.AppendCharges(got[:0], a) }); n != 0 {
			t.Errorf("%d costs: %v allocations, want 0", len(costs), n)
		}
	}
}

// Guarantees that an override may change the cost of a limit with a unit, also to 0, and that the amounts of such a
// limit are shown with its unit.
func TestUnitOfATenant(t *testing.T) {
	c := parse(t, budgets+"tenants: [{id: t, plan: p, overrides: [{id: tpm, threshold: 5, cost: 0}]}]\n")
	tenant, _ := c.Tenant("t")
	set := tenant.Limits(noon)
	want := []string{"rpm=-:1", "tpd=-:700"}
	if got := charged(set.AppendCharges(nil, request("GET", "/"))); !slices.Equal(got, want) {
		t.Errorf("charges %q, want %q", got, want)
	}
	got := map[string]string{}
	for _, v := range set.Limits[1].Values() {
		got[v.Name] = v.Text
	}
	if got["unit"] != "tokens" || got["threshold"] != "5 tokens" || got["cost"] != "0 tokens" {
		t.Errorf("the settings are %q", got)
	}
}
