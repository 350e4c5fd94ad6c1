package resilience

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that pending units of callers without a credential never take the memory for tenants.
func TestBoundForOwners(t *testing.T) {
	p := pendingCharges{bound: 1000}
	for kind, want := range map[limit.OwnerKind]int64{
		limit.Tenant: 1000, limit.AnyKey: 1000, limit.Address: 500, limit.Anonymous: 500,
	} {
		if got := p.boundFor(limit.Owner{Kind: kind, Name: "x"}); got != want {
			t.Errorf("owner kind %c may use %d bytes of 1000, want %d", kind, got, want)
		}
	}
}
