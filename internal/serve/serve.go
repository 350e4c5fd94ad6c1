// Package serve runs `sluice serve` and `sluice proxy`: it opens the stores, the plans and the servers that the
// command's flags name, and serves until it is told to stop.
package serve

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/request/loopback"
	"github.com/sluicelimits/sluice/internal/server"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
	"github.com/sluicelimits/sluice/internal/server/limits"
	"github.com/sluicelimits/sluice/internal/server/rls"
	"github.com/sluicelimits/sluice/internal/stores"
)

// certificatesEvery is how often certificate files are read again. A minute is short enough, since certificates are
// usually renewed days before they expire.
const certificatesEvery = time.Minute

// CollectorVariable is the environment variable that takes the place of --otlp. OpenTelemetry defines it.
const CollectorVariable = "OTEL_EXPORTER_OTLP_ENDPOINT"

// Options say what [Run] runs. The flags that set them are named like the fields; errors name the flags.
type Options struct {
	Configs      []string // configuration files, and folders; required without Proxy
	MergeDomains bool
	Proxy        *Proxy // nil: the service for Envoy

	Plans             []string // plans files
	Peppers           map[string][]byte
	ConfigTable, Cell string
	Alone             bool
	Homes             []string // counters tables of other cells, as CELL=TABLE
	HomeDeadline      time.Duration
	KillSwitch        string // APPLICATION/ENVIRONMENT/PROFILE

	RateLimits rls.Config    // without stores, plans and the log
	Server     server.Config // without services, metrics, TLS and the log
	Stores     stores.Options

	Cert, Key, ClientCA, ClientSAN string
	StartWithoutStore              bool

	Collector      string // URL; "": that of CollectorVariable
	CollectorEvery time.Duration
	Version        string // of this program, for the collector

	Log *slog.Logger
}

// Check checks the options without opening anything, and completes them. Its errors are about the command line.
func (o *Options) Check() error {
	if o.ClientCA != "" && o.Server.MaxAge == 0 {
		o.Server.MaxAge = server.MutualTLSMaxAge
	}
	o.Stores.Cell = o.Cell
	check := o.checkService
	if o.Proxy != nil {
		check = o.checkProxy
	}
	if err := check(); err != nil {
		return err
	}
	switch {
	case (o.Cert == "") != (o.Key == ""):
		return errors.New("--tls-cert and --tls-key need each other")
	case o.ClientCA != "" && o.Cert == "":
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	case o.ClientSAN != "" && o.ClientCA == "":
		return errors.New("--tls-client-san needs --tls-client-ca: no client shows a certificate otherwise")
	case o.StartWithoutStore && o.Stores.Redis == "" && o.Stores.DynamoDB == "":
		return errors.New("--start-without-store has no use without --redis or --dynamodb")
	}
	return errors.Join(o.checkAddresses(), o.checkHeaders(), o.checkFiles(), o.Stores.Check())
}

// checkService checks the flags that only the service for Envoy has.
func (o *Options) checkService() error {
	switch {
	case len(o.Configs) == 0:
		return o.noConfig()
	case !(o.RateLimits.NearLimitRatio >= 0 && o.RateLimits.NearLimitRatio <= 1):
		return fmt.Errorf("--near-limit-ratio %v is outside 0..1", o.RateLimits.NearLimitRatio)
	case o.Server.GRPC == "" && o.Server.HTTP == "":
		return errors.New("--grpc and --http are both empty: give at least one an address")
	}
	return nil
}

// checkHeaders checks the names of headers, which Envoy passes on to clients.
func (o *Options) checkHeaders() error {
	for _, flag := range []struct{ name, header string }{{"--header-limit", o.RateLimits.Headers.Limit},
		{"--header-remaining", o.RateLimits.Headers.Remaining}, {"--header-reset", o.RateLimits.Headers.Reset}} {
		if flag.header != "" && !httpguts.ValidHeaderFieldName(flag.header) { // "" selects the default
			return fmt.Errorf("%s %q is not the name of a header", flag.name, flag.header)
		}
	}
	return nil
}

// noConfig returns an error that says what --config is for, with a command line that works.
func (o *Options) noConfig() error {
	plans := ""
	switch {
	case o.ConfigTable != "":
		plans = "--config-table " + o.ConfigTable
	case len(o.Plans) > 0:
		plans = "--plans " + o.Plans[0]
	default:
		return errors.New("--config is missing: it names a file that says what to limit, or a folder of such files. " +
			"For example: echo '{domain: api, descriptors: [{key: tenant, rate_limit: {unit: minute, " +
			"requests_per_unit: 100}}]}' > limits.yaml && sluice serve --config limits.yaml")
	}
	return fmt.Errorf("--config is missing: beside the plans, the service needs a file with a mapping, which says in "+
		"which entries of a descriptor the tenant, the method, the path and the address of a request are. For "+
		"example: echo '{domain: api, sluice: {mapping: {tenant: tenant, method: method, path: path, address: "+
		"remote_address}}}' > map.yaml && sluice serve --config map.yaml %s", plans)
}

func (o *Options) checkAddresses() error {
	var errs []error
	for _, a := range []struct{ flag, address string }{
		{"--grpc", o.Server.GRPC}, {"--http", o.Server.HTTP}, {"--debug", o.Server.Debug}, {"--pprof", o.Server.Pprof},
	} {
		if a.address != "" && !(a.flag == "--grpc" && strings.HasPrefix(a.address, "unix:")) {
			errs = append(errs, server.CheckAddress(a.flag, a.address, server.EveryAddress))
		}
	}
	if host, _, err := net.SplitHostPort(o.Server.Pprof); err == nil && !loopback.Host(host) {
		errs = append(errs, fmt.Errorf("--pprof %s: whoever reaches the profiles reads the process's memory in part "+
			"and takes its time: choose a loopback address, such as 127.0.0.1:6060", o.Server.Pprof))
	}
	return errors.Join(errs...)
}

func (o *Options) checkFiles() error {
	switch {
	case o.ConfigTable != "" && len(o.Plans) > 0:
		return errors.New("--config-table and --plans both say what the plans are")
	case o.ConfigTable == "" && o.Cell != "":
		return errors.New("--cell has no use without --config-table")
	case o.Cell == "" && o.Alone:
		return errors.New("--alone has no use without --cell")
	}
	return errors.Join(o.checkHomes(), o.checkKillSwitch())
}

// Run serves until the context ends and the requests in flight are done. Call Check before.
func (o *Options) Run(ctx context.Context) error {
	if o.Proxy == nil {
		o.warnOfPeerVariables()
	}
	told := new(server.Metrics)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	counters, err := o.openStores(ctx)
	if err != nil {
		return err
	}
	told.Calls = counters.Calls
	defer counters.Close()
	plans, err := o.openPlans(ctx, counters)
	if err != nil {
		return err
	}
	var byPlan *authorizer.Authorizer
	if plans != nil {
		byPlan = plans.Authorizer
		defer plans.close()
		if plans.kill != nil {
			told.KillSwitch = plans.kill
		}
	}
	config := o.Server
	config.Metrics, config.Chain, config.Log = told, counters.Chain, o.Log
	var files *server.Files
	if o.Proxy != nil {
		config.Proxy, err = o.openProxy(byPlan, counters, told)
	} else {
		config.RateLimits, files, err = o.openRateLimits(counters, byPlan)
	}
	if err != nil {
		return err
	}
	if plans != nil {
		if config.Limits, err = limits.New(limits.Config{Plans: byPlan, Store: counters.Tenants}); err != nil {
			return err
		}
	}
	exporter, err := o.openExporter(func() []metrics.Metric { return told.Gather(config.RateLimits, counters.Chain) })
	if err != nil {
		return err
	}
	if counters.Chain != nil {
		if config.Ready, err = o.awaitStores(ctx, counters, end); err != nil {
			return err
		}
	}
	var certificates *server.Certificates
	if o.Cert != "" {
		if certificates, err = server.OpenCertificates(o.Cert, o.Key, o.ClientCA, o.ClientSAN, o.Log); err != nil {
			return err
		}
		config.TLS, told.Certificates = certificates.Config(), certificates
	}
	s, err := server.Listen(config)
	if err != nil {
		return err
	}
	beside, endBeside := context.WithCancel(ctx)
	defer endBeside()
	defer exporter.Start(ctx)()
	follow(beside, files, plans, certificates)
	over, finish := context.WithCancel(context.WithoutCancel(ctx))
	defer finish()
	err = s.Serve(ctx, secondSignal(ctx, over))
	if refused := new(refusedError); errors.As(context.Cause(ctx), &refused) {
		return refused
	}
	return err
}

// follow applies changes of the files, the plans and the certificates until the context ends. Each may be nil.
func follow(ctx context.Context, files *server.Files, plans *tenantPlans, certificates *server.Certificates) {
	if files != nil {
		go files.Watch(ctx, server.CheckEvery, configfile.Hangups(ctx))
	}
	if plans != nil {
		go plans.follow(ctx)
	}
	if certificates != nil {
		reload := certificates.Reload
		go configfile.Watch(ctx, certificatesEvery, configfile.Hangups(ctx), reload, reload)
	}
}

// openStores opens the stores of counters, and those of other cells.
func (o *Options) openStores(ctx context.Context) (*stores.Counters, error) {
	var err error
	if o.Stores.Homes, err = o.openHomes(ctx); err != nil {
		return nil, err
	}
	return o.Stores.Open(ctx, o.Log)
}

// openRateLimits makes the service for Envoy, and reads its configuration files.
func (o *Options) openRateLimits(
	c *stores.Counters, plans *authorizer.Authorizer,
) (*rls.Service, *server.Files, error) {
	config := o.RateLimits
	config.Store, config.Plans, config.Addresses, config.Log = c.Tenants, plans, c.Names, o.Log
	config.PeekAfterDenial, config.Together = c.Chain == nil, c.Chain != nil
	service, err := rls.New(config)
	if err != nil {
		return nil, nil, err
	}
	files, err := server.OpenFiles(server.FilesConfig{Paths: o.Configs, Apply: service.SetConfig, Log: o.Log,
		Options: envoyconfig.Options{MergeDomains: o.MergeDomains, Mapping: plans != nil, Accepts: accepts(c.Tenants)},
		Failed:  func(error) { service.NoteConfigError() }})
	return service, files, err
}

// openExporter makes the sender of the metrics that gather returns. If there is no collector, it returns nil.
func (o *Options) openExporter(gather func() []metrics.Metric) (*metrics.Exporter, error) {
	name, endpoint := "--otlp", o.Collector
	if endpoint == "" {
		name, endpoint = CollectorVariable, os.Getenv(CollectorVariable)
	}
	if endpoint == "" {
		return nil, nil //nolint:nilnil // metrics are sent to a collector only if there is one
	}
	host, err := os.Hostname()
	if err != nil {
		o.Log.Warn("metrics are sent without the attribute host.name", "error", err)
	}
	e, err := metrics.NewExporter(metrics.ExporterConfig{Endpoint: endpoint, Service: "sluice", Version: o.Version,
		Attributes: map[string]string{"host.name": host, "service.instance.id": rand.Text()}, Every: o.CollectorEvery,
		Gather: gather, Log: o.Log})
	if err != nil {
		if u, bad := url.Parse(endpoint); bad == nil { // without a password
			endpoint = u.Redacted()
		}
		return nil, fmt.Errorf("%s %q: %w", name, endpoint, err)
	}
	return e, nil
}

// accepts returns a function that checks whether a store can keep the counters of a descriptor's limits, and decide
// over all of them at once.
func accepts(s limit.Store) func([]*limit.Limit) error {
	return func(together []*limit.Limit) error {
		for _, l := range together {
			if err := s.Accepts(l); err != nil {
				return err
			}
		}
		return limit.AcceptsPlan(s, together, together)
	}
}

// every calls do once in each interval, until the context ends.
func every(ctx context.Context, interval time.Duration, do func(now time.Time)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case at := <-tick.C:
			do(at)
		}
	}
}

// secondSignal returns a channel that closes when the process gets a signal after ctx has ended. It stops listening for
// signals when over ends.
func secondSignal(ctx, over context.Context) <-chan struct{} {
	came := make(chan struct{})
	go func() {
		<-ctx.Done()
		again := make(chan os.Signal, 1)
		signal.Notify(again, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(again)
		select {
		case <-again:
			close(came)
		case <-over.Done():
		}
	}()
	return came
}
