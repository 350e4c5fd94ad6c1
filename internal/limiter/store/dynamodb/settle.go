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

// Settle corrects what a decision charged. It is one transaction over the items that get units back, those that are
// charged what was used beyond the receipt, and an item that remembers the receipt. For each try, settle reads the
// items and composes the updates (giveBackEntry for each counter that gets units back, chargeOverage for the others),
// and write sends them. See [limit.Store].
func (s *Store) Settle(ctx context.Context, r *limit.Receipt, used []int64, now time.Time) (limit.Settlement, error) {
	if err := ctx.Err(); err != nil {
		return limit.Settlement{}, err
	}
	out, err := r.BeginSettle(used)
	if err != nil || len(r.Entries()) == 0 {
		return out, err
	}
	us := s.timeOf(now)
	if us >= r.Until() {
		out.Expired = r.Expired(us)
		return out, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for n := range maxLeaseTries {
		if n >= maxTries { // others change the counters all the time
			if err := s.pause(ctx, s.randomMilliseconds(4)); err != nil {
				return limit.Settlement{}, err
			}
		}
		try := &settleTry{
			decision: &decision{Store: s, req: &limit.Request{}, now: us, partition: s.partitionKey(r.Owner()),
				replies: map[itemKey]*itemCopy{}},
			receipt: r, used: used, edits: map[itemKey][]counterEdit{}, bases: map[itemKey]*itemCopy{},
		}
		out, done, err := try.settle(ctx)
		if err != nil {
			return limit.Settlement{}, fmt.Errorf("settle for owner %q on table %s: %w", r.Owner().Name, *s.tableName,
				err)
		}
		if done {
			return out, nil
		}
	}
	return limit.Settlement{}, fmt.Errorf("settle for owner %q on table %s: %w, %d tries",
		r.Owner().Name, *s.tableName, ErrUndecided, maxLeaseTries)
}

// settleTry is one try of a settlement. Its decision is the one that charges what was used beyond the receipt.
type settleTry struct {
	*decision
	receipt *limit.Receipt
	used    []int64
	updates []*itemUpdate             // of the item that remembers the receipt, then of the items in keys
	keys    []itemKey                 // of the items that change
	edits   map[itemKey][]counterEdit // of the counters that get units back, by item
	bases   map[itemKey]*itemCopy     // from which the updates are composed, by item
}

// settle makes the settlement. It reports false if an item has changed between the read and the write.
func (r *settleTry) settle(ctx context.Context) (limit.Settlement, bool, error) {
	out, err := r.receipt.BeginSettle(r.used)
	if err != nil {
		return out, false, err
	}
	r.updates = append(r.updates, r.rememberReceipt())
	for i := range r.receipt.Entries() {
		if out.Returned[i], err = r.giveBackEntry(ctx, i); err != nil {
			return out, false, err
		}
	}
	if over := r.receipt.Overage(r.used); over != nil {
		var d limit.Decision
		if changed, err := r.chargeOverage(ctx, &over.Request, &d); changed || err != nil {
			return out, false, err
		}
		over.Report(&d, &out)
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
		out, err = r.receipt.BeginSettle(r.used)
		out.Repeated = true
		return out, true, err
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
		known := r.bases[u.key] // not the latest copy, which may have the update in it already
		if known == nil {
			known = &itemCopy{}
		}
		r.copies.Add(u.key, u.applyTo(known))
	}
	return out, true, nil
}

// chargeOverage decides the request, which is for units that are charged without a condition, and composes the updates
// of its items, together with what these get back. It reports true if an item was changed for that, so that the try
// must begin anew.
func (r *settleTry) chargeOverage(ctx context.Context, req *limit.Request, d *limit.Decision) (bool, error) {
	r.req, r.firstNow, r.startedAt = req, r.now, time.Now()
	r.eval = d.BeginChecked(req, r.now)
	if err := r.evaluateWithChain(ctx); err != nil {
		return false, err
	}
	r.eval.Settle()
	if marked, err := r.markFullItem(ctx); marked || err != nil {
		return marked, err
	}
	for index, it := range r.items {
		u, err := r.buildUpdate(index, true, r.edits[it.key]...)
		if err != nil {
			return false, err
		}
		delete(r.edits, it.key)
		r.bases[it.key] = it.known
		r.updates = append(r.updates, u)
	}
	r.adoptCharges()
	return false, nil
}

// write writes the item that remembers the receipt and the items that get units back, all or nothing. If nothing is
// given back, it needs no transaction. It returns the items whose conditions did not hold, by the position of their
// update.
func (r *settleTry) write(ctx context.Context) (map[int]map[string]types.AttributeValue, error) {
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
// settled before.
func (r *settleTry) rememberReceipt() *itemUpdate {
	u := newItemUpdate(itemKey{r.partition, receiptSortKey(r.receipt.ID())})
	u.require("attribute_not_exists(" + u.nameAlias(attrPK) + ")")
	end := max(r.receipt.Until(), time.Now().UnixMicro()+max(0, r.receipt.Until()-r.now))
	u.sets = append(u.sets, u.nameAlias(attrVersion)+"="+u.intAlias(layoutVersion),
		u.nameAlias(attrTTL)+"="+u.intAlias(end/1_000_000+ttlMargin))
	return u
}

// composeUpdates makes the updates of the items that only get units back.
func (r *settleTry) composeUpdates() error {
	for _, key := range r.keys {
		if r.edits[key] == nil { // chargeOverage has made it
			continue
		}
		u, err := composeUpdate(key, r.edits[key], func(u *itemUpdate) {
			version := u.nameAlias(attrVersion)
			u.require(version + "=" + u.intAlias(layoutVersion))
			u.sets = append(u.sets, version+"="+u.intAlias(layoutVersion))
		})
		if err != nil {
			return key.wrapError(err)
		}
		r.updates = append(r.updates, u)
	}
	return checkItemCount(len(r.updates) - 1)
}

// giveBackEntry adds to the try what an entry gives back, as the core decides, and returns how many units that is.
func (r *settleTry) giveBackEntry(ctx context.Context, index int) (int64, error) {
	entry, unused := &r.receipt.Entries()[index], r.receipt.Unused(index, r.used)
	if unused == 0 {
		return 0, nil
	}
	key, name, err := r.findCounter(ctx, entry)
	if err != nil {
		return 0, err
	}
	p := entry.Tier.Params(r.receipt.Owner())
	base := r.bases[key]
	if base == nil {
		base = r.latestCopy(key)
		r.bases[key] = base
	}
	stored, before, err := base.readCounter(entry.Tier, &p, name)
	if err != nil {
		return 0, key.wrapError(err)
	}
	if stored == nil {
		return 0, nil
	}
	after := *before.Clone()
	returned := entry.GiveBack(&after, unused, r.now)
	if returned == 0 && after.Equal(&before) {
		return 0, nil
	}
	if len(r.edits[key]) == 0 {
		r.keys = append(r.keys, key)
	}
	refund := &counterRefund{tier: entry.Tier, params: p, stored: stored, before: before, after: after, now: r.now}
	r.edits[key] = append(r.edits[key], counterEdit{name, refund.addTo})
	return returned, nil
}

// findCounter returns where an entry's counter is. It reads the items that it needs to find it.
func (r *settleTry) findCounter(ctx context.Context, e *limit.ReceiptEntry) (itemKey, string, error) {
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
