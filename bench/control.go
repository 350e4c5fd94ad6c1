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

// cellStore is a cell's table. It counts its transactions.
type cellStore struct {
	cellconfig.Store
	commits atomic.Int64
}

// plane is a control plane in this process: tables in a file, operators, event sources, and cells.
type plane struct {
	dir      string
	tables   *embedded.Tables
	operator *operator
	meter    streamstest.Meter
	setAside streamstest.Keeper
	deployed *sources // delivers the changes
	cells    []*cellStore

	stop  context.CancelFunc
	ended chan error
}

// newPlane returns a control plane with the given number of tenants on a plan with the given rate, and no cells. No
// changes are delivered before start.
func newPlane(tenants int, rate int64) (p *plane, err error) {
	p = new(plane)
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
	if p.deployed, err = newSources(p); err != nil {
		return p, err
	}
	file, err := tenantsFile(tenants, rate)
	if err != nil {
		return p, err
	}
	return p, p.operator.apply(file, tenants+1)
}

// addSlow adds all cells, each with a table in memory that is as slow as DynamoDB, and writes the configuration there.
func (p *plane) addSlow() error {
	for range controlCells {
		table, err := memtable.New(0)
		if err != nil {
			return err
		}
		c := &cellStore{Store: slowTable{table}}
		p.cells = append(p.cells, c)
		if err := p.deployed.add(fmt.Sprintf("cell-%d", len(p.cells)), c); err != nil {
			return err
		}
	}
	return nil
}

// start delivers the changes to the cells from now on.
func (p *plane) start() error {
	ctx, stop := context.WithCancel(context.Background())
	p.stop, p.ended = stop, make(chan error, 1)
	after, err := end(ctx, p.tables)
	go func() { p.ended <- errors.Join(err, p.deployed.run(ctx, after)) }()
	return err
}

// checkNothingSetAside returns an error if a record was set aside because it could not be delivered.
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
