//go:build unix

package bench

import (
	"syscall"
	"time"
)

// processorTime is what this process has used of processors so far. Figures for one processor go by it, because other
// programs' turns on the same one do not count. On a quiet machine it is the time that passed.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot be with these arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
