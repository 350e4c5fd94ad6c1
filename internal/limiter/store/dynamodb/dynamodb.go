// Package dynamodb keeps counters in one DynamoDB table. Most decisions are one UpdateItem call, whose condition holds
// if and only if the core (package limit) admits the request.
//
// # Table
//
// The partition key PK and the sort key SK are both binary, because names may hold any bytes. All text in keys is
// written as netstrings.
//
//	item            PK                            SK
//	shared          namespace, kind, owner        "s" and the item's position in the owner's chain of shared items.
//	                                              Holds the counters that have no value, and those of limits per
//	                                              endpoint
//	value           namespace, kind, owner        "v" per, kind, value. Each subject, api_key, ip or claim has an item
//	                                              of its own
//	refund          namespace, kind, owner        "r" receipt id. The item exists if the receipt was refunded
//	kept            namespace, "s", name          "k". Holds a value for all processes in the attribute "kept", see
//	                                              Store.Keep
//
//	attribute       type   meaning
//	v               N      layout version of the item, 3. An item of another version is an error. Its counters are not
//	                       taken for empty ones, and nothing in the item is changed
//	ttl             N      when DynamoDB may delete the item, seconds since 1970. It is at least a day later than the
//	                       time until which any counter in the item matters. It is only ever raised, and at most once
//	                       per window
//	full            N      1 in a shared item that has reached 1 KB. A full item gets no new counters: they go to the
//	                       next item of the chain. It has no ttl, because a deleted item would no longer say that it
//	                       is full
//	id/…            M      one counter. The attribute's name is the limit's id, a letter for the algorithm (upper case
//	                       for a shadow limit), and the period or the calendar; in a shared item the endpoint follows
//
// Conditions of DynamoDB have no arithmetic. A counter is therefore stored in numbers (type N) that a condition only
// has to compare:
//
//	fixed_window     w start of the current window, n its count. From the second window on: o and p, the start and the
//	                 count of the window that was charged before. If o is the window right before w, the previous
//	                 count is p, else 0
//	quota            w start of the period, e its end, n its count
//	sliding_window   w start of the current window, n its count, p count of the window before it
//	sliding_buckets  w newest bucket, s sum of all buckets, x number of charges to buckets more than a period before
//	                 the newest, and a field for each bucket: its name is b0 and the bucket's number in base 36, its
//	                 value the units
//	token_bucket     f "full time": the time at which the bucket is full if nothing is charged, in 1/num µs, where
//	                 num/den is the rate in units per µs
//	                 r rate, units per period
//	                 t time of the last charge, or a little earlier (see addContended)
//	                 b total of all refunds, in 1/den units; u time of the last refund
//	                 z end of the slot in which units are leased
//	                 q "total full time": the time at which the level and the leased units together are a full bucket,
//	                 in 1/num µs. z and q exist only while units are leased, and until the first charge after the slot
//	                 y end of the slot before z
//	                 l "late full time": the time at which the total would be full if all units that were leased in
//	                 the slot before z had come back, in 1/num µs. y and l exist only beside z and q
//	leaky_bucket     s the next free slot, in 1/r µs; r numerator of the rate in units per µs
//
// Times are µs since 1970. A bucket's number is its start divided by the width of a bucket.
//
// # One decision
//
// Each process keeps copies of the items that it used last ([itemCopy]). A copy may be out of date, because other
// processes write to the same table. A decision goes by the copies and lets the condition of its write find out whether
// they still hold (optimistic concurrency control). [Store.Decide] calls in this order:
//
//  1. beginDecision checks the request and determines the time of the decision.
//  2. evaluateWithChain finds the item and the name of each counter (locateCounter), and lets the core evaluate each
//     counter by the copy of its item (evaluateResult).
//  3. If the core denies, confirmDenial reads every item whose copy is too old to deny by, and evaluates it again.
//  4. If the core admits, writeCharges makes one update for each item (buildUpdate). For each counter, the counter's
//     algorithm adds a condition and assignments to the update (addCharge, algorithm.charge).
//  5. writeEnforcing sends the updates: one item by writeItem, several in one transaction by writeInTransaction.
//  6. If a condition does not hold, the reply carries the item. learnItem keeps it as the new copy, and the decision
//     starts again at step 2. After maxTries tries, or at the deadline, the decision is an error.
//  7. If the condition held, the reply carries the item as it was before the write. learnFromWrite evaluates the
//     counters by it, and the decision reports what the core says of them.
//  8. chargeShadows charges the shadow limits in items that hold no enforcing limit, adoptCharges fills in the
//     decision, and persistRepairs writes counters that a clock which leapt ahead has spoiled.
//
// Conditions are inequalities, such as count ≤ threshold − cost, and compare no version numbers. So processes that
// charge the same counter at the same time do not disturb each other: the condition holds for each of them as long as
// there is room.
//
// A denial by a recent copy needs no call. The copy must have come from the table within the last five seconds
// ([Config.DenyFor]). The core evaluates it under the limits as they are now, so a raised limit is in force at once.
//
// # Decisions over several items
//
// A decision whose enforcing counters lie in several items is one transaction: all items are written or none, for twice
// the write units. The reply of a transaction carries no items. The decision therefore reports as remaining what the
// copies say, which is too much if other processes charge the same counters. What it admits is exact.
//
// # Differences from the core
//
// If several processes charge one token bucket at the same time, the store is stricter than the core in two ways, and
// never more generous:
//
//   - The field t advances in steps of about 0.1 s. A process whose clock is behind t decides as of t, and so misses
//     what was refilled since.
//   - A bucket of 128 units or more is filled to at most 31/32.
//
// Units that come back to a token bucket after the end of their slot are lost if a decision without leases has charged
// the bucket since then.
//
// A single process decides exactly as the memory store does.
//
// The values of a limit beyond its MaxValues share one counter. Each process counts the values by itself, so n
// processes together may give up to n times as many values a counter of their own.
//
// A shadow limit never blocks and never fails a decision. If its counter lies in an item with an enforcing counter, it
// is charged by the same update, else by an update of its own after the decision. Its count is exact if only one
// process charges. Otherwise it may be too low: the last try of a decision leaves shadow limits out, and a copy may be
// older than a refund.
//
// # Many counters
//
// DynamoDB limits the length and the number of operators of an expression, and the number of items of a transaction. If
// the conditions of all counters of an item do not fit, composeUpdate compares and replaces the counters with the
// longest conditions as a whole. Such a condition takes a few bytes, but it holds only if nobody else has charged the
// counter meanwhile. A request that does not fit even then is limit.ErrTooLarge and is not sent. [AcceptsPlan] says in
// advance which requests always fit.
//
// # Errors
//
// An error about one request, such as an item that cannot be read, a write that is too large, or other writers at each
// try, says so ([limit.Answered]): it does not count as a failure of the store. Every other error does.
//
// The retries of the SDK are off. After an error that is not one of these, the write may have been carried out and its
// reply lost. Its units are then lost: too little is admitted, never too much. Throttling is an error and charges
// nothing.
package dynamodb

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var (
	_ limit.Store        = (*Store)(nil)
	_ limit.PlanAccepter = (*Store)(nil)
)

// Defaults of [Config].
const (
	DefaultTimeout = 100 * time.Millisecond
	DefaultDenyFor = 5 * time.Second

	maxItems = 10_000 // copies of items that are kept, which bounds the memory

	// Tries of a decision or of a refund
	maxTries      = 3
	maxLeaseTries = 8 // tries of a decision that leases, which serves many later requests
)

// Errors about one request: the store answered, and has not failed. See [limit.Answered].
var (
	// ErrUndecided is wrapped by the error of a decision or refund that met other writers at each of its tries. Nothing
	// was charged.
	ErrUndecided = limit.ErrContended

	// ErrBadItem is wrapped by the error of a request that met an item which this package did not write, or which has
	// another layout version. Nothing was charged. The item's ttl is not raised, so DynamoDB deletes the item in the
	// end if nobody else does.
	ErrBadItem = fmt.Errorf("bad item: %w", limit.ErrUnreadable)
)

// client is the part of *dynamodb.Client that this package uses.
type client interface {
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput,
		error)
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	TransactWriteItems(
		context.Context, *dynamodb.TransactWriteItemsInput, ...func(*dynamodb.Options),
	) (*dynamodb.TransactWriteItemsOutput, error)
}

// Config sets up a store.
type Config struct {
	Client    client        // required; *dynamodb.Client
	Table     string        // required; see [Create]
	Namespace string        // separates the counters of several programs in one table; any text up to 64 bytes
	Timeout   time.Duration // deadline of one call to Decide, Peek or Refund; 0 means DefaultTimeout
	// how old the copy of an item may be to deny by it; 0 means DefaultDenyFor, the maximum; below 0 means never
	DenyFor time.Duration
	// use the caller's time as it is, without a correction by the Date of the replies; for scripts and replays
	CallerClock bool
}

// Store is a [limit.Store] on a DynamoDB table. Make it with [New]. The package comment describes how it decides.
type Store struct {
	client           client
	tableName        *string
	namespace        string // Config.Namespace as a netstring
	timeout          time.Duration
	denyFor          time.Duration
	clock            *serviceClock // corrects the caller's clock; nil if Config.CallerClock
	receiptPrefix    uint64        // random; with receiptSerial it makes receipt ids unique over all processes
	receiptSerial    atomic.Uint64
	copies           *lru.Cache[itemKey, *itemCopy] // what is known of the items that were used last
	valueCounts      *valueCounts
	transactionLocks *stripedLocks             // keep transactions of this process from conflicting with each other
	callOptions      []func(*dynamodb.Options) // of each call of the SDK
}

// New returns a store on a table that exists already. See [Create].
func New(c Config) (*Store, error) {
	if c.Client == nil || c.Table == "" {
		return nil, errors.New("dynamodb store: Config needs Client and Table")
	}
	if len(c.Namespace) > 64 {
		return nil, fmt.Errorf("dynamodb store: namespace has %d bytes, want at most 64", len(c.Namespace))
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.DenyFor == 0 {
		c.DenyFor = DefaultDenyFor
	}
	if c.Timeout < 0 || c.DenyFor > DefaultDenyFor {
		return nil, fmt.Errorf("dynamodb store: timeout %s or %s of denials (at most %s) is out of range",
			c.Timeout, c.DenyFor, DefaultDenyFor)
	}
	copies, err := lru.New[itemKey, *itemCopy](maxItems)
	if err != nil {
		return nil, fmt.Errorf("dynamodb store: %w", err)
	}
	var boot [8]byte
	crand.Read(boot[:]) // never fails
	s := &Store{
		client: c.Client, tableName: aws.String(c.Table), namespace: string(limit.AppendNetstring(nil, c.Namespace)),
		timeout: c.Timeout, denyFor: c.DenyFor, receiptPrefix: binary.BigEndian.Uint64(boot[:]),
		copies: copies, valueCounts: newValueCounts(maxItems), transactionLocks: newStripedLocks(),
	}
	s.callOptions = []func(*dynamodb.Options){
		func(o *dynamodb.Options) {
			o.Retryer, o.HTTPClient = aws.NopRetryer{}, plainBodies{o.HTTPClient}
		},
	}
	if !c.CallerClock {
		s.clock = new(serviceClock)
		s.callOptions = append(s.callOptions, s.clock.observeReplies)
	}
	return s, nil
}

// plainBodies sends requests with bodies that have the methods Read and Close alone. If the reply comes before net/http
// has seen the end of the request, the body of the SDK (smithy-go 1.28) makes net/http close the connection, and a call
// that DynamoDB has executed fails: the WriteTo of a body that the SDK has closed returns io.EOF as an error.
type plainBodies struct{ aws.HTTPClient }

// Do replaces the body of the request and sends it.
func (c plainBodies) Do(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		r.Body = struct{ io.ReadCloser }{r.Body}
	}
	return c.HTTPClient.Do(r)
}

// Accepts returns an error for a limit with a sliding_log, and nil for every other limit.
func (s *Store) Accepts(l *limit.Limit) error {
	for i := range l.Tiers {
		if algorithmOf(&l.Tiers[i]) == nil {
			return fmt.Errorf("limit %s: a sliding_log cannot be kept in DynamoDB: "+
				"a condition cannot count the entries of a log. Use sliding_buckets, which has the same bound", l.ID)
		}
	}
	return nil
}

// checkRequest returns an error if the request is invalid, or if it names a limit that DynamoDB cannot count.
func (s *Store) checkRequest(req *limit.Request) error {
	if err := req.Check(); err != nil {
		return err
	}
	for i := range req.Charges {
		if err := s.Accepts(req.Charges[i].Limit); err != nil {
			return fmt.Errorf("%w: %w", limit.ErrInvalidRequest, err)
		}
	}
	return nil
}

// timeOf returns the time to decide by: the caller's time, corrected by the service's clock. µs since 1970.
func (s *Store) timeOf(callerTime time.Time) int64 {
	us := callerTime.UnixMicro()
	if s.clock != nil {
		us += s.clock.offset()
	}
	return us
}

// newReceiptID returns an id that no other receipt has, of any process.
func (s *Store) newReceiptID() limit.ReceiptID {
	return limit.ReceiptID{Hi: s.receiptPrefix, Lo: s.receiptSerial.Add(1)}
}
