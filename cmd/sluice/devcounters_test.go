package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// everyCounter has a limit of each algorithm that denies the sixth request, and one before authentication.
const everyCounter = `
plans:
  - id: pro
    limits:
      - { id: log, match: { pathPattern: /log }, algorithm: sliding_log, threshold: 5, period: 24h }
      - { id: buckets, match: { pathPattern: /buckets }, algorithm: sliding_buckets, threshold: 5, period: 24h }
      - { id: window, match: { pathPattern: /window }, tiers: [ { period: 24h, threshold: 5 } ] }
      - { id: tokens, match: { pathPattern: /tokens }, algorithm: token_bucket, rate: 1, period: 24h, burst: 5 }
      - { id: leaky, match: { pathPattern: /leaky }, algorithm: leaky_bucket, rate: 5, period: 24h, cost: 5 }
      - { id: sent, unit: bytes, cost: 0, match: { pathPattern: /sent }, tiers: [ { period: 24h, threshold: 5 } ] }
tenants: [ { id: acme, plan: pro } ]
ipLimits: [ { id: per-address, algorithm: token_bucket, rate: 1, period: 24h, burst: 100 } ]
keys: [ { id: k1, tenant: acme, subject: ci, pepper: dev, hash: HASH } ]
`

// reset and refund let calls through at once, for each algorithm. peek and explain show the same counter. No output has
// the client's address.
func TestDevCounters(t *testing.T) {
	t.Parallel()
	key := identity.ExampleKey("acme")
	file := filepath.Join(t.TempDir(), "plans.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(everyCounter, "HASH", identity.HashKey(identity.DevPepper(),
		key), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startDev(t, "--plans", file)
	admitted := func(id string) (n int) {
		t.Helper()
		for ; n <= 5; n++ {
			if code, _, body := get(t, r.base+"/"+id, key); code == http.StatusTooManyRequests {
				return n
			} else if code != http.StatusOK {
				t.Fatalf("/%s answers with status %d: %s", id, code, body)
			}
		}
		return n
	}
	operate := func(args ...string) (out operate.CountersResponse) {
		t.Helper()
		text := operateOn(t, r.base, append(args, "--json")...)
		if err := json.Unmarshal([]byte(text), &out); err != nil || len(out.Counters) != 1 {
			t.Fatalf("sluice %q gives %s, %v", args, text, err)
		}
		if strings.Contains(text, "127.0.0.1") {
			t.Errorf("the output of sluice %q contains the address: %s", args, text)
		}
		return out
	}
	for _, l := range []struct {
		id               string
		admits, refunded int // numbers of calls
		used             int64
	}{
		{"log", 5, -1, 5}, {"buckets", 5, -1, 5}, {"window", 5, 2, 5}, {"tokens", 5, -1, 5}, {"leaky", 1, 0, 5},
	} {
		which := []string{"acme", l.id, "--path", "/" + l.id}
		if got := admitted(l.id); got != l.admits {
			t.Fatalf("%s admits %d calls, want %d", l.id, got, l.admits)
		}
		if got := operate(append([]string{"counter", "peek"}, which...)...); got.Counters[0].Used != l.used ||
			got.Counters[0].Remaining != 0 {
			t.Errorf("peek of %s gives %+v", l.id, got)
		}
		refund := append(append([]string{"counter", "refund"}, which...), "--units", "2", "--reason", "our fault")
		if l.refunded < 0 {
			if got := sluice(t, "", append(refund, "--endpoint", r.base+"/_sluice/admin")...); got.code == 0 ||
				!strings.Contains(got.stderr, "without a receipt") {
				t.Errorf("refund of %s gives %+v", l.id, got)
			}
		} else if operate(refund...); admitted(l.id) != l.refunded {
			t.Errorf("a refund of 2 to %s does not let %d calls through", l.id, l.refunded)
		}
		got := operate(append(append([]string{"counter", "reset"}, which...), "--reason", "their loop is fixed")...)
		if got.Counters[0].Used != 0 || admitted(l.id) != l.admits {
			t.Errorf("a reset of %s gives %+v, and does not let %d calls through", l.id, got, l.admits)
		}
		explained := sluice(t, "", "explain", "--plans", file, "--tenant", "acme", "--path", "/"+l.id, "--ip",
			"127.0.0.1", "--json")
		var x explanation
		if err := json.Unmarshal([]byte(explained.stdout), &x); err != nil {
			t.Fatalf("explain gives %+v, %v", explained, err)
		}
		var applies []string
		for _, v := range x.Limits {
			if v.Counter != "" {
				applies = append(applies, v.ID)
			}
		}
		if len(applies) != 1 || applies[0] != l.id || len(x.IPLimits) != 1 || x.IPLimits[0].Counter == "" {
			t.Errorf("explain of /%s names %v and %+v as the limits that apply", l.id, applies, x.IPLimits)
		}
	}
	// a limit of which a call spends 0 has a counter nevertheless
	if got := operate("counter", "peek", "acme", "sent", "--path", "/sent"); got.Counters[0].Unit != "bytes" {
		t.Errorf("peek of sent gives %+v", got)
	}
	if text := operateOn(t, r.base, "counter", "peek", "acme", "sent"); !strings.Contains(text, "5 bytes") {
		t.Errorf("the table of sent is %s", text)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}
