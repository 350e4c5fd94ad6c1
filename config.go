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
	// a field of Config is out of its range, or fields contradict each other
	ErrConfig = errors.New("sluice: bad configuration")
	// plans that cannot be read, or are not valid: the text has a line for each problem
	ErrPlans = errors.New("sluice: bad plans")
)

// Store is where counters are kept: a store of package redisstore or dynamodbstore. It may be shared by any number of
// limiters and processes. Whoever opened it closes it, after the limiters.
type Store interface {
	// Backend is for this package alone; its type is internal, so stores cannot be made elsewhere.
	Backend() store.Backend
}

// DefaultMemory is how much memory counters take at most, bytes, where Config.Memory is 0. One takes some 200 bytes.
const DefaultMemory = 64 << 20

// Config sets up a [Limiter]. What is left zero has the default that is named.
type Config struct {
	// Plans are the plans files, YAML or JSON, read as one. They are watched: a file that changes is in force a moment
	// later, and one with anything wrong changes nothing and is reported in the log. Either Plans or PlansData is
	// required.
	Plans []string

	// PlansData is a plans file's content, for plans that the program brings along.
	PlansData []byte

	// Store keeps the counters; nil is this process's memory.
	Store Store

	// Quotas is where quotas (limits over calendar periods) are counted; nil is Store. It is for rates in Redis with
	// quotas in DynamoDB, where they survive a restart. Only with a Store.
	Quotas Store

	// NoLeases has each decision ask the Store. By default units are charged ahead and spent locally, which is as
	// exact, and costs a busy tenant about one call per second and process. Single limits say `exact: true` instead.
	NoLeases bool

	// MaxInstances is the most processes that may share Store, 1 or more; default 1. While the store is away, a process
	// that has not counted them yet divides each limit by it.
	MaxInstances int

	// Memory bounds the counters kept in this process, bytes, at least 64 KB; default DefaultMemory. An eighth of it is
	// set aside to remember refunds. Counters that still matter are never forgotten.
	//
	// The counters of addresses and of anonymous calls take at most a quarter, unless there is a Store. When that is in
	// use, new addresses are spread over groups at random, and the addresses of a group share one counter of each
	// limit.
	//
	// The values that a tenant's limits count apart (`per`), and the entries of its sliding logs, take at most as much
	// memory as they leave to others. Beyond that, new values of a limit share one counter, as those beyond maxValues
	// do, and the new entries of a log are counted together. When all is in use, the onStoreFailure of each limit
	// decides about tenants that are new.
	Memory int64

	// Peppers are the secrets under which the API keys of the plans are hashed, by id, at least 16 bytes each. See
	// `sluice key`. Where the plans have no key and there are no Issuers, [Limiter.Authorize] looks at no credential:
	// they are the program's own.
	Peppers map[string][]byte

	// Issuers are those whose JWTs are accepted; none is accepted by default.
	Issuers []Issuer

	// TokenClaims are the further claims of a JWT that are kept for limits `per: claim:NAME`, at most 16.
	TokenClaims []string

	// HTTPClient fetches the issuers' keys; default one of its own.
	HTTPClient *http.Client

	// TrustedHops is how many proxies of your own stand in front, N of 0..16: the address that counts is the Nth entry
	// of X-Forwarded-For from the right. Default 0, the connection's other end.
	TrustedHops int

	// RetryJitter lengthens each Retry-After by a random share of up to so many percent, 0..100, so that clients that
	// were denied together do not come back together. Default 0.
	RetryJitter int

	Now func() time.Time // default time.Now; for tests and replays
	Log *slog.Logger     // default slog.Default()
}

// Issuer is one whose JWTs are accepted.
type Issuer struct {
	Issuer    string   // required; "iss", compared byte by byte
	Audiences []string // required; one of them must be in the audience claim
	JWKSURL   string   // required; https, or http on a loopback address

	// Algorithms that are accepted, of RS, PS and ES with 256, 384 and 512, and EdDSA; default RS256 and ES256.
	// Symmetric ones never are.
	Algorithms []string

	AudienceClaim string // default "aud"; access tokens of Cognito have "client_id"
	TenantClaim   string // default "tenant_id"; a member of the payload itself, never of one inside it
	SubjectClaim  string // default "sub"

	// Tenants are those that the issuer may speak for; AllTenants is all. One of the two is required, since whoever
	// holds an issuer's key can be any of its tenants.
	Tenants    []string
	AllTenants bool
}

// complete fills in defaults and says what is out of range. The error wraps ErrConfig and names the field.
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
	for _, wrong := range []struct {
		is   bool
		what string
	}{
		{len(c.Plans) == 0 && len(c.PlansData) == 0, "Plans and PlansData are both missing"},
		{len(c.Plans) > 0 && len(c.PlansData) > 0, "Plans and PlansData are both set"},
		{c.Quotas != nil && c.Store == nil, "Quotas is set without Store"},
		{c.NoLeases && c.Store == nil, "NoLeases is set without Store, and memory has no leases"},
		{c.MaxInstances < 1, fmt.Sprintf("MaxInstances %d is below 1", c.MaxInstances)},
		{c.Memory < minMemory, fmt.Sprintf("Memory %d is below %d", c.Memory, minMemory)},
		{c.TrustedHops < 0 || c.TrustedHops > identity.MaxHops,
			fmt.Sprintf("TrustedHops %d is outside 0..%d", c.TrustedHops, identity.MaxHops)},
		{c.RetryJitter < 0 || c.RetryJitter > 100, fmt.Sprintf("RetryJitter %d is outside 0..100", c.RetryJitter)},
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
		return nil, nil //nolint:nilnil // no issuers is no verifier
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

// Errors that a [Request.Identify] returns; any other is a credential that is refused.
var (
	// ErrNoCredential says that nothing says who calls. The call is then anonymous where the plans have an
	// anonymousPlan.
	ErrNoCredential = authorizer.ErrNoCredential

	// ErrUnidentified says that who calls could not be looked up. The client is told to come back in a second.
	ErrUnidentified = authorizer.ErrNotLoaded
)
