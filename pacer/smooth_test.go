package pacer

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// response runs a pacer's core in virtual time, with a tick of a millisecond, and counts what is granted in each.
type response struct {
	t       *testing.T
	c       core
	now     time.Duration
	lost    func() bool // whether this tick is lost
	granted []int64     // by tick
	offered int64       // units that are asked for in each tick; -1: some requests always wait
}

func respond(t *testing.T, units int64) *response {
	r := &response{t: t, lost: func() bool { return false }, offered: -1}
	r.c = core{queue: newQueue(), supply: supply{limit: PerSecond(units), smoothing: Spread}}
	r.c.supply.advance(clock.Instant{Wall: 1_000_000 * time.Second})
	return r
}

// run lets time pass.
func (r *response) run(d time.Duration) {
	var out [wakeBatch]outcome
	for end := r.now + d; r.now < end; r.now += ms {
		r.granted = append(r.granted, 0)
		if r.lost() {
			continue
		}
		r.c.supply.advance(clock.Instant{Mono: r.now, Wall: 1_000_000*time.Second + r.now})
		if r.c.queue.waiting == 0 {
			r.c.supply.pass(r.now, false)
		}
		for range r.offered {
			r.c.queue.push("a", 1, never, nil)
		}
		for {
			for r.offered < 0 && r.c.queue.waiting < 2*wakeBatch {
				r.c.queue.push("a", 1, never, nil)
			}
			n := r.c.serve(r.now, out[:])
			if r.granted[len(r.granted)-1] += int64(n); n == 0 {
				break
			}
		}
	}
}

// rate is what was granted in a time, per second.
func (r *response) rate(from, to time.Duration) float64 {
	var sum int64
	for _, n := range r.granted[from/ms : to/ms] {
		sum += n
	}
	return float64(sum) / (to - from).Seconds()
}

// The rate follows a limit that changes between windows at once, without overshoot. In each interval of 20 ms from the
// 60th millisecond on, the rate is that of the limit, to one unit. In no interval is it higher by more than a unit.
func TestStepsOfTheLimit(t *testing.T) {
	r := respond(t, 1000)
	want := []float64{1000, 500, 1500}
	for i, units := range want {
		if i > 0 {
			r.c.supply.setLimit(PerSecond(int64(units)))
		}
		r.run(time.Second)
	}
	const interval, settled, unit = 20 * ms, 60 * ms, 1 / 0.020
	for i, limit := range want {
		begin := time.Duration(i) * time.Second
		for at := time.Duration(0); at < time.Second; at += interval {
			got := r.rate(begin+at, begin+at+interval)
			last := at+interval == time.Second // the line ends in this interval
			if got > limit+unit || at >= settled && got < limit-unit && !last {
				t.Errorf("%s after a step to %.0f/s the rate is %.0f/s", at, limit, got)
			}
		}
		if got := r.rate(begin, begin+time.Second); got < 0.999*limit {
			t.Errorf("with a limit of %.0f/s, %.0f/s are used", limit, got)
		}
	}
}

// Requests that come in the middle of a window catch up with the line, at twice its slope at most, and settle on the
// line without overshoot.
func TestStepOfTheDemand(t *testing.T) {
	for _, tt := range []struct {
		begin   time.Duration // of the demand
		settled time.Duration // time from which on the rate is that of the line
		used    float64       // smallest part of the window's units that is used
	}{
		// From half of the window on, twice the slope is just enough to use everything; the rate falls before the line
		// is reached, which costs less than 2 %. From 70 % on, 60 % of the units are left to use.
		{100 * ms, 300 * ms, 0.999},
		{300 * ms, 700 * ms, 0.999},
		{400 * ms, 900 * ms, 0.999},
		{500 * ms, time.Second, 0.98},
		{700 * ms, time.Second, 0.598},
	} {
		t.Run(fmt.Sprint(tt.begin), func(t *testing.T) {
			const limit, unit = 1000, 1 / 0.020
			r := respond(t, limit)
			r.offered = 0
			r.run(tt.begin)
			r.offered = -1
			for r.now < time.Second {
				r.run(20 * ms)
				switch got := r.rate(r.now-20*ms, r.now); {
				case got > 2*limit+unit:
					t.Errorf("at %s the rate is %.0f/s, want at most twice the limit", r.now, got)
				case r.now > tt.settled && (got > limit+unit || got < limit-unit) && r.now < time.Second:
					t.Errorf("at %s the rate is %.0f/s, want that of the limit", r.now, got)
				case r.now < tt.settled && got < limit-unit && r.now > tt.begin+20*ms:
					t.Errorf("at %s the rate is %.0f/s, below that of the limit", r.now, got)
				}
			}
			if got := r.rate(0, time.Second) / limit; got < tt.used {
				t.Errorf("%.1f %% of the window is used, want %.1f %%", 100*got, 100*tt.used)
			}
		})
	}
}

// A process that is suspended again and again still uses the whole limit, and is never ahead of the line by more than
// one request.
func TestLostTicks(t *testing.T) {
	for _, units := range []int64{10, 100, 1000, 30_000} {
		random := rand.New(rand.NewPCG(1, uint64(units)))
		r := respond(t, units)
		r.lost = func() bool { return random.IntN(5) == 0 }
		r.run(20 * time.Second)
		for window := range time.Duration(20) {
			var sum int64
			for i, n := range r.granted[window*1000 : (window+1)*1000] {
				sum += n
				if ahead := float64(sum) - float64(units)*min(float64(i)/998, 1); ahead > 1 {
					t.Fatalf("limit %d: after %d ms progress is %.2f units ahead of the line", units, i, ahead)
				}
			}
		}
		if got := r.rate(0, 20*time.Second) / float64(units); got < 0.995 {
			t.Errorf("limit %d: %.2f %% are used", units, 100*got)
		}
	}
}

// A single request does not wait. Units that no request waited for are not granted in a burst later.
func TestSpreadAfterIdling(t *testing.T) {
	r := respond(t, 1000)
	r.offered = 0
	r.run(200 * ms)
	r.offered = 1
	for range 10 {
		r.run(ms)
		if n := r.granted[len(r.granted)-1]; n != 1 {
			t.Fatalf("a request that came alone at %s was granted %d times", r.now, n)
		}
		r.offered = 0
		r.run(9 * ms)
		r.offered = 1
	}
	r.offered = -1
	r.run(10 * ms)
	for i, n := range r.granted[len(r.granted)-10:] {
		if n > 3 {
			t.Errorf("%d ms after the burst began, %d were granted in a millisecond, want at most 3", i, n)
		}
	}
}

// No ticket is served before its stated earliest time. If all tickets cost one unit, each is served within two ticks
// of that time.
func TestEarliestUnderSpread(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 9))
		r := respond(t, 50+random.Int64N(2000))
		r.offered = 0
		earliest := map[int]time.Duration{}
		served := 0
		for i := range 3000 {
			cost := int64(1)
			if seed%2 == 1 {
				cost += random.Int64N(3)
			}
			told := r.c.earliest("a", cost, r.now)
			earliest[i] = told
			r.c.queue.push("a", cost, never, WakerFunc(func(Permit, error) {
				if r.now < told {
					t.Errorf("seed %d: ticket %d is served at %s, and was told %s", seed, i, r.now, told)
				}
				if late := r.now - told; late > 2*ms && seed%2 == 0 {
					t.Errorf("seed %d: ticket %d is served at %s, %s after what it was told", seed, i, r.now, late)
				}
				served++
			}))
			if seed%2 == 1 && random.IntN(10) == 0 {
				r.serve(time.Duration(random.IntN(20)) * ms)
			}
		}
		r.serve(4 * time.Second)
		if served == 0 {
			t.Error("nobody was served")
		}
	}
}

// serve lets time pass, and wakes who is served.
func (r *response) serve(d time.Duration) {
	var out [wakeBatch]outcome
	for end := r.now + d; r.now < end; r.now += ms {
		r.c.supply.advance(clock.Instant{Mono: r.now, Wall: 1_000_000*time.Second + r.now})
		for n := -1; n != 0; {
			n = r.c.serve(r.now, out[:])
			for _, o := range out[:n] {
				o.waker.Wake(o.permit, o.err)
			}
		}
	}
}
