package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// stamped notes when each line is written.
type stamped struct {
	mu    sync.Mutex
	lines map[int64][]string // by second
}

func (s *stamped) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().Unix()
	s.lines[now] = append(s.lines[now], string(text))
	return len(text), nil
}

// Lines pass in their order, in no second more than the limit, and no later than they must.
func TestPaceLines(t *testing.T) {
	for _, spread := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var in, want strings.Builder
			for i := range 25 {
				fmt.Fprintf(&in, "line %d\n", i)
			}
			fmt.Fprint(&in, "the last one has no end")
			want.WriteString(in.String() + "\n")
			out := &stamped{lines: map[int64][]string{}}
			root := newRootCommand()
			args := []string{"pace", "--limit", "10/s"}
			if spread {
				args = append(args, "--spread")
			}
			root.SetArgs(args)
			root.SetIn(strings.NewReader(in.String()))
			root.SetOut(out)
			began := time.Now().Unix()
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for second := began; second < began+3; second++ {
				if n := len(out.lines[second]); n != []int{10, 10, 6}[second-began] {
					t.Errorf("spread %t: second %d has %d lines", spread, second-began, n)
				}
				got.WriteString(strings.Join(out.lines[second], ""))
			}
			if got.String() != want.String() {
				t.Errorf("spread %t: got %q, want %q", spread, got.String(), want.String())
			}
		})
	}
}

// A command runs for each line, with the line where it belongs; what fails is told, and does not stop the others.
func TestPaceCommands(t *testing.T) {
	for _, tt := range []struct {
		name    string
		args    []string
		stdin   string
		code    int
		stdout  string
		stderr  string // a part
		command []string
	}{
		{"the last argument", nil, "a\nb c\n", 0, "<x> <a>\n<x> <b c>\n", "", []string{"printf", "<%s> <%s>\n", "x"}},
		{"in place of {}", nil, "a\n$(b)\n", 0, "<a> <a>\n<$(b)> <$(b)>\n", "", []string{"printf", "<%s> <%s>\n", "{}",
			"{}"}},
		{"some fail", nil, "true\nfalse\ntrue\n", 1, "", `1 of 3 commands failed`, []string{"sh", "-c"}},
		{"no such command", nil, "a\n", 1, "", `no-such-command`, []string{"no-such-command"}},
		{"several at once", []string{"--parallel", "4"}, strings.Repeat("x\n", 40), 0, strings.Repeat("x\n", 40), "",
			[]string{"echo"}},
		{"no lines", nil, "", 0, "", "", []string{"false"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append(append([]string{"pace", "--limit", "1000/s"}, tt.args...), "--")
			got := sluice(t, tt.stdin, append(args, tt.command...)...)
			if got.code != tt.code || got.stdout != tt.stdout || !strings.Contains(got.stderr, tt.stderr) {
				t.Errorf("exit code %d, output %q, errors %q; want %d, %q, %q", got.code, got.stdout, got.stderr,
					tt.code, tt.stdout,
					tt.stderr)
			}
		})
	}
}

func TestPaceRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"--limit is missing":      {},
		"is not a limit":          {"--limit", "fast"},
		"0 units":                 {"--limit", "0/s"},
		"outside 1..10000":        {"--limit", "1/s", "--parallel", "0", "--", "true"},
		"no use without a":        {"--limit", "1/s", "--parallel", "2"},
		"need each other":         {"--limit", "1/s", "--redis", "127.0.0.1:1"},
		"period of a shared":      {"--limit", "1/d", "--redis", "REDIS", "--name", "a"},
		"--redis and --name need": {"--limit", "1/s", "--name", "a"},
	} {
		for i := range args {
			if args[i] == "REDIS" {
				args[i] = redistest.Start(t).Addr
			}
		}
		if got := sluice(t, "", append([]string{"pace"}, args...)...); got.code != exitUsage ||
			!strings.Contains(got.stderr, want) {
			t.Errorf("%q: exit code %d, %q; want %d and %q", args, got.code, got.stderr, exitUsage, want)
		}
	}
}

// All lines of processes that share a limit pass. That they never exceed it together is tested in package pacer, where
// time is virtual.
func TestPaceShared(t *testing.T) {
	addr := redistest.Start(t).Addr
	var passed atomic.Int64
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			root := newRootCommand()
			root.SetArgs([]string{"pace", "--limit", "10/100ms", "--redis", addr, "--name", "provider"})
			root.SetIn(strings.NewReader(strings.Repeat("x\n", 20)))
			root.SetOut(writerFunc(func(text []byte) (int, error) {
				passed.Add(int64(bytes.Count(text, []byte("\n"))))
				return len(text), nil
			}))
			root.SetErr(io.Discard)
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := passed.Load(); n != 60 {
		t.Errorf("%d lines passed, want 60", n)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }
