// Package ledgertest is the contract that every [ledger.Ledger] must keep.
package ledgertest

import (
	"errors"
	"fmt"
	"math"
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
	t.Run("agrees with package ledger's own entry", c.asCore)
	t.Run("concurrent claims lease exactly the limit", c.atOnce)
	t.Run("an empty ledger leases no unit that may have been leased before", c.empty)
	t.Run("a change of the limit", c.changes)
	t.Run("several planned changes", c.planned)
	t.Run("a ledger that was lost takes over what the instances know", c.lost)
	t.Run("a stated limit of no whole number of units", c.statedParts)
	t.Run("units that are given back in a claim are not held", c.returned)
	t.Run("units that are given back too late change nothing", c.late)
	t.Run("balances make shares equal", c.balances)
	t.Run("a pause reaches all", c.pauses)
	t.Run("a stated limit holds for all", c.statedForAll)
	t.Run("invalid claims and limits are refused", c.refuses)
	t.Run("keys do not share entries", c.keys)
}

// asCore runs random scripts on the ledger and on an entry of package ledger, and compares their answers. It also
// counts the leased units itself.
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
			if random.IntN(20) == 0 {
				to, from := 1+random.Int64N(2*units), window-1+random.Int64N(12)
				got, want := h.SetLimit(t.Context(), "key", to, from), model.SetLimit(to, from)
				if !sameRefusal(got, want) {
					t.Fatalf("seed %d, step %d: SetLimit = %v, want %v", seed, step, got, want)
				}
				continue
			}
			claim := ledger.Claim{Window: window + random.Int64N(3) - 1, Limit: units,
				Stage: ledger.Stage(random.IntN(4)),
				Need:  random.Int64N(units + 1), Told: random.Int64N(units + 1), Want: random.Int64N(2*units + 1),
				Unit: 1 + random.Int64N(1+units/8), Owed: random.Int64N(1<<random.IntN(30)) - 1<<random.IntN(30),
				Contends: random.IntN(2) == 0, Pause: max(random.Int64N(1000)-900, 0) * int64(step)}
			teach(&claim, random)
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
				t.Fatalf("seed %d, step %d: the claim %+v is granted %+v, want %+v", seed, step, claim, got, want)
			}
			if old, ok := limits[claim.Window]; ok && old != got.Limit && held[claim.Window] > 0 {
				t.Fatalf("seed %d: the limit of window %d changed from %d to %d while units were leased", seed,
					claim.Window, old, got.Limit)
			}
			limits[claim.Window] = got.Limit
			held[claim.Window] += got.Units - claim.Return
			most := got.Limit
			if got.Stated > 0 {
				most = max(min(most, ledger.UnitsOf(got.Stated, claim.Window)), claim.Unit)
			}
			if got.Units > 0 &&
				(held[claim.Window] > min(most, got.Limit) || got.Units > claim.Want) {
				t.Fatalf("seed %d, step %d: %d units of window %d are leased, want at most %d of the limit of %d, and "+
					"the units that were asked for", seed, step, held[claim.Window], claim.Window, most, got.Limit)
			}
		}
	}
}

// sameRefusal reports whether SetLimit has refused a change for the same reason as the entry, or neither has.
func sameRefusal(got, want error) bool {
	if got == nil || want == nil || errors.Is(got, want) {
		return errors.Is(got, want)
	}
	return errors.Is(got, ledger.ErrTooSoon) == errors.Is(want, ledger.ErrTooSoon) &&
		(!errors.Is(got, ledger.ErrPlanned) || got.Error() == want.Error())
}

// teach makes some claims tell what the provider said.
func teach(c *ledger.Claim, random *rand.Rand) {
	if random.IntN(3) == 0 {
		return
	}
	if random.IntN(20) == 0 {
		c.Stated = 1 + random.Int64N(2*c.Limit*ledger.StatedOne)
	}
	if random.IntN(3) == 0 {
		c.Known.Changed = ledger.Change{Units: random.Int64N(2 * c.Limit), From: c.Window - 3 + random.Int64N(8)}
		c.Known.Stated = random.Int64N(c.Limit * ledger.StatedOne)
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
				t.Errorf("stage %d: the window %d after the first claim leases %d units, want 1 only from the first "+
					"window on that cannot have been leased before", tt.stage, window, got.Units)
			}
		}
	}
}

func (c Config) changes(t *testing.T) {
	l := c.begun(t, 100)
	all := ledger.Claim{Window: base, Limit: 100, Stage: ledger.Anything, Want: 1000, Unit: 1}
	if got := claim(t, l, all); got.Units != 100 {
		t.Fatalf("%d units of a limit of 100 are leased, want all", got.Units)
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
		t.Errorf("before the change, the answer is %+v, want limits of 100 and 50", got)
	}
	all.Window = base + 1
	if got := claim(t, l, all); got.Units != 50 || got.Limit != 50 {
		t.Errorf("after the change, the answer is %+v, want 50 units", got)
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

// planned plans several changes. Each holds until the window of the next one, and none is forgotten.
func (c Config) planned(t *testing.T) {
	l := c.begun(t, 100)
	set := func(units, window int64, want error) {
		t.Helper()
		if err := c.peer(t, l).SetLimit(t.Context(), "key", units, base+window); !errors.Is(err, want) {
			t.Errorf("%d units from window %d on: %v, want %v", units, window, err, want)
		}
	}
	set(50, 1, nil)
	set(80, 4, nil)
	set(90, 6, nil)
	set(70, 9, ledger.ErrPlanned)
	set(60, 5, nil) // in place of the 90
	all := ledger.Claim{Limit: 100, Stage: ledger.Anything, Want: 1000, Unit: 1}
	leases := func(window, want int64) {
		t.Helper()
		all.Window = base + window
		got := claim(t, l, all)
		if got.Units != want {
			t.Errorf("window %d: %d units are leased, want %d", window, got.Units, want)
		}
		if window > 0 && got.Changed.Units == 0 {
			t.Errorf("window %d: the lease %+v tells of no change", window, got)
		}
	}
	leases(0, 100)
	leases(1, 50)
	leases(2, 50)
	set(70, 9, nil) // the 50 hold, so there is room
	for _, of := range [][2]int64{{3, 50}, {4, 80}, {5, 60}, {6, 60}, {8, 60}, {9, 70}, {20, 70}} {
		leases(of[0], of[1])
	}
}

// lost lets instances claim on a new ledger that know of a limit and a stated limit from a ledger that
// was lost. The lowest of what they know holds for an instance that knows nothing, too.
func (c Config) lost(t *testing.T) {
	for _, tt := range []struct {
		name  string
		known []ledger.Known
		want  map[int64]int64 // units by window
	}{
		{"a lowered limit", []ledger.Known{{Changed: ledger.Change{Units: 50, From: base - 9}}},
			map[int64]int64{2: 50, 3: 50, 9: 50}},
		{"a raised limit", []ledger.Known{{Changed: ledger.Change{Units: 150, From: base - 9}}},
			map[int64]int64{2: 150, 9: 150}},
		{"a limit that is planned", []ledger.Known{{Changed: ledger.Change{Units: 50, From: base + 4}},
			{Changed: ledger.Change{Units: 70, From: base - 9}}}, map[int64]int64{2: 70, 3: 70, 4: 50, 9: 50}},
		{"an instance that has not heard of the latest change", []ledger.Known{
			{Changed: ledger.Change{Units: 50, From: base - 3}}, {Changed: ledger.Change{Units: 100, From: base - 9}}},
			map[int64]int64{2: 50, 9: 50}},
		{"the same in the other order", []ledger.Known{
			{Changed: ledger.Change{Units: 100, From: base - 9}}, {Changed: ledger.Change{Units: 50, From: base - 3}}},
			map[int64]int64{2: 50, 9: 50}},
		{"a stated limit", []ledger.Known{{Stated: 30 * ledger.StatedOne}, {Stated: 35 * ledger.StatedOne}},
			map[int64]int64{2: 30, 9: 30}},
	} {
		l := c.New(t)
		claim(t, l, ledger.Claim{Window: base, Limit: 100, Unit: 1}) // it knows nothing
		for _, known := range tt.known {
			of := ledger.Claim{Window: base + 1, Limit: 100, Want: 1, Unit: 1, Known: known}
			if got := claim(t, c.peer(t, l), of); got.Units != 0 {
				t.Errorf("%s: %d units are leased at once", tt.name, got.Units)
			}
		}
		for window := int64(2); window < 10; window++ {
			want, ok := tt.want[window]
			all := ledger.Claim{Window: base + window, Limit: 100, Stage: ledger.Anything, Want: 1000, Unit: 1,
				Known: ledger.Known{Changed: ledger.Change{Units: 999, From: base}}} // too late to be believed
			if got := claim(t, l, all); ok && got.Units != want {
				t.Errorf("%s: window %d leases %d units, want %d: %+v", tt.name, window, got.Units, want, got)
			}
		}
	}
}

// statedParts states a limit of 5/3 units per window, and one of less than a unit.
func (c Config) statedParts(t *testing.T) {
	for _, tt := range []struct{ stated, windows, want int64 }{
		{5 * ledger.StatedOne / 3, 30, 50}, {ledger.StatedOne / 4, 32, 8}, {3*ledger.StatedOne + 1, 8, 24},
		{(1 << 30) * ledger.StatedOne, 4, 4 * 100},
	} {
		l := c.begun(t, 100)
		sum := int64(0)
		for window := range tt.windows {
			of := ledger.Claim{Window: base + window, Limit: 100, Stage: ledger.Anything, Want: 1000, Unit: 1,
				Stated: tt.stated}
			sum += claim(t, l, of).Units
		}
		if sum < tt.want-1 || sum > tt.want+1 {
			t.Errorf("a stated limit of %d/%d units: %d units in %d windows, want %d", tt.stated, ledger.StatedOne, sum,
				tt.windows, tt.want)
		}
	}
}

// returned gives units back in a claim that asks for others: the instance then holds only the rest.
func (c Config) returned(t *testing.T) {
	for name, tt := range map[string]struct {
		claim ledger.Claim // by an instance that holds 4 units of 10
		held  int64        // leased to others
		want  int64
	}{
		"its part of the limit is 5 units, and it keeps 1": {ledger.Claim{Stage: ledger.Share, Told: 10, Want: 10,
			Return: 3, Unit: 1}, 2, 4},
		"others hold 3, so a request above the stated limit has no window of its own": {ledger.Claim{
			Stage: ledger.Anything, Want: 10, Return: 3, Unit: 8, Stated: 6 * ledger.StatedOne}, 3, 2},
		"nobody else holds any, so that request has": {ledger.Claim{
			Stage: ledger.Anything, Want: 10, Return: 3, Unit: 8, Stated: 6 * ledger.StatedOne}, 0, 7},
	} {
		l := c.begun(t, 10)
		for _, first := range []ledger.Claim{{Want: 4, Need: 10}, {Want: tt.held, Need: 10}} {
			first.Window, first.Limit, first.Stage, first.Unit = base, 10, ledger.Anything, 1
			claim(t, l, first)
		}
		tt.claim.Window, tt.claim.Limit, tt.claim.Held = base, 10, 4
		if got := claim(t, l, tt.claim); got.Units != tt.want {
			t.Errorf("%s: %d units are leased, want %d", name, got.Units, tt.want)
		}
	}
}

// late gives back units of a window that the ledger has forgotten, because it has only room for later windows.
func (c Config) late(t *testing.T) {
	for forgotten := int64(4); forgotten < 9; forgotten++ {
		l := c.begun(t, 10)
		all := ledger.Claim{Window: base, Limit: 10, Stage: ledger.Anything, Want: 10, Unit: 1}
		claim(t, l, all)
		all.Window = base + forgotten
		if got := claim(t, l, all); got.Units != 10 {
			t.Fatalf("a later window leases %d units of 10, want all", got.Units)
		}
		for range 2 {
			old := ledger.Claim{Window: base, Limit: 10, Stage: ledger.Anything, Held: 10, Want: 10, Return: 10,
				Unit: 1}
			if forgotten%4 == 0 {
				if got := claim(t, l, old); got.Units != 0 {
					t.Errorf("%d windows later, %d units of a forgotten window were leased, want none", forgotten,
						got.Units)
				}
			}
			if got := claim(t, l, all); got.Units != 0 {
				t.Errorf("%d units of a used-up window were leased after units of another one, %d windows before, "+
					"were given back; want none", got.Units, forgotten)
			}
		}
	}
}

// pauses tells pauses of several instances, of which the latest counts.
func (c Config) pauses(t *testing.T) {
	l := c.New(t)
	for _, tt := range []struct{ window, tell, want int64 }{
		{0, 0, 0}, {0, 5_000, 5_000}, {0, 0, 5_000}, {1, 4_000, 5_000}, {1, ledger.MaxPause, ledger.MaxPause},
		{9, 7_000, ledger.MaxPause},
	} {
		of := ledger.Claim{Window: base + tt.window, Limit: 10, Unit: 1, Pause: tt.tell}
		if got := claim(t, l, of); got.Pause != tt.want {
			t.Errorf("window %d, after a pause of %d: %d, want %d", tt.window, tt.tell, got.Pause, tt.want)
		}
	}
}

// statedForAll checks that a limit that one instance has heard of bounds all, until another is stated or the limit is
// changed, and that a request that costs more gets a window of its own.
func (c Config) statedForAll(t *testing.T) {
	l := c.begun(t, 100)
	peer := c.peer(t, l)
	all := func(window int64) ledger.Claim {
		return ledger.Claim{Window: base + window, Limit: 100, Stage: ledger.Anything, Want: 100, Unit: 1}
	}
	leased := func(of ledger.Claim, want int64) (got ledger.Lease) {
		t.Helper()
		if got = claim(t, peer, of); got.Units != want {
			t.Errorf("window %d: %d units are leased, want %d: %+v", of.Window-base, got.Units, want, got)
		}
		return got
	}
	first := all(0)
	first.Stated = 15 * ledger.StatedOne
	if got := claim(t, l, first); got.Units != 15 || got.Stated != first.Stated || got.Left != 0 {
		t.Errorf("a claim that states a limit leases %+v, want 15 units and nothing left", got)
	}
	large := all(1) // a request that costs more than the stated limit
	large.Unit = 40
	leased(all(1), 15)
	leased(large, 0)
	large.Window, large.Want = large.Window+1, 39
	leased(large, 15)
	large.Window, large.Want = large.Window+1, 90
	leased(large, 40)

	more := all(4)
	more.Stated = 5 * ledger.StatedOne
	leased(more, 5)
	leased(all(5), 5)
	more = all(6)
	more.Stated = ledger.MaxUnits * ledger.StatedOne
	leased(more, 100)
	more = all(7)
	more.Stated = 15 * ledger.StatedOne
	leased(more, 15)
	if err := l.SetLimit(t.Context(), "key", 60, base+9); err != nil {
		t.Fatal(err)
	}
	if got := leased(all(8), 100); got.Stated != 0 {
		t.Errorf("after a change of the limit, %+v, want nothing stated", got)
	}
	leased(all(9), 60)
}

// balances checks how the balance of an instance corrects a share by need. Two instances need twice the limit.
func (c Config) balances(t *testing.T) {
	const one = ledger.OwedOne
	for _, tt := range []struct {
		limit, unit, owed int64
		stage             ledger.Stage
		want              int64
	}{
		{100, 1, 0, ledger.Prefetch, 49}, // half of the limit without the reserve of 2 %
		{100, 1, 5*one + one/2, ledger.Prefetch, 54},
		{100, 1, ledger.MaxOwed, ledger.Prefetch, 49 + 6 + 1}, // an eighth more, and one request
		{100, 1, -3 * one, ledger.Prefetch, 46},
		{100, 1, -ledger.MaxOwed, ledger.Prefetch, 43},   // an eighth less
		{100, 10, -one - one/2, ledger.Prefetch, 50},     // 47.5, rounded to whole requests
		{100, 10, -one - one/2 - 1, ledger.Prefetch, 40}, // less than 47.5
		{100, 1, one/2 - 1, ledger.Share, 50},            // half of the limit, rounded to the nearest
		{100, 1, one / 2, ledger.Share, 51},
		{100, 10, -6 * one, ledger.Share, 40},
		{1, 1, one/4 - 1, ledger.Prefetch, 0}, // half a unit, and a little less than a quarter
		{1, 1, one / 4, ledger.Prefetch, 1},
		{1, 1, -1, ledger.Share, 0},
		{1, 1, 0, ledger.Share, 1},
	} {
		l := c.begun(t, tt.limit)
		of := func(window int64, stage ledger.Stage) ledger.Claim {
			return ledger.Claim{Window: window, Limit: tt.limit, Stage: stage, Need: tt.limit, Unit: 1}
		}
		over, before := of(base, ledger.Prefetch), of(base+1, ledger.Prefetch)
		claim(t, l, over) // by one that does not contend
		over.Contends = true
		for range 2 {
			claim(t, l, over)
			claim(t, l, before)
		}
		over.Stage, over.Need, over.Want = ledger.Anything, 0, tt.limit
		claim(t, l, over)

		if got := claim(t, l, of(base+2, ledger.Prefetch)); got.Equal != tt.limit*one/2 {
			t.Errorf("limit %d: the equal share of two that contend is %d/%d", tt.limit, got.Equal, one)
		}
		test := of(base+2, tt.stage)
		test.Unit, test.Owed, test.Want = tt.unit, tt.owed, tt.limit
		if got := claim(t, l, test); got.Units != tt.want || (got.Equal != 0) != (tt.stage == ledger.Prefetch) {
			t.Errorf("limit %d, requests of %d, owed %d/%d, stage %d: %+v, want %d units", tt.limit, tt.unit, tt.owed,
				one, tt.stage, got, tt.want)
		}
		enough := of(base+5, tt.stage)
		enough.Need = tt.limit / 2
		enough.Want, enough.Owed = enough.Need, -ledger.MaxOwed
		if got := claim(t, l, enough); got.Units != enough.Need || got.Equal != 0 {
			t.Errorf("a limit of %d that meets all needs leases %+v, want %d units", tt.limit, got, enough.Need)
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
		func(c *ledger.Claim) { c.Owed = ledger.MaxOwed + 1 },
		func(c *ledger.Claim) { c.Pause = -1 },
		func(c *ledger.Claim) { c.Stated = -1 },
		func(c *ledger.Claim) { c.Stated = 1<<40 + 1 },
		func(c *ledger.Claim) { c.Known.Stated = 1 << 61 },
		func(c *ledger.Claim) { c.Known.Changed.Units = -1 },
		func(c *ledger.Claim) { c.Known.Changed.From = 1 << 60 },
		func(c *ledger.Claim) { c.Known.Changed.From = math.MinInt64 },
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
