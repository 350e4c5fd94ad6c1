package dynamodb

import (
	"context"
	"slices"

	"github.com/sluicelimits/sluice/internal/limit"
)

// inSteps is the request as its decision is made where it asks for leases: what it needs of a shared item is leased, too,
// for a value's item may yet deny.
func inSteps(req *limit.Request) *limit.Request {
	if len(req.Leases) == 0 || !slices.ContainsFunc(req.Charges, func(c limit.Charge) bool { return !inShared(c.Limit) }) {
		return req
	}
	out := *req
	out.Leases = slices.Clone(req.Leases)
	i := 0
	for _, c := range req.Charges {
		for j := range c.Limit.Tiers {
			if a := &out.Leases[i]; inShared(c.Limit) && leasable(&c.Limit.Tiers[j]) && a.Need > 0 && a.Largest() == 0 {
				a.Most, a.Share = 1, 0 // a lease, of nothing more
			}
			i++
		}
	}
	return &out
}

func leasable(t *limit.Tier) bool { return !t.Leasing().None && !t.Limit().Exact }

// stepwise orders the writes of a decision that spans items, shared ones first, and reports whether they may be made one
// after the other: then what the last one denies leaves the others' units with the caller, as a lease. A correction must
// not be made where the decision is denied, for the caller takes it that nothing came back, and would have those units twice.
func (c *decision) stepwise(writes []itemWrite) bool {
	if len(c.req.Leases) == 0 {
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
		if !leasable(c.d.Results[i].Tier) || c.req.Leases[i].Correction != 0 {
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
			c.charged[i] = &charged{tierAt: c.tiers[i], key: w.key, result: c.d.Results[i], taken: c.need(i)}
		}
	}
	return true, nil
}

// keepLeases makes of what the steps before a denial have charged the caller's leases.
func (c *decision) keepLeases() {
	for i, done := range c.charged {
		if !done.written {
			continue
		}
		st := *done.pre.Clone()
		c.d.AdoptLease(i, done.lease)
		c.d.Charge(i, &st)
		c.d.KeepLease(i)
	}
}

// takeBack gives back what the steps before an error have charged, if the error says that the store answered: what cannot be
// decided must not cost the tenant its shared limits each time. What cannot be given back is lost, never admitted.
func (c *decision) takeBack(ctx context.Context, err error) {
	if len(c.charged) == 0 || !limit.Answered(err) {
		return
	}
	back := &limit.Request{Owner: c.req.Owner}
	i := 0
	for _, charge := range c.req.Charges {
		tiers := make([]limit.LeaseRequest, len(charge.Limit.Tiers))
		charged := false
		for j := range tiers {
			if done := c.charged[i]; done != nil && done.written {
				tiers[j] = limit.LeaseRequest{Correction: -(done.taken + done.lease.Units), CorrectionAt: done.lease.At}
				charged = charged || tiers[j].Correction < 0
				if done.result.Other {
					charge.Value = c.req.Owner.OtherValue(charge.Value)
				}
			}
			i++
		}
		if charged {
			charge.Cost = 1
			back.Charges, back.Leases = append(back.Charges, charge), append(back.Leases, tiers...)
		}
	}
	if len(back.Charges) == 0 {
		return
	}
	again := &decision{Store: c.Store, req: withOwnBacks(back), now: c.now, first: c.first, began: c.began,
		pk: c.pk, answers: map[itemKey]*view{}}
	again.d = new(limit.Decision).BeginChecked(again.req, again.now)
	_ = again.decide(ctx)
}
