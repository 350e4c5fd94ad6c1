package infra

import (
	"encoding/json"

	"github.com/aws/aws-cdk-go/awscdk/v2/awsappconfig"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/alarm"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// killSwitch is a cell's configuration in AppConfig with the mode of its limits, which the authorizer reads:
// docs/authorizer.md.
type killSwitch struct{ application, environment, profile string } // ids; CDK's tokens

// The two ways in which a mode is deployed. Watched is taken back where an alarm rings, until its time is over. AtOnce
// is over when it begins, so no alarm is waited for: for when one rings already.
const (
	atOnce  = "atonce"
	watched = "watched"

	watchedMinutes = 10 // until the last environment has heard of it
	watchedStep    = 20 // percent
	bakeMinutes    = 10 // more; alarms take 3 to 5
)

// newKillSwitch makes it in the mode enforce. A template that does not change deploys no mode, so it does not undo what
// operators have set.
func newKillSwitch(scope, alarms constructs.Construct, p *place) (*killSwitch, error) {
	own := constructs.NewConstruct(scope, jsii.String("KillSwitch"))
	name := p.names.Cell(p.cell.ID, "limits")
	schema, err := modeSchema()
	if err != nil {
		return nil, err
	}
	application := awsappconfig.NewCfnApplication(own, jsii.String("Application"), &awsappconfig.CfnApplicationProps{
		Name: &name, Description: jsii.String("Sluice: the mode of the limits of the cell " + p.cell.ID),
	})
	var monitors []any
	arns := p.rollbackAlarms()
	role := awsiam.NewRole(own, jsii.String("Watching"), &awsiam.RoleProps{
		AssumedBy:   awsiam.NewServicePrincipal(jsii.String("appconfig.amazonaws.com"), nil),
		Description: jsii.String("Sluice: looks at the alarms that take back a mode of " + name),
		InlinePolicies: &map[string]awsiam.PolicyDocument{"sluice": awsiam.NewPolicyDocument(&awsiam.PolicyDocumentProps{
			Statements: &[]awsiam.PolicyStatement{awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
				Actions: jsii.Strings("cloudwatch:DescribeAlarms"), Resources: jsii.Strings(arns...),
			})},
		})},
	})
	for _, arn := range arns {
		monitors = append(monitors, &awsappconfig.CfnEnvironment_MonitorsProperty{AlarmArn: jsii.String(arn),
			AlarmRoleArn: role.RoleArn()})
	}
	environment := awsappconfig.NewCfnEnvironment(own, jsii.String("Environment"), &awsappconfig.CfnEnvironmentProps{
		ApplicationId: application.Ref(), Name: jsii.String("cell"), Monitors: monitors,
	})
	environment.Node().AddDependency(alarms)
	profile := awsappconfig.NewCfnConfigurationProfile(own, jsii.String("Profile"),
		&awsappconfig.CfnConfigurationProfileProps{
			ApplicationId: application.Ref(), Name: jsii.String("mode"), LocationUri: jsii.String("hosted"),
			Type: jsii.String("AWS.Freeform"),
			Validators: []any{&awsappconfig.CfnConfigurationProfile_ValidatorsProperty{Type: jsii.String("JSON_SCHEMA"),
				Content: &schema}},
		})
	first := awsappconfig.NewCfnHostedConfigurationVersion(own, jsii.String("Enforce"),
		&awsappconfig.CfnHostedConfigurationVersionProps{
			ApplicationId: application.Ref(), ConfigurationProfileId: profile.Ref(),
			ContentType: jsii.String("application/json"),
			Content:     jsii.String(`{"mode":"` + limit.Enforce.String() + `"}`),
			Description: jsii.String("as it begins"),
		})
	now := strategy(own, p, atOnce, 0, percentAll, 0)
	strategy(own, p, watched, watchedMinutes, watchedStep, bakeMinutes)
	awsappconfig.NewCfnDeployment(own, jsii.String("First"), &awsappconfig.CfnDeploymentProps{
		ApplicationId: application.Ref(), EnvironmentId: environment.Ref(), ConfigurationProfileId: profile.Ref(),
		ConfigurationVersion: first.Ref(), DeploymentStrategyId: now.Ref(),
	})
	return &killSwitch{*application.Ref(), *environment.Ref(), *profile.Ref()}, nil
}

const percentAll = 100

func strategy(
	scope constructs.Construct, p *place, name string, minutes, percent, bake float64,
) awsappconfig.CfnDeploymentStrategy {
	return awsappconfig.NewCfnDeploymentStrategy(scope, jsii.String("Strategy-"+name),
		&awsappconfig.CfnDeploymentStrategyProps{
			Name: jsii.String(p.name(name)), ReplicateTo: jsii.String("NONE"), GrowthType: jsii.String("LINEAR"),
			DeploymentDurationInMinutes: &minutes, GrowthFactor: &percent, FinalBakeTimeInMinutes: &bake,
		})
}

// rollbackAlarms are the ARNs of what takes back a mode: the limiter fails or is slow, as it may when it is switched on
// again, and what the operator names.
func (p *place) rollbackAlarms() []string {
	var all []string
	for _, name := range []string{alarm.LimiterErrors, alarm.LimiterP99} {
		all = append(all, p.names.ARN("cloudwatch", p.region(), "alarm:"+p.alarmName(name, "")))
	}
	return append(all, p.cell.RollbackAlarms...)
}

// modeSchema is what AppConfig accepts, in the draft of JSON Schema that it knows.
func modeSchema() (string, error) {
	var modes []string
	for _, m := range []limit.Mode{limit.Enforce, limit.Shadow, limit.Off} {
		modes = append(modes, m.String())
	}
	schema, err := json.Marshal(map[string]any{
		"$schema": "http://json-schema.org/draft-04/schema#", "type": "object", "required": []string{"mode"},
		"additionalProperties": false,
		"properties":           map[string]any{"mode": map[string]any{"enum": modes}},
	})
	return string(schema), err
}

// setting is SLUICE_KILL_SWITCH.
func (k *killSwitch) setting() string { return k.application + "/" + k.environment + "/" + k.profile }

// arn is what a role is allowed to read.
func (k *killSwitch) arn(p *place) string {
	return p.names.ARN("appconfig", p.region(),
		"application/"+k.application+"/environment/"+k.environment+"/configuration/"+k.profile)
}
