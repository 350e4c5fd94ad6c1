package sluice_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Guarantees that a limiter in memory decides exactly about a tenant that it has never seen, after a flood of addresses
// that would fill its memory many times, and that no address is decided without the store: with `onStoreFailure: open`
// the flood would be admitted.
func TestFloodOfAddresses(t *testing.T) {
	const text = `
plans: [ { id: p, limits: [ { id: hourly, algorithm: fixed_window, threshold: 3, period: 1h } ] } ]
tenants: [ { id: acme, plan: p } ]
ipLimits:
  - { id: daily, algorithm: fixed_window, threshold: 1000, period: 24h, onStoreFailure: open }
  - { id: log, algorithm: sliding_log, threshold: 1000, period: 24h, onStoreFailure: open }
`
	now := time.Now()
	l := open(t, text, func(c *sluice.Config) {
		c.Memory = 1 << 20
		c.Now = func() time.Time { return now }
	})
	for i := range 20_000 { // some 500 bytes each
		now = now.Add(time.Millisecond) // in a log, each request has an entry of its own
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		d := l.Authorize(t.Context(), sluice.Request{Path: "/", Peer: addr.String()})
		if d.Reason != sluice.NoCredential && d.Reason != sluice.AddressLimited {
			t.Fatalf("address %d: %s, want a 401 or the limit of addresses", i, d.Reason)
		}
		if d.StoreFailed {
			t.Fatalf("address %d is decided without the store", i)
		}
	}
	for i := range 500 {
		who := sluice.Identity{Tenant: fmt.Sprint("tenant-", i), Plan: "p"}
		for n := range 4 {
			d := l.Decide(t.Context(), who, sluice.Request{Path: "/"})
			if d.StoreFailed || d.Allowed != (n < 3) {
				t.Fatalf("%s, request %d of 3 an hour: allowed %t, %s, decided without the store %t", who.Tenant, n+1,
					d.Allowed,
					d.Reason, d.StoreFailed)
			}
		}
	}
	if n := l.StoreFailures(); n != 0 {
		t.Errorf("%d decisions were made without the store", n)
	}
}

// Guarantees that one tenant, whose key anybody may have, cannot take the memory of all tenants with values that its
// limits count separately: the decisions for other tenants stay exact.
func TestOneTenantLeavesMemory(t *testing.T) {
	const text = `
plans:
  - id: p
    limits:
      - { id: each, per: subject, algorithm: fixed_window, threshold: 1, period: 24h, maxValues: 1000000 }
      - { id: hourly, algorithm: fixed_window, threshold: 100000, period: 1h }
`
	var log bytes.Buffer
	l := open(t, text, func(c *sluice.Config) {
		c.Memory, c.Log = 1<<20, slog.New(slog.NewTextHandler(&log, nil))
	})
	ask := func(tenant string, subject int) sluice.Decision {
		who := sluice.Identity{Tenant: tenant, Subject: fmt.Sprint("subject-", subject), Plan: "p"}
		return l.Decide(t.Context(), who, sluice.Request{Path: "/"})
	}
	const subjects = 20_000
	for i := range subjects {
		if d := ask("one", i); d.StoreFailed {
			t.Fatalf("subject %d is decided without the store", i)
		}
	}
	for i := range 200 {
		for n := range 2 {
			if d := ask(fmt.Sprint("tenant-", i), 1); d.StoreFailed || d.Allowed != (n == 0) {
				t.Fatalf("tenant %d, request %d of 1 a day: allowed %t, decided without the store %t", i, n+1,
					d.Allowed,
					d.StoreFailed)
			}
		}
	}
	if !strings.Contains(log.String(), "tenant=one") {
		t.Errorf("the log does not name the tenant:\n%s", log.String())
	}
}

// Guarantees that the default memory holds as many addresses as `sluice check` and docs/plans.md say: further addresses
// share counters, and the log says so.
func TestAddressesByDefault(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("140,000 requests of one goroutine, in which the race detector finds nothing")
	}
	const addressesByDefault = 130_000 // the number is also in package plan, which knows no store
	var log bytes.Buffer
	l := open(t, "ipLimits: [ { id: daily, algorithm: fixed_window, threshold: 9, period: 24h } ]\n",
		func(c *sluice.Config) {
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
		})
	for i := range 140_000 {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		l.Authorize(t.Context(), sluice.Request{Path: "/", Peer: addr.String()})
		if shared := strings.Contains(log.String(), "new ones share counters"); i < addressesByDefault && shared ||
			i == 139_999 && !shared {
			t.Fatalf("after %d addresses the log says that new ones share counters: %t", i+1, shared)
		}
	}
}

// Guarantees that the plans set which part of an IPv6 address is counted: by default all addresses of a /64 are one.
func TestIPv6Prefix(t *testing.T) {
	const ipLimits = "ipLimits: [ { id: daily, algorithm: fixed_window, threshold: 1, period: 24h } ]\n"
	for _, tt := range []struct {
		plans, first, second string
		together             bool
	}{
		{"", "2001:db8:1:2::1", "2001:db8:1:2:3::1", true},
		{"", "2001:db8:1:2::1", "2001:db8:1:3::1", false},
		{"ipv6Prefix: 48\n", "2001:db8:1:2::1", "2001:db8:1:3::1", true},
		{"ipv6Prefix: 48\n", "2001:db8:1:2::1", "2001:db8:2:2::1", false},
		{"ipv6Prefix: 128\n", "2001:db8:1:2::1", "2001:db8:1:2::2", false},
		{"ipv6Prefix: 32\n", "192.0.2.1", "192.0.2.2", false},
		{"ipv6Prefix: 32\n", "192.0.2.1", "::ffff:192.0.2.1", true},
		{"ipv6Prefix: 48\n", "[2001:db8:1:2::1]:443", "2001:db8:1:3::1%eth0", true},
	} {
		l := open(t, ipLimits+tt.plans, nil)
		allowed := func(peer string) bool {
			d := l.Authorize(t.Context(), sluice.Request{Path: "/", Peer: peer})
			return d.Allowed
		}
		if !allowed(tt.first) {
			t.Errorf("%q: the first request, of %s, is denied", tt.plans, tt.first)
		}
		if got := !allowed(tt.second); got != tt.together {
			t.Errorf("%q: %s and %s are counted as one: %t, want %t", tt.plans, tt.first, tt.second, got, tt.together)
		}
	}
}
