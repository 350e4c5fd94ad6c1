package resilience_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// patient is how long tests wait for an event, on a busy machine.
const patient = 30 * time.Second

// child is an instance in a process of its own.
type child struct {
	*redistest.Process
	t      *testing.T
	in     *os.File
	out    *os.File
	answer *json.Decoder
	stderr string
}

// start starts instances, one after the other, so that each has counted those before it.
func start(t *testing.T, n int, s spec) []*child {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var all []*child
	for range n {
		c := &child{t: t, stderr: filepath.Join(t.TempDir(), "stderr")}
		stdin, in, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		out, stdout, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		stderr, err := os.Create(c.stderr)
		if err != nil {
			t.Fatal(err)
		}
		c.in, c.out, c.answer = in, out, json.NewDecoder(out)
		c.Process, err = redistest.Run(stdin, stdout, stderr, append(os.Environ(), childEnv+"="+string(text)),
			os.Args[0])
		if err := errors.Join(err, stdin.Close(), stdout.Close(), stderr.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			c.Kill()
			if said, err := os.ReadFile(c.stderr); err != nil || len(said) > 0 {
				t.Errorf("a process has written to its standard error, want nothing: %s %v", said, err)
			}
			_ = c.in.Close()
			_ = c.out.Close()
		})
		c.readReport()
		all = append(all, c)
	}
	return all
}

// send sends a command. readReport returns its answer.
func (c *child) send(format string, args ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.in, format+"\n", args...); err != nil {
		c.t.Fatal(err)
	}
}

func (c *child) readReport() report {
	c.t.Helper()
	var r report
	err := c.out.SetReadDeadline(time.Now().Add(2 * patient))
	if err == nil {
		err = c.answer.Decode(&r)
	}
	if err != nil {
		said, _ := os.ReadFile(c.stderr)
		c.t.Fatalf("a process does not answer: %v\n%s", err, said)
	}
	return r
}

// commandAll sends a command to all of them, and returns their answers.
func commandAll(all []*child, format string, args ...any) []report {
	for _, c := range all {
		c.t.Helper()
		c.send(format, args...)
	}
	var reports []report
	for _, c := range all {
		reports = append(reports, c.readReport())
	}
	return reports
}

// pollUntil asks all of them repeatedly, until ok accepts each report.
func pollUntil(all []*child, what string, ok func(i int, r *report) bool) []report {
	t := all[0].t
	t.Helper()
	var reports []report
	mustFinish(t, func() error {
		reports = commandAll(all, "report")
		for i := range reports {
			if r := &reports[i]; !ok(i, r) {
				return fmt.Errorf("%s: process %d: %d decisions, %d calls, %d failed, breaker %+v, fallback %+v, "+
					"leases %+v, wrong %q",
					what, i, r.Decisions, r.Asked, r.Failed, r.Breaker, r.Fallback, r.Lease, r.Wrong)
			}
		}
		return nil
	})
	return reports
}

func mustFinish(t *testing.T, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	if err := redistest.Until(ctx, f); err != nil {
		t.Fatal(err)
	}
}

// sumOf returns the sum over a tenant's requests in all processes.
func sumOf(reports []report, tenant string) (all admitted) {
	for i := range reports {
		a := reports[i].sum(tenant)
		all.Store += a.Store
		all.Without += a.Without
	}
	return all
}

// wantNoViolations fails the test if a process reports a violation of a guarantee.
func wantNoViolations(t *testing.T, reports []report) {
	t.Helper()
	for i := range reports {
		r := &reports[i]
		for _, w := range r.Wrong {
			t.Errorf("process %d reports: %s", i, w)
		}
		for tenant := range r.Spent {
			name := tenant
			if tenant == address {
				name = everyone[address].Owner.Name
			}
			if got, granted := r.sum(tenant).Store, r.Granted[name]; got > granted {
				t.Errorf("process %d: %d units of %s are admitted as if by the store, but the store granted only %d",
					i, got, tenant, granted)
			}
		}
		// the last probe may find no request
		if r.ProbesAtOnce > 1 || r.Probed > r.Breaker.Probes || r.Probed < r.Breaker.Probes-1 {
			t.Errorf("process %d: %d calls while probing, %d of them concurrent; want %d, one at a time", i, r.Probed,
				r.ProbesAtOnce, r.Breaker.Probes)
		}
	}
}

var everyone = func() map[string]*limit.Request {
	all, err := requests()
	if err != nil {
		panic(err)
	}
	return all
}()

// openPlain returns a store without a chain, to peek at the counters independently of the processes.
func openPlain(t *testing.T, addr string) *redis.Store {
	t.Helper()
	s, err := redis.New(t.Context(), redis.Config{Addrs: []string{addr}, Deadline: patient})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// look returns what the store counts of a tenant's first limit, and its clock.
func look(t *testing.T, s limit.Store, tenant string) (used int64, now time.Time) {
	t.Helper()
	var d limit.Decision
	if err := s.Peek(t.Context(), everyone[tenant], time.Now(), &d); err != nil {
		t.Fatal(err)
	}
	return d.Results[0].Used(), time.UnixMicro(d.Now)
}
