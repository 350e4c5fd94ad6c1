package rls

import (
	"context"
	"errors"
	"slices"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// call holds the state of one request. Calls are pooled and reused, with the memory of their slices.
type call struct {
	service *Service
	ctx     context.Context
	request *rlsv3.RateLimitRequest
	now     time.Time
	items   []item // one for each descriptor, in their order

	denied        bool           // in global shadow mode, the request is admitted nevertheless
	lastDenied    []int64        // for each item, when its counters last denied, µs since 1970; 0 if not known
	scratch       limit.Decision // receives answers of the store that belong to no item
	order         []int          // indexes of the items that can deny alone, in the order in which they are charged
	match         envoyconfig.Match
	entries       []envoyconfig.Entry // of the descriptor that beginItem reads
	key           []byte              // of the counters of that descriptor
	replacedNames []string            // names of the rules that rules of the request replace

	left, policies []byte // buffers for the values of the headers RateLimit and RateLimit-Policy
}

// maxPooledItems bounds the items of a call that is kept for reuse. Envoy sends one descriptor for each action list of
// a route, which 64 covers. The memory of a larger request, of up to MaxDescriptors items, is left to the garbage
// collector.
const maxPooledItems = 64

// release returns the call to the pool. Its response must not refer to its memory.
func (c *call) release() {
	c.ctx, c.request = nil, nil
	clear(c.entries[:cap(c.entries)]) // they refer to texts of the request
	for i := range c.items {
		c.items[i].reset()
	}
	if cap(c.items) <= maxPooledItems {
		c.service.calls.Put(c)
	}
}

// begin checks the request and finds the rule of each descriptor.
func (c *call) begin(ctx context.Context, req *rlsv3.RateLimitRequest) error {
	c.ctx, c.request, c.now, c.denied = ctx, req, c.service.config.Now(), false
	descriptors := req.GetDescriptors()
	snapshot := c.service.current.Load()
	switch {
	case req.GetDomain() == "":
		return errNoDomain
	case len(descriptors) == 0:
		return errNoDescriptors
	case len(descriptors) > MaxDescriptors:
		return status.Errorf(codes.InvalidArgument, "the request has %d descriptors, at most %d are allowed",
			len(descriptors), MaxDescriptors)
	case snapshot == nil:
		return errNoConfig
	}
	if n := len(descriptors); n <= cap(c.items) {
		c.items = c.items[:n]
	} else {
		c.items = append(c.items[:cap(c.items)], make([]item, n-cap(c.items))...)
	}
	c.replacedNames = c.replacedNames[:0]
	for i := range descriptors {
		if err := c.beginItem(i, snapshot); err != nil {
			return err
		}
	}
	for i := range c.items {
		if it := &c.items[i]; it.hasCounters() && it.rule.Name != "" && slices.Contains(c.replacedNames, it.rule.Name) {
			it.rule = nil
		}
	}
	for i := range c.items {
		it := &c.items[i]
		it.quota = !it.unlimited && (c.service.config.QuotaMode || it.rule != nil && it.rule.QuotaMode)
		if it.hasCounters() && it.planned == nil {
			it.recordHits()
		}
	}
	return nil
}

// beginItem finds the rule and the counters of one descriptor.
func (c *call) beginItem(i int, snapshot *snapshot) error {
	it, d := &c.items[i], c.request.GetDescriptors()[i]
	it.reset()
	c.entries = c.entries[:0]
	for _, e := range d.GetEntries() {
		c.entries = append(c.entries, envoyconfig.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	domain := c.request.GetDomain()
	if c.decideByPlan(it, d, snapshot.config.Mapping(domain)) {
		return nil
	}
	if !snapshot.config.Match(domain, c.entries, &c.match) {
		c.service.stats.domainNotFound(domain)
		return nil
	}
	shared := c.match.Shared
	if own := d.GetLimit(); own != nil {
		var err error
		if it.rule, err = c.service.ruleOf(own, domain, c.entries); err != nil {
			return err
		}
		it.stats = c.service.stats.dynamic(envoyconfig.OverrideStatsKey(domain, c.entries), nil)
		shared = nil // share_threshold belongs to the rule that the descriptor's own limit takes the place of
	} else if it.rule = c.match.Rule; it.rule == nil {
		return nil
	} else if it.stats = snapshot.stats[it.rule]; c.match.StatsKey != it.rule.Path {
		it.stats = c.service.stats.dynamic(c.match.StatsKey, it.stats)
	}
	c.replacedNames = append(c.replacedNames, it.rule.Replaces...)
	if it.unlimited = it.rule.Unlimited; it.unlimited {
		return nil
	}
	it.setHits(d, c.request)
	if it.hits == 0 && !it.negative && it.rule.NoteQuery() && !c.service.config.CountDenied {
		c.service.logQuery("a request asked with 0 hits, so its hits are probably reported when it is over: "+
			"from now on the hits of this descriptor count also if they do not fit. To have every instance know it "+
			"from the start, write sluice: {countDenied: true} at the descriptor, and countDenied: false to never "+
			"count such hits",
			it.rule, domain, c.entries)
	}
	c.nameAddresses()
	c.key = envoyconfig.AppendKey(c.key[:0], domain, c.entries, shared)
	it.owner = ownerOf(c.key, c.entries)
	return nil
}

// decideByPlan reports whether the mapping of the domain, which may be nil, matches the entries of the descriptor d. If
// so, the plan of the tenant has decided the item.
func (c *call) decideByPlan(it *item, d *ratelimitv3.RateLimitDescriptor, mapping *envoyconfig.Mapping) bool {
	if mapping == nil || c.service.config.Plans == nil {
		return false
	}
	mappedCall, mapped := mapping.Read(c.entries)
	if !mapped {
		return false
	}
	it.setHits(d, c.request)
	cost := it.hits
	if d.GetHitsAddend() == nil && c.request.GetHitsAddend() == 0 {
		cost = 0 // use the cost that the plan defines
	}
	domain := c.request.GetDomain()
	if it.hits == 0 && !it.negative {
		c.service.warnOfPlanReports(domain)
	}
	it.decideByPlan(domain, &mappedCall, cost)
	return true
}

// decide charges the items in four passes, see the package comment. If an error stops it, the charges are undone.
func (c *call) decide() error {
	charge := c.chargeItems
	if c.canChargeTogether() {
		charge = c.chargeTogether
	}
	err := charge()
	if err != nil {
		c.refund()
	}
	return err
}

// chargeItems charges, in this order: the items that do not depend on the others, those that can deny alone, those with
// quota_mode, and those with shadow_mode. Once the request is denied, it undoes the charges and skips the other passes,
// unless the whole service is in shadow mode.
func (c *call) chargeItems() error {
	global := c.service.config.ShadowMode
	if err := c.checkNegativeHits(); err != nil { // before anything is given back
		return err
	}
	for i := range c.items {
		it := &c.items[i]
		if !it.hasCounters() || !c.isUnconditional(it) {
			continue
		}
		if err := c.chargeUnconditional(it); err != nil {
			return err
		}
		c.denied = c.denied || it.state == over && it.deniesAlone()
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

// chargesDeniedHits reports whether hits of the item are charged also if they do not fit. A plan never charges such
// hits.
func (c *call) chargesDeniedHits(it *item) bool {
	return it.planned == nil && (c.service.config.CountDenied || it.rule.CountsDenied())
}

// chargeDenying charges the items that can deny alone, until one of them does. In the service's shadow mode it charges
// all of them.
func (c *call) chargeDenying() error {
	c.order, c.lastDenied = c.order[:0], c.lastDenied[:0]
	for i := range c.items {
		c.lastDenied = append(c.lastDenied, 0)
		if it := &c.items[i]; it.deniesAlone() && it.state == undecided {
			c.order = append(c.order, i)
		}
	}
	if len(c.order) > 1 {
		for _, i := range c.order {
			c.lastDenied[i] = c.service.denials.last(&c.items[i].owner)
		}
		// The latest denial comes first: those counters will probably deny this request, too, and nothing has been
		// charged by then that would have to be refunded.
		slices.SortStableFunc(c.order, func(a, b int) int {
			return int(min(max(c.lastDenied[b]-c.lastDenied[a], -1), 1))
		})
	}
	for _, i := range c.order {
		it := &c.items[i]
		if err := c.charge(it); err != nil {
			return err
		}
		if it.state != over {
			if len(c.order) == 1 || c.lastDenied[i] != 0 {
				c.service.denials.forgetWait(&it.owner, it.hits)
			}
			continue
		}
		c.denied = true
		c.noteDenial(it)
		if !c.service.config.ShadowMode {
			return nil
		}
	}
	return nil
}

// noteDenial remembers the denial of an item. An item that counts denied hits is always asked, so nothing need be
// remembered of it.
func (c *call) noteDenial(it *item) {
	if c.chargesDeniedHits(it) {
		return
	}
	now, until := c.now.UnixMicro(), int64(0)
	if wait := c.waitOf(it); wait != noKnownEnd && it.planned == nil {
		until = now + wait
	}
	c.service.denials.note(&it.owner, now, until, it.hits)
}

// chargeQuotas charges the items with quota_mode. The request is denied if there are such items and all of them deny.
// As in envoyproxy/ratelimit, an item with both quota_mode and shadow_mode never denies, and so prevents that denial.
func (c *call) chargeQuotas() error {
	if err := c.chargeEach(func(it *item) bool { return it.quota && !it.rule.ShadowMode }); err != nil {
		return err
	}
	c.denied = c.quotasDeny() || c.denied
	return nil
}

// quotasDeny reports whether there are items with quota_mode and all of them deny. It remembers which have denied.
func (c *call) quotasDeny() bool {
	quotas, denying := 0, 0
	for i := range c.items {
		it := &c.items[i]
		if !it.quota {
			continue
		}
		quotas++
		switch {
		case it.state == charged:
			c.service.denials.forgetWait(&it.owner, it.hits)
		case it.state == over && !it.rule.ShadowMode:
			denying++
			c.noteDenial(it)
		}
	}
	return quotas > 0 && denying == quotas
}

// chargeEach charges every undecided item that choose accepts, also after one of them has denied.
func (c *call) chargeEach(choose func(*item) bool) error {
	for i := range c.items {
		if it := &c.items[i]; it.hasCounters() && it.state == undecided && choose(it) {
			if err := c.charge(it); err != nil {
				return err
			}
		}
	}
	return nil
}

// charge charges the hits of an item if they fit.
func (c *call) charge(it *item) error {
	if it.planned != nil {
		return c.chargePlan(it)
	}
	if it.rule.DeniesAll() {
		it.state, it.permanent = over, true
		return nil
	}
	it.buildStoreRequest(it.hits)
	err := c.service.config.Store.Decide(c.ctx, &it.storeRequest, c.now, &it.decision)
	return c.setOutcome(it, err, charged)
}

// setOutcome sets the state of an item from the store's decision, which is in it.decision, or from the store's error.
// An admitted item gets the state ifAdmitted.
func (c *call) setOutcome(it *item, err error, ifAdmitted state) error {
	switch {
	case err == nil:
		it.countersKnown = true
		it.state = ifAdmitted
		if !it.decision.Allowed {
			it.state, it.permanent = over, it.decision.Never
		}
	case errors.Is(err, limit.ErrInvalidCost): // more hits than the limit can count, so it can never admit them
		it.state, it.permanent = over, true
	case errors.Is(err, resilience.ErrFailClosed):
		it.state = over
	default:
		return err
	}
	return nil
}

// buildStoreRequest sets it.storeRequest to a request that charges each limit of the item that number of units.
func (it *item) buildStoreRequest(units int64) {
	r := &it.storeRequest
	r.Owner, r.Charges, r.Leases = it.owner, r.Charges[:0], nil
	for _, l := range it.rule.Limits {
		r.Charges = append(r.Charges, limit.Charge{Limit: l, Cost: units})
	}
}

// refund undoes the charges of this request. It skips items that count denied hits: their charges stay.
func (c *call) refund() {
	var refunded []*item
	for i := range c.items {
		it := &c.items[i]
		if it.state != charged || !it.countersKnown || c.chargesDeniedHits(it) {
			continue
		}
		it.state = uncharged
		refunded = append(refunded, it)
	}
	if c.canChargeTogether() {
		together(len(refunded), func(i int) { c.refundItem(refunded[i]) })
		return
	}
	for _, it := range refunded {
		c.refundItem(it)
	}
}

// refundItem undoes the charge of one item.
func (c *call) refundItem(it *item) {
	ctx := context.WithoutCancel(c.ctx) // if the caller cancels, the units must be given back nevertheless
	d := &it.decision
	if it.planned != nil {
		// The plan's own charge is refunded. That of the ipLimits stays: they count each call of an address, also
		// one that is denied.
		d = it.planned.answer.Decision()
	}
	if d == nil {
		return
	}
	if _, err := c.service.config.Store.Settle(ctx, d.Receipt(), nil, c.now); err != nil {
		c.service.stats.RefundError.Add(1)
		c.service.logStore(err)
	}
	for j := range d.Results {
		d.Results[j].Uncharge()
	}
}

// peekRest finds out, if PeekAfterDenial is set, what the counters of the items say that were not reached because an
// earlier one denied. It charges nothing.
func (c *call) peekRest() error {
	if !c.service.config.PeekAfterDenial {
		return nil
	}
	for i := range c.items {
		it := &c.items[i]
		if !it.hasCounters() || it.state != undecided {
			continue
		}
		if it.planned != nil {
			if err := c.peekPlan(it); err != nil {
				return err
			}
			continue
		}
		if it.rule.DeniesAll() {
			it.state, it.permanent = over, true
			continue
		}
		it.buildStoreRequest(it.hits)
		err := c.service.config.Store.Peek(c.ctx, &it.storeRequest, c.now, &it.decision)
		if err := c.setOutcome(it, err, uncharged); err != nil {
			return err
		}
		for j := range it.decision.Results {
			it.decision.Results[j].Uncharge()
		}
	}
	return nil
}
