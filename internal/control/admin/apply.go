package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/events/canonical"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/plan"
)

// MaxChanges of one Apply.
const MaxChanges = 1000

// pinBytes is what a tenant's pin has beside what it repeats of the tenant, at most: see [Service.pin].
const pinBytes = 8 << 10

// writers is how many items are written at once.
const writers = 16

// Change is one item as it is to be.
type Change struct {
	Table  control.Table   `json:"table"` // plans, tenants or keys
	Key    string          `json:"key"`
	Expect int64           `json:"expect"` // the version that the operator saw, a tombstone's included; 0: none
	Body   json.RawMessage `json:"body,omitempty"`
	Delete bool            `json:"delete,omitempty"` // of a plan or a tenant
}

// ApplyRequest asks for changes that are looked at together.
type ApplyRequest struct {
	Reason  string   `json:"reason"`
	Changes []Change `json:"changes"`           // 1..MaxChanges
	DryRun  bool     `json:"dry_run,omitempty"` // all checks, and nothing is written
	Yes     bool     `json:"yes,omitempty"`     // counters may start afresh

	// AcceptLosses says that the operator has seen what the changes remove and weaken (see [Losses]), and agrees. It is
	// apart from Yes, which commands send that do not show it.
	AcceptLosses bool `json:"accept_losses,omitempty"`
}

// Applied is what became of a change.
type Applied struct {
	Table     control.Table `json:"table"`
	Key       string        `json:"key"`
	Version   int64         `json:"version"`             // that is there now; of a dry run: that would be
	Unchanged bool          `json:"unchanged,omitempty"` // it was so already, and nothing was written
}

// ApplyResponse is what became of all of them, in their order.
type ApplyResponse struct {
	Results []Applied `json:"results"`
	Written int       `json:"written"`
	Afresh  []string  `json:"afresh,omitempty"` // counters that begin anew, one sentence each
	Losses  []Loss    `json:"losses,omitempty"` // what the changes remove and weaken
}

// Apply makes the changes. First all of them are checked, by themselves, together, and with what is stored and depends
// on them; then their versions; and where anything is wrong nothing is written. What is so already costs no write,
// whatever version was expected, so an Apply that was cut can be repeated.
//
// Nothing is written, either, where something is lost that the request does not accept: see [Losses].
//
// The items are then written one by one, plans before tenants before keys, and deletes last. Another operator's write
// in that moment, a table that does not answer, or the end of the call's time can stop it in the middle; the error
// counts what was written, and the rest can be applied again.
//
// A key under a hash that another key has is refused. Two calls at the same moment may both find it free; the cells
// then keep the key that they have, and reconcile reports the other one as refused.
func (s *Service) Apply(ctx context.Context, actor string, r *ApplyRequest) (*ApplyResponse, error) {
	return s.apply(ctx, actor, r, false)
}

// apply is Apply; made says that the change is a key with a hash that was made here.
func (s *Service) apply(ctx context.Context, actor string, r *ApplyRequest, made bool) (*ApplyResponse, error) {
	if err := checkReason(r.Reason); err != nil {
		return nil, err
	}
	edits, err := s.edits(ctx, r.Changes)
	if err != nil {
		return nil, err
	}
	var open []*edit // those that change anything
	out := &ApplyResponse{Results: make([]Applied, len(edits))}
	for i, e := range edits {
		out.Results[i] = Applied{Table: e.Table, Key: e.Key}
		if e.have != nil {
			out.Results[i].Version = e.have.Version
		}
		if e.already() {
			out.Results[i].Unchanged = true
			continue
		}
		open = append(open, e)
	}
	if len(open) == 0 {
		return out, nil
	}
	w := s.world(open)
	w.made = made
	if err := w.check(ctx); err != nil {
		return nil, err
	}
	if len(w.problems) > 0 {
		e := call.Refuse(call.Invalid, "the changes do not fit; nothing of this call was written")
		e.Problems = few(w.problems)
		return nil, e
	}
	if err := unseen(open); err != nil {
		return nil, err
	}
	if out.Afresh, err = w.afresh(ctx); err != nil {
		return nil, err
	}
	if out.Losses, err = w.losses(ctx); err != nil {
		return nil, err
	}
	if !r.DryRun {
		if err := unaccepted(r, out); err != nil {
			return nil, err
		}
	}
	for i, e := range edits {
		if !out.Results[i].Unchanged {
			out.Results[i].Version = e.Expect + 1
		}
	}
	if r.DryRun {
		return out, nil
	}
	if out.Written, err = s.writeAll(ctx, actor, r.Reason, open); err != nil {
		return nil, err
	}
	return out, nil
}

// unaccepted refuses changes that lose something, or have counters start afresh, unless the request says that they may.
func unaccepted(r *ApplyRequest, out *ApplyResponse) error {
	losses, afresh := out.Losses, out.Afresh
	if r.AcceptLosses {
		losses = nil
	}
	if r.Yes {
		afresh = nil
	}
	if len(losses)+len(afresh) == 0 {
		return nil
	}
	e := call.Refuse(call.Confirm, "counters would start afresh, and yes is not said; nothing was written")
	if len(losses) > 0 {
		e = call.Refuse(call.Confirm, "something would be removed or weakened that the call does not agree to "+
			"(accept_losses); nothing was written. A 'sluice' that did not ask about it is older than this "+
			"endpoint: update it")
	}
	var all []string
	for _, l := range losses {
		all = append(all, l.String())
	}
	e.Problems = few(append(all, afresh...))
	return e
}

// edits reads what the changes are about.
func (s *Service) edits(ctx context.Context, changes []Change) ([]*edit, error) {
	if len(changes) == 0 || len(changes) > MaxChanges {
		return nil, call.Refuse(call.Invalid, "changes: %d, want 1..%d", len(changes), MaxChanges)
	}
	edits := make([]*edit, len(changes))
	seen := map[string]bool{}
	for i := range changes {
		c := &changes[i]
		bad := func(format string, args ...any) ([]*edit, error) {
			return nil, call.Refuse(call.Invalid, "changes[%d]: %s", i, fmt.Sprintf(format, args...))
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
		if seen[place(c.Table, c.Key)] {
			return bad("%s comes twice", name(c.Table, c.Key))
		}
		seen[place(c.Table, c.Key)] = true
		switch {
		case c.Delete && len(c.Body) > 0:
			return bad("a delete has no body")
		case c.Delete && c.Table == control.Keys:
			return bad("a key is revoked, not deleted")
		case !c.Delete:
			body, err := canonical.Object(c.Body)
			if err != nil {
				return bad("body: want a JSON object")
			}
			most := control.MaxBodyBytes
			if c.Table == control.Tenants {
				most -= pinBytes
			}
			if len(body) > most {
				return bad("body: %d bytes, want at most %d", len(body), most)
			}
			c.Body, doc.Body = body, body
		}
		edits[i] = &edit{Change: c, doc: doc}
	}
	return edits, each(edits, func(e *edit) (err error) {
		e.have, err = s.item(ctx, e.Table, e.Key)
		return err
	})
}

// already reports whether there is nothing to write.
func (e *edit) already() bool {
	if e.Delete {
		return e.gone()
	}
	return !e.gone() && bytes.Equal(e.have.Body, e.Body)
}

// unseen refuses changes of what another has changed.
func unseen(edits []*edit) error {
	var clashes []call.Clash
	for _, e := range edits {
		version := int64(0)
		if e.have != nil {
			version = e.have.Version
		}
		if version == e.Expect {
			continue
		}
		clash := call.Clash{Table: e.Table, Key: e.Key, Expect: e.Expect}
		if e.have != nil {
			clash.Have = call.ItemOf(e.have)
		}
		clashes = append(clashes, clash)
	}
	if len(clashes) > 0 {
		return conflict(clashes...)
	}
	return nil
}

// writeAll writes in an order in which nothing names what is not there. It returns how many were.
func (s *Service) writeAll(ctx context.Context, actor, reason string, edits []*edit) (int, error) {
	stages := make([][]*edit, 5)
	for _, e := range edits {
		stage := map[plan.Kind]int{plan.KindPlan: 0, plan.KindSettings: 1, plan.KindTenant: 2,
			plan.KindKey: 3}[e.doc.Kind]
		if e.Delete {
			stage = 4
			if e.doc.Kind == plan.KindTenant {
				stages = append(stages[:4:4], append([]*edit{e}, stages[4]...)) // before plans
				continue
			}
		}
		stages[stage] = append(stages[stage], e)
	}
	var mu sync.Mutex
	written := 0
	for _, stage := range stages {
		err := each(stage, func(e *edit) error {
			if e.doc.Kind == plan.KindTenant {
				if err := s.pinEdit(ctx, actor, reason, e); err != nil {
					return err
				}
			}
			_, err := s.put(ctx, control.Change{Table: e.Table, Key: e.Key, Expect: e.Expect, Body: e.Body,
				Delete: e.Delete, Actor: actor, Reason: reason})
			var refused *call.Error
			if e.doc.Kind == plan.KindTenant && errors.As(err, &refused) && refused.Code == call.Conflict {
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
		var refused *call.Error
		if !errors.As(err, &refused) {
			if ctx.Err() == nil {
				return written, err
			}
			refused = call.Refuse(call.Unavailable, "the time for the call was over")
		}
		refused.Written = written
		return written, refused
	}
	return written, nil
}

// each calls f for all, several at once, and returns the first error in their order. After one, those not begun are
// left out.
func each[T any](all []T, f func(T) error) error {
	errs := make([]error, len(all))
	next := make(chan int)
	stop := make(chan struct{})
	var once sync.Once
	var wait sync.WaitGroup
	for range min(writers, len(all)) {
		wait.Go(func() {
			for i := range next {
				if errs[i] = f(all[i]); errs[i] != nil {
					once.Do(func() { close(stop) })
				}
			}
		})
	}
feed:
	for i := range all {
		select {
		case next <- i:
		case <-stop:
			break feed
		}
	}
	close(next)
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
