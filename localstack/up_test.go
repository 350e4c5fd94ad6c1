//go:build linux

package localstack_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// tools are the programs that up and down use and that every Linux has.
var tools = []string{
	"bash", "cat", "cp", "curl", "cut", "dirname", "basename", "env", "find", "flock", "grep", "head", "mkdir",
	"mktemp", "mv", "rm", "rmdir",
	"sed", "setpriv", "setsid", "sha256sum", "sleep", "sort", "ss", "tail", "tr",
}

// standIns are scripts in place of the programs that must be installed. up accepts them, but they do nothing.
var standIns = map[string]string{
	"java":         `echo 'openjdk version "17.0.9" 2023-10-17' >&2`,
	"javac":        "exit 1",
	"mvn":          "exit 1",
	"redis-server": "exit 1",
	"python3.13":   `case $1 in -c) echo 3.13 ;; *) echo 'No space left on device' >&2; exit 1 ;; esac`,
}

// machine is an environment for up and down with a PATH, a home folder and ports of its own.
type machine struct {
	t           *testing.T
	path, home  string
	port, redis int
	variables   []string
}

// newMachine returns a machine with all programs that up needs, some of them as stand-ins.
func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, path: t.TempDir(), home: filepath.Join(t.TempDir(), "home"), port: freePort(t),
		redis: freePort(t)}
	for _, name := range tools {
		if found, err := exec.LookPath(name); err == nil { // if it is missing, tests fail and name it
			if err := os.Symlink(found, filepath.Join(m.path, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, script := range standIns {
		m.install(name, script)
	}
	return m
}

func (m *machine) install(name, script string) {
	m.t.Helper()
	m.remove(name)
	if err := os.WriteFile(filepath.Join(m.path, name), []byte("#!/usr/bin/env bash\n"+script+"\n"),
		0o700); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) remove(name string) {
	m.t.Helper()
	if err := os.Remove(filepath.Join(m.path, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
}

func (m *machine) set(name, value string) { m.variables = append(m.variables, name+"="+value) }

// folder returns the folder in which up keeps the files of a running LocalStack.
func (m *machine) folder() string { return filepath.Join(m.home, fmt.Sprint("run-", m.port)) }

func (m *machine) write(name, content string) {
	m.t.Helper()
	file := filepath.Join(m.folder(), name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) command(script string, args ...string) *exec.Cmd {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), "./"+script, args...)
	cmd.Env = append([]string{
		"PATH=" + m.path, "HOME=" + m.t.TempDir(), "SLUICE_LOCALSTACK_HOME=" + m.home,
		fmt.Sprint("SLUICE_LOCALSTACK_PORT=", m.port), fmt.Sprint("SLUICE_LOCALSTACK_REDIS_PORT=", m.redis),
	}, m.variables...) // if a name occurs twice, the last value counts
	return cmd
}

type result struct {
	stdout, stderr string
	code           int
}

func (m *machine) run(script string, args ...string) result {
	m.t.Helper()
	var stdout, stderr strings.Builder
	cmd := m.command(script, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		m.t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// refuses runs up, which must end with the given exit code. It must print only one line, to standard error, that
// contains each of the parts, and start nothing.
func (m *machine) refuses(code int, args []string, parts ...string) {
	m.t.Helper()
	r := m.run("up", args...)
	if r.code != code || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 ||
		!strings.HasPrefix(r.stderr, "localstack/up: ") {
		m.t.Errorf("up %q = %+v, want exit %d and one line on stderr", args, r, code)
	}
	for _, part := range parts {
		if !strings.Contains(r.stderr, part) {
			m.t.Errorf("up %q says %q, want %q in it", args, r.stderr, part)
		}
	}
	if _, err := os.Stat(m.folder()); !errors.Is(err, os.ErrNotExist) {
		m.t.Errorf("up %q left %s: %v", args, m.folder(), err)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return portOf(l)
}

func portOf(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// Guarantees that an error names the program that a machine lacks, and what to do about it, before anything is started
// or downloaded. TestUpSaysWhichStepFailed shows that there is no such error on a complete machine.
func TestUpNamesWhatIsMissing(t *testing.T) {
	none := func(names ...string) func(*machine) {
		return func(m *machine) {
			for _, name := range names {
				m.remove(name)
			}
		}
	}
	tests := []struct {
		name   string
		change func(*machine)
		want   []string
	}{
		{"no Java", none("java"), []string{"Java is missing", "17 or later"}},
		{"old Java", func(m *machine) { m.install("java", `echo 'openjdk version "11.0.2" 2019-01-15' >&2`) },
			[]string{"Java is 11", "17 or later"}},
		{"very old Java", func(m *machine) { m.install("java", `echo 'java version "1.8.0_292"' >&2`) },
			[]string{"Java is 8", "17 or later"}},
		{"Java that does not run", func(m *machine) { m.install("java", "echo broken >&2; exit 1") },
			[]string{"names no version"}},
		{"no compiler", none("javac"), []string{"javac is missing"}},
		{"no Python", none("python3.13"), []string{"Python 3.13 is missing", "SLUICE_PYTHON"}},
		{"Python that is a shim of another", func(m *machine) { m.install("python3.13", "echo 3.11") },
			[]string{"Python 3.13 is missing"}},
		{"Python without venv", func(m *machine) { m.install("python3.13", "exit 1") },
			[]string{"Python 3.13 is missing", "venv"}},
		{"another Python asked for", func(m *machine) { m.set("SLUICE_PYTHON", "/bin/false") },
			[]string{"SLUICE_PYTHON is '/bin/false'"}},
		{"no Redis", none("redis-server"), []string{"redis-server is missing", "valkey-server"}},
		{"no curl", none("curl"), []string{"curl is missing"}},
		{"no setpriv", none("setpriv"), []string{"setpriv is missing", "util-linux"}},
		{"no flock", none("flock"), []string{"flock is missing"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			tt.change(m)
			m.refuses(1, nil, tt.want...)
		})
	}
}

// Guarantees that the error of a failed installation, for example because the disk is full, names the step and has the
// tool's last lines, and that the next run tries it again.
func TestUpSaysWhichStepFailed(t *testing.T) {
	m := newMachine(t)
	for range 2 {
		r := m.run("up")
		for _, want := range []string{"No space left on device\n", "this failed: installing LocalStack"} {
			if r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, want) {
				t.Errorf("up = %+v, want exit 1 and %q", r, want)
			}
		}
		left, err := os.ReadDir(m.home)
		if err != nil || len(left) != 1 || left[0].Name() != "lock" {
			t.Errorf("it left %v, %v; want the lock only", left, err)
		}
	}
}

// Guarantees that nothing is started if another program uses the port, and that the error names the variable for
// another port.
func TestUpRefusesATakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, variable := range []string{"SLUICE_LOCALSTACK_PORT", "SLUICE_LOCALSTACK_REDIS_PORT"} {
		t.Run(variable, func(t *testing.T) {
			m := newMachine(t)
			if variable == "SLUICE_LOCALSTACK_PORT" {
				m.port = portOf(l)
			} else {
				m.redis = portOf(l)
			}
			want := []string{fmt.Sprintf("port %d is taken", portOf(l)), "set " + variable}
			if _, err := exec.LookPath("ss"); err == nil {
				want = append(want, fmt.Sprint("process ", os.Getpid()))
			}
			m.refuses(1, nil, want...)
		})
	}
}

// Guarantees that an invalid setting is rejected with an error that names it.
func TestUpRefusesBadSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, value, want string }{
		{"SLUICE_LOCALSTACK_PORT", "http", "SLUICE_LOCALSTACK_PORT is 'http'"},
		{"SLUICE_LOCALSTACK_PORT", "0", "SLUICE_LOCALSTACK_PORT is '0'"},
		{"SLUICE_LOCALSTACK_PORT", "65536", "SLUICE_LOCALSTACK_PORT is '65536'"},
		{"SLUICE_LOCALSTACK_PORT", "a[$(touch x)]", "SLUICE_LOCALSTACK_PORT is"},
		{"SLUICE_LOCALSTACK_REDIS_PORT", "-1", "SLUICE_LOCALSTACK_REDIS_PORT is '-1'"},
		{"SLUICE_LOCALSTACK_HOME", "relative", "want an absolute path"},
		{"SLUICE_LOCALSTACK_HOME", filepath.Join(file, "below"), "set SLUICE_LOCALSTACK_HOME"},
	}
	for _, tt := range tests {
		t.Run(tt.name+"="+filepath.Base(tt.value), func(t *testing.T) {
			m := newMachine(t)
			m.set(tt.name, tt.value)
			m.refuses(1, nil, tt.want)
		})
	}
	t.Run("one port for both", func(t *testing.T) {
		m := newMachine(t)
		m.redis = m.port
		m.refuses(1, nil, "are both "+strconv.Itoa(m.port))
	})
	t.Run("unknown argument", func(t *testing.T) {
		m := newMachine(t)
		m.refuses(2, []string{"--frsh"}, "unknown argument '--frsh'", "usage: localstack/up [--fresh]")
		if r := m.run("down", "--al"); r.code != 2 || !strings.Contains(r.stderr, "usage: localstack/down [--all]") {
			t.Errorf("down --al = %+v, want exit 2 and the usage", r)
		}
	})
}

// Guarantees that a LocalStack that runs already is used if it answers.
func TestUpChecksAnotherLocalStack(t *testing.T) {
	healthy := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !healthy || r.URL.Path != "/_localstack/health" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	at := func(endpoint, redis string) *machine {
		m := newMachine(t)
		m.set("SLUICE_LOCALSTACK", endpoint)
		m.set("SLUICE_LOCALSTACK_REDIS", redis)
		for name := range standIns { // none of them is needed
			m.remove(name)
		}
		return m
	}
	want := result{stdout: "SLUICE_LOCALSTACK=" + server.URL + "\nSLUICE_LOCALSTACK_REDIS=redis.internal:6379\n"}
	for _, endpoint := range []string{server.URL, server.URL + "/"} {
		if got := at(endpoint, "redis.internal:6379").run("up"); got != want {
			t.Errorf("up with SLUICE_LOCALSTACK=%s = %+v, want %+v", endpoint, got, want)
		}
	}
	at(server.URL, "redis:6379").refuses(1, []string{"--fresh"}, "--fresh is for")
	at(server.URL, "redis").refuses(1, nil, "SLUICE_LOCALSTACK_REDIS is no HOST:PORT")
	at("http://0.0.0.0:"+port, "").refuses(1, nil, "set SLUICE_LOCALSTACK_REDIS, too")
	at("127.0.0.1:"+port, "redis:6379").refuses(1, nil, "no endpoint of the form http://HOST:PORT")
	healthy = false
	at(server.URL, "redis:6379").refuses(1, nil, "no LocalStack answers", "unset the variable")
	secret := at("http://user:hunter2@127.0.0.1:"+port, "redis:6379").run("up")
	if secret.code != 1 || strings.Contains(secret.stderr, "hunter2") {
		t.Errorf("up with a password in the endpoint = %+v, want exit 1 and no password", secret)
	}
}

// Guarantees that of two runs at a time, one waits until the other has ended.
func TestUpWaitsForAnother(t *testing.T) {
	m := newMachine(t)
	m.remove("java")
	if err := os.MkdirAll(m.home, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(m.home, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	cmd := m.command("up")
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stderr)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "another up or down is at work") {
		t.Errorf("it says %q, %v, want that it waits", line, err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(lines)
	if err != nil || !strings.Contains(string(rest), "Java is missing") {
		t.Errorf("after that it says %q, %v, want that it went on", rest, err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("up = %v, want exit 1", err)
	}
}

// process starts a program that ends only by a signal.
func process(t *testing.T, file string, variables ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(file, "600")
	cmd.Env = variables
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	return cmd
}

// Guarantees that down ends all programs of the LocalStack, even one that is stopped, and no other program. A file may
// have the process id of another program: an id can be used again after its program has ended.
func TestDownEndsOnlyItsOwn(t *testing.T) {
	m := newMachine(t)
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(m.home, 0o700); err != nil {
		t.Fatal(err)
	}
	if m.home, err = filepath.EvalSymlinks(m.home); err != nil {
		t.Fatal(err)
	}
	mark := "SLUICE_LOCALSTACK_RUN=" + m.folder()
	own := process(t, sleep, "A=b", mark)
	other := process(t, sleep, "A=b", mark+"1") // the LocalStack on another port
	m.write("localstack.pid", fmt.Sprintln(own.Process.Pid))
	m.write("redis.pid", fmt.Sprintln(other.Process.Pid))
	m.write("lambda/f/tmp/x", "x")
	binary, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	// The name stays sleep, because all of coreutils may be one program that does what its name says.
	function := filepath.Join(m.folder(), "sleep")
	if err := os.WriteFile(function, binary, 0o700); err != nil {
		t.Fatal(err)
	}
	frozen := process(t, function)
	if err := frozen.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds nothing
		if r := m.run("down"); r != (result{}) {
			t.Fatalf("down = %+v, want nothing said and exit 0", r)
		}
	}
	for _, cmd := range []*exec.Cmd{own, frozen} {
		if err := cmd.Wait(); cmd.ProcessState == nil || !cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
			t.Errorf("%s was not ended: %v", cmd.Path, err)
		}
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the program that is not the stand's: %v, want it there", err)
	}
	left, err := os.ReadDir(m.home)
	if err != nil || len(left) != 1 || left[0].Name() != "lock" {
		t.Errorf("it left %v, %v; want the lock only", left, err)
	}
}

// Guarantees that up cleans up after an earlier run that did not finish, and goes on.
func TestUpCleansUpAnEarlierRun(t *testing.T) {
	m := newMachine(t)
	m.remove("java")
	m.write("localstack.pid", "4194303999\n")
	m.write("redis.pid", "")
	m.write("fs/x", "x")
	r := m.run("up")
	if r.code != 1 || !strings.Contains(r.stderr,
		"an earlier run did not come up or did not end properly: cleaned up\n") {
		t.Errorf("up = %+v, want it to say that it cleaned up, and to go on", r)
	}
	if _, err := os.Stat(m.folder()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there: %v", m.folder(), err)
	}
}

// Guarantees that --all deletes what was installed, and not what somebody else put there.
func TestDownAll(t *testing.T) {
	m := newMachine(t)
	if r := m.run("down", "--all"); r != (result{}) {
		t.Errorf("down --all where nothing is = %+v, want nothing said", r)
	}
	if _, err := os.Stat(m.home); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it made %s: %v", m.home, err)
	}
	for _, name := range []string{"venv-1/bin/python", "plugin-1/x", "part.1/x", fmt.Sprint("../run-", m.port, "/x"),
		"../run-1/x"} {
		m.write(filepath.Join("..", name), "x")
	}
	if r := m.run("down", "--all"); r != (result{}) {
		t.Errorf("down --all = %+v, want nothing said", r)
	}
	if _, err := os.Stat(m.home); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there: %v", m.home, err)
	}
	m.write("../mine", "x")
	r := m.run("down", "--all")
	left, err := os.ReadDir(m.home)
	names := slices.Collect(func(yield func(string) bool) {
		for _, e := range left {
			if !yield(e.Name()) {
				return
			}
		}
	})
	if r.code != 1 || !strings.Contains(r.stderr, "not ours") || err != nil || !slices.Equal(names, []string{"mine"}) {
		t.Errorf("down --all beside another's file = %+v, left %v, %v", r, names, err)
	}
}
