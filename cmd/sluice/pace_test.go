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

// stamped records in which second each line is written.
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

// Guarantees that all lines pass in their order, no more than the limit in any second, and none later than necessary.
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
					t.Errorf("spread %t: second %d has %d lines, which is not as the limit allows", spread,
						second-began, n)
				}
				got.WriteString(strings.Join(out.lines[second], ""))
			}
			if got.String() != want.String() {
				t.Errorf("spread %t: got %q, want %q", spread, got.String(), want.String())
			}
		})
	}
}

// Guarantees that lines pass only at times of a window at which their requests arrive in it, for all clocks and delays
// within the given bounds.
func TestPaceGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := newRootCommand()
		root.SetArgs([]string{"pace", "--limit", "5/s", "--spread", "--clock-error", "100ms", "--max-delay", "300ms"})
		root.SetIn(strings.NewReader(strings.Repeat("x\n", 20)))
		lines := 0
		root.SetOut(writerFunc(func(text []byte) (int, error) {
			lines++
			into := time.Duration(time.Now().Nanosecond())
			if into < 100*time.Millisecond || into >= 600*time.Millisecond {
				t.Errorf("a line passes %s after the window began, want 100ms to 600ms", into)
			}
			return len(text), nil
		}))
		if err := root.ExecuteContext(t.Context()); err != nil || lines != 20 {
			t.Errorf("%d lines passed, want 20: %v", lines, err)
		}
	})
}

// Guarantees that a command runs for each line, with the line in the place of {}, and that a failed command is reported
// and does not stop the others.
func TestPaceCommands(t *testing.T) {
	for _, tt := range []struct {
		name    string
		args    []string
		stdin   string
		code    int
		stdout  string
		stderr  string // a part of standard error
		command []string
	}{
		{"the last argument", nil, "a\nb c\n", 0, "<x> <a>\n<x> <b c>\n", "", []string{"printf", "<%s> <%s>\n", "x"}},
		{"in place of {}", nil, "a\n$(b)\n", 0, "<a> <a>\n<$(b)> <$(b)>\n", "", []string{"printf", "<%s> <%s>\n", "{}",
			"{}"}},
		{"some fail", nil, "true\nfalse\ntrue\n", 1, "", `1 of 3 commands failed`, []string{"sh", "-c"}},
		{"no such command", nil, "a\n", exitUsage, "", `no-such-command`, []string{"no-such-command"}},
		{"several at once", []string{"--parallel", "4"}, strings.Repeat("x\n", 40), 0, strings.Repeat("x\n", 40), "",
			[]string{"echo"}},
		{"an option as the last argument", nil, "-n\nb\n", 1, "x b\n", `echo for "-n": not run`, []string{"echo", "x"}},
		{"an option in place of {}", nil, "-n\n", 1, "", `"-n": not run`, []string{"echo", "{}", "--"}},
		{"an option after --", nil, "-n\n", 0, "<-n>\n", "", []string{"printf", "--", "<%s>\n", "{}"}},
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

// Guarantees that wrong flags are usage errors.
func TestPaceRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"--limit is missing":      {},
		"is not a limit":          {"--limit", "fast"},
		"0 units":                 {"--limit", "0/s"},
		"within 1..10000":         {"--limit", "1/s", "--parallel", "0", "--", "true"},
		"leave nothing of":        {"--limit", "1/s", "--clock-error", "400ms", "--max-delay", "200ms"},
		"want 0s or more":         {"--limit", "1/s", "--clock-error", "-1s"},
		"no use without a":        {"--limit", "1/s", "--parallel", "2"},
		"need each other":         {"--limit", "1/s", "--redis", "127.0.0.1:1"},
		"is not HOST:PORT":        {"--limit", "1/s", "--redis", "redis://ann:hunter2@127.0.0.1:1", "--name", "a"},
		"period of a shared":      {"--limit", "1/d", "--redis", "REDIS", "--name", "a"},
		"--redis and --name need": {"--limit", "1/s", "--name", "a"},
		"the plan has the limit":  {"--limit", "1/s", "--pace-plan", "a", "--index", "0"},
		"--pace-plan and --index": {"--pace-plan", "a"},
		"number of this process":  {"--limit", "1/s", "--index", "3"},
		"within 0..1048575":       {"--pace-plan", "a", "--index", "1048576"},
		"share a limit or divide": {"--pace-plan", "a", "--index", "0", "--redis", "127.0.0.1:1", "--name", "a"},
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

// Guarantees that all lines of processes that share a limit pass. Package pacer tests in virtual time that the
// processes together keep the limit.
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

// Guarantees that the error names the flag and what to do if no Redis answers.
func TestPaceWithoutRedis(t *testing.T) {
	got := sluice(t, "a\n", "pace", "--limit", "1/s", "--redis", "127.0.0.1:1", "--name", "a")
	if want := "sluice: --redis 127.0.0.1:1: start a Redis there, or correct the address: "; got.code != exitFailed ||
		!strings.HasPrefix(got.stderr, want) || got.stdout != "" {
		t.Errorf("without a Redis: %+v, want %q", got, want)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }

// Guarantees that a program that does not exist is reported once, before a line is read, and that errors of --limit say
// nothing of Go packages.
func TestPaceErrors(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--limit 5/s -- nosuchcmd", `sluice: the command "nosuchcmd" cannot be run: executable file not found in ` +
			"$PATH: correct the name, or give the path of the program\n"},
		{"--limit 5/s -- ./nosuchcmd", `sluice: the command "./nosuchcmd" cannot be run: stat ./nosuchcmd: no ` +
			"such file"},
		{"--limit 2", `sluice: --limit: "2" is not a limit such as 100/s: write a whole number, a slash and a period`},
		{"--limit 100/sec", `sluice: --limit: the period "sec" of "100/sec" is not s, m or min, h, d, a duration ` +
			"such as 500ms or 1m30s, or a number of seconds\n"},
	} {
		got := sluice(t, "a\nb\n", append([]string{"pace"}, strings.Fields(tt.args)...)...)
		if got.code != exitUsage || !strings.HasPrefix(got.stderr, tt.want) || strings.Contains(got.stderr, "pacer:") {
			t.Errorf("pace %s: exit %d, %s; want %s", tt.args, got.code, got.stderr, tt.want)
		}
	}
}
