package envoypeer_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	peerconfig "github.com/envoyproxy/ratelimit/src/config"
	"github.com/envoyproxy/ratelimit/src/provider"
	"github.com/envoyproxy/ratelimit/src/redis"
	peer "github.com/envoyproxy/ratelimit/src/service"
	"github.com/envoyproxy/ratelimit/src/settings"
	"github.com/envoyproxy/ratelimit/src/stats"
	gostats "github.com/lyft/gostats"
	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
	"github.com/sluicelimits/sluice/internal/server/rls"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// counters stands in for the peer's Redis. Its keys have the start of their window in them, so none has to expire.
type counters map[string]uint64

func (c counters) DoCmd(any, string, string, ...any) error { return nil }
func (c counters) PipeDo(redis.Pipeline) error             { return nil }
func (c counters) Close() error                            { return nil }
func (c counters) NumActiveConns() int                     { return 1 }

func (c counters) PipeAppend(p redis.Pipeline, rcv any, cmd, key string, args ...any) redis.Pipeline {
	if cmd == "INCRBY" {
		c[key] += args[0].(uint64)
		*rcv.(*uint64) = c[key]
	}
	return append(p, redis.PipelineAction{Key: key})
}

// clock is the time that both services read.
type clock struct{ now time.Time }

func (c *clock) UnixNow() int64 { return c.now.Unix() }

// oneConfig gives the peer its configuration, once.
type oneConfig struct {
	events chan provider.ConfigUpdateEvent
}

func (o oneConfig) ConfigUpdateEvent() <-chan provider.ConfigUpdateEvent { return o.events }
func (o oneConfig) Stop()                                                {}

type loaded struct{ config peerconfig.RateLimitConfig }

func (l loaded) GetConfig() (peerconfig.RateLimitConfig, any) { return l.config, nil }

// startPeer makes the peer's service, on counters in memory.
func startPeer(t *testing.T, text string, at *clock) (peer.RateLimitServiceServer, stats.Manager) {
	t.Helper()
	logrus.SetLevel(logrus.ErrorLevel)
	manager := stats.NewStatManager(gostats.NewStore(gostats.NewNullSink(), false), settings.Settings{})
	root := peerconfig.ConfigFileContentToYaml("f", text)
	config := peerconfig.NewRateLimitConfigImpl([]peerconfig.RateLimitConfigToLoad{{Name: "f", ConfigYaml: root}},
		manager, false)
	events := make(chan provider.ConfigUpdateEvent, 1)
	events <- loaded{config}
	cache := redis.NewFixedRateLimitCacheImpl(counters{}, nil, at, nil, 0, nil, 0.8, "", manager, false)
	return peer.NewService(cache, oneConfig{events}, manager, nil, at, false, false, false), manager
}

// smallLimits writes descriptors of which each has a limit that a few requests use up. If w.zero, some limits are 0.
func (w *writer) smallLimits(depth int) {
	for _, key := range []string{"a", "b", "c"} {
		for _, value := range []string{"", "x", "y*"} {
			if w.chance(40) {
				continue
			}
			w.line(depth, "- key: %s", key)
			if value != "" {
				w.line(depth, "  value: '%s'", value)
			}
			for _, flag := range []string{"shadow_mode", "detailed_metric", "value_to_metric"} {
				if w.chance(15) {
					w.line(depth, "  %s: true", flag)
				}
			}
			if value == "y*" && w.chance(50) {
				w.line(depth, "  share_threshold: true")
			}
			w.line(depth, "  rate_limit:")
			if w.chance(10) {
				w.line(depth, "    unlimited: true")
			} else {
				w.line(depth, "    unit: %s", w.one("second", "minute", "hour", "day", "week", "month", "year"))
				requests := 1 + w.rng.IntN(11)
				if w.zero && w.chance(30) {
					requests = 0
				}
				w.line(depth, "    requests_per_unit: %d", requests)
			}
			if w.chance(30) {
				w.line(depth, "    name: %s", w.one("n1", "n2"))
			}
			if w.chance(20) {
				w.line(depth, "    replaces: [{name: %s}]", w.one("n3", "n4"))
			}
			if depth < 2 && w.chance(50) {
				w.line(depth, "  descriptors:")
				w.smallLimits(depth + 1)
				w.line(depth+1, "- key: last")
			}
		}
	}
	w.line(depth, "- {key: named, rate_limit: {unit: minute, requests_per_unit: 2, name: n3}}")
}

// request makes a request with up to four descriptors.
func (w *writer) request() *rlsv3.RateLimitRequest {
	req := &rlsv3.RateLimitRequest{Domain: w.one("d", "d", "d", "d", "e"), HitsAddend: uint32(w.rng.IntN(3))}
	for range 1 + w.rng.IntN(4) {
		d := new(ratelimitv3.RateLimitDescriptor)
		for range 1 + w.rng.IntN(2) {
			d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{
				Key: w.one("a", "b", "c", "named"), Value: w.one("x", "y1", "y2", "z")})
		}
		// Beside limits of 0, each request has hits: the peer counts the hits of such a limit, and then says to a
		// request with 0 hits that it is over the limit.
		if w.chance(30) {
			least := 0
			if w.zero {
				least = 1
			}
			d.HitsAddend = wrapperspb.UInt64(uint64(least + w.rng.IntN(5-least)))
		}
		// A limit of 0 counts nothing here, and the peer would count it with others. The key is one that the file does
		// not have, so that no two units meet in one of the peer's keys.
		if w.chance(10) {
			unit := typev3.RateLimitUnit(1 + w.rng.IntN(6))
			d.Entries = []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "own", Value: unit.String()}}
			d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(1 + w.rng.IntN(4)),
				Unit: unit}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// Guarantees that with CountDenied the service gives the very answers of envoyproxy/ratelimit, and has the same
// statistics, for files, requests and times at random, without and with SHADOW_MODE: codes, limits, what remains,
// times, headers. Two things are left out: quota_mode, because the peer's version changes the status of such a
// descriptor, and negative hits, which the peer's version does not know.
func TestServiceLikePeer(t *testing.T) {
	t.Setenv("LIMIT_RESPONSE_HEADERS_ENABLED", "true")
	for _, shadow := range []bool{false, true} {
		t.Run(fmt.Sprint("SHADOW_MODE=", shadow), func(t *testing.T) {
			t.Setenv("SHADOW_MODE", fmt.Sprint(shadow))
			compareServices(t, shadow)
		})
	}
}

func compareServices(t *testing.T, shadow bool) {
	t.Helper()
	rounds := soak.Times(800)
	over, limited, zero := 0, 0, 0
	for round := range rounds {
		w := &writer{rng: rand.New(rand.NewPCG(2, uint64(round)))}
		w.zero = w.chance(25)
		w.line(0, "domain: d")
		w.line(0, "descriptors:")
		w.smallLimits(1)
		text := w.b.String()
		at := &clock{time.Date(2026, 5, 3, 14, 29, 3, 0, time.UTC)}
		theirs, theirStats := startPeer(t, text, at)
		ours := startOurs(t, text, at, shadow)
		for step := range 60 {
			at.now = at.now.Add(time.Duration(w.rng.IntN(40_000_000)) * time.Microsecond)
			req := w.request()
			want, theirErr := theirs.ShouldRateLimit(t.Context(), req)
			got, ourErr := ours.ShouldRateLimit(t.Context(), req)
			if theirErr != nil || ourErr != nil {
				t.Fatalf("round %d, step %d: error %v, the peer's %v", round, step, ourErr, theirErr)
			}
			if !proto.Equal(got, want) {
				t.Fatalf("round %d, step %d at %s: %v:\n got %v\nwant %v\nwith\n%s", round, step, at.now, req, got,
					want, text)
			}
			for _, status := range got.GetStatuses() {
				if status.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
					over++
					if status.GetCurrentLimit().GetRequestsPerUnit() == 0 {
						zero++
					}
				}
			}
			if shadow && got.GetOverallCode() != rlsv3.RateLimitResponse_OK {
				t.Fatalf("round %d, step %d: SHADOW_MODE denies", round, step)
			}
			limited += len(got.GetResponseHeadersToAdd()) / 3
		}
		compareStats(t, ours.Stats(), theirStats, text)
	}
	if over < 5*rounds || limited < 25*rounds || zero < rounds/4 {
		t.Errorf("the requests are no test: %d statuses over, %d of them with a limit of 0, %d requests limited", over,
			zero, limited)
	}
}

func startOurs(t *testing.T, text string, at *clock, shadow bool) *rls.Service {
	t.Helper()
	store, err := memory.New(memory.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := rls.New(rls.Config{Store: store, CountDenied: true, ShadowMode: shadow,
		Headers: rls.Headers{Plain: true}, Now: func() time.Time { return at.now }})
	if err != nil {
		t.Fatal(err)
	}
	config, err := envoyconfig.Load([]envoyconfig.File{{Name: "f", Data: []byte(text)}}, envoyconfig.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.SetConfig(config)
	return s
}

// compareStats compares every statistic of a rule that we have with the peer's, and how often SHADOW_MODE admitted.
func compareStats(t *testing.T, ours *rls.Stats, theirs stats.Manager, text string) {
	t.Helper()
	const scope = "ratelimit.service.rate_limit."
	ours.Each(func(name string, got int64) {
		if name == "ratelimit.service.global_shadow_mode" {
			if want := theirs.NewServiceStats().GlobalShadowMode.Value(); uint64(got) != want {
				t.Errorf("%s is %d, the peer's %d, with\n%s", name, got, want, text)
			}
			return
		}
		rest, ok := strings.CutPrefix(name, scope)
		if !ok {
			return
		}
		dot := strings.LastIndexByte(rest, '.')
		key, what := rest[:dot], rest[dot+1:]
		if what == "domain_not_found" {
			if want := theirs.NewDomainStats(key).NotFound.Value(); uint64(got) != want {
				t.Errorf("%s is %d, the peer's %d", name, got, want)
			}
			return
		}
		s := theirs.NewStats(key)
		want, ok := map[string]uint64{
			"total_hits": s.TotalHits.Value(), "within_limit": s.WithinLimit.Value(), "near_limit": s.NearLimit.Value(),
			"over_limit": s.OverLimit.Value(), "over_limit_with_local_cache": s.OverLimitWithLocalCache.Value(),
			"shadow_mode": s.ShadowMode.Value(),
		}[what]
		if ok && uint64(got) != want {
			t.Errorf("%s is %d, the peer's %d, with\n%s", name, got, want, text)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}
