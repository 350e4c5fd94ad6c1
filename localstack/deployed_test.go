package localstack_test

import (
	"fmt"
	"testing"
)

// Guarantees that LocalStack made every resource of the templates, but for those of the types on the list.
func TestNothingElseIsSkipped(t *testing.T) {
	s := open(t)
	if err := s.CheckSkipped(t.Context()); err != nil {
		t.Error(err)
	}
}

// Guarantees that a tenant's limit holds in each cell's API, small and full, and that a call beyond it gets a 429 with all headers, from
// the deployed authorizer through the synthesized API.
func TestDeployed(t *testing.T) {
	s := open(t)
	apply(t, s, fmt.Sprintf(`
plans:
  - id: deployed
    limits: [ { id: few, match: { methods: [GET], pathPattern: "/product/*" }, tiers: [ { period: %s, threshold: 6 } ] } ]
tenants: [ { id: deployed-1, plan: deployed } ]
`, period()))
	k := key(t, s, "deployed-1")
	for _, c := range s.Cells() {
		known(t, s, c.ID, k)
		allowed := 0
		for range 10 {
			a := call(t, s, c.ID, "GET /product/1", k)
			switch a.Status {
			case 200:
				allowed++
			case 429:
				for _, name := range []string{"Retry-After", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "Ratelimit", "Ratelimit-Policy"} {
					if a.Header.Get(name) == "" {
						t.Errorf("%s: a 429 without %s: %v", c.ID, name, a.Header)
					}
				}
			default:
				t.Errorf("%s: %d %s", c.ID, a.Status, a.Body)
			}
		}
		if allowed != 3 { // its share: half of 6
			t.Errorf("%s admitted %d of 10, want 3", c.ID, allowed)
		}
	}
	if a := call(t, s, "eu-1", "GET /product/1", ""); a.Status != 401 {
		t.Errorf("without a key: %d %s", a.Status, a.Body)
	}
}
