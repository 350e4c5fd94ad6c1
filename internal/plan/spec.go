package plan

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// form says which of the four ways to write a limit's counting is used.
type form uint8

const (
	formNone   form = iota
	formSingle      // algorithm, rate or threshold, period
	formTiers       // tiers
	formQuota       // quota
	formPlaces      // concurrency, holdFor
)

var formNames = [...]string{"", "algorithm", "tiers", "quota", "concurrency"}

// spec is a limit as written, with the place of each setting. Overrides replace settings in a copy.
type spec struct {
	in   list
	from place
	form form
	match
	id        field[string]
	per       field[per]
	group     field[string]
	algorithm field[limit.Algorithm]
	buckets   field[int]
	tiersAt   place
	tiers     []tierSpec // exactly one for formSingle, formQuota and formPlaces
	mode      field[limit.Mode]
	onFailure field[limit.FailurePolicy]
	unit      field[string]
	cost      field[CostRule]
	align     field[bool] // true: periods begin at a time that depends on the tenant
	exact     field[bool]
	maxValues field[int]
}

// tierSpec is one tier of a spec.
type tierSpec struct {
	from        place
	amount      field[int64]         // rate, threshold, units or concurrency
	period      field[time.Duration] // or holdFor
	burst       field[int64]
	every       field[limit.Every]
	timezone    field[*time.Location]
	anchorDay   field[int]
	anchorMonth field[int]
}

// list says which list a limit is in.
type list uint8

const (
	planLimit list = iota
	ipLimit
	slaLimit
)

const (
	idGrammar = "1 to 64 of A-Z a-z 0-9 . _ -"

	ipOnly     = "ipLimits have one counter for each address: leave it out"
	ipRequests = "ipLimits count requests: write the limit in a plan"
)

func amountOf(s *spec) *field[int64] { return &s.tiers[0].amount }

// limitKeys declares the keys of a limit. A new key whose value means the same in all ways of counting needs an entry
// here, a field of [spec] and one of [limit.Limit]; go test -update writes its rows in docs/plans.md.
var limitKeys = mappingOf("a limit", map[string]string{
	"methods":     "write it inside match: {methods: […]}",
	"pathPattern": "write it inside match: {pathPattern: …}",

	"caseInsensitive": "write it inside match: {caseInsensitive: …}, or beside the limits for all of the plan",
	"impliesHead":     "write it inside match: {impliesHead: …}, or beside the limits for all of the plan",

	"units":    "write it inside quota: {units, every}",
	"every":    "write it inside quota: {units, every}",
	"timezone": "write it inside quota: {units, every, timezone}",
	"enabled":  "a limit has mode: enforce, shadow or off",
},
	bind(key[spec]{name: "id", need: idGrammar, doc: "unique in the plan", byForm: true,
		into: func(s *spec, l *limit.Limit) { l.ID = s.id.v },
	}, idKind, func(s *spec) *field[string] { return &s.id }),
	bind(key[spec]{name: "per", usual: "`tenant`", doc: "what has a counter of its own, see below", notInIP: ipOnly,
		into: func(s *spec, l *limit.Limit) { l.Per = s.per.v.text },
		text: func(e *Effective) string { return e.spec.perText() },
	}, kind[per]{"word or list", (*reader).per}, func(s *spec) *field[per] { return &s.per }),
	key[spec]{name: "match", kind: "mapping", usual: "every request", doc: "which requests, see below",
		list: (*lister).match},
	bind(key[spec]{name: "group", usual: "none", doc: "limits of a group are alternatives, see below",
		text: func(e *Effective) string { return e.spec.group.v },
	}, idKind, func(s *spec) *field[string] { return &s.group }),
	bind(key[spec]{name: "algorithm", usual: "see below", doc: "how it counts", byForm: true, list: (*lister).tiers},
		kind[limit.Algorithm]{"word", (*reader).algorithm},
		func(s *spec) *field[limit.Algorithm] { return &s.algorithm }),
	bind(key[spec]{name: "rate", usual: "see below", need: "units per period", byForm: true,
		doc: "buckets: units per period", override: "`rate`"}, unitsKind, amountOf),
	bind(key[spec]{name: "threshold", usual: "see below", need: "units per period", byForm: true,
		doc: "windows: most units in a period", override: "`threshold`"}, unitsKind, amountOf),
	bind(key[spec]{name: "period", usual: "see below", need: "a duration such as 1s", byForm: true,
		doc: "of a bucket or window"}, durationKind, func(s *spec) *field[time.Duration] { return &s.tiers[0].period }),
	bind(key[spec]{name: "burst", usual: "`rate`", doc: "`token_bucket`: most units it can hold", byForm: true,
		override: "`token_bucket`"}, unitsKind, func(s *spec) *field[int64] { return &s.tiers[0].burst }),
	bind(key[spec]{name: "buckets", usual: strconv.Itoa(limit.DefaultBuckets), byForm: true,
		doc: "`sliding_buckets`: into how many a period is divided",
		text: func(e *Effective) string {
			if !e.spec.algorithm.v.HasBuckets() || e.spec.form == formPlaces {
				return ""
			}
			return strconv.Itoa(e.Limit.Tiers[0].Buckets)
		}}, between(1, limit.MaxBuckets), func(s *spec) *field[int] { return &s.buckets }),
	key[spec]{name: "tiers", kind: "list of tiers", usual: "see below", doc: "several windows, all of which must admit",
		override: "`tiers`: replaces the whole list"},
	key[spec]{name: "quota", kind: "mapping", usual: "see below", doc: "a calendar period",
		override: "`quota`: only `units`"},
	bind(key[spec]{name: "concurrency", usual: "see below", need: "requests in flight", byForm: true,
		doc: "most requests in flight, see [concurrency](#concurrency)", override: "`concurrency`",
		notInIP: ipRequests}, unitsKind, amountOf),
	bind(key[spec]{name: "holdFor", usual: "required beside `concurrency`", byForm: true,
		doc:  "how long a request counts whose end nobody reports",
		need: "how long a request counts whose end nobody reports, such as 30s", notInIP: ipRequests},
		kind[time.Duration]{"duration, 1s to 24h", (*reader).hold},
		func(s *spec) *field[time.Duration] { return &s.tiers[0].period }),
	bind(key[spec]{name: "align", usual: "`clock`",
		doc: "fixed and sliding windows begin with the wall clock, or shifted by a hash of the tenant, so that not " +
			"all reset at once. If `align` is changed, what was consumed stays counted ([accuracy](accuracy.md))",
		into:  func(s *spec, l *limit.Limit) { l.AlignOwner = s.align.v },
		text:  func(e *Effective) string { return map[bool]string{true: "tenant", false: "clock"}[e.spec.align.v] },
		ifSet: true,
	}, oneOf(func(w string) (bool, bool) { return w == "tenant", w == "tenant" || w == "clock" }, "tenant", "clock"),
		func(s *spec) *field[bool] { return &s.align }),
	bind(key[spec]{name: "mode", usual: "`enforce`", override: "any",
		doc: "a limit in `shadow` has counters of its own and only reports what it would deny; a limit that is `off` " +
			"is ignored",
		into: func(s *spec, l *limit.Limit) { l.Mode = s.mode.v },
		text: func(e *Effective) string { return e.Limit.Mode.String() },
	}, oneOf(limit.ParseMode, "enforce", "shadow", "off"), func(s *spec) *field[limit.Mode] { return &s.mode }),
	bind(key[spec]{name: "onStoreFailure", usual: "`backstop`", override: "any",
		doc:  "while the counters cannot be reached: a local bucket, admit, or deny",
		into: func(s *spec, l *limit.Limit) { l.OnStoreFailure = s.onFailure.v },
		text: func(e *Effective) string { return e.Limit.OnStoreFailure.String() },
		loss: func(old, now *limit.Limit) string {
			if strictness(now.OnStoreFailure) >= strictness(old.OnStoreFailure) {
				return ""
			}
			return fmt.Sprintf("onStoreFailure goes from %s to %s", old.OnStoreFailure, now.OnStoreFailure)
		},
	}, oneOf(limit.ParseFailurePolicy, "backstop", "open", "closed"),
		func(s *spec) *field[limit.FailurePolicy] { return &s.onFailure }),
	bind(key[spec]{name: "unit", kind: "1 to 32 of `a-z 0-9 -`, beginning with a letter", usual: "`requests`",
		doc: "what the limit counts, see [unit](#unit)", notInIP: ipRequests,
		into: func(s *spec, l *limit.Limit) { l.Unit = s.unitName() },
		text: func(e *Effective) string { return e.Limit.Unit }, ifSet: true,
	}, kind[string]{read: (*reader).unit}, func(s *spec) *field[string] { return &s.unit }),
	bind(key[spec]{name: "cost", kind: "units or mapping", usual: "1", doc: "what a request spends, see [cost](#cost)",
		override: "any but `concurrency`",
		into:     func(s *spec, l *limit.Limit) { l.MaxCost = s.cost.v.Max },
		text: func(e *Effective) string {
			if e.spec.form == formPlaces {
				return "" // each request is one
			}
			return e.Cost.String() + e.Limit.UnitSuffix()
		},
	}, kind[CostRule]{read: (*reader).cost}, func(s *spec) *field[CostRule] { return &s.cost }),
	bind(key[spec]{name: "exact", usual: "false",
		doc:  "true: each request is counted in the store, never from a lease",
		into: func(s *spec, l *limit.Limit) { l.Exact = s.exact.v },
		text: func(e *Effective) string { return strconv.FormatBool(e.spec.exact.v) }, ifSet: true,
		loss: func(old, now *limit.Limit) string {
			if !old.Exact || now.Exact {
				return ""
			}
			return "exact goes from true to false, so it may be counted from leases"
		},
	}, booleanKind, func(s *spec) *field[bool] { return &s.exact }),
	bind(key[spec]{name: "maxValues", usual: "10,000", override: "any", notInIP: ipOnly,
		doc: "how many values of `per` have a counter of their own, for each tenant. All other values share one " +
			"counter; under the `anonymousPlan` they share 64",
		into: func(s *spec, l *limit.Limit) { l.MaxValues = s.maxValues.v },
		text: func(e *Effective) string {
			if e.Limit.Per == limit.PerTenant {
				return ""
			}
			return strconv.Itoa(e.Limit.MaxValues)
		},
		loss: func(old, now *limit.Limit) string {
			if old.Per == limit.PerTenant || now.Per == limit.PerTenant || now.MaxValues <= old.MaxValues {
				return ""
			}
			return fmt.Sprintf("maxValues rises from %d to %d", old.MaxValues, now.MaxValues)
		},
	}, between(1, 1_000_000), func(s *spec) *field[int] { return &s.maxValues }),
)

// limitLists are the keys of the limits in each list.
var limitLists = [...]*mapping[spec]{planLimit: limitKeys, ipLimit: ipLimitKeys(), slaLimit: slaKeys}

// ipLimitKeys are the keys of a limit without those that ipLimits refuse.
func ipLimitKeys() *mapping[spec] {
	var keys []key[spec]
	refused := map[string]string{}
	for _, k := range limitKeys.keys {
		if k.notInIP != "" {
			refused[k.name] = k.notInIP
		} else {
			keys = append(keys, *k)
		}
	}
	return mappingOf("a limit of ipLimits", refused, keys...)
}

// limit reads one limit of a plan, of ipLimits or of slas. It returns false if the value is not a mapping. The options
// apply where the limit's match does not set them.
func (r *reader) limit(v value, in list, layer string, options routeOptions) (*spec, bool) {
	s := &spec{in: in, from: placeOf(v, layer)}
	s.tiers = []tierSpec{{from: s.from}}
	o, ok := r.Object(v, &limitLists[in].schema)
	if !ok {
		return nil, false
	}
	s.match = r.matchOf(o, layer, options)
	if in != slaLimit {
		r.formOf(o, s, layer)
	}
	limitLists[in].take(r, o, s, layer)
	if in != slaLimit {
		return s, true
	}
	// An SLA stands for fixed windows for each endpoint.
	s.per = field[per]{v: per{"endpoint", []part{{kind: perEndpoint}}}, set: true, from: s.from}
	s.form, s.algorithm.v = formTiers, limit.FixedWindow
	s.tiers = nil
	if v, ok := r.Required(o, "tiers", "a list of {period, threshold}"); ok {
		s.tiers, s.tiersAt = r.tiers(v, layer), placeOf(v, layer)
	}
	return s, true
}
