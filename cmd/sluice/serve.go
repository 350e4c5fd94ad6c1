package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/http/httpguts"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/request/loopback"
	"github.com/sluicelimits/sluice/internal/server"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
	"github.com/sluicelimits/sluice/internal/server/rls"
)

// certificatesEvery is how often certificate files are read again. A minute is short enough, since certificates are
// usually renewed days before they expire.
const certificatesEvery = time.Minute

type serveOptions struct {
	planFlags

	configs              []string
	configTable, cell    string
	homes                []string
	homeDeadline         time.Duration
	killSwitch           string
	alone                bool
	merge                bool
	countDenied          bool
	shadow, quota        bool
	metadata             bool
	headers              string
	names                rls.Headers
	nearLimit            float32
	maxStats             int
	ipv6Prefix           int
	grpc, http           string
	debug, pprof         string
	cert, key            string
	clientCA, clientSAN  string
	maxConnections       int
	maxMessage           int
	maxAge, drain, grace time.Duration
	otlp                 otlpOptions
	storeMB              int64
	logLevel, logFormat  string
	startWithoutStore    bool
	stores               storeOptions
}

func newServeCommand() *cobra.Command {
	var o serveOptions
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the rate limit service for Envoy (envoy.service.ratelimit.v3)",

		SuggestFor: []string{"start", "run", "up"},
		Long: `Runs a rate limit service that replaces envoyproxy/ratelimit: Envoy asks it over gRPC
whether a request may pass. It reads the configuration files of envoyproxy/ratelimit without
changes. With --plans or --config-table, the plan of a request's tenant can decide, and Sluice's own
API is served, too, as JSON over HTTP. Counters are in memory, in Redis or in DynamoDB. Files are read
again when they change, and on SIGHUP.

Without TLS, anybody who can connect to the ports can spend the units of any descriptor. Therefore the
service listens by default on this machine's loopback address only. See docs/envoy.md.`,
		Example: "  sluice serve --config limits.yaml\n" +
			"  sluice serve --config /etc/sluice/limits --grpc :8081 --http :8080 --redis redis.internal:6379",
		Args: flagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usage(err)
			}
			return o.run(c.Context(), c.ErrOrStderr())
		},
	}
	o.flags(c)
	return c
}

// flagsOnly refuses arguments. It names the flag that the first one was probably meant for.
func flagsOnly(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usagef("%q is not a flag: sluice serve takes flags only. For a configuration file, say --config %[1]s",
		args[0])
}

func (o *serveOptions) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringArrayVar(&o.configs, "config", nil,
		"configuration `FILE`, or a folder, with all files in it and below; may be repeated")
	o.planFlags.flags(f, "plans `FILE`, for configuration files with a mapping; may be repeated")
	f.StringVar(&o.configTable, "config-table", "",
		"instead of --plans: follow the config `TABLE` of a cell, in the DynamoDB of --dynamodb (default: of AWS)")
	f.StringVar(&o.cell, "cell", "", "admit the share of each limit that cell `NAME` has in --config-table "+
		"(default: the whole limit)")
	f.BoolVar(&o.alone, "alone", false,
		"--cell is the only one: admit the whole limit as long as the table has no shares")
	f.StringArrayVar(&o.homes, "home", nil, "counters table of another cell, as `CELL=TABLE` (name or ARN): limits "+
		"that it keeps are leased from there; may be repeated")
	durationFlag(f, &o.homeDeadline, "home-deadline", 500*time.Millisecond, time.Millisecond,
		"time limit for a call of --home: three times the way there and back, for a new connection")
	f.StringVar(&o.killSwitch, "kill-switch", "", "follow the kill switch of a cell, whose `IDS` in AWS AppConfig are "+
		"APPLICATION/ENVIRONMENT/PROFILE: it says whether plans deny; other descriptors ignore it")
	f.BoolVar(&o.merge, "merge-domains", false, "allow several files for one domain (MERGE_DOMAIN_CONFIG)")
	f.BoolVar(&o.countDenied, "count-denied", false,
		"charge every request, also denied ones, as envoyproxy/ratelimit does; descriptors that a plan decides "+
			"ignore it")
	f.BoolVar(&o.shadow, "shadow-mode", false, "deny nothing: the overall code is always OK (SHADOW_MODE)")
	f.BoolVar(&o.quota, "quota-mode", false, "treat every limit as one with quota_mode (QUOTA_MODE)")
	f.BoolVar(&o.metadata, "dynamic-metadata", false, "add dynamic metadata to answers (RESPONSE_DYNAMIC_METADATA)")
	wordFlag(c, &o.headers, "headers", "exact",
		"response headers, `WHICH` is exact (RateLimit, RateLimit-Policy, Retry-After), "+
			"plain (LIMIT_RESPONSE_HEADERS_ENABLED), both or none", "exact", "plain", "both", "none")
	f.StringVar(&o.names.Limit, "header-limit", "RateLimit-Limit",
		"`NAME` of the plain header with the limit (LIMIT_LIMIT_HEADER)")
	f.StringVar(&o.names.Remaining, "header-remaining", "RateLimit-Remaining",
		"`NAME` of the plain header with the remaining units (LIMIT_REMAINING_HEADER)")
	f.StringVar(&o.names.Reset, "header-reset", "RateLimit-Reset",
		"`NAME` of the plain header with the time until the reset (LIMIT_RESET_HEADER)")
	f.Float32Var(&o.nearLimit, "near-limit-ratio", 0.8,
		"count a hit as near_limit if more than this `SHARE` of the limit is used (NEAR_LIMIT_RATIO)")
	numberFlag(f, &o.maxStats, "max-stats", 10_000, 1, 1_000_000,
		"keep at most `N` statistics whose names contain values of requests")
	numberFlag(f, &o.ipv6Prefix, "ipv6-prefix", 64, 1, 128,
		"count the IPv6 addresses of a network of `BITS` as one in "+
			"remote_address; 128: each by itself, as envoyproxy/ratelimit does. Plans have a setting of their own")
	f.StringVar(&o.grpc, "grpc", "127.0.0.1:8081", "`ADDRESS` of the gRPC server, or unix:PATH; empty: no gRPC server")
	f.StringVar(&o.http, "http", "127.0.0.1:8080",
		"`ADDRESS` of /json, /healthcheck and /v1; empty: no HTTP server")
	f.StringVar(&o.debug, "debug", "127.0.0.1:6070",
		"`ADDRESS` of /rlconfig, /stats, /metrics and /healthcheck, without TLS; empty: no debug server")
	f.StringVar(&o.pprof, "pprof", "", "loopback `ADDRESS` of Go's profiles, at /debug/pprof/ (default: none)")
	f.StringVar(&o.cert, "tls-cert", "", "PEM `FILE` with the certificate of the gRPC and HTTP servers")
	f.StringVar(&o.key, "tls-key", "", "PEM `FILE` with the key of that certificate")
	f.StringVar(&o.clientCA, "tls-client-ca", "", "PEM `FILE` with authorities: admit only clients with a certificate "+
		"of one of them")
	f.StringVar(&o.clientSAN, "tls-client-san", "", "admit only clients whose certificate has this `NAME`, a DNS name "+
		"or an IP address, as a subject alternative name")
	numberFlag(f, &o.maxConnections, "max-connections", server.DefaultMaxConnections, 1, 1_000_000,
		"accept at most `N` connections for each server")
	numberFlag(f, &o.maxMessage, "max-message", server.DefaultMaxMessage, 1024, 4<<20,
		"refuse requests of more than `BYTES`; a /v1/check-batch of many calls needs more")
	durationFlag(f, &o.maxAge, "max-connection-age", 0, 0,
		"end a connection after `TIME`, so that clients find new servers; 0: never, or after "+
			server.MutualTLSMaxAge.String()+" with --tls-client-ca")
	durationFlag(f, &o.drain, "drain", 0, 0,
		"at the end, answer health checks with unhealthy for `TIME` before service "+
			"stops")
	durationFlag(f, &o.grace, "grace", server.DefaultGrace, time.Millisecond,
		"at the end, wait up to `TIME` for requests in flight")
	o.otlp.flags(f)
	storeSizeFlag(f, &o.storeMB)
	logLevelFlag(c, &o.logLevel)
	wordFlag(c, &o.logFormat, "log-format", "text", "`FORMAT` is text or json", "text", "json")
	o.stores.flags(f, serveRedisDeadline)
	o.stores.serveFlags(f)
	f.BoolVar(&o.startWithoutStore, "start-without-store", false, "decide before the store has answered for the first "+
		"time: each instance then admits 1/--max-instances of a limit")
}

// check checks the flags without opening anything. Its errors are usage errors.
func (o *serveOptions) check() error {
	o.names.Exact = o.headers == "exact" || o.headers == "both"
	o.names.Plain = o.headers == "plain" || o.headers == "both"
	switch {
	case len(o.configs) == 0:
		return o.noConfig()
	case !(o.nearLimit >= 0 && o.nearLimit <= 1):
		return fmt.Errorf("--near-limit-ratio %v is outside 0..1", o.nearLimit)
	case (o.cert == "") != (o.key == ""):
		return errors.New("--tls-cert and --tls-key need each other")
	case o.clientCA != "" && o.cert == "":
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	case o.clientSAN != "" && o.clientCA == "":
		return errors.New("--tls-client-san needs --tls-client-ca: no client shows a certificate otherwise")
	case o.grpc == "" && o.http == "":
		return errors.New("--grpc and --http are both empty: give at least one an address")
	case o.startWithoutStore && o.stores.redis == "" && o.stores.dynamodb == "":
		return errors.New("--start-without-store has no use without --redis or --dynamodb")
	}
	return errors.Join(o.checkAddresses(), o.checkHeaders(), o.checkFiles(), o.stores.check())
}

// checkHeaders checks the names of headers, which Envoy passes on to clients.
func (o *serveOptions) checkHeaders() error {
	for _, flag := range []struct{ name, header string }{{"--header-limit", o.names.Limit},
		{"--header-remaining", o.names.Remaining}, {"--header-reset", o.names.Reset}} {
		if flag.header != "" && !httpguts.ValidHeaderFieldName(flag.header) { // "" selects the default
			return fmt.Errorf("%s %q is not the name of a header", flag.name, flag.header)
		}
	}
	return nil
}

// noConfig returns an error that says what --config is for, with a command line that works.
func (o *serveOptions) noConfig() error {
	plans := ""
	switch {
	case o.configTable != "":
		plans = "--config-table " + o.configTable
	case len(o.plans) > 0:
		plans = "--plans " + o.plans[0]
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

func (o *serveOptions) checkAddresses() error {
	var errs []error
	for _, a := range []struct{ flag, address string }{
		{"--grpc", o.grpc}, {"--http", o.http}, {"--debug", o.debug}, {"--pprof", o.pprof},
	} {
		if a.address != "" && !(a.flag == "--grpc" && strings.HasPrefix(a.address, "unix:")) {
			errs = append(errs, server.CheckAddress(a.flag, a.address, server.EveryAddress))
		}
	}
	if host, _, err := net.SplitHostPort(o.pprof); err == nil && !loopback.Host(host) {
		errs = append(errs, fmt.Errorf("--pprof %s: whoever reaches the profiles reads the process's memory in part "+
			"and takes its time: choose a loopback address, such as 127.0.0.1:6060", o.pprof))
	}
	return errors.Join(errs...)
}

func (o *serveOptions) checkFiles() error {
	switch {
	case o.configTable != "" && len(o.plans) > 0:
		return errors.New("--config-table and --plans both say what the plans are")
	case o.configTable == "" && o.cell != "":
		return errors.New("--cell has no use without --config-table")
	case o.cell == "" && o.alone:
		return errors.New("--alone has no use without --cell")
	case o.configTable != "" && len(o.pepperFiles) > 0:
		return errors.New("--pepper has no use with --config-table: no API keys are read from it")
	}
	return errors.Join(o.checkHomes(), o.checkKillSwitch())
}

// run serves until the context ends and the requests in flight are done.
func (o *serveOptions) run(ctx context.Context, stderr io.Writer) error {
	log := logger(stderr, o.logLevel, o.logFormat)
	o.warnOfPeerVariables(log)
	told := new(server.Metrics)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	homes, err := o.openHomes(ctx)
	if err != nil {
		return err
	}
	counters, err := o.stores.open(ctx, &storeUse{maxBytes: o.storeMB << 20, cell: o.cell, homes: homes}, log)
	if err != nil {
		return err
	}
	told.Calls = counters.Calls
	defer counters.close(log)
	plans, err := o.openPlans(ctx, counters, log)
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
	service, err := rls.New(rls.Config{Store: counters.Tenants, Plans: byPlan, Addresses: counters.Names,
		IPv6Prefix: o.ipv6Prefix, CountDenied: o.countDenied,
		ShadowMode: o.shadow, QuotaMode: o.quota, DynamicMetadata: o.metadata, Headers: o.names,
		PeekAfterDenial: counters.Chain == nil, Together: counters.Chain != nil, NearLimitRatio: o.nearLimit,
		MaxStats: o.maxStats, Log: log})
	if err != nil {
		return err
	}
	files, err := server.OpenFiles(server.FilesConfig{Paths: o.configs, Apply: service.SetConfig, Log: log,
		Options: envoyconfig.Options{MergeDomains: o.merge, Mapping: plans != nil, Accepts: accepts(counters.Tenants)},
		Failed:  func(error) { service.NoteConfigError() }})
	if err != nil {
		return err
	}
	own, err := openLimits(counters, plans)
	if err != nil {
		return err
	}
	exporter, err := o.otlp.open(func() []metrics.Metric { return told.Gather(service, counters.Chain) }, log)
	if err != nil {
		return err
	}
	config := server.Config{RateLimits: service, Limits: own, Metrics: told, Chain: counters.Chain, GRPC: o.grpc,
		HTTP: o.http, Debug: o.debug, Pprof: o.pprof, MaxConnections: o.maxConnections, MaxMessage: o.maxMessage,
		MaxAge: o.connectionAge(), DrainFor: o.drain, Grace: o.grace, Log: log}
	if counters.Chain != nil {
		if config.Ready, err = o.awaitStores(ctx, counters, end, log); err != nil {
			return err
		}
	}
	var certificates *server.Certificates
	if o.cert != "" {
		if certificates, err = server.OpenCertificates(o.cert, o.key, o.clientCA, o.clientSAN, log); err != nil {
			return err
		}
		config.TLS = certificates.Config()
	}
	s, err := server.Listen(config)
	if err != nil {
		return err
	}
	beside, endBeside := context.WithCancel(ctx)
	defer endBeside()
	defer exporter.Start(ctx)()
	go files.Watch(beside, server.CheckEvery, hangups(beside))
	if plans != nil {
		go plans.follow(beside)
	}
	if certificates != nil {
		reload := certificates.Reload
		go configfile.Watch(beside, certificatesEvery, hangups(beside), reload, reload)
	}
	over, finish := context.WithCancel(context.WithoutCancel(ctx))
	defer finish()
	err = s.Serve(ctx, secondSignal(ctx, over))
	if refused := new(refusedError); errors.As(context.Cause(ctx), &refused) {
		return refused
	}
	return err
}

// connectionAge returns how old connections become; 0: without bound.
func (o *serveOptions) connectionAge() time.Duration {
	if o.clientCA != "" && o.maxAge == 0 {
		return server.MutualTLSMaxAge
	}
	return o.maxAge
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

// hangups returns a channel that gets each SIGHUP until the context ends. A process that nobody has told to receive the
// signal is ended by it. So call hangups before anybody can know that the process runs, and not in a goroutine.
func hangups(ctx context.Context) <-chan os.Signal {
	received := make(chan os.Signal, 1)
	signal.Notify(received, syscall.SIGHUP)
	context.AfterFunc(ctx, func() { signal.Stop(received) })
	return received
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
