package plan_test

import (
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/plan"
)

// Guarantees that an operator hears of limits of addresses whose counters a slow flood can pile up, and of no others.
func TestWarningsOfLongIPLimits(t *testing.T) {
	const daily = "ipLimits: [{id: a, tiers: [{period: 1s, threshold: 1}, {period: 24h, threshold: 1000}]}]\n"
	for _, tt := range []struct{ text, want string }{
		{daily, "f.yaml:1:56: ipLimits[0].tiers[1]: the counter of an address stays in memory for up to 48h: where addresses are " +
			"counted in memory, a new address every 6s uses up what the library has for them by default (28000 addresses of " +
			"some 500 bytes), and later addresses share counters; prefer a shorter period, see ipLimits in docs/plans.md"},
		{"ipLimits: [{id: a, quota: {units: 9, every: day}}]\n", "for up to 24h"},
		{"ipLimits: [{id: a, quota: {units: 9, every: year}}]\n", "a new address every 18m49s"},
		{"ipLimits: [{id: a, algorithm: sliding_window, threshold: 9, period: 30m}]\n", "for up to 1h30m"},
		{"ipLimits: [{id: a, algorithm: token_bucket, rate: 1, period: 1m, burst: 100}]\n", "up to 1h40m: where addresses are counted in memory, 4 new addresses a second"},
		{"ipLimits: [{id: a, algorithm: sliding_log, threshold: 90, period: 2h}]\n", "for up to 2h"},
		{"ipLimits: [{id: a, algorithm: token_bucket, rate: 50, period: 1s, burst: 100}]\n", ""},
		{"ipLimits: [{id: a, algorithm: fixed_window, threshold: 9, period: 30m}]\n", ""},
		{strings.Replace(daily, "id: a", "id: a, mode: off", 1), ""},
		{"plans: [{id: p, limits: [{id: a, algorithm: fixed_window, threshold: 9, period: 24h}]}]\n", ""},
		{"ipv6Prefix: 65\n", "f.yaml:1:13: ipv6Prefix: a customer has a /64 of IPv6 at least, and with a /65 that is 2^1 counters, each with the whole limit"},
		{"ipv6Prefix: 64\n", ""},
	} {
		c, err := plan.Parse(plan.Source{Name: "f.yaml", Data: []byte(tt.text)})
		if err != nil {
			t.Fatalf("%s: %v", tt.text, err)
		}
		var got []string
		for _, w := range c.Warnings() {
			got = append(got, w.String())
		}
		all := strings.Join(got, "\n")
		if len(got) > 1 || (all == "") != (tt.want == "") || !strings.Contains(all, tt.want) {
			t.Errorf("%s\nwarns of %q\nwant   %q", tt.text, all, tt.want)
		}
	}
}
