package localstack_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/localstack/stand"
)

// Guarantees that LocalStack created every resource of the templates, except those of the listed types.
func TestNothingElseIsSkipped(t *testing.T) { checkSkipped(t, open(t)) }

// checkSkipped fails the test if LocalStack skipped a type of resources that skipped.txt does not list. The LocalStack
// of localstack/up, whose version is fixed, must skip every type in the list: otherwise the list would hide it if a
// later version skips that type again.
func checkSkipped(t *testing.T, s *stand.Stand) {
	t.Helper()
	skipped, err := s.Skipped(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile("skipped.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		switch typ, _, _ := strings.Cut(line, " "); {
		case !strings.HasPrefix(typ, "AWS::"): // a remark
		case skipped[typ]:
			delete(skipped, typ)
		case s.Ours():
			t.Errorf("skipped.txt names %s, but LocalStack did not skip it", typ)
		}
	}
	for typ := range skipped {
		t.Errorf("LocalStack skipped %s, which is not in skipped.txt", typ)
	}
}

// Guarantees that a tenant's limit is enforced by the API of each cell, small and full, and that a request above it
// gets a 429 with all headers, from the deployed authorizer through the API of the template.
func TestDeployed(t *testing.T) {
	s := open(t)
	apply(t, s, fmt.Sprintf(`
plans:
  - id: deployed
    limits:
      - { id: few, match: { methods: [GET], pathPattern: "/product/*" }, tiers: [ { period: %s, threshold: 6 } ] }
tenants: [ { id: deployed-1, plan: deployed } ]
`, period()))
	k := key(t, s, "deployed-1")
	for _, c := range s.Cells() {
		waitUntilKeyIsKnown(t, s, c.ID, k)
		allowed := 0
		for range 10 {
			a := call(t, s, c.ID, "GET /product/1", k)
			switch a.Status {
			case 200:
				allowed++
			case 429:
				for _, name := range []string{"Retry-After", "X-Ratelimit-Limit", "X-Ratelimit-Remaining",
					"X-Ratelimit-Reset", "Ratelimit", "Ratelimit-Policy"} {
					if a.Header.Get(name) == "" {
						t.Errorf("%s: a 429 without %s: %v", c.ID, name, a.Header)
					}
				}
			default:
				t.Errorf("%s: status %d, body %s", c.ID, a.Status, a.Body)
			}
		}
		if allowed != 3 { // its share is half of 6
			t.Errorf("%s admitted %d of 10, want 3", c.ID, allowed)
		}
	}
	if a := call(t, s, "eu-1", "GET /product/1", ""); a.Status != 401 {
		t.Errorf("a request without a key: status %d, body %s", a.Status, a.Body)
	}
}

// Guarantees that `sluice doctor` runs against the deployment, with the results that docs/assumptions.md shows for
// LocalStack.
func TestDoctorOnLocalStack(t *testing.T) {
	s := open(t)
	apply(t, s, fmt.Sprintf(`
plans:
  - id: doctor
    limits:
      - { id: few, match: { methods: [GET], pathPattern: "/product/*" }, tiers: [ { period: %s, threshold: 4 } ] }
tenants: [ { id: doctor-1, plan: doctor } ]
`, period()))
	k := key(t, s, "doctor-1")
	waitUntilKeyIsKnown(t, s, "eu-1", k)
	file := filepath.Join(t.TempDir(), "key.txt")
	if err := os.WriteFile(file, []byte(k), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := s.Sluice(t.Context(), "doctor", s.API("eu-1")+"/product/1", "--key-file", file, "--charge", "20")
	if err != nil {
		t.Error(err)
	}
	t.Logf("\n%s", out)
	page, err := os.ReadFile("../docs/assumptions.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(page), "\n## On LocalStack\n")
	shown, _, _ = strings.Cut(shown, "\n## ")
	verdicts := regexp.MustCompile(`(?m)^(holds|does not hold|could not tell) .*`)
	if have, want := verdicts.FindAllString(out, -1), verdicts.FindAllString(shown, -1); len(want) != 5 ||
		!slices.Equal(have, want) {
		t.Errorf("the page shows\n%s\nand doctor prints\n%s", strings.Join(want, "\n"), strings.Join(have, "\n"))
	}
}
