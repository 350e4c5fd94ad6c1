package infra_test

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// What happens to a resource of each type if its stack is deleted, or if the resource is replaced.
const (
	kept     = "RetainExceptOnCreate" // data that exists nowhere else
	saved    = "Snapshot"             // data of which a copy is enough
	goes     = "Delete"               // data on its way, or that is also written elsewhere
	no       = ""                     // the resource holds no data
	either   = "either"               // depends on the name: see stateHolds
	identity = "sluice-identity"
)

// states lists every type of resource. A new type must be added here, so that somebody thinks about it.
var states = map[string]string{
	"AWS::DynamoDB::Table": kept, "AWS::S3::Bucket": kept, "AWS::SecretsManager::Secret": either,
	"AWS::ElastiCache::ReplicationGroup": saved,
	"AWS::SQS::Queue":                    goes, "AWS::Logs::LogGroup": goes,

	"AWS::ApiGateway::Deployment": no, "AWS::ApiGateway::Method": no, "AWS::ApiGateway::Resource": no,
	"AWS::ApiGateway::RestApi": no, "AWS::ApiGateway::Stage": no,
	"AWS::ApiGateway::Authorizer": no, "AWS::ApiGateway::GatewayResponse": no, "AWS::ApiGatewayV2::Authorizer": no,
	"AWS::AppConfig::Application": no, "AWS::AppConfig::ConfigurationProfile": no,
	"AWS::AppConfig::DeploymentStrategy": no,
	"AWS::AppConfig::Environment":        no, "AWS::AppConfig::HostedConfigurationVersion": no,
	"AWS::CloudTrail::Trail": no, "AWS::CloudWatch::Alarm": no, "AWS::Events::Rule": no, "AWS::IAM::Role": no,
	"AWS::EC2::EIP": no, "AWS::EC2::InternetGateway": no, "AWS::EC2::NatGateway": no, "AWS::EC2::Route": no,
	"AWS::EC2::RouteTable": no, "AWS::EC2::SecurityGroup": no,
	"AWS::EC2::SecurityGroupEgress": no, "AWS::EC2::SecurityGroupIngress": no, "AWS::EC2::FlowLog": no,
	"AWS::EC2::Subnet": no, "AWS::EC2::SubnetRouteTableAssociation": no,
	"AWS::EC2::VPC": no, "AWS::EC2::VPCEndpoint": no, "AWS::EC2::VPCGatewayAttachment": no,
	"AWS::ElastiCache::ParameterGroup": no, "AWS::ElastiCache::SubnetGroup": no, "AWS::ElastiCache::User": no,
	"AWS::ElastiCache::UserGroup": no,
	"AWS::KMS::Key":               either, "AWS::CloudWatch::Dashboard": no, "AWS::WAFv2::WebACL": no,
	"AWS::WAFv2::WebACLAssociation":  no,
	"AWS::Lambda::EventInvokeConfig": no, "AWS::Lambda::EventSourceMapping": no, "AWS::Lambda::Function": no,
	"AWS::Lambda::Permission": no,
	"AWS::S3::BucketPolicy":   no, "AWS::SNS::Subscription": no, "AWS::SNS::Topic": no, "AWS::SNS::TopicPolicy": no,
	"AWS::SQS::QueuePolicy": no,
}

// review holds the checks of a security review of a deployment, in the form of [holds].
var review = map[string]checked{
	"what holds data is kept, and every type was looked at": {stateHolds, 1, 1, map[string]func(*template){
		"an unknown type": func(one *template) { one.Resources["X"] = &resource{Type: "AWS::EFS::FileSystem"} },
		"a table":         func(one *template) { firstOf(one, "AWS::DynamoDB::Table").DeletionPolicy = goes },
		"a queue":         func(one *template) { firstOf(one, "AWS::SQS::Queue").DeletionPolicy = "" },
	}},
	"no two functions have one role": {func(one *template) (wrong []string, looked int) {
		by := map[string]string{}
		for id, f := range one.ofType("AWS::Lambda::Function") {
			role := one.text(f.get("Role"))
			if other := by[role]; other != "" || role == "" {
				wrong = append(wrong, fmt.Sprintf("%s and %s have the role %s", id, other, role))
			}
			by[role], looked = id, looked+1
		}
		return wrong, looked
	}, 6, 4, map[string]func(*template){
		"one for all": func(one *template) {
			for _, f := range one.ofType("AWS::Lambda::Function") {
				f.Properties["Role"] = "arn:aws:iam::123456789012:role/one"
			}
		},
	}},
	"topics are reached by TLS alone": {
		holdOfEach("AWS::SNS::Topic", func(one *template, id string, _ *resource, wrong func(string, ...any)) {
			for _, p := range one.ofType("AWS::SNS::TopicPolicy") {
				for _, s := range list(p.get("PolicyDocument", "Statement")) {
					if get(p.get("Topics", 0), "Ref") == id && get(s, "Effect") == "Deny" &&
						get(s, "Action") == "sns:Publish" &&
						fmt.Sprint(get(s, "Principal", "AWS")) == "*" &&
						get(s, "Condition", "Bool", "aws:SecureTransport") == "false" {
						return
					}
				}
			}
			wrong("it is reached in clear")
		}), 1, 0, map[string]func(*template){
			"clear text": func(one *template) {
				for _, p := range one.ofType("AWS::SNS::TopicPolicy") {
					for _, s := range list(p.get("PolicyDocument", "Statement")) {
						delete(s.(map[string]any), "Condition")
					}
				}
			},
		},
	},
	"nothing secret is written in a template": {plainHolds, 1, 1, map[string]func(*template){
		"a password": func(one *template) {
			one.Resources["X"] = &resource{Type: "AWS::ElastiCache::User",
				Properties: map[string]any{"AuthenticationMode": map[string]any{
					"Passwords": []any{"correct-horse-battery"}}}}
		},
		"an access token": func(one *template) {
			one.Resources["X"] = &resource{Type: "AWS::ElastiCache::ReplicationGroup",
				Properties: map[string]any{"AuthToken": "correct-horse-battery"}}
		},
		"a secret that a variable would show": func(one *template) {
			firstOf(one, "AWS::Lambda::Function").get("Environment",
				"Variables").(map[string]any)["X"] = map[string]any{"Fn::Join": []any{"",
				[]any{"{{resolve:secretsmanager:", "x", "}}"}}}
		},
		"an access key": func(one *template) {
			firstOf(one, "AWS::Lambda::Function").get("Environment", "Variables").(map[string]any)["X"] = "AKIA" +
				"ABCDEFGHIJKLMNOP"
		},
		"a key in base64": func(one *template) {
			firstOf(one, "AWS::Lambda::Function").get("Environment",
				"Variables").(map[string]any)["X"] = "bm90LXRoZS1kZXYtcGVwcGVyLW9mLWV2ZXJ5b25lZQ=="
		},
		"an output": func(one *template) {
			one.Outputs["X"] = map[string]any{"Value": "{{resolve:secretsmanager:x:SecretString:password}}"}
		},
	}},
	"no answer of an authorizer is kept": {authorizersHold, 0, 0, map[string]func(*template){
		"five minutes": removeProperty("AWS::ApiGateway::Authorizer", "AuthorizerResultTtlInSeconds"),
		"an hour": func(one *template) {
			firstOf(one, "AWS::ApiGatewayV2::Authorizer").Properties["AuthorizerResultTtlInSeconds"] = 3600.0
		},
		"a token": func(one *template) { firstOf(one, "AWS::ApiGateway::Authorizer").Properties["Type"] = "TOKEN" },
		"a source": func(one *template) {
			firstOf(one, "AWS::ApiGatewayV2::Authorizer").Properties["IdentitySource"] = []any{
				"$request.header.Authorization"}
		},
	}},
	"functions are not traced, and APIs log no bodies": {choicesHold, 7, 5, map[string]func(*template){
		"tracing": func(one *template) {
			firstOf(one, "AWS::Lambda::Function").Properties["TracingConfig"] = map[string]any{"Mode": "Active"}
		},
		"bodies": func(one *template) {
			firstOf(one, "AWS::ApiGateway::Stage").Properties["MethodSettings"] = []any{
				map[string]any{"DataTraceEnabled": true}}
		},
	}},
	"security groups take nothing from addresses, and one port each": {
		holdOfEach("AWS::EC2::SecurityGroupIngress", func(_ *template, _ string, r *resource,
			wrong func(string, ...any)) {
			if r.get("SourceSecurityGroupId") == nil || r.get("CidrIp") != nil || r.get("CidrIpv6") != nil {
				wrong("it takes calls from %v%v", r.get("CidrIp"), r.get("CidrIpv6"))
			}
			if port := r.get("FromPort"); r.get("IpProtocol") != "tcp" || port != r.get("ToPort") || port != 6379.0 &&
				port != 443.0 {
				wrong("it takes ports %v to %v", r.get("FromPort"), r.get("ToPort"))
			}
		}), 0, 0, map[string]func(*template){
			"a range": func(one *template) {
				firstOf(one,
					"AWS::EC2::SecurityGroupIngress").Properties["CidrIp"] = "10.0.0.0/8"
			},
			"ports": func(one *template) {
				firstOf(one,
					"AWS::EC2::SecurityGroupIngress").Properties["ToPort"] = 65535.0
			},
		},
	},
	"security groups call https, the cache, or nobody": {
		holdOfEach("AWS::EC2::SecurityGroup", func(_ *template, _ string, r *resource, wrong func(string, ...any)) {
			if r.get("SecurityGroupIngress") != nil {
				wrong("it takes calls by itself")
			}
			rules := list(r.get("SecurityGroupEgress"))
			if len(rules) == 0 {
				wrong("it may call everybody")
			}
			for _, e := range rules {
				nobody := get(e, "CidrIp") == "255.255.255.255/32"
				if https := get(e, "IpProtocol") == "tcp" && get(e, "FromPort") == 443.0 &&
					get(e, "ToPort") == 443.0; !nobody && !https {
					wrong("it may call %v", e)
				}
			}
		}), 0, 0, map[string]func(*template){
			"everybody": removeProperty("AWS::EC2::SecurityGroup", "SecurityGroupEgress"),
			"all ports": func(one *template) {
				for _, g := range one.ofType("AWS::EC2::SecurityGroup") {
					g.Properties["SecurityGroupEgress"] = []any{map[string]any{"CidrIp": "0.0.0.0/0",
						"IpProtocol": "-1"}}
				}
			},
			"ingress": func(one *template) {
				firstOf(one, "AWS::EC2::SecurityGroup").Properties["SecurityGroupIngress"] = []any{
					map[string]any{"CidrIp": "0.0.0.0/0"}}
			},
		},
	},
	"functions call the cache's port alone beside https": {
		holdOfEach("AWS::EC2::SecurityGroupEgress", func(one *template, _ string, r *resource,
			wrong func(string, ...any)) {
			// unknown: the security group of the cache, whose owner admits the functions
			port, unknown := 6379.0, one.Outputs["FunctionsGroup"] != nil
			for _, f := range one.ofType("AWS::Lambda::Function") {
				if at, err := netip.ParseAddrPort(one.text(f.get("Environment", "Variables",
					"SLUICE_REDIS"))); err == nil {
					port = float64(at.Port())
				}
			}
			if r.get("IpProtocol") != "tcp" || r.get("FromPort") != port || r.get("ToPort") != port {
				wrong("they may call ports %v to %v", r.get("FromPort"), r.get("ToPort"))
			}
			if unknown != (r.get("CidrIp") == "0.0.0.0/0") || unknown != (r.get("DestinationSecurityGroupId") == nil) {
				wrong("they may call %v, %v", r.get("CidrIp"), r.get("DestinationSecurityGroupId"))
			}
		}), 0, 0, map[string]func(*template){
			"ports": func(one *template) {
				firstOf(one,
					"AWS::EC2::SecurityGroupEgress").Properties["ToPort"] = 65535.0
			},
			"anywhere": func(one *template) {
				firstOf(one,
					"AWS::EC2::SecurityGroupEgress").Properties["CidrIp"] = "0.0.0.0/0"
			},
			"nobody": removeProperty("AWS::EC2::SecurityGroupEgress", "DestinationSecurityGroupId"),
		},
	},
	"functions that call the cache are in private subnets, and no other is in the VPC": {
		holdOfEach("AWS::Lambda::Function", placeHolds), 6, 4, map[string]func(*template){
			"a VPC": func(one *template) {
				firstOf(one, "AWS::Lambda::Function").Properties["VpcConfig"] = map[string]any{
					"SubnetIds": []any{"subnet-1"}}
			},
		},
	},
	"subnets give nobody a public address": {
		holdOfEach("AWS::EC2::Subnet", func(_ *template, _ string, r *resource, wrong func(string, ...any)) {
			if r.get("MapPublicIpOnLaunch") != false {
				wrong("its hosts have public addresses")
			}
		}), 0, 0, map[string]func(*template){
			"addresses": func(one *template) {
				firstOf(one,
					"AWS::EC2::Subnet").Properties["MapPublicIpOnLaunch"] = true
			},
		},
	},
	"endpoints are for what is called, by this account": {endpointsHold, 0, 0, map[string]func(*template){
		"one more": func(one *template) {
			one.Resources["X"] = &resource{Type: "AWS::EC2::VPCEndpoint",
				Properties: map[string]any{"ServiceName": "com.amazonaws.eu-west-1.s3"}}
		},
		"one less": func(one *template) {
			delete(one.Resources, slices.Sorted(maps.Keys(one.ofType("AWS::EC2::VPCEndpoint")))[0])
		},
		"another account": func(one *template) {
			delete(firstOf(one, "AWS::EC2::VPCEndpoint").get("PolicyDocument", "Statement", 0).(map[string]any),
				"Condition")
		},
		"all actions": func(one *template) {
			firstOf(one, "AWS::EC2::VPCEndpoint").get("PolicyDocument", "Statement",
				0).(map[string]any)["Action"] = "dynamodb:*"
		},
		"no policy": removeProperty("AWS::EC2::VPCEndpoint", "PolicyDocument"),
	}},
	"the cache is encrypted, doubled, asks who it is, and forgets nothing": {
		holdOfEach("AWS::ElastiCache::ReplicationGroup", cacheHolds), 0, 0, map[string]func(*template){
			"TLS": func(one *template) {
				firstOf(one, "AWS::ElastiCache::ReplicationGroup").Properties["TransitEncryptionMode"] = "preferred"
			},
			"at rest":   removeProperty("AWS::ElastiCache::ReplicationGroup", "AtRestEncryptionEnabled"),
			"zones":     removeProperty("AWS::ElastiCache::ReplicationGroup", "MultiAZEnabled"),
			"failover":  removeProperty("AWS::ElastiCache::ReplicationGroup", "AutomaticFailoverEnabled"),
			"snapshots": removeProperty("AWS::ElastiCache::ReplicationGroup", "SnapshotRetentionLimit"),
			"users":     removeProperty("AWS::ElastiCache::ReplicationGroup", "UserGroupIds"),
			"replica": func(one *template) {
				p := firstOf(one, "AWS::ElastiCache::ReplicationGroup").Properties
				delete(p, "ReplicasPerNodeGroup")
				delete(p, "NumCacheClusters")
			},
			"eviction": func(one *template) {
				p := firstOf(one, "AWS::ElastiCache::ParameterGroup").get("Properties")
				p.(map[string]any)["maxmemory-policy"] = "volatile-lru"
			},
			"a user for everything": func(one *template) {
				firstOf(one, "AWS::ElastiCache::User").Properties["AccessString"] = "on ~* +@all"
			},
			"a user without a password": func(one *template) {
				firstOf(one, "AWS::ElastiCache::User").Properties["AuthenticationMode"] = map[string]any{
					"Type": "no-password-required"}
			},
			"who takes its place": func(one *template) {
				firstOf(one,
					"AWS::ElastiCache::ReplicationGroup").UpdateReplacePolicy = goes
			},
		},
	},
}

// Guarantees that the resources of watched deployments (topics of alarms with their keys, dashboards and firewalls) are
// reviewed, too.
func TestReviewWatched(t *testing.T) {
	all := maps.Clone(review)
	for _, name := range []string{"nothing is open to the world, or needs another stack", "topics are encrypted",
		"queues are encrypted, and reached by TLS alone"} {
		all[name] = holds[name]
	}
	for _, stackName := range []string{"sluice-control", "sluice-cell-a-1", "sluice-cell-us-1"} {
		for name, h := range all {
			if h.hold == nil {
				t.Fatalf("there is no check %q", name)
			}
			wrong, _ := h.hold(watchedStack(t, stackName))
			for _, line := range wrong {
				t.Errorf("%s: %s: %s", stackName, name, line)
			}
		}
	}
	if topics := len(watchedStack(t, "sluice-control").ofType("AWS::SNS::Topic")); topics != 2 {
		t.Errorf("the control plane has %d topics to look at, want that of changes and that of alarms", topics)
	}
}

func stateHolds(one *template) (wrong []string, looked int) {
	for id, r := range one.Resources {
		want, known := states[r.Type]
		if want == either {
			want = goes
			if r.get("Name") == identity || r.get("KeyUsage") == "SIGN_VERIFY" {
				want = kept
			}
		}
		replaced := map[string]string{kept: "Retain"}[want]
		if replaced == "" {
			replaced = want
		}
		switch {
		case !known:
			wrong = append(wrong, fmt.Sprintf("%s: nobody has said what becomes of a %s", id, r.Type))
		case r.DeletionPolicy != want || r.UpdateReplacePolicy != replaced:
			wrong = append(wrong, fmt.Sprintf("%s: a %s is %q with its stack and %q when another takes its place, "+
				"want %q and %q", id, r.Type, r.DeletionPolicy, r.UpdateReplacePolicy, want, replaced))
		}
	}
	return wrong, 1
}

var (
	secretKeys  = regexp.MustCompile(`(?i)^(secretstring|authtoken|passwords?|.*userpassword|privatekey)$`)
	secretTexts = regexp.MustCompile(`(AKIA|ASIA)[A-Z0-9]{16}` +
		`|-----BEGIN|slk_[A-Za-z0-9]|(^|[^A-Za-z0-9+/])[A-Za-z0-9+/]{42,}={0,2}($|[^A-Za-z0-9+/.])`)
)

func plainHolds(one *template) (wrong []string, looked int) {
	var walk func(at string, key string, v any)
	walk = func(at, key string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if text := one.text(v); secretKeys.MatchString(key) && !strings.HasPrefix(text, "?") {
				walk(at, key, text)
				return
			}
			for _, k := range slices.Sorted(maps.Keys(v)) {
				walk(at+"."+k, k, v[k])
			}
		case []any:
			for _, each := range v {
				walk(at, key, each)
			}
		case string:
			secret, resolved := secretKeys.MatchString(key), strings.HasPrefix(v, "{{resolve:secretsmanager:")
			if slices.Contains([]string{"Ref", "Fn::GetAtt", "S3Key"}, key) || strings.Contains(v, "://") {
				return // ids, hashes of assets, URLs
			}
			if secret && !resolved || !secret && strings.Contains(v, "{{resolve:") || !resolved &&
				secretTexts.MatchString(v) {
				wrong = append(wrong, at+": a secret would be seen")
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(one.Resources)) {
		walk(id, "", one.Resources[id].Properties)
	}
	for _, id := range slices.Sorted(maps.Keys(one.Outputs)) {
		walk(id, "", one.Outputs[id])
	}
	return wrong, 1
}

func authorizersHold(one *template) (wrong []string, looked int) {
	for _, kind := range []string{"AWS::ApiGateway::Authorizer", "AWS::ApiGatewayV2::Authorizer"} {
		for id, a := range one.ofType(kind) {
			looked++
			// no key is kept there
			socket := kind == "AWS::ApiGatewayV2::Authorizer" && a.get("EnableSimpleResponses") == nil
			if ttl := a.get("AuthorizerResultTtlInSeconds"); ttl != 0.0 && (!socket || ttl != nil) {
				wrong = append(wrong, fmt.Sprintf("%s: its answers are kept for %v s", id, ttl))
			}
			if a.get("IdentitySource") != nil || a.get("Type") != nil && a.get("Type") != "REQUEST" ||
				a.get("AuthorizerType") != nil && a.get("AuthorizerType") != "REQUEST" {
				wrong = append(wrong, id+": calls without a credential do not reach it")
			}
		}
	}
	return wrong, looked
}

// choicesHold checks the decision about tracing: X-Ray would need permissions on any resource, and would show no more
// than the metrics.
func choicesHold(one *template) (wrong []string, looked int) {
	for id, f := range one.ofType("AWS::Lambda::Function") {
		if looked++; f.get("TracingConfig") != nil {
			wrong = append(wrong, id+": it is traced, without the right to")
		}
	}
	for id, s := range one.ofType("AWS::ApiGateway::Stage") {
		looked++
		for _, m := range list(s.get("MethodSettings")) {
			if get(m, "DataTraceEnabled") == true {
				wrong = append(wrong, id+": bodies are logged, and keys of operators with them")
			}
		}
	}
	return wrong, looked
}

func placeHolds(one *template, _ string, r *resource, wrong func(string, ...any)) {
	variables, _ := r.get("Environment", "Variables").(map[string]any)
	if variables["SLUICE_REDIS"] == nil {
		if r.get("VpcConfig") != nil {
			wrong("it is in a VPC, and has nothing to do there")
		}
		return
	}
	subnets := list(r.get("VpcConfig", "SubnetIds"))
	if len(subnets) < 2 || len(list(r.get("VpcConfig", "SecurityGroupIds"))) != 1 {
		wrong("it is in %d subnets", len(subnets))
	}
	for _, s := range subnets {
		for _, association := range one.ofType("AWS::EC2::SubnetRouteTableAssociation") {
			if one.text(association.get("SubnetId")) != one.text(s) {
				continue
			}
			for _, route := range one.ofType("AWS::EC2::Route") {
				if one.text(route.get("RouteTableId")) == one.text(association.get("RouteTableId")) &&
					route.get("GatewayId") != nil {
					wrong("its subnet %s is public, where functions reach nobody", one.text(s))
				}
			}
		}
	}
}

func endpointsHold(one *template) (wrong []string, looked int) {
	want := map[string]bool{}
	for _, f := range one.ofType("AWS::Lambda::Function") {
		variables, _ := f.get("Environment", "Variables").(map[string]any)
		// an existing cache has its own
		if variables["SLUICE_REDIS"] == nil || len(one.ofType("AWS::EC2::VPC")) == 0 {
			continue
		}
		want["com.amazonaws.eu-west-1.dynamodb"], want["com.amazonaws.eu-west-1.secretsmanager"] = true, true
		if variables["SLUICE_KILL_SWITCH"] != nil {
			want["com.amazonaws.eu-west-1.appconfigdata"] = true
		}
	}
	got := map[string]bool{}
	for id, e := range one.ofType("AWS::EC2::VPCEndpoint") {
		got[one.text(e.get("ServiceName"))], looked = true, looked+1
		statements := list(e.get("PolicyDocument", "Statement"))
		if len(statements) != 1 {
			wrong = append(wrong, id+": it is for anything")
		}
		for _, s := range statements {
			bad := one.text(get(s, "Condition", "StringEquals", "aws:PrincipalAccount")) != "123456789012" ||
				get(s, "Resource") == "*"
			for _, action := range one.texts(get(s, "Action")) {
				bad = bad || strings.Contains(action, "*")
			}
			if bad {
				wrong = append(wrong, id+": it is for more than this account's functions do")
			}
		}
	}
	if !maps.Equal(got, want) {
		wrong = append(wrong, fmt.Sprintf("there are endpoints of %v, want %v", slices.Sorted(maps.Keys(got)),
			slices.Sorted(maps.Keys(want))))
	}
	return wrong, looked
}

func cacheHolds(one *template, _ string, r *resource, wrong func(string, ...any)) {
	for _, key := range []string{"TransitEncryptionEnabled", "AtRestEncryptionEnabled", "MultiAZEnabled",
		"AutomaticFailoverEnabled"} {
		if r.get(key) != true {
			wrong("%s is not set", key)
		}
	}
	if r.get("TransitEncryptionMode") != "required" || r.get("Engine") != "valkey" || r.get("Port") != 6379.0 {
		wrong("it takes plain text, or is another engine: %v, %v", r.get("TransitEncryptionMode"), r.get("Engine"))
	}
	if days, _ := r.get("SnapshotRetentionLimit").(float64); days < 1 || r.UpdateReplacePolicy != saved {
		wrong("it is gone with its nodes")
	}
	if r.get("NumCacheClusters") != 2.0 && r.get("ReplicasPerNodeGroup") != 1.0 {
		wrong("it has no replica")
	}
	parameters := one.Resources[fmt.Sprint(get(r.get("CacheParameterGroupName"), "Ref"))]
	if parameters == nil || parameters.get("Properties", "maxmemory-policy") != "noeviction" ||
		(parameters.get("Properties", "cluster-enabled") == "yes") != (r.get("ClusterMode") == "enabled") {
		wrong("it drops counters, or is another kind of cluster than its parameters say")
	}
	group := one.Resources[fmt.Sprint(get(r.get("UserGroupIds", 0), "Ref"))]
	if group == nil || len(list(group.get("UserIds"))) != 1 {
		wrong("it takes others than its user")
		return
	}
	user := one.Resources[fmt.Sprint(get(group.get("UserIds", 0), "Ref"))]
	if user == nil || user.get("AccessString") != grants.CacheAccess || user.get("UserName") == "default" {
		wrong("its user may do more than our scripts do")
		return
	}
	switch kind := user.get("AuthenticationMode", "Type"); {
	case kind == "iam" && user.get("UserId") == user.get("UserName"):
	case kind == "password" && strings.HasPrefix(one.text(user.get("AuthenticationMode", "Passwords", 0)),
		"{{resolve:secretsmanager:"):
	default:
		wrong("its user shows who it is by %v", kind)
	}
}
