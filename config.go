package sluice

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/store"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

// The errors that [New] and [Limiter.Reload] return wrap one of these.
var (
	// ErrConfig means that a field of Config is out of its range, or that fields contradict each other.
	ErrConfig = errors.New("sluice: bad configuration")
	// ErrPlans means that plans cannot be read, or are not valid. The text has a line for each problem.
	ErrPlans = errors.New("sluice: bad plans")
)

// Store keeps counters. Open one with package redisstore or dynamodbstore. Any number of limiters and processes may
// share it. Whoever opened it closes it, after the limiters.
type Store interface {
	// Backend is for this package alone. Its type is internal, so other packages cannot implement Store.
	Backend() store.Backend
}

// DefaultMemory is the most memory that counters take if Config.Memory is 0, in bytes. A counter takes about 200 bytes.
const DefaultMemory = 64 << 20

// Config sets up a [Limiter]. A field that is zero has the default that its comment names.
type Config struct {
	// Plans are the names of the plans files, YAML or JSON. They are read as one file, and watched. A changed file is
	// in force a moment later. A file with any mistake changes nothing, and the log reports it. Exactly one of Plans
	// and PlansData is required.
	Plans []string

	// PlansData is the content of a plans file, for plans that the program itself contains.
	PlansData []byte

	// Store keeps the counters. If nil, the memory of this process keeps them.
	Store Store

	// Quotas counts quotas, which are limits over calendar periods. If nil, Store counts them. Use it to keep quotas in
	// DynamoDB while rates are in Redis: a restart of Redis then loses no quota. It requires Store.
	Quotas Store

	// NoLeases makes each decision ask the Store. By default, units are leased: charged ahead and spent locally. A
	// busy tenant then costs about one call per second and process. Leases never admit more than a limit, but close to
	// it a process may deny while another one has units left. A single limit can say `exact: true` instead.
	NoLeases bool

	// MaxInstances is how many processes you expect to share Store at most, 1 or more; default 1. It is used only while
	// the Store does not answer: a process that does not know the instance count yet divides each limit by it. If more
	// processes share the Store, they can then admit more than the bound of an outage.
	MaxInstances int

	// Memory bounds the counters in this process, in bytes, at least 64 KB; default DefaultMemory. An eighth of it is
	// reserved for remembering refunds. A counter is never forgotten while it can still deny a request.
	//
	// Without a Store, the counters of addresses and of anonymous calls take at most a quarter of it. When that quarter
	// is full, new addresses are put into groups at random, and the addresses of a group share one counter of each
	// limit.
	//
	// A tenant gets memory for new values by which its limits count (`per`), and for new entries of its sliding logs,
	// only while it uses no more memory than is still free. So one tenant uses at most half of the memory, and the
	// next one at most half of the rest. After that, new values of a limit share one counter, as values above
	// `maxValues` in plans do, and new entries of a log are counted together. When all memory is full, the
	// onStoreFailure of each limit decides about new tenants.
	Memory int64

	// Peppers are the secrets with which the API keys of the plans are hashed, by id, at least 16 bytes each. See
	// `sluice key`. If the plans have no key and there are no Issuers, [Limiter.Authorize] ignores credentials,
	// because the program itself may use them.
	Peppers map[string][]byte

	// AddressKey is the key with which addresses are named where they are counted, at least 32 bytes. Processes that
	// share Store need the same one. If it is empty, Store keeps a random key for all of them. Whoever can read the key
	// can find the IPv4 addresses of counters by trying all of them. If you replace it, counters of addresses start
	// afresh.
	AddressKey []byte

	// Issuers are the issuers whose JWTs are accepted. By default, no JWT is accepted.
	Issuers []Issuer

	// TokenClaims names further claims of a JWT, which limits `per: claim:NAME` use; at most 16.
	TokenClaims []string

	// HTTPClient fetches the keys of the issuers. By default, the limiter makes a client.
	HTTPClient *http.Client

	// TrustedHops is how many of your own proxies are in front of the program, 0..16; default 0. If it is 0, the
	// client's address is the remote address of the connection. If it is N, each proxy has appended one entry to the
	// header X-Forwarded-For, and the client's address is the Nth entry from the right.
	TrustedHops int

	// RetryJitter lengthens each Retry-After by a random part, of at most this many percent, 0..100; default 0. It
	// keeps clients that were denied together from returning together.
	RetryJitter int

	// Measure counts decisions and calls of the Store with their times, for [Limiter.Metrics]. Each decision then
	// reads the clock twice more.
	Measure bool

	Now func() time.Time // default time.Now; for tests and simulations
	Log *slog.Logger     // default slog.Default()
}

// Issuer is an issuer whose JWTs are accepted.
type Issuer struct {
	Issuer    string   // required; the value of the claim "iss", compared byte by byte
	Audiences []string // required; the audience claim must contain one of them
	JWKSURL   string   // https, or http on a loopback address; either this or JWKSFile
	JWKSFile  string   // a file with the keys, read as often as a URL is

	// Algorithms are the accepted algorithms: RS, PS and ES with 256, 384 or 512, and EdDSA; default RS256 and ES256.
	// Symmetric algorithms are never accepted.
	Algorithms []string

	AudienceClaim string // default "aud"; access tokens of Cognito have "client_id"
	TenantClaim   string // default "tenant_id"; a direct member of the payload, not a nested one
	SubjectClaim  string // default "sub"

	// Tenants are the tenants that the issuer may name. AllTenants allows all of them. One of the two is required,
	// because whoever holds an issuer's key can pretend to be any of its tenants.
	Tenants    []string
	AllTenants bool
}

// complete fills in defaults, and checks the fields that no other package checks. The error wraps ErrConfig and names
// the field.
func (c *Config) complete() error {
	if c.Memory == 0 {
		c.Memory = DefaultMemory
	}
	if c.MaxInstances == 0 {
		c.MaxInstances = 1
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	for _, f := range c.Plans {
		if f == "" || f == "-" {
			return fmt.Errorf("%w: Plans: %q is not a file that can be watched", ErrConfig, f)
		}
	}
	n := len(c.AddressKey)
	for _, wrong := range []struct {
		is   bool
		what string
	}{
		{len(c.Plans) == 0 && len(c.PlansData) == 0, "Plans and PlansData are both missing"},
		{len(c.Plans) > 0 && len(c.PlansData) > 0, "Plans and PlansData are both set"},
		{c.Quotas != nil && c.Store == nil, "Quotas is set without Store"},
		{c.NoLeases && c.Store == nil, "NoLeases needs a Store: without one nothing is leased"},
		{c.MaxInstances < 1, fmt.Sprintf("MaxInstances %d is below 1", c.MaxInstances)},
		{c.Memory < minMemory, fmt.Sprintf("Memory %d is below %d", c.Memory, minMemory)},
		{c.TrustedHops < 0 || c.TrustedHops > identity.MaxHops,
			fmt.Sprintf("TrustedHops %d is outside 0..%d", c.TrustedHops, identity.MaxHops)},
		{c.RetryJitter < 0 || c.RetryJitter > 100, fmt.Sprintf("RetryJitter %d is outside 0..100", c.RetryJitter)},
		{n > 0 && n < identity.MinAddressKeyBytes,
			fmt.Sprintf("AddressKey has %d bytes, want at least %d", n, identity.MinAddressKeyBytes)},
		{len(c.TokenClaims) > 0 && len(c.Issuers) == 0, "TokenClaims is set without Issuers"},
	} {
		if wrong.is {
			return fmt.Errorf("%w: %s", ErrConfig, wrong.what)
		}
	}
	return nil
}

const minMemory = 64 << 10

// tokenVerifier returns the verifier of JWTs, or nil if there are no Issuers.
func (c *Config) tokenVerifier() (authorizer.Tokens, error) {
	if len(c.Issuers) == 0 {
		return nil, nil //nolint:nilnil // without issuers there is no verifier
	}
	issuers := make([]token.Issuer, len(c.Issuers))
	for i, issuer := range c.Issuers {
		issuers[i] = token.Issuer(issuer)
	}
	v, err := token.New(token.Config{Issuers: issuers, Claims: c.TokenClaims, Client: c.HTTPClient, Log: c.Log})
	if err != nil {
		return nil, fmt.Errorf("%w: Issuers: %w", ErrConfig, err)
	}
	return v, nil
}
