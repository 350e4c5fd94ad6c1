// Package token verifies JWTs: who issued a token, for which tenant and subject, and until when it is valid.
//
// Signatures and keys are handled by go-jose (v4). It is released often and has no dependencies, its JSON decoder
// refuses duplicate members, and its parser takes a list of algorithms. It adds 0.3 MB and 10 µs of initialisation to a
// Lambda function. jwx adds 1.5 MB and 0.6 ms. golang-jwt adds 0.07 MB but does not fetch keys; keyfunc does, in
// goroutines that stop while a Lambda environment is frozen.
//
// A token only selects among what is configured: its "iss" selects an issuer, and its "kid" a key in the key set of
// that issuer. Header members that name or carry other keys ("jku", "x5u", "jwk", "x5c") are never used.
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

// ErrBadToken means that a token is refused. Every error of [Verifier.Verify] wraps it or [ErrKeysUnavailable]. No
// error contains any part of the token.
var ErrBadToken = errors.New("bad token")

// Reasons for which a token is refused. Each wraps ErrBadToken.
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

// ErrKeysUnavailable means that a token cannot be judged, because its issuer's keys could not be fetched in time. The
// token may be good.
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

// Issuer is an issuer whose tokens are accepted.
type Issuer struct {
	Issuer    string   `json:"issuer"`    // required; the value of the claim "iss", compared byte by byte
	Audiences []string `json:"audiences"` // required; the audience claim must contain one of them
	JWKSURL   string   `json:"jwksUrl"`   // https, or http on a loopback address; either this or JWKSFile
	JWKSFile  string   `json:"jwksFile"`  // a file with the keys, read as often as a URL is

	// Algorithms are the accepted algorithms; default RS256 and ES256. Possible are RS, PS and ES with 256, 384 or 512,
	// and EdDSA (Ed25519). RSA keys must have 2048 to 4096 bits. Symmetric algorithms are not possible, because their
	// secret would have to be stored here.
	Algorithms []string `json:"algorithms"`

	AudienceClaim string `json:"audienceClaim"` // default "aud"; access tokens of Cognito have "client_id"
	TenantClaim   string `json:"tenantClaim"`   // default "tenant_id"; a direct member of the payload, not a nested one
	SubjectClaim  string `json:"subjectClaim"`  // default "sub"

	// Tenants are the tenants that the issuer may name. AllTenants allows all of them. It must be set explicitly,
	// because whoever holds the issuer's key can pretend to be any of these tenants.
	Tenants    []string `json:"tenants"`
	AllTenants bool     `json:"allTenants"`
}

// Config sets up a [Verifier]. A zero field has its default.
type Config struct {
	Issuers []Issuer // required

	Claims []string // further claims to keep for [Claims.Claim], at most 16

	Leeway        time.Duration // how far clocks may differ, at most 5 min; 0 means DefaultLeeway; 1 ns is almost none
	MaxTokenBytes int           // at most 64 KiB; a longer token is refused unread
	// MaxRemembered is how many verified tokens are remembered, at most 1<<20. A token takes up to 1 KiB, plus the
	// claims that are kept.
	MaxRemembered int
	Wait          time.Duration // how long Verify waits for keys at most, up to 30 s

	// Refresh is the age at which keys are fetched again, at most 24 h. Each instance adds up to a fifth at random, so
	// that instances do not fetch together. Verification goes on meanwhile. At twice this age, the request that starts
	// the fetch waits for it, up to half a second, because an environment that is frozen after each request would
	// otherwise never finish a fetch. Keys that cannot be replaced stay in use.
	Refresh time.Duration

	// Cooldown is the least time between two fetches because of an unknown key, at most Refresh. A new key that its
	// issuer uses at once is accepted at most this much later. It also bounds what a flood of unknown keys costs the
	// issuer.
	Cooldown time.Duration

	Client *http.Client // fetches keys; it never follows redirects; default a client with a pool of its own
	Log    *slog.Logger // default slog.Default()
}

// Verifier verifies tokens. It is safe for concurrent use. Make it with [New].
type Verifier struct {
	c          Config
	issuers    map[string]*issuer
	algorithms []jose.SignatureAlgorithm // of all issuers
	seen       *lru.Cache[[sha256.Size]byte, remembered]
}

// issuer is a checked Issuer.
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

// New checks the configuration and makes a verifier. It fetches nothing yet; see [Verifier.Warm]. The error joins all
// problems and names the fields.
func New(c Config) (*Verifier, error) {
	c.Claims = slices.Clone(c.Claims)
	v := &Verifier{c: c, issuers: make(map[string]*issuer, len(c.Issuers))}
	errs := v.c.complete()
	for n := range c.Issuers {
		i, err := prepare(c.Issuers[n])
		if err == nil && v.issuers[i.Issuer.Issuer] != nil {
			err = errors.New("another issuer has the same Issuer")
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

// complete fills in defaults and checks bounds.
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
		return nil, errors.New("no Audiences, or an empty one: tokens for any audience would be accepted")
	}
	if i.AllTenants == (len(i.Tenants) > 0) {
		return nil, errors.New("want either Tenants or AllTenants")
	}
	i.Audiences = slices.Clone(i.Audiences)
	for _, t := range i.Tenants {
		if !nameable(t, maxTenantBytes) {
			return nil, fmt.Errorf("tenant %.40q is not 1..%d bytes of text", t, maxTenantBytes)
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
	switch {
	case i.JWKSFile == "":
		return i, checkURL(i.JWKSURL)
	case i.JWKSURL != "":
		return nil, errors.New("either JWKSURL or JWKSFile is needed, not both")
	}
	return i, nil
}

// Warm starts to fetch the keys that are missing, and does not wait. It is for the initialisation of a Lambda function,
// whose first request would otherwise wait for the whole fetch.
func (v *Verifier) Warm(now time.Time) {
	for _, i := range v.issuers {
		i.source.keys.Warm(now)
	}
}

// Close cancels the current fetches and waits for their end. Verify fetches nothing afterwards.
func (v *Verifier) Close() {
	for _, i := range v.issuers {
		i.source.keys.Close()
	}
}

// Shaped reports whether a text looks like a JWT: it has three parts, and the first begins like a JSON object in
// base64url.
func Shaped(text string) bool {
	return strings.HasPrefix(text, "ey") && strings.Count(text, ".") == 2
}

// Verify returns the claims of a token that is valid at now. Each error wraps [ErrBadToken] or [ErrKeysUnavailable].
// Verify waits for keys until ctx ends, and at most Config.Wait. If ctx ends first, the error also wraps ctx's error.
//
// For a token that was verified before, Verify takes a hash and a look-up, until the token expires or its key leaves
// the issuer's set.
func (v *Verifier) Verify(ctx context.Context, token string, now time.Time) (Claims, error) {
	if len(token) > v.c.MaxTokenBytes {
		return Claims{}, ErrTooLarge
	}
	var usual [2048]byte // most tokens fit into it, which avoids an allocation
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

// first verifies a token that is not remembered. Cheap checks come first and the signature last, so refusing a token
// that is expired or for another audience needs no key.
func (v *Verifier) first(ctx context.Context, token string, now time.Time) (r remembered, err error) {
	if !compact(token) {
		return r, ErrMalformed
	}
	jws, err := jose.ParseSignedCompact(token, v.algorithms)
	var algorithm *jose.ErrUnexpectedSignatureAlgorithm
	switch {
	case errors.As(err, &algorithm):
		return r, ErrAlgorithm
	case err != nil: // err is not returned, because it may quote the token
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
		return r, v.unknownIssuer(p.text("iss"))
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
	keys, err := r.issuer.source.candidates(ctx, header.KeyID, used, now)
	if err != nil {
		return r, err
	}
	for _, r.key = range keys {
		if _, err = jws.Verify(r.key.public); err == nil {
			return r, nil
		}
	}
	return r, ErrSignature
}

// unknownIssuer returns the error for a token of an issuer that is not accepted. It names a configured issuer that
// differs from the token's in letter case or in a slash at the end only.
func (v *Verifier) unknownIssuer(name string) error {
	for known := range v.issuers {
		if strings.EqualFold(strings.TrimSuffix(known, "/"), strings.TrimSuffix(name, "/")) {
			return fmt.Errorf("%w: it differs from %q in letter case, or in the slash at the end", ErrIssuer, known)
		}
	}
	return ErrIssuer
}

// compact reports whether token has three parts of base64url. Decoders ignore line ends, so without this check one
// token could be written in many ways.
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

// plain reports whether the header is that of an access or ID token without critical extensions. Other kinds of tokens
// (a logout token, a security event) may be signed with the same key for the same audience.
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

// Stats reports on keys and remembered tokens.
type Stats struct {
	Remembered        int       // tokens
	Fetches, Failures int64     // of key sets, finished
	KeysFrom          time.Time // when the oldest key set in use was requested; zero if an issuer has none yet
}

// Stats returns the sums over all issuers.
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
