package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// argsEnv makes the test binary a sluice of its own.
const argsEnv = "SLUICE_TEST_ARGS"

func TestMain(m *testing.M) {
	if args := os.Getenv(argsEnv); args != "" {
		os.Exit(run(strings.Split(args, "\n")))
	}
	if os.Getenv(functionEnv) != "" {
		lambda.Start(testFunction)
	}
	os.Exit(inFolderOfItsOwn(m))
}

// inFolderOfItsOwn runs the tests with another folder for the tokens of dev processes than the user's.
func inFolderOfItsOwn(m *testing.M) int {
	state, err := os.MkdirTemp("", "sluice-test-*")
	if err == nil {
		err = os.Setenv("XDG_STATE_HOME", state)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(state) }() // what stays is in the folder for temporary files
	return m.Run()
}

// devProcess is a `sluice dev` in a process of its own, which can be killed.
type devProcess struct {
	base string
	cmd  *exec.Cmd
	done chan struct{}
}

func startProcess(t *testing.T, args ...string) *devProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), argsEnv+"="+strings.Join(append([]string{"dev", "--listen", "127.0.0.1:0"},
		args...), "\n"))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
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
			if m := regexp.MustCompile(`listens on (\S+)`).FindStringSubmatch(lines.Text()); m != nil {
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
	case <-time.After(20 * time.Second):
		t.Fatalf("sluice %q says nothing", args)
	}
	return p
}

func (p *devProcess) kill() {
	_ = p.cmd.Process.Kill() // an error is a process that has ended
	<-p.done
}

// answers sends requests from several clients and counts the answers by status. An address that does not answer counts
// as 0.
func answers(t *testing.T, base string, requests int) map[int]int {
	t.Helper()
	var mu sync.Mutex
	var clients sync.WaitGroup
	of := map[int]int{}
	for range 4 {
		clients.Go(func() {
			for range requests / 4 {
				code := ask(t.Context(), base)
				mu.Lock()
				of[code]++
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	return of
}

func ask(ctx context.Context, base string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/x", nil)
	if err != nil {
		return 0
	}
	req.Header.Set("X-API-Key", identity.ExampleKey("globex"))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close() // nothing was read of it
	return resp.StatusCode
}

// A gateway that dies with units in hand takes them with it: the other admits less, and never what was spent before.
func TestDevKilledWithLeases(t *testing.T) {
	const limit = 2000
	args := []string{"--redis", redistest.Start(t).Addr, "--redis-deadline", "5s", "--log-level", "error",
		"--plans", sharedPlans(t, 10_000, limit, "")}
	dies, lives := startProcess(t, args...), startProcess(t, args...)
	before := answers(t, dies.base, 400)[http.StatusOK] + answers(t, lives.base, 200)[http.StatusOK]
	if before != 600 {
		t.Fatalf("%d of 600 admitted under a limit of %d", before, limit)
	}
	stop := make(chan struct{})
	var meanwhile map[int]int
	var hammering sync.WaitGroup
	hammering.Go(func() {
		meanwhile = map[int]int{}
		for {
			select {
			case <-stop:
				return
			default:
				for code, n := range answers(t, dies.base, 40) {
					meanwhile[code] += n
				}
			}
		}
	})
	for range 20 {
		before += answers(t, lives.base, 20)[http.StatusOK]
	}
	dies.kill() // in the middle of requests, units in hand
	close(stop)
	hammering.Wait()
	after := 0
	for denied := 0; denied < 40; {
		of := answers(t, lives.base, 40)
		after += of[http.StatusOK]
		if denied = of[http.StatusTooManyRequests]; of[http.StatusOK]+denied != 40 {
			t.Fatalf("answers: %v", of)
		}
	}
	admitted := before + meanwhile[http.StatusOK] + after
	t.Logf("%d of %d admitted, %d of them by the gateway that was killed while it was asked", admitted, limit,
		meanwhile[http.StatusOK])
	if admitted > limit {
		t.Errorf("%d admitted, the limit is %d", admitted, limit)
	}
	if admitted < limit/2 {
		t.Errorf("only %d of %d admitted: a process took more than half with it", admitted, limit)
	}
}

// While Redis is gone every request has an answer, those of open and backstop limits are admitted within their bounds,
// and when it is back it counts again.
func TestDevWithoutRedis(t *testing.T) {
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
	// On a machine that stands still for the life of a lease, what was leased of the hour and not spent is lost to it.
	if of := answers(t, p.base, 40); of[http.StatusOK] < 20 || of[http.StatusOK]+of[http.StatusTooManyRequests] != 40 {
		t.Fatalf("with Redis: %v, want 40 admitted, or few less", of)
	}
	server.Kill()
	of := answers(t, p.base, 400)
	// What is leased, and the backstop's bucket: all of the hour for one instance, as this one has counted itself.
	if of[http.StatusOK] == 0 || of[http.StatusOK] > 60+2*100 ||
		of[http.StatusOK]+of[http.StatusTooManyRequests] != 400 {
		t.Errorf("without Redis: %v, want 1 to 260 admitted and the others denied", of)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	redis := server.Client(t)
	waitFor(t, "counter in Redis, which came back empty", func() bool {
		if of := answers(t, p.base, 4); of[http.StatusOK]+of[http.StatusTooManyRequests] != 4 {
			t.Fatalf("with Redis again: %v", of)
		}
		n, err := redis.DBSize(t.Context()).Result()
		return err == nil && n > 0
	})
}

// waitFor waits until f is true.
func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
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
