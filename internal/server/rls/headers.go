package rls

import (
	"cmp"
	"math"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// Headers says which headers Envoy is told to add to the response for the client.
type Headers struct {
	// Plain selects the three headers of envoyproxy/ratelimit, whose values are plain numbers. As there, they are about
	// the last descriptor whose limit denied the request. If none denied, they are about the one with the fewest units
	// left.
	Plain bool

	// Names of the plain headers; "" selects RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset.
	Limit, Remaining, Reset string

	// Exact selects the headers RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers), which have an
	// entry for each limit that was asked, the binding limit first. A denied request also gets Retry-After: the seconds
	// until the same request fits, if nobody else spends units. Limits that were not asked because another one had
	// denied (see Config.PeekAfterDenial) count for it only if the service remembers until when they denied an earlier
	// request. Otherwise Retry-After can be too short.
	Exact bool
}

// maxFieldBytes bounds each of the values of RateLimit and RateLimit-Policy: servers and clients commonly refuse
// headers of more than 8 KiB in all, and the response has others. The binding limit comes first, and is never left out.
const maxFieldBytes = 3072

// The most headers that Headers.Plain and Headers.Exact add to one response. The exact ones are RateLimit,
// RateLimit-Policy and Retry-After.
const (
	maxPlainHeaders = 3
	maxExactHeaders = 3
)

// headers returns the headers to add to the response, whose code and statuses are in out. It stores them in the memory
// of the response if that has room for them.
func (c *call) headers(out *rlsv3.RateLimitResponse, memory responseMemory) []*corev3.HeaderValue {
	h := &c.service.config.Headers
	if !h.Plain && !h.Exact {
		return nil
	}
	values, list := memory.headers, memory.headerList
	// The memory of a response has room for the exact headers at most, and none if it has several descriptors.
	if h.Plain || len(values) == 0 {
		const most = maxPlainHeaders + maxExactHeaders
		values, list = make([]corev3.HeaderValue, most), make([]*corev3.HeaderValue, 0, most)
	}
	add := func(name, value string) {
		v := &values[len(list)]
		v.Key, v.Value = name, value
		list = append(list, v)
	}
	if h.Plain {
		if s := c.plainStatus(out); s != nil {
			capacity, remaining := s.GetCurrentLimit().GetRequestsPerUnit(), s.GetLimitRemaining()
			add(cmp.Or(h.Limit, "RateLimit-Limit"), strconv.FormatUint(uint64(capacity), 10))
			add(cmp.Or(h.Remaining, "RateLimit-Remaining"), strconv.FormatUint(uint64(remaining), 10))
			add(cmp.Or(h.Reset, "RateLimit-Reset"), strconv.FormatInt(s.GetDurationUntilReset().GetSeconds(), 10))
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

// plainStatus returns the status that the plain headers are about: the last one that denied the request by itself, as
// envoyproxy/ratelimit chooses, or else the first one with the fewest units left. It returns nil if no status has a
// limit.
func (c *call) plainStatus(out *rlsv3.RateLimitResponse) *rlsv3.RateLimitResponse_DescriptorStatus {
	chosen, remaining := (*rlsv3.RateLimitResponse_DescriptorStatus)(nil), uint32(math.MaxUint32)
	for i, s := range out.GetStatuses() {
		if s.GetCurrentLimit() == nil {
			continue
		}
		// A status that denied has 0 remaining, so after it only another one that denied is chosen.
		denied := c.items[i].state == over && c.items[i].deniesAlone()
		if denied || s.GetLimitRemaining() < remaining {
			chosen, remaining = s, s.GetLimitRemaining()
		}
	}
	return chosen
}

// noKnownEnd is the wait of an item, in µs, for which no wait can be named: its hits never fit, or it denies and nobody
// knows until when.
const noKnownEnd = math.MaxInt64

// retryAfter returns how long the client must wait until the same request fits, in seconds: until each limit that
// denies by itself admits, and, if all limits with quota_mode deny, until one of them admits. It reports false if no
// wait can be named.
func (c *call) retryAfter() (seconds int64, ok bool) {
	wait, quotaWait := int64(0), int64(noKnownEnd) // µs; of the limits with quota_mode, the shortest
	quotas, denyingQuotas := 0, 0
	for i := range c.items {
		it := &c.items[i]
		if it.quota {
			quotas++ // also one without a rule, or with shadow_mode: it never denies, so not all of them do
		}
		if !it.hasCounters() || it.rule.ShadowMode {
			continue
		}
		itemWait := c.waitOf(it)
		switch {
		case !it.quota:
			wait = max(wait, itemWait)
		case itemWait > 0:
			denyingQuotas++
			quotaWait = min(quotaWait, itemWait)
		}
	}
	if quotas > 0 && denyingQuotas == quotas {
		wait = max(wait, quotaWait)
	}
	if wait == noKnownEnd {
		return 0, false
	}
	return max(answer.CeilSeconds(wait), 1), true
}

// waitOf returns how long after the decision the item's hits fit, in µs: 0 if they fit at once, or noKnownEnd. An item
// that was not asked has a wait only if something is known of it.
func (c *call) waitOf(it *item) int64 {
	switch {
	case it.state == undecided:
		return c.waitOfUndecided(it)
	case it.state != over:
		return 0
	case it.permanent || !it.countersKnown:
		return noKnownEnd
	case it.planned != nil:
		wait, _ := it.planned.answer.RetryAfter() // there is a wait, because the denial is not permanent
		return wait.Microseconds()
	case it.decision.Allowed: // the hits were charged although they do not fit
		return c.waitOfCharged(it)
	}
	return it.decision.RetryAt - it.decision.Now
}

// waitOfUndecided is waitOf for an item that was not asked, because another one had denied. It does not ask the store:
// the end of the item's last denial, if this service remembers it, decides. Nothing is remembered of plans.
func (c *call) waitOfUndecided(it *item) int64 {
	if it.planned != nil {
		return 0
	}
	if it.rule.DeniesAll() {
		return noKnownEnd
	}
	for _, l := range it.rule.Limits {
		for i := range l.Tiers {
			if it.hits > l.Tiers[i].Capacity() {
				return noKnownEnd
			}
		}
	}
	return max(c.service.denials.until(&it.owner, it.hits)-c.now.UnixMicro(), 0)
}

// waitOfCharged is waitOf for an item whose hits were charged although they do not fit: the wait until the same hits
// fit once more. If all of the item's counters are windows, this is when those that lack room end. Counters of other
// algorithms get room little by little, so waitByPeek asks the store.
func (c *call) waitOfCharged(it *item) int64 {
	wait, windowsOnly := int64(0), true
	for i := range it.decision.Results {
		r := &it.decision.Results[i]
		if it.hits > r.Tier.Capacity() {
			return noKnownEnd
		}
		if a := r.Tier.Algorithm; a != limit.FixedWindow && a != limit.Quota {
			windowsOnly = false
		}
		if r.Used()+it.hits > r.Tier.Capacity() { // Used includes the hits that were charged
			wait = max(wait, r.MoreAt()-it.decision.Now)
		}
	}
	if windowsOnly {
		return wait
	}
	return c.waitByPeek(it)
}

// waitByPeek asks the store when the item's hits fit all of its counters.
func (c *call) waitByPeek(it *item) int64 {
	it.buildStoreRequest(it.hits)
	d := &c.scratch
	if err := c.service.config.Store.Peek(c.ctx, &it.storeRequest, c.now, d); err != nil {
		c.service.logStore(err)
		return noKnownEnd
	}
	if d.Never {
		return noKnownEnd
	}
	return max(d.RetryAt-d.Now, 0)
}

// fields returns the values of RateLimit and RateLimit-Policy. They begin with the entry of the binding limit. If a
// tenant's plan has this limit, all entries of the plan come first, in the order in which the plan's answer has them.
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

// appendOtherFields appends to both headers the entries that fields has not written yet, until one of the headers would
// be too long. Written are the result first, and all entries of the binding item if a plan decided it.
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

// hasFields reports whether the item has entries in RateLimit and RateLimit-Policy. A plan's answer made its entries
// when it charged its limits. If that charge was refunded, or the plan was only peeked at, they are wrong.
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

// bindingResult returns the result whose entry comes first, and its item: the binding limit of the first item that
// denied by itself, or else the binding limit with the smallest part left. (The plain headers choose otherwise, because
// they do as envoyproxy/ratelimit.) It returns nil if no item has results for the headers.
func (c *call) bindingResult() (*item, *limit.Result) {
	var binding *limit.Result
	var of *item
	for i := range c.items {
		it := &c.items[i]
		if !it.hasFields() {
			continue
		}
		r := it.binding()
		if it.state == over && it.deniesAlone() {
			return it, r
		}
		if binding == nil || partLeft(r) < partLeft(binding) {
			binding, of = r, it
		}
	}
	return of, binding
}

// partLeft returns the part of a result's capacity that is left, 0..1.
func partLeft(r *limit.Result) float64 { return float64(r.Remaining()) / float64(r.Tier.Capacity()) }

// appendFields appends the entry of a result to the values of both headers.
func (it *item) appendFields(left, policies []byte, r *limit.Result) (l, p []byte) {
	if len(left) > 0 {
		left, policies = append(left, ", "...), append(policies, ", "...)
	}
	left = strconv.AppendInt(append(it.appendName(left, r), ";r="...), r.Remaining(), 10)
	left = strconv.AppendInt(append(left, ";t="...), max(answer.CeilSeconds(r.MoreAt()-it.decision.Now), 1), 10)
	policies = strconv.AppendInt(append(it.appendName(policies, r), ";q="...), r.Tier.Capacity(), 10)
	if w := answer.WindowSeconds(r.Tier, it.decision.Now); w > 0 {
		policies = strconv.AppendInt(append(policies, ";w="...), w, 10)
	}
	return left, policies
}

// appendName appends the name of a result's policy, as a quoted string. It begins with the name of the rule, or, if the
// rule has none, with the path of its descriptors without the domain. "/" and the limit's id follow if the limit is one
// of the key "sluice" (the window of "rate_limit" needs no id). "/" and the tier's period follow if the limit has
// several tiers.
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
