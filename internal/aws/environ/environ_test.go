package environ_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

const (
	issuer = `{"issuer":"https://id.example","audiences":["api"],"jwksUrl":"https://id.example/keys","allTenants":true}`
	marker = "hunter2" // in every value that is refused
)

// leastEnvironment is the smallest environment that will do, with changes: "NAME=value", "NAME=" takes one away.
func leastEnvironment(changes ...string) []string {
	return append([]string{
		"PATH=/usr/bin", "AWS_SECRET_ACCESS_KEY=" + marker, "SLUICE_CELL=eu-1", "SLUICE_CONFIG_FILE=plans.yaml",
		"SLUICE_COUNTERS_TABLE=counters", "SLUICE_SECRET=sluice/eu-1",
	}, changes...)
}

var bundle = fstest.MapFS{
	"issuers.json": {Data: []byte("[" + issuer + "]")},
	"huge.json":    {Data: make([]byte, 1<<20+1)},
}

// Guarantees that what is not set has the default that the documentation tells.
func TestDefaults(t *testing.T) {
	got, err := environ.Parse(leastEnvironment(), bundle, new(token.Issuers))
	if err != nil {
		t.Fatal(err)
	}
	want := &environ.Settings{
		Cell: "eu-1", LogLevel: slog.LevelInfo, ConfigFile: "plans.yaml", CountersTable: "counters",
		DynamoDBDeadline: 100 * time.Millisecond,
		HomeDeadline:     500 * time.Millisecond, Secret: "sluice/eu-1", Leases: true, MaxInstances: 1000,
		MetricsNamespace: "Sluice",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	got, err = environ.Parse(leastEnvironment("SLUICE_REDIS=cache.example:6379"), bundle, new(token.Issuers))
	if err != nil {
		t.Fatal(err)
	}
	want.Redis = &environ.Redis{Addrs: []string{"cache.example:6379"}, TLS: true, Deadline: 8 * time.Millisecond}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("with Redis\ngot  %+v\nwant %+v", got, want)
	}
}

// Guarantees that each variable reaches its setting.
func TestEverySetting(t *testing.T) {
	given := []string{
		"SLUICE_CELL=us.a_1", "SLUICE_CONFIG_TABLE=arn:aws:dynamodb:eu-west-1:123456789012:table/config",
		"SLUICE_ALONE=true", "SLUICE_COUNTERS_TABLE=c_1",
		"SLUICE_DYNAMODB_DEADLINE=50ms",
		"SLUICE_HOMES=us.a_1=c_1, eu-1=arn:aws:dynamodb:eu-west-1:123456789012:table/c, ap-1=c_3",
		"SLUICE_HOME_DEADLINE=250ms",
		"SLUICE_SECRET=arn:aws:secretsmanager:eu-west-1:123456789012:secret:sluice-AbCdEf",
		"SLUICE_REDIS=a.example:6379, [::1]:6380", "SLUICE_REDIS_CLUSTER=true", "SLUICE_REDIS_TLS=true",
		"SLUICE_REDIS_AUTH=iam",
		"SLUICE_REDIS_IAM_CACHE=cache-1", "SLUICE_REDIS_IAM_USER=sluice",
		"SLUICE_REDIS_DEADLINE=20ms",
		"SLUICE_ISSUERS=[" + issuer +
			`,{"issuer":"two","audiences":["a","b"],"jwksUrl":"https://two.example/keys","algorithms":["ES256"],` +
			`"audienceClaim":"client_id","tenantClaim":"org","subjectClaim":"uid","tenants":["acme"]}]`,
		"SLUICE_CLAIMS=region, https://example.com/role", "SLUICE_TRUSTED_HOPS=2", "SLUICE_RETRY_JITTER=25",
		"SLUICE_PASS_DENIALS=a1b2,c3d4",
		"SLUICE_LEASES=false", "SLUICE_MAX_INSTANCES=40", "SLUICE_KILL_SWITCH=abcd123/1e2f3g4/zyxw987",
		"SLUICE_METRICS_NAMESPACE=My/Sluice", "SLUICE_LOG_LEVEL=debug",
	}
	want := &environ.Settings{
		Cell: "us.a_1", ConfigTable: "arn:aws:dynamodb:eu-west-1:123456789012:table/config", Alone: true,
		CountersTable:    "c_1",
		DynamoDBDeadline: 50 * time.Millisecond, HomeDeadline: 250 * time.Millisecond,
		Homes: []environ.CellTable{{Cell: "eu-1", Table: "arn:aws:dynamodb:eu-west-1:123456789012:table/c"},
			{Cell: "ap-1", Table: "c_3"}},
		Secret: "arn:aws:secretsmanager:eu-west-1:123456789012:secret:sluice-AbCdEf",
		Redis: &environ.Redis{Addrs: []string{"a.example:6379", "[::1]:6380"}, Cluster: true, TLS: true,
			Deadline: 20 * time.Millisecond,
			Auth:     environ.AuthIAM, Cache: "cache-1", User: "sluice"},
		Claims: []string{"region", "https://example.com/role"}, TrustedHops: 2, RetryJitter: 25,
		PassDenials:  []string{"a1b2", "c3d4"},
		MaxInstances: 40, KillSwitch: &environ.AppConfig{Application: "abcd123", Environment: "1e2f3g4",
			Profile: "zyxw987"}, MetricsNamespace: "My/Sluice", LogLevel: slog.LevelDebug,
	}
	wantIssuers := token.Issuers{
		{Issuer: "https://id.example", Audiences: []string{"api"}, JWKSURL: "https://id.example/keys",
			AllTenants: true},
		{Issuer: "two", Audiences: []string{"a", "b"}, JWKSURL: "https://two.example/keys",
			Algorithms:    []string{"ES256"},
			AudienceClaim: "client_id", TenantClaim: "org", SubjectClaim: "uid", Tenants: []string{"acme"}},
	}
	var issuers token.Issuers
	got, err := environ.Parse(given, bundle, &issuers)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(issuers, wantIssuers) {
		t.Errorf("got  %+v %+v %+v\nwant %+v %+v %+v", got, got.Redis, issuers, want, want.Redis, wantIssuers)
	}
	_, err = environ.Parse(leastEnvironment("SLUICE_ISSUERS_FILE=issuers.json"), bundle, &issuers)
	if err != nil || !reflect.DeepEqual(issuers, wantIssuers[:1]) {
		t.Errorf("from a file: %+v, %v; want %+v", issuers, err, wantIssuers[:1])
	}
}

// Guarantees that a setting which is wrong stops the function, names the variable, and repeats no value: whoever puts a
// password in the wrong variable must not find it in the logs.
func TestProblems(t *testing.T) {
	for _, tt := range []struct {
		change []string
		want   string // "VARIABLE text", which the problem begins with; they are all of the problems
	}{
		{[]string{"SLUICE_CEL=" + marker}, "SLUICE_CEL is not a variable"},
		{[]string{"SLUICE_=" + marker}, "SLUICE_ is not a variable"},
		{[]string{"SLUICE_\n\x1b[31m=" + marker}, "SLUICE_??[31m is not a variable"},
		{[]string{"SLUICE_CELL="}, "SLUICE_CELL is missing"},
		{[]string{"SLUICE_CELL=" + marker + " one"}, "SLUICE_CELL must be 1 to 64"},
		{[]string{"SLUICE_CELL=" + marker + strings.Repeat("x", 64)}, "SLUICE_CELL must be 1 to 64"},
		{[]string{"SLUICE_CONFIG_FILE="}, "SLUICE_CONFIG_FILE or SLUICE_CONFIG_TABLE must be set"},
		{[]string{"SLUICE_CONFIG_TABLE=" + marker},
			"SLUICE_CONFIG_FILE or SLUICE_CONFIG_TABLE must be set, and not both"},
		{[]string{"SLUICE_CONFIG_FILE=/etc/" + marker}, "SLUICE_CONFIG_FILE must be a path inside"},
		{[]string{"SLUICE_CONFIG_FILE=../" + marker}, "SLUICE_CONFIG_FILE must be a path inside"},
		{[]string{"SLUICE_CONFIG_FILE=."}, "SLUICE_CONFIG_FILE must be a path inside"},
		{[]string{"SLUICE_ALONE=true"}, "SLUICE_ALONE has no use without SLUICE_CONFIG_TABLE"},
		{[]string{"SLUICE_CONFIG_FILE=", "SLUICE_CONFIG_TABLE=config", "SLUICE_ALONE=" + marker},
			"SLUICE_ALONE must be true or false"},
		{[]string{"SLUICE_COUNTERS_TABLE="}, "SLUICE_COUNTERS_TABLE is missing"},
		{[]string{"SLUICE_COUNTERS_TABLE=" + marker + "?"}, "SLUICE_COUNTERS_TABLE must be a table's name"},
		{[]string{"SLUICE_SECRET="}, "SLUICE_SECRET is missing"},
		{[]string{`SLUICE_SECRET={"peppers":"` + marker + `"}`}, "SLUICE_SECRET must be a secret's name"},
		{[]string{"SLUICE_HOMES=us-1=counters"}, "SLUICE_HOMES has no use without SLUICE_CONFIG_TABLE"},
		{[]string{"SLUICE_CONFIG_FILE=", "SLUICE_CONFIG_TABLE=config", "SLUICE_HOMES=" + marker},
			"SLUICE_HOMES must be 1 to 50 cells, each once, such as eu-1=counters-eu-1"},
		{[]string{"SLUICE_CONFIG_FILE=", "SLUICE_CONFIG_TABLE=config", "SLUICE_HOMES=us-1=" + marker + ",us-1=" +
			marker}, "SLUICE_HOMES must be 1 to 50 cells, each once"},
		{[]string{"SLUICE_HOME_DEADLINE=250ms"}, "SLUICE_HOME_DEADLINE has no use without SLUICE_HOMES"},
		{[]string{"SLUICE_CONFIG_FILE=", "SLUICE_CONFIG_TABLE=config", "SLUICE_HOMES=us-1=counters",
			"SLUICE_HOME_DEADLINE=" + marker}, "SLUICE_HOME_DEADLINE must be a time"},
		{[]string{"SLUICE_DYNAMODB_DEADLINE=0"}, "SLUICE_DYNAMODB_DEADLINE must be a time such as 8ms, 1ms to 5s"},
		{[]string{"SLUICE_DYNAMODB_DEADLINE=6s"}, "SLUICE_DYNAMODB_DEADLINE must be a time"},
		{[]string{"SLUICE_DYNAMODB_DEADLINE=100"}, "SLUICE_DYNAMODB_DEADLINE must be a time"},
		{[]string{"SLUICE_REDIS=" + marker}, "SLUICE_REDIS must be host:port"},
		{[]string{"SLUICE_REDIS=cache:0"}, "SLUICE_REDIS must be host:port"},
		{[]string{"SLUICE_REDIS=cache:65536"}, "SLUICE_REDIS must be host:port"},
		{[]string{"SLUICE_REDIS=redis://:" + marker + "@cache:6379"}, "SLUICE_REDIS must be host:port"},
		{[]string{"SLUICE_REDIS=:" + marker + "@cache:6379"}, "SLUICE_REDIS must be host:port"},
		{[]string{"SLUICE_REDIS=a:1,,b:2"}, "SLUICE_REDIS must be host:port"},
		{[]string{"SLUICE_REDIS=a:1,b:2"}, "SLUICE_REDIS has several addresses"},
		{[]string{"SLUICE_REDIS_TLS=true"}, "SLUICE_REDIS_TLS has no use without SLUICE_REDIS"},
		{[]string{"SLUICE_REDIS=a:1", "SLUICE_REDIS_TLS=" + marker}, "SLUICE_REDIS_TLS must be true or false"},
		{[]string{"SLUICE_REDIS=a:1", "SLUICE_REDIS_CLUSTER=1"}, "SLUICE_REDIS_CLUSTER must be true or false"},
		{[]string{"SLUICE_REDIS=a:1", "SLUICE_REDIS_AUTH=" + marker}, "SLUICE_REDIS_AUTH must be none, secret or iam"},
		{[]string{"SLUICE_REDIS=a:1", "SLUICE_REDIS_AUTH=secret", "SLUICE_REDIS_TLS=false"},
			"SLUICE_REDIS_TLS must be true"},
		{[]string{"SLUICE_REDIS=a:1", "SLUICE_REDIS_AUTH=iam", "SLUICE_REDIS_IAM_USER=u"},
			"SLUICE_REDIS_IAM_CACHE is missing"},
		{[]string{"SLUICE_REDIS=a:1", "SLUICE_REDIS_AUTH=iam", "SLUICE_REDIS_IAM_CACHE=c"},
			"SLUICE_REDIS_IAM_USER is missing"},
		{[]string{"SLUICE_REDIS=a:1", "SLUICE_REDIS_AUTH=iam", "SLUICE_REDIS_IAM_CACHE=c", "SLUICE_REDIS_IAM_USER=u",
			"SLUICE_REDIS_SECRET=s"},
			"SLUICE_REDIS_SECRET has no use without SLUICE_REDIS_AUTH=secret"},
		{[]string{"SLUICE_REDIS=a:1", "SLUICE_REDIS_AUTH=secret", "SLUICE_REDIS_SECRET=a b"},
			"SLUICE_REDIS_SECRET must be a secret's name or ARN"},
		{[]string{"SLUICE_REDIS=a:1", "SLUICE_REDIS_IAM_USER=u"},
			"SLUICE_REDIS_IAM_USER has no use without SLUICE_REDIS_AUTH=iam"},
		{[]string{"SLUICE_REDIS=a:1", "SLUICE_REDIS_DEADLINE=1us"}, "SLUICE_REDIS_DEADLINE must be a time"},
		{[]string{"SLUICE_ISSUERS=" + marker}, "SLUICE_ISSUERS must be a JSON array of issuers: invalid"},
		{[]string{"SLUICE_ISSUERS=[" + issuer}, "SLUICE_ISSUERS must be a JSON array of issuers: unexpected"},
		{[]string{"SLUICE_ISSUERS=" + issuer}, "SLUICE_ISSUERS must be a JSON array of issuers"},
		{[]string{"SLUICE_ISSUERS=[]"}, "SLUICE_ISSUERS has no issuer; leave it out"},
		{[]string{"SLUICE_ISSUERS=null"}, "SLUICE_ISSUERS has no issuer; leave it out"},
		{[]string{"SLUICE_ISSUERS=[" + issuer + "] x"}, "SLUICE_ISSUERS must be a JSON array of issuers: invalid"},
		{[]string{`SLUICE_ISSUERS=[{"issuer":3}]`},
			"SLUICE_ISSUERS must be a JSON array of issuers: issuer is a number"},
		{[]string{`SLUICE_ISSUERS=[{"jwks":"` + marker + `"}]`},
			`SLUICE_ISSUERS must be a JSON array of issuers: unknown member "jwks"`},
		{[]string{`SLUICE_ISSUERS=[{"Issuer":"` + marker + `"}]`},
			`SLUICE_ISSUERS must be a JSON array of issuers: unknown member "Issuer"`},
		{[]string{`SLUICE_ISSUERS=[{"allTenants":false,"allTenants":true}]`},
			`SLUICE_ISSUERS must be a JSON array of issuers: member "allTenants" occurs twice`},
		{[]string{"SLUICE_ISSUERS=[" + issuer + "," + issuer + "]"}, "SLUICE_ISSUERS token: issuer 1"},
		{[]string{`SLUICE_ISSUERS=[{"issuer":"i"}]`}, `SLUICE_ISSUERS token: issuer 0 ("i"): no Audiences`},
		{[]string{"SLUICE_ISSUERS=[" + strings.Repeat("[", 50)},
			"SLUICE_ISSUERS must be a JSON array of issuers: it is nested"},
		{[]string{"SLUICE_ISSUERS=[" + issuer + "]", "SLUICE_ISSUERS_FILE=issuers.json"},
			"SLUICE_ISSUERS and SLUICE_ISSUERS_FILE must not both"},
		{[]string{"SLUICE_ISSUERS_FILE=" + marker},
			"SLUICE_ISSUERS_FILE names a file that cannot be read: file does not exist"},
		{[]string{"SLUICE_ISSUERS_FILE=/" + marker}, "SLUICE_ISSUERS_FILE must be a path inside"},
		{[]string{"SLUICE_ISSUERS_FILE=huge.json"}, "SLUICE_ISSUERS_FILE has more than 1048576 bytes"},
		{[]string{"SLUICE_CLAIMS=region"}, "SLUICE_CLAIMS has no use without"},
		{[]string{"SLUICE_ISSUERS_FILE=issuers.json", "SLUICE_CLAIMS=a,,b"}, "SLUICE_CLAIMS must be names"},
		{[]string{"SLUICE_ISSUERS_FILE=issuers.json", "SLUICE_CLAIMS=a,b,a"}, "SLUICE_CLAIMS has its entry 1 twice"},
		{[]string{"SLUICE_ISSUERS_FILE=issuers.json", "SLUICE_CLAIMS=a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"},
			"SLUICE_CLAIMS has 17 entries"},
		{[]string{"SLUICE_TRUSTED_HOPS=-1"}, "SLUICE_TRUSTED_HOPS must be a whole number, 0 to 16"},
		{[]string{"SLUICE_TRUSTED_HOPS=17"}, "SLUICE_TRUSTED_HOPS must be"},
		{[]string{"SLUICE_TRUSTED_HOPS=" + marker}, "SLUICE_TRUSTED_HOPS must be"},
		{[]string{"SLUICE_RETRY_JITTER=101"}, "SLUICE_RETRY_JITTER must be a whole number, 0 to 100"},
		{[]string{"SLUICE_PASS_DENIALS=*"}, "SLUICE_PASS_DENIALS must be ids"},
		{[]string{"SLUICE_LEASES=no"}, "SLUICE_LEASES must be true or false"},
		{[]string{"SLUICE_KILL_SWITCH=" + marker},
			"SLUICE_KILL_SWITCH must be application/environment/profile, each an id"},
		{[]string{"SLUICE_KILL_SWITCH=abc1234/abc1234"},
			"SLUICE_KILL_SWITCH must be application/environment/profile, each an id"},
		{[]string{"SLUICE_KILL_SWITCH=abc1234/abc1234/abc1234/abc1234"},
			"SLUICE_KILL_SWITCH must be application/environment/profile, each an id"},
		{[]string{"SLUICE_KILL_SWITCH=abc1234//abc1234"},
			"SLUICE_KILL_SWITCH must be application/environment/profile, each an id"},
		{[]string{"SLUICE_KILL_SWITCH=abc1234/Prod/abc1234"},
			"SLUICE_KILL_SWITCH must be application/environment/profile, each an id"},
		{[]string{"SLUICE_KILL_SWITCH=abc1234/abc12345/abc1234"},
			"SLUICE_KILL_SWITCH must be application/environment/profile, each an id"},
		{[]string{"SLUICE_MAX_INSTANCES=0"}, "SLUICE_MAX_INSTANCES must be a whole number, 1 to"},
		{[]string{"SLUICE_METRICS_NAMESPACE=AWS/" + marker}, "SLUICE_METRICS_NAMESPACE must not begin with AWS/"},
		{[]string{"SLUICE_METRICS_NAMESPACE=" + marker + "!"}, "SLUICE_METRICS_NAMESPACE must be"},
		{[]string{"SLUICE_LOG_LEVEL=" + marker}, "SLUICE_LOG_LEVEL must be debug"},
	} {
		s, err := environ.Parse(leastEnvironment(tt.change...), bundle, new(token.Issuers))
		var all *environ.Error
		if s != nil || !errors.As(err, &all) {
			t.Errorf("%q: %+v, %v; want %s", tt.change, s, err, tt.want)
			continue
		}
		if text := all.Problems[0].Variable + " " + all.Problems[0].Text; len(all.Problems) != 1 ||
			!strings.HasPrefix(text, tt.want) {
			t.Errorf("%q\ngot  %v\nwant %s", tt.change, err, tt.want)
		}
		if strings.Contains(fmt.Sprint(err), marker) {
			t.Errorf("%q: the error repeats the value: %v", tt.change, err)
		}
	}
}

// Guarantees that whoever has made several mistakes sees them all at once.
func TestAllProblemsAtOnce(t *testing.T) {
	_, err := environ.Parse([]string{
		"SLUICE_ZZZ=1", "SLUICE_AAA=1", "SLUICE_CELL=a b", "SLUICE_REDIS=nowhere", "SLUICE_REDIS_AUTH=iam",
		"SLUICE_TRUSTED_HOPS=x",
		"SLUICE_ISSUERS=[", "SLUICE_CLAIMS=region",
	}, bundle, new(token.Issuers))
	want := `the environment's settings are wrong:
SLUICE_AAA is not a variable of the authorizer
SLUICE_ZZZ is not a variable of the authorizer
SLUICE_CELL must be 1 to 64 of A-Z a-z 0-9 . _ -
SLUICE_COUNTERS_TABLE is missing
SLUICE_SECRET is missing
SLUICE_REDIS must be host:port, several separated by commas
SLUICE_ISSUERS must be a JSON array of issuers: unexpected EOF
SLUICE_TRUSTED_HOPS must be a whole number, 0 to 16
SLUICE_CONFIG_FILE or SLUICE_CONFIG_TABLE must be set, and not both
SLUICE_REDIS_IAM_CACHE is missing, which SLUICE_REDIS_AUTH=iam needs
SLUICE_REDIS_IAM_USER is missing, which SLUICE_REDIS_AUTH=iam needs`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// Guarantees that as many proxies can be trusted as the authorizer accepts, and no more.
func TestTrustedHops(t *testing.T) {
	for hops, ok := range map[int]bool{identity.MaxHops: true, identity.MaxHops + 1: false} {
		_, err := environ.Parse(leastEnvironment(fmt.Sprint("SLUICE_TRUSTED_HOPS=", hops)), bundle, nil)
		if (err == nil) != ok {
			t.Errorf("%d trusted proxies: %v", hops, err)
		}
	}
}

// Guarantees that the documentation has every variable with its default: the table in it is the code's.
func TestDocumentation(t *testing.T) {
	const file = "../../../docs/authorizer.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n\n"+environ.FunctionTable("authorizer")+"\n") {
		t.Errorf("%s does not have this table:\n\n%s", file, environ.FunctionTable("authorizer"))
	}
}

// Guarantees that no environment makes Parse panic, and that none gives both settings and an error, or neither.
func FuzzParse(f *testing.F) {
	f.Add("SLUICE_CELL", "eu-1", "SLUICE_REDIS", "a:1,b:2")
	f.Add("SLUICE_ISSUERS", "["+issuer+"]", "SLUICE_CLAIMS", "a,b")
	f.Add("SLUICE_ISSUERS_FILE", "issuers.json", "SLUICE_PASS_DENIALS", "a1,b2")
	f.Add("SLUICE_DYNAMODB_DEADLINE", "1h", "SLUICE_REDIS_DEADLINE", "-1ms")
	f.Add("", "", "SLUICE_", "=")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string) {
		s, err := environ.Parse(leastEnvironment(name1+"="+value1, name2+"="+value2), bundle, new(token.Issuers))
		var all *environ.Error
		if (s == nil) == (err == nil) || err != nil && (!errors.As(err, &all) || len(all.Problems) == 0) {
			t.Fatalf("settings %v and error %v", s, err)
		}
		if s != nil && (s.Cell == "" || s.CountersTable == "" || s.MaxInstances < 1 ||
			s.DynamoDBDeadline < time.Millisecond ||
			s.Redis != nil && (len(s.Redis.Addrs) == 0 || s.Redis.Deadline < time.Millisecond)) {
			t.Fatalf("not within bounds: %+v %+v", s, s.Redis)
		}
	})
}
