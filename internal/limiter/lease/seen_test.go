package lease_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that nothing is held, and nothing is leased, for an owner that is asked for once if callers choose how
// many such owners there are, and that the owner's second request leases. Other owners lease at once.
func TestOwnersSeenOnceAreNotHeld(t *testing.T) {
	const owners = 1000
	scoped := newLimit(t, "l", func(l *limit.Limit) { l.Scope = "d" },
		limit.Tier{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 100})
	plain := window(t, "l", time.Hour, 100)
	for _, tt := range []struct {
		name string
		kind limit.OwnerKind
		of   *limit.Limit
		once bool
	}{
		{"addresses", limit.Address, plain, true},
		{"keys of a descriptor", limit.AnyKey, scoped, true},
		{"addresses of a descriptor", limit.Address, scoped, true},
		{"tenants", limit.Tenant, plain, false},
	} {
		now, below := noon, &counted{Store: newMemory(t)}
		s := openAt(t, &now, below, nil)
		ask := func(i int) {
			req := request(tt.of)
			req.Owner = limit.Owner{Kind: tt.kind, Name: strconv.Itoa(i)}
			if d := decide(t, s, req, now); !d.Allowed {
				t.Fatalf("%s: the request of owner %d is denied", tt.name, i)
			}
		}
		for i := range owners {
			ask(i)
		}
		stats := s.Stats()
		held, leased := stats.Counters, stats.Units
		if tt.once && (held > 0 || leased > 0) || !tt.once && (held != owners || leased == 0) {
			t.Errorf("%s: after one request each, %d counters of %d are held, and %d units are leased", tt.name,
				held, owners, leased)
		}
		const one = owners - 1 // the last one is remembered
		ask(one)
		before := below.calls.Load()
		if ask(one); below.calls.Load() != before {
			t.Errorf("%s: the third request calls the store, want a lease from the second one", tt.name)
		}
	}
}
