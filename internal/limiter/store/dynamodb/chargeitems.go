package dynamodb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

const (
	// a shared item gets no new counter that would make it larger, so that each write of it costs one unit
	maxSharedItemBytes = 1024
	ttlMargin          = 24 * 60 * 60      // seconds between the time until which a counter matters and the ttl
	minTTLRaise        = 60 * 60           // seconds
	maxTTLRaise        = 31 * 24 * 60 * 60 // seconds

	// µs; a charge that is not older was made by another process at the same time
	recentChargeWithin = 100_000
	justReadWithin     = 10 * time.Millisecond // a copy that is not older is not read again before a write
)

// writeCharges writes the charges of a decision that the core admits. It reports false if a condition did not hold; it
// has then cached the items that the reply has shown. The last try leaves out the shadow limits, so that they cannot
// fail the decision.
func (d *decision) writeCharges(ctx context.Context, last bool) (done bool, err error) {
	d.hasRead = false
	if marked, err := d.markFullItem(ctx); marked || err != nil {
		return false, err
	}
	enforces := false
	var updates []plannedUpdate
	for index, it := range d.items {
		if !it.enforces {
			continue
		}
		enforces = true
		u, err := d.buildUpdate(index, !last)
		if err != nil {
			return false, err
		}
		if u != nil {
			updates = append(updates, plannedUpdate{index, u})
		}
	}
	if d.hasRead, err = d.readLikelyStale(ctx); d.hasRead || err != nil {
		return false, err
	}
	if done, err := d.writeEnforcing(ctx, updates, enforces && !last); !done || err != nil {
		return done, err
	}
	if !d.eval.Settle() {
		return false, fmt.Errorf("internal error: owner %q was charged under a condition that the core does not share",
			d.req.Owner.Name)
	}
	if err := d.chargeShadows(ctx); err != nil && !enforces {
		return false, err
	}
	d.adoptCharges()
	d.persistRepairs(ctx)
	return true, nil
}

// writeEnforcing writes the items with enforcing limits. If there is nothing to write, and mayRead is true, it reads
// the items whose copies are not recent enough to be sure of that.
func (d *decision) writeEnforcing(ctx context.Context, updates []plannedUpdate, mayRead bool) (bool, error) {
	switch {
	case len(updates) > 1:
		return d.writeInTransaction(ctx, updates)
	case len(updates) == 1:
		return d.writeItem(ctx, updates[0].index, updates[0].itemUpdate)
	case mayRead:
		return d.confirmNothingToWrite(ctx)
	}
	return true, nil
}

// plannedUpdate is the update of one item of the decision, by its position.
type plannedUpdate struct {
	index int
	*itemUpdate
}

// readLikelyStale reads the items for which the condition of a lease is likely to fail, unless their copies are very
// recent. A failed write would take as long, and cost a write unit. It reports whether it read any; the decision is
// then evaluated again.
func (d *decision) readLikelyStale(ctx context.Context) (bool, error) {
	if len(d.req.Leases) == 0 {
		return false, nil
	}
	return d.readItems(ctx, func(it *item) bool {
		return d.replies[it.key] == nil && it.known != nil && time.Since(it.known.readAt) > justReadWithin &&
			slices.ContainsFunc(d.counters, func(t resultCounter) bool {
				return t.likelyStale &&
					d.items[t.item] == it
			})
	})
}

// confirmNothingToWrite is called for a request that needs nothing and is granted no lease. It reads the items whose
// copies are not recent and of which the request asks for a lease. It reports false if it has read any.
func (d *decision) confirmNothingToWrite(ctx context.Context) (bool, error) {
	asksLease := map[int]bool{}
	for i := range d.counters {
		asksLease[d.counters[i].item] = asksLease[d.counters[i].item] || d.req.Leases[i].Largest() > 0
	}
	hasRead := false
	for index, it := range d.items {
		if asksLease[index] && d.replies[it.key] == nil && !d.isRecent(it.known, d.now) {
			hasRead = true
			if err := d.readItem(ctx, it.key); err != nil {
				return false, err
			}
		}
	}
	return !hasRead, nil
}

// adoptCharges sets the results of the decision to what was charged.
func (d *decision) adoptCharges() {
	d.eval.Settle()
	d.eval.ID = d.newReceiptID()
	for i := range d.eval.Results {
		d.eval.AdoptLease(i, d.counters[i].lease)
		if !d.counters[i].written && !(d.eval.Charges(i) && d.hasNothingToWrite(i)) {
			if len(d.req.Leases) > 0 && d.eval.Results[i].Shadow() {
				d.eval.Results[i].Admits = false // nobody has charged the units, so the caller must not lease them
			}
			continue
		}
		st := *d.counters[i].before.Clone()
		d.eval.Charge(i, &st)
		if v := d.eval.Value(i); d.counters[i].written && (v.Kind == limit.ValueIs || v.Kind == limit.ValueAbsent) {
			d.valueCounts.remember(d.partition, d.eval.Results[i].Limit(), v, d.now)
		}
	}
}

// buildUpdate makes the update of one item: of its enforcing counters and, if shadows is true, of the shadow counters
// that admit the request. It also makes the given edits of other counters. It returns nil if there is nothing to write.
func (d *decision) buildUpdate(index int, shadows bool, edits ...counterEdit) (*itemUpdate, error) {
	it := d.items[index]
	relevantFor, creates := int64(0), false
	for i := range d.eval.Results {
		counter := &d.counters[i]
		if counter.item != index {
			continue
		}
		counter.written, counter.likelyStale, counter.scarce, counter.lease = false, false, false, limit.Lease{}
		if r := &d.eval.Results[i]; r.Shadow() && !(shadows && d.eval.Charges(i)) {
			continue
		}
		if counter.lease = d.eval.Lease(i); d.hasNothingToWrite(i) {
			continue
		}
		edits = append(edits, counterEdit{counter.name, func(u counterUpdate, whole bool) { d.addCharge(u, i, whole) }})
		relevantFor = max(relevantFor, d.relevantFor(i))
		creates = creates || counter.stored == nil
	}
	if len(edits) == 0 {
		return nil, nil //nolint:nilnil // there is nothing to write
	}
	known := it.known
	if known == nil {
		known = &itemCopy{}
	}
	u, err := composeUpdate(it.key, edits, func(u *itemUpdate) {
		u.requireLayout(known, isSharedSortKey(it.key.sort), creates)
		end := max(d.now, time.Now().UnixMicro()) + relevantFor
		u.raiseTTL(known, end, relevantFor)
	})
	if err != nil {
		return nil, it.key.wrapError(err)
	}
	return u, nil
}

// requireLayout requires that the item is new or of this layout, and that a shared item that gets a new counter is not
// full.
func (u *itemUpdate) requireLayout(known *itemCopy, shared, creates bool) {
	version := u.nameAlias(attrVersion)
	u.require("(attribute_not_exists(" + u.nameAlias(attrPK) + ") OR " + version + "=" + u.intAlias(layoutVersion) +
		")")
	u.sets = append(u.sets, version+"="+u.intAlias(layoutVersion))
	switch {
	case known.full:
		u.require("attribute_exists(" + u.nameAlias(attrFull) + ")")
	case shared && creates:
		u.require("attribute_not_exists(" + u.nameAlias(attrFull) + ")")
	}
}

// raiseTTL raises the item's ttl if it is less than ttlMargin after the time until which the update's counters matter.
// It raises the ttl by so much more that the next raise is a while off. end is that time, µs, counted from the later
// one of the decision's time and this machine's clock, because DynamoDB would delete an item that is written with a
// past ttl.
func (u *itemUpdate) raiseTTL(known *itemCopy, end, relevantFor int64) {
	if known.full {
		return
	}
	ttl := u.nameAlias(attrTTL)
	least := end/1_000_000 + ttlMargin
	if known.ttl >= least {
		u.require(ttl + ">=" + u.intAlias(least))
		return
	}
	u.newTTL = least + min(max(relevantFor/1_000_000, minTTLRaise), maxTTLRaise)
	u.require("(attribute_not_exists(" + ttl + ") OR " + ttl + "<" + u.intAlias(u.newTTL) + ")")
	u.sets = append(u.sets, ttl+"="+u.intAlias(u.newTTL))
}

// relevantFor returns for how long after now result i's counter can influence a decision after its charge, µs.
func (d *decision) relevantFor(i int) int64 {
	t := d.eval.Results[i].Tier
	p := t.Params(d.eval.Owner)
	st := d.stateAfterCharge(i)
	return algorithmOf(t).relevantFor(t, &p, &st, d.now)
}

// writeItem sends the update of one item. It reports false if the condition did not hold.
func (d *decision) writeItem(ctx context.Context, index int, u *itemUpdate) (bool, error) {
	known := d.items[index].known
	sent := time.Now()
	out, err := d.client.UpdateItem(ctx, u.updateInput(d.tableName), d.callOptions...)
	var refused *types.ConditionalCheckFailedException
	switch {
	case errors.As(err, &refused):
		return false, d.learnRefused(index, refused.Item, sent)
	case isConflict(err): // nothing was written, and the other transaction ends soon
		return false, d.pause(ctx, d.randomMilliseconds(4))
	case err != nil:
		return false, u.key.wrapError(classifyWriteError(err))
	}
	return true, d.learnFromWrite(index, u, known, out.Attributes, sent)
}

// learnRefused caches an item as it is shown by the reply of a write whose condition did not hold.
func (d *decision) learnRefused(index int, attributes map[string]types.AttributeValue, sent time.Time) error {
	it := d.items[index]
	if err := d.learnItem(it.key, attributes, sent); err != nil {
		return err
	}
	d.noteContention(it.key, it.known, d.latestCopy(it.key))
	return nil
}

// learnFromWrite evaluates the results of an item once more by the reply of its write: the item as it was before. It
// caches the item as it is after the write. The leases remain those that were written, even if the core would grant
// other ones by the reply.
func (d *decision) learnFromWrite(
	index int, u *itemUpdate, known *itemCopy, old map[string]types.AttributeValue, sent time.Time,
) error {
	before, err := parseItem(old)
	if err != nil {
		return u.key.wrapError(err)
	}
	before.decidedAt, before.readAt = d.now, sent
	if known != nil {
		before.contendedUntil = known.contendedUntil
	}
	after := u.applyTo(before)
	for name, f := range after.counters {
		if before.counters[name] == nil {
			after.size += len(name) + estimatedFieldBytes(f)
		}
	}
	d.cacheCopy(u.key, after)
	d.noteContention(u.key, known, before)
	for i := range d.counters {
		if d.counters[i].item == index {
			if err := d.evaluateResult(i, before); err != nil {
				return err
			}
			d.eval.AdoptLease(i, d.counters[i].lease)
		}
	}
	return nil
}

// noteContention notes that other processes charge the item, if the table has shown a counter of this decision with
// other contents than the known copy.
func (d *decision) noteContention(key itemKey, known, shown *itemCopy) {
	for i := range d.counters {
		counter := &d.counters[i]
		if d.items[counter.item].key != key || !d.othersChargeCounter(counter.name, known, shown) {
			continue
		}
		marked := *d.latestCopy(key)
		marked.contendedUntil = time.Now().Add(contendedDuration)
		if d.replies[key] != nil {
			d.replies[key] = &marked
		}
		d.cacheCopy(key, &marked)
		return
	}
}

// othersChargeCounter reports whether a counter differs from its known copy. Without a copy, only a token bucket tells:
// the time of its last charge is very recent.
func (d *decision) othersChargeCounter(name string, known, shown *itemCopy) bool {
	f := shown.counters[name]
	if known != nil && (!known.readAt.IsZero() || known.counters[name] != nil) {
		return !known.counters[name].equal(f)
	}
	t := f[fieldChargedAt]
	return t != nil && t.IsInt64() && t.Int64() > d.now-recentChargeWithin
}

// chargeShadows charges the shadow counters in items without enforcing limits, each item by an update of its own. It
// goes on after an error, and returns the first. Shadow limits only report, so the caller ignores the error if any
// enforcing limit was charged.
func (d *decision) chargeShadows(ctx context.Context) error {
	var first error
	for index, it := range d.items {
		if !it.enforces {
			first = cmp.Or(first, d.chargeShadowItem(ctx, index))
		}
	}
	return first
}

// chargeShadowItem charges one item. If another process charged it since it was read, it tries once more with what the
// table has shown.
func (d *decision) chargeShadowItem(ctx context.Context, index int) error {
	it := d.items[index]
	for range 2 {
		u, err := d.buildUpdate(index, true)
		if err != nil {
			return err
		}
		if u == nil {
			if d.replies[it.key] != nil || d.isRecent(it.known, d.now) {
				return nil
			}
			if err := d.readItem(ctx, it.key); err != nil {
				return err
			}
		} else {
			done, err := d.writeItem(ctx, index, u)
			if done {
				return nil
			}
			d.clearWritten(index)
			if err != nil {
				return err
			}
		}
		if err := d.reevaluateItem(index); err != nil {
			return err
		}
	}
	return nil
}

// clearWritten marks the counters of an item as not charged.
func (d *decision) clearWritten(index int) {
	for i := range d.counters {
		if d.counters[i].item == index {
			d.counters[i].written, d.counters[i].lease = false, limit.Lease{}
		}
	}
}

// reevaluateItem evaluates the results of one item again, after the table has shown it.
func (d *decision) reevaluateItem(index int) error {
	d.items[index].known = d.latestCopy(d.items[index].key)
	for i := range d.counters {
		if d.counters[i].item == index {
			if err := d.evaluateResult(i, d.items[index].known); err != nil {
				return err
			}
		}
	}
	return nil
}

// markFullItem marks a shared item as full if a counter is to be added that would make it too large. It reports whether
// an item was marked: the decision must then be evaluated again, and locates the counter in the next item.
func (d *decision) markFullItem(ctx context.Context) (bool, error) {
	for index, it := range d.items {
		if it.known == nil || it.known.full || !isSharedSortKey(it.key.sort) || it.known.size == 0 {
			continue
		}
		grown, added := it.known.size+it.known.expectedGrowth(), 0
		for i := range d.counters {
			if counter := &d.counters[i]; counter.item == index && counter.stored == nil && !counter.written &&
				!d.hasNothingToWrite(i) {
				grown += len(counter.name) + algorithmOf(d.eval.Results[i].Tier).newCounterBytes(d.eval.Results[i].Tier)
				added++
			}
		}
		if added == 0 || grown <= maxSharedItemBytes {
			continue
		}
		u := newItemUpdate(it.key)
		full := u.nameAlias(attrFull)
		u.require(u.nameAlias(attrVersion) + "=" + u.intAlias(layoutVersion))
		u.sets = append(u.sets, full+"="+u.numberAlias(one))
		u.removes = append(u.removes, u.nameAlias(attrTTL))
		u.marksFull = true
		sent := time.Now()
		out, err := d.client.UpdateItem(ctx, u.updateInput(d.tableName), d.callOptions...)
		var refused *types.ConditionalCheckFailedException
		if errors.As(err, &refused) {
			return true, d.learnItem(it.key, refused.Item, sent)
		}
		if isConflict(err) {
			return true, nil
		}
		if err != nil {
			return true, u.key.wrapError(classifyWriteError(err))
		}
		if err := d.learnItem(it.key, out.Attributes, sent); err != nil {
			return true, err
		}
		d.copies.Add(it.key, u.applyTo(d.latestCopy(it.key)))
		return true, nil
	}
	return false, nil
}

// about how many bytes the fields fieldPrevious and fieldPreviousStart take, which a fixed_window gets with its second
// window
const previousWindowBytes = 20

// expectedGrowth returns about how many bytes the counters of the item will still grow by.
func (i *itemCopy) expectedGrowth() (bytes int) {
	for _, f := range i.counters {
		// a fixed_window in its first window
		if f[fieldCount] != nil && f[fieldPrevious] == nil && f[fieldEnd] == nil {
			bytes += previousWindowBytes
		}
	}
	return bytes
}

// persistRepairs writes the counters that the core has repaired, because a clock which leapt ahead had written them,
// and that the decision has not charged. Left as they are, they would be repaired for each decision and never become
// free. If a write fails, a later decision repairs the counter.
func (d *decision) persistRepairs(ctx context.Context) {
	for index, it := range d.items {
		u := newItemUpdate(it.key)
		for i := range d.counters {
			if counter := &d.counters[i]; counter.item == index && counter.repaired && !counter.written {
				tier := d.eval.Results[i].Tier
				p := tier.Params(d.eval.Owner)
				u := u.counterUpdate(counter.name)
				u.requireUnchanged(counter.stored)
				f := algorithmOf(tier).encode(&p, &counter.before, d.now)
				if x := counter.stored[fieldLateCharges]; x != nil {
					f[fieldLateCharges] = new(big.Int).Add(x, one)
				}
				u.replace(f)
			}
		}
		if len(u.sets) == 0 {
			continue
		}
		u.require(u.nameAlias(attrVersion) + "=" + u.intAlias(layoutVersion))
		if u.size().check() != nil {
			continue
		}
		if _, err := d.client.UpdateItem(ctx, u.updateInput(d.tableName), d.callOptions...); err != nil {
			d.copies.Remove(it.key)
			continue
		}
		if v := d.cachedCopy(it.key); v != nil {
			d.copies.Add(it.key, u.applyTo(v))
		}
	}
}
