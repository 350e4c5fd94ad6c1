package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// ErrLong is the error of a figure that a short run does not measure.
var ErrLong = errors.New("takes minutes, and is not in a short run")

// localStackRun is a run of localstack/integration, whose tests print what they measured.
type localStackRun struct {
	once    sync.Once
	args    []string
	figures map[string]float64
	err     error
}

var (
	localStackCold = localStackRun{args: []string{"--cold"}}
	localStackWarm = localStackRun{} // what has to be installed is installed by the run before
	localStackPart = localStackRun{args: []string{"-run", "^(TestPropagation|TestThroughput)$"}}
	localStackOnce sync.Once
)

// localStackFigure is what a run of the integration tests prints of that name.
func localStackFigure(name string) func(short bool) (Result, error) {
	return func(short bool) (Result, error) {
		var r Result
		if short {
			return r, fmt.Errorf("%w: make integration prints it", ErrLong)
		}
		run := &localStackPart
		switch {
		case name == "localstack_cold_s":
			run = &localStackCold
		case name == "localstack_warm_s":
			run = &localStackWarm
			localStackOnce.Do(func() { run.err = install() })
		case localStackWarm.figures != nil: // it has them all
			run = &localStackWarm
		}
		run.once.Do(run.measure)
		if run.err != nil {
			return r, run.err
		}
		value, ok := run.figures[name]
		if !ok {
			return r, fmt.Errorf("localstack/integration printed no %s", name)
		}
		r.Value = value
		return r, nil
	}
}

// install has everything there that a warm run finds there.
func install() error {
	var said bytes.Buffer
	cmd := exec.Command(filepath.Join(tree(), "localstack", "with"), "true") //nolint:gosec // a path of this process's own
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("localstack/with: %w\n%s", err, said.String())
	}
	return nil
}

func (l *localStackRun) measure() {
	if l.err != nil {
		return
	}
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(tree(), "localstack", "integration"), l.args...) //nolint:gosec // a path of this process's own
	cmd.Stdout, cmd.Stderr = &out, io.MultiWriter(&out, os.Stderr)
	err := cmd.Run()
	if err != nil {
		l.err = fmt.Errorf("localstack/integration: %w\n%s", err, out.String())
		return
	}
	l.figures = readFigures(out.String())
}

// readFigures are the values of the lines "figure NAME VALUE ..." in a text.
func readFigures(text string) map[string]float64 {
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "figure" {
			continue
		}
		if v, err := strconv.ParseFloat(f[2], 64); err == nil {
			all[f[1]] = v
		}
	}
	return all
}
