package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// prepare makes the tenants, the requests, the cells with their shards, the processes and the first events.
func (r *run) prepare(o *Options) error {
	s := r.scenario
	loads, err := s.loads(o)
	if err != nil {
		return err
	}
	if err := s.checkTenants(len(loads)); err != nil {
		return fmt.Errorf("scenario %s: %w", s.Name, err)
	}
	if s.Store == DynamoDB {
		if err := checkTable(loads); err != nil {
			return err
		}
	}
	if err := r.addTenants(loads); err != nil {
		return err
	}
	if err := r.traffic.init(s, loads, r.random); err != nil {
		return err
	}
	switch {
	case o.Log != nil:
		r.traffic.replayLog(o.Log.replay(o.Seed))
	case o.Arrivals != nil:
		if err := r.traffic.replay(o.Arrivals, loads); err != nil {
			return err
		}
	}
	if err := r.prepareCells(o, loads); err != nil {
		return err
	}
	r.environments.functions = make([]function, s.Functions)
	if s.Shape == Serve {
		for _, c := range r.cells {
			if err := r.startInstances(c); err != nil {
				return err
			}
		}
	}
	r.timeline.step = 1 // a point for each second, until there are maxPoints
	r.countEffects()
	for i := range s.Faults {
		r.addFault(&s.Faults[i])
	}
	r.after(s.WarmUp, r.beginMeasuring)
	r.after(countEvery, r.countSecond)
	if s.failAt != nil {
		r.after(countEvery, func() { s.failAt(r) })
	}
	r.after(0, func() { r.reportProgress(o.Progress) })
	return nil
}

// prepareCells makes the cells, without processes, and their control plane if the scenario needs one.
func (r *run) prepareCells(o *Options, loads []load) (err error) {
	r.documents, r.path = o.Documents, route.Clean(o.Path)
	if r.scenario.hasPlane() {
		if r.plane, err = r.newPlane(loads); err != nil {
			return err
		}
	}
	for range r.scenario.Cells {
		if err := context.Cause(r.ctx); err != nil {
			return fmt.Errorf("interrupted before the run began: %w", err)
		}
		if _, err := r.addCell(); err != nil {
			return err
		}
	}
	if r.plane == nil {
		return nil
	}
	for i := range r.tenants {
		t := &r.tenants[i]
		if t.pin == nil {
			t.cells = r.cells
			continue
		}
		for _, n := range t.pin {
			t.cells = append(t.cells, r.cells[n])
		}
	}
	if err := r.plane.settle(); err != nil {
		return err
	}
	return r.plane.begin()
}

// load describes one tenant before the run: how many requests it sends, and its limits.
type load struct {
	name    string
	rate    float64 // requests per second
	charges []limit.Charge
	sampled bool // it is in the sample: its requests are decided

	// The tenant's document in the control tables, for a tenant of the plans file.
	document []byte
	planID   string
	own      bool // the tenant has overrides or boosts, so its limits are not those of its plan
}

// addTenants makes the tenants, and a judge for each of their counters.
func (r *run) addTenants(loads []load) error {
	r.tenants = make([]tenant, len(loads))
	limitIndex := map[string]int32{} // in r.limits, by id
	all, sampled, tiers := 0.0, 0.0, 0
	for i := range loads {
		all += loads[i].rate
		if loads[i].sampled {
			sampled += loads[i].rate
		}
		for _, c := range loads[i].charges {
			tiers += len(c.Limit.Tiers)
		}
	}
	if sampled == 0 {
		return fmt.Errorf("sampleEvery is %d, and no tenant in that sample makes requests: choose a smaller number",
			r.scenario.SampleEvery)
	}
	r.sampleWeight = all / sampled
	// The tenants' slices are parts of four slices that never grow, so that they lie side by side in few cache lines.
	judges, costs, limits := make([]judge.Judge, 0, tiers), make([]int64, 0, tiers), make([]int32, 0, tiers)
	accounts := make([]account, 0, tiers)
	for i := range loads {
		if err := context.Cause(r.ctx); err != nil {
			return fmt.Errorf("interrupted before the run began: %w", err)
		}
		l, t := &loads[i], &r.tenants[i]
		t.req = limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: l.name}, Charges: l.charges}
		t.decided, t.hash = l.sampled && len(l.charges) > 0, hashName(l.name)
		r.byName[l.name] = t
		first := len(judges)
		for _, c := range l.charges {
			index, ok := limitIndex[c.Limit.ID]
			if !ok {
				index = int32(len(r.limits))
				limitIndex[c.Limit.ID] = index
				r.limits = append(r.limits, &limitCount{ID: c.Limit.ID})
			}
			for j := range c.Limit.Tiers {
				tierJudge := newJudge(l.name, c.Limit, &c.Limit.Tiers[j])
				if tierJudge == nil && c.Limit.Mode == limit.Enforce {
					r.limits[index].NotJudged = true
				}
				judges, costs, limits = append(judges, tierJudge), append(costs, c.Cost), append(limits, index)
				accounts = append(accounts, account{twice: judge.CountsTwice(c.Limit.Tiers[j].Algorithm)})
			}
		}
		t.judges, t.costs, t.limits, t.accounts = judges[first:], costs[first:], limits[first:], accounts[first:]
		t.firstTier = first
	}
	return nil
}

// newJudge returns the judge of an owner's tier, or nil if the limit is not enforced or its algorithm has no judge.
// Only one value of the judge comes from the limiter, which the judge should not rely on: the offset at which the
// windows of an owner begin. That is harmless, because a limiter may choose any offset.
func newJudge(owner string, l *limit.Limit, t *limit.Tier) judge.Judge {
	if l.Mode != limit.Enforce {
		return nil
	}
	c := judge.Counter{Algorithm: t.Algorithm, Most: t.Threshold, Burst: t.Capacity(), Period: t.Period,
		Buckets: t.Buckets, Calendar: t.Calendar}
	if l.AlignOwner && judge.Aligns(t.Algorithm) {
		offset := t.LeaseEnd(owner, epoch.UnixMicro()) % t.Period.Microseconds()
		c.Offset = time.Duration(offset) * time.Microsecond
	}
	return judge.New(c)
}

// chargesOf returns what a request for the path charges under the plan of a tenant.
func chargesOf(t *plan.Tenant, path *route.Path) []limit.Charge {
	set := t.Limits(epoch)
	if set == nil || t.Suspended {
		return nil
	}
	return chargesIn(set, path)
}
