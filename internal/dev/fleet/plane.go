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
// take no time themselves. Modelled is only what lies between them: how long a message takes, and when AWS calls a
// function.
type plane struct {
	run       *run
	folder    string // holds the file of the control tables, and is removed at the end
	tables    *embedded.Tables
	balancer  *balancer.Balancer
	publisher *publisher.Publisher
	random    *rand.Rand
	position  string // of the feed, up to which everything was published
	kept      error  // why a message became a dead letter; nil: none did

	// Before the run begins, time goes by without requests until the shares are steady.
	begun   bool
	before  time.Time            // the time until then
	waiting map[*cell][][]byte   // messages that were not delivered yet
	bodies  map[string][]byte    // of the plans, by id, to write them again after a fault
	plans   map[*tenant]string   // the id of each tenant's plan
	own     map[*tenant][]byte   // the document of a tenant that has limits of its own
	pins    map[*tenant][]string // what the newest pin of a tenant says
	due     bool                 // the balancer is about to be called
	epoch   int64                // of the shares when the run began
}

// What the model takes for what lies between the parts of the control plane.
const (
	// messageDelay is the longest time that a message takes from a control table to a cell's applier, or from a write
	// of the table of cells to the balancer. Each takes a random time, at least a tenth of this. Assumed: DynamoDB's
	// stream, SNS and SQS together.
	messageDelay = time.Second

	// balancerSchedule is how often the balancer is called without a record of the stream, and balancerWaits is how
	// long such a call waits at most for the end of a grace: the function's timeout (docs/functions.md), of which the
	// balancer keeps 2 s.
	balancerSchedule = time.Minute
	balancerWaits    = 58 * time.Second

	// followEvery is how often an instance of serve asks whether its copy of the configuration is due, as cmd/sluice
	// does. The copy then asks the cell's table once in cellconfig.PollEvery.
	followEvery = cellconfig.PollEvery / 2

	// restartAfter is how long an instance takes to be started again, if it ended because it could not read its
	// configuration.
	restartAfter = time.Second
)

// configBytes bounds what the copies of the configuration of all processes hold together, by their own estimate.
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
	return p, errors.Join(err, p.carry())
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
	p.kept = fmt.Errorf("a message of the simulated control plane became a dead letter of the %s: %s", i.By, i.Reason)
	return nil
}

func (p *plane) now() time.Time {
	if p.begun {
		return p.run.timeAt(p.run.now)
	}
	return p.before
}

// writeTenants writes the documents of the plans and tenants. Those of a made-up tenant are a plan for each number of
// units, with one limit.
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

// place says where a tenant is served from the beginning on: every PinEvery-th is pinned, in turn, to one cell or to
// two. The placement is written as the balancer would have written it long ago, since it makes only a few placements in
// each transition.
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
	body, _ = json.Marshal(map[string]any{"id": id, "limits": []any{rule}}) // texts and numbers can be written
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
	if c.heard, err = acknowledge.New(acknowledge.Config{Cell: c.name(), Tables: p.tables, Store: c.table,
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

// state returns the shares as the balancer has them.
func (p *plane) state() (*shares.State, error) {
	item, err := p.tables.Get(context.Background(), control.Cells, events.SharesKey)
	if err != nil {
		return nil, err
	}
	return shares.DecodeState(item.Body)
}

// report says what became of each cell.
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

// settle lets time go by before the run, until the shares are steady: limits that are too small to be divided get their
// home cells. What is not steady by then goes on in the run.
func (p *plane) settle() error {
	defer func() { p.begun = true }()
	for p.before.Before(epoch.Add(-time.Second)) {
		if err := context.Cause(p.run.ctx); err != nil {
			return fmt.Errorf("interrupted before the run began: %w", err)
		}
		p.before = p.before.Add(time.Second)
		result, err := p.balancer.Run(context.Background())
		if err == nil {
			err = p.carry()
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
		p.balance(balancerWaits)
	}
	p.run.after(time.Duration(p.random.Int64N(int64(balancerSchedule))), tick)
	return nil
}

// do makes a change, and ends the run if it fails.
func (p *plane) do(change func() error) {
	if p.run.draining {
		return
	}
	err := change()
	if err == nil {
		err = p.carry()
	}
	if err != nil && p.run.failed == nil {
		p.run.failed = fmt.Errorf("the control plane: %w", err)
	}
}

// carry publishes what was written since the last call, and lets the balancer be called if the table of cells changed.
func (p *plane) carry() error {
	ctx := context.Background()
	for {
		records, err := p.tables.Read(ctx, p.position, control.MaxPage)
		if err != nil || len(records) == 0 {
			return errors.Join(err, p.kept)
		}
		p.position = records[len(records)-1].Sequence
		if _, err := p.publisher.Handle(ctx, records); err != nil {
			return err
		}
		for i := range records {
			if rec := records[i].Record; p.begun && rec != nil && rec.New.Table == control.Cells && !p.due {
				p.due = true
				p.run.after(p.delay(), func() {
					p.due = false
					p.balance(0)
				})
			}
		}
	}
}

// balance calls the balancer, and again at the end of a grace that comes within a time.
func (p *plane) balance(waits time.Duration) {
	p.do(func() error {
		result, err := p.balancer.Run(context.Background())
		if left := result.Wake.Sub(p.now()); err == nil && !result.Wake.IsZero() && left < waits {
			p.run.after(max(left, 0), func() { p.balance(waits - left) })
		}
		return err
	})
}

func (p *plane) delay() time.Duration {
	return messageDelay/10 + time.Duration(p.random.Int64N(int64(messageDelay-messageDelay/10)))
}

// Publish implements [publisher.Topic]: each cell that runs gets the messages.
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

// deliver gives messages to the function behind a cell's queue. If they could not be applied, they are delivered again
// when the applier says. receives counts the deliveries, this one included.
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
		if err := c.heard.Prepare(ctx); err != nil {
			return err
		}
	}
	if _, err := c.applier.Handle(ctx, messages); err != nil || !concerned {
		return err
	}
	_, err := c.heard.Run(ctx)
	return err
}

// poison writes documents that do not compile in place of the plan of a tenant, or of all plans if the number is 0; or
// it writes the right ones again.
func (p *plane) poison(number int, poisoned bool) error {
	ids := map[string]bool{}
	for i := range p.run.tenants {
		if t := &p.run.tenants[i]; number == 0 || i == number-1 {
			ids[p.plans[t]] = true
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

// removeCell is what an operator does about a lost cell: the cell is removed by force, and the tenants that were pinned
// to it are pinned to their other cells, or to the cell to which their requests come.
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
		if t.pin = slices.Delete(slices.Clone(t.pin), at, at+1); len(t.pin) == 0 {
			t.pin = []int{p.run.nextCell(lost).number - 1}
		}
		if err := p.pin(t); err != nil {
			return err
		}
	}
	return nil
}
