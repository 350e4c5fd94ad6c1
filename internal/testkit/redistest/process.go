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

// Process is a process that a test may freeze and must kill. A shell stands between the test and the process, and ends
// it when the shell's standard input closes. The process therefore ends with the test's own process, however that ends,
// even if frozen.
type Process struct {
	mu      sync.Mutex
	control io.WriteCloser // the shell's standard input: a signal a line
	heard   *bufio.Reader  // what the shell says of it
	done    chan struct{}
}

// $1 is the program. Its standard input is the shell's 4, so that the shell's own is free for signals. The shell lets
// go of the program's output: who reads that sees when the program ends.
const keeper = `"$@" <&4 3>&- 4<&- & p=$!; exec 4<&- >/dev/null 2>&1
while read -r s; do
  kill -"$s" $p
  while [ "$s" = STOP ] && [ -r /proc/$p/stat ] && ! grep -q ') [TZ] ' /proc/$p/stat; do sleep 0.01; done
  echo $s >&3
done
kill -9 $p; wait`

// Run starts a program. stdin, stdout and stderr may be nil; the caller keeps its ends of them.
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
		_ = cmd.Wait() // it always ends by a signal
		_ = heard.Close()
	}()
	return p, nil
}

// Freeze stops the process with SIGSTOP, and returns when it has stopped, where /proc tells. The kernel still accepts
// its connections, and nobody answers.
func (p *Process) Freeze() error { return p.signal("STOP") }

// Thaw lets a frozen process continue with SIGCONT.
func (p *Process) Thaw() error { return p.signal("CONT") }

// Terminate asks the process to end, with SIGTERM. Who reads its output sees when it has.
func (p *Process) Terminate() error { return p.signal("TERM") }

// signal returns when the signal was sent.
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
