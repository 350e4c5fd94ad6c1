package plan

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/testkit/golden"
)

const reference = "../../docs/plans.md"

// Guarantees that every example of the reference loads without a warning, so that a copy of one works.
func TestReferenceExamples(t *testing.T) {
	for file, least := range map[string]int{reference: 8, "../../README.md": 1} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		blocks := strings.Split(string(text), "```yaml\n")[1:]
		for _, b := range blocks {
			example, _, _ := strings.Cut(b, "```")
			c, err := ParseAt(time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC), configyaml.Source(file, []byte(example)))
			if err != nil {
				t.Errorf("an example of the documentation is refused:\n%s\n%v", example, err)
			} else if len(c.Warnings()) > 0 {
				t.Errorf("an example of the documentation has warnings:\n%s\n%v", example, c.Warnings())
			}
		}
		if len(blocks) < least {
			t.Errorf("%s has %d examples, want at least %d", file, len(blocks), least)
		}
	}
}

// rowsOf returns the rows of a mapping's table in the reference.
func rowsOf[S any](m *mapping[S]) []string {
	var rows []string
	for _, k := range m.keys {
		usual := k.usual
		if usual == "" {
			usual = "required"
		}
		rows = append(rows, row(k.name, k.kind, usual, k.doc))
	}
	return rows
}

var largeNumber = regexp.MustCompile(`\b\d{4,}\b`)

// row writes a row of a table, with commas in its large numbers.
func row(name string, cells ...string) string {
	text := "| `" + name + "` |"
	for _, c := range cells {
		text += strings.TrimRight(" "+largeNumber.ReplaceAllStringFunc(c, thousands), " ") + " |"
	}
	return text
}

func thousands(n string) string {
	for at := len(n) - 3; at > 0; at -= 3 {
		n = n[:at] + "," + n[at:]
	}
	return n
}

// Guarantees that the reference describes every key as it is declared, in the table of its mapping. -update rewrites
// the rows of the tables.
func TestReferenceKeys(t *testing.T) {
	text, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	var overridable []string
	for _, k := range overrideKeys.keys {
		overridable = append(overridable, row(k.name, k.kind, k.override))
	}
	got := string(text)
	for title, rows := range map[string][]string{
		"## Top level": rowsOf(topKeys), "## Plans": rowsOf(planKeys), "## Limits": rowsOf(limitKeys),
		"**Tiers**": rowsOf(tierKeys), "**Quota**": rowsOf(quotaKeys), "### match": rowsOf(matchKeys),
		"### cost": rowsOf(costKeys), "## Tenants": rowsOf(tenantKeys), "### Overrides": overridable,
		"### Boosts": rowsOf(boostKeys), "## Routes": rowsOf(routeKeys), "## Keys": rowsOf(keyKeys),
		"## The SLA form": rowsOf(slaKeys),
	} {
		before, section, found := strings.Cut(got, "\n"+title)
		heading, table, rule := strings.Cut(section, "|---|\n")
		if !found || !rule || strings.Contains(heading, "\n#") {
			t.Fatalf("%s has no table in the section %q", reference, title)
		}
		_, after, _ := strings.Cut("\n"+table, "\n\n")
		got = before + "\n" + title + heading + "|---|\n" + strings.Join(rows, "\n") + "\n\n" + after
	}
	golden.CheckFile(t, reference, got)
}

// Guarantees that no key is both accepted and refused with an answer of its own.
func TestSchemas(t *testing.T) {
	for _, s := range []schema{limitKeys.schema, limitLists[ipLimit].schema, overrideKeys.schema,
		quotaOverrideKeys.schema} {
		for _, key := range s.Keys {
			if s.Refused[key] != "" {
				t.Errorf("%s: key %s is both known and refused", s.What, key)
			}
		}
	}
}
