// Package shared runs scenarios in which several instances share the limits of a store: as processes with a real Redis,
// or in virtual time in one process. It logs every decision. From the log, and independently of the limiter, it
// computes how far the instances exceeded or missed the limits.
//
// [Published] is the list of scenarios that docs/benchmarks.md calls "the workload". The command bench/workload
// (`make workload`) runs them and prints their table. File bench/workload.go takes the figures shared_… from them.
// Other figures of package bench run scenarios of their own.
package shared
