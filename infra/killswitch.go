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

// killSwitch is the AppConfig configuration with the mode of a cell's limits, which the authorizer reads. See
// docs/authorizer.md.
type killSwitch struct{ application, environment, profile string } // ids, as CDK tokens

// The names of the two strategies by which AppConfig deploys a mode. AppConfig rolls a deployment back if, before the
// deployment ends, an alarm of the environment rings or has no data. With the strategy "watched" that is for twenty
// minutes. A deployment of the strategy "atonce" ends at once; whether AppConfig looks at the alarms in it is not
// documented. Assumption: kill-switch.
const (
	atOnce  = "atonce"
	watched = "watched"

	watchedMinutes = 10 // until every function environment receives the mode
	watchedStep    = 20 // percent of the environments that receive the mode at each step
	bakeMinutes    = 10 // after the last step; alarms need 3 to 5 minutes to ring
)

// newKillSwitch makes the kill switch. It deploys no mode, and without one the authorizer enforces. A first deployment
// by the stack would run seconds after its alarms are made, which have no data yet, and AppConfig would roll it back.
// Nor does a later deployment of the stack undo what operators have set.
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
		Description: jsii.String("Sluice: reads the alarms that take back a mode of " + name),
		InlinePolicies: &map[string]awsiam.PolicyDocument{"sluice": awsiam.NewPolicyDocument(
			&awsiam.PolicyDocumentProps{
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
	// Version 1, for operators to deploy.
	awsappconfig.NewCfnHostedConfigurationVersion(own, jsii.String("Enforce"),
		&awsappconfig.CfnHostedConfigurationVersionProps{
			ApplicationId: application.Ref(), ConfigurationProfileId: profile.Ref(),
			ContentType: jsii.String("application/json"),
			Content:     jsii.String(`{"mode":"` + limit.Enforce.String() + `"}`),
			Description: jsii.String("the mode of a new cell"),
		})
	strategy(own, p, atOnce, 0, percentAll, 0)
	strategy(own, p, watched, watchedMinutes, watchedStep, bakeMinutes)
	return &killSwitch{*application.Ref(), *environment.Ref(), *profile.Ref()}, nil
}

const percentAll = 100

func strategy(scope constructs.Construct, p *place, name string, minutes, percent, bake float64) {
	awsappconfig.NewCfnDeploymentStrategy(scope, jsii.String("Strategy-"+name),
		&awsappconfig.CfnDeploymentStrategyProps{
			Name: jsii.String(p.name(name)), ReplicateTo: jsii.String("NONE"), GrowthType: jsii.String("LINEAR"),
			DeploymentDurationInMinutes: &minutes, GrowthFactor: &percent, FinalBakeTimeInMinutes: &bake,
		})
}

// rollbackAlarms returns the ARNs of the alarms that take back a mode: those that ring if the limiter fails or is slow,
// which can happen when it is switched on, and those that the deployment file names. The former count missing data as
// good, so that a quiet cell does not take a mode back. The latter are not known here: docs/operate.md says how
// they have to treat missing data.
func (p *place) rollbackAlarms() []string {
	var all []string
	for _, name := range []string{alarm.LimiterErrors, alarm.LimiterP99} {
		all = append(all, p.names.ARN("cloudwatch", p.region(), "alarm:"+p.alarmName(name, "")))
	}
	return append(all, p.cell.RollbackAlarms...)
}

// modeSchema returns the JSON schema by which AppConfig checks a mode. AppConfig supports draft 4.
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

// setting returns the value of SLUICE_KILL_SWITCH.
func (k *killSwitch) setting() string { return k.application + "/" + k.environment + "/" + k.profile }

// arn returns the ARN that the authorizer's role must be allowed to read.
func (k *killSwitch) arn(p *place) string {
	return p.names.ARN("appconfig", p.region(),
		"application/"+k.application+"/environment/"+k.environment+"/configuration/"+k.profile)
}
