package sim

import (
	"time"

	"github.com/sluicelimits/sluice/bench/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// prepare makes the tenants, the requests, the shards, the processes and the first events.
func (r *run) prepare(o *Options) error {
	s := r.scenario
	loads, err := s.loads()
	if err != nil {
		return err
	}
	if err := r.addTenants(loads); err != nil {
		return err
	}
	r.traffic.init(s, loads, r.random)
	for range s.Shards {
		sh, err := newShard()
		if err != nil {
			return err
		}
		r.shards = append(r.shards, sh)
	}
	for i := range s.Instances {
		if err := r.startProcess(i); err != nil {
			return err
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

// load describes one tenant before the run: how many requests it sends, and its limits.
type load struct {
	name    string
	rate    float64 // requests per second
	charges []limit.Charge
}

// addTenants makes the tenants, and a judge for each of their counters.
func (r *run) addTenants(loads []load) error {
	r.tenants = make([]tenant, len(loads))
	limitIndex := map[string]int32{} // in r.limits, by id
	tiers := 0
	for i := range loads {
		for _, c := range loads[i].charges {
			tiers += len(c.Limit.Tiers)
		}
	}
	// The tenants' slices are parts of four slices that never grow, so that they lie side by side in few cache lines.
	judges, costs, limits := make([]judge.Judge, 0, tiers), make([]int64, 0, tiers), make([]int32, 0, tiers)
	accounts := make([]account, 0, tiers)
	for i := range loads {
		l, t := &loads[i], &r.tenants[i]
		t.req = limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: l.name}, Charges: l.charges}
		t.hash = hashName(l.name)
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
				judges = append(judges, newJudge(l.name, c.Limit, &c.Limit.Tiers[j]))
				costs, limits = append(costs, c.Cost), append(limits, index)
				accounts = append(accounts, account{twice: judge.CountsTwice(c.Limit.Tiers[j].Algorithm)})
			}
		}
		t.judges, t.costs, t.limits, t.accounts = judges[first:], costs[first:], limits[first:], accounts[first:]
		t.firstTier = first
	}
	return nil
}

// newJudge returns the judge of an owner's tier. Only one value of the judge comes from the limiter, which the judge
// should not rely on: the offset at which the windows of an owner begin. That is harmless, because a limiter may choose
// any offset.
func newJudge(owner string, l *limit.Limit, t *limit.Tier) judge.Judge {
	c := judge.Counter{Algorithm: t.Algorithm, Most: t.Threshold, Burst: t.Capacity(), Period: t.Period,
		Buckets: t.Buckets, Calendar: t.Calendar}
	if l.AlignOwner && judge.Aligns(t.Algorithm) {
		offset := t.LeaseEnd(owner, epoch.UnixMicro()) % t.Period.Microseconds()
		c.Offset = time.Duration(offset) * time.Microsecond
	}
	return judge.New(c)
}
