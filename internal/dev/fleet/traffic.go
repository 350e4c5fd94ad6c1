package fleet

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// traffic generates the requests of all tenants: a Poisson process whose rate changes every rateStep, with the daily
// curve and with faults. The tenant of each request is random, in proportion to the demand of the tenants.
type traffic struct {
	random *rand.Rand
	rate   float64 // requests per ns, before factor is applied
	factor float64 // multiplies rate in the present step
	next   int64   // when the next request comes, ns

	// The tables of the alias method (Walker, 1974): a slot is chosen at random, and then either the slot's own tenant
	// or its alias.
	keep  []uint32 // the slot's own tenant is taken if 32 random bits are below this
	alias []int32

	curve   *Scenario // says how the rate rises at the beginning, and how it follows the day
	storms  []storm
	stepEnd int64   // when the present step ends, ns
	extra   float64 // the requests that storms of single tenants add in this step / all other requests

	replays  bool          // the requests are recorded ones; otherwise they are generated
	recorded []recorded    // the recorded requests to come
	buffer   []recorded    // the memory that log reuses for recorded
	log      *logReplay    // gives the requests after those of recorded; nil if there are no others
	busy     time.Duration // how long the present recorded request takes; 0 selects Scenario.Busy

	bits rand.PCG // the random bits that choose tenants and processes
}

// recorded is a recorded request.
type recorded struct {
	at     int64 // ns
	busy   time.Duration
	tenant int32 // number
}

// storm is a span of time in which the clients of one tenant, or of all tenants, send more requests.
type storm struct {
	from, until int64 // ns
	factor      float64
	tenant      int     // number of the tenant; below 0: all tenants
	share       float64 // the tenant's part of all requests outside storms, 0..1
}

// rateStep is how often the rate is adapted to the daily curve and to faults, ns.
const rateStep = int64(100 * time.Millisecond)

func (t *traffic) init(s *Scenario, loads []load, random *rand.Rand) error {
	t.random, t.curve = random, s
	t.bits.Seed(random.Uint64(), random.Uint64())
	sum := 0.0
	for i := range loads {
		sum += loads[i].rate
	}
	if sum <= 0 {
		return errors.New("no tenant asks for anything")
	}
	t.rate = sum / 1e9
	t.fillAliases(loads, sum)
	t.beginStep(0)
	t.drawNext(0)
	return nil
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
	if t.replays {
		tenant, t.busy = int(t.recorded[0].tenant), t.recorded[0].busy
		t.recorded = t.recorded[1:]
		t.nextRecorded()
		return tenant
	}
	t.drawNext(now)
	if t.extra > 0 {
		chosen := t.random.Float64() * (1 + t.extra)
		if chosen < t.extra {
			return t.stormTenant(now, chosen)
		}
	}
	return t.tenantOf(t.bits.Uint64())
}

// stormTenant returns the tenant of one of the storms of single tenants that are under way. The random number chosen,
// 0..extra, selects the storm, in proportion to the requests that each adds.
func (t *traffic) stormTenant(now int64, chosen float64) (tenant int) {
	for i := range t.storms {
		s := &t.storms[i]
		if !s.ofTenant(now) {
			continue
		}
		tenant = s.tenant
		chosen -= s.extra()
		if chosen < 0 {
			break
		}
	}
	return tenant
}

// ofTenant reports whether the storm is under way and only one tenant takes part in it.
func (s *storm) ofTenant(now int64) bool { return s.tenant >= 0 && now >= s.from && now < s.until }

// extra returns the additional requests of the storm of a single tenant, divided by all requests without storms.
func (s *storm) extra() float64 { return (s.factor - 1) * s.share }

// replay replaces the generated requests by recorded ones, which must be in the order of their times.
func (t *traffic) replay(arrivals []Arrival, loads []load) error {
	numbers := make(map[string]int, len(loads))
	for i := range loads {
		numbers[loads[i].name] = i
	}
	t.recorded = make([]recorded, len(arrivals))
	last := time.Duration(0)
	for i, a := range arrivals {
		number, ok := numbers[a.Tenant]
		if !ok || a.At < last || a.Busy < 0 {
			return fmt.Errorf("request %d, of tenant %q at %s, is of an unknown tenant or out of order", i+1, a.Tenant,
				a.At)
		}
		t.recorded[i] = recorded{a.At.Nanoseconds(), a.Busy, int32(number)}
		last = a.At
	}
	t.replays = true
	t.nextRecorded()
	return nil
}

// replayLog replaces the generated requests by those of an access log.
func (t *traffic) replayLog(log *logReplay) {
	t.replays, t.log = true, log
	t.nextRecorded()
}

// nextRecorded sets the time of the next recorded request.
func (t *traffic) nextRecorded() {
	if len(t.recorded) == 0 && t.log != nil {
		t.buffer = t.log.next(t.buffer)
		t.recorded = t.buffer
	}
	t.next = math.MaxInt64
	if len(t.recorded) > 0 {
		t.next = t.recorded[0].at
	}
}

// tenantOf returns the tenant that the random bits u choose.
func (t *traffic) tenantOf(u uint64) int {
	slot := u >> 32 * uint64(len(t.keep)) >> 32
	if uint32(u) < t.keep[slot] {
		return int(slot)
	}
	return int(t.alias[slot])
}

// share returns a tenant's part of all requests, 0..1, computed from the tables of the alias method.
func (t *traffic) share(tenant int) float64 {
	sum := 0.0
	for i := range t.keep {
		kept := float64(t.keep[i]) / math.MaxUint32
		if i == tenant {
			sum += kept
		}
		if int(t.alias[i]) == tenant && t.alias[i] != int32(i) {
			sum += 1 - kept
		}
	}
	return sum / float64(len(t.keep))
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
	c := t.curve
	ramp := c.RampUp.Nanoseconds()
	if at < ramp {
		t.factor = float64(at+rateStep) / float64(ramp+rateStep)
	}
	if c.DailySwing > 0 {
		t.factor *= 1 + c.DailySwing*math.Sin(2*math.Pi*float64(at)/float64(c.Day.Nanoseconds()))
	}
	t.extra = 0
	for i := range t.storms {
		s := &t.storms[i]
		switch {
		case s.ofTenant(at):
			t.extra += s.extra()
		case s.tenant < 0 && at >= s.from && at < s.until:
			t.factor *= s.factor
		}
	}
	t.factor *= 1 + t.extra
}

// changeRate draws the time of the next request again, because the rate changes now.
func (t *traffic) changeRate(now int64) {
	if t.replays {
		return
	}
	t.stepEnd = now
	t.drawNext(now)
}
