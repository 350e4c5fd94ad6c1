package reconcile

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
)

// repairHashes repairs the documents that the cell has under hashes of keys. Each key of the cell must have one, which
// equals the key's own document. All others are removed.
func (r *run) repairHashes(ctx context.Context, found *foundDocuments) error {
	var all []table.Replacement
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

// replacement reads the document under the hash once more, since it may have changed after it was listed, and returns
// what has to take its place. id is the id of the key that had the hash when the keys were listed, or "" if no key had
// it. differs is false if the document is right.
func (r *run) replacement(ctx context.Context, hash, id string) (one table.Replacement, differs bool, err error) {
	found, err := r.get(ctx, table.Ref{Kind: table.KindKeyHash, ID: hash})
	if err != nil {
		return one, false, err
	}
	want := table.Document{Ref: found.Ref}
	var body struct{ ID string }
	_ = json.Unmarshal(found.Body, &body) // body.ID stays empty if this is not the document of a key
	// The key that has the hash now is the listed one, or the one that the document names. If neither has it, the
	// version of want stays 0: there must be no document.
	for _, named := range []string{id, body.ID} {
		if named == "" || want.Version > 0 {
			continue
		}
		key, err := r.get(ctx, table.Ref{Kind: events.KindKey, ID: named})
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
	switch of := (table.Ref{Kind: table.KindKeyHash, ID: id}); {
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
	return table.Replacement{Found: *found, Want: want}, true, nil
}

// get reads a document of the cell.
func (r *run) get(ctx context.Context, ref table.Ref) (*table.Document, error) {
	got, err := r.read(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("read a %s of the cell: %w", ref.Kind, err)
	}
	return &got[0], nil
}
