// Package ledger lets many processes ("instances") share one limit of a provider, so that their sum never exceeds the
// limit in any of its windows.
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
// A share is rounded up or down at random, to a multiple of the cost of the first request in the instance's queue. An
// instance whose share is smaller than that cost therefore gets enough for a request in some of the windows, and the
// mean of its shares is right.
//
// # Changes of the limit
//
// The ledger keeps the limit, so all instances use the same one. A change names the first window for which it holds.
// Nothing of that window may have been leased yet, so that no window exceeds a lower limit either ([Entry.SetLimit]).
// Prefetches lease the next window at most. The window after the next one is therefore always late enough.
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

	// Unit is the cost of the request that waits first, 1..MaxUnits. A share is rounded to a multiple of it. Round is a
	// random number, 0..RoundOne-1, that decides whether the share is rounded up.
	Unit, Round int64
}

// RoundOne is the upper bound of Claim.Round, exclusive.
const RoundOne = 1 << 10

// Lease is the result of a claim.
type Lease struct {
	Units     int64 // units that this call has leased
	Limit     int64 // limit of the window, in units
	NextLimit int64 // limit of the window after it, in units
	Left      int64 // units of the window that nobody has leased
	Need      int64 // sum of the needs that all instances have told of the window, in units
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
}

// Entry is the state of one limit in a ledger. It does no locking. The zero Entry is the state of a new limit.
type Entry struct {
	First   int64 // number of the first window whose units may be leased; 0: there was no claim
	Records [windows]Record
	Units   int64 // the limit, in units per window; 0: nobody has set one
	Next    int64 // the limit from window From on; 0: no change is planned
	From    int64 // number of the first window for which Next holds
}

// Check returns an error that wraps ErrInvalid if a field of the claim is out of its bounds.
func (c *Claim) Check() error {
	for _, units := range [...]int64{c.Need, c.Told, c.Held, c.Want, c.Return} {
		if units < 0 || units > MaxUnits {
			return fmt.Errorf("%w: %+v: a number of units is not within 0..%d", ErrInvalid, *c, int64(MaxUnits))
		}
	}
	if c.Limit < 1 || c.Limit > MaxUnits || c.Stage > Anything || c.Return > c.Held || c.Unit < 1 ||
		c.Unit > MaxUnits || c.Round < 0 || c.Round >= RoundOne || c.Window < -maxWindow || c.Window > maxWindow {
		return fmt.Errorf("%w: %+v", ErrInvalid, *c)
	}
	return nil
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
	if e.Units > 0 {
		units = e.Units
	}
	if e.Next > 0 && window >= e.From {
		units = e.Next
	}
	return units
}

// Claim carries out a claim. The caller has called c.Check.
//
// The first claim on an entry may come after the store lost an older entry. Units of some windows may have been leased
// from the lost entry, so nothing is leased of these windows. The latest of them is the window after the present one,
// because it may have been prefetched. The clocks of instances differ, so the present window of another instance may be
// later by one than that of the instance that makes the first claim.
func (e *Entry) Claim(c *Claim) Lease {
	limit := e.limit(c.Window, c.Limit)
	lease := Lease{Limit: limit, NextLimit: e.limit(c.Window+1, c.Limit)}
	r := e.record(c.Window, c.Limit)
	if r == nil {
		return lease
	}
	if e.First == 0 {
		if e.First = c.Window + 2; c.Stage > Prefetch {
			e.First++
		}
	}
	r.Leased = max(r.Leased-c.Return, 0)
	r.Need = min(r.Need+c.Need, maxWindow)
	if c.Stage > Prefetch {
		r.Surprise = min(r.Surprise+c.Need, maxWindow)
	}
	if c.Window >= e.First {
		lease.Units = min(c.Want, e.allowed(c, r, limit))
		r.Leased += lease.Units
		lease.Left = max(limit-r.Leased, 0)
	}
	lease.Need = r.Need
	return lease
}

// allowed returns the largest number of units that a claim may lease.
func (e *Entry) allowed(c *Claim, r *Record, limit int64) int64 {
	left := max(limit-r.Leased, 0)
	reserve := e.reserve(c.Window, limit)
	need := min(c.Told+c.Need, limit)
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

// part returns units·need/sum, rounded at random to a multiple of c.Unit. It returns need if the sum is at most units.
func part(units, need, sum int64, c *Claim) int64 {
	if sum <= units {
		return need
	}
	exact := float64(units) * float64(need) / float64(sum) / float64(c.Unit)
	whole := int64(exact)
	if (exact-float64(whole))*RoundOne > float64(c.Round) {
		whole++
	}
	return whole * c.Unit
}

// CheckLimit returns an error that wraps ErrInvalid if an argument of SetLimit is out of its bounds.
func CheckLimit(units, from int64) error {
	if units < 1 || units > MaxUnits || from < -maxWindow || from > maxWindow {
		return fmt.Errorf("%w: a limit of %d from window %d on", ErrInvalid, units, from)
	}
	return nil
}

// SetLimit plans a change of the limit to units per window, for the window from and all later ones. The error wraps
// ErrInvalid or ErrTooSoon.
func (e *Entry) SetLimit(units, from int64) error {
	if err := CheckLimit(units, from); err != nil {
		return err
	}
	latest := e.latest()
	if from <= latest {
		return fmt.Errorf("%w: from window %d on, and the earliest possible one is %d", ErrTooSoon, from, latest+1)
	}
	if e.Next > 0 && e.From <= latest { // the change before this one is in force
		e.Units = e.Next
	}
	e.Next, e.From = units, from
	return nil
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
