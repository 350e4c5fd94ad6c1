package infra_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/aws/grants"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

// hold is a check of something that must be true of every template. It returns a line for each place where it is not
// true, and the number of places that it looked at.
type hold func(*template) (wrong []string, looked int)

// holdOfEach returns a hold that checks each resource of a type.
func holdOfEach(kind string, look func(one *template, id string, r *resource, wrong func(string, ...any))) hold {
	return func(one *template) (all []string, looked int) {
		resources := one.ofType(kind)
		for _, id := range slices.Sorted(maps.Keys(resources)) {
			look(one, id, resources[id], func(format string, args ...any) {
				all = append(all, id+": "+fmt.Sprintf(format, args...))
			})
		}
		return all, len(resources)
	}
}

// checked is a hold, with the number of places that it looks at in each template, and changes that it must detect.
type checked struct {
	hold hold
	// how many places it has to look at: a check that looks at nothing cannot fail; what only a full cell has is in
	// inFull
	control, cell int
	spoil         map[string]func(*template)
}

// holds are the checks of what the functions need. [review] has the others.
var holds = map[string]checked{
	"tables are kept, can be restored, and are encrypted": {
		holdOfEach("AWS::DynamoDB::Table", tableHolds), 5, 2, map[string]func(*template){
			"deletion policy": func(one *template) {
				firstOf(one,
					"AWS::DynamoDB::Table").DeletionPolicy = "Delete"
			},
			"update replace policy": func(one *template) {
				firstOf(one,
					"AWS::DynamoDB::Table").UpdateReplacePolicy = "Delete"
			},
			"deletion protection":    removeProperty("AWS::DynamoDB::Table", "DeletionProtectionEnabled"),
			"point in time recovery": removeProperty("AWS::DynamoDB::Table", "PointInTimeRecoverySpecification"),
			"encryption":             removeProperty("AWS::DynamoDB::Table", "SSESpecification"),
			"on demand":              removeProperty("AWS::DynamoDB::Table", "BillingMode"),
			"last":                   func(one *template) { firstOf(one, "AWS::DynamoDB::Table").DependsOn = nil },
			"stream or TTL": func(one *template) {
				p := firstOf(one, "AWS::DynamoDB::Table").Properties
				delete(p, "StreamSpecification")
				delete(p, "TimeToLiveSpecification")
			},
		},
	},
	"buckets are private, versioned, encrypted and kept": {
		holdOfEach("AWS::S3::Bucket", bucketHolds), 2, 0, map[string]func(*template){
			"public access": func(one *template) {
				firstOf(one, "AWS::S3::Bucket").get(
					"PublicAccessBlockConfiguration").(map[string]any)["BlockPublicPolicy"] = false
			},
			"versions":        removeProperty("AWS::S3::Bucket", "VersioningConfiguration"),
			"encryption":      removeProperty("AWS::S3::Bucket", "BucketEncryption"),
			"deletion policy": func(one *template) { firstOf(one, "AWS::S3::Bucket").DeletionPolicy = "Delete" },
			"lock": func(one *template) {
				for _, r := range one.ofType("AWS::S3::Bucket") {
					delete(r.Properties, "ObjectLockConfiguration")
				}
			},
			"a short life": func(one *template) {
				for _, r := range one.ofType("AWS::S3::Bucket") {
					for _, rule := range list(r.get("LifecycleConfiguration", "Rules")) {
						rule.(map[string]any)["NoncurrentVersionExpiration"] = map[string]any{"NoncurrentDays": 1.0}
					}
				}
			},
			"a way around": func(one *template) {
				for _, r := range one.ofType("AWS::S3::BucketPolicy") {
					for _, s := range list(r.get("PolicyDocument", "Statement")) {
						if get(s, "Sid") == "NobodyRemoves" {
							s.(map[string]any)["Condition"] = map[string]any{"StringNotEquals": map[string]any{
								"aws:username": "ann"}}
						}
					}
				}
			},
			"locks of a writer's own": func(one *template) {
				for _, r := range one.ofType("AWS::S3::BucketPolicy") {
					for _, s := range list(r.get("PolicyDocument", "Statement")) {
						if get(s, "Sid") == "NobodyWritesAround" {
							s.(map[string]any)["Effect"] = "Allow"
						}
					}
				}
			},
			"clear text": func(one *template) {
				for _, r := range one.ofType("AWS::S3::BucketPolicy") {
					r.Properties["PolicyDocument"] = map[string]any{"Statement": []any{}}
				}
			},
		},
	},
	"queues are encrypted, and reached by TLS alone": {
		holdOfEach("AWS::SQS::Queue", queueHolds), 3, 3, map[string]func(*template){
			"encryption": removeProperty("AWS::SQS::Queue", "SqsManagedSseEnabled"),
			"clear text": func(one *template) {
				for id := range one.ofType("AWS::SQS::QueuePolicy") {
					delete(one.Resources, id)
				}
			},
			"dead letters": func(one *template) {
				for _, r := range one.ofType("AWS::SQS::Queue") {
					delete(r.Properties, "RedrivePolicy")
					r.Properties["MessageRetentionPeriod"] = 60.0
				}
			},
		},
	},
	"what fails in a stream or a queue is kept": {
		holdOfEach("AWS::Lambda::EventSourceMapping", sourceHolds), 9, 1, map[string]func(*template){
			"partial failures": removeProperty("AWS::Lambda::EventSourceMapping", "FunctionResponseTypes"),
			"destination or concurrency": func(one *template) {
				p := firstOf(one, "AWS::Lambda::EventSourceMapping").Properties
				delete(p, "DestinationConfig")
				delete(p, "ScalingConfig")
			},
			"bisecting or batch": func(one *template) {
				p := firstOf(one, "AWS::Lambda::EventSourceMapping").Properties
				delete(p, "BisectBatchOnFunctionError")
				delete(p, "BatchSize")
			},
		},
	},
	"each stream has at most two readers": {streamHolds, 5, 0, map[string]func(*template){
		"a third": func(one *template) {
			for _, m := range one.ofType("AWS::Lambda::EventSourceMapping") {
				one.Resources["Third"] = m
				one.Resources["Fourth"] = m
			}
		},
	}},
	"subscriptions deliver raw, and keep what they cannot": {
		holdOfEach("AWS::SNS::Subscription", subscriptionHolds), 0, 1, map[string]func(*template){
			"raw":    removeProperty("AWS::SNS::Subscription", "RawMessageDelivery"),
			"kept":   removeProperty("AWS::SNS::Subscription", "RedrivePolicy"),
			"region": removeProperty("AWS::SNS::Subscription", "Region"),
		},
	},
	"the authorizer is updated before what acknowledges for it": {
		orderHolds, 0, 2, map[string]func(*template){
			"order": func(one *template) {
				for _, r := range one.ofType("AWS::Lambda::Function") {
					r.DependsOn = nil
				}
			},
		},
	},
	"topics are encrypted": {
		holdOfEach("AWS::SNS::Topic", func(_ *template, _ string, r *resource, wrong func(string, ...any)) {
			if r.get("KmsMasterKeyId") == nil {
				wrong("it is not encrypted")
			}
		}), 1, 0, map[string]func(*template){"encryption": removeProperty("AWS::SNS::Topic", "KmsMasterKeyId")},
	},
	"only publisher and balancer publish changes": {topicPolicyHolds, 1, 0, map[string]func(*template){
		"denial":    func(one *template) { changesStatement(one, "Deny", "PrincipalArn")["Effect"] = "Allow" },
		"everybody": func(one *template) { delete(changesStatement(one, "Deny", "PrincipalArn"), "Condition") },
		"somebody else": func(one *template) {
			roles := get(changesStatement(one, "Deny", "PrincipalArn"), "Condition", "ArnNotEquals").(map[string]any)
			roles["aws:PrincipalArn"] = append(list(roles["aws:PrincipalArn"]), "arn:aws:iam::123456789012:role/other")
		},
		"some of them": func(one *template) {
			changesStatement(one, "Deny", "PrincipalArn")["Principal"] = map[string]any{"AWS": "x"}
		},
		"permission": func(one *template) { changesStatement(one, "Allow", "")["Action"] = "sns:Publish" },
	}},
	"only the topic sends changes to a queue": {queuePolicyHolds, 1, 1, map[string]func(*template){
		"denial": func(one *template) { senders(one, "Deny")["Effect"] = "Allow" },
		"another topic": func(one *template) {
			topic := get(senders(one, "Deny"), "Condition", "ArnNotEquals").(map[string]any)
			topic["aws:SourceArn"] = "arn:aws:sns:eu-west-1:123456789012:other"
		},
		"permission": func(one *template) { delete(senders(one, "Allow"), "Condition") },
		"another queue": func(one *template) {
			senders(one, "Deny")["Resource"] = "arn:aws:sqs:eu-west-1:123456789012:other"
		},
	}},
	"roles may do what is granted, and nothing else": {
		holdOfEach("AWS::IAM::Role", roleHolds), 6, 5, map[string]func(*template){
			"an action more": func(one *template) {
				s := statement(one)
				s["Action"] = append(list(s["Action"]), "dynamodb:DeleteItem")
			},
			"a wildcard of actions":   func(one *template) { statement(one)["Action"] = "dynamodb:*" },
			"a wildcard of resources": func(one *template) { statement(one)["Resource"] = "*" },
			"a denial of what it needs": func(one *template) {
				p := firstOf(one, "AWS::IAM::Role").get("Policies", 0, "PolicyDocument").(map[string]any)
				p["Statement"] = append(p["Statement"].([]any), map[string]any{"Effect": "Deny",
					"Action": "dynamodb:GetItem", "Resource": "*"})
			},
			"a statement more": func(one *template) {
				p := firstOf(one, "AWS::IAM::Role").get("Policies", 0, "PolicyDocument").(map[string]any)
				p["Statement"] = append(p["Statement"].([]any), map[string]any{"Effect": "Allow",
					"Action": "s3:PutObject", "Resource": "arn:aws:s3:::x/y"})
			},
			"a managed policy": func(one *template) {
				firstOf(one, "AWS::IAM::Role").Properties["ManagedPolicyArns"] = []any{
					"arn:aws:iam::aws:policy/AdministratorAccess"}
			},
			"a bound of keys": func(one *template) {
				for _, r := range one.ofType("AWS::IAM::Role") {
					for _, s := range list(r.get("Policies", 0, "PolicyDocument", "Statement")) {
						delete(s.(map[string]any), "Condition")
					}
				}
			},
			"somebody else": func(one *template) {
				firstOf(one, "AWS::IAM::Role").Properties["AssumeRolePolicyDocument"] = map[string]any{
					"Statement": []any{map[string]any{
						"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": map[string]any{"AWS": "*"}}}}
			},
		},
	},
	"what Lambda does by a role, the function's code may not": {ownCodeHolds, 0, 0, map[string]func(*template){
		"a denial": func(one *template) {
			denial(one)["Effect"] = "Allow"
		},
		"one action": func(one *template) { denial(one)["Action"] = "ec2:DescribeSubnets" },
		"another function": func(one *template) {
			get(denial(one), "Condition", "ArnEquals").(map[string]any)["lambda:SourceFunctionArn"] =
				"arn:aws:lambda:eu-west-1:123456789012:function:other"
		},
		"Lambda": func(one *template) { delete(denial(one), "Condition") },
	}},
	"a call of a schedule that is late is dropped": {
		holdOfEach("AWS::Events::Rule", scheduleHolds), 3, 1, map[string]func(*template){
			"age": func(one *template) {
				delete(get(firstOf(one, "AWS::Events::Rule").get("Targets", 0), "RetryPolicy").(map[string]any),
					"MaximumEventAgeInSeconds")
			},
			"age in Lambda": func(one *template) {
				for _, c := range one.ofType("AWS::Lambda::EventInvokeConfig") {
					c.Properties["MaximumEventAgeInSeconds"] = 21600.0
				}
			},
		},
	},
	"functions start, are bounded, and their logs end": {
		holdOfEach("AWS::Lambda::Function", functionHolds), 6, 4, map[string]func(*template){
			"architecture": removeProperty("AWS::Lambda::Function", "Architectures"),
			"concurrency":  removeProperty("AWS::Lambda::Function", "ReservedConcurrentExecutions"),
			"log group":    removeProperty("AWS::Lambda::Function", "LoggingConfig"),
			"a variable less": func(one *template) {
				for _, r := range one.ofType("AWS::Lambda::Function") {
					v := r.get("Environment", "Variables").(map[string]any)
					delete(v, "SLUICE_PLANS_TABLE")
					delete(v, "SLUICE_CELL")
				}
			},
			"another API": func(one *template) {
				for _, r := range one.ofType("AWS::Lambda::Function") {
					if v := r.get("Environment", "Variables").(map[string]any); v["SLUICE_API"] != nil {
						v["SLUICE_API"] = "abc1234/v1"
					}
				}
			},
			"a variable more": func(one *template) {
				firstOf(one, "AWS::Lambda::Function").get("Environment",
					"Variables").(map[string]any)["SLUICE_SIZE"] = "large"
			},
			"retention": func(one *template) {
				for _, r := range one.ofType("AWS::Logs::LogGroup") {
					delete(r.Properties, "RetentionInDays")
				}
			},
		},
	},
	"only a named source may invoke a function": {
		holdOfEach("AWS::Lambda::Permission", permissionHolds), 4, 2, map[string]func(*template){
			"source":    removeProperty("AWS::Lambda::Permission", "SourceArn"),
			"principal": func(one *template) { firstOf(one, "AWS::Lambda::Permission").Properties["Principal"] = "*" },
		},
	},
	"every method of an operators' API is for signed callers": {
		holdOfEach("AWS::ApiGateway::Method", func(_ *template, _ string, r *resource, wrong func(string, ...any)) {
			if r.get("AuthorizationType") != "AWS_IAM" {
				wrong("its authorization is %v, want AWS_IAM", r.get("AuthorizationType"))
			}
		}), 20, 3, map[string]func(*template){
			"open": func(one *template) {
				firstOf(one,
					"AWS::ApiGateway::Method").Properties["AuthorizationType"] = "NONE"
			},
		},
	},
	"no value of a secret is in a template": {
		holdOfEach("AWS::SecretsManager::Secret", secretHolds), 1, 0, map[string]func(*template){
			"value": func(one *template) {
				firstOf(one,
					"AWS::SecretsManager::Secret").Properties["SecretString"] = "x"
			},
			"generated": removeProperty("AWS::SecretsManager::Secret", "GenerateSecretString"),
			"kept":      func(one *template) { firstOf(one, "AWS::SecretsManager::Secret").DeletionPolicy = "Delete" },
		},
	},
	"the trail records tables and functions, not counters": {
		holdOfEach("AWS::CloudTrail::Trail", trailHolds), 1, 0, map[string]func(*template){
			"validation": removeProperty("AWS::CloudTrail::Trail", "EnableLogFileValidation"),
			"regions":    removeProperty("AWS::CloudTrail::Trail", "IsMultiRegionTrail"),
			"selectors":  removeProperty("AWS::CloudTrail::Trail", "AdvancedEventSelectors"),
			"audit records": func(one *template) {
				fields := firstOf(one, "AWS::CloudTrail::Trail").get("AdvancedEventSelectors", 2,
					"FieldSelectors").([]any)
				delete(fields[3].(map[string]any), "StartsWith")
			},
			"counters": func(one *template) {
				fields := firstOf(one, "AWS::CloudTrail::Trail").get("AdvancedEventSelectors", 1,
					"FieldSelectors").([]any)
				fields[3].(map[string]any)["Equals"] = append(list(get(fields[3], "Equals")),
					"arn:aws:dynamodb:eu-west-1:123456789012:table/sluice-a-1-counters")
			},
		},
	},
	"nothing is open to the world, or needs another stack": {wholeHolds, 1, 1, map[string]func(*template){
		"export": func(one *template) {
			one.Outputs["X"] = map[string]any{"Value": "x", "Export": map[string]any{"Name": "x"}}
		},
		"import": func(one *template) {
			firstOf(one, "AWS::Lambda::Function").Properties["Role"] = map[string]any{"Fn::ImportValue": "x"}
		},
		"custom resource": func(one *template) { one.Resources["X"] = &resource{Type: "Custom::AWS"} },
		"URL":             func(one *template) { one.Resources["X"] = &resource{Type: "AWS::Lambda::Url"} },
		"loose policy":    func(one *template) { one.Resources["X"] = &resource{Type: "AWS::IAM::Policy"} },
		"anybody": func(one *template) {
			one.Resources["X"] = &resource{Type: "AWS::SQS::QueuePolicy",
				Properties: map[string]any{"PolicyDocument": map[string]any{
					"Statement": []any{map[string]any{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage",
						"Resource": "*"}}}}}
		},
	}},
}

func removeProperty(kind, property string) func(*template) {
	return func(one *template) { delete(firstOf(one, kind).Properties, property) }
}

// firstOf returns the first resource of a type, by its id.
func firstOf(one *template, kind string) *resource {
	all := one.ofType(kind)
	return all[slices.Sorted(maps.Keys(all))[0]]
}

func statement(one *template) map[string]any {
	return firstOf(one, "AWS::IAM::Role").get("Policies", 0, "PolicyDocument", "Statement", 0).(map[string]any)
}

// denial returns a statement of a role that denies something.
func denial(one *template) map[string]any {
	roles := one.ofType("AWS::IAM::Role")
	for _, id := range slices.Sorted(maps.Keys(roles)) {
		for _, s := range list(roles[id].get("Policies", 0, "PolicyDocument", "Statement")) {
			if get(s, "Effect") == "Deny" {
				return s.(map[string]any)
			}
		}
	}
	return map[string]any{}
}

// Guarantees what must be true of every template, and that each of these checks can fail.
func TestHolds(t *testing.T) {
	for name, h := range merged(holds, review) {
		for stackName, want := range map[string]int{
			"sluice-control": h.control, "sluice-cell-a-1": h.cell, "sluice-cell-us-1": h.cell,
			"sluice-cell-f-1": h.cell, "sluice-cell-f-2": h.cell,
			"sluice-cell-g-1": h.cell, "sluice-cell-g-2": h.cell,
		} {
			wrong, looked := h.hold(copyTemplate(t, stackName))
			if want += inFull[stackName][name]; looked != want {
				t.Errorf("%s: %s: looked at %d, want %d", stackName, name, looked, want)
			}
			for _, line := range wrong {
				t.Errorf("%s: %s: %s", stackName, name, line)
			}
		}
		stackName := "sluice-control"
		if h.control == 0 {
			stackName = "sluice-cell-a-1"
		}
		if h.control+h.cell == 0 {
			stackName = "sluice-cell-f-1"
		}
		for what, spoil := range h.spoil {
			one := copyTemplate(t, stackName)
			spoil(one)
			if wrong, _ := h.hold(one); len(wrong) == 0 {
				t.Errorf("check %q does not detect a wrong %s", name, what)
			}
		}
	}
}

func isRetained(r *resource) bool {
	return r.DeletionPolicy == "RetainExceptOnCreate" && r.UpdateReplacePolicy == "Retain"
}

func tableHolds(one *template, _ string, r *resource, wrong func(string, ...any)) {
	name := r.get("TableName").(string)
	control := slices.ContainsFunc(config.ControlTables(), func(t string) bool { return name == "sluice-"+t })
	switch {
	case !isRetained(r):
		wrong("it goes with its stack")
	case !slices.Equal(r.DependsOn, slices.Sorted(maps.Keys(one.ofType("AWS::Lambda::Function")))):
		wrong("it is made before a function, and is in the way where that one cannot be made: %v", r.DependsOn)
	case r.get("DeletionProtectionEnabled") != true:
		wrong("it can be deleted")
	case r.get("PointInTimeRecoverySpecification", "PointInTimeRecoveryEnabled") != true:
		wrong("it cannot be restored")
	case r.get("SSESpecification", "SSEEnabled") != true:
		wrong("its key is not in the account")
	case r.get("BillingMode") != "PAY_PER_REQUEST":
		wrong("it costs while nobody uses it")
	case control && r.get("StreamSpecification", "StreamViewType") != "NEW_AND_OLD_IMAGES":
		wrong("its changes are told to nobody")
	case !control && r.get("TimeToLiveSpecification", "AttributeName") != "ttl":
		wrong("what is old stays")
	}
}

func bucketHolds(one *template, id string, r *resource, wrong func(string, ...any)) {
	for _, key := range []string{"BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"} {
		if r.get("PublicAccessBlockConfiguration", key) != true {
			wrong("%s is not set", key)
		}
	}
	if r.get("VersioningConfiguration", "Status") != "Enabled" || !isRetained(r) {
		wrong("what is in it can be lost")
	}
	if r.get("BucketEncryption") == nil {
		wrong("it is not encrypted")
	}
	retention := r.get("ObjectLockConfiguration", "Rule", "DefaultRetention")
	if r.get("ObjectLockEnabled") != true || get(retention, "Mode") != "GOVERNANCE" || get(retention, "Days") != 365.0 {
		wrong("its objects are not locked")
	}
	for _, rule := range list(r.get("LifecycleConfiguration", "Rules")) {
		for _, days := range []any{get(rule, "ExpirationInDays"), get(rule, "NoncurrentVersionExpiration",
			"NoncurrentDays")} {
			if n, ok := days.(float64); !ok || n < 365 {
				wrong("its objects expire after %v days, before their retention", days)
			}
		}
	}
	if denied := deniedToAll(one, id); !slices.Equal(denied, []string{
		"s3:BypassGovernanceRetention", "s3:DeleteObject", "s3:DeleteObjectVersion",
		"s3:PutBucketObjectLockConfiguration",
		"s3:PutBucketVersioning", "s3:PutLifecycleConfiguration",
		"s3:PutObjectRetention", "s3:PutReplicationConfiguration", "s3:ReplicateDelete", "s3:ReplicateObject",
	}) {
		wrong("denied to everybody is %v", denied)
	}
	if !tlsOnly(one, "AWS::S3::BucketPolicy", func(p *resource) bool { return get(p.get("Bucket"), "Ref") == id }) {
		wrong("it is reached in clear")
	}
}

// deniedToAll returns the actions that a bucket's policy denies to everybody, without any condition, on the bucket and
// its objects.
func deniedToAll(one *template, bucket string) (actions []string) {
	for _, p := range one.ofType("AWS::S3::BucketPolicy") {
		for _, s := range list(p.get("PolicyDocument", "Statement")) {
			if get(p.get("Bucket"), "Ref") == bucket && get(s, "Effect") == "Deny" && get(s, "Condition") == nil &&
				fmt.Sprint(get(s, "Principal", "AWS")) == "*" && len(list(get(s, "Resource"))) == 2 {
				actions = append(actions, one.texts(get(s, "Action"))...)
			}
		}
	}
	return actions
}

// tlsOnly reports whether a policy denies every request without TLS.
func tlsOnly(one *template, kind string, of func(*resource) bool) bool {
	for _, p := range one.ofType(kind) {
		for _, s := range list(p.get("PolicyDocument", "Statement")) {
			if of(p) && get(s, "Effect") == "Deny" && get(s, "Condition", "Bool", "aws:SecureTransport") == "false" &&
				strings.HasSuffix(fmt.Sprint(get(s, "Action")), ":*") {
				return true
			}
		}
	}
	return false
}

func queueHolds(one *template, id string, r *resource, wrong func(string, ...any)) {
	if r.get("SqsManagedSseEnabled") != true {
		wrong("it is not encrypted")
	}
	if !tlsOnly(one, "AWS::SQS::QueuePolicy", func(p *resource) bool { return get(p.get("Queues", 0), "Ref") == id }) {
		wrong("it is reached in clear")
	}
	if strings.HasSuffix(r.get("QueueName").(string), "-changes") {
		if target := one.text(r.get("RedrivePolicy", "deadLetterTargetArn")); !strings.Contains(target, "refused") ||
			r.get("RedrivePolicy", "maxReceiveCount") != 1000.0 {
			wrong("what is refused again and again goes to %s", target)
		}
		if r.get("VisibilityTimeout") != 181.0 || r.get("MessageRetentionPeriod") != 345600.0 {
			wrong("its times are %v and %v", r.get("VisibilityTimeout"), r.get("MessageRetentionPeriod"))
		}
	} else if r.get("MessageRetentionPeriod") != 1209600.0 {
		wrong("what it keeps goes after %v s, want 14 days", r.get("MessageRetentionPeriod"))
	}
}

func sourceHolds(one *template, _ string, r *resource, wrong func(string, ...any)) {
	function := one.text(one.Resources[get(r.get("FunctionName"), "Ref").(string)].get("FunctionName"))
	of, _ := grants.Of(function[strings.LastIndex(function, "-")+1:])
	if types := list(r.get("FunctionResponseTypes")); len(types) != 1 || types[0] != "ReportBatchItemFailures" {
		wrong("one record that fails is all of the batch")
	}
	if q := of.Queue; q != nil {
		if r.get("BatchSize") != float64(q.Batch) ||
			r.get("ScalingConfig", "MaximumConcurrency") != float64(q.MaxConcurrent) ||
			r.get("MaximumBatchingWindowInSeconds") != q.Window.Seconds() {
			wrong("its numbers are not those of internal/aws/grants")
		}
		return
	}
	s := of.Streams
	if r.get("BatchSize") != float64(s.Batch) || r.get("MaximumRetryAttempts") != float64(s.Retries) ||
		r.get("MaximumRecordAgeInSeconds") != s.MaxAge.Seconds() {
		wrong("its numbers are not those of internal/aws/grants")
	}
	if r.get("BisectBatchOnFunctionError") != true || r.get("StartingPosition") != "TRIM_HORIZON" {
		wrong("a poison record stops it, or it begins in the middle")
	}
	if to := one.text(r.get("DestinationConfig", "OnFailure", "Destination")); !strings.Contains(to, "failed") {
		wrong("what fails goes to %s", to)
	}
}

// scheduleHolds checks that neither EventBridge nor Lambda keeps a scheduled call for longer than until the next one.
func scheduleHolds(one *template, _ string, r *resource, wrong func(string, ...any)) {
	target := get(r.get("Targets"), 0)
	function := one.text(get(target, "Arn", "Fn::GetAtt", 0))
	name := one.text(one.Resources[function].get("FunctionName"))
	of, _ := grants.Of(name[strings.LastIndex(name, "-")+1:])
	want := max(of.Schedule, time.Minute).Seconds()
	if age := get(target, "RetryPolicy", "MaximumEventAgeInSeconds"); age != want {
		wrong("EventBridge drops a call after %v s, want %v", age, want)
	}
	var ages []any
	for _, c := range one.ofType("AWS::Lambda::EventInvokeConfig") {
		if get(c.get("FunctionName"), "Ref") == function {
			ages = append(ages, c.get("MaximumEventAgeInSeconds"))
		}
	}
	if len(ages) != 1 || ages[0] != want {
		wrong("Lambda drops a call after %v s, want %v", ages, want)
	}
}

func streamHolds(one *template) (wrong []string, looked int) {
	readers := map[string]int{}
	for _, m := range one.ofType("AWS::Lambda::EventSourceMapping") {
		if arn := one.text(m.get("EventSourceArn")); strings.HasSuffix(arn, ".StreamArn}") {
			readers[arn]++
		}
	}
	for arn, n := range readers {
		if n > 2 {
			wrong = append(wrong, fmt.Sprintf("%s has %d readers", arn, n))
		}
	}
	return wrong, len(readers)
}

// orderHolds checks the functions of a cell that acknowledge the shares.
func orderHolds(one *template) (wrong []string, looked int) {
	is := func(r *resource, name string) bool {
		return r != nil && r.Type == "AWS::Lambda::Function" && strings.HasSuffix(one.text(r.get("FunctionName")),
			"-"+name)
	}
	for id, r := range one.ofType("AWS::Lambda::Function") {
		if !is(r, config.Applier) && !is(r, config.Reconcile) {
			continue
		}
		looked++
		if !slices.ContainsFunc(r.DependsOn, func(on string) bool { return is(one.Resources[on], config.Authorizer) }) {
			wrong = append(wrong, id+" is not updated after the authorizer")
		}
	}
	return wrong, looked
}

func subscriptionHolds(one *template, _ string, r *resource, wrong func(string, ...any)) {
	if r.get("RawMessageDelivery") != true {
		wrong("the applier gets envelopes")
	}
	if to := one.text(
		r.get("RedrivePolicy", "deadLetterTargetArn")); to != "arn:aws:sqs:eu-west-1:123456789012:sluice-undelivered" {
		wrong("what cannot be delivered goes to %s", to)
	}
	if one.text(r.get("TopicArn")) != "arn:aws:sns:eu-west-1:123456789012:sluice-changes" ||
		r.get("Region") != "eu-west-1" {
		wrong("its topic is %s of %v", one.text(r.get("TopicArn")), r.get("Region"))
	}
}

// changesStatement returns the statement that allows publishing changes, or subscribing to them, with its condition.
func changesStatement(one *template, effect, condition string) map[string]any {
	for _, p := range one.ofType("AWS::SNS::TopicPolicy") {
		for _, s := range list(p.get("PolicyDocument", "Statement")) {
			if get(s, "Effect") == effect && strings.Contains(fmt.Sprint(get(s, "Condition")), condition) {
				return s.(map[string]any)
			}
		}
	}
	return map[string]any{}
}

// topicPolicyHolds checks the topic of changes: its policy lets exactly those roles publish that are granted it.
func topicPolicyHolds(one *template) (wrong []string, looked int) {
	var roles []string
	for id, r := range one.ofType("AWS::IAM::Role") {
		for _, s := range list(r.get("Policies", 0, "PolicyDocument", "Statement")) {
			if slices.Contains(one.texts(get(s, "Action")), "sns:Publish") {
				roles = append(roles, "${"+id+".Arn}")
			}
		}
	}
	slices.Sort(roles)
	for _, p := range one.ofType("AWS::SNS::TopicPolicy") {
		if to := one.texts(p.get("Topics")); len(to) != 1 || !strings.Contains(to[0], "Changes") {
			continue // a topic of alarms
		}
		looked++
		denied := false
		for _, s := range list(p.get("PolicyDocument", "Statement")) {
			publishes := slices.ContainsFunc(one.texts(get(s, "Action")), func(a string) bool {
				return strings.EqualFold(a, "sns:Publish") || strings.Contains(a, "*")
			})
			if publishes && get(s, "Effect") == "Allow" {
				wrong = append(wrong, "it lets somebody publish who may not by a policy of its own")
			}
			but := one.texts(get(s, "Condition", "ArnNotEquals", "aws:PrincipalArn"))
			slices.Sort(but)
			if publishes && get(s, "Effect") == "Deny" && get(s, "Principal", "AWS") == "*" &&
				slices.Equal(but, roles) {
				denied = true
			}
		}
		if !denied || len(roles) != 2 {
			wrong = append(wrong, fmt.Sprintf("others than %v may publish changes", roles))
		}
	}
	return wrong, looked
}

// senders returns the statement about who may send messages of the topic to a queue.
func senders(one *template, effect string) map[string]any {
	for _, p := range one.ofType("AWS::SQS::QueuePolicy") {
		for _, s := range list(p.get("PolicyDocument", "Statement")) {
			if get(s, "Effect") == effect && get(s, "Action") == "sqs:SendMessage" {
				return s.(map[string]any)
			}
		}
	}
	return map[string]any{}
}

// queuePolicyHolds checks the queues to which the topic sends.
func queuePolicyHolds(one *template) (wrong []string, looked int) {
	const topic = "arn:aws:sns:eu-west-1:123456789012:sluice-changes"
	for id, p := range one.ofType("AWS::SQS::QueuePolicy") {
		sends := false
		denied := false
		for _, s := range list(p.get("PolicyDocument", "Statement")) {
			if get(s, "Action") != "sqs:SendMessage" {
				continue
			}
			sends = true
			if get(s, "Effect") == "Allow" && one.text(get(s, "Condition", "ArnEquals", "aws:SourceArn")) != topic {
				wrong = append(wrong, id+": it lets others send than the topic")
			}
			queue := get(s, "Resource", "Fn::GetAtt", 0)
			if get(s, "Effect") == "Deny" && get(s, "Principal", "AWS") == "*" &&
				queue != nil && queue == get(p.get("Queues"), 0, "Ref") &&
				one.text(get(s, "Condition", "ArnNotEquals", "aws:SourceArn")) == topic {
				denied = true
			}
		}
		if sends {
			looked++
			if !denied {
				wrong = append(wrong, id+": others may send to it than the topic")
			}
		}
	}
	return wrong, looked
}

// wild are the only endings with which a resource may have a wildcard.
var wild = regexp.MustCompile(
	`^[^*?]+(:log-group:/aws/lambda/[a-z0-9-]+:\*|/stream/\*|/audit/\*|/rejected/\*|/anchors/\*|-\?{6})$`)

// anywhere are the only actions that are allowed on any resource: those that Lambda needs for a function in a VPC, for
// which AWS offers nothing narrower.
var anywhere = []string{
	"ec2:CreateNetworkInterface", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets", "ec2:DeleteNetworkInterface",
	"ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses",
}

// variablesOf returns the environment variables of the function that has a role.
func variablesOf(one *template, role string) map[string]any {
	for _, f := range one.ofType("AWS::Lambda::Function") {
		if get(f.get("Role"), "Fn::GetAtt", 0) == role {
			variables, _ := f.get("Environment", "Variables").(map[string]any)
			return variables
		}
	}
	return nil
}

func roleHolds(one *template, id string, r *resource, wrong func(string, ...any)) {
	if strings.Contains(id, "KillSwitchWatching") {
		watchingHolds(one, r, wrong)
		return
	}
	if strings.Contains(id, "FlowLogs") {
		flowLogsHold(one, r, wrong)
		return
	}
	principals := list(r.get("AssumeRolePolicyDocument", "Statement"))
	if len(principals) != 1 || get(principals[0], "Principal", "Service") != "lambda.amazonaws.com" {
		wrong("%v may take it", r.get("AssumeRolePolicyDocument"))
	}
	if r.get("ManagedPolicyArns") != nil || len(list(r.get("Policies"))) != 1 {
		wrong("it has policies beside its own")
	}
	var of grants.Function
	for _, f := range grants.Functions() {
		if strings.Contains(strings.ToLower(id), f.Name+"role") {
			of = f
		}
	}
	given := map[string]int{} // granted actions, with the condition on keys
	for _, s := range list(r.get("Policies", 0, "PolicyDocument", "Statement")) {
		if get(s, "Effect") != "Allow" { // for what is denied to the function's own code, see ownCodeHolds
			for _, action := range one.texts(get(s, "Action")) {
				if !slices.Contains(anywhere, action) {
					wrong("%s is denied", action)
				}
			}
			continue
		}
		for _, action := range one.texts(get(s, "Action")) {
			if strings.ContainsAny(action, "*?") {
				wrong("it may %s", action)
			}
			keys := fmt.Sprint(get(s, "Condition", "ForAllValues:StringLike", "dynamodb:LeadingKeys"))
			if keys != "<nil>" && get(s, "Condition", "Null", "dynamodb:LeadingKeys") != "false" {
				wrong("%s is bound to keys only where a request names some", action)
			}
			for _, on := range one.texts(get(s, "Resource")) {
				if strings.ContainsAny(on, "*?") && !wild.MatchString(on) && !slices.Contains(anywhere, action) {
					wrong("%s on %s", action, on)
				}
				given[action+" on "+kindOf(on)+" with "+keys]++
			}
		}
	}
	want, variables := map[string]int{}, variablesOf(one, id)
	for i := range of.Grants {
		g := &of.Grants[i]
		if name, value, bound := strings.Cut(g.With, "="); name != "" && (variables[name] == nil || bound &&
			variables[name] != value) {
			continue
		}
		keys := "<nil>"
		if bound := g.LeadingKeys(cellOf(one)); bound != nil {
			keys = fmt.Sprint(bound)
		}
		if g.On == grants.Signing { // allowed by the key's policy: see TestAnchorKey
			continue
		}
		for _, action := range g.Actions {
			on := expected[g.On]
			if g.On == grants.Kept { // there is such a queue beside the control tables, and one in each cell
				on = map[string]int{map[bool]string{true: "sqs:sluice-kept",
					false: "sqs:sluice-CELL-kept"}[cellOf(one) == ""]: 1}
			}
			switch g.On { // the resource that the function's variables name, and nothing else
			case grants.Cache:
				on = map[string]int{"elasticache:replicationgroup:" + named(variables["SLUICE_REDIS_IAM_CACHE"]): 1,
					"elasticache:user:" + named(variables["SLUICE_REDIS_IAM_USER"]): 1}
			case grants.Login:
				on = map[string]int{"secretsmanager:secret:" + named(variables["SLUICE_REDIS_SECRET"]) + "-??????": 1}
			}
			if len(on) == 0 {
				wrong("it is not known what %s is", g.On)
			}
			for kind, n := range on {
				want[action+" on "+kind+" with "+keys] += n
			}
		}
	}
	if !maps.Equal(given, want) {
		for _, line := range slices.Sorted(maps.Keys(merged(given, want))) {
			if given[line] != want[line] {
				wrong("%s: given %d times, want %d", line, given[line], want[line])
			}
		}
	}
}

// ownCodeHolds checks that the actions which a role may do on any resource, for Lambda, are denied to the function's
// own code.
func ownCodeHolds(one *template) (wrong []string, looked int) {
	for id, r := range one.ofType("AWS::IAM::Role") {
		open := map[string]bool{}
		statements := list(r.get("Policies", 0, "PolicyDocument", "Statement"))
		for _, s := range statements {
			for _, action := range one.texts(get(s, "Action")) {
				if get(s, "Effect") == "Allow" && get(s, "Resource") == "*" {
					open[action] = true
				}
			}
		}
		if len(open) == 0 {
			continue
		}
		looked++
		for _, s := range statements {
			if get(s, "Effect") != "Deny" {
				continue
			}
			if condition, _ := get(s, "Condition").(map[string]any); len(condition) != 1 ||
				one.text(get(condition, "ArnEquals", "lambda:SourceFunctionArn")) != functionOf(one, id) {
				wrong = append(wrong, fmt.Sprintf("%s: %v is denied to others than the function's code", id,
					get(s, "Action")))
				continue
			}
			for _, action := range one.texts(get(s, "Action")) {
				delete(open, action)
			}
		}
		if len(open) > 0 {
			wrong = append(wrong, fmt.Sprintf("%s: the function's own code may %v", id, slices.Sorted(maps.Keys(open))))
		}
	}
	return wrong, looked
}

// functionOf returns the ARN of the function that has a role.
func functionOf(one *template, role string) string {
	for _, f := range one.ofType("AWS::Lambda::Function") {
		if get(f.get("Role"), "Fn::GetAtt", 0) == role {
			return "arn:aws:lambda:eu-west-1:123456789012:function:" + one.text(f.get("FunctionName"))
		}
	}
	return ""
}

// watchingHolds checks what AppConfig may do for the kill switch: read the alarms of its environment.
func watchingHolds(one *template, r *resource, wrong func(string, ...any)) {
	if principals := list(r.get("AssumeRolePolicyDocument", "Statement")); len(principals) != 1 ||
		get(principals[0], "Principal", "Service") != "appconfig.amazonaws.com" {
		wrong("%v may take it", r.get("AssumeRolePolicyDocument"))
	}
	var watched []string
	for _, m := range list(firstOf(one, "AWS::AppConfig::Environment").get("Monitors")) {
		watched = append(watched, one.text(get(m, "AlarmArn")))
	}
	statements := list(r.get("Policies", 0, "PolicyDocument", "Statement"))
	if len(statements) != 1 || len(list(r.get("Policies"))) != 1 || r.get("ManagedPolicyArns") != nil ||
		get(statements[0], "Action") != "cloudwatch:DescribeAlarms" ||
		!slices.Equal(one.texts(get(statements[0], "Resource")), watched) || len(watched) < 2 {
		wrong("it may do more than look at %v", watched)
	}
}

// flowLogsHold checks that the role of a VPC's flow logs may write to their log group, and nothing else.
func flowLogsHold(one *template, r *resource, wrong func(string, ...any)) {
	principals := list(r.get("AssumeRolePolicyDocument", "Statement"))
	if len(principals) != 1 || get(principals[0], "Principal", "Service") != "vpc-flow-logs.amazonaws.com" {
		wrong("%v may take it", r.get("AssumeRolePolicyDocument"))
	}
	statements := list(r.get("Policies", 0, "PolicyDocument", "Statement"))
	if len(statements) != 1 || len(list(r.get("Policies"))) != 1 || r.get("ManagedPolicyArns") != nil {
		wrong("it may do more than write")
		return
	}
	group, _ := get(firstOf(one, "AWS::EC2::FlowLog").get("LogGroupName"), "Ref").(string)
	if g := one.Resources[group]; g == nil ||
		!strings.HasSuffix(one.text(get(statements[0], "Resource")),
			":log-group:"+one.text(g.get("LogGroupName"))+":*") {
		wrong("it writes %v, and the flow logs go to %s", get(statements[0], "Resource"), group)
	}
	for _, action := range one.texts(get(statements[0], "Action")) {
		if !strings.HasPrefix(action, "logs:") || strings.Contains(action, "*") {
			wrong("it may %s", action)
		}
	}
}

// cellOf returns the id of the template's cell, or "" for the control plane.
func cellOf(one *template) string {
	for _, r := range one.ofType("AWS::Lambda::Function") {
		if cell, ok := r.get("Environment", "Variables", "SLUICE_CELL").(string); ok {
			return cell
		}
	}
	return ""
}

var cellPart = regexp.MustCompile(`sluice-(a-1|us-1|f-1|f-2|g-1|g-2)-`)

// named returns a name in the form that kindOf gives it in an ARN.
func named(v any) string { return cellPart.ReplaceAllString(fmt.Sprint(v), "sluice-CELL-") }

// apiOf returns a reference to the operators' API.
var apiOf = regexp.MustCompile(`\$\{((?:Cell|Control)Operators[0-9A-F]{8})\}`)

// idOf returns a reference to one of the kill switch's resources.
var idOf = regexp.MustCompile(`\$\{CellKillSwitch(Application|Environment|Profile)[0-9A-F]{8}\}`)

// kindOf returns an ARN without its region, with the cell's id masked.
func kindOf(arn string) string {
	parts := strings.SplitN(arn, ":", 6)
	if len(parts) < 6 {
		return arn
	}
	kind := parts[2] + ":" + cellPart.ReplaceAllString(parts[5], "sluice-CELL-")
	if parts[2] == "appconfig" {
		kind = "appconfig:" + idOf.ReplaceAllStringFunc(parts[5],
			func(ref string) string { return strings.ToUpper(idOf.FindStringSubmatch(ref)[1]) })
	}
	if strings.HasPrefix(kind, "logs:") {
		return "logs:"
	}
	return kind
}

// expected says what each kind of resource is in this deployment, and how many there are.
var expected = map[grants.Resource]map[string]int{
	grants.Plans: {"dynamodb:table/sluice-plans": 1}, grants.Tenants: {"dynamodb:table/sluice-tenants": 1},
	grants.Keys:  {"dynamodb:table/sluice-keys": 1},
	grants.Cells: {"dynamodb:table/sluice-cells": 1}, grants.Operations: {"dynamodb:table/sluice-operations": 1},
	grants.PlansStream:      {"dynamodb:table/sluice-plans/stream/*": 1},
	grants.TenantsStream:    {"dynamodb:table/sluice-tenants/stream/*": 1},
	grants.KeysStream:       {"dynamodb:table/sluice-keys/stream/*": 1},
	grants.CellsStream:      {"dynamodb:table/sluice-cells/stream/*": 1},
	grants.OperationsStream: {"dynamodb:table/sluice-operations/stream/*": 1},
	grants.Config:           {"dynamodb:table/sluice-CELL-config": 1},
	grants.AllConfig:        {"dynamodb:table/sluice-CELL-config": 2},
	// two: that of the cell, and that of the other cell for its quotas
	grants.Counters: {"dynamodb:table/sluice-CELL-counters": 2},
	grants.Topic:    {"sns:sluice-changes": 1}, grants.Changes: {"sqs:sluice-CELL-changes": 1},
	grants.Failed: {"sqs:sluice-failed": 1}, grants.Secret: {"secretsmanager:secret:sluice-identity-??????": 1},
	grants.Anchors: {"s3:sluice-audit-123456789012-eu-west-1/anchors/*": 1},
	grants.Names:   {"s3:sluice-audit-123456789012-eu-west-1": 1},
	grants.Objects: {"s3:sluice-audit-123456789012-eu-west-1/audit/*": 1,
		"s3:sluice-audit-123456789012-eu-west-1/rejected/*": 1},
	grants.Logs:    {"logs:": 1},
	grants.Network: {"*": 1},
	grants.Switch:  {"appconfig:application/APPLICATION/environment/ENVIRONMENT/configuration/PROFILE": 1},
}

func functionHolds(one *template, _ string, r *resource, wrong func(string, ...any)) {
	name := one.text(r.get("FunctionName"))
	kind := name[strings.LastIndex(name, "-")+1:]
	of, ok := grants.Of(kind)
	if !ok || environ.Names(kind) == nil {
		wrong("there is no function %s", kind)
		return
	}
	var given []string
	variables, _ := r.get("Environment", "Variables").(map[string]any)
	for key, value := range variables {
		if key == "SLUICE_ANCHOR_KEY" && get(value, "Fn::GetAtt", 0) != nil {
			value = "arn:aws:kms:eu-west-1:123456789012:key/a-1"
		}
		text := endpointOf.ReplaceAllString(one.text(value), "cache.example.com:6379")
		given = append(given, key+"="+idOf.ReplaceAllString(apiOf.ReplaceAllString(text, "abc1234"), "abc1234"))
	}
	if own := apiOf.FindStringSubmatch(one.text(variables["SLUICE_API"])); kind == config.Admin || kind == config.Ops {
		if own == nil || one.Resources[own[1]] == nil || !ownStage(one, own[1], one.text(variables["SLUICE_API"])) {
			wrong("it answers the API %v, which is not its own", variables["SLUICE_API"])
		}
	}
	if err := environ.Check(kind, given, new(token.Issuers)); err != nil {
		wrong("it would not start: %v", err)
	}
	reserved, memory := float64(of.Reserved), float64(of.MemoryMB)
	if kind == config.Authorizer {
		reserved, memory = 40, 512
		if variables["SLUICE_MAX_INSTANCES"] != "40" {
			wrong("it takes itself for one of %v", variables["SLUICE_MAX_INSTANCES"])
		}
	}
	if r.get("ReservedConcurrentExecutions") != reserved || r.get("MemorySize") != memory ||
		r.get("Timeout") != of.Timeout.Seconds() {
		wrong("its size is %v, %v MB and %v s", r.get("ReservedConcurrentExecutions"), r.get("MemorySize"),
			r.get("Timeout"))
	}
	if r.get("Runtime") != "provided.al2023" || r.get("Handler") != "bootstrap" ||
		get(r.get("Architectures"), 0) != "arm64" {
		wrong("it is made for another runtime")
	}
	group := one.Resources[fmt.Sprint(get(r.get("LoggingConfig", "LogGroup"), "Ref"))]
	if group == nil || group.get("LogGroupName") != "/aws/lambda/"+name || group.get("RetentionInDays") != 30.0 {
		wrong("its logs go nowhere, or stay for ever")
	}
}

// ownStage reports whether the template has the stage of the API with which a setting ends.
func ownStage(one *template, api, setting string) bool {
	for _, stage := range one.ofType("AWS::ApiGateway::Stage") {
		if get(stage.get("RestApiId"), "Ref") == api && strings.HasSuffix(setting,
			"}/"+fmt.Sprint(stage.get("StageName"))) {
			return true
		}
	}
	return false
}

func permissionHolds(one *template, _ string, r *resource, wrong func(string, ...any)) {
	if r.get("SourceArn") == nil {
		wrong("whoever is at %v may invoke it", r.get("Principal"))
	}
	if p := one.text(r.get("Principal")); p != "events.amazonaws.com" && p != "apigateway.amazonaws.com" {
		wrong("%s may invoke it", p)
	}
}

func secretHolds(_ *template, _ string, r *resource, wrong func(string, ...any)) {
	if r.get("Name") != "sluice-identity" { // the secret of a cache
		if r.get("SecretString") != nil || r.get("GenerateSecretString", "GenerateStringKey") != "password" ||
			r.get("GenerateSecretString", "PasswordLength") != 64.0 ||
			r.get("GenerateSecretString", "ExcludePunctuation") != true {
			wrong("its password is in the template, or nowhere, or ElastiCache does not take it")
		}
		return
	}
	if r.get("SecretString") != nil || r.get("GenerateSecretString", "GenerateStringKey") != "addressKey" {
		wrong("its value is in the template, or nowhere")
	}
	if r.get("GenerateSecretString", "PasswordLength") != 64.0 ||
		r.get("GenerateSecretString", "ExcludePunctuation") != true {
		wrong("what is generated is not base64")
	}
	if get(r.get("ReplicaRegions"), 0, "Region") != "us-east-1" || len(list(r.get("ReplicaRegions"))) != 1 {
		wrong("it is in %v", r.get("ReplicaRegions"))
	}
	if !isRetained(r) {
		wrong("every key is lost with the stack")
	}
}

func trailHolds(one *template, _ string, r *resource, wrong func(string, ...any)) {
	if r.get("EnableLogFileValidation") != true || r.get("IsMultiRegionTrail") != true || r.get("IsLogging") != true {
		wrong("it can be altered, or misses the cells of other regions")
	}
	var recorded []string
	for _, s := range list(r.get("AdvancedEventSelectors")) {
		for _, f := range list(get(s, "FieldSelectors")) {
			if get(f, "Field") == "resources.ARN" {
				for _, arn := range one.texts(get(f, "Equals")) {
					recorded = append(recorded, arn[strings.LastIndexAny(arn, ":/")+1:])
				}
				recorded = append(recorded, one.texts(get(f, "StartsWith"))...)
			}
		}
	}
	want := []string{
		"sluice-plans", "sluice-tenants", "sluice-keys", "sluice-cells", "sluice-operations", "sluice-a-1-config",
		"sluice-us-1-config",
		"arn:aws:s3:::sluice-audit-123456789012-eu-west-1/", "arn:aws:s3:::sluice-trail-123456789012-eu-west-1/",
		"sluice-admin", "sluice-a-1-ops", "sluice-us-1-ops",
	}
	if !slices.Equal(recorded, want) {
		wrong("it records %v, want %v", recorded, want)
	}
}

func wholeHolds(one *template) (wrong []string, looked int) {
	for id, output := range one.Outputs {
		if output["Export"] != nil {
			wrong = append(wrong, id+": another stack may hold on to it")
		}
	}
	for id, r := range one.Resources {
		text, err := json.Marshal(r.Properties)
		switch {
		case err != nil || strings.Contains(string(text), "Fn::ImportValue"):
			wrong = append(wrong, id+": needs another stack")
		case strings.HasPrefix(r.Type, "Custom::") || r.Type == "AWS::CloudFormation::CustomResource" ||
			r.Type == "AWS::Lambda::Url" ||
			r.Type == "AWS::IAM::Policy" || r.Type == "AWS::IAM::ManagedPolicy":
			wrong = append(wrong, id+": a "+r.Type)
		}
		for _, s := range list(r.get("PolicyDocument", "Statement")) {
			principal := fmt.Sprint(get(s, "Principal"))
			if account := get(s, "Condition", "StringEquals",
				"aws:PrincipalAccount"); r.Type == "AWS::EC2::VPCEndpoint" && one.text(account) == "123456789012" {
				continue // a gateway endpoint can restrict principals by conditions only
			}
			if get(s, "Effect") == "Allow" && strings.Contains(principal, "*") {
				wrong = append(wrong, id+": anybody may "+fmt.Sprint(get(s, "Action")))
			}
		}
	}
	return wrong, 1
}
