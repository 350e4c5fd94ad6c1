package fleet

import "time"

// addFault adds the events of a fault.
func (r *run) addFault(f *Fault) {
	switch f.Kind {
	case RetryStorm:
		s := storm{from: f.At.Nanoseconds(), until: (f.At + f.For).Nanoseconds(), factor: f.Factor, tenant: f.Tenant - 1}
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
				if err := s.forget(); err != nil {
					r.failed = err
				}
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
