package bench

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sethvargo/go-limiter/memorystore"
)

// A benchmark that hits one key, or only counts denials, measures something else than its name says. (A well-known one did
// for years.) Each of these is a load that went wrong, and must be an error instead of a number.
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
