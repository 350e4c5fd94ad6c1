package table

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/events"
)

// Bounds of one step, so that it fits a transaction of DynamoDB: 100 items and 4 MB, including the head and the log
// entry.
const (
	maxStepItems = 96
	maxStepBytes = 3 << 20
	itemsOfKey   = 3 // the key, its hash, and its previous hash
)

// Apply writes the documents that are newer than those in the table, and returns how many it has written. It ignores
// duplicates and older versions; if nothing is newer, it writes nothing. Documents that do not fit one step are
// written in several steps, in the order given, and each step is atomic. Several writers may run at once: one that
// comes second tries again, until ctx ends.
//
// An error that wraps [ErrInvalid] names a document. Nothing of that document's step is written.
func Apply(ctx context.Context, s Store, documents []Document, now func() time.Time) (int, error) {
	newest, err := newestOf(documents)
	if err != nil {
		return 0, err
	}
	written := 0
	for len(newest) > 0 {
		n := fits(newest)
		did, err := applyStep(ctx, s, newest[:n], now)
		if written += did; err != nil {
			return written, err
		}
		newest = newest[n:]
	}
	return written, nil
}

// newestOf checks the documents. Of several documents with one name it keeps the newest, in the place of the first.
func newestOf(documents []Document) ([]Document, error) {
	at := make(map[Ref]int, len(documents))
	out := make([]Document, 0, len(documents))
	var errs []error
	for _, d := range documents {
		if err := d.Check(); err != nil {
			errs = append(errs, err)
			continue
		}
		i, twice := at[d.Ref]
		switch {
		case !twice:
			at[d.Ref] = len(out)
			out = append(out, d)
		case d.Version > out[i].Version:
			out[i] = d
		}
	}
	return out, errors.Join(errs...)
}

// fits returns how many of the documents fit one step; at least one.
func fits(documents []Document) int {
	items, bytes := 0, 0
	for i := range documents {
		d := &documents[i]
		if d.Kind == events.KindKey {
			items, bytes = items+itemsOfKey, bytes+2*len(d.Body)
		} else {
			items, bytes = items+1, bytes+len(d.Body)
		}
		if i > 0 && (items > maxStepItems || bytes > maxStepBytes) {
			return i
		}
	}
	return len(documents)
}

// applyStep reads the stored documents and commits those that are newer.
func applyStep(ctx context.Context, s Store, documents []Document, now func() time.Time) (int, error) {
	return commit(ctx, s, now, func(ctx context.Context, head Head) (Step, int, error) {
		newer := func(i int, there *Document) bool { return documents[i].Version > there.Version }
		return stage(ctx, s, head, documents, nil, newer)
	})
}

// commit calls staged and commits the step that it returns. It repeats both if another writer has written in between:
// the head is read first, and the table refuses a step if anything was written after that. A step therefore replaces
// only what staged has read.
func commit(
	ctx context.Context, s Store, now func() time.Time, staged func(context.Context, Head) (Step, int, error),
) (int, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		head, err := s.Head(ctx)
		if err != nil && !errors.Is(err, ErrEmpty) {
			return 0, fmt.Errorf("apply: %w", err)
		}
		step, n, err := staged(ctx, head)
		if err != nil || n == 0 {
			return 0, err
		}
		step.Entry.At = now()
		switch err := s.Commit(ctx, step); {
		case err == nil:
			return n, nil
		case !errors.Is(err, ErrConflict):
			return 0, fmt.Errorf("apply: %w", err)
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("apply: other writers were faster each time: %w", ctx.Err())
		case <-time.After(wait/2 + rand.N(wait)):
		}
	}
}

// stage returns the step that writes those of the documents for which replaces returns true, and their number. given
// are documents that may be replaced and whose keys may have wrong hashes; it is nil if Apply wrote all stored
// documents.
func stage(
	ctx context.Context, s Store, head Head, documents, given []Document, replaces func(i int, there *Document) bool,
) (Step, int, error) {
	refs := make([]Ref, len(documents), 2*len(documents))
	for i := range documents {
		refs[i] = documents[i].Ref
	}
	for _, all := range [...][]Document{documents, given} {
		for i := range all {
			if hash := all[i].KeyHash(); hash != "" {
				refs = append(refs, Ref{KindKeyHash, hash})
			}
		}
	}
	there, err := s.Get(ctx, refs...)
	if err != nil {
		return Step{}, 0, fmt.Errorf("apply: %w", err)
	}
	before := make(map[Ref]*Document, len(there))
	for i := range there {
		before[refs[i]] = &there[i]
	}
	step := Step{Incarnation: head.Incarnation, Entry: Entry{Seq: head.Seq + 1}}
	var keys []Document
	for i, d := range documents {
		if !replaces(i, before[d.Ref]) {
			continue
		}
		if d.Seq = step.Entry.Seq; d.Kind == KindKeyHash {
			d.Version = min(d.Version, 1) * step.Entry.Seq // the number of its entry, or 0 for a removal
		}
		step.add(d)
		if d.Kind == events.KindKey {
			keys = append(keys, d)
		}
	}
	n := len(step.Documents)
	hashes, err := bodiesByHash(keys, before)
	if err != nil {
		return Step{}, 0, err
	}
	for _, hash := range slices.Sorted(maps.Keys(hashes)) {
		d := Document{Ref: Ref{KindKeyHash, hash}, Version: step.Entry.Seq, Seq: step.Entry.Seq, Body: hashes[hash]}
		d.Deleted = d.Body == nil
		step.add(d)
	}
	return step, n, nil
}

// bodiesByHash returns what the documents under the keys' hashes must contain: for each hash the body of a key, or nil
// if the hash no longer belongs to a key. A key may take a hash that another key of the step gives up.
func bodiesByHash(keys []Document, before map[Ref]*Document) (map[string][]byte, error) {
	hashes := make(map[string][]byte, len(keys))
	for i := range keys {
		old := before[keys[i].Ref].KeyHash()
		if old == "" {
			continue
		}
		if holder, known := before[Ref{KindKeyHash, old}]; known {
			if id, _ := KeyOf(holder.Body); id != keys[i].ID {
				continue // the hash belongs to another key
			}
		}
		hashes[old] = nil
	}
	for i := range keys {
		d := &keys[i]
		hash := d.KeyHash()
		if hash == "" {
			continue
		}
		holder, staged := hashes[hash]
		if !staged {
			holder = before[Ref{KindKeyHash, hash}].Body
		}
		if other, _ := KeyOf(holder); other != "" && other != d.ID {
			return nil, fmt.Errorf("%w %s: key %q has the same hash", ErrInvalid, d.Name(), other)
		}
		hashes[hash] = d.Body
	}
	return hashes, nil
}

// KeyHash returns the hash of a key that is not deleted, 64 hex digits; otherwise "". It returns "" if the body
// belongs to another key, since such a document cannot be applied.
func (d *Document) KeyHash() string {
	if d.Kind != events.KindKey || d.Deleted {
		return ""
	}
	id, hash := KeyOf(d.Body)
	if id != d.ID {
		return ""
	}
	return hash
}

func (s *Step) add(d Document) {
	s.Documents = append(s.Documents, d)
	s.Entry.Changes = append(s.Entry.Changes, Change{d.Ref, d.Version, d.Deleted || d.Version == 0})
}
