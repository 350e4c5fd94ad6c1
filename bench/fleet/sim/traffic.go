package sim

import (
	"math"
	"math/rand/v2"
	"time"
)

// traffic generates the requests of all tenants: a Poisson process whose rate changes every rateStep, with the
// faults. The tenant of each request is random, in proportion to the demand of the tenants.
type traffic struct {
	random *rand.Rand
	rate   float64 // requests per ns, before factor is applied
	factor float64 // multiplies rate in the present step
	next   int64   // when the next request comes, ns

	// The tables of the alias method (Walker, 1974): a slot is chosen at random, and then either the slot's own tenant
	// or its alias.
	keep  []uint32 // the slot's own tenant is taken if 32 random bits are below this
	alias []int32

	rampUp  int64 // how long the rate rises at the beginning, ns
	storms  []storm
	stepEnd int64 // when the present step ends, ns

	bits rand.PCG // the random bits that choose tenants and processes
}

// storm is a span of time in which all clients send more requests.
type storm struct {
	from, until int64 // ns
	factor      float64
}

// rateStep is how often the rate is adapted, ns.
const rateStep = int64(100 * time.Millisecond)

func (t *traffic) init(s *Scenario, loads []load, random *rand.Rand) {
	t.random, t.rampUp = random, s.RampUp.Nanoseconds()
	t.bits.Seed(random.Uint64(), random.Uint64())
	sum := 0.0
	for i := range loads {
		sum += loads[i].rate
	}
	t.rate = sum / 1e9
	t.fillAliases(loads, sum)
	t.beginStep(0)
	t.drawNext(0)
}

// fillAliases fills the tables of the alias method: each slot gets the same part of all requests, which its own tenant
// shares with at most one other tenant, its alias.
func (t *traffic) fillAliases(loads []load, sum float64) {
	n := len(loads)
	t.keep, t.alias = make([]uint32, n), make([]int32, n)
	weights := make([]float64, n)
	var small, large []int32
	for i := range loads {
		weights[i] = loads[i].rate * float64(n) / sum
		if weights[i] < 1 {
			small = append(small, int32(i))
		} else {
			large = append(large, int32(i))
		}
	}
	for i := range t.keep {
		t.keep[i], t.alias[i] = math.MaxUint32, int32(i)
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		t.keep[s], t.alias[s] = uint32(weights[s]*math.MaxUint32), l
		weights[l] -= 1 - weights[s]
		if weights[l] < 1 {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
}

// take returns the tenant whose request comes now, and draws the time of the next request.
func (t *traffic) take(now int64) (tenant int) {
	t.drawNext(now)
	return t.tenantOf(t.bits.Uint64())
}

// tenantOf returns the tenant that the random bits u choose.
func (t *traffic) tenantOf(u uint64) int {
	slot := u >> 32 * uint64(len(t.keep)) >> 32
	if uint32(u) < t.keep[slot] {
		return int(slot)
	}
	return int(t.alias[slot])
}

// drawNext draws the time of the first request after the given time.
func (t *traffic) drawNext(from int64) {
	at := from
	for {
		if at >= t.stepEnd {
			t.beginStep(at)
		}
		next := math.MaxFloat64
		if rate := t.rate * t.factor; rate > 0 {
			next = float64(at) + t.random.ExpFloat64()/rate
		}
		if next < float64(t.stepEnd) {
			t.next = int64(next)
			return
		}
		at = t.stepEnd // a Poisson process has no memory, so the next request can be drawn again when the rate changes
	}
}

// beginStep sets the end and the factor of the step that begins at the given time.
func (t *traffic) beginStep(at int64) {
	t.stepEnd = (at/rateStep + 1) * rateStep
	t.factor = 1
	if at < t.rampUp {
		t.factor = float64(at+rateStep) / float64(t.rampUp+rateStep)
	}
	for i := range t.storms {
		if s := &t.storms[i]; at >= s.from && at < s.until {
			t.factor *= s.factor
		}
	}
}

// changeRate draws the time of the next request again, because the rate changes now.
func (t *traffic) changeRate(now int64) {
	t.stepEnd = now
	t.drawNext(now)
}
