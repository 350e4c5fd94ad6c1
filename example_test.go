package sluice_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/sluicelimits/sluice"
)

const plans = `
plans:
  - id: free
    limits:
      - { id: burst, algorithm: token_bucket, rate: 1, period: 1s, burst: 2 }
      - { id: daily, quota: { units: 1000, every: day, timezone: UTC } }
tenants:
  - { id: acme, plan: free }
`

func Example() {
	limiter, err := sluice.New(sluice.Config{PlansData: []byte(plans)})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = limiter.Close(context.Background()) }()

	for range 3 {
		d := limiter.Decide(context.Background(), sluice.Identity{Tenant: "acme"},
			sluice.Request{Method: "GET", Path: "/product/1"})
		fmt.Println(d.Allowed, d.Reason, d.Limit, d.Remaining, d.RetryAfter > 0)
	}
	// Output:
	// true allowed burst 1 false
	// true allowed burst 0 false
	// false limited burst 0 true
}

// Tenants in the program's own database, which are not in the plans, are decided with the id of their plan.
func ExampleLimiter_Decide_plan() {
	limiter, err := sluice.New(sluice.Config{PlansData: []byte(plans)})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = limiter.Close(context.Background()) }()

	who := sluice.Identity{Tenant: "globex", Subject: "hank", Plan: "free"}
	d := limiter.Decide(context.Background(), who, sluice.Request{Cost: 2})
	fmt.Println(d.Allowed, d.Plan, d.Remaining)

	d = limiter.Decide(context.Background(), sluice.Identity{Tenant: "initech"}, sluice.Request{})
	fmt.Println(d.Allowed, d.Reason, d.Status())
	// Output:
	// true free 0
	// false unknown_tenant 403
}

// A request spends requests, tokens and money, and all of their limits are charged, or none.
func ExampleLimiter_Decide_units() {
	limiter, err := sluice.New(sluice.Config{PlansData: []byte(`
plans:
  - id: model
    limits:
      - { id: rpm, algorithm: fixed_window, period: 1m, threshold: 60 }
      - { id: tpd, unit: tokens, cost: { default: 1000 }, quota: { units: 2000, every: day } }
      - { id: spend, unit: micro-usd, cost: { default: 0 }, quota: { units: 50000000, every: month } }
tenants: [ { id: acme, plan: model } ]
`)})
	if err != nil {
		log.Fatal(err)
	}
	ctx, who := context.Background(), sluice.Identity{Tenant: "acme"}
	defer func() { _ = limiter.Close(ctx) }()

	for range 2 {
		d := limiter.Decide(ctx, who, sluice.Request{Costs: sluice.Costs{"tokens": 1200, "micro-usd": 900}})
		fmt.Println(d.Allowed, d.Limit, d.Remaining, d.Unit)
	}
	// Output:
	// true tpd 800 tokens
	// false tpd 800 tokens
}

// A call reserves what it may use, and is charged what it has used.
func ExampleLimiter_Reserve() {
	const tokens = `
plans: [ { id: pro, limits: [
  { id: tpm, unit: tokens, cost: { default: 1000 }, algorithm: sliding_window, threshold: 2000, period: 1m } ] } ]
tenants: [ { id: acme, plan: pro } ]`
	limiter, err := sluice.New(sluice.Config{PlansData: []byte(tokens),
		Now: func() time.Time { return time.Unix(1_800_000_000, 0) }})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer func() { _ = limiter.Close(ctx) }()

	acme := sluice.Identity{Tenant: "acme"}
	d, reservation := limiter.Reserve(ctx, acme, sluice.Request{}, sluice.Costs{"tokens": 1500}, 10*time.Minute)
	fmt.Println("left:", d.Remaining)

	s, err := limiter.Settle(ctx, reservation, sluice.Costs{"tokens": 300})
	fmt.Println("given back:", s.Returned, err)
	fmt.Println("left:", limiter.Peek(ctx, acme, sluice.Request{}).Remaining)
	// Output:
	// left: 500
	// given back: map[tpm:1200] <nil>
	// left: 1700
}

// Prometheus reads the metrics of a limiter.
func ExampleLimiter_WriteMetrics() {
	limiter, err := sluice.New(sluice.Config{PlansData: []byte(plans), Measure: true})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = limiter.Close(context.Background()) }()
	limiter.Decide(context.Background(), sluice.Identity{Tenant: "acme"}, sluice.Request{})

	http.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", sluice.MetricsType)
		_ = limiter.WriteMetrics(w)
	})
	scrape := httptest.NewRecorder()
	http.DefaultServeMux.ServeHTTP(scrape, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(scrape.Body.String()) {
		if strings.Contains(line, "_count") {
			fmt.Print(line)
		}
	}
	// Output:
	// sluice_decision_seconds_count{reason="allowed"} 1
}

// All errors of plans are reported at once, each with its place.
func ExampleNew_badPlans() {
	const plans = "plans:\n  - id: free\n    limits: [ { id: burst, algorithm: fixed_window, threshold: 5, perod: 1s " +
		"} ]\n"
	_, err := sluice.New(sluice.Config{PlansData: []byte(plans)})
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
	}
	// Output:
	// sluice: bad plans: plans:3:67: plans[0].limits[0]: unknown key "perod" in a limit (did you mean "period"?)
}
