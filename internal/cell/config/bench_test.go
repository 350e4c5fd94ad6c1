package config_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/cell/table/tabletest"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// newWarmReader returns a reader with the tenant and its key in the cache. Computing the key's hashes costs nothing.
func newWarmReader(tb testing.TB) *world {
	tb.Helper()
	var known []identity.KeyHash
	w := newWorld(tb, func(c *config.Config) {
		c.Hashes = func(context.Context, time.Time, string) ([]identity.KeyHash, error) { return known, nil }
	})
	known, _ = hashes(tb.Context(), noon, "a")
	w.seed()
	w.want(noon, "t", "5")
	if got := w.keyAt(noon, "a"); got != "k" {
		tb.Fatal(got)
	}
	return w
}

// request makes the calls that a request makes to its configuration.
func request(tb testing.TB, w *world) {
	c, join := w.r.Begin(context.Background(), noon)
	key, err := c.Key(context.Background(), "a", noon)
	if err != nil || join != nil {
		tb.Fatal(err)
	}
	tenant, err := c.Tenant(context.Background(), key.Tenant)
	if err != nil || len(tenant.Limits(noon).Limits) != 1 || len(c.IPLimits().Limits) != 0 {
		tb.Fatal(err)
	}
}

// Guarantees that a request whose documents are in the cache allocates nothing for its configuration.
func TestAllocations(t *testing.T) {
	w := newWarmReader(t)
	if n := testing.AllocsPerRun(1000, func() { request(t, w) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// Guarantees that 10,000 tenants of one plan fit the cache's default size, and that the estimate of their memory is
// not below the real one: otherwise the bound could be exceeded unnoticed.
func TestMemory(t *testing.T) {
	w := newWorld(t)
	w.seed()
	const tenants = 10_000
	documents := make([]table.Document, tenants)
	for i := range documents {
		documents[i] = tabletest.Tenant(fmt.Sprintf("tenant-%05d", i), "p", 1)
	}
	w.apply(documents...)
	compareMemory(t, w, "tenants", func() {
		for i := range tenants {
			w.want(noon, fmt.Sprintf("tenant-%05d", i), "5")
		}
	})
	if n := w.r.Stats(noon).Documents; n != tenants+1 {
		t.Errorf("%d documents in the cache, want the tenants and their plan", n)
	}
	var limits []string
	for i := range 1000 {
		limits = append(limits, fmt.Sprintf(`{"id":"l%d","per":"endpoint","match":{"methods":["GET"],`+
			`"pathPattern":"/v1/r%d/*/x"},"tiers":[{"period":1,"threshold":5},{"period":60,"threshold":99}]}`, i, i))
	}
	w.apply(body(plan.KindPlan, "big", 1, `{"id":"big","limits":[`+strings.Join(limits, ",")+`]}`),
		body(plan.KindTenant, "big", 1, `{"id":"big","plan":"big","overrides":[{"id":"l1","tiers":[{"period":1,`+
			`"threshold":5}]}]}`))
	compareMemory(t, w, "a plan of 1,000 limits", func() { w.want(noon.Add(time.Minute), "big", "5") })
}

// compareMemory compares the cache's estimate of its memory with the memory that it takes.
func compareMemory(t *testing.T, w *world, what string, load func()) {
	t.Helper()
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, said := heap(), w.r.Stats(noon).Bytes
	load()
	took, said := heap()-before, w.r.Stats(noon).Bytes-said
	t.Logf("%s take %d bytes, said to be %d", what, took, said)
	if took > said || said > 8*max(took, 1) {
		t.Errorf("%s take %d bytes, said to be %d; want an estimate that is above, and not by much", what, took, said)
	}
	runtime.KeepAlive(w)
}
