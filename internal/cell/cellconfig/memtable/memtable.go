// Package memtable is a cell config table in the memory of one process, for `sluice dev` and for tests. It keeps its
// log in the order in which it was written, and stores everything that the table of a deployed cell does.
package memtable

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
)

var _ cellconfig.Store = (*Table)(nil)

// DefaultEntries is the number of log entries that are kept. A reader that is further behind drops its copy.
const DefaultEntries = 10_000

// Table is a table in memory. It is safe for concurrent use. Make it with [New].
type Table struct {
	mu        sync.RWMutex
	head      cellconfig.Head
	documents map[cellconfig.Ref]cellconfig.Document
	log       []cellconfig.Entry
	entries   int
	live      map[cellconfig.Kind]int // number of documents of each kind that are not deleted
}

// New makes an empty table that keeps this many log entries, 1 or more; 0 selects DefaultEntries.
func New(entries int) (*Table, error) {
	if entries == 0 {
		entries = DefaultEntries
	}
	if entries < 1 {
		return nil, fmt.Errorf("memtable: %d log entries, want 1 or more", entries)
	}
	documents, live := map[cellconfig.Ref]cellconfig.Document{}, map[cellconfig.Kind]int{}
	return &Table{documents: documents, entries: entries, live: live}, nil
}

// Apply writes the documents that are newer than the stored ones; see [cellconfig.Apply].
func (t *Table) Apply(ctx context.Context, documents []cellconfig.Document) (int, error) {
	return cellconfig.Apply(ctx, t, documents, time.Now)
}

// Head implements [cellconfig.Table].
func (t *Table) Head(ctx context.Context) (cellconfig.Head, error) {
	if err := ctx.Err(); err != nil {
		return cellconfig.Head{}, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.head.Seq == 0 {
		return cellconfig.Head{}, cellconfig.ErrEmpty
	}
	return t.head, nil
}

// Log implements [cellconfig.Table].
func (t *Table) Log(ctx context.Context, after, upTo int64) ([]cellconfig.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	at := func(seq int64) int {
		i, _ := slices.BinarySearchFunc(t.log, seq,
			func(e cellconfig.Entry, seq int64) int { return cmp.Compare(e.Seq, seq) })
		return i
	}
	from, to := at(after+1), at(upTo+1)
	if from >= to {
		return nil, nil
	}
	return slices.Clone(t.log[from:to]), nil
}

// Get implements [cellconfig.Table].
func (t *Table) Get(ctx context.Context, refs ...cellconfig.Ref) ([]cellconfig.Document, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]cellconfig.Document, len(refs))
	for i, ref := range refs {
		out[i] = t.documents[ref]
		out[i].Ref = ref
	}
	return out, nil
}

// List implements [cellconfig.Lister].
func (t *Table) List(ctx context.Context, kind cellconfig.Kind) iter.Seq2[cellconfig.Document, error] {
	return func(yield func(cellconfig.Document, error) bool) {
		t.mu.RLock()
		all := slices.Collect(maps.Values(t.documents))
		t.mu.RUnlock()
		for _, d := range all {
			if d.Kind != kind {
				continue
			}
			if err := ctx.Err(); err != nil {
				yield(cellconfig.Document{}, err)
				return
			}
			if !yield(d, nil) {
				return
			}
		}
	}
}

// Holds reports whether the table holds a document of the kind that is not deleted.
func (t *Table) Holds(kind cellconfig.Kind) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.live[kind] > 0
}

// Commit implements [cellconfig.Store]. All rows of this table are documents, so it ignores step.Rows.
func (t *Table) Commit(ctx context.Context, step cellconfig.Step) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if step.Entry.Seq != t.head.Seq+1 || step.Incarnation != t.head.Incarnation {
		return fmt.Errorf("commit entry %d: %w", step.Entry.Seq, cellconfig.ErrConflict)
	}
	if t.head.Incarnation == "" || step.Repair {
		t.head.Incarnation = rand.Text()
	}
	t.head.Seq = step.Entry.Seq
	for _, d := range step.Documents {
		d.Body = slices.Clone(d.Body)
		if before, ok := t.documents[d.Ref]; ok && !before.Deleted {
			t.live[d.Kind]--
		}
		if d.Version == 0 {
			delete(t.documents, d.Ref)
			continue
		}
		if t.documents[d.Ref] = d; !d.Deleted {
			t.live[d.Kind]++
		}
	}
	entry := step.Entry
	entry.Changes = slices.Clone(entry.Changes)
	t.log = append(t.log, entry)
	if len(t.log) >= 2*t.entries { // rarely, so that not every commit copies the whole log
		t.log = slices.Clone(t.log[len(t.log)-t.entries:])
	}
	return nil
}
