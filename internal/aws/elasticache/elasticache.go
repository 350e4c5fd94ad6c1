// Package elasticache makes the passwords with which an IAM role connects to ElastiCache: tokens that are signed here,
// without a call to anybody, and are good for 15 minutes. A connection that was opened with one outlives it (the
// service itself ends connections after 12 hours).
package elasticache

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
	// Life is how long the service accepts a token.
	Life = 15 * time.Minute

	// renew is how long before its end a token is replaced: a connection shows it a little after it asked for it.
	renew = 3 * time.Minute

	emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// Config says who connects to what.
type Config struct {
	Cache       string                  // the replication group's id, or the serverless cache's name; required
	Serverless  bool                    // it is a serverless cache
	User        string                  // the ElastiCache user, whose id and name are the same; required
	Region      string                  // required
	Credentials aws.CredentialsProvider // of the role; required
	Now         func() time.Time        // nil is time.Now
}

// Signer makes tokens. It is safe for concurrent use.
type Signer struct {
	config Config
	signer *v4.Signer

	mu    sync.Mutex
	token string
	until time.Time // it is replaced from then on
}

// New checks the configuration. It asks nobody.
func New(c Config) (*Signer, error) {
	var missing []string
	for _, f := range []struct {
		name    string
		present bool
	}{
		{"Cache", c.Cache != ""}, {"User", c.User != ""}, {"Region", c.Region != ""},
		{"Credentials", c.Credentials != nil},
	} {
		if !f.present {
			missing = append(missing, f.name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("elasticache signer: %s missing", strings.Join(missing, ", "))
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Cache = strings.ToLower(c.Cache) // the service signs it in lower case
	return &Signer{config: c, signer: v4.NewSigner()}, nil
}

// Credentials returns the user, and a token that is good for some minutes yet. It has the form that the Redis store
// takes.
func (s *Signer) Credentials(ctx context.Context) (user, password string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	if s.token == "" || !now.Before(s.until) {
		token, until, err := s.sign(ctx, now)
		if err != nil {
			return "", "", fmt.Errorf("token for %s at %s: %w", s.config.User, s.config.Cache, err)
		}
		s.token, s.until = token, until
	}
	return s.config.User, s.token, nil
}

// sign makes a token, and says when to make the next: before it ends, or before the credentials do that signed it, with
// which it ends too.
func (s *Signer) sign(ctx context.Context, now time.Time) (token string, until time.Time, err error) {
	credentials, err := s.config.Credentials.Retrieve(ctx)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("credentials: %w", err)
	}
	until = now.Add(Life - renew)
	if credentials.CanExpire {
		if !now.Before(credentials.Expires) {
			return "", time.Time{}, errors.New("credentials: they have expired")
		}
		if end := credentials.Expires.Add(-renew); end.Before(until) {
			until = end
		}
	}
	query := url.Values{"Action": {"connect"}, "User": {s.config.User},
		"X-Amz-Expires": {fmt.Sprint(int(Life.Seconds()))}}
	if s.config.Serverless {
		query.Set("ResourceType", "ServerlessCache")
	}
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
