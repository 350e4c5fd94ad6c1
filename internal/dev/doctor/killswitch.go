package doctor

import (
	"context"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/appconfig"
	"github.com/aws/aws-sdk-go-v2/service/appconfig/types"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	cwtypes "github.com/aws/aws-sdk-go-v2/service/cloudwatch/types"
)

// killSwitch checks the assumption kill-switch in each cell. It looks at the last deployment of a mode and its state.
// If no mode was ever deployed, it looks at how the authorizer asks for one. It also looks at the alarms that AppConfig
// watches, because AppConfig rolls a deployment back while one of them rings or has no data.
func killSwitch(ctx context.Context, t *Target) Finding {
	a := t.Account
	if a == nil || len(a.Cells) == 0 {
		return noAccount()
	}
	var seen []string
	for _, cell := range a.Cells {
		in, name := a.In(cell.Region), a.function(cell.ID, "limits")
		environment, err := in.environment(ctx, name)
		if err != nil {
			return failed(err, "appconfig:ListApplications and appconfig:ListEnvironments")
		}
		if environment == nil {
			continue
		}
		last, err := in.lastDeployment(ctx, environment)
		if err != nil {
			return failed(err, "appconfig:ListDeployments")
		}
		if last == nil {
			f := a.undeployed(ctx, cell, t)
			if f.Result != Holds {
				return f
			}
			seen = append(seen, f.Saw)
		} else {
			switch last.State {
			case types.DeploymentStateRolledBack:
				return violated("the last deployment of %s, number %d, was rolled back, by an alarm or by somebody",
					name, last.DeploymentNumber)
			case types.DeploymentStateComplete, types.DeploymentStateReverted:
			default:
				return unknown("run this again in half an hour", "deployment %d of %s is in the state %s",
					last.DeploymentNumber, name, last.State)
			}
			seen = append(seen, strings.ToLower(string(last.State))+": the last deployment of "+name)
		}
		if f := in.wouldRollBack(ctx, name, environment.Monitors); f != nil {
			return *f
		}
	}
	if len(seen) == 0 {
		return unknown("", "no cell that was given has a kill switch")
	}
	return confirmed("%s", strings.Join(seen, "; "))
}

// environment returns the environment of the application with the name, which has one. It returns nil if there is no
// such application.
func (s Services) environment(ctx context.Context, name string) (*types.Environment, error) {
	pages := appconfig.NewListApplicationsPaginator(s.Modes, &appconfig.ListApplicationsInput{})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, application := range page.Items {
			if aws.ToString(application.Name) != name {
				continue
			}
			out, err := s.Modes.ListEnvironments(ctx, &appconfig.ListEnvironmentsInput{ApplicationId: application.Id})
			if err != nil || len(out.Items) == 0 {
				return nil, err
			}
			return &out.Items[0], nil
		}
	}
	return nil, nil
}

// lastDeployment returns the newest deployment of an environment, or nil if nothing was ever deployed.
func (s Services) lastDeployment(ctx context.Context, environment *types.Environment) (
	last *types.DeploymentSummary, err error,
) {
	pages := appconfig.NewListDeploymentsPaginator(s.Modes, &appconfig.ListDeploymentsInput{
		ApplicationId: environment.ApplicationId, EnvironmentId: environment.Id})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			if last == nil || page.Items[i].DeploymentNumber > last.DeploymentNumber {
				last = &page.Items[i]
			}
		}
	}
	return last, nil
}

// undeployed returns the finding for a cell without a deployment: the polls of its authorizer must not count as failed.
func (a *Account) undeployed(ctx context.Context, cell Cell, t *Target) Finding {
	authorizer := a.function(cell.ID, "authorizer")
	polled := func(metric string) (float64, error) {
		count, _, err := a.recentMetric(ctx, cell.Region, metric, t.Now, a.Namespace, "cell", cell.ID, "function",
			authorizer)
		return count, err
	}
	unheard, err := polled("kill_switch_unheard")
	if err != nil {
		return failed(err, "cloudwatch:GetMetricStatistics")
	}
	decisions, err := polled("decisions")
	switch {
	case err != nil:
		return failed(err, "cloudwatch:GetMetricStatistics")
	case unheard > 0:
		return violated("no mode is deployed in %s, and polls of %s failed in the last hour", cell.ID, authorizer)
	case decisions == 0:
		return unknown("run this again after calls of the API", "no mode is deployed in %s, and %s decided nothing in "+
			"the last hour", cell.ID, authorizer)
	}
	return confirmed("no mode is deployed in %s, and no poll of %s failed in the last hour", cell.ID, authorizer)
}

// wouldRollBack returns a finding if an alarm would roll a deployment back now, or whenever its metric has no data.
func (s Services) wouldRollBack(ctx context.Context, name string, monitors []types.Monitor) *Finding {
	var alarms []string
	for _, m := range monitors {
		if _, alarm, ok := strings.Cut(aws.ToString(m.AlarmArn), ":alarm:"); ok {
			alarms = append(alarms, alarm)
		}
	}
	if len(alarms) == 0 {
		return nil
	}
	out, err := s.Metrics.DescribeAlarms(ctx, &cloudwatch.DescribeAlarmsInput{AlarmNames: alarms})
	if err != nil {
		f := failed(err, "cloudwatch:DescribeAlarms")
		return &f
	}
	for i := range out.MetricAlarms {
		alarm := &out.MetricAlarms[i]
		var f Finding
		switch treats := aws.ToString(alarm.TreatMissingData); {
		case alarm.StateValue == cwtypes.StateValueInsufficientData:
			f = violated("the alarm %s has no data, so a deployment of %s would be rolled back",
				aws.ToString(alarm.AlarmName), name)
		case treats == "" || treats == "missing":
			f = violated("the alarm %s rolls a deployment of %s back whenever its metric has no data",
				aws.ToString(alarm.AlarmName), name)
		case alarm.StateValue == cwtypes.StateValueAlarm:
			f = unknown("follow the alarm's runbook", "the alarm %s rings, so a deployment of %s would be rolled back",
				aws.ToString(alarm.AlarmName), name)
		default:
			continue
		}
		return &f
	}
	return nil
}
