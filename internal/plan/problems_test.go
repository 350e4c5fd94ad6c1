package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/testkit/golden"
)

// noon is the time of every test that needs a time.
var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// cutMarks removes the ▸ marks from a text and returns the line:column after each mark.
func cutMarks(text string) (clean string, places []string) {
	line, column := 1, 1
	var b strings.Builder
	for len(text) > 0 {
		c, n := utf8.DecodeRuneInString(text)
		raw := text[:n]
		text = text[n:]
		switch c {
		case '▸':
			places = append(places, fmt.Sprintf("%d:%d", line, column))
			continue
		case '\n':
			line, column = line+1, 0
		}
		column++
		b.WriteString(raw)
	}
	return b.String(), places
}

// planWithLimit returns a plans file with one limit, written in flow style after its id.
func planWithLimit(limit string) string {
	return "plans:\n- id: p\n  limits:\n  - {id: a, " + limit + "}\n"
}

// tenant returns a plans file with one tenant, whose plan has a token bucket a, tiers b and a quota c.
func tenant(rest string) string {
	return `plans:
- id: p
  limits:
  - {id: a, algorithm: token_bucket, rate: 100, period: 1s, burst: 200}
  - {id: b, tiers: [{period: 1s, threshold: 10}]}
  - {id: c, quota: {units: 1000, every: month}}
tenants:
- {id: t, plan: p, ` + rest + "}\n"
}

// Guarantees that each kind of mistake is reported at its exact place, with the correct spelling. The marks ▸ in the
// text are the places; testdata/problems.golden holds the messages.
func TestProblems(t *testing.T) {
	ok := planWithLimit("tiers: [{period: 1s, threshold: 1}]")
	var all strings.Builder
	for _, c := range problemCases(ok) {
		t.Run(c.name, func(t *testing.T) {
			text, places := cutMarks(c.text)
			config, err := plan.ParseAt(noon, configyaml.Source("f.yaml", []byte(text)))
			var bad *plan.Error
			if !errors.As(err, &bad) {
				t.Fatalf("%s\nParse = %v, %v; want a *plan.Error", text, config, err)
			}
			var got []string
			fmt.Fprintf(&all, "%s\n", c.name)
			for _, p := range bad.Problems {
				got = append(got, fmt.Sprintf("%d:%d", p.Line, p.Column))
				fmt.Fprintf(&all, "    %s\n", p)
			}
			if !slices.Equal(got, places) {
				t.Errorf("%.2000s\nproblems at %v, want %v:\n%v", text, got, places, err)
			}
			if !utf8.ValidString(err.Error()) || len(err.Error()) > 4000 {
				t.Errorf("message of %d bytes, want text of reasonable length", len(err.Error()))
			}
		})
	}
	golden.Check(t, "problems.golden", all.String())
	for _, good := range []string{ok, tenant("suspended: true")} { // otherwise the cases would prove nothing
		if _, err := plan.ParseAt(noon, configyaml.Source("f.yaml", []byte(good))); err != nil {
			t.Errorf("%s\nthe valid document, from which the cases are made, is refused: %v", good, err)
		}
	}
}

// Guarantees that a few kilobytes of aliases that stand for a million limits cost no more than a quarter of a million
// values, so that one upload cannot stop a control plane.
func TestAliasBomb(t *testing.T) {
	text := "plans:\n- &p\n  id: p\n  limits:\n  - &l {id: l, tiers: [{period: 1s, threshold: 1}]}\n" +
		strings.Repeat("  - *l\n", 999) + strings.Repeat("- *p\n", 999)
	var bad *plan.Error
	_, err := plan.ParseAt(noon, configyaml.Source("f.yaml", []byte(text)))
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), "aliases expand to more than 250000 values") {
		t.Fatalf("Parse = %.500v, want that aliases expand too far", err)
	}
	if len(bad.Problems) > 10 {
		t.Errorf("%d problems, want each place once: %.500v", len(bad.Problems), err)
	}
}

// Guarantees that a file in which every line is wrong gives a list of bounded length, which says that it was cut.
func TestManyProblems(t *testing.T) {
	text := "plans:\n" + strings.Repeat("- x\n", 100_000)
	var bad *plan.Error
	_, err := plan.ParseAt(noon, configyaml.Source("f.yaml", []byte(text)))
	if !errors.As(err, &bad) {
		t.Fatalf("Parse = %v, want a *plan.Error", err)
	}
	last := bad.Problems[len(bad.Problems)-1]
	if len(bad.Problems) != 10_001 || last.String() != "f.yaml: more than 10000 problems: the rest is not listed" {
		t.Errorf("%d problems, the last %q; want 10001, the last saying that more are not listed", len(bad.Problems),
			last)
	}
}

// Guarantees that too large an input is refused immediately, instead of exhausting memory or causing a panic later.
func TestTooMuch(t *testing.T) {
	var limits strings.Builder
	limits.WriteString("plans:\n- id: p\n  limits:\n")
	for i := range 2001 {
		fmt.Fprintf(&limits, "  - {id: l%d, tiers: [{period: 1s, threshold: 1}]}\n", i)
	}
	limits.WriteString("tenants: [{id: t, plan: p, overrides: [{id: l2000, maxValues: 5}], boosts: [{id: l1, " +
		"factor: 2, until: 2026-12-01T00:00:00Z}]}]\n")
	for _, c := range []struct{ name, text, want string }{
		{"bytes", strings.Repeat("#", plan.MaxFileBytes+1), "f: the file is larger than 16 MiB"},
		{"values", "plans: [" + strings.Repeat("a,", 2_000_001),
			"f: more than 2000000 values: split the configuration"},
		{"limits", limits.String(), "f:2004:5: plans[0].limits[2000]: 2001 limits in one list, want at most 2000"},
		{"routes", "routes:\n" + strings.Repeat("- {pathPattern: /a}\n", 5001),
			"f:5002:3: routes[5000]: 5001 routes, want at most 5000"},
		{"boosts", "plans: [{id: p, limits: []}]\ntenants:\n- {id: t, plan: p, boosts: [" +
			strings.Repeat("{id: a, factor: 2, until: 2026-12-01T00:00:00Z}, ", 65) + "]}",
			"f:3:28: tenants[0].boosts: 65 boosts, want at most 64"},
		{"cells", "plans: [{id: p, limits: []}]\ntenants:\n- {id: t, plan: p, cells: [" +
			strings.Repeat("a, ", 65) + "]}", "f:3:27: tenants[0].cells: 65 cells, want at most 64"},
	} {
		_, err := plan.ParseAt(noon, configyaml.Source("f", []byte(c.text)))
		if err == nil || !strings.Contains("\n"+err.Error()+"\n", "\n"+c.want+"\n") {
			t.Errorf("%s: error %.300v, want %s", c.name, err, c.want)
		}
	}
}

// Guarantees that a valid file stays valid after editors on other systems have changed its line endings and encoding.
func TestOddFiles(t *testing.T) {
	good := planWithLimit("tiers: [{period: 1s, threshold: 1}]")
	for name, text := range map[string]string{
		"CRLF":       strings.ReplaceAll(good, "\n", "\r\n"),
		"BOM":        "\ufeff" + good,
		"begin mark": "--- # plans\n" + good,
		"end mark":   good + "...\n",
		"anchors": strings.Replace(good, "[{period: 1s, threshold: 1}]", "&t [{period: 1s, threshold: 1}]", 1) +
			"ipLimits: [{id: a, tiers: *t}]\n",
		"JSON":    `{"plans":[{"id":"p","limits":[{"id":"a","tiers":[{"period":"1s","threshold":1}]}]}]}`,
		"grouped": strings.Replace(good, "threshold: 1", "threshold: 1_000", 1),
	} {
		if _, err := plan.ParseAt(noon, configyaml.Source("f", []byte(text))); err != nil {
			t.Errorf("%s: %q: %v", name, text, err)
		}
	}
}
