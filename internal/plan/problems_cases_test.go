package plan_test

import "strings"

type problemCase struct {
	name, text string // ▸ stands before each place that is reported
}

func problemCases(ok string) []problemCase {
	var all []problemCase
	for _, cases := range [][]problemCase{
		syntaxCases(ok), shapeCases(ok), limitCases(), tenantCases(), groupCases(), otherCases(ok),
	} {
		all = append(all, cases...)
	}
	return all
}

func syntaxCases(ok string) []problemCase {
	return []problemCase{
		{"indent", "plans:\n  - id: a\n   ▸limits: x\n"},
		{"tab", "plans:\n▸\t- id: a\n"},
		{"tab below an item", "plans:\n  - id: a\n▸\tlimits: []\n"},
		{"tab after spaces", "plans:\n  - id: a\n  ▸\tlimits: []\n"},
		{"open quote", "plans:\n  ▸- id: 'a\n    limits: x\n"},
		{"open list at the end", "plans: [ {id: a, \n\n  ▸b: c ]\n"},
		{"open mapping in a list", "plans:\n- id: p\n  limits:\n  - id: x\n    ▸tiers: [ { period: 1s, threshold: " +
			"20 }, { period: 10s, threshold: 100 ]\n  foo: bar\n"},
		{"two colons", "▸a: b: c\n"},
		{"unknown alias", "plans: ▸*x\n"},
		{"bad escape", "plans:\n▸- id: \"\\q\"\n"},
		{"not UTF-8", "plans: # é▸\xff\n"},
		{"control character", "plans: ▸\x01\n"},
		{"UTF-16", "plans: ▸\xff\xfep\x00"},
		{"empty", "▸"},
		{"comment only", "▸# nothing\n"},
		{"null", "▸~\n"},
		{"second document", ok + "---\n▸plans: []\n"},
		{"directive", "▸%YAML 1.2\n---\nplans: []\n"},
		{"too deep", "▸" + strings.Repeat("[", 20000)},
		{"json", `{"plans": [{"id": "p", "limits": [{"id": "a", "tiers": [{"period": "1s", "threshold": ▸"5"}]}]}]}`},
	}
}

func shapeCases(ok string) []problemCase {
	return []problemCase{
		{"root is a list", "▸- a\n"},
		{"root is a string", "▸hello\n"},
		{"unknown key", "▸tenant: []\n▸zzz: 1\n"},
		{"plans misspelt", "▸plan: [{id: p, limits: []}]\ntenants: [{id: t, plan: p}]\nanonymousPlan: p\n"},
		{"tenants misspelt", ok + "▸tenats: [{id: t, plan: p}]\nkeys: [{id: k, tenant: t, hash: " +
			strings.Repeat("ab", 32) + ", pepper: dev}]\n"},
		{"limits misspelt", "plans: [{id: p, ▸limit: []}]\n"},
		{"file of another command", "▸domain: api\ndescriptors: []\n"},
		{"descriptors alone", "# of Envoy\n▸descriptors: []\n"},
		{"plans and a domain", ok + "▸domain: api\n"},
		{"key is a list", "? ▸[a]\n: b\n"},
		{"duplicate key", ok + "▸plans: []\n"},
		{"merge key", "plans:\n- ▸<<: {id: p}\n  id: p\n  limits: []\n"},
		{"plans is nothing", "plans:▸\n"},
		{"plan is a string", "plans: [▸p]\n"},
		{"limits is a mapping", "plans:\n- id: p\n  limits: ▸{id: a}\n"},
		{"plan lacks all", "plans:\n- ▸▸{}\n"},
		{"id is a number", "plans:\n- id: ▸12\n  limits: []\n"},
		{"id is bad", "plans:\n- id: ▸a b\n  limits: []\n"},
		{"alias shares a mistake", "plans:\n- id: p\n  limits:\n  - {id: a, tiers: &t [{period: ▸0, threshold: " +
			"1}]}\n  - {id: b, tiers: *t}\n"},
		{"file-wide order", "plans:\n- id: p\n  limits:\n  - {id: a, ▸modes: off, algorithm: ▸x, rate: ▸-1, period: " +
			"▸0s}\n- id: ▸p\n  limits: ▸5\n"},
	}
}

func limitCases() []problemCase {
	cases := []problemCase{
		{"no form", "plans:\n- id: p\n  limits:\n  - ▸{id: a}\n"},
		{"concurrency without holdFor", "plans:\n- id: p\n  limits:\n  - ▸{id: a, concurrency: 8}\n"},
		{"two forms", planWithLimit("algorithm: ▸token_bucket, rate: ▸1, tiers: ▸[{period: 1s, threshold: 1}], " +
			"quota: {units: 1, every: day}")},
	}
	for _, c := range []struct{ name, text string }{
		{"unknown key near", "tiers: [{period: 1s, threshold: 1}], ▸onStoreFail: open"},
		{"holdFor without concurrency", "tiers: [{period: 1s, threshold: 1}], holdFor: ▸30s"},
		{"concurrency beside others", "concurrency: 8, holdFor: 30s, unit: ▸tokens, cost: ▸5, exact: ▸true, " +
			"period: ▸1s"},
		{"concurrency out of range", "concurrency: ▸0, holdFor: ▸500ms"},
		{"holdFor of two days", "concurrency: 8, holdFor: ▸48h"},
		{"unit of concurrency", "unit: ▸concurrent-requests, cost: 1, tiers: [{period: 1s, threshold: 1}]"},
		{"unknown key of another place", "tiers: [{period: 1s, threshold: 1}], ▸pathPattern: /x"},
		{"unknown key in tier", "tiers: [{period: 1s, threshold: 1, ▸treshold: 2}]"},
		{"algorithm misspelt", "▸algorithn: token_bucket, rate: 1, period: 1s"},
		{"tiers misspelt", "▸tires: [{period: 1s, threshold: 1}]"},
		{"quota misspelt", "▸qouta: {units: 5, every: day}"},
		{"threshold of a tier misspelt", "tiers: [{period: 1s, ▸treshold: 1}]"},
		{"rate misspelt", "algorithm: token_bucket, ▸rat: 1, period: 1s"},
		{"tiers empty", "tiers: ▸[]"},
		{"tiers is a mapping", "tiers: ▸{period: 1s}"},
		{"too many tiers", "tiers: ▸[" + strings.Repeat("{period: 1s, threshold: 1}, ", 17) + "]"},
		{"equal tiers", "tiers: [{period: 1s, threshold: 1}, {period: ▸1000ms, threshold: 2}]"},
		{"threshold zero", "tiers: [{period: 1s, threshold: ▸0}]"},
		{"threshold negative", "tiers: [{period: 1s, threshold: ▸-5}]"},
		{"threshold fraction", "tiers: [{period: 1s, threshold: ▸1.5}]"},
		{"threshold exponent", "tiers: [{period: 1s, threshold: ▸1e6}]"},
		{"threshold octal", "tiers: [{period: 1s, threshold: ▸010}]"},
		{"threshold hexadecimal", "tiers: [{period: 1s, threshold: ▸0x10}]"},
		{"threshold string", "tiers: [{period: 1s, threshold: ▸\"10\"}]"},
		{"threshold past int64", "tiers: [{period: 1s, threshold: ▸9223372036854775808}]"},
		{"threshold past everything", "tiers: [{period: 1s, threshold: ▸99999999999999999999999999999999}]"},
		{"threshold past the bound", "tiers: [{period: 1s, threshold: ▸1099511627777}]"},
		{"threshold nothing", "tiers: [{period: 1s, threshold: ▸~}]"},
		{"threshold tagged", "tiers: [{period: 1s, threshold: ▸!mine 5}]"},
		{"period zero", "tiers: [{period: ▸0, threshold: 1}]"},
		{"period negative", "tiers: [{period: ▸-1s, threshold: 1}]"},
		{"period word", "tiers: [{period: ▸soon, threshold: 1}]"},
		{"period of days", "tiers: [{period: ▸1d, threshold: 1}]"},
		{"period fraction", "tiers: [{period: ▸1.5, threshold: 1}]"},
		{"period too fine", "tiers: [{period: ▸1500us, threshold: 1}]"},
		{"period too long", "tiers: [{period: ▸8785h, threshold: 1}]"},
		{"period too many seconds", "tiers: [{period: ▸99999999999, threshold: 1}]"},
		{"tiers of a bucket", "algorithm: ▸token_bucket, tiers: [{period: 1s, threshold: 1}]"},
		{"buckets elsewhere", "tiers: [{period: 1s, threshold: 1}], buckets: ▸4"},
		{"too many buckets", "algorithm: sliding_buckets, threshold: 5, period: 1s, buckets: ▸129"},
		{"algorithm unknown", "algorithm: ▸gcra, rate: 1, period: 1s"},
		{"algorithm near", "algorithm: ▸token-bucket, rate: 1, period: 1s"},
		{"algorithm quota", "algorithm: ▸quota, rate: 1, period: 1s"},
		{"rate of a window", "algorithm: fixed_window, rate: ▸1, period: 1s"},
		{"threshold of a bucket", "algorithm: token_bucket, rate: 1, threshold: ▸1, period: 1s"},
		{"burst of a window", "algorithm: fixed_window, threshold: 1, period: 1s, burst: ▸2"},
		{"log too long", "algorithm: sliding_log, threshold: ▸10001, period: 1s"},
		{"sliding too large", "algorithm: sliding_window, threshold: ▸4294967297, period: 1s"},
		{"burst overflows", "algorithm: token_bucket, rate: 7, period: 24h, burst: ▸100000000000"},
		{"leaky overflows", "algorithm: leaky_bucket, rate: ▸1099511627775, period: 8784h, cost: 1099511627775"},
		{"mode", "tiers: [{period: 1s, threshold: 1}], mode: ▸shadows"},
		{"mode is a boolean", "tiers: [{period: 1s, threshold: 1}], mode: ▸true"},
		{"onStoreFailure", "tiers: [{period: 1s, threshold: 1}], onStoreFailure: ▸panic"},
		{"align", "tiers: [{period: 1s, threshold: 1}], align: ▸owner"},
		{"exact", "tiers: [{period: 1s, threshold: 1}], exact: ▸yes"},
		{"maxValues", "tiers: [{period: 1s, threshold: 1}], maxValues: ▸1000001"},
		{"cost zero", "tiers: [{period: 1s, threshold: 1}], cost: ▸0"},
		{"cost without header", "tiers: [{period: 1s, threshold: 1}], cost: ▸{max: 5}"},
		{"cost header", "tiers: [{period: 1s, threshold: 1}], cost: {trustedHeader: ▸\"x y\", max: 5}"},
		{"cost default above max",
			"tiers: [{period: 1s, threshold: 1}], cost: {trustedHeader: x, max: 5, default: ▸6}"},
		{"cost of a header without default", "unit: tokens, tiers: [{period: 1s, threshold: 1}], " +
			"cost: ▸{trustedHeader: x, max: 5}"},
		{"cost default zero", "tiers: [{period: 1s, threshold: 1}], cost: ▸{default: 0}"},
		{"cost default zero of requests", "unit: requests, tiers: [{period: 1s, threshold: 1}], cost: ▸0"},
		{"cost negative", "unit: tokens, tiers: [{period: 1s, threshold: 1}], cost: {default: ▸-1}"},
		{"cost past the bound", "unit: tokens, tiers: [{period: 1s, threshold: 1}], cost: ▸1099511627777"},
		{"cost default past int64", "unit: tokens, tiers: [{period: 1s, threshold: 1}], " +
			"cost: {default: ▸9223372036854775808}"},
		{"cost max alone beside default", "unit: tokens, tiers: [{period: 1s, threshold: 1}], " +
			"cost: ▸{max: 5, default: 1}"},
		{"cost empty", "unit: tokens, tiers: [{period: 1s, threshold: 1}], cost: ▸▸{}"},
		{"unit without a cost", "unit: ▸tokens, tiers: [{period: 1s, threshold: 1}]"},
		{"unit in upper case", "unit: ▸Tokens, tiers: [{period: 1s, threshold: 1}], cost: 0"},
		{"unit long", "unit: ▸" + strings.Repeat("t", 1000) + ", tiers: [{period: 1s, threshold: 1}], cost: 0"},
		{"unit one too long", "unit: ▸" + strings.Repeat("t", 33) + ", tiers: [{period: 1s, threshold: 1}], cost: 0"},
		{"unit empty", "unit: ▸\"\", tiers: [{period: 1s, threshold: 1}], cost: 0"},
		{"unit of digits", "unit: ▸1k, tiers: [{period: 1s, threshold: 1}], cost: 0"},
		{"unit with a space", "unit: ▸input tokens, tiers: [{period: 1s, threshold: 1}], cost: 0"},
		{"unit is a list", "unit: ▸[tokens], tiers: [{period: 1s, threshold: 1}], cost: 0"},
		{"unit and cost bad", "unit: ▸Tokens, tiers: [{period: 1s, threshold: 1}], cost: ▸-1"},
		{"per unknown", "tiers: [{period: 1s, threshold: 1}], per: ▸user"},
		{"per empty", "tiers: [{period: 1s, threshold: 1}], per: ▸[]"},
		{"per twice", "tiers: [{period: 1s, threshold: 1}], per: [ip, ▸ip]"},
		{"per tenant in a list", "tiers: [{period: 1s, threshold: 1}], per: [ip, ▸tenant]"},
		{"per claim without name", "tiers: [{period: 1s, threshold: 1}], per: ▸\"claim:\""},
		{"per claim with a plus", "tiers: [{period: 1s, threshold: 1}], per: ▸\"claim:a+ip\""},
		{"methods empty", "tiers: [{period: 1s, threshold: 1}], match: {methods: ▸[]}"},
		{"method in lower case", "tiers: [{period: 1s, threshold: 1}], match: {methods: [GET, ▸put]}"},
		{"method twice", "tiers: [{period: 1s, threshold: 1}], match: {methods: [GET, ▸GET]}"},
		{"method unknown", "tiers: [{period: 1s, threshold: 1}], match: {methods: [▸ANY]}"},
		{"pattern", "tiers: [{period: 1s, threshold: 1}], match: {pathPattern: ▸\"/a/**/b\"}"},
		{"pattern without a slash", "tiers: [{period: 1s, threshold: 1}], match: {pathPattern: ▸product}"},
		{"quota every", "quota: {units: 5, every: ▸fortnight}"},
		{"quota without every", "quota: ▸{units: 5}"},
		{"quota zone", "quota: {units: 5, every: day, timezone: ▸Europe/Pari}"},
		{"quota zone local", "quota: {units: 5, every: day, timezone: ▸Local}"},
		{"quota zone outside", "quota: {units: 5, every: day, timezone: ▸../../etc/passwd}"},
		{"quota anchor of a day", "quota: {units: 5, every: day, anchorDay: ▸3}"},
		{"quota anchor", "quota: {units: 5, every: month, anchorDay: ▸32}"},
		{"quota anchor month", "quota: {units: 5, every: month, anchorMonth: ▸3}"},
		{"quota with period", "quota: {units: 5, every: month}, period: ▸1s"},
		{"group", "tiers: [{period: 1s, threshold: 1}], group: ▸a b"},
		{"tiers beside all others",
			"tiers: [{period: 1s, threshold: 1}], rate: ▸1, threshold: ▸2, period: ▸3s, burst: ▸4"},
		{"quota beside all others", "quota: {units: 5, every: day}, algorithm: ▸fixed_window, rate: ▸1, " +
			"threshold: ▸2, period: ▸3s, burst: ▸4, buckets: ▸5, tiers: ▸[{period: 1s, threshold: 1}], align: ▸clock"},
	} {
		cases = append(cases, problemCase{c.name, planWithLimit(c.text)})
	}
	return append(cases,
		problemCase{"period misspelt, and no rate", "plans:\n- id: p\n  limits:\n  - ▸{id: a, algorithm: " +
			"token_bucket, ▸peroid: 1s}\n"},
		problemCase{"single lacks all", "plans:\n- id: p\n  limits:\n  - ▸▸{id: a, algorithm: token_bucket}\n"},
		problemCase{"limit twice", "plans:\n- id: p\n  limits:\n  - {id: a, tiers: [{period: 1s, threshold: 1}]}\n  " +
			"- {id: ▸a, tiers: [{period: 2s, threshold: 1}]}\n"},
	)
}

func tenantCases() []problemCase {
	cases := []problemCase{
		{"override cost of concurrency", "plans: [{id: p, limits: [{id: a, concurrency: 8, holdFor: 30s}]}]\n" +
			"tenants: [{id: t, plan: p, overrides: [{id: a, cost: ▸5}]}]\n"},
		{"override makes the plan's burst impossible", "plans: [{id: p, limits: [{id: a, algorithm: token_bucket, " +
			"rate: 1000, period: 1s, burst: 100000000000}]}]\n" +
			"tenants: [{id: t, plan: p, overrides: [▸{id: a, rate: 1000003}]}]\n"},
		{"unknown plan", "plans: [{id: pro, limits: []}]\ntenants: [{id: t, plan: ▸por}]\n"},
		{"no plan", "tenants: [▸{id: t}, {id: u, plan: ▸x}]\n"},
		{"plan misspelt", "plans: [{id: pro, limits: []}]\ntenants: [{id: t, ▸plann: pro}]\n"},
		{"tenant twice", "plans: [{id: p, limits: []}]\ntenants: [{id: t, plan: p}, {id: ▸t, plan: p}]\n"},
		{"tenant id empty", "plans: [{id: p, limits: []}]\ntenants: [{id: ▸\"\", plan: p}]\n"},
		{"tenant id long", "plans: [{id: p, limits: []}]\ntenants: [{id: ▸" + strings.Repeat("é", 65) +
			", plan: p}]\n"},
		{"tenant id control", "plans: [{id: p, limits: []}]\ntenants: [{id: ▸\"a\\tb\", plan: p}]\n"},
		{"tenant id number", "plans: [{id: p, limits: []}]\ntenants: [{id: ▸42, plan: p}]\n"},
	}
	for _, c := range []struct{ name, text string }{
		{"suspended", "suspended: ▸1"},
		{"override concurrency of a bucket", "overrides: [{id: a, concurrency: ▸5}]"},
		{"override misspelt", "overrides: [{id: a, ▸rat: 5}]"},
		{"boost misspelt", "boosts: [{id: a, factor: 2, ▸unti: 2026-12-01T00:00:00Z}]"},
		{"override unknown limit", "overrides: [{id: ▸z, rate: 5}]"},
		{"override twice", "overrides: [{id: a, rate: 5}, {id: ▸a, rate: 6}]"},
		{"override nothing", "overrides: [▸{id: a}]"},
		{"override identity", "overrides: [{id: a, ▸period: 2s}]"},
		{"override unit", "overrides: [{id: a, rate: 5, ▸unit: tokens}]"},
		{"override cost zero of requests", "overrides: [{id: a, cost: ▸0}]"},
		{"override match", "overrides: [{id: a, rate: 5, ▸match: {}}]"},
		{"override threshold of a bucket", "overrides: [{id: a, threshold: ▸5}]"},
		{"override rate of tiers", "overrides: [{id: b, rate: ▸5}]"},
		{"override burst of tiers", "overrides: [{id: b, burst: ▸5}]"},
		{"override tiers of a bucket", "overrides: [{id: a, tiers: ▸[{period: 1s, threshold: 1}]}]"},
		{"override quota of a bucket", "overrides: [{id: a, quota: ▸{units: 5}}]"},
		{"override quota calendar", "overrides: [{id: c, quota: {units: 5, ▸every: day}}]"},
		{"override quota nothing", "overrides: [{id: c, quota: ▸{}}]"},
		{"override bad number", "overrides: [{id: a, rate: ▸0}]"},
		{"override burst too large", "overrides: [{id: a, rate: 1000003, burst: ▸4503599628}]"},
		{"override bad tiers",
			"overrides: [{id: b, tiers: [{period: 1s, threshold: 1}, {period: ▸1s, threshold: 1}]}]"},
		{"boost unknown limit", "boosts: [{id: ▸z, factor: 2, until: 2026-12-01T00:00:00Z}]"},
		{"boost twice", "boosts: [{id: a, factor: 2, until: 2026-12-01T00:00:00Z}, {id: ▸a, factor: 2, until: " +
			"2026-12-01T00:00:00Z}]"},
		{"boost of one", "boosts: [{id: a, factor: ▸1, until: 2026-12-01T00:00:00Z}]"},
		{"boost above", "boosts: [{id: a, factor: ▸100.001, until: 2026-12-01T00:00:00Z}]"},
		{"boost too fine", "boosts: [{id: a, factor: ▸1.0001, until: 2026-12-01T00:00:00Z}]"},
		{"boost negative", "boosts: [{id: a, factor: ▸-2, until: 2026-12-01T00:00:00Z}]"},
		{"boost string", "boosts: [{id: a, factor: ▸\"2\", until: 2026-12-01T00:00:00Z}]"},
		{"boost infinite", "boosts: [{id: a, factor: ▸.inf, until: 2026-12-01T00:00:00Z}]"},
		{"boost without end", "boosts: [▸{id: a, factor: 2}]"},
		{"boost ends on a date", "boosts: [{id: a, factor: 2, until: ▸2026-12-01}]"},
		{"boost ends before it begins", "boosts: [{id: a, factor: 2, from: 2026-12-02T00:00:00Z, until: " +
			"▸2026-12-01T00:00:00Z}]"},
		{"boost too long", "boosts: [{id: a, factor: 2, until: ▸2027-06-03T12:00:00Z}]"},
		{"boost too long from its start", "boosts: [{id: a, factor: 2, from: 2020-01-01T00:00:00Z, until: " +
			"▸2026-12-01T00:00:00Z}]"},
		{"boost overflows", "overrides: [{id: c, quota: {units: 1099511627776}}], boosts: [{id: c, factor: ▸2, " +
			"until: 2026-12-01T00:00:00Z}]"},
		{"cells", "cells: [eu-1, ▸eu-1, ▸a b]"},
	} {
		cases = append(cases, problemCase{c.name, tenant(c.text)})
	}
	return cases
}

// group returns a plans file with limits in one group, given by id and match.
func group(limits ...string) string {
	var b strings.Builder
	b.WriteString("plans:\n- id: p\n  limits:\n")
	for i, l := range limits {
		b.WriteString("  - {id: l" + string(rune('0'+i)) + ", group: g, tiers: [{period: 1s, threshold: 1}], " + l +
			"}\n")
	}
	return b.String()
}

func groupCases() []problemCase {
	return []problemCase{
		{"tie", group("match: {pathPattern: /a/*}", "match: {pathPattern: ▸\"/a/{x}\"}")},
		{"tie of methods", group("match: {methods: [GET, PUT], pathPattern: /a}",
			"match: {methods: [GET], pathPattern: ▸/a}")},
		{"tie of no match", "plans:\n- id: p\n  limits:\n  - {id: a, group: g, tiers: [{period: 1s, threshold: " +
			"1}]}\n  - ▸{id: b, group: g, tiers: [{period: 1s, threshold: 1}]}\n"},
		{"tie with a shadow", group("match: {pathPattern: /a/*}", "mode: shadow, match: {pathPattern: ▸\"/a/{x}\"}")},
		{"displaced by many", group("match: {pathPattern: ▸/a/**}", "match: {pathPattern: /a}",
			"match: {pathPattern: /a/*}", "match: {pathPattern: /a/*/**}")},
		{"displaced by methods", group("match: {methods: [GET, PUT], pathPattern: ▸/a/**}",
			"match: {methods: [GET], pathPattern: /a/*/**}",
			"match: {methods: [PUT], pathPattern: /a/*/**}", "match: {pathPattern: /a}")},
		{"unrouted", group("match: {pathPattern: /a/*}", "match: {pathPattern: ▸/b}", "match: {methods: ▸[PUT]}") +
			"routes: [{methods: [GET], pathPattern: /a/*}]\n"},
	}
}

func otherCases(ok string) []problemCase {
	hash := strings.Repeat("ab", 32)
	key := "tenants: [{id: t, plan: p}]\nkeys:\n- {id: k, tenant: t, hash: " + hash + ", pepper: dev}\n"
	return []problemCase{
		{"anonymousPlan", ok + "anonymousPlan: ▸q\n"},
		{"ipv6Prefix too short", ok + "ipv6Prefix: ▸31\n"},
		{"ipv6Prefix too long", ok + "ipv6Prefix: ▸129\n"},
		{"ipv6Prefix is no number", ok + "ipv6Prefix: ▸/64\n"},
		{"route twice", ok + "routes: [{pathPattern: /a}, ▸{pathPattern: /a/}]\n"},
		{"route of nothing", ok + "routes: [▸{}]\n"},
		{"ipLimits per", ok + "ipLimits: [{id: a, ▸per: tenant, tiers: [{period: 1s, threshold: 1}]}]\n"},
		{"ipLimits unit", ok + "ipLimits: [{id: a, ▸unit: bytes, cost: 1, tiers: [{period: 1s, threshold: 1}]}]\n"},
		{"ipLimits twice", ok + "ipLimits: [{id: a, tiers: [{period: 1s, threshold: 1}]}, {id: ▸a, tiers: [{period: " +
			"1s, threshold: 1}]}]\n"},
		{"key twice", ok + key + "- {id: ▸k, tenant: t, hash: ▸" + hash + ", pepper: dev}\n"},
		{"key lacks all", ok + "keys: [▸▸▸▸{}]\n"},
		{"key tenant", ok + "keys: [{id: k, tenant: ▸x, hash: " + hash + ", pepper: dev}]\n"},
		{"key hash", ok + "keys: [{id: k, tenant: ▸x, hash: ▸" + strings.ToUpper(hash) +
			", pepper: dev, subject: ▸\"\", expires: ▸soon, revoked: ▸no}]\n"},
		{"sla", "slas: [{id: a, enabled: ▸1, tiers: [{period: 10, threshold: ▸0}], ▸mode: off}]\n"},
		{"sla and plan slas",
			"plans: [{id: slas, limits: []}]\nslas: ▸[{id: a, tiers: [{period: 10, threshold: 5}]}]\n"},
	}
}
