package infra

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsdynamodb"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsevents"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// function is a Lambda function with its role and its log group.
type function struct {
	Construct constructs.Construct

	spec   grants.Function
	lambda awslambda.Function
}

// newFunction makes a function, its role and its log group.
func newFunction(scope constructs.Construct, p *place, name, lambdas string) (*function, error) {
	spec, ok := grants.Of(name)
	if !ok {
		return nil, fmt.Errorf("%s: internal/aws/grants does not define this function", name)
	}
	if name == config.Canary {
		spec.Schedule = time.Duration(p.deployment.Control.CanaryMinutes) * time.Minute
	}
	variables, err := p.environment(name)
	if err != nil {
		return nil, err
	}
	zip := filepath.Join(lambdas, name+".zip")
	built := architectures[p.deployment.Architecture]
	if err := checkBundle(zip, &built); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	physical := p.name(name)
	allowed, err := p.policy(&spec, physical, variables)
	if err != nil {
		return nil, err
	}

	f := &function{spec: spec}
	f.Construct = constructs.NewConstruct(scope, jsii.String(strings.ToUpper(name[:1])+name[1:]))
	role := awsiam.NewRole(f.Construct, jsii.String("Role"), &awsiam.RoleProps{
		AssumedBy:      awsiam.NewServicePrincipal(jsii.String("lambda.amazonaws.com"), nil),
		Description:    jsii.String("Sluice: " + physical),
		InlinePolicies: &map[string]awsiam.PolicyDocument{"sluice": allowed},
	})
	group := newLogGroup(f.Construct, "Logs", "/aws/lambda/"+physical, p)
	props := &awslambda.FunctionProps{
		FunctionName: &physical, Role: role, LogGroup: group,
		Runtime: awslambda.Runtime_PROVIDED_AL2023(), Architecture: built.lambda(),
		Handler: jsii.String(bootstrap), Code: awslambda.Code_FromAsset(&zip, nil),
		MemorySize: jsii.Number(spec.MemoryMB), Timeout: duration(spec.Timeout),
		ReservedConcurrentExecutions: jsii.Number(spec.Reserved),
		Environment:                  pointers(variables),
	}
	if spec.Reserved == 0 && p.cell != nil { // the authorizer: the deployment file gives its size
		props.ReservedConcurrentExecutions, props.MemorySize = jsii.Number(p.cell.MaxInstances),
			jsii.Number(p.cell.MemoryMB)
	}
	if p.deployment.Control.NoPlatformLogs {
		// Assumption: emf-metrics.
		props.LoggingFormat, props.SystemLogLevelV2 = awslambda.LoggingFormat_JSON, awslambda.SystemLogLevel_WARN
		props.ApplicationLogLevelV2 = awslambda.ApplicationLogLevel_TRACE // all: SLUICE_LOG_LEVEL is the filter
	}
	if spec.Schedule > 0 {
		props.RetryAttempts = jsii.Number(0) // the next run repeats the work of a failed one
		props.MaxEventAge = duration(f.maxEventAge())
	}
	f.lambda = awslambda.NewFunction(f.Construct, jsii.String("Function"), props)
	if spec.Schedule > 0 {
		f.schedule()
	}
	return f, nil
}

// schedule makes EventBridge invoke the function regularly.
func (f *function) schedule() {
	rate := awsevents.Schedule_Rate(duration(f.spec.Schedule)).ExpressionString()
	rule := awsevents.NewCfnRule(f.Construct, jsii.String("Schedule"), &awsevents.CfnRuleProps{
		ScheduleExpression: rate, State: jsii.String("ENABLED"), Description: jsii.String("Sluice: calls the " +
			f.spec.Name),
		Targets: []any{&awsevents.CfnRule_TargetProperty{
			Id: jsii.String("function"), Arn: f.lambda.FunctionArn(),
			RetryPolicy: &awsevents.CfnRule_RetryPolicyProperty{
				MaximumRetryAttempts: jsii.Number(0), MaximumEventAgeInSeconds: jsii.Number(f.maxEventAge().Seconds()),
			},
		}},
	})
	awslambda.NewCfnPermission(f.Construct, jsii.String("MayBeScheduled"), &awslambda.CfnPermissionProps{
		Action: jsii.String("lambda:InvokeFunction"), FunctionName: f.lambda.FunctionArn(),
		Principal: jsii.String("events.amazonaws.com"), SourceArn: rule.AttrArn(),
	})
}

// maxEventAge returns how old a scheduled invocation may become before it is dropped: until the next one is due.
// Otherwise Lambda would hold invocations for up to six hours while the function's concurrency is used up, and then
// make all of them.
func (f *function) maxEventAge() time.Duration { return max(f.spec.Schedule, minEventAge) }

const minEventAge = time.Minute // the minimum of EventBridge and Lambda

// readStreams makes Lambda invoke the function with the records of the tables' streams. Records that fail too often go
// to the queue failed.
func (f *function) readStreams(tables map[string]awsdynamodb.Table, failed awssqs.Queue) {
	s := f.spec.Streams
	for _, t := range s.Of {
		awslambda.NewCfnEventSourceMapping(f.Construct, jsii.String("Stream-"+string(t)),
			&awslambda.CfnEventSourceMappingProps{
				FunctionName: f.lambda.FunctionName(), EventSourceArn: tables[string(t)].TableStreamArn(),
				StartingPosition: jsii.String("TRIM_HORIZON"), BatchSize: jsii.Number(s.Batch),
				MaximumBatchingWindowInSeconds: jsii.Number(s.Window.Seconds()),
				BisectBatchOnFunctionError:     jsii.Bool(true),
				MaximumRetryAttempts:           jsii.Number(s.Retries),
				MaximumRecordAgeInSeconds:      jsii.Number(s.MaxAge.Seconds()),
				FunctionResponseTypes:          jsii.Strings("ReportBatchItemFailures"),
				DestinationConfig: &awslambda.CfnEventSourceMapping_DestinationConfigProperty{
					OnFailure: &awslambda.CfnEventSourceMapping_OnFailureProperty{Destination: failed.QueueArn()},
				},
			})
	}
}

// readQueue makes Lambda invoke the function with the messages of a queue.
func (f *function) readQueue(queue awssqs.Queue) {
	q := f.spec.Queue
	awslambda.NewCfnEventSourceMapping(f.Construct, jsii.String("Queue"), &awslambda.CfnEventSourceMappingProps{
		FunctionName: f.lambda.FunctionName(), EventSourceArn: queue.QueueArn(),
		BatchSize: jsii.Number(q.Batch), MaximumBatchingWindowInSeconds: jsii.Number(q.Window.Seconds()),
		ScalingConfig: &awslambda.CfnEventSourceMapping_ScalingConfigProperty{MaximumConcurrency: jsii.Number(
			q.MaxConcurrent)},
		FunctionResponseTypes: jsii.Strings("ReportBatchItemFailures"),
	})
}

// tablesLast makes CloudFormation create the tables after the functions. A first deployment fails most often because
// of the account's concurrency, which functions use. Tables are protected from deletion, so if they were there by then,
// CloudFormation could not take the stack back.
func createTablesLast(tables []awsdynamodb.Table, functions map[string]awslambda.Function) {
	for _, t := range tables {
		for _, name := range slices.Sorted(maps.Keys(functions)) {
			function := functions[name].Node().DefaultChild().(awslambda.CfnFunction)
			t.Node().DefaultChild().(awsdynamodb.CfnTable).AddResourceDependency(function, nil)
		}
	}
}

func duration(d time.Duration) awscdk.Duration {
	if d%time.Minute == 0 {
		return awscdk.Duration_Minutes(jsii.Number(d.Minutes()))
	}
	return awscdk.Duration_Seconds(jsii.Number(d.Seconds()))
}

func pointers(values map[string]string) *map[string]*string {
	all := make(map[string]*string, len(values))
	for name, value := range values {
		all[name] = &value
	}
	return &all
}
