package infra

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslogs"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssns"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/alarm"
	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/aws/grants"
	"github.com/sluicelimits/sluice/pacer"
)

// WorkerProps are the parameters of [NewWorker].
type WorkerProps struct {
	// Queue is the queue whose messages are handled; required. It must be in the worker's region, and must not be an
	// event source of a function: that function would receive messages whether or not they may be sent.
	Queue awssqs.IQueue

	// DeadLetters is the queue of the redrive policy of Queue; required. Without one, a message that can never be
	// handled uses units of the limit until the queue deletes it.
	DeadLetters awssqs.IQueue

	Target awslambda.IFunction // handles one message per call; required

	// Limit is the provider's limit, such as "100/s"; required. Its period is at most a minute.
	Limit string

	// ClockError is by how much the provider's clock and AWS's may differ, in either direction. MaxDelay is how long a
	// request may take from the call of the target until it arrives at the provider, with a cold start of the target.
	// Twice the first and the second must be less than the limit's period. Both are 0 unless set: the limit then holds
	// by AWS's clock, at the time when the target is called.
	ClockError, MaxDelay time.Duration

	Spread     bool          // spread messages evenly over each period
	Parallel   int           // messages that are handled at once, 1 to 1,000; 0 selects 10
	Visibility time.Duration // of received messages; the longest time of the target, 10 s to 5 min; 0 selects 30 s

	MaxAge time.Duration   // the age of the oldest message that raises an alarm, a minute or more; 0 selects 15 min
	Topics []awssns.ITopic // to which the alarms publish; if empty, nobody is notified

	Architecture string // config.ARM64, the default, or config.X8664
	Lambdas      string // folder of the functions' zips; if empty, the folder of make lambdas for the architecture
}

// Worker has the messages of an SQS queue handled no faster than a provider's limit. A schedule calls its function,
// which receives only messages that it may send at once, and invokes the target with each. It was never deployed to
// AWS.
type Worker struct {
	Construct constructs.Construct
	Function  awslambda.Function
}

// NewWorker makes a worker. The error names the property that is wrong.
func NewWorker(scope constructs.Construct, id string, props *WorkerProps) (w *Worker, err error) {
	defer recoverError(id, &err)
	variables, err := props.variables()
	if err != nil {
		return nil, fmt.Errorf("worker %s: %w", id, err)
	}
	built, ok := architectures[props.Architecture]
	if props.Architecture == "" {
		built, ok = architectures[config.ARM64]
	}
	if !ok {
		return nil, fmt.Errorf("worker %s: Architecture is %q, want %s or %s", id, props.Architecture, config.ARM64,
			config.X8664)
	}
	folder := props.Lambdas
	if folder == "" {
		folder = built.lambdas
	}
	spec := grants.Worker()
	zip := filepath.Join(folder, spec.Name+".zip")
	if err := checkBundle(zip, &built); err != nil {
		return nil, fmt.Errorf("worker %s: %w", id, err)
	}
	own := constructs.NewConstruct(scope, &id)
	logs := awslogs.NewLogGroup(own, jsii.String("Logs"), &awslogs.LogGroupProps{
		Retention: awslogs.RetentionDays_ONE_MONTH, RemovalPolicy: awscdk.RemovalPolicy_DESTROY})
	f := &function{Construct: own, spec: spec}
	f.lambda = awslambda.NewFunction(own, jsii.String("Function"), &awslambda.FunctionProps{
		Description: jsii.String("Sluice: has the messages of a queue handled no faster than " + props.Limit),
		Role:        props.role(own, logs), LogGroup: logs,
		Runtime: awslambda.Runtime_PROVIDED_AL2023(), Architecture: built.lambda(), Handler: jsii.String(bootstrap),
		Code: awslambda.Code_FromAsset(&zip, nil), MemorySize: jsii.Number(spec.MemoryMB),
		Timeout: duration(spec.Timeout), ReservedConcurrentExecutions: jsii.Number(spec.Reserved),
		Environment: pointers(variables), RetryAttempts: jsii.Number(0), MaxEventAge: duration(f.maxEventAge()),
	})
	f.schedule()
	props.alarms(own, *f.lambda.FunctionName())
	return &Worker{Construct: own, Function: f.lambda}, nil
}

// variables checks the properties, and returns the function's variables. It reads them as the function does, so that a
// deployed function can start.
func (p *WorkerProps) variables() (map[string]string, error) {
	switch {
	case p == nil || p.Queue == nil:
		return nil, errors.New("property Queue is missing")
	case p.DeadLetters == nil:
		return nil, errors.New("property DeadLetters is missing: messages that can never be handled " +
			"would come again and again")
	case p.Target == nil:
		return nil, errors.New("property Target is missing")
	case p.MaxAge < 0 || p.MaxAge > 0 && p.MaxAge < time.Minute:
		return nil, fmt.Errorf("property MaxAge of %s is below a minute", p.MaxAge)
	}
	if err := p.checkLimit(); err != nil {
		return nil, err
	}
	variables := map[string]string{"SLUICE_QUEUE": *p.Queue.QueueUrl(), "SLUICE_TARGET": *p.Target.FunctionArn(),
		"SLUICE_LIMIT": p.Limit, "SLUICE_SPREAD": strconv.FormatBool(p.Spread)}
	if p.Parallel != 0 {
		variables["SLUICE_PARALLEL"] = strconv.Itoa(p.Parallel)
	}
	if p.ClockError != 0 {
		variables["SLUICE_CLOCK_ERROR"] = p.ClockError.String()
	}
	if p.MaxDelay != 0 {
		variables["SLUICE_MAX_DELAY"] = p.MaxDelay.String()
	}
	if p.Visibility != 0 {
		variables["SLUICE_VISIBILITY"] = p.Visibility.String()
	}
	example := maps.Clone(variables) // with values for those that are CDK tokens
	example["SLUICE_QUEUE"] = "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs"
	example["SLUICE_TARGET"] = "arn:aws:lambda:eu-west-1:123456789012:function:target"
	var given []string
	for _, name := range slices.Sorted(maps.Keys(example)) {
		given = append(given, name+"="+example[name])
	}
	if _, err := environ.Read[environ.Worker](given); err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), "\n", " "))
	}
	return variables, nil
}

// checkLimit checks the limit, and whether its windows are long enough for ClockError and MaxDelay.
func (p *WorkerProps) checkLimit() error {
	limit, err := pacer.ParseLimit(p.Limit)
	if err != nil {
		return fmt.Errorf("property Limit: %w", err)
	}
	if limit.Period > time.Minute {
		return fmt.Errorf("property Limit: the period of %s is longer than a minute", p.Limit)
	}
	if p.ClockError < 0 || p.MaxDelay < 0 || p.ClockError >= limit.Period ||
		2*p.ClockError+p.MaxDelay >= limit.Period {
		return fmt.Errorf("properties ClockError of %s and MaxDelay of %s: twice the first and the second must be "+
			"less than the limit's period of %s", p.ClockError, p.MaxDelay, limit.Period)
	}
	return nil
}

// role makes the function's role, which may do what internal/aws/grants says, on the queue, the target and the log
// group only.
func (p *WorkerProps) role(scope constructs.Construct, logs awslogs.LogGroup) awsiam.Role {
	arns := map[grants.Resource]*string{
		grants.Jobs: p.Queue.QueueArn(), grants.Target: p.Target.FunctionArn(), grants.Logs: logs.LogGroupArn(),
	}
	document := awsiam.NewPolicyDocument(nil)
	for _, g := range grants.Worker().Grants {
		document.AddStatements(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
			Actions: jsii.Strings(g.Actions...), Resources: &[]*string{arns[g.On]}}))
	}
	return awsiam.NewRole(scope, jsii.String("Role"), &awsiam.RoleProps{
		AssumedBy:      awsiam.NewServicePrincipal(jsii.String("lambda.amazonaws.com"), nil),
		Description:    jsii.String("Sluice: a worker"),
		InlinePolicies: &map[string]awsiam.PolicyDocument{"sluice": document},
	})
}

func (p *WorkerProps) alarms(scope constructs.Construct, function string) {
	const usualAge = 15 * time.Minute
	age := p.MaxAge
	if age == 0 {
		age = usualAge
	}
	var actions *[]any
	if len(p.Topics) > 0 {
		actions = &[]any{}
		for _, t := range p.Topics {
			*actions = append(*actions, t.TopicArn())
		}
	}
	for _, a := range alarm.Worker(*p.Queue.QueueName(), *p.DeadLetters.QueueName(), function, age) {
		newAlarm(scope, a.Name, nil, &a, actions)
	}
}
