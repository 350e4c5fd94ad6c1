package dynamodb

import (
	"context"
	"slices"

	"github.com/sluicelimits/sluice/internal/limit"
)

// inSteps is the request as its decision is made where it asks for leases: what it needs of a shared item is leased, too,
// for a value's item may yet deny.
func inSteps(req *limit.Request) *limit.Request {
	if len(req.Ahead) == 0 || !slices.ContainsFunc(req.Charges, func(c limit.Charge) bool { return !inShared(c.Limit) }) {
		return req
	}
	out := *req
	out.Ahead = slices.Clone(req.Ahead)
	i := 0
	for _, c := range req.Charges {
		for j := range c.Limit.Tiers {
			if a := &out.Ahead[i]; inShared(c.Limit) && leasable(&c.Limit.Tiers[j]) && a.Need > 0 && a.Largest() == 0 {
				a.Most, a.Share = 1, 0 // a lease, of nothing more
			}
			i++
		}
	}
	return &out
}

func leasable(t *limit.Tier) bool { return t.Algorithm != limit.LeakyBucket && !t.Limit().Exact }

// stepwise orders the writes of a decision that spans items, shared ones first, and reports whether they may be made one
// after the other: then what the last one denies leaves the others' units with the caller, as a lease. A correction must
// not be made where the decision is denied, for the caller takes it that nothing came back, and would have those units twice.
func (c *decision) stepwise(writes []itemWrite) bool {
	if len(c.req.Ahead) == 0 {
		return false
	}
	shared := func(w itemWrite) bool { return isShared(w.key.sk) }
	slices.SortStableFunc(writes, func(a, b itemWrite) int {
		switch {
		case shared(a) == shared(b):
			return 0
		case shared(a):
			return -1
		}
		return 1
	})
	first := writes[:len(writes)-1]
	if slices.ContainsFunc(first, func(w itemWrite) bool { return !shared(w) }) {
		return false
	}
	for i := range c.tiers {
		t := &c.tiers[i]
		if !t.written || !slices.ContainsFunc(first, func(w itemWrite) bool { return w.at == t.item }) {
			continue
		}
		if !leasable(c.d.Results[i].Tier) || c.req.Ahead[i].Adjust != 0 {
			return false
		}
	}
	return true
}

// chargeInSteps makes the writes one after the other. Those before one whose condition does not hold stay: the decision
// goes on from there.
func (c *decision) chargeInSteps(ctx context.Context, writes []itemWrite) (bool, error) {
	for n, w := range writes {
		if done, err := c.chargeOne(ctx, w.at, w.write); !done || err != nil {
			return done, err
		}
		if n == len(writes)-1 {
			break
		}
		c.items[w.at].written = true
		for i := range c.tiers {
			if c.tiers[i].item != w.at {
				continue
			}
			if c.charged == nil {
				c.charged = map[int]*charged{}
			}
			c.charged[i] = &charged{tierAt: c.tiers[i], key: w.key, result: c.d.Results[i]}
		}
	}
	return true, nil
}

// keepAhead makes of what the steps before a denial have charged the caller's leases.
func (c *decision) keepAhead() {
	for i, done := range c.charged {
		if !done.written {
			continue
		}
		st := copyState(&done.pre)
		c.d.AdoptGrant(i, done.grant)
		c.d.Commit(i, &st)
		c.d.KeepAhead(i)
	}
}
