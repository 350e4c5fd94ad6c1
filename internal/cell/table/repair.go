package table

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// Replacement says which wrong document to replace, and with what.
type Replacement struct {
	Found Document // the wrong document as it was read; if the table has changed it since, Repair leaves it alone
	// Want is the right document, with the name of Found and any version. If it has only a name, Found is removed.
	Want Document
}

// Repair replaces each Found document by its Want document, and returns how many documents it replaced. The version of
// Want may be lower than that of Found. Each step gives the table another incarnation, so that every reader drops its
// copies. Repair leaves a document alone that somebody has changed since it was read, since that change may be right.
// Several writers may run at once, as with [Apply].
//
// A removal leaves no tombstone, so that a document of any version can be applied under the same name later.
//
// A key has a second document, of KindKeyHash, under the key's hash. Repair writes or removes it together with the key,
// as [Apply] does. If only one of the two is there, a Replacement may name the second document alone. Repair then takes
// the log entry's number for its version, whatever Want says.
//
// An error that wraps [ErrInvalid] names the document. Nothing of that document's step is written; earlier steps stay.
func Repair(ctx context.Context, s Store, replacements []Replacement, now func() time.Time) (int, error) {
	// Removals come first, since a key may need the hash of a key that is removed.
	all := slices.Clone(replacements)
	slices.SortStableFunc(all, func(a, b Replacement) int { return cmp.Compare(a.rank(), b.rank()) })
	wanted, found := make([]Document, len(all)), make([]Document, len(all))
	for i := range all {
		wanted[i], found[i] = all[i].Want, all[i].Found
		if err := all[i].check(); err != nil {
			return 0, err
		}
	}
	written := 0
	for len(wanted) > 0 {
		n := fits(wanted)
		did, err := commit(ctx, s, now, func(ctx context.Context, head Head) (Step, int, error) {
			same := func(i int, there *Document) bool { return there.same(&found[i]) }
			step, n, err := stage(ctx, s, head, wanted[:n], found[:n], same)
			step.Repair = true
			return step, n, err
		})
		if written += did; err != nil {
			return written, err
		}
		wanted, found = wanted[n:], found[n:]
	}
	return written, nil
}

// rank returns 0 for a removal and 1 for any other replacement, so that removals sort first.
func (r *Replacement) rank() int { return int(min(r.Want.Version, 1)) }

func (r *Replacement) check() error {
	if r.Want.Ref != r.Found.Ref {
		return fmt.Errorf("%w %s: it cannot replace %s, which has another name", ErrInvalid, r.Want.Name(),
			r.Found.Name())
	}
	if r.Want.Version == 0 && !r.Want.Deleted && r.Want.Body == nil {
		return nil
	}
	if r.Want.Kind == KindKeyHash {
		if _, hash := KeyOf(r.Want.Body); hash != r.Want.ID || r.Want.Deleted {
			return fmt.Errorf("%w %s: the key in its body has another hash, or it is marked as deleted", ErrInvalid,
				r.Want.Name())
		}
		return nil
	}
	return r.Want.Check()
}

// same reports whether two documents agree in version, Seq, Deleted and body. It does not compare their names.
func (d *Document) same(o *Document) bool {
	return d.Version == o.Version && d.Seq == o.Seq && d.Deleted == o.Deleted && bytes.Equal(d.Body, o.Body)
}
