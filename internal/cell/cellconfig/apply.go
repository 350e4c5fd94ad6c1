package cellconfig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/plan"
)

// Bounds of one step, so that it fits a transaction of DynamoDB: 100 items and 4 MB, the head and the entry included.
const (
	maxStepItems = 96
	maxStepBytes = 3 << 20
	itemsOfKey   = 3 // the key, its hash, and the hash that it had before
)

// Apply writes documents where they are newer than what is there, and returns how many were. Duplicates and older
// versions are left out; where nothing is newer, nothing is written. What does not fit one step is written in several,
// in the order given, and each of them is whole. Several may write at once: who comes second tries again, until ctx
// ends.
//
// An error that wraps [ErrInvalid] names a document, and then nothing was written of the step that it is in.
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

// newestOf checks the documents and keeps, of several with one name, the newest, where the first of them stood.
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

// fits is how many of the documents go into one step; at least one.
func fits(documents []Document) int {
	items, bytes := 0, 0
	for i := range documents {
		d := &documents[i]
		if d.Kind == plan.KindKey {
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

// applyStep reads what is there and commits what is newer.
func applyStep(ctx context.Context, s Store, documents []Document, now func() time.Time) (int, error) {
	return commit(ctx, s, now, func(ctx context.Context, head Head) (Step, int, error) {
		newer := func(i int, there *Document) bool { return documents[i].Version > there.Version }
		return stage(ctx, s, head, documents, nil, newer)
	})
}

// commit commits what is staged from the head, until nobody else has written in between. The head is read first: if
// anything is written after that, the commit is refused, so what was read is what is replaced.
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
			return 0, fmt.Errorf("apply: others write all the time: %w", ctx.Err())
		case <-time.After(wait/2 + rand.N(wait)):
		}
	}
}

// stage is the step that brings in those of the documents that take the place of what is there, and how many these
// are. given are the documents that may be replaced, where a key may have another one's hash; nil where Apply wrote
// them all.
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
			d.Version = min(d.Version, 1) * step.Entry.Seq // that of its entry, or none
		}
		step.add(d)
		if d.Kind == plan.KindKey {
			keys = append(keys, d)
		}
	}
	n := len(step.Documents)
	hashes, err := rehash(keys, before)
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

// rehash is what each hash of the keys is to stand for: a key's body, or nil for nothing any more. A hash that a key
// gives up may be taken by another.
func rehash(keys []Document, before map[Ref]*Document) (map[string][]byte, error) {
	hashes := make(map[string][]byte, len(keys))
	for i := range keys {
		old := before[keys[i].Ref].KeyHash()
		if old == "" {
			continue
		}
		if holder, known := before[Ref{KindKeyHash, old}]; known {
			if id, _ := keyOf(holder.Body); id != keys[i].ID {
				continue // it is another key's
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
		if other, _ := keyOf(holder); other != "" && other != d.ID {
			return nil, fmt.Errorf("%w %s: key %q has its hash", ErrInvalid, d.name(), other)
		}
		hashes[hash] = d.Body
	}
	return hashes, nil
}

// KeyHash is the hash of a key that is not deleted, 64 hex digits; else "". It is "" for the document of one key with
// the body of another, which nobody can apply.
func (d *Document) KeyHash() string {
	if d.Kind != plan.KindKey || d.Deleted {
		return ""
	}
	id, hash := keyOf(d.Body)
	if id != d.ID {
		return ""
	}
	return hash
}

func (s *Step) add(d Document) {
	s.Documents = append(s.Documents, d)
	s.Entry.Changes = append(s.Entry.Changes, Change{d.Ref, d.Version, d.Deleted || d.Version == 0})
}
