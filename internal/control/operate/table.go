package operate

import "context"

// Operation is one operation of an operators' API. The table below has all of them. The paths, throttles and grants of
// the REST APIs, and docs/permissions.md, are made from the table, and the functions answer what it lists.
type Operation struct {
	Path   string // below the stage, as in "/keys/create"
	Writes bool   // the operation changes something

	// PerSecond and Burst are API Gateway's throttle, over all callers: calls per second, and calls at once.
	PerSecond, Burst int

	Does     string   // for people, in Markdown, without a full stop
	Commands []string // commands of sluice that call it, without the word sluice

	// do carries out a call. service is the *Control or the *Cell whose operation it is.
	do func(ctx context.Context, service any, actor string, body []byte) (any, error)
}

// Typed is an operation together with the types of its request and of its answer, for the clients that call it.
type Typed[Request, Response any] struct{ Operation }

// rate is the throttle of an operation: calls per second, and calls at once. The lower rates are chosen, not measured.
type rate struct{ perSecond, burst int }

var (
	often  = rate{50, 50} // a command calls the operation in a loop
	single = rate{20, 40} // a command calls it once; a script may run many such commands
	rare   = rate{5, 10}  // it is seldom called and does much: it reads whole tables, or moves shares of all tenants
)

const (
	reads  = false
	writes = true
)

// controlTable and cellTable have the operations of the control plane's API and of a cell's API, in the order in which
// they are documented.
var controlTable, cellTable []Operation

// The operations of the control plane's API.
var (
	Get = add(&controlTable, "/documents/get", reads, often, (*Control).Get,
		"returns one document: a plan, a tenant, a key or the settings", "plan get", "tenant get", "key rotate",
		"explain")
	List = add(&controlTable, "/documents/list", reads, often, (*Control).List,
		"returns a page of documents of one kind", "plan list", "plan diff", "plan apply", "tenant list",
		"key list", "pace-plan list", "explain")
	Apply = add(&controlTable, "/apply", writes, often, (*Control).Apply,
		"writes plans, settings, tenants and keys, and removes them", "plan apply")
	Preview = add(&controlTable, "/documents/preview", reads, often, (*Control).Preview,
		"says what such a change would remove, weaken and start afresh", "plan diff", "plan apply")
	SetTenant = add(&controlTable, "/tenants/set", writes, single, (*Control).SetTenant,
		"sets the plan, the cells and the overrides of a tenant", "tenant set")
	Suspend = add(&controlTable, "/tenants/suspend", writes, single, (*Control).Suspend,
		"refuses every call of a tenant", "tenant suspend")
	Resume = add(&controlTable, "/tenants/resume", writes, single, (*Control).Resume,
		"ends a suspension", "tenant resume")
	AddBoost = add(&controlTable, "/boosts/add", writes, single, (*Control).AddBoost,
		"raises a limit of a tenant for a while", "boost add")
	RemoveBoost = add(&controlTable, "/boosts/remove", writes, single, (*Control).RemoveBoost,
		"ends a boost before its time", "boost remove")
	Promote = add(&controlTable, "/limits/promote", writes, single, (*Control).Promote,
		"makes a shadow limit of a plan enforce", "plan promote")
	CreateKey = add(&controlTable, "/keys/create", writes, single, (*Control).CreateKey,
		"makes an API key for a tenant; **the answer is the key**", "key create", "key rotate")
	RevokeKey = add(&controlTable, "/keys/revoke", writes, single, (*Control).RevokeKey,
		"revokes an API key for ever, or ends it at a time", "key revoke", "key rotate")
	AddCell = add(&controlTable, "/cells/add", writes, rare, (*Control).AddCell,
		"gives a cell a share of every limit", "cell add")
	DrainCell = add(&controlTable, "/cells/drain", writes, rare, (*Control).DrainCell,
		"gives a cell's share to the other cells", "cell drain")
	RemoveCell = add(&controlTable, "/cells/remove", writes, rare, (*Control).RemoveCell,
		"removes a cell", "cell remove")
	Cells = add(&controlTable, "/cells/list", reads, often, (*Control).Cells,
		"returns the cells, and the URLs of their APIs", "cell list", "counter peek", "counter reset",
		"counter refund")
	ConfigStatus = add(&controlTable, "/config/status", reads, rare, (*Control).ConfigStatus,
		"compares each cell's copy with the control tables", "cell status")
	SetPacePlan = add(&controlTable, "/pace/set", writes, single, (*Control).SetPacePlan,
		"sets how many units of a provider's limit pacers may use, and how many pacers divide it", "pace-plan set")
	GetPacePlan = add(&controlTable, "/pace/get", reads, often, (*Control).PacePlan,
		"returns a pace plan; each pacer calls it every 10 s", "pace-plan get", "pace")
	RemovePacePlan = add(&controlTable, "/pace/remove", writes, single, (*Control).RemovePacePlan,
		"removes a pace plan: the pacers that follow it wait", "pace-plan remove")
)

// The operations of a cell's API.
var (
	Peek = add(&cellTable, "/counters/peek", reads, single, (*Cell).Peek,
		"returns how much a tenant has used of its limits", "counter peek")
	Reset  = add(&cellTable, "/counters/reset", writes, rare, (*Cell).Reset, "empties counters", "counter reset")
	Refund = add(&cellTable, "/counters/refund", writes, single, (*Cell).Refund, "gives units back", "counter refund")
)

// ControlOperations returns the operations of the control plane's API.
func ControlOperations() []Operation { return controlTable }

// CellOperations returns the operations of a cell's API.
func CellOperations() []Operation { return cellTable }

// add adds an operation to a table and returns it. Request must be a struct. A call is refused if it has members that
// Request does not have, names in another case, names that occur twice, or text that is not UTF-8.
func add[Service, Request, Response any](
	table *[]Operation, path string, writes bool, throttle rate,
	handler func(service *Service, ctx context.Context, actor string, r *Request) (*Response, error),
	does string, commands ...string,
) Typed[Request, Response] {
	o := Operation{path, writes, throttle.perSecond, throttle.burst, does, commands,
		func(ctx context.Context, service any, actor string, body []byte) (any, error) {
			var r Request
			if err := decode(body, &r); err != nil {
				return nil, err
			}
			return handler(service.(*Service), ctx, actor, &r)
		}}
	*table = append(*table, o)
	return Typed[Request, Response]{o}
}
