package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
)

// serveRedisDeadline is the default of --redis-deadline of sluice serve. It is long enough for a Redis in another zone
// (2 to 3 ms away; some 15 ms with a new connection), and for a Redis that stalls for 20 ms. It is half of the timeout
// that docs/envoy.md recommends for Envoy's filter.
const serveRedisDeadline = 50 * time.Millisecond

// redisOptions are the flags of sluice serve about Redis that other commands do not have.
type redisOptions struct {
	redisCluster, redisTLS      bool
	redisCA, redisUser          string
	redisCert, redisKey         string
	redisPasswordFile           string
	startWithoutStore           bool
	redisAddrs                  []string // of --redis, set by checkStores
	redisDB                     int
	redisURLUser, redisPassword string // of a URL in --redis
}

func (o *redisOptions) flags(f *pflag.FlagSet) {
	f.BoolVar(&o.redisCluster, "redis-cluster", false, "--redis names nodes of a cluster")
	f.BoolVar(&o.redisTLS, "redis-tls", false, "connect to Redis with TLS, as a URL rediss:// does")
	f.StringVar(&o.redisCA, "redis-ca", "",
		"PEM `FILE` with authorities for the certificate of Redis (default: those of the system)")
	f.StringVar(&o.redisCert, "redis-cert", "", "PEM `FILE` with a certificate that Redis knows this client by")
	f.StringVar(&o.redisKey, "redis-key", "", "PEM `FILE` with the key of --redis-cert")
	f.StringVar(&o.redisUser, "redis-user", "", "`NAME` of the user at Redis")
	f.StringVar(&o.redisPasswordFile, "redis-password-file", "",
		"`FILE` with the password for Redis, which is read again for each connection")
	f.BoolVar(&o.startWithoutStore, "start-without-store", false, "decide before the store has answered for the first "+
		"time: each instance then admits 1/--max-instances of a limit")
}

// checkStores checks the flags about stores, and reads --redis.
func (o *serveOptions) checkStores() error {
	if o.stores.redis == "" && (o.redisCluster || o.redisTLS || o.redisCA != "" || o.redisUser != "" ||
		o.redisPasswordFile != "" || o.redisCert != "" || o.redisKey != "") {
		return errors.New("--redis-cluster, --redis-tls, --redis-ca, --redis-cert, --redis-key, --redis-user and " +
			"--redis-password-file have no use without --redis")
	}
	if o.startWithoutStore && o.stores.redis == "" && o.stores.dynamodb == "" {
		return errors.New("--start-without-store has no use without --redis or --dynamodb")
	}
	if err := o.readRedisFlag(); err != nil {
		return err
	}
	if err := o.checkRedisConnection(); err != nil {
		return err
	}
	return o.checkRedisLogin()
}

// checkRedisConnection checks the flags about TLS and about a cluster.
func (o *serveOptions) checkRedisConnection() error {
	switch {
	case o.redisCA != "" && !o.redisTLS:
		return errors.New("--redis-ca needs --redis-tls, or a URL rediss:// in --redis")
	case (o.redisCert == "") != (o.redisKey == ""):
		return errors.New("--redis-cert and --redis-key need each other")
	case o.redisCert != "" && !o.redisTLS:
		return errors.New("--redis-cert needs --redis-tls, or a URL rediss:// in --redis")
	case len(o.redisAddrs) > 1 && !o.redisCluster:
		return errors.New("--redis has several addresses, which needs --redis-cluster")
	case o.redisCluster && o.redisDB != 0:
		return errors.New("--redis names a database, and a cluster has only one: leave the number out")
	}
	return nil
}

// checkRedisLogin checks that the user and the password are given once, and that no password travels in plain text.
func (o *serveOptions) checkRedisLogin() error {
	switch {
	case o.redisPasswordFile != "" && o.redisPassword != "":
		return errors.New("--redis-password-file and the URL of --redis both have a password: leave one out")
	case o.redisUser != "" && o.redisURLUser != "":
		return errors.New("--redis-user and the URL of --redis both have a user: leave one out")
	case o.redisUser != "" && o.redisPasswordFile == "" && o.redisPassword == "":
		return errors.New("--redis-user needs --redis-password-file")
	case o.redisPasswordFile != "" && !o.redisTLS && !o.redisOnThisMachine():
		return errors.New("--redis-password-file needs --redis-tls: the password would travel in plain text")
	}
	return nil
}

// readRedisFlag reads --redis: HOST:PORT, several of them with commas between, or URLs. The errors do not contain the
// value, which may have a password in it.
func (o *serveOptions) readRedisFlag() error {
	each := o.stores
	each.redis = ""
	if o.stores.redis == "" {
		return each.check()
	}
	parts := []string{o.stores.redis}
	if o.redisCluster || !strings.Contains(o.stores.redis, "://") { // a password in a URL may have a comma
		parts = strings.Split(o.stores.redis, ",")
	}
	o.redisAddrs = nil
	for i, part := range parts {
		address := part
		if strings.Contains(part, "://") {
			to, err := parseRedisURL(part)
			if err != nil {
				return err
			}
			if i > 0 && (to.Username != o.redisURLUser || to.Password != o.redisPassword || to.DB != o.redisDB ||
				(to.TLSConfig != nil) != o.redisTLS) {
				return errors.New("the URLs of --redis differ in more than HOST:PORT: the nodes of a cluster have " +
					"one user, and all or none have TLS")
			}
			address = to.Addr
			o.redisURLUser, o.redisPassword, o.redisDB = to.Username, to.Password, to.DB
			o.redisTLS = o.redisTLS || to.TLSConfig != nil
		}
		each.redis = address
		if err := each.check(); err != nil {
			return err
		}
		o.redisAddrs = append(o.redisAddrs, address)
	}
	return nil
}

// parseRedisURL reads a URL such as redis://user:password@host:6379/0, or rediss:// for TLS.
func parseRedisURL(text string) (*goredis.Options, error) {
	u, err := url.Parse(text)
	if err == nil && (u.RawQuery != "" || u.Fragment != "") {
		return nil, errors.New("--redis: a URL has options after ? or #, which sluice serve does not take from " +
			"there: use flags, such as --redis-deadline")
	}
	to, parseErr := goredis.ParseURL(text)
	if err != nil || parseErr != nil || to.Network != "tcp" {
		return nil, errors.New("--redis is not HOST:PORT, such as 127.0.0.1:6379, and not a URL such as " +
			"redis://user:password@host:6379/0, or rediss:// for TLS. In a URL, write @, :, / and % of a password as " +
			"%40, %3A, %2F and %25")
	}
	return to, nil
}

// redisOnThisMachine reports whether what is sent to Redis stays on this machine. A cluster may name nodes on other
// machines.
func (o *serveOptions) redisOnThisMachine() bool {
	host, _, _ := net.SplitHostPort(o.redisAddrs[0])
	address, err := netip.ParseAddr(host)
	return !o.redisCluster && (host == "localhost" || err == nil && address.IsLoopback())
}

// openRedis makes the store in Redis. It is no error if Redis does not answer: see awaitStores.
func (o *serveOptions) openRedis(ctx context.Context, log *slog.Logger) (*redis.Store, error) {
	c := redis.Config{Addrs: o.redisAddrs, Cluster: o.redisCluster, Namespace: o.stores.redisNamespace,
		Deadline: o.stores.redisDeadline, Database: o.redisDB}
	if o.redisTLS {
		var err error
		if c.TLS, err = o.redisTLSConfig(); err != nil {
			return nil, err
		}
	}
	user := o.redisUser + o.redisURLUser // checkStores allows one of them
	switch {
	case o.redisPasswordFile != "":
		c.Credentials = func(context.Context) (string, string, error) {
			text, err := os.ReadFile(o.redisPasswordFile)
			return user, strings.TrimRight(string(text), "\r\n"), err
		}
		if _, _, err := c.Credentials(ctx); err != nil {
			return nil, fmt.Errorf("--redis-password-file: %w", err)
		}
	case o.redisPassword != "" || user != "":
		c.Credentials = func(context.Context) (string, string, error) { return user, o.redisPassword, nil }
		if !o.redisTLS && !o.redisOnThisMachine() {
			log.Warn("the password of the URL in --redis travels in plain text: use rediss:// if Redis has TLS")
		}
	}
	s, err := redis.New(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("--redis: %w", err)
	}
	return s, nil
}

func (o *serveOptions) redisTLSConfig() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.redisCA != "" {
		pem, err := os.ReadFile(o.redisCA)
		if err != nil {
			return nil, fmt.Errorf("--redis-ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--redis-ca: %s has no certificate in PEM", o.redisCA)
		}
	}
	if o.redisCert != "" {
		read := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(o.redisCert, o.redisKey)
			return &pair, err
		}
		if _, err := read(); err != nil {
			return nil, fmt.Errorf("--redis-cert and --redis-key: %w", err)
		}
		// The files are read again for each connection, so that a renewed certificate needs no restart.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	}
	return c, nil
}

const (
	// readyOwners is how many owners a store is asked about. In a cluster they fall on different nodes: 16 of them on
	// one node of a cluster with two are less likely than 1 in 60,000.
	readyOwners = 16

	askAgainAfter   = 250 * time.Millisecond // between two attempts to get the first answer of the stores
	unansweredEvery = 10 * time.Second       // between two lines of the log while they do not answer
)

// askStore asks a store for counters that nobody uses, and charges nothing. The error says whether the store is
// reachable, accepts the credentials, and allows what decisions need.
func askStore(ctx context.Context, s limit.Store) error {
	l, err := limit.New(limit.Limit{ID: "ready", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 1,
		Period: time.Hour}}})
	if err != nil {
		return err
	}
	for i := range readyOwners {
		var d limit.Decision
		owner := limit.Owner{Kind: limit.AnyKey, Name: "sluice/ready/" + strconv.Itoa(i)}
		req := &limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: l, Cost: 1}}}
		if err := s.Peek(ctx, req, time.Now(), &d); err != nil {
			return err
		}
	}
	return nil
}

// storeFlag is a store with the flag that names it and what the flag says, without a password.
type storeFlag struct {
	flag, value string
	store       limit.Store
}

// ask asks a store whether it answers. The error names the flag.
func (s *storeFlag) ask(ctx context.Context, chain *resilience.Chain) error {
	err := askStore(ctx, s.store)
	if err == nil {
		select {
		case <-chain.Instances.Counted(): // a charge has succeeded
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(askAgainAfter):
			err = errors.New("it answers questions, and has not taken a charge yet")
		}
	}
	if err == nil {
		return nil
	}
	advice, refused := redis.Refused(err)
	if !refused {
		return err
	}
	if strings.HasPrefix(advice, "it is a node of a cluster") {
		advice += ": add --redis-cluster"
	}
	if advice != "" {
		advice += ". "
	}
	return &refusedError{fmt.Errorf("%s %s: %sIt refuses this client: %w. Correct the flags, or give "+
		"--start-without-store to decide by the fallback limiter meanwhile", s.flag, s.value, advice, err)}
}

// refusedError is the error of a store that refuses this client. Asking again has no use.
type refusedError struct{ error }

// awaitStores asks the stores until each of them has answered once, and then closes the channel that it returns. If a
// store refuses this client, awaitStores returns an error, or ends the service with that error later. The first attempt
// is over when awaitStores returns.
func (o *serveOptions) awaitStores(
	ctx context.Context, c *counters, end context.CancelCauseFunc, log *slog.Logger,
) (<-chan struct{}, error) {
	ready := make(chan struct{})
	var lastLogged time.Time
	attempt := func() (done bool, err error) {
		for _, s := range c.flags {
			err := s.ask(ctx, c.chain)
			if err == nil || ctx.Err() != nil {
				continue
			}
			if refused := new(refusedError); errors.As(err, &refused) && !o.startWithoutStore {
				return true, err
			}
			if time.Since(lastLogged) >= unansweredEvery {
				lastLogged = time.Now()
				log.Warn(o.unanswered(&s), strings.TrimPrefix(s.flag, "--"), s.value, "error", err)
			}
			return false, nil
		}
		return true, nil
	}
	done, err := attempt()
	if err != nil {
		return nil, err
	}
	if done || o.startWithoutStore {
		close(ready)
	}
	if !done {
		go func() {
			for !done && err == nil && ctx.Err() == nil {
				<-time.After(askAgainAfter)
				done, err = attempt()
			}
			switch {
			case err != nil:
				end(err)
			case ctx.Err() == nil:
				log.Info("every store has answered")
				if !o.startWithoutStore {
					close(ready)
				}
			}
		}()
	}
	return ready, nil
}

// unanswered is the line of the log about a store that has not answered since the start.
func (o *serveOptions) unanswered(s *storeFlag) string {
	name := "DynamoDB"
	if s.flag == "--redis" {
		name = "Redis"
	}
	then := "it answers, this instance is not ready, and decides nothing"
	if o.startWithoutStore {
		then = "it answers, limits hold approximately"
	}
	return fmt.Sprintf("the %s of %s does not answer: start it, or correct the flag. Until %s", name, s.flag, then)
}
