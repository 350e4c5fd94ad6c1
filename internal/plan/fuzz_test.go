package plan_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// FuzzParse guarantees that no file can stop the program that reads it: every input gives a configuration or problems
// that name their places, and the core accepts all charges of a valid configuration.
func FuzzParse(f *testing.F) {
	f.Add([]byte(designExample), "PUT", "/v1/organizations/7/product/1", "12")
	f.Add([]byte(boosted), "GET", "/", "")
	f.Add([]byte(many(3)), "GET", "/v1/r1/%2e%2e/x", "-1")
	f.Add([]byte(group("match: {pathPattern: /a/**}", "match: {pathPattern: /a/b}")), "get", "/a/b", "0")
	f.Add([]byte(budgets), "POST", "/chat", "900")
	for _, c := range problemCases(planWithLimit("tiers: [{period: 1s, threshold: 1}]")) {
		if len(c.text) > 2000 {
			continue // mutations of a long input find nothing more than those of a short one
		}
		f.Add([]byte(strings.ReplaceAll(c.text, "▸", "")), "GET", "/a", "1")
	}
	f.Fuzz(func(t *testing.T, data []byte, method, raw, header string) {
		c, err := plan.ParseAt(noon, configyaml.Source("f", data))
		if err != nil {
			checkProblems(t, data, err)
			return
		}
		path := route.Clean(raw)
		a := &plan.Attributes{
			Method: method, Path: &path, Subject: raw, APIKey: header, IP: "i",
			Claim:  func(string) (string, bool) { return header, header != "" },
			Header: func(string) (string, bool) { return header, true },
		}
		if n, err := strconv.ParseInt(header, 10, 64); err == nil {
			a.Costs = map[string]int64{raw: n, "tokens": n}
		}
		if plan.CheckCosts(0, a.Costs) != nil {
			a.Costs = nil
		}
		sets := []*plan.Set{c.IPLimits()}
		for _, p := range c.Plans() {
			sets = append(sets, p.Set())
		}
		for _, tenant := range c.Tenants() {
			for _, now := range []time.Time{noon, {}, noon.AddDate(1, 0, 0)} {
				sets = append(sets, tenant.Limits(now))
			}
		}
		for _, set := range sets {
			checkSet(t, data, set, a)
		}
	})
}

func checkProblems(t *testing.T, data []byte, err error) {
	var bad *plan.Error
	if !errors.As(err, &bad) || len(bad.Problems) == 0 {
		t.Fatalf("%q: error %v (%T), want a *plan.Error with problems", data, err, err)
	}
	lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") +
		strings.Count(string(data), "\u0085") + strings.Count(string(data), "\u2028") + strings.Count(string(data),
		"\u2029") + 1
	for _, p := range bad.Problems {
		if p.Message == "" || p.File != "f" || p.Line < 1 || p.Column < 1 || p.Line > lines+1 {
			t.Fatalf("%q: problem %+v has no place within %d lines", data, p, lines)
		}
	}
}

func checkSet(t *testing.T, data []byte, set *plan.Set, a *plan.Attributes) {
	charges := set.AppendCharges(nil, a)
	if err := (&limit.Request{Charges: charges}).Check(); err != nil {
		t.Fatalf("%q: package limit refuses the charges %q: %v", data, charged(charges), err)
	}
	for _, c := range charges {
		if _, named := a.Costs[c.Limit.Unit]; c.Cost > c.Limit.MaxCost && !named {
			t.Fatalf("%q: limit %s is charged %d, above its largest cost %d", data, c.Limit.ID, c.Cost, c.Limit.MaxCost)
		}
	}
	applied := 0
	for _, v := range set.Explain(a) {
		if v.Status == plan.Applies || v.Status == plan.Reports {
			applied++
		}
		for _, value := range v.Limit.Values() {
			if value.Name == "" || value.Origin.String() == "" {
				t.Fatalf("%q: the value %+v of limit %s has no name or no origin", data, value, v.Limit.Limit.ID)
			}
		}
	}
	if applied != len(charges) {
		t.Fatalf("%q: explain says %d limits apply, %d are charged", data, applied, len(charges))
	}
}
