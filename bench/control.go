package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig/memtable"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/streams/local"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

const (
	planeTenants      = 10_000
	planeTenantsShort = 500 // of a short measurement
	controlCells      = 3
	overrideEvery     = 10   // one tenant in this many overrides the plan's limit,
	overrideRate      = 5000 // with this rate
)

func tenantName(i int) string { return fmt.Sprintf("tenant-%05d", i) }

// rateOf returns the rate of the i-th tenant's limit if the plan has the given rate.
func rateOf(i int, rate int64) int64 {
	if i%overrideEvery == 0 {
		return overrideRate
	}
	return rate
}

// tenantsFile returns a plans file with the given number of tenants on one plan with the given rate.
func tenantsFile(tenants int, rate int64) (*plan.Draft, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "plans: [ { id: pro, limits: [ { id: all, tiers: [ { period: 1s, threshold: %d } ] } ] } "+
		"]\ntenants:\n", rate)
	for i := range tenants {
		overrides := ""
		if i%overrideEvery == 0 {
			overrides = fmt.Sprintf(", overrides: [ { id: all, tiers: [ { period: 1s, threshold: %d } ] } ]",
				overrideRate)
		}
		fmt.Fprintf(&b, "  - { id: %s, plan: pro%s }\n", tenantName(i), overrides)
	}
	return plan.ReadDraft(time.Now(), configyaml.Source("plans.yaml", []byte(b.String())))
}

// operator calls the admin service over HTTP, as the CLI does.
type operator struct {
	*client.Client
	server *httptest.Server
}

// newOperator starts an admin service that writes to the given tables, and returns a client of it.
func newOperator(tables control.Tables) (*operator, error) {
	s, err := admin.New(admin.Config{Tables: tables, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	o := &operator{server: httptest.NewServer(call.Local(admin.NewMux(s), "ann@local"))}
	if o.Client, err = client.New(o.server.URL, nil); err != nil {
		o.server.Close()
		return nil, err
	}
	return o, nil
}

// apply does what `sluice plan apply` does: it compares, and writes what differs. It returns an error unless that is
// the given number of documents.
func (o *operator) apply(file *plan.Draft, want int) error {
	ctx := context.Background()
	diff, err := client.Compare(ctx, o, file)
	if err != nil {
		return err
	}
	if len(diff.Problems) > 0 {
		return fmt.Errorf("the plans file has problems: %q", diff.Problems)
	}
	r, err := diff.Apply(ctx, o, "measured", true, nil)
	if err != nil {
		return err
	}
	if r.Written != want {
		return fmt.Errorf("applying the plans file wrote %d documents, want %d", r.Written, want)
	}
	return nil
}

// cellStore is a cell's table. It counts the documents that are read and written.
type cellStore struct {
	cellconfig.Store
	reads, commits, changes atomic.Int64
}

// plane is a control plane in this process: tables in a file, operators, the pump, and cells.
type plane struct {
	dir      string
	tables   *embedded.Tables
	operator *operator
	meter    streamstest.Meter
	setAside streamstest.Keeper
	pump     *local.Pump
	deployed *sources // delivers the changes in place of the pump if it is not nil
	cells    []*cellStore
	tenants  int
	loaded   time.Duration // how long it took to apply its tenants

	stop  context.CancelFunc
	ended chan error
}

// newPlane returns a control plane with the given number of tenants on a plan with the given rate, and no cells. No
// changes are delivered before start. Then they are delivered as in a deployment, or by the pump of `sluice dev`.
func newPlane(tenants int, rate int64, deployed bool) (p *plane, err error) {
	p = &plane{tenants: tenants}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
			p = nil
		}
	}()
	if p.dir, err = os.MkdirTemp("", "sluice-bench-"); err != nil {
		return p, err
	}
	if p.tables, err = embedded.Open(filepath.Join(p.dir, "control")); err != nil {
		return p, err
	}
	if p.operator, err = newOperator(p.tables); err != nil {
		return p, err
	}
	p.pump, err = local.New(local.Config{
		Feed: p.tables, Tables: p.tables, Keep: &p.setAside, Meter: &p.meter, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return p, err
	}
	if deployed {
		if p.deployed, err = newSources(p); err != nil {
			return p, err
		}
	}
	file, err := tenantsFile(tenants, rate)
	if err != nil {
		return p, err
	}
	began := time.Now()
	if err = p.operator.apply(file, tenants+1); err != nil {
		return p, err
	}
	p.loaded = time.Since(began)
	return p, nil
}

// add adds a cell with the given table, and writes the configuration there.
func (p *plane) add(store cellconfig.Store) error {
	c := &cellStore{Store: store}
	p.cells = append(p.cells, c)
	id := fmt.Sprintf("cell-%d", len(p.cells))
	if p.deployed != nil {
		return p.deployed.add(id, c)
	}
	return p.pump.Add(context.Background(), id, c)
}

// addInMemory adds all cells. Each cell's table is what wrap returns for a table in memory.
func (p *plane) addInMemory(wrap func(cellconfig.Store) cellconfig.Store) error {
	for range controlCells {
		table, err := memtable.New(0)
		if err != nil {
			return err
		}
		if err := p.add(wrap(table)); err != nil {
			return err
		}
	}
	return nil
}

// start delivers the changes to the cells from now on.
func (p *plane) start() error {
	ctx, stop := context.WithCancel(context.Background())
	p.stop, p.ended = stop, make(chan error, 1)
	if p.deployed == nil {
		go func() { p.ended <- p.pump.Run(ctx) }()
		return p.waitUntilDelivered()
	}
	after, err := end(ctx, p.tables)
	go func() { p.ended <- errors.Join(err, p.deployed.run(ctx, after)) }()
	return err
}

// waitUntilDelivered waits until the pump has delivered everything that was written to every cell.
func (p *plane) waitUntilDelivered() error {
	ctx, cancel := context.WithTimeout(context.Background(), 4*patient)
	defer cancel()
	return p.pump.Settle(ctx)
}

// checkNothingSetAside returns an error if the pump has set aside a record that it could not deliver.
func (p *plane) checkNothingSetAside() error {
	if items := p.setAside.Items(); len(items) > 0 {
		return fmt.Errorf("%d records were set aside and not delivered: %s", len(items), items[0].Reason)
	}
	return nil
}

func (p *plane) close() error {
	var errs []error
	if p.stop != nil {
		p.stop()
		errs = append(errs, <-p.ended)
	}
	if p.operator != nil {
		p.operator.server.Close()
	}
	if p.tables != nil {
		errs = append(errs, p.tables.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}

// reader returns a reader of the cell's table like the one that a function of the cell has.
func (c *cellStore) reader() (*cellconfig.Reader, error) {
	r, err := cellconfig.New(cellconfig.Config{
		// long timeouts, because a slow answer only means that the machine is busy
		Table: c.Store, Timeout: time.Second, FirstTimeout: patient, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	return r, r.Load(context.Background(), time.Now())
}

// enforced returns the threshold of the tenant's only limit.
func enforced(c authorizer.Configuration, tenant string) (int64, error) {
	t, err := c.Tenant(context.Background(), tenant)
	if err != nil {
		return 0, err
	}
	if t == nil {
		return 0, fmt.Errorf("there is no tenant %s", tenant)
	}
	limits := t.Limits(time.Now()).Limits
	if len(limits) != 1 || len(limits[0].Limit.Tiers) != 1 {
		return 0, fmt.Errorf("tenant %s: %d limits, want one with one tier", tenant, len(limits))
	}
	return limits[0].Limit.Tiers[0].Threshold, nil
}

// checkEnforced returns an error unless every cell enforces, for every tenant, the threshold that follows from the
// plan's rate.
func (p *plane) checkEnforced(rate int64) error {
	for n, c := range p.cells {
		r, err := c.reader()
		if err != nil {
			return err
		}
		view, join := r.Begin(context.Background(), time.Now())
		if join != nil {
			join()
		}
		for i := range p.tenants {
			got, err := enforced(view, tenantName(i))
			if err != nil {
				return fmt.Errorf("cell %d: %w", n+1, err)
			}
			if want := rateOf(i, rate); got != want {
				return fmt.Errorf("cell %d: %s has the threshold %d, want %d", n+1, tenantName(i), got, want)
			}
		}
	}
	return nil
}

func inMemory(s cellconfig.Store) cellconfig.Store { return s }

// publishFigure counts the events that are published for a change of a plan that many tenants have.
func publishFigure(short bool) (r Result, err error) {
	tenants := planeTenants
	if short {
		tenants = planeTenantsShort
	}
	const rate, changes = 100, 5
	p, err := newPlane(tenants, rate, false)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := errors.Join(p.addInMemory(inMemory), p.start(), p.checkEnforced(rate)); err != nil {
		return r, err
	}
	before := map[string]int64{}
	for _, name := range []string{"events_published", "publish_calls"} {
		before[name] = p.meter.Of(name)
	}
	for _, c := range p.cells {
		c.commits.Store(0)
		c.changes.Store(0)
	}
	for i := range changes {
		file, err := tenantsFile(tenants, rate+1+int64(i))
		if err != nil {
			return r, err
		}
		if err := p.operator.apply(file, 1); err != nil {
			return r, err
		}
		if err := p.waitUntilDelivered(); err != nil { // otherwise two changes could be delivered as one
			return r, err
		}
	}
	for n, c := range p.cells {
		if commits, written := c.commits.Load(), c.changes.Load(); commits != changes || written != changes {
			return r, fmt.Errorf("cell %d: %d transactions with %d documents, want %d of one", n+1, commits, written,
				changes)
		}
	}
	if err := errors.Join(p.checkEnforced(rate+changes), p.checkNothingSetAside()); err != nil {
		return r, err
	}
	r.Value = float64(p.meter.Of("events_published")-before["events_published"]) / changes
	r.note("%d changes, one after the other, of a plan with %d tenants, each by `plan apply`: %d publishes, and in "+
		"each of %d cells "+
		"%d transactions of one document, after which each tenant is held to the new limit",
		changes, tenants, p.meter.Of("publish_calls")-before["publish_calls"], len(p.cells), changes)
	r.note("the plans file's %d tenants were applied at %.0f per second to a control plane like that of `sluice dev`",
		tenants,
		float64(tenants)/p.loaded.Seconds())
	return r, nil
}
