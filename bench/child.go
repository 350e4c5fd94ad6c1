package bench

import (
	"encoding/gob"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/sluicelimits/sluice/internal/testkit/standin"
)

// childVar is the environment variable that makes a process a child. Its value is a key of childMains.
const childVar = "SLUICE_BENCH_CHILD"

// childMains holds the main function of each kind of child. It reads messages of its parent and writes its answers.
var childMains = map[string]func(from *gob.Decoder, to *gob.Encoder) error{
	"workload": workloadChild,
	"hot":      hotChild,
	"rls":      rlsChild,
	"proxy":    proxyChild,
}

// Main does the work of a child, if the process is one, and then does not return. Every program that measures figures
// calls Main first, because the children are the same program.
func Main() {
	standin.Main(pollingPeers)
	child := childMains[os.Getenv(childVar)]
	if child == nil {
		return
	}
	if err := child(gob.NewDecoder(os.Stdin), gob.NewEncoder(os.Stdout)); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Getenv(childVar), err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a process of this program that takes part in a measurement. It ends when its input ends.
type child struct {
	cmd  *exec.Cmd
	in   io.Closer
	to   *gob.Encoder
	from *gob.Decoder
}

// startChild starts a child and sends it its first message.
func startChild(kind string, order any) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program) //nolint:gosec // this program, from no input
	cmd.Env, cmd.Stderr = append(os.Environ(), childVar+"="+kind), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, in: in, to: gob.NewEncoder(in), from: gob.NewDecoder(out)}
	if err := c.to.Encode(order); err != nil {
		c.close()
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return c, nil
}

// close ends the child's input and waits for its end. How it ended does not matter: its answers have arrived.
func (c *child) close() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
}
