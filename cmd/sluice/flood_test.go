package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluicelimits/sluice/internal/request/identity"
)

// Guarantees that the gateway of `sluice dev` decides exactly for tenants that it has not seen before, even after
// requests from so many addresses that their counters would fill its memory.
func TestDevAfterAFloodOfAddresses(t *testing.T) {
	t.Parallel()
	const flood, tenants = 4000, 20 // 1 MB holds some 2000 owners
	var b strings.Builder
	b.WriteString("plans: [ { id: p, limits: [ { id: daily, quota: { units: 2, every: month } } ] } ]\n" +
		"ipLimits:\n  - { id: per-address, algorithm: fixed_window, threshold: 1000, period: 24h }\n" +
		"  - { id: log, algorithm: sliding_log, threshold: 1000, period: 24h }\ntenants:\n")
	for i := range tenants {
		fmt.Fprintf(&b, "  - { id: tenant-%d, plan: p }\n", i)
	}
	b.WriteString("keys:\n")
	for i := range tenants {
		fmt.Fprintf(&b, "  - { id: k%d, tenant: tenant-%d, hash: %s, pepper: dev }\n", i, i,
			identity.HashKey(identity.DevPepper(), identity.ExampleKey(fmt.Sprint("tenant-", i))))
	}
	file := filepath.Join(t.TempDir(), "plans.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startDev(t, "--plans", file, "--store-mb", "1", "--trusted-hops", "1")
	ask := func(from int, key string) int {
		req, err := http.NewRequest("GET", r.base+"/product/1", nil)
		if err != nil {
			t.Error(err)
			return 0
		}
		req.Header.Set("X-Forwarded-For", fmt.Sprintf("2001:db8:%x:%x::1", from>>16, from&0xffff))
		if key != "" {
			req.Header.Set("X-API-Key", key)
		}
		code, _, _, err := send(req)
		if err != nil {
			t.Error(err)
		}
		return code
	}
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			for i := g; i < flood && !t.Failed(); i += 2 {
				if code := ask(i, ""); code != http.StatusUnauthorized && code != http.StatusTooManyRequests {
					t.Errorf("address %d: status %d, want 401 or 429", i, code)
				}
			}
		})
	}
	wg.Wait()
	for i := range tenants {
		for n, want := range []int{200, 200, 429} {
			if code := ask(0, identity.ExampleKey(fmt.Sprint("tenant-", i))); code != want {
				t.Errorf("tenant-%d, request %d of a quota of 2: status %d, want %d", i, n+1, code, want)
			}
		}
	}
	if log := r.stderr.String(); strings.Contains(log, "cannot decide") ||
		!strings.Contains(log, "new ones share counters") {
		t.Errorf("the log should report that addresses share counters, and no decision without the store:\n%s", log)
	}
}
