package bench

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/coocood/freecache"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	peerconfig "github.com/envoyproxy/ratelimit/src/config"
	"github.com/envoyproxy/ratelimit/src/provider"
	peerredis "github.com/envoyproxy/ratelimit/src/redis"
	peer "github.com/envoyproxy/ratelimit/src/service"
	"github.com/envoyproxy/ratelimit/src/settings"
	peerstats "github.com/envoyproxy/ratelimit/src/stats"
	"github.com/envoyproxy/ratelimit/src/utils"
	gostats "github.com/lyft/gostats"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	limitermetrics "github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/server"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
	"github.com/sluicelimits/sluice/internal/server/rls"
)

// The kinds of servers.
const (
	rlsOurs        = "sluice serve"
	rlsPeer        = "envoyproxy/ratelimit, tuned" // with a pipeline window of 150 µs and a local cache
	rlsPeerDefault = "envoyproxy/ratelimit"        // with neither, which is its default
	rlsUndecided   = "a server that decides nothing"
)

// rlsOrder is the first message to the process of a server.
type rlsOrder struct{ Kind, Redis string }

// rlsChild is the main function of a server's process. It answers with the server's address, and then answers each
// question: see [rlsServer.ask].
func rlsChild(from *gob.Decoder, to *gob.Encoder) error {
	var o rlsOrder
	if err := from.Decode(&o); err != nil {
		return err
	}
	var at string
	var err error
	switch o.Kind {
	case rlsOurs:
		at, err = listenOurs(o.Redis)
	case rlsUndecided:
		at, err = listenGRPC(undecided{})
	default:
		at, err = listenPeer(o.Redis, o.Kind == rlsPeer)
	}
	if err := errors.Join(err, to.Encode(at)); err != nil {
		return err
	}
	for question := ""; from.Decode(&question) == nil; {
		number := float64(processorTime())
		if question == "heap" {
			number = float64(heapInUse())
		}
		if err := to.Encode(number); err != nil {
			return err
		}
	}
	return nil
}

// undecided is a server that decides nothing.
type undecided struct {
	rlsv3.UnimplementedRateLimitServiceServer
}

// ShouldRateLimit answers OK.
func (undecided) ShouldRateLimit(context.Context, *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	return &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK}, nil
}

// listenGRPC serves with gRPC's defaults, except for the stream workers: it has as many as our server.
func listenGRPC(s rlsv3.RateLimitServiceServer) (string, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	g := grpc.NewServer(grpc.NumStreamWorkers(server.StreamWorkers))
	rlsv3.RegisterRateLimitServiceServer(g, s)
	go func() { _ = g.Serve(listener) }() // until the process ends
	return listener.Addr().String(), nil
}

func listenOurs(addr string) (string, error) {
	quiet := slog.New(slog.DiscardHandler)
	store, err := redis.New(context.Background(), redis.Config{Addrs: []string{addr}, Deadline: time.Minute})
	if err != nil {
		return "", err
	}
	told := &server.Metrics{Calls: new(limitermetrics.StoreCalls)}
	chain, err := resilience.NewChain(resilience.ChainConfig{Rates: resilience.NamedStore{Name: "Redis", Store: store},
		Observe: told.Calls.Observe, Log: quiet})
	if err != nil {
		return "", err
	}
	service, err := rls.New(rls.Config{Store: chain.Fallback, Together: true, Headers: rls.Headers{Exact: true},
		Log: quiet})
	if err != nil {
		return "", err
	}
	config, err := envoyconfig.Load([]envoyconfig.File{{Name: "f", Data: []byte(rlsFile)}}, envoyconfig.Options{})
	if err != nil {
		return "", err
	}
	service.SetConfig(config)
	s, err := server.Listen(server.Config{RateLimits: service, Metrics: told, Chain: chain, GRPC: "127.0.0.1:0",
		Log: quiet})
	if err != nil {
		return "", err
	}
	go func() { _ = s.Serve(context.Background(), nil) }() // until the process ends
	return s.Addr("gRPC").String(), nil
}

// peerConfig is a provider that gives the peer its configuration, once.
type peerConfig struct{ config peerconfig.RateLimitConfig }

// ConfigUpdateEvent implements the peer's provider.
func (p peerConfig) ConfigUpdateEvent() <-chan provider.ConfigUpdateEvent {
	events := make(chan provider.ConfigUpdateEvent, 1)
	events <- p
	return events
}

// Stop implements the peer's provider.
func (peerConfig) Stop() {}

// GetConfig implements the peer's event.
func (p peerConfig) GetConfig() (peerconfig.RateLimitConfig, any) { return p.config, nil }

// listenPeer starts the peer, with its default settings or tuned: see rlsPeer. The jitter of its expirations is turned
// off, so the peer draws no random number for each hit.
func listenPeer(addr string, tuned bool) (string, error) {
	logrus.SetLevel(logrus.ErrorLevel)
	store := gostats.NewStore(gostats.NewNullSink(), false)
	manager := peerstats.NewStatManager(store, settings.Settings{})
	config := peerconfig.NewRateLimitConfigImpl([]peerconfig.RateLimitConfigToLoad{{Name: "f",
		ConfigYaml: peerconfig.ConfigFileContentToYaml("f", rlsFile)}}, manager, false)
	var window time.Duration
	var overLimit *freecache.Cache
	if tuned {
		window, overLimit = 150*time.Microsecond, freecache.NewCache(1<<20)
	}
	client := peerredis.NewClientImpl(store, false, "", "tcp", "SINGLE", addr, 10, window, 0, nil, false, nil,
		time.Minute, "WAIT", "")
	times := utils.NewTimeSourceImpl()
	cache := peerredis.NewFixedRateLimitCacheImpl(client, nil, times, nil, 0, overLimit, 0.8, "", manager, false)
	return listenGRPC(peer.NewService(cache, peerConfig{config}, manager, nil, times, false, false, false))
}

// rlsServer is the process of a server, with clients of it.
type rlsServer struct {
	*child
	clients []rlsv3.RateLimitServiceClient
	conns   []*grpc.ClientConn
}

func startRLS(kind, redis string) (*rlsServer, error) {
	c, err := startChild("rls", rlsOrder{kind, redis})
	if err != nil {
		return nil, err
	}
	s := &rlsServer{child: c}
	var at string
	if err := c.from.Decode(&at); err != nil {
		s.close()
		return nil, fmt.Errorf("the server %s does not start: %w", kind, err)
	}
	for range rlsConnections {
		conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			s.close()
			return nil, err
		}
		s.conns, s.clients = append(s.conns, conn), append(s.clients, rlsv3.NewRateLimitServiceClient(conn))
	}
	return s, nil
}

// close ends the process and waits for it.
func (s *rlsServer) close() {
	for _, conn := range s.conns {
		_ = conn.Close() // nothing is under way
	}
	s.child.close()
}

// ask asks the process for a number: "processor" for the processor time that it has used, in ns, or "heap" for the size
// of its live objects, in bytes.
func (s *rlsServer) ask(what string) (number float64, err error) {
	if err := s.to.Encode(what); err != nil {
		return 0, err
	}
	return number, s.from.Decode(&number)
}
