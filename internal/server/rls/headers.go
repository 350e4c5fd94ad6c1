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
	// fits, if nobody else spends units. Of limits that a denial left out, Retry-After knows only what the service
	// remembers of earlier denials.
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

// retryAfter returns how long the request must wait, in seconds: until each limit that denies alone admits, and until
// one with quota_mode admits, if all of those deny. It reports false if no wait helps, or if the wait is not known.
func (c *call) retryAfter() (seconds int64, ok bool) {
	wait, quotaWait := int64(0), int64(math.MaxInt64) // µs
	quotas, denyingQuotas := 0, 0
	for i := range c.items {
		it := &c.items[i]
		if it.quota {
			quotas++
		}
		if !it.hasCounters() || it.rule.ShadowMode {
			continue
		}
		itemWait, known := c.waitOf(it)
		switch {
		case !it.quota && !known:
			return 0, false
		case !it.quota:
			wait = max(wait, itemWait)
		case !known:
			denyingQuotas++
		case itemWait > 0:
			denyingQuotas++
			quotaWait = min(quotaWait, itemWait)
		}
	}
	if quotas > 0 && denyingQuotas == quotas {
		if quotaWait == math.MaxInt64 {
			return 0, false
		}
		wait = max(wait, quotaWait)
	}
	return max(ceilSeconds(wait), 1), true
}

// waitOf returns when the item's hits fit, in µs from the decision; 0 if they fit now, or if nothing is known of an item
// that was not asked. It reports false if they never fit, or if an item denies and its wait is not known.
func (c *call) waitOf(it *item) (wait int64, known bool) {
	switch {
	case it.state == undecided:
		return c.waitOfUndecided(it)
	case it.state != over:
		return 0, true
	case it.permanent || !it.countersKnown:
		return 0, false
	case it.planned != nil:
		planWait, _ := it.planned.answer.RetryAfter()
		return planWait.Microseconds(), true
	case it.decision.Allowed: // the store was made to charge hits that do not fit
		return c.waitOfCounted(it)
	}
	return it.decision.RetryAt - it.decision.Now, true
}

// waitOfUndecided is waitOf for an item that was not asked, because another one had denied. It does not ask the store:
// it takes the end of the last denial that this service remembers.
func (c *call) waitOfUndecided(it *item) (wait int64, known bool) {
	if it.planned != nil {
		return 0, true
	}
	if it.rule.DeniesAll() {
		return 0, false
	}
	for _, l := range it.rule.Limits {
		for i := range l.Tiers {
			if it.hits > l.Tiers[i].Capacity() {
				return 0, false
			}
		}
	}
	return max(c.service.denials.until(&it.owner, it.hits)-c.now.UnixMicro(), 0), true
}

// waitOfCounted is waitOf for an item whose hits were charged although they do not fit. Windows are free at their end.
// For other limits it asks the store when the hits would fit.
func (c *call) waitOfCounted(it *item) (wait int64, known bool) {
	for i := range it.decision.Results {
		r := &it.decision.Results[i]
		switch {
		case it.hits > r.Tier.Capacity():
			return 0, false
		case r.Tier.Algorithm != limit.FixedWindow && r.Tier.Algorithm != limit.Quota:
			c.buildStoreRequest(it, it.hits)
			d := &c.correction
			if err := c.service.config.Store.Peek(c.ctx, &c.storeRequest, c.now, d); err != nil {
				c.service.logStore(err)
				return 0, false
			}
			return max(d.RetryAt-d.Now, 0), !d.Never
		case r.Used()+it.hits > r.Tier.Capacity():
			wait = max(wait, r.MoreAt()-it.decision.Now)
		}
	}
	return wait, true
}

// fields returns the values of RateLimit and RateLimit-Policy. The entry of the binding limit comes first. If a plan has
// that limit, the other entries of the plan follow it.
func (c *call) fields() (left, policies string) {
	binding, first := c.bindingResult()
	c.left, c.policies = c.left[:0], c.policies[:0]
	if binding == nil {
		return "", ""
	}
	if binding.planned != nil {
		c.appendPlanFields(binding)
	} else {
		c.left, c.policies = binding.appendFields(c.left, c.policies, first)
	}
	c.appendOtherFields(binding, first)
	both := string(append(c.left, c.policies...)) // one allocation for the two
	return both[:len(c.left)], both[len(c.left):]
}

// appendOtherFields appends the entries of all limits but the first result, which is the binding item's, to both
// headers, until one of them would be too long.
func (c *call) appendOtherFields(binding *item, first *limit.Result) {
	for i := range c.items {
		it := &c.items[i]
		switch {
		case !it.hasFields():
		case it.planned != nil:
			if it != binding && !c.appendPlanFields(it) {
				return
			}
		default:
			for j := range it.decision.Results {
				r := &it.decision.Results[j]
				if r == first {
					continue
				}
				left, policies := it.appendFields(c.left, c.policies, r)
				if len(left) > maxFieldBytes || len(policies) > maxFieldBytes {
					return
				}
				c.left, c.policies = left, policies
			}
		}
	}
}

// hasFields reports whether the item has entries in RateLimit and RateLimit-Policy. The headers of a plan's answer say
// what is left after its charge, so they are not right if nothing was charged.
func (it *item) hasFields() bool {
	return it.countersKnown && !it.rule.ShadowMode && (it.planned == nil || it.state != uncharged)
}

// appendPlanFields appends the entries of a plan's answer to both headers. If one of them would be too long, it appends
// nothing, and returns false.
func (c *call) appendPlanFields(it *item) bool {
	h := &it.planned.answer.Header
	left, policies := appendList(c.left, h.RateLimit), appendList(c.policies, h.Policy)
	if len(left) > maxFieldBytes || len(policies) > maxFieldBytes {
		return false
	}
	c.left, c.policies = left, policies
	return true
}

// appendList appends the entries of a list, separated by commas, to another list.
func appendList(list []byte, entries string) []byte {
	if len(list) > 0 && entries != "" {
		list = append(list, ", "...)
	}
	return append(list, entries...)
}

// bindingResult returns the first result that denied, or else the one with the smallest part left, and the item that it
// belongs to. It returns nil if no item has results for the headers.
func (c *call) bindingResult() (*item, *limit.Result) {
	var least *limit.Result
	var of *item
	for i := range c.items {
		it := &c.items[i]
		if !it.hasFields() {
			continue
		}
		r := it.binding()
		if it.state == over && it.canDeny() {
			return it, r
		}
		if least == nil || partLeft(r) < partLeft(least) {
			least, of = r, it
		}
	}
	return of, least
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
