package server

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// CheckEvery is the interval at which [Files.Watch] should check files for changes.
const CheckEvery = time.Second

// Files reads a configuration from files, and reads it again when they change. An invalid configuration never replaces
// a valid one. It is safe for concurrent use. Create it with [OpenFiles].
type Files struct {
	configfile.Reloader

	c      FilesConfig
	loaded bool // the files were read for the first time
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

// OpenFiles reads the files for the first time. An error names the file and says what is wrong with it.
func OpenFiles(c FilesConfig) (*Files, error) {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	f := &Files{c: c}
	f.Paths, f.Read = c.Paths, f.read
	if err := f.Reload(); err != nil {
		return nil, err
	}
	f.loaded = true
	return f, nil
}

// read reads the files. If one of them is invalid, the configuration in force stays, and the error is logged, unless
// OpenFiles returns it. Otherwise read logs what is in force, so that an operator sees a misspelled domain: Envoy's
// calls for it are admitted.
func (f *Files) read(files []configfile.FileState) error {
	c, err := f.load(files)
	switch {
	case err == nil:
		message := "configuration loaded"
		if f.loaded {
			message = "configuration reloaded"
		}
		f.c.Log.Info(message, "files", len(files), "domains", c.Domains(), "limits", c.Rules())
	case f.loaded:
		if f.c.Failed != nil {
			f.c.Failed(err) // first, so that whoever has read the log sees it in the statistics
		}
		f.c.Log.Error("configuration not reloaded, the last good one stays in force", "error", err)
	}
	return err
}

func (f *Files) load(found []configfile.FileState) (*envoyconfig.Config, error) {
	files := make([]envoyconfig.File, 0, len(found))
	for _, state := range found {
		data, err := readFile(state.Name)
		if err != nil {
			return nil, err
		}
		files = append(files, envoyconfig.File{Name: state.Name, Data: data})
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
