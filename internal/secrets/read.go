package secrets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/smithy-go"
)

const (
	readTimeout  = 5 * time.Second // of one read with its retries, whoever waits for it
	frozenAfter  = 6 * time.Second // a read that began longer ago was in a freeze, and its connection is no good
	firstBackoff = time.Second     // after a failure; doubled after each further one
	maxBackoff   = time.Minute
	replaceWait  = 500 * time.Millisecond // for values that are old, not missing
	attempts     = 2
	current      = "AWSCURRENT"
)

var (
	errSlow   = errors.New("the read takes longer than may be waited")
	errCut    = errors.New("the read was cut off")
	errStage  = errors.New("the answer is not of the stage AWSCURRENT")
	errBinary = errors.New("it is binary, not text")
	errAnswer = errors.New("the answer cannot be read")
	errPanic  = errors.New("the client panicked")
)

// flight is a read under way. Time arrives from callers: nothing runs between requests but a read, since a frozen Lambda
// would stop it.
type flight struct {
	begun  time.Time // by the caller's clock
	since  time.Time // by this process's clock
	done   chan struct{}
	cancel context.CancelFunc
}

// upkeep begins to read values again that are old. hard says that they are so old that the caller is to wait for f.
func (s *Cache) upkeep(now time.Time, have *held) (hard bool, f *flight) {
	age := now.Sub(have.from).Abs() // a clock set back must not stop reads
	if age < have.soft {
		return false, nil
	}
	return age >= have.hard, s.start(now)
}

// start is the read under way, which it begins if the gap allows. Otherwise it is nil.
func (s *Cache) start(now time.Time) *flight {
	now = now.Round(0) // a frozen Lambda's monotonic clock may stand still
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.base.Err() != nil {
		return nil
	}
	if s.flight != nil {
		if now.Sub(s.flight.begun).Abs() < frozenAfter {
			return s.flight
		}
		s.flight.cancel() // it ends, and nobody asks how
		s.flight = nil
	}
	if !s.begun.IsZero() && now.Sub(s.begun).Abs() < s.gap {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.base, readTimeout)
	f := &flight{begun: now, since: time.Now(), done: make(chan struct{}), cancel: cancel}
	s.begun, s.flight = now, f
	s.running.Add(1)
	go s.read(ctx, f)
	return f
}

// remaining is how long a caller with values in hand may wait for f: each read holds callers up only while it is young.
func (s *Cache) remaining(f *flight) time.Duration {
	if f == nil {
		return 0
	}
	return min(s.c.Wait, replaceWait) - time.Since(f.since)
}

// wait waits for the end of a read, if there is one. The error is why it did not.
func (s *Cache) wait(ctx context.Context, f *flight, most time.Duration) error {
	if f == nil {
		return nil
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-f.done:
		return nil
	case <-timer.C:
		return errSlow
	case <-ctx.Done():
		return ctx.Err()
	}
}

// first is the first values, waited for.
func (s *Cache) first(ctx context.Context, f *flight) (*Values, error) {
	cause := s.wait(ctx, f, s.c.Wait)
	if have := s.held.Load(); have != nil {
		return have.values, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if cause == nil {
		cause = s.last
	}
	if cause == nil {
		cause = errCut
	}
	return nil, fmt.Errorf("%w: %q: %w", ErrUnavailable, s.c.ID, cause)
}

func (s *Cache) read(ctx context.Context, f *flight) {
	defer s.running.Done()
	defer f.cancel()
	values, err := s.get(ctx)
	old, failures, landed := s.land(f, values, err)
	switch {
	case !landed || s.base.Err() != nil: // nobody asks any more
	case err != nil:
		s.c.Log.Warn("the secret cannot be read", "secret", s.c.ID, "in_use", old.Version(), "failures", failures+1, "error", err)
	case old != values:
		s.c.Log.Info("the secret has a version that is new here", "secret", s.c.ID, "version", values.version, "before", old.Version())
		if values.in.public {
			s.c.Log.Error("a pepper is the public one of sluice dev: hashes made with it protect nothing", "secret", s.c.ID)
		}
	case failures > 0:
		s.c.Log.Info("the secret can be read again", "secret", s.c.ID, "version", values.version, "failures", failures)
	}
}

// land ends a read: with values, or with the error why there are none. It returns the values and the failures in a row that
// were before; landed is false for a read that was given up meanwhile, which changes nothing.
func (s *Cache) land(f *flight, values *Values, err error) (old *Values, failures int, landed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(f.done)
	if s.flight != f {
		return nil, 0, false
	}
	s.flight = nil
	have := s.held.Load()
	if have != nil {
		old = have.values
	}
	failures = s.row
	s.reads++
	if s.last = err; err != nil {
		// The longer it lasts, the longer the next one is away; while there are values to go on with, at least a cooldown.
		s.gap = spread(min(firstBackoff<<min(s.row, 10), maxBackoff))
		if have != nil {
			s.gap = max(s.gap, s.c.Cooldown)
		}
		s.failures++
		s.row++
		return old, failures, true
	}
	s.row, s.gap = 0, s.c.Cooldown
	s.held.Store(&held{values: values, from: f.begun, soft: spread(s.c.Refresh), hard: 2 * s.c.Refresh})
	return old, failures, true
}

// spread is d and up to a fifth more, so that instances which began together do not go on together.
func spread(d time.Duration) time.Duration { return d + rand.N(d/5+1) }

// get reads the secret. Errors hold nothing of it.
func (s *Cache) get(ctx context.Context) (values *Values, err error) {
	defer func() {
		if p := recover(); p != nil { // which may hold anything
			values, err = nil, errPanic
		}
	}()
	out, err := s.c.Client.GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &s.c.ID, VersionStage: aws.String(current)}, options)
	switch {
	case err != nil:
		return nil, tellable(err)
	case out == nil:
		return nil, errAnswer
	case !slices.Contains(out.VersionStages, current):
		return nil, errStage
	case out.SecretString == nil && out.SecretBinary != nil:
		return nil, errBinary
	case out.SecretString == nil || out.VersionId == nil || *out.VersionId == "":
		return nil, errAnswer
	}
	if have := s.held.Load(); have != nil && have.values.version == *out.VersionId {
		return have.values, nil // a version never changes
	}
	return parse(*out.SecretString, *out.VersionId)
}

// options keep a client that is told to log bodies from logging this one. Where nothing else is said it tries again once,
// which a connection needs that a freeze cut; more would end with the time for a read, and without the cause of the failure.
func options(o *secretsmanager.Options) {
	o.ClientLogMode = 0
	o.RetryMaxAttempts = cmp.Or(o.RetryMaxAttempts, attempts)
}

// tellable is an error of the client without what could hold a part of an answer.
func tellable(err error) error {
	var unread *smithy.DeserializationError
	if errors.As(err, &unread) {
		var response interface{ HTTPStatusCode() int }
		if errors.As(err, &response) {
			return fmt.Errorf("%w (status %d)", errAnswer, response.HTTPStatusCode())
		}
		return errAnswer
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		return fmt.Errorf("%.100s: %.300s", api.ErrorCode(), api.ErrorMessage())
	}
	return err
}
