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

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var _ limit.Store = (*Store)(nil)

// ErrNoHome is wrapped by the error for a limit that is kept in another cell whose counters this process has no store
// for. No store was asked.
var ErrNoHome = errors.New("no way to the counters of its home cell")

// Backend is one store of counters and its guard.
type Backend struct {
	Store limit.Store
	Guard Guard // If nil, the store is called directly.

	name string // what the store counts, for errors
}

// Guard makes the calls of one store, or refuses to make them. It returns the store's error, or one of its own. After
// an error of Decide or Peek the decision is empty, whether the store was called or not.
//
// It has a method for each call and not one for all of them: a function value would be allocated for each call.
type Guard interface {
	Decide(ctx context.Context, s limit.Store, req *limit.Request, now time.Time, d *limit.Decision) error
	Peek(ctx context.Context, s limit.Store, req *limit.Request, now time.Time, d *limit.Decision) error
	Refund(ctx context.Context, s limit.Store, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error)
}

// decide calls the store through its guard, if it has one.
func (b *Backend) decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if b.Guard != nil {
		return b.Guard.Decide(ctx, b.Store, req, now, d)
	}
	return b.Store.Decide(ctx, req, now, d)
}

// peek calls the store through its guard, if it has one.
func (b *Backend) peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if b.Guard != nil {
		return b.Guard.Peek(ctx, b.Store, req, now, d)
	}
	return b.Store.Peek(ctx, req, now, d)
}

// refund calls the store through its guard, if it has one.
func (b *Backend) refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if b.Guard != nil {
		return b.Guard.Refund(ctx, b.Store, r, units, now)
	}
	return b.Store.Refund(ctx, r, units, now)
}

// Config sets up a [Store].
type Config struct {
	Rates  Backend // required; counts every limit that no other store counts
	Quotas Backend // counts the cell's quotas. If its Store is nil, Rates counts them

	// Cell is the name of this cell: limits with that home are counted in Rates and Quotas.
	Cell string

	// Homes are the stores of other cells, by the cell's name. If nil, all limits with a home are counted with the
	// quotas of this cell. If not nil, a limit whose home is neither Cell nor in Homes is refused with [ErrNoHome].
	Homes map[string]Backend
}

// Store is a [limit.Store] that sends each limit to the store that counts it. With one backend it only calls that store
// through its guard. Make it with [New]. The package comment describes how it decides.
type Store struct {
	rates, quotas  Backend // of this cell
	cell           string  // Config.Cell; "" if no limit names this cell
	separatesHomes bool    // Config.Homes was not nil
	addMutex       sync.Mutex
	known          atomic.Pointer[backends]
	pool           sync.Pool // of *splitRequest
}

// backends are the stores, in the order of the package comment. A backends is never changed, only replaced.
type backends struct {
	all   []Backend
	homes map[string]int // the positions of the home cells in all, by name
}

// New returns a router.
func New(c Config) (*Store, error) {
	if c.Rates.Store == nil {
		return nil, errors.New("router: needs a store for rates")
	}
	c.Rates.name, c.Quotas.name = "rates", "quotas"
	s := &Store{rates: c.Rates, quotas: c.Quotas, cell: c.Cell, separatesHomes: c.Homes != nil}
	s.pool.New = func() any { return new(splitRequest) }
	own := []Backend{c.Rates}
	if c.Quotas.Store != nil {
		own = append(own, c.Quotas)
	}
	s.known.Store(&backends{all: own})
	for _, name := range slices.Sorted(maps.Keys(c.Homes)) {
		if err := s.Add(name, c.Homes[name]); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Add makes one more home cell known.
func (s *Store) Add(name string, home Backend) error {
	s.addMutex.Lock()
	defer s.addMutex.Unlock()
	before := s.known.Load()
	if _, twice := before.homes[name]; name == "" || home.Store == nil || twice {
		return fmt.Errorf("router: home %q needs a name of its own and a store", name)
	}
	if name == s.cell {
		return fmt.Errorf("router: home %q is the cell itself", name)
	}
	home.name = "limits kept in cell " + name
	after := &backends{all: append(slices.Clip(before.all), home), homes: maps.Clone(before.homes)}
	if after.homes == nil {
		after.homes = make(map[string]int)
	}
	after.homes[name] = len(before.all)
	s.known.Store(after)
	return nil
}

// IsQuota reports whether the limit is a quota, which the store for quotas counts.
func IsQuota(l *limit.Limit) bool {
	return len(l.Tiers) > 0 && l.Tiers[0].Calendar != nil
}

// isOneStore reports whether the store of the rates counts everything.
func (s *Store) isOneStore() bool { return s.quotas.Store == nil && !s.separatesHomes }

// position returns the position in known.all of the store that counts the limit.
func (s *Store) position(known *backends, l *limit.Limit) (int, error) {
	switch {
	case l == nil: // any store refuses it
		return 0, nil
	case s.separatesHomes && l.Home != "" && l.Home != s.cell:
		n, ok := known.homes[l.Home]
		if !ok {
			return 0, fmt.Errorf("limit %s of cell %s: %w", l.ID, l.Home, ErrNoHome)
		}
		return n, nil
	case s.quotas.Store != nil && (IsQuota(l) || l.Home != ""):
		return 1, nil
	}
	return 0, nil
}

// Refund gives back what a receipt names, in each store. If one store fails, or remembers too many refunds
// ([limit.ErrRefundsFull]), others may have given back their parts. Calling Refund again refunds what is still missing.
// See [limit.Store].
func (s *Store) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if err := limit.CheckRefund(r, units); err != nil {
		return limit.Refund{}, err
	}
	if s.isOneStore() {
		return s.rates.refund(ctx, r, units, now)
	}
	known, entries := s.known.Load(), r.Entries()
	of := make([]int, len(entries)) // the position of the store that counts each entry
	for i := range entries {
		var err error
		if of[i], err = s.position(known, entries[i].Tier.Limit()); err != nil {
			return limit.Refund{}, err
		}
	}
	out := limit.Refund{Units: make([]int64, len(entries))}
	given := int64(0)
	var failed error
	for n := range known.all {
		if !slices.Contains(of, n) {
			continue
		}
		next := -1
		part := r.Part(func(*limit.ReceiptEntry) bool { next++; return of[next] == n })
		back, err := known.all[n].refund(ctx, part, units, now)
		if err != nil { // what the other stores give back is not lost with it
			failed = errors.Join(failed, fmt.Errorf("%s: %w", known.all[n].name, err))
			continue
		}
		for i := range entries {
			if of[i] == n {
				out.Units[i], back.Units = back.Units[0], back.Units[1:]
				given += out.Units[i]
			}
		}
		out.Repeated, out.Expired = out.Repeated || back.Repeated, out.Expired || back.Expired
	}
	if failed != nil {
		return limit.Refund{}, failed
	}
	// A part that has forgotten the receipt, or that failed the first time, must not hide what another one says.
	out.Repeated, out.Expired = out.Repeated && given == 0, out.Expired && given == 0
	return out, nil
}

// Accepts returns what the store that would count the limit answers.
func (s *Store) Accepts(l *limit.Limit) error {
	known := s.known.Load()
	n, err := s.position(known, l)
	if err != nil {
		return err
	}
	return known.all[n].Store.Accepts(l)
}

// AcceptsPlan asks every store about the limits that it would keep. See [limit.PlanAccepter].
func (s *Store) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	known := s.known.Load()
	for n := range known.all {
		keptHere := func(limits []*limit.Limit) []*limit.Limit {
			return slices.DeleteFunc(slices.Clone(limits), func(l *limit.Limit) bool {
				at, err := s.position(known, l)
				return err != nil || at != n
			})
		}
		lists := make([][]*limit.Limit, len(together))
		for i := range together {
			lists[i] = keptHere(together[i])
		}
		if err := limit.AcceptsPlan(known.all[n].Store, keptHere(all), lists...); err != nil {
			return err
		}
	}
	return nil
}
