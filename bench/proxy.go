package bench

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/gateway"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/serve"
	"github.com/sluicelimits/sluice/internal/server"
)

// What the figures on the proxy compare. The upstream of both proxies is the first one.
const (
	proxyUpstream = "nginx without a proxy"
	proxyPeer     = "nginx with limit_req"
	proxyOurs     = "sluice proxy"

	proxyRate = 500 // requests a second that are offered
)

var proxyKinds = []string{proxyUpstream, proxyPeer, proxyOurs}

// nginxFile is the configuration of nginx. Its first server is the upstream, its second one the peer, which limits by
// the API key. No request reaches the limit.
const nginxFile = `
worker_processes 1; error_log stderr; pid nginx.pid; daemon off; events { worker_connections 1024; }
http {
  access_log off; keepalive_requests 1000000;
  limit_req_zone $http_x_api_key zone=z:10m rate=1000000r/s;
  upstream up { server 127.0.0.1:%[1]d; keepalive 64; keepalive_requests 1000000; }
  server { listen 127.0.0.1:%[1]d; location / { return 200 "a small answer"; } }
  server {
    listen 127.0.0.1:%[2]d;
    proxy_http_version 1.1; proxy_set_header Connection "";
    location / { limit_req zone=z burst=100000 nodelay; proxy_pass http://up; }
  }
}
`

// proxyOrder is the first message to the process of sluice proxy.
type proxyOrder struct {
	Plans, Upstream string
	Port            int
}

// proxyChild is the main function of the process of sluice proxy, which ends with its input.
func proxyChild(from *gob.Decoder, _ *gob.Encoder) error {
	var o proxyOrder
	if err := from.Decode(&o); err != nil {
		return err
	}
	to, err := gateway.ParseUpstream(o.Upstream)
	if err != nil {
		return err
	}
	options := serve.Options{Plans: []string{o.Plans}, Log: slog.New(slog.DiscardHandler),
		Peppers: map[string][]byte{identity.DevPepperID: identity.DevPepper()},
		Proxy:   &serve.Proxy{Upstreams: []gateway.Upstream{to}},
		Server:  server.Config{Listen: net.JoinHostPort("127.0.0.1", strconv.Itoa(o.Port))}}
	if err := options.Check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_ = from.Decode(new(string)) // the input ends
		cancel()
	}()
	return options.Run(ctx)
}

// proxied is a server that is asked over HTTP.
type proxied struct {
	url string
	pid int // of the process that serves
}

// startProxies starts nginx and sluice proxy, and returns them by kind.
func startProxies() (servers map[string]proxied, end func(), err error) {
	dir, err := os.MkdirTemp("", "sluice-proxy-*")
	if err != nil {
		return nil, nil, err
	}
	ends := []func(){func() { _ = os.RemoveAll(dir) }}
	end = func() {
		for i := range ends {
			ends[len(ends)-1-i]()
		}
	}
	servers = map[string]proxied{}
	ports := map[string]int{}
	for _, kind := range proxyKinds {
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, end, err
		}
		ports[kind] = l.Addr().(*net.TCPAddr).Port
		_ = l.Close() // the server listens there instead
		servers[kind] = proxied{url: fmt.Sprintf("http://127.0.0.1:%d/product/1", ports[kind])}
	}
	plans := filepath.Join(dir, "plans.yaml")
	text := fmt.Sprintf("plans: [ { id: p, limits: [ { id: l, algorithm: token_bucket, rate: 1000000, period: 1s, "+
		"burst: 1000000 } ] } ]\ntenants: [ { id: acme, plan: p } ]\nkeys: [ { id: k, tenant: acme, hash: %s, "+
		"pepper: dev } ]\n", identity.HashKey(identity.DevPepper(), identity.ExampleKey("acme")))
	err = errors.Join(os.WriteFile(plans, []byte(text), 0o600), os.WriteFile(filepath.Join(dir, "nginx.conf"),
		fmt.Appendf(nil, nginxFile, ports[proxyUpstream], ports[proxyPeer]), 0o600))
	if err != nil {
		return nil, end, err
	}
	program, err := exec.LookPath("nginx")
	if err != nil {
		program = "/usr/sbin/nginx" // where Debian has it, which is in the PATH of root only
	}
	nginx := exec.Command(program, "-e", "stderr", "-p", dir, "-c", "nginx.conf") //nolint:gosec // a folder of ours
	nginx.Stderr = os.Stderr
	if err := nginx.Start(); err != nil {
		return nil, end, fmt.Errorf("nginx (of Debian's package nginx-light): %w", err)
	}
	ends = append(ends, func() { _ = nginx.Process.Signal(os.Interrupt); _ = nginx.Wait() })
	ours, err := startChild("proxy", proxyOrder{plans, servers[proxyUpstream].url[:len("http://127.0.0.1:")] +
		strconv.Itoa(ports[proxyUpstream]), ports[proxyOurs]})
	if err != nil {
		return nil, end, err
	}
	ends = append(ends, ours.close)
	for _, kind := range proxyKinds {
		if err := awaitAnswer(servers[kind].url); err != nil {
			return nil, end, fmt.Errorf("%s: %w", kind, err)
		}
	}
	workers, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", nginx.Process.Pid))
	if err != nil {
		return nil, end, err
	}
	worker, err := strconv.Atoi(strings.TrimSpace(string(workers)))
	for kind, s := range servers {
		if s.pid = worker; kind == proxyOurs {
			s.pid = ours.cmd.Process.Pid
		}
		servers[kind] = s
	}
	return servers, end, err
}

// awaitAnswer waits until a server answers.
func awaitAnswer(url string) (err error) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if err = askProxy(http.DefaultClient, url); err == nil {
			return nil
		}
		<-time.After(10 * time.Millisecond)
	}
	return err
}

// askProxy sends a request with an API key, which must be answered with 200.
func askProxy(client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("X-Api-Key", identity.ExampleKey("acme"))
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close() // it was read
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return err
}

// processorOf returns the processor time that a process has used, in s, from /proc.
func processorOf(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, err := strconv.ParseFloat(fields[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(fields[12], 64)
	const perSecond = 100 // the kernel's unit for programs
	return (user + system) / perSecond, err
}

// processorPerRequest returns the processor time for a request, in µs, when each connection sends its next request as
// soon as the last one was answered.
func (s *proxied) processorPerRequest(client *http.Client, requests int) (float64, error) {
	before, err := processorOf(s.pid)
	if err != nil {
		return 0, err
	}
	errs := make([]error, rlsConnections)
	var group sync.WaitGroup
	for c := range errs {
		group.Go(func() {
			for i := 0; i < requests && errs[c] == nil; i++ {
				errs[c] = askProxy(client, s.url)
			}
		})
	}
	group.Wait()
	after, err := processorOf(s.pid)
	return (after - before) / float64(rlsConnections*requests) * 1e6, errors.Join(append(errs, err)...)
}

// proxyNumbers are measured for each kind: p50 and p99 in ms, and the processor time for a request in µs.
var proxyNumbers = measuredOnce(func(short bool) (rlsNumbers, error) {
	rounds, length, requests := 15, 2*time.Second, 200 // requests on each connection
	if short {
		rounds, length, requests = 1, 300*time.Millisecond, 10
	}
	servers, end, err := startProxies()
	if end != nil {
		defer end()
	}
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: rlsConnections}}
	defer client.CloseIdleConnections()
	all := rlsNumbers{}
	for round := range rounds {
		for _, kind := range proxyKinds {
			s := servers[kind]
			took, err := offerLoad(proxyRate, length, uint64(round), func(*rand.Rand) func() error {
				return func() error { return askProxy(client, s.url) }
			})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", kind, err)
			}
			processor, err := s.processorPerRequest(client, requests)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", kind, err)
			}
			if all[kind] == nil {
				all[kind] = make([][]float64, 3)
			}
			for i, n := range []float64{quantile(took, 0.5), quantile(took, 0.99), processor} {
				all[kind][i] = append(all[kind][i], n)
			}
		}
	}
	return all, nil
})

// proxyP99Figure is the 99th percentile of response times through our proxy, divided by that through nginx. What each
// of them adds to that of the upstream cannot be told: it differs more from round to round.
func proxyP99Figure(short bool) (r Result, err error) {
	n, err := proxyNumbers(short)
	if err != nil {
		return r, err
	}
	r.Value = n.ratio(proxyOurs, proxyPeer, 1)
	for _, kind := range proxyKinds {
		r.note("%s: p50 %.2f ms, p99 %.2f ms", kind, n.median(kind, 0), n.median(kind, 1))
	}
	r.note("%d requests a second at random times with an API key; nginx %s", proxyRate, "limits by the key's text")
	return r, nil
}

// proxyProcessorFigure is the processor time of our proxy for a request, divided by nginx's. The peer is a part of the
// process of nginx that is also the upstream, whose time is subtracted.
func proxyProcessorFigure(short bool) (r Result, err error) {
	n, err := proxyNumbers(short)
	if err != nil {
		return r, err
	}
	peer := n.mean(proxyPeer, 2) - n.mean(proxyUpstream, 2)
	r.Value = n.mean(proxyOurs, 2) / peer
	r.note("sluice proxy %.0f µs, nginx %.0f µs of a processor for a request", n.mean(proxyOurs, 2), peer)
	return r, nil
}
