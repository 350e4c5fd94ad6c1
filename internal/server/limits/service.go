// Package limits serves Sluice's own API (package limitsv1) over gRPC and HTTP: it checks calls by the plan of a
// tenant. Package authorizer makes the decisions. The service keeps the receipts of its charges, so that they can be
// refunded. The number of receipts is bounded.
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
	limitsv1.UnimplementedLimitsServer

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
func (s *Service) Check(ctx context.Context, req *limitsv1.CheckRequest) (*limitsv1.CheckResponse, error) {
	call, err := read(req.GetCall())
	if err != nil {
		return nil, err
	}
	decision, receipt := s.decide(ctx, call, false)
	s.keep(decision, receipt)
	return &limitsv1.CheckResponse{Decision: decision}, nil
}

// Peek returns the decision that Check would make, and charges nothing.
func (s *Service) Peek(ctx context.Context, req *limitsv1.PeekRequest) (*limitsv1.PeekResponse, error) {
	call, err := read(req.GetCall())
	if err != nil {
		return nil, err
	}
	decision, _ := s.decide(ctx, call, true)
	return &limitsv1.PeekResponse{Decision: decision}, nil
}

// CheckBatch checks several calls, in their order. With AllOrNothing it stops at the first denial, and refunds the
// calls before it.
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

// giveBack refunds all receipts. Some may be nil.
func (s *Service) giveBack(ctx context.Context, charged []*limit.Receipt) error {
	ctx = context.WithoutCancel(ctx) // if the caller cancels, the units must be given back nevertheless
	var errs []error
	for _, receipt := range charged {
		if receipt != nil {
			_, err := s.c.Store.Refund(ctx, receipt, 0, s.c.Now())
			errs = append(errs, err)
		}
	}
	if errors.Join(errs...) != nil {
		return status.Error(codes.Unavailable,
			"a call was denied, but not all charges of the calls before it could be refunded")
	}
	return nil
}

// Refund gives back the units that Check or CheckBatch has charged.
func (s *Service) Refund(ctx context.Context, req *limitsv1.RefundRequest) (*limitsv1.RefundResponse, error) {
	if n := req.GetUnits(); n < 0 || n > limit.MaxUnits {
		return nil, status.Errorf(codes.InvalidArgument, "units %d are outside 0..%d", n, int64(limit.MaxUnits))
	}
	receipt, ok := s.receipts.Get(req.GetReceipt())
	if !ok {
		return nil, status.Errorf(codes.NotFound,
			"the receipt is not known here: it comes from another instance, is older than %s, or was "+
				"dropped to make room for newer ones", limit.MaxReceiptAge)
	}
	back, err := s.c.Store.Refund(ctx, receipt, req.GetUnits(), s.c.Now())
	if errors.Is(err, limit.ErrRefundsFull) {
		return nil, status.Error(codes.ResourceExhausted, "too many refunds at the moment; the receipt stays valid")
	}
	if err != nil {
		return nil, status.Error(codes.Unavailable, "the store of counters failed; it is safe to try again")
	}
	out := &limitsv1.RefundResponse{Repeated: back.Repeated, Expired: back.Expired}
	for _, n := range back.Units {
		out.Units = max(out.GetUnits(), n)
	}
	return out, nil
}

// read converts a call to a request to the authorizer. An error says what is invalid.
func read(c *limitsv1.Call) (*authorizer.Request, error) {
	if c == nil {
		return nil, status.Error(codes.InvalidArgument, "the call is missing")
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

// decide returns the decision on a call, and the receipt of its charges, or nil if it has charged nothing.
func (s *Service) decide(
	ctx context.Context, call *authorizer.Request, peek bool,
) (*limitsv1.Decision, *limit.Receipt) {
	decide := s.c.Plans.Authorize
	if peek {
		decide = s.c.Plans.Peek
	}
	a := decide(ctx, call)
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

// addLimits adds the state of each limit to the decision. The binding limit comes first.
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

// keep stores a receipt, which may be nil, under a random name, and writes that name to the decision. The name cannot
// be guessed, because whoever knows it may refund the charges.
func (s *Service) keep(d *limitsv1.Decision, receipt *limit.Receipt) {
	if receipt == nil {
		return
	}
	d.Receipt = rand.Text()
	s.receipts.Add(d.GetReceipt(), receipt)
}
