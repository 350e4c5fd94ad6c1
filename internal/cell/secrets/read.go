package secrets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/smithy-go"

	"github.com/sluicelimits/sluice/internal/limiter/refresh"
)

const (
	attempts = 2
	current  = "AWSCURRENT"
)

var (
	errStage  = errors.New("the answer does not have the stage AWSCURRENT")
	errBinary = errors.New("the secret is binary, not text")
	errAnswer = errors.New("the answer cannot be read")
)

// first returns the first values, and waits for them.
func (s *Cache) first(ctx context.Context, now time.Time) (*Values, error) {
	values, err := s.values.First(ctx, now)
	if err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrUnavailable, s.c.ID, err)
	}
	return values, nil
}

// ended logs the result of a read.
func (s *Cache) ended(e refresh.End[Values]) {
	switch {
	case e.Err != nil:
		s.c.Log.Warn("the secret cannot be read", "secret", s.c.ID, "in_use", e.Before.Version(), "failures",
			e.Failures, "error", e.Err)
	case e.Value != e.Before:
		s.c.Log.Info("the secret has a new version", "secret", s.c.ID, "version", e.Value.version,
			"before", e.Before.Version())
		if e.Value.in.public {
			s.c.Log.Error("a pepper is the public one of 'sluice dev', so its hashes protect nothing: replace it",
				"secret",
				s.c.ID)
		}
	case e.Failures > 0:
		s.c.Log.Info("the secret can be read again", "secret", s.c.ID, "version", e.Value.version, "failures",
			e.Failures)
	}
}

// read reads the secret. Errors contain nothing of it.
func (s *Cache) read(ctx context.Context, before *Values) (*Values, error) {
	out, err := s.c.Client.GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &s.c.ID,
		VersionStage: aws.String(current)}, options)
	switch {
	case err != nil:
		return nil, redacted(err)
	case out == nil:
		return nil, errAnswer
	case !slices.Contains(out.VersionStages, current):
		return nil, errStage
	case out.SecretString == nil && out.SecretBinary != nil:
		return nil, errBinary
	case out.SecretString == nil || out.VersionId == nil || *out.VersionId == "":
		return nil, errAnswer
	}
	if before.Version() == *out.VersionId {
		return before, nil // a version never changes
	}
	return parse(*out.SecretString, *out.VersionId)
}

// options keep the secret out of the log even if the client is configured to log bodies. Unless configured otherwise,
// a call is attempted twice, since a freeze may have cut the connection; more attempts would use up the time for a
// read and hide the cause of the failure.
func options(o *secretsmanager.Options) {
	o.ClientLogMode = 0
	o.RetryMaxAttempts = cmp.Or(o.RetryMaxAttempts, attempts)
}

// redacted returns an error of the client in a form that may be logged: without text that could contain a part of an
// answer.
func redacted(err error) error {
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
