package token

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/sluicelimits/sluice/internal/limiter/refresh"
)

// source fetches and keeps the keys of an issuer.
type source struct {
	issuer     string
	url, file  string // one of them
	algorithms []jose.SignatureAlgorithm
	c          *Config
	keys       *refresh.Cache[keySet]
}

func newSource(c *Config, i *issuer) *source {
	s := &source{issuer: i.Issuer.Issuer, url: i.JWKSURL, file: i.JWKSFile, algorithms: i.algorithms, c: c}
	s.keys = refresh.New(refresh.Config[keySet]{Read: s.fetch, Ended: s.ended, Wait: c.Wait, Refresh: c.Refresh,
		Cooldown: c.Cooldown})
	return s
}

// candidates returns the keys that a token may be signed with: at least one, if there is no error. If the kid is
// unknown, the set is fetched again, at most once per cooldown.
// The kid itself is not remembered, so a flood of unknown kids takes no memory.
func (s *source) candidates(ctx context.Context, kid string, a jose.SignatureAlgorithm, now time.Time) ([]*key,
	error) {
	if _, err := s.keys.First(ctx, now); err != nil {
		return nil, s.unavailable(err)
	}
	set := s.upkeep(ctx, now)
	if keys := set.find(kid, a); keys != nil {
		return keys, nil
	}
	if kid == "" {
		return nil, fmt.Errorf(`%w: it has no "kid", and not exactly one key of its issuer is for %s`, ErrUnknownKey, a)
	}
	if set.kids[kid] {
		return nil, fmt.Errorf("%w: the key that it names is not for %s", ErrUnknownKey, a)
	}
	err := s.keys.Renew(ctx, now)
	if keys := s.keys.Value().find(kid, a); keys != nil {
		return keys, nil
	}
	if err != nil {
		return nil, s.unavailable(err)
	}
	return nil, ErrUnknownKey
}

// upkeep fetches the set again if it is old, and returns the set to use: the new one if it arrives in time.
func (s *source) upkeep(ctx context.Context, now time.Time) *keySet {
	if reading, overdue := s.keys.Upkeep(now); overdue && reading.Began {
		s.keys.Await(ctx, reading)
	}
	return s.keys.Value()
}

func (s *source) unavailable(cause error) error {
	return fmt.Errorf("%w: issuer %q: %w", ErrKeysUnavailable, s.issuer, cause)
}

// ended logs the result of a fetch, and marks the keys that are no longer in the set, so that tokens verified with them
// are verified again.
func (s *source) ended(e refresh.End[keySet]) {
	if e.Err != nil {
		s.c.Log.Warn("keys cannot be fetched", "issuer", s.issuer, "in_use", e.Before != nil, "failures", e.Failures,
			"error", e.Err)
		return
	}
	if e.Before != nil {
		e.Before.retire(e.Value)
	}
	if odd := e.Value.odd; odd != "" && (e.Before == nil || e.Before.odd != odd) {
		s.c.Log.Warn("the issuer publishes keys that are not used, or members that are ignored", "issuer", s.issuer,
			"keys", odd)
	}
	if e.Failures > 0 {
		s.c.Log.Info("keys are available again", "issuer", s.issuer, "failures", e.Failures)
	}
}

func (s *source) fetch(ctx context.Context, before *keySet) (*keySet, error) {
	get := s.get
	if s.file != "" {
		get = s.readFile
	}
	body, err := get(ctx)
	if err != nil {
		return nil, err
	}
	return parseKeys(body, s.algorithms, before)
}

func (s *source) get(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := s.c.Client.Do(req)
	if err != nil {
		var outer *url.Error
		if errors.As(err, &outer) {
			err = outer.Err // outer.URL may hold a secret, which must not be logged
		}
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // the body was read or is not needed
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	return readSet(resp.Body) // after decompression, so a small answer cannot become a large one
}

func (s *source) readFile(context.Context) ([]byte, error) {
	f, err := os.Open(s.file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return readSet(f)
}

func readSet(from io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(from, maxSetBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > maxSetBytes:
		return nil, fmt.Errorf("it is larger than %d bytes", maxSetBytes)
	}
	return body, nil
}

// guarded returns the client without the features that could lead it to another server. Whoever controls one answer
// could otherwise redirect all later requests.
func guarded(c *http.Client) *http.Client {
	if c == nil {
		c = &http.Client{Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			TLSHandshakeTimeout:    refresh.ReadTimeout,
			DisableKeepAlives:      true, // the next fetch is about a quarter of an hour later
			MaxResponseHeaderBytes: 64 << 10,
		}}
	}
	out := *c
	out.Jar = nil
	out.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &out
}

// checkURL refuses URLs over which somebody between us and the issuer could send keys of their own.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return errors.New("JWKSURL is not a URL")
	}
	ip := net.ParseIP(u.Hostname())
	loopback := u.Hostname() == "localhost" || (ip != nil && ip.IsLoopback())
	switch {
	case u.Host == "" || u.Opaque != "" || (u.Scheme != "https" && (u.Scheme != "http" || !loopback)):
		return errors.New("JWKSURL is not an https URL")
	case u.User != nil || u.Fragment != "":
		return errors.New("JWKSURL has a user or a fragment")
	}
	return nil
}
