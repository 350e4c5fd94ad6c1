// Package filetable provides plans files as a cell config table. The authorizer can then use files, including files
// that are being edited, with the same code as the table of a deployed cell.
//
// The files are checked each time the head is read, which a reader does at most once per second. If one has changed,
// all are read together; files with errors never replace the last good ones. Only documents that differ from before
// are changes.
package filetable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig/memtable"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/plan"
)

var (
	_ cellconfig.Table  = (*Table)(nil)
	_ cellconfig.Lister = (*Table)(nil)
)

// Table is a table with the content of files. It is safe for concurrent use. Make it with [Open].
type Table struct {
	files []string
	log   *slog.Logger
	table *memtable.Table

	mu         sync.Mutex // held while the files are checked
	lastStates []fileState
	live       map[cellconfig.Ref]bool // documents that are not tombstones
}

// fileState is used to see whether a file has changed. The zero fileState stands for a file that cannot be read.
type fileState struct {
	size     int64
	modified time.Time
	info     os.FileInfo
}

// Open reads the files as one configuration. The error is a *plan.Error with all problems. log may be nil.
func Open(log *slog.Logger, files ...string) (*Table, error) {
	if len(files) == 0 {
		return nil, errors.New("filetable: no file is given")
	}
	if log == nil {
		log = slog.Default()
	}
	inner, err := memtable.New(0)
	if err != nil {
		return nil, err
	}
	t := &Table{files: files, log: log, table: inner, live: map[cellconfig.Ref]bool{}}
	t.lastStates = t.fileStates()
	if err := t.read(context.Background()); err != nil {
		return nil, err
	}
	return t, nil
}

// Head implements [cellconfig.Table]. It reads the files if one of them has changed.
func (t *Table) Head(ctx context.Context) (cellconfig.Head, error) {
	t.mu.Lock()
	if now := t.fileStates(); changed(t.lastStates, now) {
		t.lastStates = now // stored before reading, so that a change during the read is noticed next time
		// The read must complete even if the caller stops waiting.
		if err := t.read(context.WithoutCancel(ctx)); err != nil {
			t.log.Error("the plans files have errors; the last valid plans stay in force", "error", err)
		}
	}
	t.mu.Unlock()
	return t.table.Head(ctx)
}

// Log implements [cellconfig.Table].
func (t *Table) Log(ctx context.Context, after, upTo int64) ([]cellconfig.Entry, error) {
	return t.table.Log(ctx, after, upTo)
}

// Get implements [cellconfig.Table].
func (t *Table) Get(ctx context.Context, refs ...cellconfig.Ref) ([]cellconfig.Document, error) {
	return t.table.Get(ctx, refs...)
}

// List implements [cellconfig.Lister].
func (t *Table) List(ctx context.Context, kind cellconfig.Kind) iter.Seq2[cellconfig.Document, error] {
	return t.table.List(ctx, kind)
}

func (t *Table) fileStates() []fileState {
	out := make([]fileState, len(t.files))
	for i, name := range t.files {
		if info, err := os.Stat(name); err == nil {
			out[i] = fileState{info.Size(), info.ModTime(), info}
		}
	}
	return out
}

func changed(before, now []fileState) bool {
	for i := range now {
		b, n := &before[i], &now[i]
		if b.size != n.size || !b.modified.Equal(n.modified) || (b.info == nil) != (n.info == nil) ||
			b.info != nil && !os.SameFile(b.info, n.info) {
			return true
		}
	}
	return false
}

// read reads the files and applies the differences. Plans come before the tenants that refer to them, and deletions
// come last.
func (t *Table) read(ctx context.Context) error {
	sources, err := configyaml.ReadFiles(os.Stdin, t.files...)
	if err != nil {
		return err
	}
	documents, err := plan.Split(time.Now(), sources...)
	if err != nil {
		return err
	}
	refs := make([]cellconfig.Ref, len(documents))
	for i, d := range documents {
		refs[i] = cellconfig.Ref{Kind: d.Kind, ID: d.ID}
	}
	before, err := t.table.Get(ctx, refs...)
	if err != nil {
		return err
	}
	var changes []cellconfig.Document
	live := make(map[cellconfig.Ref]bool, len(documents))
	for i, d := range documents {
		live[refs[i]] = true
		if before[i].Version == 0 || before[i].Deleted || !bytes.Equal(before[i].Body, d.Body) {
			changes = append(changes, cellconfig.Document{Ref: refs[i], Version: before[i].Version + 1, Body: d.Body})
		}
	}
	for ref := range t.live {
		if live[ref] {
			continue
		}
		was, err := t.table.Get(ctx, ref)
		if err != nil {
			return err
		}
		changes = append(changes, cellconfig.Document{Ref: ref, Version: was[0].Version + 1, Deleted: true})
	}
	if _, err := t.table.Apply(ctx, changes); err != nil {
		return fmt.Errorf("plans: %w", err)
	}
	t.live = live
	return nil
}
