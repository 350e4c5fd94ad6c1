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

// DefaultKeepUnspentFor is how long an unspent charge is kept for a request that needs it. It is a few seconds: long
// enough for the next attempt of a client that a rate denied, and short enough that a quota does not lack for long the
// units that nobody spends.
const DefaultKeepUnspentFor = 5 * time.Second

// Backend is one store of counters and its guard.
type Backend struct {
	Store limit.Store
	Guard Guard // If nil, the store is called directly.
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

	// how long an unspent charge is kept; 0 means DefaultKeepUnspentFor, below 0 means not at all
	KeepUnspentFor time.Duration
}

// Store is a [limit.Store] that sends each limit to the store that counts it. With one backend it only calls that store
// through its guard. Make it with [New]. The package comment describes how it decides.
type Store struct {
	cell           string // Config.Cell; "" if no limit names this cell
	separatesHomes bool   // Config.Homes was not nil
	holdFor        time.Duration
	ownCell        target // decides over the limits that this cell counts
	addMutex       sync.Mutex
	homes          atomic.Pointer[homeCells]
}

// homeCells are the home cells that are known. A homeCells is never changed, only replaced.
type homeCells struct {
	positions map[string]int // of each cell, by name: its position in pairs
	// each decides over the limits of its home cell and over everything that is asked after it; the last one is asked
	// first
	pairs []*pair
}

// New returns a router. Close it when done; closing it does not close the stores.
func New(c Config) (*Store, error) {
	if c.Rates.Store == nil {
		return nil, errors.New("router: needs a store for rates")
	}
	if c.KeepUnspentFor == 0 {
		c.KeepUnspentFor = DefaultKeepUnspentFor
	}
	s := &Store{cell: c.Cell, separatesHomes: c.Homes != nil, holdFor: c.KeepUnspentFor,
		ownCell: target{backend: c.Rates}}
	if c.Quotas.Store != nil {
		s.ownCell = target{pair: newPair("", c.Quotas, s.ownCell, c.KeepUnspentFor)}
	}
	s.homes.Store(&homeCells{})
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(c.Homes))) { // the pair added last is asked first
		if err := s.Add(name, c.Homes[name]); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Add makes one more home cell known. It is asked before the others.
func (s *Store) Add(name string, home Backend) error {
	s.addMutex.Lock()
	defer s.addMutex.Unlock()
	before, below := s.homes.Load(), s.ownCell
	if _, twice := before.positions[name]; name == "" || home.Store == nil || twice {
		return fmt.Errorf("router: home %q needs a name of its own and a store", name)
	}
	if name == s.cell {
		return fmt.Errorf("router: home %q is the cell itself", name)
	}
	if n := len(before.pairs); n > 0 {
		below = target{pair: before.pairs[n-1]}
	}
	top := newPair(name, home, below, s.holdFor)
	after := &homeCells{positions: maps.Clone(before.positions), pairs: append(slices.Clip(before.pairs), top)}
	if after.positions == nil {
		after.positions = make(map[string]int)
	}
	after.positions[name] = len(before.pairs)
	s.homes.Store(after)
	return nil
}

// IsQuota reports whether the limit is a quota, which the store for quotas counts.
func IsQuota(l *limit.Limit) bool {
	return len(l.Tiers) > 0 && l.Tiers[0].Calendar != nil
}

// homePosition returns the position in known.pairs of the home cell that keeps the limit, or −1 if this cell keeps it.
func (s *Store) homePosition(known *homeCells, l *limit.Limit) (int, error) {
	if !s.separatesHomes || l == nil || l.Home == "" || l.Home == s.cell {
		return -1, nil
	}
	n, ok := known.positions[l.Home]
	if !ok {
		return 0, fmt.Errorf("limit %s of cell %s: %w", l.ID, l.Home, ErrNoHome)
	}
	return n, nil
}

// targetAt returns what decides over limits of which the topmost one has this position. It reaches all pairs below.
func (s *Store) targetAt(known *homeCells, place int) target {
	if place < 0 {
		return s.ownCell
	}
	return target{pair: known.pairs[place]}
}

// targetOf returns what decides over the request.
func (s *Store) targetOf(req *limit.Request) (target, error) {
	top, known := -1, s.homes.Load()
	for i := range req.Charges {
		n, err := s.homePosition(known, req.Charges[i].Limit)
		if err != nil {
			return target{}, err
		}
		top = max(top, n)
	}
	return s.targetAt(known, top), nil
}

// Decide charges all limits of the request or none. See [limit.Store].
func (s *Store) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	to, err := s.targetOf(req)
	if err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	return to.decide(ctx, req, now, d)
}

// Peek evaluates the request as Decide does, and charges nothing. See [limit.Store].
func (s *Store) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	to, err := s.targetOf(req)
	if err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	return to.peek(ctx, req, now, d)
}

// Refund gives back what a receipt names, in each store. If one store fails, or remembers too many refunds
// ([limit.ErrRefundsFull]), others may have given back their parts. Calling Refund again refunds what is still missing.
// See [limit.Store].
func (s *Store) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	top, known := -1, s.homes.Load()
	if s.separatesHomes {
		if err := limit.CheckRefund(r, units); err != nil {
			return limit.Refund{}, err
		}
		for _, e := range r.Entries() {
			n, err := s.homePosition(known, e.Tier.Limit())
			if err != nil {
				return limit.Refund{}, err
			}
			top = max(top, n)
		}
	}
	to := s.targetAt(known, top)
	return to.refund(ctx, r, units, now)
}

// Accepts returns what the store that would count the limit answers.
func (s *Store) Accepts(l *limit.Limit) error {
	known := s.homes.Load()
	n, err := s.homePosition(known, l)
	if err != nil {
		return err
	}
	to := s.targetAt(known, n)
	return to.accepts(l)
}

// AcceptsPlan asks every store about the limits that it would keep. See [limit.PlanAccepter].
func (s *Store) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	if pairs := s.homes.Load().pairs; len(pairs) > 0 {
		return pairs[len(pairs)-1].acceptsPlan(all, together...)
	}
	return s.ownCell.acceptsPlan(all, together...)
}

// pairs returns the pairs of all home cells and the one of the cell's own quotas.
func (s *Store) pairs() []*pair {
	all := slices.Clone(s.homes.Load().pairs)
	if s.ownCell.pair != nil {
		all = append(all, s.ownCell.pair)
	}
	return all
}

// Close refunds the unspent charges, and waits until returns that are under way are done or ctx ends. Call it when no
// decision is under way.
func (s *Store) Close(ctx context.Context) error {
	var errs []error
	for _, pair := range s.pairs() {
		errs = append(errs, pair.close(ctx))
	}
	return errors.Join(errs...)
}

// Unspent returns how many unspent charges are kept.
func (s *Store) Unspent() int {
	count := 0
	for _, pair := range s.pairs() {
		count += pair.unspent.len()
	}
	return count
}
