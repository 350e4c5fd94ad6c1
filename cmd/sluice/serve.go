package main

import (
	"errors"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/serve"
	"github.com/sluicelimits/sluice/internal/server"
)

// serveRedisDeadline is the default of --redis-deadline of sluice serve. It is long enough for a Redis in another zone
// (2 to 3 ms away; some 15 ms with a new connection), and for a Redis that stalls for 20 ms. It is half of the timeout
// that docs/envoy.md recommends for Envoy's filter.
const serveRedisDeadline = 50 * time.Millisecond

type serveOptions struct {
	planFlags

	run                 serve.Options
	headers             string // which
	storeMB             int64
	logLevel, logFormat string
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
			return o.start(c)
		},
	}
	o.flags(c)
	return c
}

// start opens what the flags name, and serves until the command is told to stop.
func (o *serveOptions) start(c *cobra.Command) (err error) {
	o.run.Log = logger(c.ErrOrStderr(), o.logLevel, o.logFormat)
	if o.run.Peppers, err = o.peppers(); err != nil {
		return err
	}
	return o.run.Run(c.Context())
}

// flagsOnly refuses arguments. It names the flag that the first one was probably meant for.
func flagsOnly(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usagef("%q is not a flag: %s takes flags only. For a configuration file, say --config %[1]s", args[0],
		c.CommandPath())
}

func (o *serveOptions) flags(c *cobra.Command) {
	f, run := c.Flags(), &o.run
	f.StringArrayVar(&run.Configs, "config", nil,
		"configuration `FILE`, or a folder, with all files in it and below; may be repeated")
	o.planFlags.flags(f, "plans `FILE`, for configuration files with a mapping; may be repeated")
	f.BoolVar(&run.MergeDomains, "merge-domains", false, "allow several files for one domain (MERGE_DOMAIN_CONFIG)")
	f.BoolVar(&run.RateLimits.CountDenied, "count-denied", false,
		"charge every request, also denied ones, as envoyproxy/ratelimit does; descriptors that a plan decides "+
			"ignore it")
	f.BoolVar(&run.RateLimits.ShadowMode, "shadow-mode", false,
		"deny nothing: the overall code is always OK (SHADOW_MODE)")
	f.BoolVar(&run.RateLimits.QuotaMode, "quota-mode", false, "treat every limit as one with quota_mode (QUOTA_MODE)")
	f.BoolVar(&run.RateLimits.DynamicMetadata, "dynamic-metadata", false,
		"add dynamic metadata to answers (RESPONSE_DYNAMIC_METADATA)")
	wordFlag(c, &o.headers, "headers", "exact",
		"response headers, `WHICH` is exact (RateLimit, RateLimit-Policy, Retry-After), "+
			"plain (LIMIT_RESPONSE_HEADERS_ENABLED), both or none", "exact", "plain", "both", "none")
	f.StringVar(&run.RateLimits.Headers.Limit, "header-limit", "RateLimit-Limit",
		"`NAME` of the plain header with the limit (LIMIT_LIMIT_HEADER)")
	f.StringVar(&run.RateLimits.Headers.Remaining, "header-remaining", "RateLimit-Remaining",
		"`NAME` of the plain header with the remaining units (LIMIT_REMAINING_HEADER)")
	f.StringVar(&run.RateLimits.Headers.Reset, "header-reset", "RateLimit-Reset",
		"`NAME` of the plain header with the time until the reset (LIMIT_RESET_HEADER)")
	f.Float32Var(&run.RateLimits.NearLimitRatio, "near-limit-ratio", 0.8,
		"count a hit as near_limit if more than this `SHARE` of the limit is used (NEAR_LIMIT_RATIO)")
	numberFlag(f, &run.RateLimits.MaxStats, "max-stats", 10_000, 1, 1_000_000,
		"keep at most `N` statistics whose names contain values of requests")
	numberFlag(f, &run.RateLimits.IPv6Prefix, "ipv6-prefix", 64, 1, 128,
		"count the IPv6 addresses of a network of `BITS` as one in "+
			"remote_address; 128: each by itself, as envoyproxy/ratelimit does. Plans have a setting of their own")
	f.StringVar(&run.Server.GRPC, "grpc", "127.0.0.1:8081",
		"`ADDRESS` of the gRPC server, or unix:PATH; empty: no gRPC server")
	f.StringVar(&run.Server.HTTP, "http", "127.0.0.1:8080",
		"`ADDRESS` of /json, /healthcheck and /v1; empty: no HTTP server")
	numberFlag(f, &run.Server.MaxConnections, "max-connections", server.DefaultMaxConnections, 1, 1_000_000,
		"accept at most `N` connections for each server")
	numberFlag(f, &run.Server.MaxMessage, "max-message", server.DefaultMaxMessage, 1024, 4<<20,
		"refuse requests of more than `BYTES`; a /v1/check-batch of many calls needs more")
	o.commonFlags(c)
}

// commonFlags adds the flags that `sluice serve` and `sluice proxy` share.
func (o *serveOptions) commonFlags(c *cobra.Command) {
	f, run := c.Flags(), &o.run
	f.StringVar(&run.ConfigTable, "config-table", "",
		"instead of --plans: follow the config `TABLE` of a cell, in the DynamoDB of --dynamodb (default: of AWS)")
	f.StringVar(&run.Cell, "cell", "", "admit the share of each limit that cell `NAME` has in --config-table "+
		"(default: the whole limit)")
	f.BoolVar(&run.Alone, "alone", false,
		"--cell is the only one: admit the whole limit as long as the table has no shares")
	f.StringArrayVar(&run.Homes, "home", nil, "counters table of another cell, as `CELL=TABLE` (name or ARN): limits "+
		"that it keeps are leased from there; may be repeated")
	durationFlag(f, &run.HomeDeadline, "home-deadline", 500*time.Millisecond, time.Millisecond,
		"time limit for a call of --home: three times the way there and back, for a new connection")
	f.StringVar(&run.KillSwitch, "kill-switch", "", "follow the kill switch of a cell, whose `IDS` in AWS AppConfig "+
		"are APPLICATION/ENVIRONMENT/PROFILE: it says whether plans deny; other descriptors ignore it")
	f.StringVar(&run.Server.Debug, "debug", "127.0.0.1:6070",
		"`ADDRESS` of /metrics, /healthcheck and other diagnostics, without TLS; empty: no debug server")
	f.StringVar(&run.Server.Pprof, "pprof", "", "loopback `ADDRESS` of Go's profiles, at /debug/pprof/ (default: none)")
	f.StringVar(&run.Cert, "tls-cert", "", "PEM `FILE` with the certificate of all servers but --debug and --pprof")
	f.StringVar(&run.Key, "tls-key", "", "PEM `FILE` with the key of that certificate")
	f.StringVar(&run.ClientCA, "tls-client-ca", "", "PEM `FILE` with authorities: admit only clients with a "+
		"certificate of one of them")
	f.StringVar(&run.ClientSAN, "tls-client-san", "", "admit only clients whose certificate has this `NAME`, a DNS "+
		"name or an IP address, as a subject alternative name")
	durationFlag(f, &run.Server.MaxAge, "max-connection-age", 0, 0,
		"end a connection after `TIME`, so that clients find new servers; 0: never, or after "+
			server.MutualTLSMaxAge.String()+" with --tls-client-ca")
	durationFlag(f, &run.Server.DrainFor, "drain", 0, 0,
		"at the end, answer health checks with unhealthy for `TIME` before service "+
			"stops")
	durationFlag(f, &run.Server.Grace, "grace", server.DefaultGrace, time.Millisecond,
		"at the end, wait up to `TIME` for requests in flight")
	f.StringVar(&run.Collector, "otlp", "", "send metrics to the OpenTelemetry collector at `URL`, by OTLP over HTTP, "+
		"such as http://127.0.0.1:4318 (default: "+serve.CollectorVariable+")")
	durationFlag(f, &run.CollectorEvery, "otlp-every", metrics.DefaultEvery, time.Second, "send metrics to --otlp "+
		"every `TIME`")
	storeSizeFlag(f, &o.storeMB)
	logLevelFlag(c, &o.logLevel)
	wordFlag(c, &o.logFormat, "log-format", "text", "`FORMAT` is text or json", "text", "json")
	storeFlags(f, &run.Stores, serveRedisDeadline)
	redisFlags(f, &run.Stores)
	f.BoolVar(&run.StartWithoutStore, "start-without-store", false, "decide before the store has answered for the "+
		"first time: each instance then admits 1/--max-instances of a limit")
}

// check checks the flags without opening anything. Its errors are usage errors.
func (o *serveOptions) check() error {
	run := &o.run
	run.RateLimits.Headers.Exact = o.headers == "exact" || o.headers == "both"
	run.RateLimits.Headers.Plain = o.headers == "plain" || o.headers == "both"
	run.Plans, run.Stores.MaxBytes, run.Version = o.plans, o.storeMB<<20, version(debug.ReadBuildInfo)
	if run.Proxy == nil && run.ConfigTable != "" && len(o.pepperFiles) > 0 {
		return errors.New("--pepper has no use with --config-table: no API keys are read from it")
	}
	return run.Check()
}
