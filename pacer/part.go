package pacer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// Part makes the pacer use a part of Config.Limit, which is the total of several instances: Limit.Units / Instances in
// each window. Instances do not talk to each other, and a part that an instance does not use is lost.
//
// A remainder rotates: in each window, other instances get one unit more. The parts of a window add up to the total
// exactly, also if there are more instances than units.
type Part struct {
	// Instances is the number of instances, 0..MaxInstances. If it is 0, the instance has no part, and its requests
	// wait, until a plan holds.
	Instances int64

	// Index is the number of this instance, 0..MaxInstances-1. No other instance may have the same. An instance whose
	// Index is not below Instances has no part until a plan with more instances holds.
	Index int64
}

// MaxInstances is the largest number of instances that divide a limit among themselves.
const MaxInstances = 1 << 20

// Plan is a total and the number of instances that divide it. See [Pacer.FollowPlan].
type Plan struct {
	Total     int64 `json:"total"`     // units in each window, 1..MaxUnits
	Instances int64 `json:"instances"` // 1..MaxInstances

	// From is the time from which on the plan holds, until the From of a later plan. It is rounded up to the next
	// window. If it is zero, the plan holds from the second window after the present one on.
	From time.Time `json:"from,omitzero"`

	// Before is the plan that holds until From, for FollowPlan; nil if it is not known. It has a From, which is earlier
	// than that of this plan. It may have a Before of its own.
	Before *Plan `json:"before,omitempty"`
}

// maxPlans is the largest number of plans that a pacer remembers until they hold.
const maxPlans = 100

// parts divides a total among instances. It does no locking, and reads no clock.
type parts struct {
	index     int64
	total     int64
	instances int64         // 0: no plan has held yet, or the plan was dropped
	planned   []plannedPart // plans that do not hold yet, in the order of their windows
}

// plannedPart is a plan that holds from a window on.
type plannedPart struct {
	total, instances int64
	from             int64 // number of the window
	late             bool  // other instances may use the plan before that window
}

func (p *Part) check(c *Config) error {
	switch {
	case p == nil:
		return nil
	case c.Shared != nil:
		return fmt.Errorf("%w: a part of a limit cannot be shared", ErrConfig)
	case p.Instances < 0 || p.Instances > MaxInstances:
		return fmt.Errorf("%w: %d instances are not within 0..%d", ErrConfig, p.Instances, MaxInstances)
	case p.Index < 0 || p.Index >= MaxInstances:
		return fmt.Errorf("%w: the index %d is not within 0..%d", ErrConfig, p.Index, MaxInstances-1)
	}
	return nil
}

// begin applies the plans that hold in a window.
func (p *parts) begin(window int64) {
	for len(p.planned) > 0 && window >= p.planned[0].from {
		p.total, p.instances = p.planned[0].total, p.planned[0].instances
		p.planned = p.planned[1:]
	}
}

// plan adds a plan. It replaces plans for the same window or later ones, except those that were heard of too late:
// other instances may use these before that window.
func (p *parts) plan(next plannedPart) {
	p.planned = slices.DeleteFunc(p.planned, func(old plannedPart) bool { return old.from >= next.from && !old.late })
	p.planned = append(p.planned, next)
}

// of returns the instance's part of a window, to which begin was applied. If the instance has heard of plans too late,
// it is the smallest of its parts by the old plan and by these.
func (p *parts) of(window int64) int64 {
	units := partOf(p.total, p.instances, p.index, window)
	for i := range p.planned {
		if late := &p.planned[i]; late.late {
			units = min(units, partOf(late.total, late.instances, p.index, window))
		}
	}
	return units
}

// partOf returns an instance's part of a window. The first total % instances of the instances have one unit more,
// counted from an instance that moves on by as many in each window.
func partOf(total, instances, index, window int64) int64 {
	if index >= instances {
		return 0 // the instance is not part of the plan
	}
	whole, rest := total/instances, total%instances
	moved := (window % instances) * rest % instances
	if (index-moved+2*instances)%instances < rest {
		whole++
	}
	return whole
}

// largest returns the largest part that the instance has in any window, and at least one unit. Without a plan, it
// returns the total.
func (p *parts) largest() int64 {
	if p.instances == 0 {
		return p.total
	}
	return max((p.total+p.instances-1)/p.instances, 1)
}

// SetPlan changes the total and the number of instances of a pacer with Config.Part. The error wraps ErrConfig, or
// ErrTooSoon if From lies before the second window after the present one; the old plan then stays.
//
// All instances must change at the same window. If the total falls or the number of instances rises, change the plan of
// the instances first, and the provider's limit or the number of instances afterwards. Otherwise change it last.
//
// A plan that does not hold yet is replaced by a later call with the same From or an earlier one. It stays if the From
// of the later call is later. Requests that wait and cost more than the new part fail with ErrNever when their turn
// comes.
func (p *Pacer) SetPlan(plan Plan) error { return p.setPlan(plan, false) }

// setPlan is SetPlan. If late, it accepts a plan whose From has passed, or is less than two windows ahead: other
// instances, which heard of the plan in time, may use it already.
func (p *Pacer) setPlan(plan Plan, late bool) error {
	p.mu.Lock()
	now := p.readBoth()
	if err := p.core.supply.setPlan(plan, late, now.Wall); err != nil {
		p.mu.Unlock()
		return err
	}
	p.serveAndUnlock(now.Mono)
	return nil
}

func (s *supply) setPlan(plan Plan, late bool, wall time.Duration) error {
	if s.part == nil {
		return fmt.Errorf("%w: the limit is not divided, because Config.Part is nil", ErrConfig)
	}
	period := s.limit.Period
	err := Limit{plan.Total, period}.check()
	if plan.Instances < 1 || plan.Instances > MaxInstances {
		err = errors.Join(err, fmt.Errorf("%w: %d instances are not within 1..%d", ErrConfig, plan.Instances,
			MaxInstances))
	}
	if len(s.part.planned) >= maxPlans {
		err = errors.Join(err, fmt.Errorf("%w: %d plans do not hold yet, and no more are remembered", ErrConfig,
			maxPlans))
	}
	if err != nil {
		return err
	}
	next := plannedPart{total: plan.Total, instances: plan.Instances, from: floorDiv(wall, period) + 2}
	if plan.From.IsZero() {
		s.part.plan(next)
		return nil
	}
	switch window := floorDiv(time.Duration(plan.From.UnixNano())+period-1, period); {
	case window >= next.from:
		next.from = window
	case !late:
		return fmt.Errorf("%w: from window %d on, and the earliest possible one is %d", ErrTooSoon, window, next.from)
	case s.part.instances == 0 && window <= s.number:
		next.from = s.number
	default:
		next.late = true
	}
	s.part.plan(next)
	s.part.begin(s.number)
	s.limit.Units = s.part.largest()
	s.resize()
	return nil
}

// dropPlan leaves the instance without a part until a plan holds.
func (p *Pacer) dropPlan() {
	p.mu.Lock()
	now := p.readBoth()
	if s := &p.core.supply; s.part != nil {
		s.part.instances, s.part.planned = 0, nil
		s.limit.Units = s.part.largest()
		s.resize()
	}
	p.serveAndUnlock(now.Mono)
}

// PlanFile returns a function that reads a plan from a file with a JSON object, such as {"total": 1000,
// "instances": 96, "from": "2030-01-01T00:00:00Z"}. Replace the file by renaming another one, so that it is never read
// in part.
func PlanFile(path string) func(context.Context) (Plan, error) {
	return func(context.Context) (plan Plan, err error) {
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &plan)
		}
		if err != nil {
			return Plan{}, fmt.Errorf("pacer: plan: %w", err)
		}
		return plan, nil
	}
}

// FollowPlan reads a plan at once and then after each interval, and plans it as SetPlan does whenever it has changed,
// until ctx ends. Read may be PlanFile, or a call to whatever program keeps the plan. Errors of read and SetPlan are
// passed to failed. The plan then stays as it was, unless the error wraps ErrNoPlan: after that, the instance has no
// part, and its requests wait, until read returns a plan.
//
// Instances may read a changed plan in different windows, so a plan without a From does not hold for all from the same
// window on. Give it a From at least three intervals ahead, and two windows.
//
// An instance that reads a plan after its From, because it was started or could not read before, uses the smaller of
// its old and its new part for the rest of the window and the next one, and then the new part. An instance whose
// Part.Instances is 0 uses its new part at once. So such an instance uses nothing before it has read a plan, and cannot
// begin with a part that was true when its configuration was written. If it is started before the plan's From, it uses
// nothing until then, unless the plan has a Before.
func (p *Pacer) FollowPlan(ctx context.Context, interval time.Duration, read func(context.Context) (Plan, error),
	failed func(error),
) {
	var latest []Plan
	for {
		plan, err := read(ctx)
		switch {
		case err == nil:
			latest, err = p.planAll(plan, latest)
		case errors.Is(err, ErrNoPlan):
			latest = nil
			p.dropPlan()
		}
		if err != nil && ctx.Err() == nil {
			failed(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
		}
	}
}

// planAll plans a plan and those before it, from the first one on that is not among the latest, which were planned
// before. It returns the latest from then on.
func (p *Pacer) planAll(plan Plan, latest []Plan) ([]Plan, error) {
	var all []Plan
	for at := &plan; at != nil; at = at.Before {
		switch {
		case len(all) >= maxPlans:
			return latest, fmt.Errorf("%w: more than %d plans follow each other", ErrConfig, maxPlans)
		case len(all) > 0 && (at.From.IsZero() || !at.From.Before(all[len(all)-1].From)):
			return latest, fmt.Errorf("%w: a plan from %s on follows one from %s on", ErrConfig,
				all[len(all)-1].From.Format(time.RFC3339), at.From.Format(time.RFC3339))
		}
		all = append(all, *at)
	}
	slices.Reverse(all)
	known := func(a Plan) bool {
		return slices.ContainsFunc(latest, func(b Plan) bool {
			return a.Total == b.Total && a.Instances == b.Instances && a.From.Equal(b.From)
		})
	}
	for i := slices.IndexFunc(all, func(a Plan) bool { return !known(a) }); i >= 0 && i < len(all); i++ {
		if err := p.setPlan(all[i], true); err != nil {
			return latest, err
		}
	}
	return all, nil
}
