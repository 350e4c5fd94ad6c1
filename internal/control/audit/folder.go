package audit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

var _ Archive = (*Folder)(nil)

// Folder is the archive of the audit trail as a folder on disk, for a program that runs everything in one process. It
// is safe for concurrent use, also by several processes. Make it with [NewFolder].
//
// Its files have the names of the objects and are read-only. A file is written under a temporary name, synced, and
// then linked to its name, which fails if the name exists: a crash leaves no partial record. Nothing is locked.
// Whoever may write the folder may rewrite it, and a removed file leaves no trace except a gap in its item's versions.
// The hash chain and the live tables still reveal alterations.
//
// Names differ by case; on a file system that ignores case, the second of two such items is refused as unequal.
type Folder struct{ dir string }

const (
	fileMode = 0o400
	dirMode  = 0o700
	begun    = ".begun-" // prefix of files that are being written; no object's name has it
)

// NewFolder returns the archive in a folder, which is created with the first object.
func NewFolder(dir string) *Folder { return &Folder{dir} }

// file returns the path of an object's file.
func (a *Folder) file(name string) (string, error) {
	if !fs.ValidPath(name) || name == "." || strings.ContainsAny(name, "\\\x00") || strings.HasPrefix(path.Base(name),
		begun) {
		return "", fmt.Errorf("%.200q is not a valid file name", name)
	}
	return filepath.Join(a.dir, filepath.FromSlash(name)), nil
}

// Put implements [Archive].
func (a *Folder) Put(ctx context.Context, name string, data []byte) (made bool, err error) {
	if err := CheckPut(name, data); err != nil {
		return false, err
	}
	file, err := a.file(name)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return false, fmt.Errorf("put %s: %w", name, err)
	}
	switch is, err := same(file, data); {
	case err == nil && is:
		return false, nil
	case err == nil:
		return false, fmt.Errorf("put %s: %w", name, ErrUnequal)
	case !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("put %s: %w", name, err)
	}
	if err := a.makeFolder(filepath.Dir(file)); err != nil {
		return false, fmt.Errorf("put %s: %w", name, err)
	}
	err = link(file, data)
	if errors.Is(err, fs.ErrExist) { // another writer was faster
		if is, failed := same(file, data); failed != nil || is {
			return false, failed
		}
		err = ErrUnequal
	}
	if err != nil {
		return false, fmt.Errorf("put %s: %w", name, err)
	}
	return true, nil
}

// Cover implements [Archive]. It is not supported: a folder has one file of each name.
func (*Folder) Cover(_ context.Context, name string, _ []byte) error {
	return fmt.Errorf("put a version over %s in a folder: %w", name, errors.ErrUnsupported)
}

// same reports whether the file has this content.
func same(file string, data []byte) (bool, error) {
	got, err := read(file)
	if errors.Is(err, ErrTooLarge) {
		return false, nil
	}
	return err == nil && bytes.Equal(got, data), err
}

func read(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // does not wait for the writer of a named pipe
	if err != nil {
		return nil, err
	}
	var data []byte
	if about, statErr := f.Stat(); statErr != nil || !about.Mode().IsRegular() {
		err = cmp.Or(statErr, fmt.Errorf("%s is not a regular file: remove it from the archive", file))
	} else {
		data, err = io.ReadAll(io.LimitReader(f, MaxBytes+1))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, MaxBytes)
	}
	return data, nil
}

// makeFolder creates a folder and its parents, and makes each durable in its parent.
func (a *Folder) makeFolder(dir string) error {
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	above := filepath.Dir(dir)
	if dir != above {
		if err := a.makeFolder(above); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return sync(above)
}

// link writes the content to a temporary file and links it to the name, unless the name exists.
func link(file string, data []byte) error {
	dir := filepath.Dir(file)
	f, err := os.CreateTemp(dir, begun) // with O_EXCL
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(fileMode), f.Sync(), f.Close())
	if err == nil {
		err = os.Link(f.Name(), file)
	}
	if err := errors.Join(err, os.Remove(f.Name())); err != nil {
		return err
	}
	return sync(dir)
}

// sync makes the names in a folder durable.
func sync(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Get implements [Archive].
func (a *Folder) Get(ctx context.Context, e Entry) (Object, error) {
	file, err := a.file(e.Name)
	if err == nil {
		err = ctx.Err()
	}
	var data []byte
	if err == nil {
		data, err = read(file)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return Object{}, fmt.Errorf("get %.200q: %w", e.Name, err)
	}
	return Object{Data: data}, nil
}

// List implements [Archive]. It holds the whole list in memory.
func (a *Folder) List(ctx context.Context, prefix, after string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		all, err := a.entries(ctx, prefix, after)
		if err != nil {
			yield(Entry{}, fmt.Errorf("list %s: %w", prefix, err))
			return
		}
		for _, e := range all {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// entries returns a list of files, in the order of their names.
func (a *Folder) entries(ctx context.Context, prefix, after string) (all []Entry, err error) {
	if _, err := os.Stat(a.dir); err != nil {
		return nil, err
	}
	// The folder in which all names with the prefix are.
	within := path.Clean(path.Dir(prefix + "x"))
	err = fs.WalkDir(os.DirFS(a.dir), within, func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // removed in the meantime, or nothing has the prefix
			return nil
		}
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		if d.IsDir() || !strings.HasPrefix(name, prefix) || name <= after || strings.HasPrefix(d.Name(), begun) {
			return nil
		}
		info, err := d.Info()
		if err == nil {
			all = append(all, Entry{Name: name, SizeBytes: info.Size(), PutAt: info.ModTime().UTC()})
		} else if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	})
	slices.SortFunc(all, func(x, y Entry) int { return strings.Compare(x.Name, y.Name) })
	return all, err
}

// Lock implements [Archive]. A folder locks nothing.
func (*Folder) Lock(context.Context) (Lock, error) { return Lock{}, nil }
