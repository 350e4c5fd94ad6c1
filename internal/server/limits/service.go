// Package limits serves Sluice's own API over HTTP, as openapi.yaml describes it: it checks calls by the plan of a
// tenant. Package authorizer makes the decisions. The service keeps the receipts of its charges, so that they can be
// refunded. The number of receipts is bounded.
package limits

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

const (
	// MaxCalls is the largest number of calls of a batch.
	MaxCalls = 1000

	// DefaultMaxReceipts is the number of receipts that are kept if Config.MaxReceipts is 0. They take about 20 MB.
	DefaultMaxReceipts = 50_000
)

// Config sets up a [Service].
type Config struct {
	Plans       *authorizer.Authorizer // decides; required
	Store       limit.Store            // of Plans, for refunds; required
	MaxReceipts int                    // 0 selects DefaultMaxReceipts
	Now         func() time.Time       // if nil, time.Now
}

// Service serves the API. It is safe for concurrent use. Make it with [New].
type Service struct {
	c        Config
	receipts *lru.Cache[string, *limit.Receipt]
}

// New returns a service. An error names the invalid field.
func New(c Config) (*Service, error) {
	if c.Plans == nil || c.Store == nil {
		return nil, errors.New("limits service: Plans or Store is missing")
	}
	if c.MaxReceipts == 0 {
		c.MaxReceipts = DefaultMaxReceipts
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	receipts, err := lru.New[string, *limit.Receipt](c.MaxReceipts)
	if err != nil {
		return nil, fmt.Errorf("limits service: MaxReceipts: %w", err)
	}
	return &Service{c: c, receipts: receipts}, nil
}

// Check charges all limits that apply to a call, or none.
func (s *Service) Check(ctx context.Context, req *CheckRequest) (*CheckResponse, error) {
	call, err := read(req.Call)
	if err != nil {
		return nil, err
	}
	decision, receipt := s.decide(ctx, call, false)
	s.keep(decision, receipt)
	return &CheckResponse{Decision: decision}, nil
}

// Peek returns the decision that Check would make, and charges nothing.
func (s *Service) Peek(ctx context.Context, req *CheckRequest) (*CheckResponse, error) {
	call, err := read(req.Call)
	if err != nil {
		return nil, err
	}
	decision, _ := s.decide(ctx, call, true)
	return &CheckResponse{Decision: decision}, nil
}

// CheckBatch checks several calls, in their order. With AllOrNothing it stops at the first denial, and refunds the
// calls before it.
func (s *Service) CheckBatch(
	ctx context.Context, req *CheckBatchRequest,
) (*CheckBatchResponse, error) {
	n := len(req.Calls)
	if n < 1 || n > MaxCalls {
		return nil, invalid("%d calls, want 1 to %d", n, MaxCalls)
	}
	calls := make([]*authorizer.Request, n)
	for i, c := range req.Calls {
		var err error
		if calls[i], err = read(c); err != nil {
			return nil, invalid("call %d: %v", i+1, err)
		}
	}
	out, charged := new(CheckBatchResponse), make([]*limit.Receipt, 0, n)
	for _, call := range calls {
		decision, receipt := s.decide(ctx, call, false)
		out.Decisions, charged = append(out.Decisions, decision), append(charged, receipt)
		if !decision.Allowed && req.AllOrNothing {
			return out, s.giveBack(ctx, charged)
		}
	}
	for i, receipt := range charged {
		s.keep(out.Decisions[i], receipt)
	}
	return out, nil
}

// giveBack refunds all receipts. Some may be nil.
func (s *Service) giveBack(ctx context.Context, charged []*limit.Receipt) error {
	ctx = context.WithoutCancel(ctx) // if the caller cancels, the units must be given back nevertheless
	var errs []error
	for _, receipt := range charged {
		if receipt != nil {
			_, err := s.c.Store.Settle(ctx, receipt, nil, s.c.Now())
			errs = append(errs, err)
		}
	}
	if errors.Join(errs...) != nil {
		return unavailable("a call was denied, but not all charges of the calls before it could be refunded")
	}
	return nil
}

// Refund gives back the units that Check or CheckBatch has charged.
func (s *Service) Refund(ctx context.Context, req *RefundRequest) (*RefundResponse, error) {
	if n := req.Units; n < 0 || n > limit.MaxUnits {
		return nil, invalid("units %d are outside 0..%d", n, int64(limit.MaxUnits))
	}
	receipt, ok := s.receipts.Get(req.Receipt)
	if !ok {
		return nil, notFound(fmt.Sprintf(
			"the receipt is not known here: it comes from another instance, is older than %s, or was "+
				"dropped to make room for newer ones", limit.MaxReceiptAge))
	}
	back, err := s.c.Store.Settle(ctx, receipt, receipt.Without(req.Units), s.c.Now())
	if errors.Is(err, limit.ErrSettlementsFull) {
		return nil, &Error{"resourceexhausted", "too many refunds at the moment; the receipt stays valid",
			http.StatusTooManyRequests}
	}
	if err != nil {
		return nil, unavailable("the store of counters failed; it is safe to try again")
	}
	out := &RefundResponse{Repeated: back.Repeated, Expired: back.Expired}
	for _, n := range back.Returned {
		out.Units = max(out.Units, n)
	}
	return out, nil
}

// read converts a call to a request to the authorizer. An error says what is invalid.
func read(c *Call) (*authorizer.Request, error) {
	if c == nil {
		return nil, invalid("the call is missing")
	}
	if err := plan.CheckCosts(c.Cost, c.Costs); err != nil {
		return nil, invalid("%v", err)
	}
	caller := authorizer.Caller{Tenant: c.Tenant, Subject: c.Subject, KeyID: c.KeyID,
		Claims: c.Claims}
	return &authorizer.Request{
		Method: c.Method, Path: c.Path, Peer: c.Address, SkipIPLimits: c.Address == "",
		Cost: c.Cost, Costs: c.Costs,
		Identify: func(context.Context) (authorizer.Caller, error) {
			if caller.Tenant == "" {
				return authorizer.Caller{}, authorizer.ErrNoCredential
			}
			return caller, nil
		},
	}, nil
}

// decide returns the decision on a call, and the receipt of its charges, or nil if it has charged nothing.
func (s *Service) decide(
	ctx context.Context, call *authorizer.Request, peek bool,
) (*Decision, *limit.Receipt) {
	decide := s.c.Plans.Authorize
	if peek {
		decide = s.c.Plans.Peek
	}
	a := decide(ctx, call)
	defer a.Release()
	out := &Decision{
		Allowed: a.Allowed(), Reason: a.Kind.String(), Status: a.Kind.Status(), Tenant: a.Tenant, Plan: a.Plan,
		Headers: map[string]string{}, Limits: []Limit{},
	}
	a.Header.Each(func(name, value string) { out.Headers[name] = value })
	addLimits(out, a)
	if !a.Allowed() {
		if wait, ok := a.RetryAfter(); ok {
			out.RetryAfter = (*Duration)(&wait)
		}
		out.Problem = string(a.AppendProblem(nil))
		return out, nil
	}
	d := a.Decision()
	if peek || d == nil {
		return out, nil
	}
	if receipt := d.Receipt(); len(receipt.Entries()) > 0 {
		return out, receipt
	}
	return out, nil
}

// addLimits adds the state of each limit to the decision. The binding limit comes first.
func addLimits(out *Decision, a *authorizer.Answer) {
	ip, all := a.IPDecision(), a.Decision()
	_, first := answer.Binding(ip, all)
	for pass := range 2 {
		for _, d := range []*limit.Decision{all, ip} {
			for i := 0; d != nil && i < len(d.Results); i++ {
				r := &d.Results[i]
				if r.Shadow() || (r == first) != (pass == 0) {
					continue
				}
				out.Limits = append(out.Limits, Limit{
					Policy: answer.PolicyName(r.Tier, d.Owner.Kind == limit.Address), Unit: r.Limit().Unit,
					Capacity: r.Tier.Capacity(), Remaining: r.Remaining(), Admits: r.Admits,
					MoreAfter: Duration(time.Duration(max(0, r.MoreAt()-d.Now)) * time.Microsecond),
				})
			}
		}
	}
}

// keep stores a receipt, which may be nil, under a random name, and writes that name to the decision. The name cannot
// be guessed, because whoever knows it may refund the charges.
func (s *Service) keep(d *Decision, receipt *limit.Receipt) {
	if receipt == nil {
		return
	}
	d.Receipt = rand.Text()
	s.receipts.Add(d.Receipt, receipt)
}
