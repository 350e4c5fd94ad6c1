// Package bench measures Sluice beside its peers, in one process and one run, so that a figure is a ratio and not a
// property of the machine. Every measurement checks its own workload: which keys were hit, how often, and what was
// admitted. One that did not do what it says is an error, not a number.
package bench
