package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
)

// repairHashes repairs the cell's documents under key hashes: one for each key, and no others.
func (r *run) repairHashes(ctx context.Context, found *foundDocuments) error {
	var all []cellconfig.Replacement
	repair := func(hash, id string) error {
		one, differs, err := r.replacement(ctx, hash, id)
		if differs {
			all = append(all, one)
		}
		return err
	}
	for hash, key := range found.keys {
		if d := found.hashes[hash]; d.body == key.body && !d.deleted && d.seq > 0 && d.seq <= r.last {
			continue
		}
		if err := repair(hash, key.id); err != nil {
			return err
		}
	}
	for hash, d := range found.hashes {
		if _, known := found.keys[hash]; known || d.deleted && d.seq <= r.last {
			continue
		}
		if err := repair(hash, ""); err != nil {
			return err
		}
	}
	return r.replace(ctx, all)
}

// replacement reads the document under a hash again and returns its replacement. id is that of the key that had this
// hash when the keys were listed, or "" if there was none. replacement returns false if the document is right.
func (r *run) replacement(ctx context.Context, hash, id string) (one cellconfig.Replacement, differs bool, err error) {
	found, err := r.get(ctx, cellconfig.Ref{Kind: cellconfig.KindKeyHash, ID: hash})
	if err != nil {
		return one, false, err
	}
	want := cellconfig.Document{Ref: found.Ref}
	var body struct{ ID string }
	_ = json.Unmarshal(found.Body, &body) // a body that is not a key's names no key
	for _, named := range []string{id, body.ID} {
		if named == "" || want.Version > 0 {
			continue
		}
		key, err := r.get(ctx, cellconfig.Ref{Kind: cellconfig.KindKey, ID: named})
		if err != nil {
			return one, false, err
		}
		if key.KeyHash() == hash {
			want.Version, want.Body, id = 1, key.Body, named
		}
	}
	forged, err := r.isAboveHead(ctx, found)
	if err != nil {
		return one, false, err
	}
	there := found.Version > 0 && !found.Deleted
	// The report names the key by its id, because its hash must not be logged.
	switch of := (cellconfig.Ref{Kind: cellconfig.KindKeyHash, ID: id}); {
	case forged != nil:
		r.report(ctx, Altered, of, forged)
	case want.Version == 0 && !there, want.Version > 0 && there && string(want.Body) == string(found.Body):
		return one, false, nil
	case want.Version == 0:
		r.report(ctx, Unknown, of, nil)
	case !there:
		r.report(ctx, Missing, of, nil)
	default:
		r.report(ctx, Altered, of, nil)
	}
	return cellconfig.Replacement{Found: *found, Want: want}, true, nil
}

// get reads a document of the cell.
func (r *run) get(ctx context.Context, ref cellconfig.Ref) (*cellconfig.Document, error) {
	got, err := r.store.Get(ctx, ref)
	if err = errors.Join(err, wrongCount(len(got), 1)); err != nil {
		return nil, fmt.Errorf("read a %s of the cell: %w", ref.Kind, err)
	}
	return &got[0], nil
}
