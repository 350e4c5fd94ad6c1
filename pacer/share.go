package pacer

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
)

// sharer decides which calls an instance makes to the ledger of a shared limit. The comment of package ledger explains
// these calls. A sharer reads no clock and makes no calls itself.
type sharer struct {
	random *rand.Rand
	limit  int64    // of the configuration, in units per window
	serial uint64   // supply.serial of the window that shares[0] belongs to
	shares [2]share // of the open window, and of the next one
	asked  int64    // Counts.Asked when the window opened
	last   float64  // units that were asked for in the window before
	late   float64  // delay of the stages of the present window, as a part of the window, see mostLate
	busy   bool     // a call is under way
}

// share is an instance's share of one window.
type share struct {
	window     int64         // number of the window
	told       int64         // needs that the ledger was told, in units
	leased     int64         // leased units, less those that were given back
	prefetchAt time.Duration // when to prefetch the window
	prefetched bool
	surprised  bool         // the instance asked the ledger before shareFrom, because it had told a need of 0
	asked      ledger.Stage // the latest stage in which the instance asked the ledger
	returns    int          // number of elements of returnFrom that have passed
}

// These constants say when calls are made. The times of prefetches are before the window begins, for a period of a
// second or more. The other constants are parts of the time in which units of the window are granted.
const (
	prefetchFirst = 350 * time.Millisecond
	prefetchLast  = 150 * time.Millisecond
	prefetchParts = 1.0 // bound of the factor by which periods below a second shorten the two times above

	shareFrom    = 0.40
	leftoverFrom = 0.65
	anythingFrom = 0.80
)

// mostLate is the largest random delay of the stages, as a part of the window. Without it, the instance whose clock is
// the most ahead would ask first in every window, and get all units that are left.
const mostLate = 0.06

// returnFrom holds the parts of a window at which an instance looks for units to give back.
var returnFrom = [...]float64{0.30, 0.60, 0.75}

func newSharer(limit int64, seed uint64) *sharer {
	return &sharer{limit: limit, random: rand.New(rand.NewPCG(seed, 96))}
}

// roll moves on to the next window if one has opened.
func (s *sharer) roll(c *core) {
	if s.serial == c.supply.serial {
		return
	}
	asked := c.counts.Asked - s.asked
	passed := max(c.supply.number-s.shares[0].window, 1)
	if s.serial == 0 {
		passed = 1
	}
	s.last, s.asked, s.serial = float64(asked)/float64(passed), c.counts.Asked, c.supply.serial
	s.shares[0], s.shares[1] = s.shares[1], share{window: c.supply.number + 1}
	if s.shares[0].window != c.supply.number {
		s.shares[0] = share{window: c.supply.number}
	}
	s.late = mostLate * s.random.Float64()
	period := c.supply.limit.Period
	scale := min(float64(period)/float64(time.Second), prefetchParts)
	before := float64(prefetchLast) + s.random.Float64()*float64(prefetchFirst-prefetchLast)
	s.shares[1].prefetchAt = c.supply.begin + period - time.Duration(before*scale)
}

// part returns the part of the usable time of the open window that has passed.
func (s *sharer) part(c *core, now time.Duration) float64 {
	return float64(now-c.supply.opens) / float64(c.supply.closes-c.supply.opens)
}

// at returns the time at which a part of the usable time has passed. It adds a microsecond, so that rounding never
// makes the time too early.
func (s *sharer) at(c *core, part float64) time.Duration {
	return c.supply.opens + time.Duration(part*float64(c.supply.closes-c.supply.opens)) + time.Microsecond
}

// demand estimates how many units are asked for in a period: those of this window, and for the rest of it those of the
// window before.
func (s *sharer) demand(c *core, now time.Duration) float64 {
	passed := min(max(float64(now-c.supply.begin)/float64(c.supply.limit.Period), 0), 1)
	return float64(c.counts.Asked-s.asked) + s.last*(1-passed)
}

// expected estimates how many units will be spent until the window closes, if the instance has so many.
func (s *sharer) expected(c *core, now time.Duration) float64 {
	rest := max(float64(c.supply.closes-now)/float64(c.supply.limit.Period), 0)
	return float64(c.queue.units) + s.demand(c, now)*rest
}

// lacks reports whether the first request in the queue costs more units than the instance has left.
func (s *sharer) lacks(c *core) bool {
	i := c.queue.next()
	return i != 0 && c.queue.at(i).cost > c.supply.units-c.supply.used
}

// due returns the call that has to be made now, if any. The caller makes the call, and then calls done.
func (s *sharer) due(c *core, now time.Duration) (ledger.Claim, bool) {
	s.roll(c)
	if s.busy {
		return ledger.Claim{}, false
	}
	claim, ok := s.prefetch(c, now)
	if !ok {
		claim, ok = s.refill(c, now)
	}
	if !ok {
		claim, ok = s.giveBack(c, now)
	}
	if !ok {
		return claim, false
	}
	s.busy = true
	claim.Limit, claim.Round, claim.Unit = s.limit, s.random.Int64N(ledger.RoundOne), 1
	if i := c.queue.next(); i != 0 {
		claim.Unit = c.queue.at(i).cost
	}
	return claim, true
}

func (s *sharer) prefetch(c *core, now time.Duration) (ledger.Claim, bool) {
	next := &s.shares[1]
	if next.prefetched || now < next.prefetchAt {
		return ledger.Claim{}, false
	}
	next.prefetched = true
	left := float64(c.supply.units - c.supply.used)
	rest := max(float64(c.supply.begin+c.supply.limit.Period-now)/float64(c.supply.limit.Period), 0)
	demand := s.demand(c, now)
	backlog := max(float64(c.queue.units)+demand*rest-left, 0)
	need := s.units(math.Floor(backlog + demand + s.random.Float64())) // rounded at random, so that the sum is right
	next.told = need
	return ledger.Claim{Window: next.window, Stage: ledger.Prefetch, Need: need, Want: need}, true
}

// units rounds a number of units up, and bounds it by the limit.
func (s *sharer) units(n float64) int64 { return int64(math.Ceil(min(n, float64(s.limit)))) }

func (s *sharer) refill(c *core, now time.Duration) (ledger.Claim, bool) {
	present := &s.shares[0]
	if now < c.supply.opens || now >= c.supply.closes || !s.lacks(c) {
		return ledger.Claim{}, false
	}
	stage, ok := s.stage(s.part(c, now) - s.late)
	switch {
	case !ok && present.told == 0 && !present.surprised:
		present.surprised, stage = true, ledger.Share
	case !ok || stage <= present.asked:
		return ledger.Claim{}, false
	default:
		present.asked = stage
	}
	expected := s.expected(c, now)
	hand := c.supply.units - c.supply.used
	more := max(s.units(float64(c.supply.used)+expected)-present.told, 0)
	claim := ledger.Claim{Window: present.window, Stage: stage, Need: more, Told: present.told, Held: present.leased,
		Want: max(s.units(expected)-hand, 1)}
	present.told += more
	return claim, true
}

// stage returns the stage of a call that is made when a part of the window has passed; false before the first stage.
func (s *sharer) stage(part float64) (ledger.Stage, bool) {
	switch {
	case part >= anythingFrom:
		return ledger.Anything, true
	case part >= leftoverFrom:
		return ledger.Leftover, true
	case part >= shareFrom:
		return ledger.Share, true
	}
	return 0, false
}

func (s *sharer) giveBack(c *core, now time.Duration) (ledger.Claim, bool) {
	present := &s.shares[0]
	if present.returns == len(returnFrom) || now < s.at(c, returnFrom[present.returns]) || now >= c.supply.closes {
		return ledger.Claim{}, false
	}
	present.returns++
	expected := s.expected(c, now)
	keep := expected + 2*math.Sqrt(expected) + 1
	if expected < 0.5 { // more likely than not, nobody comes
		keep = 0
	}
	excess := int64(min(float64(c.supply.units-c.supply.used)-keep, float64(present.leased)))
	if excess < 1 {
		return ledger.Claim{}, false
	}
	// The instance must not spend the units even if the call fails, because others may have got them.
	held := present.leased
	c.supply.units -= excess
	present.leased -= excess
	return ledger.Claim{Window: present.window, Stage: ledger.Share, Told: present.told, Held: held, Return: excess},
		true
}

// done records the result of a call, or that the call failed.
func (s *sharer) done(c *core, claim *ledger.Claim, got ledger.Lease, err error) {
	s.roll(c)
	s.busy = false
	if err != nil {
		return
	}
	for i := range s.shares {
		sh := &s.shares[i]
		if sh.window != claim.Window {
			continue
		}
		sh.leased += got.Units
		if i == 0 {
			c.supply.units += got.Units
			c.supply.next = lease{window: claim.Window + 1, units: c.supply.nextUnits(claim.Window + 1),
				limit: got.NextLimit}
		} else {
			c.supply.next = lease{claim.Window, c.supply.nextUnits(claim.Window) + got.Units, got.Limit}
		}
	}
}

// rest returns the calls that give back all units when the instance ends.
func (s *sharer) rest(c *core) (claims []ledger.Claim) {
	s.roll(c)
	for i, units := range [...]int64{c.supply.units - c.supply.used, c.supply.nextUnits(s.shares[1].window)} {
		held := s.shares[i].leased
		if units = min(units, held); units > 0 {
			claims = append(claims, ledger.Claim{Window: s.shares[i].window, Limit: s.limit, Stage: ledger.Share,
				Told: s.shares[i].told, Held: held, Return: units, Unit: 1})
		}
	}
	c.supply.units, c.supply.next = c.supply.used, lease{}
	return claims
}

// wakeAt returns the time at which due has to be called again if nothing happens until then.
func (s *sharer) wakeAt(c *core, now time.Duration) time.Duration {
	s.roll(c)
	at := c.supply.begin + c.supply.limit.Period
	soonest := func(t time.Duration) {
		if t > now {
			at = min(at, t)
		}
	}
	if !s.shares[1].prefetched {
		at = min(at, s.shares[1].prefetchAt)
	}
	if present := &s.shares[0]; present.returns < len(returnFrom) {
		soonest(s.at(c, returnFrom[present.returns]))
	}
	if s.lacks(c) {
		for _, part := range [...]float64{shareFrom, leftoverFrom, anythingFrom} {
			soonest(s.at(c, part+s.late))
		}
		soonest(c.supply.opens)
	}
	return at
}
