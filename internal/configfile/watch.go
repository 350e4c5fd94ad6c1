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

// FileState is what is compared to find out whether a file has changed.
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

// States returns the present states of files, and of the files in folders and in their sub-folders, in the order of
// their names. Names in a folder that begin with a dot are left out. A path that cannot be examined counts as a file,
// so that reading it fails.
func States(paths ...string) []FileState {
	var states []FileState
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || !info.IsDir() {
			states = append(states, stateOf(path))
			continue
		}
		// A link to a folder is not followed: reading it fails, so that it is not left out in silence.
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

// Watch calls check at the interval every, and reload at each value received from now, until the context ends. Files
// are looked at again and again, because a mounted volume, such as that of a ConfigMap, sends no events when it is
// replaced.
func Watch(ctx context.Context, every time.Duration, now <-chan os.Signal, check, reload func() error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-now:
			_ = reload() // it logs its error
		case <-tick.C:
			_ = check() // so does check
		}
	}
}
