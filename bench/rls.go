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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coocood/freecache"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
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

// The load of the figures on the rate limit service: closed loops on so many connections, over values of one key that
// are far below their limit.
const (
	rlsConnections = 32
	rlsValues      = 100
	rlsRounds      = 5 // of each server, one after the other
	rlsFile        = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 100000000}}]\n"

	rlsVar = "SLUICE_BENCH_RLS" // what a server's process is: its kind, a space, and the address of Redis
)

// The kinds of servers.
const (
	rlsOurs      = "ours"
	rlsPeer      = "peer"      // envoyproxy/ratelimit, tuned: a pipeline window of 150 µs, and a local cache
	rlsUndecided = "undecided" // answers OK, with nothing else: the ceiling
)

// rlsMain is the process of a server: it prints its address, and for each line that it reads, the processor time that
// it has used.
func rlsMain(order string) error {
	kind, addr, _ := strings.Cut(order, " ")
	listen := map[string]func(string) (string, error){rlsOurs: listenOurs, rlsPeer: listenPeer,
		rlsUndecided: func(string) (string, error) { return listenGRPC(undecided{}) }}[kind]
	if listen == nil {
		return fmt.Errorf("there is no rate limit server %q", kind)
	}
	at, err := listen(addr)
	if err != nil {
		return err
	}
	fmt.Println(at)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(processorTime().Nanoseconds())
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

// listenGRPC serves with gRPC's defaults, but for the stream workers, which ours has, too.
func listenGRPC(s rlsv3.RateLimitServiceServer) (string, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	g := grpc.NewServer(grpc.NumStreamWorkers(uint32(runtime.GOMAXPROCS(0))))
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

// peerConfig gives the peer its configuration, once.
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

func listenPeer(addr string) (string, error) {
	logrus.SetLevel(logrus.ErrorLevel)
	store := gostats.NewStore(gostats.NewNullSink(), false)
	manager := peerstats.NewStatManager(store, settings.Settings{})
	config := peerconfig.NewRateLimitConfigImpl([]peerconfig.RateLimitConfigToLoad{{Name: "f",
		ConfigYaml: peerconfig.ConfigFileContentToYaml("f", rlsFile)}}, manager, false)
	client := peerredis.NewClientImpl(store, false, "", "tcp", "SINGLE", addr, 10, 150*time.Microsecond, 8, nil, false,
		nil, time.Minute, "WAIT", "")
	times := utils.NewTimeSourceImpl()
	cache := peerredis.NewFixedRateLimitCacheImpl(client, nil, times, nil, 0, freecache.NewCache(1<<20), 0.8, "",
		manager,
		false)
	return listenGRPC(peer.NewService(cache, peerConfig{config}, manager, nil, times, false, false, false))
}

// rlsServer is the process of a server.
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
	s.cmd.Env, s.cmd.Stderr = append(os.Environ(), rlsVar+"="+kind+" "+addr), os.Stderr
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

func (s *rlsServer) close() {
	for _, conn := range s.conns {
		_ = conn.Close() // nothing is under way
	}
	_ = s.in.Close() // the process ends
	_ = s.cmd.Wait() // it was asked to
}

// used is the processor time that the server has used, ns.
func (s *rlsServer) used() (int64, error) {
	if _, err := io.WriteString(s.in, "\n"); err != nil {
		return 0, err
	}
	if !s.out.Scan() {
		return 0, io.ErrUnexpectedEOF
	}
	return strconv.ParseInt(s.out.Text(), 10, 64)
}

// load sends so many requests on each connection. Every one must be admitted.
func (s *rlsServer) load(each int) error {
	errs := make([]error, len(s.clients))
	var group sync.WaitGroup
	for c, client := range s.clients {
		group.Go(func() {
			for i := range each {
				out, err := client.ShouldRateLimit(context.Background(), &rlsv3.RateLimitRequest{Domain: "d",
					Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
						{Key: "a", Value: strconv.Itoa((c*each + i) % rlsValues)}}}}}, grpc.WaitForReady(true))
				if err == nil && out.GetOverallCode() != rlsv3.RateLimitResponse_OK {
					err = fmt.Errorf("a request below its limit: %s", out.GetOverallCode())
				}
				if err != nil {
					errs[c] = err
					return
				}
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// rlsCosts is what each server uses of a processor for one decision, the median of the rounds, ns.
var rlsCosts = sync.OnceValues(func() (map[string]float64, error) { return measureRLS(rlsRounds, 400) })

func measureRLS(rounds, each int) (map[string]float64, error) {
	store, end, err := launchRedis()
	if err != nil {
		return nil, err
	}
	defer end()
	all := map[string][]float64{}
	for range rounds {
		for _, kind := range []string{rlsOurs, rlsPeer, rlsUndecided} {
			cost, err := rlsRound(kind, store.Addr, each)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", kind, err)
			}
			all[kind] = append(all[kind], cost)
		}
	}
	out := map[string]float64{}
	for kind, costs := range all {
		slices.Sort(costs)
		out[kind] = costs[len(costs)/2]
	}
	return out, nil
}

func rlsRound(kind, addr string, each int) (float64, error) {
	s, err := startRLS(kind, addr)
	if err != nil {
		return 0, err
	}
	defer s.close()
	if err := s.load(each/4 + rlsValues/rlsConnections); err != nil { // connections, leases, pools
		return 0, err
	}
	before, err := s.used()
	if err == nil {
		err = s.load(each)
	}
	if err != nil {
		return 0, err
	}
	after, err := s.used()
	return float64(after-before) / float64(each*rlsConnections), err
}

// rlsFigure is what a server uses for a decision, divided by what ours uses.
func rlsFigure(kind string) func(bool) (Result, error) {
	return func(short bool) (r Result, err error) {
		var costs map[string]float64
		if short {
			costs, err = measureRLS(1, 20)
		} else {
			costs, err = rlsCosts()
		}
		if err != nil {
			return r, err
		}
		r.Value = costs[kind] / costs[rlsOurs]
		r.note("processor time per decision at %d connections, µs: ours %.1f, envoyproxy/ratelimit tuned %.1f, a "+
			"server that decides nothing %.1f; GOMAXPROCS %d", rlsConnections, costs[rlsOurs]/1e3, costs[rlsPeer]/1e3,
			costs[rlsUndecided]/1e3, runtime.GOMAXPROCS(0))
		return r, nil
	}
}
