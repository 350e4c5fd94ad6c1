package localstack_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/localstack/stand"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	changedTenants = 20
	atOnce         = 10 // concurrent changes
	firstThreshold = 60
	watchEach      = 150 * time.Millisecond
)

// changesEach is how often the limit of each tenant changes. The figure localstack_propagation_p99_s uses twice as many
// changes as a usual run: with 60, the 99th percentile would be the slowest change.
var changesEach = flag.Int("changes-each", 3, "how often TestPropagation changes the limit of each tenant")

// Guarantees that each change of a tenant's limit, made through the operators' API, is enforced in each cell, small and
// full. It prints how long that takes, from before the change is sent until the answer to the first request that is
// decided by it. Each request costs 10 units and is denied, so that watching changes nothing. It takes half a minute.
func TestPropagation(t *testing.T) {
	s := open(t)
	id := unique("change")
	windows := period()
	var tenants strings.Builder
	for i := range changedTenants {
		fmt.Fprintf(&tenants, "  - { id: %s-%d, plan: %[1]s }\n", id, i)
	}
	apply(t, s, fmt.Sprintf("plans:\n  - id: %s\n    limits: [ { id: few, match: { methods: [GET], pathPattern: "+
		"\"/product/*\" }, cost: 10, tiers: [ { period: %s, threshold: %d } ] } ]\ntenants:\n%s",
		id, windows, firstThreshold, &tenants))
	to, err := s.Admin(s.Operator.Credentials)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]string, changedTenants)
	for i := range keys {
		made, err := client.Do(t.Context(), to, operate.CreateKey,
			&operate.CreateKeyRequest{Tenant: id + "-" + strconv.Itoa(i), Reason: "to watch changes"})
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = made.Key
	}
	for _, key := range keys {
		for _, c := range s.Cells() {
			waitUntilKeyIsKnown(t, s, c.ID, key)
			// it has spent what it may
			waitFor(t, func(ctx context.Context) error { return hasThreshold(ctx, s, c.ID, key, firstThreshold/2) })
		}
	}
	changes := make([]*change, changedTenants**changesEach)
	for n := range changes {
		i := n % changedTenants
		changes[n] = &change{tenant: id + "-" + strconv.Itoa(i), key: keys[i],
			threshold: firstThreshold - 2*(1+n/changedTenants)}
	}
	follow(t, s, changes, func(c *change) error {
		_, err := client.Do(t.Context(), to, operate.SetTenant, &operate.SetTenantRequest{
			Tenant: c.tenant, Reason: "how long does it take?",
			Overrides: []json.RawMessage{fmt.Appendf(nil, `{"id":"few","tiers":[{"period":"%s","threshold":%d}]}`,
				windows, c.threshold)},
		})
		return err
	})
	if t.Failed() {
		return
	}
	var every []time.Duration
	for i, c := range s.Cells() {
		var took []time.Duration
		for _, ch := range changes {
			took = append(took, ch.took[i])
		}
		reportTimes(t, "cell "+c.ID, took)
	}
	for _, ch := range changes {
		every = append(every, slices.Max(ch.took))
	}
	figure("localstack_propagation_p99_s", "%.2f s <=5", reportTimes(t, "every cell", every).Seconds())
}

// reportTimes prints how long changes took, and returns the 99th percentile.
func reportTimes(t *testing.T, where string, took []time.Duration) (p99 time.Duration) {
	t.Helper()
	slices.Sort(took)
	at := func(percent int) time.Duration { return took[(len(took)*percent+99)/100-1] }
	t.Logf("%d changes, from before each was sent until %s held a request to it: p50 %.2f s, p99 %.2f s, max %.2f s",
		len(took), where, at(50).Seconds(), at(99).Seconds(), at(100).Seconds())
	return at(99)
}

// hasThreshold returns nil if a cell denies a request by the limit few with the given threshold.
func hasThreshold(ctx context.Context, s *stand.Stand, cell, key string, threshold int) error {
	a, err := s.Call(ctx, cell, product, key)
	if err == nil && (a.Status != http.StatusTooManyRequests || number(a, "X-RateLimit-Limit") != int64(threshold)) {
		err = fmt.Errorf("%s: %d with a limit of %d, want a denial by %d: %s", cell, a.Status,
			number(a, "X-RateLimit-Limit"), threshold, a.Body)
	}
	return err
}

// change is one change of a tenant's limit.
type change struct {
	tenant, key string
	threshold   int
	began       time.Time       // before it was sent
	took        []time.Duration // by cell: until the answer to the first request that was decided by the change
	seen        sync.WaitGroup  // done when each cell has enforced it
}

// follow makes some changes concurrently, and watches each cell for them one after the other, in the order in which
// they were made. That needs few requests, and adds little to the measured times.
func follow(t *testing.T, s *stand.Stand, changes []*change, send func(*change) error) {
	t.Helper()
	cells := s.Cells()
	made := make([]chan *change, len(cells))
	var all sync.WaitGroup
	for i, c := range cells {
		made[i] = make(chan *change, len(changes))
		all.Go(func() {
			for ch := range made[i] {
				err := stand.Until(t.Context(), patience, watchEach,
					func(ctx context.Context) error {
						return hasThreshold(ctx, s, c.ID, ch.key,
							ch.threshold/len(cells))
					})
				if err != nil {
					t.Errorf("%s: %v", ch.tenant, err)
				}
				ch.took[i] = time.Since(ch.began)
				ch.seen.Done()
			}
		})
	}
	room := make(chan struct{}, atOnce)
	for _, ch := range changes {
		room <- struct{}{}
		ch.began, ch.took = time.Now(), make([]time.Duration, len(cells))
		if err := send(ch); err != nil {
			t.Error(err)
			break
		}
		ch.seen.Add(len(cells))
		for _, queue := range made {
			queue <- ch
		}
		go func() {
			ch.seen.Wait()
			<-room
		}()
	}
	for _, queue := range made {
		close(queue)
	}
	all.Wait()
}
