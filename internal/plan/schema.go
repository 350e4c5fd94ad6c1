package plan

import (
	"maps"
	"slices"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// The keys of each mapping of a plans file. docs/plans.md describes them; a test compares the two.
var (
	topSchema = &schema{
		What: "a plans file",
		Keys: []string{"plans", "tenants", "ipLimits", "ipv6Prefix", "anonymousPlan", "routes", "keys", "slas"},
	}
	settingsSchema = &schema{What: "settings", Keys: []string{"ipLimits", "ipv6Prefix", "anonymousPlan", "routes"}}

	planSchema  = &schema{What: "a plan", Keys: []string{"id", "caseInsensitive", "impliesHead", "limits"}}
	limitSchema = &schema{
		What: "a limit",
		Keys: append([]string{"id", "per", "match", "group", "algorithm", "rate", "threshold", "period", "burst",
			"buckets", "tiers", "quota", "concurrency", "holdFor"}, policyKeys(func(*policy) bool { return true })...),
		Refused: map[string]string{
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
		What: "a limit of ipLimits",
		Keys: withoutKeys(limitSchema.Keys,
			append(policyKeys(func(p *policy) bool { return p.perValue || p.perPlan }), "per", "concurrency",
				"holdFor")...),
		Refused: refusedInIPLimits(),
	}
	slaSchema   = &schema{What: "an SLA", Keys: []string{"id", "enabled", "match", "tiers"}}
	matchSchema = &schema{
		What: "a match",
		Keys: []string{"methods", "pathPattern", "caseInsensitive", "impliesHead"},
	}
	routeSchema  = &schema{What: "a route", Keys: []string{"methods", "pathPattern"}}
	tierSchema   = &schema{What: "a tier", Keys: []string{"period", "threshold"}}
	quotaSchema  = &schema{What: "a quota", Keys: []string{"units", "every", "timezone", "anchorDay", "anchorMonth"}}
	costSchema   = &schema{What: "a cost", Keys: []string{"trustedHeader", "max", "default"}}
	tenantSchema = &schema{
		What: "a tenant",
		Keys: []string{"id", "plan", "suspended", "overrides", "boosts", "cells"},
	}
	overrideSchema = &schema{
		What: "an override",
		Keys: append([]string{"id", "rate", "threshold", "burst", "tiers", "quota", "concurrency"},
			policyKeys(func(p *policy) bool { return p.overridable })...),
		Refused: refusedInOverride(),
	}
	quotaOverrideSchema = &schema{
		What:    "an override's quota",
		Keys:    []string{"units"},
		Refused: refused(changesIdentity, "every", "timezone", "anchorDay", "anchorMonth"),
	}
	boostSchema = &schema{What: "a boost", Keys: []string{"id", "factor", "from", "until"}}
	keySchema   = &schema{
		What: "a key",
		Keys: []string{"id", "tenant", "subject", "hash", "pepper", "expires", "revoked"},
	}

	limitSchemas = [...]*schema{planLimit: limitSchema, ipLimit: ipLimitSchema, slaLimit: slaSchema}
)

const (
	changesIdentity = "an override changes numbers, mode, onStoreFailure, cost and maxValues, not what a limit is: " +
		"make another limit"
	ipOnly = "ipLimits have one counter for each address: leave it out"
)

func withoutKeys(keys []string, not ...string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return slices.Contains(not, k) })
}

// refused gives keys the same answer.
func refused(why string, keys ...string) map[string]string {
	out := make(map[string]string, len(keys))
	for _, k := range keys {
		out[k] = why
	}
	return out
}

func refusedInIPLimits() map[string]string {
	out := refused(ipOnly, append(policyKeys(func(p *policy) bool { return p.perValue }), "per")...)
	maps.Copy(out, refused("ipLimits count requests: write the limit in a plan",
		append(policyKeys(func(p *policy) bool { return p.perPlan }), "concurrency", "holdFor")...))
	return out
}

func refusedInOverride() map[string]string {
	out := refused(changesIdentity, "per", "match", "group", "algorithm", "period", "buckets", "holdFor")
	for _, key := range policyKeys(func(p *policy) bool { return !p.overridable }) {
		out[key] = changesIdentity
	}
	out["units"] = "write it inside quota: {units}"
	return out
}

func isList(v value) bool    { return v.Node.Kind == configfile.List }
func isMapping(v value) bool { return v.Node.Kind == configfile.Mapping }
