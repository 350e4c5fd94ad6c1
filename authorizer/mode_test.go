package authorizer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/apigw"
	"github.com/sluicelimits/sluice/internal/identity"
	"github.com/sluicelimits/sluice/internal/limit"
)

// in has the limits of a world in a mode.
func in(m limit.Mode) func(*setting) {
	return func(s *setting) { s.authorizer.Mode = func() limit.Mode { return m } }
}

// byLimits are the decisions that are made of limits: those that no other mode than enforce makes.
var byLimits = []string{"limited", "ip_limited", "never_fits", "unavailable", "not_here"}

const modePlans = plans + `
ipLimits:
  - { id: per-address, algorithm: token_bucket, rate: 1, period: 2s, burst: 6 }
`

// Guarantees that shadow is enforce, but for the denying: over any traffic, with a store and without, each call that enforce
// denies by a limit passes marked with that very decision, each other has the answer that enforce gives, and the headers say the same
// is left. So what is charged is the same too, call by call, and what shadow counts is what enforce would have denied.
func TestShadowIsEnforceWithoutDenials(t *testing.T) {
	for seed := range uint64(2) {
		random := rand.New(rand.NewPCG(seed, 8))
		enforcing, shadow := newWorld(t, modePlans, in(limit.Enforce)), newWorld(t, modePlans, in(limit.Shadow))
		worlds := []*world{enforcing, shadow}
		if seed%2 == 1 { // for good: when a store that came back is asked again is a matter of chance
			enforcing.away()
			shadow.away()
		}
		denied, refused := map[string]int{}, 0 // refused: by the address's limit where enforced, and for who calls in shadow
		for range 150 {
			pass := time.Duration(random.IntN(200)) * time.Millisecond
			c := by([]string{"acme", "globex", "strict", "lax", "initech", "nobody", "revoked"}[random.IntN(7)])
			if random.IntN(6) == 0 {
				c.header = append(c.header, "X-Query-Cost", fmt.Sprint(1+random.IntN(14)))
			}
			c.peer = fmt.Sprintf("198.51.100.%d", 1+random.IntN(16))
			for _, w := range worlds {
				w.pass(pass)
			}
			e, s := enforcing.send(apigw.HTTP1, c), shadow.send(apigw.HTTP1, c)
			want, spared := e.decision, any(nil)
			if slices.Contains(byLimits, e.decision) {
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
			for _, name := range []string{"rateLimit", "rateLimitPolicy", "rateLimitRemaining", "rateLimitReset", "storeFailed", "binding"} {
				if s.context[name] != e.context[name] {
					t.Fatalf("seed %d, %s: %s is %v in shadow, and %v where enforced", seed, e.decision, name, s.context[name], e.context[name])
				}
			}
			if s.context["mode"] != "shadow" || e.context["mode"] != nil || s.allow && s.context["retryAfter"] != nil {
				t.Fatalf("seed %d: marked %s and %s", seed, s.text, e.text)
			}
		}
		if len(denied) < 3 || seed%2 == 1 && denied["unavailable"] == 0 {
			t.Fatalf("seed %d: only %v were denied; the script tests too little", seed, denied)
		}
		compareCounts(t, enforcing, shadow, refused)
	}
}

// refusals are what becomes of keys for another reason than a limit.
var refusals = map[string]string{
	identity.ExampleKey("initech"): "suspended_tenant", identity.ExampleKey("nobody"): "unknown_tenant", identity.ExampleKey("revoked"): "unauthorized",
}

// compareCounts holds what the two have counted against each other; so many calls were refused in shadow for who called.
func compareCounts(t *testing.T, enforcing, shadow *world, refused int) {
	t.Helper()
	e, byEnforce := enforcing.metrics()
	s, byShadow := shadow.metrics()
	if e["enforce_denied"] == 0 || s["enforce_denied"] != 0 || s["kill_switch"] == 0 || e["kill_switch"] != 0 {
		t.Errorf("enforce_denied %v and %v, kill_switch %v and %v", e["enforce_denied"], s["enforce_denied"], e["kill_switch"], s["kill_switch"])
	}
	if s["kill_switch_spared"]+float64(refused) != e["enforce_denied"] || e["kill_switch_spared"] != 0 {
		t.Errorf("%v were spared, and enforce denied %v", s["kill_switch_spared"], e["enforce_denied"])
	}
	for id, n := range byEnforce {
		if id == "ip:per-address" {
			n["denied"] -= refused
		}
		if byShadow[id]["shadow_denied"] != n["denied"] || byShadow[id]["denied"] != 0 {
			t.Errorf("limit %s: enforce denied %d, shadow tells %v", id, n["denied"], byShadow[id])
		}
	}
	if lines := shadow.records("passed in shadow"); len(lines) != int(s["kill_switch_spared"]) || lines[0]["mode"] != "shadow" || lines[0]["outcome"] == "allowed" {
		t.Errorf("%d lines on %v calls: %v", len(lines), s["kill_switch_spared"], lines[:min(len(lines), 1)])
	}
}

// Guarantees, for each outcome that there is, that no mode lets a bad credential through, nor a tenant that is suspended or has no plan,
// and that in no mode but enforce a limit denies.
func TestModesOfEachOutcome(t *testing.T) {
	for _, mode := range []limit.Mode{limit.Shadow, limit.Off} {
		kept, passed := 0, 0
		for _, c := range outcomes() {
			for _, shape := range without(c.not...) {
				settings := []func(*setting){in(mode)}
				if c.set != nil {
					settings = append(settings, c.set)
				}
				w := newWorld(t, allPlans+c.plans, settings...)
				if c.prepare != nil {
					c.prepare(w)
				}
				want := c.want
				if slices.Contains(byLimits, want) || want == "internal" { // ipLimits of an authorizer that sees no address
					want = "allowed"
					passed++
				} else if want != "allowed" {
					kept++
				}
				r := w.want(shape, c.call, want)
				if r.decision != "unauthorized" && r.context["mode"] != mode.String() {
					t.Errorf("%s, %s, %s: not marked: %s", mode, c.name, shape, r.text)
				}
			}
		}
		if kept == 0 || passed == 0 {
			t.Fatalf("%s: %d outcomes stay, %d do not; nothing is tested", mode, kept, passed)
		}
	}
}

// asked counts what a store is asked.
type asked struct {
	limit.Store
	times atomic.Int64
}

func (s *asked) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	s.times.Add(1)
	return s.Store.Decide(ctx, req, now, d)
}

func (s *asked) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	s.times.Add(1)
	return s.Store.Peek(ctx, req, now, d)
}

// Guarantees that in off no store is asked, and nothing is told of limits: whoever turns a cell off takes all load from its stores. In
// shadow each call asks, which shows that the count sees it.
func TestOffAsksNoStore(t *testing.T) {
	for _, mode := range []limit.Mode{limit.Off, limit.Shadow} {
		var store *asked
		w := newWorld(t, modePlans, in(mode), func(s *setting) {
			store = &asked{Store: s.authorizer.Store}
			s.authorizer.Store = store
		})
		const calls = 20
		for range calls {
			r := w.want(apigw.RESTRequest, by("acme"), "allowed")
			if told := r.context["rateLimit"] != nil; told != (mode == limit.Shadow) {
				t.Errorf("%s: told of limits: %v: %s", mode, told, r.text)
			}
		}
		w.want(apigw.RESTRequest, by("revoked"), "unauthorized")
		if n := store.times.Load(); (n == 0) != (mode == limit.Off) {
			t.Errorf("%s: the store was asked %d times", mode, n)
		}
		if m, _ := w.metrics(); m["kill_switch"] != float64(mode) || m["decisions"] != calls+1 {
			t.Errorf("%s: metrics %v", mode, m)
		}
	}
}

// Guarantees that a request is in one mode from its beginning to its end, however the switch moves meanwhile: it is asked once for each.
func TestModeOfOneRequest(t *testing.T) {
	n := 0
	w := newWorld(t, modePlans, func(s *setting) {
		s.authorizer.Mode = func() limit.Mode {
			n++
			return limit.Mode(n % 3)
		}
	})
	for i := 1; i <= 30; i++ {
		r := w.send(apigw.RESTRequest, by("acme"))
		if want := limit.Mode(i % 3); n != i || r.context["mode"] != map[limit.Mode]any{limit.Shadow: "shadow", limit.Off: "off"}[want] {
			t.Fatalf("request %d, which was asked for %d times: %s, want %s", i, n, r.text, want)
		}
	}
}
