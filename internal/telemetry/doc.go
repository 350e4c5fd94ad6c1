// Package telemetry says what happened: counts and latencies as CloudWatch metrics, and log lines that name their request.
//
// Metrics are lines in CloudWatch's embedded metric format (EMF), one for each second and instance in which there was
// something to count. A [Recorder] gathers and writes them. Their names:
//
//	decisions                    count, and decisions_KIND for each answer.Kind that occurred
//	enforce_denied               count, decisions that a limit denied
//	shadow_denied                count, what shadow limits would have denied
//	limiter_latency              µs
//	store_latency_STORE          µs; STORE is redis, dynamodb, memory or other
//	store_errors_STORE           count
//	requests_served_by_backstop  count
//	config_stale                 1 where a decision was made on a configuration that is too old, otherwise 0
//	lease_hit_rate               percent; its average is the rate, its number of samples is decisions from leases and calls
//	early_denials                count, of leases
//	cold_starts                  count
//	propagation_seconds          s, from the write of a change to when it was in force here
//	events_refused               count, of events that are none of an authorizer
//	panics                       count
//	telemetry_lines_lost         count
//
// decisions, enforce_denied, shadow_denied, requests_served_by_backstop and config_stale stand in each line, the others where
// they are not 0. The dimensions are cell and function, and no others: a tenant or an address never makes a metric. Which
// limits denied stands in the member "limits", which is no metric.
//
// Latencies have values and counts, from which CloudWatch derives any percentile, with a relative error of at most 9.2 %
// between 1 µs and 69 s. That form of a metric is not in the format's published specification, which has numbers and arrays
// of them; AWS's own exporters write it.
//
// The logs are of log/slog, as JSON: see [NewHandler].
package telemetry
