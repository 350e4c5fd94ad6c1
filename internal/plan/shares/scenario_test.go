package shares

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// newCalmWorld returns a world with two equal cells, a network that loses nothing, and one limit of 100 units per
// minute.
func newCalmWorld(t *testing.T) (*world, *subject) {
	w := newWorld(t, 3)
	w.loss, w.tenants = 0, []string{"acme"}
	s := w.add(limit.Limit{ID: "limit0", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Minute,
		Threshold: 100}}})
	w.join("a", 1, false)
	w.join("b", 1, false)
	w.run(60-(worldStart/second)%60+6, nil) // 6 s into a window
	return w, s
}

func (s *subject) in(start int64) (sum int64) {
	b := s.books["acme"]
	for at, units := range b.entries {
		if b.window(at) == b.window(start) {
			sum += units
		}
	}
	return sum
}

func (w *world) nextWindow(s *subject) {
	w.run((s.books["acme"].window(w.now)+60*second-w.now)/second+6, nil)
}

// Guarantees that a cell that joins in the middle of a window, when the window's units are used up, grants nothing in
// it and its share in the next window, and that the shares sum to the limit again.
func TestJoinInMidWindow(t *testing.T) {
	w, s := newCalmWorld(t)
	w.takeAnywhere(s, "acme", costOfOne)
	start := w.now
	w.join("c", 2, false)
	for range 4 {
		w.run(10, nil)
		w.takeAnywhere(s, "acme", costOfOne)
	}
	if got := s.in(start); got != 100 {
		t.Errorf("%d are granted in the window in which a cell joins, want 100", got)
	}
	w.nextWindow(s)
	before := s.books["acme"].total()
	w.takeFrom(w.cells["c"], w.cells["c"].envs[0], s, "acme", costOfOne)
	if got := s.books["acme"].total() - before; got != 50 {
		t.Errorf("the cell that joined grants %d, want 50", got)
	}
	w.takeAnywhere(s, "acme", costOfOne)
	if got := s.in(w.now); got != 100 {
		t.Errorf("all cells grant %d, want 100", got)
	}
}

// Guarantees that a drained cell grants nothing in the end, and that the other cells grant everything.
func TestDrainToZero(t *testing.T) {
	w, s := newCalmWorld(t)
	w.ask(Request{Kind: Drain, Cell: "a"})
	w.run(30, nil)
	w.nextWindow(s)
	w.takeFrom(w.cells["a"], w.cells["a"].envs[0], s, "acme", costOfOne)
	if got := s.in(w.now); got != 0 {
		t.Errorf("the drained cell grants %d units, want none", got)
	}
	w.takeAnywhere(s, "acme", costOfOne)
	if got := s.in(w.now); got != 100 {
		t.Errorf("all cells grant %d, want 100", got)
	}
}

// Guarantees that a tenant that is pinned to another cell gets nothing more in the open window, and the whole limit in
// the next.
func TestPinnedToAnotherCell(t *testing.T) {
	w, s := newCalmWorld(t)
	w.takeFrom(w.cells["a"], w.cells["a"].envs[0], s, "acme", costOfOne) // a's half
	start := w.now
	w.ask(Request{Kind: Place, Tenant: "acme", Cells: []string{"b"}})
	w.run(40, nil)
	w.takeAnywhere(s, "acme", costOfOne)
	if got := s.in(start); got != 100 {
		t.Errorf("%d in the window in which the tenant moves, want 100", got)
	}
	w.nextWindow(s)
	w.takeAnywhere(s, "acme", costOfOne)
	if got := s.in(w.now); got != 100 {
		t.Errorf("%d in the window after, want 100", got)
	}
	before := s.books["acme"].total()
	w.nextWindow(s)
	w.takeFrom(w.cells["a"], w.cells["a"].envs[0], s, "acme", costOfOne)
	if got := s.books["acme"].total() - before; got != 0 {
		t.Errorf("the cell that the tenant left grants %d units, want none", got)
	}
}

// Guarantees that shares below a cost do not shut out a tenant: the balancer homes the limit.
func TestSharesSmallerThanACost(t *testing.T) {
	w := newWorld(t, 4)
	w.loss, w.tenants = 0, []string{"acme"}
	s := w.add(limit.Limit{ID: "exports", MaxCost: 7,
		Tiers: []limit.Tier{{Algorithm: limit.SlidingLog, Period: 10 * time.Second, Threshold: 20}}})
	w.join("a", 1, false)
	w.join("b", 1, false)
	w.run(5, nil)
	w.join("c", 1, false) // 7, 7, 6
	w.run(60, nil)
	w.takeAnywhere(s, "acme", func() int64 { return 7 })
	if got := s.books["acme"].total(); got != 20 {
		t.Errorf("%d granted, want 20: two of 7, and what is left", got)
	}
	if words := w.violations(); len(words) > 0 {
		t.Error(words)
	}
}

// Guarantees that nothing is given away while a cell does not learn of changes. If the operator removes the cell and
// it still runs, the bound is the limit and that cell's last share.
func TestCellThatDoesNotHear(t *testing.T) {
	w, s := newCalmWorld(t)
	w.cells["b"].deaf = true
	w.ask(Request{Kind: Weigh, Cell: "a", Weight: 3})
	w.run(600, nil)
	w.nextWindow(s)
	w.takeAnywhere(s, "acme", costOfOne)
	if got := s.in(w.now); got != 100 || w.state.Phase != Shrink {
		t.Errorf("%d granted in phase %s, while a cell does not hear, want 100", got, w.state.Phase)
	}
	w.ask(Request{Kind: Force, Cell: "b"})
	w.run(60, nil)
	w.nextWindow(s)
	w.takeAnywhere(s, "acme", costOfOne)
	if got := s.in(w.now); got != 150 || w.state.Phase != Steady {
		t.Errorf("%d granted in phase %s, by a cell that has everything and one that was removed and runs, want 150",
			got, w.state.Phase)
	}
	w.cells["b"].deaf = false
	w.run(10, nil)
	w.nextWindow(s)
	w.takeAnywhere(s, "acme", costOfOne)
	if got := s.in(w.now); got != 100 {
		t.Errorf("%d granted when it hears again, want 100", got)
	}
}

// Guarantees that an environment that is thawed after a day decides by its cell's present shares, since it polls
// first. If that poll fails, the bound is the limit and what its copy gives its cell beyond the present share.
func TestThaw(t *testing.T) {
	w, s := newCalmWorld(t)
	w.cells["a"].frozen = true
	w.ask(Request{Kind: Weigh, Cell: "b", Weight: 4})
	w.run(60, nil)
	w.now += 24 * 3600 * second
	w.nextWindow(s)
	w.takeAnywhere(s, "acme", costOfOne) // with a failed poll
	if got, most := s.in(w.now), int64(100+50-20); got != most {
		t.Errorf("%d granted with a copy of yesterday, want %d", got, most)
	}
	w.cells["a"].frozen = false
	w.nextWindow(s)
	w.takeAnywhere(s, "acme", costOfOne)
	if got := s.in(w.now); got != 100 {
		t.Errorf("%d granted after a poll, want 100", got)
	}
}

// Guarantees the bound for a change of the limit's number, which cells learn of one after the other: at most the
// larger number, and one unit for each other cell.
func TestNumberChanges(t *testing.T) {
	cells := []Weight{{"a", 6}, {"b", 6}, {"c", 2}}
	paradox := false
	for before := int64(1); before < 60; before++ {
		for after := int64(1); after < 60; after++ {
			sum, old, now := int64(0), splitTotal(before, cells), splitTotal(after, cells)
			for i := range cells {
				sum += max(old[i], now[i])
			}
			if most := max(before, after) + int64(len(cells)) - 1; sum > most {
				t.Errorf("from %d to %d: %d, want at most %d", before, after, sum, most)
			}
			paradox = paradox || sum > max(before, after)
		}
	}
	if !paradox {
		t.Error("the bound could be the larger number")
	}
}
