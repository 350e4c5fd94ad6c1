package bench

import (
	"strings"
	"testing"
)

// Figures of calls believe what an answer says. One that no limiter made, or that is another tenant's, must be an
// error.
func TestReadRefuses(t *testing.T) {
	const good = `{"policyDocument":{"Statement":[{"Effect":"Allow"}]},"context":{"tenant":"wide-0",` +
		`"rateLimitLimit":"10",` +
		`"rateLimitPolicy":"\"burst\";q=1;w=1, \"put-product\";q=1;w=1, \"yearly\";q=1;w=1"}}`
	o, err := read([]byte(good), "wide-0")
	if err != nil || !o.allowed() {
		t.Fatalf("a good answer: %+v, %v", o, err)
	}
	for name, broken := range map[string]string{
		"two limits":     strings.Replace(good, `, \"yearly\";q=1;w=1`, "", 1),
		"no limits":      strings.Replace(good, "rateLimitLimit", "other", 1),
		"another tenant": strings.Replace(good, "wide-0", "wide-1", 1),
		"no JSON":        "null and void",
	} {
		if _, err := read([]byte(broken), "wide-0"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if o, err := read([]byte(strings.Replace(good, "Allow", "Deny", 1)), "wide-0"); err != nil || o.allowed() {
		t.Errorf("a denial: %+v, %v; want one that is not allowed", o, err)
	}
}

// A percentile over lines of metrics is one over all their values, in whatever order the lines have them.
func TestQuantile(t *testing.T) {
	d := distribution{Values: []float64{1, 100, 1, 10}, Counts: []int64{50, 1, 40, 9}}
	all := d.all()
	for q, want := range map[float64]float64{0.5: 1, 0.95: 10, 0.99: 100} {
		if got := quantile(all, q); got != want {
			t.Errorf("quantile %g is %g, want %g", q, got, want)
		}
	}
	if len(all) != 100 {
		t.Errorf("%d values, want 100", len(all))
	}
}
