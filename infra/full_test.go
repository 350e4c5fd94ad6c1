package infra_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// full is a deployment of two full cells: one with every default, and one in which every setting differs from its
// default.
func full() *config.Deployment {
	d := world("f-1", "f-2")
	d.Cells[0].Issuers, d.Cells[0].Claims = nil, nil
	for i := range d.Cells {
		d.Cells[i].Profile = config.Full
	}
	d.Cells[0].Attach = []config.Attachment{{REST: "rest123456", AllowOrigin: "https://app.example.com"},
		{HTTP: "http123456"}, {WebSocket: "sock123456"}}
	d.Cells[1].NoKillSwitch = true
	d.Cells[1].Cache = &config.Valkey{Node: "cache.r7g.xlarge", Cluster: true, Shards: 3, Auth: config.AuthSecret,
		SnapshotDays: 7}
	d.Cells[1].Network = &config.Network{Zones: 3, CIDR: "10.20.0.0/16", Egress: config.EgressNAT, FlowLogs: true}
	d.Operators.AccessLogs = true
	return d
}

// madeFull holds its templates, which are made once for all tests.
var madeFull = sync.OnceValue(func() synthesized {
	raw, manifest, err := synthesize(full())
	return synthesized{raw, manifest, err}
})

// given is a deployment of two cells with existing caches: one of ElastiCache that admits functions by its security
// group, and a cluster of another owner that requires a password and has another port.
func checkRequired() *config.Deployment {
	d := world("g-1", "g-2")
	for i := range d.Cells {
		c := &d.Cells[i]
		c.Issuers, c.Claims, c.Profile = nil, nil, config.Full
		c.Network = &config.Network{VPC: "vpc-01234567", Subnets: []string{"subnet-01234567", "subnet-89abcdef"}}
	}
	d.Cells[0].Cache = &config.Valkey{Endpoint: "master.counters.example.com:6379", Auth: config.AuthIAM,
		Name: "counters", User: "limits", SecurityGroup: "sg-01234567"}
	d.Cells[1].NoKillSwitch = true
	d.Cells[1].Cache = &config.Valkey{Endpoint: "10.0.0.7:6390", Cluster: true, Auth: config.AuthSecret,
		Secret: "team/counters"}
	d.Cells[1].Deadlines = config.Deadlines{Redis: 20 * time.Millisecond, DynamoDB: 2 * time.Second,
		Home: 250 * time.Millisecond}
	return d
}

// madeGiven holds its templates, which are made once for all tests.
var madeGiven = sync.OnceValue(func() synthesized {
	raw, manifest, err := synthesize(checkRequired())
	return synthesized{raw, manifest, err}
})

// inFull is how many more, or fewer, places than in a small cell each check of TestHolds has to look at.
var inFull = map[string]map[string]int{
	"sluice-cell-g-1": {
		"security groups take nothing from addresses, and one port each": 1,
		"security groups call https, the cache, or nobody":               1,
		"functions call the cache's port alone beside https":             1,
		"what Lambda does by a role, the function's code may not":        2,
	},
	"sluice-cell-g-2": { // without a kill switch, and let in by others
		"roles may do what is granted, and nothing else": -1, "security groups call https, the cache, or nobody": 1,
		"functions call the cache's port alone beside https":      1,
		"what Lambda does by a role, the function's code may not": 2,
	},
	"sluice-cell-f-1": { // with three APIs
		"functions call the cache's port alone beside https": 1,
		"only a named source may invoke a function":          3, "no answer of an authorizer is kept": 3,
		"security groups take nothing from addresses, and one port each":       2,
		"security groups call https, the cache, or nobody":                     3,
		"subnets give nobody a public address":                                 2,
		"endpoints are for what is called, by this account":                    3,
		"the cache is encrypted, doubled, asks who it is, and forgets nothing": 1,
		"what Lambda does by a role, the function's code may not":              2,
	},
	"sluice-cell-f-2": { // without a kill switch, but with flow logs: a role less, and one more
		"functions call the cache's port alone beside https":                   1,
		"no value of a secret is in a template":                                1,
		"security groups take nothing from addresses, and one port each":       2,
		"security groups call https, the cache, or nobody":                     3,
		"subnets give nobody a public address":                                 6,
		"endpoints are for what is called, by this account":                    2,
		"the cache is encrypted, doubled, asks who it is, and forgets nothing": 1,
		"what Lambda does by a role, the function's code may not":              2,
	},
}

// endpointOf returns the endpoint of a cache in a template.
var endpointOf = regexp.MustCompile(`\$\{CellCacheGroup[0-9A-F]+\.(PrimaryEndPoint|ConfigurationEndPoint)\.Address\}` +
	`:\$\{CellCacheGroup[0-9A-F]+\.(PrimaryEndPoint|ConfigurationEndPoint)\.Port\}`)

// Guarantees that every change of a full cell shows as a diff of a golden file.
func TestFullTemplates(t *testing.T) {
	all := madeFull()
	if all.err != nil {
		t.Fatal(all.err)
	}
	golden(t, "cell-full.template.json", all.raw["sluice-cell-f-1"])
	golden(t, "cell-full-cluster.template.json", all.raw["sluice-cell-f-2"])
}

// Guarantees that every change of a cell with an existing cache shows as a diff of a golden file.
func TestGivenTemplates(t *testing.T) {
	all := madeGiven()
	if all.err != nil {
		t.Fatal(all.err)
	}
	golden(t, "cell-full-given.template.json", all.raw["sluice-cell-g-1"])
}

// Guarantees that functions use an existing cache as its owner says, with the configured timeout, and that nothing is
// created for it: no cache, no secret, and no alarm on its nodes, whose names are not known.
func TestGivenCache(t *testing.T) {
	for name, want := range map[string]map[string]any{
		"sluice-cell-g-1": {"SLUICE_REDIS": "master.counters.example.com:6379", "SLUICE_REDIS_CLUSTER": "false",
			"SLUICE_REDIS_TLS": "true", "SLUICE_REDIS_AUTH": "iam",
			"SLUICE_REDIS_IAM_CACHE": "counters", "SLUICE_REDIS_IAM_USER": "limits"},
		"sluice-cell-g-2": {"SLUICE_REDIS": "10.0.0.7:6390", "SLUICE_REDIS_CLUSTER": "true",
			"SLUICE_REDIS_TLS": "true", "SLUICE_REDIS_AUTH": "secret",
			"SLUICE_REDIS_SECRET": "team/counters", "SLUICE_REDIS_DEADLINE": "20ms", "SLUICE_DYNAMODB_DEADLINE": "2s",
			"SLUICE_HOME_DEADLINE": "250ms"},
	} {
		one, callers := copyTemplate(t, name), 0
		for id, f := range one.ofType("AWS::Lambda::Function") {
			variables, _ := f.get("Environment", "Variables").(map[string]any)
			if variables["SLUICE_REDIS"] == nil {
				continue
			}
			callers++
			got := map[string]any{}
			for key, value := range variables {
				if strings.HasPrefix(key, "SLUICE_REDIS") || strings.HasSuffix(key, "_DEADLINE") {
					got[key] = value
				}
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s: %s has %v, want %v", name, id, got, want)
			}
		}
		if callers != 2 {
			t.Errorf("%s: %d functions call the cache, want the authorizer and ops", name, callers)
		}
		for kind, n := range countTypes(one) {
			if strings.HasPrefix(kind, "AWS::ElastiCache::") || kind == "AWS::SecretsManager::Secret" ||
				kind == "AWS::EC2::VPC" {
				t.Errorf("%s: %d resources of type %s are created", name, n, kind)
			}
		}
		for id, a := range one.ofType("AWS::CloudWatch::Alarm") {
			if slices.Contains(alarmMetrics(a), "EngineCPUUtilization") {
				t.Errorf("%s: alarm %s watches nodes whose names are not known", name, id)
			}
		}
	}
	if by := firstOf(copyTemplate(t, "sluice-cell-g-1"),
		"AWS::EC2::SecurityGroupIngress"); by.get("GroupId") != "sg-01234567" || by.get("FromPort") != 6379.0 {
		t.Errorf("the security group of the cache does not admit the functions: %v", by.Properties)
	}
	if out := copyTemplate(t, "sluice-cell-g-1").Outputs["FunctionsGroup"]; out != nil {
		t.Errorf("the output asks the owner of the cache to admit functions that the security group admits: %v", out)
	}
	two := copyTemplate(t, "sluice-cell-g-2")
	if out := two.text(two.Outputs["FunctionsGroup"]["Value"]); !strings.HasPrefix(out, "${CellNetworkFunctions") ||
		!strings.HasSuffix(out, ".GroupId}") {
		t.Errorf("the output asks the owner of the cache to admit %s", out)
	}
}

// Guarantees that docs/deploy.md tells the owner of a cache all commands that its user must be allowed.
func TestGivenUser(t *testing.T) {
	text, err := os.ReadFile("../docs/deploy.md")
	if err != nil || !strings.Contains(string(text), "\n"+grants.CacheAccess+"\n") {
		t.Errorf("docs/deploy.md does not have %q (%v)", grants.CacheAccess, err)
	}
}

// Guarantees that deadlines of the cache are refused at the value at which the functions would refuse them.
func TestDeadlines(t *testing.T) {
	for wait, ok := range map[time.Duration]bool{
		config.MinDeadline: true, config.MaxDeadline: true, config.MinDeadline - time.Microsecond: false,
		config.MaxDeadline + time.Microsecond: false,
	} {
		_, err := environ.Parse([]string{"SLUICE_CELL=a", "SLUICE_CONFIG_TABLE=config",
			"SLUICE_COUNTERS_TABLE=counters", "SLUICE_SECRET=s", "SLUICE_DYNAMODB_DEADLINE=" + wait.String()}, nil, nil)
		if (err == nil) != ok {
			t.Errorf("a function that is to wait %s: %v", wait, err)
		}
	}
}

// Guarantees that the check of the number of instances uses the real numbers of connections and of instances.
func TestConnections(t *testing.T) {
	ops, _ := grants.Of(config.Ops)
	if config.Connections != environ.RedisConnections || config.OpsInstances != ops.Reserved {
		t.Errorf("it counts with %d connections and %d instances of ops, want %d and %d", config.Connections,
			config.OpsInstances, environ.RedisConnections, ops.Reserved)
	}
}

// Guarantees that in an existing VPC nothing is created but security groups, and that the cache and the functions are
// in its subnets.
func TestOwnVPC(t *testing.T) {
	d := world("f-1")
	d.Cells[0].Profile, d.Cells[0].Issuers, d.Cells[0].Claims = config.Full, nil, nil
	d.Cells[0].Network = &config.Network{VPC: "vpc-01234567", Subnets: []string{"subnet-01234567", "subnet-89abcdef"}}
	raw, _, err := synthesize(d)
	if err != nil {
		t.Fatal(err)
	}
	one := decode(t, raw["sluice-cell-f-1"])
	for kind, n := range countTypes(one) {
		if strings.HasPrefix(kind, "AWS::EC2::") && !strings.HasPrefix(kind, "AWS::EC2::SecurityGroup") {
			t.Errorf("%d resources of type %s are created", n, kind)
		}
	}
	for _, g := range one.ofType("AWS::EC2::SecurityGroup") {
		if g.get("VpcId") != "vpc-01234567" {
			t.Errorf("a security group is in %v", g.get("VpcId"))
		}
	}
	want := []string{"subnet-01234567", "subnet-89abcdef"}
	if got := one.texts(firstOf(one, "AWS::ElastiCache::SubnetGroup").get("SubnetIds")); !slices.Equal(got, want) {
		t.Errorf("the cache is in %v, want %v", got, want)
	}
	inside := 0
	for _, f := range one.ofType("AWS::Lambda::Function") {
		if subnets := one.texts(f.get("VpcConfig", "SubnetIds")); len(subnets) > 0 {
			inside++
			if !slices.Equal(subnets, want) {
				t.Errorf("%v is in %v, want %v", f.get("FunctionName"), subnets, want)
			}
		}
	}
	if inside != 2 {
		t.Errorf("%d functions are in the VPC, want the authorizer and ops", inside)
	}
}
