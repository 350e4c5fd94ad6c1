package livepage_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/planfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/internal/gateway"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
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
	s := memorytest.New(t)
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
	status  *livepage.StatusSource
}

// overview returns an overview of a plans file for the live page.
func overview(p *planfile.Plans) func(most int) livepage.Overview {
	return func(most int) livepage.Overview {
		cfg := p.Current().Config
		tenants := cfg.Tenants()
		return livepage.Overview{Name: p.Name(), Tenants: tenants[:min(len(tenants), most)], Total: len(tenants),
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
	s := &shared{t, nil, l, p, &livepage.StatusSource{Overview: overview(p), Chain: l, Now: time.Now}}
	s.gateway, err = gateway.New(gateway.Config{Authorizer: z, Log: silent, Audience: gateway.All,
		LivePage: livepage.Handler(recorder, s.status.Status),
		Decided: func(a *authorizer.Answer, r *http.Request, _ time.Duration) {
			recorder.ObserveAnswer(a, r.Method)
		}})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // until the instance count is known
	return s
}

func (s *shared) call(tenant string, want int) {
	s.Helper()
	req := httptest.NewRequest("GET", "/product/1", nil)
	req.Header.Set("X-API-Key", identity.ExampleKey(tenant))
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
	if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil {
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

// Guarantees what the live page shows while a shared store works, fails, and works again: whether it is away, that no
// use of limits is shown meanwhile, and that requests which the backstop admits count as allowed.
func TestStatusThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFlaky(t)
		s := newShared(t, resilience.ChainConfig{Rates: resilience.NamedStore{Name: "Redis", Store: store}})
		for range 10 {
			s.call("acme", 200)
		}
		d := s.data()
		w := meter(t, d, "acme", "window")
		if len(d.Away) > 0 || w.Used != 10 || w.Leased == 0 || w.Capacity != 50 {
			t.Errorf("while the store works: %v is away, and %+v; want none, 10 of 50 used, and some leased", d.Away, w)
		}
		if counted := s.counted(store, "acme", "window"); counted != w.Used+w.Leased {
			t.Errorf("the store counts %d, the page shows %d used and %d leased", counted, w.Used, w.Leased)
		}

		store.down.Store(true)
		for range 8 {
			s.call("globex", 429) // one of its limits denies while the store fails
			s.call("initech", 200)
		}
		s.data()
		looked := store.peeks.Load()
		d = s.data()
		if n := store.peeks.Load() - looked; n != 0 {
			t.Errorf("reading the page calls the store %d times while the breaker is open, want 0", n)
		}
		if m := meter(t, d, "initech", "window"); !slices.Equal(d.Away, []string{"Redis"}) || m.Used != -1 ||
			m.Capacity != 50 {
			t.Errorf("while the store fails: %v is away, and %+v; want Redis, and a use that is not known", d.Away, m)
		}
		if c := d.Totals; c.Allowed != 18 || c.StoreFailed != 8 || c.Degraded != 16 || c.Requests != 26 {
			t.Errorf("totals are %+v, want 18 allowed, 8 of them and all 8 closed ones without the store", c)
		}

		store.down.Store(false)
		for len(s.data().Away) > 0 {
			<-time.After(time.Second)
		}
		s.call("acme", 200)
		for counted := int64(-1); counted != w.Used+w.Leased; { // until the replay is over
			<-time.After(time.Second)
			w, counted = meter(t, s.data(), "acme", "window"), s.counted(store, "acme", "window")
		}
		if w.Used < 11 { // some of the units that were leased before the failure are lost
			t.Errorf("when the store works again: %+v, want at least 11 used", w)
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
		for _, tenant := range []string{"acme", "globex", "initech"} {
			if m := meter(t, d, tenant, "window"); m.Used != -1 {
				t.Errorf("%s has %+v, want a use that is not known", tenant, m)
			}
		}
	})
}

// Guarantees that a slow store delays the page once, and not once for each tenant. The use of limits of tenants that
// were not reached is not known.
func TestStatusOfASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := "plans: [ { id: p, limits: [ { id: window, tiers: [ { period: 1h, threshold: 50 } ] } ] } ]\ntenants:\n"
		const tenants = 20
		for i := range tenants {
			text += fmt.Sprintf("  - { id: t%d, plan: p }\n", i)
		}
		store := newFlaky(t)
		store.slow = 100 * time.Millisecond
		s := &livepage.StatusSource{Overview: overview(openPlans(t, text+"keys: []\n")), Store: store, Now: time.Now}
		began, known := time.Now(), 0
		out := s.Status()
		if took := time.Since(began); took > 600*time.Millisecond {
			t.Errorf("reading the page takes %s, want half a second and the peek under way", took)
		}
		for _, x := range out.Tenants {
			if x.Limits[0].Used >= 0 {
				known++
			}
		}
		if len(out.Tenants) != tenants || known == 0 || known == tenants {
			t.Errorf("the use of %d of %d tenants is known, want some of %d", known, len(out.Tenants), tenants)
		}
	})
}

// Guarantees that nothing is shown about stores if all counters are in the process.
func TestStatusWithoutASharedStore(t *testing.T) {
	s := &livepage.StatusSource{Overview: overview(openPlans(t, sharedPlans+"  []\n")), Store: newFlaky(t),
		Now: time.Now}
	out := s.Status()
	if len(out.Away) > 0 {
		t.Errorf("%v is away, want no store", out.Away)
	}
	if m := out.Tenants[0].Limits[0]; m.Used != 0 || m.Leased != 0 {
		t.Errorf("a limit is %+v, want none used and none leased", m)
	}
}
