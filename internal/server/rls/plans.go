package rls

import (
	"context"
	"errors"
	"strings"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// planRule is the rule of every descriptor that a plan decides. Such a descriptor can deny the request alone.
var planRule = new(envoyconfig.Rule)

// planned is the part of an item that only descriptors have that are decided by the plan of a tenant.
type planned struct {
	request authorizer.Request
	answer  *authorizer.Answer // nil until the plan has decided
	domain  string
}

// decideByPlan makes the item one that a tenant's plan decides. A cost of 0 means the cost that the plan defines.
func (it *item) decideByPlan(domain string, call *envoyconfig.Call, cost int64) {
	path, _, _ := strings.Cut(call.Path, "?") // Envoy's pseudo-header :path includes the query
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
	it.rule, it.planned = planRule, p
}

// chargePlan lets the plan of the item's tenant decide and charge.
func (c *call) chargePlan(it *item) error {
	it.planned.answer = c.service.config.Plans.Authorize(c.ctx, &it.planned.request)
	return c.readAnswer(it, charged)
}

// peekPlan finds out what the plan of the item's tenant would decide. It charges nothing.
func (c *call) peekPlan(it *item) error {
	a := c.service.config.Plans.Peek(c.ctx, &it.planned.request)
	it.planned.answer = a
	for _, d := range []*limit.Decision{a.IPDecision(), a.Decision()} {
		for i := 0; d != nil && i < len(d.Results); i++ {
			d.Results[i].Uncharge()
		}
	}
	return c.readAnswer(it, uncharged)
}

// readAnswer sets the state of an item from its plan's answer, and records the item's hits. An admitted item gets the
// state ifAdmitted.
func (c *call) readAnswer(it *item, ifAdmitted state) error {
	p := it.planned
	it.state = ifAdmitted
	if !p.answer.Allowed() {
		it.state = over
		_, waits := p.answer.RetryAfter()
		it.permanent = !waits
	}
	_, it.countersKnown = it.planDecision()
	name := p.domain + ".plan_" + p.answer.Plan
	if p.answer.Plan == "" {
		name = p.domain + "." + p.answer.Kind.String()
	}
	it.stats = c.service.stats.ofPlan(name)
	it.recordHits()
	if p.answer.Kind == answer.Internal {
		return errors.Join(errors.New("the plan could not decide"), p.answer.Err)
	}
	return nil
}

// planDecision returns the decision that the binding limit of the plan's answer belongs to. It reports false if no
// limit was asked.
func (it *item) planDecision() (*limit.Decision, bool) {
	if it.planned.answer == nil {
		return nil, false
	}
	d, r := answer.Binding(it.planned.answer.IPDecision(), it.planned.answer.Decision())
	return d, r != nil
}
