package resilience_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// patientSpec returns the configuration for tests in which no call may fail, however busy the machine is.
func patientSpec(addr string) spec {
	return spec{Addr: addr, Deadline: patient, Goroutines: goroutines, Pause: 4 * time.Millisecond,
		Cooldown: 200 * time.Millisecond, Instances: 50}
}

// wantNoFailedCalls fails the test if a call to the store has failed.
func wantNoFailedCalls(t *testing.T, reports []report) {
	t.Helper()
	for i := range reports {
		if r := &reports[i]; r.Failed > 0 || r.Fallback.Failures > 0 || r.Breaker.Opened > 0 {
			t.Errorf("process %d: %d calls failed, %+v, %+v; want none", i, r.Failed, r.Fallback, r.Breaker)
		}
	}
}

// admittedByWindow returns the units that all processes together admitted in each window of the tenant turning.
func admittedByWindow(reports []report) map[int64]int64 {
	by := make(map[int64]int64)
	for i := range reports {
		for at, a := range reports[i].Spent[turning] {
			by[at/int64(turns/time.Second)] += a.Store + a.Without
		}
	}
	return by
}

// wantWithin fails the test if more units than the limit were admitted in a window of the tenant turning.
func wantWithin(t *testing.T, by map[int64]int64) {
	t.Helper()
	for w, units := range by {
		if units > turnUnits {
			t.Errorf("window %d: %d units are admitted, want at most %d", w, units, turnUnits)
		}
	}
}

// Guarantees that no decision fails if the server repeatedly forgets its scripts under load, and that each unit is
// counted once.
func TestScriptsFlushed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	all := start(t, instances, patientSpec(server.Addr))
	commandAll(all, "load %s", strings.Join(append([]string{open, closed}, backstopped...), ","))
	flushed := 0
	pollUntil(all, "while scripts are flushed", func(_ int, r *report) bool {
		if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		flushed++
		return flushed >= 60 && r.Asked >= 100
	})
	commandAll(all, "halt")
	commandAll(all, "spend %s", year)
	ended := commandAll(all, "close")
	wantNoViolations(t, ended)
	wantNoFailedCalls(t, ended)
	bounded(t, ended, 0)
	used, _ := look(t, openPlain(t, server.Addr), year)
	if sum := sumOf(ended, year).Store; sum != used || sum > yearUnits {
		t.Errorf("%d units are admitted, the store counts %d; want them equal, and at most %d", sum, used, yearUnits)
	}
	t.Logf("%d flushes; %d admitted and counted", flushed, used)
}

// Guarantees that the leases of a killed process are lost for their window, that no limit is exceeded, and that the
// other processes have the whole next window.
func TestKilledWithLeases(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := start(t, instances, patientSpec(server.Addr))
	others := all[1:]
	commandAll(all, "load %s,%s", year, turning)
	pollUntil(all, "under load", func(_ int, r *report) bool { return r.sum(year).Store >= 50 && r.Lease.Units > 0 })
	last := commandAll(all[:1], "halt")[0]
	all[0].Kill()
	died := last.latest(turning)
	commandAll(others, "halt")
	commandAll(others, "spend %s", year)
	var ended []report
	mustFinish(t, func() error {
		ended = append(commandAll(others, "spend %s", turning), last)
		by := admittedByWindow(ended)
		for w, units := range by {
			if w > died && units == turnUnits {
				return nil
			}
		}
		return fmt.Errorf("windows after %d: %v, want one with all %d units", died, by, turnUnits)
	})
	ended = append(commandAll(others, "close"), last)
	wantNoViolations(t, ended)
	wantNoFailedCalls(t, ended)
	wantWithin(t, admittedByWindow(ended))
	used, _ := look(t, openPlain(t, server.Addr), year)
	sum := sumOf(ended, year).Store
	if lost := used - sum; lost < 0 || lost > last.Lease.Units {
		t.Errorf("%d units are admitted, the store counts %d; want it to count at most %d more, the units that the "+
			"killed process had leased", sum, used, last.Lease.Units)
	} else {
		t.Logf("%d admitted of %d; %d lost with the process, which had %d", sum, yearUnits, lost, last.Lease.Units)
	}
	if used > yearUnits {
		t.Errorf("the store counts %d, want at most %d", used, yearUnits)
	}
}

// latest returns the last window of the tenant turning in which this process admitted units.
func (r *report) latest(tenant string) int64 {
	last := int64(0)
	for at := range r.Spent[tenant] {
		last = max(last, at/int64(turns/time.Second))
	}
	return last
}

// Guarantees that a process that is frozen with leases, and goes on after their window has ended, spends none of them:
// another process has spent the whole next window by then.
func TestFrozenWithLeases(t *testing.T) {
	for _, underLoad := range []bool{false, true} {
		t.Run(fmt.Sprintf("under load %v", underLoad), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			store := openPlain(t, server.Addr)
			all := start(t, 2, patientSpec(server.Addr))
			frozen, other := all[0], all[1]
			var before report
			mustFinish(t, func() error { // the window may end in between
				frozen.send("load %s", turning)
				frozen.readReport()
				pollUntil(all[:1], "with leases", func(_ int, r *report) bool { return r.Lease.Units >= 50 })
				if !underLoad {
					frozen.send("halt")
					frozen.readReport()
				}
				frozen.send("report")
				if before = frozen.readReport(); before.Lease.Units >= 20 {
					return nil
				}
				frozen.send("halt")
				frozen.readReport()
				return errors.New("the window ended")
			})
			if err := frozen.Freeze(); err != nil {
				t.Fatal(err)
			}
			window := before.latest(turning)
			full := int64(0)
			mustFinish(t, func() error {
				if _, now := look(t, store, turning); now.Unix()/int64(turns/time.Second) <= window {
					return errors.New("the window is open")
				}
				other.send("spend %s", turning)
				r := other.readReport()
				by := admittedByWindow([]report{r})
				if full = r.latest(turning); full <= window || by[full] < turnUnits {
					return fmt.Errorf("%v: the next window is not spent", by)
				}
				return nil
			})
			frozen.send("spend %s", turning)
			if err := frozen.Thaw(); err != nil {
				t.Fatal(err)
			}
			frozen.readReport()
			ended := commandAll(all, "close")
			wantNoViolations(t, ended)
			wantNoFailedCalls(t, ended)
			by := admittedByWindow(ended)
			wantWithin(t, by)
			if by[full] != turnUnits {
				t.Errorf("window %d: %d units are admitted, want %d, all of them by the other process", full, by[full],
					turnUnits)
			}
			t.Logf("frozen in window %d with %d units, thawed in %d; admitted by window %v", window,
				before.Lease.Units, full, by)
		})
	}
}

// Guarantees that a half-open breaker makes one call at a time, however many decisions there are: each instance has one
// probe.
func TestOneProbe(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := start(t, instances, spec{Addr: server.Addr, Deadline: deadline, Goroutines: 16, Pause: 4 * time.Millisecond,
		Cooldown: 50 * time.Millisecond, Instances: 50})
	commandAll(all, "load %s,%s", closed, second)
	pollUntil(all, "under load", func(_ int, r *report) bool { return r.Asked >= 20 })
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	away := pollUntil(all, "with a frozen server", func(_ int, r *report) bool { return r.Breaker.Probes >= 5 })
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	pollUntil(all, "with the server again", func(_ int,
		r *report) bool {
		return r.Breaker.State == breaker.Closed
	})
	ended := commandAll(all, "close")
	wantNoViolations(t, ended)
	for i := range ended {
		if ended[i].ProbesAtOnce != 1 {
			t.Errorf("process %d: %d concurrent probes, want one", i, ended[i].ProbesAtOnce)
		}
		t.Logf("process %d: %d probes, %d calls refused meanwhile", i, away[i].Breaker.Probes, away[i].Breaker.Refused)
	}
}
