// Package control is the control tables: what operators write, one version after the other, each linked to the one
// before.
//
// Below it is the rest of the control plane: the tables in DynamoDB (dynamo, row, streamrecord) and in a file
// (embedded), operators' calls (admin, ops, call, client, operations), the audit trail (audit), and the documents that
// the tables become in a cell (celldoc).
//
// # Items
//
// A table holds items by key. Each write makes the next version of an item: 1, 2, 3, without gaps, conditional on the
// version that its writer saw. A delete is a version too, a tombstone that stays; creating the item again is the
// version after it. So any two copies of an item can be told older from newer by the version alone, whatever clocks
// say.
//
//	table       key                          body
//	plans       the plan's id                a plan, as in a plans file
//	plans       events.SettingsKey           ipLimits, ipv6Prefix, anonymousPlan and routes
//	plans       events.CanaryKey             a mark whose way to the cells is timed
//	tenants     the tenant's id              a tenant, as in a plans file
//	keys        the key's id                 an API key, as its hash
//	cells       the cell's name              a cell
//	cells       events.SharesKey             the shares of all tenants and the transition under way
//	cells       pin.…, placed.…, ack.…       see package streams/balancer
//	operations  the operation's id           what was done to a cell's counters
//
// Keys are kept by id, which is what operators and the audit trail name them by; a hash would name another item
// whenever a pepper is replaced. Cells look them up by hash. So that a cell can always find what a change is about,
// even when events are lost or come in another order, a key's hash and pepper never change, and a key is never deleted:
// it is revoked, which is a change of its body like any other.
//
// # Hash chain
//
// An item's hash is hex of SHA-256 over this canonical JSON object (see package canonical), so that anyone can compute
// it:
//
//	{"actor":…,"body":{…},"changed_at":"2026-11-21T18:00:00.000000Z","deleted":false,"key":…,"layout":1,"prev_hash":…,
//	"reason":…,"table":…,"version":2}
//
// without the line break; body is null in a tombstone. prev_hash is the hash of the version before, empty in version 1.
// The writer computes both, so the chain is there before anything is copied. [Chain] tells what is wrong with one.
package control

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/sluicelimits/sluice/events"
)

// Table is a control table; package events names them.
type Table = events.Table

// The control tables.
const (
	Plans      = events.Plans
	Tenants    = events.Tenants
	Keys       = events.Keys
	Cells      = events.Cells
	Operations = events.Operations
)

// Bounds.
const (
	MaxBodyBytes  = events.MaxBodyBytes // of a body in canonical form, so that an event about it fits into a message
	maxInputBytes = 1 << 20             // of a body as it is given: spaces and escapes take room
	MaxPage       = 1000                // items of one List
)

// Errors of [Tables]. What wraps them names the table and the key.
var (
	ErrNotFound = errors.New("no such item")
	ErrConflict = errors.New("changed by another writer") // a *ConflictError
	ErrInvalid  = errors.New("invalid change")            // nothing was written
	ErrTooLarge = errors.New("body too large")            // nothing was written
	ErrBadItem  = errors.New("item cannot be read")       // what is stored was not written by this package
)

// ConflictError is a write that expected another version than there is. Nothing was written. It is ErrConflict.
type ConflictError struct {
	Table  Table
	Key    string
	Expect int64
	Have   int64 // the version that is there; 0 where there is none
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s/%q: %s: expected version %d, and it is at version %d", e.Table, e.Key, ErrConflict,
		e.Expect, e.Have)
}

// Unwrap is ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// Change is what a writer wants: the version after the one that it saw.
type Change struct {
	Table  Table
	Key    string    // see events.CheckKey
	Expect int64     // the version that the writer saw, a tombstone's included; 0: there was never one
	Body   []byte    // a JSON object in any spelling, at most MaxBodyBytes in canonical form; empty with Delete
	Delete bool      // makes a tombstone of an item that is there; keys are revoked instead
	Actor  string    // who: the caller's signed identity, never what a request says; see events.CheckText
	Reason string    // why
	Now    time.Time // by the writer's clock; microseconds count
}

// Tables are the control tables. Implementations are safe for concurrent use, by several processes where they say so.
// Each passes controltest.Run.
//
// Every Put that makes a version yields a [Record], to each consumer at least once, and in order for each key.
type Tables interface {
	// Get returns the newest version of an item, which may be a tombstone, after every Put that has returned. The error
	// wraps ErrNotFound where there never was one.
	Get(ctx context.Context, t Table, key string) (Item, error)

	// List returns some of a table's items, tombstones included, no more than most (1..MaxPage), and where to go on:
	// next is the after of the next call, and empty at the end. After is empty in the first call. A page may be empty
	// before the end. The order is the table's own. An item that is there when the first call begins comes exactly
	// once, as it was at some time since; one that is created meanwhile comes at most once. Items that cannot be read
	// are left out: the error then wraps ErrBadItem and names them ([BadItems]), and comes beside the others and next.
	List(ctx context.Context, t Table, after string, most int) (items []Item, next string, err error)

	// Put makes the version after c.Expect, and returns it. The error wraps ErrInvalid, ErrTooLarge, ErrNotFound (for
	// the delete of what is not there), or is a *ConflictError. A Put that is repeated with every field as it was,
	// because the answer to the first was lost, returns the version that the first one made, as long as it is the
	// newest. After any other error the version may have been made: repeat the Put.
	Put(ctx context.Context, c Change) (Item, error)
}

// Feed is the changes of all tables in one process, in the order in which they were made, from the first one on. In AWS
// there is none: streams call functions, and package streamrecord reads what they bring.
type Feed interface {
	// Read returns up to most (1..MaxPage) records behind a position, which is the Sequence of one, or empty for the
	// beginning. It returns none where there are none yet.
	Read(ctx context.Context, after string, most int) ([]Delivery, error)

	// Wait returns as soon as there are records behind the position, or the error of ctx.
	Wait(ctx context.Context, after string) error

	// Cursor is the position that the consumer has committed; empty at the beginning.
	Cursor(ctx context.Context, consumer string) (string, error)

	// Commit remembers that the consumer is done with all up to the position. It may go back, to have records again.
	Commit(ctx context.Context, consumer, position string) error
}

// All goes through a table page by page. After an error that does not wrap ErrBadItem it ends.
func All(ctx context.Context, tables Tables, t Table) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for after := ""; ; {
			items, next, err := tables.List(ctx, t, after, MaxPage)
			if err != nil && (!yield(Item{}, err) || !errors.Is(err, ErrBadItem)) {
				return
			}
			for i := range items {
				if !yield(items[i], nil) {
					return
				}
			}
			if next == "" {
				return
			}
			after = next
		}
	}
}

// CheckList returns an error unless a List may be called so.
func CheckList(t Table, most int) error {
	if err := events.CheckTable(t); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if most < 1 || most > MaxPage {
		return fmt.Errorf("%w: list %s: %d items, want 1..%d", ErrInvalid, t, most, MaxPage)
	}
	return nil
}

// CheckGet returns an error unless a Get may be called so.
func CheckGet(t Table, key string) error {
	if err := events.CheckKey(t, key); err != nil {
		return fmt.Errorf("%w: key of %s: %w", ErrInvalid, t, err)
	}
	return nil
}
