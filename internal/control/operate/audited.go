package operate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
)

// The states of an operation, and the version of its item that has the state.
const (
	begun   = "begun"   // version 1
	done    = "done"    // version 2
	refused = "refused" // version 2; as far as is known, nothing was changed
)

// record is the body of an item of the table operations.
type record struct {
	ID       string    `json:"id"`
	Cell     string    `json:"cell"`
	Does     string    `json:"operation"` // "peek", "reset" or "refund"
	Counters Counters  `json:"counters"`  // the request
	State    string    `json:"state"`
	Found    []Counter `json:"found,omitempty"` // if State is done
	Error    string    `json:"error,omitempty"` // if State is refused
}

// audited records the beginning of an operation, carries it out, and records its outcome. If the beginning cannot be
// recorded, it does nothing.
func (s *Cell) audited(
	ctx context.Context, actor, does string, r *Counters,
	do func(*counters, context.Context) (*CountersResponse, error),
) (*CountersResponse, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	k, err := s.find(ctx, r)
	if err != nil {
		return nil, err
	}
	rec := record{ID: operationID(s.c.Now()), Cell: s.c.Cell, Does: does, Counters: *r, State: begun}
	if err := s.write(ctx, actor, &rec, 0); err != nil {
		return nil, err
	}
	out, failed := do(k, ctx)
	if rec.State = done; failed != nil {
		rec.State, rec.Error = refused, "the operation ran out of time"
		var e *Error
		if errors.As(failed, &e) {
			rec.Error = e.Message
		}
	} else {
		out.Operation, rec.Found = rec.ID, out.Counters
	}
	// Record the outcome even if the time of the call is over, since the operation may have had its effect.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := s.write(last, actor, &rec, 1); err != nil && failed == nil {
		out.Notes = append([]string{"the outcome could not be recorded: the table operations still says that the " +
			"operation is begun"},
			out.Notes...)
	}
	return out, failed
}

func (s *Cell) write(ctx context.Context, actor string, rec *record, expect int64) error {
	body, err := events.MarshalCanonical(rec)
	if err != nil {
		return Refuse(Invalid, "%v", err)
	}
	_, err = s.c.Tables.Put(ctx, control.Change{Table: control.Operations, Key: rec.ID, Expect: expect, Body: body,
		Actor: actor, Reason: rec.Counters.Reason, Now: s.c.Now()})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, control.ErrInvalid):
		return Refuse(Invalid, "%v", err)
	}
	s.c.Log.ErrorContext(ctx, "an operation cannot be recorded", "operation", rec.ID, "error", err)
	return Refuse(Unavailable, "the operation was not begun, because it cannot be recorded; try again")
}

// operationID returns a random id. Ids sort by time.
func operationID(now time.Time) string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return now.UTC().Format("20060102T150405Z") + "-" + hex.EncodeToString(b[:])
}
