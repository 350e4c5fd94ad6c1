package pacer

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/ledger"
)

const ms = time.Millisecond

// After a jump of the clock, nothing is granted in the rest of the window, so the limit is not exceeded.
func TestClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour, 300 * ms, -300 * ms, 2 * ms, 400 * 24 * time.Hour} {
		t.Run(fmt.Sprint(jump), func(t *testing.T) {
			s := supply{limit: PerSecond(10)}
			wall := 1_000_000 * time.Second
			s.advance(clock.Instant{Wall: wall})
			if !s.take(4, 0) {
				t.Fatal("no units at the start")
			}
			s.advance(clock.Instant{Mono: 500 * ms, Wall: wall + 500*ms + jump})
			if s.take(1, 500*ms) {
				t.Error("a unit in the window of the jump")
			}
			next := s.freeAt(0, 1, 500*ms)
			if until := wall + next + jump; until%time.Second != 0 || next <= 500*ms || next > 1500*ms {
				t.Errorf("the next unit comes at %s by the wall clock, %s after the jump", until, next-500*ms)
			}
			s.advance(clock.Instant{Mono: next, Wall: wall + next + jump})
			if !s.take(10, next) || s.take(1, next) {
				t.Error("the window after the jump has not 10 units")
			}
		})
	}
}

// The supply follows small steps of the wall clock, forwards and backwards. No window is opened twice, in whichever
// direction the clock passes its edge.
func TestClockDrifts(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 3))
		s := supply{limit: Limit{Units: 10, Period: 20 * ms}, guard: Guard{ClockError: 3 * ms}}
		mono, offset := time.Duration(0), 1_000_000*time.Second
		granted := map[int64]int64{}
		for range 50_000 {
			mono += time.Duration(random.Int64N(int64(ms)))
			offset += time.Duration(random.Int64N(int64(6*ms))) - 3*ms
			wall := mono + offset
			s.advance(clock.Instant{Mono: mono, Wall: wall})
			if s.take(1, mono) {
				granted[int64(wall/(20*ms))]++
				if into := wall % (20 * ms); into < 3*ms || into >= 17*ms {
					t.Fatalf("seed %d: a unit %s into a window of which the first and last 3 ms are not used", seed,
						into)
				}
			}
		}
		for window, n := range granted {
			if n > 10 {
				t.Errorf("seed %d: window %d has %d units, want 10", seed, window, n)
			}
		}
		if len(granted) < 500 {
			t.Errorf("seed %d: units in %d windows only", seed, len(granted))
		}
	}
}

// Windows before 1970 have numbers, too.
func TestWindowsBefore1970(t *testing.T) {
	s := supply{limit: PerSecond(1)}
	for i := range 5 {
		wall := time.Duration(i-3)*time.Second + 999*ms
		mono := time.Duration(i) * time.Second
		s.advance(clock.Instant{Mono: mono, Wall: wall})
		if s.number != int64(i-3) || !s.take(1, mono) || s.take(1, mono) {
			t.Errorf("%s: window %d with other than one unit", wall, s.number)
		}
	}
}

// Tags may overflow: the order of keys does not change.
func TestTagsOverflow(t *testing.T) {
	for _, first := range []int64{0, -1 << 63, 1<<63 - 1, 1<<63 - 1<<40} {
		q := newQueue()
		q.virtual = first
		if q.setWeight("b", 2); q.weights["b"] != 2 {
			t.Fatal("no weight")
		}
		for range 30 {
			q.push("a", MaxUnits, never, nil)
			q.push("b", MaxUnits, never, nil)
		}
		got := ""
		for range 12 {
			i := q.next()
			got += q.at(i).key.name
			q.serve(i)
		}
		if want := "abbabbabbabb"; got != want {
			t.Errorf("from tag %d: %s, want %s", first, got, want)
		}
	}
}

// A ticket takes 64 bytes, as documented.
func TestTicketSize(t *testing.T) {
	if n := unsafe.Sizeof(ticket{}); n != 64 {
		t.Errorf("the node of a ticket takes %d bytes, want 64", n)
	}
}

// Memory is freed when no tickets wait. Old tickets are not mistaken for new ones afterwards.
func TestQueueShrinks(t *testing.T) {
	q := newQueue()
	q.push("first", 1, never, nil)
	first := q.latest
	for i := range 10 * slabSize {
		q.push(fmt.Sprint(i), 1, time.Duration(i), nil)
	}
	for i := q.next(); i != 0; i = q.next() {
		q.remove(i)
	}
	if len(q.slabs) != 0 || len(q.keys) != 0 || cap(q.busy.items) > slabSize || cap(q.idle.items) > slabSize ||
		cap(q.deadlines.items) > slabSize || q.units != 0 || q.nextDeadline() != never {
		t.Errorf("an empty queue keeps %d slabs, %d keys, room for %d, %d and %d, %d units", len(q.slabs), len(q.keys),
			cap(q.busy.items), cap(q.idle.items), cap(q.deadlines.items), q.units)
	}
	if q.push("first", 1, never, nil); q.find(first) != 0 || q.find(q.latest) == 0 || q.latest.node != first.node {
		t.Error("an old ticket is taken for a new one")
	}
}

// Guarantees that of the limit and what the provider states the lower one holds.
func TestLowestBoundHolds(t *testing.T) {
	for stated, want := range map[int64]int64{0: 100, 80: 80, 120: 100} {
		s := supply{limit: Limit{Units: 100}, stated: stated * ledger.StatedOne}
		if got := s.bounded(7); got != want || s.each() != got {
			t.Errorf("stated %d: a window has %d units, want %d", stated, got, want)
		}
	}
}

// A permit is not in time after its window, nor after the machine was suspended or its wall clock was set, which UseBy
// does not show.
func TestPermitInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Config{Limit: PerSecond(10), Guard: Guard{ClockError: 10 * ms, MaxDelay: 50 * ms}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		acquire := func() Permit {
			t.Helper()
			permit, err := p.Acquire(t.Context(), "", 1)
			if err != nil {
				t.Fatal(err)
			}
			return permit
		}
		permit := acquire()
		if !permit.InTime() {
			t.Error("a permit that was just granted is not in time")
		}
		<-time.After(time.Until(permit.UseBy()))
		if permit.InTime() {
			t.Error("a permit is in time after UseBy")
		}
		permit = acquire()
		p.mu.Lock() // a suspended machine: the wall clock moves on by a minute, and the monotonic clock does not
		p.core.supply.read.Wall -= time.Minute
		p.mu.Unlock()
		if permit.InTime() {
			t.Errorf("a permit is in time after a machine was suspended; UseBy is in %s", time.Until(permit.UseBy()))
		}
		permit = acquire()
		if (&Permit{}).InTime() || !permit.InTime() {
			t.Error("the permit of a later window is not in time, or the zero permit is")
		}
	})
}

// A unit that is given back, and was granted after the reply that stated what is left, is left again. A request that
// cost more than was granted takes the difference. Replies that name another policy change nothing.
func TestUnitsLeftCountSettledUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Config{Limit: PerSecond(10)})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		says := func(field string) {
			now := time.Now()
			p.Observe(Reply{Header: http.Header{"Ratelimit": {field}}, Received: now})
		}
		granted := func(want bool) (permit Permit) {
			t.Helper()
			permit, ok := p.TryAcquire(1)
			if ok != want {
				t.Errorf("a unit was granted: %t, want %t", ok, want)
			}
			return permit
		}
		says(`"minute";r=2;t=30, "day";r=5;t=3000`)
		first := granted(true)
		granted(true)
		granted(false)
		first.Release()
		last := granted(true)
		granted(false)
		says(`"day";r=5;t=3000`) // and nothing about the other one
		granted(false)
		says(`"minute";r=4;t=30`)
		granted(true)
		last.Settle(3)
		granted(false)
	})
}

// The pause of another instance ends within LongestPause, also if the other one's clock or its provider is wrong, and
// hearing of it again does not make it longer.
func TestHearsAPauseOnce(t *testing.T) {
	c := core{queue: newQueue(), supply: supply{limit: PerSecond(1), shared: true}}
	s := newSharer(1, 1)
	c.supply.advance(clock.Instant{Mono: time.Minute, Wall: 1000 * time.Second})
	for _, tt := range []struct {
		pause int64 // in milliseconds since 1970
		want  time.Duration
	}{
		{0, 0},
		{999_000, time.Minute - time.Second},
		{1_002_000, time.Minute + 2*time.Second},
		{1_001_000, time.Minute + 2*time.Second},
		{ledger.MaxPause, time.Minute + LongestPause},
	} {
		if s.applyPause(&c, tt.pause); c.supply.pausedUntil != tt.want {
			t.Errorf("a pause until %d ms: until %s, want %s", tt.pause, c.supply.pausedUntil, tt.want)
		}
	}
	c.supply.advance(clock.Instant{Mono: time.Hour, Wall: 1000*time.Second + 59*time.Minute})
	if s.applyPause(&c, ledger.MaxPause); c.supply.pausedUntil != time.Minute+LongestPause {
		t.Errorf("heard again, a pause ends %s later", c.supply.pausedUntil-time.Minute-LongestPause)
	}
}
