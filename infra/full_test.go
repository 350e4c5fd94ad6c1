package infra_test

import (
	"regexp"
	"sync"
	"testing"

	"github.com/sluicelimits/sluice/infra/config"
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
		"the cache is encrypted, doubled, asks who it is, and forgets nothing": 1,
	},
	"sluice-cell-f-2": { // without a kill switch
		"no value of a secret is in a template": 1, "roles may do what is granted, and nothing else": -1,
		"security groups take nothing from addresses, and one port each": 2, "security groups call https, the cache, or nobody": 3,
		"subnets give nobody a public address": 6, "endpoints are for what is called, by this account": 2,
		"the cache is encrypted, doubled, asks who it is, and forgets nothing": 1,
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
