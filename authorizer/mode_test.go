package authorizer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// withMode sets the mode of a world's limits.
func withMode(m limit.Mode) func(*setup) {
	return func(s *setup) { s.authorizer.Mode = func() limit.Mode { return m } }
}

// limitDecisions are the denials by limits. Only limit.Enforce makes them.
var limitDecisions = []string{"limited", "ip_limited", "never_fits", "unavailable", "not_here"}

const modePlans = plans + `
ipLimits:
  - { id: per-address, algorithm: token_bucket, rate: 1, period: 2s, burst: 6 }
`

// Guarantees that shadow decides as enforce does, and denies nobody by a limit. Two handlers get the same random calls,
// with a store and without. If enforce denies a call by a limit, the call passes in shadow, and its context names that
// denial. Every other call has the same answer in both. The headers have the same numbers, so the same units are
// charged, and shadow counts the denials that enforce makes.
func TestShadowIsEnforceWithoutDenials(t *testing.T) {
	for seed := range uint64(2) {
		random := rand.New(rand.NewPCG(seed, 8))
		enforcing, shadow := newWorld(t, modePlans, withMode(limit.Enforce)),
			newWorld(t, modePlans, withMode(limit.Shadow))
		worlds := []*world{enforcing, shadow}
		if seed%2 == 1 { // for the whole test: it is random when a breaker calls a store that answers again
			enforcing.takeStoreAway()
			shadow.takeStoreAway()
		}
		denied := map[string]int{} // by limits in enforce: decision → calls
		refused := 0               // calls that an ipLimit denied in enforce, and that a later step denied in shadow
		for range 150 {
			pass := time.Duration(random.IntN(200)) * time.Millisecond
			c := withKey([]string{"acme", "globex", "strict", "lax", "initech", "nobody", "revoked"}[random.IntN(7)])
			if random.IntN(6) == 0 {
				c.header = append(c.header, "X-Query-Cost", fmt.Sprint(1+random.IntN(14)))
			}
			c.peer = fmt.Sprintf("198.51.100.%d", 1+random.IntN(16))
			for _, w := range worlds {
				w.advance(pass)
			}
			e, s := enforcing.send(apigw.HTTP1, c), shadow.send(apigw.HTTP1, c)
			want, spared := e.decision, any(nil)
			if slices.Contains(limitDecisions, e.decision) {
				denied[e.decision]++
				want, spared = "allowed", e.decision
				if bad := refusals[c.header[1]]; e.decision == "ip_limited" && bad != "" {
					want, spared = bad, nil
					refused++
				}
			}
			if s.decision != want || s.context["spared"] != spared || s.allow != (want == "allowed") {
				t.Fatalf("seed %d: enforce says %s, shadow %s: %s", seed, e.decision, s.decision, s.text)
			}
			if s.decision == "unauthorized" {
				continue
			}
			for _, name := range []string{"rateLimit", "rateLimitPolicy", "rateLimitRemaining", "rateLimitReset",
				"storeFailed", "binding"} {
				if s.context[name] != e.context[name] {
					t.Fatalf("seed %d, %s: %s is %v in shadow, and %v where enforced", seed, e.decision, name,
						s.context[name], e.context[name])
				}
			}
			if s.context["mode"] != "shadow" || e.context["mode"] != nil || s.allow && s.context["retryAfter"] != nil {
				t.Fatalf("seed %d: marked %s and %s", seed, s.text, e.text)
			}
		}
		if len(denied) < 3 || seed%2 == 1 && denied["unavailable"] == 0 {
			t.Fatalf("seed %d: only %v were denied; the script shows too little", seed, denied)
		}
		compareCounts(t, enforcing, shadow, refused)
	}
}

// refusals are the decisions on keys that are denied for another reason than a limit.
var refusals = map[string]string{
	identity.ExampleKey("initech"): "suspended_tenant", identity.ExampleKey("nobody"): "unknown_tenant",
	identity.ExampleKey("revoked"): "unauthorized",
}

// compareCounts compares the metrics of the two handlers. refused is how many calls an ipLimit denied in enforce and a
// later step denied in shadow.
func compareCounts(t *testing.T, enforcing, shadow *world, refused int) {
	t.Helper()
	e, byEnforce := enforcing.metrics()
	s, byShadow := shadow.metrics()
	if e["enforce_denied"] == 0 || s["enforce_denied"] != 0 || s["kill_switch"] == 0 || e["kill_switch"] != 0 {
		t.Errorf("enforce_denied %v and %v, kill_switch %v and %v", e["enforce_denied"], s["enforce_denied"],
			e["kill_switch"], s["kill_switch"])
	}
	if s["kill_switch_spared"]+float64(refused) != e["enforce_denied"] || e["kill_switch_spared"] != 0 {
		t.Errorf("%v are reported as spared, but enforce denied %v", s["kill_switch_spared"], e["enforce_denied"])
	}
	for id, n := range byEnforce {
		if id == "ip:per-address" {
			n["denied"] -= refused
		}
		if byShadow[id]["shadow_denied"] != n["denied"] || byShadow[id]["denied"] != 0 {
			t.Errorf("limit %s: enforce denied %d, shadow tells %v", id, n["denied"], byShadow[id])
		}
	}
	if lines := shadow.records("passed in shadow"); len(lines) != int(s["kill_switch_spared"]) ||
		lines[0]["mode"] != "shadow" || lines[0]["outcome"] == "allowed" {
		t.Errorf("%d lines on %v calls: %v", len(lines), s["kill_switch_spared"], lines[:min(len(lines), 1)])
	}
}

// Guarantees, for each outcome of outcomes, that every mode denies a bad credential and a tenant that is suspended or
// has no plan, and that only enforce denies by a limit.
func TestModesOfEachOutcome(t *testing.T) {
	for _, mode := range []limit.Mode{limit.Shadow, limit.Off} {
		kept, passed := 0, 0
		for _, c := range outcomes() {
			for _, shape := range shapesExcept(c.notOn...) {
				settings := []func(*setup){withMode(mode)}
				if c.set != nil {
					settings = append(settings, c.set)
				}
				w := newWorld(t, allPlans+c.plans, settings...)
				if c.prepare != nil {
					c.prepare(w)
				}
				want := c.want
				// ipLimits of an authorizer that sees no address
				if slices.Contains(limitDecisions, want) || want == "internal" {
					want = "allowed"
					passed++
				} else if want != "allowed" {
					kept++
				}
				r := w.expect(shape, c.call, want)
				if r.decision != "unauthorized" && r.context["mode"] != mode.String() {
					t.Errorf("%s, %s, %s: not marked: %s", mode, c.name, shape, r.text)
				}
			}
		}
		if kept == 0 || passed == 0 {
			t.Fatalf("%s: %d outcomes stay, %d do not; the test shows nothing", mode, kept, passed)
		}
	}
}

// Guarantees that a call which an ipLimit would deny, and which is then denied for who calls, is not reported as
// spared: it did not pass.
func TestShadowDenialOnlyIfAllowed(t *testing.T) {
	w := newWorld(t, modePlans, withMode(limit.Shadow))
	for range 6 { // all that the ipLimit admits at once
		w.expect(apigw.RESTRequest, withKey("acme"), "allowed")
	}
	if r := w.expect(apigw.RESTRequest, withKey("acme"), "allowed"); r.context["spared"] != "ip_limited" {
		t.Fatalf("spared %v, want ip_limited: %s", r.context["spared"], r.text)
	}
	if r := w.expect(apigw.RESTRequest, withKey("initech"), "suspended_tenant"); r.context["spared"] != nil {
		t.Errorf("a suspended tenant is spared: %s", r.text)
	}
}

// countingStore counts the calls of a store.
type countingStore struct {
	limit.Store
	times atomic.Int64
}

func (s *countingStore) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	s.times.Add(1)
	return s.Store.Decide(ctx, req, now, d)
}

func (s *countingStore) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	s.times.Add(1)
	return s.Store.Peek(ctx, req, now, d)
}

// Guarantees that limit.Off asks no store and sends no headers of limits, so that an operator who turns a cell off
// takes all load from its stores. In shadow each call asks, which shows that countingStore counts.
func TestOffAsksNoStore(t *testing.T) {
	for _, mode := range []limit.Mode{limit.Off, limit.Shadow} {
		var store *countingStore
		w := newWorld(t, modePlans, withMode(mode), func(s *setup) {
			store = &countingStore{Store: s.authorizer.Store}
			s.authorizer.Store = store
		})
		const calls = 20
		for range calls {
			r := w.expect(apigw.RESTRequest, withKey("acme"), "allowed")
			if hasLimits := r.context["rateLimit"] != nil; hasLimits != (mode == limit.Shadow) {
				t.Errorf("%s: the context has limits: %v: %s", mode, hasLimits, r.text)
			}
		}
		w.expect(apigw.RESTRequest, withKey("revoked"), "unauthorized")
		if n := store.times.Load(); (n == 0) != (mode == limit.Off) {
			t.Errorf("%s: the store was asked %d times", mode, n)
		}
		if m, _ := w.metrics(); m["kill_switch"] != float64(mode) || m["decisions"] != calls+1 {
			t.Errorf("%s: metrics %v", mode, m)
		}
	}
}

// Guarantees that a request has one mode from beginning to end, even if the kill switch changes meanwhile: Config.Mode
// is called once for each request.
func TestModeOfOneRequest(t *testing.T) {
	n := 0
	w := newWorld(t, modePlans, func(s *setup) {
		s.authorizer.Mode = func() limit.Mode {
			n++
			return limit.Mode(n % 3)
		}
	})
	for i := 1; i <= 30; i++ {
		r := w.send(apigw.RESTRequest, withKey("acme"))
		if want := limit.Mode(i % 3); n != i ||
			r.context["mode"] != map[limit.Mode]any{limit.Shadow: "shadow", limit.Off: "off"}[want] {
			t.Fatalf("request %d, which was asked for %d times: %s, want %s", i, n, r.text, want)
		}
	}
}
