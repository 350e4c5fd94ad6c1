package reconcile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/control/celldoc"
)

// crossing compares the keys of a cell with its documents under key hashes, in memory that does not grow with their
// number: the sums of both must be equal. Its zero value is ready to use.
type crossing struct {
	seed maphash.Seed
	made bool
	sum  uint64
}

// add adds a document of a cell, in any order. It ignores other kinds of documents, and tombstones.
func (c *crossing) add(d *cellconfig.Document) {
	if !c.made {
		c.seed, c.made = maphash.MakeSeed(), true
	}
	switch {
	case d.Deleted:
	case d.Kind == celldoc.KindKey:
		c.sum += c.of(d.KeyHash(), d.Body)
	case d.Kind == cellconfig.KindKeyHash:
		c.sum -= c.of(d.ID, d.Body)
	}
}

func (c *crossing) of(hash string, body []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	// The length separates hash and body. A forged document may have an id of any length, and could otherwise move
	// bytes from one to the other without a change of the sum.
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(hash)))) // a maphash.Hash takes everything
	_, _ = h.WriteString(hash)
	_, _ = h.Write(body)
	return h.Sum64()
}

func (c *crossing) differ() bool { return c.sum != 0 }

// holder is a key of the cell, found by its hash.
type holder struct {
	id   string // of the key
	body uint64 // hash of its body
	seen bool   // there is a document under the key's hash
}

// hashes repairs the cell's documents under key hashes: one for each key, and no others. It is called if the sums
// differ.
func (r *run) hashes(ctx context.Context) error {
	seed, keys := maphash.MakeSeed(), map[string]*holder{}
	for d, err := range r.store.List(ctx, celldoc.KindKey) {
		if err != nil {
			return fmt.Errorf("list each key of the cell: %w", err)
		}
		if hash := d.KeyHash(); hash != "" {
			keys[hash] = &holder{id: d.ID, body: maphash.Bytes(seed, d.Body)}
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
			key = &holder{}
			keys[d.ID] = key
		} else if key.body == maphash.Bytes(seed, d.Body) {
			key.seen = true
		}
	}
	var all []cellconfig.Replacement
	for hash, key := range keys {
		if key.seen {
			continue
		}
		one, differs, err := r.hash(ctx, hash, key.id)
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

// hash returns the replacement of the document under a hash. id is that of the key, or "" if there is no key. It
// returns false if the document is right meanwhile.
func (r *run) hash(ctx context.Context, hash, id string) (one cellconfig.Replacement, differs bool, err error) {
	refs := []cellconfig.Ref{{Kind: cellconfig.KindKeyHash, ID: hash}}
	if id != "" {
		refs = append(refs, cellconfig.Ref{Kind: celldoc.KindKey, ID: id})
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
	switch of := (cellconfig.Ref{Kind: cellconfig.KindKeyHash, ID: id}); { // the hash itself is nobody's to read
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
