package main

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/stores"
)

// storeFlags adds the flags about stores that all commands have. redisDeadline is the default of --redis-deadline.
func storeFlags(f *pflag.FlagSet, o *stores.Options, redisDeadline time.Duration) {
	f.StringVar(&o.Redis, "redis", "", "keep counters in Redis at `HOST:PORT` or "+
		"redis[s]://USER:PASSWORD@HOST:PORT/DATABASE, so that several processes share each limit")
	f.StringVar(&o.RedisNamespace, "redis-namespace", "",
		"`TEXT` that begins the names of the counters, so that several programs can use one Redis")
	durationFlag(f, &o.RedisDeadline, "redis-deadline", redisDeadline, time.Millisecond,
		"longest `TIME` that a decision waits for Redis")
	f.StringVar(&o.DynamoDB, "dynamodb", "", "keep counters in DynamoDB: `aws`, or the URL of DynamoDB Local; "+
		"beside --redis: quotas only")
	durationFlag(f, &o.DynamoDBDeadline, "dynamodb-deadline", time.Second, time.Millisecond,
		"longest `TIME` that a decision waits for DynamoDB (in a deployment: "+dynamodb.DefaultTimeout.String()+")")
	f.StringVar(&o.Table, "dynamodb-table", "sluice-dev", "`TABLE` for --dynamodb, which is created in DynamoDB Local "+
		"if it does not exist")
	f.BoolVar(&o.Leases, "leases", true, "decide from units leased from a shared store, without a call for each "+
		"request")
	numberFlag(f, &o.MaxInstances, "max-instances", 1, 1, 1_000_000,
		"at most `N` processes share the store: while it does not answer "+
			"and the instance count is not known, each admits 1/N of a limit")
	f.StringVar(&o.AddressKey, "address-key", "", "`FILE` with the key that names addresses where they are counted, "+
		"32 bytes or more (default: a random key, which a shared store keeps)")
}

// redisFlags adds the flags about Redis that only sluice serve has.
func redisFlags(f *pflag.FlagSet, o *stores.Options) {
	f.BoolVar(&o.RedisCluster, "redis-cluster", false, "--redis names nodes of a cluster, separated by commas")
	f.BoolVar(&o.RedisTLS, "redis-tls", false, "connect to Redis with TLS, as a URL rediss:// does")
	f.StringVar(&o.RedisCA, "redis-ca", "",
		"PEM `FILE` with authorities for the certificate of Redis (default: those of the system)")
	f.StringVar(&o.RedisCert, "redis-cert", "", "PEM `FILE` with a certificate that Redis knows this client by")
	f.StringVar(&o.RedisKey, "redis-key", "", "PEM `FILE` with the key of --redis-cert")
	f.StringVar(&o.RedisUser, "redis-user", "", "`NAME` of the user at Redis")
	f.StringVar(&o.RedisPasswordFile, "redis-password-file", "",
		"`FILE` with the password for Redis, which is read again for each connection")
}
