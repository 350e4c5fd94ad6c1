package pacer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// Part makes the pacer use a part of Config.Limit, which is the total of several instances: Limit.Units / Instances in
// each window. Instances do not talk to each other, and a part that an instance does not use is lost.
//
// A remainder rotates: in each window, other instances get one unit more. The parts of a window add up to the total
// exactly, also if there are more instances than units.
type Part struct {
	Instances int64 // number of instances, 1..MaxInstances

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

	// From is the time from which on the plan holds. It is rounded up to the next window. If it is zero, the plan holds
	// from the second window after the present one on.
	From time.Time `json:"from,omitzero"`
}

// parts divides a total among instances. It does no locking, and reads no clock.
type parts struct {
	index     int64
	total     int64
	instances int64
	next      Plan
	from      int64 // number of the window from which on next holds; next.Total of 0: there is no other plan
}

func (p *Part) check(c *Config) error {
	switch {
	case p == nil:
		return nil
	case c.Shared != nil || c.Learning != nil:
		return fmt.Errorf("%w: a part of a limit can neither be shared nor learned", ErrConfig)
	case p.Instances < 1 || p.Instances > MaxInstances:
		return fmt.Errorf("%w: %d instances are not within 1..%d", ErrConfig, p.Instances, MaxInstances)
	case p.Index < 0 || p.Index >= MaxInstances:
		return fmt.Errorf("%w: the index %d is not within 0..%d", ErrConfig, p.Index, MaxInstances-1)
	}
	return nil
}

// begin applies the next plan if it holds in a window.
func (p *parts) begin(window int64) {
	if p.next.Total > 0 && window >= p.from {
		p.total, p.instances, p.next = p.next.Total, p.next.Instances, Plan{}
	}
}

// of returns the instance's part of a window. The first total % instances of the instances have one unit more, counted
// from an instance that moves on by as many in each window.
func (p *parts) of(window int64) int64 {
	if p.index >= p.instances {
		return 0 // the instance is not part of the plan
	}
	whole, rest := p.total/p.instances, p.total%p.instances
	moved := (window % p.instances) * rest % p.instances
	if (p.index-moved+2*p.instances)%p.instances < rest {
		whole++
	}
	return whole
}

// largest returns the largest part that the instance has in any window, and at least one unit.
func (p *parts) largest() int64 { return max((p.total+p.instances-1)/p.instances, 1) }

// SetPlan changes the total and the number of instances of a pacer with Config.Part. The error wraps ErrConfig, or
// ErrTooSoon if From lies before the second window after the present one; the old plan then stays.
//
// All instances must change at the same window. If the total falls or the number of instances rises, change the plan of
// the instances first, and the provider's limit or the number of instances afterwards. Otherwise change it last.
//
// A later call replaces a plan that does not hold yet. Requests that wait and cost more than the new part fail with
// ErrNever when their turn comes.
func (p *Pacer) SetPlan(plan Plan) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.readBoth()
	s := &p.core.supply
	if s.part == nil {
		return fmt.Errorf("%w: the limit is not divided, because Config.Part is nil", ErrConfig)
	}
	period := s.limit.Period
	err := Limit{plan.Total, period}.check()
	if plan.Instances < 1 || plan.Instances > MaxInstances {
		err = errors.Join(err, fmt.Errorf("%w: %d instances are not within 1..%d", ErrConfig, plan.Instances,
			MaxInstances))
	}
	if err != nil {
		return err
	}
	from := floorDiv(now.Wall, period) + 2
	if !plan.From.IsZero() {
		window := floorDiv(time.Duration(plan.From.UnixNano())+period-1, period)
		if window < from {
			return fmt.Errorf("%w: from window %d on, and the earliest possible one is %d", ErrTooSoon, window, from)
		}
		from = window
	}
	s.part.next, s.part.from = plan, from
	return nil
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

// FollowPlan reads a plan at once and then after each interval, and calls SetPlan whenever it has changed, until ctx
// ends. Read may be PlanFile, or a call to whatever program keeps the plan. Errors of read and SetPlan are passed to
// failed, and the plan stays as it was.
//
// Instances may read a changed plan in different windows, so a plan without a From does not hold for all from the same
// window on. Give it a From at least three intervals ahead, and two windows.
func (p *Pacer) FollowPlan(ctx context.Context, interval time.Duration, read func(context.Context) (Plan, error),
	failed func(error),
) {
	var latest Plan
	for {
		plan, err := read(ctx)
		same := plan.Total == latest.Total && plan.Instances == latest.Instances && plan.From.Equal(latest.From)
		if err == nil && !same {
			if err = p.SetPlan(plan); err == nil {
				latest = plan
			}
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
