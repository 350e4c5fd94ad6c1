package sim

import (
	"fmt"
	"strings"
	"time"
)

// addFault adds the events with which a fault begins and ends.
func (r *run) addFault(f *Fault) {
	switch f.Kind {
	case RetryStorm:
		r.traffic.storms = append(r.traffic.storms,
			storm{from: f.At.Nanoseconds(), until: (f.At + f.For).Nanoseconds(), factor: f.Factor})
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

// setSkew sets how far the clocks of the fault's instances are ahead of the true time.
func (r *run) setSkew(f *Fault, by time.Duration) {
	for _, n := range f.Instances {
		p := r.processes[n]
		if p != nil {
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
			s.slower = 1
			if begins {
				s.slower = f.Factor
			}
		case StoreThrottles:
			s.throttled = 0
			if begins {
				s.throttled = f.PerSecond
			}
		default:
		}
	}
}

// forgetShard lets a shard lose its counters, and notes how many units these counters can have held: for each tier of
// each tenant of the shard, its capacity in the present window.
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
		tier := 0
		for _, c := range t.req.Charges {
			for j := range c.Limit.Tiers {
				r.bounds.addForgotten(t, tier, epoch.UnixMicro()+r.now/1000, c.Limit.Tiers[j].Capacity())
				tier++
			}
		}
	}
}

// text describes the fault, and when it happens, in words.
func (f *Fault) text() string {
	text := map[FaultKind]string{
		RedisFailover: "the primary nodes are away until replicas take over", StoreAway: "the store is away",
		StoreSlow:      fmt.Sprintf("a call takes %g times as long", f.Factor),
		StoreThrottles: fmt.Sprintf("each node refuses all but %d calls a second", f.PerSecond),
		ClockSkew:      fmt.Sprintf("clocks are wrong by %s", f.By),
		InstancesDie:   "instances die", InstancesJoin: "instances join",
		RetryStorm: fmt.Sprintf("clients ask %g times as often", f.Factor),
	}[f.Kind]
	if f.Loses {
		text += ", without the counters"
	}
	if len(f.Instances) > 0 {
		text += fmt.Sprintf(" (%d)", len(f.Instances))
	}
	text += fmt.Sprintf(" at %s", f.At)
	if f.For > 0 {
		text += fmt.Sprintf(" for %s", f.For)
	}
	return text
}

// Did describes in words what happened from the beginning of the fault until the next fault began or the run ended.
func (e *Effect) Did() string {
	var parts []string
	for _, p := range []struct {
		n    int64
		text string
	}{{e.Degraded, "decided by the fallback limiter"}, {e.Early, "denied early"}, {e.Unserved, "not decided"},
		{e.Over, "units above a limit"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.text))
		}
	}
	if len(parts) == 0 {
		parts = append(parts, "no decision suffered")
	}
	if e.DegradedFor > 0 {
		parts = append(parts, fmt.Sprintf("the fallback limiter decided for %.1f s", e.DegradedFor))
	}
	return strings.Join(parts, ", ") + fmt.Sprintf("; the slowest took %.1f ms", e.Maxms)
}
