package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limit"
)

// Refund gives back what a receipt names: one transaction over the items it charged and one that remembers the
// receipt until its windows have ended. See [limit.Store].
func (s *Store) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if err := ctx.Err(); err != nil {
		return limit.Refund{}, err
	}
	if err := limit.CheckRefund(r, units); err != nil {
		return limit.Refund{}, err
	}
	us := s.now(now)
	if len(r.Entries()) == 0 || us >= r.Until() {
		return limit.Refund{Units: make([]int64, len(r.Entries())), Expired: len(r.Entries()) > 0 && r.Expired(us)}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for range maxTries {
		c := &decision{Store: s, now: us, pk: s.partition(r.Owner()), answers: map[itemKey]*view{}}
		g := &refund{decision: c, r: r, units: units}
		out, done, err := g.try(ctx)
		if err != nil {
			return limit.Refund{}, fmt.Errorf("refund to owner %q on table %s: %w", r.Owner().Name, *s.table, err)
		}
		if done {
			return out, nil
		}
	}
	return limit.Refund{}, fmt.Errorf("refund to owner %q on table %s: %w, %d tries",
		r.Owner().Name, *s.table, ErrUndecided, maxTries)
}

// refund is one try.
type refund struct {
	*decision
	r      *limit.Receipt
	units  int64
	writes []*write
	keys   []itemKey                  // of what is given back, in the order of the entries
	gives  map[itemKey][]counterWrite // to each
}

// try reads the items, gives back, and reports false where they changed meanwhile.
func (g *refund) try(ctx context.Context) (limit.Refund, bool, error) {
	entries := g.r.Entries()
	out := limit.Refund{Units: make([]int64, len(entries))}
	g.writes, g.gives = append(g.writes, g.memory()), map[itemKey][]counterWrite{}
	for i := range entries {
		back, err := g.giveBack(ctx, &entries[i])
		if err != nil {
			return out, false, err
		}
		out.Units[i] = back
	}
	if err := g.compose(); err != nil {
		return out, false, err
	}
	sent := time.Now()
	refused, err := g.carryOut(ctx)
	if err != nil {
		return out, false, err
	}
	if receipt, repeated := refused[0]; repeated {
		if _, err := parseItem(receipt); err != nil {
			return out, false, g.writes[0].key.named(err)
		}
		return limit.Refund{Units: make([]int64, len(entries)), Repeated: true}, true, nil
	}
	for n, attributes := range refused {
		if err := g.learned(g.writes[n].key, attributes, sent); err != nil {
			return out, false, err
		}
	}
	if len(refused) > 0 {
		return out, false, nil
	}
	for _, w := range g.writes[1:] {
		g.views.Add(w.key, w.apply(g.known(w.key)))
	}
	return out, true, nil
}

// carryOut writes the memory of the refund and what it gives back, all or nothing. Where nothing is given back, a
// plain write of the memory does.
func (g *refund) carryOut(ctx context.Context) (map[int]map[string]types.AttributeValue, error) {
	if len(g.writes) > 1 {
		return g.transact(ctx, g.writes)
	}
	_, err := g.client.UpdateItem(ctx, g.writes[0].update(g.table), g.options...)
	var refused *types.ConditionalCheckFailedException
	if errors.As(err, &refused) {
		return map[int]map[string]types.AttributeValue{0: refused.Item}, nil
	}
	if err != nil {
		err = g.writes[0].key.named(refusal(err))
	}
	return nil, err
}

// memory is the item whose presence says that the receipt was refunded.
func (g *refund) memory() *write {
	w := newWrite(itemKey{g.pk, receiptSK(g.r.ID())})
	w.require("attribute_not_exists(" + w.name(attrPK) + ")")
	end := max(g.r.Until(), time.Now().UnixMicro()+max(0, g.r.Until()-g.now))
	w.sets = append(w.sets, w.name(attrV)+"="+w.int(layout), w.name(attrTTL)+"="+w.int(end/1_000_000+ttlMargin))
	return w
}

// compose makes the writes of what is given back, one for each item.
func (g *refund) compose() error {
	for _, key := range g.keys {
		w, err := compose(key, g.gives[key], func(w *write) {
			version := w.name(attrV)
			w.require(version + "=" + w.int(layout))
			w.sets = append(w.sets, version+"="+w.int(layout))
		})
		if err != nil {
			return key.named(err)
		}
		g.writes = append(g.writes, w)
	}
	return checkItems(len(g.keys))
}

// giveBack adds to the try what one entry gives back, by the core's word, and returns how many units that is.
func (g *refund) giveBack(ctx context.Context, e *limit.ReceiptEntry) (int64, error) {
	key, name, err := g.find(ctx, e)
	if err != nil {
		return 0, err
	}
	p := e.Tier.Params(g.r.Owner())
	old, pre, err := g.known(key).counter(e.Tier, &p, name)
	if err != nil {
		return 0, key.named(err)
	}
	if old == nil {
		return 0, nil
	}
	post := *pre.Clone()
	back := e.Apply(&post, g.units, g.now)
	if back == 0 && post.Equal(&pre) {
		return 0, nil
	}
	if len(g.gives[key]) == 0 {
		g.keys = append(g.keys, key)
	}
	give := &giving{tier: e.Tier, params: p, old: old, pre: pre, post: post, now: g.now}
	g.gives[key] = append(g.gives[key], counterWrite{name, give.write})
	return back, nil
}

// find is where an entry's counter is. The items on the way are read.
func (g *refund) find(ctx context.Context, e *limit.ReceiptEntry) (itemKey, string, error) {
	for {
		key, name := g.place(e.Tier, e.Value)
		if g.answers[key] != nil {
			return key, name, nil
		}
		if err := g.get(ctx, key); err != nil {
			return key, name, err
		}
	}
}

// giving is the way back of one counter. Like charges, refunds are inequalities, so that charges which come between
// the read and the write do not disturb them.
type giving struct {
	tier      *limit.Tier
	params    limit.Params
	old       fields
	pre, post limit.State
	now       int64
}

func (g *giving) write(c counter, whole bool) {
	if whole {
		g.whole(c)
		return
	}
	of(g.tier).giveBack(g, c)
}

// whole compares and sets the whole counter.
func (g *giving) whole(c counter) {
	c.isUnchanged(g.old)
	f := of(g.tier).fields(&g.params, &g.post, g.now)
	if x := g.old["x"]; x != nil {
		f["w"], f["x"] = g.old["w"], x // no bucket is added, and none ends
	}
	c.replace(f)
}

// count takes units off a field of the same window.
func (g *giving) count(c counter, field string, units int64) {
	if units == 0 {
		return
	}
	c.mustBe("w", g.old["w"])
	c.require(c.compare(field, ">=", big.NewInt(units)))
	c.add(field, big.NewInt(-units))
}
