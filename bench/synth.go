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

// synthesis is what the CDK CLI made of the deployment file that comes with Sluice.
type synthesis struct {
	took      []time.Duration // of each run, the app compiled before; ascending
	resources map[string]int  // by stack
	bytes     map[string]int64
}

// synthesize runs the CDK CLI over the compiled app. Whether its time is what a user waits depends on that: `make
// synth` compiles the app before, a minute the first time and a second then. The first run installs the CLI, builds the
// Lambdas where one is missing, and unpacks CDK's own code; it counts only where there are no warm ones.
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

// coldSynthFigure is how long `make synth` takes the first time: the app and every Lambda compiled with an empty build
// cache. Go modules are there, and so is the CDK CLI.
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

// cdkIn runs scripts/cdk with variables besides those of this process.
func cdkIn(env []string, args ...string) error {
	cmd := exec.Command(filepath.Join(tree(), "scripts", "cdk"), args...) //nolint:gosec // paths of this process's own
	cmd.Env = append(append(os.Environ(), "DEPLOYMENT="), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("scripts/cdk %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// resource is one of a template, as far as it is looked at.
type resource struct{ Type string }

// read counts what is in the templates.
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

// synthFigure is how long the CDK CLI takes for the templates, the app compiled: the middle one of three runs; in a
// short measurement the first.
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
