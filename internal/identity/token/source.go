package token

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	fetchTimeout = 5 * time.Second // of one fetch, whoever waits for it
	firstBackoff = time.Second     // after a failure; doubled after each further one
	maxBackoff   = time.Minute
	replaceWait  = 500 * time.Millisecond // for keys that are very old, not missing
)

var errSlow = errors.New("the fetch takes longer than may be waited")

// source keeps an issuer's keys. Time arrives from Verify: nothing runs between requests but a fetch under way, since a
// frozen Lambda would stop it.
type source struct {
	issuer     string
	url        string
	algorithms []jose.SignatureAlgorithm
	c          *Config
	set        atomic.Pointer[keySet] // nil until the first fetch succeeds

	mu       sync.Mutex
	flight   chan struct{} // closed when the fetch under way ends; nil while there is none
	begun    time.Time     // when the latest fetch was asked for
	gap      time.Duration // after begun, before the next
	row      int           // failures in a row
	last     error         // of the latest fetch
	fetches  int64
	failures int64
	base     context.Context // ends with close
	stop     context.CancelFunc
	running  sync.WaitGroup
}

func newSource(c *Config, i *issuer) *source {
	s := &source{issuer: i.Issuer.Issuer, url: i.JWKSURL, algorithms: i.algorithms, c: c}
	s.base, s.stop = context.WithCancel(context.Background())
	return s
}

func (s *source) close() {
	s.mu.Lock() // after it, no fetch begins
	s.stop()
	s.mu.Unlock()
	s.running.Wait()
}

func (s *source) counts() (fetches, failures int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fetches, s.failures
}

// key is the key that a token names. An unknown kid fetches the set again, at most once per cooldown: nothing is
// remembered of the kid itself, so a flood of them takes no memory.
func (s *source) key(ctx context.Context, kid string, a jose.SignatureAlgorithm, now time.Time) (*key, error) {
	set := s.set.Load()
	if set == nil {
		flight, _ := s.start(now)
		waited := s.wait(ctx, flight, s.c.Wait)
		if set = s.set.Load(); set == nil {
			return nil, s.unavailable(waited)
		}
	}
	set = s.upkeep(ctx, now, set)
	if k := set.find(kid, a); k != nil {
		return k, nil
	}
	if kid == "" || set.kids[kid] {
		return nil, ErrUnknownKey
	}
	flight, _ := s.start(now)
	waited := s.wait(ctx, flight, s.c.Wait)
	if k := s.set.Load().find(kid, a); k != nil {
		return k, nil
	}
	if waited != nil || s.failing() {
		return nil, s.unavailable(waited)
	}
	return nil, ErrUnknownKey
}

// upkeep replaces keys that are old, and is the set to use: the new one if it is there in time.
func (s *source) upkeep(ctx context.Context, now time.Time, set *keySet) *keySet {
	if now.Before(set.soft) {
		return set
	}
	flight, began := s.start(now)
	if began && !now.Before(set.hard) {
		_ = s.wait(ctx, flight, min(s.c.Wait, replaceWait)) // the old keys are used on
	}
	return s.set.Load()
}

// start is the fetch under way, which it begins if the gap allows. Otherwise it is nil.
func (s *source) start(now time.Time) (flight chan struct{}, began bool) {
	now = now.Round(0) // a frozen Lambda's monotonic clock may stand still
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.flight != nil:
		return s.flight, false
	case s.base.Err() != nil || (!s.begun.IsZero() && now.Sub(s.begun).Abs() < s.gap): // a clock set back must not stop fetches
		return nil, false
	}
	s.begun, s.flight = now, make(chan struct{})
	s.running.Add(1)
	go s.fetch(now)
	return s.flight, true
}

// wait waits for the end of a fetch, if there is one. The error is why it did not.
func (s *source) wait(ctx context.Context, flight chan struct{}, most time.Duration) error {
	if flight == nil {
		return nil
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-flight:
		return nil
	case <-timer.C:
		return errSlow
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *source) fetch(from time.Time) {
	defer s.running.Done()
	ctx, cancel := context.WithTimeout(s.base, fetchTimeout)
	defer cancel()
	body, err := s.get(ctx)
	var set *keySet
	if err == nil {
		set, err = parseKeys(body, s.algorithms, s.set.Load())
	}
	givenUp := s.base.Err() != nil // before anybody hears of the end, and closes
	before, after := s.land(set, err, from)
	switch {
	case err != nil && !givenUp:
		s.c.Log.Warn("keys cannot be fetched", "issuer", s.issuer, "in_use", s.set.Load() != nil, "failures", after, "error", err)
	case err == nil && before > 0:
		s.c.Log.Info("keys are available again", "issuer", s.issuer, "failures", before)
	}
}

// land ends a fetch: with a set, or with the error why there is none. It returns the failures in a row before and after.
func (s *source) land(set *keySet, err error, from time.Time) (before, after int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.row
	s.fetches++
	old := s.set.Load()
	if s.last = err; err != nil {
		// The longer it lasts, the longer the next one is away; while there are keys to go on with, at least a cooldown.
		s.gap = spread(min(firstBackoff<<min(s.row, 10), maxBackoff))
		if old != nil {
			s.gap = max(s.gap, s.c.Cooldown)
		}
		s.failures++
		s.row++
	} else {
		s.row, s.gap = 0, s.c.Cooldown
		set.from, set.soft, set.hard = from, from.Add(spread(s.c.Refresh)), from.Add(2*s.c.Refresh)
		s.set.Store(set)
		if old != nil {
			old.retire(set)
		}
	}
	close(s.flight)
	s.flight = nil
	return before, s.row
}

// spread is d and up to a fifth more, so that instances which began together do not go on together.
func spread(d time.Duration) time.Duration { return d + rand.N(d/5+1) }

func (s *source) failing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last != nil
}

func (s *source) unavailable(waited error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	cause := waited
	if cause == nil {
		cause = s.last
	}
	if cause == nil { // closed before the first
		cause = context.Canceled
	}
	return fmt.Errorf("%w: issuer %q: %w", ErrKeysUnavailable, s.issuer, cause)
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
			err = outer.Err // the address may hold what is no log's business
		}
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // it was read, or is of no use
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxSetBytes+1)) // decompressed, so a small answer stays small
	switch {
	case err != nil:
		return nil, err
	case len(body) > maxSetBytes:
		return nil, fmt.Errorf("it is larger than %d bytes", maxSetBytes)
	}
	return body, nil
}

// guarded is the client without what could lead it elsewhere: a redirect would let whoever answers once choose who answers.
func guarded(c *http.Client) *http.Client {
	if c == nil {
		c = &http.Client{Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			TLSHandshakeTimeout:    fetchTimeout,
			DisableKeepAlives:      true, // the next fetch is a quarter of an hour away
			MaxResponseHeaderBytes: 64 << 10,
		}}
	}
	out := *c
	out.Jar = nil
	out.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &out
}

// checkURL refuses addresses over which anyone on the way could answer with keys of their own.
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
