package router

import (
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// splitRequest is a request that a pair has split in two, and the decisions of the two parts.
type splitRequest struct{ first, second requestPart }

// requestPart is one part of a request, and the decision over it.
type requestPart struct {
	request  limit.Request
	decision limit.Decision
}

// clear empties the part of a request of the owner, and keeps its memory.
func (p *requestPart) clear(owner limit.Owner) {
	p.request.Owner = owner
	p.request.Charges, p.request.Leases = p.request.Charges[:0], p.request.Leases[:0]
}

// hasOnlyQuotas reports whether all charges of the request may become unspent charges. Those of a rate may not: if they
// were spent later than they were charged, they would come on top of what the rate allows then.
func hasOnlyQuotas(req *limit.Request) bool {
	for i := range req.Charges {
		if !IsQuota(req.Charges[i].Limit) {
			return false
		}
	}
	return true
}

// leasesAny reports whether a decision has leased units, even if it is a denial.
func leasesAny(d *limit.Decision) bool {
	for i := range d.Results {
		if d.Lease(i).Units > 0 {
			return true
		}
	}
	return false
}

// parts says which parts of a pair a request concerns.
type parts uint8

const (
	bothParts parts = iota
	onlyFirst
	onlySecond // also if the request has no limits
)

// partsOf returns which parts the request concerns. It returns an error if the request is invalid.
func (p *pair) partsOf(req *limit.Request) (parts, error) {
	if err := req.Check(); err != nil {
		return bothParts, err
	}
	inFirst := 0
	for i := range req.Charges {
		if p.isFirst(req.Charges[i].Limit) {
			inFirst++
		}
	}
	switch inFirst {
	case 0:
		return onlySecond, nil
	case len(req.Charges):
		return onlyFirst, nil
	}
	return bothParts, nil
}

// split returns the two parts of the request.
func (p *pair) split(req *limit.Request) *splitRequest {
	split := p.pool.Get().(*splitRequest)
	split.first.clear(req.Owner)
	split.second.clear(req.Owner)
	start := 0 // of the charge's entries in req.Leases
	for i := range req.Charges {
		part, end := &split.second.request, start+len(req.Charges[i].Limit.Tiers)
		if p.isFirst(req.Charges[i].Limit) {
			part = &split.first.request
		}
		part.Charges = append(part.Charges, req.Charges[i])
		if len(req.Leases) > 0 {
			part.Leases = append(part.Leases, req.Leases[start:end]...)
		}
		start = end
	}
	return split
}

// join writes the results and leases of both parts to d, in the order of the request.
func (p *pair) join(d *limit.Decision, req *limit.Request, first, second *limit.Decision) {
	d.BeginChecked(req, second.Now)
	f, s := 0, 0
	for i := range d.Results {
		if p.isFirst(d.Results[i].Limit()) {
			d.Revise().Adopt(i, &first.Results[f])
			d.Revise().AdoptLease(i, convertClock(first.Lease(f), first, d))
			f++
		} else {
			d.Revise().Adopt(i, &second.Results[s])
			d.Revise().AdoptLease(i, second.Lease(s))
			s++
		}
	}
}

// unchargeAll makes d say that the request was charged nothing: its units are an unspent charge, or are returned.
func unchargeAll(d *limit.Decision) {
	for i := range d.Results {
		d.Results[i].Uncharge()
	}
}

// asksForItsCostOnly reports whether the request asks for just what it costs: it leases and corrects nothing.
func asksForItsCostOnly(req *limit.Request) bool {
	i := 0
	for c := range req.Charges {
		for range req.Charges[c].Limit.Tiers {
			if i < len(req.Leases) && req.Leases[i] != (limit.LeaseRequest{Need: req.Charges[c].Cost}) {
				return false
			}
			i++
		}
	}
	return true
}

// onlyCorrects reports whether the request needs nothing and leases nothing: it corrects what is counted, or does
// nothing at all.
func onlyCorrects(req *limit.Request) bool {
	for i := range req.Leases {
		if a := &req.Leases[i]; a.Need > 0 || a.Largest() > 0 {
			return false
		}
	}
	return len(req.Leases) > 0
}

// asksForNothing reports whether the request asks for nothing, because the caller has leased all units that it needs.
func asksForNothing(req *limit.Request) bool {
	for i := range req.Leases {
		if req.Leases[i].Correction != 0 {
			return false
		}
	}
	return onlyCorrects(req)
}

// dropErrorIfUnasked returns the error of the part's decision if anything was asked. If nothing was asked, it fills the
// decision as if the counters had never been used, and returns nil.
func (p *requestPart) dropErrorIfUnasked(err error, now time.Time) error {
	if err != nil && asksForNothing(&p.request) {
		p.fillAsUnused(now.UnixMicro())
		return nil
	}
	return err
}

// fillAsUnused fills the decision as if the counters had never been used, and marks its results as not asked.
func (p *requestPart) fillAsUnused(now int64) {
	d := &p.decision
	d.BeginChecked(&p.request, now)
	for i := range d.Results {
		d.Revise().Evaluate(i, &limit.State{}, false)
		d.Results[i].Unasked = true
	}
	d.Revise().Settle()
}

// convertClock returns a lease of one decision by the clock of another decision: its end is as far from the other
// decision's time as it was from the time of its own.
func convertClock(lease limit.Lease, from, d *limit.Decision) limit.Lease {
	if lease.At != 0 {
		lease.Until += d.Now - from.Now
	}
	return lease
}
