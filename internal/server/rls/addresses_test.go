package rls_test

import (
	"context"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/server/rls"
)

// ownersOf is a store that remembers the names of the owners that were charged.
type ownersOf struct {
	limit.Store

	names []string
}

// Decide implements [limit.Store].
func (o *ownersOf) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	o.names = append(o.names, req.Owner.Name)
	return o.Store.Decide(ctx, req, now, d)
}

const addressLimits = `
domain: d
descriptors:
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: remote_address, value: 192.0.2.7, rate_limit: {unit: minute, requests_per_unit: 4}}
  - {key: remote_address, value: '2001:db8:7::7', rate_limit: {unit: minute, requests_per_unit: 4}}
  - {key: remote_address, value: 2001:db8:8::*, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: masked_remote_address, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 2}}
`

// Guarantees that no address of a client is in the name of a counter; that the IPv6 addresses of a network have one
// counter, unless the service is told otherwise; that addresses and networks which a rule names keep that rule, and a
// counter of their own; and that statistics have the names of envoyproxy/ratelimit.
func TestAddressesHaveNames(t *testing.T) {
	for _, c := range []struct {
		prefix   int
		requests string // entries of one request after the other
		want     string // how many of them are admitted, in their order
	}{
		{0, "remote_address=192.0.2.1 remote_address=192.0.2.1 remote_address=192.0.2.1", "110"},
		{0, "remote_address=192.0.2.1 remote_address=192.0.2.2 remote_address=192.0.2.3", "111"},
		{0, "remote_address=192.0.2.1 remote_address=::ffff:192.0.2.1 remote_address=192.0.2.1", "110"},
		{0, "remote_address=2001:db8::1 remote_address=2001:db8::2 remote_address=2001:DB8::3", "110"},
		{0, "remote_address=2001:db8::1 remote_address=2001:db8:0:1::1 remote_address=2001:db8:0:2::1", "111"},
		{128, "remote_address=2001:db8::1 remote_address=2001:db8::2 remote_address=2001:db8::3", "111"},
		{48, "remote_address=2001:db8::1 remote_address=2001:db8:0:1::1 remote_address=2001:db8:0:2::1", "110"},
		// a rule that names the address
		{0, "remote_address=192.0.2.7 remote_address=192.0.2.7 remote_address=192.0.2.7 remote_address=192.0.2.7 " +
			"remote_address=192.0.2.7", "11110"},
		{0, "remote_address=2001:db8:7::1 remote_address=2001:db8:7::2 remote_address=2001:db8:7::7 " +
			"remote_address=2001:db8:7::7 remote_address=2001:db8:7::7 remote_address=2001:db8:7::3", "111110"},
		{0, "remote_address=2001:db8:8::1 remote_address=2001:db8:8::1 remote_address=2001:db8:8::1 " +
			"remote_address=2001:db8:8::2", "1111"},
		// networks
		{0, "masked_remote_address=192.0.2.0/24 masked_remote_address=192.0.2.0/25 " +
			"masked_remote_address=192.0.2.0/24 masked_remote_address=192.0.2.0/24", "1110"},
		{0, "masked_remote_address=2001:db8::/48 masked_remote_address=2001:db8::/56 " +
			"masked_remote_address=2001:db8::1/128 masked_remote_address=2001:db8::2/128 " +
			"masked_remote_address=2001:db8::3/128", "11110"},
		// what is no address
		{0, "remote_address=unknown remote_address=unknown remote_address=other remote_address=unknown", "1110"},
		{0, "masked_remote_address=10.0.0.0/x masked_remote_address=10.0.0.0/99", "11"},
	} {
		own := memorytest.New(t)
		store := &ownersOf{Store: own}
		w := newWorld(t, rls.Config{Store: store, Addresses: identity.NewAnonymiser(), IPv6Prefix: c.prefix},
			addressLimits)
		got := ""
		for _, entries := range strings.Fields(c.requests) {
			code := w.ask(descriptor(entries)).GetOverallCode()
			got += map[bool]string{true: "1", false: "0"}[code == rlsv3.RateLimitResponse_OK]
		}
		if got != c.want {
			t.Errorf("IPv6 prefix %d: %s: admitted %s, want %s", c.prefix, c.requests, got, c.want)
		}
		for _, name := range store.names {
			if strings.Contains(name, "192.0.2") || strings.Contains(strings.ToLower(name), "2001:db8") {
				t.Errorf("%s: the counter %q has an address in its name", c.requests, name)
			}
		}
		if len(store.names) == 0 {
			t.Errorf("%s: nothing was counted", c.requests)
		}
	}
	for _, prefix := range []int{-1, 129} {
		if _, err := rls.New(rls.Config{Store: new(ownersOf), IPv6Prefix: prefix}); err == nil {
			t.Errorf("IPv6Prefix %d is taken", prefix)
		}
	}
}
