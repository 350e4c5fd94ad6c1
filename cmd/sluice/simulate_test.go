package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const simulatePlans = "ipLimits: [ { id: per-address, tiers: [ { period: 1m, threshold: 2 } ] } ]\n"

const simulateLog = `192.0.2.1 - - [29/Feb/2024:10:00:00 +0000] "GET /a HTTP/1.1" 200 1
192.0.2.1 - - [29/Feb/2024:10:00:02 +0000] "GET /b HTTP/1.1" 200 1 "-" "cut
not a line
192.0.2.1 - - [29/Feb/2024:10:00:01 +0000] "GET /c HTTP/1.1" 200 1
`

// simulateFiles writes the plans file and the log (plain, and as gzip that is cut off), and returns their names.
func simulateFiles(t *testing.T) (plans, log, cut string) {
	t.Helper()
	dir := t.TempDir()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write([]byte(simulateLog)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	plans, log, cut = filepath.Join(dir, "plans.yaml"), filepath.Join(dir, "access.log"), filepath.Join(dir,
		"cut.log.gz")
	for name, data := range map[string][]byte{plans: []byte(simulatePlans), log: []byte(simulateLog),
		cut: z.Bytes()[:z.Len()-4]} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return plans, log, cut
}

// simulateOutput runs the command and returns what it wrote.
func simulateOutput(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	root := newRootCommand()
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(append([]string{"simulate"}, args...))
	err = root.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// Guarantees what scripts rely on: only JSON on standard output, and nothing on standard error.
func TestSimulate(t *testing.T) {
	plans, log, _ := simulateFiles(t)
	stdout, stderr, err := simulateOutput(t, "--plans", plans, "--log", log, "--json")
	if err != nil || stderr != "" {
		t.Fatalf("simulate gives error %v and prints %q", err, stderr)
	}
	var report struct {
		Requests     int64 `json:"requests"`
		Allowed      int64 `json:"allowed"`
		Denied       int64 `json:"denied"`
		SkippedLines int64 `json:"skipped_lines"`
		Limits       []struct {
			ID           string `json:"id"`
			Allowed      int64  `json:"allowed"`
			Denied       int64  `json:"denied"`
			ShadowDenied int64  `json:"shadow_denied"`
		} `json:"limits"`
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("standard output is not JSON: %v\n%s", err, stdout)
	}
	if report.Requests != 3 || report.Allowed != 2 || report.Denied != 1 || report.SkippedLines != 1 ||
		len(report.Limits) != 1 ||
		report.Limits[0].ID != "per-address" || report.Limits[0].Allowed != 2 || report.Limits[0].Denied != 1 {
		t.Errorf("the report is %+v; want 3 requests, 2 allowed, 1 denied by per-address, 1 line skipped", report)
	}
	stdout, _, err = simulateOutput(t, "--plans", plans, log)
	if err != nil || !strings.Contains(stdout, "per-address") || !strings.Contains(stdout, "access.log:3: bad_time") {
		t.Errorf("the tables, with the log as an argument, are %v:\n%s\nwant the limit, and the odd line with its "+
			"place", err, stdout)
	}
}

// Guarantees which errors are usage errors (exit status 2) and which are about the data (exit status 1), and that each
// error names its cause.
func TestSimulateErrors(t *testing.T) {
	plans, log, cut := simulateFiles(t)
	cases := []struct {
		name  string
		args  []string
		usage bool
		says  string
	}{
		{"nothing", nil, true, "--plans is missing"},
		{"no log", []string{"--plans", plans}, true, "--log is missing"},
		{"unknown flag", []string{"--plan", plans}, true, "--plan"},
		{"bad way to a tenant", []string{"--plans", plans, "--log", log, "--tenant-from", "path:("}, true, "path:("},
		{"unknown plan", []string{"--plans", plans, "--log", log, "--default-plan", "gold"}, true, "gold"},
		{"top", []string{"--plans", plans, "--log", log, "--top", "0"}, true,
			`"--top" flag: want a number within 1..100000`},
		{"memory", []string{"--plans", plans, "--log", log, "--counter-memory", "-1"}, true, `"--counter-memory" flag`},
		{"missing plans", []string{"--plans", "missing.yaml", "--log", log}, false, "missing.yaml"},
		{"a log for plans", []string{"--plans", log, "--log", log}, false, "access.log"},
		{"missing log", []string{"--plans", plans, "--log", "missing.log"}, false,
			"missing.log: no such file or directory: correct the name"},
		{"cut log", []string{"--plans", plans, "--log", cut}, false, "cut.log.gz, line "},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			stdout, _, err := simulateOutput(t, c.args...)
			var usage *usageError
			if err == nil || errors.As(err, &usage) != c.usage || !strings.Contains(err.Error(), c.says) {
				t.Errorf("simulate %q gives %v; want an error that says %q, of usage: %t", c.args, err, c.says, c.usage)
			}
			if reported := strings.Contains(stdout, "requests in"); reported != (c.name == "cut log") {
				t.Errorf("simulate %q prints a report: %t; only a log that is cut off should give both an error and "+
					"a report:\n%s", c.args,
					reported, stdout)
			}
		})
	}
}

// Guarantees that a file which is not an access log is an error. A report without requests would read as if the limits
// denied nobody.
func TestSimulateWithoutUsableLines(t *testing.T) {
	plans, log, _ := simulateFiles(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	other := file("other.log", strings.Repeat("{\"status\":200}\n",
		40)+"192.0.2.1 - - [yesterday] \"GET / HTTP/1.1\" 200 1\n")
	empty := file("empty.log", "")
	for _, c := range []struct {
		name string
		logs []string
		says []string
	}{
		{"another format", []string{"--log", other}, []string{"41 lines", "other.log:1: no usable client address at " +
			"the start", `{\"status\":200}`,
			"other.log:5:", "Common or Combined Log Format", "gzip", "[02/Mar/2026:12:00:00 +0000]"}},
		{"an empty file", []string{"--log", empty}, []string{"there is no line in", "empty.log",
			"Common or Combined Log Format"}},
		{"both, as JSON", []string{"--log", empty, "--log", other, "--json"}, []string{"empty.log", "other.log:1:"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, _, err := simulateOutput(t, append([]string{"--plans", plans}, c.logs...)...)
			if err == nil || exitCode(err) != exitFailed || stdout != "" {
				t.Fatalf("simulate gives error %v and prints %q", err, stdout)
			}
			for _, text := range c.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("the error lacks %q:\n%v", text, err)
				}
			}
			if lines := strings.Count(err.Error(), "\n"); lines > 12 {
				t.Errorf("the error has %d lines", lines)
			}
		})
	}
	if _, _, err := simulateOutput(t, "--plans", plans, "--log", empty, "--log", log); err != nil {
		t.Errorf("an empty log beside a good one: %v", err)
	}
}

// Guarantees that a client is told by its own address whatever stands before it: one client with three requests is over
// its limit of two, and three clients with one request each are not.
func TestSimulateKnowsTheClient(t *testing.T) {
	plans, _, _ := simulateFiles(t)
	const rest = ` - - [10/Oct/2025:13:55:36 +0000] "GET /items/1 HTTP/1.1" 200 5 "-" "-"` + "\n"
	for name, c := range map[string]struct {
		log                       string
		requests, denied, skipped int64
	}{
		"one client, other ids": {"4d1a6ac6-7b61-11e6-9a41-93e8deadbee1 192.0.2.9" + rest +
			"4d1a6ac6-7b61-11e6-9a41-93e8deadbee2 192.0.2.9" + rest +
			"4d1a6ac6-7b61-11e6-9a41-93e8deadbee3 192.0.2.9" + rest, 3, 1, 0},
		"three clients, one host": {"www.example.test 192.0.2.1" + rest + "www.example.test 192.0.2.2" + rest +
			"www.example.test 192.0.2.3" + rest, 3, 0, 0},
		"API Gateway": {strings.Repeat(`192.0.2.9 - - [10/Oct/2025:13:55:36 +0000]"GET GET /items/{id} HTTP/1.1" 200 5`+
			"\n", 3), 3, 1, 0},
		"prefixes that are not known": {"192.0.2.9" + rest + "10.0.0.1 192.0.2.9" + rest + "a, b 192.0.2.9" + rest,
			1, 0, 2},
	} {
		log := filepath.Join(t.TempDir(), "access.log")
		if err := os.WriteFile(log, []byte(c.log), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, _, err := simulateOutput(t, "--plans", plans, "--log", log, "--json")
		var got struct {
			Requests, Denied int64
			Skipped          map[string]int64
		}
		if err != nil || json.Unmarshal([]byte(stdout), &got) != nil || got.Requests != c.requests ||
			got.Denied != c.denied || got.Skipped["bad_address"] != c.skipped {
			t.Errorf("%s: %v, %+v; want %+v", name, err, got, c)
		}
	}
}
