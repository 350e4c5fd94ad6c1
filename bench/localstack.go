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
)

// ErrLong is the error of a figure that a short run does not measure.
var ErrLong = errors.New("takes minutes, so a short run does not measure it")

// localStackFigure runs the integration test of propagation, and returns the figure that the test prints.
func localStackFigure(short bool) (Result, error) {
	var r Result
	if short {
		return r, fmt.Errorf("%w: make integration prints it", ErrLong)
	}
	var out bytes.Buffer

	cmd := exec.Command(filepath.Join(tree(), "localstack", "integration"), //nolint:gosec // its own
		"-run", "^TestPropagation$", "-changes-each=6")
	cmd.Stdout, cmd.Stderr = &out, io.MultiWriter(&out, os.Stderr)
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("localstack/integration: %w\n%s", err, out.String())
	}
	for line := range strings.Lines(out.String()) {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == "figure" && f[1] == "localstack_propagation_p99_s" {
			var err error
			r.Value, err = strconv.ParseFloat(f[2], 64)
			return r, err
		}
	}
	return r, errors.New("localstack/integration printed no localstack_propagation_p99_s")
}
