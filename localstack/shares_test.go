package localstack_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/sluicelimits/sluice/localstack/stand"
)

// loadClient, if set, makes this test binary a client.
const loadClient = "SLUICE_LOCALSTACK_CLIENT"

// target is an API to which a client sends requests in a loop, with the keys of tenants in turn.
type target struct {
	Cell, API string
	Requests  []request
}

type request struct{ Tenant, Request, Key string }

// answered is what a client knows about one request.
type answered struct {
	Cell, Tenant string
	Sent, Got    time.Time
	Status       int
	Problem      string `json:",omitempty"` // the type of a problem, or the error
}

// between is the time between an answer and the next request. Without a pause the test would measure LocalStack's
// capacity instead of limits.
const between = 100 * time.Millisecond

// runClient is the main function of a client's process. It reads targets, sends requests to each in a closed loop until
// its input ends, and prints each answer.
func runClient() int {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := &http.Client{Timeout: time.Minute}
	var mu sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	encode := json.NewEncoder(out)
	var all sync.WaitGroup
	for in := json.NewDecoder(os.Stdin); ; {
		var to target
		if err := in.Decode(&to); err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			break
		}
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				r := to.Requests[n%len(to.Requests)]
				a := answered{Cell: to.Cell, Tenant: r.Tenant, Sent: time.Now()}
				// a request that is under way is completed
				said, err := stand.Call(context.Background(), client, to.API, r.Request, r.Key)
				a.Got = time.Now()
				if err != nil {
					a.Problem = err.Error()
				} else if a.Status = said.Status; a.Status != http.StatusOK {
					a.Problem = said.Body
				}
				mu.Lock()
				err = encode.Encode(a)
				mu.Unlock()
				if err != nil {
					return
				}
				select {
				case <-time.After(between):
				case <-ctx.Done():
				}
			}
		})
	}
	stop()
	all.Wait()
	if err := out.Flush(); err != nil {
		return 1
	}
	return 0
}

// clients are several client processes.
type clients struct {
	*testing.T

	started []*exec.Cmd
	in      []io.WriteCloser
	out     []*strings.Builder
}

// startClients starts processes that send nothing yet.
func startClients(t *testing.T, n int) *clients {
	t.Helper()
	c := &clients{T: t}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		p := exec.CommandContext(t.Context(), self)
		p.Env = append(os.Environ(), loadClient+"=1")
		out := new(strings.Builder)
		p.Stdout, p.Stderr = out, os.Stderr
		in, err := p.StdinPipe()
		if err == nil {
			err = p.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		c.started, c.in, c.out = append(c.started, p), append(c.in, in), append(c.out, out)
	}
	return c
}

// call makes each process send requests to a target from now on.
func (c *clients) call(to target) {
	c.Helper()
	for i, in := range c.in {
		// so that they do not all begin with the same key
		requests := slices.Concat(to.Requests[i%len(to.Requests):], to.Requests[:i%len(to.Requests)])
		if err := json.NewEncoder(in).Encode(target{to.Cell, to.API, requests}); err != nil {
			c.Fatal(err)
		}
	}
}

// end waits until each process has its last answer, and returns all answers.
func (c *clients) end() []answered {
	c.Helper()
	var all []answered
	for i, p := range c.started {
		if err := errors.Join(c.in[i].Close(), p.Wait()); err != nil {
			c.Fatalf("client %d: %v", i, err)
		}
		n := len(all)
		for d := json.NewDecoder(strings.NewReader(c.out[i].String())); d.More(); {
			var a answered
			if err := d.Decode(&a); err != nil {
				c.Fatal(err)
			}
			all = append(all, a)
		}
		if len(all) == n {
			c.Errorf("client %d got no answer", i)
		}
	}
	slices.SortFunc(all, func(a, b answered) int { return a.Sent.Compare(b.Sent) })
	return all
}

// The limits of the tenants under load.
const (
	window      = 4 * time.Second
	perWindow   = 12
	bucketRate  = 3 // a second
	bucketBurst = 9
	quotaUnits  = 60 // a month
)

// loaded are the algorithms that are tested under load, with one tenant each.
var loaded = []string{"fixed", "sliding", "bucket", "quota"}

func loadPlans(id string) string {
	var b strings.Builder
	b.WriteString("plans:\n")
	for _, name := range loaded {
		limit := map[string]string{
			"fixed": fmt.Sprintf("algorithm: fixed_window, tiers: [ { period: %s, threshold: %d } ]", window,
				perWindow),
			"sliding": fmt.Sprintf("algorithm: sliding_window, tiers: [ { period: %s, threshold: %d } ]", window,
				perWindow),
			"bucket": fmt.Sprintf("algorithm: token_bucket, rate: %d, period: 1s, burst: %d", bucketRate, bucketBurst),
			"quota":  fmt.Sprintf("quota: { units: %d, every: month }", quotaUnits),
		}[name]
		fmt.Fprintf(&b, "  - { id: %s-%s, limits: [ { id: %[2]s, %s } ] }\n", id, name, limit)
	}
	b.WriteString("tenants:\n")
	for _, name := range loaded {
		fmt.Fprintf(&b, "  - { id: %s-%s, plan: %[1]s-%[2]s }\n", id, name)
	}
	return b.String()
}

// thirdCell is a small cell that is not part of the deployment at first.
var thirdCell = stand.Cell{ID: "eu-2", Region: "eu-west-1"}

// addThirdCell returns the third cell: deployed, but without a share yet. Changes from now on reach it. At the end of
// the test it is removed from the shares; its stack stays.
func addThirdCell(t *testing.T, s *stand.Stand) stand.Cell {
	t.Helper()
	c := thirdCell
	if err := removeCell(t.Context(), s, c); err != nil { // an earlier run may have been interrupted
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background() //nolint:usetesting // that of the test is over
		if err := errors.Join(removeCell(ctx, s, c), s.Attach(ctx)); err != nil {
			t.Error(err)
		}
	})
	deploy := s.Deploy
	if s.Output("sluice-cell-"+c.ID, "Authorizer") != "" { // deployed by TestStateLost, or by an earlier run
		deploy = s.Attach
	}
	if err := deploy(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c
}

// removeCell drains a cell if it serves, and removes it.
func removeCell(ctx context.Context, s *stand.Stand, c stand.Cell) error {
	states, err := s.CellStates(ctx)
	switch state := states[c.ID].State; {
	case err != nil || state == "" || state == "removed":
		return err
	case state != "drained":
		if _, err := s.Sluice(ctx, "cell", "drain", c.ID, "--reason", "a test"); err != nil {
			return err
		}
		if err := stand.Until(ctx, patience, time.Second,
			func(ctx context.Context) error { return inState(ctx, s, c.ID, "drained") }); err != nil {
			return err
		}
	}
	if _, err := s.Sluice(ctx, "cell", "remove", c.ID, "--reason", "a test"); err != nil {
		return err
	}
	return stand.Until(ctx, patience, time.Second, func(ctx context.Context) error {
		return inState(ctx, s, c.ID, "",
			"removed")
	})
}

// reconciled runs the reconcile function of a cell, which compares the cell with the control plane and repairs it.
func reconciled(t *testing.T, s *stand.Stand, c stand.Cell) {
	t.Helper()
	name := c.Function("reconcile")
	waitFor(t, func(ctx context.Context) error {
		out, err := lambda.NewFromConfig(s.AWS(c.Region)).Invoke(ctx, &lambda.InvokeInput{FunctionName: &name,
			Payload: []byte("{}")})
		if err == nil && out.FunctionError != nil {
			err = fmt.Errorf("%s: %s", name, out.Payload)
		}
		return err
	})
}

// inState returns nil if a cell is in one of the states.
func inState(ctx context.Context, s *stand.Stand, cell string, states ...string) error {
	all, err := s.CellStates(ctx)
	if err == nil && !slices.Contains(states, all[cell].State) {
		err = fmt.Errorf("cell %s is %q, want one of %q", cell, all[cell].State, states)
	}
	return err
}

// Guarantees that what all cells together admit of a tenant stays within the bound of the limit's algorithm, while
// client processes send each cell more than the limit, a third cell joins, and one is drained; that all answers are 200
// or 429; and that no share is lost. It takes 110 s, and as long again if the third cell has to be deployed.
func TestLimitsUnderLoad(t *testing.T) {
	s := open(t)
	two := s.Cells()
	added := addThirdCell(t, s)
	id := unique("load")
	apply(t, s, loadPlans(id))
	var requests []request
	for _, name := range loaded {
		requests = append(requests, request{name, product, key(t, s, id+"-"+name)})
	}
	reconciled(t, s, added) // for changes from before its stack; later ones come through its queue
	for _, c := range s.Cells() {
		for _, r := range requests {
			waitFor(t, func(ctx context.Context) error { // a route without a limit would be enough, but there is none
				a, err := s.Call(ctx, c.ID, r.Request, r.Key)
				if err == nil && a.Status != 200 && a.Status != 429 {
					err = fmt.Errorf("%s: %d %s", c.ID, a.Status, a.Body)
				}
				return err
			})
		}
	}
	load := startClients(t, 3)
	for _, c := range s.Cells() { // including the new one, which grants nothing before it has joined
		load.call(target{c.ID, s.API(c.ID), requests})
	}
	phases := []phase{{name: "two cells", from: time.Now(), cells: two}}
	begin := func(name string, cells ...stand.Cell) {
		now := time.Now()
		phases[len(phases)-1].to = now
		phases = append(phases, phase{name: name, from: now, cells: cells})
	}
	lasts(t, 3*window)
	begin("eu-2 joins")
	if err := s.AddCell(t.Context(), added); err != nil {
		t.Fatal(err)
	}
	if err := s.Active(t.Context(), added); err != nil {
		t.Fatal(err)
	}
	waitForSteadyShares(t, s)
	lasts(t, 2*window)
	begin("three cells", append(two, added)...)
	lasts(t, 3*window)
	begin("eu-2 drains")
	sluice(t, s, "cell", "drain", added.ID, "--reason", "a test")
	waitFor(t, func(ctx context.Context) error { return inState(ctx, s, added.ID, "drained") })
	waitForSteadyShares(t, s)
	lasts(t, 2*window)
	begin("eu-2 is drained", two...)
	lasts(t, 3*window)
	phases[len(phases)-1].to = time.Now()
	compareWithLimits(t, load.end(), phases)
}

// lasts waits, because the load needs some time.
func lasts(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// waitForSteadyShares waits until no change of shares is under way.
func waitForSteadyShares(t *testing.T, s *stand.Stand) {
	t.Helper()
	waitFor(t, func(ctx context.Context) error {
		out, err := s.Sluice(ctx, "cell", "list")
		if err == nil && !strings.Contains(out, "phase steady") {
			err = errors.New(out)
		}
		return err
	})
}

// phase is a time in which certain cells serve; cells is nil while that changes.
type phase struct {
	name     string
	from, to time.Time
	cells    []stand.Cell
}

// enough is the smallest part of a limit, in percent, that must be admitted if the demand is larger.
const enough = 60

// compareWithLimits compares what the clients know with the limits.
func compareWithLimits(t *testing.T, all []answered, phases []phase) {
	t.Helper()
	statuses := map[string]int{} // with the reasons
	admitted := map[string][]answered{}
	for _, a := range all {
		_, why, _ := strings.Cut(a.Problem, "#")
		why, _, _ = strings.Cut(why, `"`)
		statuses[strings.TrimSpace(fmt.Sprint(a.Cell, " ", a.Status, " ", why))]++
		switch a.Status {
		case http.StatusOK:
			admitted[a.Tenant] = append(admitted[a.Tenant], a)
		case http.StatusTooManyRequests:
		default:
			t.Errorf("%s, tenant %s: %d after %s: %s", a.Cell, a.Tenant, a.Status, a.Got.Sub(a.Sent), a.Problem)
		}
	}
	t.Logf("%d calls by 3 processes: %v", len(all), statuses)
	for _, p := range phases {
		t.Logf("%s from %s to %s", p.name, p.from.Format(time.TimeOnly), p.to.Format(time.TimeOnly))
	}
	for _, tenant := range []string{"fixed", "sliding"} {
		judgeWindows(t, tenant, all, phases)
	}
	if over := passes(admitted["sliding"], func(d time.Duration) float64 {
		if d <= window {
			return 2 * perWindow // the bound of the algorithm for any interval of the length of the period
		}
		return float64(len(all))
	}); over != "" {
		t.Errorf("sliding: %s", over)
	}
	if over := passes(admitted["bucket"], func(d time.Duration) float64 {
		return bucketBurst +
			bucketRate*d.Seconds()
	}); over != "" {
		t.Errorf("bucket: %s", over)
	}
	for _, p := range phases {
		if p.cells == nil {
			continue
		}
		n := 0
		for _, a := range admitted["bucket"] {
			if !a.Sent.Before(p.from) && !a.Got.After(p.to) {
				n++
			}
		}
		most := bucketRate * p.to.Sub(p.from).Seconds()
		t.Logf("bucket, %s: %d admitted of %.0f that flow in", p.name, n, most)
		if asked := askedOf(all, "bucket", p.from, p.to, p.cells); float64(asked) > 1.5*most &&
			float64(n)*100 < most*enough {
			t.Errorf("bucket, %s: %d admitted of %.0f that flow in, while clients asked for %d", p.name, n, most, asked)
		}
	}
	months := map[string]int{}
	for _, a := range admitted["quota"] {
		if m := a.Sent.UTC().Format("2006-01"); m == a.Got.UTC().Format("2006-01") {
			months[m]++
		}
	}
	for m, n := range months {
		t.Logf("quota, %s: %d admitted of %d", m, n, quotaUnits)
		if n > quotaUnits || len(months) == 1 && n*100 < quotaUnits*enough {
			t.Errorf("quota, %s: all cells together admitted %d units of %d", m, n, quotaUnits)
		}
	}
}

// askedOf returns the demand in an interval: the smallest number of requests that a cell got, times the number of
// cells. It counts what was both sent and answered within the interval.
func askedOf(all []answered, tenant string, from, to time.Time, cells []stand.Cell) int {
	least := -1
	for _, c := range cells {
		n := 0
		for _, a := range all {
			if a.Cell == c.ID && a.Tenant == tenant && !a.Sent.Before(from) && !a.Got.After(to) {
				n++
			}
		}
		if least < 0 || n < least {
			least = n
		}
	}
	return least * len(cells)
}

// judgeWindows checks each window against the limit, and the best window of each phase against what must be admitted of
// it. A request that was under way at an edge of the window may have been decided on either side, and does not count.
func judgeWindows(t *testing.T, tenant string, all []answered, phases []phase) {
	t.Helper()
	sums := map[time.Time]map[string]int{}
	for _, a := range all {
		w := a.Sent.Truncate(window)
		if a.Tenant != tenant || a.Status != http.StatusOK || !w.Equal(a.Got.Truncate(window)) {
			continue
		}
		if sums[w] == nil {
			sums[w] = map[string]int{}
		}
		sums[w][a.Cell]++
		sums[w][""]++
	}
	best, more := map[string]int{}, map[string]int{}
	first, last := all[0].Sent.Truncate(window), all[len(all)-1].Sent.Truncate(window)
	for w := first; !w.After(last); w = w.Add(window) {
		n, name := sums[w][""], "between"
		for _, p := range phases {
			if p.cells == nil || w.Before(p.from) || w.Add(window).After(p.to) {
				continue
			}
			name = p.name
			best[name] = max(best[name], n)
			more[name] = max(more[name], askedOf(all, tenant, w, w.Add(window), p.cells))
			for cell, n := range sums[w] {
				if cell != "" && !slices.ContainsFunc(p.cells, func(c stand.Cell) bool { return c.ID == cell }) {
					t.Errorf("%s, window %s (%s): cell %s, which has no share, admitted %d", tenant,
						w.Format(time.TimeOnly), name, cell, n)
				}
			}
		}
		delete(sums[w], "")
		t.Logf("%s, window %s (%s): %d admitted of %d: %v", tenant, w.Format(time.TimeOnly), name, n, perWindow,
			sums[w])
		if n > perWindow {
			t.Errorf("%s, window %s: all cells together admitted %d, and the limit is %d", tenant,
				w.Format(time.TimeOnly), n, perWindow)
		}
	}
	for name, n := range best {
		if more[name]*2 > perWindow*3 && n*100 < perWindow*enough {
			t.Errorf("%s, %s: at most %d of %d were admitted in a window, while clients sent %d", tenant, name, n,
				perWindow, more[name])
		}
	}
	if len(best) < 3 {
		t.Errorf("%s: only the phases %v contain whole windows", tenant, best)
	}
}

// passes returns where more was admitted between two moments than is allowed in that time, or "" if it never was. An
// admitted request was decided at some time between its sending and its answer.
func passes(admitted []answered, most func(time.Duration) float64) string {
	byEnd := slices.SortedFunc(slices.Values(admitted), func(a, b answered) int { return a.Got.Compare(b.Got) })
	for _, from := range admitted {
		n := 0
		for _, a := range byEnd {
			if a.Sent.Before(from.Sent) {
				continue
			}
			n++
			if d := a.Got.Sub(from.Sent); float64(n) > most(d) {
				return fmt.Sprintf("%d were admitted within %s from %s on, and %.1f may be", n, d,
					from.Sent.Format(time.StampMilli), most(d))
			}
		}
	}
	return ""
}
