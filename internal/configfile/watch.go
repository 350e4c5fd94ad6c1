package configfile

import (
	"context"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// FileState is the state of a file at one time. Two of them are compared to find out whether the file has changed.
type FileState struct {
	Name string

	size     int64
	modified time.Time
	info     os.FileInfo // nil if the file cannot be examined
}

func (f FileState) same(o FileState) bool {
	return f.Name == o.Name && f.size == o.size && f.modified.Equal(o.modified) && (f.info == nil) == (o.info == nil) &&
		(f.info == nil || os.SameFile(f.info, o.info))
}

// States returns the present states of the files, in the order of paths. In place of a folder it returns those of the
// files in it and in its sub-folders, in the order of their names, and leaves out names that begin with a dot. A path
// that cannot be examined is returned as a file, so that whoever reads it gets the error.
func States(paths ...string) []FileState {
	var states []FileState
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || !info.IsDir() {
			states = append(states, stateOf(path))
			continue
		}
		// A link to a folder inside the folder is not followed. It is returned as a file, so that whoever reads it gets
		// an error: otherwise nobody would notice that its files are missing.
		_ = filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
			switch hidden := name != path && strings.HasPrefix(filepath.Base(name), "."); {
			case err != nil:
				states = append(states, FileState{Name: name}) // whoever reads it gets the error
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

func stateOf(path string) FileState {
	info, err := os.Stat(path)
	if err != nil {
		return FileState{Name: path}
	}
	return FileState{path, info.Size(), info.ModTime(), info}
}

func sameStates(a, b []FileState) bool { return slices.EqualFunc(a, b, FileState.same) }

// Reloader reads files again when they have changed. It is safe for concurrent use.
type Reloader struct {
	Paths []string // files and folders, as for States

	// Read reads the files. Two calls never overlap. Watch ignores its error, so that Read must log it.
	Read func(files []FileState) error

	mu      sync.Mutex
	read    []FileState // the files when they were last read
	checked []FileState // the files when they were last looked at
}

// Reload reads the files now, whether or not they have changed.
func (r *Reloader) Reload() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reload()
}

// reload reads the files. The caller holds the lock.
func (r *Reloader) reload() error {
	// The states are taken before the files are read, so that a later Check finds a change that is made meanwhile.
	r.read = States(r.Paths...)
	return r.Read(r.read)
}

// Check reads the files if they differ from when they were last read, and none of them has changed since the last
// Check: an editor may write in several steps, and the first part of a file may be valid.
func (r *Reloader) Check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := States(r.Paths...)
	due := !sameStates(r.read, now) && sameStates(r.checked, now)
	r.checked = now
	if !due {
		return nil
	}
	return r.reload()
}

// Watch calls Check once in each interval, and Reload for each signal, until the context ends.
func (r *Reloader) Watch(ctx context.Context, interval time.Duration, signals <-chan os.Signal) {
	Watch(ctx, interval, signals, r.Check, r.Reload)
}

// Watch calls check once in each interval, and reload for each signal, until the context ends. Both log their own
// errors. Watch does not wait for events of files: Kubernetes changes a mounted ConfigMap by switching a link, which is
// no event of the file.
func Watch(ctx context.Context, interval time.Duration, signals <-chan os.Signal, check, reload func() error) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			_ = reload() // logs its error
		case <-tick.C:
			_ = check() // logs its error
		}
	}
}

// Hangups returns a channel that gets each SIGHUP until the context ends. A process that nobody has told to receive the
// signal is ended by it. So call Hangups before anybody can know that the process runs, and not in a goroutine.
func Hangups(ctx context.Context) <-chan os.Signal {
	received := make(chan os.Signal, 1)
	signal.Notify(received, syscall.SIGHUP)
	context.AfterFunc(ctx, func() { signal.Stop(received) })
	return received
}
