package cell

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

const (
	// tokenLife is how long ElastiCache accepts a token.
	tokenLife = 15 * time.Minute

	// renewToken is how long before its end a token is replaced, because a connection uses a token some time after it
	// was made.
	renewToken = 3 * time.Minute

	emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// CacheSignerConfig says who connects to which cache of ElastiCache.
type CacheSignerConfig struct {
	Cache       string                  // id of the replication group; required
	User        string                  // the ElastiCache user, whose id must equal its name; required
	Region      string                  // required
	Credentials aws.CredentialsProvider // of the role; required
	Now         func() time.Time        // default time.Now
}

// CacheSigner makes the passwords with which an IAM role connects to ElastiCache. A password is a token that is signed
// locally, without a call, and is valid for 15 minutes. A connection stays open after its token expires. The service
// itself ends connections after 12 hours. It is safe for concurrent use.
type CacheSigner struct {
	config CacheSignerConfig
	signer *v4.Signer

	mu    sync.Mutex
	token string
	until time.Time // when the token must be replaced
}

// NewCacheSigner makes a signer. It makes no call.
func NewCacheSigner(c CacheSignerConfig) *CacheSigner {
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Cache = strings.ToLower(c.Cache) // the service signs the name in lower case
	return &CacheSigner{config: c, signer: v4.NewSigner()}
}

// Credentials returns the user, and a token that is still valid for some minutes. The Redis store takes a function of
// this form.
func (s *CacheSigner) Credentials(ctx context.Context) (user, password string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	if s.token == "" || !now.Before(s.until) {
		token, until, err := s.sign(ctx, now)
		if err != nil {
			return "", "", fmt.Errorf("make a token for user %s of cache %s: %w", s.config.User, s.config.Cache, err)
		}
		s.token, s.until = token, until
	}
	return s.config.User, s.token, nil
}

// sign makes a token, and returns when it must be replaced: before it expires, and before the credentials expire with
// which it was signed.
func (s *CacheSigner) sign(ctx context.Context, now time.Time) (token string, until time.Time, err error) {
	credentials, err := s.config.Credentials.Retrieve(ctx)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("read the credentials: %w", err)
	}
	until = now.Add(tokenLife - renewToken)
	if credentials.CanExpire {
		if !now.Before(credentials.Expires) {
			return "", time.Time{}, errors.New("the credentials have expired")
		}
		if end := credentials.Expires.Add(-renewToken); end.Before(until) {
			until = end
		}
	}
	query := url.Values{"Action": {"connect"}, "User": {s.config.User},
		"X-Amz-Expires": {fmt.Sprint(int(tokenLife.Seconds()))}}
	target := url.URL{Scheme: "http", Host: s.config.Cache, Path: "/", RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return "", time.Time{}, err
	}
	signed, _, err := s.signer.PresignHTTP(ctx, credentials, req, emptySHA256, "elasticache", s.config.Region, now)
	if err != nil {
		return "", time.Time{}, err
	}
	return strings.TrimPrefix(signed, "http://"), until, nil
}
