package bench

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

// contender is one limiter under load. Its counters are new, and used for one comparison only.
type contender struct {
	name    string
	keys    int
	workers int // goroutines; 0 is one per processor

	// spend asks for one unit ops times, of key first, the next, and so on around, and counts what was admitted. It is
	// called by several goroutines at once. The loop is the contender's own: a call through a func value per request
	// would weigh on both sides and draw every ratio towards one.
	spend func(first, ops int) (admitted int, err error)

	// spent is how many units are gone from a key, at least and at most: buckets refill while they are measured.
	spent func(key int) (least, most int, err error)

	close func()
}

// goroutines that spend at once.
func (c *contender) goroutines() int {
	if c.workers > 0 {
		return c.workers
	}
	return runtime.GOMAXPROCS(0)
}

// trial spends ops units over all keys with its goroutines, and returns the time for one, in ns. Each key
// gets the same share: ops is a multiple of [contender.unit].
func (c *contender) trial(ops int) (perOp float64, admitted int, err error) {
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
	began := time.Now()
	close(start)
	done.Wait()
	elapsed := time.Since(began)
	for _, n := range counts {
		admitted += n
	}
	return float64(elapsed) / float64(ops), admitted, errors.Join(errs...)
}

// unit is the smallest number of operations that hits every key equally often.
func (c *contender) unit() int { return c.keys * c.goroutines() }

// verify checks that ops units were asked for, evenly over all keys, and that of each key at most limit was admitted.
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
			return fmt.Errorf("%s: key %d has spent %d to %d, want %d: the load was not even", c.name, key, least, most, share)
		}
	}
	return nil
}

// load says how much is measured.
type load struct {
	rounds int           // pairs of trials; odd, so that the median is one of them
	trial  time.Duration // about how long one trial takes
}

func loadFor(short bool) load {
	if short {
		return load{rounds: 3, trial: 20 * time.Millisecond}
	}
	return load{rounds: 25, trial: 120 * time.Millisecond}
}

// comparison is what measuring two contenders gave: medians over the rounds.
type comparison struct {
	ratio        float64 // time of ours ÷ time of theirs, within a round
	low, high    float64 // quartiles of the ratio
	ours, theirs float64 // ns per operation
}

func (c comparison) String() string {
	return fmt.Sprintf("%.1f ns against %.1f ns per decision, middle half of the rounds %.2f to %.2f",
		c.ours, c.theirs, c.low, c.high)
}

// compare measures two contenders in turn, ours first in one round and second in the next, so that neither has the warmer
// caches or the quieter minute. The ratio is taken in each round: what slows the machine for a while slows both. limit is
// how many units each key can spend in all.
func compare(ours, theirs *contender, l load, limit int) (comparison, error) {
	pair := [2]*contender{ours, theirs}
	var ops, total, admitted [2]int
	for i, c := range pair {
		// Makes the counters, and shows how fast it is: by as many as take long enough to tell.
		for n := c.unit(); ; n *= 10 {
			perOp := math.Inf(1)
			for range 3 { // the fastest: one that was held up would make all that follow too short to tell anything
				took, got, err := c.trial(n)
				if err != nil {
					return comparison{}, fmt.Errorf("%s: %w", c.name, err)
				}
				total[i] += n
				admitted[i] += got
				perOp = min(perOp, took)
			}
			if took := perOp * float64(n); took >= float64(l.trial)/10 {
				ops[i] = c.unit() * max(1, int(float64(l.trial)/(perOp*float64(c.unit()))))
				break
			}
		}
	}
	var times [2][]float64
	var ratios []float64
	for round := range l.rounds {
		runtime.GC() // neither pays for the other's garbage
		for turn := range pair {
			i := (turn + round) % 2
			perOp, got, err := pair[i].trial(ops[i])
			if err != nil {
				return comparison{}, fmt.Errorf("%s: %w", pair[i].name, err)
			}
			times[i] = append(times[i], perOp)
			total[i] += ops[i]
			admitted[i] += got
		}
		ratios = append(ratios, times[0][round]/times[1][round])
	}
	for i, c := range pair {
		if err := c.verify(total[i], admitted[i], limit); err != nil {
			return comparison{}, err
		}
	}
	slices.Sort(ratios)
	n := len(ratios)
	return comparison{
		ratio: ratios[n/2], low: ratios[n/4], high: ratios[n-1-n/4],
		ours: median(times[0]), theirs: median(times[1]),
	}, nil
}

func median(times []float64) float64 {
	times = slices.Sorted(slices.Values(times))
	return times[len(times)/2]
}
