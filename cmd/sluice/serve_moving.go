package main

import (
	"log/slog"
	"os"
	"slices"
)

// peerVariables are the settings of envoyproxy/ratelimit, which it reads from the environment, and what takes their
// place in sluice serve. docs/envoy.md lists them, too.
var peerVariables = map[string]string{
	"SHADOW_MODE":                             "--shadow-mode",
	"QUOTA_MODE":                              "--quota-mode",
	"REDIS_URL":                               "--redis",
	"REDIS_AUTH":                              "a URL in --redis, or --redis-user and --redis-password-file",
	"REDIS_TYPE":                              "--redis-cluster for a cluster; there is no Sentinel",
	"REDIS_TLS":                               "--redis-tls, or a URL rediss:// in --redis",
	"REDIS_TLS_CACERT":                        "--redis-ca",
	"REDIS_TLS_CLIENT_CERT":                   "--redis-cert",
	"REDIS_TLS_CLIENT_KEY":                    "--redis-key",
	"REDIS_TIMEOUT":                           "--redis-deadline",
	"REDIS_SOCKET_TYPE":                       "nothing: Redis is reached over TCP only",
	"REDIS_PERSECOND":                         "nothing: all limits are in the Redis of --redis",
	"REDIS_PERSECOND_URL":                     "nothing: all limits are in the Redis of --redis",
	"CACHE_KEY_PREFIX":                        "--redis-namespace",
	"BACKEND_TYPE":                            "--redis or --dynamodb; there is no Memcached",
	"MEMCACHE_HOST_PORT":                      "nothing: there is no Memcached",
	"RUNTIME_ROOT":                            "--config, with the folder of the files",
	"RUNTIME_SUBDIRECTORY":                    "--config, with the folder of the files",
	"RUNTIME_APPDIRECTORY":                    "--config, with the folder of the files",
	"CONFIG_TYPE":                             "nothing: there is no configuration by xDS",
	"CONFIG_GRPC_XDS_SERVER_URL":              "nothing: there is no configuration by xDS",
	"MERGE_DOMAIN_CONFIG":                     "--merge-domains",
	"FORCE_START_WITHOUT_INITIAL_CONFIG":      "nothing: the first configuration must be valid",
	"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "nothing: the first configuration must be valid",
	"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "nothing: a denied request counts nowhere, unless with --count-denied",
	"LOCAL_CACHE_SIZE_IN_BYTES":               "nothing: denials are remembered without a setting",
	"NEAR_LIMIT_RATIO":                        "--near-limit-ratio",
	"RESPONSE_DYNAMIC_METADATA":               "--dynamic-metadata",
	"LIMIT_RESPONSE_HEADERS_ENABLED":          "--headers plain",
	"LIMIT_LIMIT_HEADER":                      "--header-limit",
	"LIMIT_REMAINING_HEADER":                  "--header-remaining",
	"LIMIT_RESET_HEADER":                      "--header-reset",
	"GRPC_HOST":                               "--grpc",
	"GRPC_PORT":                               "--grpc",
	"GRPC_UDS":                                "--grpc unix:PATH",
	"HOST":                                    "--http",
	"PORT":                                    "--http",
	"DEBUG_HOST":                              "--debug",
	"DEBUG_PORT":                              "--debug",
	"GRPC_MAX_CONNECTION_AGE":                 "--max-connection-age",
	"GRPC_MAX_CONNECTION_AGE_GRACE":           "--grace",
	"GRPC_SERVER_USE_TLS":                     "--tls-cert and --tls-key",
	"GRPC_SERVER_TLS_CERT":                    "--tls-cert",
	"GRPC_SERVER_TLS_KEY":                     "--tls-key",
	"GRPC_CLIENT_TLS_CACERT":                  "--tls-client-ca",
	"GRPC_CLIENT_TLS_SAN":                     "--tls-client-san",
	"LOG_LEVEL":                               "--log-level",
	"LOG_FORMAT":                              "--log-format",
	"USE_STATSD":                              "/metrics and /stats of --debug, or --otlp; there is no statsd",
	"USE_DOG_STATSD":                          "/metrics and /stats of --debug, or --otlp; there is no statsd",
	"USE_PROMETHEUS":                          "/metrics of --debug, whose names differ (docs/envoy.md)",
	"TRACING_ENABLED":                         "nothing: there are no traces",
}

// ordinaryVariables have names that many programs use. One of them is a setting of envoyproxy/ratelimit only if others
// are set, too.
var ordinaryVariables = []string{"HOST", "PORT", "LOG_LEVEL", "LOG_FORMAT", "REDIS_URL", "GRPC_PORT", "GRPC_HOST"}

// warnOfPeerVariables logs each variable of envoyproxy/ratelimit that is set, and the flag to give in its place: the
// service reads none of them. It does not log their values, some of which are passwords. warnOfPeerVariables logs a
// variable with an ordinary name only beside one that no other program has, or if it is REDIS_URL and --redis is
// missing.
func (o *serveOptions) warnOfPeerVariables(log *slog.Logger) {
	var set []string
	known := false
	for name := range peerVariables {
		if os.Getenv(name) != "" {
			set = append(set, name)
			known = known || !slices.Contains(ordinaryVariables, name)
		}
	}
	slices.Sort(set)
	for _, name := range set {
		if !known && !(name == "REDIS_URL" && o.stores.redis == "") {
			continue
		}
		log.Warn("a variable of envoyproxy/ratelimit is set, and this service does not read it", "variable", name,
			"instead", peerVariables[name])
	}
}
