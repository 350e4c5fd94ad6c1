// Package killswitch provides the mode of all limits of a cell: enforce, shadow, or off. It reads the mode from AWS
// AppConfig while calls are answered, so that one deployment there changes it in the whole cell.
//
// The configuration is a free-form JSON document, {"mode":"shadow"}. The modes:
//
//	enforce  limits deny; this is the mode until another one is read
//	shadow   limits are charged as in enforce, but deny nothing
//	off      limits are ignored, and no store is asked
//
// If nothing is deployed, as in a new cell, the mode is enforce. If the document does not have this form, or AppConfig
// does not answer, the last mode that was read stays.
//
// The first poll makes the client of the AWS SDK. Between two calls of a function nothing runs except a poll in
// progress, which a freeze may interrupt; see package refresh.
package killswitch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/appconfigdata"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/refresh"
)

// Every is the time between two polls of AppConfig: the shortest that AppConfig allows, and up to a fifth more, so
// that instances spread. AppConfig may ask for another time.
const Every = 15 * time.Second

// Bounds of the time between two polls, whatever AppConfig asks for. After a failed poll the time begins at least, and
// grows with further failures: see package refresh.
const (
	least = time.Second
	most  = 24 * time.Hour
)

// Client is the part of [appconfigdata.Client] that this package uses.
type Client interface {
	StartConfigurationSession(context.Context, *appconfigdata.StartConfigurationSessionInput,
		...func(*appconfigdata.Options)) (*appconfigdata.StartConfigurationSessionOutput, error)
	GetLatestConfiguration(context.Context, *appconfigdata.GetLatestConfigurationInput,
		...func(*appconfigdata.Options)) (*appconfigdata.GetLatestConfigurationOutput, error)
}

// Config sets up a [Switch].
type Config struct {
	Client                            func() Client // called once, by the first poll; required
	Application, Environment, Profile string        // ids in AppConfig; required

	// Wait is how long callers of Poll wait for a poll, from the beginning of the poll; it must be above 0. It should
	// be long enough for a healthy AppConfig, and is what all calls together lose if AppConfig hangs.
	Wait time.Duration

	Log *slog.Logger // default slog.Default()
}

// Switch holds the mode. It is safe for concurrent use. Make it with [New].
type Switch struct {
	c      Config
	client func() Client
	polls  *refresh.Cache[pollResult]
	bad    atomic.Int64 // number of polls that returned an unusable document
}

// pollResult is the result of one poll. It is immutable.
type pollResult struct {
	mode  limit.Mode
	token string        // for the next poll; "": begin a new session
	every time.Duration // least time until the next poll

	document [32]byte // hash of the latest document
	wrong    error    // why the latest document is not used, so that mode is from an earlier one; nil if it is used
}

// New checks the configuration and makes a switch. It makes no calls. The error names the field of c that is wrong.
func New(c Config) (*Switch, error) {
	switch {
	case c.Client == nil:
		return nil, errors.New("killswitch: Client is missing")
	case c.Application == "" || c.Environment == "" || c.Profile == "":
		return nil, errors.New("killswitch: Application, Environment or Profile is missing")
	case c.Wait <= 0:
		return nil, errors.New("killswitch: Wait must be above 0")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	s := &Switch{c: c, client: sync.OnceValue(c.Client)}
	s.polls = refresh.New(refresh.Config[pollResult]{
		Read: s.read, Ended: s.ended, Wait: c.Wait, Refresh: Every, Cooldown: least,
		RefreshOf: func(h *pollResult) time.Duration { return h.every },
	})
	return s, nil
}

// Mode returns the latest mode that was read; Enforce if none was. It never waits.
func (s *Switch) Mode() limit.Mode {
	if h := s.polls.Value(); h != nil {
		return h.mode
	}
	return limit.Enforce
}

// Begin starts the first poll, unless a mode was read, and does not wait for it.
func (s *Switch) Begin(now time.Time) { s.polls.Warm(now) }

// Poll starts a poll if it is time, and waits for a poll that is younger than Config.Wait. Call it beside each
// request.
func (s *Switch) Poll(ctx context.Context, now time.Time) {
	poll, _ := s.polls.Upkeep(now)
	s.polls.Await(ctx, poll)
}

// Failures returns the number of failed polls: AppConfig did not answer, or its document cannot be used.
func (s *Switch) Failures() int64 { return s.polls.Stats().Failures + s.bad.Load() }

// Close ends a poll in progress and waits for its end. The mode stays.
func (s *Switch) Close() { s.polls.Close() }
