package redis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

const (
	streams  = 50  // of each process, at once
	estimate = 100 // tokens, at least what a stream uses
	budget   = streams * processes / 10 * estimate
)

func budgetLimit() (*limit.Limit, error) {
	return limit.New(limit.Limit{ID: "tokens", Unit: "tokens", MaxCost: estimate,
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: budget, Period: 24 * time.Hour}}})
}

// spendBudget runs streams, and prints a line after each reservation ("r") and before each settlement ("s USED"). With
// "reserve" each of them reserves for one call after the other, until the budget denies it. So it is with "die", but
// the first five calls never end. With "later" each stream is one call that is charged when it has ended, if anything
// was left when it began; a line "p" says that all have begun, and they end with the standard input.
func spendBudget(args []string) error {
	l, err := budgetLimit()
	if err != nil {
		return err
	}
	s, err := redis.New(context.Background(), redis.Config{Addrs: args[2:], Deadline: patient})
	if err != nil {
		return err
	}
	defer s.Close()
	s.SetSpace(args[1])
	s.UseCallerClock()
	var wg, begun sync.WaitGroup
	var stuck atomic.Int64
	begun.Add(streams)
	stuck.Store(streams)
	if args[0] == "die" {
		stuck.Store(0)
	}
	errs, end := make(chan error, streams), make(chan struct{})
	for range streams {
		wg.Go(func() {
			if args[0] == "later" {
				errs <- lateStream(s, l, &begun, end)
			} else {
				errs <- reservedStreams(s, l, func() bool { return stuck.Add(1) <= stuckCalls })
			}
		})
	}
	if args[0] == "later" {
		begun.Wait()
		fmt.Fprintln(os.Stdout, "p")
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(end)
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// stuckCalls is how many calls of the process that is killed never end.
const stuckCalls = 5

// reservedStreams reserves for one call after the other, and settles each to what it used.
func reservedStreams(s *redis.Store, l *limit.Limit, isStuck func() bool) error {
	req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: estimate}}}
	for {
		var d limit.Decision
		if err := s.Decide(context.Background(), req, noon, &d); err != nil || !d.Allowed {
			return err
		}
		fmt.Fprintln(os.Stdout, "r")
		if isStuck() {
			select {}
		}
		used := rand.Int64N(estimate + 1)
		fmt.Fprintln(os.Stdout, "s", used)
		r := d.Receipt()
		r.KeepFor(time.Hour)
		if _, err := s.Settle(context.Background(), r, []int64{used}, noon); err != nil {
			return err
		}
	}
}

// lateStream looks whether anything is left, and charges what it used at the end.
func lateStream(s *redis.Store, l *limit.Limit, begun *sync.WaitGroup, end <-chan struct{}) error {
	var d limit.Decision
	req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: 1}}}
	err := s.Peek(context.Background(), req, noon, &d)
	begun.Done()
	<-end
	if err != nil || !d.Allowed {
		return err
	}
	used := rand.Int64N(estimate + 1)
	req.Leases = []limit.LeaseRequest{{Correction: used, CorrectionAt: limit.AtDecision}}
	fmt.Fprintln(os.Stdout, "s", used)
	return s.Decide(context.Background(), req, noon, &d)
}

// spender is a process that runs spendBudget, and what it has printed.
type spender struct {
	*exec.Cmd
	in                      io.Closer
	lines                   *bufio.Scanner
	reserved, settled, used int64
}

func spawn(t *testing.T, how, space, addr string) *spender {
	p := &spender{Cmd: exec.CommandContext(t.Context(), os.Args[0])}
	p.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", childEnv, how, space, addr))
	p.Stderr = os.Stderr
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.lines = in, bufio.NewScanner(out)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// read reads the next line. It returns false at the end.
func (p *spender) read(t *testing.T) bool {
	if !p.lines.Scan() {
		return false
	}
	used := int64(0)
	switch text := p.lines.Text(); {
	case text == "r":
		p.reserved++
	case strings.HasPrefix(text, "s "):
		if _, err := fmt.Sscanf(text, "s %d", &used); err != nil {
			t.Error(err)
		}
		p.settled++
		p.used += used
	}
	return true
}

// Guarantees that 200 streams in four processes, one of which is killed, never use more than a budget for 20 of them if
// each reserves what it uses at most, and that nothing of the budget is lost but what the killed process had reserved.
// The log says what the same streams use if they are charged when they have ended.
func TestBudgetProcesses(t *testing.T) {
	addr, space := address(t), newSpace()
	dying := spawn(t, "die", space, addr)
	for dying.reserved < stuckCalls && dying.read(t) {
	}
	all := []*spender{dying}
	var others sync.WaitGroup
	for range processes - 1 {
		p := spawn(t, "reserve", space, addr)
		all = append(all, p)
		others.Go(func() {
			p.read(t)
			_ = dying.Process.Kill() // the first of the others kills it, when it has begun
			for p.read(t) {
			}
			if err := p.Wait(); err != nil || p.reserved != p.settled {
				t.Errorf("a process ended with %v, and settled %d of %d reservations", err, p.settled, p.reserved)
			}
		})
	}
	for dying.read(t) {
	}
	if err := dying.Wait(); err == nil {
		t.Error("the process that was to be killed has ended before")
	}
	others.Wait()
	used, unsettled := int64(0), dying.reserved-dying.settled
	for _, p := range all {
		used += p.used
	}
	if used+unsettled*estimate > budget {
		t.Errorf("%d tokens were used, and %d are reserved, of a budget of %d", used, unsettled*estimate, budget)
	}
	l, err := budgetLimit()
	if err != nil {
		t.Fatal(err)
	}
	s := openAt(t, redis.Config{Addrs: []string{addr}})
	s.SetSpace(space)
	var d limit.Decision
	req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: 1}}}
	if err := s.Peek(t.Context(), req, noon, &d); err != nil {
		t.Fatal(err)
	}
	// What the killed process did in its last moment, nobody knows: of each of its streams at most one step.
	counted := d.Results[0].Used()
	if least, most := used+stuckCalls*estimate, used+(unsettled+streams)*estimate; counted < least || counted > most {
		t.Errorf("the counter holds %d tokens, want %d to %d", counted, least, most)
	}
	if left := budget - counted; left >= estimate {
		t.Errorf("%d tokens are left, and streams were denied that reserve %d", left, estimate)
	}

	var late []*spender
	for range processes {
		late = append(late, spawn(t, "later", space+"later.", addr))
	}
	for _, p := range late {
		p.read(t) // they have all begun
	}
	later := int64(0)
	for _, p := range late {
		_ = p.in.Close()
		for p.read(t) {
		}
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
		later += p.used
	}
	t.Logf("with reservations %d of %d tokens were used; charged later, %.1f times the budget", used, budget,
		float64(later)/budget)
}

// Guarantees that a settlement whose refund is refused, because a pack is of another version, charges nothing either:
// its caller settles again, and each time would charge once more.
func TestRefusedSettlementChargesNothing(t *testing.T) {
	server := redistest.Start(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	s.SetSpace(newSpace())
	window := []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 100, Period: time.Hour}}
	over := limit.Charge{Limit: build(t, limit.Limit{ID: "over", MaxCost: 100, Tiers: window}), Cost: 10}
	under := limit.Charge{Limit: build(t, limit.Limit{ID: "under", Per: "subject", MaxCost: 100, Tiers: window}),
		Value: limit.ValueOf("u"), Cost: 10}
	r, err := charged(t, s, []limit.Charge{over, under}, 10, noon)
	if err != nil {
		t.Fatal(err)
	}
	client := server.Client(t)
	keys, err := client.Keys(t.Context(), "*under*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if value, err := client.Get(t.Context(), key).Result(); err == nil && strings.HasPrefix(value, "SLU") {
			if err := client.Set(t.Context(), key, "SLU9"+value[4:], time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		if _, err := s.Settle(t.Context(), r, []int64{15, 5}, noon); !errors.Is(err, limit.ErrUnreadable) {
			t.Errorf("Settle: %v, want ErrUnreadable", err)
		}
	}
	if used := usedUnits(t, s, []limit.Charge{over}, noon)[0]; used != 10 {
		t.Errorf("%d units are used, want the 10 of the decision", used)
	}
}
