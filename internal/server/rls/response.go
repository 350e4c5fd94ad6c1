package rls

import (
	"math"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// response returns the response to a call after decide, and records the outcome of each descriptor.
func (c *call) response() *rlsv3.RateLimitResponse {
	s := c.service
	memory := newResponseMemory(len(c.items))
	out := memory.response
	out.OverallCode = rlsv3.RateLimitResponse_OK
	for i := range c.items {
		it := &c.items[i]
		out.Statuses[i] = it.status(c.now, memory, i)
		if it.hasCounters() {
			it.recordOutcome(s.config.NearLimitRatio, c.chargesDeniedHits(it))
		}
	}
	if c.denied {
		out.OverallCode = rlsv3.RateLimitResponse_OVER_LIMIT
	}
	if c.denied && s.config.ShadowMode {
		out.OverallCode = rlsv3.RateLimitResponse_OK
		s.stats.GlobalShadowMode.Add(1)
	}
	out.ResponseHeadersToAdd = c.headers(out, memory)
	if out.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		c.addProblem(out)
	}
	if s.config.DynamicMetadata {
		out.DynamicMetadata = c.metadata()
	}
	return out
}

// addProblem adds the body of a denial by a plan, which is of the type application/problem+json.
func (c *call) addProblem(out *rlsv3.RateLimitResponse) {
	for i := range c.items {
		it := &c.items[i]
		if it.planned != nil && it.state == over {
			out.RawBody = it.planned.answer.AppendProblem(nil)
			out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd,
				&corev3.HeaderValue{Key: "Content-Type", Value: answer.ContentType})
			return
		}
	}
}

// responseMemory is the memory of one response. It is allocated at once, not for each descriptor.
type responseMemory struct {
	response   *rlsv3.RateLimitResponse
	statuses   []rlsv3.RateLimitResponse_DescriptorStatus
	limits     []rlsv3.RateLimitResponse_RateLimit
	resets     []durationpb.Duration
	headers    []corev3.HeaderValue
	headerList []*corev3.HeaderValue // empty, with room for pointers to all headers
}

// oneStatusMemory is the memory of a response about one descriptor, in one allocation. Most responses are about one.
type oneStatusMemory struct {
	response   rlsv3.RateLimitResponse
	pointer    [1]*rlsv3.RateLimitResponse_DescriptorStatus
	status     [1]rlsv3.RateLimitResponse_DescriptorStatus
	limit      [1]rlsv3.RateLimitResponse_RateLimit
	reset      [1]durationpb.Duration
	headers    [maxExactHeaders]corev3.HeaderValue
	headerList [maxExactHeaders]*corev3.HeaderValue
}

// newResponseMemory returns the memory of a response about n descriptors. Only that of a response about one has room
// for headers.
func newResponseMemory(n int) responseMemory {
	if n == 1 {
		m := new(oneStatusMemory)
		m.response.Statuses = m.pointer[:]
		return responseMemory{&m.response, m.status[:], m.limit[:], m.reset[:], m.headers[:], m.headerList[:0]}
	}
	return responseMemory{&rlsv3.RateLimitResponse{Statuses: make([]*rlsv3.RateLimitResponse_DescriptorStatus, n)},
		make([]rlsv3.RateLimitResponse_DescriptorStatus, n), make([]rlsv3.RateLimitResponse_RateLimit, n),
		make([]durationpb.Duration, n), nil, nil}
}

// status returns the status of the i-th descriptor at the time now. It uses the i-th element of each slice of memory.
func (it *item) status(now time.Time, memory responseMemory, i int) *rlsv3.RateLimitResponse_DescriptorStatus {
	out := &memory.statuses[i]
	out.Code = rlsv3.RateLimitResponse_OK
	if it.unlimited {
		out.LimitRemaining = math.MaxUint32
		return out
	}
	if !it.hasCounters() || it.state == undecided || it.negative && !it.countersKnown && !it.rule.DeniesAll() {
		return out
	}
	if it.state == over && !it.rule.ShadowMode {
		out.Code = rlsv3.RateLimitResponse_OVER_LIMIT
	}
	r := it.binding()
	if r == nil {
		if unit := it.rule.Unit.Length(); unit > 0 { // a plan's rule has no unit
			out.CurrentLimit, out.DurationUntilReset = &memory.limits[i], &memory.resets[i]
			it.describeRule(out.CurrentLimit)
			left := unit.Microseconds() - now.UnixMicro()%unit.Microseconds()
			out.DurationUntilReset.Seconds = answer.CeilSeconds(left)
		}
		return out
	}
	out.CurrentLimit, out.DurationUntilReset = &memory.limits[i], &memory.resets[i]
	describeLimit(out.CurrentLimit, r, it.rule.Name)
	if it.state != over {
		// More than the capacity can remain if negative hits lowered a counter, and a lease holds units of it besides.
		out.LimitRemaining = uint32(min(r.Remaining(), r.Tier.Capacity(), math.MaxUint32))
	}
	out.DurationUntilReset.Seconds = answer.CeilSeconds(r.MoreAt() - it.decidedAt())
	return out
}

// binding returns the result of the item's binding limit, or nil if nothing is known of its counters.
func (it *item) binding() *limit.Result {
	switch {
	case !it.countersKnown:
		return nil
	case it.planned != nil:
		_, r := answer.Binding(it.planned.answer.IPDecision(), it.planned.answer.Decision())
		return r
	}
	return it.decision.Binding()
}

// decidedAt returns the time of the decision that the result of binding is part of, by the store's clock, µs since
// 1970.
func (it *item) decidedAt() int64 {
	if it.planned != nil {
		d, _ := it.planDecision()
		return d.Now
	}
	return it.decision.Now
}

// describeRule writes to out the window of a rule whose counters are not known.
func (it *item) describeRule(out *rlsv3.RateLimitResponse_RateLimit) {
	out.Name, out.RequestsPerUnit = it.rule.Name, it.rule.RequestsPerUnit
	out.Unit = rlsv3.RateLimitResponse_RateLimit_Unit(it.rule.Unit)
}

// describeLimit writes to out the limit of a result: how many units it admits at once, and its period.
func describeLimit(out *rlsv3.RateLimitResponse_RateLimit, r *limit.Result, name string) {
	out.Name, out.RequestsPerUnit = name, uint32(min(r.Tier.Capacity(), math.MaxUint32))
	if c := r.Tier.Calendar; c != nil {
		out.Unit = calendarUnits[c.Every]
		return
	}
	unit, times := unitsOf(r.Tier.Period)
	out.Unit = rlsv3.RateLimitResponse_RateLimit_Unit(unit)
	if times > 1 {
		out.UnitMultiplier = wrapperspb.UInt32(times)
	}
}

var calendarUnits = map[limit.Every]rlsv3.RateLimitResponse_RateLimit_Unit{
	limit.Day: rlsv3.RateLimitResponse_RateLimit_DAY, limit.Week: rlsv3.RateLimitResponse_RateLimit_WEEK,
	limit.Month: rlsv3.RateLimitResponse_RateLimit_MONTH, limit.Year: rlsv3.RateLimitResponse_RateLimit_YEAR,
}

// unitsOf expresses a period as a number of units, the largest unit that divides it. The unit is Unknown if the period
// is not a whole number of seconds.
func unitsOf(period time.Duration) (unit envoyconfig.Unit, times uint32) {
	if u := envoyconfig.UnitOf(period); u != envoyconfig.Unknown {
		return u, 1
	}
	for _, u := range [...]envoyconfig.Unit{envoyconfig.Day, envoyconfig.Hour, envoyconfig.Minute, envoyconfig.Second} {
		if period%u.Length() == 0 {
			return u, uint32(period / u.Length())
		}
	}
	return envoyconfig.Unknown, 0
}
