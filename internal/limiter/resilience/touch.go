package resilience

import (
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// Touched is what a decision of a fallback limiter about a request reads. The fields that are not exported are set by
// [Touch].
type Touched struct {
	Fallback *Fallback
	Request  *limit.Request
	Hash     uint64 // of the request's owner, as Fallback.Hash returns it

	part    *part
	pending *ownerPending
}

// Hash returns the hash by which the fallback limiter finds the counters of an owner. It is the same for all that have
// the same [clock.Runtime].Hash.
func (f *Fallback) Hash(o limit.Owner) uint64 { return f.local.Hash(o) }

// Touch reads a word of each cache line that decisions without the store will read, about the first limit of each
// request. It returns the sum of the words, which means nothing. It is for a simulation: package lease explains it at
// its function of the same name. It takes no lock of a fallback limiter, and must not run beside anything else.
func Touch(all []Touched) (sum int64) {
	var array [32]memory.Touched // keeps as many off the heap
	counters := array[:0]
	for i := range all {
		t := &all[i]
		counters = append(counters, memory.Touched{Store: t.Fallback.local, Hash: t.Hash})
		t.part = nil
		if len(t.Request.Charges) > 0 {
			l := t.Request.Charges[0].Limit
			t.part = t.Fallback.config.Parts.recent[partKey{l, t.Fallback.instancesOf(l)}]
		}
		t.pending = t.Fallback.pending.byOwner[t.Request.Owner]
	}
	for i := range all {
		if p := all[i].part; p != nil {
			sum += p.until + int64(len(p.limit.Tiers)) + p.tiers[0].units
		}
		if o := all[i].pending; o != nil {
			sum += int64(len(o.limits))
		}
	}
	sum += memory.Touch(counters)
	for i := range all {
		if p := all[i].part; p != nil {
			sum += p.limit.Tiers[0].Capacity()
		}
		if o := all[i].pending; o != nil && len(o.limits) > 0 {
			l := &o.limits[0]
			sum += int64(len(l.tiers)) + int64(len(l.value.Text)) + int64(len(l.tiers[0].slots))
		}
	}
	return sum
}
