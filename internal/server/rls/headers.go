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

// Headers says which headers an answer tells Envoy to add to the response of the client.
type Headers struct {
	// Plain are the three headers of envoyproxy/ratelimit, whose values are plain numbers: of the limit with least
	// left, or of the last one that denied.
	Plain bool

	// Names of the plain headers; "" selects RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset.
	Limit, Remaining, Reset string

	// Exact are RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers) for each limit that was asked,
	// and Retry-After if the request is denied: the seconds until the same request fits, if nobody else spends.
	Exact bool
}

// maxFieldBytes bounds the values of RateLimit and RateLimit-Policy each. The limit with least left comes first, and is
// never left out.
const maxFieldBytes = 3072

// mostHeaders is how many headers an answer can have.
const mostHeaders = 6

// exactHeaders is how many of them Config.Headers.Exact brings: RateLimit, RateLimit-Policy and Retry-After.
const exactHeaders = 3

func named(name, preset string) string {
	if name == "" {
		return preset
	}
	return name
}

func (c *call) headers(out *rlsv3.RateLimitResponse, of statuses) []*corev3.HeaderValue {
	h := &c.service.config.Headers
	if !h.Plain && !h.Exact {
		return nil
	}
	memory, list := of.headers, of.list
	if h.Plain || len(memory) == 0 {
		memory, list = make([]corev3.HeaderValue, mostHeaders), make([]*corev3.HeaderValue, 0, mostHeaders)
	}
	add := func(name, value string) {
		v := &memory[len(list)]
		v.Key, v.Value = name, value
		list = append(list, v)
	}
	if h.Plain {
		if s := c.telling(out); s != nil {
			add(named(h.Limit, "RateLimit-Limit"), strconv.FormatUint(uint64(s.GetCurrentLimit().GetRequestsPerUnit()),
				10))
			add(named(h.Remaining, "RateLimit-Remaining"), strconv.FormatUint(uint64(s.GetLimitRemaining()), 10))
			add(named(h.Reset, "RateLimit-Reset"), strconv.FormatInt(s.GetDurationUntilReset().GetSeconds(), 10))
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

// telling is the status that the plain headers are about, or nil: the last one that denied the request, or else the
// first one with least left.
func (c *call) telling(out *rlsv3.RateLimitResponse) *rlsv3.RateLimitResponse_DescriptorStatus {
	least, remaining := (*rlsv3.RateLimitResponse_DescriptorStatus)(nil), uint32(math.MaxUint32)
	for i, s := range out.GetStatuses() {
		if s.GetCurrentLimit() == nil {
			continue
		}
		if denied := c.items[i].state == over && c.items[i].denies(); denied || s.GetLimitRemaining() < remaining {
			least, remaining = s, s.GetLimitRemaining()
		}
	}
	return least
}

// retryAfter returns how long the request must wait, s. It reports false if no wait helps, or if that is not known.
func (c *call) retryAfter() (seconds int64, ok bool) {
	wait := int64(0)
	for i := range c.items {
		it := &c.items[i]
		if it.state != over || it.rule.ShadowMode {
			continue
		}
		if it.never || !it.known {
			return 0, false
		}
		if it.planned != nil {
			planWait, _ := it.planned.answer.RetryAfter()
			wait = max(wait, planWait.Microseconds())
			continue
		}
		at := it.decision.RetryAt
		if r := it.binding(); it.decision.Allowed { // its hits were counted although they do not fit
			if it.hits > r.Tier.Capacity() {
				return 0, false
			}
			at = r.MoreAt()
		}
		wait = max(wait, at-it.decision.Now)
	}
	return max(ceilSeconds(wait), 1), true
}

// fields writes the values of RateLimit and RateLimit-Policy, the limit that binds first.
func (c *call) fields() (left, policies string) {
	first := c.first()
	l, p := c.left[:0], c.policies[:0]
	for pass := range 2 {
		for i := range c.items {
			it := &c.items[i]
			if !it.known || it.rule.ShadowMode {
				continue
			}
			if it.planned != nil {
				if h := &it.planned.answer.Header; pass == 0 && it.state != passed {
					l, p = joined(l, h.RateLimit), joined(p, h.Policy)
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

// joined appends the items of a list to those of another one.
func joined(list []byte, items string) []byte {
	if len(list) > 0 && items != "" {
		list = append(list, ", "...)
	}
	return append(list, items...)
}

// first is the result that denied, or else the one with least left of its capacity.
func (c *call) first() *limit.Result {
	var first *limit.Result
	for i := range c.items {
		it := &c.items[i]
		r := it.binding()
		if r == nil || it.rule.ShadowMode {
			continue
		}
		if it.state == over && it.denies() {
			return r
		}
		if first == nil ||
			float64(r.Remaining())/float64(r.Tier.Capacity()) < float64(first.Remaining())/float64(first.Tier.Capacity()) {
			first = r
		}
	}
	return first
}

// appendFields appends the item of a result to the values of both headers.
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

// windowSeconds is the length of a result's window, s, rounded up; for a bucket, the time in which an empty one fills.
func windowSeconds(r *limit.Result, now int64) int64 {
	t := r.Tier
	if t.Calendar != nil {
		start, end := t.CalendarPeriod(now)
		return ceilSeconds(end - start)
	}
	if t.Algorithm.HasBurst() {
		hi, lo := bits.Mul64(uint64(t.Burst), uint64(t.Period.Microseconds()))
		fills, rest := bits.Div64(hi, lo, uint64(t.Threshold)) // limit.New bounds it far below 2^63
		if rest > 0 {
			fills++
		}
		return ceilSeconds(int64(fills))
	}
	return ceilSeconds(t.Period.Microseconds())
}

// appendName appends the name of a policy as a quoted string: that of the rule, or else the path of its descriptors
// without the domain; and the id of a limit of the key "sluice".
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

// appendPrintable appends what a quoted string of a header can have, and "_" for every other byte.
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
