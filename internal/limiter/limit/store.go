package limit

import (
	"context"
	"errors"
	"time"
)

// Errors of a [Store] that answered: it could not decide this request, and nothing was charged. See [Answered]. Any
// other error means that the store could not answer.
var (
	// ErrInvalidRequest means that the request is wrong in itself: a limit that is nil or off, a value that does not
	// match the limit's per, leases that the tiers cannot have.
	ErrInvalidRequest error = answer("invalid request")

	// ErrInvalidCost means that the cost is outside 1..MaxUnits, or above what the limit can count exactly.
	ErrInvalidCost error = answer("invalid cost")

	// ErrDuplicateCounter means that two charges name the same limit and value, or values that share one counter.
	ErrDuplicateCounter error = answer("one counter twice in a decision")

	// ErrFull means that the store has no room for the counters of the request, and can forget no other ones.
	ErrFull error = answer("store is full of counters still used")

	// ErrUnreadable means that a stored counter of the request is of another version, or was not written by the store.
	// The error names the key. The store never takes such a counter for an empty one.
	ErrUnreadable error = answer("stored counter cannot be read")

	// ErrTooLarge means that the request's counters do not fit into one operation of the store. The error says which
	// bound.
	ErrTooLarge error = answer("too many counters for one decision of this store")

	// ErrContended means that other requests changed the counters of the request at each of the store's tries.
	ErrContended error = answer("other requests changed the counters at each try")

	// ErrSettlementsFull means that the store remembers as many settlements as it may. The receipt stays valid: the
	// same call can succeed later, until the receipt expires.
	ErrSettlementsFull error = answer("too many settlements within the life of a receipt")
)

// answer is an error of a store that answered.
type answer string

// Error returns the text of the error.
func (a answer) Error() string { return string(a) }

// Unwrap returns errAnswered, by which Answered finds every answer in one pass over an error.
func (answer) Unwrap() error { return errAnswered }

var errAnswered = errors.New("the store answered")

// Answered reports whether err, from a method of a [Store], means that the store is in reach and answered, but could
// not decide this request. Such an error says nothing about other requests, so it is never a failure of the store: a
// circuit breaker must not count it.
func Answered(err error) bool { return errors.Is(err, errAnswered) }

// LostReply is the error of a [Store] that a request was sent to and that did not reply in time: the store may have
// charged the request, or may still do so. A store returns it only for a request with leases, of which a lost reply
// burns more units than the request costs.
type LostReply struct {
	Cause   error         // why there is no reply
	Request *Request      // what was sent; nobody else changes it
	KeptFor time.Duration // Find tells what became of the request for as long after it was sent

	// Find asks the store whether it has charged the request. If it has, Find writes the decision that the lost reply
	// had told to d. If it has not, it never will: should it get the request later, it refuses it. Find may be called
	// again; it does not give the units back. If nil, the store cannot tell.
	Find func(ctx context.Context, d *Decision) (charged bool, err error)
}

// Error returns the text of the cause.
func (l *LostReply) Error() string { return l.Cause.Error() }

// Unwrap returns the cause.
func (l *LostReply) Unwrap() error { return l.Cause }

// Store keeps counters and decides on them atomically. Implementations are safe for concurrent use. Whatever error a
// method returns, it has charged nothing, unless the implementation says otherwise.
type Store interface {
	// Decide charges every limit of the request, or none, as of now, and writes the outcome to d. A denial is an
	// outcome, not an error. It charges nothing; the store may repair or forget counters nevertheless. d is reset
	// first, also before an error, and may be reused; its memory is kept.
	Decide(ctx context.Context, req *Request, now time.Time, d *Decision) error

	// Peek writes to d what Decide would answer. It changes nothing, anywhere. A store may answer a request that is too
	// large for Decide.
	Peek(ctx context.Context, req *Request, now time.Time, d *Decision) error

	// Settle corrects what a decision charged to what was used of each entry of its receipt, once for each receipt,
	// until the receipt expires; used is nil if nothing was used. Units that were not used are given back in windows
	// that still count; a bucket gets back no units that it would have lost by now for being full if it had not been
	// charged. Units that were used and not charged are charged now, also beyond the limit.
	//
	// After an error, the same call may be made again. ErrSettlementsFull means that nothing was changed and that the
	// same call may succeed later. ErrInvalidRequest means that used does not fit the receipt.
	Settle(ctx context.Context, r *Receipt, used []int64, now time.Time) (Settlement, error)

	// Accepts says whether the store can keep the limit's counters; the error says why not.
	Accepts(l *Limit) error
}

// PlanAccepter is implemented by stores that bound how many counters one operation can have.
type PlanAccepter interface {
	// AcceptsPlan says whether the store can keep the counters of all these limits, and decide over the limits of each
	// list in one request, whatever their counters hold. The error wraps ErrTooLarge and says what to do.
	AcceptsPlan(all []*Limit, together ...[]*Limit) error
}

// AcceptsPlan asks the store, if it has bounds. See [PlanAccepter].
func AcceptsPlan(s Store, all []*Limit, together ...[]*Limit) error {
	if bounded, ok := s.(PlanAccepter); ok {
		return bounded.AcceptsPlan(all, together...)
	}
	return nil
}
