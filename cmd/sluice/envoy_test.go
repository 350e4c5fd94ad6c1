package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/template"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

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
	envoyProgram(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_,
			_ = io.WriteString(w, "hello")
	}))
	t.Cleanup(upstream.Close)
	return startEnvoyWith(t, "testdata/envoy/envoy.yaml.tmpl",
		map[string]any{"Timeout": wait, "Services": services, "Upstream": upstream.Listener.Addr().(*net.TCPAddr).Port})
}

// startEnvoyWith starts an Envoy with the configuration that a template makes of data.
func startEnvoyWith(t *testing.T, templateFile string, data any) *envoy {
	t.Helper()
	program := envoyProgram(t)
	dir := t.TempDir()
	config, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	file, err := os.Create(config)
	if err != nil {
		t.Fatal(err)
	}
	if err = template.Must(template.ParseFiles(templateFile)).Execute(file, data); err != nil {
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
	e := &envoy{admin: admin, client: &http.Client{Timeout: patience,
		Transport: &http.Transport{MaxIdleConnsPerHost: 2 * envoyClients}}}
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
	code, header, body, err := e.try(t.Context(), tenant)
	if err != nil {
		t.Fatal(err)
	}
	return code, header, body
}

// try is page that returns an error of the connection to Envoy.
func (e *envoy) try(ctx context.Context, tenant string) (code int, header http.Header, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url, nil)
	if err != nil {
		return 0, nil, "", err
	}
	if tenant != "" {
		req.Header.Set("X-Tenant", tenant)
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(text), err
}

// envoyClients is how many clients a load has.
const envoyClients = 8

// load is several clients that send requests to Envoy at the same time. Each sends its next request when it has the
// answer to the last one. Any answer but 200, 429 and an excused 500 fails the test.
type load struct {
	t       *testing.T
	e       *envoy
	next    func(client int) string // the tenant of a client's next request; "" lets the client wait
	excused func() bool             // whether a 500 is excused, before the request or after it
	pause   time.Duration           // between two requests of a client

	admitted, denied, failed atomic.Int64               // answers to requests of the tenant many
	failedOf                 [envoyClients]atomic.Int64 // excused 500s of each client
	firstDenial              atomic.Pointer[int64]      // how many requests had been admitted when the first was denied
	mu                       sync.Mutex                 // protects windows
	windows                  map[int64]int64            // admitted requests of the tenant short, by second
	ended                    atomic.Bool
	running                  sync.WaitGroup
}

// start lets the clients send requests until end is called, or the test ends.
func (l *load) start() {
	l.windows = make(map[int64]int64)
	for i := range envoyClients {
		l.running.Go(func() { l.run(i) })
	}
	l.t.Cleanup(l.end)
}

// end returns when the clients have the answers to all of their requests.
func (l *load) end() {
	l.ended.Store(true)
	l.running.Wait()
}

func (l *load) run(client int) {
	for !l.ended.Load() {
		pause := l.pause
		if tenant := l.next(client); tenant == "" || !l.ask(client, tenant) {
			pause = 20 * time.Millisecond
		}
		if pause > 0 {
			<-time.After(pause)
		}
	}
}

// ask sends a request and counts its answer. It returns false if the request failed.
func (l *load) ask(client int, tenant string) bool {
	began, excused := time.Now(), l.excused()
	code, _, _, err := l.e.try(context.Background(), tenant)
	switch {
	case err != nil:
		l.t.Errorf("a request to Envoy: %v", err)
	case code == http.StatusInternalServerError && (excused || l.excused()):
		l.failed.Add(1)
		l.failedOf[client].Add(1)
		return false
	case code != http.StatusOK && code != http.StatusTooManyRequests:
		hosts, err := l.e.ask("/clusters")
		l.t.Errorf("status %d after %d admitted requests; the clusters, %v:\n%s", code, l.admitted.Load(), err, hosts)
	case tenant == "short":
		// A request that lasts from one second into the next could count in either.
		if code == http.StatusOK && began.Unix() == time.Now().Unix() {
			l.mu.Lock()
			l.windows[began.Unix()]++
			l.mu.Unlock()
		}
		return true
	case code == http.StatusOK:
		l.admitted.Add(1)
		return true
	default:
		admitted := l.admitted.Load()
		l.firstDenial.CompareAndSwap(nil, &admitted)
		l.denied.Add(1)
		return true
	}
	l.ended.Store(true)
	return false
}

// wait waits until the condition is true. If a request has failed meanwhile, it ends the test.
func (l *load) wait(what string, condition func() bool) {
	l.t.Helper()
	waitWithin(l.t, what, func() error {
		if l.t.Failed() {
			l.t.FailNow()
		}
		if !condition() {
			return fmt.Errorf("not yet: %d requests are admitted, %d denied, %d failed", l.admitted.Load(),
				l.denied.Load(), l.failed.Load())
		}
		return nil
	})
}

// outage is a load of the tenant many on one service that is made to fail. Until it fails, the clients spend at most
// half of the limit.
type outage struct {
	*load
	began, over atomic.Bool // the service fails from now on; it answers again
}

func startOutage(t *testing.T, e *envoy) *outage {
	t.Helper()
	o := &outage{load: &load{t: t, e: e}}
	o.next = func(int) string {
		if !o.began.Load() && o.admitted.Load() >= manyUnits/2 {
			return ""
		}
		return "many"
	}
	o.excused = func() bool { return o.began.Load() && !o.over.Load() }
	o.start()
	o.wait("the service is under load", func() bool { return o.admitted.Load() >= 10*envoyClients })
	o.began.Store(true)
	return o
}

// everyClientFails waits until a request of every client has failed. All answers that the service gave before it failed
// are counted then.
func (o *outage) everyClientFails() {
	o.t.Helper()
	o.wait("every client sees that the service does not answer", func() bool {
		for i := range o.failedOf {
			if o.failedOf[i].Load() == 0 {
				return false
			}
		}
		return true
	})
}

// useUp waits until the service, which answers again, has denied requests of all clients. It returns how many requests
// were admitted in all, and how many of them before the first was denied.
func (o *outage) useUp() (admitted, beforeDenial int64) {
	o.t.Helper()
	o.e.ready(o.t)
	o.over.Store(true)
	o.wait("the limit is used up", func() bool { return o.denied.Load() >= 2*envoyClients })
	o.end()
	if o.t.Failed() {
		o.t.FailNow()
	}
	return o.admitted.Load(), *o.firstDenial.Load()
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

// How many requests of the tenants many and short are admitted, in a year and in a second.
const manyUnits, shortUnits = 2000, 50

var envoyLimits = fmt.Sprintf("domain: api\ndescriptors:\n"+
	"  - {key: tenant, value: probe, rate_limit: {unlimited: true}}\n"+
	"  - {key: tenant, rate_limit: {unit: year, requests_per_unit: 3}}\n"+
	"  - {key: tenant, value: many, rate_limit: {unit: year, requests_per_unit: %d}}\n"+
	"  - {key: tenant, value: short, rate_limit: {unit: second, requests_per_unit: %d}}\n", manyUnits, shortUnits)

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
// that is killed under load and started again continues with its counts: the clients together get the limit, less what
// the killed service had leased and not spent.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	port := redistest.FreePort(t)
	e := startEnvoyThatWaits(t, "20s", port)
	redis := redistest.Start(t)
	args := []string{"--config", envoyLimitsFile(t), "--redis", redis.Addr, "--redis-deadline", "10s",
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

	observer := startServe(t, append(slices.Clone(args), "--leases=false")...)
	o := startOutage(t, e)
	service.Kill()
	o.everyClientFails()
	if code, _ := e.get(t, ""); code != 200 {
		t.Errorf("a request without a descriptor, while the service is dead: status %d", code)
	}
	// What the store counts and no client got: the leases of the killed service, and answers that were under way. A
	// service leases at most 1/2.4 of what is left, and leases again when it has spent half of that.
	lost := observer.used(t, "many") - o.admitted.Load()
	if lost < 0 || lost > manyUnits/2 {
		t.Errorf("the killed service had leased %d units of %d, want at most half", lost, manyUnits)
	}
	serveProcess(t, port, args...)
	e.ready(t)
	check(4, 429, denied)
	code, h := e.get(t, "globex")
	if code != 200 || h.Get("X-Ratelimit-Remaining") != "2" {
		t.Errorf("another tenant: status %d, %s units left", code, h.Get("X-Ratelimit-Remaining"))
	}
	admitted, beforeDenial := o.useUp()
	if admitted != manyUnits-lost || beforeDenial < admitted-envoyClients {
		t.Errorf("%d requests were admitted, %d of them before the first denial; want %d of %d, and all but those "+
			"that were in flight before it, since %d units were lost",
			admitted, beforeDenial, manyUnits-lost, manyUnits, lost)
	}
	t.Logf("%d of %d units were lost with the killed service", lost, manyUnits)
}

// used returns how many units of a tenant's limit the store counts. It charges nothing.
func (s *serving) used(t *testing.T, tenant string) int64 {
	t.Helper()
	out, err := s.client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "api",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{{HitsAddend: wrapperspb.UInt64(0),
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: tenant}}}}},
		grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	status := out.GetStatuses()[0]
	return int64(status.GetCurrentLimit().GetRequestsPerUnit()) - int64(status.GetLimitRemaining())
}

// Guarantees that Envoy denies while the service is frozen under load (failure_mode_deny), that it goes on when the
// service does, and that the clients together get the limit, less what the service decided for requests that Envoy had
// answered itself.
func TestEnvoyPaused(t *testing.T) {
	t.Parallel()
	port := redistest.FreePort(t)
	e := startEnvoyThatWaits(t, "3s", port)
	service := serveProcess(t, port, "--config", envoyLimitsFile(t))
	e.ready(t)
	o := startOutage(t, e)
	if err := service.Freeze(); err != nil {
		t.Fatal(err)
	}
	o.everyClientFails()
	answered := o.admitted.Load()
	if code, _ := e.get(t, "acme"); code != http.StatusInternalServerError {
		t.Errorf("a request while the service is frozen: status %d", code)
	}
	if now := o.admitted.Load(); now != answered || o.denied.Load() > 0 {
		t.Errorf("%d requests were admitted while the service was frozen, %d denied", now-answered, o.denied.Load())
	}
	if err := service.Thaw(); err != nil {
		t.Fatal(err)
	}
	admitted, beforeDenial := o.useUp()
	if failed := o.failed.Load(); admitted > manyUnits || admitted < manyUnits-failed ||
		beforeDenial < admitted-envoyClients {
		t.Errorf("%d requests were admitted, %d of them before the first denial, and %d failed; want %d admitted, "+
			"less those that failed", admitted, beforeDenial, failed, manyUnits)
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

// Guarantees that two services can be restarted one after the other, under load and with leases, without a failed
// request: nobody is denied as long as half of a limit is left, exactly the limit is admitted in the end, and at most
// the limit in each window. A service must drain for longer than Envoy needs to notice it.
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
		"--drain", drain.String()}
	services := []*servingProcess{serveProcess(t, ports[0], args...), serveProcess(t, ports[1], args...)}
	e.healthy(t, len(ports))
	// Envoy sends requests to both services in turn. If its count of requests to a service stays the same three times,
	// while it sends requests to the other one, it does not use that service any more.
	const enough = 3
	var avoided, ends atomic.Int64 // how often in a row; when a service that drains ends, in µs, or else 0
	var restarted atomic.Bool      // both services
	l := &load{t: t, e: e, pause: 10 * time.Millisecond}
	l.next = func(client int) string {
		if restarted.Load() || client%2 == 0 && l.admitted.Load() < manyUnits/2 {
			return "many"
		}
		return "short"
	}
	l.excused = func() bool {
		end := ends.Load()
		return end != 0 && time.Now().UnixMicro() > end && avoided.Load() < enough
	}
	l.start()
	l.wait("the services are under load", func() bool { return l.admitted.Load() >= 10*envoyClients })
	for i, port := range ports {
		e.healthy(t, len(ports))
		avoided.Store(0)
		ends.Store(time.Now().Add(drain).UnixMicro())
		if err := services[i].Terminate(); err != nil {
			t.Fatal(err)
		}
		toThis, _ := e.service(t, port)
		toOther, _ := e.service(t, ports[1-i])
		for running := true; running; {
			select {
			case <-services[i].ended:
				running = false
			case <-time.After(20 * time.Millisecond):
			}
			this, healthy := e.service(t, port)
			switch other, _ := e.service(t, ports[1-i]); {
			case this != toThis || healthy:
				avoided.Store(0)
				toThis, toOther = this, other
			case other != toOther:
				avoided.Add(1)
				toOther = other
			}
			if l.failed.Load() > 0 {
				return false
			}
		}
		if t.Failed() {
			t.FailNow()
		}
		if avoided.Load() < enough {
			return false
		}
		ends.Store(0)
		services[i] = serveProcess(t, port, args...)
	}
	e.healthy(t, len(ports))
	if n := l.denied.Load(); n > 0 {
		t.Errorf("%d requests were denied while half of the limit was left", n)
	}
	restarted.Store(true)
	l.wait("the limit is used up", func() bool { return l.admitted.Load() >= manyUnits })
	denied := l.denied.Load()
	l.wait("requests are denied", func() bool { return l.denied.Load() >= denied+2*envoyClients })
	l.end()
	if n := l.admitted.Load(); n != manyUnits {
		t.Errorf("%d requests were admitted, want %d", n, manyUnits)
	}
	for second, n := range l.windows {
		if n > shortUnits {
			t.Errorf("%d requests were admitted in second %d, want at most %d", n, second, shortUnits)
		}
	}
	if l.failed.Load() > 0 {
		return false
	}
	t.Logf("%d seconds with a load; %d denials before the limit of a year was used up", len(l.windows), denied)
	return true
}
