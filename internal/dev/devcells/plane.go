// Package devcells runs the control plane and its cells in one process, for `sluice dev`. It connects the same parts
// that are deployed: control tables (in a file), publisher, appliers, archiver and operators' calls.
//
// A folder holds everything that is kept after the process ends:
//
//	control.db  the control tables (package control/embedded)
//	audit/      the archive of every version (audit.Folder)
//
// A write is on the disk when it is acknowledged. Everything else is derived from the control tables: each start fills
// the cells from them, and archives what an earlier process did not archive.
package devcells

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/dev/devtoken"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/streams/archiver"
	"github.com/sluicelimits/sluice/streams/balancer"
	"github.com/sluicelimits/sluice/streams/delivery"
	"github.com/sluicelimits/sluice/streams/local"
)

// ErrInUse is wrapped by the error of Open for a folder that another process has open.
var ErrInUse = embedded.ErrInUse

const (
	tablesFile  = "control.db"
	auditFolder = "audit"
	folderMode  = 0o700
	archiveFor  = 5 * time.Second // how long Close waits for the last writes to be archived
)

// Config sets up a Plane.
type Config struct {
	// Folder is created if it does not exist. If it is "", a temporary folder without an archive is used until Close.
	Folder  string
	Peppers map[string][]byte // of API keys, by id; required
	NewKeys string            // id of the pepper for new keys; required
	Several bool              // several cells share the limits; if false, one cell has all limits
	Store   limit.Store       // of all cells; required: what it cannot keep is refused

	Reaches   func(home string) bool // whether other cells can lease quotas whose home is this cell; nil: none can
	Operators string                 // the caller of Operate in the audit trail; default: the user of this process

	Log *slog.Logger     // default slog.Default()
	Now func() time.Time // default time.Now
}

// Plane is the control plane and its cells. It is safe for concurrent use. Make it with Open.
type Plane struct {
	c            Config
	folder       string
	temporary    bool
	peppers      *identity.Peppers
	tables       *embedded.Tables
	archive      *audit.Folder
	pump         *local.Pump
	balancer     *balancer.Balancer
	cellsChanged chan struct{} // holds at most one signal that the table of cells may have changed
	operate      atomic.Pointer[http.Handler]

	stop    context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex // guards cells
	cells map[string]*Cell

	writing sync.Mutex              // held while plans files are applied
	written map[control.Ref]version // what plans files wrote last; nil until the history was read
}

// Open opens the folder. From then on, changes are sent to the cells and to the archive. The error names the file; it
// wraps ErrInUse if another process has the file open.
func Open(c Config) (*Plane, error) {
	c.Log, c.Operators = cmp.Or(c.Log, slog.Default()), cmp.Or(c.Operators, operate.LocalActor())
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Peppers[c.NewKeys] == nil {
		return nil, fmt.Errorf("devcells: there is no pepper %q for new keys", c.NewKeys)
	}
	p := &Plane{c: c, folder: c.Folder, cells: map[string]*Cell{},
		cellsChanged: make(chan struct{}, 1)}
	var err error
	if p.peppers, err = identity.NewPeppers(c.Peppers); err != nil {
		return nil, err
	}
	if err := p.open(); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.start(ctx)
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
	if err := checkOwners(p.folder); err != nil {
		return err
	}
	p.archive = audit.NewFolder(filepath.Join(p.folder, auditFolder))
	if p.tables, err = embedded.Open(filepath.Join(p.folder, tablesFile)); err != nil {
		return err
	}
	if p.temporary {
		p.tables.Unsynced()
		// The name of the open file is removed, so that a killed process leaves no file. On systems where that fails,
		// Close removes the file.
		_ = p.remove()
	}
	return nil
}

// checkOwners returns an error if another user can have written what is in a data folder, such as a key, or can read
// the tables or the archive. The folder itself may be listed by others. If only this user may write to the folder,
// nobody replaces what has been checked.
func checkOwners(folder string) error {
	for _, of := range []struct {
		name   string
		denied fs.FileMode // to other users
	}{{".", 0o022}, {tablesFile, 0o077}, {auditFolder, 0o077}} {
		name := filepath.Join(folder, of.name)
		info, err := os.Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is made by this process
		}
		if err == nil {
			err = devtoken.CheckOwner(info, of.denied)
		}
		if err != nil {
			return fmt.Errorf("the data folder is not used: %s: %w. Name another folder, or make this one yours alone "+
				"(chown -R and chmod -R go-rwx) if you trust what is in it", name, err)
		}
	}
	return nil
}

// start starts the background tasks that send changes to cells and to the archive.
func (p *Plane) start(ctx context.Context) {
	p.pump = local.New(local.Config{Feed: p.tables, Tables: p.tables, Log: p.c.Log,
		Now: p.c.Now})
	keep := archiver.New(archiver.Config{Archive: p.archive, Meter: delivery.NoMeter{}, Log: p.c.Log,
		Now: p.c.Now})
	p.balancer = balancer.New(balancer.Config{Tables: p.tables, Meter: delivery.NoMeter{}, Settings: grace(),
		Log: p.c.Log, Now: p.c.Now})
	p.serveOperators()
	p.running.Go(func() {
		if err := p.pump.Run(ctx); err != nil && ctx.Err() == nil {
			p.c.Log.Error("changes no longer reach the cells: restart", "error", err)
		}
	})
	if p.temporary { // the archive would be deleted with the folder
		return
	}
	p.running.Go(func() {
		if err := keep.Follow(ctx, p.tables); err != nil && ctx.Err() == nil {
			p.c.Log.Error("changes are no longer archived; the next start archives them", "error", err)
		}
	})
}

// drain waits up to archiveFor until everything is archived. The next start archives the rest.
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

// serveOperators makes the handler of operators' calls for the present cells.
func (p *Plane) serveOperators() {
	tables := map[string]operate.CellTable{}
	p.mu.Lock()
	for name, c := range p.cells {
		tables[name] = c.table
	}
	p.mu.Unlock()
	service := p.service(tables)
	h := operate.Local(service.Mux(), p.c.Operators)
	p.operate.Store(&h)
}

func (p *Plane) service(cells map[string]operate.CellTable) *operate.Control {
	alone := ""
	for name := range cells {
		if !p.c.Several {
			alone = name
		}
	}
	return operate.NewControl(operate.ControlConfig{
		Alone: alone, Local: true, Tables: p.tables, CellTables: cells, Now: p.c.Now, Log: p.c.Log,
		Accepts: p.c.Store.Accepts,
		AcceptsPlan: func(all []*limit.Limit, together ...[]*limit.Limit) error {
			return limit.AcceptsPlan(p.c.Store, all, together...)
		},
		Hash: func(_ context.Context, key string) (pepper, hash string, err error) {
			return p.c.NewKeys, identity.HashKey(p.c.Peppers[p.c.NewKeys], key), nil
		},
	})
}

// Operate returns the handler of operators' calls (package operate). It expects paths without the prefix that it is
// mounted at. It does not check who calls: see operate.RequireToken.
func (p *Plane) Operate() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*p.operate.Load()).ServeHTTP(w, r)
		p.wakeBalancer()
	})
}

// Tables returns the control tables.
func (p *Plane) Tables() control.Tables { return p.tables }

// all returns the cells, sorted by name.
func (p *Plane) all() []*Cell {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.cells), func(a, b *Cell) int { return cmp.Compare(a.Name, b.Name) })
}

// Folder returns the data folder.
func (p *Plane) Folder() string { return p.folder }

// Close archives the rest, stops the background tasks and closes the file. Cells get no more changes.
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
	return errors.Join(p.tables.Close(), p.remove())
}

func (p *Plane) remove() error {
	if !p.temporary || p.folder == "" {
		return nil
	}
	return os.RemoveAll(p.folder)
}
