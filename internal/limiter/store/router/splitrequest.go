package router

import (
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// splitRequest is a request over several stores, with a part for each store. It is reused.
type splitRequest struct {
	request *limit.Request
	all     []*part  // one for each store, in the order of backends
	parts   []*part  // those that have limits of the request
	asked   []*part  // those of parts that are asked for anything
	results []result // those of the request, in their order
}

// result says where a result of the request comes from.
type result struct {
	part  *part
	index int // in the results of the part's decision
}

// split returns the parts of the request or, if one store counts all of its limits, that store. It returns an error if
// the request is invalid, or if a limit has no store.
func (s *Store) split(req *limit.Request, now time.Time) (split *splitRequest, only *Backend, err error) {
	if s.isOneStore() {
		return nil, &s.rates, nil
	}
	known, first, several := s.known.Load(), 0, false
	for i := range req.Charges {
		n, err := s.position(known, req.Charges[i].Limit)
		if err != nil {
			return nil, nil, err
		}
		if i == 0 {
			first = n
		}
		several = several || n != first
	}
	if !several {
		return nil, &known.all[first], nil
	}
	if err := req.Check(); err != nil {
		return nil, nil, err
	}
	split = s.pool.Get().(*splitRequest)
	split.begin(req, known)
	start := 0 // of the charge's entries in req.Leases
	for i := range req.Charges {
		n, _ := s.position(known, req.Charges[i].Limit)
		start = split.add(split.all[n], i, start)
	}
	split.collect(now)
	return split, nil, nil
}

// begin empties the split request, and keeps its memory.
func (s *splitRequest) begin(req *limit.Request, known *backends) {
	s.request, s.parts, s.asked, s.results = req, s.parts[:0], s.asked[:0], s.results[:0]
	for len(s.all) < len(known.all) {
		s.all = append(s.all, new(part))
	}
	for i, p := range s.all {
		p.request.Owner, p.tiers, p.err, p.isKnown, p.isSent = req.Owner, 0, nil, false, false
		p.request.Charges, p.request.Leases = p.request.Charges[:0], p.request.Leases[:0]
		if i < len(known.all) {
			p.backend = &known.all[i]
		}
	}
}

// add adds charge i of the request to a part. The charge's entries in the request's Leases begin at start; add returns
// where they end.
func (s *splitRequest) add(p *part, i, start int) (end int) {
	charge := &s.request.Charges[i]
	end = start + len(charge.Limit.Tiers)
	p.request.Charges = append(p.request.Charges, *charge)
	if len(s.request.Leases) > 0 {
		p.request.Leases = append(p.request.Leases, s.request.Leases[start:end]...)
	}
	for range charge.Limit.Tiers {
		s.results = append(s.results, result{p, p.tiers})
		p.tiers++
	}
	return end
}

// collect finds the parts that have limits, and those that are asked for anything. The decisions of the others are as
// if their counters had never been used.
func (s *splitRequest) collect(now time.Time) {
	for _, p := range s.all {
		switch {
		case p.tiers == 0:
			continue
		case asksForNothing(&p.request):
			p.fillAsUnused(now)
		default:
			s.asked = append(s.asked, p)
		}
		s.parts = append(s.parts, p)
	}
}

// fillFailed gives each part whose store did not answer the results of unused counters, because the caller needs a
// result of each tier.
func (s *splitRequest) fillFailed(now time.Time) {
	s.asked = slices.DeleteFunc(s.asked, func(p *part) bool { return p.err != nil })
	for _, p := range s.parts {
		if p.err != nil {
			p.fillAsUnused(now)
		}
	}
}

// join makes one decision of the decisions of the parts. It has the time and the receipt of the first part that was
// asked and has answered.
func (s *splitRequest) join(d *limit.Decision, now time.Time) {
	at, id := now.UnixMicro(), limit.ReceiptID{}
	if len(s.asked) > 0 {
		at, id = s.asked[0].decision.Now, s.asked[0].decision.ID
	}
	d.BeginChecked(s.request, at)
	e := d.Revise()
	for i, r := range s.results {
		e.Adopt(i, &r.part.decision.Results[r.index])
		if one := &e.Results[i]; one.RetryAt != 0 { // the wait is as long as by the clock of its store
			one.RetryAt += at - r.part.decision.Now
		}
		e.AdoptLease(i, r.lease(d))
	}
	if e.Settle() {
		d.ID = id
		return
	}
	for i := range d.Results {
		d.Results[i].Uncharge()
	}
}

// lease returns the lease of the result by the clock of d: its end is as far from the time of d as it was from that of
// the part's decision.
func (r *result) lease(d *limit.Decision) limit.Lease {
	from := &r.part.decision
	lease := from.Lease(r.index)
	if lease.At != 0 {
		lease.Until += d.Now - from.Now
	}
	return lease
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
