package events

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Encode returns the event as JSON on one line. The same event always gives the same bytes. Times are cut to
// microseconds. The error wraps ErrMalformed and names the field, or wraps ErrTooLarge.
func Encode(e Event) ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	var w writer
	if raw, ok := e.(*Raw); ok {
		w.out = append(w.out, raw.Data...)
	} else {
		h := e.Header()
		w.text("type", string(h.Type))
		w.integer("version", int64(h.Version))
		w.text("id", h.ID)
		w.time("time", h.Time)
		e.fields(&w)
		w.out = append(w.out, '}')
	}
	if err := checkSize(e.Header().Type, len(w.out)); err != nil {
		return nil, err
	}
	return w.out, nil
}

// Check returns the error that [Encode] would return, without encoding the event. It does not find that an event as a
// whole is too large; this cannot happen to a [Changed] or an [AuditRecord] whose bodies have at most MaxBodyBytes.
func Check(e Event) error { return e.check() }

// checkSize checks that an event is within the bound of its type.
func checkSize(t Type, size int) error {
	most := MaxBytes
	if t == AuditRecorded {
		most = MaxAuditBytes
	}
	if size > most {
		return fmt.Errorf("%w: %s has %d bytes, want at most %d", ErrTooLarge, t, size, most)
	}
	return nil
}

func (e *Changed) fields(w *writer) {
	w.text("key", e.Key)
	w.integer("item_version", e.ItemVersion)
	w.boolean("deleted", e.Deleted)
	w.text("hash", e.Hash)
	w.body("body", e.Body)
}

func (e *AuditRecord) fields(w *writer) {
	w.text("table", string(e.Table))
	w.text("key", e.Key)
	w.integer("item_version", e.ItemVersion)
	w.text("actor", e.Actor)
	w.text("reason", e.Reason)
	w.boolean("deleted", e.Deleted)
	w.body("before", e.Before)
	w.body("after", e.After)
	w.text("prev_hash", e.PrevHash)
	w.text("hash", e.Hash)
}

func (e *Raw) fields(*writer) {}

// writer writes the fields of an object in the order of its calls. It copies a body as it is: encoding/json would
// escape it again.
type writer struct{ out []byte }

func (w *writer) name(name string) {
	sep := byte(',')
	if len(w.out) == 0 {
		sep = '{'
	}
	w.out = append(AppendString(append(w.out, sep), name), ':')
}

func (w *writer) text(name, s string) {
	w.name(name)
	w.out = AppendString(w.out, s)
}

func (w *writer) integer(name string, n int64) {
	w.name(name)
	w.out = strconv.AppendInt(w.out, n, 10)
}

func (w *writer) boolean(name string, b bool) {
	w.name(name)
	w.out = strconv.AppendBool(w.out, b)
}

func (w *writer) time(name string, t time.Time) { w.text(name, instant(t).Format(TimeLayout)) }

func (w *writer) body(name string, body json.RawMessage) {
	w.name(name)
	if body == nil {
		body = json.RawMessage("null")
	}
	w.out = append(w.out, body...)
}
