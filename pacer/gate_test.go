package pacer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// gateCase makes the same calls to two pacers. The gate of the second is closed before each call.
type gateCase struct {
	t       *testing.T
	rand    *rand.Rand
	left    bool // the provider sometimes says what is left
	pacers  [2]*Pacer
	tickets [2][]Ticket
	byGate  int // grants of the first pacer by its gate

	mu      sync.Mutex // held to use the next two fields
	permits [2][]*Permit
	woken   [2][]string
}

// both makes a call to both pacers, and fails the test if they then differ.
func (c *gateCase) both(what string, call func(i int, p *Pacer) string) {
	c.t.Helper()
	var got [2]string
	var status [2]Status
	for i, p := range c.pacers {
		if i == 1 {
			p.mu.Lock()
			p.mu.openUntil = 0
			p.mu.Unlock()
		}
		got[i] = call(i, p)
		status[i] = p.statusThroughGate()
	}
	if got[0] != got[1] || status[0] != status[1] {
		c.t.Fatalf("%s: with the gate %s and %+v, without it %s and %+v", what, got[0], status[0], got[1], status[1])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, b := fmt.Sprint(c.woken[0]), fmt.Sprint(c.woken[1]); a != b {
		c.t.Fatalf("after %s: with the gate %s were woken, without it %s", what, a, b)
	}
}

// statusThroughGate is Status, but leaves the gate as it is.
func (p *Pacer) statusThroughGate() Status {
	p.mu.Mutex.Lock()
	defer p.mu.Unlock()
	s := &p.core.supply
	return Status{Counts: p.core.counts, Window: s.number, Units: s.units, Used: s.used, Waiting: p.core.queue.waiting}
}

// keep stores a permit and describes it.
func (c *gateCase) keep(i int, permit Permit) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.permits[i] = append(c.permits[i], &permit)
	permit.pacer = nil
	text := fmt.Sprintf("%+v", permit)
	permit.pacer = c.pacers[i]
	return text
}

func (c *gateCase) acquire() {
	cost := c.rand.Int64N(6) // 0 is refused
	c.both(fmt.Sprintf("Acquire(%d)", cost), func(i int, p *Pacer) string {
		open := p.mu.openUntil
		ctx, cancel := context.WithDeadline(context.Background(), time.Now()) // it never waits
		defer cancel()
		permit, ok := p.TryAcquire(cost)
		if !ok {
			_, err := p.Acquire(ctx, "a", cost)
			return fmt.Sprint(err)
		}
		if i == 0 && time.Since(p.origin) < open {
			c.byGate++
		}
		return c.keep(i, permit)
	})
}

func (c *gateCase) enqueue() {
	cost, wait := 1+c.rand.Int64N(12), time.Duration(c.rand.Int64N(int64(30*ms)))
	c.both("Enqueue", func(i int, p *Pacer) string {
		t, err := p.Enqueue("a", cost, wait, WakerFunc(func(permit Permit, err error) {
			text := fmt.Sprint(err)
			if err == nil {
				text = c.keep(i, permit)
			}
			c.mu.Lock()
			c.woken[i] = append(c.woken[i], text)
			c.mu.Unlock()
		}))
		c.tickets[i] = append(c.tickets[i], t)
		return fmt.Sprint(t.place, err)
	})
}

func (c *gateCase) call() {
	choice, n := c.rand.IntN(60), c.rand.IntN(1<<30)
	switch {
	case choice < 50:
		c.acquire()
	case choice == 50:
		c.enqueue()
	case choice == 51 && len(c.tickets[0]) > 0:
		c.both("Cancel", func(i int, p *Pacer) string {
			return fmt.Sprint(p.Cancel(c.tickets[i][n%len(c.tickets[i])]))
		})
	case choice < 56:
		spent := c.rand.Int64N(4)
		c.both("Settle", func(i int, _ *Pacer) string {
			c.mu.Lock()
			permit := new(Permit)
			if all := c.permits[i]; len(all) > 0 {
				permit = all[max(0, len(all)-1-n%8)]
			}
			c.mu.Unlock()
			permit.Settle(spent)
			return fmt.Sprint(permit.Cost())
		})
	case choice == 56:
		l := Limit{Units: 50 + c.rand.Int64N(100), Period: time.Duration(15+n%3) * ms}
		c.both("SetLimit", func(_ int, p *Pacer) string { return fmt.Sprint(p.SetLimit(l)) })
	case choice == 57:
		a := Advice{RetryAfter: time.Duration(c.rand.IntN(15)) * ms}
		if c.left {
			a.Left = []Left{{Units: c.rand.Int64N(5), Until: time.Duration(c.rand.IntN(15)) * ms}}
		}
		c.both("advise", func(_ int, p *Pacer) string {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.core.supply.advise(&a, p.now(), p.core.counts.Granted, p.core.counts.Granted)
			return ""
		})
	}
}

// A grant by the gate is the grant that would be made without a gate: two pacers to which the same calls are made do
// the same, although the gate of one of them is closed before each call.
func TestGateIsExact(t *testing.T) {
	byGate, seeds := 0, soak.Times(uint64(200))
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 41))
			config := Config{Limit: Limit{Units: 100, Period: 16 * ms}, Smoothing: Smoothing(random.IntN(4) / 3),
				Guard: Guard{ClockError: time.Duration(random.IntN(3)) * ms,
					MaxDelay: time.Duration(random.IntN(3)) * ms}}
			c := &gateCase{t: t, rand: random, left: random.IntN(3) == 0}
			for i := range c.pacers {
				p, err := New(config)
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				c.pacers[i] = p
			}
			for range 60 {
				for range random.IntN(12) {
					c.call()
				}
				<-time.After(time.Duration(random.IntN(3)) * ms)
				synctest.Wait()
			}
			c.both("Close", func(_ int, p *Pacer) string { p.Close(); return "" })
			c.acquire()
			byGate += c.byGate
		})
	}
	if byGate < 10*int(seeds) {
		t.Errorf("the gate made %d grants in %d runs, want 10 in each", byGate, seeds)
	}
}
