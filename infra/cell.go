package infra

import (
	"fmt"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsapigateway"
	apis "github.com/aws/aws-cdk-go/awscdk/v2/awsapigatewayv2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsdynamodb"
	"github.com/aws/aws-cdk-go/awscdk/v2/awselasticache"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssns"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/control/operate"
)

// CellProps are the parameters of [NewCell].
type CellProps struct {
	Deployment *config.Deployment // required; NewCell fills in its defaults and checks it
	Cell       string             // required; the id of one of the deployment's cells
	Lambdas    string             // folder of the functions' zips, each NAME.zip; if empty, the folder of BuildTarget
}

// Cell has everything that decides about requests in one region: the counters, the configuration, and the authorizer to
// attach to APIs. It keeps deciding while the control plane is unavailable.
type Cell struct {
	Construct constructs.Construct

	Counters, Config awsdynamodb.Table
	// keys: config.Authorizer and the other names of config.CellFunctions
	Functions map[string]awslambda.Function
	// the function that attachments put in front of APIs; it is in Functions, too
	Authorizer awslambda.Function
	Changes    awssqs.Queue          // the queue to which the topic delivers changes of the configuration
	API        awsapigateway.RestApi // the operators' API for the counters; IAM decides who may call it

	// KillSwitch names the AppConfig configuration with the mode of the cell's limits, as
	// application/environment/profile. The ids are CDK tokens. It is empty if the cell has no kill switch.
	KillSwitch string

	// the replication group of a full cell; nil in a small cell, or if the cache existed before
	Cache awselasticache.CfnReplicationGroup

	// the id of the security group of a full cell's functions, a CDK token; "" in a small cell
	FunctionsGroup string

	WAF string // the ARN of the firewall for stages of REST APIs, a CDK token; "" if the cell has none

	// Queues are the queues of dead letters: messages in them need an operator. The keys are config.Kept and
	// config.Refused.
	Queues map[string]awssqs.Queue
}

// NewCell makes a cell. The scope must be in the cell's region, and the deployment's control plane must be deployed
// before. The error says what is wrong with the deployment, which zip is missing, or what CDK reports.
func NewCell(scope constructs.Construct, id string, props *CellProps) (cell *Cell, err error) {
	defer recoverError(id, &err)
	if err := props.Deployment.Complete(); err != nil {
		return nil, err
	}
	d, lambdas := props.Deployment, props.Lambdas
	if lambdas == "" {
		_, lambdas = BuildTarget(d)
	}
	p := &place{deployment: d, names: namesOf(d), cell: d.Cell(props.Cell)}
	if p.cell == nil {
		return nil, fmt.Errorf("the deployment has no cell %q", props.Cell)
	}
	c := &Cell{Functions: map[string]awslambda.Function{}, Queues: map[string]awssqs.Queue{}}
	c.Construct = constructs.NewConstruct(scope, &id)
	c.tables(p)
	if err := c.newMonitoring(p); err != nil {
		return nil, err
	}
	var vpc *network
	if p.cell.Profile == config.Full {
		vpc = newNetwork(c.Construct, p)
		p.cache = newCache(c.Construct, p, vpc)
		c.Cache, c.FunctionsGroup = p.cache.group, *vpc.function
	}
	c.API = newOperatorsAPI(c.Construct, p, operate.CellOperations())
	p.api = operatorsAPI(c.API)
	made := map[string]*function{}
	for _, name := range config.CellFunctions() {
		f, err := newFunction(c.Construct, p, name, lambdas)
		if err != nil {
			return nil, err
		}
		if vpc != nil && f.callsCache() {
			vpc.connect(f)
		}
		made[name], c.Functions[name] = f, f.lambda
	}
	c.Authorizer = c.Functions[config.Authorizer]
	c.updateAuthorizerFirst()
	createTablesLast([]awsdynamodb.Table{c.Counters, c.Config}, c.Functions)
	c.queues(p, made[config.Applier])
	serveOperators(c.API, c.Functions[config.Ops], operate.CellOperations())
	return c, c.attach(p)
}

// updateAuthorizerFirst makes a deployment update the authorizer before the functions that acknowledge the shares for
// it. An acknowledgement says that the cell can read a form of the shares. An older authorizer that cannot read it
// would go on granting the shares that it knows. Assumption: shares-acknowledged.
func (c *Cell) updateAuthorizerFirst() {
	authorizer := c.Authorizer.Node().DefaultChild().(awslambda.CfnFunction)
	for _, name := range []string{config.Applier, config.Reconcile} {
		c.Functions[name].Node().DefaultChild().(awslambda.CfnFunction).AddResourceDependency(authorizer, nil)
	}
}

// attach puts the cell's authorizer in front of the existing APIs that the deployment file names.
func (c *Cell) attach(p *place) error {
	for i := range p.cell.Attach {
		a := &p.cell.Attach[i]
		id, own := a.ID(), constructs.NewConstruct(c.Construct, jsii.String("API-"+a.ID()))
		var err error
		switch {
		case a.REST != "":
			_, err = AttachREST(own, "Attached", &AttachRESTProps{Authorizer: c.Authorizer, AllowOrigin: a.AllowOrigin,
				NoDefaultResponses: a.NoDefaultResponses,
				API:                awsapigateway.RestApi_FromRestApiId(own, jsii.String("API"), &id)})
		case a.HTTP != "":
			_, err = AttachHTTP(own, "Attached", &AttachHTTPProps{Authorizer: c.Authorizer,
				API: apis.HttpApi_FromHttpApiAttributes(own, jsii.String("API"),
					&apis.HttpApiAttributes{HttpApiId: &id})})
		default:
			_, err = AttachWebSocket(own, "Attached", &AttachWebSocketProps{Authorizer: c.Authorizer,
				API: apis.WebSocketApi_FromWebSocketApiAttributes(own, jsii.String("API"),
					&apis.WebSocketApiAttributes{WebSocketId: &id})})
		}
		if err != nil {
			return fmt.Errorf("the API %s: %w", id, err)
		}
	}
	return nil
}

// newMonitoring makes the alarms, the dashboard, the firewall and the kill switch.
func (c *Cell) newMonitoring(p *place) (err error) {
	alarms := newAlarms(c.Construct, p)
	if p.deployment.Dashboards {
		if err := newDashboard(c.Construct, p); err != nil {
			return err
		}
	}
	if p.cell.WAF != nil {
		c.WAF = newWAF(c.Construct, p)
	}
	if p.cell.NoKillSwitch {
		return nil
	}
	if p.kill, err = newKillSwitch(c.Construct, alarms, p); err != nil {
		return err
	}
	c.KillSwitch = p.kill.setting()
	return nil
}

func (c *Cell) tables(p *place) {
	c.Counters = newTable(c.Construct, "Table-"+config.Counters, p.name(config.Counters), &awsdynamodb.TableProps{
		PartitionKey: attribute("PK", awsdynamodb.AttributeType_BINARY), SortKey: attribute("SK",
			awsdynamodb.AttributeType_BINARY),
		TimeToLiveAttribute: jsii.String("ttl"),
	})
	c.Config = newTable(c.Construct, "Table-"+config.Config, p.name(config.Config), &awsdynamodb.TableProps{
		PartitionKey: attribute("pk", awsdynamodb.AttributeType_STRING), SortKey: attribute("sk",
			awsdynamodb.AttributeType_STRING),
		TimeToLiveAttribute: jsii.String("ttl"),
	})
}

// queues makes the path of changes: the topic sends to the cell's queue, and the applier reads the queue. What the
// topic cannot deliver goes to a queue in the topic's region, as SNS requires.
func (c *Cell) queues(p *place, applier *function) {
	for _, name := range []string{config.Kept, config.Refused} {
		c.Queues[name] = newKeepingQueue(c.Construct, "Queue-"+name, p.name(name))
	}
	settings := applier.spec.Queue
	c.Changes = newQueue(c.Construct, "Queue-"+config.Changes, p.name(config.Changes), &awssqs.QueueProps{
		VisibilityTimeout: duration(settings.Visibility), RetentionPeriod: duration(settings.Retention),
		DeadLetterQueue: &awssqs.DeadLetterQueue{Queue: c.Queues[config.Refused],
			MaxReceiveCount: jsii.Number(settings.MaxReceives)},
	})
	control := p.deployment.Control.Region
	topic := p.names.TopicARN(control)
	allowOnlyTopic(c.Changes, topicPrincipal(control, p.cell.Region), topic)
	awssns.NewCfnSubscription(c.Construct, jsii.String("Subscription"), &awssns.CfnSubscriptionProps{
		TopicArn: topic, Region: &control, Protocol: jsii.String("sqs"), Endpoint: c.Changes.QueueArn(),
		RawMessageDelivery: jsii.Bool(true),
		RedrivePolicy: map[string]any{"deadLetterTargetArn": p.names.ARN("sqs", control,
			p.names.Control(config.Undelivered))},
	}).Node().AddDependency(c.Changes.Node().FindChild(jsii.String("Policy")))
	applier.readQueue(c.Changes)
}

// CellStack is a stack that contains one cell.
type CellStack struct {
	Stack awscdk.Stack
	Cell  *Cell
}

func newCellStack(app constructs.Construct, props *CellProps) (*CellStack, error) {
	d := props.Deployment
	region := d.Cell(props.Cell).Region
	s := &CellStack{Stack: newStack(app, config.Names{Prefix: d.Prefix}.CellStack(props.Cell), d, region,
		"Sluice's cell "+props.Cell)}
	cell, err := NewCell(s.Stack, "Cell", props)
	if err != nil {
		return nil, fmt.Errorf("cell %s: %w", props.Cell, err)
	}
	s.Cell = cell
	output(s.Stack, "Authorizer", "The authorizer function, to attach to APIs", *cell.Authorizer.FunctionArn())
	output(s.Stack, "Ops", "The value of --ops in sluice cell add", strings.TrimSuffix(*cell.API.Url(), "/"))
	if own := d.Cell(props.Cell).Cache; own != nil && own.Endpoint != "" && own.SecurityGroup == "" {
		output(s.Stack, "FunctionsGroup", "The security group of the functions: let it in to the cache",
			cell.FunctionsGroup)
	}
	if cell.WAF != "" {
		output(s.Stack, "WAF", "The firewall, to attach to stages of REST APIs", cell.WAF)
	}
	if cell.KillSwitch != "" {
		output(s.Stack, "KillSwitch", "The mode of the cell's limits in AppConfig: application/environment/profile",
			cell.KillSwitch)
	}
	return s, nil
}
