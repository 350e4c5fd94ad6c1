package fleet

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig/memtable"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
)

// readTimeout bounds a read of the configuration, by the clock of the machine. Reads take no time in a simulation, so
// it is long enough for the busiest machine.
const readTimeout = 10 * time.Second

var errNoTable = errors.New("simulated DynamoDB: the cell's table of configuration does not answer")

// configTable is a cell's table of configuration, which may be away. The errors of a table that is away come at once.
type configTable struct {
	*memtable.Table

	away bool
}

// Head implements [cellconfig.Table].
func (t *configTable) Head(ctx context.Context) (cellconfig.Head, error) {
	if t.away {
		return cellconfig.Head{}, errNoTable
	}
	return t.Table.Head(ctx)
}

// Log implements [cellconfig.Table].
func (t *configTable) Log(ctx context.Context, after, upTo int64) ([]cellconfig.Entry, error) {
	if t.away {
		return nil, errNoTable
	}
	return t.Table.Log(ctx, after, upTo)
}

// Get implements [cellconfig.Table].
func (t *configTable) Get(ctx context.Context, refs ...cellconfig.Ref) ([]cellconfig.Document, error) {
	if t.away {
		return nil, errNoTable
	}
	return t.Table.Get(ctx, refs...)
}

// List implements [cellconfig.Lister].
func (t *configTable) List(ctx context.Context, kind cellconfig.Kind) iter.Seq2[cellconfig.Document, error] {
	if t.away {
		return func(yield func(cellconfig.Document, error) bool) { yield(cellconfig.Document{}, errNoTable) }
	}
	return t.Table.List(ctx, kind)
}

// Commit implements [cellconfig.Store].
func (t *configTable) Commit(ctx context.Context, step cellconfig.Step) error {
	if t.away {
		return errNoTable
	}
	return t.Table.Commit(ctx, step)
}

// readConfiguration makes the process's copy of its cell's configuration, which is the real one, and lets the process
// serve once it has been loaded.
func (p *process) readConfiguration() (err error) {
	p.reader, err = cellconfig.New(cellconfig.Config{Table: p.cell.table, Cell: p.cell.name(),
		Accepts: p.chain.Accepts, Timeout: readTimeout, FirstTimeout: readTimeout, MaxBytes: p.run.configBytes,
		Runtime: p.runtime, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		p.load()
	}
	return err
}

// load loads the configuration. An instance of serve that cannot load it ends, and is started again.
func (p *process) load() {
	if p.dead || p.run.draining {
		return
	}
	if err := p.reader.Load(context.Background(), p.time()); err != nil {
		p.run.after(restartAfter, p.load)
		return
	}
	p.serve()
	p.run.after(time.Duration(p.random.Int64N(int64(followEvery))), p.follow)
}

// follow takes up changes of the configuration, without a request.
func (p *process) follow() {
	if p.dead || p.run.draining {
		return
	}
	p.run.after(followEvery, p.follow)
	p.configuration()
}

// configuration returns the process's copy, after the poll that is due, if one is. The copy polls in a goroutine; the
// simulation waits for it, so that a run depends on the seed alone.
func (p *process) configuration() authorizer.Configuration {
	configuration, join := p.reader.Begin(context.Background(), p.time())
	if join != nil {
		join()
	}
	return configuration
}

// lookup is the outcome of finding a request's limits in the configuration of the process's cell.
type lookup uint8

const (
	loaded    lookup = iota // the limits, or the cell's parts of them
	withheld                // nothing of one of them: the request is denied without asking the store
	notLoaded               // unknown, since the tenant's limits could not be read
)

// requestOf returns the request of a tenant with the limits as the process's cell grants them. The worker holds it.
func (p *process) requestOf(w *worker, t *tenant) (*limit.Request, lookup) {
	found, err := p.configuration().Tenant(context.Background(), t.req.Owner.Name)
	if err != nil || found == nil {
		return nil, notLoaded
	}
	set := found.Limits(p.time())
	charges := set.AppendCharges(w.request.Charges[:0], &plan.Attributes{Method: "GET", Path: &p.run.path})
	w.request = limit.Request{Owner: t.req.Owner, Charges: charges}
	if set.Withheld(charges) != nil {
		return nil, withheld
	}
	return &w.request, loaded
}

// countNotAsked counts a request that was answered without asking the chain.
func (r *run) countNotAsked(p *process, t *tenant, why lookup) {
	c := &r.counts
	if why == notLoaded {
		if r.measuring {
			c.notLoaded++
		}
		return
	}
	r.decisions++
	if !r.measuring {
		return
	}
	c.decisions++
	c.local++
	c.immediate++
	c.denied++
	c.withheld++
	p.cell.denied++
	l := r.limits[t.limits[0]]
	l.Denied++
	if t.fits(epoch.UnixMicro() + r.now/1000) {
		c.early++
		l.Early++
	}
}
