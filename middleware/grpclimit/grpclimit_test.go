package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/middleware"
	"github.com/sluicelimits/sluice/middleware/grpclimit"
)

const plans = `
routes:
  - { methods: [POST], pathPattern: "/grpc.health.v1.Health/*" }
  - { methods: [POST], pathPattern: "/grpc.reflection.v1.ServerReflection/*" }
plans:
  - id: basic
    limits:
      - { id: all, algorithm: fixed_window, threshold: 3, period: 1h }
      - id: check
        match: { pathPattern: "/grpc.health.v1.Health/Check" }
        algorithm: fixed_window
        threshold: 2
        period: 1h
tenants: [ { id: acme, plan: basic }, { id: gone, plan: basic, suspended: true } ]
`

// who is the metadata key that names the caller, for the identity function of the tests.
const who = "x-who"

func identity(ctx context.Context, _ string) (sluice.Identity, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	switch values := md.Get(who); {
	case len(values) == 0:
		return sluice.Identity{}, sluice.ErrNoCredential
	case values[0] == "bad":
		return sluice.Identity{}, errors.New("a bad credential")
	default:
		return sluice.Identity{Tenant: values[0], Subject: "hank"}, nil
	}
}

// healthServer remembers its callers.
type healthServer struct {
	*health.Server
	called []string
	forged []string // keys of metadata that only Sluice may set
}

func (h *healthServer) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse,
	error) {
	h.note(ctx)
	c, ok := middleware.FromContext(ctx)
	h.called = append(h.called, fmt.Sprint(c.Tenant, "/", c.Subject, "/", c.Plan, "/", ok))
	return h.Server.Check(ctx, req)
}

// Watch notes the metadata and ends the stream.
func (h *healthServer) Watch(_ *healthv1.HealthCheckRequest, stream healthv1.Health_WatchServer) error {
	h.note(stream.Context())
	return nil
}

func (h *healthServer) note(ctx context.Context) {
	md, _ := metadata.FromIncomingContext(ctx)
	for key := range md {
		if strings.Contains(key, "sluice") {
			h.forged = append(h.forged, key)
		}
	}
}

// serve runs a server behind the interceptors, with the limits of the plans and a clock that stands still.
func serve(t *testing.T, opts ...grpclimit.Option) (*grpc.ClientConn, *healthServer) {
	t.Helper()
	now := time.Date(2026, 3, 1, 0, 0, 10, 0, time.UTC)
	limiter, err := sluice.New(sluice.Config{PlansData: []byte(plans), Now: func() time.Time { return now },
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(grpclimit.Unary(limiter, opts...)),
		grpc.StreamInterceptor(grpclimit.Stream(limiter, opts...)))
	h := &healthServer{Server: health.NewServer()}
	healthv1.RegisterHealthServer(server, h)
	reflection.Register(server)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = limiter.Close(context.Background())
	})
	return conn, h
}

func contextAs(t *testing.T, name string) context.Context {
	if name == "" {
		return t.Context()
	}
	return metadata.AppendToOutgoingContext(t.Context(), who, name)
}

// Guarantees that no handler gets metadata in which a client passes itself off as Sluice, on exempt methods neither.
func TestForgedMetadata(t *testing.T) {
	for _, opts := range [][]grpclimit.Option{
		{grpclimit.WithIdentity(identity)}, {grpclimit.Exempt("/grpc.health.v1.Health/")},
	} {
		conn, h := serve(t, opts...)
		ctx := metadata.AppendToOutgoingContext(contextAs(t, "acme"), "x-sluice-tenant", "globex",
			"X-Sluice-Caller", "x", "x_sluice_tenant", "globex", "x-sluice-tenant-bin", "globex")
		client := healthv1.NewHealthClient(conn)
		if _, err := client.Check(ctx, &healthv1.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		stream, err := client.Watch(ctx, &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if len(h.forged) > 0 {
			t.Errorf("the handlers got %q of the client, want none", h.forged)
		}
	}
}

// Guarantees that unary calls get the status of each reason, the headers and the exact wait, and that handlers get the
// caller.
func TestUnary(t *testing.T) {
	conn, h := serve(t, grpclimit.WithIdentity(identity))
	client := healthv1.NewHealthClient(conn)
	for i, want := range []struct {
		who  string
		code codes.Code
		left string
	}{
		{"acme", codes.OK, `"check";r=1;t=3590, "all";r=2;t=3590`},
		{"acme", codes.OK, `"check";r=0;t=3590, "all";r=1;t=3590`},
		{"acme", codes.ResourceExhausted, `"check";r=0;t=3590, "all";r=1;t=3590`},
		{"", codes.Unauthenticated, ""},
		{"bad", codes.Unauthenticated, ""},
		{"gone", codes.PermissionDenied, ""},
		{"nobody", codes.PermissionDenied, ""},
	} {
		var md metadata.MD
		_, err := client.Check(contextAs(t, want.who), &healthv1.HealthCheckRequest{}, grpc.Header(&md))
		if status.Code(err) != want.code {
			t.Errorf("call %d: %v, want %s", i, err, want.code)
		}
		if got := fmt.Sprint(md.Get("ratelimit")); want.left != "" && got != "["+want.left+"]" {
			t.Errorf("call %d: ratelimit %s, want %s", i, got, want.left)
		}
		if want.code != codes.ResourceExhausted {
			continue
		}
		details := status.Convert(err).Details()
		if len(details) != 1 || details[0].(*errdetails.RetryInfo).GetRetryDelay().AsDuration() != 3590*time.Second ||
			fmt.Sprint(md.Get("retry-after")) != "[3590]" {
			t.Errorf("call %d: details %v, retry-after %v", i, details, md.Get("retry-after"))
		}
	}
	if got := fmt.Sprint(h.called); got != "[acme/hank/basic/true acme/hank/basic/true]" {
		t.Errorf("handlers were called by %s", got)
	}
	if err := conn.Invoke(contextAs(t, "acme"), "/other.Service/Method", &healthv1.HealthCheckRequest{},
		new(healthv1.HealthCheckResponse)); status.Code(err) != codes.Unimplemented {
		t.Errorf("an unknown method: %v", err) // gRPC calls no interceptor for an unknown method
	}
}

// Guarantees that exempt methods pass, that costs are charged, and that a server without WithIdentity reads credentials
// from the metadata.
func TestOptions(t *testing.T) {
	conn, _ := serve(t, grpclimit.WithIdentity(identity), grpclimit.Exempt("/grpc.health.v1.Health/"))
	for range 5 {
		if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
			t.Error(err)
		}
	}
	cost := func(_ string, message any) int64 {
		return int64(len(message.(*healthv1.HealthCheckRequest).GetService()))
	}
	costs := func(method string, message any) sluice.Costs {
		if n := cost(method, message); n > 0 {
			return sluice.Costs{"requests": n, "tokens": 5}
		}
		return nil
	}
	for _, option := range []grpclimit.Option{grpclimit.WithCost(cost), grpclimit.WithCosts(costs)} {
		conn, _ = serve(t, grpclimit.WithIdentity(identity), option)
		client := healthv1.NewHealthClient(conn)
		for _, c := range []struct {
			service string
			want    codes.Code
		}{{"xxx", codes.ResourceExhausted}, {"xx", codes.NotFound}, {"",
			codes.ResourceExhausted}} { // the handler returns NotFound
			if _, err := client.Check(contextAs(t, "acme"),
				&healthv1.HealthCheckRequest{Service: c.service}); status.Code(err) != c.want {
				t.Errorf("%q: %v, want %s", c.service, err, c.want)
			}
		}
	}
	conn, _ = serve(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "sk_no_such_key")
	if _, err := healthv1.NewHealthClient(conn).Check(ctx,
		&healthv1.HealthCheckRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a bad key: %v", err)
	}
}

// Guarantees that a stream counts as one call, or, with PerMessage, as one call and one for each message that arrives.
func TestStream(t *testing.T) {
	for _, perMessage := range []bool{false, true} {
		opts := []grpclimit.Option{grpclimit.WithIdentity(identity)}
		if perMessage {
			opts = append(opts, grpclimit.PerMessage())
		}
		conn, _ := serve(t, opts...)
		stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(contextAs(t, "acme"))
		if err != nil {
			t.Fatal(err)
		}
		answered := 0
		for range 5 {
			list := &reflectionv1.ServerReflectionRequest_ListServices{}
			if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: list}); err != nil {
				break
			}
			if _, err = stream.Recv(); err != nil {
				break
			}
			answered++
		}
		want, code := 5, codes.OK
		if perMessage {
			want, code = 2, codes.ResourceExhausted // the limit is 3, and the stream itself counts as one
		}
		if answered != want || status.Code(err) != code {
			t.Errorf("per message %v: %d answers, %v; want %d, %s", perMessage, answered, err, want, code)
		}
	}
	conn, _ := serve(t, grpclimit.WithIdentity(identity))
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(contextAs(t, "gone"))
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a suspended tenant: %v", err)
	}
}

// endless is a stream on which messages arrive without end.
type endless struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *endless) Context() context.Context      { return s.ctx }
func (s *endless) SetHeader(_ metadata.MD) error { return nil }
func (s *endless) RecvMsg(any) error             { return nil }

// Guarantees that a call keeps its place until its handler has returned or panicked, and that the messages of a stream
// need no further one.
func TestPlaces(t *testing.T) {
	text := strings.NewReplacer("limits:\n", "limits:\n      - { id: in-flight, concurrency: 1, holdFor: 30s }\n",
		"threshold: 3", "threshold: 4").Replace(plans)
	limiter, err := sluice.New(sluice.Config{Log: slog.New(slog.DiscardHandler), PlansData: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	defer limiter.Close(t.Context())
	who := grpclimit.WithIdentity(func(context.Context, string) (sluice.Identity, error) {
		return sluice.Identity{Tenant: "acme"}, nil
	})
	unary, stream := grpclimit.Unary(limiter, who), grpclimit.Stream(limiter, who, grpclimit.PerMessage())
	const method = "/grpc.reflection.v1.ServerReflection/List"
	call := func(handle grpc.UnaryHandler) (err error) {
		defer func() {
			if cause := recover(); cause != nil {
				err = fmt.Errorf("%v", cause)
			}
		}()
		_, err = unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method}, handle)
		return err
	}
	nothing := func(context.Context, any) (any, error) { return nil, nil } //nolint:nilnil // a handler of a test
	if err := call(func(context.Context, any) (any, error) { return nil, call(nothing) }); status.Code(err) !=
		codes.ResourceExhausted {
		t.Errorf("a call within a call: %v, want ResourceExhausted", err)
	}
	if err := call(func(context.Context, any) (any, error) { panic("a defect") }); fmt.Sprint(err) != "a defect" {
		t.Errorf("a handler that panics: %v", err)
	}
	err = stream(nil, &endless{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: method},
		func(_ any, s grpc.ServerStream) error { return errors.Join(s.RecvMsg(nil), call(nothing)) })
	if code := status.Code(err); code != codes.ResourceExhausted || strings.Count(err.Error(), "sluice:") != 1 {
		t.Errorf("a message and a call within a stream: %v, want that the call alone is denied", err)
	}
}
