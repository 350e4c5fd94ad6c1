package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan"
)

// world holds control tables behind HTTP, as in `sluice dev`.
type world struct {
	*testing.T
	tables *tables
	client *client.Client
	calls  atomic.Int64
	reads  atomic.Int64
	cut    atomic.Int64 // number of applies after which the connection breaks; 0: never
}

// tables count writes, and cannot read some tenants.
type tables struct {
	control.Tables
	puts    int64
	w       chan struct{}
	damaged string // prefix of the keys of tenants that cannot be read; "": none
}

func (c *tables) damage(t control.Table, key string) error {
	if c.damaged == "" || t != control.Tenants || !strings.HasPrefix(key, c.damaged) {
		return nil
	}
	return fmt.Errorf("%s/%q: %w: layout is missing", t, key, control.ErrBadItem)
}

func (c *tables) Get(ctx context.Context, t control.Table, key string) (control.Item, error) {
	if err := c.damage(t, key); err != nil {
		return control.Item{}, err
	}
	return c.Tables.Get(ctx, t, key)
}

func (c *tables) List(
	ctx context.Context, t control.Table, after string, most int,
) (items []control.Item, next string, err error) {
	all, next, err := c.Tables.List(ctx, t, after, most)
	for _, i := range all {
		if bad := c.damage(t, i.Key); bad != nil {
			err = errors.Join(err, bad)
		} else {
			items = append(items, i)
		}
	}
	return items, next, err
}

func (c *tables) Put(ctx context.Context, change control.Change) (control.Item, error) {
	<-c.w
	c.puts++
	c.w <- struct{}{}
	if err := c.damage(change.Table, change.Key); err != nil {
		return control.Item{}, err
	}
	return c.Tables.Put(ctx, change)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	file, err := embedded.Open(filepath.Join(t.TempDir(), "control"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	w := &world{T: t, tables: &tables{Tables: file, w: make(chan struct{}, 1)}}
	w.tables.w <- struct{}{}
	s := operate.NewControl(operate.ControlConfig{Tables: w.tables, Log: slog.New(slog.DiscardHandler)})
	h := operate.Local(s.Mux(), "ann@local")
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/apply":
			if n, cut := w.calls.Add(1), w.cut.Load(); cut > 0 && n > cut {
				panic(http.ErrAbortHandler)
			}
		case "/documents/list":
			w.reads.Add(1)
		}
		h.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	if w.client, err = client.New(server.URL, nil); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) compare(text string, prune bool) *client.Diff {
	w.Helper()
	draft, err := plan.ReadDraft(time.Now(), configyaml.Source("plans.yaml", []byte(text)))
	if err != nil {
		w.Fatal(err)
	}
	var sections []client.Section
	if prune {
		sections = client.Sections()
	}
	d, err := client.Compare(w.Context(), w.client, draft, sections...)
	if err != nil {
		w.Fatal(err)
	}
	return d
}

func (w *world) apply(text string) client.Result {
	w.Helper()
	d := w.compare(text, false)
	if len(d.Problems) > 0 {
		w.Fatal(d.Problems)
	}
	r, err := d.Apply(w.Context(), w.client, "why", true)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

// many returns a plans file with n tenants. Every tenth has an override, and therefore a pin: see pins.
func many(n int, rate int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "plans: [ { id: pro, limits: [ { id: burst, algorithm: token_bucket, rate: %d, period: 1s, "+
		"burst: 1000 } ] } ]\ntenants:\n", rate)
	for i := range n {
		overrides := ""
		if i%10 == 0 {
			overrides = ", overrides: [ { id: burst, rate: 500 } ]"
		}
		fmt.Fprintf(&b, "  - { id: tenant-%05d, plan: pro%s }\n", i, overrides)
	}
	return b.String()
}

// pins returns the number of pins that n tenants of many have in the table cells.
func pins(n int64) int64 { return n / 10 }

// Guarantees that items that cannot be read prevent no other change: they are listed and left alone, and only a file
// that names one of them is refused, or a prune, which cannot know what it would delete. Otherwise anybody who damages
// one row could lock out all operators.
func TestDamagedItems(t *testing.T) {
	const file = `
plans: [ { id: pro, limits: [ { id: burst, algorithm: token_bucket, rate: %d, period: 1s, burst: 1000 } ] } ]
tenants: [ { id: acme, plan: pro }%s ]
`
	w := newWorld(t)
	w.apply(fmt.Sprintf(file, 100, ", { id: bad-1, plan: pro }, { id: bad-2, plan: pro }"))
	w.tables.damaged = "bad-"
	text := fmt.Sprintf(file, 200, "")
	d := w.compare(text, false)
	if len(d.Damaged) != 2 || !strings.Contains(d.Damaged[0], "bad-1") || !strings.Contains(d.Damaged[1], "bad-2") ||
		len(d.Edits) != 1 {
		t.Fatalf("got the damaged items %q and the edits %+v, want two and one", d.Damaged, d.Edits)
	}
	if r := w.apply(text); r.Written != 1 {
		t.Errorf("%d were written, want the plan", r.Written)
	}
	if item, err := w.tables.Get(t.Context(), control.Plans, "pro"); err != nil || item.Version != 2 {
		t.Errorf("got version %d of the plan, error %v; want 2", item.Version, err)
	}

	draft, err := plan.ReadDraft(time.Now(), configyaml.Source("plans.yaml", []byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Compare(t.Context(), w.client, draft, client.Sections()...); err == nil ||
		!strings.Contains(err.Error(), "bad-1") {
		t.Errorf("a comparison that prunes: got the error %v, want one that names the damaged plan", err)
	}
	_, err = w.client.Apply(t.Context(), &operate.ApplyRequest{Reason: "why",
		Changes: []operate.Change{{Table: control.Plans, Key: "pro", Expect: 2, Delete: true}}})
	if err == nil || !strings.Contains(err.Error(), "bad-1") { // the damaged tenant may use the plan
		t.Errorf("a deletion of the plan: got the error %v, want one that names the damaged tenant", err)
	}
	d = w.compare(fmt.Sprintf(file, 200, ", { id: bad-2, plan: pro, suspended: true }"), false)
	if _, err := d.Apply(t.Context(), w.client, "why", true); err == nil ||
		!strings.Contains(err.Error(), "bad-2") {
		t.Errorf("a file that names a damaged tenant: got the error %v, want one that names it", err)
	}
}

// Guarantees that 10,000 tenants are applied in few calls, that an interrupted apply continues where it stopped, that
// a change of a plan of all of them writes one item, and that an apply without changes writes nothing.
func TestApplyOfTenThousandTenants(t *testing.T) {
	w := newWorld(t)
	const n, half = manyTenants, manyTenants / 2
	w.cut.Store(1 + half/250) // the plan, and half of the tenants
	d := w.compare(many(n, 100), false)
	result, err := d.Apply(t.Context(), w.client, "first", false)
	if err == nil || result.Written != 1+half || w.tables.puts != 1+half+pins(half) {
		t.Fatalf("interrupted in the middle: got %+v, %d writes, error %v; want half of the tenants written", result,
			w.tables.puts, err)
	}
	w.cut.Store(0)
	w.calls.Store(0)
	w.tables.puts = 0
	d = w.compare(many(n, 100), false)
	if d.Unchanged != 1+half || len(d.Edits) != n-half {
		t.Errorf("after the interruption: got %d edits and %d unchanged, want the other half as edits", len(d.Edits),
			d.Unchanged)
	}
	began := time.Now()
	if result, err = d.Apply(t.Context(), w.client, "second", false); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if result.Written != half || w.tables.puts != half+pins(half) || w.calls.Load() != half/250 {
		t.Errorf("applied again: got %+v, %d writes in %d calls; want the other half", result, w.tables.puts,
			w.calls.Load())
	}
	t.Logf("%d tenants in %s: %.0f/s", half, took.Round(time.Millisecond), half/took.Seconds())
	w.tables.puts = 0
	w.reads.Store(0)
	if d := w.compare(many(n, 100), false); len(d.Edits) != 0 || d.Unchanged != n+1 || w.reads.Load() > 16 {
		t.Errorf("applied a third time: got %d edits, and %d pages read; want no edit, and at most 16 pages",
			len(d.Edits), w.reads.Load())
	}
	if r := w.apply(many(n, 200)); r.Written != 1 || w.tables.puts != 1 {
		t.Errorf("a change of the plan of all tenants: got %d writes, want 1", w.tables.puts)
	}
}

const small = `
plans:
  - { id: pro, limits: [ { id: burst, algorithm: token_bucket, rate: 100, period: 1s, burst: 200 },
      { id: "day", quota: { units: 5, every: day } } ] }
  - { id: "free", limits: [ { id: burst, algorithm: token_bucket, rate: 1, period: 1s } ] }
tenants: [ { id: acme, plan: pro, overrides: [ { id: burst, rate: 500 } ] }, { id: "<b> & \u2028c", plan: free } ]
`

// Guarantees that a diff names each value that changes, and keeps what operations have set: an older file must not
// undo a suspension.
func TestDiff(t *testing.T) {
	w := newWorld(t)
	w.apply(small)
	_, err := client.Do(t.Context(), w.client, operate.Suspend, &operate.TenantRequest{Tenant: "acme", Reason: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Do(t.Context(), w.client, operate.AddBoost, &operate.BoostRequest{Tenant: "acme",
		Limit: "burst", Factor: "2", Until: time.Now().Add(time.Hour), Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	if d := w.compare(small, false); len(d.Edits) != 0 || d.Unchanged != 4 {
		t.Errorf("the same file again: got the edits %+v, want none", d.Edits)
	}
	d := w.compare(strings.NewReplacer("rate: 500", "rate: 600, burst: 700", "every: day", "every: week",
		`- { id: "free"`, `- { id: "new"`, "plan: free", "plan: new").Replace(small), false)
	var got []string
	for _, e := range d.Edits {
		got = append(got, fmt.Sprintf("%s %s %s %v", e.Action, e.Kind, e.ID, e.Fields))
	}
	got = append(got, d.Afresh...)
	const want = `change plan pro [{limits[day].quota.every "day" "week"}]
create plan new []
change tenant acme [{overrides[burst].rate 500 600} {overrides[burst].burst  700}]
change tenant <b> & ` + "\u2028" + `c [{plan "free" "new"}]
plan "pro": limit day starts afresh: it was a quota of day UTC per tenant, and is a quota of week UTC per tenant`
	if all := strings.Join(got, "\n"); all != want || d.Elsewhere != 1 || len(d.Problems) != 0 {
		t.Errorf("got\n%s\n%d elsewhere, problems %q; want\n%s", all, d.Elsewhere, d.Problems, want)
	}
}

// Guarantees that pruning deletes tenants before their plans, and that a plan which a tenant outside the file uses
// stays a problem.
func TestPrune(t *testing.T) {
	w := newWorld(t)
	w.apply(small)
	only := "plans: [ { id: pro, limits: [ { id: burst, algorithm: token_bucket, rate: 100, period: 1s, burst: 200 " +
		"}, { id: day, quota: { units: 5, every: day } } ] } ]\n"
	d := w.compare(only, true)
	if len(d.Edits) != 3 || d.Edits[2].Kind != plan.KindPlan || d.Edits[2].Action != client.Delete ||
		len(d.Problems) != 0 {
		t.Fatalf("got the edits %+v and the problems %q, want three deletions, the plan last, and no problem", d.Edits,
			d.Problems)
	}
	if r, err := d.Apply(t.Context(), w.client, "gone", true); err != nil || r.Written != 3 {
		t.Fatalf("got %+v, error %v; want 3 written", r, err)
	}
	if d := w.compare(small, false); len(d.Edits) != 3 || d.Edits[0].Action != client.Create ||
		d.Edits[0].Version != 2 {
		t.Errorf("after the deletion: got the edits %+v, want that all three are created again", d.Edits)
	}
	w.apply(small)
}

// Guarantees that a plan change that breaks the override of a tenant outside the file is a problem that names the
// tenant, and that a change of both is written together.
func TestPlanAndOverride(t *testing.T) {
	w := newWorld(t)
	w.apply(small)
	without := "plans: [ { id: pro, limits: [ { id: other, algorithm: token_bucket, rate: 100, period: 1s } ] } ]\n"
	d := w.compare(without, false)
	if len(d.Problems) != 1 || !strings.Contains(d.Problems[0], `plan pro has no limit "burst"`) ||
		!strings.Contains(d.Problems[0], "acme") {
		t.Errorf("got the problems %q, want that the plan has no limit burst for acme", d.Problems)
	}
	if _, err := d.Apply(t.Context(), w.client, "x", true); codeOf(err) != operate.Invalid {
		t.Errorf("apply in spite of a problem: got the error %v, want Invalid", err)
	}
	w.calls.Store(0)
	r := w.apply(without + "tenants: [ { id: acme, plan: pro, overrides: [ { id: other, rate: 7 } ] } ]\n")
	if r.Written != 2 || w.calls.Load() != 1 {
		t.Errorf("both in one call: got %+v in %d calls, want 2 written in 1", r, w.calls.Load())
	}
}

func codeOf(err error) operate.Code {
	var e *operate.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Code
}

// Guarantees that calls go only to the endpoint: signed or on this machine, over TLS or on this machine, and never to
// the target of a redirect.
func TestEndpoints(t *testing.T) {
	sign := func(context.Context, *http.Request, string) error { return errors.New("no credentials") }
	for endpoint, says := range map[string]string{
		"http://example.com/prod": "https", "ftp://localhost/": "URL", "": "URL", "localhost:8080": "URL",
		"https://u:p@example.com": "URL", "https://x/?a=b": "URL",
		"http://localhost.example.com/": "https", "http://127.0.0.1.example.com/": "https",
	} {
		if _, err := client.New(endpoint, sign); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want an error with %q", endpoint, err, says)
		}
	}
	if _, err := client.New("https://example.com/prod", nil); err == nil {
		t.Error("a remote endpoint without a signer: got no error, want one")
	}
	c, err := client.New("https://example.invalid/prod", sign)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.List(t.Context(), &operate.ListRequest{Table: control.Plans}); err == nil ||
		!strings.Contains(err.Error(), "no credentials") {
		t.Errorf("without credentials: got the error %v, want one that says so", err)
	}
	if _, err := c.WithToken("token", "hint"); err == nil {
		t.Error("a token for another machine: got no error, want one")
	}
	if c, err = client.New("http://127.0.0.1:1/prod", sign); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WithToken("token", "hint"); err == nil {
		t.Error("a token beside a signature: got no error, want one")
	}
	status := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}
	}
	signs := func(context.Context, *http.Request, string) error { return nil }
	for name, answer := range map[string]struct {
		sign client.Sign
		http.HandlerFunc
	}{
		"302": {nil, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://example.com/", http.StatusFound)
		}},
		"may not call it": {signs, status(http.StatusForbidden, `{"message":"Missing Authentication Token"}`)},
		"403 Forbidden: the answer is not from Sluice, so this is not its admin endpoint": {nil,
			status(http.StatusForbidden, "")},
		"404 Not Found: the answer is not from Sluice, so this is not its admin endpoint: name the right URL with " +
			"--endpoint or SLUICE_ENDPOINT. To start one at another port: sluice dev --listen 127.0.0.1:8090, whose " +
			"endpoint is http://127.0.0.1:8090/_sluice/admin": {nil, http.NotFound},
		"404 Not Found: the answer is not from Sluice": {signs, http.NotFound},
		"401 Unauthorized: the answer is not from Sluice, so this is not its admin endpoint": {signs,
			status(http.StatusUnauthorized, "")},
		"501 Not Implemented: the answer is not from Sluice": {nil, status(http.StatusNotImplemented, "<html>")},
		"/documents/list: the answer is not from Sluice, so": {nil, status(http.StatusOK, "<html>")},
		"larger than": {nil, status(http.StatusOK, strings.Repeat("x", 17<<20))},
	} {
		server := httptest.NewServer(answer)
		c, err := client.New(server.URL, answer.sign)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.List(t.Context(), &operate.ListRequest{Table: control.Plans}); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: got the error %v, want one that names it", name, err)
		}
		server.Close()
		if _, err := c.List(t.Context(), &operate.ListRequest{Table: control.Plans}); err == nil ||
			!strings.Contains(err.Error(), "is 'sluice dev' running") {
			t.Errorf("nobody listens: got the error %v, want the advice about 'sluice dev'", err)
		}
	}
}

// disturbed is a client whose applies fail.
type disturbed struct {
	*client.Client
	apply func(ctx context.Context, r *operate.ApplyRequest) (*operate.ApplyResponse, error)
}

func (d disturbed) Apply(ctx context.Context, r *operate.ApplyRequest) (*operate.ApplyResponse, error) {
	return d.apply(ctx, r)
}

// Guarantees that an operator who interrupts an apply is told what it had written, even if the answer to the last call
// is lost.
func TestAnApplyThatIsBrokenOff(t *testing.T) {
	w := newWorld(t)
	d := w.compare(small, false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := 0
	result, err := d.Apply(ctx, disturbed{w.client,
		func(ctx context.Context, r *operate.ApplyRequest) (*operate.ApplyResponse, error) {
			if calls++; calls == 2 {
				cancel()
				return nil, ctx.Err()
			}
			if _, err := w.client.Apply(ctx, r); err != nil {
				return nil, err
			}
			return w.client.Apply(ctx, r) // repeated: nothing is left to write
		}}, "x", false)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got the error %v, want context.Canceled", err)
	}
	var states []string
	for _, o := range result.Documents {
		states = append(states, fmt.Sprintf("%s %s: %s", o.Kind, o.ID, o.State))
	}
	const want = "plan pro: already so\nplan free: already so\ntenant acme: not written\ntenant <b> & \u2028c: not " +
		"written"
	if got := strings.Join(states, "\n"); got != want || result.Unchanged != 2 {
		t.Errorf("%+v\n%s\nwant\n%s", result, got, want)
	}
}

// Guarantees that a call accepts losses only if the comparison has shown some, and the operator has agreed to them.
func TestLossesAreAccepted(t *testing.T) {
	w := newWorld(t)
	w.apply(small)
	accepts := disturbed{w.client, func(ctx context.Context, r *operate.ApplyRequest) (*operate.ApplyResponse, error) {
		if r.AcceptLosses {
			t.Error("nothing is lost: got a call that accepts losses, want one that does not")
		}
		return w.client.Apply(ctx, r)
	}}
	d := w.compare(strings.ReplaceAll(small, "rate: 100", "rate: 90"), false)
	if r, err := d.Apply(t.Context(), accepts, "stricter", true); err != nil || r.Written != 1 {
		t.Errorf("nothing is lost: got %+v, error %v; want 1 written", r, err)
	}
	d = w.compare(small, false)
	if _, err := d.Apply(t.Context(), w.client, "looser", false); codeOf(err) != operate.Confirm {
		t.Errorf("a loss without agreement: got the error %v, want Confirm", err)
	}
	if r, err := d.Apply(t.Context(), w.client, "looser", true); err != nil || r.Written != 1 {
		t.Errorf("a loss with agreement: got %+v, error %v; want 1 written", r, err)
	}
}

// Guarantees that a document in the files is found unchanged whatever characters it has.
func TestUnchangedWhateverIsEscaped(t *testing.T) {
	w := newWorld(t)
	const files = "plans: [ { id: pro, limits: [] } ]\ntenants: [ { id: 'a<b>&c', plan: pro } ]\n"
	w.apply(files)
	if d := w.compare(files, false); len(d.Edits) > 0 || d.Unchanged != 2 {
		t.Errorf("got %+v; want 2 documents unchanged", d)
	}
}

// Guarantees that entries of settings in the files replace the stored entries of the same name, in their places, and
// that an entry with another spelling and the same meaning loses nothing.
func TestSettingsAreLaidOver(t *testing.T) {
	w := newWorld(t)
	const base = `
ipLimits: [ { id: a, algorithm: token_bucket, rate: 1, period: 1s },
            { id: b, algorithm: token_bucket, rate: 2, period: 1s } ]
routes: [ { methods: [GET, PUT], pathPattern: "/a/*" }, { pathPattern: "/b" } ]
`
	w.apply(base)
	if d := w.compare(`routes: [ { methods: [PUT, GET], pathPattern: "/a/*/" } ]`, false); len(d.Edits) != 1 ||
		len(d.Losses()) != 0 {
		t.Errorf("the same route in another spelling: got the edits %+v, want one without a loss", d.Edits)
	}
	w.apply("ipLimits: [ { id: c, algorithm: token_bucket, rate: 3, period: 1s }, { id: a, algorithm: token_bucket, " +
		"rate: 4, period: 1s } ]")
	item, err := w.tables.Get(t.Context(), control.Plans, "@settings")
	const want = `{"ipLimits":[{"algorithm":"token_bucket","id":"a","period":"1s","rate":4},` +
		`{"algorithm":"token_bucket","id":"b","period":"1s","rate":2},` +
		`{"algorithm":"token_bucket","id":"c","period":"1s","rate":3}],"routes":[{"methods":["GET","PUT"],` +
		`"pathPattern":"/a/*"},{"pathPattern":"/b"}]}`
	if err != nil || string(item.Body) != want {
		t.Errorf("stored is %s, %v; want %s", item.Body, err, want)
	}
}
