// Package balancer decides what share of each limit a cell has. It is the only writer of the shares. It carries out the
// wishes that operators write to the control table of the cells, by the rules of package shares.
//
// # The table
//
//	key              body                                                     written by
//	a cell's id      {"id", "request": shares.Request, …}: the newest wish    admin
//	pin.…            the same, with a request of kind place: a tenant's pin   admin, together with the tenant
//	events.SharesKey shares.State                                             this package only
//	placed.…         shares.Placement: where a tenant is served               this package only
//	ack.…            [shares.Ack]: what a cell has heard of last              each cell's applier, its own only
//	pace.…           a pace plan, which this package does not read            admin
//
// Cells receive the state and the placements like any other item: the balancer publishes what the stream brings first,
// see [Config.Publish].
//
// # How it works
//
// The balancer is called for records of the stream, which include those of its own writes, and on a schedule. Each call
// does the same. It reads the state, then all wishes and acknowledgements, and writes the next state under the
// condition that nobody else has written it meanwhile. It therefore does not matter which records arrive, how often, in
// which order, or whether they can be read. If two balancers run at once, one of them finds that the state has changed,
// and starts again. The state is read first, so the wishes are at least as new as those from which the state was made.
//
// A wish is the desired state of a cell or of a tenant's pin. It stays until the actual state matches it. A cell that
// is to be removed is drained first. A pin waits until the cells that it names serve. The last cell that serves is
// drained only when another cell serves. A wish that is replaced before the balancer reads it is never carried out.
//
// A tenant's placement is an item of its own, so the size of the state does not bound the number of pins. It is written
// when its transition is in the growth phase, before that phase can end. One transition takes [shares.MaxPlaced]
// placements and lasts about half a minute, so 10,000 new pins take an hour and a half. Each run reads the whole table:
// 10,000 pins cost about 1,500 read units.
//
// A tenant's document names its cells, too, but the balancer does not read it: a third reader of the tenants' stream
// would throttle the other two. Admin writes the pin together with the tenant, and copies into it what decides which
// limits the tenant has for itself.
//
// # Limits that are too small
//
// Some limits cannot be divided between the cells, because they are too small ([shares.NeedsHome]). Such a limit is
// homed: the tenant's home cell counts it, and every cell asks that cell. Limits of plans are homed by the transition
// that makes them too small. Limits of one tenant, because of an override or because few cells serve the tenant, are
// homed by its placement. Each run determines them for the cells that serve and for the cells that are asked for, so
// that a join and the limits that it makes too small are one transition, for up to [shares.MaxPlaced] tenants. Further
// tenants follow in the next transitions. Until then, no limit is exceeded, but costs above a cell's share are denied.
// For a limit with a boost, the lower of the amounts with and without the boost decides, so that the end of the boost
// changes nothing. If the plan or override of a limit cannot be read, the limit stays where it is.
//
// # Items that cannot be read
//
// If there is no placement, the default applies: every cell serves the tenant. A placement that cannot be read is not
// absent. It may have a newer layout, have been written outside Sluice, or have been deleted, and the cells still grant
// by the version before. Nothing therefore changes for its tenant: no request about the tenant is carried out until the
// item can be read again. All other tenants and cells proceed. Each run logs the item and counts it in shares_unread.
// The state has the placements of the current transition. If such a placement becomes unreadable, it is written again
// from the state, and the transition proceeds. If the item cannot be overwritten, because the row does not have this
// layout, the growth waits for it.
//
// While a row of the table cannot be read at all and may be a placement, no cell joins, because a cell that joins must
// receive every placement. A state that cannot be read stops all changes. Cells, pins and acknowledgements that cannot
// be read ask for nothing. An item whose hash does not match its fields counts as unreadable.
//
// # Clocks
//
// If the balancer's clock is ahead, growth takes effect later; if it is behind, the balancer waits longer. Neither
// shortens the grace, which is counted from the last acknowledgement by the cell's clock or the balancer's, whichever
// is later.
package balancer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// Actor is the actor of the state and the placements in the audit trail.
const Actor = "sluice balancer"

// attempts is how often one run tries if others write the state or the table at the same time.
const attempts = 8

// Wish is the part of the body of a cell, or of a tenant's pin, that the balancer reads.
type Wish struct {
	Request shares.Request `json:"request"`

	// Tenant is, in a pin, the id, plan, overrides and boosts of the tenant's document. It is nil if all limits of the
	// tenant are those of its plan.
	Tenant json.RawMessage `json:"tenant,omitempty"`
}

// Config sets up a Balancer. Tables and Meter are required.
type Config struct {
	Tables   control.Tables
	Meter    delivery.Meter
	Settings shares.Settings // determines the grace

	// Publish publishes a batch of the stream to the cells, and returns the answer for Lambda. It is the Invoke method
	// of a *publisher.Publisher. The balancer publishes because the stream of the cells should have only two readers,
	// the balancer and the archiver. If nil, somebody else publishes.
	Publish func(ctx context.Context, event []byte) ([]byte, error)

	Log   *slog.Logger     // default slog.Default()
	Now   func() time.Time // default time.Now
	Spare time.Duration    // the part of a call's time that is reserved for its end; 0 means 2 s
}

// Balancer changes the shares. It is safe for concurrent use, by any number of processes. Make it with New.
type Balancer struct{ c Config }

// New makes a balancer.
func New(c Config) *Balancer {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Spare == 0 {
		c.Spare = 2 * time.Second
	}
	return &Balancer{c}
}

// Result says what a run found and did.
type Result struct {
	Epoch   int64 // 0 if there is no cell yet
	Phase   shares.Phase
	Cells   int       // cells that serve
	Awaited []string  // cells that have not acknowledged
	Changed bool      // the state was written
	Wake    time.Time // when the next step is due even if nothing happens; zero if never
	Unread  int       // items of the table that cannot be read, or are not valid
}

// errTableChanged says that others changed the table of cells during a run.
var errTableChanged = errors.New("other writers changed the table of cells at the same time")

// Run reads the table once and does what is due. The error says what could not be read or written: run again. What was
// written before an error is consistent.
func (b *Balancer) Run(ctx context.Context) (r Result, err error) {
	for range attempts {
		if r, err = b.attempt(ctx); !errors.Is(err, errTableChanged) {
			break
		}
	}
	if err != nil {
		return r, fmt.Errorf("balancer: %w", err)
	}
	b.c.Meter.Count("active_cell_count", int64(r.Cells))
	b.c.Meter.Count("shares_awaited", int64(len(r.Awaited)))
	b.c.Meter.Count("shares_unread", int64(r.Unread))
	return r, nil
}

// attempt is one attempt of Run: it reads the state and the tables, and writes the next state if it differs.
func (b *Balancer) attempt(ctx context.Context) (Result, error) {
	state, version, err := b.readState(ctx)
	if err != nil {
		return Result{}, err
	}
	t, err := b.readTable(ctx)
	if err != nil {
		return Result{}, err
	}
	growthWaits, err := b.writePlacements(ctx, state, version, t)
	if err != nil {
		return Result{}, err
	}
	if growthWaits {
		return resultOf(state, t), nil
	}
	in := shares.Input{Acks: t.acks}
	if state.Phase != shares.Shrink { // no transition can begin in a shrink, so pins wait
		plans, whole, err := b.plans(ctx)
		if err != nil {
			return Result{}, err
		}
		if whole {
			in.Limits = limitsOf(plans)
		}
		b.setHomed(ctx, state, t, plans)
	} else {
		t.pins = nil
	}
	if in.Requests, err = b.requests(ctx, state, t); err != nil {
		return Result{}, err
	}
	if in.Placements, err = b.readablePlacements(ctx, t, state.Queue, in.Requests); err != nil {
		return Result{}, err
	}
	now := b.c.Now()
	next, out := state.Step(b.c.Settings, in, now)
	b.logOutput(ctx, &out)
	r := resultOf(&next, t)
	r.Wake = out.Wake
	isFirstAndEmpty := version == 0 && next.Epoch == 0 && len(next.Queue) == 0
	if equalStates(state, &next) || isFirstAndEmpty {
		return r, nil
	}
	if err := b.writeState(ctx, &next, version, reason(state, &next), now); err != nil {
		return Result{}, err
	}
	r.Changed = true
	if out.Publish != nil {
		b.c.Log.InfoContext(ctx, "the shares change", "epoch", next.Epoch, "phase", next.Phase, "awaited",
			strings.Join(r.Awaited, " "))
		b.c.Meter.Count("shares_changes", 1)
	}
	return r, nil
}

// resultOf returns the result of a run that read this state and table, and wrote nothing.
func resultOf(s *shares.State, t *table) Result {
	r := Result{Epoch: s.Epoch, Phase: s.Phase, Awaited: s.Awaited(), Unread: t.unread}
	for i := range s.Members {
		if s.Members[i].Weight > 0 {
			r.Cells++
		}
	}
	return r
}

// readState returns the stored state and its version, or version 0 if there is none. A state that cannot be read is
// never overwritten.
func (b *Balancer) readState(ctx context.Context) (*shares.State, int64, error) {
	item, err := b.c.Tables.Get(ctx, control.Cells, events.SharesKey)
	switch {
	case errors.Is(err, control.ErrNotFound):
		return &shares.State{}, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("read the shares: %w", err)
	case item.Deleted:
		return nil, 0, errors.New("the shares were deleted, so nobody knows what each cell may grant: write " +
			"their last version again")
	}
	if err := item.Verify(); err != nil {
		return nil, 0, fmt.Errorf("read the shares: %w; write their last version in the archive again", err)
	}
	s, err := shares.DecodeState(item.Body)
	if err != nil {
		return nil, 0, fmt.Errorf("read the shares: version %d: %w", item.Version, err)
	}
	return s, item.Version, nil
}

func (b *Balancer) writeState(ctx context.Context, next *shares.State, version int64, why string, now time.Time) error {
	body, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("write the shares: %w", err)
	}
	_, err = b.c.Tables.Put(ctx, control.Change{
		Table: control.Cells, Key: events.SharesKey, Expect: version, Body: body, Actor: Actor, Reason: why, Now: now,
	})
	if errors.Is(err, control.ErrConflict) {
		return fmt.Errorf("%w: %w", errTableChanged, err)
	}
	if err != nil {
		return fmt.Errorf("write the shares: %w", err)
	}
	return nil
}

// writePlacements writes the placements of a transition in its growth phase. It does so before that phase can end,
// because the next document does not have them. It reports whether the growth waits, because the row of a placement
// cannot be overwritten. version is that of the item of s.
func (b *Balancer) writePlacements(
	ctx context.Context, s *shares.State, version int64, t *table,
) (growthWaits bool, err error) {
	if s.Phase != shares.Grow {
		return false, nil
	}
	for i := range s.Transition.Placements {
		p := &s.Transition.Placements[i]
		current := t.placements[p.Tenant]
		if current.placement != nil && epochOf(current.placement) >= epochOf(p) {
			continue
		}
		key := shares.PlacementKey(p.Tenant)
		if unreadableVersion, ok := t.unreadable[key]; ok {
			// A placement that another balancer wrote for a later transition must not be overwritten. The item was
			// read after the state. If the state still has the same version, there was no later transition when
			// the item was read.
			if _, newest, err := b.readState(ctx); err != nil || newest != version {
				return false, errors.Join(errTableChanged, err)
			}
			current.version = unreadableVersion
		}
		err := b.writePlacement(ctx, p, key, current.version, s.Epoch)
		if errors.Is(err, control.ErrBadItem) {
			growthWaits = true
			b.c.Log.ErrorContext(ctx,
				"the growth of the shares waits for a placement whose item cannot be overwritten: repair the item",
				"tenant", fmt.Sprintf("%q", p.Tenant), "epoch", s.Epoch, "error", err)
			continue
		}
		if err != nil {
			return false, err
		}
		t.placements[p.Tenant] = storedPlacement{p, current.version + 1} // a write makes the next version
		delete(t.unreadable, key)
	}
	return growthWaits, nil
}

// writePlacement writes a placement over the given version of its item.
func (b *Balancer) writePlacement(ctx context.Context, p *shares.Placement, key string, version, epoch int64) error {
	body, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("write a placement: %w", err)
	}
	_, err = b.c.Tables.Put(ctx, control.Change{
		Table: control.Cells, Key: key, Expect: version, Body: body, Actor: Actor,
		Reason: fmt.Sprintf("epoch %d", epoch), Now: b.c.Now(),
	})
	if errors.Is(err, control.ErrConflict) {
		return fmt.Errorf("%w: %w", errTableChanged, err)
	}
	if err != nil {
		return fmt.Errorf("write a placement: %w", err)
	}
	return nil
}

func epochOf(p *shares.Placement) int64 { return p.Generations[len(p.Generations)-1].Epoch }

// plans returns all plans by id. whole is false if a plan cannot be read; the homed limits of plans then stay as they
// are.
func (b *Balancer) plans(ctx context.Context) (plans map[string]*plan.Plan, whole bool, err error) {
	plans, whole = map[string]*plan.Plan{}, true
	for item, err := range control.All(ctx, b.c.Tables, control.Plans) {
		switch {
		case errors.Is(err, control.ErrBadItem):
			if !control.MayHide(err, isPlan) {
				b.c.Log.ErrorContext(ctx, "an item of the table of plans cannot be read; it is not a plan", "error",
					err)
				continue
			}
			whole = false
			b.c.Log.ErrorContext(ctx, "plans cannot be read; limits stay divided as they are", "error", err)
			continue
		case err != nil:
			return nil, false, fmt.Errorf("read the plans: %w", err)
		case item.Deleted || !isPlan(item.Key):
			continue
		}
		p, err := plan.CompilePlan(plan.Document{Kind: plan.KindPlan, ID: item.Key, Body: item.Body})
		if err = errors.Join(item.Verify(), err); err != nil {
			whole = false
			b.c.Log.ErrorContext(ctx, "a plan cannot be read; limits stay divided as they are", "plan", item.Key,
				"error", err)
			continue
		}
		plans[p.ID] = p
	}
	return plans, whole, nil
}

// isPlan reports whether an item of the table of plans is a plan, and not a document of another kind, such as the mark
// of the canary.
func isPlan(key string) bool {
	d, _, _ := events.KindOf(control.Plans, key)
	return d.Kind == plan.KindPlan
}

// limitsOf returns all limits of the plans. The result is never nil, because nil means that the limits are not known.
func limitsOf(plans map[string]*plan.Plan) []shares.Limited {
	out := []shares.Limited{}
	for _, p := range plans {
		for _, e := range p.Set().Limits {
			out = append(out, shares.Limited{Plan: p.ID, Limit: e.Limit})
		}
	}
	return out
}

// logOutput logs what an operator should know.
func (b *Balancer) logOutput(ctx context.Context, out *shares.Output) {
	for _, r := range out.Refused {
		b.c.Meter.Count("shares_refused", 1)
		b.c.Log.WarnContext(ctx, "a request about cells is refused", "request", r.ID, "reason", r.Reason)
	}
	if n := len(out.Divided); n > 0 {
		b.c.Log.ErrorContext(ctx, "too many limits are too small to be divided: large costs of some are denied",
			"limits", n,
			"first", out.Divided[0].Plan+"/"+out.Divided[0].Limit)
	}
}

// equalStates reports whether two states have the same stored form.
func equalStates(a, b *shares.State) bool {
	first, errFirst := json.Marshal(a)
	second, errSecond := json.Marshal(b)
	return errFirst == nil && errSecond == nil && bytes.Equal(first, second)
}

// reason returns the reason of a new state for the audit trail.
func reason(before, next *shares.State) string {
	if before.Epoch != next.Epoch || before.Phase != next.Phase {
		return fmt.Sprintf("epoch %d, %s", next.Epoch, next.Phase)
	}
	if t, u := before.Transition, next.Transition; t != nil && u != nil && len(t.Awaiting) > len(u.Awaiting) {
		var acknowledged []string
		for _, cell := range t.Awaiting {
			if !slices.Contains(u.Awaiting, cell) {
				acknowledged = append(acknowledged, cell)
			}
		}
		return cut(fmt.Sprintf("epoch %d, %s: acknowledged by %s", next.Epoch, next.Phase,
			strings.Join(acknowledged, " ")))
	}
	if len(next.Queue) > 0 {
		return fmt.Sprintf("epoch %d, %s: waiting requests: %d", next.Epoch, next.Phase, len(next.Queue))
	}
	return fmt.Sprintf("epoch %d, %s: the shares do not change", next.Epoch, next.Phase)
}

// cut shortens ASCII text to the largest length of a reason.
func cut(s string) string {
	if len(s) > events.MaxTextChars {
		s = s[:events.MaxTextChars-1] + "…"
	}
	return s
}
