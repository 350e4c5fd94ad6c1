package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// setOf compiles the limits of a plan, which are written as in a plans file.
func setOf(t *testing.T, limits string) *Set {
	t.Helper()
	c, err := Parse(configyaml.Source("plans.yaml", []byte("plans:\n  - id: p\n    limits: [ "+limits+" ]\n")))
	if err != nil {
		t.Fatalf("%s: %v", limits, err)
	}
	return c.plans[0].set
}

// lossesText writes losses, one on each line.
func lossesText(losses []Loss) string {
	var lines []string
	for _, l := range losses {
		lines = append(lines, map[bool]string{true: "removes ", false: "weakens "}[l.Removed]+l.Text)
	}
	return strings.Join(lines, "\n")
}

// lossCases are changes of a limit, by the key of a plans file that is changed. If back is empty, the opposite change
// loses nothing.
var lossCases = map[string][]struct{ before, after, want, back string }{
	"id": {{"{ id: a, tiers: [ { period: 1s, threshold: 1 } ] }", "{ id: b, tiers: [ { period: 1s, threshold: 1 } ] }",
		"removes limit a (fixed_window: 1 per 1s)", "removes limit b (fixed_window: 1 per 1s)"}},
	"per": {
		{"{ id: a, tiers: [ { period: 1s, threshold: 1 } ] }",
			"{ id: a, per: subject, tiers: [ { period: 1s, threshold: 1 } ] }",
			"weakens limit a: per goes from tenant to subject, so requests that shared a counter have counters of " +
				"their own", ""},
		{"{ id: a, per: ip, tiers: [ { period: 1s, threshold: 1 } ] }",
			"{ id: a, per: subject, tiers: [ { period: 1s, threshold: 1 } ] }",
			"weakens limit a: per goes from ip to subject, so requests that shared a counter have " +
				"counters of their own",
			"weakens limit a: per goes from subject to ip, so requests that shared a counter have " +
				"counters of their own"},
	},
	"match": {
		{"{ id: a, tiers: [ { period: 1s, threshold: 1 } ] }",
			`{ id: a, match: { methods: [PUT], pathPattern: "/a/*" }, tiers: [ { period: 1s, threshold: 1 } ] }`,
			"weakens limit a: match goes from /** to PUT /a/*, so it leaves out requests that it counted", ""},
		{`{ id: a, match: { pathPattern: "/a/*" }, tiers: [ { period: 1s, threshold: 1 } ] }`,
			`{ id: a, match: { pathPattern: "/{x}/b" }, tiers: [ { period: 1s, threshold: 1 } ] }`,
			"weakens limit a: match goes from /a/* to /{x}/b, so it leaves out requests that it counted",
			"weakens limit a: match goes from /{x}/b to /a/*, so it leaves out requests that it counted"},
		{"{ id: a, match: { methods: [GET], impliesHead: true }, tiers: [ { period: 1s, threshold: 1 } ] }",
			"{ id: a, match: { methods: [GET] }, tiers: [ { period: 1s, threshold: 1 } ] }",
			"weakens limit a: match goes from GET, HEAD /** to GET /**, so it leaves out requests that it counted", ""},
		{`{ id: a, match: { pathPattern: "/a/*", caseInsensitive: true }, tiers: [ { period: 1s, threshold: 1 } ] }`,
			`{ id: a, match: { pathPattern: "/a/*", caseInsensitive: false }, ` +
				`tiers: [ { period: 1s, threshold: 1 } ] }`,
			"weakens limit a: match goes from /a/* in any case to /a/*, so it leaves out requests that it counted", ""},
		{`{ id: a, match: { pathPattern: "/1/*", caseInsensitive: true }, tiers: [ { period: 1s, threshold: 1 } ] }`,
			`{ id: a, match: { pathPattern: "/1/*" }, tiers: [ { period: 1s, threshold: 1 } ] }`, "", ""},
	},
	"group": {
		{"{ id: a, tiers: [ { period: 1s, threshold: 1 } ] }",
			"{ id: a, group: g, tiers: [ { period: 1s, threshold: 1 } ] }",
			"weakens limit a: group goes from none to g, so a more specific limit of that group takes its place", ""},
		{`{ id: a, group: g, tiers: [ { period: 1s, threshold: 1 } ] }`,
			`{ id: a, group: g, tiers: [ { period: 1s, threshold: 1 } ] }, { id: b, group: g, match: { pathPattern: ` +
				`"/b" }, tiers: [ { period: 1s, threshold: 1 } ] }`,
			"weakens limit a: limit b of its group takes its place for /b", "removes limit b (fixed_window: 1 per 1s)"},
		{`{ id: a, group: g, tiers: [ { period: 1s, threshold: 1 } ] }, { id: b, group: g, match: { pathPattern: ` +
			`"/b/c" }, tiers: [ { period: 1s, threshold: 1 } ] }`,
			`{ id: a, group: g, tiers: [ { period: 1s, threshold: 1 } ] }, { id: b, group: g, match: { pathPattern: ` +
				`"/b/**" }, tiers: [ { period: 1s, threshold: 1 } ] }`,
			"weakens limit a: limit b of its group takes its place for /b/**",
			"weakens limit b: match goes from /b/** to /b/c, so it leaves out requests that it counted"},
	},
	"algorithm": {
		{"{ id: a, algorithm: sliding_log, threshold: 5, period: 1s }",
			"{ id: a, algorithm: fixed_window, threshold: 5, period: 1s }",
			"weakens limit a: algorithm goes from sliding_log to fixed_window, which may admit more in a short time",
			""},
		{"{ id: a, algorithm: token_bucket, rate: 5, period: 1s, burst: 2 }",
			"{ id: a, algorithm: sliding_log, threshold: 5, period: 1s }",
			"weakens limit a: burst rises from 2 to 5", "weakens limit a: algorithm goes from sliding_log to " +
				"token_bucket, which may admit more in a short time"},
		{"{ id: a, algorithm: leaky_bucket, rate: 5, period: 1s }",
			"{ id: a, algorithm: token_bucket, rate: 5, period: 1s }",
			"weakens limit a: algorithm goes from leaky_bucket to token_bucket, which may admit more in a short time",
			"weakens limit a: algorithm goes from token_bucket to leaky_bucket, which may admit more in a short time"},
	},
	"rate": {{"{ id: a, algorithm: token_bucket, rate: 100, period: 1s }",
		"{ id: a, algorithm: token_bucket, rate: 150, period: 1s }",
		"weakens limit a: rate rises from 100 to 150 per 1s", ""}},
	"threshold": {{"{ id: a, algorithm: sliding_window, threshold: 100, period: 1m }",
		"{ id: a, algorithm: sliding_window, threshold: 101, period: 1m }",
		"weakens limit a: threshold rises from 100 to 101 per 1m", ""}},
	"period": {
		{"{ id: a, algorithm: fixed_window, threshold: 10, period: 10s }",
			"{ id: a, algorithm: fixed_window, threshold: 10, period: 5s }",
			"weakens limit a: threshold goes from 10 per 10s to 10 per 5s", ""},
		{"{ id: a, algorithm: fixed_window, threshold: 1, period: 1s }",
			"{ id: a, algorithm: fixed_window, threshold: 60, period: 1m }",
			"weakens limit a: threshold goes from 1 per 1s to 60 per 1m", ""},
		{"{ id: a, algorithm: token_bucket, rate: 1, period: 1s, burst: 9 }",
			"{ id: a, algorithm: token_bucket, rate: 60, period: 1m, burst: 9 }", "", ""},
	},
	"burst": {{"{ id: a, algorithm: token_bucket, rate: 100, period: 1s }",
		"{ id: a, algorithm: token_bucket, rate: 100, period: 1s, burst: 200 }",
		"weakens limit a: burst rises from 100 to 200", ""}},
	"buckets": {{"{ id: a, algorithm: sliding_buckets, threshold: 100, period: 1s, buckets: 2 }",
		"{ id: a, algorithm: sliding_buckets, threshold: 100, period: 1s }",
		"weakens limit a: buckets rise from 2 to 24, so units come back sooner", ""}},
	"tiers": {
		{"{ id: a, tiers: [ { period: 1s, threshold: 5 }, { period: 10s, threshold: 20 } ] }",
			"{ id: a, tiers: [ { period: 10s, threshold: 30 } ] }",
			"removes limit a: the tier of 5 per 1s\nweakens limit a: threshold rises from 20 to 30 per 10s", ""},
		{"{ id: a, tiers: [ { period: 10s, threshold: 20 } ] }",
			"{ id: a, tiers: [ { period: 1s, threshold: 5 }, { period: 20s, threshold: 20 } ] }",
			"removes limit a: the tier of 20 per 10s", "removes limit a: the tier of 5 per 1s\nremoves limit a: the " +
				"tier of 20 per 20s"},
	},
	"quota": {
		{"{ id: a, quota: { units: 5, every: month } }", "{ id: a, quota: { units: 6, every: month } }",
			"weakens limit a: units rise from 5 to 6 per month", ""},
		{"{ id: a, quota: { units: 50, every: month } }", "{ id: a, quota: { units: 2, every: day } }",
			"weakens limit a: units go from 50 per month to 2 per day",
			"weakens limit a: units go from 2 per day to 50 per month"},
		{"{ id: a, quota: { units: 50, every: month } }", "{ id: a, quota: { units: 1, every: day } }", "",
			"weakens limit a: units go from 1 per day to 50 per month"},
		{"{ id: a, quota: { units: 5, every: month, anchorDay: 3 } }",
			"{ id: a, quota: { units: 5, every: month, timezone: Europe/Paris } }", "", ""},
	},
	"concurrency": {{"{ id: a, concurrency: 8, holdFor: 30s }", "{ id: a, concurrency: 9, holdFor: 30s }",
		"weakens limit a: concurrency rises from 8 to 9 concurrent-requests per 30s", ""}},
	"holdFor": {
		{"{ id: a, concurrency: 8, holdFor: 30s }", "{ id: a, concurrency: 8, holdFor: 10s }",
			"weakens limit a: concurrency goes from 8 concurrent-requests per 30s to 8 concurrent-requests per 10s",
			""},
		{"{ id: a, concurrency: 8, holdFor: 30s }", "{ id: a, algorithm: sliding_log, threshold: 8, period: 30s }",
			"weakens limit a: unit goes from concurrent-requests to requests, so it no longer limits " +
				"concurrent-requests, and what it has counted stays counted\n" +
				"weakens limit a: exact goes from true to false, so it may be counted from leases",
			"weakens limit a: unit goes from requests to concurrent-requests, so it no longer limits requests, and " +
				"what it has counted stays counted"},
	},
	"align": {{"{ id: a, tiers: [ { period: 1s, threshold: 1 } ] }",
		"{ id: a, align: tenant, tiers: [ { period: 1s, threshold: 1 } ] }", "", ""}},
	"mode": {
		{"{ id: a, tiers: [ { period: 1s, threshold: 1 } ] }",
			"{ id: a, mode: shadow, tiers: [ { period: 1s, threshold: 9 } ] }",
			"weakens limit a: mode goes from enforce to shadow, so it denies nothing", ""},
		{"{ id: a, mode: shadow, tiers: [ { period: 1s, threshold: 1 } ] }",
			"{ id: a, mode: off, tiers: [ { period: 1s, threshold: 1 } ] }",
			"weakens limit a: mode goes from shadow to off, so it reports nothing", ""},
		{"{ id: a, mode: shadow, tiers: [ { period: 1s, threshold: 1 } ] }",
			"{ id: a, mode: shadow, tiers: [ { period: 1s, threshold: 2 } ] }", "", ""},
	},
	"onStoreFailure": {
		{"{ id: a, onStoreFailure: closed, tiers: [ { period: 1s, threshold: 1 } ] }",
			"{ id: a, tiers: [ { period: 1s, threshold: 1 } ] }",
			"weakens limit a: onStoreFailure goes from closed to backstop", ""},
		{"{ id: a, tiers: [ { period: 1s, threshold: 1 } ] }",
			"{ id: a, onStoreFailure: open, tiers: [ { period: 1s, threshold: 1 } ] }",
			"weakens limit a: onStoreFailure goes from backstop to open", ""},
	},
	"cost": {
		{"{ id: a, cost: 5, tiers: [ { period: 1s, threshold: 10 } ] }",
			"{ id: a, cost: 4, tiers: [ { period: 1s, threshold: 10 } ] }",
			"weakens limit a: cost goes from 5 to 4, so a request may spend less", ""},
		{"{ id: a, cost: 5, tiers: [ { period: 1s, threshold: 10 } ] }",
			"{ id: a, cost: { trustedHeader: x-cost, max: 9, default: 5 }, tiers: [ { period: 1s, threshold: 10 } ] }",
			"weakens limit a: cost goes from 5 to header x-cost up to 9, default 5, so a request may spend less",
			"weakens limit a: cost goes from header x-cost up to 9, default 5 to 5, so a request may spend less"},
		{"{ id: a, cost: { trustedHeader: x-cost, max: 9 }, tiers: [ { period: 1s, threshold: 10 } ] }",
			"{ id: a, cost: { trustedHeader: x-other, max: 9 }, tiers: [ { period: 1s, threshold: 10 } ] }",
			"weakens limit a: cost goes from header x-cost up to 9, default 1 to header x-other up to 9, default 1, " +
				"so a request may spend less",
			"weakens limit a: cost goes from header x-other up to 9, default 1 to header x-cost up to 9, default 1, " +
				"so a request may spend less"},
	},
	"unit": {
		{"{ id: a, tiers: [ { period: 1s, threshold: 10 } ] }",
			"{ id: a, unit: tokens, cost: 5, tiers: [ { period: 1s, threshold: 900 } ] }",
			"weakens limit a: unit goes from requests to tokens, so it no longer limits requests, and what it has " +
				"counted stays counted",
			"weakens limit a: unit goes from tokens to requests, so it no longer limits tokens, and what it has " +
				"counted stays counted"},
		{"{ id: a, unit: requests, tiers: [ { period: 1s, threshold: 10 } ] }",
			"{ id: a, tiers: [ { period: 1s, threshold: 10 } ] }", "", ""},
		{"{ id: a, unit: tokens, cost: 5, tiers: [ { period: 1s, threshold: 10 } ] }",
			"{ id: a, unit: tokens, cost: 0, tiers: [ { period: 1s, threshold: 20 } ] }",
			"weakens limit a: threshold rises from 10 to 20 tokens per 1s\n" +
				"weakens limit a: cost goes from 5 to 0 tokens, so a request may spend less", ""},
		{"{ id: a, unit: tokens, cost: { trustedHeader: x-t, max: 9, default: 1 }, " +
			"tiers: [ { period: 1s, threshold: 10 } ] }",
			"{ id: a, unit: tokens, cost: { trustedHeader: x-t, max: 9, default: 0 }, " +
				"tiers: [ { period: 1s, threshold: 10 } ] }",
			"weakens limit a: cost goes from header x-t up to 9, default 1 to header x-t up to 9, default 0 tokens, " +
				"so a request may spend less", ""},
	},
	"exact": {{"{ id: a, exact: true, tiers: [ { period: 1s, threshold: 1 } ] }",
		"{ id: a, tiers: [ { period: 1s, threshold: 1 } ] }",
		"weakens limit a: exact goes from true to false, so it may be counted from leases", ""}},
	"maxValues": {{"{ id: a, per: ip, maxValues: 100, tiers: [ { period: 1s, threshold: 1 } ] }",
		"{ id: a, per: ip, tiers: [ { period: 1s, threshold: 1 } ] }",
		"weakens limit a: maxValues rises from 100 to 10000", ""}},
}

// Guarantees that every setting of a limit that is loosened or removed is reported with its old and its new value,
// that nothing is reported for settings that become stricter, and that the cases cover every key of a limit.
func TestLosses(t *testing.T) {
	for _, key := range limitKeys.Keys {
		if len(lossCases[key]) == 0 {
			t.Errorf("no case of the table changes the key %s", key)
		}
	}
	for key, cases := range lossCases {
		if !slices.Contains(limitKeys.Keys, key) && key != "units" {
			t.Errorf("the table has cases for %s, which is not a key of a limit", key)
		}
		for _, tt := range cases {
			before, after := setOf(t, tt.before), setOf(t, tt.after)
			if got := lossesText(Losses(before, after)); got != tt.want {
				t.Errorf("%s\n→ %s\nsays\n%s\nwant\n%s", tt.before, tt.after, got, tt.want)
			}
			if got := lossesText(Losses(after, before)); got != tt.back {
				t.Errorf("%s\n→ %s\nsays\n%s\nwant\n%s", tt.after, tt.before, got, tt.back)
			}
			if got := lossesText(Losses(before, before)); got != "" {
				t.Errorf("Losses of the unchanged %s = %s, want none", tt.before, got)
			}
		}
	}
}

// Guarantees that a change without a reported loss admits no more: over no length of time does the new limit admit
// more requests than the old one.
func TestChangesWithoutALossAdmitNoMore(t *testing.T) {
	soak.SkipUnderRace(t)
	r := rand.New(rand.NewPCG(1, 2))
	periods := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 5 * time.Second}
	window := func(algorithm string) string {
		text := fmt.Sprintf("{ id: a, algorithm: %s, threshold: %d, period: %s", algorithm, 1+r.IntN(12),
			periods[r.IntN(len(periods))])
		if algorithm == "sliding_buckets" {
			text += fmt.Sprintf(", buckets: %d", 1+r.IntN(6))
		}
		return text + " }"
	}
	kinds := map[string]func() string{
		"token_bucket": func() string {
			text := fmt.Sprintf("{ id: a, algorithm: token_bucket, rate: %d, period: %s", 1+r.IntN(12),
				periods[r.IntN(len(periods))])
			if r.IntN(2) == 0 {
				text += fmt.Sprintf(", burst: %d", 1+r.IntN(20))
			}
			return text + " }"
		},
		"leaky_bucket": func() string {
			return fmt.Sprintf("{ id: a, algorithm: leaky_bucket, rate: %d, period: %s }", 1+r.IntN(12),
				periods[r.IntN(len(periods))])
		},
		"tiers": func() string {
			first, second := r.IntN(len(periods)), r.IntN(len(periods)-1)
			if second >= first {
				second++
			}
			return fmt.Sprintf("{ id: a, tiers: [ { period: %s, threshold: %d }, { period: %s, threshold: %d } ] }",
				periods[first], 1+r.IntN(12), periods[second], 1+r.IntN(12))
		},
	}
	for _, a := range []string{"fixed_window", "sliding_window", "sliding_buckets", "sliding_log"} {
		kinds[a] = func() string { return window(a) }
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) { // sorted, so that each run tries the same changes
		changed := 0
		for quiet := 0; quiet < 15; {
			one, two := kinds[kind](), kinds[kind]()
			before, after := setOf(t, one), setOf(t, two)
			if len(Losses(before, after)) > 0 {
				continue
			}
			quiet++
			was, is := mostAdmitted(t, before), mostAdmitted(t, after)
			for i := range was {
				if is[i] > was[i] {
					t.Errorf("%s\n→ %s\nhas no losses by Losses, but admits %d within %d steps instead of %d", one, two,
						is[i], i, was[i])
					break
				}
			}
			if was != is {
				changed++
			}
		}
		if changed < 6 {
			t.Errorf("%s: only %d changes without a loss change anything", kind, changed)
		}
	}
}

// mostAdmitted returns how many requests a limit can admit within each number of steps of half a second, if it is asked
// without a pause, over all times to begin.
func mostAdmitted(t *testing.T, set *Set) (sums [24]int) {
	t.Helper()
	const step = time.Second / 2
	var d limit.Decision
	for begin := range 30 * time.Second / step { // after 30 s all windows begin together, as they do at 0
		store := memorytest.New(t)
		q := limit.Request{Owner: limit.Owner{Name: "acme"},
			Charges: []limit.Charge{{Limit: set.Limits[0].Limit, Cost: 1}}}
		admitted := 0
		for i := range sums {
			for d.Allowed = true; d.Allowed; {
				if err := store.Decide(t.Context(), &q, time.Unix(3_000_000, 0).Add((begin+time.Duration(i))*step),
					&d); err != nil {
					t.Fatal(err)
				}
				if d.Allowed {
					admitted++
				}
			}
			sums[i] = max(sums[i], admitted)
		}
	}
	return sums
}
