package operate_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
)

const lossy = plans + `
  - { id: gone, plan: free, suspended: true, cells: [eu-1],
      boosts: [ { id: burst, factor: 2, until: 2026-12-01T00:00:00Z } ] }
ipLimits: [ { id: per-address, algorithm: token_bucket, rate: 50, period: 1s } ]
ipv6Prefix: 48
anonymousPlan: free
routes: [ { methods: [PUT, GET], pathPattern: "/product/*" } ]
keys: [ { id: k1, tenant: acme, hash: 0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0,
      pepper: dev, expires: 2030-01-01T00:00:00Z } ]
`

// Guarantees that the server enforces the rule for every caller: a change that removes or weakens something is
// refused, with everything that is lost, unless the call says that the operator has agreed. Yes alone, which some
// commands send without showing the losses, is not enough. The cases are calls that an older command sends for a file
// that does not name what the server has.
func TestNothingIsLostWithoutAgreement(t *testing.T) {
	const key = `"hash":"0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0","pepper":"dev"`
	for name, c := range map[string]struct {
		change string
		want   []string // everything that is lost
	}{
		"settings": {`{"table":"plans","key":"` + events.SettingsKey + `","expect":1,"body":{}}`, []string{
			"removes limit per-address (token_bucket: 50 per 1s) from settings: ipLimits",
			"weakens settings: ipv6Prefix rises from 48 to 64, so a network of IPv6 has more counters",
			"removes anonymousPlan (free) from settings: calls without a credential get 401",
			"removes the route GET, PUT /product/* from settings",
			"weakens settings: no route is declared, so every request is passed on",
		}},
		"another anonymous plan": {`{"table":"plans","key":"` + events.SettingsKey +
			`","expect":1,"body":{"anonymousPlan":"pro","ipv6Prefix":40,"ipLimits":[{"id":"per-address",` +
			`"algorithm":"token_bucket","rate":50,"period":"1s"}],` +
			`"routes":[{"methods":["PUT","GET"],"pathPattern":"/product/*"}]}}`, []string{
			"weakens settings: calls without a credential: limit burst: rate rises from 10 to 100 per 1s",
			"weakens settings: calls without a credential: limit burst: burst rises from 20 to 200",
		}},
		"an override": {`{"table":"tenants","key":"acme","expect":1,"body":{"id":"acme","plan":"pro"}}`, []string{
			`removes the override of limit burst (rate 500) from tenant "acme"`,
		}},
		"a setting of an override": {`{"table":"tenants","key":"acme","expect":1,"body":{"id":"acme","plan":"pro",` +
			`"overrides":[{"id":"burst","burst":100}]}}`, []string{
			`removes rate 500 of the override of limit burst from tenant "acme"`,
		}},
		"a suspension, a boost and cells": {`{"table":"tenants","key":"gone","expect":1,"body":{"id":"gone",` +
			`"plan":"free"}}`, []string{
			`weakens tenant "gone": the tenant is resumed`,
			`removes cells (eu-1) from tenant "gone": every cell serves the tenant`,
			`removes the boost of limit burst ×2 until 2026-12-01T00:00:00Z from tenant "gone"`,
		}},
		"a longer boost": {`{"table":"tenants","key":"gone","expect":1,"body":{"id":"gone","plan":"free",` +
			`"suspended":true,"cells":["eu-1"],"boosts":[{"id":"burst","factor":2.5,` +
			`"until":"2026-12-01T00:00:00Z"}]}}`, []string{
			`weakens tenant "gone": the boost of limit burst ×2 until 2026-12-01T00:00:00Z becomes one of limit ` +
				`burst ×2.5 until 2026-12-01T00:00:00Z`,
		}},
		"a tenant": {`{"table":"tenants","key":"acme","expect":1,"delete":true}`, []string{`removes tenant "acme"`}},
		"a limit": {`{"table":"plans","key":"pro","expect":1,"body":{"id":"pro","limits":[{"id":"burst",` +
			`"algorithm":"token_bucket","rate":101,"period":"1s","burst":200}]}}`, []string{
			`weakens plan "pro": limit burst: rate rises from 100 to 101 per 1s`,
			`removes limit writes (fixed_window: 60 per 1m, mode shadow) from plan "pro"`,
		}},
		"a key that never ends": {`{"table":"keys","key":"k1","expect":1,"body":{"id":"k1","tenant":"acme",` + key +
			`}}`, []string{
			`weakens key "k1": it never expires instead of at 2030-01-01T00:00:00Z`,
		}},
		"another tenant's key": {`{"table":"keys","key":"k1","expect":1,"body":{"id":"k1","tenant":"gone",` +
			`"expires":"2030-01-01T00:00:00Z",` + key + `}}`, []string{
			`weakens key "k1": it moves to tenant "gone" from tenant "acme"`,
		}},
		"a stricter plan": {`{"table":"plans","key":"free","expect":1,"body":{"id":"free","limits":[{"id":"burst",` +
			`"algorithm":"token_bucket","rate":9,"period":"1s","burst":20}]}}`, nil},
		"a stricter tenant": {`{"table":"tenants","key":"acme","expect":1,"body":{"id":"acme","plan":"pro",` +
			`"suspended":true,"overrides":[{"id":"burst","rate":400}]}}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.seed(lossy)
			h := operate.Local(w.Control.Mux(), "ann@local")
			body := func(more string) string {
				return fmt.Sprintf(`{"reason":"nightly","changes":[%s]%s}`, c.change,
					more)
			}
			var dry operate.ApplyResponse
			answer := post(t, h, "/documents/preview", fmt.Sprintf(`{"changes":[%s]}`, c.change))
			if err := json.Unmarshal([]byte(answer), &dry); err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, result := range dry.Results {
				for _, l := range result.Losses {
					lines = append(lines, l.String())
				}
			}
			if got, want := strings.Join(lines, "\n"), strings.Join(c.want, "\n"); got != want {
				t.Errorf("a preview says\n%s\nwant\n%s", got, want)
			}
			if c.want != nil {
				answer := post(t, h, "/apply", body(`,"yes":true`))
				if !strings.Contains(answer, `"code":"confirm"`) || w.tables.puts != 0 {
					t.Errorf("with only yes: got %s and %d writes, want that losses need a confirmation, and no write",
						answer, w.tables.puts)
				}
				var refused struct{ Error operate.Error }
				if err := json.Unmarshal([]byte(answer), &refused); err != nil || strings.Join(refused.Error.Problems,
					"\n") != strings.Join(c.want, "\n") {
					t.Errorf("with only yes it says %q, %v; want %q", refused.Error.Problems, err, c.want)
				}
			}
			more := `,"yes":true,"accept_losses":true`
			if c.want == nil {
				more = ""
			}
			if answer := post(t, h, "/apply", body(more)); !strings.Contains(answer, `"written":1`) {
				t.Errorf("with agreement: got %s, want 1 written", answer)
			}
		})
	}
}

// Guarantees that operations that name what they end need no further agreement: ending an override, a boost and a
// suspension.
func TestOperationsThatNameWhatEnds(t *testing.T) {
	w := newWorld(t)
	w.seed(lossy)
	ctx := t.Context()
	if _, err := w.SetTenant(ctx, ann, &operate.SetTenantRequest{Tenant: "acme", Drop: []string{"burst"},
		Reason: "x"}); err != nil {
		t.Error(err)
	}
	if _, err := w.RemoveBoost(ctx, ann, &operate.RemoveBoostRequest{Tenant: "gone", Limit: "burst",
		Reason: "x"}); err != nil {
		t.Error(err)
	}
	if _, err := w.Resume(ctx, ann, &operate.TenantRequest{Tenant: "gone", Reason: "x"}); err != nil {
		t.Error(err)
	}
	if got := w.body(control.Tenants, "gone"); got != `{"cells":["eu-1"],"id":"gone","plan":"free"}` {
		t.Errorf("got the tenant gone as %s, want its cells, id and plan alone", got)
	}
}

// Guarantees that the first settings of a server need agreement too if they admit calls without a credential.
func TestTheFirstSettings(t *testing.T) {
	w := newWorld(t)
	if err := w.apply(control.Plans, "free", 0, `{"id":"free","limits":[]}`); err != nil {
		t.Fatal(err)
	}
	w.tables.puts = 0
	const says = "weakens settings: anonymousPlan goes from none to free, so calls without a credential are admitted"
	change := operate.Change{Table: control.Plans, Key: events.SettingsKey,
		Body: json.RawMessage(`{"anonymousPlan":"free"}`)}
	_, err := w.Apply(t.Context(), ann, &operate.ApplyRequest{Reason: "x", Yes: true,
		Changes: []operate.Change{change}})
	w.refused(err, operate.Confirm, says)
	change.Body = json.RawMessage(`{"ipLimits":[{"id":"a","algorithm":"token_bucket","rate":1,"period":"1s"}]}`)
	if _, err := w.Apply(t.Context(), ann, &operate.ApplyRequest{Reason: "x",
		Changes: []operate.Change{change}}); err != nil {
		t.Errorf("without a loss: got the error %v, want none", err)
	}
}
