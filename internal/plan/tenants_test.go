package plan_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/testkit/golden"
)

func sha(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

const boosted = `plans:
- id: pro
  limits:
  - {id: burst, algorithm: token_bucket, rate: 100, period: 1s, burst: 200}
  - {id: even, algorithm: token_bucket, rate: 7, period: 1s}
  - {id: steps, tiers: [{period: 1s, threshold: 3}, {period: 10s, threshold: 11}]}
  - {id: month, quota: {units: 1000, every: month}}
tenants:
- {id: plain, plan: pro}
- id: acme
  plan: pro
  overrides:
  - {id: burst, rate: 500}
  - {id: even, rate: 9, mode: shadow, onStoreFailure: closed, cost: 3}
  - {id: month, quota: {units: 5000}}
  boosts:
  - {id: burst, factor: 2, until: 2026-07-01T00:00:00Z}
  - {id: steps, factor: 1.5, from: 2026-06-15T00:00:00Z, until: 2026-08-01T00:00:00+02:00}
`

// numbers lists the amounts of a set's limits.
func numbers(s *plan.Set) string {
	var out []string
	for _, e := range s.Limits {
		text := e.Limit.ID
		for _, t := range e.Limit.Tiers {
			text += fmt.Sprintf(" %d", t.Threshold)
			if t.Algorithm == limit.TokenBucket {
				text += fmt.Sprintf("/%d", t.Burst)
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// Guarantees that a boost applies from its first instant until just before its end: a boost that stays loses money,
// and one that ends early is an outage for the customer who paid for it.
func TestBoostEdges(t *testing.T) {
	c := parse(t, boosted)
	acme, _ := c.Tenant("acme")
	at := func(s string) time.Time {
		got, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	const base, month = "burst 500/200, even 9/9, steps 3 11, month 5000", ", month 5000"
	for _, c := range []struct{ now, want string }{
		{"2020-01-01T00:00:00Z", "burst 1000/400, even 9/9, steps 3 11" + month},
		{"2026-06-14T23:59:59.999999Z", "burst 1000/400, even 9/9, steps 3 11" + month},
		{"2026-06-15T00:00:00Z", "burst 1000/400, even 9/9, steps 4 16" + month},
		{"2026-06-30T23:59:59.999999Z", "burst 1000/400, even 9/9, steps 4 16" + month},
		{"2026-07-01T00:00:00Z", "burst 500/200, even 9/9, steps 4 16" + month},
		{"2026-07-31T21:59:59.999999Z", "burst 500/200, even 9/9, steps 4 16" + month},
		{"2026-07-31T22:00:00Z", base},
		{"2999-01-01T00:00:00Z", base},
	} {
		now := at(c.now)
		if got := numbers(acme.Limits(now)); got != c.want {
			t.Errorf("at %s: %s, want %s", c.now, got, c.want)
		}
		if n := testing.AllocsPerRun(100, func() { acme.Limits(now) }); n != 0 {
			t.Errorf("at %s: Limits allocates %v times, want 0", c.now, n)
		}
	}
	shadow := acme.Limits(noon).Limits[1]
	if l := shadow.Limit; l.Mode != limit.Shadow || l.OnStoreFailure != limit.Closed || shadow.Cost.Default != 3 {
		t.Errorf("override gives mode %s, onStoreFailure %s, cost %s; want shadow, closed, 3", l.Mode,
			l.OnStoreFailure, shadow.Cost)
	}
	plain, _ := c.Tenant("plain")
	if got := numbers(plain.Limits(noon)); got != "burst 100/200, even 7/7, steps 3 11, month 1000" {
		t.Errorf("a tenant's overrides have changed the plan's own limits to %s", got)
	}
}

// Guarantees that an override or a boost keeps the counter: a customer who is given more must neither lose what was
// counted nor get a new window.
func TestOverridesKeepIdentity(t *testing.T) {
	c := parse(t, boosted)
	acme, _ := c.Tenant("acme")
	own := c.Plans()[0].Set()
	for i, e := range acme.Limits(noon).Limits {
		for j := range e.Limit.Tiers {
			got, want := e.Limit.Tiers[j].Identity(), own.Limits[i].Limit.Tiers[j].Identity()
			if got != want && e.Limit.Mode == own.Limits[i].Limit.Mode {
				t.Errorf("limit %s tier %d counts in %q, the plan in %q", e.Limit.ID, j, got, want)
			}
		}
	}
}

// Guarantees that each number is listed with its origin, which is what an operator asks first when a customer
// complains.
func TestOrigins(t *testing.T) {
	acme, _ := parse(t, boosted).Tenant("acme")
	var b strings.Builder
	for _, e := range acme.Limits(time.Date(2026, 6, 20, 0, 0, 0, 0, time.UTC)).Limits {
		fmt.Fprintln(&b, e.Limit.ID)
		for _, v := range e.Values() {
			fmt.Fprintf(&b, "    %s = %s: %s\n", v.Name, v.Text, v.Origin)
		}
	}
	golden.Check(t, "origins.golden", b.String())
}

// Guarantees that tenants without changes of their own share the plan's set.
func TestTenantsShare(t *testing.T) {
	c := parse(t, boosted)
	plain, _ := c.Tenant("plain")
	if plain.Limits(noon) != c.Plans()[0].Set() {
		t.Error("a tenant without overrides has a set of its own, want that of its plan")
	}
}

// Guarantees that plans in one file and tenants in another are one configuration, as repositories often have them.
func TestSeveralFiles(t *testing.T) {
	plans := configyaml.Source("plans.yaml", []byte("plans: [{id: pro, limits: []}]\nanonymousPlan: "+
		"pro\nipv6Prefix: 56\n"))
	tenants := configyaml.Source("tenants.json",
		[]byte(`{"tenants": [{"id": "b", "plan": "pro"}, {"id": "a", "plan": "pro", "suspended": true}]}`))
	for _, sources := range [][]plan.Source{{plans, tenants}, {tenants, plans}} {
		c, err := plan.ParseAt(noon, sources...)
		if err != nil {
			t.Fatal(err)
		}
		all := c.Tenants()
		if len(all) != 2 || all[0].ID != "a" || !all[0].Suspended || all[1].ID != "b" || c.AnonymousPlan() != "pro" {
			t.Errorf("the tenants are %+v and the anonymous plan is %q; want a (suspended) and b, and pro", all,
				c.AnonymousPlan())
		}
	}
	_, err := plan.ParseAt(noon, plans, plans, tenants)
	want := "plans.yaml:1:14: plans[0].id: plan \"pro\" is there twice, first at plans.yaml:1\n" +
		"plans.yaml:2:16: anonymousPlan: anonymousPlan is there twice, first at plans.yaml:2\n" +
		"plans.yaml:3:13: ipv6Prefix: ipv6Prefix is there twice, first at plans.yaml:3"
	if err == nil || err.Error() != want {
		t.Errorf("the same file twice gives\n%v\nwant\n%s", err, want)
	}
}

// tenThousandTenants returns a file with 10,000 tenants; every tenth has overrides and a boost.
func tenThousandTenants() string {
	var b strings.Builder
	b.WriteString(many(100) + "tenants:\n")
	for i := range 10_000 {
		fmt.Fprintf(&b, "- {id: tenant-%d, plan: p", i)
		if i%10 == 0 {
			b.WriteString(", overrides: [{id: all, rate: 500}, {id: l5, tiers: [{period: 1s, threshold: 50}]}]" +
				", boosts: [{id: rest, factor: 2, until: 2026-12-01T00:00:00Z}]")
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// Guarantees that 10,000 tenants take little memory.
func TestTenThousandTenants(t *testing.T) {
	text := tenThousandTenants()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := parse(t, text)
	runtime.GC()
	runtime.ReadMemStats(&after)
	heap := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d bytes, 10,000 tenants, 102 limits: %d KiB kept", len(text), heap>>10)
	if len(c.Tenants()) != 10_000 {
		t.Fatalf("%d tenants, want 10000", len(c.Tenants()))
	}
	if heap > 64<<20 {
		t.Errorf("%d KiB are kept, want at most 64 MiB", heap>>10)
	}
}

// Guarantees that exact reaches the store, also for the raised limit of a boost.
func TestExactReachesTheLimit(t *testing.T) {
	c := parse(t, `
plans:
  - id: p
    limits:
      - { id: strict, quota: { units: 10, every: day }, exact: true }
      - { id: loose, quota: { units: 10, every: day } }
tenants:
  - { id: plain, plan: p }
  - { id: boosted, plan: p, boosts: [ { id: strict, factor: 2, until: 2026-12-01T00:00:00Z } ] }
`)
	for _, id := range []string{"plain", "boosted"} {
		tenant, _ := c.Tenant(id)
		limits := tenant.Limits(noon).Limits
		if !limits[0].Limit.Exact || limits[1].Limit.Exact {
			t.Errorf("%s: exact is %t and %t, want true and false", id, limits[0].Limit.Exact, limits[1].Limit.Exact)
		}
	}
}
