// Package bench measures Sluice and comparable limiters in one process and one run, so that most figures are ratios
// that depend little on the machine. Every measurement checks its own workload: which keys were used, how often, and
// what was admitted. If the workload was not the intended one, the measurement returns an error and no number.
package bench
