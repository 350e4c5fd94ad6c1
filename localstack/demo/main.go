// Command demo deploys Sluice to the LocalStack of SLUICE_LOCALSTACK, sends requests to it, changes a limit meanwhile,
// and prints on one screen what happened. make demo calls it.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluicelimits/sluice/localstack/stand"
)

const (
	window  = 10 * time.Second
	windows = 5                      // how many windows there is load
	change  = 2                      // the limit is changed at the beginning of this window, counted from 0
	pace    = 200 * time.Millisecond // the time between two calls of a client
	quiet   = time.Second            // nothing is sent before the end of a window, so that each call is in one window
	before  = 40                     // units per window before the change
	after   = 80                     // units per window after it
)

const plans = `
plans:
  - id: demo-pro
    limits: [ { id: window, tiers: [ { period: 10s, threshold: 40 } ] } ]
  - id: demo-free
    limits: [ { id: burst, algorithm: token_bucket, rate: 10, period: 10s, burst: 10 } ]
  - id: demo-trial
    limits: [ { id: daily, quota: { units: 100, every: day } } ]
tenants:
  - { id: acme, plan: demo-pro }
  - { id: globex, plan: demo-free }
  - { id: initech, plan: demo-trial }
`

// tenants are the tenants of the plans, each with a description of its limit.
var tenants = []struct{ id, limit string }{
	{"acme", "40, then 80 in each 10 s"}, {"globex", "10 at once, 10 in 10 s"}, {"initech", "100 a day, in one cell"},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	began := time.Now()
	s, err := stand.Open(ctx, stand.Options{
		Endpoint: os.Getenv("SLUICE_LOCALSTACK"), Redis: os.Getenv("SLUICE_LOCALSTACK_REDIS"),
		Root: cmp.Or(os.Getenv("SLUICE_ROOT"), "."), Log: os.Stderr,
	})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Deploy(ctx); err != nil {
		return err
	}
	if err := s.Join(ctx); err != nil {
		return err
	}
	d := &demo{s: s, deployed: time.Since(began)}
	if err := d.prepare(ctx); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "load for %s\n", windows*window)
	if err := d.load(ctx); err != nil {
		return err
	}
	return d.show(ctx, out)
}

// call is a request and its answer.
type call struct {
	tenant, cell string
	window       int // counted from 0
	status       int
	limit        string // the header X-RateLimit-Limit
	answered     time.Time
}

type demo struct {
	s        *stand.Stand
	deployed time.Duration
	keys     map[string]string
	start    time.Time // the beginning of the first window
	changed  time.Time // when the limit's change was requested

	mu     sync.Mutex
	calls  []call
	denial string // the body of acme's last denial
	failed error
}

// prepare applies the plans, creates an API key for each tenant, and waits until every cell accepts every key.
func (d *demo) prepare(ctx context.Context) error {
	if err := d.s.Apply(ctx, plans); err != nil {
		return err
	}
	d.keys = map[string]string{}
	for _, t := range tenants {
		key, err := d.s.Key(ctx, t.id)
		if err != nil {
			return err
		}
		d.keys[t.id] = key
	}
	for _, c := range d.s.Cells() {
		for _, t := range tenants {
			err := stand.Until(ctx, time.Minute, time.Second, func(ctx context.Context) error {
				a, err := d.s.Call(ctx, c.ID, "GET /orders", d.keys[t.id])
				if err == nil && a.Status != http.StatusOK && a.Status != http.StatusTooManyRequests {
					err = fmt.Errorf("%s answers %s's call with %d", c.ID, t.id, a.Status)
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// load runs a client for each tenant and cell, and changes acme's limit meanwhile.
func (d *demo) load(ctx context.Context) error {
	d.start = time.Now().Truncate(window).Add(window)
	if !until(ctx, d.start) {
		return ctx.Err()
	}
	var clients sync.WaitGroup
	for _, c := range d.s.Cells() {
		for _, t := range tenants {
			clients.Go(func() { d.client(ctx, c.ID, t.id) })
		}
	}
	clients.Go(func() {
		if !until(ctx, d.start.Add(change*window)) {
			return
		}
		d.changed = time.Now()
		_, err := d.s.Sluice(ctx, "tenant", "set", "acme", "--override",
			fmt.Sprintf("{ id: window, tiers: [ { period: 10s, threshold: %d } ] }", after), "--reason",
			"acme pays for more")
		d.fail(err)
	})
	clients.Wait()
	return cmp.Or(d.failed, ctx.Err())
}

// until waits until a time. It returns false if ctx ends before that.
func until(ctx context.Context, at time.Time) bool {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (d *demo) fail(err error) {
	if err != nil {
		d.mu.Lock()
		d.failed = cmp.Or(d.failed, err)
		d.mu.Unlock()
	}
}

func (d *demo) client(ctx context.Context, cell, tenant string) {
	end := d.start.Add(windows * window)
	for next := d.start; next.Before(end); {
		if !until(ctx, next) {
			return
		}
		now := time.Now()
		in := int(now.Sub(d.start) / window)
		edge := d.start.Add(time.Duration(in+1) * window)
		if edge.Sub(now) < quiet {
			next = edge
			continue
		}
		next = now.Add(pace)
		a, err := d.s.Call(ctx, cell, "GET /product/1", d.keys[tenant])
		if err != nil {
			d.fail(err)
			return
		}
		d.mu.Lock()
		d.calls = append(d.calls, call{tenant, cell, in, a.Status, a.Header.Get("X-Ratelimit-Limit"), time.Now()})
		if tenant == "acme" && a.Status == http.StatusTooManyRequests {
			d.denial = a.Body
		}
		d.mu.Unlock()
	}
}

// count returns how many calls have the given tenant, cell, window and status. A tenant or cell of "", a window of -1
// and a status of 0 stand for all.
func (d *demo) count(tenant, cell string, in, status int) int {
	n := 0
	for _, c := range d.calls {
		if (tenant == "" || c.tenant == tenant) && (cell == "" || c.cell == cell) && (in < 0 || c.window == in) &&
			(status == 0 || c.status == status) {
			n++
		}
	}
	return n
}

// enforced returns how long it took until a cell enforced its part of the changed limit, or 0 if it never did.
func (d *demo) enforced(cell string) time.Duration {
	was := ""
	for _, c := range d.calls {
		if c.tenant != "acme" || c.cell != cell || c.limit == "" {
			continue
		}
		if c.answered.Before(d.changed) {
			was = c.limit
		} else if more, err := strconv.Atoi(c.limit); err == nil && c.limit != was &&
			strconv.Itoa(more/(after/before)) == was {
			return c.answered.Sub(d.changed)
		}
	}
	return 0
}

func (d *demo) show(ctx context.Context, out io.Writer) error {
	slices.SortFunc(d.calls, func(a, b call) int { return a.answered.Compare(b.answered) })
	verdict, err := d.s.Sluice(ctx, "audit", "verify", "--archive", "s3://"+d.s.Bucket(), "--tables", "sluice-",
		"--aws-endpoint", os.Getenv("SLUICE_LOCALSTACK"))
	if err != nil {
		return err
	}
	var b strings.Builder
	cells := d.s.Cells()
	fmt.Fprintf(&b, "\nSluice on LocalStack, deployed by CDK in %.0f s: control plane in %s", d.deployed.Seconds(),
		d.s.Region())
	for _, c := range cells {
		fmt.Fprintf(&b, ", %s cell %s", map[bool]string{true: "full", false: "small"}[c.Full], c.ID)
	}
	fmt.Fprintf(&b, "\n\n%-10s %-24s %7s %9s %7s %6s %6s\n", "tenant", "limit", "sent", "admitted", "denied", "other",
		"5xx")
	for _, t := range tenants {
		sent, ok, denied := d.count(t.id, "", -1, 0), d.count(t.id, "", -1, http.StatusOK), d.count(t.id, "", -1,
			http.StatusTooManyRequests)
		failed := 0
		for _, c := range d.calls {
			if c.tenant == t.id && c.status >= http.StatusInternalServerError {
				failed++
			}
		}
		fmt.Fprintf(&b, "%-10s %-24s %7d %9d %7d %6d %6d\n", t.id, t.limit, sent, ok, denied, sent-ok-denied-failed,
			failed)
	}
	fmt.Fprintf(&b, "\nacme, admitted in each 10 s by")
	for i, c := range cells {
		fmt.Fprintf(&b, " %s (%c)", c.ID, mark(i))
	}
	b.WriteByte('\n')
	for in := range windows {
		limit, bar, sum := before, "", 0
		if in >= change {
			limit = after
		}
		for i, c := range cells {
			n := d.count("acme", c.ID, in, http.StatusOK)
			sum += n
			bar += strings.Repeat(string(mark(i)), n/2)
		}
		note := ""
		if in == change {
			note = "  <- limit changed"
		}
		fmt.Fprintf(&b, "  %s  %-42s %3d of %d%s\n", d.start.Add(time.Duration(in)*window).Format(time.TimeOnly), bar,
			sum, limit, note)
	}
	b.WriteString("\nsluice tenant set acme …, enforced by the gateway of")
	for i, c := range cells {
		if took := d.enforced(c.ID); took > 0 {
			fmt.Fprintf(&b, "%s %s after %.1f s", map[bool]string{true: ","}[i > 0], c.ID, took.Seconds())
		} else {
			fmt.Fprintf(&b, "%s %s not at all", map[bool]string{true: ","}[i > 0], c.ID)
		}
	}
	fmt.Fprintf(&b, "\na denial: %s\n", detail(d.denial))
	fmt.Fprintf(&b, "sluice audit verify: %s\n", tableInOneLine(verdict))
	_, err = io.WriteString(out, b.String())
	return err
}

// mark returns the character with which a cell's units are drawn.
func mark(cell int) rune { return []rune("#=+o")[cell%4] }

func detail(problem string) string {
	var p struct {
		Status int
		Detail string
	}
	if err := json.Unmarshal([]byte(problem), &p); err != nil {
		return "none"
	}
	return fmt.Sprintf("%d %s", p.Status, p.Detail)
}

// tableInOneLine returns a table that a command has printed, as one line.
func tableInOneLine(table string) string {
	var lines []string
	for line := range strings.Lines(table) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "; ")
}
