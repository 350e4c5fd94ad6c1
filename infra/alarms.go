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

// Runbooks is where each alarm's description says what to do: Runbooks, its name, and ".md".
const Runbooks = "https://github.com/sluicelimits/sluice/blob/main/docs/runbooks/"

// newAlarms makes the place's alarms, and the topic on which they are heard. They need nothing but names.
func newAlarms(scope constructs.Construct, p *place) constructs.Construct {
	own := constructs.NewConstruct(scope, jsii.String("Alarms"))
	all := alarm.Control(p.deployment)
	if p.cell != nil {
		all = alarm.Cell(p.deployment, p.cell)
	}
	heard := p.heard(own)
	for i := range all {
		p.alarm(own, &all[i], heard)
	}
	return own
}

// alarmName is the name of an alarm of this place.
func (p *place) alarmName(name, of string) string {
	if p.cell != nil {
		return p.names.CellAlarm(p.cell.ID, name, of)
	}
	return p.names.ControlAlarm(name, of)
}

// alarm makes one. It speaks when it begins and when it is over.
func (p *place) alarm(scope constructs.Construct, a *alarm.Alarm, heard *[]any) {
	id := a.Name
	if a.Of != "" {
		id += "-" + a.Of
	}
	props := &awscloudwatch.CfnAlarmProps{
		AlarmName:        jsii.String(p.alarmName(a.Name, a.Of)),
		AlarmDescription: jsii.String(strings.ToUpper(a.Means[:1]) + a.Means[1:] + ". " + Runbooks + a.Name + ".md"),
		Threshold:        jsii.Number(a.Above), ComparisonOperator: jsii.String("GreaterThanThreshold"),
		EvaluationPeriods: jsii.Number(a.Within), DatapointsToAlarm: jsii.Number(a.Points),
		TreatMissingData: jsii.String(string(a.Missing)), AlarmActions: heard, OkActions: heard,
	}
	if a.Unheard {
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
		props.Metrics = queries(a)
	}
	awscloudwatch.NewCfnAlarm(scope, &id, props)
}

// queries are the metrics of an expression, and the expression itself, whose value is alarming.
func queries(a *alarm.Alarm) []any {
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

// heard are the topics on which the place's alarms are heard; none where nobody wants to. A cell beside the control
// plane has no topic of its own, and needs nothing of the control plane's stack but the name.
func (p *place) heard(scope constructs.Construct) *[]any {
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

// alarmTopic makes the topic, with a key: AWS's own key for topics does not let CloudWatch in, and an alarm would be
// lost without a word. Assumption: alarm-topics.
func (p *place) alarmTopic(scope constructs.Construct, email string) *string {
	alarms := p.names.ARN("cloudwatch", p.region(), "alarm:"+p.alarmName("*", ""))
	cloudWatch := &[]awsiam.IPrincipal{awsiam.NewServicePrincipal(jsii.String("cloudwatch.amazonaws.com"), nil)}
	if p.cell == nil { // and the cells beside it, whose names begin alike
		alarms = p.names.ARN("cloudwatch", p.region(), "alarm:"+p.names.Prefix+"-*")
	}
	key := awskms.NewKey(scope, jsii.String("Key"), &awskms.KeyProps{
		Description: jsii.String("Sluice: " + p.name(config.AlarmTopic)), EnableKeyRotation: jsii.Bool(true),
		RemovalPolicy: awscdk.RemovalPolicy_DESTROY, // nothing that it encrypts is kept
	})
	key.AddToResourcePolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid: jsii.String("AlarmsAreHeard"), Principals: cloudWatch, Actions: jsii.Strings("kms:Decrypt",
			"kms:GenerateDataKey"),
		Resources:  jsii.Strings("*"), // this key: it is its policy
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
			neverInClear(arn),
		}}),
	})
	return topic.Ref()
}

// neverInClear denies to publish other than by TLS.
func neverInClear(topic string) awsiam.PolicyStatement {
	return awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid: jsii.String("NeverInClear"), Effect: awsiam.Effect_DENY,
		Principals: &[]awsiam.IPrincipal{awsiam.NewAnyPrincipal()},
		Actions:    jsii.Strings("sns:Publish"), Resources: &[]*string{&topic},
		Conditions: &map[string]any{"Bool": map[string]any{"aws:SecureTransport": "false"}},
	})
}
