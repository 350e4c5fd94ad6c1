package telemetry

import (
	"context"
	"io"
	"log/slog"
	"strings"
)

// Origin is what log lines about a request say of it.
type Origin struct {
	RequestID string // of Lambda or of the gateway; at most 128 bytes are told
	Trace     Trace
}

const maxRequestID = 128

type originKey struct{}

// WithOrigin is ctx for all that is done for a request. Lines that are logged with it have request_id, trace_id (W3C)
// and xray_trace_id (the same one in X-Ray's form), as far as they are known.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	if len(o.RequestID) > maxRequestID {
		o.RequestID = strings.ToValidUTF8(o.RequestID[:maxRequestID], "")
	}
	var attrs []slog.Attr
	for _, a := range []slog.Attr{
		slog.String("request_id", o.RequestID), slog.String("trace_id", o.Trace.ID),
		slog.String("xray_trace_id", o.Trace.XRay()),
	} {
		if a.Value.String() != "" {
			attrs = append(attrs, a)
		}
	}
	return context.WithValue(ctx, originKey{}, attrs)
}

// NewHandler makes a handler that writes JSON lines to w, each with what [WithOrigin] noted, at the top of the line
// even where the logger is in a group. Lines below level are not written; nil is slog.LevelInfo.
//
// The value of each attribute whose key tells that it is a secret, or the address of a client, is replaced by
// "[redacted]": see [Sensitive]. So is everything in a group of such a name, and each member of such a name in maps,
// structs and whatever else becomes JSON. What a key does not tell is not found out: no handler can save a line whose
// message holds a token.
func NewHandler(w io.Writer, level slog.Leveler) slog.Handler {
	base := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: redact})
	return &handler{Handler: base, base: base}
}

// handler is a slog.Handler with what was added to base. It remembers how that was added, for what is to stand above
// all groups has to come before the first of them.
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
