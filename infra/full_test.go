package infra_test

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/environ"
	"github.com/sluicelimits/sluice/internal/grants"
)

// full is a deployment of full cells: one with every default, and one that differs from it in everything.
func full() *config.Deployment {
	d := world("f-1", "f-2")
	d.Cells[0].Issuers, d.Cells[0].Claims = nil, nil
	for i := range d.Cells {
		d.Cells[i].Profile = config.Full
	}
	d.Cells[0].Attach = []config.Attachment{{REST: "rest123456", AllowOrigin: "https://app.example.com"}, {HTTP: "http123456"}, {WebSocket: "sock123456"}}
	d.Cells[1].NoKillSwitch = true
	d.Cells[1].Cache = &config.Valkey{Node: "cache.r7g.xlarge", Cluster: true, Shards: 3, Auth: config.AuthSecret, SnapshotDays: 7}
	d.Cells[1].Network = &config.Network{Zones: 3, CIDR: "10.20.0.0/16", Egress: config.EgressNAT}
	return d
}

// madeFull are its templates, made once for all tests.
var madeFull = sync.OnceValue(func() synthesized {
	raw, manifest, err := synthesize(full())
	return synthesized{raw, manifest, err}
})

// inFull is how many places more, or less, than in a small cell the checks of TestHolds have to look at.
var inFull = map[string]map[string]int{
	"sluice-cell-f-1": { // with three APIs
		"only a named source may invoke a function": 3, "no answer of an authorizer is kept": 3,
		"security groups take nothing from addresses, and one port each": 2, "security groups call https, the cache, or nobody": 3,
		"subnets give nobody a public address": 2, "endpoints are for what is called, by this account": 3,
		"the cache is encrypted, doubled, asks who it is, and forgets nothing": 1, "what Lambda does by a role, the function's code may not": 2,
	},
	"sluice-cell-f-2": { // without a kill switch
		"no value of a secret is in a template": 1, "roles may do what is granted, and nothing else": -1,
		"security groups take nothing from addresses, and one port each": 2, "security groups call https, the cache, or nobody": 3,
		"subnets give nobody a public address": 6, "endpoints are for what is called, by this account": 2,
		"the cache is encrypted, doubled, asks who it is, and forgets nothing": 1, "what Lambda does by a role, the function's code may not": 2,
	},
}

// endpointOf is a cache's endpoint in a template.
var endpointOf = regexp.MustCompile(`\$\{CellCacheGroup[0-9A-F]+\.(PrimaryEndPoint|ConfigurationEndPoint)\.Address\}:\$\{CellCacheGroup[0-9A-F]+\.(PrimaryEndPoint|ConfigurationEndPoint)\.Port\}`)

// Guarantees that every change of what a full cell is shows as a diff.
func TestFullTemplates(t *testing.T) {
	all := madeFull()
	if all.err != nil {
		t.Fatal(all.err)
	}
	golden(t, "cell-full.template.json", all.raw["sluice-cell-f-1"])
	golden(t, "cell-full-cluster.template.json", all.raw["sluice-cell-f-2"])
}

// Guarantees that the refusal of too many instances counts with the connections and instances that there are.
func TestConnections(t *testing.T) {
	ops, _ := grants.Of(config.Ops)
	if config.Connections != environ.RedisConnections || config.OpsInstances != ops.Reserved {
		t.Errorf("it counts with %d connections and %d instances of ops, want %d and %d", config.Connections, config.OpsInstances, environ.RedisConnections, ops.Reserved)
	}
}

// Guarantees that in a VPC that is there already nothing is made but security groups, and that the cache and the functions are in its subnets.
func TestOwnVPC(t *testing.T) {
	d := world("f-1")
	d.Cells[0].Profile, d.Cells[0].Issuers, d.Cells[0].Claims = config.Full, nil, nil
	d.Cells[0].Network = &config.Network{VPC: "vpc-01234567", Subnets: []string{"subnet-01234567", "subnet-89abcdef"}}
	raw, _, err := synthesize(d)
	if err != nil {
		t.Fatal(err)
	}
	one := decode(t, raw["sluice-cell-f-1"])
	for kind, n := range types(one) {
		if strings.HasPrefix(kind, "AWS::EC2::") && !strings.HasPrefix(kind, "AWS::EC2::SecurityGroup") {
			t.Errorf("%d of %s are made", n, kind)
		}
	}
	for _, g := range one.of("AWS::EC2::SecurityGroup") {
		if g.get("VpcId") != "vpc-01234567" {
			t.Errorf("a security group is in %v", g.get("VpcId"))
		}
	}
	want := []string{"subnet-01234567", "subnet-89abcdef"}
	if got := one.texts(first(one, "AWS::ElastiCache::SubnetGroup").get("SubnetIds")); !slices.Equal(got, want) {
		t.Errorf("the cache is in %v, want %v", got, want)
	}
	inside := 0
	for _, f := range one.of("AWS::Lambda::Function") {
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
