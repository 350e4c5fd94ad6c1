package infra

import (
	"fmt"
	"maps"
	"slices"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsapigateway"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsdynamodb"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awskms"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awss3"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssecretsmanager"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssns"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/control/operations"
)

// ControlPlaneProps say which control plane.
type ControlPlaneProps struct {
	Deployment *config.Deployment // required; NewControlPlane completes it
	Lambdas    string             // folder of the functions' zips, each NAME.zip; default that of Bundles
}

// ControlPlane is where operators write: the control tables, what brings their changes to the cells, and the audit
// trail. There is one for all cells of a deployment. No cell needs it to decide.
type ControlPlane struct {
	Construct constructs.Construct

	Tables    map[string]awsdynamodb.Table  // by config.Plans and so on
	Functions map[string]awslambda.Function // by config.Publisher and so on
	Topic     awssns.CfnTopic               // of changes; its subscriptions are the cells'
	Audit     awss3.Bucket                  // of the audit trail
	Secret    awssecretsmanager.Secret      // the peppers and the key for addresses, in each region that has a cell
	AnchorKey awskms.Key                    // that signs the audit trail's anchors; nil where there are none
	API       awsapigateway.RestApi         // of operators; who may call it is a matter of IAM

	// Queues in which something is only ever when it needs a look: config.Kept, config.Failed, config.Undelivered.
	Queues map[string]awssqs.Queue
}

// NewControlPlane makes the control plane in a scope that is in the region of the deployment's control plane. The error
// says what is wrong with the deployment, which zip is missing, or what CDK says.
func NewControlPlane(
	scope constructs.Construct, id string, props *ControlPlaneProps,
) (control *ControlPlane, err error) {
	defer recovered(id, &err)
	if err := props.Deployment.Complete(); err != nil {
		return nil, err
	}
	d, lambdas := props.Deployment, props.Lambdas
	if lambdas == "" {
		_, lambdas = Bundles(d)
	}
	c := &ControlPlane{
		Tables: map[string]awsdynamodb.Table{}, Functions: map[string]awslambda.Function{},
		Queues: map[string]awssqs.Queue{},
	}
	c.Construct = constructs.NewConstruct(scope, &id)
	p := &place{deployment: d, names: namesOf(d)}
	for _, name := range config.ControlTables() {
		c.Tables[name] = newControlTable(c.Construct, "Table-"+name, p.name(name))
	}
	for _, name := range []string{config.Kept, config.Failed, config.Undelivered} {
		c.Queues[name] = newKeepingQueue(c.Construct, "Queue-"+name, p.name(name))
	}
	c.topic(p)
	c.secret(p)
	c.audit(p)
	c.API = newOperatorsAPI(c.Construct, p, operations.Control())
	p.api = operatorsAPI(c.API)
	functions := config.ControlFunctions()
	if d.Control.Audit.Anchors {
		functions = append(functions, config.Anchor)
		c.AnchorKey = newAnchorKey(c.Construct, p)
		p.anchorKey = *c.AnchorKey.KeyArn()
	}
	for _, name := range functions {
		f, err := newFunction(c.Construct, p, name, lambdas)
		if err != nil {
			return nil, err
		}
		c.Functions[name] = f.lambda
		if f.of.Streams != nil {
			f.readStreams(c.Tables, c.Queues[config.Failed])
		}
	}
	tablesLast(slices.Collect(maps.Values(c.Tables)), c.Functions)
	c.topicPolicy(p)
	c.onlySigner()
	c.keepOut(p)
	serveOperators(c.API, c.Functions[config.Admin], operations.Control())
	if !d.Control.NoTrail {
		c.trail(p)
	}
	newAlarms(c.Construct, p)
	if d.Dashboards {
		if err := newDashboard(c.Construct, p); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// topic makes the topic of changes, and the right to keep what it cannot deliver.
func (c *ControlPlane) topic(p *place) {
	c.Topic = awssns.NewCfnTopic(c.Construct, jsii.String("Changes"), &awssns.CfnTopicProps{
		TopicName: jsii.String(p.name(config.Changes)), KmsMasterKeyId: jsii.String("alias/aws/sns"),
	})
	onlyFromTopic(c.Queues[config.Undelivered], "sns.amazonaws.com", p.names.TopicARN(p.region()))
}

// topicPolicy lets this account subscribe to the topic, and nobody publish on it but the roles of the publisher and
// the balancer, which their own policies allow. Whoever administers the account can change that, which CloudTrail
// records.
func (c *ControlPlane) topicPolicy(p *place) {
	arn := p.names.TopicARN(p.region())
	publishers := []*string{c.Functions[config.Publisher].Role().RoleArn(),
		c.Functions[config.Balancer].Role().RoleArn()}
	awssns.NewCfnTopicPolicy(c.Construct, jsii.String("ChangesPolicy"), &awssns.CfnTopicPolicyProps{
		Topics: &[]*string{c.Topic.Ref()},
		PolicyDocument: awsiam.NewPolicyDocument(&awsiam.PolicyDocumentProps{Statements: &[]awsiam.PolicyStatement{
			awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
				Sid: jsii.String("ThisAccount"), Principals: &[]awsiam.IPrincipal{awsiam.NewAccountRootPrincipal()},
				Actions: jsii.Strings("sns:Subscribe"), Resources: jsii.Strings(arn),
			}),
			awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
				Sid: jsii.String("PublishedByNobodyElse"), Effect: awsiam.Effect_DENY,
				Principals: &[]awsiam.IPrincipal{awsiam.NewAnyPrincipal()},
				Actions:    jsii.Strings("sns:Publish"), Resources: jsii.Strings(arn),
				Conditions: &map[string]any{"ArnNotEquals": map[string]any{"aws:PrincipalArn": publishers}},
			}),
			neverInClear(arn),
		}}),
	})
}

// onlyFromTopic lets a topic send to a queue, and nobody else. A request that comes by itself has no source, and is
// denied, too.
func onlyFromTopic(queue awssqs.Queue, principal, topic string) {
	send, source := jsii.Strings("sqs:SendMessage"), map[string]any{"aws:SourceArn": topic}
	queue.AddToResourcePolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid: jsii.String("FromTheTopic"), Principals: &[]awsiam.IPrincipal{awsiam.NewServicePrincipal(&principal, nil)},
		Actions: send, Resources: &[]*string{queue.QueueArn()}, Conditions: &map[string]any{"ArnEquals": source},
	}))
	queue.AddToResourcePolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid: jsii.String("FromNobodyElse"), Effect: awsiam.Effect_DENY,
		Principals: &[]awsiam.IPrincipal{awsiam.NewAnyPrincipal()},
		Actions:    send, Resources: &[]*string{queue.QueueArn()}, Conditions: &map[string]any{"ArnNotEquals": source},
	}))
}

const addressKeyLength = 64 // letters and digits, which are base64 of 48 bytes

// secret makes the secret that all cells share: a key that one of them issues is good in every one. Secrets Manager
// makes the key for addresses, so that no template has a value, and copies the secret to the cells' regions. It cannot
// make the peppers, of which each has a name: they are put in by infra/pepper, once, and until then no API key can be
// made and none is known.
func (c *ControlPlane) secret(p *place) {
	var replicas []*awssecretsmanager.ReplicaRegion
	for _, region := range p.deployment.Regions()[1:] {
		replicas = append(replicas, &awssecretsmanager.ReplicaRegion{Region: &region})
	}
	slices.SortFunc(replicas, func(a, b *awssecretsmanager.ReplicaRegion) int {
		return slices.Compare([]byte(*a.Region), []byte(*b.Region)) // the cells' order in the file is nothing to it
	})
	props := &awssecretsmanager.SecretProps{
		SecretName:  jsii.String(p.name(config.Secret)),
		Description: jsii.String("Sluice: peppers of API keys, and the key for addresses. See docs/deploy.md."),
		GenerateSecretString: &awssecretsmanager.SecretStringGenerator{
			SecretStringTemplate: jsii.String("{}"), GenerateStringKey: jsii.String("addressKey"),
			PasswordLength: jsii.Number(addressKeyLength), ExcludePunctuation: jsii.Bool(true),
			IncludeSpace:            jsii.Bool(false),
			RequireEachIncludedType: jsii.Bool(false),
		},
		RemovalPolicy: keep,
	}
	if len(replicas) > 0 {
		props.ReplicaRegions = &replicas
	}
	c.Secret = awssecretsmanager.NewSecret(c.Construct, jsii.String("Identity"), props)
}

// ControlStack is a stack with a control plane and nothing else.
type ControlStack struct {
	Stack        awscdk.Stack
	ControlPlane *ControlPlane
}

func newControlStack(app constructs.Construct, props *ControlPlaneProps) (*ControlStack, error) {
	d := props.Deployment
	s := &ControlStack{Stack: newStack(app, config.Names{Prefix: d.Prefix}.ControlStack(), d, d.Control.Region,
		"Sluice's control plane")}
	control, err := NewControlPlane(s.Stack, "Control", props)
	if err != nil {
		return nil, fmt.Errorf("the control plane: %w", err)
	}
	s.ControlPlane = control
	if control.AnchorKey != nil {
		output(s.Stack, "AnchorKey", "The key whose public half sluice audit verify is given as --anchor-key",
			*control.AnchorKey.KeyArn())
	}
	output(s.Stack, "Endpoint", "What the operator's commands are given as --endpoint", *control.API.Url())
	return s, nil
}
