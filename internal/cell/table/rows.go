package table

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// BadRow is the error about a row that is among a table's documents and is not a document: it cannot be read, or its
// key is not the key of a document with its name. Only somebody who writes to the table without this package makes
// such rows.
type BadRow struct {
	Kind Kind      // of the documents among which the row lies
	Ref  Ref       // the document whose place the row takes; the zero Ref if the row takes no document's place
	Key  [2]string // the row's own key: partition and sort key
	Err  error     // what is wrong with the row
}

// Error does not show the row's key, which may be the hash of an API key.
func (b *BadRow) Error() string { return fmt.Sprintf("a row of kind %s: %v", b.Kind, b.Err) }

func (b *BadRow) Unwrap() error { return b.Err }

// DeleteRows deletes rows that are not documents, by their own keys, and returns how many it has deleted. It leaves a
// row alone if a document can be read in its place in the meantime. Each step gives the table another incarnation, as
// a step of [Repair] does, since a reader may have a copy of what was in the row's place before.
func DeleteRows(ctx context.Context, s Store, rows []BadRow, now func() time.Time) (int, error) {
	deleted := 0
	for some := range slices.Chunk(rows, maxStepItems) {
		n, err := commit(ctx, s, now, func(ctx context.Context, head Head) (Step, int, error) {
			step := Step{Incarnation: head.Incarnation, Entry: Entry{Seq: head.Seq + 1}, Repair: true}
			for i := range some {
				if ref := some[i].Ref; ref != (Ref{}) {
					_, err := s.Get(ctx, ref)
					var bad *BadRow
					switch {
					case err == nil:
						continue
					case !errors.As(err, &bad):
						return Step{}, 0, fmt.Errorf("delete a row of kind %s: %w", some[i].Kind, err)
					}
					step.Entry.Changes = append(step.Entry.Changes, Change{Ref: ref, Deleted: true})
				}
				step.Rows = append(step.Rows, some[i])
			}
			return step, len(step.Rows), nil
		})
		if deleted += n; err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}
