package localstack_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/localstack/stand"
)

// loseState returns what starts LocalStack anew, without any of its state. The test is skipped, or fails where
// REQUIRE_LOCALSTACK is set, where nothing can.
func loseState(t *testing.T, s *stand.Stand) func(context.Context) error {
	t.Helper()
	if command := os.Getenv("SLUICE_LOCALSTACK_RESTART"); command != "" {
		return func(ctx context.Context) error {
			out, err := exec.CommandContext(ctx, "bash", "-c", command).CombinedOutput()
			if err != nil {
				return fmt.Errorf("SLUICE_LOCALSTACK_RESTART: %w: %s", err, out)
			}
			return stand.Until(ctx, patience, pace, s.Answers)
		}
	}
	if s.Ours() {
		return func(ctx context.Context) error { return s.Up(ctx, "--fresh") }
	}
	const message = "this LocalStack was not started by localstack/up: SLUICE_LOCALSTACK_RESTART=COMMAND would say " +
		"how it is started without its state"
	if os.Getenv("REQUIRE_LOCALSTACK") != "" {
		t.Fatal(message)
	}
	t.Skip(message)
	return nil
}

// Guarantees that when everything is lost, tables, queues, functions and counters, no call is let through meanwhile, a
// key of before is worth nothing, and a new deploy with the plans applied again restores what was decided.
//
// It deploys the third cell, too, for TestLimitsUnderLoad, which comes after it by its file's name.
func TestStateLost(t *testing.T) {
	s := open(t)
	restart := loseState(t, s)
	name := unique("lost")
	ready := func() (k string) {
		apply(t, s, fmt.Sprintf("plans: [ { id: state-lost, limits: [ %s ] } ]\ntenants: [ { id: %s, plan: "+
			"state-lost } ]\n", exactLimit(period()), name))
		k = key(t, s, name)
		for _, c := range s.Cells() {
			known(t, s, c.ID, k)
		}
		return k
	}
	before := ready()
	exact(t, s, before)
	// Nothing is left of the limit: whatever is admitted from here on was admitted unchecked.
	l := calls(t, s, "PUT /product/1", before, 1, pace)
	for _, c := range s.Cells() {
		l.more(t, c.ID, 5)
	}
	began := time.Now()
	if err := restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Cells() {
		l.more(t, c.ID, 10)
	}
	l.stop()
	for _, c := range s.Cells() {
		var away, passed int
		for _, a := range l.of(c.ID) {
			switch {
			case admitted(a):
				passed++
			case a.status >= http.StatusInternalServerError:
				away++ // what API Gateway answers where there is no authorizer: no answer of Sluice's
			case !limits(a):
				t.Errorf("%s: %d %s %v", c.ID, a.status, a.body, a.err)
			}
		}
		if passed > 0 || away < 10 {
			t.Errorf("%s, whose limit was used up, admitted %d; %d calls found no authorizer, want 10 at least", c.ID,
				passed, away)
		}
	}

	if err := s.Deploy(t.Context(), thirdCell); err != nil {
		t.Fatal(err)
	}
	if err := s.Attach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckSkipped(t.Context()); err != nil {
		t.Error(err)
	}
	for _, c := range s.Cells() {
		within(t, func(ctx context.Context) error {
			a, err := s.Call(ctx, c.ID, "PUT /product/1", before)
			if err == nil && a.Status != http.StatusUnauthorized {
				err = fmt.Errorf("%s answers %d to a key that was lost: %s", c.ID, a.Status, a.Body)
			}
			return err
		})
	}
	exact(t, s, ready())
	t.Logf("deployed again and enforced after %.0f s", time.Since(began).Seconds())
	noneWaits(t, s)
	green(t, s)
}
