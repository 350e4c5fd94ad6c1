package fleet

import (
	"github.com/sluicelimits/sluice/internal/dev/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
)

const (
	// touchAtOnce is how many requests touchNext looks ahead. Each request needs two of the ringSize random numbers
	// that are drawn ahead: one chooses its tenant, one its process.
	touchAtOnce = ringSize / 2

	// touchFrom is the least number of pairs of a tenant and a process for which memory is read ahead. Fewer pairs, of
	// some 600 bytes each, fit in the caches of the processor anyway.
	touchFrom = 10_000
)

// beginTouching lets touchNext be called from the first request on.
func (r *run) beginTouching() {
	r.touches = true
	for i := range r.tenants {
		t := &r.tenants[i]
		t.leaseHash = r.live[0].chain.Leases.Hash(t.req.Owner) // all processes have the same Runtime.Hash
	}
}

// touchNext reads the memory that the next decisions will need (see [lease.Touch]), so that the memory is in the caches
// of the processor by then. It changes no result. If the traffic changes meanwhile, the wrong memory was read, which
// costs only time.
func (r *run) touchNext() {
	r.untouched = touchAtOnce
	var all [touchAtOnce]lease.Touched
	var tenants [touchAtOnce]*tenant
	sum := int64(0)
	for i := range all {
		number := r.traffic.tenantOf(r.traffic.ahead(2 * i))
		t, p := &r.tenants[number], r.processFor(number, r.traffic.ahead(2*i+1))
		tenants[i] = t
		all[i] = lease.Touched{Store: p.chain.Leases, Hash: t.leaseHash}
		sum += int64(len(t.req.Charges)) + t.ops
	}
	sum += lease.Touch(all[:])
	for _, t := range tenants {
		if t.decided {
			sum += t.req.Charges[0].Limit.Tiers[0].Threshold + judge.Touch(t.judges[0]) + t.costs[0] +
				int64(t.limits[0])
		}
	}
	r.touched += sum
}
