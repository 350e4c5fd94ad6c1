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

var _ limit.Store = (*Store)(nil)

// ErrNoHome is in the error for a limit that is kept in a cell whose counters there is no way to. Nothing was asked.
var ErrNoHome = errors.New("no way to the counters of its home cell")

// DefaultHoldFor is how long units wait for a request that needs them. It is a few seconds: long enough for the next
// attempt of a client that a rate denied, and short enough that a quota is not short of units that nobody spends.
const DefaultHoldFor = 5 * time.Second

// Backend is one store of counters and what guards it.
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

func (b *Backend) decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if b.Guard != nil {
		return b.Guard.Decide(ctx, b.Store, req, now, d)
	}
	return b.Store.Decide(ctx, req, now, d)
}

func (b *Backend) peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if b.Guard != nil {
		return b.Guard.Peek(ctx, b.Store, req, now, d)
	}
	return b.Store.Peek(ctx, req, now, d)
}

func (b *Backend) refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if b.Guard != nil {
		return b.Guard.Refund(ctx, b.Store, r, units, now)
	}
	return b.Store.Refund(ctx, r, units, now)
}

// Config sets up a [Store].
type Config struct {
	Rates  Backend // required; it counts every limit that has no other place
	Quotas Backend // counts the cell's quotas. Without a Store, Rates counts them

	// Cell is the name of this cell: limits with that home are counted in Rates and Quotas.
	Cell string

	// Homes are the counters of other cells, by the cell's name. If nil, homes are not looked at, and a limit with a
	// home is counted with the quotas. If not nil, a limit whose home is neither Cell nor known here is [ErrNoHome].
	Homes map[string]Backend

	HoldFor time.Duration // how long units wait for a request that needs them; 0 means DefaultHoldFor, below 0 not at all
}

// Store is a [limit.Store] that sends each limit to the store that counts it. With one backend it does nothing but call
// that store through its guard. Make it with [New].
type Store struct {
	cell      string // "": no limit names it
	looksHome bool   // whether homes are looked at
	holdFor   time.Duration
	own       rest // of this cell: the stage of its quotas, or the backend that counts everything
	adding    sync.Mutex
	homes     atomic.Pointer[homes]
}

// homes are the homes that are known. It does not change.
type homes struct {
	numbers map[string]int // by name: the place in stages
	stages  []*stage       // from the bottom: each decides over what its home keeps, and over all that is below
}

// New makes a router. Close it when done; that closes none of the stores.
func New(c Config) (*Store, error) {
	if c.Rates.Store == nil {
		return nil, errors.New("router: needs a store for rates")
	}
	if c.HoldFor == 0 {
		c.HoldFor = DefaultHoldFor
	}
	s := &Store{cell: c.Cell, looksHome: c.Homes != nil, holdFor: c.HoldFor, own: rest{backend: c.Rates}}
	if c.Quotas.Store != nil {
		s.own = rest{stage: newStage("", c.Quotas, s.own, c.HoldFor)}
	}
	s.homes.Store(&homes{})
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(c.Homes))) { // what is on top is asked first
		if err := s.Add(name, c.Homes[name]); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Add makes one more home known, which is asked before the others.
func (s *Store) Add(name string, home Backend) error {
	s.adding.Lock()
	defer s.adding.Unlock()
	before, below := s.homes.Load(), s.own
	if _, twice := before.numbers[name]; name == "" || home.Store == nil || twice {
		return fmt.Errorf("router: home %q needs a name of its own and a store", name)
	}
	if name == s.cell {
		return fmt.Errorf("router: home %q is the cell itself", name)
	}
	if n := len(before.stages); n > 0 {
		below = rest{stage: before.stages[n-1]}
	}
	top := newStage(name, home, below, s.holdFor)
	after := &homes{numbers: maps.Clone(before.numbers), stages: append(slices.Clip(before.stages), top)}
	if after.numbers == nil {
		after.numbers = make(map[string]int)
	}
	after.numbers[name] = len(before.stages)
	s.homes.Store(after)
	return nil
}

// IsQuota reports whether the limit is kept in the store for quotas.
func IsQuota(l *limit.Limit) bool {
	return len(l.Tiers) > 0 && l.Tiers[0].Calendar != nil
}

// place returns the place in known.stages of the home that keeps the limit, or -1 if this cell keeps it.
func (s *Store) place(known *homes, l *limit.Limit) (int, error) {
	if !s.looksHome || l == nil || l.Home == "" || l.Home == s.cell {
		return -1, nil
	}
	n, ok := known.numbers[l.Home]
	if !ok {
		return 0, fmt.Errorf("limit %s of cell %s: %w", l.ID, l.Home, ErrNoHome)
	}
	return n, nil
}

// from returns what decides over limits of which the topmost one has this place: all others are reached from there.
func (s *Store) from(known *homes, place int) rest {
	if place < 0 {
		return s.own
	}
	return rest{stage: known.stages[place]}
}

// concerned returns what decides over the request.
func (s *Store) concerned(req *limit.Request) (rest, error) {
	top, known := -1, s.homes.Load()
	for i := range req.Charges {
		n, err := s.place(known, req.Charges[i].Limit)
		if err != nil {
			return rest{}, err
		}
		top = max(top, n)
	}
	return s.from(known, top), nil
}

// Decide charges all limits of the request or none. See [limit.Store].
func (s *Store) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	to, err := s.concerned(req)
	if err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	return to.decide(ctx, req, now, d)
}

// Peek is Decide without the charge. See [limit.Store].
func (s *Store) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	to, err := s.concerned(req)
	if err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	return to.peek(ctx, req, now, d)
}

// Refund gives back in each store. If one fails, or remembers too many refunds ([limit.ErrRefundsFull]), another may
// have given back its part, and asking again refunds what is still missing. See [limit.Store].
func (s *Store) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	top, known := -1, s.homes.Load()
	if s.looksHome {
		if err := limit.CheckRefund(r, units); err != nil {
			return limit.Refund{}, err
		}
		for _, e := range r.Entries() {
			n, err := s.place(known, e.Tier.Limit())
			if err != nil {
				return limit.Refund{}, err
			}
			top = max(top, n)
		}
	}
	to := s.from(known, top)
	return to.refund(ctx, r, units, now)
}

// Accepts asks the store that would keep the limit.
func (s *Store) Accepts(l *limit.Limit) error {
	known := s.homes.Load()
	n, err := s.place(known, l)
	if err != nil {
		return err
	}
	to := s.from(known, n)
	return to.accepts(l)
}

// AcceptsPlan asks every store about the limits that it would keep. See [limit.PlanAccepter].
func (s *Store) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	if stages := s.homes.Load().stages; len(stages) > 0 {
		return stages[len(stages)-1].acceptsPlan(all, together...)
	}
	return s.own.acceptsPlan(all, together...)
}

// stages returns all stages.
func (s *Store) stages() []*stage {
	all := slices.Clone(s.homes.Load().stages)
	if s.own.stage != nil {
		all = append(all, s.own.stage)
	}
	return all
}

// Close refunds what is held, and waits for what is being given back, until ctx ends. Call it when no decision is under
// way.
func (s *Store) Close(ctx context.Context) error {
	var errs []error
	for _, stage := range s.stages() {
		errs = append(errs, stage.close(ctx))
	}
	return errors.Join(errs...)
}

// Held returns how many leases are held for requests to come.
func (s *Store) Held() int {
	held := 0
	for _, stage := range s.stages() {
		held += stage.held.len()
	}
	return held
}
