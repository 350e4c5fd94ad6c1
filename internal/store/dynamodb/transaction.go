package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

const maxConflicts = 10 // times that a transaction is sent again since another one was at its items

// chargeAll writes the enforcing counters of several items in one transaction.
func (d *decision) writeInTransaction(ctx context.Context, updates []plannedUpdate) (bool, error) {
	writes := make([]*itemUpdate, len(updates))
	for n := range updates {
		writes[n] = updates[n].itemUpdate
	}
	if err := checkItemCount(len(writes)); err != nil {
		return false, err
	}
	sent := time.Now()
	refused, err := d.writeTransaction(ctx, writes)
	if err != nil {
		return false, err
	}
	if len(refused) > 0 {
		for n, attributes := range refused {
			if err := d.learnItem(writes[n].key, attributes, sent); err != nil {
				return false, err
			}
		}
		return false, nil
	}
	for n, u := range writes { // the reply has no items: what was believed is what is known
		believed := d.items[updates[n].item].known
		if believed == nil {
			believed = &itemCopy{}
		}
		d.copies.Add(u.key, u.applyTo(believed))
	}
	return true, nil
}

// transact carries out all writes or none. It returns the items whose conditions did not hold, by position.
func (s *Store) writeTransaction(ctx context.Context, writes []*itemUpdate) (map[int]map[string]types.AttributeValue, error) {
	in := &dynamodb.TransactWriteItemsInput{}
	for _, u := range writes {
		in.TransactItems = append(in.TransactItems, u.transactionItem(s.tableName))
	}
	keys := make([]itemKey, len(writes))
	for i, u := range writes {
		keys[i] = u.key
	}
	unlock, err := s.transactionLocks.lock(ctx, keys) // transactions of one process need not conflict with each other
	if err != nil {
		return nil, err
	}
	defer unlock()
	for conflicts := 0; ; conflicts++ {
		id := s.newReceiptID()
		in.ClientRequestToken = aws.String(fmt.Sprintf("%016x-%016x", id.Hi, id.Lo)) // what the network repeats counts once
		_, err := s.client.TransactWriteItems(ctx, in, s.callOptions...)
		if err == nil {
			return nil, nil
		}
		refused, conflict, err := cancellationReasons(err, writes)
		switch {
		case len(refused) > 0:
			return refused, nil
		case !conflict:
			return nil, err
		case conflicts == maxConflicts:
			return nil, fmt.Errorf("%w: %w", ErrUndecided, err)
		}
		if err := sleepContext(ctx, time.Duration(1+rand.Int64N(int64(conflicts+1)*4))*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// cancellation reads why a transaction was not carried out: the items whose conditions did not hold, and whether nothing but
// other transactions was in the way. The error says which item DynamoDB does not take, if that was it.
func cancellationReasons(err error, writes []*itemUpdate) (refused map[int]map[string]types.AttributeValue, conflict bool, cause error) {
	var canceled *types.TransactionCanceledException
	if !errors.As(err, &canceled) {
		return nil, isConflict(err), classifyWriteError(err)
	}
	refused, conflict = map[int]map[string]types.AttributeValue{}, true
	for i, reason := range canceled.CancellationReasons {
		switch aws.ToString(reason.Code) {
		case "ConditionalCheckFailed":
			refused[i] = reason.Item
		case "TransactionConflict", "None", "":
		case "ValidationError":
			if conflict = false; i < len(writes) {
				return nil, false, writes[i].key.wrapError(classifyValidationError(err, aws.ToString(reason.Message)))
			}
		default:
			conflict = false
		}
	}
	return refused, conflict, err
}

func sleepContext(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// stripes are locks that are shared by keys of one hash.
type stripedLocks struct {
	seed  maphash.Seed
	locks [64]chan struct{} // full while held
}

func newStripedLocks() *stripedLocks {
	s := &stripedLocks{seed: maphash.MakeSeed()}
	for i := range s.locks {
		s.locks[i] = make(chan struct{}, 1)
	}
	return s
}

// lock takes the locks of all keys, in an order that all callers have in common, or none if ctx ends first.
func (s *stripedLocks) lock(ctx context.Context, keys []itemKey) (unlock func(), err error) {
	var wanted []int
	for _, k := range keys {
		wanted = append(wanted, int(maphash.Comparable(s.seed, k)%uint64(len(s.locks))))
	}
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	release := func(n int) {
		for _, i := range wanted[:n] {
			<-s.locks[i]
		}
	}
	for n, i := range wanted {
		select {
		case s.locks[i] <- struct{}{}:
		case <-ctx.Done():
			release(n)
			return nil, ctx.Err()
		}
	}
	return func() { release(len(wanted)) }, nil
}
