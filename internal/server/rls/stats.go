package rls

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

const (
	defaultMaxStats  = 10_000
	maxStatsKeyBytes = 512 // a longer name is counted under that of its rule
)

// Stats holds the statistics of a [Service], under the names that envoyproxy/ratelimit has for them.
type Stats struct {
	ConfigLoadSuccess, ConfigLoadError atomic.Int64

	ServiceError     atomic.Int64 // invalid requests
	StoreError       atomic.Int64 // requests that were not decided, because the store failed
	Canceled         atomic.Int64 // requests that were not decided, because the client cancelled them
	GlobalShadowMode atomic.Int64 // requests that the service's shadow mode let pass
	RefundError      atomic.Int64 // charges of denied requests, and negative hits, that could not be given back

	max    int
	mu     sync.RWMutex
	rules  map[string]*Counts // by the path of a rule
	values map[string]*Counts // by a name that holds values of requests, at most max
	plans  map[string]*Counts // by a domain with a plan, or with why there is no plan, at most max

	// By a domain that is not in the configuration, at most max. TotalHits is the number of requests.
	unknownDomains map[string]*Counts
}

// Counts holds the statistics of one rule or of one descriptor: numbers of hits.
type Counts struct {
	TotalHits, TotalNegativeHits atomic.Int64
	WithinLimit, NearLimit       atomic.Int64
	OverLimit                    atomic.Int64
	OverLimitWithLocalCache      atomic.Int64 // always 0: the lease layer takes the place of the local cache
	ShadowMode                   atomic.Int64

	name string // as it is written in statistics
}

func newCounts(key string) *Counts { return &Counts{name: cleanName(key)} }

// each calls f for each count and its name.
func (c *Counts) each(f func(name string, n int64)) {
	f("near_limit", c.NearLimit.Load())
	f("over_limit", c.OverLimit.Load())
	f("over_limit_with_local_cache", c.OverLimitWithLocalCache.Load())
	f("shadow_mode", c.ShadowMode.Load())
	f("total_hits", c.TotalHits.Load())
	f("total_negative_hits", c.TotalNegativeHits.Load())
	f("within_limit", c.WithinLimit.Load())
}

func newStats(maxNames int) *Stats {
	if maxNames == 0 {
		maxNames = defaultMaxStats
	}
	return &Stats{max: maxNames, rules: map[string]*Counts{}, values: map[string]*Counts{},
		plans: map[string]*Counts{}, unknownDomains: map[string]*Counts{}}
}

// setRules returns the counts of each rule of a configuration. A rule whose path was in the previous configuration
// keeps its counts; the counts of other rules of the previous configuration are dropped.
func (s *Stats) setRules(c *envoyconfig.Config) map[*envoyconfig.Rule]*Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	byPath, byRule := map[string]*Counts{}, make(map[*envoyconfig.Rule]*Counts, c.Rules())
	c.EachRule(func(r *envoyconfig.Rule) {
		counts := s.rules[r.Path]
		if counts == nil {
			counts = newCounts(r.Path)
		}
		byPath[r.Path], byRule[r] = counts, counts
	})
	s.rules = byPath
	return byRule
}

// dynamic returns the counts of a name that holds values of requests. If there is no room for another name, it returns
// ofRule, which may be nil.
func (s *Stats) dynamic(name string, ofRule *Counts) *Counts { return s.named(s.values, name, ofRule) }

// ofPlan returns the counts of a domain with a plan, or nil if there is no room. Values of requests take no room of
// plans.
func (s *Stats) ofPlan(name string) *Counts { return s.named(s.plans, name, nil) }

// named returns the counts of a name, which it adds to the map if there is room. Otherwise it returns full.
func (s *Stats) named(all map[string]*Counts, name string, full *Counts) *Counts {
	if len(name) > maxStatsKeyBytes {
		return full
	}
	s.mu.RLock()
	counts, room := all[name], len(all) < s.max
	s.mu.RUnlock()
	if counts != nil {
		return counts
	}
	if !room {
		return full
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if counts = all[name]; counts == nil && len(all) < s.max {
		name = strings.Clone(name)
		counts = newCounts(name)
		all[name] = counts
	}
	return cmp.Or(counts, full)
}

// domainNotFound counts a request for a domain that is not in the configuration, if there is room for it.
func (s *Stats) domainNotFound(domain string) {
	if c := s.named(s.unknownDomains, domain, nil); c != nil {
		c.TotalHits.Add(1)
	}
}

// counts returns the counts of all rules and descriptors. It holds the lock, which requests wait for, only to copy
// them.
func (s *Stats) counts() []*Counts {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*Counts, 0, len(s.rules)+len(s.values)+len(s.plans))
	for _, some := range []map[string]*Counts{s.rules, s.values, s.plans} {
		all = slices.AppendSeq(all, maps.Values(some))
	}
	return all
}

// The beginnings of the names of all statistics.
const (
	serviceScope = "ratelimit.service."
	rulesScope   = serviceScope + "rate_limit."
)

// Each calls f for each statistic, under its name of envoyproxy/ratelimit, in the order of the names.
func (s *Stats) Each(f func(name string, n int64)) {
	all := map[string]int64{
		serviceScope + "call.should_rate_limit.redis_error":   s.StoreError.Load(),
		serviceScope + "call.should_rate_limit.service_error": s.ServiceError.Load(),
		serviceScope + "config_load_error":                    s.ConfigLoadError.Load(),
		serviceScope + "config_load_success":                  s.ConfigLoadSuccess.Load(),
		serviceScope + "global_shadow_mode":                   s.GlobalShadowMode.Load(),
		serviceScope + "sluice.refund_error":                  s.RefundError.Load(),
	}
	for _, c := range s.counts() {
		c.each(func(name string, n int64) { all[rulesScope+c.name+"."+name] += n })
	}
	s.mu.RLock()
	unknown := slices.Collect(maps.Values(s.unknownDomains))
	s.mu.RUnlock()
	for _, d := range unknown {
		all[rulesScope+d.name+".domain_not_found"] += d.TotalHits.Load()
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f(name, all[name])
	}
}

// EachCount calls f for each count of a rule or a descriptor. key names the rule or the descriptor, and what is the
// name of the count, such as "over_limit". The calls are sorted by key, then by what.
func (s *Stats) EachCount(f func(key, what string, n int64)) {
	all := map[[2]string]int64{}
	for _, c := range s.counts() {
		key := strings.ToValidUTF8(c.name, "_")
		c.each(func(what string, n int64) { all[[2]string{key, what}] += n })
	}
	keys := slices.SortedFunc(maps.Keys(all), func(a, b [2]string) int {
		return cmp.Or(strings.Compare(a[0], b[0]), strings.Compare(a[1], b[1]))
	})
	for _, k := range keys {
		f(k[0], k[1], all[k])
	}
}

// Write writes the statistics, one per line.
func (s *Stats) Write(w io.Writer) {
	s.Each(func(name string, n int64) { fmt.Fprintf(w, "%s: %d\n", name, n) })
}

var (
	ipv4        = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)
	unsafeNames = strings.NewReplacer(":", "_", "|", "_")
)

// cleanName replaces the characters that the statsd protocol does not allow in a name, and the dots of IPv4 addresses,
// as envoyproxy/ratelimit does. It also replaces control characters and separators of lines, by which a value of a
// request could add a line to the statistics.
func cleanName(name string) string {
	name = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || unicode.In(c, unicode.Zl, unicode.Zp, unicode.Cf) {
			return '_'
		}
		return c
	}, name)
	return ipv4.ReplaceAllStringFunc(unsafeNames.Replace(name), func(address string) string {
		return strings.ReplaceAll(address, ".", "_")
	})
}
