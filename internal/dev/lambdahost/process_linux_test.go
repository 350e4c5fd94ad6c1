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

// processState is the letter that Linux has for a process: T where it is stopped, X where it is gone or nobody waits
// for it.
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

// An idle environment on Lambda does not run, whatever its goroutines wait for: leases and clocks must survive it here,
// too.
func TestIdleEnvironmentsAreFrozen(t *testing.T) {
	for _, freeze := range []bool{true, false} {
		t.Run(fmt.Sprint(freeze), func(t *testing.T) {
			h := start(t, ordinary, func(c *lambdahost.Config) { c.Freeze, c.Environments = freeze, 2 })
			g := newGate(t)
			pid := served(t, h, order{}).PID
			for range 3 {
				eventually(t, "it is idle", idle(h, 1))
				if e := h.Stats().Environments[0]; e.Frozen != freeze {
					t.Fatalf("an idle environment: %+v", e)
				}
				if freeze {
					eventually(t, "it is stopped", func() bool { return processState(t, pid) == 'T' })
				}
				held := g.hold(h)
				if s := processState(t, pid); s == 'T' || h.Stats().Environments[0].Frozen {
					t.Errorf("in mid-call the state is %c", s)
				}
				g.open <- struct{}{}
				if r := <-held; r.err != nil || r.PID != pid {
					t.Errorf("the call = %+v, want it served by %d", r, pid)
				}
			}
			eventually(t, "it is idle", idle(h, 1))
			if s := processState(t, pid); !freeze && s == 'T' {
				t.Errorf("without Freeze the state is %c", s)
			}
		})
	}
}

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
			t.Errorf("process %d is not there before", pid)
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
