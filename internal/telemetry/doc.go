// Package telemetry says what happened: counts and latencies as CloudWatch metrics, and log lines that name their
// request.
//
// Metrics are lines in CloudWatch's embedded metric format (EMF), one for each second and instance in which there was
// something to count. A [Recorder] gathers and writes those of the authorizer, a [Meter] those of other functions.
// [Metrics] is the list of all of them.
//
// Some stand in each line (Metric.Always), the others where they are not 0; a Meter's 0, and what is usual where nobody
// uses Sluice (Metric.LineOnly), are members of the line and no metrics, which CloudWatch would bill for each hour. The
// dimensions are cell and function, and no others: a tenant or an address never makes a metric. Which limits denied
// stands in the member "limits", which is no metric.
//
// Latencies have values and counts, from which CloudWatch derives any percentile, with a relative error of at most 9.2
// % between 1 µs and 69 s. That form of a metric is not in the format's published specification, which has numbers and
// arrays of them; AWS's own exporters write it.
//
// The logs are of log/slog, as JSON: see [NewHandler].
package telemetry
