// Package memory keeps counters in the process: the embedded default, and the model that other stores are compared with.
//
// Layout: owners are spread over shards by a hash of their name; a shard is one mutex and one map from hash to owner, and
// an owner holds all of its counters in one slice. So a decision over every limit of a tenant is one lock and one look-up.
//
// The size is bounded in bytes. Room is made only by forgetting counters that are no different from unused ones (see
// [limit.Tier.FreshAt]); if there are none, a decision that needs room is [limit.ErrFull] and charges nothing. A
// counter still in use is never forgotten.
//
// Callers without a credential choose the keys of two sorts of counters: those of addresses, and those of single values
// of anonymous calls. These counters have a budget of their own ([Config.UnidentifiedBytes]), so no number of addresses
// takes the room of tenants.
//
// How much an owner takes depends on its plan, and on what its callers send: each new value of a limit (an address, a
// subject, a header) needs a counter, and each charge of a sliding log may need an entry. An owner gets memory for
// values and entries only as long as it has taken no more than what is left in its budget. So one owner takes at most
// half of the budget that it shares, and the next one at most half of the rest. This is the rule of dynamic thresholds for shared
// buffers (Choudhury and Hahne, 1998), with the factor 1.
//
// An owner for whose counters there is no room is limited more strictly, and never less:
//
//   - A value without a counter shares the counter of the other values of its limit, or, of calls without a credential,
//     one of 64 such counters.
//   - A charge without room in a sliding log counts together with the last entry, which moves to the time of the
//     charge.
//   - An address shares the counters that it lacks with some of the other addresses, see sharedCounters.
//   - A tenant that needs a first counter for a limit without values gets [limit.ErrFull].
//
// An eighth of the bound is set aside to remember which receipts were refunded, until they expire. If that is full, a
// refund is [limit.ErrRefundsFull] and gives nothing back, and decisions go on.
package memory

import (
	"context"
	"errors"
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
	shardCount = 256 // a power of two; far above the number of cores, so that two busy owners seldom meet

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
	budgets [2]budget     // everybody and unidentified
	next    atomic.Uint32 // the shard that gives room next
	refunds refunds
	shared  sharedCounters
	shards  [shardCount]shard

	oneBudget  bool
	lastLogged [2]atomic.Int64 // by budget: when the log got its last line about it, µs since 1970
}

// budget is a bound on what counters take.
type budget struct {
	maxBytes int64
	used     atomic.Int64
	fullTill atomic.Int64 // until then nobody looks for room again, µs; a flood of new owners must not pay for the search
}

func (b *budget) free() int64 { return b.maxBytes - b.used.Load() }

// take counts bytes, if there is room for them.
func (b *budget) take(bytes int64) bool {
	for {
		used := b.used.Load()
		if used+bytes > b.maxBytes {
			return false
		}
		if b.used.CompareAndSwap(used, used+bytes) {
			return true
		}
	}
}

// The budgets of a store: that of all owners, and that of the owners whose names callers without a credential can choose.
// What an owner of the second budget takes counts in both.
const (
	everybody = iota
	unidentified
)

// budgetOf returns the narrowest budget in which the counters of an owner count.
func budgetOf(k limit.OwnerKind) int {
	if k == limit.Address || k == limit.Anonymous {
		return unidentified
	}
	return everybody
}

type shard struct {
	mu     sync.Mutex
	serial uint64
	table  table
	_      [64]byte // keeps the mutexes of two shards off one cache line
}

// Config sets up a store. The zero Config is fine.
type Config struct {
	// MaxBytes bounds the store's size, bytes; at least 4096; 0 means DefaultMaxBytes. Seven eighths are for counters, one
	// eighth is for what the store remembers of refunds.
	MaxBytes int64

	// UnidentifiedBytes bounds what counters take whose keys a caller without a credential can choose: those of addresses,
	// and those of single values of anonymous calls. It is a part of MaxBytes, in bytes; 0 means a quarter of MaxBytes. An
	// eighth of it is set aside for counters that addresses share. What is left of MaxBytes is free for tenants, whatever
	// comes; tenants may also take what these callers leave.
	UnidentifiedBytes int64

	// OneBudget lets everybody take all of MaxBytes, and has nobody share counters: whoever finds no room is
	// [limit.ErrFull]. It is for replays, whose outcome must not depend on how much memory there is.
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
	if c.OneBudget {
		s.budgets[everybody].maxBytes = c.MaxBytes - forRefunds
		s.budgets[unidentified].maxBytes = c.MaxBytes
		return s, nil
	}
	s.shared.init(forSharing)
	s.budgets[everybody].maxBytes = c.MaxBytes - forRefunds - forSharing
	s.budgets[unidentified].maxBytes = min(c.UnidentifiedBytes-forSharing, s.budgets[everybody].maxBytes)
	return s, nil
}

// Accepts implements [limit.Store]. The store accepts every limit.
func (s *Store) Accepts(*limit.Limit) error { return nil }

// Bytes is an estimate of what the counters, and what the store remembers of refunds, take now.
func (s *Store) Bytes() int64 {
	return s.budgets[everybody].used.Load() + s.shared.budget.used.Load() + s.refunds.takes()
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
	e, err := d.Begin(req, us)
	if err != nil {
		return err
	}
	h := s.hash(req.Owner)
	sh := &s.shards[h%shardCount]
	sh.mu.Lock()
	err = s.attempt(sh, h, e, charge, false)
	sh.mu.Unlock()
	if err == nil {
		return nil
	}
	if errors.Is(err, limit.ErrFull) {
		err = s.withoutRoom(sh, h, req, us, d, charge)
	}
	if err != nil {
		d.Clear(us)
	}
	return err
}

func (s *Store) nextID(sh *shard, h uint64) limit.ReceiptID {
	sh.serial++
	return limit.ReceiptID{Hi: s.boot, Lo: sh.serial*shardCount + h%shardCount}
}

// withoutRoom decides a request for which the first attempt has found no room.
func (s *Store) withoutRoom(sh *shard, h uint64, req *limit.Request, now int64, d *limit.Decision, charge bool) error {
	err := limit.ErrFull
	// No attempt sweeps the counters of its own owner, because a decision holds their positions. They are swept here, and
	// the decision begins anew.
	e := d.BeginChecked(req, now)
	sh.mu.Lock()
	if o := sh.table.find(h, req.Owner); o != nil {
		if freed := o.sweep(now, sweepWhenFull); freed > 0 {
			s.count(req.Owner.Kind, -freed)
			err = s.attempt(sh, h, e, charge, false)
		}
	}
	sh.mu.Unlock()
	if errors.Is(err, limit.ErrFull) && !s.oneBudget && len(req.Leases) == 0 {
		e = d.BeginChecked(req, now)
		sh.mu.Lock()
		err = s.attempt(sh, h, e, charge, true)
		sh.mu.Unlock()
		if err == nil && charge {
			s.logSharing(req.Owner, now)
		}
	}
	if errors.Is(err, limit.ErrFull) {
		return s.full(budgetOf(req.Owner.Kind))
	}
	return err
}

// attempt decides under the shard's lock. The error is the bare [limit.ErrFull] if there is no room for what the
// decision would write. If share is set, the attempt needs no room: values without a counter are counted in the counter of
// other values, addresses without one in shared counters, and sliding logs do not grow.
func (s *Store) attempt(sh *shard, h uint64, e *limit.Evaluation, charge, share bool) error {
	o := sh.table.find(h, e.Owner)
	if o != nil && s.inOrder(sh, h, o, e, charge) {
		return nil
	}
	var few [16]int32
	at := few[:]
	if len(e.Results) > len(few) {
		at = make([]int32, len(e.Results))
	}
	var g *group
	if e.Owner.Kind == limit.Address {
		g = s.lockGroup(h, e.Now, share)
	}
	lacks, grows, err := s.evaluate(o, g, e, at, charge, share)
	switch {
	case err != nil || !e.Settle():
	case charge:
		err = s.write(sh, h, o, g, e, at, lacks, grows, share)
	case (lacks || grows) && !share: // Peek is ErrFull wherever Decide would be
		var reserved int64
		reserved, err = s.makeRoom(sh, o, g, e, at, share)
		s.count(e.Owner.Kind, -reserved)
	}
	if g != nil {
		g.mu.Unlock()
	}
	return err
}

// inOrder decides if the counters of o lie in the order of the results, as they do where one plan made them, and need no
// more memory. It reports false, having charged nothing, if that is not so; the results are then to be evaluated anew.
func (s *Store) inOrder(sh *shard, h uint64, o *owner, e *limit.Evaluation, charge bool) bool {
	n := len(e.Results)
	if n > len(o.counters) {
		return false
	}
	counters := o.counters[:n]
	for i := range counters {
		if c := &counters[i]; c.tier != e.Results[i].Tier || c.value != nil {
			return false
		}
		st := &counters[i].state
		e.Evaluate(i, st, charge)
		if bytes, entries := e.Room(i, st); bytes > 0 || entries > 0 {
			return false
		}
	}
	if !e.Settle() || !charge {
		return true
	}
	e.ID = s.nextID(sh, h)
	grown := int64(0) // below 0: a log that drops its oldest entries can shrink
	for i := range counters {
		if e.Charges(i) {
			st := &counters[i].state
			before := st.Bytes()
			e.Charge(i, st)
			grown += st.Bytes() - before
		}
	}
	if grown != 0 {
		o.bytes += grown
		s.count(e.Owner.Kind, grown)
	}
	return true
}

// evaluate fills the results of e from the counters of o, which is nil for a new owner, and writes the counters' positions
// to at. In place of a counter that an address lacks it reads the shared one, because units that the shared one admitted
// may have been for this address. It reports whether o lacks counters, and whether the entries of one that it has need
// to grow.
func (s *Store) evaluate(o *owner, g *group, e *limit.Evaluation, at []int32, charge, share bool) (lacks, grows bool, err error) {
	var unused limit.State
	if o == nil {
		o = &nobody
	}
	for i := range e.Results {
		pos := o.locate(s, e, i, share && e.Owner.Kind != limit.Address)
		if e.Results[i].Other && sharesOther(e, i) {
			return false, false, fmt.Errorf("%w: values beyond the bound of limit %s", limit.ErrDuplicateCounter, e.Results[i].Limit().ID)
		}
		switch {
		case pos >= 0:
			st := &o.counters[pos].state
			e.Evaluate(i, st, charge)
			bytes, entries := e.Room(i, st)
			grows = grows || bytes > 0 || entries > 0
		case g != nil:
			pos = s.evaluateShared(g, e, i, charge, share)
			lacks = true
		default:
			e.Evaluate(i, &unused, charge)
			lacks = true
		}
		at[i] = pos
	}
	return lacks, grows, nil
}

// write charges what evaluate has read.
func (s *Store) write(sh *shard, h uint64, o *owner, g *group, e *limit.Evaluation, at []int32, lacks, grows, share bool) error {
	var reserved, taken int64
	if lacks || grows {
		var err error
		if reserved, err = s.makeRoom(sh, o, g, e, at, share); err != nil {
			return err
		}
		if o == nil && (g == nil || !share) {
			o = sh.table.add(h, e.Owner, len(e.Results))
			taken = sizeOfOwner(e.Owner)
		}
	}
	e.ID = s.nextID(sh, h)
	for i := range e.Results {
		switch {
		case !e.Charges(i):
		case at[i] >= 0:
			taken += o.counters[at[i]].charge(e, i, !grows, !share)
		case g != nil && share:
			s.commitShared(g, e, i, at[i])
		default:
			taken += s.commitNew(o, g, e, i, at[i])
		}
	}
	if o == nil {
		return nil
	}
	if taken != 0 || reserved != 0 {
		o.bytes += taken
		s.count(e.Owner.Kind, taken-reserved)
	}
	if lacks || grows { // a sweep moves counters, so it comes after the last use of their positions
		s.count(e.Owner.Kind, -o.sweep(e.Now, sweepOnInsert))
	}
	return nil
}

// sharesOther reports whether an earlier result is of the same counter as result i, which was redirected to the counter of
// the values beyond the bound.
func sharesOther(e *limit.Evaluation, i int) bool {
	for j := range i {
		if e.Results[j].Tier == e.Results[i].Tier && e.Value(j) == e.Value(i) {
			return true
		}
	}
	return false
}

// commitNew charges result i to a new counter of o, and returns the bytes that the counter takes. If an address has used
// the shared counter at the position pos until now, the new counter begins as a copy of that one, so that an address never
// gets more for having shared.
func (s *Store) commitNew(o *owner, g *group, e *limit.Evaluation, i int, pos int32) (bytes int64) {
	own := &o.counters[o.add(s, e.Results[i].Tier, e.Value(i))]
	bytes = sizeOfCounter(e.Value(i))
	if pos == absent {
		return bytes + own.charge(e, i, false, true)
	}
	own.state = *g.owner.counters[ofShared(pos)].state.Clone()
	return bytes + own.state.Bytes() + own.charge(e, i, false, true)
}

// makeRoom reserves the bytes of what the decision is about to write, in the owner's budget, and returns their
// number. The error is the bare [limit.ErrFull]. What addresses write to shared counters is not reserved, see
// commitShared.
func (s *Store) makeRoom(sh *shard, o *owner, g *group, e *limit.Evaluation, at []int32, share bool) (int64, error) {
	bytes := int64(0)
	if share && g != nil {
		return 0, nil
	}
	chosen := false // whether callers choose how many counters or entries like these there are
	for i := range e.Results {
		if !e.Charges(i) || share && at[i] >= 0 {
			continue
		}
		more, choose := bytesOf(o, g, e, i, at[i])
		bytes, chosen = bytes+more, chosen || choose
	}
	if o == nil {
		bytes += sizeOfOwner(e.Owner)
		s.sweep(sh, e.Now, sweepOnInsert, nil)
	}
	switch {
	case share && budgetOf(e.Owner.Kind) == unidentified:
		// The plans say how many counters anonymous calls need beside those of single values. They are few and always made.
		s.count(e.Owner.Kind, bytes)
	case bytes > 0 && !s.reserve(sh, o, e, bytes, chosen && !e.Leases()):
		return 0, limit.ErrFull
	}
	return bytes, nil
}

// bytesOf returns how many bytes a charge of result i takes, whose counter is at the position pos, and whether callers
// choose how many such counters or entries there are.
func bytesOf(o *owner, g *group, e *limit.Evaluation, i int, pos int32) (bytes int64, chosen bool) {
	if pos >= 0 {
		bytes, _ = e.Room(i, &o.counters[pos].state)
		return bytes, bytes > 0
	}
	st := new(limit.State)
	if pos != absent { // see commitNew
		st = g.owner.counters[ofShared(pos)].state.Clone()
	}
	v, copied := e.Value(i), st.Bytes()
	room, _ := e.Room(i, st)
	return sizeOfCounter(v) + copied + room, copied > 0 || v.Kind == limit.ValueIs || v.Kind == limit.ValueAbsent
}

// full is the error where a budget has no room.
func (s *Store) full(of int) error {
	b := &s.budgets[of]
	if s.budgets[everybody].free() < b.free() {
		b = &s.budgets[everybody]
	}
	return fmt.Errorf("memory store, %d of %d bytes: %w", b.used.Load(), b.maxBytes, limit.ErrFull)
}

// count counts bytes that an owner of the kind takes, without regard to the bounds; fewer than 0 are given back.
func (s *Store) count(k limit.OwnerKind, bytes int64) {
	if bytes == 0 {
		return
	}
	for i := range budgetOf(k) + 1 {
		s.budgets[i].used.Add(bytes)
	}
}

// take counts bytes that the owner, which is nil if it is new, is about to take, if there is room for them. If chosen
// is set, they are for values or entries, and the owner may have no more than what is left.
func (s *Store) take(o *owner, k limit.OwnerKind, bytes int64, chosen bool) bool {
	all, b := &s.budgets[everybody], &s.budgets[budgetOf(k)]
	if chosen && !s.oneBudget {
		has := int64(0)
		if o != nil {
			has = o.bytes
		}
		if has+bytes > b.free() {
			return false
		}
	}
	if !all.take(bytes) {
		return false
	}
	if b != all && !b.take(bytes) {
		all.used.Add(-bytes)
		return false
	}
	return true
}

// reserve takes bytes of the owner's budget as take does. If they are not free, it forgets counters that are no different
// from unused ones, but none of o, because the decision holds their positions.
func (s *Store) reserve(sh *shard, o *owner, e *limit.Evaluation, bytes int64, chosen bool) bool {
	b, now := &s.budgets[budgetOf(e.Owner.Kind)], e.Now
	for try := 0; ; try++ {
		if s.take(o, e.Owner.Kind, bytes, chosen) {
			return true
		}
		if full := b.fullTill.Load(); try == 0 && now < full && now >= full-fullFor {
			return false
		}
		if try >= 8 {
			b.fullTill.Store(now + fullFor)
			return false
		}
		s.sweep(sh, now, sweepWhenFull, o)
		// The room may lie in other shards. Try-locking cannot deadlock with one that does the same to this one.
		other := &s.shards[s.next.Add(1)%shardCount]
		if other != sh && other.mu.TryLock() {
			s.sweep(other, now, sweepWhenFull, nil)
			other.mu.Unlock()
		}
	}
}

// Refund gives back what a receipt names. See [limit.Store].
func (s *Store) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if err := ctx.Err(); err != nil {
		return limit.Refund{}, err
	}
	if err := limit.CheckRefund(r, units); err != nil {
		return limit.Refund{}, err
	}
	us := now.UnixMicro()
	entries := r.Entries()
	out := limit.Refund{Units: make([]int64, len(entries))}
	if len(entries) == 0 {
		return out, nil
	}
	h := s.hash(r.Owner())
	sh := &s.shards[h%shardCount]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	// The store remembers the receipt, so that it is refunded only once. Without room for that, nothing is given back.
	if made, err := s.refunds.remember(r, us, &out); !made {
		if err != nil {
			return limit.Refund{}, err
		}
		return out, nil
	}
	o := sh.table.find(h, r.Owner())
	if o == nil {
		return out, nil
	}
	for i := range entries {
		e := &entries[i]
		if pos := o.position(s, e.Tier, e.Value); pos >= 0 {
			st := &o.counters[pos].state
			before := st.Bytes()
			out.Units[i] = e.Apply(st, units, us)
			bytes := st.Bytes() - before
			o.bytes += bytes
			s.count(r.Owner().Kind, bytes)
		}
	}
	return out, nil
}

func (s *Store) hash(o limit.Owner) uint64 {
	return maphash.String(s.seed, o.Name) ^ uint64(o.Kind)*0x9e3779b97f4a7c15
}
