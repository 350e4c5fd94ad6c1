package shares

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// duel is a set of cells that grant one token bucket through transitions, without messages: each cell knows each
// document immediately. Their stores delete states as early as they may.
type duel struct {
	limit  *limit.Limit
	doc    Document
	cells  []string
	stores []*forgetfulStore
	spans  [][]Span
	book   *ledger
	now    int64
	ideals []ideal
	words  []string
}

// ideal is a bucket of a cell's exact share, from the time at which the share applies. The cell's real bucket must
// never have admitted more than it.
type ideal struct{ rate, burst, level, at int64 } // level in 10^-6 units

func (i *ideal) refill(now int64) {
	i.level, i.at = min(i.level+(now-i.at)*i.rate, i.burst*second), now
}

func newDuel(t *testing.T, rate, burst int64, weights []int64) *duel {
	t.Helper()
	l, err := limit.New(limit.Limit{ID: "bucket", Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: rate, Burst: burst},
	}})
	if err != nil {
		t.Fatal(err)
	}
	d := &duel{limit: l, now: worldStart, book: newLedger(&l.Tiers[0], "acme")}
	d.doc = Document{Version: Layout, Phase: Steady, SkewMicros: second}
	for i := range weights {
		d.cells = append(d.cells, fmt.Sprint("c", i))
		d.stores = append(d.stores, &forgetfulStore{states: map[string]*kept{}})
	}
	d.change(weights)
	d.doc.Generations[0].From = always
	d.learn()
	for i := range d.cells {
		to := d.part(i)
		d.ideals = append(d.ideals, ideal{to.threshold, to.burst, to.burst * second, d.now})
	}
	return d
}

// part returns the cell's share in the last generation.
func (d *duel) part(cell int) amount {
	v := d.doc.View(d.cells[cell], "acme", nil)
	return v.part(&v.gens[len(v.gens)-1], "pro", &d.limit.Tiers[0])
}

// change publishes a generation that shrinks; a weight of 0 means that the cell does not serve.
func (d *duel) change(weights []int64) {
	g := Generation{Epoch: int64(len(d.doc.Generations)) + 1}
	for i, w := range weights {
		if w > 0 {
			g.Cells = append(g.Cells, Weight{d.cells[i], w})
		}
	}
	d.doc.Epoch = g.Epoch
	d.doc.Generations = append(d.doc.Generations, g)
	d.learn()
}

// grow sets the time from which the last generation applies to the present.
func (d *duel) grow() {
	d.doc.Generations[len(d.doc.Generations)-1].From = d.now
	d.learn()
	for i := range d.ideals {
		to := d.part(i)
		d.ideals[i].refill(d.now)
		d.ideals[i].rate, d.ideals[i].burst = to.threshold, to.burst
		d.ideals[i].refill(d.now)
	}
}

// check returns what is wrong, for the cells together or for one of them.
func (d *duel) check() []string { return append(d.book.check(), d.words...) }

func (d *duel) learn() {
	d.spans = d.spans[:0]
	for _, cell := range d.cells {
		d.spans = append(d.spans, d.doc.View(cell, "acme", nil).Limit("pro", d.limit, "acme"))
	}
}

// takeFrom grants up to most units in a cell.
func (d *duel) takeFrom(t *testing.T, cell int, most int64) {
	t.Helper()
	in, _ := At(d.spans[cell], d.now)
	if in.Limit == nil {
		return
	}
	for unit := min(most, in.Limit.Tiers[0].Burst); unit > 0; unit /= 2 {
		for most >= unit {
			var dec limit.Decision
			req := &limit.Request{
				Owner:   limit.Owner{Kind: limit.Tenant, Name: "acme"},
				Charges: []limit.Charge{{Limit: in.Limit, Cost: unit}},
			}
			if err := d.stores[cell].Decide(context.Background(), req, time.UnixMicro(d.now), &dec); err != nil {
				t.Fatal(err)
			}
			if !dec.Allowed {
				break
			}
			d.book.write(d.now, unit)
			most -= unit
			i := &d.ideals[cell]
			if i.refill(d.now); i.level < unit*second {
				d.words = append(d.words, fmt.Sprintf("%s is %d µunits ahead at +%d ms", d.cells[cell],
					unit*second-i.level, (d.now-worldStart)/1000))
			}
			i.level -= unit * second
		}
	}
}

// Guarantees that a bucket whose state was deleted during a transition has no unit that was not refilled, even if
// rounding puts shares out of proportion: a rate of 4 per second is divided into 2 and 2, then 1 and 3, while a burst
// of 2,000 is divided into 1,000 and 1,000, then 600 and 1,400. Both cells are emptied just before the change, left
// alone for as long as that may pay, and emptied again.
func TestForgottenBucket(t *testing.T) {
	soak.SkipUnderRace(t)
	steps := int64(20)
	if testing.Short() {
		steps = 7
	}
	for _, tc := range []struct {
		rate, burst int64
		from, to    []int64
	}{
		{4, 2000, []int64{50, 50}, []int64{30, 70}},
		{4, 2000, []int64{30, 70}, []int64{50, 50}},
		{4, 2000, []int64{50, 50}, []int64{45, 55}}, // only the bursts change
		{2, 100, []int64{50, 50}, []int64{45, 55}},  // at a rate of one, too
		{100, 200, []int64{1, 1}, []int64{1, 9}},
		{7, 900, []int64{3, 4}, []int64{4, 3}},
		{7, 900, []int64{3, 4}, []int64{0, 3}},
	} {
		for back := int64(0); back < 3*tc.burst/tc.rate; back += 1 + tc.burst/tc.rate/steps {
			for rest := int64(0); rest < 3*tc.burst/tc.rate; rest += 1 + tc.burst/tc.rate/steps {
				d := newDuel(t, tc.rate, tc.burst, tc.from)
				d.takeFrom(t, 0, tc.burst)
				d.takeFrom(t, 1, tc.burst)
				start := d.now
				d.now++
				d.change(tc.to)
				d.now += 8 * second
				d.grow()
				at := [2]int64{start + max(back, 9)*second, start + max(rest, 9)*second}
				for range 2 {
					first := 0
					if at[1] < at[0] {
						first = 1
					}
					d.now = max(d.now, at[first])
					d.takeFrom(t, first, tc.burst)
					at[first] = math.MaxInt64
				}
				d.takeFrom(t, 0, tc.burst)
				d.takeFrom(t, 1, tc.burst)
				for _, word := range d.check() {
					t.Fatalf("%+v, back after %d s and %d s: %s", tc, back, rest, word)
				}
			}
		}
	}
}

// Guarantees the bound of a token bucket over any interval, through changes at any time, for cells that take
// everything, or little, or pause, and whose stores delete states as early as they may.
func TestTokenBucketsOverCells(t *testing.T) {
	soak.SkipUnderRace(t)
	for seed := range soak.Times(1500) {
		if words := chaos(t, uint64(seed)); len(words) > 0 {
			t.Fatalf("run %d: %s (and %d more)", seed, words[0], len(words)-1)
		}
	}
}

func chaos(t *testing.T, seed uint64) []string {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	weights := make([]int64, 2+r.IntN(2))
	shuffle := func() {
		for i := range weights {
			weights[i] = max(r.Int64N(12)-2, 0)
		}
		weights[r.IntN(len(weights))] = 1 + r.Int64N(9)
	}
	shuffle()
	rate := 1 + r.Int64N(12)
	burst := 1 + r.Int64N(rate*(1+r.Int64N(60)))
	d := newDuel(t, rate, burst, weights)
	rests := make([]int64, len(weights)) // time until which a cell is not asked
	act := func(seconds int64) {
		for end := d.now + seconds*second; d.now < end; d.now += 1 + r.Int64N(2*second) {
			for i := range weights {
				if d.now < rests[i] {
					continue
				}
				d.takeFrom(t, i, []int64{burst, 1 + r.Int64N(burst)}[r.IntN(2)])
				if r.IntN(3) == 0 {
					rests[i] = d.now + r.Int64N(2*burst/rate+10)*second
				}
			}
		}
	}
	if seed%4 != 0 { // only a few changes, so that a store deletes a state in between
		act = func(seconds int64) {
			end := d.now + seconds*second
			for range r.IntN(4) {
				d.now += r.Int64N(end - d.now + 1)
				d.takeFrom(t, r.IntN(len(weights)), burst)
			}
			d.now = end
		}
	}
	act(burst / rate)
	for range 6 {
		for i := range weights {
			if r.IntN(2) == 0 {
				d.takeFrom(t, i, burst)
			}
		}
		d.now++
		shuffle()
		d.change(weights)
		act(8) // the grace
		d.grow()
		act(r.Int64N(3*burst/rate + 20))
	}
	for i := range weights {
		d.takeFrom(t, i, burst)
	}
	return d.check()
}

// Guarantees that a bucket is granted as a whole again some time after a change, so that nothing is lost for ever.
func TestTokenBucketIsWholeInTheEnd(t *testing.T) {
	for seed := range soak.Times(uint64(200)) {
		r := rand.New(rand.NewPCG(seed, 2))
		rate := 10 + r.Int64N(100)
		burst := 10 + r.Int64N(1000)
		d := newDuel(t, rate, burst, []int64{1 + r.Int64N(9), 1 + r.Int64N(9), 1 + r.Int64N(9)})
		for range 4 {
			d.change([]int64{1 + r.Int64N(9), 1 + r.Int64N(9), r.Int64N(9)})
			d.now += 8 * second
			d.grow()
			d.now += r.Int64N(30) * second
		}
		d.now += (burst + 10) * second // at worst the burst grows alone, and one unit per period makes room for it
		sum := amount{}
		for i := range d.cells {
			if in, _ := At(d.spans[i], d.now); in.Limit != nil {
				sum.threshold += in.Limit.Tiers[0].Threshold
				sum.burst += in.Limit.Tiers[0].Burst
			}
		}
		if want := (amount{rate, burst}); sum != want {
			t.Fatalf("run %d: the cells have %+v of %+v", seed, sum, want)
		}
	}
}
