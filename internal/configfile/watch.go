package configfile

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// SameStates reports whether no file has changed between two calls of [States].
func SameStates(a, b []FileState) bool { return slices.EqualFunc(a, b, FileState.same) }

// Watch calls check once in each interval, and reload for each signal, until the context ends. It asks again and again
// in place of waiting for events of files, because a watched file of a mounted volume, such as that of a ConfigMap, has
// no event when the volume is replaced.
func Watch(ctx context.Context, interval time.Duration, signals <-chan os.Signal, check, reload func() error) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			_ = reload() // has logged its error
		case <-tick.C:
			_ = check() // has logged its error
		}
	}
}
