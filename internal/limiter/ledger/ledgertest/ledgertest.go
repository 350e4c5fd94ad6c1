// Package ledgertest is the contract that every [ledger.Ledger] must keep.
package ledgertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Config plugs a ledger into the suite.
type Config struct {
	// New returns an empty ledger. It may skip or fail tb, and register clean-ups there.
	New func(tb testing.TB) ledger.Ledger

	// Peer returns another handle on the same entries, as a second process would have. If nil, the handle is used
	// again.
	Peer func(tb testing.TB, l ledger.Ledger) ledger.Ledger

	// Scripts is how many random scripts are run; 0 means 30.
	Scripts int
}

// base is the first window that the suite uses.
const base = 1_800_000_000

// Run runs the whole contract.
func Run(t *testing.T, c Config) {
	if c.Scripts == 0 {
		c.Scripts = 30
	}
	t.Run("does what the core says", c.asCore)
	t.Run("many at once lease exactly the limit", c.atOnce)
	t.Run("an empty ledger leases nothing that may have been leased", c.empty)
	t.Run("a change of the limit", c.changes)
	t.Run("what comes too late changes nothing", c.late)
	t.Run("refuses", c.refuses)
	t.Run("keys do not share entries", c.keys)
}

// asCore compares random scripts with an entry of the core, and counts what is leased by itself.
func (c Config) asCore(t *testing.T) {
	for seed := range soak.Times(uint64(c.Scripts)) {
		random := rand.New(rand.NewPCG(seed, 17))
		l := c.New(t)
		handles := []ledger.Ledger{l, c.peer(t, l)}
		var model ledger.Entry
		held := map[int64]int64{} // by window
		limits := map[int64]int64{}
		window := int64(base)
		units := 1 + random.Int64N(1<<random.IntN(20))
		for step := range 120 {
			if random.IntN(12) == 0 {
				window += 1 + random.Int64N(3)/2
			}
			h := handles[random.IntN(2)]
			if random.IntN(40) == 0 {
				to, from := 1+random.Int64N(2*units), window-1+random.Int64N(5)
				got, want := h.SetLimit(t.Context(), "key", to, from), model.SetLimit(to, from)
				if !errors.Is(got, want) && (got == nil || want == nil ||
					errors.Is(got, ledger.ErrTooSoon) != errors.Is(want, ledger.ErrTooSoon)) {
					t.Fatalf("seed %d, step %d: SetLimit = %v, want %v", seed, step, got, want)
				}
				continue
			}
			claim := ledger.Claim{Window: window + random.Int64N(3) - 1, Limit: units,
				Stage: ledger.Stage(random.IntN(4)),
				Need:  random.Int64N(units + 1), Told: random.Int64N(units + 1), Want: random.Int64N(2*units + 1),
				Unit: 1 + random.Int64N(1+units/8), Round: random.Int64N(ledger.RoundOne)}
			claim.Held = held[claim.Window]
			if random.IntN(4) == 0 {
				claim.Return = random.Int64N(claim.Held + 1)
			}
			checked := claim
			want := model.Claim(&checked)
			got, err := h.Claim(t.Context(), "key", claim)
			if err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if got != want {
				t.Fatalf("seed %d, step %d: %+v got %+v, want %+v", seed, step, claim, got, want)
			}
			if old, ok := limits[claim.Window]; ok && old != got.Limit && held[claim.Window] > 0 {
				t.Fatalf("seed %d: the limit of window %d changed from %d to %d while units were leased", seed,
					claim.Window, old, got.Limit)
			}
			limits[claim.Window] = got.Limit
			if held[claim.Window] += got.Units - claim.Return; held[claim.Window] > got.Limit ||
				got.Units > claim.Want {
				t.Fatalf("seed %d, step %d: %d units of window %d are leased, and the limit is %d", seed, step,
					held[claim.Window],
					claim.Window, got.Limit)
			}
		}
	}
}

func (c Config) peer(t *testing.T, l ledger.Ledger) ledger.Ledger {
	if c.Peer == nil {
		return l
	}
	return c.Peer(t, l)
}

// begun returns a ledger whose key has had its first claim, so that it leases units of window base.
func (c Config) begun(t *testing.T, limit int64) ledger.Ledger {
	l := c.New(t)
	claim(t, l, ledger.Claim{Window: base - 2, Limit: limit, Unit: 1})
	return l
}

func claim(t *testing.T, l ledger.Ledger, c ledger.Claim) ledger.Lease {
	t.Helper()
	lease, err := l.Claim(t.Context(), "key", c)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func (c Config) atOnce(t *testing.T) {
	const limit = 1000
	l := c.begun(t, limit)
	var leased atomic.Int64
	var all sync.WaitGroup
	for worker := range 8 {
		h := l
		if worker%2 == 1 {
			h = c.peer(t, l)
		}
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 1))
			held := int64(0)
			for i := 0; i < 200 && leased.Load() < limit; i++ {
				want := 1 + random.Int64N(30)
				back := int64(0)
				if i%5 == 4 && held > 0 {
					back = 1
				}
				got, err := h.Claim(t.Context(), "key", ledger.Claim{Window: base, Limit: limit,
					Stage: ledger.Anything, Held: held,
					Want: want, Return: back, Unit: 1})
				if err != nil {
					t.Error(err)
					return
				}
				held += got.Units - back
				leased.Add(got.Units - back)
			}
		})
	}
	all.Wait()
	if n := leased.Load() + claim(t, l, ledger.Claim{Window: base, Limit: limit, Stage: ledger.Anything, Want: limit,
		Unit: 1}).Units; n != limit {
		t.Errorf("%d units are leased, want %d", n, limit)
	}
}

func (c Config) empty(t *testing.T) {
	for _, tt := range []struct {
		stage ledger.Stage
		first int64 // window of which units are leased, after that of the first claim
	}{{ledger.Prefetch, 2}, {ledger.Share, 3}, {ledger.Anything, 3}} {
		l := c.New(t)
		for window := range int64(5) {
			got := claim(t, l, ledger.Claim{Window: base + window, Limit: 10, Stage: tt.stage, Need: 1, Want: 1,
				Unit: 1})
			if leased := got.Units == 1; leased != (window >= tt.first) {
				t.Errorf("stage %d: window %d after the first claim leases %d", tt.stage, window, got.Units)
			}
		}
	}
}

func (c Config) changes(t *testing.T) {
	l := c.begun(t, 100)
	all := ledger.Claim{Window: base, Limit: 100, Stage: ledger.Anything, Want: 1000, Unit: 1}
	if got := claim(t, l, all); got.Units != 100 {
		t.Fatalf("leased %d of 100", got.Units)
	}
	for _, from := range []int64{base - 5, base} {
		if err := l.SetLimit(t.Context(), "key", 50, from); !errors.Is(err, ledger.ErrTooSoon) {
			t.Errorf("a change from window %d on: %v, want ErrTooSoon", from-base, err)
		}
	}
	if err := l.SetLimit(t.Context(), "key", 50, base+1); err != nil {
		t.Fatal(err)
	}
	if got := claim(t, l, ledger.Claim{Window: base, Limit: 100, Unit: 1}); got.Limit != 100 || got.NextLimit != 50 {
		t.Errorf("before the change: %+v, want limits of 100 and 50", got)
	}
	all.Window = base + 1
	if got := claim(t, l, all); got.Units != 50 || got.Limit != 50 {
		t.Errorf("after the change: %+v, want 50 units", got)
	}
	if err := l.SetLimit(t.Context(), "key", 70, base+3); err != nil {
		t.Fatal(err)
	}
	for window, want := range map[int64]int64{2: 50, 3: 70} {
		all.Window = base + window
		if got := claim(t, l, all); got.Units != want {
			t.Errorf("window %d: %+v, want %d units", window, got, want)
		}
	}
}

// late gives back units of a window that the ledger has forgotten, because later ones took its place.
func (c Config) late(t *testing.T) {
	for forgotten := int64(4); forgotten < 9; forgotten++ {
		l := c.begun(t, 10)
		all := ledger.Claim{Window: base, Limit: 10, Stage: ledger.Anything, Want: 10, Unit: 1}
		claim(t, l, all)
		all.Window = base + forgotten
		if got := claim(t, l, all); got.Units != 10 {
			t.Fatalf("a later window leases %d of 10", got.Units)
		}
		for range 2 {
			old := ledger.Claim{Window: base, Limit: 10, Stage: ledger.Anything, Held: 10, Want: 10, Return: 10,
				Unit: 1}
			if forgotten%4 == 0 {
				if got := claim(t, l, old); got.Units != 0 {
					t.Errorf("%d windows later, %d units of a forgotten window were leased", forgotten, got.Units)
				}
			}
			if got := claim(t, l, all); got.Units != 0 {
				t.Errorf("%d units of a window that was leased came back from another one, %d windows before",
					got.Units, forgotten)
			}
		}
	}
}

func (c Config) refuses(t *testing.T) {
	l := c.begun(t, 10)
	good := ledger.Claim{Window: base, Limit: 10, Want: 1, Unit: 1}
	for i, bad := range []func(*ledger.Claim){
		func(c *ledger.Claim) { c.Limit = 0 },
		func(c *ledger.Claim) { c.Limit = ledger.MaxUnits + 1 },
		func(c *ledger.Claim) { c.Want = -1 },
		func(c *ledger.Claim) { c.Need = ledger.MaxUnits + 1 },
		func(c *ledger.Claim) { c.Return = 1 },
		func(c *ledger.Claim) { c.Stage = ledger.Anything + 1 },
		func(c *ledger.Claim) { c.Unit = 0 },
		func(c *ledger.Claim) { c.Round = ledger.RoundOne },
		func(c *ledger.Claim) { c.Window = 1 << 60 },
	} {
		bent := good
		bad(&bent)
		if _, err := l.Claim(t.Context(), "key", bent); !errors.Is(err, ledger.ErrInvalid) {
			t.Errorf("bad claim %d: %v, want ErrInvalid", i, err)
		}
	}
	for _, units := range []int64{0, -1, ledger.MaxUnits + 1} {
		if err := l.SetLimit(t.Context(), "key", units, base+9); !errors.Is(err, ledger.ErrInvalid) {
			t.Errorf("a limit of %d: %v, want ErrInvalid", units, err)
		}
	}
}

func (c Config) keys(t *testing.T) {
	l := c.New(t)
	keys := []string{"", "a", "b", "a\x00", "1:a,", "a}", "{a}", "é", "\xff", fmt.Sprintf("%0200d", 1)}
	for i, key := range keys {
		if err := l.SetLimit(t.Context(), key, int64(i+1), base); err != nil {
			t.Fatalf("key %q: %v", key, err)
		}
	}
	for i, key := range keys {
		got, err := l.Claim(t.Context(), key, ledger.Claim{Window: base, Limit: 100, Unit: 1})
		if err != nil || got.Limit != int64(i+1) {
			t.Errorf("key %q: %+v, %v; want a limit of %d", key, got, err, i+1)
		}
	}
}
