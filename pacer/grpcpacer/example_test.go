package grpcpacer_test

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/pacer/grpcpacer"
)

// Calls and streams of a connection wait for their turn.
func Example() {
	const target = "localhost:50051"
	p, err := pacer.New(pacer.Config{Limit: pacer.PerSecond(100)})
	if err != nil {
		panic(err)
	}
	i := &grpcpacer.Interceptor{Pacer: p}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(credentials.NewTLS(nil)),
		grpc.WithUnaryInterceptor(i.Unary()), grpc.WithStreamInterceptor(i.Stream()),
		grpc.WithDisableRetry())
	if err != nil {
		panic(err)
	}
	_ = conn
}
