// Package operate contains the operations of operators. Those of a [Control] change and read the control tables; those
// of a [Cell] reach the counters of one cell. One table (table.go) lists all of them.
//
// Every operation is a POST of one JSON object to a path of its own, so that an IAM policy can permit or deny each
// operation. Each path has exactly one spelling, and a call with any other gets NotFound: IAM compares paths as they
// are sent, so a second spelling of a path would evade a policy that denies the operation. The answer is one JSON
// object: the operation's own, or {"error": …}, see [Error].
//
// Each change is a conditional write with an actor, a reason, and the version that the operator saw. The actor is never
// read from the call itself. Behind API Gateway it is the IAM identity that API Gateway has checked, see [Lambda]; on a
// developer's machine it is the user who runs the process, see [Local].
//
// # Cells
//
// An item of the table cells holds the desired state of a cell, in the form of a [shares.Request]: see [CellDocument].
// The operations only write the item. The balancer reads it and carries out the request later. A tenant's pin is such a
// request, too, in an item of its own: see [PinKey].
//
// # Counters
//
// Each call of an operation on counters is recorded as an item in the table operations. Version 1 says who asks for
// what and why, and is written before anything is done; version 2 holds the outcome. If there is only version 1, the
// operation was interrupted and may have had its effect.
//
// An operation reaches the counters of tenants in the cell's store. It does not reach
//
//   - units that instances have leased. Leased units of a token_bucket count as used until their slot ends. Those of
//     other algorithms stay with the instance that leased them. The instance may spend them in addition to what the
//     counter admits after the operation, or give them back, which lowers a count that no longer contains them. After a
//     reset, a window therefore admits at most the threshold and the units leased at the time of the reset. Leases end
//     within 10 s, those of another cell's quota within 60 s;
//   - denials that instances remember, for at most 5 s, and their backstop counters while the store is unavailable;
//   - other cells, which have counters of their own. Only a quota is counted in the tenant's home cell, which the
//     operation reaches from every cell that has access to it. Limits of which the cell grants nothing are left out; an
//     operation on such a limit is refused;
//   - counters per address, so that no operator's call has an address of a client: ipLimits, and limits per ip;
//   - counters per claim.
//
// Reset works on every algorithm. Refund works on counters of windows and quotas, and on leaky_bucket, whose next free
// time becomes earlier, at the earliest the present. It does not work on token_bucket: what the bucket has refilled
// since the units were charged has already made up for them, and without a receipt nobody knows how much that is. Nor
// does it work on sliding_log and sliding_buckets, where each unit belongs to the time at which it was charged.
package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
)

// MaxBodyBytes is the largest size of a call. Lambda takes 6 MB for the whole event, in which each quotation mark of
// the call takes two bytes.
const MaxBodyBytes = 3 << 20

// Code says why a call was not carried out.
type Code string

// The codes, with their HTTP statuses.
const (
	Invalid      Code = "invalid"            // 400: the call, or its result, would not be valid; nothing was written
	Unauthorized Code = "unauthorized"       // 401: the token of RequireToken is missing or wrong
	Forbidden    Code = "forbidden"          // 403: the caller is unknown
	NotFound     Code = "not_found"          // 404
	NoOperation  Code = "no_operation"       // 404: there is no operation with the path
	Method       Code = "method_not_allowed" // 405
	Conflict     Code = "conflict"           // 409: others have changed the items; Conflicts holds the present versions
	// 409: the change removes or weakens what Problems names, and the call does not accept that
	Confirm     Code = "confirm"
	TooLarge    Code = "too_large"   // 413
	MediaType   Code = "media_type"  // 415
	Internal    Code = "internal"    // 500
	Damaged     Code = "damaged"     // 500: what is stored was not written by Sluice
	Unsupported Code = "unsupported" // 501: not available here; the message says what is
	Unavailable Code = "unavailable" // 503: something that the operation needs did not answer; the call may be repeated
)

var statuses = map[Code]int{
	Invalid: http.StatusBadRequest, Unauthorized: http.StatusUnauthorized, Forbidden: http.StatusForbidden,
	NotFound: http.StatusNotFound, NoOperation: http.StatusNotFound, Damaged: http.StatusInternalServerError,
	Method:   http.StatusMethodNotAllowed,
	Conflict: http.StatusConflict, Confirm: http.StatusConflict, TooLarge: http.StatusRequestEntityTooLarge,
	MediaType: http.StatusUnsupportedMediaType, Internal: http.StatusInternalServerError,
	Unsupported: http.StatusNotImplemented, Unavailable: http.StatusServiceUnavailable,
}

// Clash is an item that another operator has changed.
type Clash struct {
	Table  control.Table `json:"table"`
	Key    string        `json:"key"`
	Expect int64         `json:"expect"` // the version that the caller saw; 0: no version
	Have   *control.Item `json:"have"`   // the present version; null: there is none
}

// String describes the clash in one line.
func (c Clash) String() string {
	saw, name := fmt.Sprintf("version %d", c.Expect), fmt.Sprintf("%s/%q", c.Table, c.Key)
	if c.Expect == 0 {
		saw = "none"
	}
	if c.Have == nil {
		return fmt.Sprintf("%s: you saw %s, but there is no such item", name, saw)
	}
	what := fmt.Sprintf("it is now version %d", c.Have.Version)
	if c.Have.Deleted {
		what = fmt.Sprintf("it was deleted with version %d", c.Have.Version)
	}
	return fmt.Sprintf("%s: you saw %s, and %s, by %s at %s: %s", name, saw, what, c.Have.Actor,
		c.Have.ChangedAt.Format(time.RFC3339), c.Have.Reason)
}

// Error says why a call was not carried out.
type Error struct {
	Code      Code     `json:"code"`
	Message   string   `json:"message"`             // one sentence; contains no secret
	Problems  []string `json:"problems,omitempty"`  // with Invalid and Confirm: one sentence for each
	Conflicts []Clash  `json:"conflicts,omitempty"` // with Conflict
	Written   int      `json:"written,omitempty"`   // items that were written before the error
}

// Error returns the message, followed by each problem and conflict on a line of its own.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Message)
	for _, p := range e.Problems {
		b.WriteString("\n  " + p)
	}
	for _, c := range e.Conflicts {
		b.WriteString("\n  " + c.String())
	}
	if e.Written > 0 {
		fmt.Fprintf(&b, "\n  items written before the error: %d", e.Written)
	}
	return b.String()
}

// Refuse makes an Error.
func Refuse(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Mux answers calls with the operations of a service, by their paths. It is safe for concurrent use. [Control.Mux] and
// [Cell.Mux] make it.
type Mux struct {
	service    any
	operations map[string]Operation
	log        *slog.Logger
}

func newMux(service any, log *slog.Logger, operations []Operation) *Mux {
	m := &Mux{service, map[string]Operation{}, log}
	for _, o := range operations {
		m.operations[o.Path] = o
	}
	return m
}

// input is a call, in the form that Lambda and Local have in common.
type input struct {
	actor, method, path, mediaType string
	body                           []byte
}

// do carries out a call. It does not panic.
func (m *Mux) do(ctx context.Context, in *input) (status int, answer []byte) {
	out, err := m.call(ctx, in)
	if err == nil {
		if answer, err = encode(out); err == nil {
			return http.StatusOK, answer
		}
	}
	var refused *Error
	switch {
	case errors.As(err, &refused):
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		refused = Refuse(Unavailable, "the call ran out of time: repeat it")
	default:
		m.log.ErrorContext(ctx, "an operator's call failed", "operation", in.path, "actor", in.actor, "error", err)
		refused = Refuse(Internal, "the operation failed; the log of the function says why")
	}
	return refused.answer()
}

// answer returns the status and the body of the answer that holds the error.
func (e *Error) answer() (status int, body []byte) {
	body, err := encode(struct {
		Error *Error `json:"error"`
	}{e})
	if err != nil { // not reached: the fields are text, numbers, and bodies that were stored as JSON
		return http.StatusInternalServerError,
			[]byte(`{"error":{"code":"internal","message":"the answer cannot be written"}}`)
	}
	return statuses[e.Code], body
}

// encode returns v as JSON. It does not escape < as \u003c, as json.Marshal does, so that the bodies of items stay in
// canonical form.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func (m *Mux) call(ctx context.Context, in *input) (out any, err error) {
	defer func() {
		if p := recover(); p != nil {
			m.log.ErrorContext(ctx, "an operator's call panicked", "operation", in.path, "panic", fmt.Sprint(p))
			out, err = nil, Refuse(Internal, "the operation failed; the log of the function says why")
		}
	}()
	operation, ok := m.operations[in.path] // exactly, since IAM decides on the path as it was sent
	mediaType, _, _ := strings.Cut(in.mediaType, ";")
	switch {
	case events.CheckText(in.actor) != nil:
		return nil, Refuse(Forbidden, "the caller is unknown")
	case !ok:
		return nil, Refuse(NoOperation, "there is no operation %.80q", in.path)
	case in.method != http.MethodPost:
		return nil, Refuse(Method, "an operation is a POST")
	case !strings.EqualFold(strings.TrimSpace(mediaType), "application/json"):
		return nil, Refuse(MediaType, "the content type is not application/json")
	case len(in.body) > MaxBodyBytes:
		return nil, Refuse(TooLarge, "the call has %d bytes, want at most %d", len(in.body), MaxBodyBytes)
	}
	return operation.do(ctx, m.service, in.actor, in.body)
}

// decode reads a JSON object into a struct, strictly.
func decode(body []byte, into any) error {
	clean, err := events.Canonical(body)
	if err != nil {
		return Refuse(Invalid, "the call is not a JSON object: %v", strings.TrimPrefix(err.Error(),
			events.ErrNotCanonical.Error()+": "))
	}
	return decodeValue(reflect.ValueOf(into).Elem(), clean, "")
}

// decodeValue reads a value, which the call has at a path such as changes[0].key. It refuses members that a struct does
// not have: encoding/json would accept "Reason" for reason, and ignore unknown members.
func decodeValue(v reflect.Value, raw []byte, at string) error {
	t := v.Type()
	switch {
	case t.Kind() == reflect.Pointer && string(raw) != "null":
		v.Set(reflect.New(t.Elem()))
		return decodeValue(v.Elem(), raw, at)
	case t.Kind() == reflect.Slice && t != reflect.TypeFor[json.RawMessage]():
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) != nil {
			break
		}
		v.Set(reflect.MakeSlice(t, len(list), len(list)))
		for i, one := range list {
			if err := decodeValue(v.Index(i), one, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
		return nil
	case t.Kind() == reflect.Struct && t != reflect.TypeFor[time.Time]():
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil {
			break
		}
		return decodeMembers(v, members, at)
	case json.Unmarshal(raw, v.Addr().Interface()) == nil:
		return nil
	}
	return Refuse(Invalid, "%s: want %s", at, kindName(t))
}

func decodeMembers(v reflect.Value, members map[string]json.RawMessage, at string) error {
	fields := map[string]reflect.Value{}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		fields[name] = v.Field(i)
	}
	if at != "" {
		at += "."
	}
	for name, raw := range members {
		field, ok := fields[name]
		if !ok {
			return Refuse(Invalid, "%s%.64s: there is no such member", at, name)
		}
		if err := decodeValue(field, raw, at+name); err != nil {
			return err
		}
	}
	return nil
}

func kindName(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "a time as in 2027-01-01T00:00:00Z"
	case t == reflect.TypeFor[json.Number]():
		return "a number"
	case t.Kind() == reflect.String:
		return "a text"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.Kind() == reflect.Struct:
		return "an object"
	default:
		return "an integer"
	}
}
