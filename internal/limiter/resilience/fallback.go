package resilience

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

var _ limit.Store = (*Fallback)(nil)

// ErrFailClosed is in the error of a decision if the store did not decide and the fallback limiter must not or cannot:
// a limit is [limit.Closed], or there is no memory left to count in. The fallback limiter charged nothing.
var ErrFailClosed = errors.New("denied, because the limits cannot be counted")

const (
	// DefaultFallbackBytes holds the counters of some 20,000 owners with one limit each, and the pending units of some
	// 9,000.
	DefaultFallbackBytes = 16 << 20

	// DefaultReplayPerSecond is how many replay requests an instance sends in a second. The bound protects a store that
	// has just recovered from all instances' pending units at once.
	DefaultReplayPerSecond = 100

	minFallbackBytes = 32 << 10 // holds some 40 owners with one limit each

	// pendingDivisor: pending units may take a quarter of the bytes. Counters get the rest, because a tenant without
	// room for its counters is denied. A tenant without room for its pending units is only admitted too much later on.
	pendingDivisor = 4

	// fallbackRetryAfter is Retry-After, in µs, for a cost that only the store can grant. It is the breaker's default
	// cooldown, after which the store is called again.
	fallbackRetryAfter = 1_000_000
)

// FallbackConfig sets up a [Fallback].
type FallbackConfig struct {
	Store limit.Store // required

	// ReplayTo is the store that the replay charges, by requests with [limit.LeaseRequest]. If nil, Store is charged;
	// it must then pass requests with a LeaseRequest on.
	ReplayTo limit.Store

	// Instances returns how many processes share the counters of one limit now, as far as is known: those of this cell,
	// or those of all cells if other cells share the store. If it is nil or returns less than 1, MaxInstances is used.
	Instances    func(*limit.Limit) int
	MaxInstances int // how many processes may share the store at most (reserved concurrency); 0 means 1

	Bytes     int64 // bounds the counters and the pending units, at least 32 KiB; 0 means DefaultFallbackBytes
	PerSecond int   // how many replay requests are sent, 1..10,000; 0 means DefaultReplayPerSecond

	Runtime *clock.Runtime // if nil, the machine's

	Log *slog.Logger // default slog.Default(); gets at most three lines a second, see noteFailure and partOf
}

// Fallback is the fallback limiter. It wraps another [limit.Store] and keeps deciding while that store does not answer.
// A decision that it makes by itself is marked Degraded. Each limit is then decided by its OnStoreFailure:
//
//   - open admits. The decision says that all of the limit remains.
//   - closed denies the whole request, with [ErrFailClosed].
//   - backstop counts in this process, in this instance's part of the limit. For each owner and value, the part of each
//     tier is a token bucket with a rate of b = max(1, units/instances) per period and a burst of b. The period of a
//     quota is the length of its calendar period. If the tier is a token bucket itself, its rate and its burst are each
//     divided. A rate that cannot be counted exactly is rounded down by less than a hundredth. A cost above the part
//     and not above the limit is not Never: it is denied until the store is back. Every limit has a part.
//
// Bound: in any interval as long as the period, and of a quota in each calendar period, an instance admits at most 2·b
// by the backstop. Of a tier that is a token bucket, it admits at most its parts of the rate and of the burst. So all
// instances together admit at most the sum of 2·max(1, units/instances), in addition to what the store admitted.
//
// A cost above what a limit can ever hold is Never, and all limits of a request are charged or none, as by every store.
// Shadow limits are not counted. Clients see the limit's own id; the size and the remaining units that they see are
// those of the instance's part.
//
// Addresses and anonymous callers take at most half of the memory, both of the counters and of the pending units. If
// there is no memory left for a new address, it shares a counter with others, see package memory. So a flood of
// addresses takes no memory of tenants. A tenant for whom there is no memory left gets [ErrFailClosed].
//
// # Replay
//
// When the store answers again, the units that backstop and open limits admitted are charged there, even if the store
// has fewer left. The units of a window are charged in the window in which they were admitted, if it is still open. Of
// a bucket, only those units are charged that the instance's part of it has not refilled since. Before the replay, the
// store still admits what it has left.
//
//   - A charge that was not sent stays pending.
//   - A charge whose outcome is not known is not sent again, so its units may be missing in the store. Then too much
//     may be admitted, within the bound above.
//   - If a decision failed although the store had charged it, its units are charged twice. Then too little is admitted.
//   - Units for which there is no memory, and units of a store that is full, are dropped, and counted as dropped.
//
// # Errors
//
// An error that is the request's own ([limit.ErrInvalidRequest] and the like) is returned. So is [context.Canceled] if
// the caller gave up, and every error of a request that has LeaseRequests: whoever corrects a counter or leases units
// has to know that the store did not do so. A request whose LeaseRequests only charge units at [limit.AtDecision] is an
// exception: it is decided like a request of that cost, so the units are charged only if they fit. Nothing is retried:
// a decision takes as long as the store takes to fail.
type Fallback struct {
	config    FallbackConfig
	local     *memory.Store // the instance's parts of limits
	parts     *lru.Cache[partKey, *part]
	localBoot atomic.Uint64 // the Hi that all receipts of local have in their IDs; 0: local has made no receipt
	pool      sync.Pool

	clockOffset atomic.Int64 // the store's clock minus the caller's, µs, at the last answer
	pending     pendingCharges
	replay      replayer

	// When the last line was logged, s since 1970: about a store that did not answer, about a request that the store
	// cannot decide, and about a limit that has no part.
	loggedStore, loggedRequest, loggedPart atomic.Int64

	failures, undecidable, backstop, open, closed, chargedBack, dropped atomic.Int64

	fullest atomic.Int64 // limit.Decision.Fullest of the replay requests: the largest since TakeFullest
}

// FallbackStats counts since the start, except where a field says "now".
type FallbackStats struct {
	Failures    int64 // decisions that the store did not make
	Undecidable int64 // of Failures: the store answered that it cannot decide the request; see limit.Answered
	Backstop    int64 // of Failures: at least one backstop limit decided, whether it admitted or denied
	Open        int64 // of Failures: admitted, because the request had only open limits and shadows
	Closed      int64 // of Failures: denied with ErrFailClosed
	ChargedBack int64 // units that were replayed, over all tiers
	Dropped     int64 // units that should have been replayed, and were not, over all tiers
	Waiting     int64 // owners that have pending units now
	Bytes       int64 // memory that the counters and the pending units take now
}

// TakeFullest returns limit.Decision.Fullest of the fullest counter that was replayed since the last call, or 0 if none
// was. If it is above 1000, the store and the fallback limiter together admitted more than the limit.
func (f *Fallback) TakeFullest() int64 { return f.fullest.Swap(0) }

// NewFallback makes a fallback limiter. The error names the field. Close the limiter when done; that does not close the
// store.
func NewFallback(config FallbackConfig) (*Fallback, error) {
	if config.ReplayTo == nil {
		config.ReplayTo = config.Store
	}
	if config.MaxInstances == 0 {
		config.MaxInstances = 1
	}
	if config.Bytes == 0 {
		config.Bytes = DefaultFallbackBytes
	}
	if config.PerSecond == 0 {
		config.PerSecond = DefaultReplayPerSecond
	}
	if config.Log == nil {
		config.Log = slog.Default()
	}
	switch {
	case config.Store == nil:
		return nil, errors.New("fallback limiter: Store is missing")
	case config.MaxInstances < 1:
		return nil, fmt.Errorf("fallback limiter: MaxInstances %d is below 1", config.MaxInstances)
	case config.Bytes < minFallbackBytes:
		return nil, fmt.Errorf("fallback limiter: Bytes %d is below %d", config.Bytes, minFallbackBytes)
	case config.PerSecond < 1 || config.PerSecond > 10_000:
		return nil, fmt.Errorf("fallback limiter: PerSecond %d is outside 1..10000", config.PerSecond)
	}
	f := &Fallback{config: config}
	f.parts, _ = lru.New[partKey, *part](maxCachedParts) // no error: the size is above 0
	f.pending.byOwner, f.pending.bound = make(map[limit.Owner]*ownerPending), config.Bytes/pendingDivisor
	f.pool.New = func() any { return new(scratch) }
	var err error
	counted := config.Bytes - f.pending.bound
	f.local, err = memory.New(memory.Config{MaxBytes: counted, UnidentifiedBytes: counted / 2, Log: config.Log})
	if err != nil {
		return nil, fmt.Errorf("fallback limiter: %w", err)
	}
	return f, nil
}

// scratch is the memory that one decision without the store needs.
type scratch struct {
	request  limit.Request  // to the local store: the charges that the backstop counts
	decision limit.Decision // of the local store
	parts    []*part        // for each charge of the caller's request; nil if its limit is not enforced
}

// Stats returns the counts of the decisions that the store did not make, and of the replay.
func (f *Fallback) Stats() FallbackStats {
	return FallbackStats{Failures: f.failures.Load(), Undecidable: f.undecidable.Load(), Backstop: f.backstop.Load(),
		Open: f.open.Load(), Closed: f.closed.Load(), ChargedBack: f.chargedBack.Load(),
		Dropped: f.dropped.Load() + f.pending.dropped.Load(), Waiting: f.pending.waiting.Load(),
		Bytes: f.local.Bytes() + f.pending.size()}
}

// Accepts asks the store below.
func (f *Fallback) Accepts(l *limit.Limit) error { return f.config.Store.Accepts(l) }

// AcceptsPlan asks the store below. See [limit.PlanAccepter].
func (f *Fallback) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	return limit.AcceptsPlan(f.config.Store, all, together...)
}

// Decide asks the store below, and decides by itself if that does not answer. See [Fallback] and [limit.Store].
func (f *Fallback) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := f.config.Store.Decide(ctx, req, now, d)
	if err == nil {
		f.noteAnswer(now, d)
		return nil
	}
	plain := withoutLeases(req)
	if !decidesWithoutStore(ctx, plain, err) {
		return err
	}
	f.noteFailure(now, err)
	return f.decideAlone(plain, now, d, err, true)
}

// Peek asks the store below, and looks at the local counters if that does not answer. See [limit.Store].
func (f *Fallback) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := f.config.Store.Peek(ctx, req, now, d)
	if err == nil || !decidesWithoutStore(ctx, req, err) {
		return err
	}
	return f.decideAlone(req, now, d, err, false)
}

// noteAnswer keeps the difference between the store's clock and the caller's, and starts the replay if units are
// pending.
func (f *Fallback) noteAnswer(now time.Time, d *limit.Decision) {
	if offset := d.Now - now.UnixMicro(); f.clockOffset.Load() != offset {
		f.clockOffset.Store(offset)
	}
	if f.pending.waiting.Load() > 0 {
		f.startReplay(now)
	}
}

// decidesWithoutStore reports whether the fallback limiter decides after this error of the store. It does not if the
// request is invalid, or leases units, or if its caller gave up.
func decidesWithoutStore(ctx context.Context, req *limit.Request, err error) bool {
	invalid := errors.Is(err, limit.ErrInvalidRequest) || errors.Is(err, limit.ErrInvalidCost) ||
		errors.Is(err, limit.ErrDuplicateCounter)
	return !invalid && len(req.Leases) == 0 && !errors.Is(ctx.Err(), context.Canceled)
}

// withoutLeases returns a request of the same units without LeaseRequests, if those only charge units at
// [limit.AtDecision], the same number in all tiers of a limit. Otherwise it returns req.
func withoutLeases(req *limit.Request) *limit.Request {
	if len(req.Leases) == 0 || req.Check() != nil {
		return req
	}
	plain, leases := &limit.Request{Owner: req.Owner, Charges: slices.Clone(req.Charges)}, req.Leases
	for i := range plain.Charges {
		c := &plain.Charges[i]
		n := len(c.Limit.Tiers)
		c.Cost = leases[0].Correction
		only := limit.LeaseRequest{Correction: c.Cost, CorrectionAt: limit.AtDecision}
		if c.Cost <= 0 || slices.ContainsFunc(leases[:n], func(a limit.LeaseRequest) bool { return a != only }) {
			return req
		}
		leases = leases[n:]
	}
	return plain
}

// noteFailure counts a decision that the store did not make, and logs it. It logs one line a second about a store that
// did not answer, and one about requests that the store answered it cannot decide, so neither kind hides the other.
func (f *Fallback) noteFailure(now time.Time, cause error) {
	n, lastLogged := f.failures.Add(1), &f.loggedStore
	text := "the store did not decide; each limit's onStoreFailure applies"
	if limit.Answered(cause) {
		n, lastLogged = f.undecidable.Add(1), &f.loggedRequest
		text = "the store answered that it cannot decide a request; each limit's onStoreFailure applies"
	}
	last, sec := lastLogged.Load(), now.Unix()
	if sec != last && lastLogged.CompareAndSwap(last, sec) {
		f.config.Log.Warn(text, "error", cause, "failures", n)
	}
}

// instancesOf returns how many processes share the counters of the limit, at least 1.
func (f *Fallback) instancesOf(l *limit.Limit) int64 {
	if f.config.Instances != nil {
		if n := f.config.Instances(l); n > 0 {
			return int64(n)
		}
	}
	return int64(f.config.MaxInstances)
}

// partOf returns this instance's part of a limit, from the cache or made new. It logs an error at most once a second.
func (f *Fallback) partOf(l *limit.Limit, instances int64, now time.Time) (*part, error) {
	key := partKey{l, instances}
	if p, ok := f.parts.Get(key); ok && p.isCurrent(now) {
		return p, nil
	}
	p, err := partOf(l, instances, now)
	if err != nil {
		if sec := now.Unix(); f.loggedPart.Swap(sec) != sec {
			f.config.Log.Error("this limit has no fallback, which is a defect: its requests are denied while the "+
				"store is away",
				"limit", l.ID, "error", err)
		}
		return nil, err
	}
	f.parts.Add(key, p)
	return p, nil
}

// decideAlone decides without the store. cause is the store's error. If charge is false, it charges nothing and counts
// nothing, as for a Peek.
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
		f.addPending(req, now, x, cause)
	}
	return nil
}

var errLimitClosed = errors.New("a limit has onStoreFailure closed")

// chooseCharges writes to x the request to the local store: for each charge of a backstop limit, a charge of this
// instance's part of the limit. It returns an error if a limit is closed or has no part.
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
		p, err := f.partOf(c.Limit, f.instancesOf(c.Limit), now)
		if err != nil {
			return err
		}
		if x.parts[i] = p; c.Limit.OnStoreFailure == limit.Backstop {
			x.request.Charges = append(x.request.Charges, limit.Charge{Limit: p.limit, Value: c.Value, Cost: c.Cost})
		}
	}
	return nil
}

// fillResults writes the results of all tiers to d. It charges the local store if charge is true and no result is
// Never.
func (f *Fallback) fillResults(req *limit.Request, now time.Time, d *limit.Decision, x *scratch, charge bool) error {
	for i := range d.Results { // decide as if nothing had been used, which finds the costs that no limit can ever hold
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
				if r := &d.Results[i]; r.Never != never { // too much for this instance's part, and not for the limit
					r.Never, r.RetryAt = false, now.UnixMicro()+fallbackRetryAfter
				}
				j++
			}
			i++
		}
	}
	return nil
}

// askLocal charges the local store, or only looks at it if charge is false. It takes no context, because the local
// store waits for nothing.
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

// addPending makes the units of an admitted request pending for the replay, or drops them if the store is full. cause
// is the error for which the store did not decide.
func (f *Fallback) addPending(req *limit.Request, now time.Time, x *scratch, cause error) {
	full := errors.Is(cause, limit.ErrFull) // the store has no room for these counters
	at := now.UnixMicro() + f.clockOffset.Load()
	for i := range req.Charges {
		c := &req.Charges[i]
		switch {
		case x.parts[i] == nil: // not enforced
		case c.Limit.CountsPlaces(): // requests that are still in flight renew their places
		case full:
			f.dropped.Add(c.Cost * int64(len(c.Limit.Tiers)))
		default:
			f.pending.add(req.Owner, c, x.parts[i].tiers, at)
		}
	}
}

// Settle corrects what a decision charged, in the store or in the local store, whichever made the receipt. Units that
// were charged to the local store and not used are then no longer pending for the replay; if they have been replayed
// already, they stay charged in the store. Units beyond what the local store charged become pending. See [limit.Store].
func (f *Fallback) Settle(
	ctx context.Context, r *limit.Receipt, used []int64, now time.Time,
) (limit.Settlement, error) {
	out, err := r.BeginSettle(used)
	if err != nil {
		return out, err
	}
	if hi := r.ID().Hi; hi == 0 || hi != f.localBoot.Load() {
		return f.config.Store.Settle(ctx, r, used, now)
	}
	out, err = f.local.Settle(ctx, r, used, now)
	// The local store does not keep receipts that came too late to give anything back. Such a receipt must not cancel
	// pending units, because it could be presented many times.
	if late := now.UnixMicro() >= r.Until() || out.Expired; err != nil || out.Repeated || late {
		return out, err
	}
	entries := r.Entries()
	for i := range entries {
		e := &entries[i]
		l := e.Tier.Limit()
		for tier := range l.Tiers {
			if &l.Tiers[tier] == e.Tier {
				f.pending.cancel(r.Owner(), l.ID, tier, e.Value, e.At()+f.clockOffset.Load(), r.Unused(i, used),
					out.Returned[i])
			}
		}
	}
	if over := r.Overage(used); over != nil {
		f.addPendingOverage(over, now)
	}
	return out, nil
}

// addPendingOverage makes units that were used beyond what the local store charged pending for the replay.
func (f *Fallback) addPendingOverage(over *limit.Overage, now time.Time) {
	at, first := now.UnixMicro()+f.clockOffset.Load(), 0
	for _, c := range over.Charges {
		leases := over.Leases[first : first+len(c.Limit.Tiers)]
		first += len(c.Limit.Tiers)
		if c.Cost = 0; c.Limit.PartOf != nil { // otherwise the local store has charged nothing of it
			c.Limit = c.Limit.PartOf
		}
		for _, a := range leases {
			c.Cost = max(c.Cost, a.Correction)
		}
		if p, err := f.partOf(c.Limit, f.instancesOf(c.Limit), now); err == nil {
			f.pending.add(over.Owner, &c, p.tiers, at)
		}
	}
}
