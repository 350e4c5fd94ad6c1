package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// synthesis is the templates that the CDK CLI makes of the deployment file that comes with Sluice.
type synthesis struct {
	took      []time.Duration  // how long each run took after the app was compiled, in ascending order
	resources map[string]int   // in the template of each stack
	bytes     map[string]int64 // of the template of each stack
}

// synthesize compiles the app and runs the CDK CLI on it. Compiling is not measured: in `make synth` it takes a minute
// the first time and a second from then on. The first run installs the CLI, builds the Lambda functions that are
// missing, and unpacks CDK's own code. After it come the given number of warm runs. The first run counts only if that
// is 0.
func synthesize(warm int) (*synthesis, error) {
	dir, err := os.MkdirTemp("", "sluice-synth")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	app, out := filepath.Join(dir, "app"), filepath.Join(dir, "out")
	build := exec.Command("go", "build", "-o", app, "./app") //nolint:gosec // a path of this process's own
	build.Dir = filepath.Join(tree(), "infra")
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build ./app: %w\n%s", err, text)
	}
	began := time.Now()
	if err := cdk("--lambdas", "missing", "synth", "--quiet", "--app", app, "--output", out); err != nil {
		return nil, err
	}
	s := &synthesis{resources: map[string]int{}, bytes: map[string]int64{}}
	if warm == 0 {
		s.took = append(s.took, time.Since(began))
	}
	for range warm {
		if err := os.RemoveAll(out); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := cdk("synth", "--quiet", "--app", app, "--output", out); err != nil {
			return nil, err
		}
		s.took = append(s.took, time.Since(began))
	}
	slices.Sort(s.took)
	return s, s.read(out)
}

// coldSynthFigure measures how long `make synth` takes the first time, when it compiles the app and every Lambda
// function with an empty build cache. The Go modules and the CDK CLI are installed already.
func coldSynthFigure(short bool) (r Result, err error) {
	if short {
		return r, ErrLong
	}
	if err := cdk("--version"); err != nil { // installs the CLI
		return r, err
	}
	dir, err := os.MkdirTemp("", "sluice-synth-cold")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	began := time.Now()
	if err := cdkIn([]string{"GOCACHE=" + filepath.Join(dir, "cache"), "SLUICE_LAMBDAS=" + filepath.Join(dir,
		"lambdas")},
		"--lambdas", "missing", "synth", "--quiet", "--output", filepath.Join(dir, "out")); err != nil {
		return r, err
	}
	r.Value = time.Since(began).Seconds()
	return r, nil
}

func cdk(args ...string) error { return cdkIn(nil, args...) }

// cdkIn runs scripts/cdk with the environment of this process and the given additional variables.
func cdkIn(env []string, args ...string) error {
	cmd := exec.Command(filepath.Join(tree(), "scripts", "cdk"), args...) //nolint:gosec // paths of this process's own
	cmd.Env = append(append(os.Environ(), "DEPLOYMENT="), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("scripts/cdk %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// resource is the part of a template's resource that is checked.
type resource struct{ Type string }

// read counts the resources and bytes of the templates in a folder.
func (s *synthesis) read(dir string) error {
	const ending = ".template.json"
	files, err := filepath.Glob(filepath.Join(dir, "*"+ending))
	if err != nil {
		return err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var template struct{ Resources map[string]resource }
		if err := json.Unmarshal(data, &template); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		stack := strings.TrimSuffix(filepath.Base(file), ending)
		s.resources[stack], s.bytes[stack] = len(template.Resources), int64(len(data))
		isFunction := func(r resource) bool { return r.Type == "AWS::Lambda::Function" }
		if !slices.ContainsFunc(slices.Collect(maps.Values(template.Resources)), isFunction) {
			return fmt.Errorf("the stack %s has no function", stack)
		}
	}
	return nil
}

// synthFigure measures how long the CDK CLI takes to make the templates after the app is compiled: the median of three
// warm runs. A short measurement takes the first run instead.
func synthFigure(short bool) (Result, error) {
	var r Result
	warm := 3
	if short {
		warm = 0
	}
	s, err := synthesize(warm)
	if err != nil {
		return r, err
	}
	r.Value = s.took[len(s.took)/2].Seconds()
	r.note("%d runs: %.1f to %.1f s", len(s.took), s.took[0].Seconds(), s.took[len(s.took)-1].Seconds())
	for _, stack := range slices.Sorted(maps.Keys(s.bytes)) {
		r.note("%s: %d resources, a template of %.0f KB", stack, s.resources[stack], float64(s.bytes[stack])/1e3)
	}
	return r, nil
}
