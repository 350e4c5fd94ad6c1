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
	Settle(ctx context.Context, s limit.Store, r *limit.Receipt, used []int64, now time.Time) (limit.Settlement, error)
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

// settle calls the store through its guard, if it has one.
func (b *Backend) settle(
	ctx context.Context, r *limit.Receipt, used []int64, now time.Time,
) (limit.Settlement, error) {
	if b.Guard != nil {
		return b.Guard.Settle(ctx, b.Store, r, used, now)
	}
	return b.Store.Settle(ctx, r, used, now)
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

// Settle corrects what a decision charged, in each store. If one store fails, or remembers too many settlements
// ([limit.ErrSettlementsFull]), others may have settled their parts. Calling Settle again settles what is still
// missing. See [limit.Store].
func (s *Store) Settle(ctx context.Context, r *limit.Receipt, used []int64, now time.Time) (limit.Settlement, error) {
	out, err := r.BeginSettle(used)
	if err != nil {
		return out, err
	}
	if s.isOneStore() {
		return s.rates.settle(ctx, r, used, now)
	}
	known, entries := s.known.Load(), r.Entries()
	of := make([][]int, len(known.all)) // the entries that each store counts
	for i := range entries {
		n, err := s.position(known, entries[i].Tier.Limit())
		if err != nil {
			return limit.Settlement{}, err
		}
		of[n] = append(of[n], i)
	}
	var failed error
	changed := false
	for n, positions := range of {
		if len(positions) == 0 {
			continue
		}
		part, err := known.all[n].settle(ctx, r.Part(positions), partOf(used, positions), now)
		if err != nil { // what the other stores settle is not lost with it
			failed = errors.Join(failed, fmt.Errorf("%s: %w", known.all[n].name, err))
			continue
		}
		for j, i := range positions {
			out.Returned[i], out.Charged[i], out.Uncharged[i] = part.Returned[j], part.Charged[j], part.Uncharged[j]
			changed = changed || out.Returned[i]+out.Charged[i] > 0
		}
		out.Repeated, out.Expired = out.Repeated || part.Repeated, out.Expired || part.Expired
	}
	if failed != nil {
		return limit.Settlement{}, failed
	}
	// A part that has forgotten the receipt, or that failed the first time, must not hide what another one says.
	out.Repeated, out.Expired = out.Repeated && !changed, out.Expired && !changed
	return out, nil
}

// partOf returns what was used of the entries at these positions; nil if nothing was used of any.
func partOf(used []int64, positions []int) []int64 {
	if used == nil {
		return nil
	}
	part := make([]int64, len(positions))
	for j, i := range positions {
		part[j] = used[i]
	}
	return part
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
