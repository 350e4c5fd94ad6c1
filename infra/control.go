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
	"github.com/sluicelimits/sluice/internal/control/operate"
)

// ControlPlaneProps are the parameters of [NewControlPlane].
type ControlPlaneProps struct {
	Deployment *config.Deployment // required; NewControlPlane fills in its defaults and checks it
	Lambdas    string             // folder of the functions' zips, each NAME.zip; if empty, the folder of BuildTarget
}

// ControlPlane has the control tables, to which operators write, the functions that bring changes to the cells, and the
// audit trail. A deployment has one control plane. Cells do not need it to decide.
type ControlPlane struct {
	Construct constructs.Construct

	Tables    map[string]awsdynamodb.Table  // keys: the names of config.ControlTables
	Functions map[string]awslambda.Function // keys: the names of config.ControlFunctions, and config.Anchor
	Topic     awssns.CfnTopic               // announces changes; each cell has a subscription
	Audit     awss3.Bucket                  // holds the audit trail
	// holds the peppers and the key for addresses; replicated to each region with a cell
	Secret    awssecretsmanager.Secret
	AnchorKey awskms.Key            // signs the audit trail's anchors; nil if the deployment has no anchors
	API       awsapigateway.RestApi // the operators' API; IAM decides who may call it

	// Queues are the queues of dead letters: messages in them need an operator. The keys are config.Kept, config.Failed
	// and config.Undelivered.
	Queues map[string]awssqs.Queue
}

// NewControlPlane makes the control plane. The scope must be in the region of the deployment's control plane. The error
// says what is wrong with the deployment, which zip is missing, or what CDK reports.
func NewControlPlane(
	scope constructs.Construct, id string, props *ControlPlaneProps,
) (control *ControlPlane, err error) {
	defer recoverError(id, &err)
	if err := props.Deployment.Complete(); err != nil {
		return nil, err
	}
	d, lambdas := props.Deployment, props.Lambdas
	if lambdas == "" {
		_, lambdas = BuildTarget(d)
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
	c.API = newOperatorsAPI(c.Construct, p, operate.ControlOperations())
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
		if f.spec.Streams != nil {
			f.readStreams(c.Tables, c.Queues[config.Failed])
		}
	}
	createTablesLast(slices.Collect(maps.Values(c.Tables)), c.Functions)
	c.topicPolicy(p)
	c.restrictSigning()
	c.restrictTrailWriters(p)
	serveOperators(c.API, c.Functions[config.Admin], operate.ControlOperations())
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

// topic makes the topic of changes, and lets the topic put messages that it cannot deliver into a queue.
func (c *ControlPlane) topic(p *place) {
	c.Topic = awssns.NewCfnTopic(c.Construct, jsii.String("Changes"), &awssns.CfnTopicProps{
		TopicName: jsii.String(p.name(config.Changes)), KmsMasterKeyId: jsii.String("alias/aws/sns"),
	})
	allowOnlyTopic(c.Queues[config.Undelivered], "sns.amazonaws.com", p.names.TopicARN(p.region()))
}

// topicPolicy lets this account subscribe to the topic, and only the roles of the publisher and the balancer publish to
// it. These roles' own policies allow that. An administrator of the account can change the topic's policy; CloudTrail
// records that.
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
			denyUnencryptedPublish(arn),
		}}),
	})
}

// allowOnlyTopic lets only one topic send to a queue. A request that no topic sent has no source ARN, and is denied,
// too.
func allowOnlyTopic(queue awssqs.Queue, principal, topic string) {
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

const addressKeyLength = 64 // characters; letters and digits are valid base64, here of 48 bytes

// secret makes the secret that all cells share, so that every cell accepts an API key. Secrets Manager generates the
// key for addresses, so that no template contains it, and replicates the secret to the cells' regions. Secrets Manager
// cannot generate the peppers, because each has a name. An operator adds the first one with infra/pepper. Until then no
// API key can be made.
func (c *ControlPlane) secret(p *place) {
	var replicas []*awssecretsmanager.ReplicaRegion
	for _, region := range p.deployment.Regions()[1:] {
		replicas = append(replicas, &awssecretsmanager.ReplicaRegion{Region: &region})
	}
	slices.SortFunc(replicas, func(a, b *awssecretsmanager.ReplicaRegion) int {
		// the template does not depend on the order of the cells in the file
		return slices.Compare([]byte(*a.Region), []byte(*b.Region))
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

// ControlStack is a stack that contains a control plane.
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
		output(s.Stack, "AnchorKey", "The anchor key: sluice audit verify takes its public half as --anchor-key",
			*control.AnchorKey.KeyArn())
	}
	output(s.Stack, "Endpoint", "The value of --endpoint in the operator's commands", *control.API.Url())
	return s, nil
}
