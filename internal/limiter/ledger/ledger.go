// Package ledger is the rule by which many client processes ("instances") share the units of one provider's limit, so
// that all of them together never exceed the limit in any of its windows.
//
// # Design
//
// A limit allows a number of units in each window of the provider. Windows have numbers (package pacer). A ledger is
// kept in a store that all instances share. It has one entry for each limit, with a record for each of the latest
// windows: how many of the window's units have been leased to instances. An instance spends only units that it has
// leased, and it spends units of a window only in that window. So the sum over all instances is within the limit if the
// ledger never leases more units of a window than the limit has. This invariant depends neither on the number of
// instances, nor on their clocks, nor on messages between them. Clocks matter only for the question whether a unit is
// spent in its window as the provider sees it, see pacer.Guard.
//
// Calls, replies, and instances that hold units can be lost. Their units are lost with them, and too few units are
// spent in that window. A call is never repeated, because the store may have carried out the first one. While the store
// is unavailable, instances have no units, and their requests wait. A ledger whose data was lost does not know what it
// has leased, so it leases nothing of the windows that it may have leased before ([Entry.Claim]).
//
// The stages of a window lease units where they are needed, with few calls. Every instance makes these calls:
//
//  1. [Prefetch], 0.15 to 0.35 s before the window begins, at a time that depends on the instance and the window. The
//     instance tells the ledger how many units it needs. The ledger divides this need by the sum of all needs of the
//     window before, and leases the same part of the limit, less a reserve for needs that no prefetch told.
//  2. [Share], from 40 % of the window on, if requests wait at an instance that has no units left. The ledger leases up
//     to the instance's part of the limit by the needs of this window, which all instances have told by then. An
//     instance that told a need of 0 in its prefetch does not wait for 40 %, because the reserve is meant for it.
//  3. [Leftover], from 65 %: up to a quarter of the units that are left.
//  4. [Anything], from 80 %: all units that are left.
//  5. Units that an instance will not use are given back, from 30 % of the window on, with any of these calls or with a
//     call of their own.
//
// The reserve is one and a half times the largest need that was told after the prefetches ("surprise") of the two
// windows before, and 2 to 25 % of the limit.
//
// # Equal shares
//
// Shares by need are not equal in the long run: chance gives some instances a little more. A limit below one unit per
// instance and window has whole requests to share out, so some instances get a request's units in a window, and the
// others none. Each instance therefore keeps a balance, and tells it with each claim. In each window whose limit does
// not meet all needs, the balance grows by an equal share, and falls by the units that the instance leases. An equal
// share is the number of units that were leased in the latest window that is over, divided by the number of instances
// that contended for them. So the sum of all balances stays near 0. An instance contends if it has needed units lately,
// in this window or not.
//
// A share is corrected by the balance, and rounded to a multiple of the cost of the first request in the instance's
// queue: in a prefetch up from three quarters of a request on, and in the stage Share up from a half on. So the units
// of a window go first to the instances with the largest balances, and to others if these have no requests. The
// correction is at most an eighth of the share, because instances whose needs differ much do not have equal shares. If
// the balance is above 0, the correction may also be the cost of one request. Whatever a share lacks stays in the
// balance. Balances are bounded and fade, and a balance is lost with its instance. The ledger knows only how many
// instances contend.
//
// # Changes of the limit
//
// The ledger keeps the limit, so all instances use the same one. A change names the first window for which it holds.
// Nothing of that window may have been leased yet, so that no window exceeds a lower limit either ([Entry.SetLimit]).
// Prefetches lease the next window at most. The window after the next one is therefore always late enough. Changes that
// do not hold yet are remembered beside the one that holds.
//
// Each lease tells the instance the latest change and what the provider has stated, and each claim tells it back
// ([Known]). An entry whose data was lost takes it over before it leases anything, so the lower limit
// still holds, also for instances that have not heard of it.
//
// # What the provider says
//
// A limit that a reply states bounds what is leased to all instances, until an instance tells another one. The end of a
// pause that the provider asks for reaches all of them in the same way.
package ledger

import (
	"context"
	"errors"
	"fmt"
)

// Errors of a [Ledger] that answered. Any other error means that the store could not answer. It is then unknown whether
// the call was carried out, and the call must not be repeated.
var (
	// ErrInvalid means that a claim or a limit is out of its bounds.
	ErrInvalid = errors.New("invalid claim on a ledger")

	// ErrTooSoon means that a limit cannot change from a window on because units of that window have been leased
	// already. The error names the earliest possible window.
	ErrTooSoon = errors.New("the limit cannot change so soon")

	// ErrPlanned means that as many changes of a limit are planned as the ledger remembers. Another one can be planned
	// when the first of them holds.
	ErrPlanned = errors.New("too many changes of the limit are planned")
)

// MaxUnits is the largest limit, and the largest number of units in a claim.
const MaxUnits = 1 << 40

// Ledger leases units of windows. Implementations are safe for concurrent use, also by several processes. Each call is
// atomic. Every implementation passes the suite of package ledgertest.
type Ledger interface {
	// Claim gives units back, tells the ledger a need, and leases units, in this order.
	Claim(ctx context.Context, key string, c Claim) (Lease, error)

	// SetLimit changes the limit of a key from a window on.
	SetLimit(ctx context.Context, key string, units, from int64) error
}

// Stage says how many units of a window a claim may lease, see the package comment.
type Stage uint8

// The stages, in their order.
const (
	Prefetch Stage = iota
	Share
	Leftover
	Anything
)

// Claim is a call for one window.
type Claim struct {
	Window int64 // number of the window
	Limit  int64 // units of each window if nobody has called SetLimit, 1..MaxUnits
	Stage  Stage

	// Need is the number of units that the instance needs in the window beyond those of Told, 0..MaxUnits. From the
	// stage Share on, it counts as a surprise.
	Need int64

	// Told is the sum of the needs that the instance has told of this window before, and Held is the number of units
	// of the window that it has leased. Both are 0..MaxUnits.
	Told, Held int64

	Want   int64 // the largest number of units to lease, 0..MaxUnits
	Return int64 // units of the window to give back, 0..Held

	// Unit is the cost of the request that waits first, 1..MaxUnits. A share is rounded down to a multiple of it.
	Unit int64

	// Owed is the balance of the instance when it prefetched the window, in 1/OwedOne of a unit, -MaxOwed..MaxOwed. It
	// is above 0 if the instance got less than an equal share in earlier windows.
	Owed int64

	// Contends means that the instance has needed units lately. A prefetch tells it to the ledger.
	Contends bool

	// Pause is the time until which the provider has asked the instance to send nothing, in milliseconds since 1970,
	// 0..MaxPause. 0 means that it has not.
	Pause int64

	// Stated is the limit that the provider has stated since the claim before, in 1/StatedOne of a unit per window,
	// 0..MaxUnits·StatedOne. 0 means that it has not. From StatedOne units on, it has whole units.
	Stated int64

	Known Known // what the latest lease told the instance
}

// Change is a change of a limit to a number of units per window, from a window on. The zero Change is none.
type Change struct{ Units, From int64 }

// Known is what an instance knows of an entry from its latest lease. An entry that has not leased anything since its
// data was lost takes it over. The zero Known is that of an instance without a lease.
type Known struct {
	Changed Change // Lease.Changed
	Stated  int64  // Lease.Stated
}

// StatedOne is a unit, in the scale of a stated limit: a limit of 100 units in 60 windows is 5/3 units per window, and
// windows have 1 or 2 of its units in turn, see [UnitsOf].
const StatedOne = 1 << 20

// UnitsOf returns the number of units of a window that a stated limit allows. The numbers of any windows in a row add
// up to the stated limit of so many windows, rounded up or down.
func UnitsOf(stated, window int64) int64 {
	place, fraction := ((window%StatedOne)+StatedOne)%StatedOne, stated%StatedOne
	return stated/StatedOne + (place+1)*fraction/StatedOne - place*fraction/StatedOne
}

// MaxPause is the largest Claim.Pause. It is as far away as the largest number of a window.
const MaxPause = maxWindow

// Bounds of balances.
const (
	OwedOne = 1 << 10            // a unit, in the scale of Claim.Owed and Lease.Equal
	MaxOwed = MaxUnits * OwedOne // largest Claim.Owed
)

// Lease is the result of a claim.
type Lease struct {
	Units     int64 // units that this call has leased
	Limit     int64 // limit of the window, in units
	NextLimit int64 // limit of the window after it, in units
	Left      int64 // units of the window that nobody has leased
	Need      int64 // sum of the needs that all instances have told of the window, in units

	// Equal is an equal share, in 1/OwedOne of a unit: the units of the window before the present one that were leased,
	// divided by the number of instances that contended for them. It is 0 if the limit meets all needs, and after all
	// claims but those of the stage Prefetch.
	Equal int64

	Changed Change // the change of the limit that holds in the window after the latest one that was claimed
	Pause   int64  // the latest Claim.Pause of all instances
	Stated  int64  // the latest Claim.Stated of any instance that is not 0
}

// windows is the number of windows that an entry remembers: the window that is prefetched, the present one, and the two
// before it, whose needs and surprises are the forecast.
const windows = 4

// Record describes one window of an entry.
type Record struct {
	Window   int64 // number of the window
	Limit    int64 // limit of the window, in units, from its first claim on; 0: there was no claim
	Leased   int64 // units that instances hold or have spent
	Need     int64 // sum of the needs that instances have told, in units
	Surprise int64 // the part of Need that was told after the prefetches
	Contend  int64 // number of prefetches of contending instances
}

// Entry is the state of one limit in a ledger. It does no locking. The zero Entry is the state of a new limit.
type Entry struct {
	First   int64 // number of the first window whose units may be leased; 0: there was no claim
	Records [windows]Record

	// Changes holds the change of the limit that holds, and those that are planned, in the order of their windows.
	Changes [changes]Change

	Pause  int64 // the latest Claim.Pause of all instances
	Stated int64 // the latest Claim.Stated that is not 0
}

// changes is the number of changes that an entry remembers: the one that holds, and three that are planned.
const changes = 4

// Check returns an error that wraps ErrInvalid if a field of the claim is out of its bounds.
func (c *Claim) Check() error {
	for _, units := range [...]int64{c.Limit, c.Unit, c.Need, c.Told, c.Held, c.Want, c.Return,
		c.Known.Changed.Units} {
		if units < 0 || units > MaxUnits {
			return fmt.Errorf("%w: %+v: a number of units is not within 0..%d", ErrInvalid, *c, int64(MaxUnits))
		}
	}
	if c.Limit < 1 || c.Unit < 1 || c.Stage > Anything || c.Return > c.Held || c.Owed < -MaxOwed ||
		c.Owed > MaxOwed || c.Pause < 0 || c.Pause > MaxPause {
		return fmt.Errorf("%w: %+v", ErrInvalid, *c)
	}
	if !isWindow(c.Window) || !isWindow(c.Known.Changed.From) || !isStated(c.Stated) || !isStated(c.Known.Stated) {
		return fmt.Errorf("%w: %+v", ErrInvalid, *c)
	}
	return nil
}

// isWindow reports whether the number of a window is within its bounds.
func isWindow(number int64) bool { return number >= -maxWindow && number <= maxWindow }

// isStated reports whether a stated limit is within its bounds. Such a number is exact in 64-bit floating point.
func isStated(stated int64) bool {
	return stated >= 0 && stated <= MaxUnits*StatedOne &&
		(stated < StatedOne*StatedOne || stated%StatedOne == 0)
}

// maxWindow bounds the numbers of windows, so that stores that count in 64-bit floating point are exact. Windows of a
// millisecond reach it after 142,000 years.
const maxWindow = 1 << 52

// record returns the record of a window, and makes a new one if the entry has none. It returns nil if the window is too
// old to be remembered. The limit of a new record is units if nobody has set one.
func (e *Entry) record(window, units int64) *Record {
	r := &e.Records[uint64(window)%windows]
	switch {
	case r.Limit != 0 && r.Window == window:
		return r
	case r.Limit != 0 && r.Window > window:
		return nil
	}
	*r = Record{Window: window, Limit: e.limit(window, units)}
	return r
}

// look returns a copy of the record of a window, which is empty if the entry has none.
func (e *Entry) look(window int64) Record {
	if r := e.Records[uint64(window)%windows]; r.Window == window {
		return r
	}
	return Record{Window: window}
}

// limit returns the limit of a window, in units. It returns units if nobody has set a limit.
func (e *Entry) limit(window, units int64) int64 {
	if r := e.look(window); r.Limit != 0 {
		return r.Limit
	}
	if c := e.change(window); c.Units > 0 {
		units = c.Units
	}
	return units
}

// change returns the change of the limit that holds in a window.
func (e *Entry) change(window int64) (holds Change) {
	for _, c := range e.Changes {
		if c.Units > 0 && c.From <= window {
			holds = c
		}
	}
	return holds
}

// schedule collects the changes of an entry, in the order of their windows.
type schedule struct {
	all   [changes]Change
	count int
}

// add appends a change. Of changes that hold by the given window, only the latest stays.
func (s *schedule) add(c Change, window int64) {
	if s.count == 1 && c.From <= window {
		s.count = 0
	}
	if s.count < changes {
		s.all[s.count] = c
		s.count++
	}
}

// restore takes over what an instance knows. It is called only while nothing has been leased from the entry.
func (e *Entry) restore(k *Known, window int64) {
	if k.Changed.Units > 0 {
		var s schedule
		added := false
		for _, c := range e.Changes {
			if c.Units == 0 {
				break
			}
			if !added && k.Changed.From <= c.From {
				if added = true; k.Changed.From < c.From {
					s.add(k.Changed, window)
				}
			}
			s.add(c, window)
		}
		if !added {
			s.add(k.Changed, window)
		}
		e.Changes = s.all
	}
	if k.Stated > 0 && (e.Stated == 0 || k.Stated < e.Stated) {
		e.Stated = k.Stated
	}
}

// Claim carries out a claim. The caller has called c.Check.
//
// The first claim on an entry may come after the store lost an older entry. Units of some windows may have been leased
// from the lost entry, so nothing is leased of these windows. The latest of them is the window after the present one,
// because it may have been prefetched. The clocks of instances differ, so the present window of another instance may be
// later by one than that of the instance that makes the first claim. By then all instances have claimed once and told
// what they know.
func (e *Entry) Claim(c *Claim) Lease {
	if old := &e.Records[uint64(c.Window)%windows]; old.Limit == 0 || old.Window <= c.Window {
		if e.First == 0 {
			if e.First = c.Window + 2; c.Stage > Prefetch {
				e.First++
			}
		}
		if c.Window < e.First {
			e.restore(&c.Known, c.Window)
		}
	}
	limit := e.limit(c.Window, c.Limit)
	next := e.limit(c.Window+1, c.Limit)
	r := e.record(c.Window, c.Limit)
	if r != nil {
		e.Pause = max(e.Pause, c.Pause)
		if c.Stated > 0 {
			e.Stated = c.Stated
		}
	}
	lease := Lease{Limit: limit, NextLimit: next, Changed: e.change(e.latest() + 1), Pause: e.Pause, Stated: e.Stated}
	if r == nil {
		return lease
	}
	most := e.most(c.Window, limit)
	r.Leased = max(r.Leased-c.Return, 0)
	r.Need = min(r.Need+c.Need, maxWindow)
	switch {
	case c.Stage > Prefetch:
		r.Surprise = min(r.Surprise+c.Need, maxWindow)
	case c.Contends:
		r.Contend = min(r.Contend+1, maxWindow)
	}
	if c.Window >= e.First {
		lease.Units = min(c.Want, e.allowed(c, r, most))
		r.Leased += lease.Units
		lease.Left = max(most-r.Leased, 0)
	}
	lease.Need = r.Need
	if last := e.look(c.Window - 2); c.Stage == Prefetch && last.Contend > 0 &&
		max(e.look(c.Window-1).Need, r.Need) > most {
		lease.Equal = last.Leased * OwedOne / last.Contend
	}
	return lease
}

// most returns the number of units of a window that may be leased, given its limit.
func (e *Entry) most(window, limit int64) int64 {
	if e.Stated > 0 {
		limit = min(limit, UnitsOf(e.Stated, window))
	}
	return limit
}

// allowed returns the largest number of units that a claim may lease, if limit units may be leased to all instances. A
// request that costs more, and not more than the limit of the record, has a window of its own if nobody else has units
// of that window. It must be a window of which a unit may be leased.
func (e *Entry) allowed(c *Claim, r *Record, limit int64) int64 {
	if own := max(c.Unit-r.Leased, 0); limit > 0 && c.Unit > limit && c.Unit <= r.Limit && c.Want >= own &&
		r.Leased <= c.Held-c.Return {
		return own
	}
	left := max(limit-r.Leased, 0)
	reserve := e.reserve(c.Window, limit)
	need := min(c.Told+c.Need, r.Limit)
	switch c.Stage {
	case Prefetch:
		// All instances have told their needs of the window before, but not yet those of this window.
		sum := max(e.look(c.Window-1).Need, r.Need)
		return min(part(limit-reserve, need, sum, c), max(left-reserve, 0))
	case Share:
		return min(max(part(limit, need, r.Need, c)-c.Held+c.Return, 0), left)
	case Leftover:
		return (left + 3) / 4
	case Anything:
	}
	return left
}

// reserve returns the number of units that prefetches leave for surprises. It is one and a half times the larger of the
// last two surprises, within 2 and 25 % of the limit. These constants were found by simulation (TestManyInstances of
// package pacer).
func (e *Entry) reserve(window, limit int64) int64 {
	surprise := max(e.look(window-1).Surprise, e.look(window-2).Surprise)
	return max(min(surprise+surprise/2, limit/4), limit/50)
}

// part returns units·need/sum, corrected by the balance of the instance and rounded to a multiple of c.Unit, see the
// package comment. It returns need if the sum is at most units.
func part(units, need, sum int64, c *Claim) int64 {
	if sum <= units {
		return need
	}
	exact := float64(units) * float64(need) / float64(sum)
	owed := min(max(float64(c.Owed)/OwedOne, -exact/8), exact/8+float64(c.Unit))
	roundUp := 0.75 // parts of a request from here on are rounded up
	if c.Stage > Prefetch {
		roundUp = 0.5
	}
	return int64((exact+owed)/float64(c.Unit)+1-roundUp) * c.Unit
}

// CheckLimit returns an error that wraps ErrInvalid if an argument of SetLimit is out of its bounds.
func CheckLimit(units, from int64) error {
	if units < 1 || units > MaxUnits || from < -maxWindow || from > maxWindow {
		return fmt.Errorf("%w: a limit of %d from window %d on", ErrInvalid, units, from)
	}
	return nil
}

// SetLimit plans a change of the limit to units per window, for the window from and all later ones. It replaces changes
// that are planned for that window or later ones. The error wraps ErrInvalid, ErrTooSoon or ErrPlanned.
func (e *Entry) SetLimit(units, from int64) error {
	if err := CheckLimit(units, from); err != nil {
		return err
	}
	latest := e.latest()
	if from <= latest {
		return fmt.Errorf("%w: from window %d on, and the earliest possible one is %d", ErrTooSoon, from, latest+1)
	}
	var s schedule
	planned := 0
	for _, c := range e.Changes {
		if c.Units == 0 || c.From >= from {
			break
		}
		if s.add(c, latest); c.From > latest {
			planned++
		}
	}
	if planned == changes-1 {
		return PlannedError(s.all[s.count-planned].From)
	}
	s.add(Change{units, from}, latest)
	e.Changes = s.all
	e.Stated = 0
	return nil
}

// PlannedError returns an error that wraps ErrPlanned, for an entry whose first planned change holds from a window on.
func PlannedError(first int64) error {
	return fmt.Errorf("%w: the first of %d holds from window %d on", ErrPlanned, changes-1, first)
}

// latest returns the number of the latest window that a claim named, or less than any valid number if there is none.
func (e *Entry) latest() int64 {
	latest := int64(-maxWindow - 1)
	for _, r := range e.Records {
		if r.Limit != 0 {
			latest = max(latest, r.Window)
		}
	}
	return latest
}
