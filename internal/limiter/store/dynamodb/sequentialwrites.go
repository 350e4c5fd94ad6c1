package dynamodb

import (
	"context"
	"slices"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// leaseSharedCharges returns the request in the form in which this store decides it. A request that leases, and that
// charges both shared items and items of values, is written one item after the other: see writeSequentially. In such a
// request, what is needed of a shared item is charged as a lease, too, so that the caller keeps the units if the
// value's item then denies.
func leaseSharedCharges(req *limit.Request) *limit.Request {
	isOfValue := func(c limit.Charge) bool { return !isInSharedItem(c.Limit) }
	if len(req.Leases) == 0 || !slices.ContainsFunc(req.Charges, isOfValue) {
		return req
	}
	out := *req
	out.Leases = slices.Clone(req.Leases)
	i := 0
	for _, c := range req.Charges {
		for j := range c.Limit.Tiers {
			lease := &out.Leases[i]
			if isInSharedItem(c.Limit) && isLeasable(&c.Limit.Tiers[j]) && lease.Need > 0 && lease.Largest() == 0 {
				lease.Most, lease.Share = 1, 0 // a lease of what is needed and no more
			}
			i++
		}
	}
	return &out
}

// isLeasable reports whether units of the tier may stay with the caller as a lease after a denial.
func isLeasable(t *limit.Tier) bool { return !t.Leasing().None && !t.Limit().Exact }

// orderSequentially puts the updates of shared items first, and reports whether the updates may be made one after the
// other: then, if the last one is denied, the caller keeps the units of the others as leases. An update with a
// correction must not be made before a denial: after a denial the caller assumes that its returned units did not
// arrive, and would have them twice.
func (d *decision) orderSequentially(updates []plannedUpdate) bool {
	if len(d.req.Leases) == 0 {
		return false
	}
	isShared := func(w plannedUpdate) bool { return isSharedSortKey(w.key.sort) }
	slices.SortStableFunc(updates, func(a, b plannedUpdate) int {
		switch {
		case isShared(a) == isShared(b):
			return 0
		case isShared(a):
			return -1
		}
		return 1
	})
	beforeLast := updates[:len(updates)-1]
	if slices.ContainsFunc(beforeLast, func(w plannedUpdate) bool { return !isShared(w) }) {
		return false
	}
	for i := range d.counters {
		counter := &d.counters[i]
		if !counter.written || !slices.ContainsFunc(beforeLast,
			func(w plannedUpdate) bool { return w.index == counter.item }) {
			continue
		}
		if !isLeasable(d.eval.Results[i].Tier) || d.req.Leases[i].Correction != 0 {
			return false
		}
	}
	return true
}

// writeSequentially writes one item after the other. If a condition does not hold, the items written before stay
// written, and the next try of the decision begins with the rest.
func (d *decision) writeSequentially(ctx context.Context, updates []plannedUpdate) (bool, error) {
	for n, update := range updates {
		if done, err := d.writeItem(ctx, update.index, update.itemUpdate); !done || err != nil {
			return done, err
		}
		if n == len(updates)-1 {
			break
		}
		d.items[update.index].written = true
		for i := range d.counters {
			if d.counters[i].item != update.index {
				continue
			}
			if d.writtenResults == nil {
				d.writtenResults = map[int]*writtenResult{}
			}
			d.writtenResults[i] = &writtenResult{
				resultCounter: d.counters[i], key: update.key, result: d.eval.Results[i], units: d.neededUnits(i),
			}
		}
	}
	return true, nil
}

// keepLeases turns what was written before a denial into leases of the caller.
func (d *decision) keepLeases() {
	for i, saved := range d.writtenResults {
		if !saved.written {
			continue
		}
		st := *saved.before.Clone()
		d.eval.AdoptLease(i, saved.lease)
		d.eval.Charge(i, &st)
		d.eval.KeepLease(i)
	}
}

// returnWritten gives back what was written before an error that says that the store answered. Otherwise each attempt
// of a request that cannot be decided would use up the tenant's shared limits. Units that cannot be given back are
// lost.
func (d *decision) returnWritten(ctx context.Context, err error) {
	if len(d.writtenResults) == 0 || !limit.Answered(err) {
		return
	}
	returned := &limit.Request{Owner: d.req.Owner}
	i := 0
	for _, charge := range d.req.Charges {
		tiers := make([]limit.LeaseRequest, len(charge.Limit.Tiers))
		charged := false
		for j := range tiers {
			if saved := d.writtenResults[i]; saved != nil && saved.written {
				tiers[j] = limit.LeaseRequest{Correction: -(saved.units + saved.lease.Units),
					CorrectionAt: saved.lease.At}
				charged = charged || tiers[j].Correction < 0
				if saved.result.Other {
					charge.Value = d.req.Owner.OtherValue(charge.Value)
				}
			}
			i++
		}
		if charged {
			charge.Cost = 1
			returned.Charges, returned.Leases = append(returned.Charges, charge), append(returned.Leases, tiers...)
		}
	}
	if len(returned.Charges) == 0 {
		return
	}
	giveBack := &decision{
		Store: d.Store, req: returned, now: d.now, firstNow: d.firstNow, startedAt: d.startedAt,
		partition: d.partition, replies: map[itemKey]*itemCopy{},
	}
	giveBack.eval = new(limit.Decision).BeginChecked(giveBack.req, giveBack.now)
	_ = giveBack.decide(ctx)
}
