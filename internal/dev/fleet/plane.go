package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig/memtable"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/streams/acknowledge"
	"github.com/sluicelimits/sluice/streams/applier"
	"github.com/sluicelimits/sluice/streams/balancer"
	"github.com/sluicelimits/sluice/streams/deadletter"
	"github.com/sluicelimits/sluice/streams/publisher"
	"github.com/sluicelimits/sluice/streams/reconcile"
	"github.com/sluicelimits/sluice/streams/sqsevent"
)

// plane is the control plane of several cells: the control tables, the balancer, the publisher, and each cell's table
// of configuration with its applier. All of these are the real parts. They are called at times of the simulation, and
// take no virtual time themselves. Only what lies between them is modelled: how long a message takes, and when AWS
// calls a function.
type plane struct {
	run        *run
	folder     string // holds the file of the control tables, and is removed at the end
	tables     *embedded.Tables
	balancer   *balancer.Balancer
	publisher  *publisher.Publisher
	random     *rand.Rand
	position   string // in the feed of the control tables: every record up to it was published
	deadLetter error  // why a message became a dead letter; nil if none did

	// Before the run begins, virtual time passes without requests until the shares are steady: see settle.
	begun  bool      // the run has begun
	before time.Time // the virtual time before the run begins

	waiting     map[*cell][][]byte   // messages from before the run that were not delivered yet
	bodies      map[string][]byte    // plan documents by id, to write them again after a fault
	plans       map[*tenant]string   // the id of each tenant's plan
	own         map[*tenant][]byte   // documents of the tenants that have limits of their own
	pins        map[*tenant][]string // the cells that the newest pin of a tenant names
	balancerDue bool                 // a call of the balancer is scheduled, because the table of cells changed
	epoch       int64                // epoch of the shares when the run began
}

// Assumptions of the model about what lies between the parts of the control plane.
const (
	// messageDelay is the longest time that a message takes from a control table to a cell's applier, or from a write
	// of the table of cells to the balancer. Each message takes a random time, at least a tenth of this. The second is
	// assumed, not measured, for DynamoDB's stream, SNS and SQS together.
	messageDelay = time.Second

	// balancerSchedule is how often the balancer is called by its schedule, without a change of the table of cells.
	// balancerWaits is how long such a call waits at most for the end of a grace: the function's timeout of 60 s
	// (docs/functions.md) less 2 s, which the balancer keeps in reserve.
	balancerSchedule = time.Minute
	balancerWaits    = 58 * time.Second

	// followEvery is how often an instance of serve asks whether its copy of the configuration is due, as cmd/sluice
	// does. The copy then asks the cell's table once in cellconfig.PollEvery.
	followEvery = cellconfig.PollEvery / 2

	// restartAfter is the time from the end of an instance that could not read its configuration until it has been
	// started again. It is assumed.
	restartAfter = time.Second
)

// configBytes bounds the memory of all processes' copies of the configuration together, by the copies' own estimate.
const configBytes = 2 << 30

// newPlane makes the control tables of a scenario, with every plan and tenant and a wish for every cell, and divides
// the limits between the cells. The cells themselves do not exist yet.
func (r *run) newPlane(loads []load) (*plane, error) {
	p := &plane{run: r, random: rand.New(rand.NewPCG(r.seed, 0xce11)), before: epoch.Add(-time.Hour),
		waiting: map[*cell][][]byte{}, bodies: map[string][]byte{}, plans: map[*tenant]string{},
		own: map[*tenant][]byte{}, pins: map[*tenant][]string{}}
	var err error
	if p.folder, err = os.MkdirTemp("", "sluice-fleet-"); err != nil {
		return nil, fmt.Errorf("the control tables: %w", err)
	}
	if p.tables, err = embedded.Open(filepath.Join(p.folder, "control.db")); err != nil {
		return p, err
	}
	p.tables.Unsynced()
	log := slog.New(slog.DiscardHandler)
	settings := r.scenario.shares
	if settings == (shares.Settings{}) {
		settings.Lease = r.scenario.LeaseLife
	}
	if p.balancer, err = balancer.New(balancer.Config{Tables: p.tables, Meter: noMeter{}, Settings: settings, Log: log,
		Now: p.now}); err != nil {
		return p, err
	}
	if p.publisher, err = publisher.New(publisher.Config{Topic: p, Keep: p, Meter: noMeter{}, Log: log,
		Now: p.now}); err != nil {
		return p, err
	}
	if err = p.writeTenants(loads); err != nil {
		return p, err
	}
	for n := range r.scenario.Cells {
		if err = p.wish(shares.Request{Kind: shares.Join, Cell: (&cell{number: n + 1}).name(), Weight: 1}); err != nil {
			return p, err
		}
	}
	_, err = p.balancer.Run(context.Background())
	return p, errors.Join(err, p.publishChanges())
}

// close removes the control tables.
func (p *plane) close() error {
	var err error
	if p.tables != nil {
		err = p.tables.Close()
	}
	return errors.Join(err, os.RemoveAll(p.folder))
}

// noMeter counts nothing.
type noMeter struct{}

func (noMeter) Count(string, int64)        {}
func (noMeter) Took(string, time.Duration) {}

// Keep implements [deadletter.Keeper]. No message of a simulation should become a dead letter.
func (p *plane) Keep(_ context.Context, i deadletter.Item) error {
	p.deadLetter = fmt.Errorf("a message of the simulated control plane became a dead letter of the %s: %s", i.By,
		i.Reason)
	return nil
}

func (p *plane) now() time.Time {
	if p.begun {
		return p.run.timeAt(p.run.now)
	}
	return p.before
}

// writeTenants writes the documents of the plans and tenants. Tenants that are made up, and whose limits admit the same
// number of units, share a plan with this one limit.
func (p *plane) writeTenants(loads []load) error {
	for i := range loads {
		l, t := &loads[i], &p.run.tenants[i]
		if l.document == nil {
			id, body := planOf(l.charges[0].Limit)
			l.planID, l.document = id, fmt.Appendf(nil, `{"id":%q,"plan":%q}`, l.name, id)
			if p.bodies[id] == nil {
				p.bodies[id] = body
			}
		}
		p.plans[t] = l.planID
		if l.own {
			p.own[t] = l.document
		}
	}
	for _, d := range p.run.documents {
		switch d.Kind {
		case plan.KindPlan:
			p.bodies[d.ID] = d.Body
		case plan.KindSettings, plan.KindTenant, plan.KindKey: // tenants are in loads; no request needs the others
		}
	}
	ids := make([]string, 0, len(p.bodies))
	for id := range p.bodies {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if err := p.put(control.Plans, id, p.bodies[id]); err != nil {
			return err
		}
	}
	for i := range loads {
		if err := context.Cause(p.run.ctx); err != nil {
			return fmt.Errorf("interrupted before the run began: %w", err)
		}
		if err := p.put(control.Tenants, loads[i].name, loads[i].document); err != nil {
			return err
		}
		if err := p.place(i); err != nil {
			return err
		}
	}
	return nil
}

// place decides where a tenant is served from the beginning on: every PinEvery-th tenant is pinned, in turn, to one
// cell or to two. place writes the placement itself, because the balancer makes only a few placements in each
// transition and would need a long time for all of them.
func (p *plane) place(number int) error {
	t, s := &p.run.tenants[number], p.run.scenario
	if s.PinEvery > 0 && number%s.PinEvery == 0 {
		turn := number / s.PinEvery
		t.pin = []int{turn % s.Cells}
		if turn/s.Cells%2 == 1 && s.Cells > 1 {
			t.pin = append(t.pin, (turn+1)%s.Cells)
		}
	}
	if t.pin == nil && p.own[t] == nil {
		return nil
	}
	if err := p.pin(t); err != nil || t.pin == nil {
		return err
	}
	body, err := json.Marshal(shares.Placement{Version: shares.Layout, Tenant: t.req.Owner.Name,
		Generations: []shares.Placed{{From: 1, Cells: p.pins[t]}}})
	if err != nil {
		return err
	}
	return p.put(control.Cells, shares.PlacementKey(t.req.Owner.Name), body)
}

// pin writes the wish that a tenant is served by the cells of its pin.
func (p *plane) pin(t *tenant) error {
	var names []string
	for _, n := range t.pin {
		names = append(names, (&cell{number: n + 1}).name())
	}
	p.pins[t] = names
	body, err := json.Marshal(balancer.Wish{Tenant: p.own[t],
		Request: shares.Request{Kind: shares.Place, Tenant: t.req.Owner.Name, Cells: names}})
	if err != nil {
		return err
	}
	return p.put(control.Cells, shares.PinPrefix+strconv.FormatUint(hashName(t.req.Owner.Name), 16), body)
}

// planOf returns the document of a plan with one limit of one tier.
func planOf(l *limit.Limit) (id string, body []byte) {
	t := &l.Tiers[0]
	id = fmt.Sprintf("units-%d", t.Threshold)
	rule := map[string]any{"id": l.ID, "algorithm": t.Algorithm.String(), t.Algorithm.AmountField(): t.Threshold,
		"period": t.Period.String(), "onStoreFailure": "backstop"}
	if t.Algorithm.HasBurst() {
		rule["burst"] = t.Capacity()
	}
	if l.AlignOwner {
		rule["align"] = "tenant"
	}
	body, _ = json.Marshal(map[string]any{"id": id, "limits": []any{rule}}) // strings and numbers always marshal
	return id, body
}

// put writes the next version of an item.
func (p *plane) put(table control.Table, key string, body []byte) error {
	ctx := context.Background()
	item, err := p.tables.Get(ctx, table, key)
	if err != nil && !errors.Is(err, control.ErrNotFound) {
		return err
	}
	_, err = p.tables.Put(ctx, control.Change{Table: table, Key: key, Expect: item.Version, Body: body,
		Actor: "an operator", Reason: "simulated", Now: p.now()})
	return err
}

// wish writes what an operator asks for a cell.
func (p *plane) wish(request shares.Request) error {
	body, err := json.Marshal(balancer.Wish{Request: request})
	if err != nil {
		return err
	}
	return p.put(control.Cells, request.Cell, body)
}

// open makes a cell's table of configuration, and copies everything to it that the control tables have.
func (p *plane) open(c *cell) (err error) {
	log := slog.New(slog.DiscardHandler)
	table, err := memtable.New(0)
	if err != nil {
		return err
	}
	c.table = &configTable{Table: table}
	if c.applier, err = applier.New(applier.Config{Cell: c.name(), Tables: p.tables, Store: c.table, Keep: p,
		Meter: noMeter{}, Log: log, Now: p.now}); err != nil {
		return err
	}
	if c.acknowledger, err = acknowledge.New(acknowledge.Config{Cell: c.name(), Tables: p.tables, Store: c.table,
		Now: p.now}); err != nil {
		return err
	}
	all, err := reconcile.New(reconcile.Config{Tables: p.tables, Store: c.table, Meter: noMeter{}, Log: log,
		Now: p.now})
	if err != nil {
		return err
	}
	result, err := all.Run(context.Background())
	if err == nil && !result.Finished {
		err = errors.New("the first copy of the configuration was not finished")
	}
	return err
}

// state returns the shares that the balancer wrote last.
func (p *plane) state() (*shares.State, error) {
	item, err := p.tables.Get(context.Background(), control.Cells, events.SharesKey)
	if err != nil {
		return nil, err
	}
	return shares.DecodeState(item.Body)
}

// report adds the counts of each cell to a report.
func (p *plane) report(out *Report) error {
	now, err := p.state()
	if err != nil {
		return err
	}
	out.Epochs, out.ShardsNeeded = now.Epoch-p.epoch, 0
	for _, c := range p.run.cells {
		count := CellCount{Name: c.name(), Lost: c.lost, Instances: len(c.live), Allowed: c.allowed, Denied: c.denied}
		own, all := now.Document().View(c.name(), "", nil).Weight()
		if all > 0 {
			count.PartPct = 100 * float64(own) / float64(all)
		}
		for _, s := range c.shards {
			if out.Seconds > 0 {
				count.StoreOps += float64(s.ops) / out.Seconds
			}
		}
		var table *TableUse
		if out.Table != nil {
			table = p.run.tableUse(c.shards, out.Seconds)
		}
		out.ShardsNeeded += p.run.shardsFor(count.StoreOps, table)
		out.Cells = append(out.Cells, count)
	}
	return nil
}

// settle lets virtual time pass before the run until the shares are steady: limits that are too small to be divided get
// their home cells. It ends a second before the run at the latest; what is not finished by then goes on during the run.
func (p *plane) settle() error {
	defer func() { p.begun = true }()
	for p.before.Before(epoch.Add(-time.Second)) {
		if err := context.Cause(p.run.ctx); err != nil {
			return fmt.Errorf("interrupted before the run began: %w", err)
		}
		p.before = p.before.Add(time.Second)
		result, err := p.balancer.Run(context.Background())
		if err == nil {
			err = p.publishChanges()
		}
		if err != nil {
			return err
		}
		delivered := false
		for _, c := range p.run.cells {
			bodies := p.waiting[c]
			delete(p.waiting, c)
			delivered = delivered || len(bodies) > 0
			if err := p.deliver(c, bodies, 1); err != nil {
				return err
			}
		}
		switch {
		case delivered || result.Changed:
		case result.Wake.IsZero():
			return nil
		default:
			p.before = result.Wake
		}
	}
	return nil
}

// begin adds the events of the control plane: the calls of the balancer by its schedule, which begins at a random time.
func (p *plane) begin() error {
	now, err := p.state()
	if err != nil {
		return err
	}
	p.epoch = now.Epoch
	var tick func()
	tick = func() {
		if p.run.draining {
			return
		}
		p.run.after(balancerSchedule, tick)
		p.callBalancer(balancerWaits)
	}
	p.run.after(time.Duration(p.random.Int64N(int64(balancerSchedule))), tick)
	return nil
}

// do makes a change of the control tables and publishes it. If either fails, the run ends.
func (p *plane) do(change func() error) {
	if p.run.draining {
		return
	}
	err := change()
	if err == nil {
		err = p.publishChanges()
	}
	if err != nil && p.run.failed == nil {
		p.run.failed = fmt.Errorf("the control plane: %w", err)
	}
}

// publishChanges publishes what was written to the control tables since the last call. If the table of cells changed,
// it schedules a call of the balancer.
func (p *plane) publishChanges() error {
	ctx := context.Background()
	for {
		records, err := p.tables.Read(ctx, p.position, control.MaxPage)
		if err != nil || len(records) == 0 {
			return errors.Join(err, p.deadLetter)
		}
		p.position = records[len(records)-1].Sequence
		if _, err := p.publisher.Handle(ctx, records); err != nil {
			return err
		}
		for i := range records {
			rec := records[i].Record
			if p.begun && rec != nil && rec.New.Table == control.Cells && !p.balancerDue {
				p.balancerDue = true
				p.run.after(p.delay(), func() {
					p.balancerDue = false
					p.callBalancer(0)
				})
			}
		}
	}
}

// callBalancer calls the balancer. If the balancer waits for a grace that ends within waits, callBalancer calls it
// again at that end.
func (p *plane) callBalancer(waits time.Duration) {
	p.do(func() error {
		result, err := p.balancer.Run(context.Background())
		left := result.Wake.Sub(p.now())
		if err == nil && !result.Wake.IsZero() && left < waits {
			p.run.after(max(left, 0), func() { p.callBalancer(waits - left) })
		}
		return err
	})
}

// delay returns how long a message takes: see messageDelay.
func (p *plane) delay() time.Duration {
	return messageDelay/10 + time.Duration(p.random.Int64N(int64(messageDelay-messageDelay/10)))
}

// Publish implements [publisher.Topic]. Each cell that is not lost gets the messages.
func (p *plane) Publish(_ context.Context, messages []publisher.Message) []error {
	bodies := make([][]byte, len(messages))
	for i := range messages {
		bodies[i] = messages[i].Body
	}
	for _, c := range p.run.cells {
		switch {
		case c.lost:
		case !p.begun:
			p.waiting[c] = append(p.waiting[c], bodies...)
		default:
			p.run.after(p.delay(), func() { p.do(func() error { return p.deliver(c, bodies, 1) }) })
		}
	}
	return nil
}

// deliver gives messages to the function behind a cell's queue. If they cannot be applied because the cell's table is
// away, they are delivered again after applier.RetryAfter. receives counts the deliveries, this one included.
func (p *plane) deliver(c *cell, bodies [][]byte, receives int) error {
	if c.lost || len(bodies) == 0 {
		return nil
	}
	err := p.apply(c, bodies)
	if err != nil && c.table.away {
		p.run.after(applier.RetryAfter(receives, p.random.Float64()), func() {
			p.do(func() error { return p.deliver(c, bodies, receives+1) })
		})
		return nil
	}
	return err
}

// apply does what the function behind a cell's queue does with messages.
func (p *plane) apply(c *cell, bodies [][]byte) error {
	ctx := context.Background()
	messages := make([]sqsevent.Message, len(bodies))
	concerned := false
	for i := range bodies {
		messages[i] = sqsevent.Message{ID: strconv.Itoa(i), Body: bodies[i]}
		concerned = concerned || acknowledge.Concerned(bodies[i])
	}
	if concerned {
		if err := c.acknowledger.Prepare(ctx); err != nil {
			return err
		}
	}
	if _, err := c.applier.Handle(ctx, messages); err != nil || !concerned {
		return err
	}
	_, err := c.acknowledger.Run(ctx)
	return err
}

// poison writes a document that does not compile in place of the plan of a tenant, given by its number from 1, or in
// place of every plan if the number is 0. If poisoned is false, it writes the right documents again.
func (p *plane) poison(number int, poisoned bool) error {
	ids := map[string]bool{}
	for i := range p.run.tenants {
		if number == 0 || i == number-1 {
			ids[p.plans[&p.run.tenants[i]]] = true
		}
	}
	all := make([]string, 0, len(ids))
	for id := range ids {
		all = append(all, id)
	}
	slices.Sort(all)
	for _, id := range all {
		body := p.bodies[id]
		if poisoned {
			body = fmt.Appendf(nil, `{"id":%q,"limits":"not a list"}`, id)
		}
		if err := p.put(control.Plans, id, body); err != nil {
			return err
		}
	}
	return nil
}

// removeCell does what an operator does about a lost cell. It removes the cell by force, and pins the tenants that were
// pinned to it to their other cells, or, if they have no other, to the cell to which their requests come now.
func (p *plane) removeCell(lost *cell) error {
	if err := p.wish(shares.Request{Kind: shares.Force, Cell: lost.name()}); err != nil {
		return err
	}
	for i := range p.run.tenants {
		t := &p.run.tenants[i]
		at := slices.Index(t.pin, lost.number-1)
		if at < 0 {
			continue
		}
		t.pin = slices.Delete(slices.Clone(t.pin), at, at+1)
		if len(t.pin) == 0 {
			t.pin = []int{p.run.nextCell(lost).number - 1}
		}
		if err := p.pin(t); err != nil {
			return err
		}
	}
	return nil
}
