// Package control defines the control tables. They hold everything that operators write, as versions: each version of
// an item is linked to the previous one.
//
// The packages below it are the rest of the control plane: the tables in DynamoDB (dynamo, row) and in a file
// (embedded), operators' calls (operate, client), and the audit trail (audit).
//
// # Items
//
// A table holds items by key. Each write makes the next version of an item (1, 2, 3, without gaps), on the condition
// that the item is still at the version that the writer saw. A deletion is a version too: a tombstone, which is kept;
// creating the item again makes the version after the tombstone. The version therefore always tells which of two
// copies of an item is newer, without clocks.
//
//	table       key                          body
//	plans       the plan's id                a plan, as in a plans file
//	plans       events.SettingsKey           ipLimits, ipv6Prefix, anonymousPlan and routes
//	plans       events.CanaryKey             a mark, used to measure how long changes take to reach the cells
//	tenants     the tenant's id              a tenant, as in a plans file
//	keys        the key's id                 an API key, as its hash
//	cells       the cell's name              a cell
//	cells       events.SharesKey             the shares of all tenants and the present transition
//	cells       pin.…, placed.…, ack.…       see package streams/balancer
//	operations  the operation's id           what was done to a cell's counters
//
// Keys are stored by id, which is the name that operators and the audit trail use; a hash would change whenever a
// pepper is replaced. Cells look keys up by hash. So that a cell can always tell which key a change is about, even
// when events are lost or arrive in another order, the hash and the pepper of a key never change, and a key is never
// deleted: it is revoked, which is an ordinary change of its body.
//
// # Hash chain
//
// An item's hash is the SHA-256, in hex, of this canonical JSON object (see [events.Canonical]), so that anyone can
// compute it:
//
//	{"actor":…,"body":{…},"changed_at":"2026-11-21T18:00:00.000000Z","deleted":false,"key":…,"layout":1,"prev_hash":…,
//	"reason":…,"table":…,"version":2}
//
// without the line break. body is null in a tombstone. prev_hash is the hash of the previous version, empty in version
// 1. The writer computes both, so the chain exists before anything is copied. [Chain] checks a chain.
package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/events"
)

// Table is a control table; package events has the list.
type Table = events.Table

// The control tables.
const (
	Plans      = events.Plans
	Tenants    = events.Tenants
	Keys       = events.Keys
	Cells      = events.Cells
	Operations = events.Operations
)

// TimeLayout is the format in which times are hashed and stored.
const TimeLayout = events.TimeLayout

// Ref names an item of a control table.
type Ref struct {
	Table Table
	Key   string
}

// Compare orders refs by table and key.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(cmp.Compare(r.Table, o.Table), cmp.Compare(r.Key, o.Key))
}

// Bounds.
const (
	MaxBodyBytes  = events.MaxBodyBytes // of a body in canonical form; an event with such a body fits into a message
	maxInputBytes = 1 << 20             // of a body before it is made canonical: spaces and escapes take space
	MaxPage       = 1000                // items of one List
)

// Errors of [Tables]. Errors that wrap them name the table and the key.
var (
	ErrNotFound = errors.New("no such item")
	ErrConflict = errors.New("changed by another writer") // a *ConflictError
	ErrInvalid  = errors.New("invalid change")            // nothing was written
	ErrTooLarge = errors.New("body too large")            // nothing was written
	ErrBadItem  = errors.New("item cannot be read")       // the stored item was not written by this package
)

// ConflictError says that a write expected another version than the item has. Nothing was written. It wraps
// ErrConflict.
type ConflictError struct {
	Table  Table
	Key    string
	Expect int64
	Have   int64 // the present version; 0: there is none
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s/%q: %s: expected version %d, but it is at version %d", e.Table, e.Key, ErrConflict,
		e.Expect, e.Have)
}

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// Change is a request to write the version after Expect.
type Change struct {
	Table  Table
	Key    string    // see events.CheckKey
	Expect int64     // the version that the writer saw, including that of a tombstone; 0: there has never been one
	Body   []byte    // a JSON object in any spelling, at most MaxBodyBytes in canonical form; empty with Delete
	Delete bool      // writes a tombstone; keys are revoked instead
	Actor  string    // the signed identity of the caller, never taken from a request's content; see events.CheckText
	Reason string    // see events.CheckText
	Now    time.Time // by the writer's clock; stored in microseconds
}

// Tables are the control tables. Implementations are safe for concurrent use; those that say so, also by several
// processes. Each passes controltest.Run.
//
// Every Put that makes a version delivers a [Record] to each consumer: at least once, and in order for each key.
type Tables interface {
	// Get returns the newest version of an item, which may be a tombstone. It sees every Put that has returned. The
	// error wraps ErrNotFound if there has never been such an item.
	Get(ctx context.Context, t Table, key string) (Item, error)

	// List returns a page of a table, tombstones included: at most most (1..MaxPage) items. Pass "" as after for the
	// first page, and the previous page's next for each following page; next is "" at the end. A page may be empty
	// before the end. The order is the table's own. An item that exists when the first call begins is returned exactly
	// once, in a state that it has had since then; an item that is created later is returned at most once. Items that
	// cannot be read are left out: the error then wraps ErrBadItem and names them ([BadItems]), and the other items
	// and next are returned too.
	List(ctx context.Context, t Table, after string, most int) (items []Item, next string, err error)

	// Put writes the version after c.Expect and returns it. The error wraps ErrInvalid, ErrTooLarge, or ErrNotFound
	// (for a deletion of an item that does not exist), or is a *ConflictError. A Put may be repeated with equal
	// fields, because the answer to the first was lost: it returns the version that the first one made, as long as
	// that is the newest. After any other error the version may have been made: repeat the Put.
	Put(ctx context.Context, c Change) (Item, error)
}

// Feed returns the changes of all tables in one process, in the order in which they were made, from the first one on.
// There is no Feed in AWS, where streams call functions; package dynamo reads what streams bring.
type Feed interface {
	// Read returns up to most (1..MaxPage) records after a position. A position is the Sequence of a record, or "" for
	// the beginning. Read returns no records if there are none yet.
	Read(ctx context.Context, after string, most int) ([]Delivery, error)

	// Wait returns when there are records after the position, or returns the error of ctx.
	Wait(ctx context.Context, after string) error

	// Cursor returns the position that the consumer has committed; "" at the beginning.
	Cursor(ctx context.Context, consumer string) (string, error)

	// Commit stores that the consumer has processed all records up to the position. The position may be an earlier
	// one, to receive records again.
	Commit(ctx context.Context, consumer, position string) error
}

// Lister is the part of [Tables] that reads whole tables.
type Lister interface {
	List(ctx context.Context, t Table, after string, most int) (items []Item, next string, err error)
}

// All returns all items of a table, reading page by page. For each page with items that cannot be read it returns one
// error, which wraps ErrBadItem. It ends after any other error.
func All(ctx context.Context, tables Lister, t Table) iter.Seq2[Item, error] {
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

// Concurrently calls f for each number from 0 to n-1, at most limit at once, and returns the error of the lowest number
// that failed. After an error it begins no further call.
func Concurrently(n, limit int, f func(i int) error) error {
	errs := make([]error, n)
	var next atomic.Int64
	var failed atomic.Bool
	var wait sync.WaitGroup
	for range min(limit, n) {
		wait.Go(func() {
			for !failed.Load() {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if errs[i] = f(i); errs[i] != nil {
					failed.Store(true)
				}
			}
		})
	}
	wait.Wait()
	return cmp.Or(errs...)
}

// CheckList returns an error unless List accepts the arguments.
func CheckList(t Table, most int) error {
	if err := events.CheckTable(t); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if most < 1 || most > MaxPage {
		return fmt.Errorf("%w: list %s: %d items, want 1..%d", ErrInvalid, t, most, MaxPage)
	}
	return nil
}

// CheckGet returns an error unless Get accepts the arguments.
func CheckGet(t Table, key string) error {
	if err := events.CheckKey(t, key); err != nil {
		return fmt.Errorf("%w: key of %s: %w", ErrInvalid, t, err)
	}
	return nil
}
