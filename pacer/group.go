package pacer

import (
	"math"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
)

// group is an instance's part in learning a rate together with others. The comment of package ledger explains how they
// do it. A group reads no clock and makes no calls itself. The zero group does not learn.
type group struct {
	start   int64 // rate to begin with, in units per window; 0: the instance does not learn
	bans    bool
	windows int64 // number of windows in an interval

	interval   int64             // number of the present interval
	unreported [2]ledger.Replies // that the ledger was not told: of the present interval, and of the one before
	latest     ledger.Learned    // as the ledger told last
	judged     ledger.Learned    // a judgement that the ledger was not told; without a Rate, there is none
}

func newGroup(l *Learning, limit Limit) group {
	windows := max(int64((shortestJudgement+limit.Period-1)/limit.Period), 1)
	return group{start: int64(l.start(limit)), bans: l.Bans, windows: windows}
}

func (g *group) intervalOf(window int64) int64 {
	return floorDiv(time.Duration(window), time.Duration(g.windows))
}

// roll moves on to the interval of a window.
func (g *group) roll(window int64) {
	if g.start == 0 {
		return
	}
	next := g.intervalOf(window)
	switch {
	case next == g.interval:
	case next == g.interval+1:
		g.unreported = [2]ledger.Replies{{}, g.unreported[0]}
	default:
		g.unreported = [2]ledger.Replies{}
	}
	g.interval = next
}

// observe counts the reply to a request of the given cost that was granted in a window. Replies that come later than in
// the interval after that of their request are not counted.
func (g *group) observe(refused bool, cost, window int64) {
	if g.start == 0 {
		return
	}
	ago := g.interval - g.intervalOf(window)
	if ago < 0 || ago >= int64(len(g.unreported)) {
		return
	}
	n := &g.unreported[ago].Accepted
	if refused {
		n = &g.unreported[ago].Refused
	}
	*n = min(*n+cost, ledger.MaxUnits)
}

// isLate reports whether the ledger was not told all replies of the interval before the present one.
func (g *group) isLate() bool { return g.unreported[1] != ledger.Replies{} }

// addReport adds to a claim what the ledger was not told.
func (g *group) addReport(c *ledger.Claim) {
	if g.start == 0 {
		return
	}
	c.Learn, c.Interval, c.Replies = g.start, g.interval, g.unreported
	c.Learned, c.Expect = g.judged, g.latest.Judged
	g.unreported, g.judged = [2]ledger.Replies{}, ledger.Learned{}
}

// failed is called after a claim whose outcome is unknown. Accepted units that were told are lost, because they would
// make a rise of the rate more likely if the ledger had counted them already.
func (g *group) failed(c *ledger.Claim) {
	for i, told := range c.Replies {
		if ago := g.interval - c.Interval + int64(i); ago >= 0 && ago < int64(len(g.unreported)) {
			g.unreported[ago].Refused = min(g.unreported[ago].Refused+told.Refused, ledger.MaxUnits)
		}
	}
}

// recordLease is called after a claim that was carried out. After a prefetch it applies the rule of [Learning] to the
// two intervals before the present one, unless somebody has applied it in the present interval.
//
// Refusals lower the rate by the part of the requests that was refused, in the intervals with refusals. That part is
// nearly right even if not all instances have told their replies, while the number of accepted units is then too low. A
// rise needs an interval in which enough units were accepted. If instances have not told all, the rate does not rise.
func (g *group) recordLease(c *ledger.Claim, got *ledger.Lease) {
	g.latest = got.Learned
	l := &g.latest
	if g.start == 0 || l.Rate == 0 || c.Stage != ledger.Prefetch || l.Judged >= c.Interval {
		return
	}
	rule := learned{rate: unitsOf(l.Rate), target: unitsOf(l.Target), probe: unitsOf(l.Probe), held: l.Held}
	var accepted, refused, used float64
	for i, n := range got.Replies {
		switch {
		case i == 0: // the interval is not over
		case c.Interval-int64(i) < l.From: // granted by another rate
		case n.Refused > 0:
			accepted += float64(n.Accepted)
			refused += float64(n.Refused)
		default:
			used = max(used, float64(n.Accepted)/float64(g.windows))
		}
	}
	most := float64(got.Limit)
	switch {
	case refused > 0:
		rule.fall(rule.rate*accepted/(accepted+refused), most)
	case g.bans || !rule.isUsed(used):
		return
	default:
		rule.rise(most)
	}
	next := ledger.Learned{Rate: scaled(rule.rate), Judged: l.Judged, From: l.From, Target: scaled(rule.target),
		Probe: scaled(rule.probe), Held: rule.held}
	if next == *l {
		return // the rate is at its bound
	}
	if next.Rate != l.Rate || refused > 0 {
		next.From = c.Interval + 1
	}
	next.Judged = c.Interval
	g.judged = next
}

// unitsOf and scaled convert the numbers of [ledger.Learned].
func unitsOf(n int64) float64 { return float64(n) / ledger.LearnedOne }

func scaled(n float64) int64 { return int64(math.Round(n * ledger.LearnedOne)) }
