// Package dynamodb keeps counters in one DynamoDB table, by conditional writes: one UpdateItem a decision.
//
// # Table
//
// Partition key PK and sort key SK, both binary, so that names may hold any bytes. All text in keys is in netstrings.
//
//	item            PK                            SK
//	shared          namespace, kind, owner        "s" chain number: counters without a value, and per: endpoint
//	value           namespace, kind, owner        "v" per, kind, value: an item for each subject, api_key, ip, claim
//	refund          namespace, kind, owner        "r" receipt id: this receipt was refunded
//
//	attribute       type   meaning
//	v               N      layout version of the item, 2. An item of another version is refused: it is never taken for an
//	                       empty one, and nothing in it is read or changed
//	ttl             N      seconds since 1970. Garbage collection only: later than the last use of any counter in the
//	                       item by at least a day, only ever raised, and at most once per window
//	full            N      1: a shared item that has reached 1 KB. It takes no more counters, new ones go to the next of
//	                       the chain, and it has no ttl, so that this stays known
//	id/…            M      one counter. Its name is the limit's id, a letter for the algorithm (upper case for a shadow),
//	                       period or calendar, and in a shared item the endpoint
//
// A counter is kept in a form that a comparison can decide, since conditions have no arithmetic (numbers are N):
//
//	fixed_window     w start of the window, n count; after its first window o start of the one charged before it, and p
//	                 that one's count. The window before w counts p, or nothing if o lies more than a period before it
//	quota            w start of the period, e its end, n count
//	sliding_window   w start of the window, n count, p count of the last window
//	sliding_buckets  w newest bucket, s sum of all buckets, x charges to buckets more than a period before the newest, and
//	                 a field for each bucket: b0 and its number in base 36 → units
//	token_bucket     e the time at which the level was zero, in 1/num µs, where num/den is the rate in units per µs; r the
//	                 rate, units per period; t time of the last charge, or a little before, see together; b all
//	                 that was ever refunded, in 1/den units, and u when last; while units are leased, z the end of their
//	                 slot, and q the time at which the level and they together were zero, in 1/num µs
//	leaky_bucket     s the next free slot, in 1/r µs; r numerator of the rate in units per µs
//
// Times are µs since 1970, buckets are counted in their widths since then.
//
// # Decisions
//
// The core in package limit is the only judge. A writer guesses what the item holds (it remembers the items it saw
// last), asks the core, and writes with a condition that holds iff the core would admit in the same way whatever the
// item holds by then. The conditions are inequalities, such as count ≤ threshold − cost, and no versions, so writers
// do not disturb each other. The reply carries the item as it was before: from that the core fills in the decision.
// Where the condition does not hold, the item in the reply tells *over the limit*, which is a denial, from *guessed
// wrong*, which is tried again. After three tries, or at the deadline, the store could not answer: an error.
//
// A decision whose enforcing counters lie in several items is one transaction, all or nothing, twice the write units. Its
// reply carries no items, so what it reports as remaining is what the writer knew: with other writers on the same counters
// it can be too much. What it admits is exact.
//
// One that leases (limit.Request.Leases) writes the shared items first and then the value's, one after the other: where the
// last one denies, what the others were charged stays with the caller, as a lease. It is a transaction all the same where
// it writes to the items of several values, or where a shared item has an exact limit, a leaky bucket or a correction. What
// comes back to a token bucket after its slot is left out.
//
// Two things are stricter than the core, and never laxer, where several writers charge one token bucket at the same
// time: its stamp moves in steps of about 0.1 s then, so a clock that is behind finds what was in it up to that long ago;
// and a bucket of 128 units or more is held to be at most 31/32 full. A single writer decides as the memory store does.
//
// Past a limit's bound on values the rest share a counter. How many there are is counted by each process, so over n of them
// the bound is up to n times as large.
//
// A shadow limit never blocks and never fails a decision. It is charged in the same write where its counter is in the
// same item as an enforcing one, else in a write of its own after the decision. Exact with one writer; approximate,
// always towards fewer charges, where a third try leaves it out, or where the writer's memory of it was behind a
// refund.
//
// # Many counters
//
// DynamoDB bounds the length and the operators of an expression, and the items of a transaction. Where the conditions of all
// counters of an item do not fit, the widest counters are compared and set as a whole: one condition of a few bytes, that holds
// only if nobody else has charged the counter meanwhile. What does not fit even so is limit.ErrTooLarge, and is not sent.
// [AcceptsPlan] says in advance, by the same function, what always fits.
//
// # Errors and money
//
// An error about one request, such as an item that cannot be read, a write that is too large, or other writers at each try, says
// so ([limit.Answered]): it is no failure of the store. Everything else is one.
//
// The SDK's retries are off. An error other than a denial may come from a write that was carried out and whose reply
// was lost: then the units are lost, never admitted twice and never too many. Throttling is an error and charges
// nothing.
//
// What the writer knows not to fit is denied without a call for at most five seconds after the store last said so. It
// is the core's answer over the item as it was then, under the limits as they are now: a raised limit is in force at
// once.
package dynamodb

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sluicelimits/sluice/internal/limit"
)

var (
	_ limit.Store        = (*Store)(nil)
	_ limit.PlanAccepter = (*Store)(nil)
)

// Defaults and bounds.
const (
	DefaultTimeout  = 100 * time.Millisecond
	DefaultMaxItems = 10_000
	DefaultDenyFor  = 5 * time.Second

	maxTries      = 3
	maxLeaseTries = 8 // of a decision that leases
)

// Errors of a request whose store answered. See [limit.Answered].
var (
	// ErrUndecided is wrapped by the error of a decision that was tried several times and met other writers each time. It has
	// charged nothing.
	ErrUndecided = limit.ErrContended

	// ErrBadItem is wrapped by the error of a request that met an item which this package did not write, or wrote in another
	// layout version. The request has charged nothing, and the item's ttl is not raised, so an item that nobody deletes
	// goes away by itself.
	ErrBadItem = fmt.Errorf("bad item: %w", limit.ErrUnreadable)
)

// client is the part of *dynamodb.Client that this package uses.
type client interface {
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	TransactWriteItems(context.Context, *dynamodb.TransactWriteItemsInput, ...func(*dynamodb.Options)) (*dynamodb.TransactWriteItemsOutput, error)
}

// Config sets up a store.
type Config struct {
	Client      client        // required; *dynamodb.Client
	Table       string        // required; see [Create]
	Namespace   string        // keeps the counters of several programs in one table apart; any text up to 64 bytes
	Timeout     time.Duration // deadline of one call to Decide, Peek or Refund; 0 means DefaultTimeout
	MaxItems    int           // items remembered, which bounds the memory; 0 means DefaultMaxItems
	DenyFor     time.Duration // how long a denial may be answered from memory; 0 means DefaultDenyFor, the most; below 0 never
	CallerClock bool          // go by the caller's now as it is, and not by the service's Date; for scripts and replays
}

// Store is a [limit.Store] on a DynamoDB table. Make it with [New].
type Store struct {
	client           client
	tableName        *string
	namespace        string
	timeout          time.Duration
	denyFor          time.Duration
	clock            *serviceClock // nil: the caller's
	receiptPrefix    uint64
	receiptSerial    atomic.Uint64
	copies           *lru.Cache[itemKey, *itemCopy]
	valueCounts      *valueCounts
	transactionLocks *stripedLocks
	callOptions      []func(*dynamodb.Options)
}

// New makes a store on a table that exists.
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
	if c.MaxItems == 0 {
		c.MaxItems = DefaultMaxItems
	}
	if c.DenyFor == 0 {
		c.DenyFor = DefaultDenyFor
	}
	if c.Timeout < 0 || c.MaxItems < 0 || c.DenyFor > DefaultDenyFor {
		return nil, fmt.Errorf("dynamodb store: timeout %s, %d items or %s of denials (at most %s) is out of range",
			c.Timeout, c.MaxItems, c.DenyFor, DefaultDenyFor)
	}
	views, err := lru.New[itemKey, *itemCopy](c.MaxItems)
	if err != nil {
		return nil, fmt.Errorf("dynamodb store: %w", err)
	}
	var boot [8]byte
	crand.Read(boot[:]) // never fails
	s := &Store{
		client: c.Client, tableName: aws.String(c.Table), namespace: string(limit.AppendNetstring(nil, c.Namespace)), timeout: c.Timeout, denyFor: c.DenyFor,
		receiptPrefix: binary.BigEndian.Uint64(boot[:]), copies: views, valueCounts: newValueCounts(c.MaxItems), transactionLocks: newStripedLocks(),
	}
	s.callOptions = []func(*dynamodb.Options){func(o *dynamodb.Options) { o.Retryer = aws.NopRetryer{} }}
	if !c.CallerClock {
		s.clock = new(serviceClock)
		s.callOptions = append(s.callOptions, s.clock.observeReplies)
	}
	return s, nil
}

// Accepts every limit but those with a sliding_log.
func (s *Store) Accepts(l *limit.Limit) error {
	for i := range l.Tiers {
		if algorithmOf(&l.Tiers[i]) == nil {
			return fmt.Errorf("limit %s: a sliding_log cannot be kept in DynamoDB: a condition cannot count the entries of a "+
				"log. Use sliding_buckets, which has the same bound", l.ID)
		}
	}
	return nil
}

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

// now is the time that decisions go by, µs since 1970.
func (s *Store) timeOf(callerTime time.Time) int64 {
	us := callerTime.UnixMicro()
	if s.clock != nil {
		us += s.clock.offset()
	}
	return us
}

// nextID is a receipt's name: unique over all stores, by a random part for each.
func (s *Store) newReceiptID() limit.ReceiptID {
	return limit.ReceiptID{Hi: s.receiptPrefix, Lo: s.receiptSerial.Add(1)}
}
