// Package rls implements the gRPC service envoy.service.ratelimit.v3, which Envoy calls to ask whether a request may
// pass.
//
// A request has a domain and a list of descriptors. Package envoyconfig finds the rule of each descriptor, and a
// [limit.Store] counts. A [Service] answers as envoyproxy/ratelimit does, with one intended difference: it charges all
// descriptors of a request or none. If one of them denies, the others keep their units. [Config.CountDenied], or the
// key countDenied of a descriptor, turns this off. So does a request with 0 hits for its rule: it shows that hits are
// reported after the fact.
//
// # How a request is decided
//
// Each descriptor has counters of its own, under an owner of its own (see [envoyconfig.AppendKey]), so that the
// counters are spread evenly over a cluster and no descriptor slows down another. The rules of one request are
// therefore charged one after the other, in four passes (call.decide):
//
//  1. Rules that do not depend on the others: those with countDenied are charged in any case, negative hits are given
//     back, and rules without hits are only peeked at.
//  2. Rules that can deny alone. If one denies, the request is denied, and the charges made so far are refunded. The
//     rules that denied most recently come first, so a refund is rare: it happens at the first denial of a window.
//  3. Rules with quota_mode. If all of them deny, the request is denied, and the charges made so far are refunded.
//  4. Rules with shadow_mode, which cannot deny.
//
// With [Config.Together] all of them are charged at the same time, except that a rule which denied a moment ago is
// asked before the others, and the charges of a denied request are refunded at the same time (call.chargeTogether).
//
// If the store fails, the charges made so far are refunded, too. A refunded unit is missing between its charge and its
// refund. At such a moment another request can be denied too early, but none is admitted that should be denied.
//
// # Tenants and plans
//
// A file can map the entries of descriptors to tenant, subject, method, path and address ([envoyconfig.Mapping]). Such
// a descriptor is decided by package authorizer, as behind API Gateway: by the plan of the tenant, from the same plans
// files. Envoy has authenticated the caller. A call that no limit is about, such as one of an unknown tenant, is denied
// without a limit in its status.
//
// # Rules that a denial leaves out
//
// After a denial the remaining rules are not charged. If [Config.PeekAfterDenial] is set, the response says how much
// their counters have left. Otherwise their status is OK, without a limit, because a peek would cost one more call to
// the store for every denied request.
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
	// MaxDescriptors is the largest number of descriptors of one request. Envoy sends one for each action list of a
	// route: a few dozens at most.
	MaxDescriptors = 1000

	// maxOverrides bounds the cache of the limits that descriptors set themselves, and so the memory that callers can
	// fill: its keys are hashes, however long the keys of a descriptor are.
	maxOverrides = 10_000

	// defaultNearLimitRatio is the default of envoyproxy/ratelimit.
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

	// Plans decides the descriptors of a mapping, by the plan of their tenant. It must have the same Store. If nil,
	// mappings have no effect.
	Plans *authorizer.Authorizer

	// Addresses names the addresses of clients, so that the names of counters contain none. If nil, counters have the
	// addresses as Envoy sent them.
	Addresses authorizer.Sources

	// IPv6Prefix is by how many bits of an IPv6 address a client is counted, 1..128; 0 selects 64. See nameAddresses.
	IPv6Prefix int

	// CountDenied charges the hits of every request, also of a denied one, as envoyproxy/ratelimit does. Descriptors
	// that a plan decides ignore it.
	CountDenied bool

	ShadowMode      bool // the overall code is always OK
	QuotaMode       bool // every rule has quota_mode
	DynamicMetadata bool // responses have dynamic metadata
	PeekAfterDenial bool // see the package comment
	Together        bool // descriptors of a request are charged at the same time: for a store that is far away
	Headers         Headers

	// NearLimitRatio is the part of a limit above which hits count as near_limit in the statistics, 0..1; 0 selects
	// 0.8.
	NearLimitRatio float32

	// MaxStats bounds how many names of statistics are made of values of requests; 0 selects 10,000. Further values are
	// counted under the name of the rule.
	MaxStats int

	Now func() time.Time // if nil, time.Now
	Log *slog.Logger     // if nil, slog.Default()
}

// defaultIPv6Prefix is that of plans: the smallest network that customers get.
const defaultIPv6Prefix = 64

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

	warnedOfPlanReports sync.Once

	lastLogged      atomic.Int64 // when an error of the store was last logged, seconds since 1970
	lastQueryLogged atomic.Int64 // the same of a limit of a request with 0 hits
}

// snapshot is a configuration with the statistics of its rules.
type snapshot struct {
	config *envoyconfig.Config
	stats  map[*envoyconfig.Rule]*Counts
}

// override is a limit that a descriptor of a request sets itself.
type override struct {
	requestsPerUnit uint32
	unit            envoyconfig.Unit
	keys            string // the hash of the domain and of the keys of the descriptor's entries
}

// New returns a service without a configuration. Until it has one, every request is an error.
func New(c Config) (*Service, error) {
	switch {
	case c.Store == nil:
		return nil, errors.New("rate limit service: Store is missing")
	case c.IPv6Prefix < 0 || c.IPv6Prefix > 128:
		return nil, fmt.Errorf("rate limit service: IPv6Prefix %d is outside 0..128", c.IPv6Prefix)
	case c.NearLimitRatio < 0 || c.NearLimitRatio > 1:
		return nil, fmt.Errorf("rate limit service: NearLimitRatio %v is outside 0..1", c.NearLimitRatio)
	}
	if c.IPv6Prefix == 0 {
		c.IPv6Prefix = defaultIPv6Prefix
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

// SetConfig puts a configuration in force. Requests that have already begun keep the previous one.
func (s *Service) SetConfig(c *envoyconfig.Config) {
	if earlier := s.Current(); earlier != nil {
		c.KeepQueries(earlier)
	}
	s.current.Store(&snapshot{config: c, stats: s.stats.setRules(c)})
	s.denials.forgetWaits()
	s.stats.ConfigLoadSuccess.Add(1)
}

// NoteConfigError counts a configuration that was refused because of an error in it.
func (s *Service) NoteConfigError() { s.stats.ConfigLoadError.Add(1) }

// Current returns the configuration in force, or nil.
func (s *Service) Current() *envoyconfig.Config {
	if snapshot := s.current.Load(); snapshot != nil {
		return snapshot.config
	}
	return nil
}

// Stats returns the statistics of the service.
func (s *Service) Stats() *Stats { return s.stats }

// ShouldRateLimit decides a request. After an error, nothing is decided, and Envoy does what its failure_mode_deny
// says.
func (s *Service) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	c := s.calls.Get().(*call)
	defer c.release()
	if err := c.begin(ctx, req); err != nil {
		s.stats.ServiceError.Add(1)
		return nil, err
	}
	if err := c.decide(); err != nil {
		if _, invalid := status.FromError(err); invalid { // the request asks for something impossible
			s.stats.ServiceError.Add(1)
			return nil, err
		}
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			s.stats.Canceled.Add(1)
			return nil, status.Error(codes.Canceled, "the client cancelled the request before it was decided")
		}
		s.stats.StoreError.Add(1)
		s.logStore(err)
		return nil, status.Error(codes.Unknown, "the store of counters failed: the request is not decided")
	}
	return c.response(), nil
}

// logStore logs an error of the store, at most one line per second.
func (s *Service) logStore(err error) {
	if s.oncePerSecond(&s.lastLogged) {
		s.config.Log.Error("the store of counters failed", "error", err, "failures", s.stats.StoreError.Load())
	}
}

// logQuery logs a message about a descriptor that a request asked about with 0 hits. A limit that the request brings is
// named by the keys of the descriptor alone, because values can be addresses or credentials. Clients can bring any
// number of limits, so there is at most one such line per second.
func (s *Service) logQuery(message string, rule *envoyconfig.Rule, domain string, entries []envoyconfig.Entry) {
	name := rule.Path
	if name == "" {
		if !s.oncePerSecond(&s.lastQueryLogged) {
			return
		}
		keys := make([]envoyconfig.Entry, len(entries))
		for i := range entries {
			keys[i].Key = entries[i].Key
		}
		name = envoyconfig.OverrideStatsKey(domain, keys)
	}
	s.config.Log.Info(message, "descriptor", name)
}

// oncePerSecond reports whether a line may be logged, and remembers that in last, in seconds since 1970.
func (s *Service) oncePerSecond(last *atomic.Int64) bool {
	before, now := last.Load(), s.config.Now().Unix()
	return now != before && last.CompareAndSwap(before, now)
}

// warnOfPlanReports logs once that a plan does not count hits that are reported later and do not fit.
func (s *Service) warnOfPlanReports(domain string) {
	s.warnedOfPlanReports.Do(func() {
		s.config.Log.Warn("a request asked with 0 hits about a descriptor that the plan of a tenant decides. If its "+
			"hits are reported when it is over: a plan does not count a report that does not fit, so such a limit is "+
			"never reached. Report to a descriptor that the mapping does not match, with a rate_limit of its own",
			"domain", domain)
	})
}

// overrideScope is the Scope of all limits that requests bring.
const overrideScope = "limits of requests"

// ruleOf returns a rule for a limit that a descriptor of a request sets itself. Descriptors with the same limit and the
// same keys, whatever their values, have one rule.
func (s *Service) ruleOf(o *ratelimitv3.RateLimitDescriptor_RateLimitOverride, domain string,
	entries []envoyconfig.Entry) (*envoyconfig.Rule, error) {
	keys := limit.AppendNetstring(nil, domain)
	for i := range entries {
		keys = limit.AppendNetstring(keys, entries[i].Key)
	}
	key := override{o.GetRequestsPerUnit(), envoyconfig.Unit(o.GetUnit()), hashOf(keys)}
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
		window.Scope = overrideScope
		r.Limits = []*limit.Limit{window}
	}
	s.overrides.Add(key, r)
	return r, nil
}
