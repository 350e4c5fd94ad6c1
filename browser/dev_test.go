package browser

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// devProgram is a running `sluice dev`, with the address and the API keys that it printed.
type devProgram struct {
	base string
	keys map[string]string // by tenant
}

// startDev builds and starts the program. It stops the program at the end of the test, and fails the test if the
// program then ends with an error.
func startDev(t *testing.T, flags ...string) devProgram {
	t.Helper()
	program := filepath.Join(t.TempDir(), "sluice")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "..", "-o", program, "./cmd/sluice")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	c := exec.Command(program, append([]string{"dev", "--listen", "127.0.0.1:0"}, flags...)...)
	// The operators' token must not be written to the user's home.
	c.Env = append(os.Environ(), "XDG_STATE_HOME="+t.TempDir())
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	d := devProgram{keys: make(map[string]string)}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			lines <- scan.Text()
		}
	}()
	t.Cleanup(func() {
		if err := c.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		for range lines { // until the program closes its output
		}
		if err := c.Wait(); err != nil {
			t.Errorf("sluice dev ended with %v after an interrupt, want no error", err)
		}
	})
	d.read(t, lines)
	return d
}

var (
	listens = regexp.MustCompile(`listens on (http://\S+)`)
	tenant  = regexp.MustCompile(`^\s*# tenant (\w+),`)
	apiKey  = regexp.MustCompile(`X-API-Key: (\w+)`)
)

// read reads the program's address and each tenant's key from what it prints at its start.
func (d *devProgram) read(t *testing.T, lines <-chan string) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	name, seen := "", []string(nil)
	for d.base == "" || len(d.keys) < 3 {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatalf("sluice dev ended; it printed\n%s", strings.Join(seen, "\n"))
			}
			seen = append(seen, line)
			if m := listens.FindStringSubmatch(line); m != nil {
				d.base = m[1]
			}
			if m := tenant.FindStringSubmatch(line); m != nil {
				name = m[1]
			}
			if m := apiKey.FindStringSubmatch(line); m != nil && name != "" {
				d.keys[name], name = m[1], ""
			}
		case <-timeout:
			t.Fatalf("no address and three keys within 20 s; sluice dev printed\n%s", strings.Join(seen, "\n"))
		}
	}
}

// A new user runs the first command, opens the page and sends some requests. The page counts each answer that the user
// got: so many allowed, and so many denied.
func TestLivePageOfDev(t *testing.T) {
	findChromium(t)
	d := startDev(t)
	p := openTab(t, d.base+"/_sluice/", views[0])
	defer p.wantNoComplaints()
	p.until("document.querySelectorAll('#try:not([hidden]) pre').length >= 3")
	p.picture("dev start")

	answers, limited := make(map[int]int), make(map[string]int)
	for who, calls := range map[string]int{"globex": 30, "acme": 10, "initech": 3, "": 4} {
		for range calls {
			status := d.call(t, d.keys[who])
			answers[status]++
			if status == http.StatusTooManyRequests {
				limited[who]++
			}
		}
	}
	if answers[200] == 0 || answers[429] == 0 || answers[401] == 0 || answers[403] == 0 {
		t.Fatalf("answers by status are %v, want some of 200, 401, 403 and 429", answers)
	}
	p.until(fmt.Sprintf("document.querySelector('[data-total=requests]').textContent === '%d'", 47))
	for total, want := range map[string]int{
		"allowed": answers[200], "limited": answers[429], "unauthorized": answers[401], "other": answers[403],
	} {
		if got := p.number(fmt.Sprintf("[data-total=%q]", total)); got != want {
			t.Errorf("%s: page shows %d, the client got %d such answers", total, got, want)
		}
	}
	for who, want := range limited {
		if got := p.number(fmt.Sprintf("[data-tenant=%q] [data-label=Limited]", who)); got != want {
			t.Errorf("limited calls of %s: page shows %d, the client got %d", who, got, want)
		}
	}
	for _, v := range views {
		p.setView(v)
		p.inspect(v.String())
		p.picture("dev " + v.String())
	}
}

// call sends one request and returns the status of its answer.
func (d *devProgram) call(t *testing.T, key string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.base+"/product/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("X-API-Key", key)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode
}
