// Package memory keeps counters in the process: the embedded default, and the model that other stores are compared
// with.
//
// Layout: an owner has one record, which has a mutex and, behind it in memory, the states of the owner's counters. A
// table finds records without a lock. So a decision over every limit of a tenant is one look-up and one lock, which
// nobody else uses but requests of the same tenant, and it reads two or three cache lines. There are three ways, of
// which each takes the requests that the one before cannot: decideInPlace, for counters that lie in the order of the
// request; decideWithoutMemory, for counters in any order; and decideWithMemory, for a new owner, a missing counter, or
// a log that needs more entries. Only the last takes a second lock, that of a stripe of the table. See attempt.
//
// The size is bounded in bytes. Room is made only by forgetting counters that are no different from unused ones (see
// [limit.Tier.FreshAt]); if there are none, a decision that needs room returns [limit.ErrFull] and charges nothing. A
// counter still in use is never forgotten.
//
// Callers without a credential choose the keys of two sorts of counters: those of addresses, and those of single values
// of anonymous calls. These counters have a budget of their own ([Config.UnidentifiedBytes]), so no number of addresses
// takes the room of tenants.
//
// How much an owner takes depends on its plan, and on what its callers send: each new value of a limit (an address, a
// subject, a header) needs a counter, and each charge of a sliding log may need an entry. An owner gets memory for
// values and entries only as long as it has taken no more than what is left in its budget. So one owner takes at most
// half of the budget that it shares, and the next one at most half of the rest. This is the rule of dynamic
// thresholds for shared buffers (Choudhury and Hahne, 1998), with the factor 1.
//
// An owner for whose counters there is no room is limited more strictly, and never less:
//
//   - A value without a counter shares the counter of the other values of its limit, or, of calls without a credential,
//     one of 64 such counters.
//   - A charge without room in a sliding log counts together with the last entry, which moves to the time of the
//     charge.
//   - An address without counters of its own shares some with other addresses, see sharedCounters. So does an owner
//     that counts for a limit with a Scope (a descriptor of Envoy, whose values callers may choose): all owners of one
//     scope together get memory only as long as they have taken no more than what is left.
//   - A tenant that needs a first counter for a limit without values gets [limit.ErrFull].
//
// An eighth of the bound is set aside to remember which receipts were refunded, until they expire. If that is full, a
// refund is [limit.ErrSettlementsFull] and gives nothing back, and decisions go on.
package memory

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var _ limit.Store = (*Store)(nil)

const (
	stripeCount = 64 // a power of two; above the number of cores, so that two new owners seldom meet

	// DefaultMaxBytes is the bound on a store's size when none is given.
	DefaultMaxBytes = 256 << 20

	sweepOnInsert = 2  // how many owners, and counters of the same owner, each insertion looks at for what can go
	sweepWhenFull = 64 // how many it looks at when there is no room

	fullFor = 10_000 // µs after a search for room in vain in which nobody searches again

	unidentifiedPart = 4 // of MaxBytes, by default
)

// Store is a [limit.Store] in memory. Make it with [New].
type Store struct {
	seed    maphash.Seed
	boot    uint64
	log     *slog.Logger
	budgets [2]budget     // allOwners and unidentified
	next    atomic.Uint32 // the stripe that is searched next for unused counters, see reserve
	issued  atomic.Uint64 // how many numbers of receipts have been given out, see nextID
	refunds refunds
	shared  sharedCounters
	layouts layouts
	scopes  sync.Map // *scope by its name
	stripes [stripeCount]stripe

	oneBudget  bool
	lastLogged [2]atomic.Int64 // by budget: when the last line about it was logged, µs since 1970
}

// Config sets up a store. The zero Config is fine.
type Config struct {
	// MaxBytes bounds the store's size, bytes; at least 4096; 0 means DefaultMaxBytes. Seven eighths are for counters,
	// one eighth is for what the store remembers of refunds.
	MaxBytes int64

	// UnidentifiedBytes bounds the memory of counters whose keys a caller without a credential can choose: those of
	// addresses, and those of single values of anonymous calls. It is a part of MaxBytes, in bytes; 0 means a quarter
	// of MaxBytes. An eighth of it is reserved for counters that addresses share. The rest of MaxBytes is for tenants
	// only, however many addresses there are; tenants may also use what these callers do not use.
	UnidentifiedBytes int64

	// OneBudget lets each owner use all of MaxBytes, and no owners share counters: a request whose counters have no
	// room gets [limit.ErrFull]. It is for replays, whose outcome must not depend on how much memory there is.
	OneBudget bool

	// Log gets a line, at most one in a minute, while addresses or anonymous calls have no room for their counters, and
	// another while a tenant has none. Default slog.Default().
	Log *slog.Logger
}

// New makes an empty store.
func New(c Config) (*Store, error) {
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	if c.MaxBytes < 4096 {
		return nil, fmt.Errorf("memory store: %d bytes is below the minimum of 4096", c.MaxBytes)
	}
	if c.UnidentifiedBytes < 0 || c.UnidentifiedBytes > c.MaxBytes {
		return nil, fmt.Errorf("memory store: %d bytes for unidentified callers are outside 0..%d", c.UnidentifiedBytes,
			c.MaxBytes)
	}
	if c.UnidentifiedBytes == 0 {
		c.UnidentifiedBytes = c.MaxBytes / unidentifiedPart
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	forRefunds, forSharing := c.MaxBytes/refundsPart, c.UnidentifiedBytes/sharedPart
	s := &Store{seed: maphash.MakeSeed(), boot: rand.Uint64(), log: c.Log, refunds: newRefunds(forRefunds),
		oneBudget: c.OneBudget}
	for i := range s.stripes {
		s.stripes[i].table.Store(newTable(0))
	}
	if c.OneBudget {
		s.budgets[allOwners].maxBytes = c.MaxBytes - forRefunds
		s.budgets[unidentified].maxBytes = c.MaxBytes
		return s, nil
	}
	s.shared.init(forSharing)
	s.budgets[allOwners].maxBytes = c.MaxBytes - forRefunds - forSharing
	s.budgets[unidentified].maxBytes = min(c.UnidentifiedBytes-forSharing, s.budgets[allOwners].maxBytes)
	return s, nil
}

// Accepts implements [limit.Store]. The store accepts every limit.
func (s *Store) Accepts(*limit.Limit) error { return nil }

// Bytes is an estimate of what the counters, and what the store remembers of refunds, take now.
func (s *Store) Bytes() int64 {
	return s.budgets[allOwners].used.Load() + s.shared.budget.used.Load() + s.refunds.memory()
}

// Decide charges all limits of the request or none. See [limit.Store].
func (s *Store) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return s.decide(ctx, req, now, d, true)
}

// Peek is Decide without the charge. See [limit.Store].
func (s *Store) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return s.decide(ctx, req, now, d, false)
}

func (s *Store) decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision, charge bool) error {
	us := now.UnixMicro()
	if err := ctx.Err(); err != nil {
		d.Clear(us)
		return err
	}
	hash := s.hash(req.Owner)
	r := s.stripe(hash).find(hash, req.Owner)
	if r != nil && s.decideInPlace(r, req, us, d, charge) {
		return nil
	}
	e, err := d.Begin(req, us)
	if err != nil {
		return err
	}
	if r != nil && s.decideWithoutMemory(r, e, charge) {
		return nil
	}
	if err := s.decideWithMemory(hash, req, us, d, charge); err != nil {
		d.Clear(us)
		return err
	}
	return nil
}

// decideInPlace decides if the first states behind r are those of the request's tiers, in their order. They are for all
// requests that count for the same limits of one plan. It reports false, and has charged nothing, if they do not, or if
// the decision is not a simple one, see [limit.Program.Decide].
func (s *Store) decideInPlace(r *record, req *limit.Request, now int64, d *limit.Decision, charge bool) (decided bool) {
	r.mu.Lock()
	if decided = r.layout.program.Decide(d, req, now, r.states(), charge); decided && charge && d.Allowed {
		d.ID = s.nextID(r)
	}
	r.mu.Unlock()
	return decided
}

// decideWithoutMemory decides from the counters that r has, wherever they are. It reports false, and has charged
// nothing, if a counter is missing, needs more memory, or is of a limit that has changed. The results are then to be
// evaluated anew.
func (s *Store) decideWithoutMemory(r *record, e *limit.Evaluation, charge bool) (decided bool) {
	var few [16]position
	at := few[:0]
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range e.Results {
		pos := r.locate(s, e, i, false)
		if pos == absent || charge && r.tier(pos) != e.Results[i].Tier || sharesOther(e, i) {
			return false
		}
		st := r.state(pos)
		e.Evaluate(i, st, charge)
		if bytes, entries := e.Room(i, st); bytes > 0 || entries > 0 {
			return false
		}
		at = append(at, pos)
	}
	if !e.Settle() || !charge {
		return true
	}
	e.ID = s.nextID(r)
	for i, pos := range at {
		if e.Charges(i) {
			s.countOf(r, r.charge(e, i, pos))
		}
	}
	return true
}

// receiptsAtOnce is how many numbers of receipts a record gets at once.
const receiptsAtOnce = 64

// nextID returns the name of the next receipt of r, whose lock is held; r may be nil. A record has some numbers in
// stock, because a number that all processors change would be slow. Numbers come again after 2^48 of them, long after
// the receipt has expired.
func (s *Store) nextID(r *record) limit.ReceiptID {
	if r == nil {
		return limit.ReceiptID{Hi: s.boot, Lo: (s.issued.Add(receiptsAtOnce) - 1) & (1<<48 - 1)}
	}
	if r.receiptLow%receiptsAtOnce == 0 {
		first := s.issued.Add(receiptsAtOnce) - receiptsAtOnce
		r.receiptLow, r.receiptHigh = uint32(first), uint16(first>>32)
	}
	id := uint64(r.receiptHigh)<<32 | uint64(r.receiptLow)
	r.receiptLow++
	return limit.ReceiptID{Hi: s.boot, Lo: id}
}

// Settle corrects what a decision charged. See [limit.Store].
func (s *Store) Settle(ctx context.Context, r *limit.Receipt, used []int64, now time.Time) (limit.Settlement, error) {
	if err := ctx.Err(); err != nil {
		return limit.Settlement{}, err
	}
	out, err := r.BeginSettle(used)
	if err != nil || len(r.Entries()) == 0 {
		return out, err
	}
	if first, err := s.giveBack(r, used, now.UnixMicro(), &out); !first || err != nil {
		return out, err
	}
	for i := range used { // each counter by itself: if the store is full of others, one may be there and another not
		part := r.Part([]int{i})
		over := part.Overage(used[i : i+1])
		if over == nil {
			continue
		}
		var d limit.Decision
		// An error means that there is no room for the counter. The units are then reported as not charged.
		_ = s.Decide(context.WithoutCancel(ctx), &over.Request, now, &d)
		one, _ := part.BeginSettle(nil)
		over.Report(&d, &one)
		out.Charged[i], out.Uncharged[i] = one.Charged[0], one.Uncharged[0]
	}
	return out, nil
}

// giveBack gives back what of a receipt was not used. The store remembers the receipt, so that it is settled only once.
// giveBack reports false if it was settled before, or is too old.
func (s *Store) giveBack(r *limit.Receipt, used []int64, now int64, out *limit.Settlement) (bool, error) {
	hash := s.hash(r.Owner())
	rec := s.stripe(hash).lockRecord(hash, r.Owner())
	if rec != nil {
		defer rec.mu.Unlock()
	}
	// Without room to remember it, nothing is changed.
	if first, err := s.refunds.remember(r, now, out); !first || err != nil || rec == nil {
		return first, err
	}
	entries := r.Entries()
	for i := range entries {
		e := &entries[i]
		if pos := rec.position(s, e.Tier, e.Value); pos != absent {
			st := rec.state(pos)
			before := st.Bytes()
			out.Returned[i] = e.GiveBack(st, r.Unused(i, used), now)
			s.countOf(rec, rec.grew(pos, st.Bytes()-before))
		}
	}
	return true, nil
}

func (s *Store) stripe(hash uint64) *stripe { return &s.stripes[hash%stripeCount] }

func (s *Store) hash(o limit.Owner) uint64 {
	return s.hashText(o.Name) ^ uint64(o.Kind)*0x9e3779b97f4a7c15
}

func (s *Store) hashText(text string) uint64 {
	return maphash.String(s.seed, text)
}
