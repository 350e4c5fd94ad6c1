//go:build unix

package bench

import (
	"syscall"
	"time"
)

// processorTime returns how much processor time this process has used so far. Figures about one processor use it,
// because it does not include the time in which other programs run on the same processor.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot happen with these arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
