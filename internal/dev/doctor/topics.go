package doctor

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	cwtypes "github.com/aws/aws-sdk-go-v2/service/cloudwatch/types"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/sns"
)

// checkAlarmTopics checks the assumption alarm-topics.
func checkAlarmTopics(ctx context.Context, t *Target) Finding {
	a := t.Account
	if a == nil {
		return noAccount()
	}
	var topics []string
	for _, region := range a.regions() {
		in := a.In(region)
		of, err := in.topicsOfAlarms(ctx, a.Prefix+"-")
		if err != nil {
			return failed(err, "cloudwatch:DescribeAlarms")
		}
		for _, topic := range of {
			if f := in.mayPublish(ctx, topic); f != nil {
				return *f
			}
		}
		if f := in.actionsFailed(ctx, a.Prefix+"-", t.Now); f != nil {
			return *f
		}
		topics = append(topics, of...)
	}
	if len(topics) == 0 {
		return unknown("set `alarms` in the deployment file", "no alarm of the deployment is published on a topic")
	}
	return confirmed("CloudWatch can publish on %s, and no action of an alarm has failed in two weeks",
		strings.Join(topics, ", "))
}

// topicsOfAlarms returns the topics to which alarms publish, of the alarms whose names begin with prefix.
func (s Services) topicsOfAlarms(ctx context.Context, prefix string) ([]string, error) {
	found := map[string]bool{}
	pages := cloudwatch.NewDescribeAlarmsPaginator(s.Metrics, &cloudwatch.DescribeAlarmsInput{AlarmNamePrefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for i := range page.MetricAlarms {
			for _, action := range page.MetricAlarms[i].AlarmActions {
				if strings.Contains(action, ":sns:") {
					found[action] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// mayPublish returns a finding if CloudWatch cannot publish to the topic, or if that is not known; nil if it can.
func (s Services) mayPublish(ctx context.Context, topic string) *Finding {
	out, err := s.Topics.GetTopicAttributes(ctx, &sns.GetTopicAttributesInput{TopicArn: &topic})
	if err != nil {
		return ptr(failed(err, "sns:GetTopicAttributes of "+topic))
	}
	key := out.Attributes["KmsMasterKeyId"]
	switch {
	case key == "": // the topic is not encrypted with a key in KMS
		return nil
	case strings.HasSuffix(key, "alias/aws/sns"):
		return ptr(violated("%s is encrypted with AWS's own key for topics, which does not let CloudWatch in", topic))
	}
	k, err := s.Keys.DescribeKey(ctx, &kms.DescribeKeyInput{KeyId: &key}) // the policy is not found by an alias
	if err != nil {
		return ptr(failed(err, "kms:DescribeKey of "+key))
	}
	if k.KeyMetadata == nil {
		return ptr(unknown("", "kms:DescribeKey says nothing of %s", key))
	}
	policy, err := s.Keys.GetKeyPolicy(ctx, &kms.GetKeyPolicyInput{KeyId: k.KeyMetadata.KeyId})
	if err != nil {
		return ptr(failed(err, "kms:GetKeyPolicy of "+key))
	}
	// The policy is only searched for these words, so a Deny or a condition is not seen. If one prevents alarms,
	// actionsFailed finds it.
	text := aws.ToString(policy.Policy)
	names := strings.Contains(text, "cloudwatch.amazonaws.com")
	allows := strings.Contains(text, `"kms:*"`) ||
		strings.Contains(text, "kms:GenerateDataKey") && strings.Contains(text, "kms:Decrypt")
	if !names || !allows {
		return ptr(violated("the policy of the key of %s does not let cloudwatch.amazonaws.com in", topic))
	}
	return nil
}

// actionsFailed returns a finding if an alarm could not be published recently; nil if all could.
func (s Services) actionsFailed(ctx context.Context, prefix string, now time.Time) *Finding {
	const far = 14 * 24 * time.Hour
	pages := cloudwatch.NewDescribeAlarmHistoryPaginator(s.Metrics, &cloudwatch.DescribeAlarmHistoryInput{
		HistoryItemType: cwtypes.HistoryItemTypeAction, StartDate: aws.Time(now.Add(-far)), EndDate: &now,
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return ptr(failed(err, "cloudwatch:DescribeAlarmHistory"))
		}
		for _, item := range page.AlarmHistoryItems {
			if strings.HasPrefix(aws.ToString(item.AlarmName), prefix) &&
				strings.HasPrefix(aws.ToString(item.HistorySummary), "Failed") {
				return ptr(violated("%s: %s", aws.ToString(item.AlarmName),
					clip(aws.ToString(item.HistorySummary), 200)))
			}
		}
	}
	return nil
}

func ptr(f Finding) *Finding { return &f }
