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

// readTimeout bounds a read of the configuration, by the clock of the machine that runs the simulation. A read takes no
// virtual time and very little real time, so 10 s are enough even on a busy machine.
const readTimeout = 10 * time.Second

var errNoTable = errors.New("simulated DynamoDB: the cell's table of configuration does not answer")

// configTable is a cell's table of configuration. While it is away, every call returns errNoTable at once.
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

// readConfiguration makes the process's copy of its cell's configuration, with the real reader, and lets the process
// serve as soon as the copy has been loaded.
func (p *process) readConfiguration() (err error) {
	p.reader, err = cellconfig.New(cellconfig.Config{Table: p.cell.table, Cell: p.cell.name(),
		Accepts: p.chain.Accepts, Timeout: readTimeout, FirstTimeout: readTimeout, MaxBytes: p.run.configBytes,
		Runtime: p.runtime, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		p.load()
	}
	return err
}

// load loads the configuration, and lets the process serve. An instance of serve that cannot load it ends; load is then
// called again after restartAfter.
func (p *process) load() {
	if p.dead || p.run.draining {
		return
	}
	if err := p.reader.Load(context.Background(), p.time()); err != nil {
		p.run.after(restartAfter, p.load)
		return
	}
	p.serve()
	p.run.after(time.Duration(p.random.Int64N(int64(followEvery))), p.followChanges)
}

// followChanges lets the copy poll for changes of the configuration when that is due, and adds the event of the next
// call. An instance of serve does this without a request.
func (p *process) followChanges() {
	if p.dead || p.run.draining {
		return
	}
	p.run.after(followEvery, p.followChanges)
	p.configuration()
}

// configuration returns the process's copy of the configuration. If a poll of the cell's table is due, it is made
// first. The copy polls in a goroutine. The simulation waits for that goroutine, so that a run depends on the seed
// alone.
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
	loaded    lookup = iota // the limits were found
	withheld                // the cell grants nothing of one of them: the request is denied without asking the store
	notLoaded               // the tenant's limits could not be read
)

// requestOf returns the request of a tenant, with the parts of its limits that the process's cell may grant. The
// request is in the memory of the worker. If lookup is not loaded, the request is nil.
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

// countNotAsked counts a request that was answered without asking the store chain, because of its lookup.
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
