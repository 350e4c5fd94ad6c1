// Package shared runs the workload of several instances that share a store: as processes with a real Redis, or in
// virtual time in one process. It logs every decision, and computes from the log, independently of the limiter, how far
// the instances exceeded or missed the limits.
package shared
