// Package rls answers the gRPC service envoy.service.ratelimit.v3, by which Envoy asks whether a request may pass.
//
// A request has a domain and a list of descriptors. Package envoyconfig finds the rule of each descriptor, and a
// [limit.Store] counts. A [Service] answers as envoyproxy/ratelimit does, with one difference that is meant: it charges
// all descriptors of a request or none. If one of them denies, the others keep their units. [Config.CountDenied] or the
// key countDenied of a descriptor turns that off.
//
// # How a request is decided
//
// Each descriptor has counters of its own, under an owner of its own (see [envoyconfig.AppendKey]), so that they are
// spread evenly over a cluster and no descriptor slows down another. The rules of one request are therefore charged one
// after the other (call.decide):
//
//  1. Rules with countDenied, which are charged whatever the others say.
//  2. Rules that can deny by themselves. If one denies, what was charged before is refunded and the request is denied.
//     The rules that denied most recently go first, so a refund is rare: it happens at the first denial of a window.
//  3. Rules with quota_mode. The request is denied, and what was charged is refunded, if all of them deny.
//  4. Rules with shadow_mode, which cannot deny.
//
// A refunded unit is missing for the time between its charge and its refund. So another request can be denied a little
// too early at such a moment, and never too late.
//
// # Tenants and plans
//
// A file can map the entries of descriptors to tenant, subject, method, path and address ([envoyconfig.Mapping]). Such
// a descriptor is decided by package authorizer, as behind API Gateway: by the plan of the tenant, from the same plans
// files. Envoy has found out who calls. What has no limit to tell, such as an unknown tenant, is denied, too.
//
// # What is not asked
//
// After a denial the rules that were not reached have no say. If [Config.PeekAfterDenial] is set, the answer says how
// they stand; otherwise their status is OK, without a limit, because to look them up would cost the store a call for
// each request of a client that is denied.
package rls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	lru "github.com/hashicorp/golang-lru/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

const (
	// MaxDescriptors is how many descriptors one request can have. Envoy sends one for each action list of a route, a
	// few dozens at most.
	MaxDescriptors = 1000

	// maxOverrides bounds the limits that requests have brought themselves and that are kept for the next request.
	maxOverrides = 10_000

	// defaultNearLimitRatio is that of envoyproxy/ratelimit.
	defaultNearLimitRatio = 0.8
)

// The errors of a request, in the words of envoyproxy/ratelimit.
var (
	errNoDomain      = errors.New("rate limit domain must not be empty")
	errNoDescriptors = errors.New("rate limit descriptor list must not be empty")
	errNoConfig      = errors.New("no rate limit configuration loaded")
)

// Config sets up a [Service].
type Config struct {
	Store limit.Store // required

	// Plans decides on descriptors that a mapping tells, by the plan of their tenant. It must have the same Store. If
	// nil, mappings have no effect.
	Plans *authorizer.Authorizer

	// CountDenied counts each request, also one that is denied, as envoyproxy/ratelimit does. It does not change what a
	// plan counts.
	CountDenied bool

	ShadowMode      bool // the overall code is always OK
	QuotaMode       bool // every rule has quota_mode
	DynamicMetadata bool // answers have dynamic metadata
	PeekAfterDenial bool // see the package comment
	Headers         Headers

	// NearLimitRatio is the share of a limit from which on hits count as near_limit in the statistics, 0..1; 0 selects
	// 0.8.
	NearLimitRatio float32

	// MaxStats bounds how many names of statistics can come from values of requests; 0 selects 10,000. What is beyond
	// is counted under the name of the rule.
	MaxStats int

	Now func() time.Time // if nil, time.Now
	Log *slog.Logger     // if nil, slog.Default()
}

// Service decides. It is safe for concurrent use. Make it with [New], and give it a configuration with
// [Service.SetConfig].
type Service struct {
	rlsv3.UnimplementedRateLimitServiceServer

	config    Config
	current   atomic.Pointer[snapshot]
	overrides *lru.Cache[override, *envoyconfig.Rule]
	calls     sync.Pool // of *call
	denials   recentDenials
	stats     *Stats

	clockOffset atomic.Int64 // what the store's clock is ahead of ours, µs, as of the last decision
	clockKnown  atomic.Bool  // there was a decision
	lastLogged  atomic.Int64 // when the log got its last line about a store, seconds since 1970
}

// snapshot is a configuration with the statistics of its rules.
type snapshot struct {
	config *envoyconfig.Config
	stats  map[*envoyconfig.Rule]*Counts
}

// override is a limit that a request has brought itself.
type override struct {
	requestsPerUnit uint32
	unit            envoyconfig.Unit
}

// New makes a service without a configuration. Until it has one, every request is an error.
func New(c Config) (*Service, error) {
	switch {
	case c.Store == nil:
		return nil, errors.New("rate limit service: Store is missing")
	case c.NearLimitRatio < 0 || c.NearLimitRatio > 1:
		return nil, fmt.Errorf("rate limit service: NearLimitRatio %v is outside 0..1", c.NearLimitRatio)
	}
	if c.NearLimitRatio == 0 {
		c.NearLimitRatio = defaultNearLimitRatio
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	s := &Service{config: c, stats: newStats(c.MaxStats)}
	s.calls.New = func() any { return &call{service: s} }
	var err error
	s.overrides, err = lru.New[override, *envoyconfig.Rule](maxOverrides)
	return s, err
}

// SetConfig puts a configuration in force. Requests that are under way keep the one that they began with.
func (s *Service) SetConfig(c *envoyconfig.Config) {
	s.current.Store(&snapshot{config: c, stats: s.stats.setRules(c)})
	s.stats.ConfigLoadSuccess.Add(1)
}

// NoteConfigError counts a configuration that was not put in force because something is wrong with it.
func (s *Service) NoteConfigError() { s.stats.ConfigLoadError.Add(1) }

// Current is the configuration in force, or nil.
func (s *Service) Current() *envoyconfig.Config {
	if at := s.current.Load(); at != nil {
		return at.config
	}
	return nil
}

// Stats are the statistics of the service.
func (s *Service) Stats() *Stats { return s.stats }

// ShouldRateLimit decides on a request. An error says that nothing could be decided; Envoy then does what its
// failure_mode_deny says.
func (s *Service) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	c := s.calls.Get().(*call)
	defer c.release()
	if err := c.begin(ctx, req); err != nil {
		s.stats.ServiceError.Add(1)
		return nil, err
	}
	if err := c.decide(); err != nil {
		if _, ours := status.FromError(err); ours { // what the request asks for is not possible
			s.stats.ServiceError.Add(1)
			return nil, err
		}
		s.stats.StoreError.Add(1)
		s.logStore(err)
		return nil, status.Error(codes.Unknown, "the store of counters did not decide")
	}
	return c.response(), nil
}

// logStore logs an error of the store, at most one line in a second.
func (s *Service) logStore(err error) {
	last, now := s.lastLogged.Load(), s.config.Now().Unix()
	if now != last && s.lastLogged.CompareAndSwap(last, now) {
		s.config.Log.Error("the store of counters did not decide", "error", err, "failures", s.stats.StoreError.Load())
	}
}

// ruleOf returns the rule of a limit that the request has brought itself.
func (s *Service) ruleOf(o *ratelimitv3.RateLimitDescriptor_RateLimitOverride) (*envoyconfig.Rule, error) {
	key := override{o.GetRequestsPerUnit(), envoyconfig.Unit(o.GetUnit())}
	if r, ok := s.overrides.Get(key); ok {
		return r, nil
	}
	if key.unit.Length() == 0 {
		return nil, status.Errorf(codes.InvalidArgument, "invalid rate limit unit '%s' in a descriptor's limit",
			o.GetUnit())
	}
	r := &envoyconfig.Rule{RequestsPerUnit: key.requestsPerUnit, Unit: key.unit}
	if key.requestsPerUnit > 0 {
		window, err := envoyconfig.NewWindow(key.requestsPerUnit, key.unit, false, limit.Backstop)
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		r.Limits = []*limit.Limit{window}
	}
	s.overrides.Add(key, r)
	return r, nil
}
