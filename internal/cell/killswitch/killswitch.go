// Package killswitch has the mode in which a cell's limits are: enforced, in shadow, or off. It is read from AWS
// AppConfig while calls are answered, and one deployment there changes it in the whole cell.
//
// The configuration is a free-form document of JSON, {"mode":"shadow"}. The modes:
//
//	enforce  limits deny; this holds until another mode was heard
//	shadow   limits are charged as by enforce, and deny nobody
//	off      limits are not looked at, and no store is asked
//
// A document that has not this form, and an AppConfig that does not answer, change nothing: the mode that was heard
// last stays.
//
// The client is that of the AWS SDK. Nothing but a poll makes it, and nothing runs between two calls of a function but
// a poll under way, which a freeze may cut; see package refresh.
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

// Every is how often AppConfig is asked, the shortest that it grants, and up to a fifth more, so that instances spread.
// It says itself when it wants to be asked next.
const Every = 15 * time.Second

// Bounds of the time between two polls, whatever AppConfig says; after one that failed it begins at the least, see
// package refresh.
const (
	least = time.Second
	most  = 24 * time.Hour
)

// Client is the part of [appconfigdata.Client] that is used here.
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

	// Wait is for how long after its beginning those who come by a poll wait for it, above 0: long enough for an
	// AppConfig that is well, and what all calls together lose by one that hangs.
	Wait time.Duration

	Log *slog.Logger // default slog.Default()
}

// Switch has the mode. It is safe for concurrent use. Make it with [New].
type Switch struct {
	c      Config
	client func() Client
	heard  *refresh.Cache[heard]
	bad    atomic.Int64 // polls at which the document could not be used
}

// heard is what one poll came to. It is not changed.
type heard struct {
	mode  limit.Mode
	token string        // for the next poll; "" is a new session
	every time.Duration // until the next poll, at least

	document [32]byte // hash of the latest document
	wrong    error    // why that is not used, and mode is the one before; nil where it is
}

// New checks the configuration and makes a switch, which asks nobody yet. The error names the field.
func New(c Config) (*Switch, error) {
	switch {
	case c.Client == nil:
		return nil, errors.New("killswitch: Client is missing")
	case c.Application == "" || c.Environment == "" || c.Profile == "":
		return nil, errors.New("killswitch: Application, Environment or Profile is missing")
	case c.Wait <= 0:
		return nil, errors.New("killswitch: Wait is to be above 0")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	s := &Switch{c: c, client: sync.OnceValue(c.Client)}
	s.heard = refresh.New(refresh.Config[heard]{
		Read: s.read, Ended: s.ended, Wait: c.Wait, Refresh: Every, Cooldown: least,
		RefreshOf: func(h *heard) time.Duration { return h.every },
	})
	return s, nil
}

// Mode is the latest that was heard; Enforce before. It never waits.
func (s *Switch) Mode() limit.Mode {
	if h := s.heard.Value(); h != nil {
		return h.mode
	}
	return limit.Enforce
}

// Begin polls for the first time, where nothing was heard yet, and does not wait for it.
func (s *Switch) Begin(now time.Time) { s.heard.Warm(now) }

// Poll polls where it is time, and waits for a poll that is younger than Config.Wait. Call it beside each request.
func (s *Switch) Poll(ctx context.Context, now time.Time) {
	poll, _ := s.heard.Upkeep(now)
	s.heard.Await(ctx, poll)
}

// Failures is how many polls came to nothing: AppConfig did not answer, or its document cannot be used.
func (s *Switch) Failures() int64 { return s.heard.Stats().Failures + s.bad.Load() }

// Close ends a poll under way and waits for its end. The mode stays.
func (s *Switch) Close() { s.heard.Close() }
