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
	burstRate      = 77                    // the tenants' rate after the burst
)

// burst has the measured times and calls of a burst of changes.
type burst struct {
	// from before a change is written to the first request that is held to it, of all cells, ascending
	took      []time.Duration
	lasted    time.Duration // the burst itself
	published int64
	calls     int64 // publishes
	commits   []int64
}

func (b *burst) quantile(q float64) time.Duration {
	return b.took[min(len(b.took)-1, int(math.Ceil(q*float64(len(b.took))))-1)]
}

// watched is what the requests of a cell wait for: tenants whose change was begun, and when.
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

// requests are one of each tenant whose change is not in force yet, all at once.
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

// follow sends requests until so many changes are in force.
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
			return fmt.Errorf("%s is held to %d before the burst", tenantName(i), got)
		}
	}
	return nil
}

// burst changes tenants, one call of an operator for each, several operators at once, and waits until all are in force.
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
	if d := p.deployed; d != nil && (d.calls != b.calls || d.messages != b.published) {
		return b, fmt.Errorf("the topic had %d publishes of %d messages, and %d of %d were counted", d.calls,
			d.messages, b.calls, b.published)
	}
	return b, nil
}

// bursts are one carried as what is deployed would, with cells as far away as DynamoDB is, and one carried by `sluice
// dev`.
type bursts struct{ deployed, dev burst }

func runBursts(tenants, changes int) (b bursts, err error) {
	for _, one := range []struct {
		into     *burst
		deployed bool
		wrap     func(cellconfig.Store) cellconfig.Store
	}{{&b.deployed, true, dynamoFar}, {&b.dev, false, inMemory}} {
		p, err := newPlane(tenants, 1, one.deployed)
		if err != nil {
			return b, err
		}
		if err = errors.Join(p.addInMemory(one.wrap), p.start()); err == nil {
			*one.into, err = p.burst(changes)
		}
		if err := errors.Join(err, p.close()); err != nil {
			return b, err
		}
	}
	return b, nil
}

var burstRun = [2]func() (bursts, error){
	sync.OnceValues(func() (bursts, error) { return runBursts(planeTenants, burstChanges) }),
	sync.OnceValues(func() (bursts, error) { return runBursts(planeTenantsShort, planeTenantsShort/5) }),
}

// burstFigure is a value of the burst that is carried as deployed.
func burstFigure(of func(*burst) float64) func(short bool) (Result, error) {
	return func(short bool) (r Result, err error) {
		run := burstRun[0]
		if short {
			run = burstRun[1]
		}
		b, err := run()
		if err != nil {
			return r, err
		}
		r.Value = of(&b.deployed)
		r.note("as deployed, by event sources with the batches and windows of the functions, a poll of the stream "+
			"each %s, a publish of %s, and DynamoDB's reads of %s and transactions of %s: %s", streamPolls, snsAway,
			readAway, writeAway, &b.deployed)
		r.note("in `sluice dev`, where a publish costs nothing: %s", &b.dev)
		return r, nil
	}
}

// String tells of it.
func (b *burst) String() string {
	return fmt.Sprintf("%d changes of tenants written in %.1f s; in force after %.2f s at p50, %.2f s at p99, %.2f "+
		"s at most; %d publishes, each to every cell, and in the cells %d transactions", b.published,
		b.lasted.Seconds(),
		b.quantile(0.5).Seconds(), b.quantile(0.99).Seconds(), b.quantile(1).Seconds(), b.calls, b.commits)
}

func propagationP99(b *burst) float64 { return b.quantile(0.99).Seconds() }
func publishes(b *burst) float64      { return float64(b.calls) }
