package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/plan"
)

// Guarantees that a store is asked about the limits that one request can be charged to, and not about all limits of a
// plan: DynamoDB can decide over 99 limits at once, and over 300 of which few apply to the same request.
func TestAcceptedBy(t *testing.T) {
	limits := func(n int, each string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "      - "+each+"\n", i)
		}
		return b.String()
	}
	const (
		everywhere = "{id: l%[1]d, algorithm: token_bucket, rate: 5, period: 1s}"
		more       = "{id: m%[1]d, algorithm: token_bucket, rate: 5, period: 1s}"
		person     = "{id: l%[1]d, per: subject, tiers: [{period: 1s, threshold: 5}]}"
		routes     = "{id: l%[1]d, per: endpoint, match: {methods: [GET], pathPattern: /v1/r%[1]d/*}, tiers: " +
			"[{period: 1s, threshold: 5}]}"
		tails = "{id: l%[1]d, match: {pathPattern: '/v1/{x}/r%[1]d'}, tiers: [{period: 1s, threshold: 5}]}"
		group = "{id: l%[1]d, group: g, match: {pathPattern: '/v1/r%[1]d/**'}, tiers: [{period: 1s, threshold: 5}]}"
	)
	for name, c := range map[string]struct{ limits, want string }{
		"as many as there may be": {limits(99, everywhere), ""},
		"one more": {limits(100, everywhere),
			"too many counters for one decision of this store: the counters may lie in 100 items"},
		"per subject":                  {limits(130, person), ""},
		"too many per subject":         {limits(140, person), "bytes in a condition, and DynamoDB takes at most 4096"},
		"a route each":                 {limits(300, routes), ""},
		"a route each, and a few more": {limits(300, routes) + limits(20, more), ""},
		"a route each, and many more":  {limits(300, routes) + limits(99, more), "may lie in 100 items"},
		"a tail each":                  {limits(300, tails), ""},
		"alternatives":                 {limits(300, group), ""},
		"alternatives for one path, of which one applies": {limits(98, everywhere) +
			"      - {id: wide, group: g, match: {pathPattern: '/v1/**'}, tiers: [{period: 1s, threshold: 5}]}\n" +
			"      - {id: narrow, group: g, match: {pathPattern: '/v1/a/**'}, tiers: [{period: 1s, threshold: 5}]}\n",
			""},
	} {
		t.Run(name, func(t *testing.T) {
			text := "plans:\n  - id: wide\n    limits:\n" + c.limits
			config, err := plan.Parse(configyaml.Source("plans.yaml", []byte(text)))
			if err != nil {
				t.Fatal(err)
			}
			err = config.Plans()[0].Set().AcceptedBy(dynamodb.AcceptsPlan)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the store says %.300v, want an error with %q", err, c.want)
			}
		})
	}
}
