package bench

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
)

// A benchmark that hits one key, or only counts denials, measures something else than its name says. (A well-known one
// did for years.) Each of these is a load that went wrong, and must be an error instead of a number.
func TestVerifyCatchesABrokenLoad(t *testing.T) {
	good := func() *contender {
		c, err := goLimiter(plenty)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.close)
		return c
	}
	tests := []struct {
		name   string
		broken func(c *contender)
		want   string // part of the error; none: the load is good
	}{
		{"good", func(*contender) {}, ""},
		{"one key for all", func(c *contender) {
			store, err := memorystore.New(&memorystore.Config{Tokens: plenty})
			if err != nil {
				t.Fatal(err)
			}
			c.spend = func(_, ops int) (admitted int, err error) {
				for range ops {
					if _, _, _, ok, _ := store.Take(context.Background(), ""); ok {
						admitted++
					}
				}
				return admitted, nil
			}
		}, "the load was not even"},
		{"half of the keys", func(c *contender) {
			spend := c.spend
			c.spend = func(first, ops int) (int, error) {
				n, err := spend(first%2, ops/2)
				m, _ := spend(first%2, ops-ops/2)
				return n + m, err
			}
		}, "the load was not even"},
		{"denials counted as admitted", func(c *contender) {
			spend := c.spend
			c.spend = func(first, ops int) (int, error) {
				n, err := spend(first, ops)
				return n - 1, err
			}
		}, "admitted"},
		{"an error on the way", func(c *contender) {
			c.spend = func(int, int) (int, error) { return 0, errors.New("store is closed") }
		}, "store is closed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := good()
			tt.broken(c)
			_, admitted, err := c.trial(c.unit())
			if err == nil {
				err = c.verify(c.unit(), admitted, plenty)
			}
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got %v, want no error", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

// Each contender must do what the others do, or their ratio compares two different things.
func TestContendersDoTheSameWork(t *testing.T) {
	makers := map[string]func(units int) (*contender, error){
		"sluice 1":    func(n int) (*contender, error) { return sluice(int64(n), slow[:1]...) },
		"sluice 3":    func(n int) (*contender, error) { return sluice(int64(n), slow[:]...) },
		"go-limiter":  func(n int) (*contender, error) { return goLimiter(uint64(n)) },
		"x/time/rate": timeRate,
	}
	for name, maker := range makers {
		t.Run(name, func(t *testing.T) {
			const units = 3
			c, err := maker(units)
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			total, admitted := 0, 0
			for range 3 { // the second trial uses the units up
				_, n, err := c.trial(c.unit())
				if err != nil {
					t.Fatal(err)
				}
				total, admitted = total+c.unit(), admitted+n
				if err := c.verify(total, admitted, units); err != nil {
					t.Fatal(err)
				}
			}
			if want := units * c.keys; admitted != want && total >= want {
				t.Errorf("admitted %d of %d, want %d", admitted, total, want)
			}
		})
	}
}

// A drift of the machine must weigh on both sides: they take turns, and the first is not always the same.
func TestCompareTakesTurns(t *testing.T) {
	var calls []string
	fake := func(name string) *contender {
		var spent atomic.Int64
		c := &contender{name: name, keys: 1}
		c.spend = func(_, ops int) (int, error) {
			if spent.Add(int64(ops))%int64(c.unit()) == 0 {
				calls = append(calls, name) // the last worker of a trial
			}
			return ops, nil
		}
		c.spent = func(int) (int, int, error) { return int(spent.Load()), int(spent.Load()), nil }
		return c
	}
	a, b := fake("A"), fake("B")
	if _, err := compare(a, b, load{rounds: 4}, plenty); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(calls, ""), "AAABBB"+"AB"+"BA"+"AB"+"BA"; got != want {
		t.Errorf("order of trials %s, want %s", got, want)
	}
}

func TestMedian(t *testing.T) {
	in := []float64{9, 1, 5}
	if got := median(in); got != 5 || in[0] != 9 {
		t.Errorf("median(9, 1, 5) = %v, and leaves %v; want 5 and the argument as it was", got, in)
	}
}

// Rounds in which the machine was busy must not decide, and if all were busy the reader must learn that.
func TestBusyRoundsAreDropped(t *testing.T) {
	at := func(ratio, disturbance float64) round {
		return round{ours: timing{ratio, ratio}, theirs: timing{1, 1}, disturbance: disturbance}
	}
	calm := []round{at(1, 1), at(1, 1), at(2, 1), at(2, 1), at(2, 1)}
	for name, test := range map[string]struct {
		calm, disturbed []round
		ratio           float64
		rounds, dropped int
		busy            bool
	}{
		"all calm":    {calm, nil, 2, 5, 0, false},
		"enough calm": {calm, []round{at(9, 3), at(9, 3), at(9, 3), at(9, 3), at(9, 3), at(9, 3)}, 2, 5, 6, false},
		"never calm": {nil, []round{at(9, 9), at(3, 1.3), at(3, 1.2), at(9, 8), at(3, 1.4), at(3, 1.5),
			at(3, 1.6)}, 3, 5, 2, true},
		"few calm":       {calm[2:4], []round{at(9, 9), at(2, 1.2), at(2, 1.3), at(2, 1.4)}, 2, 5, 1, true},
		"a short figure": {calm[:3], nil, 1, 3, 0, false},
	} {
		c := summary(test.calm, test.disturbed)
		if c.ratio != test.ratio || c.rounds != test.rounds || c.dropped != test.dropped || c.busy != test.busy {
			t.Errorf("%s: ratio %v of %d rounds, %d dropped, busy %t; want %v of %d, %d, %t", name,
				c.ratio, c.rounds, c.dropped, c.busy, test.ratio, test.rounds, test.dropped, test.busy)
		}
		if said := strings.Contains(c.String(), "busy"); said != (test.dropped > 0) {
			t.Errorf("%s: %q", name, c)
		}
	}
}

// Two goroutines that took turns on one core have measured something else than two at once.
func TestAtOnce(t *testing.T) {
	c := contender{workers: 1}
	if !c.atOnce(timing{wall: 100, processor: 95}) || c.atOnce(timing{wall: 100, processor: 60}) {
		t.Error("one goroutine has a core if it used it for most of the time, and only then")
	}
	if c.workers = 0; runtime.GOMAXPROCS(0) > 1 && c.atOnce(timing{wall: 100, processor: 100}) {
		t.Error("goroutines that used one core in turns are taken to have run at once")
	}
}

// One goroutine that was held up makes the round a disturbed one, and a faster run than any before is the new measure.
func TestCalibration(t *testing.T) {
	var machine calibration
	for i, run := range []struct {
		times []time.Duration
		want  float64
	}{
		{[]time.Duration{10, 10}, 1}, {[]time.Duration{10, 15}, 1.5}, {[]time.Duration{8, 8}, 1},
		{[]time.Duration{10, 12}, 1.5}, {[]time.Duration{8}, 1},
	} {
		if got := machine.compare(run.times); got != run.want {
			t.Errorf("run %d, %v: slowdown %v, want %v", i, run.times, got, run.want)
		}
	}
	if got := machine.slowdown(2); got <= 0 {
		t.Errorf("a run of the loop itself: slowdown %v", got)
	}
}
