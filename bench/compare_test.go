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
