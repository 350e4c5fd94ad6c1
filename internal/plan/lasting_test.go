package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/plan"
)

// Guarantees that an operator is warned of limits of addresses whose counters a slow flood can accumulate, and of no
// others.
func TestWarningsOfLongIPLimits(t *testing.T) {
	const daily = "ipLimits: [{id: a, tiers: [{period: 1s, threshold: 1}, {period: 24h, threshold: 1000}]}]\n"
	for _, tt := range []struct{ text, want string }{
		{daily, "f.yaml:1:56: ipLimits[0].tiers[1]: the counter of an address stays in memory for up to 48h: where " +
			"addresses are counted in memory, a new address every 1s uses up what the library has for them by " +
			"default (130000 addresses of some 110 bytes), and later addresses share counters; prefer a shorter " +
			"period, see ipLimits in docs/plans.md"},
		{"ipLimits: [{id: a, quota: {units: 9, every: day}}]\n", "for up to 24h"},
		{"ipLimits: [{id: a, quota: {units: 9, every: year}}]\n", "a new address every 4m3s"},
		{"ipLimits: [{id: a, algorithm: sliding_window, threshold: 19, period: 30m}]\n", "for up to 1h30m"},
		{"ipLimits: [{id: a, algorithm: token_bucket, rate: 1, period: 1m, burst: 100}]\n",
			"up to 1h40m: where addresses are counted in memory, 21 new addresses a second"},
		{"ipLimits: [{id: a, algorithm: sliding_log, threshold: 90, period: 2h}]\n", "for up to 2h"},
		{"ipLimits: [{id: a, algorithm: token_bucket, rate: 50, period: 1s, burst: 100}]\n", ""},
		{"ipLimits: [{id: a, algorithm: fixed_window, threshold: 9, period: 30m}]\n", ""},
		{"ipLimits: [{id: a, algorithm: sliding_buckets, threshold: 9, period: 1h}]\n", ""},
		{strings.Replace(daily, "id: a", "id: a, mode: off", 1), ""},
		{"plans: [{id: p, limits: [{id: a, algorithm: fixed_window, threshold: 9, period: 24h}]}]\n", ""},
		{"ipv6Prefix: 65\n", "f.yaml:1:13: ipv6Prefix: a customer has a /64 of IPv6 at least, and with a /65 that " +
			"is 2^1 counters, each with the whole limit"},
		{"ipv6Prefix: 64\n", ""},
	} {
		wantWarning(t, tt.text, tt.want)
	}
}

// wantWarning fails if the document has other warnings than the wanted one; "" stands for none.
func wantWarning(t *testing.T, text, want string) {
	t.Helper()
	c, err := plan.Parse(configyaml.Source("f.yaml", []byte(text)))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	var got []string
	for _, w := range c.Warnings() {
		got = append(got, w.String())
	}
	all := strings.Join(got, "\n")
	if len(got) > 1 || (all == "") != (want == "") || !strings.Contains(all, want) {
		t.Errorf("%s\nwarns of %q\nwant   %q", text, all, want)
	}
}

// Guarantees that a tier is reported as never binding only if that is certain: for fixed windows that nest, and for
// logs.
func TestWarningsOfTiersThatNeverBind(t *testing.T) {
	for _, tt := range []struct{ algorithm, tiers, want string }{
		{"fixed_window", "[{period: 1s, threshold: 5}, {period: 10s, threshold: 50}]",
			"the tier of 10s can never bind: the tier of 1s admits no more than 50 in it"},
		{"fixed_window", "[{period: 1s, threshold: 5}, {period: 10s, threshold: 49}]", ""},
		{"fixed_window", "[{period: 3s, threshold: 5}, {period: 10s, threshold: 50}]", ""}, // they do not nest
		{"sliding_log", "[{period: 3s, threshold: 100}, {period: 10s, threshold: 400}]",
			"the tier of 10s can never bind"},
		{"sliding_window", "[{period: 1s, threshold: 50}, {period: 10s, threshold: 500}]", ""},
		{"sliding_buckets", "[{period: 1s, threshold: 5}, {period: 10s, threshold: 50}]", ""},
	} {
		wantWarning(t, "plans: [{id: p, limits: [{id: a, algorithm: "+tt.algorithm+", tiers: "+tt.tiers+"}]}]\n",
			tt.want)
	}
}

// Guarantees that a sliding window is reported if its rounding costs more than a tenth of the threshold.
func TestWarningsOfSmallSlidingWindows(t *testing.T) {
	for _, test := range []struct {
		algorithm string
		threshold int
		want      string
	}{
		{"sliding_window", 1, "admits about 50% of it"}, {"sliding_window", 2, "admits about 50% of it"},
		{"sliding_window", 3, "admits about 66% of it"}, {"sliding_window", 9, "admits about 88% of it"},
		{"sliding_window", 10, ""}, {"fixed_window", 1, ""}, {"sliding_buckets", 1, ""},
	} {
		wantWarning(t, fmt.Sprintf(
			"plans: [ { id: p, limits: [ { id: a, algorithm: %s, threshold: %d, period: 1m } ] } ]", test.algorithm,
			test.threshold), test.want)
	}
}

// Guarantees that a header's cost that a limit can never hold is reported, whatever the algorithm, and only then.
func TestWarningsOfCostsThatNeverFit(t *testing.T) {
	for _, test := range []struct{ limit, want string }{
		{"algorithm: fixed_window, threshold: 9, period: 1m, cost: {trustedHeader: x-c, max: 10}",
			"can hold 9, which is below the largest cost 10"},
		{"algorithm: token_bucket, rate: 100, burst: 9, period: 1s, cost: {trustedHeader: x-c, max: 10}",
			"can hold 9, which is below the largest cost 10"},
		{"algorithm: token_bucket, rate: 1, burst: 10, period: 1s, cost: {trustedHeader: x-c, max: 10}", ""},
		{"algorithm: fixed_window, tiers: [{threshold: 2, period: 1s}, {threshold: 20, period: 1m}], " +
			"cost: {trustedHeader: x-c, max: 10}", "can hold 2, which is below the largest cost 10"},
		{"algorithm: fixed_window, threshold: 9, period: 1m, cost: {trustedHeader: x-c, max: 20, default: 10}",
			"can hold 9, which is below the usual cost 10"},
	} {
		wantWarning(t, "plans: [ { id: p, limits: [ { id: a, "+test.limit+" } ] } ]\n", test.want)
	}
}
