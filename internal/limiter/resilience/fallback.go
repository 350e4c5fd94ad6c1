package resilience

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/store/memory"
)

var _ limit.Store = (*Fallback)(nil)

// ErrFailClosed is in the error where the store did not answer and there is nothing else to decide by: a limit says so
// ([limit.Closed]), or there is no room to count here. Nothing was charged here.
var ErrFailClosed = errors.New("denied, since the limits cannot be counted")

const (
	// DefaultFallbackBytes holds the counters of some 30,000 owners, and what is to be charged back of 15,000.
	DefaultFallbackBytes = 16 << 20

	// DefaultReplayPerSecond is how many charges of units admitted meanwhile an instance makes when its store is back.
	DefaultReplayPerSecond = 100

	minBytes = 32 << 10
	retryIn  = 1_000_000 // µs; the wait that is told for a cost that fits once the store is back
)

// FallbackConfig sets up a [Fallback].
type FallbackConfig struct {
	Store limit.Store // required

	// ReplayTo is where units that were admitted without the store are charged when it answers again, by requests with
	// [limit.Ahead]. Default Store, which must then pass them on.
	ReplayTo limit.Store

	// Instances is how many share the store now, as far as is known; see [Instances]. Where it is nil or below 1,
	// MaxInstances is taken: the most there may be (reserved concurrency); 0 means 1.
	Instances    func() int
	MaxInstances int

	// InstancesOf is so for one limit: other cells may share what keeps it. nil is Instances.
	InstancesOf func(*limit.Limit) int

	Bytes     int64 // bounds what is counted and remembered here, at least 32 KB; 0 means DefaultFallbackBytes
	PerSecond int   // 1..10,000, see DefaultReplayPerSecond; 0 means that

	Log *slog.Logger // default slog.Default(); at most one line in a second about the store, and one about requests
}

// Fallback is a [limit.Store] that decides also where the one behind it does not answer. A decision that it makes by itself is
// marked Degraded, and each limit has its OnStoreFailure:
//
//   - open admits. What is said to be left of it is all.
//   - closed is [ErrFailClosed] for the whole request.
//   - backstop counts here: each tier is a token bucket of b = max(1, units/instances) per period and at once, for each owner
//     and value; a quota is its units over the calendar period's length; of a token bucket both rate and burst are divided so.
//     A rate that cannot be counted exactly is rounded down by less than a hundredth. A cost above what the bucket holds, but
//     not above what the limit can hold, waits for the store; it is not never. Every limit has such buckets.
//
// Bound: in any interval as long as the period, and of a quota in each calendar period, an instance admits at most 2·b by its
// backstop (of a token bucket its parts of rate and burst). So all of them together admit at most the sum of
// 2·max(1, units/instances), on top of what the store admitted.
//
// A cost above what a limit can ever hold is never, as always. Shadow limits are not counted. All limits of a request are
// charged or none. Clients see the limit's own id; its size and what is left are those of this instance's part.
//
// Addresses take at most half of the room, of what is counted here and of what is to be charged back. Those without
// room share counters, see package memory, so a flood of them takes no room of tenants. A tenant without room is
// [ErrFailClosed].
//
// When the store answers again, what was admitted here, by backstop or open limits, is charged there whatever it has left,
// in the windows in which it was admitted, if they are still open; of buckets what the instance's part has not refilled
// since. Until then the store may admit what it has left. A charge that was not sent is kept; one whose outcome is not known
// is not sent again, so its units may be missing in the store: too much may be admitted then, within the bound above. A charge that failed in the store and was made there all the same is counted twice: too little is
// admitted. Units that have no room, and those of a full store, are dropped, and counted as such.
//
// Errors that are the request's own ([limit.ErrInvalidRequest] and the like) are returned, and so is [context.Canceled]
// where the caller has given up, and what becomes of a request with leases (Request.Ahead): who asks for those decides by
// itself. There is no retry: a decision takes as long as the store behind takes to fail.
type Fallback struct {
	c      FallbackConfig
	own    *memory.Store
	name   atomic.Uint64 // Hi of the receipts of own
	limits *lru.Cache[*limit.Limit, *derived]
	pool   sync.Pool

	lag   atomic.Int64 // the store's clock less the caller's, µs, when it answered last
	debts debts
	payer payer

	// s since 1970 of the last line about the store, about a request, and about a limit that has no part
	logged, loggedRequest, loggedPart atomic.Int64

	failures, undecidable, backstop, open, closed, chargedBack, dropped atomic.Int64
	fullest                                                             atomic.Int64 // of what was charged back since TakeFullest
}

// FallbackStats counts since the start.
type FallbackStats struct {
	Failures    int64 // decisions that the store did not make
	Undecidable int64 // of these, how many it answered: it is in reach, and cannot decide the request, see limit.Answered
	Backstop    int64 // of these, how many were made by a backstop, admitted or denied
	Open        int64 // how many were admitted with no limit but open ones, and shadows
	Closed      int64 // how many ended in ErrFailClosed
	ChargedBack int64 // units charged in the store for what was admitted without it, over all tiers
	Dropped     int64 // units that should have been, and were not
	Waiting     int64 // owners whose units are still to be charged back, now
	Bytes       int64 // what is counted and remembered here takes, now
}

// TakeFullest is limit.Decision.Fullest of the fullest counter that was charged back since the last call; 0 where none was. Above
// 1000, more was admitted without the store, and before it was away, than the limit.
func (f *Fallback) TakeFullest() int64 { return f.fullest.Swap(0) }

// NewFallback makes a store that has counted nothing by itself. The error names the field. Close it when done; that closes no other
// store.
func NewFallback(c FallbackConfig) (*Fallback, error) {
	if c.ReplayTo == nil {
		c.ReplayTo = c.Store
	}
	if c.MaxInstances == 0 {
		c.MaxInstances = 1
	}
	if c.Bytes == 0 {
		c.Bytes = DefaultFallbackBytes
	}
	if c.PerSecond == 0 {
		c.PerSecond = DefaultReplayPerSecond
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	switch {
	case c.Store == nil:
		return nil, errors.New("fallback limiter: Store is missing")
	case c.MaxInstances < 1:
		return nil, fmt.Errorf("fallback limiter: MaxInstances %d is below 1", c.MaxInstances)
	case c.Bytes < minBytes:
		return nil, fmt.Errorf("fallback limiter: Bytes %d is below %d", c.Bytes, minBytes)
	case c.PerSecond < 1 || c.PerSecond > 10_000:
		return nil, fmt.Errorf("fallback limiter: PerSecond %d is outside 1..10000", c.PerSecond)
	}
	f := &Fallback{c: c, debts: debts{of: make(map[limit.Owner]*ownerDebt), most: c.Bytes / 4}}
	f.pool.New = func() any { return new(scratch) }
	var err error
	counted := c.Bytes - c.Bytes/4
	if f.own, err = memory.New(memory.Config{MaxBytes: counted, UnidentifiedBytes: counted / 2, Log: c.Log}); err != nil {
		return nil, fmt.Errorf("fallback limiter: %w", err)
	}
	if f.limits, err = lru.New[*limit.Limit, *derived](derivedLimits); err != nil {
		return nil, fmt.Errorf("fallback limiter: %w", err)
	}
	return f, nil
}

// scratch is what one decision without the store needs.
type scratch struct {
	request  limit.Request
	decision limit.Decision
	parts    []*derived // for each charge of the request; nil: it has no backstop
}

// Stats is what became of the decisions that the store did not make.
func (f *Fallback) Stats() FallbackStats {
	return FallbackStats{Failures: f.failures.Load(), Undecidable: f.undecidable.Load(), Backstop: f.backstop.Load(), Open: f.open.Load(), Closed: f.closed.Load(),
		ChargedBack: f.chargedBack.Load(), Dropped: f.dropped.Load() + f.debts.dropped.Load(),
		Waiting: f.debts.waiting.Load(), Bytes: f.own.Bytes() + f.debts.size()}
}

// Accepts asks the store behind.
func (f *Fallback) Accepts(l *limit.Limit) error { return f.c.Store.Accepts(l) }

// AcceptsPlan asks the store beneath. See [limit.PlanAccepter].
func (f *Fallback) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	return limit.AcceptsPlan(f.c.Store, all, together...)
}

// Decide asks the store behind, and decides here where that does not answer. See [Fallback] and [limit.Store].
func (f *Fallback) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := f.c.Store.Decide(ctx, req, now, d)
	if err == nil {
		f.answered(now, d)
		return nil
	}
	if !f.replaces(ctx, req, err) {
		return err
	}
	f.note(now, err)
	return f.without(req, now, d, err, true)
}

// Peek asks the store behind, and looks here where that does not answer. See [limit.Store].
func (f *Fallback) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := f.c.Store.Peek(ctx, req, now, d)
	if err == nil || !f.replaces(ctx, req, err) {
		return err
	}
	return f.without(req, now, d, err, false)
}

// answered notes the store's clock, and has what is owed paid.
func (f *Fallback) answered(now time.Time, d *limit.Decision) {
	if lag := d.Now - now.UnixMicro(); f.lag.Load() != lag {
		f.lag.Store(lag)
	}
	if f.debts.waiting.Load() > 0 {
		f.startPaying(now)
	}
}

// replaces reports whether the answer is to be found here.
func (f *Fallback) replaces(ctx context.Context, req *limit.Request, err error) bool {
	return !callersOwn(ctx, err) && len(req.Ahead) == 0
}

// note counts, and logs at most once in a second: a store that is away must not fill the disk too. What is wrong with one
// request has a second of its own, so that neither hides the other.
func (f *Fallback) note(now time.Time, cause error) {
	n, logged, text := f.failures.Add(1), &f.logged, "the store did not decide; each limit's onStoreFailure applies"
	if limit.Answered(cause) {
		n, logged, text = f.undecidable.Add(1), &f.loggedRequest, "the store answered that it cannot decide a request; each limit's onStoreFailure applies"
	}
	last, sec := logged.Load(), now.Unix()
	if sec != last && logged.CompareAndSwap(last, sec) {
		f.c.Log.Warn(text, "error", cause, "failures", n)
	}
}

// instances is how many share the limit.
func (f *Fallback) instances(l *limit.Limit) int64 {
	if f.c.InstancesOf != nil {
		return int64(max(f.c.InstancesOf(l), 1))
	}
	if f.c.Instances != nil {
		if n := f.c.Instances(); n > 0 {
			return int64(n)
		}
	}
	return int64(f.c.MaxInstances)
}

// part is this instance's part of a limit.
func (f *Fallback) part(l *limit.Limit, instances int64, now time.Time) (*derived, error) {
	if p, ok := f.limits.Get(l); ok && p.holds(instances, now) {
		return p, nil
	}
	p, err := derive(l, instances, now)
	if err != nil {
		if sec := now.Unix(); f.loggedPart.Swap(sec) != sec {
			f.c.Log.Error("this limit has no fallback, which is a defect: its requests are denied while the store is away", "limit", l.ID, "error", err)
		}
		return nil, err
	}
	f.limits.Add(l, p)
	return p, nil
}

// without decides without the store.
func (f *Fallback) without(req *limit.Request, now time.Time, d *limit.Decision, cause error, charge bool) error {
	if err := req.Check(); err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	x := f.pool.Get().(*scratch)
	defer f.pool.Put(x)
	err := f.divide(req, now, x)
	if err == nil {
		d.Begin(req, now.UnixMicro())
		err = f.weigh(req, now, d, x, charge)
	}
	if err != nil {
		if charge {
			f.closed.Add(1)
		}
		d.Clear(now.UnixMicro())
		return fmt.Errorf("%w: %w; the store: %w", ErrFailClosed, err, cause)
	}
	d.Settle()
	d.Degraded = true
	if !charge {
		return nil
	}
	if len(x.request.Charges) > 0 {
		f.backstop.Add(1)
	} else {
		f.open.Add(1)
	}
	if d.Allowed {
		f.owe(req, now, x, cause)
	}
	return nil
}

var errLimitClosed = errors.New("a limit is closed then")

// divide says which charges the backstop counts, and as what.
func (f *Fallback) divide(req *limit.Request, now time.Time, x *scratch) error {
	x.request.Owner, x.request.Charges, x.parts = req.Owner, x.request.Charges[:0], x.parts[:0]
	for i := range req.Charges {
		c := &req.Charges[i]
		x.parts = append(x.parts, nil)
		switch {
		case c.Limit.Mode != limit.Enforce:
			continue
		case c.Limit.OnStoreFailure == limit.Closed:
			return errLimitClosed
		}
		p, err := f.part(c.Limit, f.instances(c.Limit), now)
		if err != nil {
			return err
		}
		if x.parts[i] = p; c.Limit.OnStoreFailure == limit.Backstop {
			x.request.Charges = append(x.request.Charges, limit.Charge{Limit: p.limit, Value: c.Value, Cost: c.Cost})
		}
	}
	return nil
}

// weigh fills d's results, and charges the backstop unless one of them denies.
func (f *Fallback) weigh(req *limit.Request, now time.Time, d *limit.Decision, x *scratch, charge bool) error {
	for i := range d.Results { // as if nothing had been used: what may be asked at all, and all that is known of most
		d.Evaluate(i, &limit.State{}, false)
		if r := &d.Results[i]; r.Never && !r.Shadow() {
			charge = false
		}
	}
	if len(x.request.Charges) == 0 {
		return nil
	}
	if err := f.ask(x, now, charge); err != nil {
		return err
	}
	d.ID, d.Owner = x.decision.ID, x.request.Owner
	i, j := 0, 0
	for c := range req.Charges {
		l := req.Charges[c].Limit
		for range l.Tiers {
			if l.Mode == limit.Enforce && l.OnStoreFailure == limit.Backstop {
				never := d.Results[i].Never
				d.Adopt(i, &x.decision.Results[j])
				if r := &d.Results[i]; r.Never != never { // too much for this instance's part, not for the limit
					r.Never, r.RetryAt = false, now.UnixMicro()+retryIn
				}
				j++
			}
			i++
		}
	}
	return nil
}

// ask asks the own store. It takes no context: whoever asks waits for an answer, and it takes no time.
func (f *Fallback) ask(x *scratch, now time.Time, charge bool) error {
	if !charge {
		return f.own.Peek(context.Background(), &x.request, now, &x.decision)
	}
	err := f.own.Decide(context.Background(), &x.request, now, &x.decision)
	if err == nil && x.decision.Allowed && f.name.Load() == 0 {
		f.name.Store(x.decision.ID.Hi)
	}
	return err
}

// owe remembers what was admitted.
func (f *Fallback) owe(req *limit.Request, now time.Time, x *scratch, cause error) {
	lost := errors.Is(cause, limit.ErrFull)
	at := now.UnixMicro() + f.lag.Load()
	for i := range req.Charges {
		c := &req.Charges[i]
		switch {
		case x.parts[i] == nil: // not enforced
		case lost:
			f.dropped.Add(c.Cost * int64(len(c.Limit.Tiers)))
		default:
			f.debts.owe(req.Owner, c, x.parts[i].shares, at)
		}
	}
}

// Refund gives back what a decision charged, where that was. What the backstop gets back is not charged to the store later;
// if it has been already, it stays there. See [limit.Store].
func (f *Fallback) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if err := limit.CheckRefund(r, units); err != nil {
		return limit.Refund{}, err
	}
	if hi := r.ID().Hi; hi == 0 || hi != f.name.Load() {
		return f.c.Store.Refund(ctx, r, units, now)
	}
	back, err := f.own.Refund(ctx, r, units, now)
	// A receipt that gives nothing back any more is not remembered, so it must forgive nothing: it could do so many times.
	if late := now.UnixMicro() >= r.Until() || back.Expired; err != nil || back.Repeated || late {
		return back, err
	}
	entries := r.Entries()
	for i := range entries {
		e := &entries[i]
		given := e.Units
		if units > 0 {
			given = min(given, units)
		}
		l := e.Tier.Limit()
		for tier := range l.Tiers {
			if &l.Tiers[tier] == e.Tier {
				f.debts.forgive(r.Owner(), l.ID, tier, e.Value, e.Stamp()+f.lag.Load(), given)
			}
		}
	}
	return back, nil
}
