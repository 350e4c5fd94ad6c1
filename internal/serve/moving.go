package serve

import (
	"os"
	"slices"
	"strings"
)

// PeerVariables are the settings of envoyproxy/ratelimit, which it reads from the environment. docs/envoy.md says what
// takes the place of each in sluice serve.
var PeerVariables = strings.Fields(`
	SHADOW_MODE QUOTA_MODE REDIS_URL REDIS_AUTH REDIS_TYPE REDIS_TLS REDIS_TLS_CACERT REDIS_TLS_CLIENT_CERT
	REDIS_TLS_CLIENT_KEY REDIS_TIMEOUT REDIS_SOCKET_TYPE REDIS_PERSECOND REDIS_PERSECOND_URL CACHE_KEY_PREFIX
	BACKEND_TYPE MEMCACHE_HOST_PORT RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY CONFIG_TYPE
	CONFIG_GRPC_XDS_SERVER_URL MERGE_DOMAIN_CONFIG FORCE_START_WITHOUT_INITIAL_CONFIG
	HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT LOCAL_CACHE_SIZE_IN_BYTES
	NEAR_LIMIT_RATIO RESPONSE_DYNAMIC_METADATA LIMIT_RESPONSE_HEADERS_ENABLED LIMIT_LIMIT_HEADER
	LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER GRPC_HOST GRPC_PORT GRPC_UDS HOST PORT DEBUG_HOST DEBUG_PORT
	GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT
	GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN LOG_LEVEL LOG_FORMAT USE_STATSD USE_DOG_STATSD
	USE_PROMETHEUS TRACING_ENABLED`)

// ordinaryVariables have names that many programs use. One of them is a setting of envoyproxy/ratelimit only if others
// are set, too.
var ordinaryVariables = []string{"HOST", "PORT", "LOG_LEVEL", "LOG_FORMAT", "REDIS_URL", "GRPC_PORT", "GRPC_HOST"}

// warnOfPeerVariables logs the names of the variables of envoyproxy/ratelimit that are set: the service reads none of
// them. It does not log their values, some of which are passwords. Variables with ordinary names alone are not logged,
// except REDIS_URL if --redis is missing.
func (o *Options) warnOfPeerVariables() {
	set := slices.DeleteFunc(slices.Clone(PeerVariables), func(name string) bool { return os.Getenv(name) == "" })
	known := slices.ContainsFunc(set, func(name string) bool {
		return !slices.Contains(ordinaryVariables, name) || name == "REDIS_URL" && o.Stores.Redis == ""
	})
	if known {
		o.Log.Warn("variables of envoyproxy/ratelimit are set, and this service does not read them: docs/envoy.md has "+
			"the flags that take their place", "variables", set)
	}
}
