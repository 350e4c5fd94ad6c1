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
	itemBytes  = 1024 // a shared item takes no new counter that would make it larger: a write is one unit
	ttlMargin  = 24 * 60 * 60
	leastGrain = 60 * 60
	mostGrain  = 31 * 24 * 60 * 60

	contendedIn = 100_000 // µs
	justNow     = 10 * time.Millisecond
)

// charge writes what the decision takes. It reports false where a guess was wrong; what the store showed is learned
// then. The last try leaves the shadows out, so that they cannot fail a decision.
func (c *decision) charge(ctx context.Context, last bool) (done bool, err error) {
	c.looked = false
	if fulled, err := c.closeFull(ctx); fulled || err != nil {
		return false, err
	}
	enforces := false
	var writes []itemWrite
	for at, it := range c.items {
		if !it.enforces || it.written {
			continue
		}
		enforces = true
		w, err := c.build(at, !last)
		if err != nil {
			return false, err
		}
		if w != nil {
			writes = append(writes, itemWrite{at, w})
		}
	}
	if c.looked, err = c.look(ctx); c.looked || err != nil {
		return false, err
	}
	if done, err := c.chargeWrites(ctx, writes, enforces && !last); !done || err != nil {
		return done, err
	}
	if !c.d.Settle() {
		return false, fmt.Errorf("internal error: owner %q was charged under a condition that the core does not share",
			c.req.Owner.Name)
	}
	if err := c.chargeShadows(ctx); err != nil && !enforces && len(c.charged) == 0 {
		return false, err
	}
	c.confirm()
	c.persistRepairs(ctx)
	return true, nil
}

// chargeWrites writes to the items whose limits block. Where there is nothing to write, it asks, if it may, whether that is
// right.
func (c *decision) chargeWrites(ctx context.Context, writes []itemWrite, asks bool) (bool, error) {
	switch {
	case len(writes) == 0 && asks:
		return c.mayRest(ctx)
	case len(writes) > 1 && !c.stepwise(writes):
		return c.chargeAll(ctx, writes)
	default:
		return c.chargeInSteps(ctx, writes)
	}
}

// itemWrite is the write of an item of the decision.
type itemWrite struct {
	at int
	*write
}

// look reads the items for which a lease's guess is doubtful, if they have not been seen just now. To guess wrong takes as
// long, and a write unit. It reports whether there were any; the decision is then to be made anew.
func (c *decision) look(ctx context.Context) (bool, error) {
	if len(c.req.Leases) == 0 {
		return false, nil
	}
	return c.read(ctx, func(it *item) bool {
		return c.answers[it.key] == nil && it.view != nil && time.Since(it.view.seen) > justNow &&
			slices.ContainsFunc(c.tiers, func(t tierAt) bool { return t.doubtful && c.items[t.item] == it })
	})
}

// mayRest reports whether a decision to which nothing is lacking, and nothing granted, is right to write nothing: what is
// known of the counters is not so old that it is worth asking them.
func (c *decision) mayRest(ctx context.Context) (bool, error) {
	asks := map[int]bool{}
	for i := range c.tiers {
		asks[c.tiers[i].item] = asks[c.tiers[i].item] || c.req.Leases[i].Largest() > 0
	}
	asked := false
	for at, it := range c.items {
		if asks[at] && c.answers[it.key] == nil && !c.sureOf(it.view, c.now) {
			asked = true
			if err := c.get(ctx, it.key); err != nil {
				return false, err
			}
		}
	}
	return !asked, nil
}

// confirm writes down what was charged.
func (c *decision) confirm() {
	c.d.Settle()
	c.d.ID = c.nextID()
	for i := range c.d.Results {
		c.d.AdoptLease(i, c.tiers[i].lease)
		if !c.tiers[i].written && !(c.d.Charges(i) && c.idle(i)) {
			if len(c.req.Leases) > 0 && c.d.Results[i].Shadow() {
				c.d.Results[i].Admits = false // else the caller would have units that nobody charged
			}
			continue
		}
		st := *c.tiers[i].pre.Clone()
		c.d.Charge(i, &st)
		if v := c.d.Value(i); c.tiers[i].written && (v.Kind == limit.ValueIs || v.Kind == limit.ValueAbsent) {
			c.values.note(c.pk, c.d.Results[i].Limit(), v, c.now)
		}
	}
}

// build makes the write of one item: of its enforcing counters, and of those shadows that would admit. It is nil
// where there is nothing to write.
func (c *decision) build(at int, shadows bool) (*write, error) {
	it := c.items[at]
	var counters []counterWrite
	life, creates := int64(0), false
	for i := range c.d.Results {
		t := &c.tiers[i]
		if t.item != at {
			continue
		}
		t.written, t.doubtful, t.tight, t.lease = false, false, false, limit.Lease{}
		if r := &c.d.Results[i]; r.Shadow() && !(shadows && c.d.Charges(i)) {
			continue
		}
		if t.lease = c.d.Lease(i); c.idle(i) {
			continue
		}
		counters = append(counters, counterWrite{t.name, func(n counter, whole bool) { c.prepare(n, i, whole) }})
		life = max(life, c.lifeOf(i))
		creates = creates || t.old == nil
	}
	if len(counters) == 0 {
		return nil, nil //nolint:nilnil // there is nothing to write
	}
	known := it.view
	if known == nil {
		known = &view{}
	}
	w, err := compose(it.key, counters, func(w *write) {
		w.head(known, isShared(it.key.sk), creates)
		w.arm(known, c.now, life)
	})
	if err != nil {
		return nil, it.key.named(err)
	}
	return w, nil
}

// head requires that the item is of our layout, and that a shared one which gets a new counter is not full.
func (w *write) head(known *view, shared, creates bool) {
	version := w.name(attrV)
	w.require("(attribute_not_exists(" + w.name(attrPK) + ") OR " + version + "=" + w.int(layout) + ")")
	w.sets = append(w.sets, version+"="+w.int(layout))
	switch {
	case known.full:
		w.require("attribute_exists(" + w.name(attrFull) + ")")
	case shared && creates:
		w.require("attribute_not_exists(" + w.name(attrFull) + ")")
	}
}

// arm raises the item's ttl where it is not far enough ahead: by so much that the next raise is a while off. The ttl
// goes by the later of the decision's time and this machine's, so that decisions at a past time do not write items
// that are gone at once.
func (w *write) arm(known *view, now, life int64) {
	if known.full {
		return
	}
	ttl := w.name(attrTTL)
	end := max(now, time.Now().UnixMicro()) + life
	least := end/1_000_000 + ttlMargin
	if known.ttl >= least {
		w.require(ttl + ">=" + w.int(least))
		return
	}
	w.ttl = least + min(max(life/1_000_000, leastGrain), mostGrain)
	w.require("(attribute_not_exists(" + ttl + ") OR " + ttl + "<" + w.int(w.ttl) + ")")
	w.sets = append(w.sets, ttl+"="+w.int(w.ttl))
}

// lifeOf is how long after now result i's counter can matter, µs, however full others make it.
func (c *decision) lifeOf(i int) int64 {
	t := c.d.Results[i].Tier
	p := t.Params(c.d.Owner)
	st := c.committed(i)
	return of(t).lasts(t, &p, &st, c.now)
}

// chargeOne writes one item.
func (c *decision) chargeOne(ctx context.Context, at int, w *write) (bool, error) {
	known := c.items[at].view
	sent := time.Now()
	out, err := c.client.UpdateItem(ctx, w.update(c.table), c.options...)
	var refused *types.ConditionalCheckFailedException
	switch {
	case errors.As(err, &refused):
		if err := c.learned(w.key, refused.Item, sent); err != nil {
			return false, err
		}
		c.contend(w.key, known, c.known(w.key))
		return false, nil
	case isConflict(err): // nothing was written, and the transaction is over soon
		return false, pause(ctx, time.Duration(1+rand.Int64N(4))*time.Millisecond)
	case err != nil:
		return false, w.key.named(refusal(err))
	}
	return true, c.learnBefore(at, w, known, out.Attributes, sent)
}

// learnBefore takes over what a write that went through has shown: the item as it was before. What was granted is what was
// written, whatever would have been granted had that been known.
func (c *decision) learnBefore(at int, w *write, known *view, old map[string]types.AttributeValue, sent time.Time) error {
	before, err := parseItem(old)
	if err != nil {
		return w.key.named(err)
	}
	before.at, before.seen = c.now, sent
	if known != nil {
		before.contended = known.contended
	}
	after := w.apply(before)
	for name, f := range after.counters {
		if before.counters[name] == nil {
			after.size += len(name) + sizeOfFields(f)
		}
	}
	c.keep(w.key, after)
	c.contend(w.key, known, before)
	for i := range c.tiers {
		if c.tiers[i].item == at {
			if err := c.weigh(i, before); err != nil {
				return err
			}
			c.d.AdoptLease(i, c.tiers[i].lease)
		}
	}
	return nil
}

// contend notes that others charge the item, if what the store showed is not what was known.
func (c *decision) contend(key itemKey, known, shown *view) {
	for i := range c.tiers {
		at := &c.tiers[i]
		if c.items[at.item].key != key || !c.othersCharge(at.name, known, shown) {
			continue
		}
		marked := *c.known(key)
		marked.contended = time.Now().Add(contendedFor)
		if c.answers[key] != nil {
			c.answers[key] = &marked
		}
		c.keep(key, &marked)
		return
	}
}

func (c *decision) othersCharge(name string, known, shown *view) bool {
	f := shown.counters[name]
	if known != nil && (!known.seen.IsZero() || known.counters[name] != nil) {
		return !known.counters[name].equal(f)
	}
	t := f["t"] // a writer that knew nothing can tell by a token bucket: a stamp from just now
	return t != nil && t.IsInt64() && t.Int64() > c.now-contendedIn
}

// chargeShadows charges the shadow counters of items in which nothing enforces, each item in a write of its own. They
// only report, so what goes wrong is for the caller to ignore where anything enforces.
func (c *decision) chargeShadows(ctx context.Context) error {
	var failed error
	for at, it := range c.items {
		if it.enforces || it.written {
			continue
		}
		for range 2 {
			w, err := c.build(at, true)
			if err != nil {
				failed = err
				break
			}
			if w == nil {
				if c.answers[it.key] != nil || c.sureOf(it.view, c.now) {
					break
				}
				if err := c.get(ctx, it.key); err != nil {
					failed = err
					break
				}
				if err := c.reweigh(at); err != nil {
					failed = err
					break
				}
				continue
			}
			done, err := c.chargeOne(ctx, at, w)
			if done {
				break
			}
			c.unwrite(at)
			if failed = err; err != nil {
				break
			}
			if failed = c.reweigh(at); failed != nil {
				break
			}
		}
	}
	return failed
}

func (c *decision) unwrite(at int) {
	for i := range c.tiers {
		if c.tiers[i].item == at {
			c.tiers[i].written, c.tiers[i].lease = false, limit.Lease{}
		}
	}
}

// reweigh evaluates the results of one item again, after the store has shown it.
func (c *decision) reweigh(at int) error {
	c.items[at].view = c.known(c.items[at].key)
	for i := range c.tiers {
		if c.tiers[i].item == at {
			if err := c.weigh(i, c.items[at].view); err != nil {
				return err
			}
		}
	}
	return nil
}

// closeFull marks a shared item as full, once, when a counter is to be added that would make it too large. The
// decision then finds another place for the counter.
func (c *decision) closeFull(ctx context.Context) (bool, error) {
	for at, it := range c.items {
		if it.view == nil || it.view.full || !isShared(it.key.sk) || it.view.size == 0 {
			continue
		}
		grown, added := it.view.size+it.view.growth(), 0
		for i := range c.tiers {
			if t := &c.tiers[i]; t.item == at && t.old == nil && !t.written && !c.idle(i) {
				grown += len(t.name) + of(c.d.Results[i].Tier).bytes(c.d.Results[i].Tier)
				added++
			}
		}
		if added == 0 || grown <= itemBytes {
			continue
		}
		w := newWrite(it.key)
		full := w.name(attrFull)
		w.require(w.name(attrV) + "=" + w.int(layout))
		w.sets = append(w.sets, full+"="+w.number(one))
		w.removes = append(w.removes, w.name(attrTTL))
		w.full = true
		sent := time.Now()
		out, err := c.client.UpdateItem(ctx, w.update(c.table), c.options...)
		var refused *types.ConditionalCheckFailedException
		if errors.As(err, &refused) {
			return true, c.learned(it.key, refused.Item, sent)
		}
		if isConflict(err) {
			return true, nil
		}
		if err != nil {
			return true, w.key.named(refusal(err))
		}
		if err := c.learned(it.key, out.Attributes, sent); err != nil {
			return true, err
		}
		c.views.Add(it.key, w.apply(c.known(it.key)))
		return true, nil
	}
	return false, nil
}

// lastWindowBytes is about what the fields p and o of a fixed window take, which it has from its second window on.
const lastWindowBytes = 20

// growth is about how many bytes the item's counters will still grow by.
func (v *view) growth() (bytes int) {
	for _, f := range v.counters {
		if f["n"] != nil && f["p"] == nil && f["e"] == nil { // a fixed window in its first window
			bytes += lastWindowBytes
		}
	}
	return bytes
}

// persistRepairs writes back counters that a clock which leapt ahead has stamped and that the decision has not
// charged: if they stayed as they are, they would be repaired anew at each look, and never come free. A write that
// fails is left to the next decision.
func (c *decision) persistRepairs(ctx context.Context) {
	for at, it := range c.items {
		w := newWrite(it.key)
		for i := range c.tiers {
			if t := &c.tiers[i]; t.item == at && t.repaired && !t.written {
				tier := c.d.Results[i].Tier
				p := tier.Params(c.d.Owner)
				n := w.counter(t.name)
				n.isUnchanged(t.old)
				f := of(tier).fields(&p, &t.pre, c.now)
				if x := t.old["x"]; x != nil {
					f["x"] = new(big.Int).Add(x, one)
				}
				n.replace(f)
			}
		}
		if len(w.sets) == 0 {
			continue
		}
		w.require(w.name(attrV) + "=" + w.int(layout))
		if w.size().check() != nil {
			continue
		}
		if _, err := c.client.UpdateItem(ctx, w.update(c.table), c.options...); err != nil {
			c.views.Remove(it.key)
			continue
		}
		if v := c.view(it.key); v != nil {
			c.views.Add(it.key, w.apply(v))
		}
	}
}
