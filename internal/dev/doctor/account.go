package doctor

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/appconfig"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/smithy-go"

	"github.com/sluicelimits/sluice/internal/control/admin"
)

// Operators is the operators' API.
type Operators struct {
	Dated *Answer // the answer to an unsigned call, for its Date header; nil if there was none
	Cells func(context.Context) (*admin.CellsResponse, error)
}

// Account is the AWS account that Sluice is deployed to, or will be.
type Account struct {
	Prefix    string // begins every name, as in the deployment file
	Region    string // region of the control plane
	Namespace string // namespace of the metrics
	Cells     []Cell
	In        func(region string) Services
}

// Cell is a cell of the deployment.
type Cell struct{ ID, Region string }

// Services are the AWS clients for one region. Each interface has only the calls that are used, which only read.
type Services struct {
	Lambda interface {
		GetAccountSettings(context.Context, *lambda.GetAccountSettingsInput, ...func(*lambda.Options)) (
			*lambda.GetAccountSettingsOutput, error)
		GetFunctionConfiguration(context.Context, *lambda.GetFunctionConfigurationInput, ...func(*lambda.Options)) (
			*lambda.GetFunctionConfigurationOutput, error)
		GetFunctionConcurrency(context.Context, *lambda.GetFunctionConcurrencyInput, ...func(*lambda.Options)) (
			*lambda.GetFunctionConcurrencyOutput, error)
	}
	Metrics interface {
		GetMetricStatistics(context.Context, *cloudwatch.GetMetricStatisticsInput, ...func(*cloudwatch.Options)) (
			*cloudwatch.GetMetricStatisticsOutput, error)
		DescribeAlarms(context.Context, *cloudwatch.DescribeAlarmsInput, ...func(*cloudwatch.Options)) (
			*cloudwatch.DescribeAlarmsOutput, error)
		DescribeAlarmHistory(context.Context, *cloudwatch.DescribeAlarmHistoryInput, ...func(*cloudwatch.Options)) (
			*cloudwatch.DescribeAlarmHistoryOutput, error)
	}
	Topics interface {
		GetTopicAttributes(context.Context, *sns.GetTopicAttributesInput, ...func(*sns.Options)) (
			*sns.GetTopicAttributesOutput, error)
	}
	Keys interface {
		DescribeKey(context.Context, *kms.DescribeKeyInput, ...func(*kms.Options)) (
			*kms.DescribeKeyOutput, error)
		GetKeyPolicy(context.Context, *kms.GetKeyPolicyInput, ...func(*kms.Options)) (
			*kms.GetKeyPolicyOutput, error)
	}
	Roles interface {
		SimulatePrincipalPolicy(context.Context, *iam.SimulatePrincipalPolicyInput, ...func(*iam.Options)) (
			*iam.SimulatePrincipalPolicyOutput, error)
	}
	Modes interface {
		ListApplications(context.Context, *appconfig.ListApplicationsInput, ...func(*appconfig.Options)) (
			*appconfig.ListApplicationsOutput, error)
		ListEnvironments(context.Context, *appconfig.ListEnvironmentsInput, ...func(*appconfig.Options)) (
			*appconfig.ListEnvironmentsOutput, error)
		ListDeployments(context.Context, *appconfig.ListDeploymentsInput, ...func(*appconfig.Options)) (
			*appconfig.ListDeploymentsOutput, error)
	}
	Quotas interface {
		GetServiceQuota(context.Context, *servicequotas.GetServiceQuotaInput, ...func(*servicequotas.Options)) (
			*servicequotas.GetServiceQuotaOutput, error)
	}
}

// ofTheAccount returns the assumptions that are checked in the account and with the operators' API.
func ofTheAccount() []Assumption {
	return []Assumption{{
		ID: "emf-metrics",
		Says: "CloudWatch makes metrics from the functions' lines in the embedded metric format, also if the log " +
			"format of the functions is JSON.",
		Do: "see whether the balancer runs (docs/runbooks/active_cell_count.md); if it does and the log format is " +
			"JSON, set `platformLogs: true` in the deployment file and deploy",
		check: emfMetrics,
	}, {
		ID: "leading-keys",
		Says: "`dynamodb:LeadingKeys` with `ForAllValues:StringLike` and `Null: false` lets a role write the keys " +
			"that it names, and no others.",
		Do: "treat each function's role as one that may write the whole cells table, and report it as an issue " +
			"of Sluice",
		check: leadingKeys,
	}, {
		ID: "alarm-topics",
		Says: "CloudWatch can publish an alarm on a topic that is encrypted with a key of your own, if the key's " +
			"policy allows CloudWatch to use it.",
		Do: "give the topic a key whose policy allows cloudwatch.amazonaws.com kms:Decrypt and kms:GenerateDataKey*, " +
			"then `aws cloudwatch set-alarm-state` as docs/operate.md says",
		check: checkAlarmTopics,
	}, {
		ID: "stream-age",
		Says: "Lambda reports `IteratorAge`, by `FunctionName`, for the functions that read streams, whenever they " +
			"read a change of the canary.",
		Do: "see whether the canary runs (docs/runbooks/iterator_age.md); if it does, take that alarm out and report " +
			"it as an issue of Sluice",
		check: streamAge,
	}, {
		ID: "shares-acknowledged",
		Says: "A cell's role can write the cell's one acknowledgement into the cells table, from another region, " +
			"too, and the balancer sees it within two minutes.",
		Do:    "see docs/runbooks/shares_awaited.md: the log of the cell's applier says why it cannot write",
		check: sharesAcknowledged,
	}, {
		ID: "kill-switch",
		Says: "While no mode is deployed, AppConfig answers that a deployment or a configuration was not found. It " +
			"completes a deployment of a mode during which no alarm rings and every alarm has data.",
		Do: "see docs/operate.md, The kill switch: give your own alarms `TreatMissingData: notBreaching`, deploy the " +
			"mode again, and look at its state",
		check: killSwitch,
	}, {
		ID: "quotas",
		Says: "The account's quotas are enough for what the functions reserve and, in full cells, for VPCs and " +
			"Elastic IPs.",
		Do:    "request higher quotas in Service Quotas, in that region (docs/deploy.md, Before you deploy)",
		check: quotas,
	}}
}

// function returns the deployed name of a function.
func (a *Account) function(cell, name string) string {
	if cell == "" {
		return a.Prefix + "-" + name
	}
	return a.Prefix + "-" + cell + "-" + name
}

// regions returns the regions of the control plane and of the cells.
func (a *Account) regions() []string {
	all := []string{a.Region}
	for _, c := range a.Cells {
		all = append(all, c.Region)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// noAccount returns the finding of a check that needs an account if there is none.
func noAccount() Finding {
	return unknown("give --prefix and --region (and --cell for each cell), with AWS credentials that may read",
		"no account was given")
}

// failed returns the finding for a failed call to AWS. action is the IAM action that the call needs.
func failed(err error, action string) Finding {
	var api smithy.APIError
	if errors.As(err, &api) {
		switch code := api.ErrorCode(); {
		case strings.Contains(code, "AccessDenied"), strings.Contains(code, "Authoriz"),
			strings.Contains(code, "NotAuthorized"):
			return unknown("allow "+action+" to who runs this", "%s is not permitted", action)
		case notThere(err):
			return unknown("see that --prefix, --region and --cell are those of the deployment, and that it is "+
				"deployed",
				"%s: it is not there", action)
		}
	}
	text := err.Error()
	if api != nil { // the SDK's text around the service's error is left out
		text = api.ErrorCode() + ": " + api.ErrorMessage()
	}
	text, _, _ = strings.Cut(text, "\n")
	return unknown(afterFailure(err), "%s: %s", action, clip(text, 150))
}

// afterFailure says what to do about a failed call, by what is known of its cause.
func afterFailure(err error) string {
	var unread *smithy.DeserializationError
	var api smithy.APIError
	var response interface{ HTTPStatusCode() int }
	switch {
	case errors.As(err, &unread):
		return "see what answers in the place of AWS (AWS_ENDPOINT_URL, --aws-endpoint, a proxy): its reply cannot " +
			"be read"
	case errors.As(err, &api) && (api.ErrorFault() == smithy.FaultServer ||
		errors.As(err, &response) && response.HTTPStatusCode() >= http.StatusInternalServerError):
		return "run this again: the service itself failed"
	case errors.As(err, &api):
		return "do what the error says; see also that the credentials are right"
	}
	return "see that the region is right, that there are credentials, and that this machine reaches AWS"
}

func notThere(err error) bool {
	var api smithy.APIError
	return errors.As(err, &api) && (strings.Contains(api.ErrorCode(), "NotFound") ||
		strings.Contains(api.ErrorCode(), "NoSuch"))
}
