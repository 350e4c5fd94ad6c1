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

// ErrFailClosed is in the error of a decision if the store did not answer and nothing else can decide: a limit says so
// ([limit.Closed]), or the fallback limiter has no room to count. Nothing was charged here.
var ErrFailClosed = errors.New("denied, since the limits cannot be counted")

const (
	// DefaultFallbackBytes holds the counters of some 20,000 owners with one limit each, and the pending units of some
	// 9,000.
	DefaultFallbackBytes = 16 << 20

	// DefaultReplayPerSecond is how many replay requests an instance sends when its store is back. A store that has
	// just recovered is not to meet all pending units of all instances at once.
	DefaultReplayPerSecond = 100

	leastFallbackBytes = 32 << 10 // holds some 40 owners with one limit each

	// pendingPart is the part of the bytes that pending units may take: a quarter. Counters get the rest, because a
	// tenant without room for its counters is denied, and one without room for its pending units is only admitted too
	// much later on.
	pendingPart = 4

	// fallbackRetryAfter is the wait, in µs, that a caller is told if its cost fits once the store is back: the
	// breaker's default cooldown, after which the store is asked again.
	fallbackRetryAfter = 1_000_000
)

// FallbackConfig sets up a [Fallback].
type FallbackConfig struct {
	Store limit.Store // required

	// ReplayTo is where units that were admitted without the store are charged when it answers again, by requests with
	// [limit.LeaseRequest]. Default Store, which must then pass these on.
	ReplayTo limit.Store

	// Instances returns how many processes share the store now, as far as is known: Instances.Count. If it is nil or
	// returns less than 1, MaxInstances is used.
	Instances    func() int
	MaxInstances int // the most processes that may share the store (reserved concurrency); 0 means 1

	// InstancesOf returns how many processes share the counters of one limit. It differs from Instances if other cells
	// share the store that counts the limit. If nil, Instances is used for every limit.
	InstancesOf func(*limit.Limit) int

	Bytes     int64 // bounds the counters and the pending units, at least 32 KiB; 0 means DefaultFallbackBytes
	PerSecond int   // replay requests, 1..10,000; 0 means DefaultReplayPerSecond

	Log *slog.Logger // default slog.Default(); gets at most one line in a second about the store, and one about requests
}

// Fallback is the fallback limiter. It wraps another [limit.Store] and keeps deciding while that store does not answer.
// A decision that it makes by itself is marked Degraded, and each limit is decided by its OnStoreFailure:
//
//   - open admits. The decision says that all of the limit remains.
//   - closed denies the whole request, with [ErrFailClosed].
//   - backstop counts here, in this instance's part of the limit. For each owner and value, each tier is a token bucket
//     of b = max(1, units/instances) per period and at once. A quota's period is the length of its calendar period. Of
//     a token bucket, both the rate and the burst are divided. A rate that cannot be counted exactly is rounded down by
//     less than a hundredth. A cost that is above the part and not above the limit itself waits for the store, and is
//     not Never. Every limit has such a part.
//
// Bound: in any interval as long as the period, and of a quota in each calendar period, an instance admits at most 2·b
// by the backstop (of a token bucket its parts of the rate and of the burst). So all instances together admit at most
// the sum of 2·max(1, units/instances), on top of what the store admitted.
//
// As always, a cost above what a limit can ever hold is Never, and all limits of a request are charged or none. Shadow
// limits are not counted. Clients see the limit's own id; the size and the remaining units that they see are those of
// the instance's part.
//
// Addresses take at most half of the room, both of the counters and of the pending units. Addresses without room share
// counters, see package memory, so a flood of addresses takes no room of tenants. A tenant without room gets
// [ErrFailClosed].
//
// # Replay
//
// When the store answers again, what the backstop and open limits admitted is charged there, however little the store
// has left: in the windows in which it was admitted, if they are still open, and of a bucket what the instance's part
// has not refilled since. Until then, the store may admit what it has left.
//
//   - A charge that was not sent is kept.
//   - A charge whose outcome is not known is not sent again, so its units may be missing in the store. Then too much
//     may be admitted, within the bound above.
//   - A decision that failed although the store had made it is counted twice. Then too little is admitted.
//   - Units that have no room here, and those of a store that is full, are dropped, and counted as dropped.
//
// # Errors
//
// An error that is the request's own ([limit.ErrInvalidRequest] and the like) is returned. So is [context.Canceled] if
// the caller gave up, and every error of a request that leases (Request.Leases), because the lease layer decides for
// itself what to do then. Nothing is retried: a decision takes as long as the store takes to fail.
type Fallback struct {
	c         FallbackConfig
	local     *memory.Store // the instance's parts of limits
	localBoot atomic.Uint64 // Hi of the receipts of local; 0: it has made none
	parts     *lru.Cache[*limit.Limit, *part]
	pool      sync.Pool

	clockOffset atomic.Int64 // the store's clock less the caller's, µs, when the store answered last
	pending     pendingCharges
	replay      replayer

	// When the last line was logged, s since 1970: about the store, about a request, and about a limit that has no
	// part.
	logged, loggedRequest, loggedPart atomic.Int64

	failures, undecidable, backstop, open, closed, chargedBack, dropped atomic.Int64

	fullest atomic.Int64 // of the replayed counters, since TakeFullest
}

// FallbackStats counts since the start.
type FallbackStats struct {
	Failures    int64 // decisions that the store did not make
	Undecidable int64 // of these, how many the store answered: it cannot decide the request; see limit.Answered
	Backstop    int64 // of Failures, how many a backstop made, admitted or denied
	Open        int64 // of Failures, how many were admitted with no limit but open ones and shadows
	Closed      int64 // of Failures, how many ended in ErrFailClosed
	ChargedBack int64 // units that were replayed, over all tiers
	Dropped     int64 // units that should have been replayed, and were not
	Waiting     int64 // owners whose units are still pending, now
	Bytes       int64 // that counters and pending units take, now
}

// TakeFullest returns limit.Decision.Fullest of the fullest counter that was replayed since the last call, or 0 if none
// was. Above 1000, more than the limit was admitted, before the store was away and without it.
func (f *Fallback) TakeFullest() int64 { return f.fullest.Swap(0) }

// NewFallback makes a fallback limiter that has counted nothing by itself. The error names the field. Close it when
// done; that closes no other store.
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
	case c.Bytes < leastFallbackBytes:
		return nil, fmt.Errorf("fallback limiter: Bytes %d is below %d", c.Bytes, leastFallbackBytes)
	case c.PerSecond < 1 || c.PerSecond > 10_000:
		return nil, fmt.Errorf("fallback limiter: PerSecond %d is outside 1..10000", c.PerSecond)
	}
	f := &Fallback{c: c}
	f.pending.byOwner, f.pending.bound = make(map[limit.Owner]*ownerPending), c.Bytes/pendingPart
	f.pool.New = func() any { return new(scratch) }
	var err error
	counted := c.Bytes - f.pending.bound
	f.local, err = memory.New(memory.Config{MaxBytes: counted, UnidentifiedBytes: counted / 2, Log: c.Log})
	if err != nil {
		return nil, fmt.Errorf("fallback limiter: %w", err)
	}
	if f.parts, err = lru.New[*limit.Limit, *part](rememberedParts); err != nil {
		return nil, fmt.Errorf("fallback limiter: %w", err)
	}
	return f, nil
}

// scratch is what one decision without the store needs.
type scratch struct {
	request  limit.Request
	decision limit.Decision
	parts    []*part // for each charge of the request; nil: it has no backstop
}

// Stats returns what became of the decisions that the store did not make.
func (f *Fallback) Stats() FallbackStats {
	return FallbackStats{Failures: f.failures.Load(), Undecidable: f.undecidable.Load(), Backstop: f.backstop.Load(),
		Open: f.open.Load(), Closed: f.closed.Load(), ChargedBack: f.chargedBack.Load(),
		Dropped: f.dropped.Load() + f.pending.dropped.Load(), Waiting: f.pending.waiting.Load(), Bytes: f.local.Bytes() + f.pending.size()}
}

// Accepts asks the store below.
func (f *Fallback) Accepts(l *limit.Limit) error { return f.c.Store.Accepts(l) }

// AcceptsPlan asks the store below. See [limit.PlanAccepter].
func (f *Fallback) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	return limit.AcceptsPlan(f.c.Store, all, together...)
}

// Decide asks the store below, and decides here if that does not answer. See [Fallback] and [limit.Store].
func (f *Fallback) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := f.c.Store.Decide(ctx, req, now, d)
	if err == nil {
		f.noteAnswer(now, d)
		return nil
	}
	if !f.decidesAlone(ctx, req, err) {
		return err
	}
	f.noteFailure(now, err)
	return f.decideAlone(req, now, d, err, true)
}

// Peek asks the store below, and looks here if that does not answer. See [limit.Store].
func (f *Fallback) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := f.c.Store.Peek(ctx, req, now, d)
	if err == nil || !f.decidesAlone(ctx, req, err) {
		return err
	}
	return f.decideAlone(req, now, d, err, false)
}

// noteAnswer notes the store's clock, and starts the replay if anything is pending.
func (f *Fallback) noteAnswer(now time.Time, d *limit.Decision) {
	if offset := d.Now - now.UnixMicro(); f.clockOffset.Load() != offset {
		f.clockOffset.Store(offset)
	}
	if f.pending.waiting.Load() > 0 {
		f.startReplay(now)
	}
}

// decidesAlone reports whether the fallback limiter decides, after an error of the store.
func (f *Fallback) decidesAlone(ctx context.Context, req *limit.Request, err error) bool {
	return !callersOwn(ctx, err) && len(req.Leases) == 0
}

// noteFailure counts a decision that the store did not make, and logs it at most once in a second: a store that is away
// must not fill the disk, too. Errors by which the store answered are logged at most once in a second of their own, so
// that neither kind hides the other.
func (f *Fallback) noteFailure(now time.Time, cause error) {
	n, logged, text := f.failures.Add(1), &f.logged, "the store did not decide; each limit's onStoreFailure applies"
	if limit.Answered(cause) {
		n, logged = f.undecidable.Add(1), &f.loggedRequest
		text = "the store answered that it cannot decide a request; each limit's onStoreFailure applies"
	}
	last, sec := logged.Load(), now.Unix()
	if sec != last && logged.CompareAndSwap(last, sec) {
		f.c.Log.Warn(text, "error", cause, "failures", n)
	}
}

// instances returns how many processes share the limit.
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

// partOf returns this instance's part of a limit.
func (f *Fallback) partOf(l *limit.Limit, instances int64, now time.Time) (*part, error) {
	if p, ok := f.parts.Get(l); ok && p.holds(instances, now) {
		return p, nil
	}
	p, err := partOf(l, instances, now)
	if err != nil {
		if sec := now.Unix(); f.loggedPart.Swap(sec) != sec {
			f.c.Log.Error("this limit has no fallback, which is a defect: its requests are denied while the store is away",
				"limit", l.ID, "error", err)
		}
		return nil, err
	}
	f.parts.Add(l, p)
	return p, nil
}

// decideAlone decides without the store, whose error is the cause. It charges nothing for a Peek.
func (f *Fallback) decideAlone(req *limit.Request, now time.Time, d *limit.Decision, cause error, charge bool) error {
	if err := req.Check(); err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	x := f.pool.Get().(*scratch)
	defer f.pool.Put(x)
	err := f.chooseCharges(req, now, x)
	if err == nil {
		d.BeginChecked(req, now.UnixMicro())
		err = f.fillResults(req, now, d, x, charge)
	}
	if err != nil {
		if charge {
			f.closed.Add(1)
		}
		d.Clear(now.UnixMicro())
		return fmt.Errorf("%w: %w; the store: %w", ErrFailClosed, err, cause)
	}
	d.Revise().Settle()
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
		f.remember(req, now, x, cause)
	}
	return nil
}

var errLimitClosed = errors.New("a limit is closed then")

// chooseCharges writes to x what the backstop counts: of each charge, the part of its limit.
func (f *Fallback) chooseCharges(req *limit.Request, now time.Time, x *scratch) error {
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
		p, err := f.partOf(c.Limit, f.instances(c.Limit), now)
		if err != nil {
			return err
		}
		if x.parts[i] = p; c.Limit.OnStoreFailure == limit.Backstop {
			x.request.Charges = append(x.request.Charges, limit.Charge{Limit: p.limit, Value: c.Value, Cost: c.Cost})
		}
	}
	return nil
}

// fillResults fills d's results, and charges the backstop unless one of them denies.
func (f *Fallback) fillResults(req *limit.Request, now time.Time, d *limit.Decision, x *scratch, charge bool) error {
	for i := range d.Results { // as if nothing had been used, which says what may be asked at all
		d.Revise().Evaluate(i, &limit.State{}, false)
		if r := &d.Results[i]; r.Never && !r.Shadow() {
			charge = false
		}
	}
	if len(x.request.Charges) == 0 {
		return nil
	}
	if err := f.askLocal(x, now, charge); err != nil {
		return err
	}
	d.ID, d.Owner = x.decision.ID, x.request.Owner
	i, j := 0, 0
	for c := range req.Charges {
		l := req.Charges[c].Limit
		for range l.Tiers {
			if l.Mode == limit.Enforce && l.OnStoreFailure == limit.Backstop {
				never := d.Results[i].Never
				d.Revise().Adopt(i, &x.decision.Results[j])
				if r := &d.Results[i]; r.Never != never { // too much for this instance's part, not for the limit
					r.Never, r.RetryAt = false, now.UnixMicro()+fallbackRetryAfter
				}
				j++
			}
			i++
		}
	}
	return nil
}

// askLocal asks the local store. It takes no context, because the local store does not wait for anything.
func (f *Fallback) askLocal(x *scratch, now time.Time, charge bool) error {
	if !charge {
		return f.local.Peek(context.Background(), &x.request, now, &x.decision)
	}
	err := f.local.Decide(context.Background(), &x.request, now, &x.decision)
	if err == nil && x.decision.Allowed && f.localBoot.Load() == 0 {
		f.localBoot.Store(x.decision.ID.Hi)
	}
	return err
}

// remember makes what was admitted pending for the replay.
func (f *Fallback) remember(req *limit.Request, now time.Time, x *scratch, cause error) {
	lost := errors.Is(cause, limit.ErrFull)
	at := now.UnixMicro() + f.clockOffset.Load()
	for i := range req.Charges {
		c := &req.Charges[i]
		switch {
		case x.parts[i] == nil: // not enforced
		case lost:
			f.dropped.Add(c.Cost * int64(len(c.Limit.Tiers)))
		default:
			f.pending.add(req.Owner, c, x.parts[i].tiers, at)
		}
	}
}

// Refund gives back what a decision charged, in the store or here. What the backstop gets back is no longer pending for
// the replay. If it has been replayed already, it stays charged in the store. See [limit.Store].
func (f *Fallback) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if err := limit.CheckRefund(r, units); err != nil {
		return limit.Refund{}, err
	}
	if hi := r.ID().Hi; hi == 0 || hi != f.localBoot.Load() {
		return f.c.Store.Refund(ctx, r, units, now)
	}
	back, err := f.local.Refund(ctx, r, units, now)
	// A receipt that gives nothing back any more is not remembered, so it must cancel nothing: it could do so many
	// times.
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
				f.pending.cancel(r.Owner(), l.ID, tier, e.Value, e.At()+f.clockOffset.Load(), given)
			}
		}
	}
	return back, nil
}
