package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

// contender is one of the two limiters of a comparison. Its counters are new, and used for one comparison only.
type contender struct {
	name    string
	keys    int
	workers int // goroutines; 0 means one for each core

	// stride is the distance from one key that is used to the next. It is 1 while the counters are made. After that it
	// is measuredStride, or 1 if that is 0.
	stride, measuredStride int

	// spend makes ops requests for one unit each: the first one for the key first, the next one for the next key, and
	// so on, again from the first key after the last. It returns how many were admitted. Several goroutines call it at
	// once. Each contender has a loop of its own, because a call of a function value for each request would slow both
	// sides, so that every ratio would be closer to one.
	spend func(first, ops int) (admitted int, err error)

	// spent returns how many units of a key have been used, at least and at most: token buckets refill during the
	// measurement.
	spent func(key int) (least, most int, err error)

	close func()
}

// goroutines returns how many goroutines call spend at once.
func (c *contender) goroutines() int {
	if c.workers > 0 {
		return c.workers
	}
	return runtime.GOMAXPROCS(0)
}

// timing is the duration of one operation, in ns. If n cores work at the same time, the processor time is n times the
// wall time.
type timing struct{ wall, processor float64 }

// cores returns how many cores the goroutines can use.
func (c *contender) cores() int { return min(c.goroutines(), runtime.GOMAXPROCS(0)) }

// trial makes ops requests for one unit each with its goroutines, and returns the time for one. Each key gets the same
// number of requests: ops is a multiple of [contender.unit].
func (c *contender) trial(ops int) (perOp timing, admitted int, err error) {
	workers := c.goroutines()
	counts := make([]int, workers)
	errs := make([]error, workers)
	start := make(chan struct{})
	var done sync.WaitGroup
	for w := range workers {
		done.Go(func() {
			<-start
			counts[w], errs[w] = c.spend(w*c.keys/workers, ops/workers)
		})
	}
	used, began := processorTime(), time.Now()
	close(start)
	done.Wait()
	elapsed, used := time.Since(began), processorTime()-used
	for _, n := range counts {
		admitted += n
	}
	perOp = timing{wall: float64(elapsed) / float64(ops), processor: float64(used) / float64(ops)}
	return perOp, admitted, errors.Join(errs...)
}

// atOnceShare is the least part of the processor time of its cores that a trial on all of them must have used.
// Goroutines that took turns on one of two cores use 0.5 of it.
const atOnceShare = 0.85

// atOnce reports whether a trial that took t ran on about as many cores as it could use.
func (c *contender) atOnce(t timing) bool {
	return t.processor >= atOnceShare*float64(c.cores())*t.wall
}

// unit returns the smallest number of operations that uses every key equally often.
func (c *contender) unit() int { return c.keys * c.goroutines() }

// verify checks that every key was asked for the same number of units, ops in all, and that at most limit units of each
// key were admitted.
func (c *contender) verify(ops, admitted, limit int) error {
	share := min(ops/c.keys, limit)
	if want := share * c.keys; admitted != want {
		return fmt.Errorf("%s admitted %d of %d, want %d", c.name, admitted, ops, want)
	}
	for key := range c.keys {
		least, most, err := c.spent(key)
		if err != nil {
			return fmt.Errorf("%s, key %d: %w", c.name, key, err)
		}
		if share < least || share > most {
			return fmt.Errorf("%s: key %d has spent %d to %d, want %d: the load was not even", c.name, key, least,
				most, share)
		}
	}
	return nil
}

// load configures how much a comparison measures.
type load struct {
	rounds int           // pairs of trials that count; odd, so that the median is one of them
	trial  time.Duration // about how long one trial takes
	calm   bool          // rounds in which the machine was busy do not count
	atOnce bool          // with calm: rounds in which the goroutines did not have a core each do not count, either
}

const (
	mostAttempts = 3 // rounds that are measured to get one that counts, on average
	leastCalm    = 5 // rounds that count if the machine is never calm: the least disturbed ones
)

func loadFor(short bool) load {
	if short {
		return load{rounds: 3, trial: 20 * time.Millisecond}
	}
	return load{rounds: 25, trial: 120 * time.Millisecond, calm: true}
}

// decisions returns how many decisions on Redis are enough to measure what one costs.
func (l load) decisions() int {
	if l.calm {
		return 20_000
	}
	return 1000
}

// comparison is the result of measuring two contenders: medians over the rounds that count.
type comparison struct {
	ratio        float64 // time of ours ÷ time of theirs, within a round
	low, high    float64 // quartiles of the ratio
	processor    float64 // processor time of ours ÷ that of theirs
	ours, theirs float64 // ns per operation
	oursOnCPU    float64 // ns of processor time per operation
	rounds       int     // rounds that count
	dropped      int     // rounds that do not count, because the machine was busy
	busy         bool    // the machine was never calm for long enough, so the least disturbed rounds count
}

func (c comparison) String() string {
	s := fmt.Sprintf("%.1f ns against %.1f ns per decision, middle half of the rounds %.2f to %.2f, processor time "+
		"%.2f x",
		c.ours, c.theirs, c.low, c.high, c.processor)
	switch {
	case c.busy:
		s += fmt.Sprintf("; the machine was busy throughout: the %d least disturbed of %d rounds", c.rounds,
			c.rounds+c.dropped)
	case c.dropped > 0:
		s += fmt.Sprintf("; %d of %d rounds are dropped, because the machine was busy", c.dropped, c.rounds+c.dropped)
	}
	return s
}

// round is a pair of trials.
type round struct {
	ours, theirs timing
	disturbance  float64 // the largest slowdown of the calibrations before, between and after them
}

// side is one of the two contenders of a comparison, with the units that it was asked for and admitted so far.
type side struct {
	*contender
	ops             int // operations of one trial
	total, admitted int
}

// compare measures two contenders in turn. Ours is first in one round and second in the next, so that neither has an
// advantage. The ratio is computed in each round, because what slows the machine for a while slows both. Each key can
// spend limit units in all.
func compare(ours, theirs *contender, l load, limit int) (comparison, error) {
	pair := [2]*side{{contender: ours}, {contender: theirs}}
	for _, c := range pair {
		if err := c.warmUp(l); err != nil {
			return comparison{}, err
		}
	}
	var calm, disturbed []round
	var machine calibration
	for n := 0; len(calm) < l.rounds && n < mostAttempts*l.rounds; n++ {
		r, counts, err := measureRound(pair, n%2, l, &machine)
		if err != nil {
			return comparison{}, err
		}
		if counts {
			calm = append(calm, r)
		} else {
			disturbed = append(disturbed, r)
		}
	}
	for _, c := range pair {
		if err := c.verify(c.total, c.admitted, limit); err != nil {
			return comparison{}, err
		}
	}
	return summary(calm, disturbed), nil
}

// warmUp makes the counters, and finds out how many operations take about as long as a trial of l.
func (c *side) warmUp(l load) error {
	for n := c.unit(); c.ops == 0; n *= 10 {
		perOp := math.Inf(1)
		for range 3 { // the fastest trial counts: after one that was delayed, all others would be too short
			took, err := c.spendAll(n)
			if err != nil {
				return err
			}
			perOp = min(perOp, took.wall)
		}
		if perOp*float64(n) >= float64(l.trial)/10 {
			c.ops = c.unit() * max(1, int(float64(l.trial)/(perOp*float64(c.unit()))))
		}
	}
	if c.measuredStride > 0 {
		c.stride = c.measuredStride
	}
	return nil
}

// spendAll makes a trial with the given number of operations, and adds them to the totals.
func (c *side) spendAll(ops int) (timing, error) {
	perOp, admitted, err := c.trial(ops)
	if err != nil {
		return timing{}, fmt.Errorf("%s: %w", c.name, err)
	}
	c.total += ops
	c.admitted += admitted
	return perOp, nil
}

// measureRound makes one trial of each contender, beginning with the given one. It reports whether the round counts.
func measureRound(pair [2]*side, first int, l load, machine *calibration) (r round, counts bool, err error) {
	runtime.GC() // so that the first contender does not collect garbage of the one before it
	r.disturbance = 1
	calibrate := func(c *side) {
		if l.calm {
			r.disturbance = max(r.disturbance, machine.slowdown(c.cores()))
		}
	}
	atOnce := true
	var times [2]timing
	for turn := range pair {
		i := (first + turn) % 2
		calibrate(pair[i])
		if times[i], err = pair[i].spendAll(pair[i].ops); err != nil {
			return r, false, err
		}
		atOnce = atOnce && pair[i].atOnce(times[i])
	}
	calibrate(pair[0])
	r.ours, r.theirs = times[0], times[1]
	return r, r.disturbance <= calmSlowdown && (atOnce || !l.calm || !l.atOnce), nil
}

// summary returns the comparison by the calm rounds, or by the least disturbed ones if too few are calm.
func summary(calm, disturbed []round) comparison {
	c := comparison{rounds: len(calm), dropped: len(disturbed)}
	if short := leastCalm - len(calm); short > 0 && len(disturbed) > 0 {
		slices.SortFunc(disturbed, func(a, b round) int { return cmp.Compare(a.disturbance, b.disturbance) })
		short = min(short, len(disturbed))
		calm = append(calm, disturbed[:short]...)
		c.rounds, c.dropped, c.busy = len(calm), len(disturbed)-short, true
	}
	of := func(f func(round) float64) []float64 {
		var values []float64
		for _, r := range calm {
			values = append(values, f(r))
		}
		return slices.Sorted(slices.Values(values))
	}
	ratios := of(func(r round) float64 { return r.ours.wall / r.theirs.wall })
	n := len(ratios)
	c.ratio, c.low, c.high = ratios[n/2], ratios[n/4], ratios[n-1-n/4]
	c.processor = median(of(func(r round) float64 { return r.ours.processor / r.theirs.processor }))
	c.ours = median(of(func(r round) float64 { return r.ours.wall }))
	c.oursOnCPU = median(of(func(r round) float64 { return r.ours.processor }))
	c.theirs = median(of(func(r round) float64 { return r.theirs.wall }))
	return c
}

func median(times []float64) float64 {
	times = slices.Sorted(slices.Values(times))
	return times[len(times)/2]
}
