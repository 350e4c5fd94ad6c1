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
	random        *rand.Rand
	limit         int64         // of the configuration, in units per window
	serial        uint64        // supply.serial of the window that shares[0] belongs to
	shares        [2]share      // of the open window, and of the next one
	asked         int64         // Counts.Asked when the window opened
	last          float64       // units that were asked for in the window before
	late          float64       // delay of the stages of the present window, as a part of the window, see mostLate
	busy          bool          // a call is under way
	owed          int64         // the balance, see package ledger, in 1/ledger.OwedOne of a unit
	equal         int64         // Lease.Equal of the latest prefetch
	cost          int64         // of the latest request that was first in the queue during a call; 1: there was none
	reportedPause time.Duration // supply.askedUntil at the latest call
	latestPause   int64         // latest Lease.Pause
	needed        int64         // number of the latest window in which the instance needed units
	group         group         // learns the limit together with other instances
	known         ledger.Known  // what the latest lease told
}

// share is an instance's share of one window.
type share struct {
	window     int64         // number of the window
	owed       int64         // sharer.owed when the window was prefetched
	told       int64         // needs that the ledger was told, in units
	leased     int64         // leased units, less those that were given back
	prefetchAt time.Duration // when to prefetch the window
	prefetched bool
	surprised  bool         // the instance asked the ledger before shareFrom, because it had told a need of 0
	asked      ledger.Stage // the latest stage in which the instance asked the ledger
	reported   bool         // mustReport has returned true
	returns    int          // number of elements of returnFrom that have passed
}

// These constants say when calls are made. The times of prefetches are before the window begins, for a period of a
// second or more. The other constants are parts of the time in which units of the window are granted.
const (
	prefetchFirst = 350 * time.Millisecond
	prefetchLast  = 150 * time.Millisecond
	prefetchParts = 1.0 // bound of the factor by which periods below a second shorten the two times above

	shareFrom    = 0.40
	tellFrom     = 0.55 // replies to requests of the interval before, which the prefetches judge
	leftoverFrom = 0.65
	anythingFrom = 0.80
)

// mostLate is the largest random delay of the stages, as a part of the window. Without it, the instance whose clock is
// the most ahead would ask first in every window, and get all units that are left. Instances whose balance is below 0
// ask by mostLate later, so that the others come first.
const mostLate = 0.06

// An instance that needs no units for contendFor windows no longer has an equal share. A balance is at most mostOwed
// times the sum of an equal share and the cost of the latest request, above and below 0. In each window it loses one
// part of balanceFades, because units of lost replies would otherwise add up in the balances of the others. These
// constants were found by simulation (TestSharesAreFair).
const (
	contendFor   = 32
	mostOwed     = 8
	balanceFades = 128
)

// returnFrom holds the parts of a window at which an instance looks for units to give back.
var returnFrom = [...]float64{0.30, 0.60, 0.75}

func newSharer(limit int64, seed uint64) *sharer {
	s := &sharer{limit: limit, random: rand.New(rand.NewPCG(seed, 96)), cost: 1}
	s.owed = s.random.Int64N(ledger.OwedOne)
	return s
}

// roll moves on to the next window if one has opened.
func (s *sharer) roll(c *core) {
	if s.serial == c.supply.serial {
		return
	}
	s.group.roll(c.supply.number)
	asked := c.counts.Asked - s.asked
	passed := max(c.supply.number-s.shares[0].window, 1)
	if s.serial == 0 {
		passed = 1
	}
	s.last, s.asked, s.serial = float64(asked)/float64(passed), c.counts.Asked, c.supply.serial
	s.shares[0], s.shares[1] = s.shares[1], share{window: c.supply.number + 1}
	if s.shares[0].window != c.supply.number {
		s.shares[0] = share{window: c.supply.number, owed: s.owed}
	}
	s.late = mostLate * s.random.Float64()
	if s.owed < 0 {
		s.late += mostLate
	}
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

// needsUnits reports whether the first request in the queue costs more units than the instance has left. With Spread,
// units are left until the end of the window. Until the stage Share, it then reports whether the whole queue costs
// more, so that the instance gets its part of the ledger's reserve. In later stages the rate would rise too much.
func (s *sharer) needsUnits(c *core) bool {
	i := c.queue.next()
	if i == 0 {
		return false
	}
	lacking := c.queue.at(i).cost
	if c.supply.smoothing == Spread && s.shares[0].asked < ledger.Share {
		lacking = c.queue.units
	}
	return lacking > c.supply.units-c.supply.used
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
	if present := &s.shares[0]; !ok && (s.group.judged.Rate > 0 || s.mustReportPause(c) || s.mustReport(c, now)) {
		claim, ok = ledger.Claim{Window: present.window, Stage: ledger.Share, Told: present.told,
			Held: present.leased, Owed: present.owed}, true
	}
	if !ok {
		return claim, false
	}
	s.busy = true
	claim.Limit, claim.Unit, claim.Known = s.limit, 1, s.known
	if i := c.queue.next(); i != 0 {
		s.cost = c.queue.at(i).cost
		claim.Unit = s.cost
	}
	s.group.addReport(&claim)
	if c.supply.statedSinceCall {
		c.supply.statedSinceCall, claim.Stated = false, c.supply.stated
	}
	if s.reportedPause = c.supply.askedUntil; s.reportedPause > now {
		claim.Pause = int64((c.supply.read.Wall+s.reportedPause-c.supply.read.Mono)/time.Millisecond) + 1
	}
	return claim, true
}

// mustReport reports whether it is time to tell the ledger the replies to requests of the interval before, because no
// other call of the window has told them. It returns true once in a window: slow replies may come one by one.
func (s *sharer) mustReport(c *core, now time.Duration) bool {
	if !s.mayReport() || s.part(c, now) < tellFrom {
		return false
	}
	s.shares[0].reported = true
	return true
}

func (s *sharer) mayReport() bool {
	return !s.shares[0].reported && s.shares[0].asked == ledger.Prefetch && s.group.isLate()
}

// mustReportPause reports whether the provider has asked for a pause that the ledger was not told of. The replies to
// requests on their way may each ask for a little more, which can wait for the next call.
func (s *sharer) mustReportPause(c *core) bool {
	return c.supply.askedUntil > max(s.reportedPause, c.supply.read.Mono)+c.supply.limit.Period/4
}

// observe counts the reply to a request of the given cost.
func (s *sharer) observe(c *core, refused bool, cost int64, useBy time.Duration) {
	s.roll(c)
	s.group.observe(refused, cost, c.supply.windowOf(useBy))
}

// applyPause makes the instance pause if another one was asked to. A pause counts once, so that a wrong clock of the
// other instance can stop this one for no longer than LongestPause.
func (s *sharer) applyPause(c *core, pause int64) {
	if pause > s.latestPause {
		s.latestPause = pause
		read := c.supply.read
		rest := min(time.Duration(min(pause, int64(never/time.Millisecond)))*time.Millisecond-read.Wall, LongestPause)
		c.supply.pausedUntil = max(c.supply.pausedUntil, read.Mono+rest)
	}
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
	need := s.units(c, math.Floor(backlog+demand+s.random.Float64())) // rounded at random, so that the sum is right
	next.told, next.owed = need, s.owed
	if need > 0 {
		s.needed = next.window
	}
	return ledger.Claim{Window: next.window, Stage: ledger.Prefetch, Need: need, Want: need, Owed: next.owed,
		Contends: next.window-s.needed < contendFor}, true
}

// units rounds a number of units up, and bounds it by the limit of the open window and of the next one.
func (s *sharer) units(c *core, n float64) int64 {
	return int64(math.Ceil(min(n, float64(max(c.supply.limit.Units, c.supply.next.limit)))))
}

func (s *sharer) refill(c *core, now time.Duration) (ledger.Claim, bool) {
	present := &s.shares[0]
	if now < c.supply.opens || now >= c.supply.closes || !s.needsUnits(c) {
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
	more := max(s.units(c, float64(c.supply.used)+expected)-present.told, 0)
	claim := ledger.Claim{Window: present.window, Stage: stage, Need: more, Told: present.told, Held: present.leased,
		Want: max(s.units(c, expected)-hand, 1), Owed: present.owed}
	s.needed = present.window
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
	s.addToBalance(excess * ledger.OwedOne)
	return ledger.Claim{Window: present.window, Stage: ledger.Share, Told: present.told, Held: held, Return: excess},
		true
}

// done records the result of a call, or that the call failed.
func (s *sharer) done(c *core, claim *ledger.Claim, got ledger.Lease, err error) {
	s.roll(c)
	s.busy = false
	if err != nil {
		s.group.failed(claim)
		c.supply.statedSinceCall = c.supply.statedSinceCall || claim.Stated > 0
		return
	}
	s.known = ledger.Known{Changed: got.Changed, Stated: got.Stated, Learned: got.Learned}
	s.updateBalance(claim, got)
	s.applyPause(c, got.Pause)
	s.group.recordLease(claim, &got)
	c.supply.learned = got.Learned.Rate / ledger.LearnedOne
	if !c.supply.statedSinceCall {
		c.supply.stated = got.Stated
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

// updateBalance changes the balance after a call. While the limit meets all needs, the balance is a random part of the
// cost of a request. Otherwise all instances would come to the cost of a request in the same window later.
func (s *sharer) updateBalance(claim *ledger.Claim, got ledger.Lease) {
	if claim.Stage == ledger.Prefetch {
		if s.equal = got.Equal; s.equal == 0 {
			s.owed = s.random.Int64N(s.cost * ledger.OwedOne)
			return
		}
		if claim.Contends {
			s.addToBalance(s.equal - s.owed/balanceFades)
		}
	}
	s.addToBalance(-got.Units * ledger.OwedOne)
}

// addToBalance adds to the balance.
func (s *sharer) addToBalance(more int64) {
	most := min(mostOwed*(s.equal+s.cost*ledger.OwedOne), ledger.MaxOwed)
	s.owed = min(max(s.owed+more, -most), most)
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
	if s.mayReport() {
		soonest(s.at(c, tellFrom))
	}
	if s.needsUnits(c) {
		for _, part := range [...]float64{shareFrom, leftoverFrom, anythingFrom} {
			soonest(s.at(c, part+s.late))
		}
		soonest(c.supply.opens)
	}
	return at
}
