package grants_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/aws/grants"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

const root = "../../../"

// allFunctions returns all functions that are built: those of a deployment, and the worker.
func allFunctions() []grants.Function { return append(grants.Functions(), grants.Worker()) }

// Guarantees that there is an entry for each function that is built, and none for another.
func TestEachFunctionIsThere(t *testing.T) {
	folders, err := os.ReadDir(root + "functions")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, f := range folders {
		want = append(want, f.Name())
	}
	for _, f := range allFunctions() {
		got = append(got, f.Name)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("there are entries for %q, and the folders %q", got, want)
	}
	if f, ok := grants.Of("ops"); !ok || f.Name != "ops" || !f.PerCell {
		t.Errorf("ops is %+v, %t", f, ok)
	}
	if _, ok := grants.Of("nobody"); ok {
		t.Error("nobody is a function")
	}
}

// client is an interface to AWS, of a package of ours, and what its methods ask IAM for.
type client struct {
	folder, name string
	on           []grants.Resource
	actions      map[string][]string // by method
}

var (
	control = []grants.Resource{grants.Plans, grants.Tenants, grants.Keys, grants.Cells, grants.Operations}
	clients = []client{
		{"internal/control/dynamo", "client", control, map[string][]string{
			"GetItem": {"dynamodb:GetItem"}, "PutItem": {"dynamodb:PutItem"}, "Scan": {"dynamodb:Scan"},
		}},
		{"internal/cell/dynamotable", "client", []grants.Resource{grants.Config, grants.AllConfig},
			map[string][]string{
				"GetItem": {"dynamodb:GetItem"}, "BatchGetItem": {"dynamodb:BatchGetItem"}, "Query": {"dynamodb:Query"},
				// IAM looks at its parts
				"TransactWriteItems": {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"},
			}},
		{"internal/limiter/store/dynamodb", "client", []grants.Resource{grants.Counters}, map[string][]string{
			"GetItem": {"dynamodb:GetItem"}, "UpdateItem": {"dynamodb:UpdateItem"},
			"TransactWriteItems": {"dynamodb:UpdateItem"},
		}},
		{"internal/control/audit/bucket", "client", []grants.Resource{grants.Objects, grants.Anchors, grants.Names},
			map[string][]string{
				"PutObject": {"s3:PutObject"}, "GetObject": {"s3:GetObject", "s3:GetObjectVersion"},
				"HeadObject":                 {"s3:GetObject", "s3:GetObjectVersion"},
				"ListObjectVersions":         {"s3:ListBucketVersions"},
				"GetObjectLockConfiguration": nil, // of sluice audit verify, which operators run
			}},
		{"internal/control/audit/kmskey", "client", []grants.Resource{grants.Signing},
			map[string][]string{"Sign": {"kms:Sign"}}},
		{"internal/function", "batchClient", []grants.Resource{grants.Topic},
			map[string][]string{"PublishBatch": {"sns:Publish"}}},
		{"internal/function", "sendClient", []grants.Resource{grants.Kept},
			map[string][]string{"SendMessage": {"sqs:SendMessage"}}},
		{"internal/function", "delayClient", []grants.Resource{grants.Changes}, map[string][]string{
			"ChangeMessageVisibilityBatch": {"sqs:ChangeMessageVisibility"}, // IAM has no action for batches
		}},
		{"pacer/sqsworker", "Client", []grants.Resource{grants.Jobs}, map[string][]string{
			"ReceiveMessage": {"sqs:ReceiveMessage"}, "DeleteMessage": {"sqs:DeleteMessage"},
			"ChangeMessageVisibility": {"sqs:ChangeMessageVisibility"},
		}},
		{"functions/worker", "invoker", []grants.Resource{grants.Target},
			map[string][]string{"Invoke": {"lambda:InvokeFunction"}}},
		{"internal/cell/killswitch", "Client", []grants.Resource{grants.Switch}, map[string][]string{
			"StartConfigurationSession": {"appconfig:StartConfigurationSession"},
			"GetLatestConfiguration":    {"appconfig:GetLatestConfiguration"},
		}},
		{"internal/cell/secrets", "Client", []grants.Resource{grants.Secret, grants.Login},
			map[string][]string{"GetSecretValue": {"secretsmanager:GetSecretValue"}}},
	}
	// byAWS are the resources on which Lambda acts for the function, or a protocol that is none of an SDK's.
	byAWS = map[grants.Resource][]string{
		grants.PlansStream: {"dynamodb:"}, grants.TenantsStream: {"dynamodb:"}, grants.KeysStream: {"dynamodb:"},
		grants.CellsStream:      {"dynamodb:"},
		grants.OperationsStream: {"dynamodb:"}, grants.Failed: {"sqs:"},
		grants.Changes: {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"},
		grants.Cache:   {"elasticache:Connect"},
		grants.Logs:    {"logs:"}, grants.Network: {"ec2:"},
	}
)

// methods are those of an interface of a package.
func methods(t *testing.T, c client) (out []string) {
	t.Helper()
	files, err := filepath.Glob(root + c.folder + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if s, ok := n.(*ast.TypeSpec); ok && s.Name.Name == c.name {
				if i, ok := s.Type.(*ast.InterfaceType); ok {
					for _, m := range i.Methods.List {
						out = append(out, m.Names[0].Name)
					}
				}
			}
			return true
		})
	}
	return out
}

// grantsWithoutCalls says which grants have no call, and which calls have no grant.
func grantsWithoutCalls(functions []grants.Function, clients []client) (wrong []string) {
	callable, granted := map[grants.Resource][]string{}, map[string]bool{}
	for _, c := range clients {
		for _, on := range c.on {
			for _, actions := range c.actions {
				callable[on] = append(callable[on], actions...)
			}
		}
	}
	for _, f := range functions {
		for _, g := range f.Grants {
			for _, a := range g.Actions {
				granted[string(g.On)+" "+a] = true
				byOthers := slices.ContainsFunc(byAWS[g.On],
					func(begin string) bool { return strings.HasPrefix(a, begin) })
				if strings.Contains(a, "*") || !byOthers && !slices.Contains(callable[g.On], a) {
					wrong = append(wrong, fmt.Sprintf("%s may %s on %s, which no client calls", f.Name, a, g.On))
				}
			}
		}
	}
	for _, c := range clients {
		for method, actions := range c.actions {
			for _, a := range actions {
				if !slices.ContainsFunc(c.on, func(on grants.Resource) bool { return granted[string(on)+" "+a] }) {
					wrong = append(wrong, fmt.Sprintf("%s of %s needs %s, which no function may", method, c.folder, a))
				}
			}
		}
	}
	return wrong
}

// Guarantees that what functions may do is what our clients of AWS call, no more and no less; the functions' own tests
// hold which function needs what.
func TestGrantsAreWhatIsCalled(t *testing.T) {
	for _, c := range clients {
		got, want := methods(t, c), slices.Sorted(maps.Keys(c.actions))
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s of %s calls %q; here are %q", c.name, c.folder, got, want)
		}
	}
	for _, w := range grantsWithoutCalls(allFunctions(), clients) {
		t.Error(w)
	}
}

// Guarantees that the check above sees a grant too many, one too few, and a wildcard.
func TestTheCheckOfGrantsCanFail(t *testing.T) {
	for name, bend := range map[string]func(f []grants.Function) []grants.Function{
		"one too many": func(f []grants.Function) []grants.Function {
			f[0].Grants = append(f[0].Grants,
				grants.Grant{On: grants.Counters, Actions: []string{"dynamodb:DeleteItem"}})
			return f
		},
		"on another resource": func(f []grants.Function) []grants.Function {
			f[0].Grants = append(f[0].Grants, grants.Grant{On: grants.Counters, Actions: []string{"dynamodb:Scan"}})
			return f
		},
		"a wildcard": func(f []grants.Function) []grants.Function {
			f[0].Grants = append(f[0].Grants, grants.Grant{On: grants.Logs, Actions: []string{"logs:*"}})
			return f
		},
		"too few": func(f []grants.Function) []grants.Function {
			return slices.DeleteFunc(f, func(f grants.Function) bool {
				return f.Name == "archiver" ||
					f.Name == "anchor"
			})
		},
	} {
		if len(grantsWithoutCalls(bend(allFunctions()), clients)) == 0 {
			t.Errorf("%s is not seen", name)
		}
	}
}

// badSettings says what AWS would refuse of a function's settings, or what makes it lose or hold up records.
func badSettings(f *grants.Function) (wrong []string) {
	bad := func(format string, args ...any) { wrong = append(wrong, f.Name+": "+fmt.Sprintf(format, args...)) }
	if f.MemoryMB < 128 || f.MemoryMB > 3008 || f.Timeout < time.Second || f.Timeout > 15*time.Minute ||
		f.Reserved < 0 {
		bad("memory %d MB, timeout %s, %d reserved", f.MemoryMB, f.Timeout, f.Reserved)
	}
	if f.API && f.Timeout > 29*time.Second {
		bad("API Gateway does not wait for %s", f.Timeout)
	}
	has := func(on grants.Resource) bool {
		return slices.ContainsFunc(f.Grants, func(g grants.Grant) bool { return g.On == on })
	}
	if !has(grants.Logs) {
		bad("cannot write its log")
	}
	if s := f.Streams; s != nil {
		if s.Batch < 1 || s.Batch > 10_000 || s.Retries < 1 || s.Retries > 10_000 || s.MaxAge < time.Minute ||
			s.MaxAge >= 24*time.Hour {
			bad("streams %+v: bounded retries, and an age below what a stream holds", *s)
		}
		calls := len(s.Of) * grants.Shards
		if f.Schedule > 0 {
			calls++
		}
		if f.Reserved < calls {
			bad("%d reserved, and %d shards and schedules of new tables call it at once", f.Reserved, calls)
		}
		if !has(grants.Failed) {
			bad("cannot send what fails away")
		}
		for _, table := range s.Of {
			if !has(grants.Resource("the stream of " + string(table))) {
				bad("cannot read the stream of %s", table)
			}
		}
	}
	if q := f.Queue; q != nil {
		if !has(grants.Changes) || q.Batch < 1 || q.Batch > 10_000 || q.Batch > 10 && q.Window < time.Second ||
			q.MaxConcurrent < 2 || q.MaxConcurrent > 1000 ||
			q.Visibility < 6*f.Timeout+q.Window || q.MaxReceives > 1000 || f.Reserved > 0 &&
			f.Reserved < q.MaxConcurrent {
			bad("queue %+v with a timeout of %s", *q, f.Timeout)
		}
	}
	for _, a := range f.Alarms {
		rings := slices.Contains([]string{"Sum", "Maximum", "p99"}, a.Stat) || a.Stat == "" && a.Above == 0 && a.Silence
		if a.Metric == "" || a.Means == "" || !rings {
			bad("alarm %+v", a)
		}
		if a.Silence && f.Schedule == 0 {
			bad("nothing is told of %s where nothing happens: silence says nothing", a.Metric)
		}
	}
	return wrong
}

// Guarantees that settings are such as AWS takes, that no stream has more than two readers, and that what calls a
// function can; and that the check sees what is not so.
func TestSettingsAreSound(t *testing.T) {
	readers := map[events.Table]int{}
	for _, f := range allFunctions() {
		for _, w := range badSettings(&f) {
			t.Error(w)
		}
		if f.Streams != nil {
			for _, table := range f.Streams.Of {
				readers[table]++
			}
		}
	}
	for _, table := range events.AllTables() {
		if n := readers[table]; n < 1 || n > 2 {
			t.Errorf("the stream of %s has %d readers, want 1 or 2", table, n)
		}
	}
	for _, table := range events.DocumentTables() {
		if n := readers[table]; n != 2 {
			t.Errorf("the stream of %s has %d readers, want the archiver and whoever publishes its documents", table, n)
		}
	}
	for name, bend := range map[string]func(f *grants.Function){
		"no window":  func(f *grants.Function) { f.Queue.Window = 0 },
		"visibility": func(f *grants.Function) { f.Queue.Visibility = 6 * f.Timeout },
		"shards": func(f *grants.Function) {
			*f, _ = grants.Of("publisher")
			f.Reserved--
		},
		"a schedule beside shards": func(f *grants.Function) {
			*f, _ = grants.Of("balancer")
			f.Reserved--
		},
		"concurrency": func(f *grants.Function) { f.Reserved = 1 },
		"no log":      func(f *grants.Function) { f.Grants = nil },
		"no stream": func(f *grants.Function) {
			f.Streams = &grants.Streams{Of: []events.Table{events.Plans}, Batch: 1, Retries: 1, MaxAge: time.Hour}
		},
		"retry for ever": func(f *grants.Function) {
			f.Streams = &grants.Streams{Batch: 1, Retries: -1, MaxAge: time.Hour}
		},
		"slow API":  func(f *grants.Function) { f.API = true },
		"no memory": func(f *grants.Function) { f.MemoryMB = 64 },
		"no meaning": func(f *grants.Function) {
			f.Alarms = append(f.Alarms, grants.Alarm{Metric: "x", Stat: "Sum"})
		},
		"never rings": func(f *grants.Function) {
			f.Alarms = append(f.Alarms, grants.Alarm{Metric: "x", Means: "x"})
		},
		"always rings": func(f *grants.Function) {
			f.Alarms = append(f.Alarms, grants.Alarm{Metric: "x", Means: "x", Stat: "Sum", Silence: true})
		},
	} {
		f, _ := grants.Of("applier")
		if bend(&f); len(badSettings(&f)) == 0 {
			t.Errorf("%s is not seen", name)
		}
	}
}

// Guarantees that a cell's function reaches its own acknowledgement, and no other cell's.
func TestLeadingKeys(t *testing.T) {
	f, _ := grants.Of("applier")
	var got []string
	for i := range f.Grants {
		got = append(got, f.Grants[i].LeadingKeys("eu-1")...)
	}
	if want := []string{shares.AckKey("eu-1")}; !slices.Equal(got, want) {
		t.Errorf("the applier of eu-1 may write %q, want %q", got, want)
	}
	for i := range f.Grants {
		if slices.Contains(f.Grants[i].Keys, shares.AckKey("eu-1")) {
			t.Error("the keys of one cell are in the table for all")
		}
	}
}

// Guarantees that the documentation says of each function what is in the table.
func TestDocumentation(t *testing.T) {
	own, err := os.ReadFile(root + "docs/authorizer.md")
	if err != nil {
		t.Fatal(err)
	}
	if f, _ := grants.Of("authorizer"); !strings.Contains(string(own), "\n\n"+f.RoleTable()) {
		t.Errorf("docs/authorizer.md does not have this table:\n\n%s", f.RoleTable())
	}
	for _, f := range allFunctions() {
		file := root + "docs/functions.md"
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, section, found := strings.Cut(string(text), "\n## "+f.Name+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		if !found {
			t.Errorf("%s has no section on the %s", file, f.Name)
		}
		for _, table := range []string{f.SettingsTable(), f.RoleTable(), f.AlarmTable()} {
			if !strings.Contains(section, table) {
				t.Errorf("%s, section %s, does not have this table:\n\n%s", file, f.Name, table)
			}
		}
	}
}
