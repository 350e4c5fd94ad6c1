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

// restartWithoutState returns a function that restarts LocalStack without its state. If nothing can restart LocalStack,
// the test is skipped, or fails if REQUIRE_LOCALSTACK is set.
func restartWithoutState(t *testing.T, s *stand.Stand) func(context.Context) error {
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

// Guarantees that when all tables, queues, functions and counters are lost, no request is admitted meanwhile, an old
// key is refused, and a new deployment with the same plans enforces them again.
//
// The test also deploys the third cell for TestLimitsUnderLoad, which runs later because of the name of its file.
func TestStateLost(t *testing.T) {
	s := open(t)
	restart := restartWithoutState(t, s)
	name := unique("lost")
	ready := func() (k string) {
		apply(t, s, fmt.Sprintf("plans: [ { id: state-lost, limits: [ %s ] } ]\ntenants: [ { id: %s, plan: "+
			"state-lost } ]\n", exactLimit(period()), name))
		k = key(t, s, name)
		for _, c := range s.Cells() {
			waitUntilKeyIsKnown(t, s, c.ID, k)
		}
		return k
	}
	before := ready()
	exact(t, s, before)
	// The limit is used up, so any request that is admitted from here on was admitted without a check.
	l := calls(t, s, "PUT /product/1", before, 1, pace)
	for _, c := range s.Cells() {
		l.waitForMore(t, c.ID, 5)
	}
	began := time.Now()
	if err := restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Cells() {
		l.waitForMore(t, c.ID, 10)
	}
	l.stop()
	for _, c := range s.Cells() {
		var away, passed int
		for _, a := range l.attemptsAt(c.ID) {
			switch {
			case admitted(a):
				passed++
			case a.status >= http.StatusInternalServerError:
				away++ // an answer of API Gateway without an authorizer; Sluice did not answer
			case !limits(a):
				t.Errorf("%s: status %d, body %s, %v", c.ID, a.status, a.body, a.err)
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
	checkSkipped(t, s)
	for _, c := range s.Cells() {
		waitFor(t, func(ctx context.Context) error {
			a, err := s.Call(ctx, c.ID, "PUT /product/1", before)
			if err == nil && a.Status != http.StatusUnauthorized {
				err = fmt.Errorf("%s answers %d to a key that was lost: %s", c.ID, a.Status, a.Body)
			}
			return err
		})
	}
	exact(t, s, ready())
	t.Logf("deployed again and enforced after %.0f s", time.Since(began).Seconds())
	waitForEmptyQueues(t, s)
	wantNoBreaks(t, s)
}
