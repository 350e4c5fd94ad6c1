package rls

import (
	"context"
	"errors"
	"slices"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// call is one request while it is decided. Its memory is used again.
type call struct {
	service *Service
	ctx     context.Context
	request *rlsv3.RateLimitRequest
	now     time.Time
	items   []item

	denied     bool
	denialsAt  []int64 // for each item, when its counters last denied, µs since 1970
	order      []int   // the items that deny by themselves, in the order in which they are charged
	match      envoyconfig.Match
	entries    []envoyconfig.Entry
	key        []byte
	ask        limit.Request
	corrected  limit.Decision
	replacedBy []string // names of rules that do not apply

	left, policies []byte // values of headers
}

func (c *call) release() {
	c.ctx, c.request = nil, nil
	clear(c.entries[:cap(c.entries)]) // texts of the request
	for i := range c.items {
		c.items[i].reset()
	}
	if cap(c.items) <= 64 { // else the memory of one large request would be kept for all
		c.service.calls.Put(c)
	}
}

// begin checks the request and finds the rule of each descriptor.
func (c *call) begin(ctx context.Context, req *rlsv3.RateLimitRequest) error {
	c.ctx, c.request, c.now, c.denied = ctx, req, c.service.config.Now(), false
	descriptors := req.GetDescriptors()
	at := c.service.current.Load()
	switch {
	case req.GetDomain() == "":
		return errNoDomain
	case len(descriptors) == 0:
		return errNoDescriptors
	case len(descriptors) > MaxDescriptors:
		return status.Errorf(codes.InvalidArgument, "%d descriptors, want at most %d", len(descriptors), MaxDescriptors)
	case at == nil:
		return errNoConfig
	}
	if n := len(descriptors); n <= cap(c.items) {
		c.items = c.items[:n]
	} else {
		c.items = append(c.items[:cap(c.items)], make([]item, n-cap(c.items))...)
	}
	c.replacedBy = c.replacedBy[:0]
	for i := range descriptors {
		if err := c.beginItem(i, at); err != nil {
			return err
		}
	}
	for i := range c.items {
		if it := &c.items[i]; it.counts() && it.rule.Name != "" && slices.Contains(c.replacedBy, it.rule.Name) {
			it.rule = nil
		}
	}
	for i := range c.items {
		it := &c.items[i]
		it.quota = !it.unlimited && (c.service.config.QuotaMode || it.rule != nil && it.rule.QuotaMode)
		if it.counts() && it.planned == nil {
			it.countHits()
		}
	}
	return nil
}

// beginItem finds the rule of one descriptor.
func (c *call) beginItem(i int, at *snapshot) error {
	it, d := &c.items[i], c.request.GetDescriptors()[i]
	it.reset()
	c.entries = c.entries[:0]
	for _, e := range d.GetEntries() {
		c.entries = append(c.entries, envoyconfig.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	domain := c.request.GetDomain()
	if mapping := at.config.Mapping(domain); mapping != nil && c.service.config.Plans != nil {
		if told, mapped := mapping.Read(c.entries); mapped {
			it.setHits(d, c.request)
			cost := it.hits
			if d.GetHitsAddend() == nil && c.request.GetHitsAddend() == 0 {
				cost = 0 // the plan says
			}
			it.plan(domain, &told, cost)
			return nil
		}
	}
	if !at.config.Match(domain, c.entries, &c.match) {
		c.service.stats.domainNotFound(domain)
		return nil
	}
	shared := c.match.Shared
	if own := d.GetLimit(); own != nil {
		var err error
		if it.rule, err = c.service.ruleOf(own); err != nil {
			return err
		}
		it.stats = c.service.stats.dynamic(envoyconfig.OverrideStatsKey(domain, c.entries), nil)
		shared = nil
	} else if it.rule = c.match.Rule; it.rule == nil {
		return nil
	} else if it.stats = at.stats[it.rule]; c.match.StatsKey != it.rule.Path {
		it.stats = c.service.stats.dynamic(c.match.StatsKey, it.stats)
	}
	c.replacedBy = append(c.replacedBy, it.rule.Replaces...)
	if it.unlimited = it.rule.Unlimited; it.unlimited {
		return nil
	}
	it.setHits(d, c.request)
	c.key = envoyconfig.AppendKey(c.key[:0], domain, c.entries, shared)
	it.owner = ownerOf(c.key, c.entries)
	return nil
}

// decide charges the items, in the order that the package comment gives.
func (c *call) decide() error {
	err := c.chargeItems()
	if err != nil {
		c.refund()
	}
	return err
}

func (c *call) chargeItems() error {
	global := c.service.config.ShadowMode
	for i := range c.items {
		it := &c.items[i]
		if !it.counts() || !it.negative && it.hits > 0 && !c.countsDenied(it) {
			continue
		}
		if err := c.chargeAlways(it); err != nil {
			return err
		}
		c.denied = c.denied || it.state == over && it.denies()
	}
	if !c.denied || global {
		if err := c.chargeDenying(); err != nil {
			return err
		}
	}
	if !c.denied || global {
		if err := c.chargeQuotas(); err != nil {
			return err
		}
	}
	if c.denied && !global {
		c.refund()
		return c.peekRest()
	}
	return c.chargeEach(func(it *item) bool { return it.rule.ShadowMode })
}

// countsDenied reports whether hits of the item are counted also if they do not fit. A plan never counts such hits.
func (c *call) countsDenied(it *item) bool {
	return it.planned == nil && (c.service.config.CountDenied || it.rule.CountDenied)
}

// chargeDenying charges the rules that can deny by themselves, until one of them does. In shadow mode it charges all.
func (c *call) chargeDenying() error {
	c.order, c.denialsAt = c.order[:0], c.denialsAt[:0]
	for i := range c.items {
		c.denialsAt = append(c.denialsAt, 0)
		if it := &c.items[i]; it.denies() && it.state == undecided {
			c.order = append(c.order, i)
		}
	}
	if len(c.order) > 1 {
		for _, i := range c.order {
			c.denialsAt[i] = c.service.denials.last(&c.items[i].owner)
		}
		slices.SortStableFunc(c.order, func(a, b int) int { // the latest denial first
			return int(min(max(c.denialsAt[b]-c.denialsAt[a], -1), 1))
		})
	}
	for _, i := range c.order {
		it := &c.items[i]
		if err := c.charge(it); err != nil {
			return err
		}
		if it.state != over {
			continue
		}
		c.denied = true
		if len(c.items) > 1 {
			c.service.denials.note(&it.owner, c.now.UnixMicro())
		}
		if !c.service.config.ShadowMode {
			return nil
		}
	}
	return nil
}

// chargeQuotas charges the rules with quota_mode. The request is denied if there are such rules and all of them deny.
func (c *call) chargeQuotas() error {
	if err := c.chargeEach(func(it *item) bool { return it.quota && !it.rule.ShadowMode }); err != nil {
		return err
	}
	all, failed := 0, 0
	for i := range c.items {
		it := &c.items[i]
		if it.quota {
			all++
		}
		if it.quota && it.state == over && !it.rule.ShadowMode {
			failed++
		}
	}
	c.denied = c.denied || all > 0 && failed == all
	return nil
}

// chargeEach charges the undecided items that choose accepts, whatever comes of each.
func (c *call) chargeEach(choose func(*item) bool) error {
	for i := range c.items {
		if it := &c.items[i]; it.counts() && it.state == undecided && choose(it) {
			if err := c.charge(it); err != nil {
				return err
			}
		}
	}
	return nil
}

// charge charges the hits of an item, if they fit.
func (c *call) charge(it *item) error {
	if it.planned != nil {
		return c.decidePlan(it, false)
	}
	if it.rule.DeniesAll() {
		it.state, it.never = over, true
		return nil
	}
	c.askFor(it, it.hits)
	err := c.service.config.Store.Decide(c.ctx, &c.ask, c.now, &it.decision)
	return c.decided(it, err, charged)
}

// decided reads what the store has decided about an item. as is what becomes of an item that is admitted.
func (c *call) decided(it *item, err error, as state) error {
	switch {
	case err == nil:
		it.known = true
		c.noteClock(&it.decision)
		it.state = as
		if !it.decision.Allowed {
			it.state, it.never = over, it.decision.Never
		}
	case errors.Is(err, limit.ErrInvalidCost): // more than the limit can count, and so more than it can ever admit
		it.state, it.never = over, true
	case errors.Is(err, resilience.ErrFailClosed):
		it.state = over
	default:
		return err
	}
	return nil
}

// askFor makes c.ask the request for so many units of each limit of the item.
func (c *call) askFor(it *item, units int64) {
	c.ask.Owner, c.ask.Charges, c.ask.Leases = it.owner, c.ask.Charges[:0], nil
	for _, l := range it.rule.Limits {
		c.ask.Charges = append(c.ask.Charges, limit.Charge{Limit: l, Cost: units})
	}
}

// noteClock remembers how far the store's clock is ahead of ours.
func (c *call) noteClock(d *limit.Decision) {
	if ahead := d.Now - c.now.UnixMicro(); c.service.clockOffset.Load() != ahead {
		c.service.clockOffset.Store(ahead)
	}
	if !c.service.clockKnown.Load() {
		c.service.clockKnown.Store(true)
	}
}

// refund gives back what items with all or nothing were charged.
func (c *call) refund() {
	ctx := context.WithoutCancel(c.ctx) // a caller who has left must not burn units
	for i := range c.items {
		it := &c.items[i]
		if it.state != charged || !it.known || c.countsDenied(it) {
			continue
		}
		d := &it.decision
		if it.planned != nil {
			d = it.planned.answer.Decision() // what ipLimits have counted stays counted, as after every denial
		}
		if d != nil {
			if _, err := c.service.config.Store.Refund(ctx, d.Receipt(), 0, c.now); err != nil {
				c.service.stats.RefundError.Add(1)
				c.service.logStore(err)
			}
			for j := range d.Results {
				d.Results[j].Uncharge()
			}
		}
		it.state = passed
	}
}

// peekRest looks at the items that were not asked because of a denial.
func (c *call) peekRest() error {
	if !c.service.config.PeekAfterDenial {
		return nil
	}
	for i := range c.items {
		it := &c.items[i]
		if !it.counts() || it.state != undecided {
			continue
		}
		if it.planned != nil {
			if err := c.decidePlan(it, true); err != nil {
				return err
			}
			continue
		}
		if it.rule.DeniesAll() {
			it.state, it.never = over, true
			continue
		}
		c.askFor(it, it.hits)
		if err := c.decided(it, c.service.config.Store.Peek(c.ctx, &c.ask, c.now, &it.decision), passed); err != nil {
			return err
		}
		for j := range it.decision.Results {
			it.decision.Results[j].Uncharge()
		}
	}
	return nil
}
