package authorizer

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// This file holds what a [Handler] logs. A log line names ids and places that are the operator's or this package's own:
// never a credential, a header, an address, or a path that a client sent.

// logDecision logs what became of a request, at the level that its outcome deserves.
func (h *Handler) logDecision(ctx context.Context, event *apigw.Event, a *Answer) {
	if a.ConfigStale {
		if suppressed, ok := h.logs.admit("config_stale", a.At); ok {
			h.logLine(ctx, slog.LevelWarn, "decided on a configuration that is older than it may be", event,
				slog.Int64("more", suppressed))
		}
	}
	switch a.Kind {
	case answer.Allowed:
		if a.ShadowDenial != answer.Allowed && h.config.Log.Enabled(ctx, slog.LevelDebug) {
			h.logLine(ctx, slog.LevelDebug, "passed in shadow", event, a.logAttrs()...)
		}
	case answer.NoCredential, answer.BadCredential:
		suppressed, ok := h.logs.admit(a.Reason, a.At)
		if level := levelIf(ok, slog.LevelInfo); h.config.Log.Enabled(ctx, level) {
			attrs := []slog.Attr{slog.String("outcome", a.Kind.String()), slog.String("reason", a.Reason),
				slog.String("source", a.Source), slog.Int64("more", suppressed)}
			if a.Err != nil {
				attrs = append(attrs, slog.Any("error", a.Err))
			}
			h.logLine(ctx, level, "not identified", event, attrs...)
		}
	case answer.Unidentified, answer.Internal:
		suppressed, ok := h.logs.admit(a.Kind.String(), a.At)
		if level := levelIf(ok, slog.LevelWarn); h.config.Log.Enabled(ctx, level) {
			h.logLine(ctx, level, "could not be decided", event, slog.String("outcome", a.Kind.String()),
				slog.Any("error", a.Err), slog.String("instance", a.Instance), slog.Int64("more", suppressed))
		}
	default:
		if h.config.Log.Enabled(ctx, slog.LevelDebug) {
			h.logLine(ctx, slog.LevelDebug, "denied", event,
				append(a.logAttrs(), slog.String("instance", a.Instance))...)
		}
	}
}

// logAttrs returns what a log line says about a decision by limits.
func (a *Answer) logAttrs() []slog.Attr {
	return []slog.Attr{
		slog.String("outcome", a.enforcedKind().String()), slog.String("limit", a.denyingLimit()),
		slog.String("mode", a.Mode.String()), slog.String("tenant", apigw.EncodeName(a.Tenant)),
		slog.String("plan", a.Plan), slog.String("key_id", apigw.EncodeName(a.KeyID)),
		slog.String("source", a.Source), slog.Bool("store_failed", a.StoreFailed),
	}
}

// levelIf returns the level if the condition holds, and Debug if not.
func levelIf(condition bool, level slog.Level) slog.Level {
	if condition {
		return level
	}
	return slog.LevelDebug
}

// maxRouteBytes bounds the route that a log line names.
const maxRouteBytes = 256

// logLine logs a line about a request, with the ids of the request and the place in the API that it was sent to.
func (h *Handler) logLine(ctx context.Context, level slog.Level, message string, event *apigw.Event,
	attrs ...slog.Attr) {
	ctx = telemetry.WithOrigin(ctx, telemetry.Origin{RequestID: event.RequestID, Trace: traceOf(ctx, event.Trace)})
	attrs = append(attrs, slog.String("shape", event.Shape.String()), slog.String("api", event.API),
		slog.String("stage", event.Stage))
	if event.Route != "" {
		attrs = append(attrs, slog.String("route", event.Route[:min(len(event.Route), maxRouteBytes)]))
	}
	if lines := event.Header["Traceparent"]; len(lines) == 1 {
		if id := telemetry.TraceparentTrace(lines[0]); id != "" {
			attrs = append(attrs, slog.String("traceparent_id", id))
		}
	}
	h.config.Log.LogAttrs(ctx, level, message, h.appendInvocationID(ctx, attrs)...)
}

// appendInvocationID appends the id of the Lambda invocation, if HandlerConfig.InvocationID can tell it.
func (h *Handler) appendInvocationID(ctx context.Context, attrs []slog.Attr) []slog.Attr {
	if h.config.InvocationID == nil {
		return attrs
	}
	return append(attrs, slog.String("lambda_request_id", h.config.InvocationID(ctx)))
}

// traceOf returns the id of the X-Ray trace that the event names, or else of the trace that Lambda names. aws-lambda-go
// puts the latter into the context. It is also in the environment variable, unless the process answers several calls at
// once.
func traceOf(ctx context.Context, eventTrace string) string {
	if id := telemetry.XRayTrace(eventTrace); id != "" {
		return id
	}
	lambdaTrace, _ := ctx.Value("x-amzn-trace-id").(string) //nolint:staticcheck // the key is aws-lambda-go's
	if lambdaTrace == "" {
		lambdaTrace = os.Getenv("_X_AMZN_TRACE_ID")
	}
	return telemetry.XRayTrace(lambdaTrace)
}

// reportBadEvent logs and counts an event that is not an authorizer's. The error names the field that is wrong.
func (h *Handler) reportBadEvent(ctx context.Context, now time.Time, err error) {
	if h.config.Recorder != nil {
		h.config.Recorder.EventRefused(now)
	}
	if suppressed, ok := h.logs.admit("event", now); ok {
		ctx = telemetry.WithOrigin(ctx, telemetry.Origin{Trace: traceOf(ctx, "")})
		h.config.Log.LogAttrs(ctx, slog.LevelError, "the event is not answered", h.appendInvocationID(ctx, []slog.Attr{
			slog.Any("error", err), slog.Int64("more", suppressed)})...)
	}
}

// reportPanic logs and counts a panic, and returns the error that answers the request. The log line holds the panic's
// value only if the Go runtime made it; another value may hold a secret, and its type is logged.
func (h *Handler) reportPanic(ctx context.Context, value any) (err error) {
	now := h.config.Authorizer.config.Now()
	if h.config.Recorder != nil {
		h.config.Recorder.Panic(now)
	}
	instance := answer.NewInstance()
	text := "a value of type " + fmt.Sprint(reflect.TypeOf(value))
	if fault, ok := value.(runtime.Error); ok {
		text = fault.Error()
	}
	stack := panicStack()
	defer func() { _ = recover() }() // logging itself may panic, and then nothing can be logged
	err = fmt.Errorf("internal error %s", instance)
	ctx = telemetry.WithOrigin(ctx, telemetry.Origin{Trace: traceOf(ctx, "")})
	h.config.Log.LogAttrs(ctx, slog.LevelError, "a request made the authorizer panic", h.appendInvocationID(ctx,
		[]slog.Attr{slog.String("instance", instance), slog.String("panic", text), slog.String("stack", stack)})...)
	return err
}

// panicStack returns the functions and lines of the stack, the innermost first. Unlike the runtime's own text, it holds
// no arguments.
func panicStack() string {
	var b strings.Builder
	callers := make([]uintptr, 48)
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers)])
	for {
		f, more := frames.Next()
		if b.Len() > 0 {
			b.WriteString(" < ")
		}
		b.WriteString(f.Function)
		b.WriteByte(':')
		b.WriteString(strconv.Itoa(f.Line))
		if !more {
			return b.String()
		}
	}
}
