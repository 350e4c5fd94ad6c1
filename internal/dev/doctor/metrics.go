package doctor

import (
	"cmp"
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	cwtypes "github.com/aws/aws-sdk-go-v2/service/cloudwatch/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
)

// recent is the period of metrics that are read.
const recent = time.Hour

// recentMetric returns how many values a metric of a function has in the last hour, and the largest of them.
func (a *Account) recentMetric(ctx context.Context, namespace, metric, dimension, function string, now time.Time) (
	count, largest float64, err error,
) {
	out, err := a.In(a.Region).Metrics.GetMetricStatistics(ctx, &cloudwatch.GetMetricStatisticsInput{
		Namespace: &namespace, MetricName: &metric, StartTime: aws.Time(now.Add(-recent)), EndTime: &now,
		Period:     aws.Int32(int32(recent.Seconds())),
		Statistics: []cwtypes.Statistic{cwtypes.StatisticSampleCount, cwtypes.StatisticMaximum},
		Dimensions: []cwtypes.Dimension{{Name: &dimension, Value: &function}},
	})
	if err != nil {
		return 0, 0, err
	}
	for _, d := range out.Datapoints {
		count, largest = count+aws.ToFloat64(d.SampleCount), max(largest, aws.ToFloat64(d.Maximum))
	}
	return count, largest, nil
}

func emfMetrics(ctx context.Context, t *Target) Finding {
	a := t.Account
	if a == nil {
		return noAccount()
	}
	balancer := a.function("", "balancer")
	f, err := a.In(a.Region).Lambda.GetFunctionConfiguration(ctx,
		&lambda.GetFunctionConfigurationInput{FunctionName: &balancer})
	if err != nil {
		return failed(err, "lambda:GetFunctionConfiguration of "+balancer)
	}
	format := "Text"
	if f.LoggingConfig != nil {
		format = cmp.Or(string(f.LoggingConfig.LogFormat), format)
	}
	count, _, err := a.recentMetric(ctx, a.Namespace, "active_cell_count", "function", balancer, t.Now)
	switch {
	case err != nil:
		return failed(err, "cloudwatch:GetMetricStatistics")
	case count == 0:
		return violated("with the log format %s, CloudWatch has no active_cell_count of %s in the last hour", format,
			balancer)
	}
	return confirmed("with the log format %s, CloudWatch has %.0f values of active_cell_count in the last hour", format,
		count)
}

func streamAge(ctx context.Context, t *Target) Finding {
	a := t.Account
	if a == nil {
		return noAccount()
	}
	oldest := 0.0
	for _, name := range []string{"publisher", "archiver"} {
		count, largest, err := a.recentMetric(ctx, "AWS/Lambda", "IteratorAge", "FunctionName", a.function("", name),
			t.Now)
		switch {
		case err != nil:
			return failed(err, "cloudwatch:GetMetricStatistics")
		case count == 0:
			return violated("CloudWatch has no IteratorAge of %s in the last hour", a.function("", name))
		}
		oldest = max(oldest, largest)
	}
	return confirmed("CloudWatch has IteratorAge of both functions, at most %.0f ms in the last hour", oldest)
}
