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

	"github.com/sluicelimits/sluice/events/canonical"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/plan"
)

// FileActor is who writes what plans files say, as the audit trail has it.
const FileActor = "dev"

const (
	tries   = 5
	applyIn = time.Minute // of one time through the files
)

// place is that of an item.
type place struct {
	table control.Table
	key   string
}

// version is what plans files made of an item last.
type version struct {
	body [sha256.Size]byte
	gone bool // deleted, or a key revoked
}

// ApplyFiles brings into the control tables what plans files say, and returns how many items that changed. name is
// theirs.
//
// An item is written when what the files say of it is not what they said of it last, in this process or one before it;
// so what operators have changed since stays until then, and what the files never said anything about is theirs alone.
// What the files do not hold any more is deleted, and a key is revoked. All of it is checked together first: where
// anything is wrong, the error is a *plan.Error and nothing is written.
func (p *Plane) ApplyFiles(ctx context.Context, name string, sources []plan.Source) (int, error) {
	documents, err := plan.Split(p.c.Now(), sources...)
	if err != nil {
		return 0, err
	}
	if err := p.knowsPeppers(name, documents); err != nil {
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
		var refused *call.Error
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, control.ErrConflict) && try < tries: // an operator was faster
			continue
		case !errors.As(err, &refused):
			return n, err
		case refused.Code == call.Conflict && try < tries: // the same
			continue
		}
		return n, problems(name, refused)
	}
}

// problems is a refusal as an error of the files.
func problems(name string, refused *call.Error) error {
	out := &plan.Error{}
	for _, text := range refused.Problems {
		out.Problems = append(out.Problems, plan.Problem{File: name, Message: text})
	}
	if len(out.Problems) == 0 {
		out.Problems = []plan.Problem{{File: name, Message: refused.Error()}}
	}
	return out
}

// knowsPeppers refuses keys that no request could show.
func (p *Plane) knowsPeppers(name string, documents []plan.Document) error {
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

// remember is what plans files made of each item last, from the history.
func (p *Plane) remember(ctx context.Context) (map[place]version, error) {
	written := map[place]version{}
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
				written[place{r.New.Table, r.New.Key}] = version{sha256.Sum256(r.New.Body), r.New.Deleted ||
					r.New.Table == control.Keys && revoked(r.New.Body)}
			}
		}
	}
}

func revoked(body []byte) bool {
	var key struct{ Revoked bool }
	return json.Unmarshal(body, &key) == nil && key.Revoked
}

// applyFiles is one try.
func (p *Plane) applyFiles(ctx context.Context, name string, documents []plan.Document) (int, error) {
	changes, revokes, now, err := p.changes(ctx, documents)
	if err != nil {
		return 0, err
	}
	service, err := p.service(nil)
	if err != nil {
		return 0, err
	}
	written := 0
	for part := range slices.Chunk(changes, admin.MaxChanges) {
		done, err := service.Apply(ctx, FileActor, &admin.ApplyRequest{Reason: reason(name), Changes: part, Yes: true,
			AcceptLosses: true})
		if err != nil {
			return written, err
		}
		written += done.Written
		for _, line := range done.Afresh {
			p.c.Log.Warn(line)
		}
	}
	for _, c := range revokes { // past the checks: a key may be revoked whatever became of its tenant
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

// reason is a line of the audit trail.
func reason(name string) string {
	const most = 400
	text := strings.ToValidUTF8("plans file "+name, "?")
	for len(text) > most {
		text = text[:most-4]
		text = strings.ToValidUTF8(text, "") + " ..."
	}
	return text
}

// changes are what the documents say that they did not say last, in an order in which none names what comes after it,
// and what all of them will have said last then.
func (p *Plane) changes(
	ctx context.Context, documents []plan.Document,
) (changes []admin.Change, revokes []control.Change, now map[place]version, err error) {
	var gone []admin.Change
	now = make(map[place]version, len(documents))
	for i := range documents {
		table, key := admin.Place(documents[i])
		body := documents[i].Body
		at, v := place{table, key}, version{body: sha256.Sum256(body)}
		now[at] = v
		if last, was := p.written[at]; was && last == v {
			continue
		}
		have, err := p.have(ctx, at)
		if err != nil {
			return nil, nil, nil, err
		}
		changes = append(changes, admin.Change{Table: table, Key: key, Expect: have.Version, Body: body})
	}
	for at, last := range p.written {
		if _, named := now[at]; named || last.gone {
			continue
		}
		have, err := p.have(ctx, at)
		if err != nil {
			return nil, nil, nil, err
		}
		last.gone = true
		now[at] = last
		switch {
		case have.Deleted || have.Version == 0:
		case at.table != control.Keys:
			gone = append(gone, admin.Change{Table: at.table, Key: at.key, Expect: have.Version, Delete: true})
		case !revoked(have.Body):
			body, err := revoke(have.Body)
			if err != nil {
				return nil, nil, nil, err
			}
			revokes = append(revokes, control.Change{Table: at.table, Key: at.key, Expect: have.Version, Body: body})
		}
	}
	return append(changes, order(gone)...), revokes, now, nil
}

// have is an item, or one of version 0.
func (p *Plane) have(ctx context.Context, at place) (control.Item, error) {
	item, err := p.tables.Get(ctx, at.table, at.key)
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
	return canonical.Marshal(key)
}

// order has tenants go before plans, each by its key.
func order(gone []admin.Change) []admin.Change {
	slices.SortFunc(gone, func(a, b admin.Change) int {
		return cmp.Or(-cmp.Compare(a.Table, b.Table), cmp.Compare(a.Key, b.Key))
	})
	return gone
}
