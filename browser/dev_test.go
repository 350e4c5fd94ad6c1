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

	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// started is a running `sluice dev`, and what it printed to try.
type started struct {
	base string
	keys map[string]string // by tenant
}

// startDev builds and starts the program, and stops it at the test's end; it has to end well.
func startDev(t *testing.T, flags ...string) started {
	t.Helper()
	program := filepath.Join(t.TempDir(), "sluice")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "..", "-o", program, "./cmd/sluice")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	c := exec.Command(program, append([]string{"dev", "--listen", "127.0.0.1:0"}, flags...)...)
	c.Env = append(os.Environ(), "XDG_STATE_HOME="+t.TempDir()) // not the user's folder, for the operators' token
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	d := started{keys: make(map[string]string)}
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
			t.Errorf("sluice dev ends with %v after an interrupt, want a clean end", err)
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

// read takes from the greeting where the program listens and each tenant's key.
func (d *started) read(t *testing.T, lines <-chan string) {
	t.Helper()
	late := time.After(20 * time.Second)
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
		case <-late:
			t.Fatalf("no address and three keys within 20 s; sluice dev printed\n%s", strings.Join(seen, "\n"))
		}
	}
}

// What a newcomer sees: the first command, the page, some calls, and the page's numbers are the answers they got.
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

// A Redis that is killed under a real gateway, and comes back empty: the page says so, shows what the backstop does,
// and that all is well again. No answer is a fault meanwhile.
func TestLivePageOfDevWithRedis(t *testing.T) {
	findChromium(t)
	redis := redistest.Start(t)
	d := startDev(t, "--redis", redis.Addr)
	p := openTab(t, d.base+"/_sluice/", views[0])
	defer p.wantNoComplaints()
	p.until("document.querySelector('[data-breaker=Redis] td')?.textContent === 'closed: in use'")
	calls := func(n int) {
		for range n {
			if status := d.call(t, d.keys["acme"]); status != http.StatusOK && status != http.StatusTooManyRequests {
				t.Fatalf("a call is answered %d", status)
			}
		}
	}
	calls(30)
	p.until("document.querySelector('[data-total=requests]').textContent === '30'")
	if got := p.number("[data-count=local] dd"); got == 0 {
		t.Error("of 30 calls none was decided from a lease")
	}
	if shown := eval[bool](p, "document.getElementById('away').checkVisibility()"); shown {
		t.Error("the banner is shown while Redis answers")
	}
	pictures := func(state string) {
		for _, v := range views {
			p.setView(v)
			p.inspect(state + " " + v.String())
			p.picture("redis " + state + " " + v.String())
		}
		p.setView(views[0])
	}
	pictures("up")

	redis.Kill()
	const banner = "document.getElementById('away').checkVisibility()"
	for range 100 { // until the breaker opens; some are still decided from leases
		if calls(5); eval[bool](p, banner) {
			break
		}
		p.until("document.documentElement.dataset.now !== window.seen && (window.seen = " +
			"document.documentElement.dataset.now)")
	}
	p.until(banner)
	calls(10)
	p.until("document.querySelector('[data-count=backstop] dd').textContent !== '0'")
	p.until("document.getElementById('away-key').checkVisibility()")
	if got := p.texts("[data-tenant=globex] .what .tag.away"); len(got) == 0 {
		t.Error("no limit is marked as counted here")
	}
	pictures("killed")

	if err := redis.Start(); err != nil {
		t.Fatal(err)
	}
	p.until("!" + banner)
	p.until("document.querySelector('[data-breaker=Redis] td').textContent === 'closed: in use'")
	const paid = "document.querySelector('[data-count=waiting] dd').textContent === '0'"
	for range 20 { // requests set off the charging back; one that was tried too early is tried again after a second
		if calls(1); eval[bool](p, paid) {
			break
		}
		p.until("document.documentElement.dataset.now !== window.seen && (window.seen = " +
			"document.documentElement.dataset.now)")
	}
	p.until(paid)
	p.until("document.querySelectorAll('.what .tag.away').length === 0")
	if got := p.number("[data-breaker=Redis] td:nth-child(3)"); got != 1 {
		t.Errorf("the breaker opened %d times, want once", got)
	}
	pictures("back")
}

// call sends one request and returns the status of its answer.
func (d *started) call(t *testing.T, key string) int {
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
