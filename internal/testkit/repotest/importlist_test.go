package repotest

// This file lists which package may import which. The folder of a package decides its group. TestImportRules fails for
// a package whose folder is in no group, and for an import that breaks one of the rules below.
//
// Folders are relative to the repository. "x" is only the folder x, "x/..." is x and everything below it, "." is the
// folder of the library, and "std" is every package of the standard library.

// group is a set of folders that may import the same groups.
type group struct {
	name    string
	folders []string
	may     []string // the other groups that its packages may import; each comes later in the list
}

// groups are in the order of the imports: a group imports only groups that come after it. A folder whose name ends in
// "test" holds what only tests use, wherever it is: it is in the group testkit.
//
// Test files are in no group: they may import what they need. A few imports are forbidden to them, too: see everywhere.
var groups = []group{
	{"bench", []string{"bench/..."}, []string{"testkit", "dev", "serve", "gateway", "stores", "streams", "control",
		"server", "library", "pacer", "cell", "authorizer", "aws", "telemetry", "request", "plan", "limiter",
		"configfile",
		"events", "caller"}},
	{"browser", []string{"browser"}, []string{"testkit"}},
	{"localstack", []string{"localstack/..."}, []string{"testkit", "dev", "control"}},
	{"testkit", []string{"internal/testkit/..."}, []string{"dev", "gateway", "stores", "streams", "control", "server",
		"library", "pacer", "cell", "authorizer", "aws", "telemetry", "request", "plan", "limiter", "configfile",
		"events", "caller"}},
	{"cmd", []string{"cmd/..."}, []string{"dev", "serve", "gateway", "stores", "control", "server", "library", "pacer",
		"cell", "authorizer", "aws", "telemetry", "request", "plan", "limiter", "configfile", "events", "caller"}},
	{"examples", []string{"examples/..."}, []string{"library"}},
	{"scripts", []string{"scripts/..."}, []string{"plan", "configfile"}},
	{"serve", []string{"internal/serve"}, []string{"gateway", "stores", "server", "cell", "authorizer", "aws",
		"request", "plan", "limiter", "configfile"}},
	{"dev", []string{"internal/dev/..."}, []string{"gateway", "stores", "streams", "control", "server", "pacer", "cell",
		"authorizer", "aws", "telemetry", "request", "plan", "limiter", "configfile", "events", "caller"}},
	{"stores", []string{"internal/stores"}, []string{"authorizer", "request", "limiter", "configfile"}},
	{"functions", []string{"functions/...", "internal/function"}, []string{"streams", "control", "pacer", "cell",
		"authorizer", "aws", "telemetry", "request", "plan", "limiter", "events"}},
	{"infra", []string{"infra/..."}, []string{"control", "pacer", "cell", "aws", "telemetry", "request", "plan",
		"limiter", "configfile", "events"}},
	{"streams", []string{"streams/..."}, []string{"control", "cell", "aws", "plan", "limiter", "events"}},
	{"control", []string{"internal/control/..."}, []string{"cell", "aws", "request", "plan", "limiter", "events"}},
	{"server", []string{"internal/server/..."}, []string{"gateway", "cell", "authorizer", "aws", "telemetry",
		"request", "plan",
		"limiter", "configfile", "events", "caller"}},
	{"gateway", []string{"internal/gateway"}, []string{"authorizer", "request", "plan", "limiter", "configfile",
		"caller"}},
	{"library", []string{".", "middleware/...", "redisstore", "dynamodbstore"},
		[]string{"cell", "authorizer", "request",
			"plan", "limiter", "configfile", "caller"}},
	{"pacer", []string{"pacer/..."}, []string{"request", "plan", "limiter", "caller"}},
	{"cell", []string{"internal/cell/..."}, []string{"authorizer", "aws", "telemetry", "request", "plan", "limiter",
		"configfile", "events"}},
	{"authorizer", []string{"authorizer"}, []string{"telemetry", "request", "plan", "limiter"}},
	{"aws", []string{"internal/aws/..."}, []string{"telemetry", "request", "plan", "limiter", "events"}},
	{"telemetry", []string{"internal/telemetry"}, []string{"request", "limiter"}},
	{"request", []string{"internal/request/..."}, []string{"limiter", "caller"}},
	// Only events writes the canonical form of documents. What reads plans files uses it, too.
	{"plan", []string{"internal/plan/..."}, []string{"limiter", "configfile", "events"}},
	{"limiter", []string{"internal/limiter/..."}, nil},
	{"configfile", []string{"internal/configfile/..."}, nil},
	{"events", []string{"events/..."}, nil},
	{"caller", []string{"caller"}, nil},
}

// only lists, for packages that need few imports, each import that they may have, whatever their group may. A package
// with an empty list imports nothing.
var only = map[string][]string{
	"caller":       {"std"},
	"events":       {"std"},
	"infra/alarm":  {"std", "infra/config", "internal/aws/grants"},
	"infra/config": {"std", "internal/configfile/...", "internal/request/identity"},
	"infra/sample": {
		"std", "infra", "infra/config", "github.com/aws/aws-cdk-go/...", "github.com/aws/constructs-go/...",
		"github.com/aws/jsii-runtime-go",
	},
	"internal/aws/awsenv": {
		"std", "github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/aws/transport/http",
		"github.com/aws/aws-sdk-go-v2/service/dynamodb",
	},
	"internal/aws/environ": {"std"},
	"internal/aws/grants":  {"std", "events", "internal/plan/shares"},
	"internal/cell/config": {
		"std", "authorizer", "internal/cell/table", "internal/limiter/breaker", "internal/limiter/clock",
		"internal/limiter/limit", "internal/limiter/singleflight", "internal/plan", "internal/plan/route",
		"internal/plan/shares", "internal/request/identity", "github.com/hashicorp/golang-lru/v2/...",
	},
	"internal/cell/dynamotable": {
		"std", "internal/cell/table", "github.com/aws/aws-sdk-go-v2/aws/...",
		"github.com/aws/aws-sdk-go-v2/service/dynamodb/...",
	},
	"internal/cell/secrets": {
		"std", "internal/limiter/limit", "internal/limiter/refresh", "internal/request/identity",
		"github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/service/secretsmanager",
		"github.com/aws/smithy-go",
	},
	"internal/cell/table":              {"std", "events", "internal/plan/shares"},
	"internal/cell/table/tabletest":    {"std", "internal/cell/config", "internal/cell/table", "internal/plan"},
	"internal/configfile":              {"std"},
	"internal/configfile/configyaml":   {"std", "internal/configfile", "go.yaml.in/yaml/v3"},
	"internal/control":                 {"std", "events"},
	"internal/control/audit":           {"std", "events", "internal/control"},
	"internal/control/audit/audittest": {"std", "internal/control/audit"},
	"internal/control/audit/bucket": {
		"std", "internal/aws/awsenv", "internal/control/audit", "github.com/aws/aws-sdk-go-v2/...",
		"github.com/aws/smithy-go",
	},
	"internal/control/audit/kmskey": {"std", "internal/control/audit", "github.com/aws/aws-sdk-go-v2/..."},
	"internal/control/client": {
		"std", "events", "internal/control", "internal/control/audit", "internal/control/operate",
		"internal/plan", "internal/request/loopback",
	},
	"internal/control/controltest": {"std", "events", "internal/control"},
	"internal/control/dynamo": {
		"std", "events", "internal/control", "github.com/aws/aws-sdk-go-v2/aws",
		"github.com/aws/aws-sdk-go-v2/service/dynamodb/...",
	},
	"internal/control/embedded": {"std", "events", "internal/control", "go.etcd.io/bbolt/..."},
	"internal/control/operate": {
		"std", "events", "internal/cell/table", "internal/control", "internal/limiter/limit",
		"internal/plan", "internal/plan/route", "internal/plan/shares", "internal/request/identity",
		"internal/request/loopback",
	},
	"internal/dev": {
		"std", "authorizer", "events", "internal/cell/planfile", "internal/configfile", "internal/control",
		"internal/control/client", "internal/control/operate", "internal/dev/devcells", "internal/dev/devtoken",
		"internal/dev/livepage", "internal/gateway", "internal/limiter/...", "internal/plan",
		"internal/plan/shares", "internal/request/identity", "internal/request/identity/token", "internal/server",
		"internal/stores", "internal/telemetry",
	},
	"internal/dev/accesslog": {"std"},
	"internal/dev/cost":      {"std", "internal/aws/grants", "internal/configfile/...", "internal/telemetry"},
	"internal/dev/devtoken":  {"std"},
	"internal/dev/doctor": {
		"std", "internal/request/answer", "internal/request/identity", "github.com/dunglas/httpsfv",
	},
	"internal/dev/livepage": {
		"std", "authorizer", "internal/limiter/...", "internal/plan", "internal/request/answer",
	},
	"internal/dev/simulate": {
		"std", "internal/dev/accesslog", "internal/limiter/limit",
		"internal/limiter/store/memory", "internal/plan", "internal/plan/route", "internal/request/identity",
	},
	"internal/limiter":         {},
	"internal/limiter/breaker": {"std", "internal/limiter/clock"},
	"internal/limiter/clock":   {"std"},
	"internal/limiter/lease": {
		"std", "internal/limiter/clock", "internal/limiter/limit", "internal/limiter/singleflight",
	},
	"internal/limiter/lease/leasetest": {
		"std", "internal/limiter/clock", "internal/limiter/lease", "internal/limiter/limit",
		"internal/limiter/store/memory", "internal/testkit/soak",
	},
	"internal/limiter/ledger":            {"std"},
	"internal/limiter/ledger/ledgertest": {"std", "internal/limiter/ledger", "internal/testkit/soak"},
	"internal/limiter/limit":             {"std"},
	"internal/limiter/refresh":           {"std", "internal/limiter/clock", "internal/limiter/singleflight"},
	"internal/limiter/resilience": {
		"std", "internal/limiter/breaker", "internal/limiter/clock", "internal/limiter/lease", "internal/limiter/limit",
		"internal/limiter/store/memory", "internal/limiter/store/router", "github.com/hashicorp/golang-lru/v2",
	},
	"internal/limiter/singleflight": {"std", "internal/limiter/clock"},
	"internal/limiter/store":        {"std", "internal/limiter/limit"},
	"internal/limiter/store/dynamodb": {
		"std", "internal/limiter/limit", "github.com/aws/aws-sdk-go-v2/aws/...",
		"github.com/aws/aws-sdk-go-v2/service/dynamodb/...", "github.com/aws/smithy-go/...",
		"github.com/hashicorp/golang-lru/v2/...",
	},
	"internal/limiter/store/memory": {"std", "internal/limiter/limit"},
	"internal/limiter/store/redis": {
		"std", "internal/limiter/ledger", "internal/limiter/limit", "github.com/redis/go-redis/v9/...",
	},
	"internal/limiter/store/router": {"std", "internal/limiter/limit"},
	"internal/limiter/metrics":      {"std", "internal/limiter/breaker", "internal/limiter/resilience"},
	"internal/plan": {
		"std", "events", "internal/configfile", "internal/limiter/limit", "internal/plan/route",
	},
	"internal/plan/route":      {"std"},
	"internal/plan/shares":     {"std", "internal/limiter/limit"},
	"internal/request":         {},
	"internal/request/answer":  {"std", "internal/limiter/limit"},
	"internal/request/apigw":   {"std", "internal/request/answer", "github.com/tidwall/gjson"},
	"internal/request/forward": {"std", "caller", "internal/request/apigw"},
	"internal/request/identity/token": {
		"std", "internal/limiter/refresh", "github.com/go-jose/go-jose/v4/...", "github.com/hashicorp/golang-lru/v2",
	},
	"internal/request/loopback": {"std"},
	"internal/server/envoyconfig": {
		"std", "internal/configfile", "internal/configfile/configyaml", "internal/limiter/limit", "internal/plan",
		"go.yaml.in/yaml/v3",
		"google.golang.org/protobuf/types/known/structpb",
	},
	"internal/telemetry": {"std", "internal/request/answer"},
	"internal/testkit":   {},
	"internal/testkit/apigateway": {
		"std", "internal/testkit/lambdahost", "github.com/aws/aws-lambda-go/events",
		"go.yaml.in/yaml/v3",
	},
	"internal/testkit/apigateway/template": {"std", "internal/testkit/apigateway"},
	"internal/testkit/lambdahost":          {"std"},
	"internal/testkit/dynamodbtest": {
		"std", "github.com/aws/aws-sdk-go-v2/aws/...", "github.com/aws/aws-sdk-go-v2/credentials/...",
		"github.com/aws/aws-sdk-go-v2/service/dynamodb/...",
	},
	"internal/testkit/built":          {"std"},
	"internal/testkit/endtoend":       {},
	"internal/testkit/golden":         {"std"},
	"internal/testkit/killswitchtest": {"std"},
	"internal/testkit/logtest":        {"std"},
	"internal/testkit/s3test":         {"std", "github.com/aws/aws-sdk-go-v2/..."},
	"internal/testkit/secretstest":    {"std"},
	"internal/testkit/soak":           {"std"},
	"internal/testkit/tokentest":      {"std", "github.com/go-jose/go-jose/v4"},
	"localstack":                      {},
	"localstack/stand": {
		"std", "internal/control/client", "internal/testkit/apigateway",
		"internal/testkit/apigateway/template", "internal/testkit/lambdahost", "github.com/aws/aws-sdk-go-v2/...",
		"github.com/redis/go-redis/v9", "go.yaml.in/yaml/v3",
	},
	"middleware/lambdaproxy": {
		"std", "caller", "internal/request/answer", "internal/request/apigw", "github.com/tidwall/gjson",
	},
	"pacer": {"std", "internal/limiter/clock", "internal/limiter/ledger", "github.com/dunglas/httpsfv"},
	"pacer/awspacer": {
		"std", "pacer", "github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/aws/retry",
		"github.com/aws/aws-sdk-go-v2/aws/transport/http",
	},
	"pacer/grpcpacer": {
		"std", "pacer", "google.golang.org/genproto/googleapis/rpc/errdetails", "google.golang.org/grpc",
		"google.golang.org/grpc/codes", "google.golang.org/grpc/metadata", "google.golang.org/grpc/status",
	},
	"pacer/sqsworker": {
		"std", "pacer", "github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/service/sqs/...",
	},
	"scripts/bundle":    {"std"},
	"scripts/plansjson": {"std", "internal/configfile/configyaml", "internal/plan"},
	"streams/applier": {
		"std", "events", "internal/cell/table", "internal/control", "internal/plan/shares", "streams/delivery",
	},
	"streams/archiver": {"std", "events", "internal/control", "internal/control/audit", "streams/delivery"},
	"streams/balancer": {
		"std", "events", "internal/control", "internal/limiter/limit", "internal/plan", "internal/plan/shares",
		"streams/delivery",
	},
	"streams/canary": {
		"std", "events", "internal/cell/config", "internal/cell/table", "internal/control", "streams/delivery",
	},
	"streams/delivery":    {"std", "internal/control"},
	"streams/publisher":   {"std", "events", "internal/control", "streams/delivery"},
	"streams/reconcile":   {"std", "events", "internal/cell/table", "internal/control", "streams/delivery"},
	"streams/streamstest": {"std", "internal/control", "streams/delivery"},
}

// mostLinked says how many packages of the repository a package may link, itself included.
var mostLinked = map[string]int{
	"functions/applier": 15, // it copies documents, and must need nothing of what decides
}

// ban says what packages must not import, directly or through other packages of the repository.
type ban struct {
	packages []string
	except   []string
	never    []string
	why      string
}

// Modules that rules name more than once.
const (
	anyAWS    = "github.com/aws/..."
	awsSDK    = "github.com/aws/aws-sdk-go-v2/..."
	awsClient = "github.com/aws/aws-sdk-go-v2/aws/..."
	awsConfig = "github.com/aws/aws-sdk-go-v2/config/..."
	awsLambda = "github.com/aws/aws-lambda-go/..."
	goRedis   = "github.com/redis/go-redis/v9/..."
	cobra     = "github.com/spf13/..."
	bbolt     = "go.etcd.io/bbolt/..."
	envoyAPI  = "github.com/envoyproxy/go-control-plane/envoy/..."
)

// cdk is what only infra may import.
var cdk = []string{
	"github.com/aws/aws-cdk-go/...", "github.com/aws/constructs-go/...", "github.com/aws/jsii-runtime-go/...",
}

// bans are about packages that are reached through others, which neither groups nor only can see.
var bans = []ban{
	// The core can be replayed and does no I/O.
	{packages: []string{"internal/limiter/limit"}, never: []string{"os/...", "net/...", "log/..."},
		why: "the core does no I/O"},
	{packages: []string{"internal/limiter/limit"}, never: []string{"math/rand/...", "crypto/rand/..."},
		why: "a decision can be replayed"},
	{packages: []string{"internal/limiter/limit"}, never: []string{"unsafe"}, why: "the language holds the bounds"},
	{packages: []string{"internal/plan/shares"}, never: []string{"os/...", "net/...", "log/..."},
		why: "package shares does no I/O: what happened is in its output"},
	{packages: []string{"internal/plan/shares"}, never: []string{"math/rand/v2/...", "crypto/rand/..."},
		why: "a step of the shares can be replayed"},

	// Who uses the library links only the store that it opens.
	{packages: []string{".", "middleware/..."}, never: []string{goRedis, anyAWS},
		why: "a program links the client of the store that it opens, and no other"},
	{packages: []string{"."}, never: []string{"internal/limiter/store/redis/...", "internal/limiter/store/dynamodb/...",
		"redisstore/...", "dynamodbstore/..."}, why: "the store is handed to the library"},
	{packages: []string{"."}, never: []string{"middleware/..."}, why: "the middleware stands on the library"},
	{packages: []string{"."}, never: []string{cobra}, why: "only programs have command lines"},
	{packages: []string{"."}, never: []string{"github.com/prometheus/...", "go.opentelemetry.io/..."},
		why: "a program links the metrics library that it uses, and no other"},
	{packages: []string{"redisstore"}, never: []string{anyAWS, "internal/limiter/store/dynamodb/..."},
		why: "one store does not bring another"},
	{packages: []string{"dynamodbstore"}, never: []string{goRedis, "internal/limiter/store/redis/..."},
		why: "one store does not bring another"},
	{packages: []string{"middleware/lambdaproxy"}, never: []string{anyAWS},
		why: "it takes a lambda.Handler as it is, without its module"},
	{packages: []string{"middleware/lambdaproxy"}, never: []string{"authorizer/...", "internal/plan/...",
		"internal/request/identity/..."}, why: "a service behind the gateway verifies and decides nothing"},

	// The authorizer runs in a Lambda function, in the local gateway and in the library.
	{packages: []string{"authorizer"}, never: []string{awsSDK, awsLambda, cobra},
		why: "whoever makes the authorizer hands it the stores and the events"},
	{packages: []string{"internal/request/identity"}, never: []string{"internal/limiter/store/..."},
		why: "identity is settled before anything is counted"},

	// A cell.
	{packages: []string{"internal/cell"}, never: []string{awsConfig, awsLambda},
		why: "the function brings what Lambda gives it"},
	{packages: []string{"internal/cell/killswitch"}, never: []string{awsConfig, awsLambda, "authorizer/...",
		"internal/cell", "internal/limiter/store/..."},
		why: "the kill switch is read beside decisions and knows nothing of them"},
	{packages: []string{"internal/cell/planfile"}, never: []string{awsSDK, goRedis, "internal/limiter/store/redis/...",
		"internal/limiter/store/dynamodb/..."}, why: "files are neither on AWS nor in Redis"},

	// Functions start fast and hold only their own part.
	{packages: []string{"functions/..."}, never: []string{"internal/limiter/metrics/..."},
		why: "functions write their metrics to their logs: internal/telemetry"},
	{packages: []string{"functions/...", "internal/function"}, never: []string{awsConfig},
		why: "the SDK's loader adds 8 ms to a cold start; see internal/aws/awsenv"},
	{packages: []string{"functions/..."}, never: []string{"go.yaml.in/yaml/..."},
		why: "a plan is parsed from YAML in the command or at build time; functions read canonical JSON"},
	{packages: []string{"functions/..."}, never: []string{cobra}, why: "a function has no command line"},
	{packages: []string{"functions/..."}, never: []string{bbolt, "streams/local/..."},
		why: "it is for one process on a developer's machine"},
	{packages: []string{"functions/..."}, except: []string{"functions/authorizer", "functions/ops"},
		never: []string{"internal/cell"}, why: "package cell is the authorizer"},
	{packages: []string{"functions/applier"}, never: []string{"internal/cell/config", "internal/limiter/lease",
		"internal/limiter/store/...", "internal/plan", "internal/request/identity/..."},
		why: "it copies documents, and neither decides nor knows callers"},
	{packages: []string{"functions/authorizer", "internal/cell"},
		never: []string{"internal/control/..."}, why: "the data path never needs the control plane"},
	{packages: []string{"streams/applier"}, never: []string{anyAWS}, why: "tables are behind interfaces"},
	{packages: []string{"streams/local"}, never: []string{anyAWS},
		why: "it is what runs without AWS"},

	// The control plane.
	{packages: []string{"internal/control/operate"}, never: []string{anyAWS},
		why: "the operations run in one process, too"},
	{packages: []string{"internal/control/client"}, never: []string{awsClient, "internal/control/dynamo/..."},
		why: "its calls go over HTTP, and a signer is handed to it"},

	// The rate limit service.
	{packages: []string{"internal/server/..."}, never: []string{"internal/limiter/store/redis/...",
		"internal/limiter/store/dynamodb/...", goRedis}, why: "a store is handed in"},
	{packages: []string{"internal/server/..."}, never: []string{anyAWS}, why: "the service runs anywhere"},
	{packages: []string{"internal/server/limits", "middleware/grpclimit"}, never: []string{envoyAPI},
		why: "it knows nothing of Envoy"},
	{packages: []string{"internal/server/limits"}, never: []string{"internal/server/rls"},
		why: "the two services stand beside each other"},
	{packages: []string{"middleware/grpclimit"}, never: []string{"internal/server/..."},
		why: "the rate limit service is a server of its own"},

	// A developer's machine.
	{packages: []string{"internal/dev/cost"}, never: []string{anyAWS}, why: "a bill is known without an account"},
	{packages: []string{"internal/dev/devcells"}, never: []string{awsClient, goRedis,
		"internal/limiter/store/redis/...",
		"internal/limiter/store/dynamodb/...", "internal/control/dynamo/...", "internal/control/audit/bucket/..."},
		why: "the cells of one process need no AWS and no Redis; stores of counters are handed to them"},
	{packages: []string{"internal/dev/devcells"}, never: []string{"internal/gateway/..."},
		why: "programs serve requests"},
	{packages: []string{"internal/gateway"}, never: []string{"internal/dev/simulate/..."},
		why: "a simulation is no part of the request path"},
	{packages: []string{"internal/gateway", "internal/testkit/apigateway"}, never: []string{cobra},
		why: "only programs have command lines"},
	{packages: []string{"internal/testkit/apigateway"}, never: []string{"authorizer/...", "internal/request/apigw/..."},
		why: "the authorizer is a function to it, as to API Gateway; each side takes the events from AWS's " +
			"documentation"},

	// What tests use.
	{packages: []string{"internal/testkit/functiontest"}, never: []string{"streams/...", "internal/function"},
		why: "what is tested is the binary of the function"},
	{packages: []string{"internal/testkit/killswitchtest", "internal/testkit/secretstest"},
		never: []string{"testing/...", "net/http/httptest/..."}, why: "programs can be run against it, too"},
}

// everywhere are bans on direct imports, test files included.
var everywhere = []ban{
	{except: []string{"infra/..."}, never: cdk, why: "CDK brings Node and a runtime of its own: it belongs to infra"},
	// envoyconfig reads the files of another project with that project's leniency; the test of limits reads OpenAPI,
	// and apigateway the descriptions of tests.
	{except: []string{"internal/configfile/configyaml", "cmd/sluice", "localstack/stand", "internal/server/envoyconfig",
		"internal/server/limits", "internal/testkit/apigateway"},
		never: []string{"go.yaml.in/yaml/..."}, why: "configyaml is the one reader of YAML files"},
	{never: []string{"io/ioutil"}, why: "os and io have it"},
	{never: []string{"math/rand"}, why: "math/rand/v2 needs no seed"},
	{never: []string{"github.com/pkg/errors/..."}, why: "fmt.Errorf with %w does it"},
	{never: []string{"github.com/stretchr/testify/..."}, why: "tests print input, got and want themselves"},
}
