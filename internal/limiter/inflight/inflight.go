// Package inflight keeps the places of requests in flight. A request takes a place of each limit with concurrency that
// applies to it. A place counts until the request gives it back or, if nobody renews it, for the period of the limit,
// which plans call holdFor. The package renews places while a request is served, and gives them back when it has ended.
package inflight

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// renewals is how many times places are renewed within the shortest holdFor. If two renewals in a row fail, the third
// one still comes in time, unless the calls that failed have taken long.
const renewals = 4

// Keeper renews places in a store, and gives them back. Its fields must not change. It is safe for concurrent use.
type Keeper struct {
	Store limit.Store // its own deadline bounds each call
	Now   func() time.Time
	Log   *slog.Logger

	failures clock.Throttle // of the log
}

// Places holds the places that one request has taken. A nil *Places holds none, and its methods do nothing. It is safe
// for concurrent use.
type Places struct {
	keeper   *Keeper
	shortest time.Duration // holdFor of the places that expire first
	renewal  limit.Request // takes each place once more

	mu       sync.Mutex       // of the fields below
	receipts []*limit.Receipt // each of all places; more than one if giving back an older one has failed
	timer    *time.Timer      // nil before Hold
	released bool             // since the first call of Release, also if that has failed
}

// HoldFor returns the longest holdFor of the places that the decision took: for so long they can be given back. It
// returns 0 if the decision took no place.
func HoldFor(d *limit.Decision) (longest time.Duration) {
	for i := range d.Results {
		if r := &d.Results[i]; r.Charged > 0 && r.Limit().CountsPlaces() {
			longest = max(longest, r.Tier.Period)
		}
	}
	return longest
}

// Take moves the places of a receipt to a new Places. It returns nil if there are none. It changes r, which nobody else
// may use meanwhile.
func (k *Keeper) Take(r *limit.Receipt) *Places {
	taken := r.Split(func(e *limit.ReceiptEntry) bool { return e.Units > 0 && e.Tier.Limit().CountsPlaces() })
	entries := taken.Entries()
	if len(entries) == 0 {
		return nil
	}
	p := &Places{keeper: k, shortest: entries[0].Tier.Period, renewal: limit.Request{Owner: r.Owner()}}
	for i := range entries {
		e := &entries[i]
		p.shortest = min(p.shortest, e.Tier.Period)
		p.renewal.Charges = append(p.renewal.Charges,
			limit.Charge{Limit: e.Tier.Limit().Renewal(), Value: e.Counter().Value, Cost: e.Units})
	}
	p.add(taken)
	return p
}

// add adds a receipt, which can be given back until the last of its places expires.
func (p *Places) add(r *limit.Receipt) {
	end := int64(0) // µs since 1970
	for _, e := range r.Entries() {
		end = max(end, e.Params().End)
	}
	r.KeepFor(time.Duration(end-r.Issued()) * time.Microsecond)
	p.receipts = append(p.receipts, r)
}

// Hold renews the places until release is called, which gives them back. Failures are logged, and tried again after a
// quarter of the shortest holdFor, until the places expire. A further call of Hold changes nothing.
func (p *Places) Hold() (release func()) {
	if p == nil {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer == nil && !p.released {
		p.timer = time.AfterFunc(p.shortest/renewals, p.tick)
	}
	return func() {
		if _, err := p.Release(context.Background()); err != nil {
			p.warn("the places of a request that has ended were not given back; other requests may be denied until "+
				"they are, or expire", err)
		}
	}
}

// tick renews the places. After a release it gives back what that could not.
func (p *Places) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.released {
		if _, err := p.giveBack(context.Background(), len(p.receipts)); err == nil {
			return
		}
	} else if err := p.renew(context.Background()); err != nil {
		p.warn("the places of a request in flight were not renewed; if that goes on they expire, and more requests "+
			"than the limit may be served", err)
	}
	p.timer.Reset(p.shortest / renewals)
}

// warn logs a failure, once a second at most: while the store is away, each request fails.
func (p *Places) warn(what string, err error) {
	k := p.keeper
	notLogged, ok := k.failures.Admit(k.Now())
	if !ok {
		return
	}
	k.Log.Warn(what, "tenant", p.renewal.Owner.Name, "limit", p.renewal.Charges[0].Limit.ID, "next_try",
		p.shortest/renewals, "error", err, "not_logged", notLogged)
}

// Renew takes each place once more, and gives the older ones back. Once Release was called, it does nothing. After an
// error the places count for at least as long as before, and it can be called again.
func (p *Places) Renew(ctx context.Context) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.released {
		return nil
	}
	return p.renew(ctx)
}

func (p *Places) renew(ctx context.Context) error {
	var d limit.Decision
	if err := p.keeper.Store.Decide(ctx, &p.renewal, p.keeper.Now(), &d); err != nil {
		return fmt.Errorf("renew places: %w", err)
	}
	if !d.Allowed {
		return errors.New("renew places: the store does not answer, and onStoreFailure of a limit is closed")
	}
	r, older := d.Receipt(), len(p.receipts)
	if len(r.Entries()) == 0 { // the store does not answer, and the limits are open: the older places stay
		return nil
	}
	p.add(r)
	if _, err := p.giveBack(ctx, older); err != nil {
		return fmt.Errorf("the places are renewed, and count twice until the older ones are given back: %w", err)
	}
	return nil
}

// Release gives the places back. It returns how many of each limit, by its ID, still counted until then. After an error
// these are the ones that were given back, and Release can be called again for the others.
func (p *Places) Release(ctx context.Context) (map[string]int64, error) {
	if p == nil {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = true
	returned, err := p.giveBack(ctx, len(p.receipts))
	if err == nil && p.timer != nil {
		p.timer.Stop()
	}
	return returned, err
}

// giveBack gives back the first n receipts. It keeps those for which that fails, unless they have expired.
func (p *Places) giveBack(ctx context.Context, n int) (returned map[string]int64, err error) {
	returned = map[string]int64{}
	var kept []*limit.Receipt
	for _, r := range p.receipts[:n] {
		now := p.keeper.Now()
		got, failure := p.keeper.Store.Settle(ctx, r, nil, now) // nil: no unit was used
		switch {
		case failure == nil:
			for i, e := range r.Entries() {
				returned[e.Tier.Limit().ID] += got.Returned[i]
			}
		case !r.Expired(now.UnixMicro()):
			err = errors.Join(err, fmt.Errorf("give back places: %w", failure))
			kept = append(kept, r)
		}
	}
	p.receipts = append(kept, p.receipts[n:]...)
	return returned, err
}
