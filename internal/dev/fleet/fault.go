package fleet

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// addFault adds the events with which a fault begins and ends.
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
	case CellLost:
		r.addCellLoss(f)
	case CellJoins:
		r.after(f.At, func() { r.joinCell(f) })
	case PoisonedConfiguration:
		for _, poisoned := range []bool{true, false} {
			at := f.At
			if !poisoned {
				at += f.For
			}
			r.after(at, func() { r.plane.do(func() error { return r.plane.poison(f.Tenant, poisoned) }) })
		}
	case ConfigurationAway:
		r.after(f.At, func() { r.changeTables(f, true) })
		r.after(f.At+f.For, func() { r.changeTables(f, false) })
	default:
		r.after(f.At, func() { r.changeShards(f, true) })
		r.after(f.At+f.For, func() { r.changeShards(f, false) })
	}
}

// addCellLoss adds the events of the loss of a cell: the loss itself, the moving of its requests to other cells, and
// its removal by an operator.
func (r *run) addCellLoss(f *Fault) {
	lost := func() *cell { return r.cells[f.Cell-1] }
	r.after(f.At, func() { r.loseCell(lost()) })
	r.after(f.At+f.TrafficAfter, func() { r.leaveCell(lost()) })
	if f.RemovedAfter > 0 {
		r.after(f.At+f.RemovedAfter, func() { r.plane.do(func() error { return r.plane.removeCell(lost()) }) })
	}
}

// joinCell adds a cell, starts its processes, and asks the balancer for a share for it.
func (r *run) joinCell(f *Fault) {
	r.plane.do(func() error {
		c, err := r.addCell()
		if err == nil {
			err = r.startInstances(c)
		}
		if err == nil {
			err = r.plane.wish(shares.Request{Kind: shares.Join, Cell: c.name(), Weight: 1})
		}
		r.after(f.TrafficAfter, func() { r.enterCell(c) })
		return err
	})
}

// changeTables lets the table of configuration of the fault's cell, or of all cells, go away or come back.
func (r *run) changeTables(f *Fault, away bool) {
	for _, c := range r.cells {
		if f.Cell == 0 || c.number == f.Cell {
			c.table.away = away
		}
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
		if s.cell.lost || f.Cell > 0 && s.cell.number != f.Cell {
			continue
		}
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
		if s.cell.shardOf(t.req.Owner.Name) != s {
			continue
		}
		tier := 0
		for _, c := range t.req.Charges {
			for j := range c.Limit.Tiers {
				if t.judges[tier] != nil {
					r.bounds.addForgotten(t, tier, epoch.UnixMicro()+r.now/1000, c.Limit.Tiers[j].Capacity())
				}
				tier++
			}
		}
	}
}

// text describes the fault, and when it happens, in words.
func (f *Fault) text(store Store) string {
	throttles := fmt.Sprintf("each node refuses all but %d calls a second", f.PerSecond)
	if store == DynamoDB {
		throttles = fmt.Sprintf("each partition refuses what is beyond %d write units a second", f.PerSecond)
	}
	text := map[FaultKind]string{
		RedisFailover: "the primary nodes are away until replicas take over", StoreAway: "the store is away",
		StoreSlow:      fmt.Sprintf("a call takes %g times as long", f.Factor),
		StoreThrottles: throttles,
		ClockSkew:      fmt.Sprintf("clocks are wrong by %s", f.By),
		InstancesDie:   "instances die", InstancesJoin: "instances join",
		RetryStorm: fmt.Sprintf("clients ask %g times as often", f.Factor),
		CellLost:   fmt.Sprintf("a cell is lost; its requests move after %s", f.TrafficAfter),
		CellJoins:  fmt.Sprintf("a cell joins; requests come to it after %s", f.TrafficAfter),

		PoisonedConfiguration: "plans cannot be read",
		ConfigurationAway:     "the tables of configuration do not answer",
	}[f.Kind]
	if f.RemovedAfter > 0 {
		text += fmt.Sprintf(", and it is removed by force after %s", f.RemovedAfter)
	}
	if f.Cell > 0 {
		text += fmt.Sprintf(", cell %d", f.Cell)
	}
	if f.Loses {
		text += ", without the counters"
	}
	if f.Tenant > 0 {
		text += fmt.Sprintf(", those of tenant %d", f.Tenant)
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
