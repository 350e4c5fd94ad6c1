package reconcile

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
)

// keyOfHash is the key of the cell that has a hash.
type keyOfHash struct {
	id      string // of the key; "" if no key has the hash
	body    uint64 // hash of the key's body
	matched bool   // the document under the hash has the key's body
}

// repairHashes repairs the cell's documents under key hashes: one for each key, and no others.
func (r *run) repairHashes(ctx context.Context) error {
	seed, keys := maphash.MakeSeed(), map[string]*keyOfHash{}
	for d, err := range r.store.List(ctx, cellconfig.KindKey) {
		if err != nil {
			return fmt.Errorf("list each key of the cell: %w", err)
		}
		if hash := d.KeyHash(); hash != "" {
			keys[hash] = &keyOfHash{id: d.ID, body: maphash.Bytes(seed, d.Body)}
		}
	}
	for d, err := range r.store.List(ctx, cellconfig.KindKeyHash) {
		if err != nil {
			return fmt.Errorf("list each hash of the cell: %w", err)
		}
		if d.Deleted {
			continue
		}
		key := keys[d.ID]
		if key == nil {
			key = &keyOfHash{}
			keys[d.ID] = key
		} else if key.body == maphash.Bytes(seed, d.Body) {
			key.matched = true
		}
	}
	var all []cellconfig.Replacement
	for hash, key := range keys {
		if key.matched {
			continue
		}
		one, differs, err := r.replacement(ctx, hash, key.id)
		if err != nil {
			return err
		}
		if differs {
			all = append(all, one)
		}
	}
	if len(all) == 0 {
		return nil
	}
	n, err := cellconfig.Repair(ctx, r.store, all, r.c.Now)
	r.result.Repaired += int64(n)
	return err
}

// replacement reads the document under a hash again and returns its replacement. id is that of the key with this hash,
// or "" if there is no key. replacement returns false if the document has become right since it was listed.
func (r *run) replacement(ctx context.Context, hash, id string) (one cellconfig.Replacement, differs bool, err error) {
	refs := []cellconfig.Ref{{Kind: cellconfig.KindKeyHash, ID: hash}}
	if id != "" {
		refs = append(refs, cellconfig.Ref{Kind: cellconfig.KindKey, ID: id})
	}
	got, err := r.store.Get(ctx, refs...)
	if err = errors.Join(err, wrongCount(len(got), len(refs))); err != nil {
		return one, false, fmt.Errorf("read a key of the cell: %w", err)
	}
	found := got[0]
	want := cellconfig.Document{Ref: refs[0]}
	if id != "" && got[1].KeyHash() == hash {
		want.Version, want.Body = 1, got[1].Body
	}
	there := found.Version > 0 && !found.Deleted
	// The report names the key by its id, because its hash must not be logged.
	switch of := (cellconfig.Ref{Kind: cellconfig.KindKeyHash, ID: id}); {
	case want.Version == 0 && !there, want.Version > 0 && there && string(want.Body) == string(found.Body):
		return one, false, nil
	case want.Version == 0:
		r.report(ctx, Unknown, of, nil)
	case !there:
		r.report(ctx, Missing, of, nil)
	default:
		r.report(ctx, Altered, of, nil)
	}
	return cellconfig.Replacement{Found: found, Want: want}, true, nil
}
