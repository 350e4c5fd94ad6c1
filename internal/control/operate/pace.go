package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// A pace plan says how many units of a provider's limit several pacers may use together, and how many pacers divide
// these units. It is an item of the table cells, whose key is shares.PacePrefix and the plan's name. Only pacers read
// it, by calling PacePlan.

// PaceReadEvery is how often pacers read their plan.
const PaceReadEvery = 10 * time.Second

const (
	// paceNotice is the time in which every pacer has read a new plan, even if two of its reads fail.
	paceNotice = 3 * PaceReadEvery

	// paceWindowsLead is the distance, in windows, from the window in which a pacer reads a plan to the first one in
	// which the plan can be in force. Package pacer needs this lead.
	paceWindowsLead = 2

	paceVersion  = 1                    // of the form of a plan's body
	maxPacePlans = 20                   // plans in a body: the one in force and later ones
	maxPaceAhead = 366 * 24 * time.Hour // how far in the future a plan may begin
)

// Bounds of plans. They equal those of package pacer, and a test checks that.
const (
	maxPaceUnits     = 1 << 40
	maxPaceInstances = 1 << 20
	minPacePeriod    = time.Millisecond
	maxPacePeriod    = 366 * 24 * time.Hour
)

// PacePart is a total and the number of instances that divide it. It has the same JSON form as pacer.Plan.
type PacePart struct {
	Total     int64     `json:"total"`            // units in each window
	Instances int64     `json:"instances"`        // pacers that divide the total
	From      time.Time `json:"from"`             // the beginning of the first window in which the plan is in force
	Before    *PacePart `json:"before,omitempty"` // the plan until From; nil if it is no longer needed
}

// PaceDocument is the body of the item of a pace plan.
type PaceDocument struct {
	ID      string `json:"id"`      // the item's key
	Version int    `json:"version"` // 1
	Period  string `json:"period"`  // length of a window, such as 1s
	PacePart
}

// ReadPace decodes the body of a pace plan.
func ReadPace(body []byte) (*PaceDocument, error) {
	var d PaceDocument
	if err := decodeKnown(body, &d); err != nil {
		return nil, fmt.Errorf("not a valid pace plan: %w", err)
	}
	if d.Version != paceVersion {
		return nil, fmt.Errorf("a pace plan of version %d, want %d: use the software that wrote it", d.Version,
			paceVersion)
	}
	return &d, nil
}

// PacePlanRequest sets a pace plan.
type PacePlanRequest struct {
	Name      string     `json:"name"`
	Total     int64      `json:"total"`          // units in each window, 1..2^40
	Period    string     `json:"period"`         // length of a window, 1ms..8784h; stays as it was first set
	Instances int64      `json:"instances"`      // 1..2^20
	From      *time.Time `json:"from,omitempty"` // nil: as early as possible
	Reason    string     `json:"reason"`
	Expect    *int64     `json:"expect,omitempty"`
}

// PaceNameRequest names a pace plan.
type PaceNameRequest struct {
	Name string `json:"name"`
}

// PacePlanResponse is a pace plan, and who set it.
type PacePlanResponse struct {
	Name   string `json:"name"`
	Period string `json:"period"`
	PacePart
	Version   int64     `json:"version"` // of the item
	Actor     string    `json:"actor"`
	Reason    string    `json:"reason"`
	ChangedAt time.Time `json:"changed_at"`
}

// RemovePacePlanRequest removes a pace plan.
type RemovePacePlanRequest struct {
	Name   string `json:"name"`
	Yes    bool   `json:"yes,omitempty"` // pacers that follow the plan may be left without units
	Reason string `json:"reason"`
	Expect *int64 `json:"expect,omitempty"`
}

// SetPacePlan sets a pace plan from a time on. The plan that is in force, and other plans that begin before that time,
// stay in the item; plans that would begin later, or at the same time, are dropped. The time must be so late that all
// pacers read the plan before it. The first plan of a name takes effect at once, because no pacer can have read another
// one. After a removal, pacers may use the removed plan until they have read the new one.
func (s *Control) SetPacePlan(ctx context.Context, actor string, r *PacePlanRequest) (*control.Item, error) {
	key, err := paceKey(r.Name)
	if err != nil {
		return nil, err
	}
	period, err := r.check()
	if err != nil {
		return nil, err
	}
	return s.revise(ctx, actor, r.Reason, r.Expect, control.Cells, key, func(item *control.Item) (any, error) {
		doc := &PaceDocument{ID: key, Version: paceVersion, Period: limit.DurationText(period),
			PacePart: PacePart{Total: r.Total, Instances: r.Instances}}
		now := s.c.Now()
		earliest := windowStart(now, period)
		if item != nil {
			earliest = windowStart(now.Add(paceNotice), period).Add(paceWindowsLead * period)
		}
		if item != nil && !item.Deleted {
			have, err := ReadPace(item.Body)
			if err != nil {
				return nil, Refuse(Internal, "pace plan %q: %v", r.Name, err)
			}
			if have.Period != doc.Period {
				return nil, Refuse(Invalid, "period: %s, but pacers of plan %q count windows of %s: give a plan with "+
					"another period another name", doc.Period, r.Name, have.Period)
			}
			doc.Before = &have.PacePart
		}
		if doc.From, err = paceFrom(r.From, earliest, now, period); err != nil {
			return nil, err
		}
		if doc.Before = doc.Before.until(doc.From, now); doc.Before.count() >= maxPacePlans {
			return nil, Refuse(Invalid, "from: %d plans begin before it, and no more are kept: replace some by a plan "+
				"with an earlier time", maxPacePlans-1)
		}
		return doc, nil
	})
}

// PacePlan returns a pace plan, together with the plans that are in force before it.
func (s *Control) PacePlan(ctx context.Context, _ string, r *PaceNameRequest) (*PacePlanResponse, error) {
	key, err := paceKey(r.Name)
	if err != nil {
		return nil, err
	}
	item, err := s.item(ctx, control.Cells, key)
	if err != nil {
		return nil, err
	}
	if err := livePace(item, r.Name); err != nil {
		return nil, err
	}
	doc, err := ReadPace(item.Body)
	if err != nil {
		return nil, Refuse(Internal, "pace plan %q: %v", r.Name, err)
	}
	return &PacePlanResponse{r.Name, doc.Period, doc.PacePart, item.Version, item.Actor, item.Reason,
		item.ChangedAt}, nil
}

// RemovePacePlan removes a pace plan, together with the plans that are in force before it. Pacers that follow the plan
// get no units from it once they have read that it is gone. Until then they use their parts.
func (s *Control) RemovePacePlan(
	ctx context.Context, actor string, r *RemovePacePlanRequest,
) (*control.Item, error) {
	key, err := paceKey(r.Name)
	if err != nil {
		return nil, err
	}
	return s.revise(ctx, actor, r.Reason, r.Expect, control.Cells, key, func(item *control.Item) (any, error) {
		if err := livePace(item, r.Name); err != nil {
			return nil, err
		}
		if !r.Yes {
			return nil, Refuse(Confirm, "processes that follow pace plan %q would get no units from it, and wait: say "+
				"yes (--yes) if you intend that; nothing was written", r.Name)
		}
		return nil, nil //nolint:nilnil // deletes the item
	})
}

// livePace refuses a plan that does not exist, or was removed.
func livePace(item *control.Item, name string) error {
	switch {
	case item == nil:
		return Refuse(NotFound, "there is no pace plan %q; 'sluice pace-plan list' shows the plans that there are",
			name)
	case item.Deleted:
		return Refuse(NotFound, "there is no pace plan %q: it was removed by %s at %s: %s", name, item.Actor,
			item.ChangedAt.Format(time.RFC3339), item.Reason)
	}
	return nil
}

func paceKey(name string) (string, error) {
	key := shares.PacePrefix + name
	if name == "" || events.CheckKey(control.Cells, key) != nil {
		return "", Refuse(Invalid, "name: %.80q is not the name of a pace plan: want 1 to 59 of A-Z a-z 0-9 "+
			". _ -", name)
	}
	return key, nil
}

// check returns the period.
func (r *PacePlanRequest) check() (time.Duration, error) {
	period, err := time.ParseDuration(r.Period)
	switch {
	case err != nil || period < minPacePeriod || period > maxPacePeriod:
		return 0, Refuse(Invalid, "period: %.40q, want a time from 1ms to 8784h, such as 1s", r.Period)
	case r.Total < 1 || r.Total > maxPaceUnits:
		return 0, Refuse(Invalid, "total: %d, want 1..%d units", r.Total, int64(maxPaceUnits))
	case r.Instances < 1 || r.Instances > maxPaceInstances:
		return 0, Refuse(Invalid, "instances: %d, want 1..%d", r.Instances, maxPaceInstances)
	}
	return period, nil
}

// paceFrom returns when a plan begins: at the first beginning of a window that is not before from, or at the earliest
// possible time if from is nil.
func paceFrom(from *time.Time, earliest, now time.Time, period time.Duration) (time.Time, error) {
	switch {
	case from == nil:
		return earliest, nil
	case from.Before(now):
		return time.Time{}, Refuse(Invalid, "from: %s is in the past", from.UTC().Format(time.RFC3339))
	case from.Before(earliest):
		return time.Time{}, Refuse(Invalid, "from: %s is too soon for pacers that read their plan every %s, "+
			"and use it from the second window on: want %s or later", from.UTC().Format(time.RFC3339Nano),
			PaceReadEvery, earliest.Format(time.RFC3339Nano))
	case from.Sub(earliest) > maxPaceAhead:
		return time.Time{}, Refuse(Invalid, "from: %s is more than 366 days ahead",
			from.UTC().Format(time.RFC3339))
	}
	start := windowStart(*from, period)
	if start.Before(*from) {
		start = start.Add(period)
	}
	return start, nil
}

// windowStart returns the beginning of the window that contains t. Windows are counted from 1970 on.
func windowStart(t time.Time, period time.Duration) time.Time {
	return time.Unix(0, t.UnixNano()-t.UnixNano()%int64(period)).UTC()
}

// until returns a copy of the chain with the plans that begin before from. It drops plans that are no longer in force
// at now.
func (p *PacePart) until(from, now time.Time) *PacePart {
	switch {
	case p == nil:
		return nil
	case !p.From.Before(from):
		return p.Before.until(from, now)
	}
	kept := *p
	if kept.Before = p.Before.until(from, now); !p.From.After(now) {
		kept.Before = nil
	}
	return &kept
}

func (p *PacePart) count() int {
	if p == nil {
		return 0
	}
	return 1 + p.Before.count()
}
