package bench

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sethvargo/go-limiter/memorystore"
)

// A benchmark that hits one key, or only counts denials, measures something else than its name says. (A well-known one
// did for years.) Each of these is a load that went wrong, and must be an error instead of a number.
func TestVerifyCatchesABrokenLoad(t *testing.T) {
	good := func() *contender {
		c, err := goLimiter(memoryKeys, plenty)
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
			c.ask = func() func(int) (bool, error) {
				return func(int) (bool, error) {
					_, _, _, admitted, err := store.Take(context.Background(), "")
					return admitted, err
				}
			}
		}, "the load was not even"},
		{"half of the keys", func(c *contender) {
			ask := c.ask()
			c.ask = func() func(int) (bool, error) { return func(key int) (bool, error) { return ask(key &^ 1) } }
		}, "the load was not even"},
		{"denials counted as admitted", func(c *contender) {
			ask := c.ask()
			c.ask = func() func(int) (bool, error) {
				return func(key int) (bool, error) {
					admitted, err := ask(key)
					return admitted && key > 0, err
				}
			}
		}, "admitted"},
		{"an error on the way", func(c *contender) {
			c.ask = func() func(int) (bool, error) {
				return func(int) (bool, error) { return false, errors.New("store is closed") }
			}
		}, "store is closed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := good()
			tt.broken(c)
			_, err := c.trial(c.unit())
			if err == nil {
				err = c.verify(plenty)
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
		"sluice 1":   func(n int) (*contender, error) { return sluice(memoryKeys, int64(n), slow[:1]...) },
		"sluice 3":   func(n int) (*contender, error) { return sluice(memoryKeys, int64(n), slow[:]...) },
		"go-limiter": func(n int) (*contender, error) { return goLimiter(memoryKeys, uint64(n)) },
	}
	for name, maker := range makers {
		t.Run(name, func(t *testing.T) {
			const units = 3
			c, err := maker(units)
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			for range 2 * units { // the last trials find the units used up
				if _, err := c.trial(c.unit()); err != nil {
					t.Fatal(err)
				}
				if err := c.verify(units); err != nil {
					t.Fatal(err)
				}
			}
			if want := units * c.keys; c.admitted != want {
				t.Errorf("admitted %d of %d, want %d", c.admitted, c.total, want)
			}
		})
	}
}

// A drift of the machine must weigh on both sides: they take turns, and the first is not always the same.
func TestCompareTakesTurns(t *testing.T) {
	var calls []string
	fake := func(name string) *contender {
		spent := 0
		c := &contender{name: name, keys: 1, workers: 1, close: func() {}}
		c.ask = func() func(int) (bool, error) {
			calls = append(calls, name)
			return func(int) (bool, error) {
				spent++
				return true, nil
			}
		}
		c.spent = func(int) (int, int, error) { return spent, spent, nil }
		return c
	}
	if _, err := compare(fake("A"), fake("B"), true); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(calls, ""), "AB"+"BA"+"AB"+"BA"+"AB"; !strings.HasSuffix(got, want) {
		t.Errorf("order of trials %s, want %s at its end", got, want)
	}
}

// The trials that other programs made slow must not decide.
func TestCalm(t *testing.T) {
	var trials []timing
	for i := range 20 {
		trials = append(trials, timing{wall: float64(100 - i), processor: float64(2 * (100 - i))})
	}
	if got, want := calm(trials), (timing{83, 166}); got != want {
		t.Errorf("calm = %v, want %v: the third of 20", got, want)
	}
	in := []float64{9, 1, 5}
	if got := median(in); got != 5 || in[0] != 9 {
		t.Errorf("median(9, 1, 5) = %v, and leaves %v; want 5 and the argument unchanged", got, in)
	}
}
