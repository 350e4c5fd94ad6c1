package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// contender is one of the two limiters of a comparison. Its counters are new, and used for one comparison only.
type contender struct {
	name    string
	keys    int
	workers int // goroutines; 0 means one for each core
	stride  int // the distance from one key that is used to the next; 0 means 1

	// ask returns a function that asks for one unit of a key, for one goroutine.
	ask func() func(key int) (admitted bool, err error)

	// spent returns how many units of a key have been used, at least and at most: token buckets refill during the
	// measurement.
	spent func(key int) (least, most int, err error)

	close func()

	total, admitted int // units that were asked for, and those that were admitted
}

// goroutines returns how many goroutines ask at once.
func (c *contender) goroutines() int { return cmp.Or(c.workers, runtime.GOMAXPROCS(0)) }

// unit returns a small number of operations that uses every key equally often.
func (c *contender) unit() int {
	if c.stride == 0 && c.keys%c.goroutines() == 0 {
		return c.keys // each goroutine uses a part of the keys
	}
	return c.keys * c.goroutines()
}

// timing is the duration of one operation, in ns. If n cores work at the same time, the processor time is n times the
// wall time.
type timing struct{ wall, processor float64 }

// trial asks for ops units with the contender's goroutines, and returns the time for one. Each key gets the same number
// of requests if ops is a multiple of unit.
func (c *contender) trial(ops int) (perOp timing, err error) {
	workers := c.goroutines()
	counts, errs := make([]int, workers), make([]error, workers)
	start := make(chan struct{})
	var done sync.WaitGroup
	for w := range workers {
		done.Go(func() {
			ask, key, stride := c.ask(), w*c.keys/workers, cmp.Or(c.stride, 1)
			<-start
			for range ops / workers {
				admitted, err := ask(key)
				if err != nil {
					errs[w] = fmt.Errorf("%s: %w", c.name, err)
					return
				}
				if admitted {
					counts[w]++
				}
				if key += stride; key >= c.keys {
					key -= c.keys
				}
			}
		})
	}
	used, began := processorTime(), time.Now()
	close(start)
	done.Wait()
	elapsed, used := time.Since(began), processorTime()-used
	c.total += ops
	for _, n := range counts {
		c.admitted += n
	}
	return timing{wall: float64(elapsed) / float64(ops), processor: float64(used) / float64(ops)}, errors.Join(errs...)
}

// verify checks that every key was asked for the same number of units, and that at most limit units of each key were
// admitted.
func (c *contender) verify(limit int) error {
	share := min(c.total/c.keys, limit)
	if want := share * c.keys; c.admitted != want {
		return fmt.Errorf("%s admitted %d of %d, want %d", c.name, c.admitted, c.total, want)
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

// allocatesNothing returns an error if a decision allocates after the given number of decisions. It closes the
// contender.
func (c *contender) allocatesNothing(after int) error {
	defer c.close()
	if _, err := c.trial(after); err != nil {
		return err
	}
	const ops = 1000
	ask, failed, perOp := c.ask(), error(nil), 1.0
	for range 5 { // the least of some runs: a call for the next lease allocates, and can happen at any time
		perOp = min(perOp, testing.AllocsPerRun(1, func() {
			for i := range ops {
				if _, err := ask(i % c.keys); err != nil {
					failed = err
				}
			}
		})/ops)
	}
	if failed == nil && perOp >= 0.01 {
		failed = fmt.Errorf("%s: %.2f allocations per decision, want 0", c.name, perOp)
	}
	return failed
}

// comparison is the result of measuring two contenders. Times are ns per operation.
type comparison struct {
	ratio        float64 // time of ours ÷ time of theirs
	ours, theirs timing
	rounds       int
}

func (c comparison) String() string {
	return fmt.Sprintf("%.1f ns against %.1f ns per decision, processor time %.1f ns against %.1f ns, "+
		"%d trials of each", c.ours.wall, c.theirs.wall, c.ours.processor, c.theirs.processor, c.rounds)
}

// calmPart is the part of the trials that is taken to be undisturbed. If another program uses the other half of a core,
// the same instructions take about half as long again, and if it uses the core, goroutines that should run at once take
// turns. Both make a trial slow, so of many short trials the fast ones tell what the contender takes.
const calmPart = 0.1

// compare measures two contenders in turn, in many short trials, and closes them. Ours is first in one round and second
// in the next, so that neither has an advantage. Each key has plenty of units.
func compare(ours, theirs *contender, short bool) (c comparison, err error) {
	defer ours.close()
	defer theirs.close()
	rounds, least, within := 301, 21, 20*time.Second
	if short {
		rounds, least, within = 5, 3, time.Second
	}
	pair, ops := [2]*contender{ours, theirs}, [2]int{}
	for i, side := range pair {
		if ops[i], err = side.warmUp(10 * time.Millisecond); err != nil {
			return c, err
		}
	}
	runtime.GC()
	var times [2][]timing
	for began := time.Now(); c.rounds < rounds && (c.rounds < least || time.Since(began) < within); c.rounds++ {
		for turn := range pair {
			i := (c.rounds + turn) % 2
			t, err := pair[i].trial(ops[i])
			if err != nil {
				return c, err
			}
			times[i] = append(times[i], t)
		}
	}
	for _, side := range pair {
		if err := side.verify(plenty); err != nil {
			return c, err
		}
	}
	c.ours, c.theirs = calm(times[0]), calm(times[1])
	c.ratio = c.ours.wall / c.theirs.wall
	return c, nil
}

// calm returns the times that the calm part of the trials did not exceed.
func calm(trials []timing) timing {
	at := func(of func(timing) float64) float64 {
		var values []float64
		for _, t := range trials {
			values = append(values, of(t))
		}
		return quantile(values, calmPart)
	}
	return timing{at(func(t timing) float64 { return t.wall }), at(func(t timing) float64 { return t.processor })}
}

// warmUp makes the counters, and returns how many operations take about the given time: a multiple of unit.
func (c *contender) warmUp(length time.Duration) (ops int, err error) {
	stride := c.stride
	c.stride = 0 // so that the counters are made in the order of the keys
	defer func() { c.stride = stride }()
	for n := c.unit(); ; n *= 10 {
		fastest := math.Inf(1) // of three: after one that was delayed, all later trials would be too short
		for range 3 {
			t, err := c.trial(n)
			if err != nil {
				return 0, err
			}
			fastest = min(fastest, t.wall)
		}
		if fastest*float64(n) >= float64(length)/10 {
			return c.unit() * max(1, int(float64(length)/(fastest*float64(c.unit())))), nil
		}
	}
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile returns the value that the part q of all values does not exceed.
func quantile(values []float64, q float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[int(q*float64(len(values)))]
}

// processorTime returns how much processor time this process has used so far. Figures about one processor use it,
// because it does not include the time in which other programs run on the same processor.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot happen with these arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
