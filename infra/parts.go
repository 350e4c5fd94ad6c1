package infra

import (
	"slices"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsapigateway"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsdynamodb"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"
)

// keep is what happens to data when its stack goes, or another resource takes its place: it stays. What a failed first deployment
// made is removed, so that the next one can make it; but tables, whose protection is in the way of that: docs/deploy.md.
const keep = awscdk.RemovalPolicy_RETAIN_ON_UPDATE_OR_DELETE

// newTable makes a table with what all of ours have. An on-demand table costs nothing while nobody uses it, but for what is stored.
func newTable(scope constructs.Construct, id, name string, props *awsdynamodb.TableProps) awsdynamodb.Table {
	props.TableName = &name
	props.BillingMode = awsdynamodb.BillingMode_PAY_PER_REQUEST
	props.Encryption = awsdynamodb.TableEncryption_AWS_MANAGED // in the trail of KMS, and without a key to pay for
	props.PointInTimeRecoverySpecification = &awsdynamodb.PointInTimeRecoverySpecification{PointInTimeRecoveryEnabled: jsii.Bool(true)}
	props.DeletionProtection = jsii.Bool(true)
	props.RemovalPolicy = keep
	return awsdynamodb.NewTable(scope, &id, props)
}

// newControlTable makes a control table: package internal/control/row has its layout.
func newControlTable(scope constructs.Construct, id, name string) awsdynamodb.Table {
	return newTable(scope, id, name, &awsdynamodb.TableProps{
		PartitionKey: attribute("id", awsdynamodb.AttributeType_STRING),
		Stream:       awsdynamodb.StreamViewType_NEW_AND_OLD_IMAGES,
	})
}

func attribute(name string, of awsdynamodb.AttributeType) *awsdynamodb.Attribute {
	return &awsdynamodb.Attribute{Name: &name, Type: of}
}

const keptDays = 14 // the longest that SQS keeps a message

// newKeepingQueue makes a queue for what somebody has to look at.
func newKeepingQueue(scope constructs.Construct, id, name string) awssqs.Queue {
	return newQueue(scope, id, name, &awssqs.QueueProps{RetentionPeriod: awscdk.Duration_Days(jsii.Number(keptDays))})
}

func newQueue(scope constructs.Construct, id, name string, props *awssqs.QueueProps) awssqs.Queue {
	props.QueueName = &name
	props.Encryption = awssqs.QueueEncryption_SQS_MANAGED
	props.EnforceSSL = jsii.Bool(true)
	return awssqs.NewQueue(scope, &id, props)
}

const (
	operatorsStage = "v1"
	operatorsRate  = 50 // calls per second and API; apply sends them one after the other
)

// newOperatorsAPI makes the REST API in front of a function for operators. Who may call it is a matter of IAM: execute-api:Invoke.
func newOperatorsAPI(scope constructs.Construct, name string, function awslambda.IFunction) awsapigateway.RestApi {
	api := awsapigateway.NewRestApi(scope, jsii.String("Operators"), &awsapigateway.RestApiProps{
		RestApiName: &name, CloudWatchRole: jsii.Bool(false), EndpointTypes: &[]awsapigateway.EndpointType{awsapigateway.EndpointType_REGIONAL},
		DeployOptions: &awsapigateway.StageOptions{
			StageName: jsii.String(operatorsStage), ThrottlingRateLimit: jsii.Number(operatorsRate), ThrottlingBurstLimit: jsii.Number(operatorsRate),
		},
	})
	api.Root().AddResource(jsii.String("{proxy+}"), nil).AddMethod(jsii.String("POST"),
		awsapigateway.NewLambdaIntegration(function, &awsapigateway.LambdaIntegrationOptions{AllowTestInvoke: jsii.Bool(false)}),
		&awsapigateway.MethodOptions{AuthorizationType: awsapigateway.AuthorizationType_IAM})
	return api
}

// optIn are the regions that an account has to ask for. Where one is on either side, SNS speaks between regions under a name of a region's own.
var optIn = []string{
	"af-south-1", "ap-east-1", "ap-east-2", "ap-south-2", "ap-southeast-3", "ap-southeast-4", "ap-southeast-5", "ap-southeast-6",
	"ap-southeast-7", "ca-west-1", "eu-central-2", "eu-south-1", "eu-south-2", "il-central-1", "me-central-1", "me-south-1", "mx-central-1",
}

// topicPrincipal is who delivers from a topic in one region to a queue in another: as SNS documents it, the queue's region where an account has
// to ask for that, else the topic's where it has to ask for that. A policy that names another one lets nothing in.
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
