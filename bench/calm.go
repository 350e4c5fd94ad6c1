package bench

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Processors that other programs share make every ratio of this package unsteady. While another program has a core, the
// same instructions take about half as long again, and a reading of the clock only a tenth longer, so the ratio of two
// limiters depends on how much of each is clock. Measurements therefore run a loop of fixed work before and after each
// trial, and a trial beside which that loop is slow does not count.
const (
	calibrationSteps = 1 << 20 // steps of the loop, about a millisecond
	calmSlowdown     = 1.10    // the most that the loop may take, as a multiple of its fastest run
	atOnceShare      = 0.85    // the least part of the cores that a trial on all of them must have had
)

// calibration times a loop of fixed work on several goroutines at once. The fastest run so far is taken as that of an
// idle machine.
type calibration struct{ fastest time.Duration }

// slowdown runs the loop, and returns how long its slowest goroutine took as a multiple of the fastest run so far.
func (c *calibration) slowdown(goroutines int) float64 {
	times := make([]time.Duration, goroutines)
	var done sync.WaitGroup
	for i := range times {
		done.Go(func() {
			began := time.Now()
			sink.Store(hashSteps(calibrationSteps))
			times[i] = time.Since(began)
		})
	}
	done.Wait()
	return c.compare(times)
}

// compare takes the times of one run of the loop on several goroutines into account.
func (c *calibration) compare(times []time.Duration) float64 {
	if fastest := slices.Min(times); c.fastest == 0 || fastest < c.fastest {
		c.fastest = fastest
	}
	return float64(slices.Max(times)) / float64(c.fastest)
}

var sink atomic.Uint64 // keeps the loop's result, so that the compiler keeps the loop

// hashSteps is work that the compiler cannot shorten: each step needs the result of the one before it.
func hashSteps(n int) uint64 {
	h := uint64(n)
	for range n {
		h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
	}
	return h
}
