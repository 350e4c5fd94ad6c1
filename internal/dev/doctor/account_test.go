package doctor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/appconfig"
	actypes "github.com/aws/aws-sdk-go-v2/service/appconfig/types"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	cwtypes "github.com/aws/aws-sdk-go-v2/service/cloudwatch/types"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	kmstypes "github.com/aws/aws-sdk-go-v2/service/kms/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	sqtypes "github.com/aws/aws-sdk-go-v2/service/servicequotas/types"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/smithy-go"

	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/dev/doctor"
)

// fake is a stand-in for an AWS account. A field of type error is the error of one kind of calls.
type fake struct {
	anyError, functionError, keyError, quotaError error

	role, vpc           string
	executions          int32
	metrics             map[string]float64 // how often each metric was written
	topics              []string
	topicKey, keyPolicy string
	history             string
	mayPut              []string
	quotas              map[string]float64
	applications        []string
	deployments         []actypes.DeploymentState // in any order of their numbers; the last one has the highest
	alarm               cwtypes.StateValue
	missingData         string
}

var (
	refusal = &smithy.GenericAPIError{Code: "AccessDeniedException", Message: "not authorized to perform that"}
	missing = &smithy.GenericAPIError{Code: "ResourceNotFoundException", Message: "Function not found"}
)

// denied makes every call fail for lack of permission, gone removes the functions, and full makes the cell a full cell.
func denied(a *fake)         { a.anyError = refusal }
func removeFunction(a *fake) { a.functionError = missing }
func moveIntoVPC(a *fake)    { a.vpc = "vpc-1" }

// newAccount returns a target with an account in which every assumption is true, and with one change.
func newAccount(change func(*fake)) func(*testing.T) *doctor.Target {
	return func(*testing.T) *doctor.Target {
		f := &fake{
			role: "arn:aws:iam::123456789012:role/balancer", executions: 254,
			metrics: map[string]float64{"active_cell_count": 60, "IteratorAge": 12},
			topics:  []string{"arn:aws:sns:eu-west-1:123456789012:sluice-alarms"}, topicKey: "alias/alarms",
			keyPolicy: `{"Statement":[{"Principal":{"Service":"cloudwatch.amazonaws.com"},` +
				`"Action":["kms:Decrypt","kms:GenerateDataKey"]}]}`,
			history: "Successfully executed action arn:aws:sns:eu-west-1:1:alarms", mayPut: []string{"@shares"},
			quotas:       map[string]float64{"L-F678F1CE": 5, "L-0263D0A3": 5},
			applications: []string{"other", "sluice-eu-1-limits"},
			deployments:  []actypes.DeploymentState{actypes.DeploymentStateRolledBack, actypes.DeploymentStateComplete},
			alarm:        cwtypes.StateValueOk, missingData: "notBreaching",
		}
		if change != nil {
			change(f)
		}
		in := func(string) doctor.Services {
			return doctor.Services{Lambda: f, Metrics: f, Topics: f, Keys: f, Roles: f, Quotas: f,
				Modes: f}
		}
		return &doctor.Target{Now: now, Account: &doctor.Account{Prefix: "sluice", Region: "eu-west-1",
			Namespace: "Sluice",
			Cells:     []doctor.Cell{{ID: "eu-1", Region: "eu-west-1"}}, In: in}}
	}
}

func (f *fake) GetAccountSettings(
	context.Context, *lambda.GetAccountSettingsInput, ...func(*lambda.Options),
) (*lambda.GetAccountSettingsOutput, error) {
	limit := &lambdatypes.AccountLimit{ConcurrentExecutions: f.executions}
	return &lambda.GetAccountSettingsOutput{AccountLimit: limit}, f.anyError
}

func (f *fake) GetFunctionConfiguration(
	context.Context, *lambda.GetFunctionConfigurationInput, ...func(*lambda.Options),
) (*lambda.GetFunctionConfigurationOutput, error) {
	out := &lambda.GetFunctionConfigurationOutput{Role: &f.role,
		LoggingConfig: &lambdatypes.LoggingConfig{LogFormat: lambdatypes.LogFormatJson}}
	if f.vpc != "" {
		out.VpcConfig = &lambdatypes.VpcConfigResponse{VpcId: &f.vpc, SubnetIds: []string{"a", "b"}}
	}
	return out, errors.Join(f.anyError, f.functionError)
}

func (f *fake) GetFunctionConcurrency(
	context.Context, *lambda.GetFunctionConcurrencyInput, ...func(*lambda.Options),
) (*lambda.GetFunctionConcurrencyOutput, error) {
	return &lambda.GetFunctionConcurrencyOutput{ReservedConcurrentExecutions: aws.Int32(100)},
		errors.Join(f.anyError, f.functionError)
}

func (f *fake) GetMetricStatistics(
	_ context.Context, in *cloudwatch.GetMetricStatisticsInput, _ ...func(*cloudwatch.Options),
) (*cloudwatch.GetMetricStatisticsOutput, error) {
	out := &cloudwatch.GetMetricStatisticsOutput{}
	if times := f.metrics[*in.MetricName]; times > 0 {
		out.Datapoints = []cwtypes.Datapoint{{SampleCount: &times, Maximum: aws.Float64(250)}}
	}
	return out, f.anyError
}

func (f *fake) DescribeAlarms(
	context.Context, *cloudwatch.DescribeAlarmsInput, ...func(*cloudwatch.Options),
) (*cloudwatch.DescribeAlarmsOutput, error) {
	return &cloudwatch.DescribeAlarmsOutput{MetricAlarms: []cwtypes.MetricAlarm{{AlarmActions: f.topics,
		StateValue: f.alarm, TreatMissingData: &f.missingData, AlarmName: aws.String("backend")}}}, f.anyError
}

func (f *fake) DescribeAlarmHistory(
	context.Context, *cloudwatch.DescribeAlarmHistoryInput, ...func(*cloudwatch.Options),
) (*cloudwatch.DescribeAlarmHistoryOutput, error) {
	item := cwtypes.AlarmHistoryItem{AlarmName: aws.String("sluice-kept"), HistorySummary: &f.history}
	return &cloudwatch.DescribeAlarmHistoryOutput{AlarmHistoryItems: []cwtypes.AlarmHistoryItem{item}}, f.anyError
}

func (f *fake) GetTopicAttributes(
	context.Context, *sns.GetTopicAttributesInput, ...func(*sns.Options),
) (*sns.GetTopicAttributesOutput, error) {
	return &sns.GetTopicAttributesOutput{Attributes: map[string]string{"KmsMasterKeyId": f.topicKey}}, f.anyError
}

func (f *fake) DescribeKey(
	context.Context, *kms.DescribeKeyInput, ...func(*kms.Options),
) (*kms.DescribeKeyOutput, error) {
	return &kms.DescribeKeyOutput{KeyMetadata: &kmstypes.KeyMetadata{KeyId: aws.String("key")}},
		errors.Join(f.anyError, f.keyError)
}

func (f *fake) GetKeyPolicy(
	context.Context, *kms.GetKeyPolicyInput, ...func(*kms.Options),
) (*kms.GetKeyPolicyOutput, error) {
	return &kms.GetKeyPolicyOutput{Policy: &f.keyPolicy}, f.anyError
}

func (f *fake) SimulatePrincipalPolicy(
	_ context.Context, in *iam.SimulatePrincipalPolicyInput, _ ...func(*iam.Options),
) (*iam.SimulatePrincipalPolicyOutput, error) {
	decision := iamtypes.PolicyEvaluationDecisionTypeImplicitDeny
	if in.ResourceArns[0] == "arn:aws:dynamodb:eu-west-1:123456789012:table/sluice-cells" &&
		slices.Contains(f.mayPut, in.ContextEntries[0].ContextKeyValues[0]) {
		decision = iamtypes.PolicyEvaluationDecisionTypeAllowed
	}
	results := []iamtypes.EvaluationResult{{EvalDecision: decision}}
	return &iam.SimulatePrincipalPolicyOutput{EvaluationResults: results}, f.anyError
}

func (f *fake) ListApplications(
	context.Context, *appconfig.ListApplicationsInput, ...func(*appconfig.Options),
) (*appconfig.ListApplicationsOutput, error) {
	out := &appconfig.ListApplicationsOutput{}
	for _, name := range f.applications {
		out.Items = append(out.Items, actypes.Application{Name: &name, Id: &name})
	}
	return out, f.anyError
}

func (f *fake) ListEnvironments(
	_ context.Context, in *appconfig.ListEnvironmentsInput, _ ...func(*appconfig.Options),
) (*appconfig.ListEnvironmentsOutput, error) {
	return &appconfig.ListEnvironmentsOutput{Items: []actypes.Environment{{ApplicationId: in.ApplicationId,
		Id: aws.String("e"), Monitors: []actypes.Monitor{{
			AlarmArn: aws.String("arn:aws:cloudwatch:eu-west-1:123456789012:alarm:backend")}}}}}, f.anyError
}

func (f *fake) ListDeployments(
	_ context.Context, in *appconfig.ListDeploymentsInput, _ ...func(*appconfig.Options),
) (*appconfig.ListDeploymentsOutput, error) {
	out := &appconfig.ListDeploymentsOutput{}
	if *in.ApplicationId != "sluice-eu-1-limits" {
		return out, errors.New("another application")
	}
	for i, state := range f.deployments {
		out.Items = append(out.Items, actypes.DeploymentSummary{DeploymentNumber: int32(i + 1), State: state})
	}
	return out, f.anyError
}

func (f *fake) GetServiceQuota(
	_ context.Context, in *servicequotas.GetServiceQuotaInput, _ ...func(*servicequotas.Options),
) (*servicequotas.GetServiceQuotaOutput, error) {
	quota := &sqtypes.ServiceQuota{Value: aws.Float64(f.quotas[*in.QuotaCode])}
	return &servicequotas.GetServiceQuotaOutput{Quota: quota}, errors.Join(f.anyError, f.quotaError)
}

// cell is what an operators' API says about a cell.
type cell struct {
	state                            string
	awaited, unreadable, alone, down bool
	ago                              time.Duration // how long ago the change was requested
}

func operators(c cell) func(*testing.T) *doctor.Target {
	return func(*testing.T) *doctor.Target {
		out := &admin.CellsResponse{Epoch: 3, Cells: []admin.CellRow{{Cell: "eu-1", State: c.state, Awaited: c.awaited,
			ChangedAt: now.Add(-c.ago)}}}
		if c.unreadable {
			out.Unreadable = []admin.UnreadableCell{{Key: "ack.1", Error: "bad hash"}}
		}
		if c.alone {
			out.Alone = "eu-1"
		}
		return &doctor.Target{Now: now, Operators: &doctor.Operators{Cells: func(context.Context) (*admin.CellsResponse,
			error) {
			if c.down {
				return nil, errors.New("connection refused")
			}
			return out, nil
		}}}
	}
}

// Guarantees that doctor blames the region and the credentials only for failures that these can cause.
func TestAdviceFitsTheFailure(t *testing.T) {
	for what, c := range map[string]struct {
		err       error
		want, not string
	}{
		"unreadable": {&smithy.DeserializationError{Err: errors.New("invalid character '<'")}, "cannot be read",
			"credentials"},
		"the service failed": {&smithy.GenericAPIError{Code: "InternalFailure", Fault: smithy.FaultServer},
			"the service itself failed", "credentials"},
		"refused": {&smithy.GenericAPIError{Code: "InvalidClientTokenId", Message: "the security token is invalid"},
			"credentials", "region"},
		"unreachable": {errors.New("dial tcp: no such host"), "region", "failed"},
	} {
		target := newAccount(func(a *fake) { a.anyError = c.err })(t)
		for _, a := range doctor.Assumptions() {
			if a.Check(t.Context(), &doctor.Target{Now: now}).Saw != "no account was given" {
				continue // it calls nothing in the account
			}
			got := a.Check(t.Context(), target)
			if !strings.Contains(got.Do, c.want) || strings.Contains(got.Do, c.not) {
				t.Errorf("%s, %s: it says %q", what, a.ID, got.Do)
			}
		}
	}
}

// published adds an operators' API that shows shares, which the balancer must have written.
func published(target func(*testing.T) *doctor.Target) func(*testing.T) *doctor.Target {
	return func(t *testing.T) *doctor.Target {
		both := target(t)
		both.Operators = operators(cell{state: "active"})(t).Operators
		return both
	}
}
