// Package ledger is how many processes ("instances") share one limit of a provider, and never exceed it in any of its
// windows.
//
// # Design
//
// A limit allows a number of units in each window of the provider. Windows have numbers (package pacer). A ledger is
// kept in a store that all instances share. It has one entry for each limit, with a record for each of the latest
// windows: how many of the window's units have been leased to instances. An instance spends only units that it has
// leased, and it spends units of a window only in that window. So the sum over all instances is within the limit if the
// ledger never leases more units of a window than the limit has. That is the invariant, and nothing else is needed for
// it: not the number of instances, not their clocks, and no message between them. What clocks are needed for is that a
// unit is spent in its window as the provider sees it, see pacer.Guard.
//
// Everything can be lost: a call, a reply, an instance with units in hand. The units are then lost with it, and too few
// are spent. A call is never repeated, because the first one may have been carried out. While the store is away,
// instances have no units, and wait. A ledger that comes back empty does not know what it has leased, so it leases
// nothing of the windows that may have been leased before ([Entry.Claim]).
//
// What remains is to lease units where they are needed, with few calls. Every instance makes these calls for a window:
//
//  1. [Prefetch], 0.15 to 0.35 s before the window begins, at a time that depends on the instance and the window: the
//     instance says what it needs. The sum of all needs of the window before tells the ledger which part that is. The
//     instance gets the same part of the limit, less a reserve for surprises.
//  2. [Share], if somebody waits at an instance that has no units left, from 40 % of the window on: up to its part of the
//     limit by the needs of this window, which are complete by then. An instance whose need was 0 until now does not wait
//     for 40 %: the reserve is for it.
//  3. [Leftover], from 65 %: up to a quarter of what is left.
//  4. [Anything], from 80 %: all that is left.
//  5. Units that an instance will not use are given back, from 30 % of the window on, with any of these calls or by
//     themselves.
//
// The reserve follows the surprises: one and a half times the largest need of the two windows before that was not told
// in a prefetch, 2 to 25 % of the limit.
//
// A share is rounded up or down at random, to a multiple of what the first request in the instance's queue costs. So an
// instance whose share is smaller than that gets enough for a request now and then, and the mean of its shares is
// right.
//
// # Changes of the limit
//
// The ledger keeps the limit, so all instances go by the same one. A change names the window from which on it holds.
// That must be a window of which nothing was leased yet, so a lower limit is not exceeded either ([Entry.SetLimit]).
// Prefetches lease the next window at most, so the window after that is always early enough.
package ledger

import (
	"context"
	"errors"
	"fmt"
)

// Errors of a [Ledger] that answered. Any other error means that the store could not answer: it is not known whether
// the call was carried out, and it must not be repeated.
var (
	// ErrInvalid means that a claim or a limit is out of its bounds.
	ErrInvalid = errors.New("invalid claim on a ledger")

	// ErrTooSoon means that units of the window from which on a limit was to change have been leased already. The error
	// names the earliest window that is possible.
	ErrTooSoon = errors.New("the limit cannot change so soon")
)

// MaxUnits is the largest limit, and the largest number of units in a claim.
const MaxUnits = 1 << 40

// Ledger leases units of windows. Implementations are safe for concurrent use, also by several processes. Each call is
// atomic. Each passes the suite of package ledgertest.
type Ledger interface {
	// Claim gives back, reports a need, and leases, in this order.
	Claim(ctx context.Context, key string, c Claim) (Lease, error)

	// SetLimit changes the limit of a key from a window on.
	SetLimit(ctx context.Context, key string, units, from int64) error
}

// Stage says how much of a window a claim may get, see the package comment.
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

	// Need is how many more units the instance needs in the window than it has told before, 0..MaxUnits. In a Share or
	// later it counts as a surprise.
	Need int64

	// Told is what the instance told before of the same window, and Held what it has leased of it, both 0..MaxUnits.
	Told, Held int64

	Want   int64 // the most units to lease, 0..MaxUnits
	Return int64 // units of the window to give back, 0..Held

	// A share is rounded to a multiple of Unit, 1..MaxUnits, because the request that waits first costs so much. Round
	// is a random number, 0..RoundOne-1, that decides whether it is rounded up.
	Unit, Round int64
}

// RoundOne is the bound of Claim.Round.
const RoundOne = 1 << 10

// Lease is what a claim got.
type Lease struct {
	Units     int64 // leased by this call
	Limit     int64 // of the window
	NextLimit int64 // of the window after it
	Left      int64 // units of the window that nobody has leased
	Need      int64 // that all instances have told of the window
}

// windows is how many windows an entry remembers: the one that is prefetched, the present one, and the two before,
// whose needs and surprises are the forecast.
const windows = 4

// Record is what a ledger knows of one window.
type Record struct {
	Window   int64
	Limit    int64 // of the window, from its first claim on; 0: there was none
	Leased   int64 // units that instances hold or have spent
	Need     int64 // that instances have told
	Surprise int64 // of Need: told after the prefetch
}

// Entry is what a ledger keeps of one limit. It does no locking. The zero Entry is that of a new limit.
type Entry struct {
	First   int64 // the first window of which units are leased; 0: there was no claim
	Records [windows]Record
	Units   int64 // the limit; 0: nobody has set one
	Next    int64 // the limit from window From on; 0: no change is planned
	From    int64
}

// Check reports what is wrong with a claim.
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

// maxWindow bounds the numbers of windows, so that stores that count in doubles are exact. A window of a millisecond
// reaches it after 142,000 years.
const maxWindow = 1 << 52

// record returns the record of a window, which is a new one if the entry has none. It returns nil if the window is too
// old to be remembered.
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

// look is the record of a window that is only read.
func (e *Entry) look(window int64) Record {
	if r := e.Records[uint64(window)%windows]; r.Window == window {
		return r
	}
	return Record{Window: window}
}

// limit is the limit of a window; units is what it is if nobody has set one.
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

// Claim carries out a claim that was checked.
//
// An entry may have been lost, and units may have been leased before that. So nothing is leased of the windows of which
// this is possible. The latest one is the window after the present one, which was prefetched. The present window of
// another instance may be later by one than that of the instance whose claim is the first, because their clocks differ.
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

// allowed is the most that a claim may lease.
func (e *Entry) allowed(c *Claim, r *Record, limit int64) int64 {
	left := max(limit-r.Leased, 0)
	reserve := e.reserve(c.Window, limit)
	need := min(c.Told+c.Need, limit)
	switch c.Stage {
	case Prefetch:
		// The needs of the window before are complete, those of this window not yet.
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

// reserve is what prefetches leave for surprises.
func (e *Entry) reserve(window, limit int64) int64 {
	surprise := max(e.look(window-1).Surprise, e.look(window-2).Surprise)
	return max(min(surprise+surprise/2, limit/4), limit/50)
}

// part is need out of sum of the units, rounded at random; need itself if the sum is not above the units.
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

// CheckLimit reports what is wrong with the arguments of SetLimit.
func CheckLimit(units, from int64) error {
	if units < 1 || units > MaxUnits || from < -maxWindow || from > maxWindow {
		return fmt.Errorf("%w: a limit of %d from window %d on", ErrInvalid, units, from)
	}
	return nil
}

// SetLimit plans a change of the limit.
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

// latest is the latest window of which there was a claim.
func (e *Entry) latest() int64 {
	latest := int64(-maxWindow - 1)
	for _, r := range e.Records {
		if r.Limit != 0 {
			latest = max(latest, r.Window)
		}
	}
	return latest
}
