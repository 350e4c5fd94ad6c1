package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// patience is how long a test waits for something that normally happens within about a second. A machine that runs many
// tests at a time may need far longer.
const patience = 2 * time.Minute

// argsEnv, if set, makes the test binary run as sluice with these arguments.
const argsEnv = "SLUICE_TEST_ARGS"

func TestMain(m *testing.M) {
	if args := os.Getenv(argsEnv); args != "" {
		os.Exit(run(strings.Split(args, "\n")))
	}
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen { // these tests mostly wait for other processes
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	os.Exit(inFolderOfItsOwn(m))
}

// inFolderOfItsOwn runs the tests with a separate folder for the tokens of dev processes, instead of the user's.
func inFolderOfItsOwn(m *testing.M) int {
	state, err := os.MkdirTemp("", "sluice-test-*")
	if err == nil {
		err = os.Setenv("XDG_STATE_HOME", state)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(state) }() // if this fails, the rest is in the folder for temporary files
	return m.Run()
}

// devProcess is a sluice in its own process, which can be killed.
type devProcess struct {
	base string // what the pattern found in its output: an address
	cmd  *exec.Cmd
	done chan struct{}
}

func startProcess(t *testing.T, args ...string) *devProcess {
	t.Helper()
	return startSluice(t, `listens on (\S+)`, append([]string{"dev", "--listen", "127.0.0.1:0"}, args...)...)
}

// startSluice starts a process and waits for a line of its output that the pattern matches.
func startSluice(t *testing.T, pattern string, args ...string) *devProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), argsEnv+"="+strings.Join(args, "\n"))
	open := cmd.StdoutPipe
	if args[0] == "serve" { // it says in its log where it listens
		open = cmd.StderrPipe
	} else {
		cmd.Stderr = os.Stderr
	}
	out, err := open()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &devProcess{cmd: cmd, done: make(chan struct{})}
	bases := make(chan string, 1)
	go func() {
		defer close(p.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if m := regexp.MustCompile(pattern).FindStringSubmatch(lines.Text()); m != nil {
				bases <- m[1]
			}
		}
		_ = cmd.Wait() // killed
	}()
	t.Cleanup(p.kill)
	select {
	case p.base = <-bases:
	case <-p.done:
		t.Fatalf("sluice %q ended", args)
	case <-time.After(patience):
		t.Fatalf("sluice %q prints nothing", args)
	}
	return p
}

func (p *devProcess) kill() {
	_ = p.cmd.Process.Kill() // fails if the process has ended
	<-p.done
}

// countAnswers sends requests from several clients and counts the answers by status. Status 0 means that there was no
// answer.
func countAnswers(t *testing.T, base string, requests int) map[int]int {
	t.Helper()
	var mu sync.Mutex
	var clients sync.WaitGroup
	of := map[int]int{}
	for range 4 {
		clients.Go(func() {
			for range requests / 4 {
				code := requestStatus(t.Context(), base)
				mu.Lock()
				of[code]++
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	return of
}

func requestStatus(ctx context.Context, base string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/x", nil)
	if err != nil {
		return 0
	}
	req.Header.Set("X-API-Key", identity.ExampleKey("globex"))
	code, _, _, err := send(req)
	if err != nil {
		return 0
	}
	return code
}

// Guarantees that while Redis does not answer, every request is answered, and those of limits with onStoreFailure open
// and backstop are admitted within their bounds; and that Redis counts again when it is back.
func TestDevWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	plans := sharedPlans(t, 10_000, 1000, "      - { id: hourly, rate: 100, period: 1h, algorithm: token_bucket }\n")
	text, err := os.ReadFile(plans)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(plans, []byte(strings.ReplaceAll(string(text), ", onStoreFailure: closed", "")),
		0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, "--redis", server.Addr, "--redis-deadline", "1s", "--log-level", "error", "--plans", plans,
		"--max-instances", "4")
	// If the machine stops for longer than the life of a lease, leased units of the hour that were not spent are lost.
	if of := countAnswers(t, p.base, 40); of[http.StatusOK] < 20 ||
		of[http.StatusOK]+of[http.StatusTooManyRequests] != 40 {
		t.Fatalf("with Redis, the answers are %v; want 40 admitted, or a few less", of)
	}
	server.Kill()
	of := countAnswers(t, p.base, 400)
	// Leased units, and the backstop's bucket: the whole limit of the hour, since the instance count is one.
	if of[http.StatusOK] == 0 || of[http.StatusOK] > 60+2*100 ||
		of[http.StatusOK]+of[http.StatusTooManyRequests] != 400 {
		t.Errorf("without Redis, the answers are %v; want 1 to 260 admitted and the others denied", of)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	redis := server.Client(t)
	waitFor(t, "counter in Redis, which came back empty", func() bool {
		if of := countAnswers(t, p.base, 4); of[http.StatusOK]+of[http.StatusTooManyRequests] != 4 {
			t.Fatalf("when Redis is back, the answers are %v", of)
		}
		n, err := redis.DBSize(t.Context()).Result()
		return err == nil && n > 0
	})
}

// waitFor waits until f is true.
func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := redistest.Until(ctx, func() error {
		if f() {
			return nil
		}
		return fmt.Errorf("still no %s", what)
	})
	if err != nil {
		t.Fatal(err)
	}
}
