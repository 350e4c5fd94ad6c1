//go:build !unix

package bench

import "time"

var processStart = time.Now()

// processorTime is the time that passed: what this process used of it is not known here.
func processorTime() time.Duration { return time.Since(processStart) }
