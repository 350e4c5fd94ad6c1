// Package router keeps quotas in one store and rates in another, and decides over both all or nothing. [Homes] does so with the
// limits that other cells keep. Rates that are kept for several cells (limit.Limit.Home) are counted with the quotas,
// which other cells reach; what follows of quotas is true of them, too, but that they are never held: where others
// deny, they are refunded. To receipts of a token bucket that are older such a refund is one of another charge, and
// they give back less by it.
//
// The quotas' units come first, as a lease of what the request needs. Where the rates then deny, or fail, the lease is not
// given back over the network but held here, and the next request for the same units spends it: so a client that hammers
// against a rate costs the quotas' store nothing. A lease that nobody spends is refunded after a few seconds, and at
// [Store.Close]; one whose period ends is dropped. A process that dies loses what it held: units lost, never too many.
//
// While leases are held, what is said to remain of a quota may be too little by them; nothing is admitted or denied wrongly
// for it: before a quota denies, what is held for its owner is given back.
//
// A request that leases (Request.Ahead) is decided in the same order, and each half leases in its own store. Where the rates
// then deny, what was charged to a quota of which the request leases stays with the caller, as a lease: [limit.Decision.Grant]
// says so. What was charged to another quota, such as one that is exact, is held here if the request asks for nothing else of
// the quotas, else refunded beside the decision. Units that the request gave back to a quota are charged again, for a denial
// changes nothing: first out of what it was charged, then by a second call; should others have been admitted for them by then,
// the whole decision is an error, and they count as given back. Where the rates fail, everything is given back beside the
// decision, and until they answer again they are asked before the quotas are charged. What cannot be given back is lost, never
// spent twice.
//
// A half of which nothing is asked, for the caller has all units of it in hand, need not answer: leases of a store that is away
// can so be spent. Where it does not, its results are as if its counters had never been used.
//
// A request that needs and leases nothing corrects what is counted ([limit.Ahead.Adjust]). It is the exception to all or
// nothing: both stores are asked, whatever the other one says. Its error is, by errors.Is, only what both halves' errors are:
// so what says that nothing was sent is true of both. Any other error means that either half may have been corrected. Units
// counted by a request that needs something as well are taken off again where the rates deny, but for buckets, and stay
// counted where they fail.
//
// Everything else is as the two stores say, each by its own clock; a decision over both has the rates' time, by which its
// leases end, too.
package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

var _ limit.Store = (*Store)(nil)

// Store is a [limit.Store] over two others. Make it with [New].
type Store struct {
	rates, quotas limit.Store
	home          string // "": the quotas, and what else is kept, are those of this cell; else those that are kept in that one
	held          leases
	returns       returns
	ratesFail     atomic.Bool // the last decision that asked them got no answer
	refused       owners      // owners whose last decision the rates answered that they cannot make
	pool          sync.Pool
}

// Config sets up a store.
type Config struct {
	Rates, Quotas limit.Store   // required
	HoldFor       time.Duration // how long a lease waits for a request that needs it; 0 means DefaultHoldFor, below 0 not at all

	// home has only the limits of that home in Quotas. See Homes.
	home string
}

// mostOwners is how many owners a set remembers before it begins anew.
const mostOwners = 1000

// owners is a set of owners that is nearly always empty. It is safe for concurrent use.
type owners struct {
	n  atomic.Int64
	mu sync.Mutex
	of map[limit.Owner]struct{}
}

func (o *owners) has(owner limit.Owner) bool {
	if o.n.Load() == 0 {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.of[owner]
	return ok
}

func (o *owners) add(owner limit.Owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil || len(o.of) >= mostOwners {
		o.of = map[limit.Owner]struct{}{}
	}
	o.of[owner] = struct{}{}
	o.n.Store(int64(len(o.of)))
}

func (o *owners) remove(owner limit.Owner) {
	if o.n.Load() == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.of, owner)
	o.n.Store(int64(len(o.of)))
}

// DefaultHoldFor is how long a lease waits for a request that needs it.
const DefaultHoldFor = 5 * time.Second

// New puts quotas into one store and every other limit into the other. Close it when done; that closes neither store.
func New(c Config) (*Store, error) {
	if c.Rates == nil || c.Quotas == nil {
		return nil, errors.New("router: needs a store for rates and one for quotas")
	}
	if c.HoldFor == 0 {
		c.HoldFor = DefaultHoldFor
	}
	s := &Store{rates: c.Rates, quotas: c.Quotas, home: c.home}
	s.returns.quotas = c.Quotas
	s.returns.ctx, s.returns.stop = context.WithCancel(context.Background())
	s.held.holdFor, s.held.later = c.HoldFor, s.returns.later
	s.held.refund = func(ctx context.Context, r *limit.Receipt, now time.Time) error {
		_, err := c.Quotas.Refund(ctx, r, 0, now)
		return err
	}
	s.pool.New = func() any { return new(halves) }
	return s, nil
}

// halves is a request in two.
type halves struct {
	rates, quotas           limit.Request
	rateAnswer, quotaAnswer limit.Decision
}

// IsQuota reports whether the limit is kept in the store for quotas.
func IsQuota(l *limit.Limit) bool {
	return len(l.Tiers) > 0 && l.Tiers[0].Algorithm == limit.Quota
}

// isQuota reports whether the limit is kept in s.quotas: what that home keeps; or of this cell's stores the quotas,
// and the rates that it keeps for other cells, too, which reach only that store.
func (s *Store) isQuota(l *limit.Limit) bool {
	if s.home != "" {
		return l.Home == s.home
	}
	return IsQuota(l) || l.Home != ""
}

// Accepts asks the store that would keep the limit: that of the quotas if its first tier is one.
func (s *Store) Accepts(l *limit.Limit) error {
	if s.isQuota(l) {
		return s.quotas.Accepts(l)
	}
	return s.rates.Accepts(l)
}

// AcceptsPlan asks both stores, each about the limits that it would keep. See [limit.PlanAccepter].
func (s *Store) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	for _, store := range []struct {
		limit.Store
		quotas bool
	}{{s.rates, false}, {s.quotas, true}} {
		own := func(limits []*limit.Limit) []*limit.Limit {
			return slices.DeleteFunc(slices.Clone(limits), func(l *limit.Limit) bool { return s.isQuota(l) != store.quotas })
		}
		lists := make([][]*limit.Limit, len(together))
		for i := range together {
			lists[i] = own(together[i])
		}
		if err := limit.AcceptsPlan(store.Store, own(all), lists...); err != nil {
			return err
		}
	}
	return nil
}

// Decide charges all limits of the request or none, over both stores. See [limit.Store].
func (s *Store) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if one, err := s.only(req); err != nil {
		d.Clear(now.UnixMicro())
		return err
	} else if one == s.quotas {
		return s.decideQuotas(ctx, req, now, d)
	} else if one != nil {
		return one.Decide(ctx, req, now, d)
	}
	h := s.divide(req)
	defer s.pool.Put(h)
	if corrects(req) {
		return s.correct(ctx, req, h, now, d)
	}
	if err := s.ratesAnswer(ctx, h, now); err != nil {
		d.Clear(now.UnixMicro())
		return fmt.Errorf("rates: %w", err)
	}
	quotas, held, err := s.decideQuotasHalf(ctx, h, now)
	if err != nil {
		d.Clear(now.UnixMicro())
		return fmt.Errorf("quotas: %w", err)
	} else if !quotas.Allowed {
		return s.quotaDenied(ctx, req, h, quotas, now, d)
	}
	err = s.rates.Decide(ctx, &h.rates, now, &h.rateAnswer)
	s.heardRates(ctx, req.Owner, err)
	if err = needed(err, &h.rates, now, &h.rateAnswer); err == nil {
		s.join(d, req, &h.rateAnswer, quotas)
		d.ID = h.rateAnswer.ID
		if d.Settle() {
			return nil
		}
	} else {
		d.Clear(now.UnixMicro())
		err = fmt.Errorf("rates: %w", err)
	}
	switch {
	case plain(&h.quotas) && !onlyQuotas(&h.quotas):
		s.giveBack(ctx, &settlement{receipt: quotas.Receipt()}, now)
		uncharge(d)
	case plain(&h.quotas):
		uncharge(d)
		if held == nil {
			held = newLease(&h.quotas, quotas, now)
		}
		s.held.put(ctx, req.Owner, held, now)
	case err != nil:
		s.giveBack(ctx, settle(h, quotas, false), now)
	default:
		return s.ratesDenied(ctx, h, quotas, now, d)
	}
	return err
}

// heardRates notes how the rates answered. That they cannot decide a request is its owner's affair, and not that of others; and
// a call that its caller gave up says nothing.
func (s *Store) heardRates(ctx context.Context, owner limit.Owner, err error) {
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	answered := limit.Answered(err)
	s.ratesFail.Store(err != nil && !answered)
	switch {
	case answered:
		s.refused.add(owner)
	case err == nil:
		s.refused.remove(owner)
	}
}

// onlyQuotas reports whether units of the request may be held for another one. Those of a rate may not: spent later
// than they were charged, they come on top of what the rate allows then.
func onlyQuotas(req *limit.Request) bool {
	for i := range req.Charges {
		if !IsQuota(req.Charges[i].Limit) {
			return false
		}
	}
	return true
}

// ratesAnswer asks whether the rates answer, where they did not the last time: else each request that leases would be charged
// its quotas, and given them back.
func (s *Store) ratesAnswer(ctx context.Context, h *halves, now time.Time) error {
	if plain(&h.quotas) || !s.ratesFail.Load() && !s.refused.has(h.rates.Owner) {
		return nil
	}
	return needed(s.rates.Peek(ctx, &h.rates, now, &h.rateAnswer), &h.rates, now, &h.rateAnswer)
}

// decideQuotasHalf answers from what is held for the request, if it needs just that, or asks.
func (s *Store) decideQuotasHalf(ctx context.Context, h *halves, now time.Time) (*limit.Decision, *lease, error) {
	if s.home != "" && idle(&h.quotas) {
		unused(&h.quotaAnswer, &h.quotas, now.UnixMicro())
		return &h.quotaAnswer, nil, nil
	}
	if !plain(&h.quotas) {
		err := s.decideQuotas(ctx, &h.quotas, now, &h.quotaAnswer)
		return &h.quotaAnswer, nil, needed(err, &h.quotas, now, &h.quotaAnswer)
	}
	if held := s.held.take(&h.quotas, now); held != nil {
		return held.decision, held, nil
	}
	d := new(limit.Decision) // it may be held
	return d, nil, s.decideQuotas(ctx, &h.quotas, now, d)
}

// decideQuotas asks once more where units that are held here may be what is missing.
func (s *Store) decideQuotas(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := s.quotas.Decide(ctx, req, now, d)
	if err == nil && !d.Allowed && !keepsAny(d) && s.held.giveBack(ctx, req.Owner, now) {
		err = s.quotas.Decide(ctx, req, now, d)
	}
	return err
}

// keepsAny reports whether a denial has leased something all the same.
func keepsAny(d *limit.Decision) bool {
	for i := range d.Results {
		if d.Grant(i).Units > 0 {
			return true
		}
	}
	return false
}

// quotaDenied completes a denial with what the rates would say: when the cost fits is for all limits. What the quotas' store has
// leased all the same is the caller's.
func (s *Store) quotaDenied(ctx context.Context, req *limit.Request, h *halves, denial *limit.Decision, now time.Time, d *limit.Decision) error {
	switch err := s.rates.Peek(ctx, &h.rates, now, &h.rateAnswer); {
	case err == nil:
		s.join(d, req, &h.rateAnswer, denial)
	// Else the denial stands without the rates. It must not become an error, which might admit the request elsewhere.
	case len(req.Ahead) > 0: // who leases wants a result of each tier
		unused(&h.rateAnswer, &h.rates, denial.Now)
		s.join(d, req, &h.rateAnswer, denial)
	default:
		d.Begin(&limit.Request{Owner: req.Owner, Charges: slices.Clone(h.quotas.Charges)}, denial.Now)
		for i := range denial.Results {
			d.Adopt(i, &denial.Results[i])
		}
	}
	d.Settle()
	if len(req.Ahead) == 0 {
		return nil
	}
	q := 0
	for i := range d.Results {
		if s.isQuota(d.Results[i].Limit()) {
			d.AdoptGrant(i, onClock(denial.Grant(q), denial, d))
			q++
		}
	}
	return nil
}

// Peek is Decide without the charge. What is held for the owner is given back first: no request has spent it. See
// [limit.Store].
func (s *Store) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	s.held.giveBack(ctx, req.Owner, now)
	if one, err := s.only(req); err != nil {
		d.Clear(now.UnixMicro())
		return err
	} else if one != nil {
		return one.Peek(ctx, req, now, d)
	}
	h := s.divide(req)
	defer s.pool.Put(h)
	err := s.quotas.Peek(ctx, &h.quotas, now, &h.quotaAnswer)
	if err == nil {
		err = s.rates.Peek(ctx, &h.rates, now, &h.rateAnswer)
	}
	if err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	s.join(d, req, &h.rateAnswer, &h.quotaAnswer)
	d.Settle()
	return nil
}

// Refund gives back in both stores. If one fails, or remembers too many refunds ([limit.ErrRefundsFull]), the other may have
// given back its part, and asking again refunds what is still missing. See [limit.Store].
func (s *Store) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if err := limit.CheckRefund(r, units); err != nil {
		return limit.Refund{}, err
	}
	isQuota := func(e *limit.ReceiptEntry) bool { return s.isQuota(e.Tier.Limit()) }
	quotas, rates := r.Part(isQuota), r.Part(func(e *limit.ReceiptEntry) bool { return !isQuota(e) })
	var parts [2]limit.Refund
	for i, half := range []struct {
		store limit.Store
		r     *limit.Receipt
	}{{s.quotas, quotas}, {s.rates, rates}} {
		if len(half.r.Entries()) == 0 {
			continue
		}
		var err error
		if parts[i], err = half.store.Refund(ctx, half.r, units, now); err != nil {
			return limit.Refund{}, err
		}
	}
	out := limit.Refund{Units: make([]int64, 0, len(r.Entries()))}
	given := int64(0)
	for _, e := range r.Entries() {
		p := &parts[1]
		if isQuota(&e) {
			p = &parts[0]
		}
		out.Units = append(out.Units, p.Units[0])
		given += p.Units[0]
		p.Units = p.Units[1:]
	}
	// One store may have forgotten the receipt by now, or have failed the first time.
	out.Repeated = given == 0 && (parts[0].Repeated || parts[1].Repeated)
	out.Expired = given == 0 && (parts[0].Expired || parts[1].Expired)
	return out, nil
}

// Close refunds what is held, and waits for what is being given back, until ctx ends. Call it when no decision is under way.
func (s *Store) Close(ctx context.Context) error {
	return errors.Join(s.held.close(ctx), s.returns.close(ctx))
}

// Held is how many leases are held for requests to come.
func (s *Store) Held() int { return s.held.len() }

// only is the store that a request is for if it needs but one; nil if it needs both.
func (s *Store) only(req *limit.Request) (limit.Store, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	quotas := 0
	for i := range req.Charges {
		if s.isQuota(req.Charges[i].Limit) {
			quotas++
		}
	}
	switch quotas {
	case 0:
		return s.rates, nil // also for no limits at all
	case len(req.Charges):
		return s.quotas, nil
	}
	return nil, nil //nolint:nilnil // both
}

func (s *Store) divide(req *limit.Request) *halves {
	h := s.pool.Get().(*halves)
	h.rates.Owner, h.quotas.Owner = req.Owner, req.Owner
	h.rates.Charges, h.quotas.Charges = h.rates.Charges[:0], h.quotas.Charges[:0]
	h.rates.Ahead, h.quotas.Ahead = h.rates.Ahead[:0], h.quotas.Ahead[:0]
	first := 0
	for i := range req.Charges {
		half, next := &h.rates, first+len(req.Charges[i].Limit.Tiers)
		if s.isQuota(req.Charges[i].Limit) {
			half = &h.quotas
		}
		half.Charges = append(half.Charges, req.Charges[i])
		if len(req.Ahead) > 0 {
			half.Ahead = append(half.Ahead, req.Ahead[first:next]...)
		}
		first = next
	}
	return h
}

// join puts the results of the halves into the request's order, and what they were charged ahead.
func (s *Store) join(d *limit.Decision, req *limit.Request, rates, quotas *limit.Decision) {
	d.Begin(req, rates.Now)
	r, q := 0, 0
	for i := range d.Results {
		if s.isQuota(d.Results[i].Limit()) {
			d.Adopt(i, &quotas.Results[q])
			d.AdoptGrant(i, onClock(quotas.Grant(q), quotas, d))
			q++
		} else {
			d.Adopt(i, &rates.Results[r])
			d.AdoptGrant(i, rates.Grant(r))
			r++
		}
	}
}

// uncharge says of the quotas what is true of them once their units are held for another request.
func uncharge(d *limit.Decision) {
	for i := range d.Results {
		d.Results[i].Uncharge()
	}
}
