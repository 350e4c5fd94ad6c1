package telemetry

import (
	"context"
	"io"
	"log/slog"
	"strings"
)

// Origin says which request log lines belong to.
type Origin struct {
	RequestID string // of Lambda or of the gateway; log lines have its first 128 bytes
	Trace     string // id of the trace, as [XRayTrace] returns it; "" if there is none
}

const maxRequestID = 128

type originKey struct{}

// WithOrigin returns a context for all work on a request. Lines that are logged with it have request_id, trace_id (in
// W3C's form) and xray_trace_id (the same id in X-Ray's form), if they are known.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	if len(o.RequestID) > maxRequestID {
		o.RequestID = strings.ToValidUTF8(o.RequestID[:maxRequestID], "")
	}
	var attrs []slog.Attr
	for _, a := range []slog.Attr{
		slog.String("request_id", o.RequestID), slog.String("trace_id", o.Trace),
		slog.String("xray_trace_id", xrayForm(o.Trace)),
	} {
		if a.Value.String() != "" {
			attrs = append(attrs, a)
		}
	}
	return context.WithValue(ctx, originKey{}, attrs)
}

// NewHandler returns a handler that writes JSON lines to w. It adds the fields of [WithOrigin] at the top of each line,
// even if the logger has a group. Lines below level are not written; nil means slog.LevelInfo.
//
// The handler replaces the value of each attribute whose key names a secret or a client's address by "[redacted]": see
// [Sensitive]. It redacts everything in a group with such a name, and each member with such a name in maps, structs and
// other values that become JSON. It looks at keys only: a token in the text of a message is logged.
func NewHandler(w io.Writer, level slog.Leveler) slog.Handler {
	base := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: redact})
	return &handler{Handler: base, base: base}
}

// handler is a slog.Handler that adds attributes and groups to base. It remembers them in order, because attributes at
// the top of the line must be added before the first group.
type handler struct {
	slog.Handler
	base    slog.Handler
	added   []func(slog.Handler) slog.Handler
	grouped bool
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	origin, _ := ctx.Value(originKey{}).([]slog.Attr)
	switch {
	case len(origin) == 0:
		return h.Handler.Handle(ctx, r)
	case !h.grouped:
		return h.Handler.WithAttrs(origin).Handle(ctx, r)
	}
	out := h.base.WithAttrs(origin)
	for _, add := range h.added {
		out = add(out)
	}
	return out.Handle(ctx, r)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(false, func(to slog.Handler) slog.Handler { return to.WithAttrs(attrs) })
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return h.with(true, func(to slog.Handler) slog.Handler { return to.WithGroup(name) })
}

func (h *handler) with(group bool, add func(slog.Handler) slog.Handler) slog.Handler {
	return &handler{
		Handler: add(h.Handler),
		base:    h.base,
		added:   append(h.added[:len(h.added):len(h.added)], add),
		grouped: h.grouped || group,
	}
}
