// Package leasetest measures what leases of a store give: how much less than the limit several processes admit
// together, and whether the waits that they name are right. It runs in virtual time. Only tests import it.
package leasetest

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// MostShort is the largest shortfall that docs/accuracy.md promises, as a part of what one counter without leases
// admits of the same requests.
const MostShort = 0.05

// row is a line of the grid: one limit, and how many processes lease it.
type row struct {
	tier      limit.Tier
	processes int
}

func (r *row) String() string {
	t := &r.tier
	s := fmt.Sprintf("%s, %d per %s", t.Algorithm, t.Threshold, t.Period)
	if t.Algorithm.HasBurst() {
		s += fmt.Sprintf(", burst %d", t.Burst)
	}
	return fmt.Sprintf("%s, %d processes", s, r.processes)
}

// rows returns the grid: all of it in a soak, otherwise the rates and bursts at its edges.
func rows(store limit.Store) (all []row) {
	type rate struct {
		units  int64
		period time.Duration
	}
	rates := []rate{{1, time.Hour}, {1, time.Second}, {10, 2 * time.Second}, {1000, time.Second}}
	bursts, processes := []float64{0, 1, 2}, []int{1, 3}
	if soak.Full() {
		rates = append(rates, rate{5, time.Hour}, rate{1, time.Minute}, rate{10, time.Minute},
			rate{1, 10 * time.Second}, rate{2, time.Second}, rate{5, time.Second}, rate{10, time.Second},
			rate{100, time.Second}, rate{600, time.Minute}, rate{1000, time.Minute})
		bursts, processes = append(bursts, 0.25, 0.5, 3, 10), append(processes, 2, 10)
	}
	for _, a := range limit.Algorithms() {
		if a.HasCalendar() {
			continue // counts as a fixed window does
		}
		for _, r := range rates {
			var of []int64
			for _, times := range bursts {
				burst := max(int64(times*float64(r.units)), 1)
				if !a.HasBurst() {
					burst = 0
				}
				if !slices.Contains(of, burst) {
					of = append(of, burst)
				}
			}
			for _, burst := range of {
				t := limit.Tier{Algorithm: a, Threshold: r.units, Burst: burst, Period: r.period}
				l, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{t}})
				if err != nil || store.Accepts(l) != nil {
					continue
				}
				for _, n := range processes {
					all = append(all, row{t, n})
				}
			}
		}
	}
	return all
}

// world is the processes of a row, in virtual time.
type world struct {
	testing.TB
	*rand.Rand
	row
	limit     *limit.Limit
	request   limit.Request
	processes []*lease.Store
	alone     limit.Store // one counter without leases, which gets the same requests
	spent     limit.Store // one counter without leases, which gets what was admitted
	start     time.Time
	now       time.Time
	ticked    time.Time
	admitted  int64
	possible  int64
}

func newWorld(tb testing.TB, open func() limit.Store, r row, seed uint64) *world {
	tb.Helper()
	l, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{r.tier}})
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{TB: tb, Rand: rand.New(rand.NewPCG(seed, 9)), row: r, limit: l}
	w.start = time.Unix(1_800_000_000, 0).Add(time.Duration(w.Int64N(int64(time.Hour))).Truncate(time.Microsecond))
	w.now, w.ticked = w.start, w.start
	w.request = limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: fmt.Sprint("acme", seed)},
		Charges: []limit.Charge{{Limit: l, Cost: 1}}}
	clock := &clock.Runtime{Now: func() time.Time { return w.now }, Wake: func(<-chan struct{}) {},
		Hash: func(name string) uint64 {
			h := fnv.New64a()
			_, _ = io.WriteString(h, name)
			return h.Sum64()
		}}
	for range r.processes {
		s, err := lease.New(lease.Config{Store: open(), Instances: func(*limit.Limit) int { return r.processes },
			GiveBackEvery: -1, Runtime: clock})
		if err != nil {
			tb.Fatal(err)
		}
		w.processes = append(w.processes, s)
	}
	for _, s := range []*limit.Store{&w.alone, &w.spent} {
		m, err := memory.New(memory.Config{})
		if err != nil {
			tb.Fatal(err)
		}
		*s = m
	}
	return w
}

// advance lets time pass. The processes give back spare units as often as they do by themselves.
func (w *world) advance(by time.Duration) {
	const longest = 10 * time.Second // after so long without a request nothing is left to give back
	end := w.now.Add(by.Truncate(time.Microsecond))
	for at := w.ticked.Add(lease.DefaultGiveBackEvery); !at.After(end) && at.Sub(w.now) < longest; {
		for _, p := range w.processes {
			p.GiveBackSpare(w.Context(), at)
		}
		w.ticked, at = at, at.Add(lease.DefaultGiveBackEvery)
	}
	if end.Sub(w.ticked) > lease.DefaultGiveBackEvery {
		w.ticked = end
	}
	w.now = end
}

// ask makes a request at one process, and at the counters without leases.
func (w *world) ask(process int) *limit.Decision {
	w.Helper()
	d := w.decide(w.processes[process])
	if w.decide(w.alone).Allowed {
		w.possible++
	}
	if d.Allowed {
		w.admitted++
		spent := w.decide(w.spent)
		if !spent.Allowed {
			w.Errorf("%s: a unit is admitted beyond the limit after %s", &w.row, w.now.Sub(w.start))
		}
		w.check(d, spent)
		return d
	}
	spent := new(limit.Decision)
	if err := w.spent.Peek(w.Context(), &w.request, w.now, spent); err != nil {
		w.Fatal(err)
	}
	w.check(d, spent)
	return d
}

// mostLate returns how much later than needed a time of a decision may be, by docs/accuracy.md.
func (w *world) mostLate() time.Duration {
	t := &w.limit.Tiers[0]
	if t.Algorithm.HasBurst() { // its leased units refill once their slot has ended
		fills := float64(t.Burst) / w.perSecond()
		return time.Duration(fills*1e9) + w.row.mostExtra(&waits[0])
	}
	if l := t.Leasing(); l.Ends || l.None {
		return w.row.mostExtra(&waits[0])
	}
	late := t.Period / 20 // the units of a lease expire up to its life later
	if t.Algorithm.HasBuckets() {
		late += t.Period / time.Duration(t.Buckets)
	}
	return late
}

// check compares every field of a decision with what the counter without leases says that got what was admitted. Of
// several processes, none knows what the others have spent, so only a process that is alone is checked. Leased units
// that were not spent are used in the store until the lease ends: less may remain, and times may be later, within
// bounds. No field ever promises more than there is. What is admitted from the lease of a window is exact.
func (w *world) check(d, spent *limit.Decision) {
	w.Helper()
	if w.row.processes > 1 {
		return
	}
	l, got, want := w.limit.Tiers[0].Leasing(), &d.Results[0], &spent.Results[0]
	exact := d.Allowed && !l.Refills && (l.Ends || l.None)
	differ := func(field string, got, want any) {
		w.Helper()
		w.Errorf("%s: after %s, allowed %t: %s is %v, want %v", &w.row, w.now.Sub(w.start), d.Allowed, field, got, want)
	}
	if got, want := got.Remaining(), want.Remaining(); got > want || exact && got < want {
		differ("Remaining", got, want)
	}
	if got, want := got.Used(), want.Used(); got < want || exact && got > want {
		differ("Used", got, want)
	}
	if got, want := d.Binding() != nil, spent.Binding() != nil; got != want {
		differ("whether a result binds", got, want)
	}
	late := func(field string, got, want int64, most time.Duration) {
		w.Helper()
		if late := time.Duration(got-want) * time.Microsecond; late < 0 || late > most {
			differ("how late "+field+" is", late, fmt.Sprint("0 to ", most))
		}
	}
	most := w.mostLate()
	if got.Remaining() == want.Remaining() { // otherwise MoreAt is when one more than less than there is remains
		late("MoreAt", got.MoreAt(), want.MoreAt(), most)
	}
	if exact {
		most = 0
	}
	late("ResetAt", got.ResetAt(), want.ResetAt(), most)
}

func (w *world) decide(s limit.Store) *limit.Decision {
	d := new(limit.Decision)
	if err := s.Decide(w.Context(), &w.request, w.now, d); err != nil {
		w.Fatalf("%s: %v", &w.row, err)
	}
	return d
}

// perSecond is the rate of the limit in units.
func (w *world) perSecond() float64 { return float64(w.tier.Threshold) / w.tier.Period.Seconds() }

// short measures how much less than one counter without leases the processes admit, if four times the rate is asked
// for, at random times.
func (w *world) short() float64 {
	const windows, bursts, least = 3, 10, 60
	units := max(bursts*float64(w.tier.Burst), windows*float64(w.tier.Threshold), least)
	for end := w.start.Add(time.Duration(units / w.perSecond() * 1e9)); w.now.Before(end); {
		w.ask(w.IntN(w.row.processes))
		w.advance(time.Duration(w.ExpFloat64() / (4 * w.perSecond()) * 1e9))
	}
	return 1 - float64(w.admitted)/float64(w.possible)
}

// obeying measures the same for a client that waits for as long as each denial says.
func (w *world) obeying() float64 {
	const bursts, least = 10, 60
	units := max(bursts*float64(w.tier.Burst), least)
	for end := w.start.Add(time.Duration(units / w.perSecond() * 1e9)); w.now.Before(end); {
		if d := w.ask(0); !d.Allowed {
			w.advance(d.RetryAfter())
		} else {
			w.advance(time.Microsecond)
		}
	}
	most := float64(w.tier.Burst) + w.now.Sub(w.start).Seconds()*w.perSecond()
	return 1 - float64(w.admitted)/math.Floor(most)
}

// A wait of a denial, or of an admitted request after which nothing remains.
type wait struct {
	name      string
	inSeconds bool
	of        func(d *limit.Decision) time.Duration // 0: the decision has no such wait
}

var waits = []wait{
	{"RetryAfter", false, func(d *limit.Decision) time.Duration { return d.RetryAfter() }},
	{"Retry-After", true, func(d *limit.Decision) time.Duration {
		return (d.RetryAfter() + time.Second - 1).Truncate(time.Second)
	}},
	{"MoreAt", false, func(d *limit.Decision) time.Duration {
		if r := &d.Results[0]; r.Remaining() == 0 {
			return time.Duration(r.MoreAt()-d.Now) * time.Microsecond
		}
		return 0
	}},
}

// refused has clients use up the limit, wait as they are told, and ask once more. It returns how many of the waits
// were too short, and by how much the longest was longer than it need be.
func (w *world) refused(k *wait) (refused, waited int, extra time.Duration) {
	const rounds = 12
	for range rounds {
		process := w.IntN(w.row.processes)
		d := w.ask(process)
		for d.Allowed && k.of(d) <= 0 {
			w.advance(time.Duration(w.ExpFloat64() / (8 * w.perSecond()) * 1e9))
			d = w.ask(process)
		}
		told := k.of(d)
		if told <= 0 {
			continue
		}
		needed := w.decideLess(w.spent)
		extra = max(extra, told-needed)
		w.advance(told)
		waited++
		if d := w.ask(process); !d.Allowed {
			refused++
			w.Logf("%s: %s of %s was too short: denied for %s more", &w.row, k.name, told, d.RetryAfter())
		}
	}
	return refused, waited, extra
}

// decideLess returns how long a counter without leases would have the client wait.
func (w *world) decideLess(s limit.Store) time.Duration {
	var d limit.Decision
	if err := s.Peek(w.Context(), &w.request, w.now, &d); err != nil {
		w.Fatal(err)
	}
	return d.RetryAfter()
}

// mostExtra returns by how much a wait may be longer than needed, by docs/accuracy.md. Retry-After is in whole seconds.
func (r *row) mostExtra(k *wait) time.Duration {
	const slot = 2 * time.Second // no slot of a token bucket is longer
	most := r.tier.Period
	if r.tier.Algorithm.HasBurst() {
		most = slot
	}
	if k.inSeconds {
		most += time.Second
	}
	return most
}

// useUp asks one process until it denies, and returns how many units were admitted.
func (w *world) useUp() (admitted int64) {
	w.Helper()
	for w.ask(0).Allowed {
		admitted++
	}
	return admitted
}

// change gives the limit another amount.
func (w *world) change(units int64) {
	w.Helper()
	t := w.tier
	t.Threshold = units
	l, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{t}})
	if err != nil {
		w.Fatal(err)
	}
	w.limit, w.request.Charges = l, []limit.Charge{{Limit: l, Cost: 1}}
}

// Raise uses limits up and raises them tenfold. It fails the test unless the difference is admitted at once, or if
// anything is admitted after the limits are lowered again. open is that of Run.
func Raise(t *testing.T, open func() limit.Store) {
	t.Helper()
	for i, a := range limit.Algorithms() {
		if a == limit.LeakyBucket {
			continue // it counts no units
		}
		tiers := []limit.Tier{{Threshold: 5, Period: 24 * time.Hour}, {Threshold: 100, Period: time.Second}}
		for j, tier := range tiers {
			if tier.Algorithm = a; a.HasCalendar() {
				tier.Period, tier.Calendar = 0, &limit.Calendar{Every: limit.Day, Location: time.UTC}
			}
			l, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{tier}})
			if err != nil || open().Accepts(l) != nil {
				continue
			}
			r := row{tier, 1}
			w := newWorld(t, open, r, uint64(1_000_000+10*i+j))
			if got := w.useUp(); got != tier.Threshold {
				t.Errorf("%s: %d units are admitted, want %d", &r, got, tier.Threshold)
			}
			w.ask(0) // may be denied without a call
			w.change(10 * tier.Threshold)
			want := 9 * tier.Threshold
			if got := w.useUp(); float64(got) < (1-MostShort)*float64(want) {
				t.Errorf("%s, used up and raised to %d: %d units are admitted at once, want %d", &r, 10*tier.Threshold,
					got, want)
			}
			w.change(tier.Threshold)
			for range 2 {
				if w.ask(0).Allowed {
					t.Errorf("%s: lowered again after ten times as much was used, the limit admits", &r)
				}
			}
		}
	}
}

// worst is the worst row of an algorithm.
type worst struct {
	short, obeying float64
	shortRow       string
	refused        int
	waited         int
	extra          time.Duration
	extraRow       string
}

// Run plays the grid on a store, and fails the test if a row admits less than docs/accuracy.md promises or names a wait
// that is too short. open returns a store that uses the times that it is given; all of them share their counters.
//
// For a store that is slow, only so many rows are played, which are spread over the grid, but all of them if
// SLUICE_SOAK is 2 or more.
func Run(t *testing.T, open func() limit.Store, most int) {
	t.Helper()
	all := map[limit.Algorithm]*worst{}
	grid := rows(open())
	every := 1
	if soak.Times(4) <= 4 {
		every = max(1, len(grid)/most)
	}
	for i, r := range grid {
		if i%every != 0 {
			continue
		}
		of := all[r.tier.Algorithm]
		if of == nil {
			of = &worst{}
			all[r.tier.Algorithm] = of
		}
		seed := uint64(10 * i)
		if short := newWorld(t, open, r, seed).short(); short > of.short {
			of.short, of.shortRow = short, r.String()
			if short > MostShort {
				t.Errorf("%s: %.1f %% short, want at most %.0f %%", &r, 100*short, 100*MostShort)
			}
		}
		if r.tier.Algorithm.HasBurst() {
			if short := newWorld(t, open, r, seed+1).obeying(); short > of.obeying {
				of.obeying = short
				if short > MostShort {
					t.Errorf("%s: a client that waits as it is told gets %.1f %% less, want at most %.0f %%",
						&r, 100*short, 100*MostShort)
				}
			}
		}
		for j := range waits {
			w := newWorld(t, open, r, seed+2+uint64(j))
			refused, waited, extra := w.refused(&waits[j])
			of.refused, of.waited = of.refused+refused, of.waited+waited
			if refused > 0 {
				t.Errorf("%s: %d of %d waits by %s were too short", &r, refused, waited, waits[j].name)
			}
			if most := r.mostExtra(&waits[j]); extra > most {
				t.Errorf("%s: a wait by %s was %s longer than needed, want at most %s", &r, waits[j].name, extra, most)
			}
			if extra > of.extra && !waits[j].inSeconds {
				of.extra, of.extraRow = extra, r.String()+", "+waits[j].name
			}
		}
	}
	var table strings.Builder
	for _, a := range limit.Algorithms() {
		if of := all[a]; of != nil {
			fmt.Fprintf(&table, "%s: %.2f %% short (%s), obeying %.2f %%; %d of %d waits too short, the longest by %s "+
				"too long (%s)\n", a, 100*of.short, cmp.Or(of.shortRow, "all rows"), 100*of.obeying, of.refused,
				of.waited, of.extra, of.extraRow)
		}
	}
	t.Logf("the worst rows:\n%s", &table)
}
