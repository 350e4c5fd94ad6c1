// Package devcells is the control plane and its cells in one process, put together of the parts that are deployed:
// control tables in a file, publisher, appliers, archiver and operators' calls. It is what `sluice dev` runs.
//
// A folder holds all that outlives the process:
//
//	control.db     the control tables (package control/embedded)
//	audit/         the archive of every version (package audit/folder)
//	endpoint.json  where operators' calls are answered, while a process has the folder
//
// A write is on the disk when it is acknowledged, and everything else is made of what is written: cells are filled from
// the tables at each start, and what was not archived when the process ended is archived by the next one.
package devcells

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/audit/folder"
	"github.com/sluicelimits/sluice/internal/control/audit/livetables"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/telemetry"
	"github.com/sluicelimits/sluice/streams/archiver"
	"github.com/sluicelimits/sluice/streams/balancer"
	"github.com/sluicelimits/sluice/streams/local"
)

// ErrInUse is wrapped by the error of Open for a folder that another process has open.
var ErrInUse = embedded.ErrInUse

const (
	tablesFile  = "control.db"
	auditFolder = "audit"
	folderMode  = 0o700
	archiveFor  = 5 * time.Second // of a Close, for what was written last
)

// Config sets up a Plane.
type Config struct {
	// made if it is not there; "": a temporary one without an archive, removed by Close
	Folder  string
	Peppers map[string][]byte        // of API keys, by id; required
	NewKeys string                   // id of the pepper that new keys are made with; required
	Several bool                     // cells share the limits; else there is one, which grants all of them
	Accepts func(*limit.Limit) error // whether the cells' stores can keep a limit; nil is any
	// AcceptsPlan is [limit.PlanAccepter] of the cells' stores; nil is any.
	AcceptsPlan func(all []*limit.Limit, together ...[]*limit.Limit) error

	Reaches   func(home string) bool // whether quotas that a cell keeps can be leased by the others; nil is of none
	Operators string                 // who calls Operate, as the audit trail has it; default: the user of this process

	// How often a cell is compared with the control tables, and how often a change of the canary is sent through all of
	// them, where there are several; 0 is every 15 minutes and every minute, as in AWS.
	ReconcileEvery, CanaryEvery time.Duration

	// Shadow counts what shadow limits did; nil: nobody does.
	Shadow func(ctx context.Context) (*admin.ShadowReport, error)

	Log *slog.Logger     // default slog.Default()
	Now func() time.Time // default time.Now
}

// Plane is the control plane and its cells. It is safe for concurrent use. Make it with Open.
type Plane struct {
	c         Config
	folder    string
	of        string // names the folder as this process has it open
	temporary bool
	peppers   *identity.Peppers
	board     *telemetry.Board
	tables    *embedded.Tables
	archive   *folder.Archive
	pump      *local.Pump
	balancer  *balancer.Balancer
	look      chan struct{} // has room for one: the cells' table may have changed
	operate   atomic.Pointer[http.Handler]

	stop    context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex // over cells
	cells map[string]*Cell

	writing sync.Mutex        // over what a plans file writes
	written map[place]version // nil: not known yet
}

// Open opens the folder and carries changes to cells and to the archive from then on. The error names the file; it
// wraps ErrInUse where another process has it.
func Open(c Config) (*Plane, error) {
	c.Log, c.Operators = cmp.Or(c.Log, slog.Default()), cmp.Or(c.Operators, call.LocalActor())
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Peppers[c.NewKeys] == nil {
		return nil, fmt.Errorf("devcells: there is no pepper %q for new keys", c.NewKeys)
	}
	p := &Plane{c: c, folder: c.Folder, of: rand.Text(), board: telemetry.NewBoard(), cells: map[string]*Cell{},
		look: make(chan struct{}, 1)}
	var err error
	if p.peppers, err = identity.NewPeppers(c.Peppers); err != nil {
		return nil, err
	}
	if err := p.open(); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	if err := p.start(ctx); err != nil {
		stop()
		return nil, errors.Join(err, p.tables.Close(), p.remove())
	}
	return p, nil
}

func (p *Plane) open() (err error) {
	if p.folder == "" {
		p.temporary = true
		if p.folder, err = os.MkdirTemp("", "sluice-dev-"); err != nil {
			return fmt.Errorf("a folder for the control tables: %w", err)
		}
	} else if err := os.MkdirAll(p.folder, folderMode); err != nil {
		return fmt.Errorf("the folder of the control tables: %w", err)
	}
	if p.archive, err = folder.New(filepath.Join(p.folder, auditFolder)); err != nil {
		return err
	}
	if p.tables, err = embedded.Open(filepath.Join(p.folder, tablesFile)); err != nil {
		return err
	}
	if p.temporary {
		p.tables.Unsynced()
		// an open file needs no name, and a killed process leaves none; where it needs one, Close removes it
		_ = p.remove()
	}
	if err := p.answersNowhere(); err != nil {
		return errors.Join(err, p.tables.Close())
	}
	return nil
}

// start begins what carries changes.
func (p *Plane) start(ctx context.Context) error {
	var err error
	if p.pump, err = local.New(local.Config{
		Feed: p.tables, Tables: p.tables, Log: p.c.Log, Now: p.c.Now, Meter: p.board.Meter("publisher", ""),
		Cells: func(id string) local.Meter { return p.board.Meter("applier", id) },
	}); err != nil {
		return err
	}
	keep, err := archiver.New(archiver.Config{Archive: p.archive, Meter: p.board.Meter("archiver", ""), Log: p.c.Log,
		Now: p.c.Now})
	if err != nil {
		return err
	}
	p.balancer, err = balancer.New(balancer.Config{Tables: p.tables, Meter: p.board.Meter("balancer", ""),
		Settings: grace(), Log: p.c.Log, Now: p.c.Now})
	if err != nil {
		return err
	}
	if err := p.serveOperators(); err != nil {
		return err
	}
	p.running.Go(func() {
		if err := p.pump.Run(ctx); err != nil && ctx.Err() == nil {
			p.c.Log.Error("changes do not reach the cells any more", "error", err)
		}
	})
	if p.c.Several {
		p.running.Go(func() { p.every(ctx, cmp.Or(p.c.CanaryEvery, canaryEvery), p.canary) })
		p.running.Go(func() { p.every(ctx, cmp.Or(p.c.ReconcileEvery, reconcileEvery), p.reconcile) })
	}
	if p.temporary { // the archive would go with the folder
		return nil
	}
	p.running.Go(func() {
		if err := keep.Follow(ctx, p.tables); err != nil && ctx.Err() == nil {
			p.c.Log.Error("changes are not archived any more; the next start archives them", "error", err)
		}
	})
	return nil
}

// drain waits for a while until the archive has what was written: what it does not have by then, the next start
// archives.
func (p *Plane) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), archiveFor)
	defer cancel()
	tick := time.NewTicker(archiveFor / 500)
	defer tick.Stop()
	for {
		at, err := p.tables.Cursor(ctx, archiver.Consumer)
		if err != nil {
			return
		}
		if left, err := p.tables.Read(ctx, at, 1); err != nil || len(left) == 0 {
			return
		}
		<-tick.C
	}
}

// serveOperators makes the handler of operators' calls for the cells that there are.
func (p *Plane) serveOperators() error {
	tables := map[string]admin.CellTable{}
	p.mu.Lock()
	for name, c := range p.cells {
		tables[name] = c.table
	}
	p.mu.Unlock()
	service, err := p.service(tables)
	if err != nil {
		return err
	}
	operations := admin.NewMux(service)
	livetables.Register(operations, p.of, p.tables)
	h := call.Local(operations, p.c.Operators)
	p.operate.Store(&h)
	return nil
}

func (p *Plane) service(cells map[string]admin.CellTable) (*admin.Service, error) {
	alone := ""
	for name := range cells {
		if !p.c.Several {
			alone = name
		}
	}
	return admin.New(admin.Config{
		Alone: alone, Local: true, Tables: p.tables, Accepts: p.c.Accepts, AcceptsPlan: p.c.AcceptsPlan,
		CellTables: cells,
		Shadow:     p.c.Shadow,
		Now:        p.c.Now, Log: p.c.Log,
		Hash: func(_ context.Context, key string) (pepper, hash string, err error) {
			return p.c.NewKeys, identity.HashKey(p.c.Peppers[p.c.NewKeys], key), nil
		},
	})
}

// Operate answers operators' calls (package admin), below the path that it is mounted at, which is already stripped.
// Whoever mounts it lets only operators in, see call.RequireToken.
func (p *Plane) Operate() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*p.operate.Load()).ServeHTTP(w, r)
		p.poke()
	})
}

// Tables are the control tables.
func (p *Plane) Tables() control.Tables { return p.tables }

// Metrics are those of all functions that run here, since the start, and what each cell grants now.
func (p *Plane) Metrics() []telemetry.MetricValue {
	now := p.c.Now()
	for _, c := range p.all() {
		if part, ok := cellconfig.Part(c.Reader.Grants(now)); ok {
			p.board.Meter("authorizer", c.Name).SetLevel("per_cell_limit_effective", float64(part)/100)
		}
	}
	return p.board.All()
}

// all are the cells, by name.
func (p *Plane) all() []*Cell {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.cells), func(a, b *Cell) int { return cmp.Compare(a.Name, b.Name) })
}

// Folder is where everything is that outlives the process.
func (p *Plane) Folder() string { return p.folder }

// Close archives what is left, ends what carries changes, and closes the file. Cells learn nothing more.
func (p *Plane) Close() error {
	if !p.temporary {
		p.drain()
	}
	p.stop()
	p.running.Wait()
	p.mu.Lock()
	cells := p.cells
	p.cells = map[string]*Cell{}
	p.mu.Unlock()
	for _, c := range cells {
		c.close()
	}
	return errors.Join(p.answersNowhere(), p.tables.Close(), p.remove())
}

func (p *Plane) remove() error {
	if !p.temporary || p.folder == "" {
		return nil
	}
	return os.RemoveAll(p.folder)
}
