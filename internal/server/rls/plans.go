package rls

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// ofPlans is the rule of a descriptor that a plan decides: it can deny the request by itself.
var ofPlans = new(envoyconfig.Rule)

// planned is what an item has whose descriptor is decided by the plan of a tenant.
type planned struct {
	request authorizer.Request
	answer  *authorizer.Answer // nil until it was decided
	domain  string
}

// plan makes the item one that a plan decides.
func (it *item) plan(domain string, call *envoyconfig.Call, cost int64) {
	path, _, _ := strings.Cut(call.Path, "?") // Envoy's :path has the query
	caller := authorizer.Caller{Tenant: call.Tenant, Subject: call.Subject}
	p := &planned{domain: domain, request: authorizer.Request{
		Method: call.Method, Path: path, Peer: call.Address, SkipIPLimits: call.Address == "", Cost: cost,
		Identify: func(context.Context) (authorizer.Caller, error) {
			if caller.Tenant == "" {
				return authorizer.Caller{}, authorizer.ErrNoCredential
			}
			return caller, nil
		},
	}}
	it.rule, it.planned = ofPlans, p
}

// decidePlan asks the plan of the item's tenant. If peek is set, nothing is charged.
func (c *call) decidePlan(it *item, peek bool) error {
	ask := c.service.config.Plans.Authorize
	it.state = charged
	if peek {
		ask, it.state = c.service.config.Plans.Peek, passed
	}
	p := it.planned
	p.answer = ask(c.ctx, &p.request)
	if !p.answer.Allowed() {
		it.state = over
		_, waits := p.answer.RetryAfter()
		it.never = !waits
	}
	for _, d := range []*limit.Decision{p.answer.IPDecision(), p.answer.Decision()} {
		for i := 0; peek && d != nil && i < len(d.Results); i++ {
			d.Results[i].Uncharge()
		}
	}
	_, it.known = it.planStands()
	name := p.domain + ".plan_" + p.answer.Plan
	if p.answer.Plan == "" {
		name = p.domain + "." + p.answer.Kind.String()
	}
	it.stats = c.service.stats.dynamic(name, nil)
	it.countHits()
	if p.answer.Kind == answer.Internal {
		return errors.Join(errors.New("the plan could not decide"), p.answer.Err)
	}
	return nil
}

// planStands returns the decision that the answer of an item is taken from. It reports false if no limit was asked.
func (it *item) planStands() (*limit.Decision, bool) {
	if it.planned.answer == nil {
		return nil, false
	}
	d, r := answer.Binding(it.planned.answer.IPDecision(), it.planned.answer.Decision())
	return d, r != nil
}

// refusesNegative is the error of negative hits for a descriptor that a plan decides.
func refusesNegative() error {
	return status.Error(codes.InvalidArgument,
		"negative hits are not for descriptors of a mapping: refund the receipt of a decision")
}
