package infra

import (
	"slices"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsapigateway"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsdynamodb"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslogs"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/control/operate"
)

// keep makes CloudFormation keep data when it deletes the stack or replaces the resource. Resources of a failed first
// deployment are deleted, so that the next attempt can make them. Tables cannot be deleted even then, because they are
// protected, and therefore they are made last.
const keep = awscdk.RemovalPolicy_RETAIN_ON_UPDATE_OR_DELETE

// newTable makes a table with the settings that all tables have. An on-demand table costs nothing while it is not used,
// except for its storage.
func newTable(scope constructs.Construct, id, name string, props *awsdynamodb.TableProps) awsdynamodb.Table {
	props.TableName = &name
	props.BillingMode = awsdynamodb.BillingMode_PAY_PER_REQUEST
	// AWS's own key: uses of it are on record, and it costs nothing
	props.Encryption = awsdynamodb.TableEncryption_AWS_MANAGED
	props.PointInTimeRecoverySpecification = &awsdynamodb.PointInTimeRecoverySpecification{
		PointInTimeRecoveryEnabled: jsii.Bool(true)}
	props.DeletionProtection = jsii.Bool(true)
	props.RemovalPolicy = keep
	return awsdynamodb.NewTable(scope, &id, props)
}

// newControlTable makes a control table. Package internal/control/dynamo describes its layout.
func newControlTable(scope constructs.Construct, id, name string) awsdynamodb.Table {
	return newTable(scope, id, name, &awsdynamodb.TableProps{
		PartitionKey: attribute("id", awsdynamodb.AttributeType_STRING),
		Stream:       awsdynamodb.StreamViewType_NEW_AND_OLD_IMAGES,
	})
}

func attribute(name string, of awsdynamodb.AttributeType) *awsdynamodb.Attribute {
	return &awsdynamodb.Attribute{Name: &name, Type: of}
}

const keptDays = 14 // the longest retention that SQS offers

// newKeepingQueue makes a queue of dead letters, which an operator has to look at.
func newKeepingQueue(scope constructs.Construct, id, name string) awssqs.Queue {
	return newQueue(scope, id, name, &awssqs.QueueProps{RetentionPeriod: awscdk.Duration_Days(jsii.Number(keptDays))})
}

func newQueue(scope constructs.Construct, id, name string, props *awssqs.QueueProps) awssqs.Queue {
	props.QueueName = &name
	props.Encryption = awssqs.QueueEncryption_SQS_MANAGED
	props.EnforceSSL = jsii.Bool(true)
	return awssqs.NewQueue(scope, &id, props)
}

const operatorsStage = "v1"

// newOperatorsAPI makes a REST API for operators, with a throttle for each operation. IAM decides who may call an
// operation (execute-api:Invoke). serveOperators adds the function behind the API later, because the function's
// variables contain the API's id.
func newOperatorsAPI(scope constructs.Construct, p *place, all []operate.Operation) awsapigateway.RestApi {
	throttles := map[string]*awsapigateway.MethodDeploymentOptions{}
	for _, o := range all {
		throttles[o.Path+"/POST"] = &awsapigateway.MethodDeploymentOptions{
			ThrottlingRateLimit: jsii.Number(o.PerSecond), ThrottlingBurstLimit: jsii.Number(o.Burst),
		}
	}
	stage := &awsapigateway.StageOptions{StageName: jsii.String(operatorsStage), MethodOptions: &throttles}
	if p.deployment.Operators.AccessLogs {
		group := newLogGroup(scope, "OperatorsLogs", "/aws/apigateway/"+p.name(config.Operators), p)
		stage.AccessLogDestination = awsapigateway.NewLogGroupLogDestination(group)
		stage.AccessLogFormat = awsapigateway.AccessLogFormat_Custom(jsii.String(accessLog))
	}
	return awsapigateway.NewRestApi(scope, jsii.String("Operators"), &awsapigateway.RestApiProps{
		RestApiName: jsii.String(p.name(config.Operators)), CloudWatchRole: jsii.Bool(false),
		EndpointTypes: &[]awsapigateway.EndpointType{awsapigateway.EndpointType_REGIONAL},
		Policy:        operatorsPolicy(awscdk.Stack_Of(scope).Account(), &p.deployment.Operators),
		DeployOptions: stage,
	})
}

// accessLog is the format of an access log line of an operators' API: who called which operation, and what API Gateway
// answered. It contains no bodies.
const accessLog = `{"requestId":"$context.requestId","time":"$context.requestTime",` +
	`"operator":"$context.identity.userArn",` +
	`"address":"$context.identity.sourceIp","method":"$context.httpMethod","path":"$context.path",` +
	`"status":"$context.status",` +
	`"error":"$context.error.responseType","latencyMs":"$context.responseLatency"}`

// newLogGroup makes a log group that is deleted with its stack. What has to outlast the stack is in the audit bucket,
// and a group that stayed would make the next deployment of the stack fail.
func newLogGroup(scope constructs.Construct, id, name string, p *place) awslogs.ILogGroup {
	group := awslogs.NewCfnLogGroup(scope, &id, &awslogs.CfnLogGroupProps{
		LogGroupName: &name, RetentionInDays: jsii.Number(p.deployment.Control.LogDays),
	})
	group.ApplyRemovalPolicy(awscdk.RemovalPolicy_DESTROY, nil)
	return awslogs.LogGroup_FromLogGroupName(scope, jsii.String(id[:len(id)-1]+"Group"), group.Ref())
}

// operatorsAPI returns the value of SLUICE_API: the API's id and its stage.
func operatorsAPI(api awsapigateway.RestApi) string { return *api.RestApiId() + "/" + operatorsStage }

// serveOperators puts a function behind an operators' API, with one resource for each operation, so that API Gateway
// refuses every other path.
func serveOperators(api awsapigateway.RestApi, function awslambda.Function, all []operate.Operation) {
	// A LambdaIntegration would make one permission for each method, or one for all stages, including the stage of the
	// console's tests.
	function.AddPermission(jsii.String("Gateway"), &awslambda.Permission{
		Principal: awsiam.NewServicePrincipal(jsii.String("apigateway.amazonaws.com"), nil),
		SourceArn: api.ArnForExecuteApi(jsii.String("POST"), jsii.String("/*"), jsii.String(operatorsStage)),
	})
	integration := awsapigateway.NewAwsIntegration(&awsapigateway.AwsIntegrationProps{
		Proxy: jsii.Bool(true), Service: jsii.String("lambda"),
		Path: jsii.String("2015-03-31/functions/" + *function.FunctionArn() + "/invocations"),
	})
	for _, o := range all {
		api.Root().ResourceForPath(jsii.String(o.Path)).AddMethod(jsii.String("POST"), integration,
			&awsapigateway.MethodOptions{AuthorizationType: awsapigateway.AuthorizationType_IAM})
	}
}

// operatorsPolicy returns the resource policy of an operators' API. It only denies: a statement that allows would admit
// callers whom IAM does not allow. A call without a signature has no account, so it is denied like a call from another
// account.
func operatorsPolicy(account *string, let *config.Callers) awsiam.PolicyDocument {
	policy := awsiam.NewPolicyDocument(nil)
	deny := func(id, operator, key string, but any) {
		policy.AddStatements(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
			Sid: &id, Effect: awsiam.Effect_DENY, Principals: &[]awsiam.IPrincipal{awsiam.NewAnyPrincipal()},
			Actions:    jsii.Strings("execute-api:Invoke"),
			Resources:  jsii.Strings("execute-api:/*"), // API Gateway adds the id of this API
			Conditions: &map[string]any{operator: map[string]any{key: but}},
		}))
	}
	deny("OtherAccounts", "StringNotEquals", "aws:PrincipalAccount", account)
	if len(let.Principals) > 0 {
		deny("OtherPrincipals", "ArnNotLike", "aws:PrincipalArn", let.Principals)
	}
	if len(let.Addresses) > 0 {
		deny("OtherAddresses", "NotIpAddress", "aws:SourceIp", let.Addresses)
	}
	return policy
}

// optIn lists the regions that an account has to enable. If the topic or the queue is in such a region, SNS delivers
// between regions under the region's own service principal.
var optIn = []string{
	"af-south-1", "ap-east-1", "ap-east-2", "ap-south-2", "ap-southeast-3", "ap-southeast-4", "ap-southeast-5",
	"ap-southeast-6",
	"ap-southeast-7", "ca-west-1", "eu-central-2", "eu-south-1", "eu-south-2", "il-central-1", "me-central-1",
	"me-south-1", "mx-central-1",
}

// topicPrincipal returns the service principal that delivers from a topic in one region to a queue in another one. As
// SNS documents it, this is the principal of the queue's region if an account has to enable that region, and otherwise
// that of the topic's region if an account has to enable that one. A queue policy that names another principal admits
// nothing.
func topicPrincipal(topic, queue string) string {
	switch {
	case topic == queue:
	case slices.Contains(optIn, queue):
		return "sns." + queue + ".amazonaws.com"
	case slices.Contains(optIn, topic):
		return "sns." + topic + ".amazonaws.com"
	}
	return "sns.amazonaws.com"
}
