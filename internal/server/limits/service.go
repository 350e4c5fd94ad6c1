// Package limits serves Sluice's own API (package limitsv1) over gRPC and HTTP: it checks calls by the plan of a
// tenant.
//
// The decisions are those of package authorizer. The service keeps the receipts of what it has charged for as long as
// they can be refunded, a bounded number of them.
package limits

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/client/limitsv1"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

const (
	// MaxCalls is how many calls one batch can have.
	MaxCalls = 1000

	// DefaultMaxReceipts is how many receipts are kept, where nothing else is said: about 20 MB.
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
	limitsv1.UnimplementedLimitsServer

	c        Config
	receipts *lru.Cache[string, *limit.Receipt]
}

// New makes a service. The error names the field.
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
func (s *Service) Check(ctx context.Context, req *limitsv1.CheckRequest) (*limitsv1.CheckResponse, error) {
	call, err := read(req.GetCall())
	if err != nil {
		return nil, err
	}
	decision, receipt := s.decide(ctx, call, false)
	s.keep(decision, receipt)
	return &limitsv1.CheckResponse{Decision: decision}, nil
}

// Peek says what Check would answer, and charges nothing.
func (s *Service) Peek(ctx context.Context, req *limitsv1.PeekRequest) (*limitsv1.PeekResponse, error) {
	call, err := read(req.GetCall())
	if err != nil {
		return nil, err
	}
	decision, _ := s.decide(ctx, call, true)
	return &limitsv1.PeekResponse{Decision: decision}, nil
}

// CheckBatch checks several calls, in their order.
func (s *Service) CheckBatch(
	ctx context.Context, req *limitsv1.CheckBatchRequest,
) (*limitsv1.CheckBatchResponse, error) {
	n := len(req.GetCalls())
	if n < 1 || n > MaxCalls {
		return nil, status.Errorf(codes.InvalidArgument, "%d calls, want 1 to %d", n, MaxCalls)
	}
	calls := make([]*authorizer.Request, n)
	for i, c := range req.GetCalls() {
		var err error
		if calls[i], err = read(c); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "call %d: %s", i+1, status.Convert(err).Message())
		}
	}
	out, charged := new(limitsv1.CheckBatchResponse), make([]*limit.Receipt, 0, n)
	for _, call := range calls {
		decision, receipt := s.decide(ctx, call, false)
		out.Decisions, charged = append(out.GetDecisions(), decision), append(charged, receipt)
		if !decision.GetAllowed() && req.GetAllOrNothing() {
			return out, s.giveBack(ctx, charged)
		}
	}
	for i, receipt := range charged {
		s.keep(out.GetDecisions()[i], receipt)
	}
	return out, nil
}

// giveBack refunds all receipts.
func (s *Service) giveBack(ctx context.Context, charged []*limit.Receipt) error {
	ctx = context.WithoutCancel(ctx) // a caller who has left must not burn units
	var errs []error
	for _, receipt := range charged {
		if receipt != nil {
			_, err := s.c.Store.Refund(ctx, receipt, 0, s.c.Now())
			errs = append(errs, err)
		}
	}
	if errors.Join(errs...) != nil {
		return status.Error(codes.Unavailable,
			"a call was denied, and what others were charged could not be given back")
	}
	return nil
}

// Refund gives back what a Check has charged.
func (s *Service) Refund(ctx context.Context, req *limitsv1.RefundRequest) (*limitsv1.RefundResponse, error) {
	if n := req.GetUnits(); n < 0 || n > limit.MaxUnits {
		return nil, status.Errorf(codes.InvalidArgument, "units %d are outside 0..%d", n, int64(limit.MaxUnits))
	}
	receipt, ok := s.receipts.Get(req.GetReceipt())
	if !ok {
		return nil, status.Errorf(codes.NotFound,
			"no such receipt here: it is of another instance, older than %s, or one of "+
				"too many", limit.MaxReceiptAge)
	}
	back, err := s.c.Store.Refund(ctx, receipt, req.GetUnits(), s.c.Now())
	if errors.Is(err, limit.ErrRefundsFull) {
		return nil, status.Error(codes.ResourceExhausted, "too many refunds at the moment; the receipt stays valid")
	}
	if err != nil {
		return nil, status.Error(codes.Unavailable, "the store of counters did not answer; to try again is safe")
	}
	out := &limitsv1.RefundResponse{Repeated: back.Repeated, Expired: back.Expired}
	for _, n := range back.Units {
		out.Units = max(out.GetUnits(), n)
	}
	return out, nil
}

// read checks a call.
func read(c *limitsv1.Call) (*authorizer.Request, error) {
	if c == nil {
		return nil, status.Error(codes.InvalidArgument, "there is no call")
	}
	if n := c.GetCost(); n < 0 || n > limit.MaxUnits {
		return nil, status.Errorf(codes.InvalidArgument, "the cost %d is outside 0..%d", n, int64(limit.MaxUnits))
	}
	caller := authorizer.Caller{Tenant: c.GetTenant(), Subject: c.GetSubject(), KeyID: c.GetKeyId(),
		Claims: c.GetClaims()}
	return &authorizer.Request{
		Method: c.GetMethod(), Path: c.GetPath(), Peer: c.GetAddress(), SkipIPLimits: c.GetAddress() == "",
		Cost: c.GetCost(),
		Identify: func(context.Context) (authorizer.Caller, error) {
			if caller.Tenant == "" {
				return authorizer.Caller{}, authorizer.ErrNoCredential
			}
			return caller, nil
		},
	}, nil
}

// decide returns the decision on a call, and the receipt of what it charged, or nil.
func (s *Service) decide(
	ctx context.Context, call *authorizer.Request, peek bool,
) (*limitsv1.Decision, *limit.Receipt) {
	ask := s.c.Plans.Authorize
	if peek {
		ask = s.c.Plans.Peek
	}
	a := ask(ctx, call)
	defer a.Release()
	out := &limitsv1.Decision{
		Allowed: a.Allowed(), Reason: a.Kind.String(), Status: int32(a.Kind.Status()), Tenant: a.Tenant, Plan: a.Plan,
		Headers: map[string]string{},
	}
	a.Header.Each(func(name, value string) { out.Headers[name] = value })
	addLimits(out, a)
	if !a.Allowed() {
		if wait, ok := a.RetryAfter(); ok {
			out.RetryAfter = durationpb.New(wait)
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

// addLimits adds how each limit stands, the binding one first.
func addLimits(out *limitsv1.Decision, a *authorizer.Answer) {
	ip, all := a.IPDecision(), a.Decision()
	_, first := answer.Binding(ip, all)
	for pass := range 2 {
		for _, d := range []*limit.Decision{all, ip} {
			for i := 0; d != nil && i < len(d.Results); i++ {
				r := &d.Results[i]
				if r.Shadow() || (r == first) != (pass == 0) {
					continue
				}
				out.Limits = append(out.Limits, &limitsv1.Limit{
					Policy: answer.PolicyName(r.Tier, d.Owner.Kind == limit.Address), Capacity: r.Tier.Capacity(),
					Remaining: r.Remaining(), Admits: r.Admits,
					MoreAfter: durationpb.New(time.Duration(max(0, r.MoreAt()-d.Now)) * time.Microsecond),
				})
			}
		}
	}
}

// keep keeps a receipt until it is refunded or too old, and writes its name to the decision. The name cannot be
// guessed: whoever knows it may refund.
func (s *Service) keep(d *limitsv1.Decision, receipt *limit.Receipt) {
	if receipt == nil {
		return
	}
	d.Receipt = rand.Text()
	s.receipts.Add(d.GetReceipt(), receipt)
}
