package bench

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

const (
	warmTenants = 20 // tenants whose requests one environment serves
	warmBlock   = 50 // calls of one function before it is the other one's turn
)

// caller calls a function, one call after the other.
type caller struct {
	*running
	events [][]byte // events of different tenants, which are sent in turn
	next   int
	took   []float64 // how long each call took, µs
	calls  int
}

// block makes n calls, and returns the median time of a call in µs.
func (c *caller) block(n int) (float64, error) {
	for range n {
		tenant := c.next % len(c.events)
		c.next++
		began := time.Now()
		answer, err := c.invoke(c.events[tenant])
		took := time.Since(began)
		if err != nil {
			return 0, err
		}
		o, err := read(answer, fmt.Sprintf("wide-%d", tenant))
		if err != nil {
			return 0, err
		}
		if !o.allowed() || o.Context["storeFailed"] != nil {
			return 0, fmt.Errorf("%s: not admitted, or not by its store: %s", c.name, answer)
		}
		c.calls++
		c.took = append(c.took, took.Seconds()*1e6)
	}
	return median(c.took[len(c.took)-n:]), nil
}

// decides checks that the function denies requests above a limit or, if limited is false, that it admits them.
func (c *caller) decides(narrow []byte, limited bool) error {
	admitted := 0
	for range 2 * narrowUnits {
		answer, err := c.invoke(narrow)
		if err != nil {
			return err
		}
		o, err := read(answer, "narrow-0")
		if err != nil {
			return err
		}
		if o.allowed() {
			admitted++
		}
	}
	want := 2 * narrowUnits
	if limited {
		want = narrowUnits
	}
	if admitted != want {
		return fmt.Errorf("%s: %d of %d above a limit of %d admitted, want %d", c.name, admitted, 2*narrowUnits,
			narrowUnits, want)
	}
	return nil
}

// warmFigure measures the time of a call through the Runtime API, as a multiple of that of the same function with a
// limiter that admits everything.
func warmFigure(short bool) (Result, error) {
	var r Result
	rounds := 61
	if short {
		rounds = 5
	}
	var err error
	if r.Value, err = warmAgainstAllowing(&r, "by leases, as is the default", "true", rounds); err != nil {
		return r, err
	}
	_, err = warmAgainstAllowing(&r, "without leases, each call asking Redis", "false", rounds)
	r.note("medians of %d calls each, in turn; one at a time, JWTs already seen, %d tenants with %d limits; the "+
		"function is not frozen in between",
		rounds*warmBlock, warmTenants, functionLimits)
	return r, err
}

func warmAgainstAllowing(r *Result, how, leases string, rounds int) (ratio float64, err error) {
	d, err := deploy(tokentest.NewRSA("one"), warmTenants, 1)
	if err != nil {
		return 0, err
	}
	defer d.close()
	limiting, err := d.function("authorizer", ".", "./functions/authorizer")
	if err != nil {
		return 0, err
	}
	limiting.env = d.with("SLUICE_LEASES", leases, "SLUICE_REDIS_DEADLINE", "2s") // a busy machine is slow
	allowing, err := d.function("allowing", "bench", "./allowing")
	if err != nil {
		return 0, err
	}
	events, err := d.calls("wide", warmTenants)
	if err != nil {
		return 0, err
	}
	narrow, err := d.call("narrow-0")
	if err != nil {
		return 0, err
	}
	var pair [2]*caller
	for i, f := range []*function{limiting, allowing} {
		started, err := f.start()
		if err != nil {
			return 0, err
		}
		defer func() { _ = started.stop() }()
		pair[i] = &caller{running: started, events: events}
		if err := pair[i].decides(narrow, i == 0); err != nil {
			return 0, err
		}
		if _, err := pair[i].block(4 * warmTenants); err != nil { // verifies each JWT, and gets leases
			return 0, err
		}
		pair[i].took = nil
	}
	var ratios []float64
	for round := range rounds {
		var times [2]float64
		for turn := range pair {
			i := (round + turn) % 2
			if times[i], err = pair[i].block(warmBlock); err != nil {
				return 0, err
			}
		}
		ratios = append(ratios, times[0]/times[1])
	}
	if err := errors.Join(pair[0].stop(), pair[1].stop()); err != nil { // gives back all leases
		return 0, err
	}
	spent, err := d.countSpentUnits("wide", warmTenants)
	if err != nil {
		return 0, err
	}
	if spent != int64(pair[0].calls) {
		return 0, fmt.Errorf("%s: Redis has counted %d units of %d calls that were admitted", limiting.name, spent,
			pair[0].calls)
	}
	slices.Sort(ratios)
	n := len(ratios)
	ratio = median(pair[0].took) / median(pair[1].took)
	r.note("%s: %.2f x, %.0f µs against %.0f µs for a call, middle half of the rounds %.2f to %.2f",
		how, ratio, median(pair[0].took), median(pair[1].took), ratios[n/4], ratios[n-1-n/4])
	return ratio, nil
}
