package sluice_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/dynamodbstore"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// budgets is a plan with requests and tokens a minute, tokens a day, bytes, and money a month. Its windows of a minute
// are buckets, so that no window ends while a test runs.
const budgets = `
plans:
  - id: p
    limits:
      - { id: rpm, algorithm: token_bucket, rate: 1, period: 1h, burst: 3 }
      - { id: tpm, unit: tokens, cost: { default: 100 }, algorithm: token_bucket, rate: 1, period: 1h, burst: 1000 }
      - { id: tpd, unit: tokens, cost: { default: 100 }, quota: { units: 1500, every: year } }
      - { id: sent, unit: bytes, cost: 0, algorithm: token_bucket, rate: 1, period: 1h, burst: 50 }
      - { id: spend, unit: micro-usd, cost: { default: 0 }, quota: { units: 2000, every: year } }
tenants: [ { id: acme, plan: p } ]
`

var leftOf = regexp.MustCompile(`"(\w+)";r=(\d+)`)

// left returns what is left of each limit that was asked.
func left(d *sluice.Decision) map[string]string {
	h := http.Header{}
	d.SetHeaders(h)
	out := map[string]string{}
	for _, m := range leftOf.FindAllStringSubmatch(h.Get("RateLimit"), -1) {
		out[m[1]] = m[2]
	}
	return out
}

// checkUnits decides about requests that spend several units, and checks that each is charged to all of their limits or
// to none.
func checkUnits(t *testing.T, l *sluice.Limiter) {
	t.Helper()
	for i, step := range []struct {
		cost  int64
		costs sluice.Costs
		limit string // that denies; "" for none
		unit  string
		left  map[string]string // what is left of the limits that were asked
	}{
		{0, nil, "", "", map[string]string{"rpm": "2", "tpm": "900", "tpd": "1400"}},
		{0, sluice.Costs{"tokens": 300, "micro-usd": 1500, "bytes": 0, "images": 7}, "", "",
			map[string]string{"rpm": "1", "tpm": "600", "tpd": "1100", "spend": "500"}},
		{0, sluice.Costs{"tokens": 601}, "tpm", "tokens", map[string]string{"rpm": "1", "tpm": "600", "tpd": "1100"}},
		{0, sluice.Costs{"micro-usd": 501, "tokens": 1, "bytes": 50}, "spend", "micro-usd",
			map[string]string{"rpm": "1", "tpm": "600", "tpd": "1100", "sent": "50", "spend": "500"}},
		{2, sluice.Costs{"tokens": 0}, "rpm", "requests", map[string]string{"rpm": "1"}},
		{0, sluice.Costs{"bytes": 51}, "sent", "bytes",
			map[string]string{"rpm": "1", "tpm": "600", "tpd": "1100", "sent": "50"}},
		{0, sluice.Costs{"requests": 0, "tokens": 600}, "", "", map[string]string{"tpm": "0", "tpd": "500"}},
		{1, sluice.Costs{"tokens": 0, "bytes": 50, "micro-usd": 500}, "", "",
			map[string]string{"rpm": "0", "sent": "0", "spend": "0"}},
		{0, sluice.Costs{"requests": 0, "tokens": 0}, "", "", map[string]string{}},
	} {
		d := l.Decide(t.Context(), acme, sluice.Request{Cost: step.cost, Costs: step.costs})
		if d.StoreFailed || d.Allowed != (step.limit == "") || fmt.Sprint(left(&d)) != fmt.Sprint(step.left) ||
			!d.Allowed && (d.Limit != step.limit || d.Unit != step.unit) {
			t.Fatalf("step %d, %v: %s by %q in %q, left %v; want %q in %q, left %v", i+1, step.costs, d.Reason, d.Limit,
				d.Unit, left(&d), step.limit, step.unit, step.left)
		}
	}
}

// Guarantees that the limits of all units are decided in one step, all or none, on every store and with leases.
func TestUnits(t *testing.T) {
	checkUnits(t, open(t, budgets, nil))
	t.Run("Redis", func(t *testing.T) {
		for _, noLeases := range []bool{true, false} {
			server := redistest.Start(t)
			l := open(t, budgets, func(c *sluice.Config) {
				c.Store, c.NoLeases, c.Now = openRedis(t, server.Addr), noLeases, time.Now
			})
			checkUnits(t, l)
			if !noLeases {
				continue
			}
			server.Kill()
			d := l.Decide(t.Context(), acme, sluice.Request{Costs: sluice.Costs{"requests": 0, "tokens": 1001}})
			if d.Reason != sluice.NeverFits || !d.StoreFailed || d.Limit != "tpm" || d.Unit != "tokens" {
				t.Errorf("without Redis: %+v", d)
			}
		}
	})
	t.Run("DynamoDB", func(t *testing.T) {
		client, done := dynamodbtest.Connect(dynamodbtest.Need(t))
		t.Cleanup(done)
		if err := dynamodbstore.Create(t.Context(), client, addressTable); err != nil {
			t.Fatal(err)
		}
		s, err := dynamodbstore.New(dynamodbstore.Config{Client: client, Table: addressTable,
			Namespace: fmt.Sprint(t.Name(), time.Now().UnixNano()), Timeout: patient})
		if err != nil {
			t.Fatal(err)
		}
		checkUnits(t, open(t, budgets, func(c *sluice.Config) { c.Store, c.NoLeases, c.Now = s, true, time.Now }))
	})
}

// Guarantees that the example plan of a language model limits requests, tokens and money together.
func TestExampleOfUnits(t *testing.T) {
	text, err := os.ReadFile("examples/plans/model-tokens.yaml")
	if err != nil {
		t.Fatal(err)
	}
	l := open(t, string(text), nil)
	for i, step := range []struct {
		costs sluice.Costs
		limit string // that denies
	}{
		{sluice.Costs{"tokens": 60_000, "micro-usd": 49_999_000}, ""},
		{sluice.Costs{"tokens": 50_000}, "tokens-per-minute"},
		{sluice.Costs{"tokens": 1, "micro-usd": 1001}, "spend"}, {nil, ""}, {sluice.Costs{"tokens": 39_000}, ""},
		{nil, "tokens-per-minute"}, {sluice.Costs{"tokens": 0}, ""},
	} {
		if d := l.Decide(t.Context(), acme, sluice.Request{Costs: step.costs}); d.Allowed != (step.limit == "") ||
			!d.Allowed && d.Limit != step.limit {
			t.Errorf("step %d, %v: %s by %s, want %q", i+1, step.costs, d.Reason, d.Limit, step.limit)
		}
	}
}

// Guarantees that ipLimits, which count calls, are charged one unit for each call, whatever the calls before it cost.
func TestAddressesCountCalls(t *testing.T) {
	l := open(t, budgets+"ipLimits: [ { id: calls, algorithm: fixed_window, period: 24h, threshold: 4 } ]\n", nil)
	from := sluice.Request{Peer: "192.0.2.1:1", Cost: 2, Costs: sluice.Costs{"tokens": 3}}
	for i := range 5 {
		d := l.Decide(t.Context(), acme, from)
		if denied := d.Reason == sluice.AddressLimited; denied != (i == 4) {
			t.Errorf("call %d: %s, want ip_limited only for the fifth", i+1, d.Reason)
		}
	}
}

// Guarantees that costs that cannot be charged are refused with an error that names the unit, and charge nothing.
func TestBadCosts(t *testing.T) {
	l := open(t, budgets, nil)
	for _, r := range []sluice.Request{
		{Cost: -1}, {Cost: math.MaxInt64}, {Costs: sluice.Costs{"tokens": -1}},
		{Costs: sluice.Costs{"tokens": 1<<40 + 1}}, {Costs: sluice.Costs{"tokens": math.MinInt64}},
		{Costs: sluice.Costs{"Tokens": 1}}, {Costs: sluice.Costs{strings.Repeat("t", 1000): 1}},
		{Cost: 1, Costs: sluice.Costs{"requests": 1}},
	} {
		d := l.Decide(t.Context(), acme, r)
		if d.Reason != sluice.Internal || !errors.Is(d.Err, sluice.ErrCost) {
			t.Errorf("%d, %.40v: %s, %v", r.Cost, r.Costs, d.Reason, d.Err)
		}
		for unit := range r.Costs {
			if !strings.Contains(d.Err.Error(), unit[:min(len(unit), 40)]) {
				t.Errorf("the error for %.40s does not name it: %v", unit, d.Err)
			}
		}
	}
	if d := l.Peek(t.Context(), acme, sluice.Request{}); fmt.Sprint(left(&d)) != "map[rpm:3 tpd:1500 tpm:1000]" {
		t.Errorf("bad costs were charged: left %v", left(&d))
	}
	d := l.Decide(t.Context(), acme, sluice.Request{Costs: sluice.Costs{"tokens": 1 << 40}})
	if d.Reason != sluice.NeverFits || d.RetryAfter != 0 {
		t.Errorf("a cost of 2^40 tokens: %+v", d)
	}
}
