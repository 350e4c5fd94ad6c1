package devcells

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan"
)

// FileActor is the actor of changes that come from plans files, in the audit trail.
const FileActor = "dev"

const (
	tries   = 5
	applyIn = time.Minute // bounds the time of one attempt to apply the files
)

// version is the last version of an item that a plans file wrote.
type version struct {
	body [sha256.Size]byte
	gone bool // the item was deleted, or the key revoked
}

// ApplyFiles writes the entries of plans files to the control tables, and returns how many items it changed. name names
// the files in messages.
//
// An item is written only if the files' entry for it differs from the entry that was applied last, by this process or
// an earlier one. An operator's change therefore stays until the entry changes, and items that the files never named
// are left alone. If an entry was removed from the files, its item is deleted; a key is revoked. All changes are
// checked together before anything is written: if there is a problem, nothing is written and the error is a
// *plan.Error.
func (p *Plane) ApplyFiles(ctx context.Context, name string, sources []plan.Source) (int, error) {
	documents, err := plan.Split(p.c.Now(), sources...)
	if err != nil {
		return 0, err
	}
	if err := p.checkPeppers(name, documents); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, applyIn)
	defer cancel()
	p.writing.Lock()
	defer p.writing.Unlock()
	if p.written == nil {
		if p.written, err = p.remember(ctx); err != nil {
			return 0, err
		}
	}
	for try := 1; ; try++ {
		n, err := p.applyFiles(ctx, name, documents)
		var refused *operate.Error
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, control.ErrConflict) && try < tries: // an operator changed an item meanwhile
			continue
		case !errors.As(err, &refused):
			return n, err
		case refused.Code == operate.Conflict && try < tries: // an operator changed an item meanwhile
			continue
		}
		return n, problems(name, refused)
	}
}

// Displaced lists what [Plane.ApplyFiles] would remove, weaken or replace at a start although other plans files or an
// operator wrote it: one line for each loss, and one for each operator's change that is replaced without a loss.
// Differences from what files of the same name wrote are not listed: these files have been edited. If there is any such
// line, the first lines say what makes ApplyFiles fail although the operator agrees. A problem in the files themselves
// is left to ApplyFiles.
func (p *Plane) Displaced(ctx context.Context, name string, sources []plan.Source) ([]string, error) {
	documents, err := plan.Split(p.c.Now(), sources...)
	if err != nil {
		return nil, nil // ApplyFiles returns the error
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if p.written == nil {
		if p.written, err = p.remember(ctx); err != nil {
			return nil, err
		}
	}
	changes, revokes, _, err := p.changes(ctx, documents)
	if err != nil {
		return nil, err
	}
	bodies := map[control.Ref][]byte{} // the new bodies of the items that change
	for i := range changes {
		bodies[control.Ref{Table: changes[i].Table, Key: changes[i].Key}] = changes[i].Body
	}
	written := changes
	was := func(id string) (*plan.Plan, error) { return p.keptPlan(ctx, id, nil) }
	will := func(id string) (*plan.Plan, error) { return p.keptPlan(ctx, id, bodies) }
	for _, c := range revokes {
		changes = append(changes, operate.Change{Table: c.Table, Key: c.Key, Delete: true})
	}
	var lines []string
	for i := range changes {
		c := &changes[i]
		have, err := p.current(ctx, control.Ref{Table: c.Table, Key: c.Key})
		if err != nil {
			return nil, err
		}
		if have.Version == 0 || have.Deleted || bytes.Equal(have.Body, c.Body) ||
			have.Actor == FileActor && have.Reason == reason(name) {
			continue
		}
		d, _ := operate.DocumentOf(c.Table, c.Key, c.Body) // always true, as all items of plans files are documents
		effects, err := operate.EffectsOf(d, have.Body, was, will, p.c.Now())
		if err != nil {
			return nil, err
		}
		author := fmt.Sprintf(" (written by %s: %s)", have.Actor, have.Reason)
		for _, l := range effects.Losses {
			lines = append(lines, l.String()+author)
		}
		if len(effects.Losses) == 0 && have.Actor != FileActor {
			lines = append(lines, "replaces "+d.Name()+author)
		}
	}
	return p.beginWithRefusal(ctx, written, lines)
}

// beginWithRefusal puts before the lines why changes will be refused, one line for each reason. It looks at no more
// changes than one call writes: of more, the last ones may only be valid after the first ones.
func (p *Plane) beginWithRefusal(
	ctx context.Context, changes []operate.Change, lines []string,
) ([]string, error) {
	if len(lines) == 0 || len(changes) == 0 || len(changes) > operate.MaxChanges {
		return lines, nil
	}
	service := p.service(nil)
	_, err := service.Preview(ctx, FileActor, &operate.PreviewRequest{Changes: changes})
	var refused *operate.Error
	if !errors.As(err, &refused) {
		return lines, err
	}
	var first []string
	for _, text := range refused.Problems {
		first = append(first, "not possible, with --yes either: "+text)
	}
	return append(first, lines...), nil
}

// keptPlan returns the plan that is in force after the change: from bodies if it changes, or else as it is stored. It
// returns nil if there is no such plan or if it cannot be read.
func (p *Plane) keptPlan(ctx context.Context, id string, bodies map[control.Ref][]byte) (*plan.Plan, error) {
	d := plan.Document{Kind: plan.KindPlan, ID: id}
	table, key := operate.Place(d)
	body, changed := bodies[control.Ref{Table: table, Key: key}]
	if d.Body = body; !changed {
		have, err := p.current(ctx, control.Ref{Table: table, Key: key})
		if err != nil {
			return nil, err
		}
		if !have.Deleted {
			d.Body = have.Body
		}
	}
	if len(d.Body) == 0 {
		return nil, nil //nolint:nilnil // EffectsOf checks for nil
	}
	out, err := plan.CompilePlan(d)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // the stored plan is damaged, or ApplyFiles reports the problem
	}
	return out, nil
}

// problems converts a refusal of the changes to an error about the files.
func problems(name string, refused *operate.Error) error {
	out := &plan.Error{}
	for _, text := range refused.Problems {
		out.Problems = append(out.Problems, plan.Problem{File: name, Message: text})
	}
	if len(out.Problems) == 0 {
		out.Problems = []plan.Problem{{File: name, Message: refused.Error()}}
	}
	return out
}

// checkPeppers returns an error for keys whose pepper this process does not have, because no request could use them.
func (p *Plane) checkPeppers(name string, documents []plan.Document) error {
	bad := &plan.Error{}
	for i := range documents {
		if documents[i].Kind != plan.KindKey {
			continue
		}
		if k, err := plan.CompileKey(documents[i]); err == nil && p.c.Peppers[k.Pepper] == nil {
			bad.Problems = append(bad.Problems,
				plan.Problem{File: name, Message: fmt.Sprintf("%s: pepper %q is not known here", documents[i].Name(),
					k.Pepper)})
		}
	}
	if len(bad.Problems) > 0 {
		return bad
	}
	return nil
}

// remember reads from the history which version of each item a plans file wrote last.
func (p *Plane) remember(ctx context.Context) (map[control.Ref]version, error) {
	written := map[control.Ref]version{}
	for after := ""; ; {
		records, err := p.tables.Read(ctx, after, control.MaxPage)
		if err != nil {
			return nil, err
		}
		if len(records) == 0 {
			return written, nil
		}
		for i := range records {
			after = records[i].Sequence
			if r := records[i].Record; r != nil && r.New.Actor == FileActor && r.New.Table != control.Cells {
				written[r.New.Ref()] = version{sha256.Sum256(r.New.Body), r.New.Deleted ||
					r.New.Table == control.Keys && revoked(r.New.Body)}
			}
		}
	}
}

func revoked(body []byte) bool {
	var key struct{ Revoked bool }
	return json.Unmarshal(body, &key) == nil && key.Revoked
}

// applyFiles makes one attempt to apply the files.
func (p *Plane) applyFiles(ctx context.Context, name string, documents []plan.Document) (int, error) {
	changes, revokes, now, err := p.changes(ctx, documents)
	if err != nil {
		return 0, err
	}
	service := p.service(nil)
	written := 0
	for part := range slices.Chunk(changes, operate.MaxChanges) {
		done, err := service.Apply(ctx, FileActor, &operate.ApplyRequest{Reason: reason(name), Changes: part, Yes: true,
			AcceptLosses: true})
		if err != nil {
			return written, err
		}
		written += done.Written
		for i := range done.Results {
			for _, line := range done.Results[i].Afresh {
				p.c.Log.Warn(line)
			}
		}
	}
	for _, c := range revokes { // not checked: a key may be revoked even if its tenant is deleted or not valid
		c.Actor, c.Reason, c.Now = FileActor, reason(name), p.c.Now()
		if _, err := p.tables.Put(ctx, c); err != nil {
			return written, err
		}
		written++
	}
	for at, v := range now {
		p.written[at] = v
	}
	return written, nil
}

// reason returns the reason of a change for the audit trail.
func reason(name string) string {
	const most = 400
	text := strings.ToValidUTF8("plans file "+name, "?")
	for len(text) > most {
		text = text[:most-4]
		text = strings.ToValidUTF8(text, "") + " ..."
	}
	return text
}

// changes returns the entries of the documents that differ from those applied last, and the entries of all documents.
// The order is such that no change names an item that a later change creates.
func (p *Plane) changes(
	ctx context.Context, documents []plan.Document,
) (changes []operate.Change, revokes []control.Change, now map[control.Ref]version, err error) {
	var gone []operate.Change
	now = make(map[control.Ref]version, len(documents))
	for i := range documents {
		table, key := operate.Place(documents[i])
		body := documents[i].Body
		at, v := control.Ref{Table: table, Key: key}, version{body: sha256.Sum256(body)}
		now[at] = v
		if last, was := p.written[at]; was && last == v {
			continue
		}
		have, err := p.current(ctx, at)
		if err != nil {
			return nil, nil, nil, err
		}
		changes = append(changes, operate.Change{Table: table, Key: key, Expect: have.Version, Body: body})
	}
	for at, last := range p.written {
		if _, named := now[at]; named || last.gone {
			continue
		}
		have, err := p.current(ctx, at)
		if err != nil {
			return nil, nil, nil, err
		}
		last.gone = true
		now[at] = last
		switch {
		case have.Deleted || have.Version == 0:
		case at.Table != control.Keys:
			gone = append(gone, operate.Change{Table: at.Table, Key: at.Key, Expect: have.Version, Delete: true})
		case !revoked(have.Body):
			body, err := revoke(have.Body)
			if err != nil {
				return nil, nil, nil, err
			}
			revokes = append(revokes, control.Change{Table: at.Table, Key: at.Key, Expect: have.Version, Body: body})
		}
	}
	return append(changes, order(gone)...), revokes, now, nil
}

// current returns an item as it is stored, or an item with version 0 if it does not exist.
func (p *Plane) current(ctx context.Context, at control.Ref) (control.Item, error) {
	item, err := p.tables.Get(ctx, at.Table, at.Key)
	if errors.Is(err, control.ErrNotFound) {
		return control.Item{}, nil
	}
	return item, err
}

func revoke(body []byte) ([]byte, error) {
	var key map[string]any
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err := decoder.Decode(&key); err != nil {
		return nil, fmt.Errorf("a key that is stored: %w", err)
	}
	key["revoked"] = true
	return events.MarshalCanonical(key)
}

// order sorts deletions: tenants before the plans that they use, and then by key.
func order(gone []operate.Change) []operate.Change {
	slices.SortFunc(gone, func(a, b operate.Change) int {
		return cmp.Or(-cmp.Compare(a.Table, b.Table), cmp.Compare(a.Key, b.Key))
	})
	return gone
}
