package pacer

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
)

// sharer decides which calls an instance makes to the ledger of a shared limit. A sharer reads no clock and makes no
// calls itself. The comment of package ledger explains the rule by which the ledger leases units. In the life of one
// window, an instance does this:
//
//  1. Shortly before the window opens, it tells the ledger how many units it will need, and leases them (prefetch).
//  2. While the window is open and a request waits that costs more than the leased units that are left, it asks for
//     more (refill): once in each of the stages Share, Leftover and Anything.
//  3. Three times in the window, it gives back the units that it will probably not use (giveBack).
//  4. Each of these calls reports what the provider has stated, and the pause that it has asked for. If there is a
//     pause to report and no other call to make, it makes a call that only reports (report).
//
// A sharer therefore holds the state of two windows: the open one, and the next one, which is prefetched meanwhile.
type sharer struct {
	random *rand.Rand
	limit  int64  // of the configuration, in units per window
	serial uint64 // supply.serial of the window open
	open   sharedWindow
	next   sharedWindow
	busy   bool         // a call is under way
	known  ledger.Known // what the latest lease told, which the next claim tells back

	askedBefore int64   // Counts.Asked when the open window opened
	lastDemand  float64 // what asked returned for the window before the open one
	tried       int64   // units of the calls of TryAcquire that failed in the open window
	largestTry  int64   // the largest of them
	neededIn    int64   // number of the latest window in which the instance needed units

	stageDelay float64 // by which the stages of the open window begin later, as a part of the window
	balance    int64   // in 1/ledger.OwedOne of a unit; above 0: the instance got less than equal shares
	equalShare int64   // Lease.Equal of the latest prefetch, in the same scale
	firstCost  int64   // of the first request in the queue at the latest call when requests waited; 1 before

	reportedPause time.Duration // supply.askedUntil at the latest call
	latestPause   int64         // the latest Lease.Pause that was applied
}

// sharedWindow is what an instance has done about one window of a shared limit.
type sharedWindow struct {
	number     int64
	balance    int64         // sharer.balance when the window was prefetched
	told       int64         // sum of the needs that the ledger was told, in units
	leased     int64         // leased units, less those that were given back
	prefetchAt time.Duration // when to prefetch the window
	prefetched bool
	askedEarly bool         // units were asked for before shareFrom, because the prefetch had told a need of 0
	stage      ledger.Stage // the latest stage in which units were asked for
	returns    int          // how many of returnFrom have passed
}

// A window is prefetched at a random time between prefetchFirst and prefetchLast before it begins, so that the calls of
// many instances do not come at once. The times are shorter, in proportion, if the period is shorter than a second.
const (
	prefetchFirst = 350 * time.Millisecond
	prefetchLast  = 150 * time.Millisecond
)

// These parts of a window's usable time, in which its units are granted, say when the other calls are made. When a
// stage begins, most instances have made the calls of the stage before, so the ledger knows what is left.
const (
	shareFrom    = 0.40
	leftoverFrom = 0.65
	anythingFrom = 0.80
)

// returnFrom holds the parts of a window's usable time at which an instance looks for units to give back: before each
// of the stages, so that the units can be leased in it.
var returnFrom = [...]float64{0.30, 0.60, 0.75}

// The stages of a window begin later by a random time of up to stageSpread, as a part of the window. Without it, the
// instance whose clock is the most ahead would ask first in every window, and get all units that are left. Instances
// whose balance is below 0 ask later by another stageSpread, so that the others come first.
const stageSpread = 0.06

// An instance that needs no units for contendFor windows no longer has an equal share. A balance is at most mostOwed
// times the sum of an equal share and the cost of the latest request, above and below 0. In each window it loses one
// part of balanceFades, because units of lost replies would otherwise add up in the balances of the others. These
// constants were found by simulation (TestSharesAreFair).
const (
	contendFor   = 32
	mostOwed     = 8
	balanceFades = 128
)

func newSharer(limit int64, seed uint64) *sharer {
	const stream = 96 // any number will do: instances differ by their seeds
	s := &sharer{limit: limit, random: rand.New(rand.NewPCG(seed, stream)), firstCost: 1}
	s.balance = s.random.Int64N(ledger.OwedOne)
	return s
}

// roll moves on to the next window if one has opened.
func (s *sharer) roll(c *core) {
	if s.serial == c.supply.serial {
		return
	}
	s.rollDemand(c)
	s.serial = c.supply.serial
	s.open, s.next = s.next, sharedWindow{number: c.supply.number + 1}
	if s.open.number != c.supply.number { // windows were skipped
		s.open = sharedWindow{number: c.supply.number, balance: s.balance}
	}
	s.stageDelay = stageSpread * s.random.Float64()
	if s.balance < 0 {
		s.stageDelay += stageSpread
	}
	period := c.supply.limit.Period
	before := float64(prefetchLast) + s.random.Float64()*float64(prefetchFirst-prefetchLast)
	before *= min(period.Seconds(), 1)
	s.next.prefetchAt = c.supply.begin + period - time.Duration(before)
}

// rollDemand sets lastDemand when a window has opened. If the process skipped windows, because it was suspended or its
// clock was set, lastDemand is the average of the window that was open and the skipped ones.
func (s *sharer) rollDemand(c *core) {
	windows := int64(1)
	if s.serial != 0 {
		windows = max(c.supply.number-s.open.number, 1)
	}
	s.lastDemand = float64(s.asked(c)) / float64(windows)
	s.askedBefore, s.tried, s.largestTry = c.counts.Asked, 0, 0
}

// asked returns how many units requests at this instance have asked for in the open window. A call of TryAcquire that
// failed may be one of many attempts of the same request, so all of them together count at most as much as the other
// requests, or as the largest of them. The need of an instance that only tries therefore doubles from window to window
// until its attempts succeed.
func (s *sharer) asked(c *core) int64 {
	asked := c.counts.Asked - s.askedBefore
	return asked + min(s.tried, max(asked, s.largestTry))
}

// observeTry counts a call of TryAcquire that failed.
func (s *sharer) observeTry(c *core, cost int64) {
	if cost < 1 || cost > c.supply.limit.Units {
		return // no window can grant it
	}
	s.roll(c)
	s.tried = min(s.tried+cost, MaxUnits)
	s.largestTry = max(s.largestTry, cost)
}

// passedPart returns which part of the usable time of the open window has passed.
func (s *sharer) passedPart(c *core, now time.Duration) float64 {
	return float64(now-c.supply.opens) / float64(c.supply.closes-c.supply.opens)
}

// timeOfPart returns the time at which a part of the usable time has passed. It adds a microsecond, so that rounding
// never makes the time too early.
func (s *sharer) timeOfPart(c *core, part float64) time.Duration {
	return c.supply.opens + time.Duration(part*float64(c.supply.closes-c.supply.opens)) + time.Microsecond
}

// partUntil returns the time from now until end, as a part of a period, at least 0.
func (s *sharer) partUntil(c *core, end, now time.Duration) float64 {
	return max(float64(end-now)/float64(c.supply.limit.Period), 0)
}

// demand estimates how many units are asked for in a whole period: what was asked for since the window began, and for
// the remaining part of the window as much as in that part of the window before.
func (s *sharer) demand(c *core, now time.Duration) float64 {
	remaining := min(s.partUntil(c, c.supply.begin+c.supply.limit.Period, now), 1)
	return float64(s.asked(c)) + s.lastDemand*remaining
}

// expected estimates how many units the instance would spend until the window closes if it had enough: those of the
// queue, and those of the requests that are still to come.
func (s *sharer) expected(c *core, now time.Duration) float64 {
	return float64(c.queue.units) + s.demand(c, now)*s.partUntil(c, c.supply.closes, now)
}

// left returns the leased units of the open window that are not granted.
func (s *sharer) left(c *core) int64 { return c.supply.units - c.supply.used }

// needsUnits reports whether the instance needs more units of the open window than are left: if the first request in
// the queue costs more.
//
// With Spread, units are left until the end of the window, so that request says little. Until the stage Share,
// needsUnits therefore compares the cost of the whole queue, so that the instance gets its part of the ledger's reserve
// early. Units that come later would have to be granted in a shorter time, and raise the rate too much.
func (s *sharer) needsUnits(c *core) bool {
	i := c.queue.next()
	if i == 0 {
		return false
	}
	lacking := c.queue.at(i).cost
	if c.supply.smoothing == Spread && s.open.stage < ledger.Share {
		lacking = c.queue.units
	}
	return lacking > s.left(c)
}

// due returns the call that has to be made now, and false if there is none. The caller makes the call, and then calls
// done.
func (s *sharer) due(c *core, now time.Duration) (ledger.Claim, bool) {
	s.roll(c)
	if s.busy {
		return ledger.Claim{}, false
	}
	for _, kind := range [...]func(*core, time.Duration) (ledger.Claim, bool){
		s.prefetch, s.refill, s.giveBack, s.report,
	} {
		if claim, ok := kind(c, now); ok {
			s.complete(c, &claim, now)
			s.busy = true
			return claim, true
		}
	}
	return ledger.Claim{}, false
}

// complete sets the fields that all claims have, and marks what they report as reported.
func (s *sharer) complete(c *core, claim *ledger.Claim, now time.Duration) {
	claim.Limit, claim.Unit, claim.Known = s.limit, 1, s.known
	if i := c.queue.next(); i != 0 {
		s.firstCost = c.queue.at(i).cost
		claim.Unit = s.firstCost
	}
	if c.supply.statedSinceCall {
		c.supply.statedSinceCall, claim.Stated = false, c.supply.stated
	}
	if s.reportedPause = c.supply.askedUntil; s.reportedPause > now {
		claim.Pause = wallMillisecond(c, s.reportedPause)
	}
}

// wallMillisecond converts a monotonic time to milliseconds since 1970, rounded up.
func wallMillisecond(c *core, mono time.Duration) int64 {
	return int64((c.supply.read.Wall+mono-c.supply.read.Mono)/time.Millisecond) + 1
}

// report returns a claim that leases nothing, because it has no Want, and only reports a pause.
func (s *sharer) report(c *core, _ time.Duration) (ledger.Claim, bool) {
	if !s.mustReportPause(c) {
		return ledger.Claim{}, false
	}
	return ledger.Claim{Window: s.open.number, Stage: ledger.Share, Told: s.open.told, Held: s.open.leased,
		Owed: s.open.balance}, true
}

// mustReportPause reports whether the provider has asked for a pause that the ledger was not told of, and that is
// longer than the pause that the ledger knows by more than a quarter of a period. The replies to requests on their way
// may each ask for a little more, which can wait for the next call.
func (s *sharer) mustReportPause(c *core) bool {
	return c.supply.askedUntil > max(s.reportedPause, c.supply.read.Mono)+c.supply.limit.Period/4
}

// applyPause makes the instance pause if another one was asked to pause until a time, in milliseconds since 1970. A
// pause counts once, so that a wrong clock of the other instance can stop this one for no longer than LongestPause.
func (s *sharer) applyPause(c *core, until int64) {
	if until <= s.latestPause {
		return
	}
	s.latestPause = until
	until = min(until, int64(never/time.Millisecond)) // a Duration can hold it
	pause := min(time.Duration(until)*time.Millisecond-c.supply.read.Wall, LongestPause)
	c.supply.pausedUntil = max(c.supply.pausedUntil, c.supply.read.Mono+pause)
}

// prefetch returns the first claim for the next window, when its time has come. The need is what the window's requests
// will ask for, and what will be left in the queue when it opens.
func (s *sharer) prefetch(c *core, now time.Duration) (ledger.Claim, bool) {
	w := &s.next
	if w.prefetched || now < w.prefetchAt {
		return ledger.Claim{}, false
	}
	w.prefetched = true
	demand := s.demand(c, now)
	untilBegin := s.partUntil(c, c.supply.begin+c.supply.limit.Period, now)
	backlog := max(float64(c.queue.units)+demand*untilBegin-float64(s.left(c)), 0)
	// A fraction is rounded up as often as it is large. Of many instances that need half a unit each, half need one.
	need := s.wholeUnits(c, math.Floor(backlog+demand+s.random.Float64()))
	w.told, w.balance = need, s.balance
	if need > 0 {
		s.neededIn = w.number
	}
	return ledger.Claim{Window: w.number, Stage: ledger.Prefetch, Need: need, Want: need, Owed: w.balance,
		Contends: w.number-s.neededIn < contendFor}, true
}

// wholeUnits rounds a number of units up, and bounds it by the larger limit of the open window and the next one: no
// instance can use more.
func (s *sharer) wholeUnits(c *core, n float64) int64 {
	return int64(math.Ceil(min(n, float64(max(c.supply.limit.Units, c.supply.next.limit)))))
}

// refill returns a claim for more units of the open window, if the instance needs them and has not asked in the present
// stage. The claim tells by how much the need of the window, which is what was spent and what is expected, is above the
// needs that were told before. It wants the expected units that are not leased yet, and at least one, because a request
// waits for it.
//
// The prefetch may have told a need of 0. Then a request has come as a surprise, and the instance asks once before the
// first stage: the ledger's reserve is meant for it.
func (s *sharer) refill(c *core, now time.Duration) (ledger.Claim, bool) {
	w := &s.open
	if now < c.supply.opens || now >= c.supply.closes || !s.needsUnits(c) {
		return ledger.Claim{}, false
	}
	stage, ok := stageOf(s.passedPart(c, now) - s.stageDelay)
	switch {
	case !ok && w.told == 0 && !w.askedEarly:
		w.askedEarly, stage = true, ledger.Share
	case !ok || stage <= w.stage:
		return ledger.Claim{}, false
	default:
		w.stage = stage
	}
	expected := s.expected(c, now)
	more := max(s.wholeUnits(c, float64(c.supply.used)+expected)-w.told, 0)
	claim := ledger.Claim{Window: w.number, Stage: stage, Need: more, Told: w.told, Held: w.leased,
		Want: max(s.wholeUnits(c, expected)-s.left(c), 1), Owed: w.balance}
	s.neededIn = w.number
	w.told += more
	return claim, true
}

// stageOf returns the stage that has begun when a part of the window has passed, and false before the first stage.
func stageOf(part float64) (ledger.Stage, bool) {
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

// giveBack returns a claim that gives units of the open window back, if the instance will probably not use them. The
// instance must not spend these units even if the call fails, because others may have got them.
func (s *sharer) giveBack(c *core, now time.Duration) (ledger.Claim, bool) {
	w := &s.open
	if w.returns == len(returnFrom) || now < s.timeOfPart(c, returnFrom[w.returns]) || now >= c.supply.closes {
		return ledger.Claim{}, false
	}
	w.returns++
	spare := float64(s.left(c)) - unitsToKeep(s.expected(c, now))
	excess := int64(min(spare, float64(w.leased)))
	if excess < 1 {
		return ledger.Claim{}, false
	}
	claim := ledger.Claim{Window: w.number, Stage: ledger.Share, Told: w.told, Held: w.leased, Return: excess}
	c.supply.units -= excess
	w.leased -= excess
	s.addToBalance(excess * ledger.OwedOne)
	return claim, true
}

// unitsToKeep returns how many units an instance keeps for an expected number. Requests that come independently of each
// other vary in number by the square root of what is expected (a Poisson distribution). Twice that, and one, is enough
// in most windows. Below half a unit, nobody is more likely to come than somebody, so nothing is kept.
func unitsToKeep(expected float64) float64 {
	if expected < 0.5 {
		return 0
	}
	return expected + 2*math.Sqrt(expected) + 1
}

// done records the result of a call, or that the call failed.
func (s *sharer) done(c *core, claim *ledger.Claim, got ledger.Lease, err error) {
	s.roll(c)
	s.busy = false
	if err != nil {
		c.supply.statedSinceCall = c.supply.statedSinceCall || claim.Stated > 0
		return
	}
	s.known = ledger.Known{Changed: got.Changed, Stated: got.Stated}
	s.updateBalance(claim, got)
	s.applyPause(c, got.Pause)
	if !c.supply.statedSinceCall {
		c.supply.stated = got.Stated
	}
	s.recordUnits(c, claim.Window, &got)
}

// recordUnits adds the units of a lease to those of its window. Units of a window that is over are lost.
func (s *sharer) recordUnits(c *core, window int64, got *ledger.Lease) {
	switch window {
	case s.open.number:
		s.open.leased += got.Units
		c.supply.units += got.Units
		c.supply.next = lease{window: window + 1, units: c.supply.nextUnits(window + 1), limit: got.NextLimit}
	case s.next.number:
		s.next.leased += got.Units
		c.supply.next = lease{window: window, units: c.supply.nextUnits(window) + got.Units, limit: got.Limit}
	}
}

// updateBalance changes the balance after a call, as the comment of package ledger says.
//
// While the limit meets all needs, there is no equal share, and the balance is a random part of the cost of a request.
// With the same balance, all instances would have saved up the cost of a request in the same window later.
func (s *sharer) updateBalance(claim *ledger.Claim, got ledger.Lease) {
	if claim.Stage == ledger.Prefetch {
		if s.equalShare = got.Equal; s.equalShare == 0 {
			s.balance = s.random.Int64N(s.firstCost * ledger.OwedOne)
			return
		}
		if claim.Contends {
			s.addToBalance(s.equalShare - s.balance/balanceFades)
		}
	}
	s.addToBalance(-got.Units * ledger.OwedOne)
}

// addToBalance adds to the balance, within its bounds.
func (s *sharer) addToBalance(more int64) {
	most := min(mostOwed*(s.equalShare+s.firstCost*ledger.OwedOne), ledger.MaxOwed)
	s.balance = min(max(s.balance+more, -most), most)
}

// returnAll returns the calls that give back all units when the instance ends, and takes the units from the supply.
func (s *sharer) returnAll(c *core) (claims []ledger.Claim) {
	s.roll(c)
	giveBack := func(w *sharedWindow, units int64) {
		if units = min(units, w.leased); units > 0 {
			claims = append(claims, ledger.Claim{Window: w.number, Limit: s.limit, Stage: ledger.Share, Told: w.told,
				Held: w.leased, Return: units, Unit: 1})
		}
	}
	giveBack(&s.open, s.left(c))
	giveBack(&s.next, c.supply.nextUnits(s.next.number))
	c.supply.units, c.supply.next = c.supply.used, lease{}
	return claims
}

// wakeAt returns the time at which due has to be called again if nothing happens until then: the earliest time of a
// call that can be due, or the end of the window.
func (s *sharer) wakeAt(c *core, now time.Duration) time.Duration {
	s.roll(c)
	at := c.supply.begin + c.supply.limit.Period
	consider := func(t time.Duration) {
		if t > now { // due was called at the times before
			at = min(at, t)
		}
	}
	if !s.next.prefetched {
		at = min(at, s.next.prefetchAt)
	}
	if w := &s.open; w.returns < len(returnFrom) {
		consider(s.timeOfPart(c, returnFrom[w.returns]))
	}
	if s.needsUnits(c) {
		for _, part := range [...]float64{shareFrom, leftoverFrom, anythingFrom} {
			consider(s.timeOfPart(c, part+s.stageDelay))
		}
		consider(c.supply.opens)
	}
	return at
}
