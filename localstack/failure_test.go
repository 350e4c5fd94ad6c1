package localstack_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"

	"github.com/sluicelimits/sluice/internal/cell/dynamotable"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/localstack/stand"
)

var applierFails = flag.Duration("applier-fails", 20*time.Second, "for how long the applier of a cell fails")

// requireLocalProcesses skips the test unless LocalStack's processes run on this machine. If REQUIRE_LOCALSTACK is set,
// it fails the test instead.
func requireLocalProcesses(t *testing.T, s *stand.Stand) {
	t.Helper()
	if s.Ours() {
		return
	}
	const message = "this LocalStack was not started by localstack/up: its processes cannot be killed"
	if os.Getenv("REQUIRE_LOCALSTACK") != "" {
		t.Fatal(message)
	}
	t.Skip(message)
}

// The two cells of the deployment.
func smallAndFull(t *testing.T, s *stand.Stand) (small, full stand.Cell) {
	t.Helper()
	for _, c := range s.Cells() {
		if c.Full {
			full = c
		} else {
			small = c
		}
	}
	if small.ID == "" || full.ID == "" {
		t.Fatalf("the cells are %v, want a small and a full one", s.Cells())
	}
	return small, full
}

// attempt is a request of a client, with what the client knows about it.
type attempt struct {
	cell           string
	sent, answered time.Time
	status         int
	body           string
	err            error
}

// load are clients that send requests until they are stopped, and record each answer.
type load struct {
	mu   sync.Mutex
	all  []attempt
	stop func()
}

// calls starts a client for each cell, which sends requests with a key and pauses between them, until the test ends or
// the load is stopped.
func calls(t *testing.T, s *stand.Stand, request, key string, clients int, pause time.Duration) *load {
	l := &load{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, c := range s.Cells() {
		api := s.API(c.ID)
		for range clients {
			wg.Go(func() {
				client := &http.Client{Timeout: time.Minute}
				defer client.CloseIdleConnections()
				again := time.NewTicker(max(pause, time.Microsecond))
				defer again.Stop()
				for {
					one := attempt{cell: c.ID, sent: time.Now()}
					a, err := stand.Call(t.Context(), client, api, request, key)
					if one.answered, one.err = time.Now(), err; err == nil {
						one.status, one.body = a.Status, a.Body
					}
					l.mu.Lock()
					l.all = append(l.all, one)
					l.mu.Unlock()
					select {
					case <-stop:
						return
					case <-again.C:
					}
				}
			})
		}
	}
	l.stop = sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
	t.Cleanup(l.stop)
	return l
}

// attemptsAt returns the attempts at a cell so far, in the order of their answers.
func (l *load) attemptsAt(cell string) []attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []attempt
	for _, a := range l.all {
		if a.cell == cell {
			all = append(all, a)
		}
	}
	return all
}

// waitForMore waits until a cell has answered n further requests.
func (l *load) waitForMore(t *testing.T, cell string, n int) {
	t.Helper()
	before := len(l.attemptsAt(cell))
	waitFor(t, func(context.Context) error {
		if got := len(l.attemptsAt(cell)) - before; got < n {
			return fmt.Errorf("%s has answered %d calls, want %d", cell, got, n)
		}
		return nil
	})
}

// isDenial reports whether an answer is a denial of the given kind. All denials of a REST API have the status 429, so
// the kind is taken from the problem.
func isDenial(kind answer.Kind, status int, body string) bool {
	var p problem
	return status == http.StatusTooManyRequests && json.Unmarshal([]byte(body), &p) == nil && p.Type == kind.Type() &&
		p.Status == kind.Status()
}

func admitted(a attempt) bool { return a.err == nil && a.status == http.StatusOK }

// limits reports whether the answer was decided by limits.
func limits(a attempt) bool {
	return admitted(a) || a.err == nil && isDenial(answer.Limited, a.status, a.body)
}

// allowUnidentified returns a function that accepts a bounded number of denials because the caller could not be
// identified. A new process has no copy of the configuration. If it cannot read what it needs in time, it denies the
// request (docs/problems.md, caller-not-identified). It needs a key, its tenant, the plan and the shares, and keeps
// what it has read. So each new process may deny four requests.
func allowUnidentified(processes int) func(attempt) bool {
	left := 4 * processes
	return func(a attempt) bool {
		if !isDenial(answer.Unidentified, a.status, a.body) {
			return false
		}
		left--
		return left >= 0
	}
}

// wantOnlyAllowed fails the test for each answer that is not allowed, and logs how many answers there were of each
// kind.
func (l *load) wantOnlyAllowed(t *testing.T, may func(attempt) bool) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := map[string]int{}
	for _, a := range l.all {
		var p problem
		_ = json.Unmarshal([]byte(a.body), &p) // not every answer is a problem
		counts[strings.TrimSpace(fmt.Sprintf("%s %d %s", a.cell, a.status, p.Type))]++
		if !may(a) {
			t.Errorf("%s, sent at %s and answered %s later: status %d, body %s, %v", a.cell,
				a.sent.Format(time.StampMilli),
				a.answered.Sub(a.sent), a.status, strings.TrimSpace(a.body), a.err)
		}
	}
	t.Logf("answers: %v", counts)
}

// windows counts the requests of a cell that were certainly admitted in each fixed window: those both sent and answered
// in it.
func (l *load) windows(cell string, period time.Duration) map[time.Time]int {
	sums := map[time.Time]int{}
	for _, a := range l.attemptsAt(cell) {
		if start := a.sent.Truncate(period); a.status == http.StatusOK && start.Equal(a.answered.Truncate(period)) {
			sums[start]++
		}
	}
	return sums
}

// exact fails the test unless each cell admits exactly its share of a tenant's exactLimit, which is half of 10. The
// tenant's key must not have been used in the present window.
func exact(t *testing.T, s *stand.Stand, key string) {
	t.Helper()
	for _, c := range s.Cells() {
		n := 0
		for range 8 {
			switch a := call(t, s, c.ID, "PUT /product/1", key); {
			case a.Status == http.StatusOK:
				n++
			case !isDenial(answer.Limited, a.Status, a.Body):
				t.Fatalf("%s: status %d, body %s", c.ID, a.Status, a.Body)
			}
		}
		if n != 5 {
			t.Errorf("%s admits %d of 8 requests, want 5, its share", c.ID, n)
		}
	}
}

// exactLimit is the limit that exact uses. Its windows are those of the test, see period.
func exactLimit(period time.Duration) string {
	return fmt.Sprintf(`{ id: exact, match: { methods: [PUT], pathPattern: "/product/*" }, tiers: [ { period: %s, `+
		`threshold: 10 } ] }`, period)
}

// decision is what an authorizer passes to the gateway beside its answer. A gateway passes most of it on to the backend
// and its logs, but not to clients.
type decision struct {
	Decision    string
	StoreFailed bool
	Limit       string `json:"rateLimitLimit"`
}

// decide asks the authorizer of a cell directly about a GET.
func decide(ctx context.Context, s *stand.Stand, c stand.Cell, resource, path, key string) (decision, error) {
	event, err := json.Marshal(map[string]any{
		"type": "REQUEST", "methodArn": "arn:aws:execute-api:" + c.Region + ":" + s.Account() + ":test/v1/GET" + path,
		"resource": resource, "path": path,
		"httpMethod": "GET", "headers": map[string]string{"X-API-Key": key},
		"multiValueHeaders": map[string][]string{"X-API-Key": {key}},
		"requestContext": map[string]any{
			"apiId": "test", "stage": "v1", "resourcePath": resource, "path": "/v1" + path, "httpMethod": "GET",
			"accountId": s.Account(), "requestId": "test",
			"identity": map[string]string{"sourceIp": "192.0.2.1"},
		},
	})
	if err != nil {
		return decision{}, err
	}
	out, err := s.Function(c.Region, c.Function("authorizer")).Invoke(ctx, event)
	if err != nil {
		return decision{}, err
	}
	var answer struct{ Context decision }
	if err := json.Unmarshal(out, &answer); err != nil || answer.Context.Decision == "" {
		return decision{}, fmt.Errorf("the authorizer of %s answers %s: %w", c.ID, out, err)
	}
	return answer.Context, nil
}

// waitForStoreMark waits until the authorizer of a cell reports that it decided without its store, or with it.
func waitForStoreMark(t *testing.T, s *stand.Stand, c stand.Cell, key string, want bool) {
	t.Helper()
	waitFor(t, func(ctx context.Context) error {
		got, err := decide(ctx, s, c, "/orders", "/orders", key)
		if err == nil && (got.StoreFailed != want || got.Decision != "allowed") {
			err = fmt.Errorf("%s answers %+v", c.ID, got)
		}
		return err
	})
}

// Guarantees that no request is lost when a Redis is killed under load: the full cell goes on, admits no more than the
// bound of the design, marks its decisions, and keeps its limits exactly again once the new, empty Redis has run for a
// window. The small cell is not affected.
func TestRedisKilled(t *testing.T) {
	s := open(t)
	requireLocalProcesses(t, s)
	small, full := smallAndFull(t, s)
	const (
		window = 5 * time.Second
		share  = 8 // of each cell

		// After that a breaker asks again, see internal/limiter/breaker: its longest cooldown, and a fifth.
		cooldown = 4800 * time.Millisecond
	)
	name := unique("redis")
	apply(t, s, fmt.Sprintf(`
plans:
  - id: redis-killed
    limits:
      - { id: few, match: { methods: [GET], pathPattern: "/product/*" }, tiers: [ { period: 5s, threshold: 16 } ] }
      - { id: many, match: { pathPattern: "/orders" }, tiers: [ { period: 1h, threshold: 100000 } ] }
      - %s
tenants: [ { id: %s, plan: redis-killed }, { id: %s-after, plan: redis-killed } ]
`, exactLimit(period()), name, name))
	k, after := key(t, s, name), key(t, s, name+"-after")
	for _, c := range s.Cells() {
		waitUntilKeyIsKnown(t, s, c.ID, k)
		waitUntilKeyIsKnown(t, s, c.ID, after)
	}
	l := calls(t, s, "GET /product/1", k, 1, 60*time.Millisecond)
	l.waitForMore(t, full.ID, 20)
	waitForStoreMark(t, s, full, k, false)

	t.Cleanup(func() { // in any case, because other tests need Redis
		if err := s.Up(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	killed := time.Now()
	if err := s.KillRedis(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitForStoreMark(t, s, full, k, true)
	l.waitForMore(t, full.ID, 100)
	instances, err := s.Processes(full.Function("authorizer"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	up := time.Now()
	waitForStoreMark(t, s, full, k, false)
	again := up.Add(cooldown).Truncate(window).Add(window)
	waitFor(t, func(context.Context) error {
		if left := time.Until(again.Add(2 * window)); left > 0 {
			return fmt.Errorf("the windows to check last for another %s", left)
		}
		return nil
	})
	l.stop()

	// Callers are read from DynamoDB, which works. A request of the test, beside those of the client, may start a
	// further process in a cell.
	unknown := allowUnidentified(len(s.Cells()))
	l.wantOnlyAllowed(t, func(a attempt) bool { return limits(a) || unknown(a) })
	for start, n := range l.windows(small.ID, window) {
		if n > share {
			t.Errorf("%s, which has no Redis, admitted %d in the window of %s, and its share is %d", small.ID, n,
				start.Format(time.TimeOnly), share)
		}
	}
	// Bound: before the outage, the share; during it, the backstops of the instances in two windows; and the share once
	// more, since the Redis is empty when it comes back.
	bound := share + 2*share*len(instances) + share
	var judged, during int
	for start, n := range l.windows(full.ID, window) {
		t.Logf("%s: %d admitted, its share is %d", start.Format(time.TimeOnly), n, share)
		most := bound
		if end := start.Add(window); end.Before(killed) || !start.Before(again) {
			most = share
		}
		if n > most {
			t.Errorf("%s admitted %d in the window of %s, want at most %d", full.ID, n, start.Format(time.TimeOnly),
				most)
		}
		if !start.Before(again) {
			judged++
		}
	}
	for _, a := range l.attemptsAt(full.ID) {
		if a.sent.After(killed) && a.answered.Before(up) && a.status == http.StatusOK {
			during++
		}
	}
	if judged == 0 || during == 0 {
		t.Errorf("%d windows were checked afterwards, and %d requests admitted without the Redis; want some of each",
			judged, during)
	}
	logs, err := s.Logs(full.Function("authorizer"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"store_errors_redis"`, `"requests_served_by_backstop":`} {
		if !strings.Contains(logs, want) {
			t.Errorf("the authorizer of %s has not written %s", full.ID, want)
		}
	}
	exact(t, s, after)
	waitForEmptyQueues(t, s)
	wantNoBreaks(t, s)
}

// kill is the time from the kill of processes until LocalStack noticed.
type kill struct{ from, to time.Time }

// Guarantees that when an authorizer is killed during a request, only its own requests are lost, the next request is
// answered as usual, and no limit is exceeded: the units that the process had leased are lost.
func TestAuthorizerKilled(t *testing.T) {
	s := open(t)
	requireLocalProcesses(t, s)
	const (
		share   = 60 // of each cell, in a period
		clients = 4  // of each cell
	)
	name, period := unique("killed"), period()
	apply(t, s, fmt.Sprintf(`
plans:
  - id: authorizer-killed
    limits:
      - { id: few, match: { methods: [GET], pathPattern: "/product/*" }, tiers: [ { period: %s, threshold: %d } ] }
      - %s
tenants: [ { id: %s, plan: authorizer-killed }, { id: %s-after, plan: authorizer-killed } ]
`, period, 2*share, exactLimit(period), name, name))
	k, after := key(t, s, name), key(t, s, name+"-after")
	for _, c := range s.Cells() {
		waitUntilKeyIsKnown(t, s, c.ID, k)
		waitUntilKeyIsKnown(t, s, c.ID, after)
	}
	l := calls(t, s, "GET /product/1", k, clients, 0)
	kills := map[string][]kill{}
	processes := 0
	lost := func(cell string) (n int) {
		for _, a := range l.attemptsAt(cell) {
			if a.status >= http.StatusInternalServerError {
				n++
			}
		}
		return n
	}
	for _, c := range s.Cells() {
		for round := 0; round < 4 || lost(c.ID) < 2; round++ {
			if round == 100 {
				t.Fatalf("an authorizer of %s was killed %d times, of which %d times during a request", c.ID, round,
					lost(c.ID))
			}
			l.waitForMore(t, c.ID, 10)
			one := kill{from: time.Now()}
			n, err := s.Kill(t.Context(), c.Function("authorizer"))
			if err != nil || n == 0 {
				t.Fatalf("killed %d authorizers of %s: %v", n, c.ID, err)
			}
			one.to = time.Now()
			processes += n
			kills[c.ID] = append(kills[c.ID], one)
		}
		waitFor(t, func(context.Context) error { // the demand is larger than the limit
			if n := len(l.attemptsAt(c.ID)); n < 2*share {
				return fmt.Errorf("%s has answered %d calls", c.ID, n)
			}
			return nil
		})
	}
	l.stop()
	// processes that were started for a client, or after a kill
	unknown := allowUnidentified(processes + clients*len(s.Cells()))
	l.wantOnlyAllowed(t, func(a attempt) bool {
		return limits(a) || unknown(a) || a.status >= http.StatusInternalServerError &&
			slices.ContainsFunc(kills[a.cell], func(k kill) bool {
				return !a.sent.After(k.to) && !a.answered.Before(k.from)
			})
	})
	t.Logf("%d processes were killed", processes)
	for _, c := range s.Cells() {
		n := 0 // in one window: see period
		for _, a := range l.attemptsAt(c.ID) {
			if admitted(a) {
				n++
			}
		}
		t.Logf("%s: %d times killed, %d calls lost, %d of %d admitted, its share is %d", c.ID, len(kills[c.ID]),
			lost(c.ID), n, len(l.attemptsAt(c.ID)), share)
		if n > share {
			t.Errorf("%s admitted %d, and its share is %d", c.ID, n, share)
		}
	}
	exact(t, s, after)
	waitForEmptyQueues(t, s)
	wantNoBreaks(t, s)
}

// configuration returns the config table of a cell.
func configuration(t *testing.T, s *stand.Stand, c stand.Cell) *dynamotable.Table {
	t.Helper()
	return dynamotable.New(dynamotable.Config{
		Client: dynamodb.NewFromConfig(s.AWS(c.Region)), Table: c.Table("config"),
	})
}

// position is the position of a cell's change log.
func position(t *testing.T, s *stand.Stand, c stand.Cell) table.Head {
	t.Helper()
	head, err := configuration(t, s, c).Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return head
}

// wantNoGaps fails the test unless the change log of a cell has every entry since an earlier position, and each entry
// brings a newer version of its document.
func wantNoGaps(t *testing.T, s *stand.Stand, c stand.Cell, since table.Head) {
	t.Helper()
	head := position(t, s, c)
	entries, err := configuration(t, s, c).Log(t.Context(), since.Seq, head.Seq)
	if err != nil {
		t.Fatal(err)
	}
	if head.Incarnation != since.Incarnation || int64(len(entries)) != head.Seq-since.Seq {
		t.Errorf("the log of %s has %d entries from %+v to %+v", c.ID, len(entries), since, head)
	}
	newest := map[table.Ref]int64{}
	for i, e := range entries {
		if e.Seq != since.Seq+int64(i)+1 {
			t.Errorf("the log of %s: entry %d comes after %d", c.ID, e.Seq, since.Seq+int64(i))
		}
		for _, change := range e.Changes {
			if change.Version <= newest[change.Ref] {
				t.Errorf("the log of %s: entry %d brings %v after version %d", c.ID, e.Seq, change, newest[change.Ref])
			}
			newest[change.Ref] = change.Version
		}
	}
}

// enforces waits until a cell decides by a limit of the given size.
func enforces(t *testing.T, s *stand.Stand, c stand.Cell, key string, limit int) {
	t.Helper()
	waitFor(t, func(ctx context.Context) error {
		got, err := decide(ctx, s, c, "/product/{id}", "/product/1", key)
		if err == nil && got.Limit != fmt.Sprint(limit) {
			err = fmt.Errorf("%s answers %+v, want the limit %d", c.ID, got, limit)
		}
		return err
	})
}

// applierOf changes the settings of a cell's applier, and waits until they are in effect.
func applierOf(ctx context.Context, s *stand.Stand, c stand.Cell, change func(map[string]string)) error {
	client, name := lambda.NewFromConfig(s.AWS(c.Region)), c.Function("applier")
	now, err := client.GetFunctionConfiguration(ctx, &lambda.GetFunctionConfigurationInput{FunctionName: &name})
	if err != nil {
		return err
	}
	change(now.Environment.Variables)
	if _, err := client.UpdateFunctionConfiguration(ctx, &lambda.UpdateFunctionConfigurationInput{
		FunctionName: &name, Environment: &lambdatypes.Environment{Variables: now.Environment.Variables},
	}); err != nil {
		return err
	}
	return stand.Until(ctx, patience, pace, func(ctx context.Context) error {
		now, err := client.GetFunctionConfiguration(ctx, &lambda.GetFunctionConfigurationInput{FunctionName: &name})
		if err == nil && now.LastUpdateStatus != lambdatypes.LastUpdateStatusSuccessful {
			err = fmt.Errorf("%s: %s", name, now.LastUpdateStatus)
		}
		return err
	})
}

// reconcileRuns enables or disables a cell's reconcile function, which would repair what the test looks at.
func reconcileRuns(ctx context.Context, s *stand.Stand, c stand.Cell, runs bool) error {
	name, concurrency := c.Function("reconcile"), int32(0)
	if runs {
		concurrency = 1
	}
	_, err := lambda.NewFromConfig(s.AWS(c.Region)).PutFunctionConcurrency(ctx, &lambda.PutFunctionConcurrencyInput{
		FunctionName: &name, ReservedConcurrentExecutions: aws.Int32(concurrency),
	})
	return err
}

// Guarantees that a cell whose applier fails keeps deciding by the configuration that it has, without a lost request;
// that the other cell gets each change meanwhile; and that afterwards the newest version of every changed document is
// there, through a change log without a gap.
//
// The applier has each message delivered again after a time that grows with the failure. After the visibility timeout
// alone, three minutes, the newest plan would be enforced later than the test waits.
func TestApplierFails(t *testing.T) {
	s := open(t)
	failing, other := smallAndFull(t, s)
	name, exactly := unique("applier"), exactLimit(period())
	plans := func(limit int, tenants ...string) string {
		text := fmt.Sprintf(`
plans:
  - id: %s
    limits:
      - { id: few, match: { methods: [GET], pathPattern: "/product/*" },
          algorithm: token_bucket, rate: %d, period: 1s, burst: %d }
      - %s
tenants:
  - { id: %s, plan: %s }
  - { id: %s-after, plan: %s }
`, name, 2*limit, 2*limit, exactly, name, name, name, name)
		for _, tenant := range tenants {
			text += fmt.Sprintf("  - { id: %s, plan: %s }\n", tenant, name)
		}
		return text
	}
	apply(t, s, plans(100))
	k, after := key(t, s, name), key(t, s, name+"-after")
	for _, c := range s.Cells() {
		waitUntilKeyIsKnown(t, s, c.ID, k)
		waitUntilKeyIsKnown(t, s, c.ID, after)
		enforces(t, s, c, k, 100)
	}
	before := map[string]table.Head{failing.ID: position(t, s, failing), other.ID: position(t, s, other)}

	tidy := context.WithoutCancel(t.Context())
	const variable = "SLUICE_CONFIG_TABLE"
	restore := sync.OnceValue(func() error {
		return errors.Join(
			applierOf(tidy, s, failing, func(v map[string]string) { v[variable] = failing.Table("config") }),
			reconcileRuns(tidy, s, failing, true))
	})
	t.Cleanup(func() {
		if err := restore(); err != nil {
			t.Error(err)
		}
	})
	if err := reconcileRuns(t.Context(), s, failing, false); err != nil {
		t.Fatal(err)
	}
	if err := applierOf(t.Context(), s, failing,
		func(v map[string]string) { v[variable] += "-of-nowhere" }); err != nil {
		t.Fatal(err)
	}
	l := calls(t, s, "GET /product/2", k, 1, 200*time.Millisecond)
	limit, tenants := 100, []string(nil)
	for end := time.Now().Add(*applierFails); time.Now().Before(end); {
		limit++
		tenants = append(tenants, fmt.Sprintf("%s-%d", name, limit))
		apply(t, s, plans(limit, tenants...))
		enforces(t, s, other, k, limit)
		enforces(t, s, failing, k, 100)
		l.waitForMore(t, failing.ID, 20)
	}
	if head := position(t, s, failing); head != before[failing.ID] {
		t.Errorf("the change log of the cell whose applier fails is at %+v, want it unchanged at %+v", head,
			before[failing.ID])
	}
	if n, err := s.Waiting(t.Context(), failing.Region, failing.Table("changes")); err != nil || n == 0 {
		t.Errorf("%d messages wait for the applier that fails: %v", n, err)
	}
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	enforces(t, s, failing, k, limit)
	// A message that a process held when the change of its settings ended it comes after the visibility timeout.
	if err := stand.Until(t.Context(), patience+3*time.Minute, pace, func(ctx context.Context) error {
		n, err := s.Waiting(ctx, failing.Region, failing.Table("changes"))
		if err == nil && n > 0 {
			err = fmt.Errorf("%d messages wait", n)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	waitForEmptyQueues(t, s)
	l.stop()
	// a request of the test, beside those of the client, may start a further process in a cell
	unknown := allowUnidentified(len(s.Cells()))
	// the test sends 5 requests a second, of a cell's 100
	l.wantOnlyAllowed(t, func(a attempt) bool { return admitted(a) || unknown(a) })
	for _, c := range s.Cells() {
		wantNoGaps(t, s, c, before[c.ID])
		refs := []table.Ref{{Kind: plan.KindPlan, ID: name}}
		for _, tenant := range tenants {
			refs = append(refs, table.Ref{Kind: plan.KindTenant, ID: tenant})
		}
		documents, err := configuration(t, s, c).Get(t.Context(), refs...)
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range documents {
			want := int64(1)
			if i == 0 {
				want += int64(len(tenants))
			}
			if d.Version != want {
				t.Errorf("%s has version %d of %v, want %d", c.ID, d.Version, refs[i], want)
			}
		}
	}
	exact(t, s, after)
	wantNoBreaks(t, s)
}
