package config_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/infra/config"
)

// Guarantees the defaults of a full cell, and that with a VPC that exists none is created.
func TestFullDefaults(t *testing.T) {
	for name, tt := range map[string]struct {
		text    string
		network config.Network
	}{
		"nothing said": {"", config.Network{Zones: 2, CIDR: "10.0.0.0/20", Egress: "none"}},
		"a VPC of one's own": {", network: { vpc: vpc-0123456789abcdef0, subnets: [subnet-01234567, " +
			"subnet-89abcdef], egress: nat }",
			config.Network{Egress: "nat", VPC: "vpc-0123456789abcdef0", Subnets: []string{"subnet-01234567",
				"subnet-89abcdef"}}},
	} {
		d, err := config.Read("d.yaml", []byte(with("",
			"  - { id: a, region: eu-west-1, profile: full"+tt.text+" }\n")))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if want := (config.Valkey{Node: "cache.r7g.large", Shards: 1, Auth: "iam",
			SnapshotDays: 1}); *d.Cells[0].Cache != want {
			t.Errorf("%s: the cache is %+v, want %+v", name, *d.Cells[0].Cache, want)
		}
		if !reflect.DeepEqual(*d.Cells[0].Network, tt.network) {
			t.Errorf("%s: the network is %+v, want %+v", name, *d.Cells[0].Network, tt.network)
		}
	}
}

// Guarantees that a full cell is refused, in one line that says what to do, if it cannot be created, cannot reach the
// services that it calls, or would open more connections than the cache accepts. The same holds for an API that is
// attached twice, or in no way.
func TestFullProblems(t *testing.T) {
	full := func(more string) string { return with("", "  - { id: a, region: eu-west-1, profile: full"+more+" }\n") }
	issuer := ", issuers: [ { issuer: x, audiences: [a], jwksUrl: 'https://x/', allTenants: true } ]"
	for name, tt := range map[string]struct{ text, want string }{
		"a cache of a small cell": {with("", "  - { id: a, region: eu-west-1, cache: {} }\n"),
			`cells[0].cache: is for full cells only, because a small cell counts in DynamoDB: set profile: full`},
		"a network of a small cell": {with("", "  - { id: a, region: eu-west-1, network: {} }\n"),
			`cells[0].network: is for full cells only, because a small cell has no VPC: set profile: full`},
		"a node": {full(", cache: { node: r7g.large }"),
			`cells[0].cache.node: "r7g.large" is not a type of node such as cache.r7g.large`},
		"shards without a cluster": {full(", cache: { shards: 2 }"),
			`cells[0].cache.shards: 2 shards are a cluster: say cluster: true`},
		"too many shards": {full(", cache: { cluster: true, shards: 251 }"),
			`cells[0].cache.shards: 251 is outside 1 to 250`},
		"no password": {full(", cache: { auth: none }"),
			`cells[0].cache.auth: "none" is not one of iam, secret`},
		"snapshots": {full(", cache: { snapshotDays: 36 }"),
			`cells[0].cache.snapshotDays: 36 is outside 1 to 35`},
		"connections": {full(", maxInstances: 2030"),
			`cells[0].maxInstances: 2030 instances may open 32 connections each to a node, in addition to those of ` +
				`ops, but cache.r7g.large accepts those of 2029: use a larger node, or more cells`},
		"connections of a small node": {full(", maxInstances: 623, cache: { node: cache.t4g.micro }"),
			`cells[0].maxInstances: 623 instances may open 32 connections each to a node, in addition to those of ` +
				`ops, but cache.t4g.micro accepts those of 622: use a larger node, or more cells`},
		"connections of an older node": {full(", maxInstances: 1436, cache: { node: cache.t3.medium }"),
			`cells[0].maxInstances: 1436 instances may open 32 connections each to a node, in addition to those of ` +
				`ops, but cache.t3.medium accepts those of 1435: use a larger node, or more cells`},
		"issuers and no way out": {full(issuer),
			`cells[0].issuers: their keys are on the internet, which the cell's VPC cannot reach: set network: { ` +
				`egress: nat }`},
		"issuers and no way out of one": {full(issuer + ", network: { vpc: vpc-01234567, subnets: [subnet-01234567, " +
			"subnet-89abcdef] }"), `cells[0].issuers: their keys are on the internet, which the cell's VPC cannot ` +
			`reach`},
		"the control plane elsewhere": {with("", "  - { id: a, region: us-east-1, profile: full }\n"),
			`cells[0]: the control plane's tables are in another region, to which there is no way out of the cell's ` +
				`VPC: say network: { egress: nat }`},
		"quotas elsewhere": {full("") + "  - { id: b, region: us-east-1 }\n",
			`cells[0]: the quotas of cell b are in another region, to which there is no way out`},
		"quotas that are left": {full("") + "retired: [ { id: b, region: us-east-1 } ]\n",
			`cells[0]: the quotas of cell b are in another region`},
		"zones": {full(", network: { zones: 4 }"), `cells[0].network.zones: 4 is outside 2 to 3`},
		"a public range": {full(", network: { cidr: 8.0.0.0/16 }"),
			`cells[0].network.cidr: "8.0.0.0/16" is not a private range of /16 to /24 such as 10.0.0.0/20`},
		"a range with a host": {full(", network: { cidr: 10.0.0.1/16 }"),
			`cells[0].network.cidr: "10.0.0.1/16" is not`},
		"a small range": {full(", network: { cidr: 10.0.0.0/25 }"),
			`cells[0].network.cidr: "10.0.0.0/25" is not`},
		"egress": {full(", network: { egress: yes }"),
			`cells[0].network.egress: "yes" is not one of none, nat`},
		"a VPC without subnets": {full(", network: { vpc: vpc-01234567 }"),
			`cells[0].network.subnets: there are 0, want one subnet in each of 2 or 3 zones`},
		"subnets without a VPC": {full(", network: { subnets: [subnet-01234567, subnet-89abcdef] }"),
			`cells[0].network.vpc: is missing`},
		"a VPC and a range": {full(", network: { vpc: vpc-01234567, subnets: [subnet-01234567, subnet-89abcdef], " +
			"cidr: 10.0.0.0/20 }"), `cells[0].network.vpc: names an existing VPC: leave out zones and cidr, which ` +
			`are for a VPC that is made`},
		"flow logs of a VPC": {full(", network: { vpc: vpc-01234567, subnets: [subnet-01234567, subnet-89abcdef], " +
			"flowLogs: true }"),
			`cells[0].network.flowLogs: are for a VPC that is made: turn on flow logs of an existing VPC where you ` +
				`manage it`},
		"a VPC by its name": {full(", network: { vpc: main, subnets: [subnet-01234567, subnet-89abcdef] }"),
			`cells[0].network.vpc: "main" is not the id of a VPC`},
		"a subnet by its name": {full(", network: { vpc: vpc-01234567, subnets: [subnet-01234567, b] }"),
			`cells[0].network.subnets[1]: "b" is not the id of a subnet`},
		"China": {"control: { region: cn-north-1 }\ncells: [ { id: a, region: cn-north-1, profile: full } ]\n",
			`cells[0].network: cannot be made in China, where VPC endpoints have other names: give an existing VPC ` +
				`that has them, with vpc and subnets`},
		"a long name": {"prefix: abcdefghijklmnop\n" +
			with("", "  - { id: abcdefghijklmnopqr, region: eu-west-1, profile: full }\n"),
			`cells[0].id: the cache's name would be "abcdefghijklmnop-abcdefghijklmnopqr-cache", and ElastiCache ` +
				`accepts 40 characters: use a shorter id or prefix`},
		"an API of no kind": {with("", "  - { id: a, region: eu-west-1, attach: [ {} ] }\n"),
			`cells[0].attach[0]: want exactly one of rest, http and webSocket, with the API's id`},
		"an API of two": {with("", "  - { id: a, region: eu-west-1, attach: [ { rest: x, http: y } ] }\n"),
			`cells[0].attach[0]: want exactly one of rest, http and webSocket, with the API's id`},
		"an API by its ARN": {with("", "  - { id: a, region: eu-west-1, attach: [ { rest: 'arn:x' } ] }\n"),
			`cells[0].attach[0].rest: "arn:x" is not an API's id`},
		"an API twice": {with("", "  - { id: a, region: eu-west-1, attach: [ { rest: x } ] }\n  - { id: b, region: "+
			"eu-west-1, attach: [ { rest: x } ] }\n"), `cells[1].attach[0]: the API "x" is attached twice, first as ` +
			`cells[0].attach[0], but an API can have the authorizer of one cell only`},
		"an origin of an HTTP API": {with("", "  - { id: a, region: eu-west-1, attach: [ { http: x, allowOrigin: "+
			"'*' } ] }\n"), `cells[0].attach[0]: allowOrigin and defaultResponses are for REST APIs only: other ` +
			`APIs have no gateway responses`},
		"two origins": {with("", "  - { id: a, region: eu-west-1, attach: [ { rest: x, allowOrigin: "+
			"'a, b' } ] }\n"), `cells[0].attach[0].allowOrigin: "a, b" is neither one origin nor "*"`},
		"denials past a REST API": {with("", "  - { id: a, region: eu-west-1, passDenials: [x], attach: [ { rest: x "+
			"} ] }\n"), `cells[0].attach[0].rest: is in passDenials, which is for HTTP and WebSocket APIs: a REST ` +
			`API answers denials with 429 by itself`},
		"more APIs than a cell has": {with("",
			"  - { id: a, region: eu-west-1, attach: [ "+strings.Repeat("{ rest: x }, ",
				41)+" ] }\n"), `cells[0].attach: there are 41, want at most 40: Lambda accepts no longer policy on ` +
			`one function`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Read("d.yaml", []byte(tt.text))
			var all *config.Error
			if !errors.As(err, &all) || all.Problems[0].Line == 0 ||
				!strings.HasPrefix(all.Problems[0].Path+": "+all.Problems[0].Message, tt.want) {
				t.Fatalf("%v\nwant %s", err, tt.want)
			}
			if len(all.Problems) > 1 {
				t.Errorf("more than one line for one mistake:\n%v", err)
			}
		})
	}
	for _, most := range []string{", maxInstances: 2029", ", maxInstances: 622, cache: { node: cache.t4g.micro }",
		issuer + ", network: { egress: nat }"} {
		if _, err := config.Read("d.yaml", []byte(full(most))); err != nil {
			t.Errorf("%s: %v", most, err)
		}
	}
}

// own is a VPC that exists already.
const own = ", network: { vpc: vpc-01234567, subnets: [subnet-01234567, subnet-89abcdef] }"

// Guarantees that an existing cache replaces the one that would be created, with all its settings.
func TestGivenCache(t *testing.T) {
	for cache, want := range map[string]config.Valkey{
		"endpoint: 'a.example.com:6379', auth: iam, name: counters, user: Sluice-1, securityGroup: " +
			"sg-0123456789abcdef0": {
			Endpoint: "a.example.com:6379", Auth: "iam", Name: "counters", User: "Sluice-1",
			SecurityGroup: "sg-0123456789abcdef0"},
		"endpoint: 'a.example.com:6379', cluster: true, auth: secret, secret: team/login": {
			Endpoint: "a.example.com:6379", Cluster: true, Auth: "secret", Secret: "team/login"},
		"endpoint: '[fd00::1]:6379', auth: none, tls: false": {Endpoint: "[fd00::1]:6379",
			Auth: "none", PlainText: true},
		"endpoint: 'localhost:1', auth: secret, secret: x, tls: false": {Endpoint: "localhost:1",
			Auth: "secret", Secret: "x", PlainText: true},
		"endpoint: '127.0.0.1:65535', auth: none, tls: true": {Endpoint: "127.0.0.1:65535", Auth: "none"},
	} {
		d, err := config.Read("d.yaml", []byte(with("", "  - { id: a, region: eu-west-1, profile: full, "+
			"maxInstances: 10000, cache: { "+cache+" }"+own+" }\n")))
		if err != nil || *d.Cells[0].Cache != want {
			t.Errorf("%s: %+v, %v\nwant %+v", cache, d, err, want)
			continue
		}
		if port := d.Cells[0].Cache.Port(); !strings.HasSuffix(want.Endpoint, fmt.Sprint(":", port)) {
			t.Errorf("the port of %s is %d", want.Endpoint, port)
		}
	}
	// The example of the page, inserted into the cell that it is a part of.
	const file = "../../docs/deploy.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(text), "```yaml\n    cache:\n")
	example, _, _ = strings.Cut(example, "```")
	d, err := config.Read(file, []byte(with("",
		"  - id: a\n    region: eu-west-1\n    profile: full\n    cache:\n"+example)))
	if err != nil || d.Cells[0].Cache.Endpoint == "" || d.Cells[0].Network.VPC == "" {
		t.Errorf("the example of %s: %+v, %v", file, d, err)
	}
}

// Guarantees that the settings of an existing cache are checked together, that no password is sent to the cache without
// TLS, and that an error does not repeat a text which may be a password.
func TestGivenCacheProblems(t *testing.T) {
	const marker = "hunter2"
	cell := func(cache string) string {
		return "  - { id: a, region: eu-west-1, profile: full, cache: { " + cache + " }" + own + " }\n"
	}
	for name, tt := range map[string]struct{ text, want string }{
		"no port": {cell("auth: none, endpoint: " + marker),
			`cells[0].cache.endpoint: is not host:port, such as cache.example.com:6379`},
		"port 0":      {cell("auth: none, endpoint: 'a:0'"), `cells[0].cache.endpoint: is not host:port`},
		"a high port": {cell("auth: none, endpoint: 'a:65536'"), `cells[0].cache.endpoint: is not host:port`},
		"a URL": {cell("auth: none, endpoint: 'redis://:" + marker + "@a:6379'"),
			`cells[0].cache.endpoint: is not host:port`},
		"a login": {cell("auth: none, endpoint: '" + marker + "@a:6379'"),
			`cells[0].cache.endpoint: is not host:port`},
		"two": {cell("auth: none, cluster: true, endpoint: 'a:6379,b:6379'"),
			`cells[0].cache.endpoint: is not host:port`},
		"no way to show": {cell("endpoint: 'a:6379'"),
			`cells[0].cache.auth: is missing: say how functions authenticate to the cache, by one of iam, secret, ` +
				`none`},
		"another way": {cell("endpoint: 'a:6379', auth: password"),
			`cells[0].cache.auth: "password" is not one of iam, secret, none`},
		"iam without a name": {cell("endpoint: 'a:6379', auth: iam, user: u"),
			`cells[0].cache.name: is missing, but auth: iam needs it`},
		"iam without a user": {cell("endpoint: 'a:6379', auth: iam, name: n"),
			`cells[0].cache.user: is missing, but auth: iam needs it`},
		"any cache": {cell("endpoint: 'a:6379', auth: iam, user: u, name: '*'"),
			`cells[0].cache.name: is not the id of a replication group`},
		"any user": {cell("endpoint: 'a:6379', auth: iam, user: '*', name: n"),
			`cells[0].cache.user: is not the id of a user`},
		"no secret": {cell("endpoint: 'a:6379', auth: secret"),
			`cells[0].cache.secret: is missing, but auth: secret needs it`},
		"any secret": {cell("endpoint: 'a:6379', auth: secret, secret: '*'"),
			`cells[0].cache.secret: is not the name of a secret`},
		"a password": {cell("endpoint: 'a:6379', auth: secret, secret: '" + marker + "!'"),
			`cells[0].cache.secret: is not the name of a secret`},
		"a secret of nobody": {cell("endpoint: 'a:6379', auth: none, secret: x"),
			`cells[0].cache.secret: is only for auth: secret`},
		"a user of nobody": {cell("endpoint: 'a:6379', auth: none, user: x"),
			`cells[0].cache.user: is only for auth: iam`},
		"a name of nobody": {cell("endpoint: 'a:6379', auth: secret, secret: x, name: y"),
			`cells[0].cache.name: is only for auth: iam`},
		"a password in clear": {cell("endpoint: 'a:6379', auth: secret, secret: x, tls: false"),
			`cells[0].cache.tls: must be true: the functions' credentials must not be sent unencrypted`},
		"a token in clear": {cell("endpoint: '10.0.0.1:6379', auth: iam, name: n, user: u, tls: false"),
			`cells[0].cache.tls: must be true: the functions' credentials must not be sent unencrypted`},
		"a group's name": {cell("endpoint: 'a:6379', auth: none, securityGroup: cache"),
			`cells[0].cache.securityGroup: "cache" is not the id of a security group`},
		"nodes": {cell("endpoint: 'a:6379', auth: none, node: cache.r7g.large"),
			`cells[0].cache.node: is only for a cache that is made, but endpoint names an existing cache`},
		"shards": {cell("endpoint: 'a:6379', auth: none, cluster: true, shards: 1"),
			`cells[0].cache.shards: is only for a cache that is made, but endpoint names an existing cache`},
		"snapshots": {cell("endpoint: 'a:6379', auth: none, snapshotDays: 1"),
			`cells[0].cache.snapshotDays: is only for a cache that is made, but endpoint names an existing cache`},
		"a VPC that is made": {"  - { id: a, region: eu-west-1, profile: full, cache: { endpoint: 'a:6379', auth: " +
			"none } }\n", `cells[0].cache.endpoint: names an existing cache, which cannot be in a VPC that is yet ` +
			`to be made: give the cache's VPC, with network: { vpc, subnets }; or leave out endpoint, and a ` +
			`cache is made`},
		"one for two cells": {cell("endpoint: 'a:6379', auth: none") +
			strings.Replace(cell("endpoint: 'a:6379', auth: none"), "id: a", "id: b", 1),
			`cells[1].cache.endpoint: is the cache of cell "a", too, and cells would overwrite each other's ` +
				`counters: give each cell a cache of its own`},
		"no endpoint, no TLS": {cell("tls: false"),
			`cells[0].cache.tls: is of a cache that is there already: say its endpoint, or leave this out`},
		"only a name": {cell("name: x"), `cells[0].cache.name: is of a cache that is there already`},
		"only a user": {cell("user: x"), `cells[0].cache.user: is of a cache that is there already`},
		"only a secret": {cell("auth: secret, secret: x"),
			`cells[0].cache.secret: is of a cache that is there already`},
		"only a group": {cell("securityGroup: sg-01234567"),
			`cells[0].cache.securityGroup: is of a cache that is there already`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Read("d.yaml", []byte(with("", tt.text)))
			var all *config.Error
			if !errors.As(err, &all) || all.Problems[0].Line == 0 ||
				!strings.HasPrefix(all.Problems[0].Path+": "+all.Problems[0].Message, tt.want) {
				t.Fatalf("%v\nwant %s", err, tt.want)
			}
			if len(all.Problems) > 1 || strings.Contains(err.Error(), marker) {
				t.Errorf("more than one line for one mistake, or a password in the error:\n%v", err)
			}
		})
	}
	// Two VPCs may each have a cache at the same address.
	elsewhere := strings.NewReplacer("id: a", "id: b", "vpc-01234567",
		"vpc-89abcdef").Replace(cell("endpoint: '10.0.0.1:6379', auth: none"))
	if _, err := config.Read("d.yaml", []byte(with("",
		cell("endpoint: '10.0.0.1:6379', auth: none")+elsewhere))); err != nil {
		t.Errorf("in two VPCs: %v", err)
	}
}

// Guarantees that subnets are inside their VPC and do not overlap, and that a further zone does not move the other
// subnets.
func TestRanges(t *testing.T) {
	for _, cidr := range []string{"10.0.0.0/16", "10.0.0.0/20", "172.16.0.0/17", "192.168.255.0/24"} {
		whole := netip.MustParsePrefix(cidr)
		var before []string
		for zones := 2; zones <= 3; zones++ {
			private, public := (&config.Network{Zones: zones, CIDR: cidr}).Ranges()
			all := slices.Concat(private, public)
			if len(private) != zones || len(public) != zones {
				t.Fatalf("%s in %d zones: %v", cidr, zones, all)
			}
			for i, one := range all {
				p, err := netip.ParsePrefix(one)
				if err != nil || p != p.Masked() || !whole.Contains(p.Addr()) || p.Bits() != whole.Bits()+3 {
					t.Errorf("%s: %s, %v", cidr, one, err)
				}
				for _, other := range all[:i] {
					if p.Overlaps(netip.MustParsePrefix(other)) {
						t.Errorf("%s: %s and %s overlap", cidr, one, other)
					}
				}
			}
			for _, one := range before {
				if !slices.Contains(all, one) {
					t.Errorf("%s: with a further zone, the subnet %s is missing: %s", cidr, one, fmt.Sprint(all))
				}
			}
			before = all
		}
	}
}
