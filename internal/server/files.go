package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// CheckEvery is how often files are looked at for changes, where nothing else is said.
const CheckEvery = time.Second

// Files keeps a configuration that is read from files, and replaces it when they change. A configuration with anything
// wrong never replaces a good one. It is safe for concurrent use. Make it with [OpenFiles].
type Files struct {
	c FilesConfig

	mu   sync.Mutex // over a reload
	seen []fileState
}

// FilesConfig sets up [Files].
type FilesConfig struct {
	// Paths are files, and folders whose files *.yaml and *.yml are read in the order of their names. Required.
	Paths   []string
	Options envoyconfig.Options

	Apply  func(*envoyconfig.Config) // puts a configuration in force; required
	Failed func(error)               // is told of a configuration that was not; may be nil
	Log    *slog.Logger              // if nil, slog.Default()
}

// fileState tells whether a file changed. The zero fileState is one that cannot be looked at.
type fileState struct {
	name     string
	size     int64
	modified time.Time
	info     os.FileInfo
}

func (f fileState) same(o fileState) bool {
	return f.name == o.name && f.size == o.size && f.modified.Equal(o.modified) && (f.info == nil) == (o.info == nil) &&
		(f.info == nil || os.SameFile(f.info, o.info))
}

// OpenFiles reads the files for the first time. The error says which file is wrong, and how.
func OpenFiles(c FilesConfig) (*Files, error) {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	f := &Files{c: c}
	if err := f.load(); err != nil {
		return nil, err
	}
	return f, nil
}

// Reload reads the files again. If anything is wrong, the configuration in force stays, and the log says what.
func (f *Files) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.load(); err != nil {
		f.c.Log.Error("configuration not reloaded, the last good one stays in force", "error", err)
		if f.c.Failed != nil {
			f.c.Failed(err)
		}
		return err
	}
	f.c.Log.Info("configuration reloaded", "files", len(f.seen))
	return nil
}

// Watch reloads when a file has changed, and at each value of now, until the context ends. It looks at the files that
// often: a mounted volume, such as that of a ConfigMap, tells nobody that it was replaced.
func (f *Files) Watch(ctx context.Context, every time.Duration, now <-chan os.Signal) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-now:
			_ = f.Reload() // logged there
		case <-tick.C:
			_ = f.Check() // the same
		}
	}
}

// Check reloads if a file has changed since it was read last.
func (f *Files) Check() error {
	f.mu.Lock()
	changed := !slices.EqualFunc(f.seen, f.look(), fileState.same)
	f.mu.Unlock()
	if !changed {
		return nil
	}
	return f.Reload()
}

func (f *Files) load() error {
	f.seen = f.look() // before they are read: a change in between is then seen
	files := make([]envoyconfig.File, 0, len(f.seen))
	for _, state := range f.seen {
		data, err := readFile(state.name)
		if err != nil {
			return err
		}
		files = append(files, envoyconfig.File{Name: state.name, Data: data})
	}
	if len(files) == 0 {
		return fmt.Errorf("no file *.yaml or *.yml in %s", strings.Join(f.c.Paths, ", "))
	}
	c, err := envoyconfig.Load(files, f.c.Options)
	if err != nil {
		return err
	}
	for _, w := range c.Warnings() {
		f.c.Log.Warn(w)
	}
	f.c.Apply(c)
	return nil
}

// look lists the files as they are now. A path that cannot be looked at is taken for a file, so that reading it fails.
func (f *Files) look() []fileState {
	var states []fileState
	for _, path := range f.c.Paths {
		info, err := os.Stat(path)
		if err != nil || !info.IsDir() {
			states = append(states, stateOf(path))
			continue
		}
		entries, err := os.ReadDir(path) // in the order of their names
		if err != nil {
			states = append(states, fileState{name: path})
			continue
		}
		for _, e := range entries {
			ext := filepath.Ext(e.Name())
			if (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(e.Name(), ".") {
				states = append(states, stateOf(filepath.Join(path, e.Name())))
			}
		}
	}
	return states
}

func stateOf(path string) fileState {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{name: path}
	}
	return fileState{path, info.Size(), info.ModTime(), info}
}

// readFile reads at most one byte more than a file may have, so that a device without an end cannot fill the memory.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	return io.ReadAll(io.LimitReader(file, envoyconfig.MaxFileBytes+1))
}
