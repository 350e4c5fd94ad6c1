// Package inflight keeps the places that requests take of limits with concurrency: it renews them while a request is
// served, and gives them back when it has ended.
package inflight

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// renewals is how many times places are renewed within holdFor. Two failures in a row lose no place, unless they take
// long.
const renewals = 4

// Keeper keeps places in a store.
type Keeper struct {
	Store limit.Store
	Now   func() time.Time
	Log   *slog.Logger
}

// Places are those of one request. A nil Places has none.
type Places struct {
	keeper *Keeper
	hold   time.Duration // the shortest time for which a place counts without being renewed
	renews limit.Request // charges each place anew

	mu       sync.Mutex
	receipts []*limit.Receipt // of the places; of more than one only if a call has failed
	timer    *time.Timer      // nil before Hold
	released bool
}

// HoldFor returns the longest time for which a place that the decision took counts without being renewed; 0 if it took
// none.
func HoldFor(d *limit.Decision) (longest time.Duration) {
	for i := range d.Results {
		if r := &d.Results[i]; r.Charged > 0 && r.Limit().Unit == limit.ConcurrentRequests {
			longest = max(longest, r.Tier.Period)
		}
	}
	return longest
}

// Take takes the places out of a receipt that nobody else uses. It returns nil if there are none.
func (k *Keeper) Take(r *limit.Receipt) *Places {
	taken := r.Split(func(e *limit.ReceiptEntry) bool {
		return e.Units > 0 && e.Tier.Limit().Unit == limit.ConcurrentRequests
	})
	entries := taken.Entries()
	if len(entries) == 0 {
		return nil
	}
	p := &Places{keeper: k, hold: limit.MaxKept, renews: limit.Request{Owner: r.Owner()}}
	for i := range entries {
		e := &entries[i]
		p.hold = min(p.hold, e.Tier.Period)
		p.renews.Charges = append(p.renews.Charges,
			limit.Charge{Limit: e.Tier.Limit().Renewal(), Value: e.Counter().Value, Cost: 1})
	}
	p.add(taken)
	return p
}

// add adds a receipt that can be settled for as long as one of its places counts.
func (p *Places) add(r *limit.Receipt) {
	entries, end := r.Entries(), int64(0)
	for i := range entries {
		end = max(end, entries[i].Params().End)
	}
	r.KeepFor(time.Duration(end-r.Issued()) * time.Microsecond)
	p.receipts = append(p.receipts, r)
}

// Hold renews the places every quarter of their shortest time, until release is called, which gives them back. Errors
// are logged, and a release that fails is made again until the places are over.
func (p *Places) Hold() (release func()) {
	if p == nil {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer == nil && !p.released {
		p.timer = time.AfterFunc(p.hold/renewals, p.keep)
	}
	return func() {
		if _, err := p.Release(context.Background()); err != nil {
			p.keeper.Log.Warn("the place of a request that has ended was not given back yet", "error", err)
		}
	}
}

func (p *Places) keep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.released { // the release has failed
		if _, err := p.giveBack(context.Background(), len(p.receipts)); err == nil {
			return
		}
	} else if err := p.renew(context.Background()); err != nil {
		p.keeper.Log.Warn("the place of a request in flight was not renewed", "error", err)
	}
	p.timer.Reset(p.hold / renewals)
}

// Renew charges each place anew, and gives the old one back. Places that were released stay so.
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
	if err := p.keeper.Store.Decide(ctx, &p.renews, p.keeper.Now(), &d); err != nil {
		return fmt.Errorf("renew a place: %w", err)
	}
	if !d.Allowed {
		return errors.New("renew a place: the store does not answer, and its limit is closed then")
	}
	r, old := d.Receipt(), len(p.receipts)
	if len(r.Entries()) == 0 { // the store is away, and the limits are open then: the old place counts while it can
		return nil
	}
	p.add(r)
	_, err := p.giveBack(ctx, old)
	return err
}

// Release gives the places back, once, and returns how many of each limit still counted, by its id. After an error it
// can be called again.
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

// giveBack settles the first n receipts. It keeps those of which the settlement fails, unless their places are over.
func (p *Places) giveBack(ctx context.Context, n int) (returned map[string]int64, err error) {
	returned = map[string]int64{}
	var kept []*limit.Receipt
	for _, r := range p.receipts[:n] {
		now := p.keeper.Now()
		s, failure := p.keeper.Store.Settle(ctx, r, nil, now)
		if failure != nil && !r.Expired(now.UnixMicro()) {
			err = errors.Join(err, fmt.Errorf("give back a place: %w", failure))
			kept = append(kept, r)
			continue
		}
		for i, e := range r.Entries() {
			if failure == nil {
				returned[e.Tier.Limit().ID] += s.Returned[i]
			}
		}
	}
	p.receipts = append(kept, p.receipts[n:]...)
	return returned, err
}
