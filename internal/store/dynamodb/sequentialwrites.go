package dynamodb

import (
	"context"
	"slices"

	"github.com/sluicelimits/sluice/internal/limit"
)

// inSteps is the request as its decision is made where it asks for leases: what it needs of a shared item is leased, too,
// for a value's item may yet deny.
func leaseSharedCharges(req *limit.Request) *limit.Request {
	if len(req.Leases) == 0 || !slices.ContainsFunc(req.Charges, func(c limit.Charge) bool { return !isInSharedItem(c.Limit) }) {
		return req
	}
	out := *req
	out.Leases = slices.Clone(req.Leases)
	i := 0
	for _, c := range req.Charges {
		for j := range c.Limit.Tiers {
			if a := &out.Leases[i]; isInSharedItem(c.Limit) && isLeasable(&c.Limit.Tiers[j]) && a.Need > 0 && a.Largest() == 0 {
				a.Most, a.Share = 1, 0 // a lease, of nothing more
			}
			i++
		}
	}
	return &out
}

func isLeasable(t *limit.Tier) bool { return !t.Leasing().Never && !t.Limit().Exact }

// stepwise orders the writes of a decision that spans items, shared ones first, and reports whether they may be made one
// after the other: then what the last one denies leaves the others' units with the caller, as a lease. A correction must
// not be made where the decision is denied, for the caller takes it that nothing came back, and would have those units twice.
func (d *decision) orderSequentially(writes []plannedUpdate) bool {
	if len(d.req.Leases) == 0 {
		return false
	}
	shared := func(w plannedUpdate) bool { return isSharedSortKey(w.key.sort) }
	slices.SortStableFunc(writes, func(a, b plannedUpdate) int {
		switch {
		case shared(a) == shared(b):
			return 0
		case shared(a):
			return -1
		}
		return 1
	})
	first := writes[:len(writes)-1]
	if slices.ContainsFunc(first, func(w plannedUpdate) bool { return !shared(w) }) {
		return false
	}
	for i := range d.counters {
		t := &d.counters[i]
		if !t.written || !slices.ContainsFunc(first, func(w plannedUpdate) bool { return w.item == t.item }) {
			continue
		}
		if !isLeasable(d.eval.Results[i].Tier) || d.req.Leases[i].Correction != 0 {
			return false
		}
	}
	return true
}

// chargeInSteps makes the writes one after the other. Those before one whose condition does not hold stay: the decision
// goes on from there.
func (d *decision) writeSequentially(ctx context.Context, writes []plannedUpdate) (bool, error) {
	for n, w := range writes {
		if done, err := d.writeItem(ctx, w.item, w.itemUpdate); !done || err != nil {
			return done, err
		}
		if n == len(writes)-1 {
			break
		}
		d.items[w.item].written = true
		for i := range d.counters {
			if d.counters[i].item != w.item {
				continue
			}
			if d.writtenResults == nil {
				d.writtenResults = map[int]*writtenResult{}
			}
			d.writtenResults[i] = &writtenResult{resultCounter: d.counters[i], key: w.key, result: d.eval.Results[i], units: d.neededUnits(i)}
		}
	}
	return true, nil
}

// keepLeases makes of what the steps before a denial have charged the caller's leases.
func (d *decision) keepLeases() {
	for i, done := range d.writtenResults {
		if !done.written {
			continue
		}
		st := *done.before.Clone()
		d.eval.AdoptLease(i, done.lease)
		d.eval.Charge(i, &st)
		d.eval.KeepLease(i)
	}
}

// takeBack gives back what the steps before an error have charged, if the error says that the store answered: what cannot be
// decided must not cost the tenant its shared limits each time. What cannot be given back is lost, never admitted.
func (d *decision) returnWritten(ctx context.Context, err error) {
	if len(d.writtenResults) == 0 || !limit.Answered(err) {
		return
	}
	back := &limit.Request{Owner: d.req.Owner}
	i := 0
	for _, charge := range d.req.Charges {
		tiers := make([]limit.LeaseRequest, len(charge.Limit.Tiers))
		charged := false
		for j := range tiers {
			if done := d.writtenResults[i]; done != nil && done.written {
				tiers[j] = limit.LeaseRequest{Correction: -(done.units + done.lease.Units), CorrectionAt: done.lease.At}
				charged = charged || tiers[j].Correction < 0
				if done.result.Other {
					charge.Value = d.req.Owner.OtherValue(charge.Value)
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
	again := &decision{Store: d.Store, req: cloneReturns(back), now: d.now, firstNow: d.firstNow, startedAt: d.startedAt,
		partition: d.partition, replies: map[itemKey]*itemCopy{}}
	again.eval = new(limit.Decision).BeginChecked(again.req, again.now)
	_ = again.decide(ctx)
}
