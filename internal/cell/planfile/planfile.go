// Package planfile loads the configuration of plans files, and replaces it when the files change. Package plan parses
// the files, and package configfile reports what is wrong in them.
package planfile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// checkEvery is the interval at which [Plans.Watch] looks for changes. A changed file is read when it has not changed
// any more for one interval, since an editor writes in several steps.
const checkEvery = 250 * time.Millisecond

// Plans holds the configuration in force, and replaces it when its files change. A configuration with errors never
// replaces a valid one. It is safe for concurrent use. Make it with [Open].
type Plans struct {
	c       Config
	current atomic.Pointer[authorizer.Snapshot]

	files    configfile.Reloader
	mu       sync.Mutex // guards the fields below
	loadedAt time.Time
	lastErr  error
}

// Config sets up [Plans]. Set either Files or Source.
type Config struct {
	Files   []string          // files and folders; Watch reads them again when they change
	Source  plan.Source       // used if there are no Files
	Peppers map[string][]byte // by the pepper's id
	Store   limit.Store       // a configuration with limits that it cannot count is refused; nil: this is not checked

	// Apply is called with the sources of each valid configuration before it is put into force. If it returns an
	// error, the configuration is refused. It may be nil.
	Apply func([]plan.Source) error

	Now func() time.Time // default time.Now
	Log *slog.Logger     // default slog.Default()
}

// Open loads the configuration for the first time. The error is a *plan.Error, or names the file or key that is wrong.
func Open(c Config) (*Plans, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	p := &Plans{c: c}
	p.files = configfile.Reloader{Paths: c.Files, Read: func([]configfile.FileState) error { return p.load() }}
	if err := p.files.Reload(); err != nil {
		return nil, err
	}
	p.files.Read = func([]configfile.FileState) error { return p.reload() }
	return p, nil
}

// Current returns the configuration in force.
func (p *Plans) Current() *authorizer.Snapshot { return p.current.Load() }

// Status returns when the configuration in force was loaded, and the error of a later reload, if any.
func (p *Plans) Status() (loadedAt time.Time, lastErr error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loadedAt, p.lastErr
}

func (p *Plans) load() error {
	sources, err := p.read()
	if err != nil {
		return err
	}
	cfg, err := plan.Parse(sources...)
	if err != nil {
		return err
	}
	stored := cfg.Keys()
	keys := make([]identity.Key, len(stored))
	for i, k := range stored {
		keys[i] = identity.Key(k)
	}
	found, err := identity.NewKeys(keys, p.c.Peppers)
	if err != nil {
		return fmt.Errorf("%s: %w", p.Name(), err)
	}
	if p.c.Store != nil {
		if err := authorizer.Accepted(cfg, p.c.Now(), p.c.Store); err != nil {
			return fmt.Errorf("%s: %w", p.Name(), err)
		}
	}
	if p.c.Apply != nil {
		if err := p.c.Apply(sources); err != nil {
			return err
		}
	}
	p.current.Store(&authorizer.Snapshot{Config: cfg, Keys: found})
	p.mu.Lock()
	p.loadedAt, p.lastErr = p.c.Now(), nil
	p.mu.Unlock()
	for _, w := range cfg.Warnings() {
		p.c.Log.Warn(w.String())
	}
	return nil
}

func (p *Plans) read() ([]plan.Source, error) {
	if len(p.c.Files) == 0 {
		return []plan.Source{p.c.Source}, nil
	}
	return configyaml.ReadFiles(os.Stdin, p.c.Files...)
}

// Name returns the names of the files or of the source.
func (p *Plans) Name() string {
	if len(p.c.Files) == 0 {
		return p.c.Source.Name
	}
	return strings.Join(p.c.Files, ", ")
}

// Reload reads the files again immediately. If anything is wrong, the configuration in force stays, and the problems
// are logged.
func (p *Plans) Reload() error { return p.files.Reload() }

func (p *Plans) reload() error {
	err := p.load()
	if err == nil {
		p.c.Log.Info("plans reloaded", "file", p.Name())
		return nil
	}
	p.mu.Lock()
	p.lastErr = err
	p.mu.Unlock()
	var bad *plan.Error
	if !errors.As(err, &bad) {
		p.c.Log.Error("the plans were not reloaded; the last valid ones stay in force", "file", p.Name(), "error", err)
		return err
	}
	p.c.Log.Error("the plans were not reloaded; the last valid ones stay in force", "file", p.Name(), "problems",
		len(bad.Problems))
	for _, problem := range bad.Problems {
		p.c.Log.Error(problem.String())
	}
	return err
}

// Watch reloads the files when one changes, and immediately for each signal, until the context ends.
func (p *Plans) Watch(ctx context.Context, signals <-chan os.Signal) {
	p.files.Watch(ctx, checkEvery, signals)
}
