// Package folder is the archive of the audit trail as a folder on disk, for a program that runs everything in one
// process.
//
// Its files have the names of the objects, and can only be read. A file is written beside its name, synced, and then
// linked to it, which fails where there is one: a crash leaves no half of a record. Nothing here is locked. Whoever may
// write the folder may rewrite it, and a removed file leaves no trace but the gap in its item's versions. What the hash
// chain and the live tables tell is found out all the same.
//
// Names differ by case; a file system that ignores it refuses the second of two such items as unequal.
package folder

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

	"github.com/sluicelimits/sluice/internal/control/audit"
)

var _ audit.Archive = (*Archive)(nil)

// Archive is a folder. It is safe for concurrent use, by several processes too.
type Archive struct{ dir string }

const (
	fileMode = 0o400
	dirMode  = 0o700
	begun    = ".begun-" // what files begin with that are being written; no object's name has it
)

// New is the archive in a folder, which is made with the first object.
func New(dir string) (*Archive, error) {
	if dir == "" {
		return nil, errors.New("audit folder: no folder is named")
	}
	return &Archive{dir}, nil
}

// file is where an object lies.
func (a *Archive) file(name string) (string, error) {
	if !fs.ValidPath(name) || name == "." || strings.ContainsAny(name, "\\\x00") || strings.HasPrefix(path.Base(name),
		begun) {
		return "", fmt.Errorf("%.200q is no name for a file", name)
	}
	return filepath.Join(a.dir, filepath.FromSlash(name)), nil
}

// Put implements [audit.Archive].
func (a *Archive) Put(ctx context.Context, name string, data []byte) (made bool, err error) {
	if err := audit.CheckPut(name, data); err != nil {
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
		return false, fmt.Errorf("put %s: %w", name, audit.ErrUnequal)
	case !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("put %s: %w", name, err)
	}
	if err := a.makeFolder(filepath.Dir(file)); err != nil {
		return false, fmt.Errorf("put %s: %w", name, err)
	}
	err = link(file, data)
	if errors.Is(err, fs.ErrExist) { // another was faster
		if is, failed := same(file, data); failed != nil || is {
			return false, failed
		}
		err = audit.ErrUnequal
	}
	if err != nil {
		return false, fmt.Errorf("put %s: %w", name, err)
	}
	return true, nil
}

// Cover implements [audit.Archive]: a folder has one file of each name.
func (*Archive) Cover(_ context.Context, name string, _ []byte) error {
	return fmt.Errorf("put a version over %s in a folder: %w", name, errors.ErrUnsupported)
}

// same reports whether the file has this content.
func same(file string, data []byte) (bool, error) {
	got, err := read(file)
	if errors.Is(err, audit.ErrTooLarge) {
		return false, nil
	}
	return err == nil && bytes.Equal(got, data), err
}

func read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, audit.MaxBytes+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(data) > audit.MaxBytes {
		return nil, fmt.Errorf("%w: more than %d bytes", audit.ErrTooLarge, audit.MaxBytes)
	}
	return data, nil
}

// makeFolder makes a folder and those above it, each of them durable in the one above.
func (a *Archive) makeFolder(dir string) error {
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

// link writes the file under another name and then gives it its own, unless it is taken.
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

// sync makes what was named in a folder durable.
func sync(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Get implements [audit.Archive].
func (a *Archive) Get(ctx context.Context, e audit.Entry) (audit.Object, error) {
	file, err := a.file(e.Name)
	if err == nil {
		err = ctx.Err()
	}
	var data []byte
	if err == nil {
		data, err = read(file)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", audit.ErrNotFound, err)
	}
	if err != nil {
		return audit.Object{}, fmt.Errorf("get %.200q: %w", e.Name, err)
	}
	return audit.Object{Data: data}, nil
}

// List implements [audit.Archive]. It holds the names in the folders on the way to one file, and no others.
func (a *Archive) List(ctx context.Context, prefix, after string) iter.Seq2[audit.Entry, error] {
	return func(yield func(audit.Entry, error) bool) {
		w := &walk{ctx, a, prefix, after, yield}
		if _, err := os.Stat(a.dir); err != nil {
			yield(audit.Entry{}, fmt.Errorf("list %s: %w", prefix, err))
			return
		}
		w.folder("")
	}
}

type walk struct {
	ctx           context.Context
	a             *Archive
	prefix, after string
	yield         func(audit.Entry, error) bool
}

// folder goes through all below a name that is empty or ends in a slash, and reports whether to go on.
func (w *walk) folder(name string) bool {
	inside, err := os.ReadDir(filepath.Join(w.a.dir, filepath.FromSlash(name)))
	if errors.Is(err, fs.ErrNotExist) && name != "" { // removed meanwhile
		return true
	}
	if err == nil {
		err = w.ctx.Err()
	}
	if err != nil {
		w.yield(audit.Entry{}, fmt.Errorf("list %s: %w", w.prefix, err))
		return false
	}
	full := func(d fs.DirEntry) string {
		if d.IsDir() {
			return name + d.Name() + "/" // so that folders sort as the names below them
		}
		return name + d.Name()
	}
	slices.SortFunc(inside, func(x, y fs.DirEntry) int { return cmp.Compare(full(x), full(y)) })
	for _, d := range inside {
		if !w.one(full(d), d) {
			return false
		}
	}
	return true
}

func (w *walk) one(full string, d fs.DirEntry) bool {
	if d.IsDir() {
		in := strings.HasPrefix(full, w.prefix) || strings.HasPrefix(w.prefix, full)
		if !in || full < w.after && !strings.HasPrefix(w.after, full) {
			return true
		}
		return w.folder(full)
	}
	if !strings.HasPrefix(full, w.prefix) || full <= w.after || strings.HasPrefix(d.Name(), begun) {
		return true
	}
	info, err := d.Info()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true
	case err != nil:
		w.yield(audit.Entry{}, fmt.Errorf("list %s: %w", w.prefix, err))
		return false
	}
	return w.yield(audit.Entry{Name: full, SizeBytes: info.Size(), PutAt: info.ModTime().UTC()}, nil)
}

// Lock implements [audit.Archive]: nothing is locked on a disk.
func (*Archive) Lock(context.Context) (audit.Lock, error) { return audit.Lock{}, nil }
