package lambdahost_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/lambdahost"
)

// processState returns the state of a process as Linux names it: T if it is stopped, X if it has ended or is a zombie.
func processState(t *testing.T, pid int) byte {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 'X'
	}
	_, rest, _ := bytes.Cut(text, []byte(") "))
	if len(rest) == 0 || rest[0] == 'Z' {
		return 'X'
	}
	return rest[0]
}

// Guarantees that an idle environment is stopped, as on Lambda, even if its goroutines want to run: leases and clocks
// must cope with that.
func TestIdleEnvironmentsAreFrozen(t *testing.T) {
	for _, freeze := range []bool{true, false} {
		t.Run(fmt.Sprint(freeze), func(t *testing.T) {
			h := start(t, ordinary, func(c *lambdahost.Config) { c.Freeze, c.Environments = freeze, 2 })
			g := newGate(t)
			pid := served(t, h, order{}).PID
			for range 3 {
				eventually(t, "it is idle", hasIdle(h, 1))
				if e := h.Stats().Environments[0]; e.Frozen != freeze {
					t.Fatalf("an idle environment is %+v, want it stopped", e)
				}
				if freeze {
					eventually(t, "it is stopped", func() bool { return processState(t, pid) == 'T' })
				}
				held := g.startBlockedCall(h)
				if s := processState(t, pid); s == 'T' || h.Stats().Environments[0].Frozen {
					t.Errorf("the state of a process that serves a call is %c", s)
				}
				g.open <- struct{}{}
				if r := <-held; r.err != nil || r.PID != pid {
					t.Errorf("the call = %+v, want it served by process %d", r, pid)
				}
			}
			eventually(t, "it is idle", hasIdle(h, 1))
			if s := processState(t, pid); !freeze && s == 'T' {
				t.Errorf("without Freeze the state of an idle process is %c", s)
			}
		})
	}
}

// Guarantees that the processes of a host end when the host is killed.
func TestNoProcessOutlivesAHostThatIsKilled(t *testing.T) {
	host := exec.Command(os.Args[0])
	host.Env = append(os.Environ(), hostVar+"=1")
	out, err := host.StdoutPipe()
	if err == nil {
		err = host.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var frozen, hanging int
	if _, err := fmt.Fscan(bufio.NewReader(out), &frozen, &hanging); err != nil {
		t.Error(err)
	}
	for _, pid := range []int{frozen, hanging} {
		if processState(t, pid) == 'X' {
			t.Errorf("process %d did not run before the host was killed", pid)
		}
	}
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = host.Wait() // it was killed
	for _, pid := range []int{frozen, hanging} {
		eventually(t, fmt.Sprintf("process %d is gone", pid), func() bool { return processState(t, pid) == 'X' })
	}
}
