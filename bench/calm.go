package bench

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A ratio of two limiters is not reliable while other programs use the processors. If another program has a core, the
// same instructions take about half as long again, but a reading of the clock only a tenth longer. So the ratio changes
// if one of the limiters reads the clock more often. Measurements therefore run a loop of fixed work before and after
// each trial. If the loop is slow, the trial does not count.
const (
	loopSteps    = 1 << 20 // about a millisecond: long against a reading of the clock, short against a trial
	calmSlowdown = 1.10    // the most that the loop may take, as a multiple of its fastest run
)

// calibration times the loop on several goroutines at once. It takes the fastest run so far for one on an idle machine.
type calibration struct{ fastest time.Duration }

// slowdown runs the loop, and returns how long its slowest goroutine took as a multiple of the fastest run so far.
func (c *calibration) slowdown(goroutines int) float64 {
	times := make([]time.Duration, goroutines)
	var done sync.WaitGroup
	for i := range times {
		done.Go(func() {
			began := time.Now()
			loopResult.Store(runLoop(loopSteps))
			times[i] = time.Since(began)
		})
	}
	done.Wait()
	return c.compare(times)
}

// compare keeps the smallest of the times as the fastest run, if it is faster than all before. It returns the largest
// of the times as a multiple of the fastest run.
func (c *calibration) compare(times []time.Duration) float64 {
	if fastest := slices.Min(times); c.fastest == 0 || fastest < c.fastest {
		c.fastest = fastest
	}
	return float64(slices.Max(times)) / float64(c.fastest)
}

var loopResult atomic.Uint64 // of runLoop: it is stored so that the compiler does not remove the loop

// runLoop is n steps of work that the compiler cannot shorten, because each step needs the result of the one before it.
func runLoop(n int) uint64 {
	v := uint64(n)
	for range n {
		// Any odd factor with bits all over the word would do. This one is from the mixer of SplitMix64.
		v = (v ^ v>>29) * 0xbf58476d1ce4e5b9
	}
	return v
}
