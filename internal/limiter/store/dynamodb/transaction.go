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

const maxConflicts = 10 // how often a transaction is sent again after a conflict with another one

// writeInTransaction writes the enforcing counters of several items in one transaction. It reports false if a condition
// did not hold, and caches the items of which that is true.
func (d *decision) writeInTransaction(ctx context.Context, updates []plannedUpdate) (bool, error) {
	itemUpdates := make([]*itemUpdate, len(updates))
	for n := range updates {
		itemUpdates[n] = updates[n].itemUpdate
	}
	if err := checkItemCount(len(itemUpdates)); err != nil {
		return false, err
	}
	sent := time.Now()
	refused, err := d.writeTransaction(ctx, itemUpdates)
	if err != nil {
		return false, err
	}
	if len(refused) > 0 {
		for n, attributes := range refused {
			if err := d.learnRefused(updates[n].index, attributes, sent); err != nil {
				return false, err
			}
		}
		return false, nil
	}
	// The reply of a transaction carries no items, so each new copy follows from the copy that the condition confirmed.
	for n, u := range itemUpdates {
		known := d.items[updates[n].index].known
		if known == nil {
			known = &itemCopy{}
		}
		d.copies.Add(u.key, u.applyTo(known))
	}
	return true, nil
}

// writeTransaction carries out all updates or none. If conditions did not hold, it returns the items, by the position
// of their update.
func (s *Store) writeTransaction(
	ctx context.Context, updates []*itemUpdate,
) (map[int]map[string]types.AttributeValue, error) {
	in := &dynamodb.TransactWriteItemsInput{}
	for _, u := range updates {
		in.TransactItems = append(in.TransactItems, u.transactionItem(s.tableName))
	}
	keys := make([]itemKey, len(updates))
	for i, u := range updates {
		keys[i] = u.key
	}
	// transactions of one process wait for each other instead of conflicting
	unlock, err := s.transactionLocks.lock(ctx, keys)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for conflicts := 0; ; conflicts++ {
		id := s.newReceiptID()
		// DynamoDB carries out a repeated request once
		in.ClientRequestToken = aws.String(fmt.Sprintf("%016x-%016x", id.Hi, id.Lo))
		_, err := s.client.TransactWriteItems(ctx, in, s.callOptions...)
		if err == nil {
			return nil, nil
		}
		refused, conflict, err := cancellationReasons(err, updates)
		switch {
		case len(refused) > 0:
			return refused, nil
		case !conflict:
			return nil, err
		case conflicts == maxConflicts:
			return nil, fmt.Errorf("%w: %w", ErrUndecided, err)
		}
		if err := s.pause(ctx, s.randomMilliseconds(4*(conflicts+1))); err != nil {
			return nil, err
		}
	}
}

// cancellationReasons reads why a transaction was not carried out: the items whose conditions did not hold, and whether
// conflicts with other transactions were the only reason. The error names the item that DynamoDB found invalid, if
// there is one.
func cancellationReasons(err error, updates []*itemUpdate) (
	refused map[int]map[string]types.AttributeValue, conflict bool, cause error,
) {
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
			if conflict = false; i < len(updates) {
				return nil, false, updates[i].key.wrapError(classifyValidationError(err, aws.ToString(reason.Message)))
			}
		default:
			conflict = false
		}
	}
	return refused, conflict, err
}

// pause waits for d, or until ctx ends, and then returns its error.
func (s *Store) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return ctx.Err()
}

// randomMilliseconds returns a random whole number of milliseconds, 1..most.
func (s *Store) randomMilliseconds(most int) time.Duration {
	return (1 + rand.N(time.Duration(most))) * time.Millisecond
}

// stripedLocks is a fixed number of locks for any number of items. Items whose keys have the same hash share a lock.
type stripedLocks struct {
	seed  maphash.Seed
	locks [64]chan struct{} // a lock is taken while its channel is full
}

func newStripedLocks() *stripedLocks {
	s := &stripedLocks{seed: maphash.MakeSeed()}
	for i := range s.locks {
		s.locks[i] = make(chan struct{}, 1)
	}
	return s
}

// lock takes the locks of all keys, or none if ctx ends before. All callers take locks in the same order, so none waits
// for another in a circle.
func (s *stripedLocks) lock(ctx context.Context, keys []itemKey) (unlock func(), err error) {
	var wanted []int
	for _, k := range keys {
		wanted = append(wanted, int(maphash.String(s.seed, k.partition+k.sort)%uint64(len(s.locks))))
	}
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	release := func(n int) {
		for _, i := range wanted[:n] {
			<-s.locks[i]
		}
	}
	for n, i := range wanted {
		if err := s.lockOne(ctx, i); err != nil {
			release(n)
			return nil, err
		}
	}
	return func() { release(len(wanted)) }, nil
}

// lockOne takes one lock.
func (s *stripedLocks) lockOne(ctx context.Context, i int) error {
	select {
	case s.locks[i] <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
