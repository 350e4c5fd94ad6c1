// Package operations lists the operations that operators may call. The resources and throttles of the REST APIs and
// docs/permissions.md are generated from this list, so that they always agree with what the functions answer.
package operations

// Operation is one operation of an operators' API.
type Operation struct {
	Path   string // below the stage, as in "/keys/create"
	Writes bool   // the operation changes something

	// PerSecond and Burst are API Gateway's throttle, over all callers: calls per second, and calls at once.
	PerSecond, Burst int

	Does     string   // for people, in Markdown, without a full stop
	Commands []string // commands of sluice that call it, without the word sluice
}

// Throttles. An operation that a command calls in a loop has 50 calls per second. The lower rates are chosen, not
// measured: for operations that a command calls once, and for rare operations that do much.
const (
	oftenPerSecond, oftenBurst   = 50, 50 // a command calls it in a loop
	singlePerSecond, singleBurst = 20, 40 // one call for each command, of which a script may run many
	rarePerSecond, rareBurst     = 5, 10  // reads whole tables, or moves shares of all tenants
)

// Control returns the operations of the control plane's API, in the order in which they are documented.
func Control() []Operation {
	return []Operation{
		often("/documents/get", false, "returns one document: a plan, a tenant, a key or the settings", "plan get",
			"tenant get"),
		often("/documents/list", false, "returns a page of documents of one kind", "plan list", "plan diff",
			"plan apply", "tenant list", "key list", "pace-plan list"),
		often("/apply", true, "writes plans, settings, tenants and keys, and removes them", "plan apply"),
		single("/tenants/set", "sets the plan, the cells and the overrides of a tenant", "tenant set"),
		single("/tenants/suspend", "refuses every call of a tenant", "tenant suspend"),
		single("/tenants/resume", "ends a suspension", "tenant resume"),
		single("/boosts/add", "raises a limit of a tenant for a while", "boost add"),
		single("/boosts/remove", "ends a boost before its time", "boost remove"),
		single("/limits/promote", "makes a shadow limit of a plan enforce", "shadow promote"),
		single("/keys/create", "makes an API key for a tenant; **the answer is the key**", "key create"),
		single("/keys/revoke", "revokes an API key for ever", "key revoke"),
		rare("/cells/add", true, "gives a cell a share of every limit", "cell add"),
		rare("/cells/drain", true, "gives a cell's share to the other cells", "cell drain"),
		rare("/cells/remove", true, "removes a cell", "cell remove"),
		often("/cells/list", false, "returns the cells, and the URLs of their APIs", "cell list", "peek", "reset",
			"refund"),
		rare("/config/status", false, "compares each cell's copy with the control tables", "config status"),
		rare("/shadow/report", false, "returns what shadow limits would have denied", "shadow report"),
		single("/pace/set", "sets how many units of a provider's limit pacers may use, and how many pacers divide it",
			"pace-plan set"),
		often("/pace/get", false, "returns a pace plan; each pacer calls it every 10 s", "pace-plan get", "pace",
			"work"),
		single("/pace/remove", "removes a pace plan: the pacers that follow it wait", "pace-plan remove"),
	}
}

// Cell returns the operations of a cell's API, in the order in which they are documented.
func Cell() []Operation {
	return []Operation{
		{
			Path: "/counters/peek", PerSecond: singlePerSecond, Burst: singleBurst,
			Does: "returns how much a tenant or an address has used of its limits", Commands: []string{"peek"},
		},
		rare("/counters/reset", true, "empties counters", "reset"),
		single("/counters/refund", "gives units back", "refund"),
	}
}

// often is an operation that a command calls in a loop.
func often(path string, writes bool, does string, commands ...string) Operation {
	return Operation{path, writes, oftenPerSecond, oftenBurst, does, commands}
}

// single is an operation that writes and that a command calls once.
func single(path, does string, commands ...string) Operation {
	return Operation{path, true, singlePerSecond, singleBurst, does, commands}
}

// rare is an operation that is seldom called and does much.
func rare(path string, writes bool, does string, commands ...string) Operation {
	return Operation{path, writes, rarePerSecond, rareBurst, does, commands}
}
