// Package balancer is the one authority on what share of each limit a cell has: it carries out what operators ask for
// in the control table of the cells, by the rules of package shares.
//
// # The table
//
//	key              body                                                     written by
//	a cell's id      {"id", "request": shares.Request, …}: the newest wish    admin
//	pin.…            the same, with a request of kind place: a tenant's pin   admin, together with the tenant
//	events.SharesKey shares.State                                             this package only
//	placed.…         shares.Placement: where a tenant is served               this package only
//	ack.…            [Ack]: what a cell has heard of last                     each cell's applier, its own only
//
// Cells are told of the state and of placements as of any other item: what the stream brings is published first, see
// [Config.Publish].
//
// # How it works
//
// Whatever wakes it, a record of the stream, a schedule, its own last write, the balancer does the same: it reads the
// state, then all that is asked for and acknowledged, and writes the state that follows, under the condition that
// nobody else has. So it does not matter which records come, how often, in which order, or whether they can be read;
// and of two balancers at once one finds that the state has moved, and reads again. The state is read first: what is
// asked for is then at least as new as what the state was made of.
//
// A wish is what a cell or a tenant's pin is to be, not an event: it stands until it is so. A cell that is asked to be
// removed is drained first, a pin waits until the cells that it names serve, and a drain of the last cell that serves
// until there is another. Wishes that are replaced before anybody has seen them are never carried out.
//
// A tenant's placement is an item of its own, so the number of pins is not bounded by the size of the state: it is
// written once its transition grows, and before that can end. One transition takes [shares.MaxPlaced] of them, and
// lasts about half a minute, so 10,000 new pins take an hour and a half. Each look reads the whole table: 10,000 pins
// cost some 1,500 read units.
//
// A tenants' document names its cells, too, but is not read here: a third reader of that stream would throttle the
// other two. Admin writes the pin beside it, with what of the document decides which limits the tenant has for itself.
//
// # Limits that are too small
//
// Limits of plans that cannot be divided between the cells ([shares.NeedsHome]) are homed by the transition that makes
// them so: they are counted in the tenant's home cell, which every cell asks, once every cell that serves has
// acknowledged something with software that can ask ([Ack].Asks). A tenant's own, by an override, or since few cells
// serve the tenant, are homed by its placement: at each look they are worked out for the cells that serve and for those
// that are asked for, so that a join and what it makes too small are one transition, up to [shares.MaxPlaced] tenants.
// Those beyond follow in the next ones; until then no limit is passed, but costs above a cell's share are denied. Of a
// boost the least number counts, so that its end moves nothing. A limit whose plan or override cannot be read stays
// where it is.
//
// # Items that cannot be read
//
// A placement that is absent means the default: every cell serves the tenant. One that cannot be read is not absent. It
// may be of a newer layout, written past Sluice, or deleted, and the cells still grant by the one before it. So nothing
// changes for its tenant: no request about the tenant is carried out, until the item can be read again. All other
// tenants and cells go on. Each look logs the item and counts it in shares_unread.
//
// The state has the placements of a transition under way. So a placement that becomes unreadable then is written again
// from the state, and the transition goes on. If the item cannot even be written over, because the row is not of this
// layout, then the growth waits for it.
//
// While a row of the table cannot be read at all and may be a placement, no cell joins: a cell that joins must be told
// every placement, and cannot be. A state that cannot be read stops all changes. Cells, pins and acknowledgements that
// cannot be read ask for nothing. An item whose hash is not that of its fields counts as one that cannot be read.
//
// # Clocks
//
// A clock that is ahead makes what grows count later, and one that is behind waits longer; neither shortens the grace,
// which is counted from the last acknowledgement by the cell's clock or this one's, whichever is later.
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
)

// Actor is who writes the state and placements, in the audit.
const Actor = "sluice balancer"

// attempts bound how often one look begins anew, since others write at the same time.
const attempts = 8

// Ack is the body of a cell's acknowledgement, under [shares.AckKey].
type Ack struct {
	Cell  string       `json:"cell"`
	Epoch int64        `json:"epoch"`
	Phase shares.Phase `json:"phase"`
	AtUS  int64        `json:"at_us"` // by the cell's clock, µs since 1970

	// Asks says that the cell's software can ask another cell for limits too small to be divided: see
	// shares.Generation.Kept.
	Asks bool `json:"asks,omitempty"`
}

// Wish is the part that is read here of the body of a cell, or of a tenant's pin.
type Wish struct {
	Request shares.Request `json:"request"`

	// Tenant is, of a pin, the id, plan, overrides and boosts of the tenant's document; nil where all its limits are
	// its plan's.
	Tenant json.RawMessage `json:"tenant,omitempty"`
}

// Meter counts; a *telemetry.Meter is one.
type Meter interface {
	Count(name string, n int64)
	Took(name string, d time.Duration)
}

// Config sets up a Balancer. Tables and Meter are required.
type Config struct {
	Tables   control.Tables
	Meter    Meter
	Settings shares.Settings // what the grace is made of

	// Publish tells cells what a batch of the stream brings, and answers for Lambda; a *publisher.Publisher's Invoke.
	// The stream of the cells has two readers, this one and the archive, so there is no publisher of its own. nil where
	// somebody else does.
	Publish func(ctx context.Context, event []byte) ([]byte, error)

	Log   *slog.Logger     // default slog.Default()
	Now   func() time.Time // default time.Now
	Spare time.Duration    // of a call's time is left for its end; 0 is 2 s
}

// Balancer changes the shares. It is safe for concurrent use, by any number of processes. Make it with New.
type Balancer struct{ c Config }

// New makes a balancer. The error names the field that is missing.
func New(c Config) (*Balancer, error) {
	switch {
	case c.Tables == nil:
		return nil, errors.New("balancer: Tables is missing")
	case c.Meter == nil:
		return nil, errors.New("balancer: Meter is missing")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Spare == 0 {
		c.Spare = 2 * time.Second
	}
	return &Balancer{c}, nil
}

// Result is what a look came to.
type Result struct {
	Epoch   int64 // 0: there is no cell yet
	Phase   shares.Phase
	Cells   int       // that serve
	Awaited []string  // cells that have not acknowledged
	Changed bool      // the state was written
	Wake    time.Time // when the next step is due though nothing happens; zero: never
	Unread  int       // items of the table that cannot be read, or make no sense
}

// errMoved is a look that others have overtaken.
var errMoved = errors.New("others write at the same time")

// Run looks once and does what is due. The error says what could not be read or written: look again. What was written
// before an error is in order.
func (b *Balancer) Run(ctx context.Context) (r Result, err error) {
	for range attempts {
		if r, err = b.look(ctx); !errors.Is(err, errMoved) {
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

// look is one try of Run.
func (b *Balancer) look(ctx context.Context) (Result, error) {
	state, version, err := b.state(ctx)
	if err != nil {
		return Result{}, err
	}
	t, err := b.table(ctx)
	if err != nil {
		return Result{}, err
	}
	waits, err := b.place(ctx, state, version, t)
	if err != nil {
		return Result{}, err
	}
	if waits {
		return resultOf(state, t), nil
	}
	in := shares.Input{Acks: t.acks, Able: t.able}
	if state.Phase != shares.Shrink { // no transition can begin in a shrink: pins wait
		plans, whole, err := b.plans(ctx)
		if err != nil {
			return Result{}, err
		}
		if whole {
			in.Limits = limitsOf(plans)
		}
		b.home(ctx, state, t, plans)
	} else {
		t.pins = nil
	}
	if in.Requests, err = b.requests(ctx, state, t); err != nil {
		return Result{}, err
	}
	if in.Placements, err = b.known(ctx, t, state.Queue, in.Requests); err != nil {
		return Result{}, err
	}
	now := b.c.Now()
	next, out := state.Step(b.c.Settings, in, now)
	b.tell(ctx, &out)
	r := resultOf(&next, t)
	r.Wake = out.Wake
	if same(state, &next) || (version == 0 && next.Epoch == 0 && len(next.Queue) == 0) {
		return r, nil
	}
	if err := b.write(ctx, &next, version, reason(state, &next), now); err != nil {
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

// resultOf is what a look at a state and the table comes to, if nothing is written.
func resultOf(s *shares.State, t *table) Result {
	r := Result{Epoch: s.Epoch, Phase: s.Phase, Awaited: s.Awaited(), Unread: t.unread}
	for i := range s.Members {
		if s.Members[i].Weight > 0 {
			r.Cells++
		}
	}
	return r
}

// state is the stored state and its version; 0 where there is none. One that cannot be read is never written over.
func (b *Balancer) state(ctx context.Context) (*shares.State, int64, error) {
	item, err := b.c.Tables.Get(ctx, control.Cells, events.SharesKey)
	switch {
	case errors.Is(err, control.ErrNotFound):
		return &shares.State{}, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("read the shares: %w", err)
	case item.Deleted:
		return nil, 0, errors.New("the shares were deleted: what each cell may grant is not known any more; write " +
			"the last version of them again")
	}
	if err := item.Verify(); err != nil {
		return nil, 0, fmt.Errorf("read the shares: %w; write the last version of them in the archive again", err)
	}
	s, err := shares.DecodeState(item.Body)
	if err != nil {
		return nil, 0, fmt.Errorf("read the shares: version %d: %w", item.Version, err)
	}
	return s, item.Version, nil
}

func (b *Balancer) write(ctx context.Context, next *shares.State, version int64, why string, now time.Time) error {
	body, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("write the shares: %w", err)
	}
	_, err = b.c.Tables.Put(ctx, control.Change{
		Table: control.Cells, Key: events.SharesKey, Expect: version, Body: body, Actor: Actor, Reason: why, Now: now,
	})
	if errors.Is(err, control.ErrConflict) {
		return fmt.Errorf("%w: %w", errMoved, err)
	}
	if err != nil {
		return fmt.Errorf("write the shares: %w", err)
	}
	return nil
}

// place stores the placements of a transition that grows: before it can end, and so before a document comes that lacks
// them. It reports whether the growth waits, because the row of a placement cannot be written over.
func (b *Balancer) place(ctx context.Context, s *shares.State, version int64, t *table) (waits bool, err error) {
	if s.Phase != shares.Grow {
		return false, nil
	}
	for i := range s.Transition.Placements {
		p := &s.Transition.Placements[i]
		there := t.placed[p.Tenant]
		if there.placement != nil && epochOf(there.placement) >= epochOf(p) {
			continue
		}
		key := shares.PlacementKey(p.Tenant)
		if unreadable, is := t.unreadable[key]; is {
			// The item was read after the state. It is of no later transition if the state is still the same.
			if _, now, err := b.state(ctx); err != nil || now != version {
				return false, errors.Join(errMoved, err)
			}
			there.version = unreadable
		}
		err := b.store(ctx, p, key, there.version, s.Epoch)
		if errors.Is(err, control.ErrBadItem) {
			waits = true
			b.c.Log.ErrorContext(ctx,
				"the growth of the shares waits for a placement whose item cannot be written over: mend the item",
				"tenant", fmt.Sprintf("%q", p.Tenant), "epoch", s.Epoch, "error", err)
			continue
		}
		if err != nil {
			return false, err
		}
		t.placed[p.Tenant] = stored{p, there.version + 1}
		delete(t.unreadable, key)
	}
	return waits, nil
}

// store writes a placement over a version of its item.
func (b *Balancer) store(ctx context.Context, p *shares.Placement, key string, version, epoch int64) error {
	body, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("write a placement: %w", err)
	}
	_, err = b.c.Tables.Put(ctx, control.Change{
		Table: control.Cells, Key: key, Expect: version, Body: body, Actor: Actor,
		Reason: fmt.Sprintf("epoch %d", epoch), Now: b.c.Now(),
	})
	if errors.Is(err, control.ErrConflict) {
		return fmt.Errorf("%w: %w", errMoved, err)
	}
	if err != nil {
		return fmt.Errorf("write a placement: %w", err)
	}
	return nil
}

func epochOf(p *shares.Placement) int64 { return p.Generations[len(p.Generations)-1].Epoch }

// plans are all plans by id; not whole where one of them cannot be read, so that what is homed of plans stays as it is.
func (b *Balancer) plans(ctx context.Context) (plans map[string]*plan.Plan, whole bool, err error) {
	plans, whole = map[string]*plan.Plan{}, true
	for item, err := range control.All(ctx, b.c.Tables, control.Plans) {
		switch {
		case errors.Is(err, control.ErrBadItem):
			if !hidesPlan(err) {
				b.c.Log.ErrorContext(ctx, "an item of the plans cannot be read; it is no plan", "error", err)
				continue
			}
			whole = false
			b.c.Log.ErrorContext(ctx, "plans cannot be read; limits are divided as they were", "error", err)
			continue
		case err != nil:
			return nil, false, fmt.Errorf("read the plans: %w", err)
		case item.Deleted || item.Key == events.SettingsKey || item.Key == events.CanaryKey:
			continue
		}
		p, err := plan.CompilePlan(plan.Document{Kind: plan.KindPlan, ID: item.Key, Body: item.Body})
		if err = errors.Join(item.Verify(), err); err != nil {
			whole = false
			b.c.Log.ErrorContext(ctx, "a plan cannot be read; limits are divided as they were", "plan", item.Key,
				"error", err)
			continue
		}
		plans[p.ID] = p
	}
	return plans, whole, nil
}

// hidesPlan reports whether what an error of control.Tables.List tells to be unreadable may be a plan. The canary can
// spoil the row of its own mark.
func hidesPlan(err error) bool {
	items, whole := control.BadItems(err)
	return !whole || slices.ContainsFunc(items, func(i *control.BadItemError) bool {
		return i.Key != events.CanaryKey && i.Key != events.SettingsKey
	})
}

func limitsOf(plans map[string]*plan.Plan) []shares.Limited {
	out := []shares.Limited{}
	for _, p := range plans {
		for _, e := range p.Set().Limits {
			out = append(out, shares.Limited{Plan: p.ID, Limit: e.Limit})
		}
	}
	return out
}

// tell logs what an operator has to know.
func (b *Balancer) tell(ctx context.Context, out *shares.Output) {
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

// same reports whether two states are written alike.
func same(a, b *shares.State) bool {
	one, err := json.Marshal(a)
	other, failed := json.Marshal(b)
	return err == nil && failed == nil && bytes.Equal(one, other)
}

// reason says in the audit what a new state comes from.
func reason(before, next *shares.State) string {
	if before.Epoch != next.Epoch || before.Phase != next.Phase {
		return fmt.Sprintf("epoch %d, %s", next.Epoch, next.Phase)
	}
	if t, u := before.Transition, next.Transition; t != nil && u != nil && len(t.Awaiting) > len(u.Awaiting) {
		var heard []string
		for _, cell := range t.Awaiting {
			if !slices.Contains(u.Awaiting, cell) {
				heard = append(heard, cell)
			}
		}
		return cut(fmt.Sprintf("epoch %d, %s: heard %s", next.Epoch, next.Phase, strings.Join(heard, " ")))
	}
	return fmt.Sprintf("epoch %d, %s: %d requests wait", next.Epoch, next.Phase, len(next.Queue))
}

// cut keeps ASCII text within what a reason may have.
func cut(s string) string {
	if len(s) > events.MaxTextChars {
		s = s[:events.MaxTextChars-1] + "…"
	}
	return s
}
