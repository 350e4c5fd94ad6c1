package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// Process is a process that a test may freeze and must kill. The test starts a shell, which starts the process and
// sends it signals. The shell kills the process when the shell's standard input is closed. Therefore the process ends
// when the test's own process ends in any way, even if the process is frozen.
type Process struct {
	mu      sync.Mutex
	control io.WriteCloser // the shell's standard input: a line for each signal
	heard   *bufio.Reader  // the shell confirms each signal with a line
	done    chan struct{}  // closed when the shell has ended
}

// keeper is the script of the shell. "$@" is the program with its arguments. The program's standard input is the
// shell's descriptor 4, because the shell's own standard input carries signals. The shell writes confirmations to
// descriptor 3. It closes its copies of the program's outputs, so that their reader sees an end when the program ends.
const keeper = `"$@" <&4 3>&- 4<&- & p=$!; exec 4<&- >/dev/null 2>&1
while read -r s; do
  kill -"$s" $p
  while [ "$s" = STOP ] && [ -r /proc/$p/stat ] && ! grep -q ') [TZ] ' /proc/$p/stat; do sleep 0.01; done
  echo $s >&3
done
kill -9 $p; wait`

// Run starts a program. stdin, stdout and stderr may be nil. The caller has to close the files that it gives.
func Run(stdin, stdout, stderr *os.File, env []string, program string, args ...string) (*Process, error) {
	if stdin == nil {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return nil, err
		}
		defer null.Close()
		stdin = null
	}
	heard, say, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer say.Close()
	cmd := exec.Command("sh", append([]string{"-c", keeper, "sh", program}, args...)...)
	cmd.Env, cmd.ExtraFiles = env, []*os.File{say, stdin}
	if stdout != nil {
		cmd.Stdout = stdout
	}
	if stderr != nil {
		cmd.Stderr = stderr
	}
	control, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, errors.Join(err, heard.Close()))
	}
	p := &Process{control: control, heard: bufio.NewReader(heard), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the exit status of the shell says nothing about the process
		_ = heard.Close()
	}()
	return p, nil
}

// Freeze stops the process with SIGSTOP. On systems with /proc it returns when the process has stopped. The kernel
// still accepts connections to the process, but the process does not answer.
func (p *Process) Freeze() error { return p.signal("STOP") }

// Thaw lets a frozen process continue with SIGCONT.
func (p *Process) Thaw() error { return p.signal("CONT") }

// Terminate asks the process to end, with SIGTERM. The end of the process closes its outputs.
func (p *Process) Terminate() error { return p.signal("TERM") }

// signal makes the shell send a signal, and returns when the signal was sent.
func (p *Process) signal(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := fmt.Fprintln(p.control, name); err != nil {
		return fmt.Errorf("signal %s: %w", name, err)
	}
	if _, err := p.heard.ReadString('\n'); err != nil {
		return fmt.Errorf("signal %s: %w", name, err)
	}
	return nil
}

// Kill ends the process with signal 9 and waits for it. It may be called again.
func (p *Process) Kill() {
	_ = p.control.Close()
	<-p.done
}
