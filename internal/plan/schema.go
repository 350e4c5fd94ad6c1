package plan

import "go.yaml.in/yaml/v3"

// The keys of each mapping of a plans file. docs/plans.md describes them; a test holds the two together.
var (
	topSchema = &schema{
		what: "a plans file",
		keys: []string{"plans", "tenants", "ipLimits", "ipv6Prefix", "anonymousPlan", "routes", "keys", "slas"},
	}
	settingsSchema = &schema{what: "settings", keys: []string{"ipLimits", "ipv6Prefix", "anonymousPlan", "routes"}}

	planSchema  = &schema{what: "a plan", keys: []string{"id", "caseInsensitive", "impliesHead", "limits"}}
	limitSchema = &schema{
		what: "a limit",
		keys: []string{"id", "per", "match", "group", "algorithm", "rate", "threshold", "period", "burst", "buckets", "tiers",
			"quota", "align", "mode", "onStoreFailure", "cost", "exact", "maxValues"},
		refused: map[string]string{
			"methods":     "write it inside match: {methods: […]}",
			"pathPattern": "write it inside match: {pathPattern: …}",

			"caseInsensitive": "write it inside match: {caseInsensitive: …}, or beside the limits for all of the plan",
			"impliesHead":     "write it inside match: {impliesHead: …}, or beside the limits for all of the plan",

			"units":    "write it inside quota: {units, every}",
			"every":    "write it inside quota: {units, every}",
			"timezone": "write it inside quota: {units, every, timezone}",
			"enabled":  "a limit has mode: enforce, shadow or off",
		},
	}
	ipLimitSchema = &schema{
		what:    "a limit of ipLimits",
		keys:    without(limitSchema.keys, "per", "maxValues"),
		refused: map[string]string{"per": ipOnly, "maxValues": ipOnly},
	}
	slaSchema      = &schema{what: "an SLA", keys: []string{"id", "enabled", "match", "tiers"}}
	matchSchema    = &schema{what: "a match", keys: []string{"methods", "pathPattern", "caseInsensitive", "impliesHead"}}
	routeSchema    = &schema{what: "a route", keys: []string{"methods", "pathPattern"}}
	tierSchema     = &schema{what: "a tier", keys: []string{"period", "threshold"}}
	quotaSchema    = &schema{what: "a quota", keys: []string{"units", "every", "timezone", "anchorDay", "anchorMonth"}}
	costSchema     = &schema{what: "a cost", keys: []string{"trustedHeader", "max", "default"}}
	tenantSchema   = &schema{what: "a tenant", keys: []string{"id", "plan", "suspended", "overrides", "boosts", "cells"}}
	overrideSchema = &schema{
		what: "an override",
		keys: []string{"id", "rate", "threshold", "burst", "tiers", "quota", "mode", "onStoreFailure", "cost", "maxValues"},
		refused: map[string]string{
			"per": identity, "match": identity, "group": identity, "algorithm": identity, "period": identity,
			"buckets": identity, "align": identity, "exact": identity,
			"units": "write it inside quota: {units}",
		},
	}
	quotaOverrideSchema = &schema{
		what: "an override's quota",
		keys: []string{"units"},
		refused: map[string]string{
			"every": identity, "timezone": identity, "anchorDay": identity, "anchorMonth": identity,
		},
	}
	boostSchema = &schema{what: "a boost", keys: []string{"id", "factor", "from", "until"}}
	keySchema   = &schema{what: "a key", keys: []string{"id", "tenant", "subject", "hash", "pepper", "expires", "revoked"}}

	limitSchemas = [...]*schema{planLimit: limitSchema, ipLimit: ipLimitSchema, slaLimit: slaSchema}
)

const (
	identity = "an override changes numbers, mode, onStoreFailure, cost and maxValues, not what a limit is: make another limit"
	ipOnly   = "ipLimits have one counter for each address: leave it out"
)

func without(keys []string, not ...string) []string {
	var out []string
next:
	for _, k := range keys {
		for _, n := range not {
			if k == n {
				continue next
			}
		}
		out = append(out, k)
	}
	return out
}

func isList(v value) bool    { return v.node.Kind == yaml.SequenceNode }
func isMapping(v value) bool { return v.node.Kind == yaml.MappingNode }
