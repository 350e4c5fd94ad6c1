package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// commandFigure measures how many seconds a command takes in the repository. Its output goes to standard error.
func commandFigure(name string, args ...string) func(bool) (Result, error) {
	return func(bool) (Result, error) { return timeCommand(tree(), name, args...) }
}

// quickFigure measures how long `make quick` takes when everything is in the build cache: the second of two runs.
func quickFigure(bool) (Result, error) {
	if _, err := timeCommand(tree(), "make", "quick"); err != nil {
		return Result{}, err
	}
	return timeCommand(tree(), "make", "quick")
}

// ciFigure measures how long .ci/run takes in a new clone of the commit that is checked out, without changes that are
// not committed.
func ciFigure(bool) (r Result, err error) {
	dir, err := os.MkdirTemp("", "sluice-ci")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	clone := filepath.Join(dir, "sluice")
	if _, err := timeCommand(dir, "git", "clone", "--quiet", tree(), clone); err != nil {
		return r, err
	}
	return timeCommand(clone, filepath.Join(clone, ".ci", "run"))
}

// timeCommand runs a command in a folder and returns how many seconds it takes. It returns an error if the command
// fails.
func timeCommand(dir, name string, args ...string) (Result, error) {
	var r Result
	cmd := exec.Command(name, args...) //nolint:gosec // the repository's own commands
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	r.Value = time.Since(began).Seconds()
	r.note("%.0f s of processor time", (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
	return r, nil
}

// internalFoldersFigure counts the folders directly below internal.
func internalFoldersFigure(bool) (Result, error) {
	var r Result
	entries, err := os.ReadDir(filepath.Join(tree(), "internal"))
	for _, e := range entries {
		if e.IsDir() {
			r.Value++
		}
	}
	return r, err
}

const (
	maxColumns = 120
	tabColumns = 4
)

// generated matches the line that marks a file as generated.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// longLinesFigure counts the lines of the repository's Go files that are longer than maxColumns, except for generated
// files. The first ten are in the notes.
func longLinesFigure(bool) (Result, error) {
	var r Result
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.go")
	list.Dir = tree()
	names, err := list.Output()
	if err != nil {
		return r, fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.SplitSeq(strings.Trim(string(names), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(tree(), name))
		if errors.Is(err, os.ErrNotExist) { // deleted, and not committed yet
			continue
		}
		if err != nil {
			return r, err
		}
		for _, number := range longLines(text) {
			if r.Value++; r.Value <= 10 {
				r.note("%s:%d", name, number)
			}
		}
	}
	return r, nil
}

// longLines returns the numbers of the lines of a Go file that are longer than maxColumns; none if it is generated.
func longLines(text []byte) (numbers []int) {
	if generated.Match(text) {
		return nil
	}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		line = bytes.TrimRight(line, "\r\n")
		if utf8.RuneCount(line)+(tabColumns-1)*bytes.Count(line, []byte("\t")) > maxColumns {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// productLinesFigure returns the number of lines of product code, as scripts/lines counts them.
func productLinesFigure(bool) (Result, error) {
	var r Result
	out, err := exec.Command(filepath.Join(tree(), "scripts", "lines")).Output() //nolint:gosec // the repository's own
	if err != nil {
		return r, fmt.Errorf("scripts/lines: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[2], "all") {
			r.Value, err = strconv.ParseFloat(f[0], 64)
			return r, err
		}
	}
	return r, errors.New("scripts/lines printed no line for all packages")
}
