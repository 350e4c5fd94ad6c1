package lease

import (
	"math"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

// Rule says how much of a counter to lease. A rule decides about cost and about who waits, never about correctness:
// whatever it asks for, the store grants no more than the algorithm's bound allows. It is called under a lock, and must be
// quick.
type Rule interface {
	// Ask sets what to lease: Least, Most, Ample, Plenty, Share, and Ramp. It may set Need to 0 with Ramp, where View.MustFit
	// does not forbid it: the request is then served from what comes at once, or denied.
	Ask(v *View, a *limit.LeaseRequest)

	// Again says how long a cost that was denied is denied here before the store is asked again: until it fits by the
	// store's answer, at the latest. times counts the denials in a row.
	Again(v *View, fits time.Duration, times int) time.Duration
}

// View is what this process knows of one counter.
type View struct {
	Tier      *limit.Tier
	Cost      int64         // of the request, units
	Lacks     int64         // of the cost, what is not in hand; 0 where the call is for another counter
	Free      int64         // in hand, and not needed for the request
	Left      int64         // what remained in the store when it last said so in this window; else its capacity
	Remains   time.Duration // until the window, the period or the slot ends
	DryEarly  bool          // the window ran dry earlier than others did: units are likely to lie in others' hands
	RampEnds  time.Duration // until a ramp would end; 0 for the algorithms that have none
	Rate      float64       // units per second that this process is asked for
	Total     float64       // units per second of all processes; 0 where nothing is known of them
	Instances int           // at least 1
	Saturated bool          // the store had less than it was asked for
	MustFit   bool          // Need must not be lowered
}

// Adaptive is the rule of this package: one call in a window while there is plenty, small steps near the limit, and ramps
// once a token bucket or a sliding window is used up.
type Adaptive struct{}

const (
	slack      = 2.3             // where units are scarce, a process takes this part of what is due to it by its rate
	scarceFor  = 2 * time.Second // for how long to lease where there is not plenty
	dryFor     = 2 * time.Second // how long to wait before asking a dry counter again, doubled each time
	hoardedFor = 250 * time.Millisecond
	rampPart   = 0.8 // of the part of what is used that this process uses, what it asks of what comes free
	rampMore   = 1.5
	rampPlenty = 1.1 // times what comes free in a slot: others have left something
	mostDry    = 5 * time.Second
)

// Ask implements [Rule].
func (Adaptive) Ask(v *View, a *limit.LeaseRequest) {
	n := float64(max(v.Instances, 1))
	total := max(v.Total, v.Rate)
	if v.Total == 0 {
		total = n * v.Rate
	}
	share := 1 / n
	if total > 0 {
		share = max(v.Rate/total, share)
	}
	low := v.Tier.Leasing().Refills && float64(v.Left) < total*v.RampEnds.Seconds()
	if (v.Saturated || low) && ramps(v.Tier) && !v.MustFit && v.ramp(share, a) {
		return
	}
	t := v.Remains.Seconds()
	expect := v.Rate * t
	ample := expect + 3*math.Sqrt(expect) + 1
	soon := v.Rate * min(t, scarceFor.Seconds())
	if v.Lacks == 0 && float64(v.Free) > soon/2 { // the call is for another counter, and this one does not need it
		return
	}
	ratio := 1.0
	if total > 0 {
		ratio = v.Rate / total
	}
	a.Plenty = units(2 * total * t)
	a.Ample = units(ample)
	if v.Tier.Leasing().Weighs && total*v.Tier.Period.Seconds() > float64(v.Tier.Capacity())/2 {
		a.Ample = units(expect - math.Sqrt(expect)) // what is left at the end weighs on the next window
	}
	a.Most = units(soon)
	a.Share = int64(math.Min(ratio/slack, 1) * limit.ShareOne)
	a.Least = units(min(math.Ceil(float64(v.Tier.Capacity())*ratio/100), expect+1))
	if v.Instances <= 1 {
		a.Share = limit.ShareOne
	}
}

func ramps(t *limit.Tier) bool { return t.Leasing().Ramps }

// ramp asks for a part of what comes free until the slot ends, if that is worth it.
func (v *View) ramp(share float64, a *limit.LeaseRequest) bool {
	t := v.RampEnds.Seconds()
	comes := float64(v.Tier.Threshold) / v.Tier.Period.Seconds() * t
	if comes*share < 2*float64(v.Cost) {
		return false
	}
	// What is used in all is less than what is asked for, so the part that is due here is less than it looks.
	part := 1 / float64(max(v.Instances, 1))
	if v.Total > 0 {
		part = max(part, rampPart*v.Rate/v.Total)
	}
	a.Need, a.Ramp, a.Share = 0, true, limit.ShareOne
	a.Ample = units(v.Rate*t + 1)
	a.Plenty = units(comes * rampPlenty)
	a.Most = min(units(comes*part), a.Ample)
	a.Ample = min(units(comes*part*rampMore), a.Ample)
	return true
}

// Again implements [Rule].
func (Adaptive) Again(v *View, fits time.Duration, times int) time.Duration {
	wait := dryFor
	if v.DryEarly {
		wait = hoardedFor // more is charged than can have been spent: others have it, and may give it back
	}
	return min(fits, wait<<min(times, 5), mostDry)
}

// units rounds to what can be asked for.
func units(v float64) int64 {
	if !(v > 0) {
		return 0
	}
	return int64(min(math.Ceil(v), limit.MaxUnits))
}

// demand is how many units a counter is asked for here, per second: the lesser of an average over some two seconds, which
// follows a fall, and one over the last 32 to 64 requests, which is steady where they are few.
type demand struct {
	fast  float64 // units, fading
	tick  int64   // of the fading, µs
	last  int64   // µs, of the last request
	since [2]int64
	sum   [2]int64
	count int
}

const (
	fadeTick  = 250_000   // µs
	fadeOver  = 1.0       // s
	newFor    = 5_000_000 // µs; a new counter's demand is taken to be spread over at least so long
	perEpochs = 32
)

var fade = math.Exp(-fadeTick / 1e6 / fadeOver)

func (m *demand) add(t, cost int64) {
	if m.count == 0 && m.sum[0] == 0 && m.sum[1] == 0 {
		m.since[0], m.since[1], m.tick = t, t, t
	}
	if t-m.tick >= fadeTick {
		m.turn(t)
	}
	m.fast += float64(cost)
	m.last = t
	m.sum[1] += cost
	if m.count++; m.count >= perEpochs {
		m.since[0], m.sum[0] = m.since[1], m.sum[1]
		m.since[1], m.sum[1], m.count = t, 0, 0
	}
}

func (m *demand) turn(t int64) {
	steps := (t - m.tick) / fadeTick
	m.fast *= math.Pow(fade, float64(steps))
	m.tick += steps * fadeTick
}

// rate is units per second.
func (m *demand) rate(t int64) float64 {
	if m.sum[0]+m.sum[1] == 0 {
		return 0
	}
	if t-m.tick >= fadeTick {
		m.turn(t)
	}
	over := t - m.since[0]
	if m.sum[0] == 0 || m.since[0] == m.since[1] {
		over = max(over, newFor)
	}
	slow := float64(m.sum[0]+m.sum[1]) * 1e6 / float64(max(over, 1000))
	fast := m.fast / fadeOver
	return min(slow, fast)
}

// supply is what a process can tell of the others from the store's answers: how fast the counter is used in all.
type supply struct {
	used      int64 // at the last answer
	at        int64 // when, µs by the holder's clock
	end       int64 // of the window it was about, by the store's clock; 0: none yet
	left      int64
	total     float64 // units per second
	saturated bool

	dryEnd   int64   // the last window in which the counter was found dry,
	dryLeft  float64 // how much of a window is left by then, on average, in s,
	dryEarly bool    // and whether it was more that time
}

// note takes one answer into account.
func (u *supply) note(owner limit.Owner, t, now int64, r *limit.Result, held, need int64) {
	tier, used, left := r.Tier, r.Used(), r.Remaining()
	leasing := tier.Leasing()
	if leasing.Refills {
		used = held // what it refills beside that tells nothing: it may have been full
	}
	end := r.ResetAt() // the end of a quota's period, which must not be computed under the shard's lock
	if tier.Calendar == nil {
		end = tier.LeaseEnd(owner.Name, now)
	}
	over := float64(t-u.at) / 1e6
	sample := -1.0
	if leasing.Ends { // else what counts has no one end
		if end == u.end {
			if over >= leastOver {
				sample = float64(used-u.used) / over
			}
		} else if length := leasing.Longest; length > 0 && !leasing.Weighs {
			if over = (float64(now-end) + float64(length)) / 1e6; over >= float64(length)/20e6 {
				sample = float64(used) / over
			}
		}
	}
	u.saturated = !r.Admits || left < max(need, 1)
	if sample >= 0 && (r.Admits || sample > u.total) { // a counter that denies is asked for more than it is used
		u.total += (1 - math.Exp(-over/fadeOver)) * (sample - u.total)
	}
	if sample >= 0 || end != u.end || u.at == 0 {
		u.used, u.at = used, t
	}
	u.end, u.left = end, left
}

const leastOver = 0.05 // s; two answers closer together say nothing of a rate

// dry notes that the counter has nothing left, at now.
func (u *supply) dry(end, now int64) {
	if u.dryEnd == end {
		return
	}
	left := float64(end-now) / 1e6
	if u.dryEarly = u.dryEnd != 0 && left > u.dryLeft*1.15+0.2; u.dryEnd == 0 {
		u.dryLeft = left
	}
	u.dryEnd = end
	u.dryLeft += (left - u.dryLeft) / 3
}

// end is when the window, the period or the slot of the time now ends, by the store's clock; 0 for stamps. A quota's period
// must not be computed under the shard's lock, so its end is the one that the store's last answer named. If that period is
// over, the end of the present one is not known, and is taken to lie as far away as a lease lasts at most.
func (k *counter) end(h *holder, s *Store, now int64) int64 {
	switch {
	case k.tier.Calendar == nil:
		return k.tier.LeaseEnd(h.owner.Name, now)
	case now < k.supply.end:
		return k.supply.end
	default:
		return now + s.lifeOf(k)
	}
}

// view is what a rule is told.
func (k *counter) view(h *holder, s *Store, t, cost, lacks int64) View {
	v := View{Tier: k.tier, Cost: cost, Lacks: lacks, Free: k.free(t), Rate: k.demand.rate(t), Total: k.supply.total,
		Instances: max(s.c.InstancesOf(k.tier.Limit()), 1), Saturated: k.supply.saturated}
	now := t + h.lag
	v.Left = k.tier.Capacity()
	end := k.end(h, s, now)
	if end == 0 { // stamps
		v.Remains = time.Duration(s.stampLife(k.tier)) * time.Microsecond
	} else {
		v.Remains = time.Duration(min(end-now, s.lifeOf(k))) * time.Microsecond
		if ramps(k.tier) {
			end := k.tier.RampEnd(h.owner.Name, now)
			v.RampEnds = time.Duration(min(end-now, s.life)) * time.Microsecond
		}
	}
	v.DryEarly = k.supply.dryEnd == end && k.supply.dryEarly
	if end == k.supply.end {
		v.Left = k.supply.left
	}
	return v
}
