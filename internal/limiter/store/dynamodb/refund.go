package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Refund gives back what a receipt names. It is one transaction over the items that the decision charged and over an
// item that remembers the receipt until its windows have ended. For each try, giveBack reads the items and composes the
// updates (giveBackEntry for each counter, composeUpdates), and write sends them. See [limit.Store].
func (s *Store) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if err := ctx.Err(); err != nil {
		return limit.Refund{}, err
	}
	if err := limit.CheckRefund(r, units); err != nil {
		return limit.Refund{}, err
	}
	us := s.timeOf(now)
	if len(r.Entries()) == 0 || us >= r.Until() {
		return limit.Refund{Units: make([]int64, len(r.Entries())), Expired: len(r.Entries()) > 0 && r.Expired(us)}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for range maxTries {
		d := &decision{Store: s, now: us, partition: s.partitionKey(r.Owner()), replies: map[itemKey]*itemCopy{}}
		try := &refundTry{decision: d, receipt: r, units: units}
		out, done, err := try.giveBack(ctx)
		if err != nil {
			return limit.Refund{}, fmt.Errorf("refund to owner %q on table %s: %w", r.Owner().Name, *s.tableName, err)
		}
		if done {
			return out, nil
		}
	}
	return limit.Refund{}, fmt.Errorf("refund to owner %q on table %s: %w, %d tries",
		r.Owner().Name, *s.tableName, ErrUndecided, maxTries)
}

// refundTry is one try of a refund.
type refundTry struct {
	*decision
	receipt        *limit.Receipt
	units          int64
	updates        []*itemUpdate             // the item that remembers the receipt, then the items in keys
	keys           []itemKey                 // items that get units back, in the order of the entries
	counterRefunds map[itemKey][]counterEdit // the counters that get units back, by item
}

// giveBack makes the refund. It reports false if an item has changed between the read and the write.
func (r *refundTry) giveBack(ctx context.Context) (limit.Refund, bool, error) {
	entries := r.receipt.Entries()
	out := limit.Refund{Units: make([]int64, len(entries))}
	r.updates, r.counterRefunds = append(r.updates, r.rememberReceipt()), map[itemKey][]counterEdit{}
	for i := range entries {
		returned, err := r.giveBackEntry(ctx, &entries[i])
		if err != nil {
			return out, false, err
		}
		out.Units[i] = returned
	}
	if err := r.composeUpdates(); err != nil {
		return out, false, err
	}
	sent := time.Now()
	refused, err := r.write(ctx)
	if err != nil {
		return out, false, err
	}
	if receipt, repeated := refused[0]; repeated {
		if _, err := parseItem(receipt); err != nil {
			return out, false, r.updates[0].key.wrapError(err)
		}
		return limit.Refund{Units: make([]int64, len(entries)), Repeated: true}, true, nil
	}
	for n, attributes := range refused {
		if err := r.learnItem(r.updates[n].key, attributes, sent); err != nil {
			return out, false, err
		}
	}
	if len(refused) > 0 {
		return out, false, nil
	}
	for _, u := range r.updates[1:] {
		r.copies.Add(u.key, u.applyTo(r.latestCopy(u.key)))
	}
	return out, true, nil
}

// write writes the item that remembers the receipt and the items that get units back, all or nothing. If nothing is
// given back, it needs no transaction. It returns the items whose conditions did not hold, by the position of their
// update.
func (r *refundTry) write(ctx context.Context) (map[int]map[string]types.AttributeValue, error) {
	if len(r.updates) > 1 {
		return r.writeTransaction(ctx, r.updates)
	}
	_, err := r.client.UpdateItem(ctx, r.updates[0].updateInput(r.tableName), r.callOptions...)
	var refused *types.ConditionalCheckFailedException
	if errors.As(err, &refused) {
		return map[int]map[string]types.AttributeValue{0: refused.Item}, nil
	}
	if err != nil {
		err = r.updates[0].key.wrapError(classifyWriteError(err))
	}
	return nil, err
}

// rememberReceipt returns the update that makes the item of the receipt. Its condition fails if the receipt was
// refunded before.
func (r *refundTry) rememberReceipt() *itemUpdate {
	u := newItemUpdate(itemKey{r.partition, receiptSortKey(r.receipt.ID())})
	u.require("attribute_not_exists(" + u.nameAlias(attrPK) + ")")
	end := max(r.receipt.Until(), time.Now().UnixMicro()+max(0, r.receipt.Until()-r.now))
	u.sets = append(u.sets, u.nameAlias(attrVersion)+"="+u.intAlias(layoutVersion),
		u.nameAlias(attrTTL)+"="+u.intAlias(end/1_000_000+ttlMargin))
	return u
}

// composeUpdates makes the updates of the items that get units back.
func (r *refundTry) composeUpdates() error {
	for _, key := range r.keys {
		u, err := composeUpdate(key, r.counterRefunds[key], func(u *itemUpdate) {
			version := u.nameAlias(attrVersion)
			u.require(version + "=" + u.intAlias(layoutVersion))
			u.sets = append(u.sets, version+"="+u.intAlias(layoutVersion))
		})
		if err != nil {
			return key.wrapError(err)
		}
		r.updates = append(r.updates, u)
	}
	return checkItemCount(len(r.keys))
}

// giveBackEntry adds to the try what one entry gives back, as the core decides, and returns how many units that is.
func (r *refundTry) giveBackEntry(ctx context.Context, entry *limit.ReceiptEntry) (int64, error) {
	key, name, err := r.findCounter(ctx, entry)
	if err != nil {
		return 0, err
	}
	p := entry.Tier.Params(r.receipt.Owner())
	stored, before, err := r.latestCopy(key).readCounter(entry.Tier, &p, name)
	if err != nil {
		return 0, key.wrapError(err)
	}
	if stored == nil {
		return 0, nil
	}
	after := *before.Clone()
	returned := entry.Apply(&after, r.units, r.now)
	if returned == 0 && after.Equal(&before) {
		return 0, nil
	}
	if len(r.counterRefunds[key]) == 0 {
		r.keys = append(r.keys, key)
	}
	refund := &counterRefund{tier: entry.Tier, params: p, stored: stored, before: before, after: after, now: r.now}
	r.counterRefunds[key] = append(r.counterRefunds[key], counterEdit{name, refund.addTo})
	return returned, nil
}

// findCounter returns where an entry's counter is. It reads the items that it needs to find it.
func (r *refundTry) findCounter(ctx context.Context, e *limit.ReceiptEntry) (itemKey, string, error) {
	for {
		key, name := r.locateCounter(e.Tier, e.Value)
		if r.replies[key] != nil {
			return key, name, nil
		}
		if err := r.readItem(ctx, key); err != nil {
			return key, name, err
		}
	}
}

// counterRefund is the refund of one counter. Its conditions are inequalities, like those of charges, so that charges
// between the read and the write do not make them fail.
type counterRefund struct {
	tier          *limit.Tier
	params        limit.Params
	stored        fields
	before, after limit.State
	now           int64
}

// addTo adds the refund to the update of its item. If whole is true, it compares and replaces the whole counter.
func (c *counterRefund) addTo(u counterUpdate, whole bool) {
	if whole {
		c.compareWhole(u)
		return
	}
	algorithmOf(c.tier).refund(c, u)
}

// compareWhole compares and replaces the whole counter.
func (c *counterRefund) compareWhole(u counterUpdate) {
	u.requireUnchanged(c.stored)
	f := algorithmOf(c.tier).encode(&c.params, &c.after, c.now)
	if x := c.stored[fieldLateCharges]; x != nil {
		// a refund adds no bucket, and no bucket expires by it
		f[fieldStart], f[fieldLateCharges] = c.stored[fieldStart], x
	}
	u.replace(f)
}

// subtractCount takes units off a count of the stored window.
func (c *counterRefund) subtractCount(u counterUpdate, field string, units int64) {
	if units == 0 {
		return
	}
	u.requireEqual(fieldStart, c.stored[fieldStart])
	u.require(u.compare(field, ">=", big.NewInt(units)))
	u.addToField(field, big.NewInt(-units))
}
