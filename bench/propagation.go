package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/aws/grants"
	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/streams/applier"
	"github.com/sluicelimits/sluice/streams/delivery"
	"github.com/sluicelimits/sluice/streams/publisher"
	"github.com/sluicelimits/sluice/streams/reconcile"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

// The load of propagationFigure.
const (
	burstCells     = 3
	burstOperators = 10                    // operators that write at the same time
	requestPause   = 20 * time.Millisecond // after a cell's requests for all tenants whose change is not in force yet
	burstThreshold = 77                    // the limit that the burst gives to tenants, and that none has before
)

// The assumed times of Lambda, SNS and DynamoDB in the same region.
const (
	streamPolls  = 250 * time.Millisecond // how often Lambda polls a stream: four times a second, by its documentation
	publishDelay = 20 * time.Millisecond  // how long a publish takes
	readDelay    = 5 * time.Millisecond
	writeDelay   = 25 * time.Millisecond // every write is a transaction
)

// plane is a control plane in this process: the control tables, an admin service, and cells. It brings changes to the
// cells as the deployed event sources do, with the batches and windows with which the functions are deployed. Lambda
// polls a stream and calls the publisher. The publisher publishes to a topic, which has a queue for each cell. Lambda
// calls the applier of a cell with the messages of its queue.
type plane struct {
	tables      *embedded.Tables
	operator    *client.Client
	publisher   *publisher.Publisher
	stream      grants.Streams
	queue       grants.Queue
	cells       []*burstCell
	meter       streamstest.Meter
	deadLetters streamstest.Keeper

	mu       sync.Mutex
	messages int
	stops    []func() error
}

var quiet = slog.New(slog.DiscardHandler)

func tenantName(i int) string { return fmt.Sprintf("tenant-%05d", i) }

// newPlane returns a control plane with the given number of tenants, and with cells that have their configuration.
func newPlane(dir string, tenants int) (p *plane, err error) {
	publishes, hasPublisher := grants.Of("publisher")
	applies, hasApplier := grants.Of("applier")
	if !hasPublisher || !hasApplier || publishes.Streams == nil || applies.Queue == nil {
		return nil, errors.New("package grants has no stream for the publisher, or no queue for the applier")
	}
	p = &plane{stream: *publishes.Streams, queue: *applies.Queue}
	if p.tables, err = embedded.Open(filepath.Join(dir, "control")); err != nil {
		return nil, err
	}
	p.stops = append(p.stops, p.tables.Close)
	if err = p.serve(); err == nil {
		err = p.fill(tenants)
	}
	if err == nil {
		p.publisher = publisher.New(publisher.Config{Topic: p, Keep: &p.deadLetters, Meter: &p.meter, Log: quiet})
	}
	for i := 0; i < burstCells && err == nil; i++ {
		err = p.add(fmt.Sprintf("cell-%d", i+1))
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// serve starts the admin service and makes its client.
func (p *plane) serve() (err error) {
	s := operate.NewControl(operate.ControlConfig{Tables: p.tables, Log: quiet})
	server := httptest.NewServer(operate.Local(s.Mux(), "ann@local"))
	p.stops = append(p.stops, func() error { server.Close(); return nil })
	p.operator, err = client.New(server.URL, nil)
	return err
}

// fill does what `sluice plan apply` does, with a plans file of tenants on one plan.
func (p *plane) fill(tenants int) error {
	var b strings.Builder
	b.WriteString("plans: [ { id: pro, limits: [ { id: all, tiers: [ { period: 1s, threshold: 1 } ] } ] } ]\n")
	b.WriteString("tenants:\n")
	for i := range tenants {
		fmt.Fprintf(&b, "  - { id: %s, plan: pro }\n", tenantName(i))
	}
	file, err := plan.ReadDraft(time.Now(), configyaml.Source("plans.yaml", []byte(b.String())))
	if err != nil {
		return err
	}
	diff, err := client.Compare(context.Background(), p.operator, file)
	if err != nil {
		return err
	}
	r, err := diff.Apply(context.Background(), p.operator, "measured", true)
	if err == nil && r.Written != tenants+1 {
		err = fmt.Errorf("applying the plans file wrote %d documents, want %d: %q", r.Written, tenants+1, diff.Problems)
	}
	return err
}

// add adds a cell with a table in memory that is as slow as DynamoDB, and copies the control tables there.
func (p *plane) add(id string) error {
	memory := table.NewMemory(0)
	c := &burstCell{table: slowTable{memory}, messages: make(chan delivery.Message, 10_000),
		pending: map[string]time.Time{}}
	p.cells = append(p.cells, c)
	r := reconcile.New(reconcile.Config{Tables: p.tables, Store: c.table, Meter: &p.meter, Log: quiet})
	switch result, err := r.Run(context.Background()); {
	case err != nil:
		return fmt.Errorf("copy the control tables to %s: %w", id, err)
	case !result.Finished:
		return fmt.Errorf("copy the control tables to %s: the run did not finish: %+v", id, result)
	}
	c.applier = applier.New(applier.Config{Cell: id, Tables: p.tables, Store: c.table, Keep: &p.deadLetters,
		Meter: &p.meter, Log: quiet})
	return nil
}

func (p *plane) close() (err error) {
	for _, stop := range slices.Backward(p.stops) {
		err = errors.Join(err, stop())
	}
	return err
}

// Publish implements [publisher.Topic].
func (p *plane) Publish(_ context.Context, messages []events.Message) []error {
	<-time.After(publishDelay)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range messages {
		p.messages++
		for _, c := range p.cells {
			c.messages <- delivery.Message{ID: strconv.Itoa(p.messages), Body: m.Body}
		}
	}
	return nil
}

// run brings the changes that follow the position after to the cells, until ctx ends.
func (p *plane) run(ctx context.Context, after string) error {
	var all sync.WaitGroup
	defer all.Wait()
	for _, c := range p.cells {
		all.Go(func() { c.apply(ctx, &p.queue) })
	}
	for ctx.Err() == nil {
		records, err := p.tables.Read(ctx, after, p.stream.Batch)
		if err == nil && len(records) > 0 {
			var done int
			if done, err = p.publisher.Handle(ctx, records); done > 0 {
				after = records[done-1].Sequence
			}
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		if len(records) < p.stream.Batch { // otherwise there may be more
			select {
			case <-ctx.Done():
			case <-time.After(streamPolls):
			}
		}
	}
	return nil
}

// end returns the position in the feed after everything that was written so far.
func (p *plane) end(ctx context.Context) (after string, err error) {
	for {
		records, err := p.tables.Read(ctx, after, control.MaxPage)
		if err != nil || len(records) == 0 {
			return after, err
		}
		after = records[len(records)-1].Sequence
	}
}

// slowTable is a cell's table whose calls take the times that are assumed for DynamoDB.
type slowTable struct{ table.Store }

// Head implements [table.Table].
func (s slowTable) Head(ctx context.Context) (table.Head, error) {
	<-time.After(readDelay)
	return s.Store.Head(ctx)
}

// Log implements [table.Table].
func (s slowTable) Log(ctx context.Context, after, upTo int64) ([]table.Entry, error) {
	<-time.After(readDelay)
	return s.Store.Log(ctx, after, upTo)
}

// Get implements [table.Table].
func (s slowTable) Get(ctx context.Context, refs ...table.Ref) ([]table.Document, error) {
	<-time.After(readDelay)
	return s.Store.Get(ctx, refs...)
}

// Commit implements [table.Store].
func (s slowTable) Commit(ctx context.Context, step table.Step) error {
	<-time.After(writeDelay)
	return s.Store.Commit(ctx, step)
}

// burstCell is a cell: its table, its queue with the applier that gets its messages, and the tenants whose change it
// does not enforce yet.
type burstCell struct {
	table    slowTable
	applier  *applier.Applier
	messages chan delivery.Message

	mu      sync.Mutex
	pending map[string]time.Time // when each change began
	took    []float64            // s
}

// apply calls the applier with batches of messages: those that the queue gets within a window.
func (c *burstCell) apply(ctx context.Context, queue *grants.Queue) {
	var calls sync.WaitGroup
	defer calls.Wait()
	slots := make(chan struct{}, queue.MaxConcurrent)
	for {
		var batch []delivery.Message
		select {
		case <-ctx.Done():
			return
		case m := <-c.messages:
			batch = append(batch, m)
		}
		for over := time.After(queue.Window); over != nil && len(batch) < queue.Batch; {
			select {
			case m := <-c.messages:
				batch = append(batch, m)
			case <-over:
				over = nil
			}
		}
		slots <- struct{}{}
		calls.Go(func() {
			defer func() { <-slots }()
			failed, _ := c.applier.Handle(ctx, batch) // messages that failed are delivered again
			for _, m := range batch {
				if slices.Contains(failed, m.ID) {
					c.messages <- m
				}
			}
		})
	}
}

// enforces reports whether a cell's configuration has the change that the burst made to a tenant: one limit, with the
// threshold burstThreshold.
func enforces(c authorizer.Configuration, tenant string) (bool, error) {
	t, err := c.Tenant(context.Background(), tenant)
	if err != nil {
		return false, fmt.Errorf("read tenant %s in its cell: %w", tenant, err)
	}
	if t == nil {
		return false, fmt.Errorf("tenant %s is not in the configuration of its cell", tenant)
	}
	limits := t.Limits(time.Now()).Limits
	return len(limits) == 1 && limits[0].Limit.Tiers[0].Threshold == burstThreshold, nil
}

// follow makes requests as a function of the cell does, until the given number of changes is in force. It calls ready
// when it has read all tenants. From then on the reader has them in memory, and finds changes only by its polls.
func (c *burstCell) follow(ctx context.Context, changes int, ready func()) error {
	r, err := config.New(config.Config{
		// long timeouts, because a slow answer only means that the machine is busy
		Table: c.table, Timeout: time.Second, FirstTimeout: patient, Log: quiet,
	})
	if err == nil {
		err = r.Load(ctx, time.Now())
	}
	if err != nil {
		return err
	}
	var tenants []string
	for i := range changes {
		tenants = append(tenants, tenantName(i))
	}
	inForce, err := c.requests(r, tenants)
	if err == nil && len(inForce) > 0 {
		err = fmt.Errorf("%d changes are in force before the burst", len(inForce))
	}
	if err != nil {
		return err
	}
	ready()
	for len(c.took) < changes {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d changes are in force: %w", len(c.took), changes, ctx.Err())
		case <-time.After(requestPause):
		}
		c.mu.Lock()
		pending := slices.Collect(maps.Keys(c.pending))
		c.mu.Unlock()
		inForce, err := c.requests(r, pending)
		if err != nil {
			return err
		}
		c.mu.Lock()
		for tenant, at := range inForce {
			c.took = append(c.took, at.Sub(c.pending[tenant]).Seconds())
			delete(c.pending, tenant)
		}
		c.mu.Unlock()
	}
	return nil
}

// requests makes a request of each tenant, all concurrently. For each tenant whose change is in force, it returns the
// time at which the request found this.
func (c *burstCell) requests(r *config.Reader, tenants []string) (inForce map[string]time.Time, err error) {
	view, join := r.Begin(context.Background(), time.Now())
	inForce = map[string]time.Time{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, tenant := range tenants {
		all.Go(func() {
			changed, failed := enforces(view, tenant)
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				err = failed
			} else if changed {
				inForce[tenant] = time.Now()
			}
		})
	}
	all.Wait()
	if join != nil { // the reader's poll, which the request has begun
		join()
	}
	return inForce, err
}

// change changes a tenant, as an operator does.
func (p *plane) change(ctx context.Context, tenant string) error {
	at := time.Now()
	for _, c := range p.cells {
		c.mu.Lock()
		c.pending[tenant] = at
		c.mu.Unlock()
	}
	_, err := client.Do(ctx, p.operator, operate.SetTenant, &operate.SetTenantRequest{
		Tenant: tenant, Reason: "measured",
		Overrides: []json.RawMessage{fmt.Appendf(nil,
			`{"id":"all","tiers":[{"period":"1s","threshold":%d}]}`, burstThreshold)},
	})
	return err
}

// burst changes tenants, and waits until all changes are in force. It returns how long each change took in each cell,
// from before it is written until a request is decided by it, in s.
func (p *plane) burst(changes int) (took []float64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*patient)
	defer cancel()
	errs := make(chan error, 1+len(p.cells)+burstOperators)
	var background, cells, ready, writers sync.WaitGroup
	begin := func(group *sync.WaitGroup, do func() error) {
		group.Go(func() {
			if err := do(); err != nil {
				cancel()
				errs <- err
			}
		})
	}
	after, err := p.end(ctx)
	if err != nil {
		return nil, err
	}
	begin(&background, func() error { return p.run(ctx, after) })
	for _, c := range p.cells {
		ready.Add(1)
		done := sync.OnceFunc(ready.Done)
		begin(&cells, func() error {
			defer done()
			return c.follow(ctx, changes, done)
		})
	}
	ready.Wait()
	for n := range burstOperators {
		begin(&writers, func() (err error) {
			for i := n; i < changes && err == nil; i += burstOperators {
				err = p.change(ctx, tenantName(i))
			}
			return err
		})
	}
	writers.Wait()
	cells.Wait()
	cancel()
	background.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	for _, c := range p.cells {
		took = append(took, c.took...)
	}
	if dead := len(p.deadLetters.Items()); err == nil && (dead > 0 || p.messages != changes ||
		len(took) != changes*len(p.cells)) {
		err = fmt.Errorf("%d changes gave %d messages, want one for each; %d dead letters, want none; and came into "+
			"force %d times in %d cells", changes, p.messages, dead, len(took), len(p.cells))
	}
	return took, err
}

// propagationFigure measures how long the changes of a burst take to be in force: of these times, the p99.
func propagationFigure(short bool) (r Result, err error) {
	tenants, changes := 10_000, 500
	if short {
		tenants, changes = 500, 100
	}
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return r, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	p, err := newPlane(dir, tenants)
	if err != nil {
		return r, err
	}
	took, err := p.burst(changes)
	if err := errors.Join(err, p.close()); err != nil {
		return r, err
	}
	r.Value = quantile(took, 0.99)
	r.note("in one process, with the deployed batches and windows, and assumed times: a poll of the stream each %s, a "+
		"publish of %s, DynamoDB's reads of %s and transactions of %s: %d changes of tenants in force after %.2f s at "+
		"p50, %.2f s at most; %d publishes, each to every cell", streamPolls, publishDelay, readDelay, writeDelay,
		changes, median(took), slices.Max(took), p.meter.Of("publish_calls"))
	return r, nil
}
