package localstack_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/admin"
	admincall "github.com/sluicelimits/sluice/internal/admin/call"
	"github.com/sluicelimits/sluice/internal/admin/client"
	"github.com/sluicelimits/sluice/localstack/stand"
)

const (
	changedTenants = 20
	changesEach    = 6
	atOnce         = 5 // tenants that are changed at the same time
	firstThreshold = 60
	watchEach      = 300 * time.Millisecond // so that to look is not what takes the time
)

// Guarantees that each change of a tenant's limit, made through the operators' API, is what requests are held to in each cell, small and
// full; and prints how long that takes: from before the change is sent to the answer of the first request that is held to it. Each request
// costs 10 and is denied, so that a watch changes nothing. It takes 60 s.
func TestPropagation(t *testing.T) {
	s := open(t)
	id := unique("change")
	p := propagation{period: period(), took: map[string][]time.Duration{}}
	var tenants strings.Builder
	for i := range changedTenants {
		fmt.Fprintf(&tenants, "  - { id: %s-%d, plan: %[1]s }\n", id, i)
	}
	apply(t, s, fmt.Sprintf("plans:\n  - id: %s\n    limits: [ { id: few, match: { methods: [GET], pathPattern: \"/product/*\" }, cost: 10, tiers: [ { period: %s, threshold: %d } ] } ]\ntenants:\n%s",
		id, p.period, firstThreshold, &tenants))
	to, err := s.Admin(s.Operator.Credentials)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]string, changedTenants)
	for i := range keys {
		made, err := client.Do[admin.CreateKeyResponse](t.Context(), to, "keys/create", admin.CreateKeyRequest{Tenant: id + "-" + strconv.Itoa(i), Reason: "to watch changes"})
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = made.Key
	}
	for _, key := range keys {
		for _, c := range s.Cells() {
			known(t, s, c.ID, key)
			within(t, func(ctx context.Context) error { return holds(ctx, s, c.ID, key, firstThreshold/2) }) // it has spent what it may
		}
	}
	next := make(chan int)
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for n := range next {
				tenant, threshold := n%changedTenants, firstThreshold-2*(1+n/changedTenants)
				if err := p.change(t.Context(), s, to, id+"-"+strconv.Itoa(tenant), keys[tenant], threshold); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for n := range changedTenants * changesEach {
		next <- n
	}
	close(next)
	all.Wait()
	p.print(t)
}

// holds is nil where a cell denies a request by the limit few with a threshold of so much.
func holds(ctx context.Context, s *stand.Stand, cell, key string, threshold int) error {
	a, err := s.Call(ctx, cell, product, key)
	if err == nil && (a.Status != http.StatusTooManyRequests || number(a, "X-RateLimit-Limit") != int64(threshold)) {
		err = fmt.Errorf("%s: %d with a limit of %d, want a denial by %d: %s", cell, a.Status, number(a, "X-RateLimit-Limit"), threshold, a.Body)
	}
	return err
}

// propagation is how long changes took until they were enforced, by cell; under "" that of the last of the cells.
type propagation struct {
	period time.Duration // of the limits

	mu   sync.Mutex
	took map[string][]time.Duration
}

// change changes a tenant's limit, and waits until each cell enforces it.
func (p *propagation) change(ctx context.Context, s *stand.Stand, to *client.Client, tenant, key string, threshold int) error {
	began := time.Now()
	_, err := client.Do[admincall.Item](ctx, to, "tenants/set", admin.SetTenantRequest{
		Tenant: tenant, Reason: "how long does it take?",
		Overrides: []json.RawMessage{fmt.Appendf(nil, `{"id":"few","tiers":[{"period":"%s","threshold":%d}]}`, p.period, threshold)},
	})
	if err != nil {
		return err
	}
	cells := s.Cells()
	took, errs := make([]time.Duration, len(cells)), make([]error, len(cells))
	var all sync.WaitGroup
	for i, c := range cells {
		all.Go(func() {
			errs[i] = stand.Until(ctx, patience, watchEach, func(ctx context.Context) error { return holds(ctx, s, c.ID, key, threshold/len(cells)) })
			took[i] = time.Since(began)
		})
	}
	all.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, c := range cells {
		if errs[i] != nil {
			return fmt.Errorf("%s: %w", tenant, errs[i])
		}
		p.took[c.ID] = append(p.took[c.ID], took[i])
	}
	p.took[""] = append(p.took[""], slices.Max(took))
	return nil
}

// print prints what it took, and fails the test where it is not known of enough changes.
func (p *propagation) print(t *testing.T) {
	t.Helper()
	for cell, took := range p.took {
		slices.Sort(took)
		if n := len(took); n < 100 {
			t.Errorf("%d changes were seen in %q, want at least 100", n, cell)
			continue
		}
		where := "every cell"
		if cell != "" {
			where = "cell " + cell
		}
		t.Logf("%d changes, from before each was sent until %s held requests to it: p50 %.2f s, p99 %.2f s, max %.2f s",
			len(took), where, quantile(took, 50).Seconds(), quantile(took, 99).Seconds(), took[len(took)-1].Seconds())
	}
	fmt.Fprintf(os.Stdout, "figure localstack_propagation_p99_s %.2f s <=5\n", quantile(p.took[""], 99).Seconds())
}

// quantile is the percentile of sorted values; 0 of none.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*percent+99)/100-1]
}
