package config_test

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/infra/config"
)

const least = "control: { region: eu-west-1 }\ncells: [ { id: eu-1, region: eu-west-1 } ]\n"

var leastWant = config.Deployment{
	Prefix: "sluice", Architecture: "arm64",
	Control: config.Control{
		Region: "eu-west-1", Audit: config.Audit{Mode: "GOVERNANCE", RetentionDays: 365},
		Pepper: "p1", MetricsNamespace: "Sluice", LogLevel: "info", LogDays: 30, CanaryMinutes: 5,
	},
	Cells:  []config.Cell{{ID: "eu-1", Region: "eu-west-1", Profile: "small", MaxInstances: 100, MemoryMB: 512}},
	Alarms: config.Alarms{Set: "usual"},
}

// Guarantees the defaults that the types document, and that the deployment file in the repository is valid.
func TestReadDefaults(t *testing.T) {
	shipped, err := os.ReadFile("../deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"the least": least, "deployment.yaml": string(shipped)} {
		d, err := config.Read("d.yaml", []byte(text))
		if err == nil && name == "deployment.yaml" { // this file sets anchors, and otherwise has the defaults
			if !d.Control.Audit.Anchors {
				t.Error("the file in the repository has no anchors")
			}
			d.Control.Audit.Anchors = false
		}
		if err != nil || !reflect.DeepEqual(*d, leastWant) {
			t.Errorf("%s: %+v, %v\nwant %+v", name, d, err, leastWant)
		}
	}
}

const all = `prefix: mine
account: "123456789012"
architecture: x86_64
control:
  region: us-east-1
  audit:
    mode: COMPLIANCE
    retentionDays: 30
    confirm: nobody can delete audit records for 30 days
    breakGlass: arn:aws:iam::123456789012:role/break/glass
    anchors: true
  trail: false
  pepper: p2
  metricsNamespace: My/Own
  logLevel: debug
  logDays: 90
  canaryMinutes: 15
  platformLogs: false
cells:
  - id: us-1
    region: us-east-1
    profile: full
    maxInstances: 7
    memoryMB: 1024
    trustedHops: 1
    retryJitter: 20
    leases: false
    deadlines: { redis: 9ms, dynamodb: 50ms, home: 1.5s }
    claims: [region]
    passDenials: [abc123]
    rollbackAlarms: ["arn:aws:cloudwatch:us-east-1:123456789012:alarm:backend"]
    waf: { rate: 2000, stages: ["arn:aws:apigateway:us-east-1::/restapis/abc123/stages/v1"] }
    cache: { node: cache.m7g.large, cluster: true, shards: 2, auth: secret, snapshotDays: 3 }
    network: { zones: 3, cidr: 10.1.0.0/18, egress: nat, flowLogs: true }
    attach: [ { rest: r1, allowOrigin: "*", defaultResponses: false }, { http: abc123 }, { webSocket: w1 } ]
    issuers:
      - issuer: https://id.example.com/
        audiences: [api]
        jwksUrl: https://id.example.com/keys
        algorithms: [ES256]
        audienceClaim: client_id
        tenantClaim: org
        subjectClaim: user
        tenants: [acme]
  - id: us-2
    region: us-east-1
    killSwitch: false
retired: [ { id: us-0, region: us-west-2 } ]
alarms: { set: all, topics: ["arn:aws:sns:us-east-1:123456789012:ops"] }
operators:
  principals: ["arn:aws:iam::123456789012:role/ci-*"]
  addresses: [203.0.113.7, "2001:db8::/32"]
  accessLogs: true
dashboards: true
`

// Guarantees that every key is read into its field: each field of this file differs from its default.
func TestReadAll(t *testing.T) {
	d, err := config.Read("d.yaml", []byte(all))
	want := config.Deployment{
		Prefix: "mine", Account: "123456789012", Architecture: "x86_64",
		Retired: []config.Retired{{ID: "us-0", Region: "us-west-2"}},
		Control: config.Control{
			Region: "us-east-1",
			Audit: config.Audit{
				Mode: "COMPLIANCE", RetentionDays: 30, Confirm: "nobody can delete audit records for 30 days",
				BreakGlass: "arn:aws:iam::123456789012:role/break/glass", Anchors: true,
			},
			NoTrail: true, Pepper: "p2", MetricsNamespace: "My/Own", LogLevel: "debug", LogDays: 90, CanaryMinutes: 15,
			NoPlatformLogs: true,
		},
		Cells: []config.Cell{{
			ID: "us-1", Region: "us-east-1", Profile: "full", MaxInstances: 7, MemoryMB: 1024, TrustedHops: 1,
			RetryJitter: 20, NoLeases: true,
			Deadlines: config.Deadlines{Redis: 9 * time.Millisecond, DynamoDB: 50 * time.Millisecond,
				Home: 1500 * time.Millisecond},
			Claims: []string{"region"}, PassDenials: []string{"abc123"},
			Issuers: []config.Issuer{{
				Issuer: "https://id.example.com/", Audiences: []string{"api"}, JWKSURL: "https://id.example.com/keys",
				Algorithms:    []string{"ES256"},
				AudienceClaim: "client_id", TenantClaim: "org", SubjectClaim: "user", Tenants: []string{"acme"},
			}},
			RollbackAlarms: []string{"arn:aws:cloudwatch:us-east-1:123456789012:alarm:backend"},
			WAF: &config.WAF{Rate: 2000,
				Stages: []string{"arn:aws:apigateway:us-east-1::/restapis/abc123/stages/v1"}},
			Cache: &config.Valkey{Node: "cache.m7g.large", Cluster: true, Shards: 2, Auth: "secret",
				SnapshotDays: 3},
			Network: &config.Network{Zones: 3, CIDR: "10.1.0.0/18", Egress: "nat", FlowLogs: true},
			Attach: []config.Attachment{{REST: "r1", AllowOrigin: "*", NoDefaultResponses: true},
				{HTTP: "abc123"}, {WebSocket: "w1"}},
		}, {ID: "us-2", Region: "us-east-1", Profile: "small", MaxInstances: 100, MemoryMB: 512, NoKillSwitch: true}},
		Alarms: config.Alarms{Set: "all", Topics: []string{"arn:aws:sns:us-east-1:123456789012:ops"}}, Dashboards: true,
		Operators: config.Callers{
			Principals: []string{"arn:aws:iam::123456789012:role/ci-*"}, Addresses: []string{"203.0.113.7",
				"2001:db8::/32"},
			AccessLogs: true,
		},
	}
	if err != nil || !reflect.DeepEqual(*d, want) {
		t.Errorf("%+v, %v\nwant %+v", d, err, want)
	}
	for _, part := range []any{want, want.Control, want.Control.Audit, want.Cells[0], want.Cells[0].Deadlines,
		want.Operators} {
		v := reflect.ValueOf(part)
		for i := range v.NumField() {
			// the other cell's: this one has alarms for it
			if v.Field(i).IsZero() && v.Type().Field(i).Name != "NoKillSwitch" {
				t.Errorf("the file does not set %s.%s, so its reading is not tested", v.Type().Name(),
					v.Type().Field(i).Name)
			}
		}
	}
	if first := *d; first.Complete() != nil || !reflect.DeepEqual(first, want) {
		t.Errorf("completing the deployment again changes it to %+v", first)
	}
}

// Guarantees that an email address for alarms is read. A file with its own topics cannot have one.
func TestReadEmail(t *testing.T) {
	d, err := config.Read("d.yaml", []byte(least+"alarms: { email: ops@example.com }\n"))
	if err != nil || d.Alarms.Email != "ops@example.com" || d.Alarms.Topic("eu-west-1") != "" {
		t.Errorf("%+v, %v", d, err)
	}
}

// with returns the smallest valid file, with another control plane and other cells.
func with(control, cells string) string {
	return "control: { region: eu-west-1" + control + " }\ncells:\n" + cells
}

func manyCells(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  - { id: eu-%d, region: eu-west-1 }\n", i)
	}
	return b.String()
}

func alarms(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("'arn:aws:cloudwatch:eu-west-1:123456789012:alarm:%d'", i)
	}
	return strings.Join(all, ", ")
}

// Guarantees that impossible values are refused, each in one clear line with its place.
func TestReadProblems(t *testing.T) {
	const cell = "  - { id: eu-1, region: eu-west-1 }\n"
	for name, tt := range map[string]struct{ text, want string }{
		"a cell twice": {with("", cell+"  - { id: us-1, region: us-east-1 }\n"+cell),
			`d.yaml:5:11: cells[2].id: the id "eu-1" is used twice, first in cells[0]`},
		"a retired cell that serves": {with("", cell+"retired: [ { id: eu-1, region: eu-west-1 } ]\n"),
			`d.yaml:4:18: retired[0].id: the id "eu-1" is used twice, first in cells[0]`},
		"a retired cell of nowhere": {with("", cell+"retired: [ { id: eu-0 } ]\n"),
			`d.yaml:4:12: retired[0].region: is missing`},
		"an unknown region": {with("", "  - { id: eu-1, region: eu-west-9 }\n"),
			`d.yaml:3:25: cells[0].region: "eu-west-9" is not a known region of AWS`},
		"an unknown region of the control plane": {"control: { region: mars }\ncells:\n" + cell,
			`d.yaml:1:20: control.region: "mars" is not a known region of AWS`},
		"COMPLIANCE without a confirmation": {with(", audit: { mode: COMPLIANCE }", cell),
			`d.yaml:1:46: control.audit.mode: nobody can undo COMPLIANCE: confirm it with the key confirm, "nobody ` +
				`can delete audit records for 365 days"`},
		"the confirmation of another time": {with(", audit: { mode: COMPLIANCE, retentionDays: 7, confirm: nobody "+
			"can delete audit records for 365 days }", cell),
			`d.yaml:1:46: control.audit.mode: nobody can undo COMPLIANCE: confirm it with the key confirm, "nobody ` +
				`can delete audit records for 7 days"`},
		"a user who breaks the glass": {with(", audit: { breakGlass: arn:aws:iam::123456789012:user/ann }", cell),
			`d.yaml:1:52: control.audit.breakGlass: "arn:aws:iam::123456789012:user/ann" is not a role's ARN such ` +
				`as arn:aws:iam::123456789012:role/break-glass`},
		"a confirmation of nothing": {with(", audit: { confirm: x }", cell),
			`d.yaml:1:49: control.audit.confirm: is only for the mode COMPLIANCE`},
		"zero concurrency": {with("", "  - { id: eu-1, region: eu-west-1, maxInstances: 0 }\n"),
			`d.yaml:3:50: cells[0].maxInstances: must not be 0`},
		"negative concurrency": {with("", "  - { id: eu-1, region: eu-west-1, maxInstances: -1 }\n"),
			`d.yaml:3:50: cells[0].maxInstances: -1 is outside 1 to 10000`},
		"no cells": {"control: { region: eu-west-1 }\ncells: []\n",
			`d.yaml:2:8: cells: there are 0, want 1 to 50`},
		"no key cells": {"control: { region: eu-west-1 }\n",
			`d.yaml:1:1: cells: there are 0, want 1 to 50`},
		"too many cells":   {with("", manyCells(51)), `d.yaml:3:3: cells: there are 51, want 1 to 50`},
		"no control plane": {"cells:\n" + cell, `d.yaml:1:1: control.region: is missing`},
		"no id":            {with("", "  - { region: eu-west-1 }\n"), `d.yaml:3:5: cells[0].id: is missing`},
		"another partition": {with("", "  - { id: cn-1, region: cn-north-1 }\n"),
			`d.yaml:3:25: cells[0].region: cn-north-1 is in the partition aws-cn, and the control plane's region ` +
				`eu-west-1 in aws: AWS has no connection between partitions`},
		"an unknown key": {with("", "  - { id: eu-1, region: eu-west-1, size: 3 }\n"),
			`d.yaml:3:36: cells[0]: unknown key "size" in a cell; known: attach, cache, claims, deadlines, id, ` +
				`issuers, killSwitch, leases, maxInstances, memoryMB, network, passDenials, profile, region, ` +
				`retryJitter, rollbackAlarms, trustedHops, waf`},
		"a key twice": {with("", "  - { id: eu-1, id: eu-2, region: eu-west-1 }\n"),
			`d.yaml:3:17: cells[0]: key "id" is there twice, first at line 3`},
		"an id of ours": {with("", "  - { id: EU_1, region: eu-west-1 }\n"),
			`d.yaml:3:11: cells[0].id: "EU_1" is not 1 to 24 of a-z 0-9 and single hyphens between them, beginning ` +
				`with a letter`},
		"two hyphens": {with("", "  - { id: eu--1, region: eu-west-1 }\n"),
			`d.yaml:3:11: cells[0].id: "eu--1" is not 1 to 24`},
		"a set of alarms": {least + "alarms: { set: some }\n",
			`d.yaml:3:16: alarms.set: "some" is not one of usual, all`},

		"an operator of another account": {
			"account: '123456789012'\n" + least + "operators: { principals: ['arn:aws:iam::210987654321:role/x'] }\n",
			`d.yaml:4:27: operators.principals[0]: "arn:aws:iam::210987654321:role/x" is not in the account ` +
				`123456789012, and callers of another account are never admitted`,
		},
		"an operator's session": {
			least + "operators: { principals: ['arn:aws:sts::123456789012:assumed-role/x/y'] }\n",
			`d.yaml:3:27: operators.principals[0]: "arn:aws:sts::123456789012:assumed-role/x/y" is not the ARN of ` +
				`a role or a user, as in arn:aws:iam::123456789012:role/operators`,
		},
		"an operator twice": {
			least + "operators: { principals: ['arn:aws:iam::123456789012:user/a', " +
				"'arn:aws:iam::123456789012:user/a'] }\n",
			`d.yaml:3:63: operators.principals[1]: "arn:aws:iam::123456789012:user/a" is listed twice`,
		},
		"an address within a network": {
			least + "operators: { addresses: [203.0.113.7/24] }\n",
			`d.yaml:3:26: operators.addresses[0]: "203.0.113.7/24" is not an IP address, or a network such as ` +
				`203.0.113.0/24 whose host bits are 0`,
		},
		"a host as an address": {
			least + "operators: { addresses: [vpn.example.com] }\n",
			`d.yaml:3:26: operators.addresses[0]: "vpn.example.com" is not an IP address, or a network such as ` +
				`203.0.113.0/24 whose host bits are 0`,
		},

		"an address": {least + "alarms: { email: ops }\n",
			`d.yaml:3:18: alarms.email: "ops" is not an address of e-mail`},
		"a topic elsewhere": {least + "alarms: { topics: ['arn:aws:sns:us-east-1:123456789012:ops'] }\n",
			`d.yaml:3:19: alarms.topics: there is no topic in eu-west-1, and an alarm can publish to topics of its ` +
				`own region only`},
		"a topic's name": {least + "alarms: { topics: [ops] }\n",
			`d.yaml:3:20: alarms.topics[0]: "ops" is not the ARN of a topic`},
		"topics and address": {least + "alarms: { email: a@b.c, topics: ['arn:aws:sns:eu-west-1:123456789012:ops'] }\n",
			`d.yaml:3:18: alarms.email: cannot be combined with topics: subscribe the address to your topics instead`},
		"alarms of nothing": {with("", "  - { id: a, region: eu-west-1, killSwitch: false, rollbackAlarms: "+
			"['arn:aws:cloudwatch:eu-west-1:123456789012:alarm:x'] }\n"), `d.yaml:3:68: cells[0].rollbackAlarms: ` +
			`need the kill switch, but killSwitch is false`},
		"an alarm elsewhere": {with("", "  - { id: a, region: eu-west-1, rollbackAlarms: "+
			"['arn:aws:cloudwatch:us-east-1:123456789012:alarm:x'] }\n"),
			`d.yaml:3:50: cells[0].rollbackAlarms[0]: "arn:aws:cloudwatch:us-east-1:123456789012:alarm:x" is not ` +
				`the ARN of an alarm in eu-west-1`},
		"any alarm": {with("", "  - { id: a, region: eu-west-1, rollbackAlarms: "+
			"['arn:aws:cloudwatch:eu-west-1:123456789012:alarm:*'] }\n"), `d.yaml:3:50: cells[0].rollbackAlarms[0]: ` +
			`"arn:aws:cloudwatch:eu-west-1:123456789012:alarm:*" is not the ARN of an alarm in eu-west-1`},
		"too many alarms": {with("", "  - { id: a, region: eu-west-1, rollbackAlarms: ["+alarms(4)+"] }\n"),
			`d.yaml:3:49: cells[0].rollbackAlarms: there are 4, want at most 3 beside the cell's own`},
		"no rate": {with("", "  - { id: a, region: eu-west-1, waf: { } }\n"),
			`d.yaml:3:38: cells[0].waf.rate: 0 is outside 10 to 2000000000`},
		"a stage of an HTTP API": {with("", "  - { id: a, region: eu-west-1, waf: { rate: 100, stages: "+
			"['arn:aws:apigateway:eu-west-1::/apis/abc/stages/v1'] } }\n"),
			`d.yaml:3:60: cells[0].waf.stages[0]: "arn:aws:apigateway:eu-west-1::/apis/abc/stages/v1" is a stage of ` +
				`an HTTP or WebSocket API, which AWS WAF does not support: put CloudFront in front of the API`},
		"a stage elsewhere": {with("", "  - { id: a, region: eu-west-1, waf: { rate: 100, stages: "+
			"['arn:aws:apigateway:us-east-1::/restapis/abc/stages/v1'] } }\n"),
			`d.yaml:3:60: cells[0].waf.stages[0]: "arn:aws:apigateway:us-east-1::/restapis/abc/stages/v1" is not ` +
				`the ARN of a stage of a REST API in eu-west-1`},
		"a bare account": {"account: 123456789012\n" + least,
			`d.yaml:1:10: account: want a string, got the integer 123456789012: write it in quotes, "123456789012"`},
		"a short account": {"account: '12'\n" + least, `d.yaml:1:10: account: "12" is not an account's 12 digits`},
		"a prefix": {"prefix: my-own\n" + least,
			`d.yaml:1:9: prefix: "my-own" is not a letter and up to 15 of a-z 0-9`},
		"an empty text": {"prefix: ''\n" + least, `d.yaml:1:9: prefix: is empty: leave it out for the default`},
		"octal": {with("", "  - { id: eu-1, region: eu-west-1, memoryMB: 0512 }\n"),
			`d.yaml:3:46: cells[0].memoryMB: 0512 is not a decimal integer`},
		"yes": {with("", "  - { id: eu-1, region: eu-west-1, leases: yes }\n"),
			`d.yaml:3:44: cells[0].leases: want true or false, got the string "yes"`},
		"a mapping": {"control: eu-west-1\ncells:\n" + cell,
			`d.yaml:1:10: control: want the control plane (a mapping), got the string "eu-west-1"`},
		"a list": {"control: { region: eu-west-1 }\ncells: eu-1\n",
			`d.yaml:2:8: cells: want a list of cells, got the string "eu-1"`},
		"an alias": {"control: &a { region: eu-west-1 }\ncells: [ *a ]\n",
			`d.yaml:1:10: cells[0].id: is missing`},
		"canary": {with(", canaryMinutes: 61", cell),
			`d.yaml:1:46: control.canaryMinutes: 61 is outside 1 to 60`},
		"log days": {with(", logDays: 31", cell),
			`d.yaml:1:40: control.logDays: 31 is not a retention of CloudWatch Logs: 1 3 5 7 14 30 60`},
		"claims of nobody": {with("", "  - { id: eu-1, region: eu-west-1, claims: [region] }\n"),
			`d.yaml:3:44: cells[0].claims: need issuers, because claims come from JWTs`},
		"an open issuer": {with("", "  - { id: eu-1, region: eu-west-1, issuers: [ { issuer: x, audiences: [a], "+
			"jwksUrl: 'https://x/' } ] }\n"),
			`d.yaml:3:47: cells[0].issuers[0]: want either tenants, the ids for which the issuer may issue tokens, ` +
				`or allTenants: true`},
		"keys in clear": {with("", "  - { id: eu-1, region: eu-west-1, issuers: [ { issuer: x, audiences: [a], "+
			"jwksUrl: 'http://x/', allTenants: true } ] }\n"),
			`d.yaml:3:85: cells[0].issuers[0].jwksUrl: "http://x/" is not an https URL`},
		"an architecture": {"architecture: amd64\n" + least,
			`d.yaml:1:15: architecture: "amd64" is not one of arm64, x86_64`},
		"a bare deadline": {with("", "  - { id: a, region: eu-west-1, deadlines: { dynamodb: 100 } }\n"),
			`d.yaml:3:56: cells[0].deadlines.dynamodb: want a time such as 8ms or 2s, got the integer 100`},
		"no deadline": {with("", "  - { id: a, region: eu-west-1, deadlines: { dynamodb: 0s } }\n"),
			`d.yaml:3:56: cells[0].deadlines.dynamodb: want a time such as 8ms or 2s, got the string "0s"`},
		"a long deadline": {with("", "  - { id: a, region: eu-west-1, deadlines: { dynamodb: 6s } }\n"),
			`d.yaml:3:56: cells[0].deadlines.dynamodb: 6s is outside 1ms to 5s`},
		"a short deadline": {with("", "  - { id: a, region: eu-west-1, deadlines: { dynamodb: 999us } }\n"),
			`d.yaml:3:56: cells[0].deadlines.dynamodb: 999µs is outside 1ms to 5s`},
		"a past deadline": {with("", "  - { id: a, region: eu-west-1, deadlines: { dynamodb: -1s } }\n"),
			`d.yaml:3:56: cells[0].deadlines.dynamodb: -1s is outside 1ms to 5s`},
		"Redis in none": {with("", "  - { id: a, region: eu-west-1, deadlines: { redis: 8ms } }\n"),
			`d.yaml:3:53: cells[0].deadlines.redis: has no use: a small cell counts in DynamoDB alone: say profile: ` +
				`full`},
		"homes of one cell": {with("", "  - { id: a, region: eu-west-1, deadlines: { home: 1s } }\n"),
			`d.yaml:3:52: cells[0].deadlines.home: has no use: there is no other cell, and so no other home of quotas`},
		"an API twice": {with("", "  - { id: eu-1, region: eu-west-1, passDenials: [a, a] }\n"),
			`d.yaml:3:53: cells[0].passDenials[1]: "a" is listed twice`},
		"nothing":  {"", `d.yaml:1:1: the file is empty: it needs control and cells`},
		"comments": {"# nothing\n", `d.yaml:1:1: the file is empty: it needs control and cells`},
		"two files": {least + "---\n" + least,
			`d.yaml:4:1: a second YAML document begins here: one file holds one document`},
		"no YAML": {"control: [\n", `d.yaml:1:1: not valid YAML: `},
		"too large": {"#" + strings.Repeat("x", 1<<18) + "\n" + least,
			`d.yaml: the file is larger than 256 KiB`},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := config.Read("d.yaml", []byte(tt.text))
			var all *config.Error
			if !errors.As(err, &all) || d != nil || !strings.HasPrefix(all.Problems[0].String(), tt.want) {
				t.Fatalf("%v\nwant %s", err, tt.want)
			}
			if len(all.Problems) > 1 {
				t.Errorf("more than one line for one mistake:\n%v", err)
			}
		})
	}
}

// Guarantees that all problems of a file are reported in one run, in the order of the file.
func TestReadAllProblems(t *testing.T) {
	_, err := config.Read("d.yaml", []byte(with(", logLevel: loud",
		"  - { id: 1, region: mars }\n  - { id: a, region: eu-west-1, memoryMB: 1 }\n")))
	want := []string{"d.yaml:1:41: control.logLevel: ", "d.yaml:3:11: cells[0].id: ", "d.yaml:3:22: cells[0].region: ",
		"d.yaml:4:43: cells[1].memoryMB: "}
	lines := strings.Split(fmt.Sprint(err), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%v\nwant %d lines", err, len(want))
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, want[i]) {
			t.Errorf("line %d is %s, want %s…", i+1, line, want[i])
		}
	}
}

// Guarantees that the example in the documentation is valid and has every key.
func TestDocumentation(t *testing.T) {
	const file = "../../docs/deploy.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(text), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	if d, err := config.Read(file, []byte(example)); err != nil || len(d.Cells) != 2 {
		t.Errorf("the example of %s: %+v, %v", file, d, err)
	}
	if !strings.Contains(string(text), config.Confirmation(365)) {
		t.Errorf("%s does not explain how to confirm COMPLIANCE", file)
	}
	_, err = config.Read("d.yaml", []byte("x: 1\nalarms: { x: 1 }\ncontrol: { x: 1, audit: { x: 1 } }\ncells: [ { x: "+
		"1, issuers: [ { x: 1 } ], deadlines: { x: 1 }, waf: { x: 1 }, cache: { x: 1 }, network: { x: 1 }, attach: [ "+
		"{ x: 1 } ] } ]\nretired: [ { x: 1 } ]\noperators: { x: 1 }\n"))
	known := 0
	for line := range strings.SplitSeq(fmt.Sprint(err), "\n") {
		_, keys, _ := strings.Cut(line, "; known: ")
		for key := range strings.SplitSeq(keys, ", ") {
			if key == "" {
				continue
			}
			known++
			if !strings.Contains(example, key+":") && !strings.Contains(string(text), "`"+key) {
				t.Errorf("%s does not have the key %s", file, key)
			}
		}
	}
	if want := 85; known != want {
		t.Errorf("the types have %d keys, want %d; this test has to cover all of them", known, want)
	}
}

// FuzzRead checks that no file makes the reader panic or hang, that an accepted deployment is within its bounds, and
// that each problem has a place and a text of one line.
func FuzzRead(f *testing.F) {
	f.Add(least)
	f.Add(all)
	f.Add("control: &a { region: eu-west-1 }\ncells: [ *a, *a ]\n? [x]\n: y\n")
	f.Add("cells: [[[[{")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := config.Read("d.yaml", []byte(text))
		var all *config.Error
		switch {
		case err == nil:
			if again := *d; again.Complete() != nil || !reflect.DeepEqual(again, *d) {
				t.Errorf("an accepted deployment is not complete: %+v", d)
			}
		case !errors.As(err, &all) || d != nil || len(all.Problems) == 0:
			t.Errorf("Read returns the error %v and a deployment: %+v", err, d)
		default:
			for _, p := range all.Problems {
				if p.File != "d.yaml" || p.Message == "" || strings.Contains(p.String(), "\n") {
					t.Errorf("a problem without a place or of several lines: %q", p.String())
				}
			}
		}
	})
}
