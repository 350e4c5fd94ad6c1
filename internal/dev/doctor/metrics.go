package doctor

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	cwtypes "github.com/aws/aws-sdk-go-v2/service/cloudwatch/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
)

// recent is the period of metrics that are read.
const recent = time.Hour

// recentMetric returns how many values a metric has in the last hour, and the largest of them. dimensions are names,
// each followed by its value.
func (a *Account) recentMetric(
	ctx context.Context, region, metric string, now time.Time, namespace string, dimensions ...string,
) (count, largest float64, err error) {
	in := &cloudwatch.GetMetricStatisticsInput{
		Namespace: &namespace, MetricName: &metric, StartTime: aws.Time(now.Add(-recent)), EndTime: &now,
		Period:     aws.Int32(int32(recent.Seconds())),
		Statistics: []cwtypes.Statistic{cwtypes.StatisticSampleCount, cwtypes.StatisticMaximum},
	}
	for d := range slices.Chunk(dimensions, 2) {
		in.Dimensions = append(in.Dimensions, cwtypes.Dimension{Name: &d[0], Value: &d[1]})
	}
	out, err := a.In(region).Metrics.GetMetricStatistics(ctx, in)
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
	count, _, err := a.recentMetric(ctx, a.Region, "active_cell_count", t.Now, a.Namespace, "function", balancer)
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
		count, largest, err := a.recentMetric(ctx, a.Region, "IteratorAge", t.Now, "AWS/Lambda", "FunctionName",
			a.function("", name))
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
