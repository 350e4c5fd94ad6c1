package authorizer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/answer"
	"github.com/sluicelimits/sluice/internal/apigw"
	"github.com/sluicelimits/sluice/internal/identity"
	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// Bounds and default of [HandlerConfig.Deadline].
const (
	DefaultDeadline = 3 * time.Second
	minDeadline     = 10 * time.Millisecond
	maxDeadline     = 30 * time.Second
)

// HandlerConfig sets up a [Handler].
type HandlerConfig struct {
	Authorizer *Authorizer   // required; with Config.Measure where there is a Recorder
	Encoder    apigw.Encoder // which APIs see denials in their backend; the zero Encoder denies at the gateway

	Recorder *telemetry.Recorder // nil counts nothing
	Log      *slog.Logger        // default slog.Default()
	Cell     string              // in each log line; "" is left out

	// LogDenials logs each denial at Info instead of Debug: a line for each call that a client makes in vain. Calls without an
	// identity are logged at Info in any case, at most one in a second for each reason, and all of them at Debug.
	LogDenials bool

	// InvocationID is the id under which Lambda's own lines have the call, of which the context knows; nil where there is none.
	InvocationID func(context.Context) string

	// Beside is what has to be done from time to time and only gets to run while a call is under way, because the process may
	// be frozen between two: each is called beside a decision, at most every BesideEvery and never twice at once, with the time
	// by Config.Now, and decides itself whether anything is due. The answer waits for it, at most BesideWait. Its context
	// ends after Deadline, not with the call: what took longer than its call goes on beside the next.
	Beside []func(ctx context.Context, now time.Time)

	// Deadline bounds a decision, 10 ms..30 s; 0 is DefaultDeadline. What asks for longer is given up, and has the answer
	// that it has without: a store each limit's onStoreFailure, keys and configuration "caller cannot be identified right
	// now". API Gateway itself gives up after 10 s.
	Deadline time.Duration
}

// Handler answers the events that API Gateway sends to a Lambda authorizer. It has the method of aws-lambda-go's Handler. It
// is safe for concurrent use. Make it with [NewHandler].
type Handler struct {
	c      HandlerConfig
	beside beside
	quiet  quiet
	once   onceFlag
}

// NewHandler checks the configuration and makes a handler. The error names the field.
func NewHandler(c HandlerConfig) (*Handler, error) {
	if c.Deadline == 0 {
		c.Deadline = DefaultDeadline
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	switch {
	case c.Authorizer == nil:
		return nil, errors.New("authorizer: Authorizer is missing")
	case c.Recorder != nil && !c.Authorizer.c.Measure:
		return nil, errors.New("authorizer: Recorder counts how long limits take, but the Authorizer does not Measure")
	case c.Deadline < minDeadline || c.Deadline > maxDeadline:
		return nil, fmt.Errorf("authorizer: Deadline %v is outside %v..%v", c.Deadline, minDeadline, maxDeadline)
	}
	if c.Cell != "" {
		c.Log = c.Log.With("cell", c.Cell)
	}
	h := &Handler{c: c}
	for i, do := range c.Beside {
		if do == nil {
			return nil, fmt.Errorf("authorizer: Beside[%d] is nil", i)
		}
		h.beside.tasks = append(h.beside.tasks, &task{do: do})
	}
	h.beside.longest, h.beside.panicked = c.Deadline, h.panicked
	return h, nil
}

// Invoke answers one event. Errors are API Gateway's affair:
//
//   - [apigw.ErrUnauthorized], as it is: the client of a REST or WebSocket API gets a 401
//   - one that wraps [apigw.ErrEvent]: the function is attached to something that is no authorizer; it holds nothing of the event
//   - any other is a panic of ours that was caught. The gateway makes a 500 of it, on every kind of API. That is the one case
//     in which a request ends so: it is not let through, and an answer that was made halfway is not to be trusted even as a
//     denial, for in an API that passes denials on it would say "allow".
func (h *Handler) Invoke(ctx context.Context, payload []byte) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, h.panicked(ctx, p)
		}
	}()
	now := h.c.Authorizer.c.Now()
	if h.once.first() && h.c.Recorder != nil {
		h.c.Recorder.ColdStart(now)
	}
	event, err := apigw.Parse(payload)
	if err != nil {
		h.refused(ctx, now, err)
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, h.c.Deadline)
	defer cancel()
	join := h.beside.begin(ctx, now)
	if lines := event.Header[forwardedFor]; len(lines) > 0 { // so that trusted hops are the operator's own, and not the gateway
		event.Header[forwardedFor] = identity.BeforeGateway(lines, event.Peer)
	}
	a := h.c.Authorizer.Authorize(ctx, &Request{
		Method: event.Method, Path: event.Path, Header: event.Header, Peer: event.Peer, Sourceless: !event.HasContext,
	})
	h.count(a)
	h.log(ctx, event, a)
	out, err = h.encode(event, a)
	a.Release()
	join.wait()
	return out, err
}

const forwardedFor = "X-Forwarded-For"

// usualAnswer is how many bytes most answers have at most.
const usualAnswer = 1536

func (h *Handler) encode(event *apigw.Event, a *Answer) ([]byte, error) {
	if event.Unauthorized(a.Kind) {
		return nil, apigw.ErrUnauthorized
	}
	mode := ""
	if a.Mode != limit.Enforce {
		mode = a.Mode.String()
	}
	out := apigw.Answer{
		Kind: a.Kind, Header: a.Header, Tenant: a.Tenant, Subject: a.Subject, Plan: a.Plan, KeyID: a.KeyID,
		Anonymous: a.Anonymous, StoreFailed: a.StoreFailed, ConfigStale: a.ConfigStale, Mode: mode, Spared: a.Spared, Instance: a.Instance,
	}
	if !a.Allowed() {
		out.Problem = a.AppendProblem(make([]byte, 0, 768))
	}
	return h.c.Encoder.Append(make([]byte, 0, usualAnswer), event, &out)
}

// count is for metrics: it has no place for a tenant or an address.
func (h *Handler) count(a *Answer) {
	r := h.c.Recorder
	if r == nil {
		return
	}
	admitted := a.Kind == answer.Allowed && a.Spared == answer.Allowed
	full := int64(0)
	if d := a.plan.outcome(); d != nil && admitted {
		full = d.Fullest()
	}
	r.Decision(a.At, telemetry.Decision{Kind: a.Kind, Took: a.Took, Limit: a.deniedBy(), ConfigStale: a.ConfigStale, Fullest: full,
		Mode: uint8(a.Mode), Spared: a.Spared})
	if !admitted {
		return // a shadow tells what it would have denied of what passed
	}
	for _, s := range [...]*step{&a.ip, &a.plan} {
		for i, d := 0, s.outcome(); d != nil && i < len(d.Results); i++ {
			result := &d.Results[i]
			if !result.Shadow() || result.Admits {
				continue
			}
			l := result.Tier.Limit()
			r.ShadowDenied(a.At, limitName(l.ID, s == &a.ip))
			for i+1 < len(d.Results) && d.Results[i+1].Tier.Limit() == l {
				i++ // one limit denies once, however many of its tiers would
			}
		}
	}
}

// verdict is what enforcing comes to.
func (a *Answer) verdict() answer.Kind {
	if a.Kind == answer.Allowed {
		return a.Spared
	}
	return a.Kind
}

// deniedBy is the id of the limit that denied, or would have, with "ip:" before it where that is an ipLimit; "" where none did.
func (a *Answer) deniedBy() string {
	switch a.verdict() {
	case answer.Limited, answer.IPLimited, answer.NeverFits:
	default:
		return ""
	}
	d := a.Decision()
	if d == nil || d.Allowed {
		return ""
	}
	b := d.Binding()
	if b == nil {
		return ""
	}
	return limitName(b.Tier.Limit().ID, d == &a.ip.decision)
}

func limitName(id string, ip bool) string {
	if ip {
		return "ip:" + id
	}
	return id
}

// log says what became of a request, where that is worth a line.
func (h *Handler) log(ctx context.Context, event *apigw.Event, a *Answer) {
	if a.ConfigStale {
		if more, ok := h.quiet.speak("config_stale", a.At); ok {
			h.write(ctx, slog.LevelWarn, "decided on a configuration that is older than it may be", event, slog.Int64("more", more))
		}
	}
	switch a.Kind {
	case answer.Allowed:
		if level := h.atMost(h.c.LogDenials, slog.LevelInfo); a.Spared != answer.Allowed && h.c.Log.Enabled(ctx, level) {
			h.write(ctx, level, "passed in shadow", event, a.decided()...)
		}
	case answer.NoCredential, answer.BadCredential:
		more, ok := h.quiet.speak(a.Reason, a.At)
		if level := h.atMost(ok, slog.LevelInfo); h.c.Log.Enabled(ctx, level) {
			h.write(ctx, level, "not identified", event, slog.String("outcome", a.Kind.String()), slog.String("reason", a.Reason),
				slog.String("source", a.Source), slog.Int64("more", more))
		}
	case answer.Unidentified, answer.Internal:
		more, ok := h.quiet.speak(a.Kind.String(), a.At)
		if level := h.atMost(ok, slog.LevelWarn); h.c.Log.Enabled(ctx, level) {
			h.write(ctx, level, "could not be decided", event, slog.String("outcome", a.Kind.String()), slog.Any("error", a.Err),
				slog.String("instance", a.Instance), slog.Int64("more", more))
		}
	default:
		if level := h.atMost(h.c.LogDenials, slog.LevelInfo); h.c.Log.Enabled(ctx, level) {
			h.write(ctx, level, "denied", event, append(a.decided(), slog.String("instance", a.Instance))...)
		}
	}
}

// decided is what a line tells of a decision.
func (a *Answer) decided() []slog.Attr {
	return []slog.Attr{
		slog.String("outcome", a.verdict().String()), slog.String("limit", a.deniedBy()), slog.String("mode", a.Mode.String()),
		slog.String("tenant", apigw.EncodeName(a.Tenant)), slog.String("plan", a.Plan), slog.String("key_id", apigw.EncodeName(a.KeyID)),
		slog.String("source", a.Source), slog.Bool("store_failed", a.StoreFailed),
	}
}

// atMost is the level of a line that is worth this one, or else for whoever looks for something only.
func (h *Handler) atMost(worth bool, level slog.Level) slog.Level {
	if worth {
		return level
	}
	return slog.LevelDebug
}

const maxRouteBytes = 256

// write writes a line about a request. Of the event it tells what is the operator's: never a header, an address or a path.
func (h *Handler) write(ctx context.Context, level slog.Level, message string, event *apigw.Event, attrs ...slog.Attr) {
	ctx = telemetry.WithOrigin(ctx, telemetry.Origin{RequestID: event.RequestID, Trace: origin(ctx, event.Trace)})
	attrs = append(attrs, slog.String("shape", event.Shape.String()), slog.String("api", event.API), slog.String("stage", event.Stage))
	if event.Route != "" {
		attrs = append(attrs, slog.String("route", event.Route[:min(len(event.Route), maxRouteBytes)]))
	}
	if lines := event.Header["Traceparent"]; len(lines) == 1 {
		if t, err := telemetry.ParseTraceparent(lines[0]); err == nil {
			attrs = append(attrs, slog.String("traceparent_id", t.ID))
		}
	}
	h.c.Log.LogAttrs(ctx, level, message, h.invocation(ctx, attrs)...)
}

func (h *Handler) invocation(ctx context.Context, attrs []slog.Attr) []slog.Attr {
	if h.c.InvocationID == nil {
		return attrs
	}
	return append(attrs, slog.String("lambda_request_id", h.c.InvocationID(ctx)))
}

// origin is the trace that the gateway names, or the one that Lambda does: in the context, where aws-lambda-go puts it, or in
// the environment, where one that answers several calls at once has none.
func origin(ctx context.Context, xray string) telemetry.Trace {
	if t, err := telemetry.ParseXRay(xray); err == nil {
		return t
	}
	lambda, _ := ctx.Value("x-amzn-trace-id").(string) //nolint:staticcheck // the key is aws-lambda-go's
	if lambda == "" {
		lambda = os.Getenv("_X_AMZN_TRACE_ID")
	}
	t, _ := telemetry.ParseXRay(lambda) // one that is malformed counts as none
	return t
}

// refused logs and counts an event that is none of an authorizer. The error names the field that is wrong.
func (h *Handler) refused(ctx context.Context, now time.Time, err error) {
	if h.c.Recorder != nil {
		h.c.Recorder.EventRefused(now)
	}
	if more, ok := h.quiet.speak("event", now); ok {
		ctx = telemetry.WithOrigin(ctx, telemetry.Origin{Trace: origin(ctx, "")})
		h.c.Log.LogAttrs(ctx, slog.LevelError, "the event is not answered", h.invocation(ctx, []slog.Attr{slog.Any("error", err),
			slog.Int64("more", more)})...)
	}
}

// panicked logs and counts a panic. The value of one may hold anything, so only those that the runtime itself makes are told.
func (h *Handler) panicked(ctx context.Context, p any) (err error) {
	now := h.c.Authorizer.c.Now()
	if h.c.Recorder != nil {
		h.c.Recorder.Panic(now)
	}
	instance := answer.NewInstance()
	value := "a value of type " + fmt.Sprint(reflect.TypeOf(p))
	if fault, ok := p.(runtime.Error); ok {
		value = fault.Error()
	}
	at := stack()
	defer func() { _ = recover() }() // what panicked may be what logs, and there is nobody left to tell
	err = fmt.Errorf("internal error %s", instance)
	ctx = telemetry.WithOrigin(ctx, telemetry.Origin{Trace: origin(ctx, "")})
	h.c.Log.LogAttrs(ctx, slog.LevelError, "a request made the authorizer panic", h.invocation(ctx, []slog.Attr{
		slog.String("instance", instance), slog.String("panic", value), slog.String("stack", at)})...)
	return err
}

// stack is where the panic came from: functions and lines, without the arguments that the runtime would print.
func stack() string {
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
