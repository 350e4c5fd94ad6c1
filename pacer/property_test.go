package pacer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
	"github.com/sluicelimits/sluice/pacer"
)

const grid = time.Millisecond

// pass lets virtual time pass, and waits until everything that was due has been done.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// script is a pacer and its model, and what happens to both.
type script struct {
	t    *testing.T
	rand *rand.Rand
	p    *pacer.Pacer
	m    *model

	now     time.Duration // since 1970
	tickets []pacer.Ticket
	cancels map[int]context.CancelFunc // of requests that goroutines in Acquire made

	mu     sync.Mutex // held to use the next two fields: goroutines come back from Acquire while others are woken
	got    []modelOutcome
	latest []*scriptPermit // granted since the last comparison

	permits []*scriptPermit
}

type scriptPermit struct {
	pacer.Permit
	window int64
	opened int
}

// woken is the waker of a ticket.
func (s *script) woken(id int, p pacer.Permit, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.latest = append(s.latest, &scriptPermit{Permit: p})
		s.got = append(s.got, modelOutcome{id, "granted"})
	case errors.Is(err, pacer.ErrExpired) && errors.Is(err, context.DeadlineExceeded):
		s.got = append(s.got, modelOutcome{id, "expired"})
	case errors.Is(err, pacer.ErrNever):
		s.got = append(s.got, modelOutcome{id, "never"})
	case errors.Is(err, context.Canceled):
		s.got = append(s.got, modelOutcome{id, "canceled"})
	case !errors.Is(err, pacer.ErrClosed): // the test is over
		s.t.Fatalf("ticket %d: %v", id, err)
	}
}

func (s *script) key() string { return string(rune('a' + s.rand.IntN(4))) }

// step moves on to the next point of the grid, compares what is due by then, and may make a call.
func (s *script) step() {
	s.now += grid
	s.m.now = s.now
	pass(grid)
	s.compare("nothing", s.m.serve())
	for s.rand.IntN(3) > 0 {
		s.call()
	}
}

// compare fails the test if the pacer did something else than the model.
func (s *script) compare(after string, want []modelOutcome) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.latest {
		p.window, p.opened = s.m.window(), s.m.opened
		s.permits = append(s.permits, p)
	}
	s.latest = nil
	if s.got, want = s.inOrder(s.got), s.inOrder(want); !slices.Equal(s.got, want) {
		s.t.Fatalf("at %s, %d of %d units per %s spent: after %s the pacer did %v, want %v", s.now%time.Second,
			s.m.spent[s.m.window()], s.m.units, s.m.period, after, s.got, want)
	}
	s.got = nil
	status := s.p.Status()
	if status.Waiting != len(s.m.waiting) || status.Used != s.m.spent[s.m.window()] {
		s.t.Fatalf("after %s: %d wait and %d units are used, want %d and %d", after, status.Waiting, status.Used,
			len(s.m.waiting), s.m.spent[s.m.window()])
	}
}

// inOrder sorts outcomes. First come the granted tickets of Enqueue, in the order of their grants. The others follow by
// number, because goroutines return from Acquire in any order, and so do tickets that expire at the same time.
func (s *script) inOrder(all []modelOutcome) (ordered []modelOutcome) {
	var others []modelOutcome
	for _, o := range all {
		if o.what == "granted" && s.tickets[o.id] != (pacer.Ticket{}) {
			ordered = append(ordered, o)
		} else {
			others = append(others, o)
		}
	}
	slices.SortFunc(others, func(a, b modelOutcome) int { return a.id - b.id })
	return append(ordered, others...)
}

func (s *script) call() {
	switch n := s.rand.IntN(20); {
	case n < 9:
		s.enqueue()
	case n < 12:
		s.acquire()
	case n < 15:
		s.cancel()
	case n < 17:
		s.settle()
	case n < 18:
		weight := int64(1) << s.rand.IntN(4)
		key := s.key()
		if err := s.p.SetWeight(key, weight); err != nil {
			s.t.Fatal(err)
		}
		s.m.weights[key] = weight
	case n < 19 && s.rand.IntN(4) == 0:
		s.setLimit()
	}
}

func (s *script) enqueue() {
	id := len(s.tickets)
	t := &modelTicket{id: id, key: s.key(), cost: 1 + s.rand.Int64N(s.m.units)}
	if s.rand.IntN(2) == 0 {
		t.cost = 1
	}
	wait := pacer.Forever
	if s.rand.IntN(2) == 0 {
		wait = time.Duration(1+s.rand.IntN(30))*grid - 1 // a ticket expires after its wait, so at a point of the grid
		t.deadline = s.now + wait
	}
	earliest := s.m.earliest(t.key, t.cost)
	w := pacer.WakerFunc(func(p pacer.Permit, err error) { s.woken(id, p, err) })
	ticket, err := s.p.Enqueue(t.key, t.cost, wait, w)
	s.tickets = append(s.tickets, ticket)
	if !s.refused(err, t, earliest) {
		if got := time.Duration(ticket.Earliest.UnixNano()); got != earliest {
			s.t.Fatalf("a ticket says %s at the earliest, want %s", got, earliest)
		}
		s.m.add(t)
	}
	s.compare("Enqueue", s.m.serve())
}

// refused reports whether a request is refused with a LateError, and fails the test if the model says otherwise.
func (s *script) refused(err error, t *modelTicket, earliest time.Duration) bool {
	s.t.Helper()
	var late *pacer.LateError
	if errors.As(err, &late) {
		if t.deadline == 0 || earliest <= t.deadline {
			s.t.Fatalf("refused a cost of %d that could be granted after %s, and may wait %s", t.cost, earliest-s.now,
				t.deadline-s.now)
		}
		if late.Late != earliest-t.deadline || !errors.Is(err, context.DeadlineExceeded) {
			s.t.Fatalf("refused by %#v, want %s too late", late, earliest-t.deadline)
		}
		return true
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if t.deadline != 0 && earliest > t.deadline {
		s.t.Fatalf("not refused: a cost of %d that cannot be granted within %s", t.cost, t.deadline-s.now)
	}
	return false
}

// acquire calls Acquire in a goroutine.
func (s *script) acquire() {
	id := len(s.tickets)
	s.tickets = append(s.tickets, pacer.Ticket{})
	t := &modelTicket{id: id, key: s.key(), cost: 1 + s.rand.Int64N(s.m.units)}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancels[id] = cancel
	go func() {
		p, err := s.p.Acquire(ctx, t.key, t.cost)
		s.woken(id, p, err)
	}()
	synctest.Wait()
	s.m.add(t)
	s.compare("Acquire", s.m.serve())
}

// cancel cancels one of the latest requests, which may have had its turn.
func (s *script) cancel() {
	if len(s.tickets) == 0 {
		return
	}
	id := len(s.tickets) - 1 - s.rand.IntN(min(len(s.tickets), 10))
	if cancel := s.cancels[id]; cancel != nil {
		var want []modelOutcome
		if s.m.remove(id) {
			want = append(want, modelOutcome{id, "canceled"})
		}
		cancel()
		s.compare("the end of a context", append(want, s.m.serve()...))
		return
	}
	got, want := s.p.Cancel(s.tickets[id]), s.m.remove(id)
	if got != want {
		s.t.Fatalf("Cancel = %t, want %t", got, want)
	}
	s.compare("Cancel", s.m.serve())
}

func (s *script) settle() {
	if len(s.permits) == 0 {
		return
	}
	p := s.permits[max(0, len(s.permits)-1-s.rand.IntN(4))]
	cost := p.Cost()
	spent := s.rand.Int64N(cost + 1)
	if p.Settle(spent); cost > spent {
		s.m.giveBack(cost-spent, p.window, p.opened)
	}
	if p.Cost() != spent {
		s.t.Fatalf("a permit that was settled at %d has %d", spent, p.Cost())
	}
	s.compare("Settle", s.m.serve())
}

func (s *script) setLimit() {
	units, period := 1+s.rand.Int64N(12), s.m.period
	if s.rand.IntN(3) == 0 {
		period = time.Duration(10+s.rand.IntN(20)) * grid
	}
	if err := s.p.SetLimit(pacer.Limit{Units: units, Period: period}); err != nil {
		s.t.Fatal(err)
	}
	s.m.setLimit(units, period)
	s.compare("SetLimit", s.m.serve())
}

// A pacer does what a model does, for random calls in random order: who is served, in which order and when, who is
// refused, and who expires. The model is asked at each point of the grid, and the pacer acts by its own timer. So the
// test finds a timer that is late or keeps an old time.
func TestModel(t *testing.T) {
	for seed := range soak.Times(uint64(60)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 23))
				g := pacer.Guard{ClockError: time.Duration(random.IntN(3)) * grid,
					MaxDelay: time.Duration(random.IntN(3)) * grid}
				l := pacer.Limit{Units: 1 + random.Int64N(12), Period: time.Duration(10+random.IntN(20)) * grid}
				s := &script{t: t, rand: random, now: time.Duration(time.Now().UnixNano()),
					p:       open(t, pacer.Config{Limit: l, Guard: g}),
					m:       newModel(l.Units, l.Period, g.ClockError, g.ClockError+g.MaxDelay),
					cancels: map[int]context.CancelFunc{}}
				s.m.now = s.now
				for range 600 {
					s.step()
				}
				s.p.Close()
			})
		})
	}
}
