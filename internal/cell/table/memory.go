package table

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
)

var _ Store = (*Memory)(nil)

// DefaultEntries is the number of log entries that are kept. A reader that is further behind drops its copy.
const DefaultEntries = 10_000

// Memory is a cell config table in the memory of one process, for `sluice dev` and for tests. It keeps its log in the
// order in which it was written, and stores everything that the table of a deployed cell does. It is safe for
// concurrent use. Make it with [NewMemory].
type Memory struct {
	mu        sync.RWMutex
	head      Head
	documents map[Ref]Document
	log       []Entry
	entries   int
	live      map[Kind]int // number of documents of each kind that are not deleted
}

// NewMemory makes an empty table that keeps this many log entries; 0 selects DefaultEntries.
func NewMemory(entries int) *Memory {
	if entries < 1 {
		entries = DefaultEntries
	}
	documents, live := map[Ref]Document{}, map[Kind]int{}
	return &Memory{documents: documents, entries: entries, live: live}
}

// Apply writes the documents that are newer than the stored ones; see [Apply].
func (t *Memory) Apply(ctx context.Context, documents []Document) (int, error) {
	return Apply(ctx, t, documents, time.Now)
}

// Head implements [Table].
func (t *Memory) Head(ctx context.Context) (Head, error) {
	if err := ctx.Err(); err != nil {
		return Head{}, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.head.Seq == 0 {
		return Head{}, ErrEmpty
	}
	return t.head, nil
}

// Log implements [Table].
func (t *Memory) Log(ctx context.Context, after, upTo int64) ([]Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	at := func(seq int64) int {
		i, _ := slices.BinarySearchFunc(t.log, seq,
			func(e Entry, seq int64) int { return cmp.Compare(e.Seq, seq) })
		return i
	}
	from, to := at(after+1), at(upTo+1)
	if from >= to {
		return nil, nil
	}
	return slices.Clone(t.log[from:to]), nil
}

// Get implements [Table].
func (t *Memory) Get(ctx context.Context, refs ...Ref) ([]Document, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]Document, len(refs))
	for i, ref := range refs {
		out[i] = t.documents[ref]
		out[i].Ref = ref
	}
	return out, nil
}

// List implements [Lister].
func (t *Memory) List(ctx context.Context, kind Kind) iter.Seq2[Document, error] {
	return func(yield func(Document, error) bool) {
		t.mu.RLock()
		all := slices.Collect(maps.Values(t.documents))
		t.mu.RUnlock()
		for _, d := range all {
			if d.Kind != kind {
				continue
			}
			if err := ctx.Err(); err != nil {
				yield(Document{}, err)
				return
			}
			if !yield(d, nil) {
				return
			}
		}
	}
}

// Holds reports whether the table holds a document of the kind that is not deleted.
func (t *Memory) Holds(kind Kind) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.live[kind] > 0
}

// Commit implements [Store]. All rows of this table are documents, so it ignores step.Rows.
func (t *Memory) Commit(ctx context.Context, step Step) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if step.Entry.Seq != t.head.Seq+1 || step.Incarnation != t.head.Incarnation {
		return fmt.Errorf("commit entry %d: %w", step.Entry.Seq, ErrConflict)
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
