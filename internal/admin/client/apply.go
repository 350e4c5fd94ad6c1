package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicelimits/sluice/internal/admin"
	"github.com/sluicelimits/sluice/internal/admin/call"
	"github.com/sluicelimits/sluice/internal/plan"
)

// Bounds of one call of an Apply.
const (
	callChanges = 250
	callBytes   = 1 << 20
)

// Result is what came of an Apply.
type Result struct {
	Written   int `json:"written"`
	Unchanged int `json:"unchanged"` // written by another, or an earlier try, meanwhile; those of the diff not included
	Calls     int `json:"calls"`
}

// Apply writes a diff, in as many calls as it takes; progress is told of documents that are done. Each document is written
// on the condition that it is still at the version that was compared. Where it ends with an error, what it wrote stays:
// compare again, and apply what is left.
func (d *Diff) Apply(ctx context.Context, remote Remote, reason string, yes bool, progress func(done int)) (Result, error) {
	var out Result
	batches, err := d.batches()
	if err != nil {
		return out, err
	}
	for _, batch := range batches {
		r, err := remote.Apply(ctx, &admin.ApplyRequest{Reason: reason, Yes: yes, Changes: batch})
		out.Calls++
		if err != nil {
			var refused *call.Error
			if errors.As(err, &refused) {
				out.Written += refused.Written
				refused.Written = out.Written
			}
			return out, err
		}
		out.Written += r.Written
		out.Unchanged += len(r.Results) - r.Written
		if progress != nil {
			progress(len(batch))
		}
	}
	return out, nil
}

// batches are the calls: plans, with the tenants that must be written together with them, and the settings; then the other
// tenants; keys; deletes, of tenants before plans.
func (d *Diff) batches() ([][]admin.Change, error) {
	var together, tenants, keys, deletes []admin.Change
	for _, e := range d.Edits {
		switch {
		case e.Action == Delete:
			deletes = append(deletes, e.change)
		case e.Kind == plan.KindKey:
			keys = append(keys, e.change)
		case e.Kind == plan.KindTenant && !d.first[e.ID]:
			tenants = append(tenants, e.change)
		default:
			together = append(together, e.change)
		}
	}
	var out [][]admin.Change
	if len(together) > 0 {
		if n := len(together); n > admin.MaxChanges || size(together) > call.MaxBodyBytes*3/4 {
			return nil, fmt.Errorf("%d plans and tenants that only fit them together are too much for one call: apply the file in parts", n)
		}
		out = append(out, together)
	}
	for _, rest := range [][]admin.Change{tenants, keys, deletes} {
		out = append(out, split(rest)...)
	}
	return out, nil
}

func size(changes []admin.Change) int {
	n := 0
	for i := range changes {
		n += len(changes[i].Body) + len(changes[i].Key) + 100
	}
	return n
}

func split(changes []admin.Change) (out [][]admin.Change) {
	for len(changes) > 0 {
		n, bytes := 0, 0
		for n < len(changes) && n < callChanges && (n == 0 || bytes+size(changes[n:n+1]) <= callBytes) {
			bytes += size(changes[n : n+1])
			n++
		}
		out, changes = append(out, changes[:n]), changes[n:]
	}
	return out
}
