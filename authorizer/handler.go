package authorizer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/internal/request/identity"
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
	Authorizer *Authorizer   // required; with Config.Measure if there is a Recorder
	Encoder    apigw.Encoder // says which APIs pass denials on to their backend; the zero Encoder denies at the gateway

	Recorder *telemetry.Recorder // gets the metrics; nil counts nothing
	Log      *slog.Logger        // default slog.Default()
	Cell     string              // the cell's id, for each log line; "" is left out

	// InvocationID returns the id that Lambda's own log lines give the invocation; it reads the id from the context. If
	// nil, log lines have no such id.
	InvocationID func(context.Context) string

	// BackgroundTasks are background tasks. They run in the background of requests, because the process may be frozen
	// between two requests.
	//
	// A task is started before the decision on a request, at most every BackgroundEvery, unless its last run is still
	// under way. It gets the time by Config.Now, and decides itself whether anything is due. The answer waits for the
	// tasks, for BackgroundWait at most. A task's context ends after Deadline, and not with the request: a run that
	// takes longer than its request goes on during the next one.
	BackgroundTasks []func(ctx context.Context, now time.Time)

	// Deadline is how long a decision may take, 10 ms..30 s; 0 means DefaultDeadline. It should be below the 10 s after
	// which API Gateway gives up.
	//
	// A call that is under way at the deadline is given up. If it is a store's, each limit's onStoreFailure applies. If
	// it loads keys or configuration, the answer is answer.Unidentified.
	Deadline time.Duration
}

// Handler answers the events that API Gateway sends to a Lambda authorizer. Its method Invoke makes it a Handler of
// aws-lambda-go. It is safe for concurrent use. Make it with [NewHandler].
type Handler struct {
	config           HandlerConfig
	background       backgroundTasks
	logs             logThrottle
	countedColdStart atomic.Bool
}

// NewHandler checks the configuration and makes a handler. The error names the field.
func NewHandler(config HandlerConfig) (*Handler, error) {
	if config.Deadline == 0 {
		config.Deadline = DefaultDeadline
	}
	if config.Log == nil {
		config.Log = slog.Default()
	}
	switch {
	case config.Authorizer == nil:
		return nil, errors.New("authorizer: Authorizer is missing")
	case config.Recorder != nil && !config.Authorizer.config.Measure:
		return nil, errors.New("authorizer: Recorder counts how long limits take, but the Authorizer does not Measure")
	case config.Deadline < minDeadline || config.Deadline > maxDeadline:
		return nil, fmt.Errorf("authorizer: Deadline %v is outside %v..%v", config.Deadline, minDeadline, maxDeadline)
	}
	if config.Cell != "" {
		config.Log = config.Log.With("cell", config.Cell)
	}
	h := &Handler{config: config}
	for i, run := range config.BackgroundTasks {
		if run == nil {
			return nil, fmt.Errorf("authorizer: BackgroundTasks[%d] is nil", i)
		}
		h.background.tasks = append(h.background.tasks, &backgroundTask{run: run})
	}
	h.background.timeout, h.background.onPanic = config.Deadline, h.reportPanic
	return h, nil
}

// Invoke answers one event. It parses the event, starts the background tasks, has the [Authorizer] decide, counts and
// logs the decision, encodes the answer, and waits for the background tasks.
//
// API Gateway acts on an error as follows:
//
//   - [apigw.ErrUnauthorized], unwrapped: the client of a REST or WebSocket API gets a 401.
//   - An error that wraps [apigw.ErrEvent]: the function is attached to something that sends other events. The error
//     holds nothing of the event.
//   - Any other error stands for a panic that was caught. The client gets a 500, by every kind of API. No answer is
//     encoded, not even a denial, because the answer may be incomplete: for an API that passes denials on, a denial is
//     encoded as "allow".
func (h *Handler) Invoke(ctx context.Context, payload []byte) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, h.reportPanic(ctx, p)
		}
	}()
	now := h.config.Authorizer.config.Now()
	h.countColdStart(now)
	event, err := apigw.Parse(payload)
	if err != nil {
		h.reportBadEvent(ctx, now, err)
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, h.config.Deadline)
	defer cancel()
	running := h.background.start(ctx, now)
	// The gateway appends its peer to this header. Config.TrustedHops counts the operator's own proxies only.
	if lines := event.Header[forwardedFor]; len(lines) > 0 {
		event.Header[forwardedFor] = identity.BeforeGateway(lines, event.Peer)
	}
	a := h.config.Authorizer.Authorize(ctx, &Request{
		Method: event.Method, Path: event.Path, Header: event.Header, Peer: event.Peer,
		AddressUnknown: !event.HasContext,
	})
	h.countDecision(a)
	h.logDecision(ctx, event, a)
	out, err = h.encode(event, a)
	a.Release()
	running.wait()
	return out, err
}

// Bytes that most bodies and most answers fit into. A longer one is grown to.
const (
	usualProblemBytes = 768
	usualAnswerBytes  = 1536
)

// encode returns the answer in the form that the event's API reads, or [apigw.ErrUnauthorized].
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
		Anonymous: a.Anonymous, StoreFailed: a.StoreFailed, ConfigStale: a.ConfigStale, Mode: mode,
		ShadowDenial: a.ShadowDenial,
		Instance:     a.Instance,
	}
	if !a.Allowed() {
		out.Problem = a.AppendProblem(make([]byte, 0, usualProblemBytes))
	}
	return h.config.Encoder.Append(make([]byte, 0, usualAnswerBytes), event, &out)
}

// countColdStart counts the start of this environment, at its first event.
func (h *Handler) countColdStart(now time.Time) {
	if h.config.Recorder != nil && !h.countedColdStart.Load() && h.countedColdStart.CompareAndSwap(false, true) {
		h.config.Recorder.ColdStart(now)
	}
}

// countDecision counts a decision in the metrics. Metrics hold no tenant and no address.
func (h *Handler) countDecision(a *Answer) {
	r := h.config.Recorder
	if r == nil {
		return
	}
	fullest := int64(0)
	if d := a.planCheck.decisionIfMade(); d != nil {
		fullest = d.Fullest() // 0 if the plan denies
	}
	r.Decision(a.At, telemetry.Decision{Kind: a.Kind, Took: a.Took, Limit: a.denyingLimit(), ConfigStale: a.ConfigStale,
		Fullest: fullest, Mode: uint8(a.Mode), ShadowDenial: a.ShadowDenial})
	if a.enforcedKind() == answer.Allowed {
		h.countShadowDenials(a)
	}
}

// countShadowDenials counts each shadow limit that would have denied an admitted request, once however many of its
// tiers would have. Other requests do not count, because they would have been denied without the shadow limit.
func (h *Handler) countShadowDenials(a *Answer) {
	for _, c := range [...]*check{&a.ipCheck, &a.planCheck} {
		for i, d := 0, c.decisionIfMade(); d != nil && i < len(d.Results); i++ {
			result := &d.Results[i]
			if !result.Shadow() || result.Admits {
				continue
			}
			l := result.Tier.Limit()
			h.config.Recorder.ShadowDenied(a.At, metricLimitID(l.ID, c == &a.ipCheck))
			for i+1 < len(d.Results) && d.Results[i+1].Tier.Limit() == l { // skip the limit's other tiers
				i++
			}
		}
	}
}

// enforcedKind returns the kind that the answer would have in limit.Enforce.
func (a *Answer) enforcedKind() answer.Kind {
	if a.Kind == answer.Allowed {
		return a.ShadowDenial
	}
	return a.Kind
}

// denyingLimit returns the id of the limit that denied, or would have denied in limit.Enforce, in the form of
// metricLimitID. It returns "" if no limit did.
func (a *Answer) denyingLimit() string {
	switch a.enforcedKind() {
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
	return metricLimitID(b.Tier.Limit().ID, d == &a.ipCheck.decision)
}

// metricLimitID returns the id of a limit as metrics and logs have it: with "ip:" before the id of an ipLimit.
func metricLimitID(id string, isIPLimit bool) string {
	if isIPLimit {
		return "ip:" + id
	}
	return id
}
