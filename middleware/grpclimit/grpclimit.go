// Package grpclimit limits the calls of a gRPC server, by interceptors.
//
// A call is a request with the method POST and the full method as its path, such as "/shop.v1.Orders/Get", so that
// plans can match it by pathPattern. Credentials are in its metadata: x-api-key, authorization. Handlers get the caller
// from middleware.FromContext. Metadata by which services trust Sluice (x-sluice-…, ratelimit…, x-ratelimit-…) is
// removed from every call, also from exempt ones. A call keeps its place of a limit with concurrency until its handler
// has returned or panicked.
//
// A call that is denied ends with a status: ResourceExhausted over a limit, with the exact wait as
// google.rpc.RetryInfo, if waiting helps; Unauthenticated without a good credential; PermissionDenied for tenants that
// may not call; NotFound for methods that the plans do not declare; Unavailable if the store does not answer and a
// limit has onStoreFailure closed, or if the caller could not be looked up in time; Internal for a call that the
// limiter cannot decide. Answers, denials included, have the rate-limit headers as metadata: ratelimit,
// ratelimit-policy, retry-after and so on.
package grpclimit

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/caller"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/forward"
)

// Option changes [Unary] and [Stream].
type Option func(*options)

type options struct {
	identify   func(ctx context.Context, method string) (sluice.Identity, error)
	cost       func(method string, message any) int64
	costs      func(method string, message any) sluice.Costs
	exempt     []string
	perMessage bool
}

// WithIdentity is for a server that authenticates its callers itself. f returns the caller, and credentials in the
// metadata are ignored. f is called after the ipLimits have admitted the call. Its error is sluice.ErrNoCredential or
// ErrUnidentified, or wraps one of them. Any other error refuses the credential.
func WithIdentity(f func(ctx context.Context, method string) (sluice.Identity, error)) Option {
	return func(o *options) { o.identify = f }
}

// WithCost sets a function that returns how many units a call spends of each limit that counts requests, 1..2^40. If it
// returns 0, the call costs what the plan says. The function gets the request of a unary call, nil when a stream
// begins, and, with PerMessage, each message of a stream. Never let a client choose the cost.
func WithCost(f func(method string, message any) int64) Option {
	return func(o *options) { o.cost = f }
}

// WithCosts is WithCost for limits of all units: the function returns what a call spends, by unit.
func WithCosts(f func(method string, message any) sluice.Costs) Option {
	return func(o *options) { o.costs = f }
}

// Exempt lets calls of these methods pass without a check, such as health checks. A name that ends in "/" names a
// service, and exempts all of its methods: "/grpc.health.v1.Health/".
func Exempt(methods ...string) Option {
	return func(o *options) { o.exempt = append(o.exempt, methods...) }
}

// PerMessage counts each message that the server receives on a stream as a call, in addition to the stream itself. A
// denied message ends the stream if the handler returns the error of RecvMsg.
func PerMessage() Option { return func(o *options) { o.perMessage = true } }

func read(opts []Option) *options {
	o := new(options)
	for _, opt := range opts {
		opt(o)
	}
	return o
}

func (o *options) exempts(method string) bool {
	return slices.ContainsFunc(o.exempt, func(e string) bool {
		return e == method || strings.HasSuffix(e, "/") && strings.HasPrefix(method, e)
	})
}

// Unary returns an interceptor that decides each unary call before its handler.
func Unary(limiter *sluice.Limiter, opts ...Option) grpc.UnaryServerInterceptor {
	o := read(opts)
	return func(ctx context.Context, message any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		ctx = withoutOurs(ctx)
		if o.exempts(info.FullMethod) {
			return handle(ctx, message)
		}
		d := o.decide(ctx, limiter, info.FullMethod, message, true)
		// SetHeader fails only if headers were sent before. Nothing has sent any yet.
		_ = grpc.SetHeader(ctx, headers(&d))
		if !d.Allowed {
			return nil, denial(&d)
		}
		defer limiter.Hold(d.Reservation())()
		return handle(withCaller(ctx, &d), message)
	}
}

// Stream returns an interceptor that decides each stream before its handler and, with [PerMessage], each message that
// arrives on it.
func Stream(limiter *sluice.Limiter, opts ...Option) grpc.StreamServerInterceptor {
	o := read(opts)
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		ctx := withoutOurs(stream.Context())
		if o.exempts(info.FullMethod) {
			return handle(server, &limited{ServerStream: stream, ctx: ctx, options: new(options)})
		}
		d := o.decide(ctx, limiter, info.FullMethod, nil, true)
		_ = stream.SetHeader(headers(&d)) // cannot fail here, as in Unary
		if !d.Allowed {
			return denial(&d)
		}
		defer limiter.Hold(d.Reservation())()
		return handle(server, &limited{ServerStream: stream, ctx: withCaller(ctx, &d), options: o,
			limiter: limiter,
			method:  info.FullMethod})
	}
}

// withoutOurs returns the context without the metadata that a service must accept only from Sluice.
func withoutOurs(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx) // a copy
	before := len(md)
	for key := range md {
		if forward.Ours(key) {
			delete(md, key)
		}
	}
	if len(md) == before {
		return ctx
	}
	return metadata.NewIncomingContext(ctx, md)
}

// limited is a stream whose context holds the caller.
type limited struct {
	grpc.ServerStream

	ctx     context.Context
	options *options
	limiter *sluice.Limiter
	method  string
}

// Context returns the context of the stream, with the caller.
func (s *limited) Context() context.Context { return s.ctx }

// RecvMsg receives a message and, with PerMessage, decides it.
func (s *limited) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil || !s.options.perMessage {
		return err
	}
	if d := s.options.decide(s.ctx, s.limiter, s.method, message, false); !d.Allowed {
		return denial(&d)
	}
	return nil
}

// decide asks the limiter about a call, or about a message of one, which needs no place of its own.
func (o *options) decide(ctx context.Context, limiter *sluice.Limiter, method string, message any, isCall bool,
) sluice.Decision {
	req := sluice.Request{Method: http.MethodPost, Path: method, Header: http.Header{}}
	md, _ := metadata.FromIncomingContext(ctx)
	for name, values := range md {
		if !strings.HasPrefix(name, ":") && !strings.HasSuffix(name, "-bin") {
			req.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	if p, ok := peer.FromContext(ctx); ok {
		req.Peer = p.Addr.String()
	}
	if o.cost != nil {
		req.Cost = o.cost(method, message)
	}
	if o.costs != nil {
		req.Costs = o.costs(method, message)
	}
	if !isCall {
		req.Costs = maps.Clone(req.Costs)
		if req.Costs == nil {
			req.Costs = sluice.Costs{}
		}
		req.Costs[limit.ConcurrentRequests] = 0
	}
	if o.identify != nil {
		req.Identify = func(ctx context.Context) (sluice.Identity, error) { return o.identify(ctx, method) }
	}
	return limiter.Authorize(ctx, req)
}

func withCaller(ctx context.Context, d *sluice.Decision) context.Context {
	return caller.NewContext(ctx, caller.Caller{
		Tenant: d.Tenant, Subject: d.Subject, Plan: d.Plan, KeyID: d.KeyID, Anonymous: d.Anonymous,
		StoreFailed: d.StoreFailed,
	})
}

// headers returns the rate-limit headers as metadata.
func headers(d *sluice.Decision) metadata.MD {
	h, md := http.Header{}, metadata.MD{}
	d.SetHeaders(h)
	for name, values := range h {
		if name != "Access-Control-Expose-Headers" { // that header is for browsers
			md[strings.ToLower(name)] = values
		}
	}
	return md
}

// codeOf maps reasons to codes. All other reasons are ResourceExhausted.
var codeOf = map[sluice.Reason]codes.Code{
	sluice.NoCredential: codes.Unauthenticated, sluice.BadCredential: codes.Unauthenticated,
	sluice.UnknownTenant: codes.PermissionDenied, sluice.SuspendedTenant: codes.PermissionDenied,
	sluice.NoPlan: codes.PermissionDenied, sluice.NoRoute: codes.NotFound,
	sluice.Unavailable: codes.Unavailable, sluice.Unidentified: codes.Unavailable, sluice.Internal: codes.Internal,
}

// denial returns the status of a denied call.
func denial(d *sluice.Decision) error {
	code, ok := codeOf[d.Reason]
	if !ok {
		code = codes.ResourceExhausted
	}
	s := status.New(code, "sluice: "+string(d.Reason))
	if d.RetryAfter > 0 {
		if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)}); err == nil {
			s = with
		}
	}
	return s.Err()
}
