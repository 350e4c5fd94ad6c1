package plan

import (
	"slices"
	"strconv"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// The mappings whose values are lists, or are read elsewhere.
var (
	settingKeys = []key[rawConfig]{
		{name: "ipLimits", kind: "list of limits", usual: "none",
			doc: "limits for each source address, before authentication"},
		{name: "ipv6Prefix", kind: ipv6Prefix.text, usual: strconv.Itoa(DefaultIPv6Prefix),
			doc: "how many bits of an IPv6 address name its counters: all addresses of such a network are counted as " +
				"one, see [ipLimits](#iplimits). The key may stand in one file only"},
		{name: "anonymousPlan", kind: "id of a plan", usual: "none",
			doc: "calls without a credential get this plan instead of a 401. If there is neither an API key nor an " +
				"issuer of JWTs, all calls get it. The key may stand in one file only"},
		{name: "routes", kind: "list of routes", usual: "every request",
			doc: "a path is answered with 404 unless each reading of it is a declared route, see [routes](#routes)"},
	}
	settingsKeys = mappingOf("settings", nil, settingKeys...)
	topKeys      = mappingOf("a plans file", nil, slices.Concat([]key[rawConfig]{
		{name: "plans", kind: "list of plans", usual: "none", doc: "named lists of limits"},
		{name: "tenants", kind: "list of tenants", usual: "none", doc: "who has which plan"},
	}, settingKeys, []key[rawConfig]{
		{name: "keys", kind: "list of keys", usual: "none",
			doc: "API keys, for local use; deployed, they are a table"},
		{name: "slas", kind: "list of SLAs", usual: "none", doc: "the SLA form, see below"},
	})...)

	planKeys = mappingOf("a plan", nil,
		bind(key[rawPlan]{name: "id", need: idGrammar, doc: "unique over all files"}, idKind,
			func(p *rawPlan) *field[string] { return &p.id }),
		bind(key[rawPlan]{name: "caseInsensitive", usual: "false",
			doc: "the default for each `match` of the plan, see [match](#match)"}, booleanKind,
			func(p *rawPlan) *field[bool] { return &p.caseInsensitive }),
		bind(key[rawPlan]{name: "impliesHead", usual: "false",
			doc: "the default for each `match` of the plan, see [match](#match)"}, booleanKind,
			func(p *rawPlan) *field[bool] { return &p.impliesHead }),
		key[rawPlan]{name: "limits", kind: "list of limits", usual: "required",
			doc: "at most 2,000; `[]` is a plan without limits"},
	)
	slaKeys = mappingOf("an SLA", nil,
		bind(key[spec]{name: "id", need: idGrammar, doc: "unique among the SLAs"}, idKind,
			func(s *spec) *field[string] { return &s.id }),
		bind(key[spec]{name: "enabled", usual: "true", doc: "false is `mode: off`"},
			kind[limit.Mode]{booleanKind.text, (*reader).enabled}, func(s *spec) *field[limit.Mode] { return &s.mode }),
		key[spec]{name: "match", kind: "mapping", usual: "every request", doc: "as above"},
		key[spec]{name: "tiers", kind: "list of tiers", usual: "required",
			doc: "`period` is in seconds when it is a bare number"},
	)
	keyKeys = mappingOf("a key", nil,
		bind(key[rawKey]{name: "id", need: idGrammar, doc: "unique"}, idKind,
			func(k *rawKey) *field[string] { return &k.id }),
		bind(key[rawKey]{name: "tenant", kind: "id of a tenant", need: "the id of a tenant"}, tenantKind,
			func(k *rawKey) *field[string] { return &k.tenant }),
		bind(key[rawKey]{name: "subject", usual: "none", doc: "who acts inside the tenant"}, named("subject"),
			func(k *rawKey) *field[string] { return &k.subject }),
		bind(key[rawKey]{name: "hash", kind: "64 hex digits in lower case",
			need: "64 hex digits, as sluice key prints them",
			doc:  "HMAC-SHA256 of the key under the pepper; the key itself is never stored"},
			kind[string]{read: (*reader).hash}, func(k *rawKey) *field[string] { return &k.hash }),
		bind(key[rawKey]{name: "pepper", need: "the id of the pepper that made the hash",
			doc: "which pepper made the hash"}, idKind, func(k *rawKey) *field[string] { return &k.pepper }),
		bind(key[rawKey]{name: "expires", usual: "never", doc: "from when on the key is refused"}, instantKind,
			func(k *rawKey) *field[time.Time] { return &k.expires }),
		bind(key[rawKey]{name: "revoked", usual: "false", doc: "the key is refused"}, booleanKind,
			func(k *rawKey) *field[bool] { return &k.revoked }),
	)
)

// enabled reads the mode of an SLA.
func (r *reader) enabled(v value) (limit.Mode, bool) {
	on, ok := r.Boolean(v)
	if on {
		return limit.Enforce, ok
	}
	return limit.Off, ok
}

func isList(v value) bool    { return v.Node.Kind == configfile.List }
func isMapping(v value) bool { return v.Node.Kind == configfile.Mapping }
