package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// envoy is a real Envoy in front of an upstream that answers 200.
type envoy struct {
	url    string
	admin  string // the file with the address of its admin port
	client *http.Client
}

// envoyProgram returns the path of the Envoy program, from the variable SLUICE_ENVOY. Without that variable it skips
// the test; if REQUIRE_ENVOY is set, it fails the test instead.
func envoyProgram(t *testing.T) string {
	t.Helper()
	program := os.Getenv("SLUICE_ENVOY")
	if program == "" {
		if os.Getenv("REQUIRE_ENVOY") != "" {
			t.Fatal("REQUIRE_ENVOY is set, and SLUICE_ENVOY names no Envoy")
		}
		t.Skip("no Envoy: set SLUICE_ENVOY=$(scripts/envoy)")
	}
	return program
}

// startEnvoy starts the Envoy that SLUICE_ENVOY names, with rate limit services at these ports. It waits 2 s for their
// answers.
func startEnvoy(t *testing.T, services ...int) *envoy {
	t.Helper()
	return startEnvoyThatWaits(t, "2s", services...)
}

// startEnvoyThatWaits starts an Envoy that waits for the given time for answers of the services, and of health checks.
func startEnvoyThatWaits(t *testing.T, wait string, services ...int) *envoy {
	t.Helper()
	program := envoyProgram(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_,
			_ = io.WriteString(w, "hello")
	}))
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	config, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	file, err := os.Create(config)
	if err != nil {
		t.Fatal(err)
	}
	err = template.Must(template.ParseFiles("testdata/envoy/envoy.yaml.tmpl")).Execute(file,
		map[string]any{"Timeout": wait, "Services": services, "Upstream": upstream.Listener.Addr().(*net.TCPAddr).Port})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := redistest.Run(nil, log, log, os.Environ(), program, "-c", config, "--admin-address-path", admin,
		"--use-dynamic-base-id", "--concurrency", "1", "-l", "warn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("Envoy's log:\n%s", text)
		}
	})
	e := &envoy{admin: admin, client: &http.Client{Timeout: patience}}
	e.url = "http://" + e.listener(t)
	return e
}

// ask requests a page of Envoy's admin port.
func (e *envoy) ask(path string) ([]byte, error) {
	address, err := os.ReadFile(e.admin)
	if err != nil {
		return nil, err
	}
	resp, err := http.Get("http://" + strings.TrimSpace(string(address)) + path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return io.ReadAll(resp.Body)
}

// listener returns the address at which Envoy listens.
func (e *envoy) listener(t *testing.T) (address string) {
	t.Helper()
	waitWithin(t, "Envoy listens", func() error {
		text, err := e.ask("/listeners")
		name, at, ok := strings.Cut(strings.TrimSpace(string(text)), "::")
		if err == nil && (!ok || name != "in") {
			err = fmt.Errorf("listeners %q", text)
		}
		address = at
		return err
	})
	return address
}

// healthy waits until Envoy considers the given number of its rate limit services healthy.
func (e *envoy) healthy(t *testing.T, services int) {
	t.Helper()
	waitWithin(t, "the services are healthy", func() error {
		text, err := e.ask("/clusters")
		n := len(regexp.MustCompile(`(?m)^rls::.*::health_flags::healthy$`).FindAll(text, -1))
		if err == nil && n != services {
			err = fmt.Errorf("%d services are healthy:\n%s", n, text)
		}
		return err
	})
}

// waitWithin repeats try until it succeeds, or until patience has passed.
func waitWithin(t *testing.T, what string, try func() error) {
	t.Helper()
	err := try()
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); {
		<-time.After(10 * time.Millisecond)
		err = try()
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// get sends a request of a tenant, or one without a descriptor if tenant is "".
func (e *envoy) get(t *testing.T, tenant string) (int, http.Header) {
	t.Helper()
	code, header, _ := e.page(t, tenant)
	return code, header
}

// page is get that also returns the body.
func (e *envoy) page(t *testing.T, tenant string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if tenant != "" {
		req.Header.Set("X-Tenant", tenant)
	}
	resp, err := e.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(body)
}

// servingProcess is a `sluice serve` in its own process, which can be killed.
type servingProcess struct {
	*redistest.Process
	ended chan struct{} // closed when the process has ended
}

func serveProcess(t *testing.T, port int, args ...string) *servingProcess {
	t.Helper()
	args = append([]string{"serve", "--grpc", fmt.Sprint("127.0.0.1:", port), "--http=", "--debug="}, args...)
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := redistest.Run(nil, in, in, append(os.Environ(), argsEnv+"="+strings.Join(args, "\n")), os.Args[0])
	_ = in.Close() // the process has its own
	if err != nil {
		t.Fatal(err)
	}
	s := &servingProcess{p, make(chan struct{})}
	var log strings.Builder
	go func() {
		_, _ = io.Copy(&log, out) // ends with the process
		_ = out.Close()           // only read from
		close(s.ended)
	}()
	t.Cleanup(func() {
		p.Kill()
		<-s.ended
		if t.Failed() {
			t.Logf("log of the service on port %d:\n%s", port, log.String())
		}
	})
	return s
}

// ready waits until Envoy gets answers from its rate limit service.
func (e *envoy) ready(t *testing.T) {
	t.Helper()
	waitWithin(t, "the rate limit service answers Envoy", func() error {
		if code, _ := e.get(t, "probe"); code != http.StatusOK {
			return fmt.Errorf("status %d", code)
		}
		return nil
	})
}

const envoyLimits = "domain: api\ndescriptors:\n" +
	"  - {key: tenant, value: probe, rate_limit: {unlimited: true}}\n" +
	"  - {key: tenant, rate_limit: {unit: year, requests_per_unit: 3}}\n" +
	"  - {key: tenant, value: many, rate_limit: {unit: year, requests_per_unit: 300}}\n"

func envoyLimitsFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(name, []byte(envoyLimits), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Guarantees what clients behind a real Envoy get: 200s and then 429s, with the headers of Envoy and of Sluice.
// Requests without a descriptor are not limited. Envoy denies while the service is dead (failure_mode_deny). A service
// that was killed and started again continues with its counts.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	port := redistest.FreePort(t)
	e := startEnvoy(t, port)
	redis := redistest.Start(t)
	args := []string{"--config", envoyLimitsFile(t), "--redis", redis.Addr, "--redis-deadline", "10s", "--leases=false",
		"--headers", "both"}
	service := serveProcess(t, port, args...)
	e.ready(t)

	seconds := regexp.MustCompile(`\b\d{5,}\b`) // seconds until the end of the year
	check := func(i, status int, want map[string]string) {
		t.Helper()
		code, h := e.get(t, "acme")
		if code != status {
			t.Errorf("request %d: status %d, want %d", i, code, status)
		}
		for name, value := range want {
			if got := seconds.ReplaceAllString(h.Get(name), "S"); got != value {
				t.Errorf("request %d: %s is %q, want %q", i, name, got, value)
			}
		}
	}
	for i, left := range []string{"2", "1", "0"} {
		check(i, 200, map[string]string{
			"X-Ratelimit-Limit": `3, 3;w=S`, "X-Ratelimit-Remaining": left, "X-Ratelimit-Reset": "S",
			"X-Envoy-Ratelimited": "",
			"Ratelimit":           `"tenant";r=` + left + `;t=S`, "Ratelimit-Policy": `"tenant";q=3;w=S`,
			"Retry-After":     "",
			"Ratelimit-Limit": "3", "Ratelimit-Remaining": left, "Ratelimit-Reset": "S",
		})
	}
	denied := map[string]string{
		"X-Ratelimit-Limit": `3, 3;w=S`, "X-Ratelimit-Remaining": "0", "X-Envoy-Ratelimited": "true",
		"Retry-After": "S",
		"Ratelimit":   `"tenant";r=0;t=S`, "Ratelimit-Policy": `"tenant";q=3;w=S`,
	}
	check(3, 429, denied)
	if code, _ := e.get(t, ""); code != 200 {
		t.Errorf("a request without a descriptor: status %d", code)
	}

	service.Kill()
	waitWithin(t, "Envoy sees that the service is dead", func() error {
		if code, _ := e.get(t, "acme"); code != http.StatusInternalServerError {
			return fmt.Errorf("status %d", code)
		}
		return nil
	})
	if code, _ := e.get(t, ""); code != 200 {
		t.Errorf("a request without a descriptor, while the service is dead: status %d", code)
	}
	serveProcess(t, port, args...)
	e.ready(t)
	check(4, 429, denied)
	code, h := e.get(t, "globex")
	if code != 200 || h.Get("X-Ratelimit-Remaining") != "2" {
		t.Errorf("another tenant: status %d, %s units left", code, h.Get("X-Ratelimit-Remaining"))
	}
}

// Guarantees that Envoy denies while the service is frozen (failure_mode_deny), that it goes on when the service does,
// and that the requests made meanwhile do not exceed the limit.
func TestEnvoyPaused(t *testing.T) {
	t.Parallel()
	port := redistest.FreePort(t)
	e := startEnvoy(t, port)
	service := serveProcess(t, port, "--config", envoyLimitsFile(t))
	e.ready(t)
	admitted := 0
	ask := func() int {
		t.Helper()
		code, _ := e.get(t, "acme")
		if code == http.StatusOK {
			admitted++
		}
		return code
	}
	if code := ask(); code != http.StatusOK {
		t.Errorf("the first request: status %d", code)
	}
	if err := service.Freeze(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if code := ask(); code != http.StatusInternalServerError {
			t.Errorf("request %d while the service is frozen: status %d", i, code)
		}
	}
	if err := service.Thaw(); err != nil {
		t.Fatal(err)
	}
	e.ready(t)
	for range 5 {
		ask()
	}
	if code := ask(); code != http.StatusTooManyRequests || admitted < 1 || admitted > 3 {
		t.Errorf("%d requests were admitted, and the last one got status %d", admitted, code)
	}
}

// Guarantees that behind a real Envoy requests are decided by the plan of their tenant, and that clients get the body
// of a denial.
func TestEnvoyPlans(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, plans := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "plans.yaml")
	for name, text := range map[string]string{
		file: "domain: api\nsluice: {mapping: {tenant: tenant}}\n",
		plans: "plans: [ { id: free, limits: [] }, { id: p, limits: [ { id: total, quota: { units: 2, every: year } " +
			"} ] } ]\n" + "tenants: [ { id: acme, plan: p }, { id: probe, plan: free } ]\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port := redistest.FreePort(t)
	e := startEnvoy(t, port)
	serveProcess(t, port, "--config", file, "--plans", plans)
	e.ready(t)
	for i, left := range []string{"1", "0"} {
		if code, h := e.get(t, "acme"); code != 200 || !strings.HasPrefix(h.Get("Ratelimit"), `"total";r=`+left+";t=") {
			t.Errorf("request %d: status %d, headers %v", i, code, h)
		}
	}
	code, h, body := e.page(t, "acme")
	if code != 429 || h.Get("Retry-After") == "" || h.Get("X-Ratelimit-Remaining") != "0" ||
		strings.Join(h.Values("Content-Type"), ",") != "application/problem+json" ||
		!strings.Contains(body, `"total"`) {
		t.Errorf("a denied request: status %d, headers %v, body %s", code, h, body)
	}
	if code, _, body = e.page(t, "nobody"); code != 429 || !strings.Contains(body, `"status":403`) {
		t.Errorf("an unknown tenant: status %d, body %s", code, body)
	}
}

// service returns how many requests Envoy has sent to the rate limit service on a port, and whether Envoy considers
// that service healthy.
func (e *envoy) service(t *testing.T, port int) (requests string, healthy bool) {
	t.Helper()
	text, err := e.ask("/clusters")
	if err != nil {
		t.Fatal(err)
	}
	value := func(name string) string {
		found := regexp.MustCompile(fmt.Sprintf(`(?m)^rls::127\.0\.0\.1:%d::%s::(.*)$`, port, name)).FindSubmatch(text)
		if found == nil {
			t.Fatalf("no %s of the service on port %d in\n%s", name, port, text)
		}
		return string(found[1])
	}
	return value("rq_total"), value("health_flags") == "healthy"
}

// Guarantees that two services can be restarted one after the other without a failed request, and that exactly the
// limit is admitted, if a service drains for longer than Envoy needs to notice it.
//
// No timeout of Envoy may expire on a busy machine: after a health check's timeout, Envoy would consider the remaining
// service dead while the other one drains; after an answer's timeout, it would deny the request. Envoy checks health
// ten times a second. If the machine gives Envoy no processor time for as long as a service drains, Envoy sends
// requests to a service that has ended. Such a run shows nothing, and is repeated with twice the time. A request that
// fails while a service drains, or after Envoy has noticed it, fails the test.
func TestEnvoyRollingRestart(t *testing.T) {
	t.Parallel()
	envoyProgram(t)
	const most = 32 * time.Second
	for drain := 4 * time.Second; drain <= most; drain *= 2 {
		inTime := false
		t.Run(drain.String(), func(t *testing.T) { inTime = restartInTurn(t, drain) })
		if inTime || t.Failed() {
			return
		}
	}
	t.Fatalf("Envoy does not notice within %s that a service drains", most)
}

// restartInTurn restarts two services that drain for the given time. It returns false if one of them ended before Envoy
// stopped using it.
func restartInTurn(t *testing.T, drain time.Duration) bool {
	t.Helper()
	ports := []int{redistest.FreePort(t), redistest.FreePort(t)}
	e := startEnvoyThatWaits(t, "20s", ports...)
	redis := redistest.Start(t)
	args := []string{"--config", envoyLimitsFile(t), "--redis", redis.Addr, "--redis-deadline", "10s",
		"--drain", drain.String(), "--leases=false"}
	services := []*servingProcess{serveProcess(t, ports[0], args...), serveProcess(t, ports[1], args...)}
	e.ready(t)
	admitted, denied := 0, 0
	// ask reports whether a service answered a request. A request without an answer fails the test, unless excused
	// reports true.
	ask := func(excused func() bool) bool {
		t.Helper()
		code, _ := e.get(t, "many")
		switch {
		case code == 200:
			admitted++
		case code == 429:
			denied++
		case excused != nil && excused():
			return false
		default:
			hosts, err := e.ask("/clusters")
			t.Fatalf("status %d after %d requests; the clusters, %v:\n%s", code, admitted+denied, err, hosts)
		}
		return true
	}
	for range 50 {
		ask(nil)
	}
	for i, port := range ports {
		e.healthy(t, len(ports))
		ends := time.Now().Add(drain)
		if err := services[i].Terminate(); err != nil {
			t.Fatal(err)
		}
		// Envoy sends requests to both services in turn, so three requests in a row to the other service show that
		// Envoy does not use this one any more.
		const enough = 3
		avoided := 0
		for running := true; running; {
			before, _ := e.service(t, port)
			if !ask(func() bool { return avoided < enough && time.Now().After(ends) }) {
				return false
			}
			if after, healthy := e.service(t, port); after == before && !healthy {
				avoided++
			} else {
				avoided = 0
			}
			select {
			case <-services[i].ended:
				running = false
			case <-time.After(20 * time.Millisecond):
			}
		}
		if avoided < enough {
			return false
		}
		services[i] = serveProcess(t, port, args...)
		for range 20 {
			ask(nil)
		}
	}
	for range 300 {
		ask(nil)
	}
	if admitted != 300 {
		t.Errorf("admitted %d and denied %d, want 300 admitted", admitted, denied)
	}
	return true
}
