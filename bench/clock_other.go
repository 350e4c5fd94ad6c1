//go:build !unix

package bench

import "time"

var processStart = time.Now()

// processorTime returns the time that has passed, because this system does not report the processor time.
func processorTime() time.Duration { return time.Since(processStart) }
