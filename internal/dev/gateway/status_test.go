package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/planfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev/gateway"
	"github.com/sluicelimits/sluice/internal/dev/gateway/front"
	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

const sharedPlans = `
plans:
  - id: kept
    limits:
      - { id: window, algorithm: fixed_window, tiers: [ { period: 1h, threshold: 50 } ] }
      - { id: people, per: subject, tiers: [ { period: 1h, threshold: 600 } ] }
      - { id: trial, tiers: [ { period: 1h, threshold: 5 } ], mode: shadow }
      - { id: unused, tiers: [ { period: 1h, threshold: 5 } ], mode: "off" }
  - id: let
    limits:
      - { id: window, algorithm: fixed_window, tiers: [ { period: 1h, threshold: 50 } ] }
      - { id: loose, tiers: [ { period: 1h, threshold: 70 } ], onStoreFailure: open }
      - { id: strict, tiers: [ { period: 1h, threshold: 80 } ], onStoreFailure: closed }
tenants:
  - { id: acme, plan: kept }
  - { id: globex, plan: let }
  - { id: initech, plan: kept }
keys:
`

// flaky is a store that can fail or be slow, and that counts its peeks.
type flaky struct {
	*memory.Store
	down  atomic.Bool
	slow  time.Duration
	peeks atomic.Int64
}

var errAway = errors.New("connection refused")

func (f *flaky) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if f.down.Load() {
		return errAway
	}
	return f.Store.Decide(ctx, req, now, d)
}

func (f *flaky) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	f.peeks.Add(1)
	if f.slow > 0 {
		<-time.After(f.slow)
	}
	if f.down.Load() {
		return errAway
	}
	return f.Store.Peek(ctx, req, now, d)
}

func newFlaky(t *testing.T) *flaky {
	t.Helper()
	s, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return &flaky{Store: s}
}

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

func openPlans(t *testing.T, text string) *planfile.Plans {
	t.Helper()
	p, err := planfile.Open(planfile.Config{Source: configyaml.Source("test.yaml", []byte(text)),
		Peppers: map[string][]byte{"dev": identity.DevPepper()}, Log: silent})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// shared is a gateway on a store chain, in a bubble of synctest.
type shared struct {
	*testing.T
	gateway *gateway.Gateway
	chain   *resilience.Chain
	plans   *planfile.Plans
	status  *gateway.StatusSource
}

// overview returns an overview of a plans file for the live page.
func overview(p *planfile.Plans) func(most int) gateway.Overview {
	return func(most int) gateway.Overview {
		cfg := p.Current().Config
		tenants := cfg.Tenants()
		return gateway.Overview{Name: p.Name(), Tenants: tenants[:min(len(tenants), most)], Total: len(tenants),
			IPLimits: cfg.IPLimits()}
	}
}

func newShared(t *testing.T, c resilience.ChainConfig) *shared {
	t.Helper()
	text := sharedPlans
	for i, tenant := range []string{"acme", "globex", "initech"} {
		text += fmt.Sprintf("  - { id: k%d, tenant: %s, subject: ci, hash: %s, pepper: dev }\n", i, tenant,
			identity.HashKey(identity.DevPepper(), identity.ExampleKey(tenant)))
	}
	p := openPlans(t, text)
	c.Log, c.MaxInstances = silent, 2
	l, err := resilience.NewChain(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) }) // the stores may fail by then
	z, err := authorizer.New(authorizer.Config{Source: authorizer.Current(p.Current), Store: l.Fallback, Now: time.Now,
		Log: silent})
	if err != nil {
		t.Fatal(err)
	}
	recorder := livepage.NewRecorder()
	s := &shared{t, nil, l, p, &gateway.StatusSource{Overview: overview(p), Chain: l, Now: time.Now}}
	s.gateway, err = gateway.New(gateway.Config{Authorizer: z, Recorder: recorder, Log: silent, Audience: front.All,
		LivePage: livepage.Handler(recorder, s.status.Status)})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // until the instance count is known
	return s
}

func (s *shared) call(tenant string, want int) {
	s.Helper()
	req := httptest.NewRequest("GET", "/product/1", nil)
	req.Header.Set("X-API-Key", key(tenant))
	w := httptest.NewRecorder()
	if s.gateway.ServeHTTP(w, req); w.Code != want {
		s.Fatalf("%s: %d, want %d: %s", tenant, w.Code, want, w.Body)
	}
}

func (s *shared) data() livepage.Data {
	s.Helper()
	w := httptest.NewRecorder()
	s.gateway.ServeHTTP(w, httptest.NewRequest("GET", "/_sluice/data.json", nil))
	var d livepage.Data
	if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil || d.Store == nil {
		s.Fatalf("%v in %d %s", err, w.Code, w.Body)
	}
	return d
}

func meter(t *testing.T, d livepage.Data, tenant, id string) livepage.LimitStatus {
	t.Helper()
	for _, row := range d.Tenants {
		for _, m := range row.Limits {
			if row.ID == tenant && m.ID == id {
				return m
			}
		}
	}
	t.Fatalf("the page shows no meter for tenant %s, limit %s", tenant, id)
	return livepage.LimitStatus{}
}

// Guarantees what the live page shows while a shared store works, fails, and works again: the state of its circuit
// breaker, who counts meanwhile and up to how much, and that requests which the backstop admits count as allowed.
func TestStatusThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFlaky(t)
		s := newShared(t, resilience.ChainConfig{Rates: resilience.NamedStore{Name: "Redis", Store: store}})
		for range 10 {
			s.call("acme", 200)
		}
		d := s.data()
		if b := d.Store.Breakers; len(b) != 1 || b[0] != (livepage.BreakerStatus{Name: "Redis", State: "closed"}) ||
			d.Store.Instances != 1 {
			t.Errorf("while the store works: breakers %+v, %d instances", b, d.Store.Instances)
		}
		if l := d.Store.Leases; l == nil || l.Local == 0 || l.Local+l.Calls != 10 || l.Units == 0 || l.Counters == 0 {
			t.Errorf("while the store works: leases %+v, want 10 decisions, some of them local, and unspent units", l)
		}
		w := meter(t, d, "acme", "window")
		if w.Used != 10 || w.Leased == 0 || w.Counted != livepage.CountedInStore || w.Capacity != 50 {
			t.Errorf("while the store works: %+v, want 10 of 50 used, and some leased", w)
		}
		if counted := s.counted(store, "acme", "window"); counted != w.Used+w.Leased {
			t.Errorf("the store counts %d, the page shows %d used and %d leased", counted, w.Used, w.Leased)
		}

		store.down.Store(true)
		for range 8 {
			s.call("globex", 429) // one of its limits denies while the store fails
			s.call("initech", 200)
		}
		before := s.data()
		looked := store.peeks.Load()
		d = s.data()
		if n := store.peeks.Load() - looked; n != 0 {
			t.Errorf("reading the page calls the store %d times while the breaker is open, want 0", n)
		}
		b := d.Store.Breakers[0]
		if b.State != "open" || b.Opened != 1 || b.Refused == 0 || b.Refused > before.Store.Breakers[0].Refused+1 {
			t.Errorf("while the store fails: breaker %+v, after %+v; want open, and at most one refused peek for "+
				"all tenants", b,
				before.Store.Breakers[0])
		}
		if o := d.Store.Outage; o.Failures != 16 || o.Backstop != 8 || o.Closed != 8 || o.Waiting != 1 {
			t.Errorf("while the store fails: %+v, want 8 decisions by the backstop and 8 closed", o)
		}
		for _, tt := range []struct {
			tenant, id     string
			counted        livepage.Counting
			used, capacity int64
		}{
			{"initech", "window", livepage.CountedHere, 8, 50},
			// this limit has a counter for each value, so there is no single number
			{"initech", "people", livepage.CountedInStore, -1, 600},
			{"initech", "trial", livepage.CountedUnknown, -1, 5},
			{"initech", "unused", livepage.CountedInStore, -1, 5},
			{"globex", "window", livepage.CountedHere, 0, 50},
			{"globex", "loose", livepage.CountedOpen, -1, 70},
			{"globex", "strict", livepage.CountedClosed, -1, 80},
		} {
			if m := meter(t, d, tt.tenant, tt.id); m.Counted != tt.counted || m.Used != tt.used ||
				m.Capacity != tt.capacity {
				t.Errorf("while the store fails: tenant %s has %+v, want %+v", tt.tenant, m, tt)
			}
		}
		if c := d.Windows[0].Totals; c.Allowed != 18 || c.StoreFailed != 8 || c.Degraded != 16 || c.Requests != 26 {
			t.Errorf("totals are %+v, want 18 allowed, 8 of them and all 8 closed ones without the store", c)
		}
		for range 50 {
			s.call("initech", map[bool]int{true: 200, false: 429}[s.left("initech") > 0])
		}
		if d = s.data(); len(d.Denials) == 0 || !d.Denials[0].Degraded || d.Denials[0].Limit != "window" {
			t.Errorf("a denial by the backstop is %+v, want it marked as degraded", d.Denials)
		}

		store.down.Store(false)
		for s.data().Store.Breakers[0].State != "closed" {
			<-time.After(time.Second)
		}
		s.call("acme", 200)
		for d = s.data(); d.Store.Outage.Waiting > 0; d = s.data() {
			<-time.After(time.Second)
		}
		w = meter(t, d, "acme", "window") // some of the units that were leased before the failure are lost
		if counted := s.counted(store, "acme", "window"); w.Counted != livepage.CountedInStore || w.Used < 11 ||
			counted != w.Used+w.Leased {
			t.Errorf("when the store works again: %+v, want at least 11 used, and with those leased the %d that the "+
				"store counts", w, counted)
		}
		if m := meter(t, d, "globex", "strict"); m.Counted != livepage.CountedInStore || m.Used != 0 {
			t.Errorf("when the store works again: %+v, want none used, in the store", m)
		}
		if o := d.Store.Outage; o.ChargedBack != 100 || o.Dropped != 0 {
			t.Errorf("when the store works again: %+v, want the 50 that were admitted charged to both limits", o)
		}
	})
}

// counted returns what the store itself has counted of a tenant's limit.
func (s *shared) counted(store limit.Store, tenant, id string) int64 {
	s.Helper()
	found, _ := s.plans.Current().Config.Tenant(tenant)
	for _, e := range found.Limits(time.Now()).Limits {
		if e.Limit.ID != id {
			continue
		}
		var d limit.Decision
		req := limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: tenant},
			Charges: []limit.Charge{{Limit: e.Limit, Cost: 1}}}
		if err := store.Peek(s.Context(), &req, time.Now(), &d); err != nil {
			s.Fatal(err)
		}
		return d.Results[0].Used()
	}
	s.Fatalf("%s has no limit %s", tenant, id)
	return 0
}

// left returns how much is left of a tenant's window, as the page shows it.
func (s *shared) left(tenant string) int64 {
	s.Helper()
	m := meter(s.T, s.data(), tenant, "window")
	return m.Capacity - m.Used
}

// Guarantees that reading the page calls a failing store once, not once for each tenant, even before the circuit
// breaker opens.
func TestStatusAsksAFailingStoreOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFlaky(t)
		s := newShared(t, resilience.ChainConfig{Rates: resilience.NamedStore{Name: "Redis", Store: store},
			NoLeases: true})
		store.down.Store(true)
		d := s.data()
		if n := store.peeks.Load(); n != 1 {
			t.Errorf("a failing store gets %d peeks for three tenants, want 1", n)
		}
		if d.Store.Leases != nil {
			t.Errorf("leases are %+v, want none", d.Store.Leases)
		}
		for _, tenant := range []string{"acme", "globex", "initech"} {
			if m := meter(t, d, tenant, "window"); m.Counted != livepage.CountedHere || m.Used != 0 {
				t.Errorf("%s has %+v, want the counters of this process", tenant, m)
			}
		}
	})
}

// Guarantees that if one of two stores fails, a tenant that needs only the other store is still shown as counted there.
func TestStatusWithOneOfTwoStoresAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rates, quotas := newFlaky(t), newFlaky(t)
		s := newShared(t, resilience.ChainConfig{Rates: resilience.NamedStore{Name: "Redis", Store: rates},
			Quotas: resilience.NamedStore{Name: "DynamoDB", Store: quotas}})
		s.status.Overview = overview(openPlans(t, `
plans:
  - { id: rated, limits: [ { id: window, tiers: [ { period: 1h, threshold: 50 } ] } ] }
  - { id: sold, limits: [ { id: monthly, quota: { every: month, units: 900 } } ] }
tenants:
  - { id: buyer, plan: sold }
  - { id: guest, plan: rated }
keys: []
`))
		quotas.down.Store(true)
		d := s.data()
		if m := meter(t, d, "guest", "window"); m.Counted != livepage.CountedInStore || m.Used != 0 {
			t.Errorf("the tenant without a quota has %+v, want its limit counted in the store", m)
		}
		if m := meter(t, d, "buyer", "monthly"); m.Counted != livepage.CountedHere || m.Capacity != 900 {
			t.Errorf("the tenant with a quota has %+v, want its limits counted in this process", m)
		}
		for range 5 {
			d = s.data()
		}
		if b := d.Store.Breakers; len(b) != 2 || b[0].Name != "Redis" || b[0].State != "closed" ||
			b[1].Name != "DynamoDB" || b[1].State != "open" {
			t.Errorf("breakers are %+v, want the second one open", b)
		}
	})
}

// Guarantees that a slow store delays the page once, and not once for each tenant. The tenants that were not reached
// are first in the next status.
func TestStatusOfASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := "plans: [ { id: p, limits: [ { id: window, tiers: [ { period: 1h, threshold: 50 } ] } ] } ]\ntenants:\n"
		const tenants = 20
		for i := range tenants {
			text += fmt.Sprintf("  - { id: t%d, plan: p }\n", i)
		}
		store := newFlaky(t)
		store.slow = 100 * time.Millisecond
		s := &gateway.StatusSource{Overview: overview(openPlans(t, text+"keys: []\n")), Store: store, Now: time.Now}
		known := func() (n int, out livepage.Status) {
			began := time.Now()
			out = s.Status()
			if took := time.Since(began); took > 600*time.Millisecond {
				t.Errorf("reading the page takes %s, want half a second and the peek under way", took)
			}
			for _, x := range out.Tenants {
				if x.Limits[0].Used >= 0 {
					n++
				} else if x.Limits[0].Counted != livepage.CountedUnknown {
					t.Errorf("%s has %+v, want it shown as unknown", x.ID, x.Limits[0])
				}
			}
			return n, out
		}
		first, before := known()
		if first == 0 || first == tenants {
			t.Fatalf("the counters of %d tenants were read, want some of %d", first, tenants)
		}
		second, out := known()
		if second != 2*first {
			t.Errorf("the counters of %d tenants are known after two readings, want %d", second, 2*first)
		}
		if a, b := before.Tenants[0].Limits[0].ResetMs, out.Tenants[0].Limits[0].ResetMs; b >= a ||
			a-b != out.Now.Sub(before.Now).Milliseconds() {
			t.Errorf("a tenant whose counters were not read again resets in %d ms, %d before; want the time between "+
				"subtracted",
				b, a)
		}
		for range tenants {
			second, _ = known()
		}
		if second != tenants {
			t.Errorf("the counters of %d tenants are known in the end, want all %d", second, tenants)
		}
	})
}

// Guarantees that nothing is shown about stores if all counters are in the process.
func TestStatusWithoutASharedStore(t *testing.T) {
	s := &gateway.StatusSource{Overview: overview(openPlans(t, sharedPlans+"  []\n")), Store: newFlaky(t),
		Now: time.Now}
	out := s.Status()
	if out.Store != nil {
		t.Errorf("the store is %+v, want none", out.Store)
	}
	if m := out.Tenants[0].Limits[0]; m.Used != 0 || m.Leased != 0 {
		t.Errorf("a limit is %+v, want none used and none leased", m)
	}
}
