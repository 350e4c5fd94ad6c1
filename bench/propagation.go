package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/control/client"
)

const (
	burstChanges   = 500
	burstOperators = 10                    // operators that write at the same time
	burstRequests  = 20 * time.Millisecond // between two requests of a cell; a request also polls the config table
	burstRate      = 77                    // the tenants' limit after the burst, which no tenant has before it
)

// burst has the measured times and calls of a burst of changes.
type burst struct {
	// took has, for each change and cell, the time from before the change is written until a request is decided by it,
	// in ascending order.
	took      []time.Duration
	lasted    time.Duration // how long writing all changes took
	published int64
	calls     int64 // calls of the topic
	commits   []int64
}

func (b *burst) quantile(q float64) time.Duration {
	return b.took[min(len(b.took)-1, int(math.Ceil(q*float64(len(b.took))))-1)]
}

// watched holds the tenants whose change a cell does not enforce yet, and when each change began.
type watched struct {
	mu      sync.Mutex
	pending map[string]time.Time
	took    []time.Duration
}

func (w *watched) begin(tenant string, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending[tenant] = at
}

// requests makes a request of each tenant whose change is not in force yet, all concurrently.
func (w *watched) requests(r *cellconfig.Reader) error {
	view, join := r.Begin(context.Background(), time.Now())
	w.mu.Lock()
	pending := maps.Clone(w.pending)
	w.mu.Unlock()
	var all sync.WaitGroup
	var failed error
	for tenant, at := range pending {
		all.Go(func() {
			got, err := enforced(view, tenant)
			now := time.Now()
			w.mu.Lock()
			defer w.mu.Unlock()
			if err != nil {
				failed = err
			} else if got == burstRate {
				w.took = append(w.took, now.Sub(at))
				delete(w.pending, tenant)
			}
		})
	}
	all.Wait()
	if join != nil {
		join()
	}
	return failed
}

// follow makes requests until the given number of changes is in force.
func (w *watched) follow(ctx context.Context, r *cellconfig.Reader, changes int) error {
	for tick := time.NewTicker(burstRequests); len(w.took) < changes; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return fmt.Errorf("%d of %d changes are in force: %w", len(w.took), changes, ctx.Err())
		case <-tick.C:
		}
		if err := w.requests(r); err != nil {
			return err
		}
	}
	return nil
}

// readTenants makes a reader read the tenants that will be changed. After that, only the reader's polls find the
// changes.
func readTenants(ctx context.Context, r *cellconfig.Reader, changes int) error {
	view, join := r.Begin(ctx, time.Now())
	if join != nil {
		join()
	}
	for i := range changes {
		got, err := enforced(view, tenantName(i))
		if err != nil {
			return err
		}
		if got == burstRate {
			return fmt.Errorf("%s has the limit %d before the burst", tenantName(i), got)
		}
	}
	return nil
}

// burst changes tenants, and waits until all changes are in force. Several operators change tenants concurrently, each
// with one call for each tenant.
func (p *plane) burst(changes int) (b burst, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*patient)
	defer cancel()
	cells := make([]*watched, len(p.cells))
	failed := make(chan error, len(cells)+burstOperators)
	var all sync.WaitGroup
	for n, c := range p.cells {
		r, err := c.reader()
		if err != nil {
			return b, err
		}
		if err := readTenants(ctx, r, changes); err != nil {
			return b, err
		}
		c.commits.Store(0)
		w := &watched{pending: map[string]time.Time{}}
		cells[n] = w
		all.Go(func() {
			if err := w.follow(ctx, r, changes); err != nil {
				cancel()
				failed <- fmt.Errorf("cell %d: %w", n+1, err)
			}
		})
	}
	events, calls, began := p.meter.Of("events_published"), p.meter.Of("publish_calls"), time.Now()
	var writers sync.WaitGroup
	for n := range burstOperators {
		writers.Go(func() {
			for i := n; i < changes; i += burstOperators {
				tenant := tenantName(i)
				at := time.Now()
				for _, w := range cells {
					w.begin(tenant, at)
				}
				_, err := client.Do[call.Item](ctx, p.operator.Client, "tenants/set", &admin.SetTenantRequest{
					Tenant: tenant, Reason: "measured",
					Overrides: []json.RawMessage{fmt.Appendf(nil,
						`{"id":"all","tiers":[{"period":"1s","threshold":%d}]}`, burstRate)},
				})
				if err != nil {
					cancel()
					failed <- err
					return
				}
			}
		})
	}
	writers.Wait()
	b.lasted = time.Since(began)
	all.Wait()
	close(failed)
	for e := range failed {
		err = errors.Join(err, e)
	}
	if err != nil {
		return b, err
	}
	if err := p.checkNothingSetAside(); err != nil {
		return b, err
	}
	for n, w := range cells {
		b.took = append(b.took, w.took...)
		b.commits = append(b.commits, p.cells[n].commits.Load())
	}
	slices.Sort(b.took)
	b.published, b.calls = p.meter.Of("events_published")-events, p.meter.Of("publish_calls")-calls
	if b.published != int64(changes) || len(b.took) != changes*len(cells) {
		return b, fmt.Errorf("%d events and %d times of %d changes in %d cells", b.published, len(b.took), changes,
			len(cells))
	}
	if d := p.deployed; d.calls != b.calls || d.messages != b.published {
		return b, fmt.Errorf("the topic had %d publishes of %d messages, and %d of %d were counted", d.calls,
			d.messages, b.calls, b.published)
	}
	return b, nil
}

// runBurst makes a burst whose changes travel as in a deployment, to cells that are as slow as DynamoDB.
func runBurst(tenants, changes int) (b burst, err error) {
	p, err := newPlane(tenants, 1)
	if err != nil {
		return b, err
	}
	if err = errors.Join(p.addSlow(), p.start()); err == nil {
		b, err = p.burst(changes)
	}
	return b, errors.Join(err, p.close())
}

// propagationFigure measures how long the changes of a burst take to be in force.
func propagationFigure(short bool) (r Result, err error) {
	tenants, changes := planeTenants, burstChanges
	if short {
		tenants, changes = planeTenantsShort, planeTenantsShort/5
	}
	b, err := runBurst(tenants, changes)
	if err != nil {
		return r, err
	}
	r.Value = b.quantile(0.99).Seconds()
	r.note("as deployed, by event sources with the batches and windows of the functions, a poll of the stream "+
		"each %s, a publish of %s, and DynamoDB's reads of %s and transactions of %s: %s", streamPolls, snsAway,
		readDelay, writeDelay, &b)
	return r, nil
}

// String describes the burst in a sentence, for a note.
func (b *burst) String() string {
	return fmt.Sprintf("%d changes of tenants written in %.1f s; in force after %.2f s at p50, %.2f s at p99, %.2f "+
		"s at most; %d publishes, each to every cell, and in the cells %d transactions", b.published,
		b.lasted.Seconds(),
		b.quantile(0.5).Seconds(), b.quantile(0.99).Seconds(), b.quantile(1).Seconds(), b.calls, b.commits)
}
