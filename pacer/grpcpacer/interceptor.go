// Package grpcpacer makes the calls of a gRPC client wait for their turn in a [pacer.Pacer].
package grpcpacer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/pacer"
)

// Interceptor makes calls wait, and shows their replies to the pacer ([pacer.Pacer.Observe]):
//
//   - ResourceExhausted is a refusal, and so is Unavailable if it states a RetryInfo. Otherwise Unavailable says that
//     there is no connection, and teaches nothing.
//   - The delay of a RetryInfo is obeyed like the Retry-After of HTTP.
//   - Metadata of the reply is read like a header of HTTP: ratelimit, x-ratelimit-remaining, retry-after, and so on.
//
// gRPC repeats some calls by itself, out of sight of interceptors. Use grpc.WithDisableRetry, so that each attempt is a
// call of its own, which waits for its turn.
type Interceptor struct {
	Pacer *pacer.Pacer

	// Key returns the key of a call. If nil, all calls have the key "".
	Key func(ctx context.Context, method string) string

	// Cost returns the cost of a call in units. If nil, each costs 1.
	Cost func(ctx context.Context, method string) int64
}

// Unary returns the interceptor of calls with one request and one reply. Its errors are those of [pacer.Pacer.Acquire]
// and of the call.
func (i *Interceptor) Unary() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		permit, err := i.acquire(ctx, method)
		if err != nil {
			return err
		}
		var header, trailer metadata.MD
		options = append(options[:len(options):len(options)], grpc.Header(&header), grpc.Trailer(&trailer))
		err = call(ctx, method, request, reply, conn, options...)
		i.observe(err, permit, header, trailer)
		return err
	}
}

// Stream returns the interceptor of streams. A stream waits once, before it opens. Its errors are those of
// [pacer.Pacer.Acquire] and of the stream.
func (i *Interceptor) Stream() grpc.StreamClientInterceptor {
	return func(ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string,
		open grpc.Streamer, options ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		permit, err := i.acquire(ctx, method)
		if err != nil {
			return nil, err
		}
		opened, err := open(ctx, description, conn, method, options...)
		if err != nil {
			i.observe(err, permit)
			return nil, err
		}
		return &stream{ClientStream: opened, of: i, permit: permit}, nil
	}
}

// acquire waits for the units of a call, and returns when they may be used. If the goroutine was suspended beyond that
// time, it waits again.
func (i *Interceptor) acquire(ctx context.Context, method string) (permit pacer.Permit, err error) {
	key, cost := "", int64(1)
	if i.Key != nil {
		key = i.Key(ctx, method)
	}
	if i.Cost != nil {
		cost = i.Cost(ctx, method)
	}
	for {
		if permit, err = i.Pacer.Acquire(ctx, key, cost); err != nil {
			return permit, err
		}
		if permit.InTime() {
			return permit, nil
		}
		permit.Release()
	}
}

// observe shows the end of a call to the pacer.
func (i *Interceptor) observe(err error, permit pacer.Permit, replies ...metadata.MD) {
	reply := pacer.Reply{Header: http.Header{}, Permit: permit, Received: time.Now()}
	for _, md := range replies {
		for name, values := range md {
			reply.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	if err != nil {
		s := status.Convert(err)
		wait, told := retryDelay(s)
		if told {
			reply.Header.Set("Retry-After", strconv.FormatFloat(wait.Seconds(), 'f', -1, 64))
		}
		switch code := s.Code(); {
		case code == codes.Unavailable && !told, code == codes.Canceled, code == codes.DeadlineExceeded:
			return // the provider has not answered
		}
	}
	i.Pacer.Observe(reply)
}

// retryDelay returns how long a status asks to wait.
func retryDelay(s *status.Status) (time.Duration, bool) {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

// stream is a stream whose end is shown to the pacer.
type stream struct {
	grpc.ClientStream
	of       *Interceptor
	permit   pacer.Permit
	observed bool // one goroutine at a time may receive, so no lock is needed
}

// RecvMsg receives a message. The error that ends a stream is shown to the pacer.
func (s *stream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	if err == nil {
		return nil
	}
	if !s.observed {
		s.observed = true
		header, _ := s.Header() // the stream has ended, so there is nothing to wait for
		ended := err
		if errors.Is(ended, io.EOF) {
			ended = nil
		}
		s.of.observe(ended, s.permit, header, s.Trailer())
	}
	return err
}
