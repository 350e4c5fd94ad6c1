package killswitch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/appconfigdata"
	"github.com/aws/aws-sdk-go-v2/service/appconfigdata/types"
	"github.com/aws/smithy-go"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/refresh"
)

// attempts is the number of attempts of one call. A connection that a freeze has cut needs a second one.
const attempts = 2

var (
	errAnswer  = errors.New("the answer cannot be read")
	errNothing = errors.New("a new session has no document")
)

// read carries out one poll. If AppConfig refuses the token, for example one that is more than a day old, the session
// has ended: read begins another one, whose first answer has the whole document.
func (s *Switch) read(ctx context.Context, before *pollResult) (*pollResult, error) {
	if before != nil && before.token != "" {
		out, err := s.latest(ctx, before.token)
		if err == nil {
			return s.nextResult(before, out, false), nil
		}
		if !sessionOver(err) {
			return nil, redacted(err)
		}
	}
	begun, err := s.client().StartConfigurationSession(ctx, &appconfigdata.StartConfigurationSessionInput{
		ApplicationIdentifier: &s.c.Application, EnvironmentIdentifier: &s.c.Environment,
		ConfigurationProfileIdentifier:       &s.c.Profile,
		RequiredMinimumPollIntervalInSeconds: aws.Int32(int32(Every / time.Second)),
	}, options)
	if undeployed(err) {
		return &pollResult{mode: limit.Enforce, every: Every}, nil
	}
	if err != nil {
		return nil, redacted(err)
	}
	if aws.ToString(begun.InitialConfigurationToken) == "" {
		return nil, errAnswer
	}
	out, err := s.latest(ctx, *begun.InitialConfigurationToken)
	if undeployed(err) {
		return &pollResult{mode: limit.Enforce, every: Every}, nil
	}
	if err != nil {
		return nil, redacted(err)
	}
	return s.nextResult(before, out, true), nil
}

// latest reads the document of a session, if it has changed since the answer that contained the token.
func (s *Switch) latest(ctx context.Context, token string) (*appconfigdata.GetLatestConfigurationOutput, error) {
	return s.client().GetLatestConfiguration(ctx,
		&appconfigdata.GetLatestConfigurationInput{ConfigurationToken: &token}, options)
}

// sessionOver reports whether a call failed because of its token, or because something that existed when the session
// began no longer does.
func sessionOver(err error) bool {
	var bad *types.BadRequestException
	var gone *types.ResourceNotFoundException
	return errors.As(err, &bad) || errors.As(err, &gone)
}

// undeployed reports whether a call failed because no mode is deployed. Limits are then enforced.
// Assumption: kill-switch.
func undeployed(err error) bool {
	var missing *types.ResourceNotFoundException
	return errors.As(err, &missing) && (missing.ResourceType == types.ResourceTypeDeployment ||
		missing.ResourceType == types.ResourceTypeConfiguration)
}

// nextResult returns the state after an answer. An empty answer means "unchanged", except for the first
// answer of a session.
func (s *Switch) nextResult(
	before *pollResult, out *appconfigdata.GetLatestConfigurationOutput, first bool,
) *pollResult {
	now := &pollResult{mode: limit.Enforce}
	if before != nil {
		*now = *before
	}
	now.token = aws.ToString(out.NextPollConfigurationToken)
	now.every = Every
	if s := out.NextPollIntervalInSeconds; s > 0 {
		now.every = min(max(time.Duration(s)*time.Second, least), most)
	}
	if len(out.Configuration) > 0 {
		now.document = sha256.Sum256(out.Configuration)
		var mode limit.Mode
		if mode, now.wrong = Parse(out.Configuration); now.wrong == nil {
			now.mode = mode
		}
	} else if first {
		now.document, now.wrong = [32]byte{}, errNothing
	}
	if now.wrong != nil {
		s.bad.Add(1)
	}
	return now
}

// ended logs the result of a poll: each change, and the first of consecutive failures.
func (s *Switch) ended(e refresh.End[pollResult]) {
	before := e.Before
	if before == nil {
		before = new(pollResult)
	}
	if e.Err != nil {
		if e.Failures == 1 {
			s.c.Log.Warn("the kill switch cannot be read", "in_force", before.mode.String(), "error", e.Err)
		}
		return
	}
	if e.Failures > 0 {
		s.c.Log.Info("the kill switch can be read again", "in_force", e.Value.mode.String(), "failures", e.Failures)
	}
	if w := e.Value.wrong; w != nil && (before.wrong == nil || before.document != e.Value.document) {
		s.c.Log.Error("the kill switch's document cannot be used", "in_force", e.Value.mode.String(), "error", w)
	}
	if e.Value.mode != before.mode {
		s.c.Log.Warn("the kill switch was set", "in_force", e.Value.mode.String(), "before", before.mode.String())
	}
}

// options keep tokens out of the log even if the client is configured to log bodies. They also bound the number of
// attempts: more attempts would use up the time for a poll and hide the cause of the failure.
func options(o *appconfigdata.Options) {
	o.ClientLogMode = 0
	o.RetryMaxAttempts = cmp.Or(o.RetryMaxAttempts, attempts)
}

// redacted returns an error of the client in a form that may be logged: without the token, which is in the URL of a
// call, and without text that could contain a part of an answer.
func redacted(err error) error {
	var unread *smithy.DeserializationError
	if errors.As(err, &unread) {
		return errAnswer
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		return fmt.Errorf("%.100s: %.300s", api.ErrorCode(), api.ErrorMessage())
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return errors.New("AppConfig cannot be reached")
}
