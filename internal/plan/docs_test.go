package plan

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
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

// Guarantees that every key that a file may hold is described in the reference, in the section of its mapping.
func TestReferenceKeys(t *testing.T) {
	text, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	for title, s := range map[string]*schema{
		"## Top level": topSchema, "## Plans": planSchema, "## Limits": limitSchema,
		"### How a limit counts": tierSchema,
		"**Quota**":              quotaSchema, "### match": matchSchema, "### cost": costSchema,
		"## Tenants":    tenantSchema,
		"### Overrides": overrideSchema, "### Boosts": boostSchema, "## Routes": routeSchema, "## Keys": keySchema,
		"## The SLA form": slaSchema,
	} {
		_, section, found := strings.Cut(string(text), "\n"+title)
		if section, _, _ = strings.Cut(section, "\n#"); !found {
			t.Errorf("%s has no section %q", reference, title)
		}
		for _, key := range s.Keys {
			if !strings.Contains(section, "`"+key+"`") {
				t.Errorf("%s: section %q does not describe %s", reference, title, key)
			}
		}
	}
}

// Guarantees that no key is both accepted and refused with an answer of its own.
func TestSchemas(t *testing.T) {
	for _, s := range []*schema{limitSchema, ipLimitSchema, overrideSchema, quotaOverrideSchema} {
		for _, key := range s.Keys {
			if s.Refused[key] != "" {
				t.Errorf("%s: key %s is both known and refused", s.What, key)
			}
		}
	}
	if got := withoutKeys([]string{"a", "b", "c"}, "b"); !reflect.DeepEqual(got, []string{"a", "c"}) {
		t.Errorf("withoutKeys of b = %v, want a and c", got)
	}
}
