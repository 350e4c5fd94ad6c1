package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan"
)

// MaxChanges is the largest number of changes in one Apply.
const MaxChanges = 1000

// pinBytes is an upper bound on what a tenant's pin has in addition to the parts of the tenant's document that it
// repeats: see [Control.pin]. The body of a tenant may have at most MaxBodyBytes less this number, so that its pin fits
// into an item, too.
const pinBytes = 8 << 10

// writers is the number of items that are read or written concurrently. With 16, MaxChanges writes of 20 ms each take
// 1.3 s; API Gateway gives a call 29 s.
const writers = 16

// Change is the desired state of one item.
type Change struct {
	Table control.Table `json:"table"` // plans, tenants or keys
	Key   string        `json:"key"`
	// the version that the operator saw, including that of a tombstone; 0: no version
	Expect int64           `json:"expect"`
	Body   json.RawMessage `json:"body,omitempty"`   // in canonical form, which a call's JSON is brought into
	Delete bool            `json:"delete,omitempty"` // only for a plan or a tenant
}

func (c *Change) ref() control.Ref { return control.Ref{Table: c.Table, Key: c.Key} }

// ApplyRequest asks for changes that are checked together.
type ApplyRequest struct {
	Reason  string   `json:"reason"`
	Changes []Change `json:"changes"`       // 1..MaxChanges
	Yes     bool     `json:"yes,omitempty"` // accept that counters start afresh

	// AcceptLosses says that the operator has seen what the changes remove and weaken (see [Effects]), and agrees. It
	// is separate from Yes because some commands that set Yes do not show the losses.
	AcceptLosses bool `json:"accept_losses,omitempty"`
}

// PreviewRequest asks what an Apply of changes would do.
type PreviewRequest struct {
	Changes []Change `json:"changes"` // 1..MaxChanges
}

// Applied is the result of one change.
type Applied struct {
	Table control.Table `json:"table"`
	Key   string        `json:"key"`
	// the item's version after the call, or after the Apply that a preview is about
	Version   int64 `json:"version"`
	Unchanged bool  `json:"unchanged,omitempty"` // the item had this content already, and nothing was written
	Effects
}

// ApplyResponse holds the results of all changes, in the order of the request.
type ApplyResponse struct {
	Results []Applied `json:"results"`
	Written int       `json:"written"`
}

// Apply makes the changes. It first checks each change, then all together with the stored documents that depend on
// them, and then the versions. If anything is wrong, it writes nothing. If an item already has the desired content,
// Apply does not write it, whatever version was expected. An interrupted Apply can therefore be repeated.
//
// It also writes nothing if the changes lose something that the request does not accept: see [Effects].
//
// It then writes the items one by one: plans before tenants before keys, and deletions last. A concurrent write by
// another operator, a table that does not answer, or the end of the call's time can stop it halfway. The error then
// says how many items were written. To write the rest, repeat the Apply.
//
// Apply refuses a key with the hash of another key. Two concurrent calls may both find the hash unused; the cells then
// keep the key that they have, and reconcile reports the other key as refused.
func (s *Control) Apply(ctx context.Context, actor string, r *ApplyRequest) (*ApplyResponse, error) {
	return s.apply(ctx, actor, r, false)
}

// apply implements Apply. ownHash says that the only change is a key whose hash this service has just made.
func (s *Control) apply(ctx context.Context, actor string, r *ApplyRequest, ownHash bool) (*ApplyResponse, error) {
	if err := checkReason(r.Reason); err != nil {
		return nil, err
	}
	out, toWrite, err := s.prepare(ctx, r.Changes, ownHash)
	if err != nil || len(toWrite) == 0 {
		return out, err
	}
	if err := checkConsent(r, out); err != nil {
		return nil, err
	}
	if out.Written, err = s.writeAll(ctx, actor, r.Reason, toWrite); err != nil {
		return nil, err
	}
	return out, nil
}

// Preview checks changes as Apply does, and returns what Apply would return. It writes nothing.
func (s *Control) Preview(ctx context.Context, _ string, r *PreviewRequest) (*ApplyResponse, error) {
	out, _, err := s.prepare(ctx, r.Changes, false)
	return out, err
}

// prepare checks changes and finds their effects. It returns the results of the changes, and the edits that change
// their item.
func (s *Control) prepare(
	ctx context.Context, changes []Change, ownHash bool,
) (out *ApplyResponse, toWrite []*edit, err error) {
	edits, err := s.edits(ctx, changes)
	if err != nil {
		return nil, nil, err
	}
	out = &ApplyResponse{Results: make([]Applied, len(edits))}
	for i, e := range edits {
		e.applied = &out.Results[i]
		*e.applied = Applied{Table: e.Table, Key: e.Key, Version: versionOf(e.have)}
		if e.changesNothing() {
			e.applied.Unchanged = true
			continue
		}
		toWrite = append(toWrite, e)
	}
	if len(toWrite) == 0 {
		return out, nil, nil
	}
	w := s.preview(toWrite)
	w.ownHash = ownHash
	if err := w.check(ctx); err != nil {
		return nil, nil, err
	}
	if len(w.problems) > 0 {
		e := Refuse(Invalid, "the changes are not valid; this call wrote nothing")
		e.Problems = firstFew(w.problems)
		return nil, nil, e
	}
	if err := checkVersions(toWrite); err != nil {
		return nil, nil, err
	}
	for _, e := range toWrite {
		e.applied.Version = e.Expect + 1
		if e.applied.Effects, err = w.effects(ctx, e); err != nil {
			return nil, nil, err
		}
	}
	return out, toWrite, nil
}

// checkConsent refuses changes that lose something, or with which counters start afresh, unless the request accepts
// that.
func checkConsent(r *ApplyRequest, out *ApplyResponse) error {
	var losses, afresh []string
	for i := range out.Results {
		if !r.AcceptLosses {
			for _, l := range out.Results[i].Losses {
				losses = append(losses, l.String())
			}
		}
		if !r.Yes {
			afresh = append(afresh, out.Results[i].Afresh...)
		}
	}
	if len(losses)+len(afresh) == 0 {
		return nil
	}
	e := Refuse(Confirm, "counters would start afresh, and the call does not accept that (yes); nothing "+
		"was written")
	if len(losses) > 0 {
		e = Refuse(Confirm, "something would be removed or weakened, and the call does not accept that "+
			"(accept_losses); nothing was written. A 'sluice' that did not ask about it is older than this "+
			"endpoint: update it")
	}
	e.Problems = firstFew(append(losses, afresh...))
	return e
}

// edits checks the form of each change and reads its item.
func (s *Control) edits(ctx context.Context, changes []Change) ([]*edit, error) {
	if len(changes) == 0 || len(changes) > MaxChanges {
		return nil, Refuse(Invalid, "changes: %d, want 1..%d", len(changes), MaxChanges)
	}
	edits := make([]*edit, len(changes))
	seen := map[control.Ref]bool{}
	for i := range changes {
		c := &changes[i]
		bad := func(format string, args ...any) ([]*edit, error) {
			return nil, Refuse(Invalid, "changes[%d]: %s", i, fmt.Sprintf(format, args...))
		}
		doc, ok := DocumentOf(c.Table, c.Key, c.Body)
		if !ok {
			return bad("%.64q/%.140q is not a plan, a tenant or a key", c.Table, c.Key)
		}
		if err := events.CheckKey(c.Table, c.Key); err != nil {
			return bad("key: %v", err)
		}
		if err := control.CheckExpect(c.Expect); err != nil {
			return bad("expect: %v", err)
		}
		if seen[c.ref()] {
			return bad("%s occurs twice", name(c.Table, c.Key))
		}
		seen[c.ref()] = true
		switch {
		case c.Delete && len(c.Body) > 0:
			return bad("delete: a deletion has no body")
		case c.Delete && c.Table == control.Keys:
			return bad("a key cannot be deleted: revoke it")
		case !c.Delete:
			if len(c.Body) == 0 || c.Body[0] != '{' {
				return bad("body: want a JSON object")
			}
			most := control.MaxBodyBytes
			if c.Table == control.Tenants {
				most -= pinBytes
			}
			if len(c.Body) > most {
				return bad("body: %d bytes, want at most %d", len(c.Body), most)
			}
		}
		edits[i] = &edit{Change: c, doc: doc}
	}
	return edits, control.Concurrently(len(edits), writers, func(i int) (err error) {
		edits[i].have, err = s.item(ctx, edits[i].Table, edits[i].Key)
		return err
	})
}

// changesNothing reports whether the item already has the desired content.
func (e *edit) changesNothing() bool {
	if e.Delete {
		return e.absent()
	}
	return !e.absent() && bytes.Equal(e.have.Body, e.Body)
}

// checkVersions refuses changes of items that are not at the version that the operator saw.
func checkVersions(edits []*edit) error {
	var clashes []Clash
	for _, e := range edits {
		if versionOf(e.have) != e.Expect {
			clashes = append(clashes, Clash{e.Table, e.Key, e.Expect, e.have})
		}
	}
	if len(clashes) > 0 {
		return conflict(clashes...)
	}
	return nil
}

// writeAll writes the edits in such an order that no document ever refers to one that does not exist. It returns the
// number of edits written.
func (s *Control) writeAll(ctx context.Context, actor, reason string, edits []*edit) (int, error) {
	stages := make([][]*edit, 2*len(plan.Kinds)) // writes in the order of the kinds, then deletions in reverse order
	for _, e := range edits {
		stage := slices.Index(plan.Kinds, e.doc.Kind)
		if e.Delete {
			stage = len(stages) - 1 - stage
		}
		stages[stage] = append(stages[stage], e)
	}
	var mu sync.Mutex
	written := 0
	for _, stage := range stages {
		err := control.Concurrently(len(stage), writers, func(i int) error {
			e := stage[i]
			if e.doc.Kind == plan.KindTenant {
				if err := s.pinEdit(ctx, actor, reason, e); err != nil {
					return err
				}
			}
			_, err := s.put(ctx, control.Change{Table: e.Table, Key: e.Key, Expect: e.Expect, Body: e.Body,
				Delete: e.Delete, Actor: actor, Reason: reason})
			var refused *Error
			if e.doc.Kind == plan.KindTenant && errors.As(err, &refused) && refused.Code == Conflict {
				s.repin(ctx, actor, reason, e.Key)
			}
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				written++
			}
			return err
		})
		if err == nil {
			continue
		}
		var refused *Error
		if !errors.As(err, &refused) {
			if ctx.Err() == nil {
				return written, err
			}
			refused = Refuse(Unavailable, "the call ran out of time: repeat it")
		}
		refused.Written = written
		return written, refused
	}
	return written, nil
}
