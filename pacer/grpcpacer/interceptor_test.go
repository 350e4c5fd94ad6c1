package grpcpacer_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/pacer/grpcpacer"
)

func open(t *testing.T, c pacer.Config) *pacer.Pacer {
	t.Helper()
	p, err := pacer.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// newInvoker is the rest of a unary call: its metadata, and its error.
func newInvoker(err error, header metadata.MD) grpc.UnaryInvoker {
	return func(_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, options ...grpc.CallOption) error {
		for _, o := range options {
			if h, ok := o.(grpc.HeaderCallOption); ok {
				*h.HeaderAddr = header
			}
		}
		return err
	}
}

// Calls wait for their turn, and one that would be late fails at once and is not sent.
func TestUnary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.PerSecond(2)})
		i := (&grpcpacer.Interceptor{Pacer: p}).Unary()
		began := time.Now()
		for range 5 {
			if err := i(t.Context(), "/a.B/C", nil, nil, nil, newInvoker(nil, nil)); err != nil {
				t.Fatal(err)
			}
		}
		if got := time.Since(began).Truncate(time.Second); got != 2*time.Second {
			t.Errorf("5 calls at 2 per second took %s", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_ = i(t.Context(), "/a.B/C", nil, nil, nil, newInvoker(nil, nil))
		sent := false
		err := i(ctx, "/a.B/C", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn,
			...grpc.CallOption,
		) error {
			sent = true
			return nil
		})
		var late *pacer.LateError
		if !errors.As(err, &late) || sent {
			t.Errorf("a late call: error %v, sent: %t; want a LateError and nothing sent", err, sent)
		}
	})
}

// What a status and the metadata say is obeyed.
func TestUnaryObeys(t *testing.T) {
	withDelay := func(code codes.Code) error {
		s, err := status.New(code, "slow down").WithDetails(&errdetails.RetryInfo{
			RetryDelay: durationpb.New(2500 * time.Millisecond)})
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	for name, tt := range map[string]struct {
		err    error
		header metadata.MD
		pause  time.Duration // the least time until the next call
	}{
		"ResourceExhausted":             {status.Error(codes.ResourceExhausted, "quota"), nil, 0},
		"ResourceExhausted with delay":  {withDelay(codes.ResourceExhausted), nil, 2500 * time.Millisecond},
		"Unavailable with delay":        {withDelay(codes.Unavailable), nil, 2500 * time.Millisecond},
		"Unavailable":                   {status.Error(codes.Unavailable, "no connection"), nil, 0},
		"NotFound":                      {status.Error(codes.NotFound, "nothing there"), nil, 0},
		"metadata":                      {nil, metadata.Pairs("retry-after", "3"), 3 * time.Second},
		"success":                       {nil, nil, 0},
		"an error that is not a status": {io.ErrUnexpectedEOF, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := open(t, pacer.Config{Limit: pacer.PerSecond(100)})
				i := (&grpcpacer.Interceptor{Pacer: p}).Unary()
				began := time.Now()
				if err := i(t.Context(), "/a.B/C", nil, nil, nil, newInvoker(tt.err, tt.header)); !errors.Is(err,
					tt.err) {
					t.Errorf("the error is %v, want %v", err, tt.err)
				}
				_ = i(t.Context(), "/a.B/C", nil, nil, nil, newInvoker(nil, nil))
				if got := time.Since(began); got < tt.pause || tt.pause == 0 && got > 0 {
					t.Errorf("the next call was sent after %s, want %s", got, tt.pause)
				}
			})
		})
	}
}

// fakeStream is the rest of a stream.
type fakeStream struct {
	grpc.ClientStream
	ctx  context.Context
	sent int
	end  error
}

func (f *fakeStream) Context() context.Context   { return f.ctx }
func (f *fakeStream) SendMsg(any) error          { f.sent++; return nil }
func (f *fakeStream) RecvMsg(any) error          { return f.end }
func (*fakeStream) Header() (metadata.MD, error) { return nil, nil }
func (*fakeStream) Trailer() metadata.MD         { return metadata.Pairs("retry-after", "4") }
func streamer(f *fakeStream, err error) grpc.Streamer {
	return func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream,
		error,
	) {
		return f, err
	}
}

// A stream waits once. Its end is shown to the pacer, once.
func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.PerSecond(1)})
		i := (&grpcpacer.Interceptor{Pacer: p}).Stream()
		f := &fakeStream{ctx: t.Context(), end: io.EOF}
		began := time.Now()
		s, err := i(t.Context(), nil, nil, "/a.B/C", streamer(f, nil))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := s.SendMsg(nil); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began).Truncate(time.Second); took != 0 || f.sent != 3 {
			t.Errorf("%d messages took %s, want 3 at once", f.sent, took)
		}
		for range 2 {
			if err := s.RecvMsg(nil); !errors.Is(err, io.EOF) {
				t.Errorf("the end of the stream gives %v, want io.EOF", err)
			}
		}
		ended := time.Now()
		if _, err := p.Acquire(t.Context(), "", 1); err != nil || time.Since(ended) < 4*time.Second {
			t.Errorf("%s passed after the end of the stream, want the 4 s of its trailer; %v",
				time.Since(ended), err)
		}
	})
}

// A stream that cannot be opened, or whose context ends while it waits, is an error.
func TestStreamFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.Limit{Units: 1, Period: time.Hour}})
		i := (&grpcpacer.Interceptor{Pacer: p}).Stream()
		wrong := status.Error(codes.PermissionDenied, "no")
		if _, err := i(t.Context(), nil, nil, "/a.B/C", streamer(nil, wrong)); !errors.Is(err, wrong) {
			t.Errorf("a stream that cannot be opened: %v, want %v", err, wrong)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := i(ctx, nil, nil, "/a.B/C", streamer(nil, nil)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a stream whose context ends while it waits: %v, want DeadlineExceeded", err)
		}
	})
}
