package fleet

import (
	"time"

	"github.com/sluicelimits/sluice/internal/dev/fleet/judge"
)

// addFault adds the events of a fault.
func (r *run) addFault(f *Fault) {
	switch f.Kind {
	case RetryStorm:
		s := storm{from: f.At.Nanoseconds(), until: (f.At + f.For).Nanoseconds(), factor: f.Factor,
			tenant: f.Tenant - 1}
		if s.tenant >= 0 {
			s.share = r.traffic.share(s.tenant)
		}
		r.traffic.storms = append(r.traffic.storms, s)
		r.after(f.At, func() { r.traffic.changeRate(r.now) })
		r.after(f.At+f.For, func() { r.traffic.changeRate(r.now) })
	case InstancesDie:
		r.after(f.At, func() {
			for _, n := range f.Instances {
				r.die(n)
			}
		})
	case InstancesJoin:
		r.after(f.At, func() {
			for _, n := range f.Instances {
				if err := r.startProcess(n); err != nil {
					r.failed = err
				}
			}
		})
	case ClockSkew:
		r.after(f.At, func() { r.setSkew(f, f.By) })
		if f.For > 0 {
			r.after(f.At+f.For, func() { r.setSkew(f, 0) })
		}
	default:
		r.after(f.At, func() { r.changeShards(f, true) })
		r.after(f.At+f.For, func() { r.changeShards(f, false) })
	}
}

func (r *run) setSkew(f *Fault, by time.Duration) {
	for _, n := range f.Instances {
		if p := r.processes[n]; p != nil {
			p.skew = by
		}
	}
}

// changeShards begins or ends a fault of the store.
func (r *run) changeShards(f *Fault, begins bool) {
	for _, s := range r.shards {
		switch f.Kind {
		case StoreAway, RedisFailover:
			s.away = begins
			if f.Loses && !begins {
				r.forgetShard(s)
			}
		case StoreSlow:
			if s.slower = 1; begins {
				s.slower = f.Factor
			}
		case StoreThrottles:
			if s.throttled = 0; begins {
				s.throttled = f.PerSecond
			}
		default:
		}
	}
}

// forgetShard lets a shard lose its counters, and notes what they may have held: in each tier what its bound allows in
// the windows that are open, which is twice the limit for two that overlap in a sliding one.
func (r *run) forgetShard(s *shard) {
	if err := s.forget(); err != nil {
		r.failed = err
		return
	}
	for i := range r.tenants {
		t := &r.tenants[i]
		if r.shardOf(t.req.Owner.Name) != s {
			continue
		}
		for _, c := range t.req.Charges {
			for j := range c.Limit.Tiers {
				tier := &c.Limit.Tiers[j]
				r.forgotten += tier.Capacity()
				if judge.CountsTwice(tier.Algorithm) {
					r.forgotten += tier.Capacity()
				}
			}
		}
	}
}
