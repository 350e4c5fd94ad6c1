package fleet

import (
	"github.com/sluicelimits/sluice/internal/dev/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

const (
	// touchAtOnce is how many requests touchNext looks ahead. Each request needs two of the ringSize random numbers
	// that are drawn ahead: one chooses its tenant, one its process.
	touchAtOnce = ringSize / 2

	// touchFrom is the least number of pairs of a tenant and a process for which memory is read ahead. Fewer pairs, of
	// some 600 bytes each, fit in the caches of the processor anyway.
	touchFrom = 10_000

	// touchFallbackFor is for how long after a decision of a process without the store, in ns, touchNext reads what its
	// fallback limiter needs, too. Circuit breakers stay open for a second or more.
	touchFallbackFor = 10_000_000
)

// tenantMemory names the places in memory that each decision about a tenant reads. touchNext takes them from here, and
// not from one place to the next, so that the processor can read all of them at once. A tenantMemory is as large as a
// cache line.
type tenantMemory struct {
	hash         uint64 // of its owner in the lease layers
	fallbackHash uint64 // the same in the fallback limiters
	tenant       *tenant
	charge       *limit.Charge // the first one of its requests; nil: its requests are not decided
	limit        *limit.Limit  // of charge
	tier         *limit.Tier   // the first one of limit
	judge        *judge.Judge  // of tier
	first        int           // tenant.firstTier
}

// beginTouching lets touchNext be called from the first request on.
func (r *run) beginTouching() {
	r.touches = make([]tenantMemory, len(r.tenants))
	for i := range r.tenants {
		t := &r.tenants[i]
		chain := r.live[0].chain // all processes have the same Runtime.Hash
		r.touches[i] = tenantMemory{tenant: t, first: t.firstTier, hash: chain.Leases.Hash(t.req.Owner),
			fallbackHash: chain.Fallback.Hash(t.req.Owner)}
		if t.decided {
			of := &r.touches[i]
			of.charge, of.judge = &t.req.Charges[0], &t.judges[0]
			of.limit = of.charge.Limit
			of.tier = &of.limit.Tiers[0]
		}
	}
}

// touchNext reads the memory that the next decisions will need (see [lease.Touch]), so that the memory is in the caches
// of the processor by then. It changes no result. If the traffic changes meanwhile, the wrong memory was read, which
// costs only time.
func (r *run) touchNext() {
	r.untouched = touchAtOnce
	var leases [touchAtOnce]lease.Touched
	var all [touchAtOnce]tenantMemory
	var array [touchAtOnce]resilience.Touched
	fallbacks, sum := array[:0], int64(0)
	for i := range all {
		number := r.traffic.tenantOf(r.traffic.ahead(2 * i))
		all[i] = r.touches[number]
		p := r.processFor(number, r.traffic.ahead(2*i+1))
		leases[i] = lease.Touched{Store: p.chain.Leases, Hash: all[i].hash}
		if r.now < p.degradedUntil {
			fallbacks = append(fallbacks, resilience.Touched{Fallback: p.chain.Fallback, Request: &all[i].tenant.req,
				Hash: all[i].fallbackHash})
			sum += p.parts.read(all[i].first)
		}
	}
	sum += lease.Touch(leases[:])
	if len(fallbacks) > 0 {
		sum += resilience.Touch(fallbacks)
	}
	for i := range all {
		of := &all[i]
		if of.charge == nil {
			continue
		}
		sum += of.tenant.read() + of.charge.Cost + int64(len(of.limit.Tiers)) + of.tier.Capacity() +
			judge.Touch(*of.judge)
		if of.charge.Limit != of.limit { // never: the field may be in another cache line than Cost
			sum++
		}
	}
	r.touched += sum
}

// read reads a word of each cache line of a tenant that decisions read, and returns their sum, which means nothing.
func (t *tenant) read() int64 {
	return int64(t.hash) + int64(len(t.req.Charges)) + int64(len(t.judges)) + int64(len(t.costs))
}
