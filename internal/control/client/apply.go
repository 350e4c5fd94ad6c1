package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan"
)

// The largest number of changes that Apply sends in one call, and of their bytes. Both are far below what a call may
// have (operate.MaxChanges, operate.MaxBodyBytes), so that a call ends within the 29 s that API Gateway gives it.
const (
	callChanges = 250
	callBytes   = 1 << 20
)

// Result is the result of an Apply.
type Result struct {
	Written int `json:"written"`
	// Unchanged counts documents that another operator, or an earlier try, wrote after the comparison.
	Unchanged int       `json:"unchanged"`
	Calls     int       `json:"calls"`
	Documents []Outcome `json:"documents"` // all documents of the diff, in its order
}

// Outcome is the result for one document.
type Outcome struct {
	Kind  plan.Kind `json:"kind"`
	ID    string    `json:"id"`
	State State     `json:"state"`
}

// State says whether a document was written.
type State string

// The states.
const (
	Written    State = "written"
	Already    State = "already so" // another operator, or an earlier try, wrote it after the comparison
	NotWritten State = "not written"
	NotKnown   State = "not known" // the answer was lost, and the tables could not be read to find out
)

var errMismatch = errors.New("the answer of the admin endpoint does not match the changes of the call")

// recheckTimeout bounds reading the tables after a call whose answer was lost.
const recheckTimeout = 10 * time.Second

// Apply writes a diff, in as many calls as necessary. Each
// document is written on the condition that it is still at the version that was compared. yes says
// that the operator accepts everything that the diff removes and weakens, and that counters start afresh. If Apply
// returns an error, what it has written stays, and the result says which documents that are. To write the rest, compare
// and apply again.
func (d *Diff) Apply(
	ctx context.Context, remote Remote, reason string, yes bool,
) (Result, error) {
	states := make(map[*Edit]State, len(d.Edits))
	out, err := d.write(ctx, remote, &operate.ApplyRequest{Reason: reason, Yes: yes}, states)
	for i := range d.Edits {
		e := &d.Edits[i]
		state, tried := states[e]
		if !tried {
			state = NotWritten
		}
		out.Documents = append(out.Documents, Outcome{e.Kind, e.ID, state})
	}
	return out, err
}

// write implements Apply. It stores the state of each edit that it has tried.
func (d *Diff) write(
	ctx context.Context, remote Remote, r *operate.ApplyRequest, states map[*Edit]State,
) (out Result, err error) {
	batches, err := d.batches()
	if err != nil {
		return out, err
	}
	for _, batch := range batches {
		r.Changes, r.AcceptLosses = nil, false
		for _, e := range batch {
			r.Changes = append(r.Changes, e.change)
			// An operator accepts only losses that the comparison has shown. Those of a later change are refused.
			r.AcceptLosses = r.AcceptLosses || r.Yes && len(e.Losses) > 0
		}
		answer, err := remote.Apply(ctx, r)
		out.Calls++
		if err == nil && len(answer.Results) != len(batch) {
			err = errMismatch
		}
		if err != nil {
			d.findOutcome(ctx, remote, batch, err, states)
			seen := 0
			for _, e := range batch {
				if states[e] == Written {
					seen++
				}
			}
			var refused *operate.Error
			if errors.As(err, &refused) {
				out.Written += max(seen, refused.Written)
				refused.Written = out.Written
				return out, err
			}
			out.Written += seen
			return out, err
		}
		for i, e := range batch {
			if states[e] = Written; answer.Results[i].Unchanged {
				states[e] = Already
			}
		}
		out.Written += answer.Written
		out.Unchanged += len(answer.Results) - answer.Written
	}
	return out, nil
}

// findOutcome finds out what a call that returned an error has written: the answer may have been lost, or the call may
// have been interrupted.
func (d *Diff) findOutcome(ctx context.Context, remote Remote, batch []*Edit, err error, states map[*Edit]State) {
	var refused *operate.Error
	certain := errors.As(err, &refused) && refused.Code != operate.Unavailable && refused.Code != operate.Internal
	if certain && refused.Written == 0 {
		return // nothing was written
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recheckTimeout)
	defer cancel()
	stored, _, err := load(ctx, remote, operate.Tables()...)
	for _, e := range batch {
		have := stored[control.Ref{Table: e.change.Table, Key: e.change.Key}]
		switch {
		case err != nil:
			states[e] = NotKnown
		case have == nil || have.Version <= e.Version:
			states[e] = NotWritten
		case have.Deleted == e.change.Delete && (have.Deleted || bytes.Equal(have.Body, e.change.Body)):
			states[e] = Written
		default:
			states[e] = NotWritten // another operator has changed it
		}
	}
}

// batches divides the edits into calls: first plans and settings, with the tenants that must be written together with
// a plan; then the other tenants; keys; and deletions, of tenants before plans.
func (d *Diff) batches() ([][]*Edit, error) {
	var together, tenants, keys, deletes []*Edit
	for i := range d.Edits {
		switch e := &d.Edits[i]; {
		case e.Action == Delete:
			deletes = append(deletes, e)
		case e.Kind == plan.KindKey:
			keys = append(keys, e)
		case e.Kind == plan.KindTenant && !d.withPlan[e.ID]:
			tenants = append(tenants, e)
		default:
			together = append(together, e)
		}
	}
	var out [][]*Edit
	if len(together) > 0 {
		if err := checkSize(together); err != nil {
			return nil, err
		}
		out = append(out, together)
	}
	for _, rest := range [][]*Edit{tenants, keys, deletes} {
		out = append(out, split(rest)...)
	}
	return out, nil
}

// checkSize returns an error if edits do not fit into one call.
func checkSize(edits []*Edit) error {
	if n := len(edits); n > operate.MaxChanges || size(edits) > operate.MaxBodyBytes*3/4 {
		return fmt.Errorf("%d plans and tenants must be written together and are too many for one call: apply the "+
			"file in parts", n)
	}
	return nil
}

func size(edits []*Edit) int {
	n := 0
	for _, e := range edits {
		n += len(e.change.Body) + len(e.change.Key) + 100
	}
	return n
}

// split divides edits into batches of at most callChanges edits and callBytes bytes.
func split(edits []*Edit) (out [][]*Edit) {
	for len(edits) > 0 {
		n, bytes := 0, 0
		for n < len(edits) && n < callChanges && (n == 0 || bytes+size(edits[n:n+1]) <= callBytes) {
			bytes += size(edits[n : n+1])
			n++
		}
		out, edits = append(out, edits[:n]), edits[n:]
	}
	return out
}
