// Package token verifies JWTs: who issued one, for which tenant and subject, until when.
//
// Signatures and keys are go-jose's (v4): released often, without dependencies, its JSON refuses duplicate members, and
// its parser takes a list of algorithms. It adds 0.3 MB and 10 µs of initialisation to a Lambda; jwx adds 1.5 MB and
// 0.6 ms, and golang-jwt 0.07 MB but no keys, for which keyfunc refreshes in goroutines that a frozen Lambda stops.
//
// What a token says chooses among what is configured and nothing else: "iss" an issuer, "kid" a key that its own key
// set holds. Header members that name or carry other keys ("jku", "x5u", "jwk", "x5c") are never used.
package token

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	lru "github.com/hashicorp/golang-lru/v2"
)

// ErrBadToken is a token that is refused. Every error of [Verifier.Verify] wraps it or [ErrKeysUnavailable], none holds
// any part of the token.
var ErrBadToken = errors.New("bad token")

// Why a token is refused. Each wraps ErrBadToken.
var (
	ErrTooLarge    = fmt.Errorf("%w: too large", ErrBadToken)
	ErrMalformed   = fmt.Errorf("%w: malformed", ErrBadToken)
	ErrAlgorithm   = fmt.Errorf("%w: its algorithm is not accepted", ErrBadToken)
	ErrIssuer      = fmt.Errorf("%w: its issuer is not accepted", ErrBadToken)
	ErrAudience    = fmt.Errorf("%w: it is for another audience", ErrBadToken)
	ErrNoExpiry    = fmt.Errorf("%w: it never expires", ErrBadToken)
	ErrExpired     = fmt.Errorf("%w: expired", ErrBadToken)
	ErrNotYetValid = fmt.Errorf("%w: not yet valid", ErrBadToken)
	ErrTenant      = fmt.Errorf("%w: no usable tenant", ErrBadToken)
	ErrNotBound    = fmt.Errorf("%w: its issuer may not speak for the tenant", ErrBadToken)
	ErrSubject     = fmt.Errorf("%w: no usable subject", ErrBadToken)
	ErrUnknownKey  = fmt.Errorf("%w: signed with an unknown key", ErrBadToken)
	ErrSignature   = fmt.Errorf("%w: wrong signature", ErrBadToken)
)

// ErrKeysUnavailable is a token about which nothing can be said: its issuer's keys could not be had in time. The token
// may be good.
var ErrKeysUnavailable = errors.New("keys not available")

// Defaults and bounds of a [Config].
const (
	DefaultLeeway        = 30 * time.Second
	DefaultMaxTokenBytes = 8 << 10
	DefaultMaxRemembered = 4096
	DefaultWait          = 2 * time.Second
	DefaultRefresh       = 15 * time.Minute
	DefaultCooldown      = 30 * time.Second

	maxLeeway     = 5 * time.Minute
	maxTokenBytes = 64 << 10
	maxRemembered = 1 << 20
	maxWait       = 30 * time.Second
	maxRefresh    = 24 * time.Hour
	maxClaims     = 16
)

// Issuer is one who may issue tokens.
type Issuer struct {
	Issuer    string   // required; "iss", compared byte by byte
	Audiences []string // required; one of them must be in the audience claim
	JWKSURL   string   // required; https, or http on a loopback address

	// Algorithms that are accepted; default RS256 and ES256. Possible are RS, PS and ES with 256, 384 and 512, and
	// EdDSA (Ed25519), RSA with keys of 2048 to 4096 bits. Symmetric ones are not: their secret would have to be here.
	Algorithms []string

	AudienceClaim string // default "aud"; access tokens of Cognito have "client_id"
	TenantClaim   string // default "tenant_id"; a member of the payload itself, never of one inside it
	SubjectClaim  string // default "sub"

	// Tenants that the issuer may speak for. Whoever holds its key can be any of them, so all tenants are only those of
	// an issuer that says AllTenants.
	Tenants    []string
	AllTenants bool
}

// Config sets up a [Verifier]. Zero values are the defaults.
type Config struct {
	Issuers []Issuer // required

	Claims []string // further claims to keep for [Claims.Claim], at most 16

	Leeway        time.Duration // that clocks may differ by, at most 5 min; 0 is DefaultLeeway, 1 ns as good as none
	MaxTokenBytes int           // of a token, at most 64 KiB; a longer one is refused unread
	// verified tokens to remember, at most 1<<20; one takes up to 1 KiB and what Claims keeps
	MaxRemembered int
	Wait          time.Duration // that Verify waits for keys at most, up to 30 s

	// Refresh is the age at which keys are fetched again, up to a fifth later so that instances spread, at most 24 h.
	// The fetch goes beside verification. At twice this age the request that begins it waits for it, half a second at
	// most: an environment that is frozen after each request would never end one otherwise. Keys that cannot be
	// replaced are used on.
	Refresh time.Duration

	// Cooldown is the least time between two fetches because of an unknown key, at most Refresh. It is how late a new
	// key can be, where its issuer signs with it at once, and all that a flood of unknown keys costs the issuer.
	Cooldown time.Duration

	Client *http.Client // to fetch keys with; redirects are never followed; default one with a pool of its own
	Log    *slog.Logger // default slog.Default()
}

// Verifier verifies tokens. It is safe for concurrent use. Make it with [New].
type Verifier struct {
	c          Config
	issuers    map[string]*issuer
	algorithms []jose.SignatureAlgorithm // of any issuer
	seen       *lru.Cache[[sha256.Size]byte, remembered]
}

// issuer is an Issuer, ready for use.
type issuer struct {
	Issuer
	tenants    map[string]bool
	algorithms []jose.SignatureAlgorithm
	source     *source
}

// remembered is a token that was verified.
type remembered struct {
	claims   Claims
	validity validity
	key      *key
	issuer   *issuer
}

var (
	asymmetric = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
		jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}
	defaultAlgorithms = []string{string(jose.RS256), string(jose.ES256)}
)

// New checks the configuration and makes a verifier, which fetches nothing yet; see [Verifier.Warm]. The error names
// the field and joins all that is wrong.
func New(c Config) (*Verifier, error) {
	c.Claims = slices.Clone(c.Claims)
	v := &Verifier{c: c, issuers: make(map[string]*issuer, len(c.Issuers))}
	errs := v.c.complete()
	for n := range c.Issuers {
		i, err := prepare(c.Issuers[n])
		if err == nil && v.issuers[i.Issuer.Issuer] != nil {
			err = errors.New("another one has the same Issuer")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("issuer %d (%q): %w", n, c.Issuers[n].Issuer, err))
			continue
		}
		v.issuers[i.Issuer.Issuer] = i
		for _, a := range i.algorithms {
			if !slices.Contains(v.algorithms, a) {
				v.algorithms = append(v.algorithms, a)
			}
		}
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("token: %w", errors.Join(errs...))
	}
	for _, i := range v.issuers {
		i.source = newSource(&v.c, i)
	}
	var err error
	v.seen, err = lru.New[[sha256.Size]byte, remembered](v.c.MaxRemembered)
	return v, err
}

// complete puts defaults where nothing is said, and says what is out of bounds.
func (c *Config) complete() (errs []error) {
	if len(c.Issuers) == 0 {
		errs = append(errs, errors.New("no issuers"))
	}
	if len(c.Claims) > maxClaims {
		errs = append(errs, fmt.Errorf("%d Claims, want at most %d", len(c.Claims), maxClaims))
	}
	errs = append(errs, bound("Leeway", &c.Leeway, DefaultLeeway, maxLeeway),
		bound("MaxTokenBytes", &c.MaxTokenBytes, DefaultMaxTokenBytes, maxTokenBytes),
		bound("MaxRemembered", &c.MaxRemembered, DefaultMaxRemembered, maxRemembered),
		bound("Wait", &c.Wait, DefaultWait, maxWait),
		bound("Refresh", &c.Refresh, DefaultRefresh, maxRefresh),
		bound("Cooldown", &c.Cooldown, min(DefaultCooldown, c.Refresh), c.Refresh))
	c.Client = guarded(c.Client)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func bound[T int | time.Duration](name string, value *T, standard, most T) error {
	if *value == 0 {
		*value = standard
	}
	if *value < 0 || *value > most {
		return fmt.Errorf("%s %v is outside 0..%v", name, *value, most)
	}
	return nil
}

func prepare(in Issuer) (*issuer, error) {
	i := &issuer{Issuer: in, tenants: make(map[string]bool, len(in.Tenants))}
	if i.Issuer.Issuer == "" {
		return nil, errors.New("its name is missing")
	}
	if len(i.Audiences) == 0 || slices.Contains(i.Audiences, "") {
		return nil, errors.New("no Audiences, or an empty one: a token for anyone would do")
	}
	if i.AllTenants == (len(i.Tenants) > 0) {
		return nil, errors.New("want either Tenants or AllTenants")
	}
	i.Audiences = slices.Clone(i.Audiences)
	for _, t := range i.Tenants {
		if !nameable(t, maxTenantBytes) {
			return nil, fmt.Errorf("tenant %.40q is not 1 to %d bytes of text", t, maxTenantBytes)
		}
		i.tenants[t] = true
	}
	names := i.Algorithms
	if len(names) == 0 {
		names = defaultAlgorithms
	}
	for _, name := range names {
		a := jose.SignatureAlgorithm(name)
		if !slices.Contains(asymmetric, a) {
			return nil, fmt.Errorf("algorithm %.40q is not one of %v", name, asymmetric)
		}
		i.algorithms = append(i.algorithms, a)
	}
	for claim, standard := range map[*string]string{&i.AudienceClaim: "aud", &i.TenantClaim: "tenant_id",
		&i.SubjectClaim: "sub"} {
		if *claim == "" {
			*claim = standard
		}
	}
	return i, checkURL(i.JWKSURL)
}

// Warm begins to fetch the keys that are not there yet, and does not wait: for the initialisation of a Lambda, whose
// first request would otherwise wait for all of it.
func (v *Verifier) Warm(now time.Time) {
	for _, i := range v.issuers {
		i.source.keys.Warm(now)
	}
}

// Close gives up fetches under way, and waits for their end. Verify then fetches no more.
func (v *Verifier) Close() {
	for _, i := range v.issuers {
		i.source.keys.Close()
	}
}

// Shaped reports whether a text is meant as a JWT: three parts, of which the first begins as base64url of a JSON object
// does. It says nothing about whether it is one.
func Shaped(text string) bool {
	return strings.HasPrefix(text, "ey") && strings.Count(text, ".") == 2
}

// Verify says what the token claims, if it is good at now. Other errors than [ErrKeysUnavailable] wrap [ErrBadToken].
// It waits at most Config.Wait for keys, and not longer than ctx; ErrKeysUnavailable then wraps ctx's error.
//
// A token that was verified before costs a hash and a look-up, until it expires or its key leaves the issuer's set.
func (v *Verifier) Verify(ctx context.Context, token string, now time.Time) (Claims, error) {
	if len(token) > v.c.MaxTokenBytes {
		return Claims{}, ErrTooLarge
	}
	var usual [2048]byte // most tokens fit into it, so that the copy is not allocated
	id := sha256.Sum256(append(usual[:0], token...))
	if r, ok := v.seen.Get(id); ok {
		r.issuer.source.upkeep(ctx, now)
		if r.validity.check(now) == nil && !r.key.gone.Load() {
			return r.claims, nil
		}
		v.seen.Remove(id)
	}
	r, err := v.first(ctx, token, now)
	if err != nil {
		return Claims{}, err
	}
	v.seen.Add(id, r)
	return r.claims, nil
}

// first verifies a token that is not remembered. What costs least comes first, the signature last: refusing a token
// that is expired or for somebody else takes no key.
func (v *Verifier) first(ctx context.Context, token string, now time.Time) (r remembered, err error) {
	if !compact(token) {
		return r, ErrMalformed
	}
	jws, err := jose.ParseSignedCompact(token, v.algorithms)
	var algorithm *jose.ErrUnexpectedSignatureAlgorithm
	switch {
	case errors.As(err, &algorithm):
		return r, ErrAlgorithm
	case err != nil: // it may quote the token
		return r, ErrMalformed
	}
	header := &jws.Signatures[0].Protected
	if !plain(header) {
		return r, ErrMalformed
	}
	p, err := parsePayload(jws.UnsafePayloadWithoutVerification())
	if err != nil {
		return r, err
	}
	r.issuer = v.issuers[p.text("iss")]
	if r.issuer == nil {
		return r, ErrIssuer
	}
	used := jose.SignatureAlgorithm(header.Algorithm)
	if !slices.Contains(r.issuer.algorithms, used) {
		return r, ErrAlgorithm
	}
	if r.validity, err = p.validity(v.c.Leeway); err != nil {
		return r, err
	}
	if err = r.validity.check(now); err != nil {
		return r, err
	}
	if r.claims, err = p.claims(&r.issuer.Issuer, r.issuer.tenants, v.c.Claims); err != nil {
		return r, err
	}
	if r.key, err = r.issuer.source.key(ctx, header.KeyID, used, now); err != nil {
		return r, err
	}
	if _, err := jws.Verify(r.key.public); err != nil {
		return r, ErrSignature
	}
	return r, nil
}

// compact reports whether token has three parts of base64url. Decoders skip line ends, so without this one token could
// be written in many ways.
func compact(token string) bool {
	dots := 0
	for i := range len(token) {
		switch c := token[i]; {
		case c == '.':
			dots++
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return dots == 2
}

// plain reports whether the header is that of an access or ID token which needs no extension to be understood. Other
// kinds (a logout token, a security event) may be signed with the same key for the same audience.
func plain(h *jose.Header) bool {
	if len(h.KeyID) > maxTextBytes {
		return false
	}
	if typ, ok := h.ExtraHeaders[jose.HeaderType]; ok {
		name, _ := typ.(string)
		switch strings.TrimPrefix(strings.ToLower(name), "application/") {
		case "jwt", "at+jwt":
		default:
			return false
		}
	}
	_, critical := h.ExtraHeaders["crit"]
	_, unencoded := h.ExtraHeaders["b64"]
	return !critical && !unencoded
}

// Stats says how the keys are.
type Stats struct {
	Remembered        int       // tokens
	Fetches, Failures int64     // of key sets, that ended
	KeysFrom          time.Time // when the oldest key set in use was asked for; zero where an issuer has none yet
}

// Stats sums over all issuers.
func (v *Verifier) Stats() Stats {
	s := Stats{Remembered: v.seen.Len()}
	missing := false
	for _, i := range v.issuers {
		keys := i.source.keys.Stats()
		s.Fetches += keys.Reads
		s.Failures += keys.Failures
		switch {
		case keys.Value == nil:
			missing = true
		case s.KeysFrom.IsZero() || keys.From.Before(s.KeysFrom):
			s.KeysFrom = keys.From
		}
	}
	if missing {
		s.KeysFrom = time.Time{}
	}
	return s
}
