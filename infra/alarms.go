package infra

import (
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatch"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awskms"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssns"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/alarm"
	"github.com/sluicelimits/sluice/infra/config"
)

// Runbooks is the URL of the folder of the runbooks. The description of each alarm ends with the URL of its runbook:
// Runbooks, the alarm's name, and ".md".
const Runbooks = "https://github.com/sluicelimits/sluice/blob/main/docs/runbooks/"

// newAlarms makes the alarms of a cell or of the control plane, and the topic to which they publish. They refer to
// other resources by name only, so no other resource has to exist before them.
func newAlarms(scope constructs.Construct, p *place) constructs.Construct {
	own := constructs.NewConstruct(scope, jsii.String("Alarms"))
	all := alarm.Control(p.deployment)
	if p.cell != nil {
		all = alarm.Cell(p.deployment, p.cell)
	}
	actions := p.alarmActions(own)
	for i := range all {
		a := &all[i]
		id := a.Name
		if a.Target != "" {
			id += "-" + a.Target
		}
		newAlarm(own, id, jsii.String(p.alarmName(a.Name, a.Target)), a, actions)
	}
	return own
}

// alarmName returns the name in AWS of an alarm.
func (p *place) alarmName(name, of string) string {
	if p.cell != nil {
		return p.names.CellAlarm(p.cell.ID, name, of)
	}
	return p.names.ControlAlarm(name, of)
}

// newAlarm makes one alarm. If name is nil, CloudFormation names it. It notifies the actions when it begins to ring and
// when it stops.
func newAlarm(scope constructs.Construct, id string, name *string, a *alarm.Alarm, actions *[]any) {
	props := &awscloudwatch.CfnAlarmProps{
		AlarmName: name,
		AlarmDescription: jsii.String(strings.ToUpper(a.Description[:1]) + a.Description[1:] + ". " + Runbooks +
			a.Name + ".md"),
		Threshold: jsii.Number(a.Threshold), ComparisonOperator: jsii.String("GreaterThanThreshold"),
		EvaluationPeriods: jsii.Number(a.EvaluationPeriods), DatapointsToAlarm: jsii.Number(a.DatapointsToAlarm),
		TreatMissingData: jsii.String(string(a.TreatMissing)), AlarmActions: actions, OkActions: actions,
	}
	if a.OnSilence {
		props.Threshold, props.ComparisonOperator = jsii.Number(1), jsii.String("LessThanThreshold")
	}
	if a.Expression == "" {
		m := a.Metrics[0]
		props.Namespace, props.MetricName, props.Dimensions = &m.Namespace, &m.Name, dimensionsOf(&m)
		props.Period = jsii.Number(a.Period.Seconds())
		if strings.HasPrefix(m.Stat, "p") {
			props.ExtendedStatistic = &m.Stat
		} else {
			props.Statistic = &m.Stat
		}
	} else {
		props.Metrics = metricQueries(a)
	}
	awscloudwatch.NewCfnAlarm(scope, &id, props)
}

// metricQueries returns the metrics of an alarm's expression, and the expression itself, whose value the alarm compares
// with its threshold.
func metricQueries(a *alarm.Alarm) []any {
	all := []any{&awscloudwatch.CfnAlarm_MetricDataQueryProperty{
		Id: jsii.String("alarming"), Expression: &a.Expression, Label: &a.Name, ReturnData: jsii.Bool(true),
	}}
	for _, m := range a.Metrics {
		all = append(all, &awscloudwatch.CfnAlarm_MetricDataQueryProperty{
			Id: &m.ID, ReturnData: jsii.Bool(false),
			MetricStat: &awscloudwatch.CfnAlarm_MetricStatProperty{
				Metric: &awscloudwatch.CfnAlarm_MetricProperty{Namespace: &m.Namespace, MetricName: &m.Name,
					Dimensions: dimensionsOf(&m)},
				Period: jsii.Number(a.Period.Seconds()), Stat: &m.Stat,
			},
		})
	}
	return all
}

func dimensionsOf(m *alarm.Metric) []any {
	var all []any
	for _, d := range m.Dimensions {
		all = append(all, &awscloudwatch.CfnAlarm_DimensionProperty{Name: &d.Name, Value: &d.Value})
	}
	return all
}

// alarmActions returns the topics to which the alarms publish, or nil if the deployment names neither topics nor an
// address. A cell in the control plane's region uses the control plane's topic, which it knows by its name.
func (p *place) alarmActions(scope constructs.Construct) *[]any {
	a, region := &p.deployment.Alarms, p.region()
	switch {
	case len(a.Topics) > 0:
		return &[]any{jsii.String(a.Topic(region))}
	case a.Email == "":
		return nil
	case p.cell != nil && region == p.deployment.Control.Region:
		return &[]any{jsii.String(p.names.ARN("sns", region, p.names.Control(config.AlarmTopic)))}
	}
	return &[]any{p.alarmTopic(scope, a.Email)}
}

// alarmTopic makes the topic and a KMS key for it. AWS's own key for topics does not admit CloudWatch, and an alarm
// would be lost without any error. Assumption: alarm-topics.
func (p *place) alarmTopic(scope constructs.Construct, email string) *string {
	alarms := p.names.ARN("cloudwatch", p.region(), "alarm:"+p.alarmName("*", ""))
	cloudWatch := &[]awsiam.IPrincipal{awsiam.NewServicePrincipal(jsii.String("cloudwatch.amazonaws.com"), nil)}
	if p.cell == nil { // also for the alarms of cells in this region: their names have the same prefix
		alarms = p.names.ARN("cloudwatch", p.region(), "alarm:"+p.names.Prefix+"-*")
	}
	key := awskms.NewKey(scope, jsii.String("Key"), &awskms.KeyProps{
		Description: jsii.String("Sluice: " + p.name(config.AlarmTopic)), EnableKeyRotation: jsii.Bool(true),
		RemovalPolicy: awscdk.RemovalPolicy_DESTROY, // it encrypts messages on their way only
	})
	key.AddToResourcePolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid: jsii.String("AlarmsAreHeard"), Principals: cloudWatch, Actions: jsii.Strings("kms:Decrypt",
			"kms:GenerateDataKey"),
		Resources:  jsii.Strings("*"), // in a key's policy, "*" is this key
		Conditions: &map[string]any{"ArnLike": map[string]any{"aws:SourceArn": alarms}},
	}), nil)
	name := p.name(config.AlarmTopic)
	arn := p.names.ARN("sns", p.region(), name)
	topic := awssns.NewCfnTopic(scope, jsii.String("Topic"), &awssns.CfnTopicProps{
		TopicName: &name, KmsMasterKeyId: key.KeyId(),
		Subscription: []any{&awssns.CfnTopic_SubscriptionProperty{Protocol: jsii.String("email"), Endpoint: &email}},
	})
	awssns.NewCfnTopicPolicy(scope, jsii.String("TopicPolicy"), &awssns.CfnTopicPolicyProps{
		Topics: &[]*string{topic.Ref()},
		PolicyDocument: awsiam.NewPolicyDocument(&awsiam.PolicyDocumentProps{Statements: &[]awsiam.PolicyStatement{
			awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
				Sid: jsii.String("AlarmsAreHeard"), Principals: cloudWatch, Actions: jsii.Strings("sns:Publish"),
				Resources:  &[]*string{&arn},
				Conditions: &map[string]any{"ArnLike": map[string]any{"aws:SourceArn": alarms}},
			}),
			denyUnencryptedPublish(arn),
		}}),
	})
	return topic.Ref()
}

// denyUnencryptedPublish denies publishing without TLS.
func denyUnencryptedPublish(topic string) awsiam.PolicyStatement {
	return awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid: jsii.String("NeverInClear"), Effect: awsiam.Effect_DENY,
		Principals: &[]awsiam.IPrincipal{awsiam.NewAnyPrincipal()},
		Actions:    jsii.Strings("sns:Publish"), Resources: &[]*string{&topic},
		Conditions: &map[string]any{"Bool": map[string]any{"aws:SecureTransport": "false"}},
	})
}
