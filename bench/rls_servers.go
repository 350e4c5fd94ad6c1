package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
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

	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/server"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
	"github.com/sluicelimits/sluice/internal/server/rls"
)

// rlsVar tells the process of a server its kind and the address of Redis, with an @ between.
const rlsVar = "SLUICE_BENCH_RLS"

// The kinds of servers.
const (
	rlsOurs        = "sluice serve"
	rlsPeer        = "envoyproxy/ratelimit, tuned" // with a pipeline window of 150 µs and a local cache
	rlsPeerDefault = "envoyproxy/ratelimit"        // with neither, which is its default
	rlsUndecided   = "a server that decides nothing"
)

// rlsMain is the main function of a server's process. It prints the server's address, and then answers each line that
// it reads: see [rlsServer.ask].
func rlsMain(order string) error {
	kind, addr, _ := strings.Cut(order, "@")
	listen := map[string]func(string) (string, error){
		rlsOurs:        listenOurs,
		rlsPeer:        func(addr string) (string, error) { return listenPeer(addr, true) },
		rlsPeerDefault: func(addr string) (string, error) { return listenPeer(addr, false) },
		rlsUndecided:   func(string) (string, error) { return listenGRPC(undecided{}) },
	}[kind]
	if listen == nil {
		return fmt.Errorf("there is no rate limit server %q", kind)
	}
	at, err := listen(addr)
	if err != nil {
		return err
	}
	fmt.Println(at)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if in.Text() == "heap" {
			fmt.Println(heapInUse())
		} else {
			fmt.Println(processorTime().Nanoseconds())
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
	metrics := new(server.Metrics)
	chain, err := resilience.NewChain(resilience.ChainConfig{Rates: resilience.NamedStore{Name: "Redis", Store: store},
		Observe: metrics.ObserveCall, Log: quiet})
	if err != nil {
		return "", err
	}
	service, err := rls.New(rls.Config{Store: chain.Fallback, Headers: rls.Headers{Exact: true}, Log: quiet})
	if err != nil {
		return "", err
	}
	config, err := envoyconfig.Load([]envoyconfig.File{{Name: "f", Data: []byte(rlsFile)}}, envoyconfig.Options{})
	if err != nil {
		return "", err
	}
	service.SetConfig(config)
	s, err := server.Listen(server.Config{RateLimits: service, Metrics: metrics, Chain: chain, GRPC: "127.0.0.1:0",
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
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	clients []rlsv3.RateLimitServiceClient
	conns   []*grpc.ClientConn
}

func startRLS(kind, addr string) (*rlsServer, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &rlsServer{cmd: exec.Command(program)} //nolint:gosec // this program, from no input
	s.cmd.Env, s.cmd.Stderr = append(os.Environ(), rlsVar+"="+kind+"@"+addr), os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewScanner(out)
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if !s.out.Scan() {
		s.close()
		return nil, fmt.Errorf("the server %s does not start", kind)
	}
	for range rlsConnections {
		conn, err := grpc.NewClient(s.out.Text(), grpc.WithTransportCredentials(insecure.NewCredentials()))
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
	_ = s.in.Close() // the process ends when it reads the end of its input
	_ = s.cmd.Wait() // how it ended does not matter
}

// ask asks the process for a number: "processor" for the processor time that it has used, in ns, or "heap" for the size
// of its live objects, in bytes.
func (s *rlsServer) ask(what string) (float64, error) {
	if _, err := io.WriteString(s.in, what+"\n"); err != nil {
		return 0, err
	}
	if !s.out.Scan() {
		return 0, io.ErrUnexpectedEOF
	}
	return strconv.ParseFloat(s.out.Text(), 64)
}
