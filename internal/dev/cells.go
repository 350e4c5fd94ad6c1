package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/planfile"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/dev/devcells"
	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/internal/gateway"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/inflight"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/stores"
)

const (
	maxPorts     = 100      // ports after that of --listen that are tried for further cells
	maxBodyBytes = 10 << 20 // of a request; API Gateway's bound

	maxPageRows = 8 // most limits of the busiest tenant that the live page shows for a cell
)

// process holds the cells of this process, each with a gateway of its own.
type process struct {
	Options

	names        []string          // of Options.Cells
	tokens       authorizer.Tokens // nil: no JWT is accepted
	pageOff      bool              // nobody may see the live page
	plane        *devcells.Plane
	plans        *planfile.Plans // nil if no plans file is read
	log          *slog.Logger
	clock        clock.Clock
	operators    *operators
	first        net.Listener       // at --listen: for the first cell
	addressNames authorizer.Sources // of addresses, in all cells: they share quotas

	mu      sync.Mutex
	homes   map[string]*memory.Store // with --cells: cell → its counters, also of cells that were removed
	away    map[string]*router.Store // with --cells: cell → its router to the counters of all cells
	cells   map[string]*servedCell
	failed  chan error // the first error of a server
	serving sync.WaitGroup
}

// servedCell is a cell and the gateway in front of it.
type servedCell struct {
	*devcells.Cell
	counters *stores.Counters
	recorder *livepage.Recorder
	decided  metrics.Table[string] // decisions by reason
	listener net.Listener
	lines    attempts
	first    bool // it listens at the address of --listen
	handler  http.Handler
	operate  http.Handler // answers operators' calls about the cell's counters
	status   func() livepage.Status
	stop     context.CancelFunc
}

func (c *servedCell) url() string { return baseURL(c.listener.Addr()) }

// add makes a cell that will serve on listener. If it fails, it closes the listener.
func (f *process) add(
	ctx context.Context, name string, counters *stores.Counters, listener net.Listener,
) (*servedCell, error) {
	own, err := f.plane.AddCell(ctx, name)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	c := &servedCell{Cell: own, counters: counters, recorder: livepage.NewRecorder(), listener: listener}
	base := c.url()
	now := time.Now()
	c.lines = f.try(ctx, c, now, base, func(*plan.Tenant) string { return base })
	if c.handler, err = f.handler(c); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	f.operators.writeToken(listener.Addr())
	f.mu.Lock()
	c.first = len(f.cells) == 0
	f.cells[name] = c
	f.mu.Unlock()
	return c, nil
}

// try returns example commands for a cell's present tenants. at returns the URL for the example of a tenant.
func (f *process) try(
	ctx context.Context, c *servedCell, now time.Time, base string, at func(*plan.Tenant) string,
) attempts {
	if view, _ := c.Reader.Begin(ctx, now); !view.HasKeys() && !view.HasPlans() && f.tokens == nil {
		const about = "no key: there are no plans, tenants and keys, so only ipLimits limit calls"
		return attempts{{about, "curl -i " + base + "/product/1"}}
	}
	lines := tryLines(c.Overview(ctx, now, maxTryTenants*4), c.Keys(ctx), anonymousPlan(ctx, c.Cell, now), base, at)
	if f.tokens != nil {
		lines = append(attempts{{"a token of one of the issuers (put it into TOKEN)",
			`curl -i -H "Authorization: Bearer $TOKEN" ` + base + "/product/1"}}, lines...)
	}
	return lines
}

// anonymousPlan returns the id of the plan for calls without a key. It returns "" if such calls have no plan.
func anonymousPlan(ctx context.Context, c *devcells.Cell, now time.Time) string {
	view, _ := c.Reader.Begin(ctx, now)
	id, _, err := view.Anonymous(ctx)
	if err != nil {
		return ""
	}
	return id
}

// handler connects the parts of a cell: counters, authorizer, gateway, live page and operators' API.
func (f *process) handler(c *servedCell) (http.Handler, error) {
	names := c.counters.Names
	z, err := authorizer.New(authorizer.Config{Source: c.Reader, Store: c.counters.Tenants,
		Addresses: c.counters.Addresses, Sources: names, Now: f.clock.Now, Log: f.log, TrustedHops: f.TrustedHops,
		Tokens: f.tokens})
	if err != nil {
		return nil, err
	}
	status := &livepage.StatusSource{Overview: f.overview(c), Store: c.counters.Tenants, Chain: c.counters.Chain,
		Bytes: c.counters.Bytes, Upstream: f.upstreams(), Listen: c.listener.Addr().String(), Try: c.lines.commands(),
		Now: f.clock.Now}
	if f.several() {
		status.Cells = func() []livepage.CellStatus { return f.status(c) }
	}
	c.status = status.Status
	page := f.reserved(c, livepage.Handler(c.recorder, c.status))
	return gateway.New(gateway.Config{Authorizer: z, Upstreams: f.Upstreams, TrustedHops: f.TrustedHops,
		MaxBody: maxBodyBytes,
		Places:  &inflight.Keeper{Store: c.counters.Tenants, Now: f.clock.Now, Log: f.log},
		Decided: func(a *authorizer.Answer, r *http.Request, took time.Duration) {
			c.decided.At(a.Kind.String()).Observe(took)
			c.recorder.ObserveAnswer(a, r.Method)
		},
		LivePage: page, Audience: f.Audience, Log: f.log})
}

// reserved returns the handler of all paths below /_sluice/. Below admin is the operators' API, which needs the token,
// and below admin/ops/CELL the API of the cell's counters. The other paths are the metrics of the control plane's
// functions and the live page.
func (f *process) reserved(c *servedCell, page http.Handler) http.Handler {
	service := operate.NewCell(operate.CellConfig{Cell: c.Name, Store: c.counters.Base, Tables: f.plane.Tables(),
		Now: f.clock.Now, Log: f.log,
		Tenant: func(ctx context.Context, id string) (*plan.Tenant, error) {
			return c.Tenant(ctx, id, f.clock.Now())
		}})
	c.operate = operate.Local(service.Mux(), operate.LocalActor())
	operators := f.operators.guard(f.admin())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/admin/"):
			operators.ServeHTTP(w, r)
		case f.pageOff:
			http.Error(w, "the live page is turned off: sluice dev was started with --live-page off",
				http.StatusNotFound)
		case r.URL.Path == "/metrics":
			f.metrics(w, r)
		default:
			page.ServeHTTP(w, r)
		}
	})
}

// admin returns the handler of the operators' API.
func (f *process) admin() http.Handler {
	operators := http.StripPrefix("/admin", f.plane.Operate())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest, isOps := strings.CutPrefix(r.URL.Path, "/admin/ops/")
		name, _, _ := strings.Cut(rest, "/")
		switch {
		case isOps && f.find(name) != nil:
			http.StripPrefix("/admin/ops/"+name, f.find(name).operate).ServeHTTP(w, r)
		case isOps:
			f.refuseOps(w, name)
		case !f.several() && strings.HasPrefix(r.URL.Path, "/admin/cells/") && r.URL.Path != "/admin/cells/list":
			refuseCells(w)
		default:
			operators.ServeHTTP(w, r)
		}
	})
}

// refuseCells refuses a change of cells. Without --cells there is no balancer, so the change would never happen.
func refuseCells(w http.ResponseWriter) {
	operate.Deny(w, operate.Refuse(operate.Unsupported,
		"this 'sluice dev' has only one cell: start it with --cells to add, drain and remove cells"))
}

// refuseOps refuses a call about the counters of a cell that does not run.
func (f *process) refuseOps(w http.ResponseWriter, name string) {
	var names []string
	for _, c := range f.all() {
		names = append(names, c.Name)
	}
	operate.Deny(w, operate.Refuse(operate.NotFound,
		"no cell %.80q runs in this 'sluice dev'; name one of %s with --cell", name, strings.Join(names, ", ")))
}

// warnOfCells logs a warning if the data folder has cells: without --cells they do not run, though 'sluice cell list'
// shows them.
func (f *process) warnOfCells(ctx context.Context) error {
	kept, err := f.plane.Shares(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, row := range kept.Cells {
		if row.State != "removed" {
			names = append(names, row.Cell)
		}
	}
	if len(names) > 0 {
		f.log.Warn("without --cells, the cells of the data folder do not run, and one cell has all limits",
			"cells", strings.Join(names, " "))
	}
	return nil
}

// all returns the cells, sorted by name.
func (f *process) all() []*servedCell {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(maps.Values(f.cells), func(a, b *servedCell) int { return cmp.Compare(a.Name, b.Name) })
}

func (f *process) find(name string) *servedCell {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cells[name]
}

// upstreams names the services behind the gateways, and returns "" for the echo.
func (o *Options) upstreams() string {
	var all []string
	for _, u := range o.Upstreams {
		to := u.URL.Redacted()
		if u.String() != "/" {
			to = u.String() + "=" + to
		}
		all = append(all, to)
	}
	return strings.Join(all, " ")
}

// overview returns the function that lists for the live page of a cell what is in force there.
func (f *process) overview(c *servedCell) func(most int) livepage.Overview {
	return func(most int) livepage.Overview {
		o := c.Overview(context.Background(), f.clock.Now(), most)
		out := livepage.Overview{Name: f.source(), LoadedAt: o.ChangedAt, Tenants: o.Tenants, Total: o.Total,
			IPLimits: o.IPLimits, Routes: o.Routes}
		if f.plans != nil {
			_, out.LastError = f.plans.Status()
		}
		return out
	}
}

// source names the plans files or the data folder that the configuration comes from.
func (f *process) source() string {
	if f.plans != nil {
		return f.plans.Name()
	}
	return f.plane.Folder()
}

// status returns the state of all cells for the live page of one cell. For each cell it says how much it may grant of
// the limits of one tenant: the busiest tenant of the cell that shows the page.
func (f *process) status(here *servedCell) []livepage.CellStatus {
	ctx, now := context.Background(), f.clock.Now()
	balanced, err := f.plane.Shares(ctx)
	if err != nil {
		f.log.Warn("the live page shows no cells: their shares cannot be read", "error", err)
		return nil
	}
	busiest := here.recorder.Busiest(now)
	out := make([]livepage.CellStatus, 0, len(balanced.Cells))
	for _, row := range balanced.Cells {
		s := livepage.CellStatus{Name: row.Cell, Here: row.Cell == here.Name, State: row.State, Weight: row.Share,
			Await: row.Awaited}
		if c := f.find(row.Cell); c != nil {
			o := c.Overview(ctx, now, 1)
			s.URL, s.Epoch, s.Phase = c.url(), o.Epoch, string(o.Phase)
			s.Head, s.Behind = o.Head, max(o.Head-o.InForce, 0)
			if busiest == "" && len(o.Tenants) > 0 {
				busiest = o.Tenants[0].ID
			}
			s.Limits = granted(ctx, c, busiest, now)
		}
		out = append(out, s)
	}
	return out
}

// metrics answers with the metrics of the gateways of this process since its start.
func (f *process) metrics(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD are answered here", http.StatusMethodNotAllowed)
		return
	}
	h.Set("Content-Type", metrics.TextType)
	_ = metrics.WriteText(w, f.gather()) // it fails if the client is gone
}

// granted lists how much a cell may grant of each of a tenant's limits.
func granted(ctx context.Context, c *servedCell, tenant string, now time.Time) []livepage.CellLimit {
	t, err := c.Tenant(ctx, tenant, now)
	if err != nil || t == nil {
		return nil
	}
	var out []livepage.CellLimit
	for _, e := range t.Limits(now).Limits {
		part := e.Limit
		if s := e.Share(); s != nil {
			part = s.Limit // nil if the cell may grant nothing
		}
		for i := range e.Whole().Tiers {
			if len(out) == maxPageRows {
				return out
			}
			row := livepage.CellLimit{Tenant: tenant, ID: e.Limit.ID, Tier: livepage.TierName(&e.Whole().Tiers[i]),
				Unit: e.Limit.OtherUnit(), Capacity: e.Whole().Tiers[i].Capacity()}
			if part != nil {
				row.Share = part.Tiers[i].Capacity()
			}
			out = append(out, row)
		}
	}
	return out
}

// memoryCounters returns the stores of one of several cells: counters of its own, and leases from the counters of other
// cells for the quotas that those keep.
func (f *process) memoryCounters(name string) (*stores.Counters, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own, err := f.counts(name)
	if err != nil {
		return nil, err
	}
	all, err := router.New(router.Config{Cell: name, Rates: router.Backend{Store: own},
		Homes: map[string]router.Backend{}})
	if err != nil {
		return nil, err
	}
	for home, store := range f.homes {
		if home != name {
			err = errors.Join(err, all.Add(home, router.Backend{Store: store}))
		}
	}
	if err != nil {
		return nil, err
	}
	f.away[name] = all
	count := func(*limit.Limit) int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.cells)
	}
	leases, err := lease.New(lease.Config{Store: all, HomeQuotasOnly: true, Instances: count})
	if err != nil {
		return nil, err
	}
	return &stores.Counters{Tenants: leases, Base: all, Addresses: own, Calls: new(metrics.StoreCalls),
		Bytes: own.Bytes, Names: f.addressNames, Close: func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			if err := leases.Close(ctx); err != nil {
				f.log.Warn("a store did not close properly", "error", err)
			}
		}}, nil
}

// counts returns the counters of a cell. If the cell has none yet, counts makes them, and lets the other cells lease
// from them. The caller holds f.mu.
func (f *process) counts(name string) (*memory.Store, error) {
	if own := f.homes[name]; own != nil {
		return own, nil
	}
	own, err := memory.New(memory.Config{MaxBytes: f.Stores.MaxBytes, Log: f.log})
	if err != nil {
		return nil, err
	}
	f.homes[name] = own
	for other, cell := range f.away {
		if other != name {
			err = errors.Join(err, cell.Add(name, router.Backend{Store: own}))
		}
	}
	return own, err
}

// reaches makes sure that cells can lease quotas from the counters of home, and reports whether they can. A cell that
// was removed before this process started is still the home of quotas, but has no counters here yet.
func (f *process) reaches(home string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.counts(home)
	return err == nil
}

// follow starts the named cells that do not run, and stops running cells that are not named. The cell at the address of
// --listen keeps running, since operators call it; the balancer has left it no share.
func (f *process) follow(ctx context.Context, names []string) {
	for _, name := range names {
		if f.find(name) != nil {
			continue
		}
		if err := f.startCell(ctx, name); err != nil {
			f.log.Error("a cell does not start; the next run of the balancer tries again", "cell", name, "error", err)
			continue
		}
		f.log.Info("a cell was added", "cell", name, "url", f.find(name).url())
	}
	f.mu.Lock()
	var over []*servedCell
	for name, c := range f.cells {
		if !c.first && !slices.Contains(names, name) {
			over = append(over, c)
			delete(f.cells, name)
		}
	}
	f.mu.Unlock()
	for _, c := range over {
		c.stop()
		f.plane.RemoveCell(c.Name)
		f.log.Info("a cell was removed", "cell", c.Name)
	}
}

// startCell adds a cell on a port of its own and serves it.
func (f *process) startCell(ctx context.Context, name string) error {
	listener, err := f.listenNext()
	if err != nil {
		return err
	}
	counters, err := f.memoryCounters(name)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	c, err := f.add(ctx, name, counters, listener)
	if err != nil {
		counters.Close()
		return err
	}
	f.serve(ctx, c)
	return nil
}

// listenNext listens for another cell: at the port of --listen for the first one, else at the next free port after it.
func (f *process) listenNext() (net.Listener, error) {
	f.mu.Lock()
	none := len(f.cells) == 0
	f.mu.Unlock()
	if none {
		return f.first, nil
	}
	host, text, err := net.SplitHostPort(f.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", f.Listen, err)
	}
	port, err := net.LookupPort("tcp", text)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", f.Listen, err)
	}
	if port == 0 {
		return f.open()
	}
	for n := 1; n <= maxPorts; n++ {
		listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port+n)))
		if err == nil {
			return listener, nil
		}
	}
	return nil, fmt.Errorf("none of the %d ports after %s is free; choose another port with --listen", maxPorts,
		f.Listen)
}

// serve serves a cell until it is stopped or ctx ends.
func (f *process) serve(ctx context.Context, c *servedCell) {
	ctx, c.stop = context.WithCancel(ctx)
	f.serving.Go(func() {
		defer func() { _ = c.listener.Close() }() // a second close does nothing
		defer f.operators.forget(c.listener.Addr())
		if err := f.serveGateway(ctx, c.listener, c.handler, f.log); err != nil {
			select {
			case f.failed <- err:
			default: // an earlier error is already there
			}
		}
		c.counters.Close()
	})
}
