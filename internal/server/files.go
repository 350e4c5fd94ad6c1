package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// CheckEvery is the interval at which [Files.Watch] should check files for changes.
const CheckEvery = time.Second

// Files reads a configuration from files, and reads it again when they change. An invalid configuration never replaces
// a valid one. It is safe for concurrent use. Create it with [OpenFiles].
type Files struct {
	c FilesConfig

	mu   sync.Mutex  // held during a reload
	seen []fileState // the files when they were last read
}

// FilesConfig sets up [Files].
type FilesConfig struct {
	// Paths are files, and folders, whose files are read in the order of their names, and those of their sub-folders,
	// whatever their extensions, as by envoyproxy/ratelimit. Names that begin with a dot are left out. Required.
	Paths   []string
	Options envoyconfig.Options

	Apply  func(*envoyconfig.Config) // puts a configuration in force; required
	Failed func(error)               // is called when a configuration is refused; may be nil
	Log    *slog.Logger              // if nil, slog.Default()
}

// fileState is compared to find out whether a file has changed. If info is nil, the file cannot be examined.
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

// OpenFiles reads the files for the first time. An error names the file and says what is wrong with it.
func OpenFiles(c FilesConfig) (*Files, error) {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	f := &Files{c: c}
	loaded, err := f.load()
	if err != nil {
		return nil, err
	}
	f.report("configuration loaded", loaded)
	return f, nil
}

// Reload reads the files again. If one of them is invalid, the configuration in force stays, and the error is logged.
func (f *Files) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	loaded, err := f.load()
	if err != nil {
		f.c.Log.Error("configuration not reloaded, the last good one stays in force", "error", err)
		if f.c.Failed != nil {
			f.c.Failed(err)
		}
		return err
	}
	f.report("configuration reloaded", loaded)
	return nil
}

// report logs what is in force, so that an operator sees a misspelled domain: Envoy's calls for it are admitted.
func (f *Files) report(message string, c *envoyconfig.Config) {
	f.c.Log.Info(message, "files", len(f.seen), "domains", c.Domains(), "limits", c.Rules())
}

// Watch reloads when a file has changed, and at each value received from now, until the context ends. It compares the
// files at the interval every, because a mounted volume, such as that of a ConfigMap, sends no events when it is
// replaced.
func (f *Files) Watch(ctx context.Context, every time.Duration, now <-chan os.Signal) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-now:
			_ = f.Reload() // Reload logs its error
		case <-tick.C:
			_ = f.Check() // so does Check
		}
	}
}

// Check reloads if a file has changed since the last reload.
func (f *Files) Check() error {
	f.mu.Lock()
	changed := !slices.EqualFunc(f.seen, f.states(), fileState.same)
	f.mu.Unlock()
	if !changed {
		return nil
	}
	return f.Reload()
}

func (f *Files) load() (*envoyconfig.Config, error) {
	f.seen = f.states() // before the files are read, so that the next Check finds a change made in between
	files := make([]envoyconfig.File, 0, len(f.seen))
	for _, state := range f.seen {
		data, err := readFile(state.name)
		if err != nil {
			return nil, err
		}
		files = append(files, envoyconfig.File{Name: state.name, Data: data})
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no file in %s", strings.Join(f.c.Paths, ", "))
	}
	c, err := envoyconfig.Load(files, f.c.Options)
	var placed interface {
		error
		Detail() string
	}
	if errors.As(err, &placed) {
		return nil, fmt.Errorf("%w%s", err, placed.Detail())
	}
	if err != nil {
		return nil, err
	}
	for _, w := range c.Warnings() {
		f.c.Log.Warn(w)
	}
	f.c.Apply(c)
	return c, nil
}

// states returns the present states of the files. A path that cannot be examined counts as a file, so that reading it
// fails.
func (f *Files) states() []fileState {
	var states []fileState
	for _, path := range f.c.Paths {
		info, err := os.Stat(path)
		if err != nil || !info.IsDir() {
			states = append(states, stateOf(path))
			continue
		}
		// A link to a folder is not followed: reading it fails, so that it is not left out in silence.
		_ = filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
			switch hidden := name != path && strings.HasPrefix(filepath.Base(name), "."); {
			case err != nil:
				states = append(states, fileState{name: name}) // load reads it, and returns the error of that
			case hidden && e.IsDir():
				return fs.SkipDir
			case !hidden && !e.IsDir():
				states = append(states, stateOf(name))
			}
			return nil
		})
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

// readFile reads at most one byte more than a file may have, so that an endless device cannot fill the memory.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, unread(path, err)
	}
	defer func() { _ = file.Close() }() // nothing was written to it
	data, err := io.ReadAll(io.LimitReader(file, envoyconfig.MaxFileBytes+1))
	if err != nil {
		return nil, unread(path, err)
	}
	return data, nil
}

// unread returns the error for a file that cannot be read, in the words for plans files.
func unread(path string, err error) error {
	return fmt.Errorf("%s: cannot be read: %w", path, configfile.Advise(err))
}
