package rls

import (
	"math"
	"math/bits"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// Headers says which headers Envoy is told to add to the response for the client.
type Headers struct {
	// Plain selects the three headers of envoyproxy/ratelimit, whose values are plain numbers. They are about the last
	// limit that denied the request, or else about the limit with the fewest units left.
	Plain bool

	// Names of the plain headers; "" selects RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset.
	Limit, Remaining, Reset string

	// Exact selects the headers RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers), which have an
	// entry for each limit that was asked. A denied request also gets Retry-After: the seconds until the same request
	// fits, if nobody else spends units.
	Exact bool
}

// maxFieldBytes bounds each of the values of RateLimit and RateLimit-Policy: servers and clients commonly refuse
// headers of more than 8 KiB in all, and the response has others. The binding limit comes first, and is never left out.
const maxFieldBytes = 3072

// maxHeaders is the largest number of headers of a response: three plain and three exact ones.
const maxHeaders = 6

// exactHeaders is the number of headers that Config.Headers.Exact adds: RateLimit, RateLimit-Policy and Retry-After.
const exactHeaders = 3

// orDefault returns name, or preset if name is empty.
func orDefault(name, preset string) string {
	if name == "" {
		return preset
	}
	return name
}

// headers returns the headers of the response whose code and statuses are in out. It uses the memory of the response.
func (c *call) headers(out *rlsv3.RateLimitResponse, memoryOf statuses) []*corev3.HeaderValue {
	h := &c.service.config.Headers
	if !h.Plain && !h.Exact {
		return nil
	}
	memory, list := memoryOf.headers, memoryOf.list
	if h.Plain || len(memory) == 0 {
		memory, list = make([]corev3.HeaderValue, maxHeaders), make([]*corev3.HeaderValue, 0, maxHeaders)
	}
	add := func(name, value string) {
		v := &memory[len(list)]
		v.Key, v.Value = name, value
		list = append(list, v)
	}
	if h.Plain {
		if s := c.plainStatus(out); s != nil {
			capacity, remaining := s.GetCurrentLimit().GetRequestsPerUnit(), s.GetLimitRemaining()
			add(orDefault(h.Limit, "RateLimit-Limit"), strconv.FormatUint(uint64(capacity), 10))
			add(orDefault(h.Remaining, "RateLimit-Remaining"), strconv.FormatUint(uint64(remaining), 10))
			add(orDefault(h.Reset, "RateLimit-Reset"), strconv.FormatInt(s.GetDurationUntilReset().GetSeconds(), 10))
		}
	}
	if !h.Exact {
		return list
	}
	if left, policies := c.fields(); left != "" {
		add("RateLimit", left)
		add("RateLimit-Policy", policies)
	}
	if out.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		if seconds, ok := c.retryAfter(); ok {
			add("Retry-After", strconv.FormatInt(seconds, 10))
		}
	}
	return list
}

// plainStatus returns the status that the plain headers are about: the last one that denied the request, or else the
// first one with the fewest units left. It returns nil if no status has a limit.
func (c *call) plainStatus(out *rlsv3.RateLimitResponse) *rlsv3.RateLimitResponse_DescriptorStatus {
	least, remaining := (*rlsv3.RateLimitResponse_DescriptorStatus)(nil), uint32(math.MaxUint32)
	for i, s := range out.GetStatuses() {
		if s.GetCurrentLimit() == nil {
			continue
		}
		if denied := c.items[i].state == over && c.items[i].canDeny(); denied || s.GetLimitRemaining() < remaining {
			least, remaining = s, s.GetLimitRemaining()
		}
	}
	return least
}

// retryAfter returns how long the request must wait, in seconds. It reports false if no wait helps, or if the wait is
// not known.
func (c *call) retryAfter() (seconds int64, ok bool) {
	wait := int64(0) // µs
	for i := range c.items {
		it := &c.items[i]
		if it.state != over || it.rule.ShadowMode {
			continue
		}
		if it.permanent || !it.countersKnown {
			return 0, false
		}
		if it.planned != nil {
			planWait, _ := it.planned.answer.RetryAfter()
			wait = max(wait, planWait.Microseconds())
			continue
		}
		at := it.decision.RetryAt
		if r := it.binding(); it.decision.Allowed { // the store was made to charge hits that do not fit
			if it.hits > r.Tier.Capacity() {
				return 0, false
			}
			at = r.MoreAt()
		}
		wait = max(wait, at-it.decision.Now)
	}
	return max(ceilSeconds(wait), 1), true
}

// fields returns the values of RateLimit and RateLimit-Policy. The entry of the binding limit comes first.
func (c *call) fields() (left, policies string) {
	first := c.bindingResult()
	l, p := c.left[:0], c.policies[:0]
	for pass := range 2 {
		for i := range c.items {
			it := &c.items[i]
			if !it.countersKnown || it.rule.ShadowMode {
				continue
			}
			if it.planned != nil {
				if h := &it.planned.answer.Header; pass == 0 && it.state != uncharged {
					l, p = appendList(l, h.RateLimit), appendList(p, h.Policy)
				}
				continue
			}
			for j := range it.decision.Results {
				r := &it.decision.Results[j]
				if (r == first) != (pass == 0) {
					continue
				}
				l2, p2 := it.appendFields(l, p, r)
				if len(l2) > maxFieldBytes || len(p2) > maxFieldBytes {
					return string(l), string(p)
				}
				l, p = l2, p2
			}
		}
	}
	c.left, c.policies = l, p
	both := string(append(l, p...)) // one allocation for the two
	return both[:len(l)], both[len(l):]
}

// appendList appends the entries of a list, separated by commas, to another list.
func appendList(list []byte, entries string) []byte {
	if len(list) > 0 && entries != "" {
		list = append(list, ", "...)
	}
	return append(list, entries...)
}

// bindingResult returns the first result that denied, or else the one with the smallest part left. It returns nil if
// no result is known.
func (c *call) bindingResult() *limit.Result {
	var least *limit.Result
	for i := range c.items {
		it := &c.items[i]
		r := it.binding()
		if r == nil || it.rule.ShadowMode {
			continue
		}
		if it.state == over && it.canDeny() {
			return r
		}
		if least == nil || partLeft(r) < partLeft(least) {
			least = r
		}
	}
	return least
}

// partLeft returns the part of a result's capacity that is left, 0..1.
func partLeft(r *limit.Result) float64 { return float64(r.Remaining()) / float64(r.Tier.Capacity()) }

// appendFields appends the entry of a result to the values of both headers.
func (it *item) appendFields(left, policies []byte, r *limit.Result) (l, p []byte) {
	if len(left) > 0 {
		left, policies = append(left, ", "...), append(policies, ", "...)
	}
	left = strconv.AppendInt(append(it.appendName(left, r), ";r="...), r.Remaining(), 10)
	left = strconv.AppendInt(append(left, ";t="...), max(ceilSeconds(r.MoreAt()-it.decision.Now), 1), 10)
	policies = strconv.AppendInt(append(it.appendName(policies, r), ";q="...), r.Tier.Capacity(), 10)
	if w := windowSeconds(r, it.decision.Now); w > 0 {
		policies = strconv.AppendInt(append(policies, ";w="...), w, 10)
	}
	return left, policies
}

// windowSeconds returns the length of a result's window in seconds, rounded up. For a bucket this is the time in which
// an empty bucket fills.
func windowSeconds(r *limit.Result, now int64) int64 {
	t := r.Tier
	if t.Calendar != nil {
		start, end := t.CalendarPeriod(now)
		return ceilSeconds(end - start)
	}
	if t.Algorithm.HasBurst() {
		hi, lo := bits.Mul64(uint64(t.Burst), uint64(t.Period.Microseconds()))
		fills, rest := bits.Div64(hi, lo, uint64(t.Threshold)) // does not overflow: limit.New bounds the quotient
		if rest > 0 {
			fills++
		}
		return ceilSeconds(int64(fills))
	}
	return ceilSeconds(t.Period.Microseconds())
}

// appendName appends the name of a policy as a quoted string. It is the name of the rule, or else the path of its
// descriptors without the domain. The id of the limit follows if the limit is one of the key "sluice", and the tier's
// period if the limit has several tiers.
func (it *item) appendName(b []byte, r *limit.Result) []byte {
	name := it.rule.Name
	if name == "" {
		name = it.rule.PolicyName()
	}
	b = append(b, '"')
	b = appendPrintable(b, name)
	if id := r.Limit().ID; id != envoyconfig.WindowID {
		if name != "" {
			b = append(b, '/')
		}
		b = append(b, id...)
	}
	if l := r.Limit(); len(l.Tiers) > 1 {
		b = append(append(b, '/'), r.Tier.Period.String()...)
	}
	return append(b, '"')
}

// appendPrintable appends a text, with "_" in place of every byte that a quoted string of a header cannot hold.
func appendPrintable(b []byte, text string) []byte {
	for i := range len(text) {
		ch := text[i]
		if ch < ' ' || ch > '~' || ch == '"' || ch == '\\' {
			ch = '_'
		}
		b = append(b, ch)
	}
	return b
}
