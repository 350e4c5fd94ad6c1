package bench

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// requestLoad is the whole decision about a request: address, key, tenant, plan, three limits, and the answer's headers.
type requestLoad struct {
	authorizer *authorizer.Authorizer
	requests   []authorizer.Request
}

const requestTenants = 100

func newRequestLoad() (*requestLoad, error) {
	var text strings.Builder
	text.WriteString(`plans:
  - id: pro
    limits:
      - { id: second, algorithm: token_bucket, rate: 1000000, period: 1s, burst: 1000000000 }
      - { id: minute, algorithm: token_bucket, rate: 60000000, period: 1m, burst: 1000000000 }
      - id: product
        match: { methods: [GET], pathPattern: "/product/*" }
        tiers: [ { period: 10s, threshold: 1000000000 } ]
ipLimits:
  - { id: address, algorithm: token_bucket, rate: 1000000, period: 1s, burst: 1000000000 }
tenants:
`)
	for i := range requestTenants {
		fmt.Fprintf(&text, "  - { id: tenant-%d, plan: pro }\n", i)
	}
	config, err := plan.Parse(configyaml.Source("bench.yaml", []byte(text.String())))
	if err != nil {
		return nil, err
	}
	pepper := identity.DevPepper()
	var keys []identity.Key
	var l requestLoad
	for i := range requestTenants {
		tenant := fmt.Sprintf("tenant-%d", i)
		key := identity.ExampleKey(tenant)
		keys = append(keys, identity.Key{
			ID: "key-" + tenant, Tenant: tenant, Hash: identity.HashKey(pepper, key), Pepper: "dev",
		})
		l.requests = append(l.requests, authorizer.Request{
			Method: http.MethodGet, Path: fmt.Sprintf("/product/%d", i), Peer: fmt.Sprintf("192.0.2.%d:4711", i),
			Header: http.Header{"X-Api-Key": {key}, "Accept": {"*/*"}, "User-Agent": {"bench"}},
		})
	}
	known, err := identity.NewKeys(keys, map[string][]byte{"dev": pepper})
	if err != nil {
		return nil, err
	}
	store, err := memory.New(memory.Config{})
	if err != nil {
		return nil, err
	}
	snapshot := &authorizer.Snapshot{Config: config, Keys: known}
	l.authorizer, err = authorizer.New(authorizer.Config{
		Source: authorizer.Current(func() *authorizer.Snapshot { return snapshot }), Store: store,
	})
	return &l, err
}

// run decides ops requests in turn and writes each answer's headers. The error says which was not what it should be.
func (l *requestLoad) run(ops int) error {
	ctx := context.Background()
	for i := range ops {
		req := &l.requests[i%len(l.requests)]
		a := l.authorizer.Authorize(ctx, req)
		header := make(http.Header, 8) // a server makes one for each answer
		a.Header.Set(header)
		allowed, limits := a.Allowed(), 0
		if d := a.Decision(); d != nil {
			limits = len(d.Results)
		}
		a.Release()
		if !allowed || limits != 3 || len(header) < 5 {
			return fmt.Errorf("request %d: allowed %t by %d limits with headers %v, want 3 limits and all headers",
				i, allowed, limits, header)
		}
	}
	return nil
}

// requestFigure is the processor time from a parsed request to its answer's headers.
func requestFigure(short bool) (Result, error) {
	l, err := newRequestLoad()
	if err != nil {
		return Result{}, err
	}
	rounds, each := loadFor(short).rounds, 10_000
	var times []float64
	for range rounds {
		began := processorTime()
		if err := l.run(each); err != nil {
			return Result{}, err
		}
		times = append(times, float64(processorTime()-began)/float64(each))
	}
	r := Result{Value: median(times)}
	r.note("parsed request to answer's headers: address limit, API key, %d tenants, 3 limits; processor time", requestTenants)
	return r, nil
}
