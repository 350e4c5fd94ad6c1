package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

var _ limit.Store = (*Homes)(nil)

// ErrNoHome is in the error for a limit that is kept in a cell whose counters there is no way to. Nothing was asked.
var ErrNoHome = errors.New("no way to the counters of its home cell")

// Homes is a [limit.Store] over a cell's own store and those of other cells, which count the limits that are kept there
// ([limit.Limit.Home]): quotas, and rates too small to be divided. All or nothing holds over all of them as over two
// stores, in the order of the homes' names, the own store last.
//
// Another cell may be far away. Of a request with leases that asks nothing of it (Request.Ahead), it is not asked at all: its
// results are then [limit.Result.Unasked]. Make it with [NewHomes].
type Homes struct {
	cell    string // "": no limit names it
	own     limit.Store
	holdFor time.Duration
	adding  sync.Mutex
	known   atomic.Pointer[chain]
}

// chain is the homes there are. It does not change.
type chain struct {
	numbers map[string]int // by name
	joined  []*Store       // of each home: what it keeps, and all that is below
}

// HomesConfig sets up a [Homes].
type HomesConfig struct {
	// Cell is the name of the deciding cell. Limits with that home are in Own.
	Cell    string
	Own     limit.Store            // required
	Homes   map[string]limit.Store // the counters of other cells, by cell
	HoldFor time.Duration          // as in [Config]
}

// NewHomes joins the stores. Close it when done; that closes none of them.
func NewHomes(c HomesConfig) (*Homes, error) {
	if c.Own == nil {
		return nil, errors.New("router: needs the cell's own store")
	}
	h := &Homes{cell: c.Cell, own: c.Own, holdFor: c.HoldFor}
	h.known.Store(&chain{})
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(c.Homes))) { // what is on top is asked first
		if err := h.Add(name, c.Homes[name]); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// Add makes one more home known, which is asked before the others.
func (h *Homes) Add(name string, store limit.Store) error {
	h.adding.Lock()
	defer h.adding.Unlock()
	was, below := h.known.Load(), h.own
	if _, twice := was.numbers[name]; name == "" || store == nil || twice {
		return fmt.Errorf("router: home %q needs a name of its own and a store", name)
	}
	if name == h.cell {
		return fmt.Errorf("router: home %q is the cell itself", name)
	}
	if n := len(was.joined); n > 0 {
		below = was.joined[n-1]
	}
	s, err := New(Config{Rates: below, Quotas: store, HoldFor: h.holdFor, home: name})
	if err != nil {
		return err
	}
	now := &chain{numbers: maps.Clone(was.numbers), joined: append(slices.Clip(was.joined), s)}
	if now.numbers == nil {
		now.numbers = make(map[string]int)
	}
	now.numbers[name] = len(was.joined)
	h.known.Store(now)
	return nil
}

// of is the store for limits of all these homes: the lowest one that reaches each.
func (h *Homes) of(homes func(yield func(*limit.Limit) bool)) (limit.Store, error) {
	most, k := -1, h.known.Load()
	for l := range homes {
		if l == nil || l.Home == "" || l.Home == h.cell {
			continue
		}
		n, known := k.numbers[l.Home]
		if !known {
			return nil, fmt.Errorf("limit %s of cell %s: %w", l.ID, l.Home, ErrNoHome)
		}
		most = max(most, n)
	}
	if most < 0 {
		return h.own, nil
	}
	return k.joined[most], nil
}

func (h *Homes) ofRequest(req *limit.Request) (limit.Store, error) {
	return h.of(func(yield func(*limit.Limit) bool) {
		for i := range req.Charges {
			if !yield(req.Charges[i].Limit) {
				return
			}
		}
	})
}

// Decide charges all limits of the request or none. See [limit.Store].
func (h *Homes) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	s, err := h.ofRequest(req)
	if err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	return s.Decide(ctx, req, now, d)
}

// Peek is Decide without the charge. See [limit.Store].
func (h *Homes) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	s, err := h.ofRequest(req)
	if err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	return s.Peek(ctx, req, now, d)
}

// Refund gives back in each store. See [limit.Store].
func (h *Homes) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if err := limit.CheckRefund(r, units); err != nil {
		return limit.Refund{}, err
	}
	s, err := h.of(func(yield func(*limit.Limit) bool) {
		for _, e := range r.Entries() {
			if !yield(e.Tier.Limit()) {
				return
			}
		}
	})
	if err != nil {
		return limit.Refund{}, err
	}
	return s.Refund(ctx, r, units, now)
}

// Accepts asks the store that would keep the limit.
func (h *Homes) Accepts(l *limit.Limit) error {
	s, err := h.of(func(yield func(*limit.Limit) bool) { yield(l) })
	if err != nil {
		return err
	}
	return s.Accepts(l)
}

// AcceptsPlan asks every store about the limits that it would keep. See [limit.PlanAccepter].
func (h *Homes) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	if joined := h.known.Load().joined; len(joined) > 0 {
		return joined[len(joined)-1].AcceptsPlan(all, together...)
	}
	return limit.AcceptsPlan(h.own, all, together...)
}

// Close refunds what is held, and waits for what is being given back, until ctx ends. Call it when no decision is under way.
func (h *Homes) Close(ctx context.Context) error {
	var errs []error
	for _, s := range slices.Backward(h.known.Load().joined) { // from the top, while what is below still answers
		errs = append(errs, s.Close(ctx))
	}
	return errors.Join(errs...)
}
