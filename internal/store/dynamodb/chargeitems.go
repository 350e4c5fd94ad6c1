package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limit"
)

const (
	maxSharedItemBytes = 1024 // a shared item takes no new counter that would make it larger: a write is one unit
	ttlMargin          = 24 * 60 * 60
	minTTLRaise        = 60 * 60
	maxTTLRaise        = 31 * 24 * 60 * 60

	recentChargeWithin = 100_000 // µs
	justReadWithin     = 10 * time.Millisecond
)

// charge writes what the decision takes. It reports false where a guess was wrong; what the store showed is learned
// then. The last try leaves the shadows out, so that they cannot fail a decision.
func (d *decision) writeCharges(ctx context.Context, last bool) (done bool, err error) {
	d.hasRead = false
	if fulled, err := d.markFullItem(ctx); fulled || err != nil {
		return false, err
	}
	enforces := false
	var writes []plannedUpdate
	for at, it := range d.items {
		if !it.enforces || it.written {
			continue
		}
		enforces = true
		u, err := d.buildUpdate(at, !last)
		if err != nil {
			return false, err
		}
		if u != nil {
			writes = append(writes, plannedUpdate{at, u})
		}
	}
	if d.hasRead, err = d.readLikelyStale(ctx); d.hasRead || err != nil {
		return false, err
	}
	if done, err := d.writeEnforcing(ctx, writes, enforces && !last); !done || err != nil {
		return done, err
	}
	if !d.eval.Settle() {
		return false, fmt.Errorf("internal error: owner %q was charged under a condition that the core does not share",
			d.req.Owner.Name)
	}
	if err := d.chargeShadows(ctx); err != nil && !enforces && len(d.writtenResults) == 0 {
		return false, err
	}
	d.adoptCharges()
	d.persistRepairs(ctx)
	return true, nil
}

// chargeWrites writes to the items whose limits block. Where there is nothing to write, it asks, if it may, whether that is
// right.
func (d *decision) writeEnforcing(ctx context.Context, writes []plannedUpdate, asks bool) (bool, error) {
	switch {
	case len(writes) == 0 && asks:
		return d.confirmNothingToWrite(ctx)
	case len(writes) > 1 && !d.orderSequentially(writes):
		return d.writeInTransaction(ctx, writes)
	default:
		return d.writeSequentially(ctx, writes)
	}
}

// itemWrite is the write of an item of the decision.
type plannedUpdate struct {
	item int
	*itemUpdate
}

// look reads the items for which a lease's guess is doubtful, if they have not been seen just now. To guess wrong takes as
// long, and a write unit. It reports whether there were any; the decision is then to be made anew.
func (d *decision) readLikelyStale(ctx context.Context) (bool, error) {
	if len(d.req.Leases) == 0 {
		return false, nil
	}
	return d.readItems(ctx, func(it *item) bool {
		return d.replies[it.key] == nil && it.known != nil && time.Since(it.known.readAt) > justReadWithin &&
			slices.ContainsFunc(d.counters, func(t resultCounter) bool { return t.likelyStale && d.items[t.item] == it })
	})
}

// mayRest reports whether a decision to which nothing is lacking, and nothing granted, is right to write nothing: what is
// known of the counters is not so old that it is worth asking them.
func (d *decision) confirmNothingToWrite(ctx context.Context) (bool, error) {
	asks := map[int]bool{}
	for i := range d.counters {
		asks[d.counters[i].item] = asks[d.counters[i].item] || d.req.Leases[i].Largest() > 0
	}
	asked := false
	for at, it := range d.items {
		if asks[at] && d.replies[it.key] == nil && !d.isRecent(it.known, d.now) {
			asked = true
			if err := d.readItem(ctx, it.key); err != nil {
				return false, err
			}
		}
	}
	return !asked, nil
}

// confirm writes down what was charged.
func (d *decision) adoptCharges() {
	d.eval.Settle()
	d.eval.ID = d.newReceiptID()
	for i := range d.eval.Results {
		d.eval.AdoptLease(i, d.counters[i].lease)
		if !d.counters[i].written && !(d.eval.Charges(i) && d.hasNothingToWrite(i)) {
			if len(d.req.Leases) > 0 && d.eval.Results[i].Shadow() {
				d.eval.Results[i].Admits = false // else the caller would have units that nobody charged
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

// build makes the write of one item: of its enforcing counters, and of those shadows that would admit. It is nil
// where there is nothing to write.
func (d *decision) buildUpdate(at int, shadows bool) (*itemUpdate, error) {
	it := d.items[at]
	var counters []counterEdit
	life, creates := int64(0), false
	for i := range d.eval.Results {
		t := &d.counters[i]
		if t.item != at {
			continue
		}
		t.written, t.likelyStale, t.scarce, t.lease = false, false, false, limit.Lease{}
		if r := &d.eval.Results[i]; r.Shadow() && !(shadows && d.eval.Charges(i)) {
			continue
		}
		if t.lease = d.eval.Lease(i); d.hasNothingToWrite(i) {
			continue
		}
		counters = append(counters, counterEdit{t.name, func(u counterUpdate, whole bool) { d.addCharge(u, i, whole) }})
		life = max(life, d.relevantFor(i))
		creates = creates || t.stored == nil
	}
	if len(counters) == 0 {
		return nil, nil //nolint:nilnil // there is nothing to write
	}
	known := it.known
	if known == nil {
		known = &itemCopy{}
	}
	u, err := composeUpdate(it.key, counters, func(u *itemUpdate) {
		u.requireLayout(known, isSharedSortKey(it.key.sort), creates)
		u.raiseTTL(known, d.now, life)
	})
	if err != nil {
		return nil, it.key.wrapError(err)
	}
	return u, nil
}

// head requires that the item is of our layout, and that a shared one which gets a new counter is not full.
func (u *itemUpdate) requireLayout(known *itemCopy, shared, creates bool) {
	version := u.nameAlias(attrVersion)
	u.require("(attribute_not_exists(" + u.nameAlias(attrPK) + ") OR " + version + "=" + u.intAlias(layoutVersion) + ")")
	u.sets = append(u.sets, version+"="+u.intAlias(layoutVersion))
	switch {
	case known.full:
		u.require("attribute_exists(" + u.nameAlias(attrFull) + ")")
	case shared && creates:
		u.require("attribute_not_exists(" + u.nameAlias(attrFull) + ")")
	}
}

// arm raises the item's ttl where it is not far enough ahead: by so much that the next raise is a while off. The ttl
// goes by the later of the decision's time and this machine's, so that decisions at a past time do not write items
// that are gone at once.
func (u *itemUpdate) raiseTTL(known *itemCopy, now, relevantFor int64) {
	if known.full {
		return
	}
	ttl := u.nameAlias(attrTTL)
	end := max(now, time.Now().UnixMicro()) + relevantFor
	least := end/1_000_000 + ttlMargin
	if known.ttl >= least {
		u.require(ttl + ">=" + u.intAlias(least))
		return
	}
	u.newTTL = least + min(max(relevantFor/1_000_000, minTTLRaise), maxTTLRaise)
	u.require("(attribute_not_exists(" + ttl + ") OR " + ttl + "<" + u.intAlias(u.newTTL) + ")")
	u.sets = append(u.sets, ttl+"="+u.intAlias(u.newTTL))
}

// lifeOf is how long after now result i's counter can matter, µs, however full others make it.
func (d *decision) relevantFor(i int) int64 {
	t := d.eval.Results[i].Tier
	p := t.Params(d.eval.Owner)
	st := d.stateAfterCharge(i)
	return algorithmOf(t).relevantFor(t, &p, &st, d.now)
}

// chargeOne writes one item.
func (d *decision) writeItem(ctx context.Context, at int, u *itemUpdate) (bool, error) {
	known := d.items[at].known
	sent := time.Now()
	out, err := d.client.UpdateItem(ctx, u.updateInput(d.tableName), d.callOptions...)
	var refused *types.ConditionalCheckFailedException
	switch {
	case errors.As(err, &refused):
		if err := d.learnItem(u.key, refused.Item, sent); err != nil {
			return false, err
		}
		d.noteContention(u.key, known, d.latestCopy(u.key))
		return false, nil
	case isConflict(err): // nothing was written, and the transaction is over soon
		return false, sleepContext(ctx, time.Duration(1+rand.Int64N(4))*time.Millisecond)
	case err != nil:
		return false, u.key.wrapError(classifyWriteError(err))
	}
	return true, d.learnFromWrite(at, u, known, out.Attributes, sent)
}

// learnBefore takes over what a write that went through has shown: the item as it was before. What was granted is what was
// written, whatever would have been granted had that been known.
func (d *decision) learnFromWrite(at int, u *itemUpdate, known *itemCopy, old map[string]types.AttributeValue, sent time.Time) error {
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
		if d.counters[i].item == at {
			if err := d.evaluateResult(i, before); err != nil {
				return err
			}
			d.eval.AdoptLease(i, d.counters[i].lease)
		}
	}
	return nil
}

// contend notes that others charge the item, if what the store showed is not what was known.
func (d *decision) noteContention(key itemKey, known, shown *itemCopy) {
	for i := range d.counters {
		at := &d.counters[i]
		if d.items[at.item].key != key || !d.othersChargeCounter(at.name, known, shown) {
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

func (d *decision) othersChargeCounter(name string, known, shown *itemCopy) bool {
	f := shown.counters[name]
	if known != nil && (!known.readAt.IsZero() || known.counters[name] != nil) {
		return !known.counters[name].equal(f)
	}
	t := f[fieldChargedAt] // a writer that knew nothing can tell by a token bucket: a stamp from just now
	return t != nil && t.IsInt64() && t.Int64() > d.now-recentChargeWithin
}

// chargeShadows charges the shadow counters of items in which nothing enforces, each item in a write of its own. They
// only report, so what goes wrong is for the caller to ignore where anything enforces.
func (d *decision) chargeShadows(ctx context.Context) error {
	var failed error
	for at, it := range d.items {
		if it.enforces || it.written {
			continue
		}
		for range 2 {
			u, err := d.buildUpdate(at, true)
			if err != nil {
				failed = err
				break
			}
			if u == nil {
				if d.replies[it.key] != nil || d.isRecent(it.known, d.now) {
					break
				}
				if err := d.readItem(ctx, it.key); err != nil {
					failed = err
					break
				}
				if err := d.reevaluateItem(at); err != nil {
					failed = err
					break
				}
				continue
			}
			done, err := d.writeItem(ctx, at, u)
			if done {
				break
			}
			d.clearWritten(at)
			if failed = err; err != nil {
				break
			}
			if failed = d.reevaluateItem(at); failed != nil {
				break
			}
		}
	}
	return failed
}

func (d *decision) clearWritten(at int) {
	for i := range d.counters {
		if d.counters[i].item == at {
			d.counters[i].written, d.counters[i].lease = false, limit.Lease{}
		}
	}
}

// reweigh evaluates the results of one item again, after the store has shown it.
func (d *decision) reevaluateItem(at int) error {
	d.items[at].known = d.latestCopy(d.items[at].key)
	for i := range d.counters {
		if d.counters[i].item == at {
			if err := d.evaluateResult(i, d.items[at].known); err != nil {
				return err
			}
		}
	}
	return nil
}

// closeFull marks a shared item as full, once, when a counter is to be added that would make it too large. The
// decision then finds another place for the counter.
func (d *decision) markFullItem(ctx context.Context) (bool, error) {
	for at, it := range d.items {
		if it.known == nil || it.known.full || !isSharedSortKey(it.key.sort) || it.known.size == 0 {
			continue
		}
		grown, added := it.known.size+it.known.expectedGrowth(), 0
		for i := range d.counters {
			if t := &d.counters[i]; t.item == at && t.stored == nil && !t.written && !d.hasNothingToWrite(i) {
				grown += len(t.name) + algorithmOf(d.eval.Results[i].Tier).newCounterBytes(d.eval.Results[i].Tier)
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

// lastWindowBytes is about what the fields p and o of a fixed window take, which it has from its second window on.
const previousWindowBytes = 20

// growth is about how many bytes the item's counters will still grow by.
func (i *itemCopy) expectedGrowth() (bytes int) {
	for _, f := range i.counters {
		if f[fieldCount] != nil && f[fieldPrevious] == nil && f[fieldEnd] == nil { // a fixed window in its first window
			bytes += previousWindowBytes
		}
	}
	return bytes
}

// persistRepairs writes back counters that a clock which leapt ahead has stamped and that the decision has not
// charged: if they stayed as they are, they would be repaired anew at each look, and never come free. A write that
// fails is left to the next decision.
func (d *decision) persistRepairs(ctx context.Context) {
	for at, it := range d.items {
		u := newItemUpdate(it.key)
		for i := range d.counters {
			if t := &d.counters[i]; t.item == at && t.repaired && !t.written {
				tier := d.eval.Results[i].Tier
				p := tier.Params(d.eval.Owner)
				u := u.counterUpdate(t.name)
				u.requireUnchanged(t.stored)
				f := algorithmOf(tier).encode(&p, &t.before, d.now)
				if x := t.stored[fieldLateCharges]; x != nil {
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
