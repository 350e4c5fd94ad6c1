package sim

import (
	"time"
)

// bounds checks two bounds of the fallback limiter. The fallback limiter of a single instance admits no more than
// [resilience.Fallback] states. And units above a limit have a reason: the fallback limiter admitted as many of the
// same counter in the same window, or the counter was lost and can have held as many. What a process admitted of each
// tier is in process.parts, and what is known of each tier in tenant.accounts.
type bounds struct {
	degradedUnits int64 // admitted by the fallback limiter, over all tiers
	forgotten     int64 // what counters that were lost may have held
	beyondPart    int64 // units that the fallback limiters of single instances admitted beyond their parts
	unexplained   int64 // units above a limit that nothing explains
}

// part is what the fallback limiter of a process admitted of a tier in a window, and how much it may admit, in units.
// The windows follow each other by the clock of the process, and are as long as the period. The bound holds for any
// interval of that length, so they need not be the windows of the limit.
type part struct{ window, units, most int64 }

// parts has a part for each tier of all tenants, by the number of the tier. It is made in blocks, since most processes
// of a run never decide without the store, or do so for few tenants.
type parts []*[partsAtOnce]part

const partsAtOnce = 16 // 384 bytes

// of returns the part of a tier, by the tier's number over all tenants.
func (p *parts) of(tier int) *part {
	block := tier / partsAtOnce
	if block >= len(*p) {
		*p = append(*p, make(parts, block+1-len(*p))...)
	}
	b := (*p)[block]
	if b == nil {
		b = new([partsAtOnce]part)
		(*p)[block] = b
	}
	return &b[tier%partsAtOnce]
}

// checkPart counts a request that the fallback limiter of a process admitted, and the units by which the process went
// beyond its part of a limit. The decision began at the time now of the process's clock.
func (b *bounds) checkPart(p *process, t *tenant, now time.Time) {
	instances := int64(p.chain.Instances.Count())
	tier := -1
	for _, c := range t.req.Charges {
		for i := range c.Limit.Tiers {
			tier++
			of := &c.Limit.Tiers[i]
			window := now.UnixMicro() / of.Period.Microseconds()
			one := p.parts.of(t.firstTier + tier)
			if window > one.window { // a request that waited can be of an earlier window, and counts in this one
				*one = part{window: window}
			}
			// The instance count can change within the window: the largest part counts.
			most := max(of.Threshold/instances, 1)
			one.most = max(one.most, most+max(of.Capacity()/instances, 1))
			before := max(one.units, one.most)
			one.units += c.Cost
			b.beyondPart += max(one.units-before, 0)
		}
	}
}

// account holds, for a tier of a tenant, the units above the limit and what explains them, in the judge's latest
// windows.
type account struct {
	kept  [keptSpells]spell // in the order of their windows
	count int               // of kept, how many there are
	twice bool              // see judge.CountsTwice
}

// spell is one window of an account, by the judge's number of it. The counts are units: those that the fallback limiter
// admitted, those that a lost counter can have held, and those above the limit.
type spell struct{ window, degraded, forgotten, over int64 }

// keptSpells is how many windows an account keeps. A decision can be reported one window late, and then needs that
// window and, if its algorithm counts twice, the one before: 3 with the present one. The fourth is spare.
const keptSpells = 4

// spell returns a window of an account, which it adds if it is missing. A window that is older than all that are kept
// is counted in the oldest one.
func (a *account) spell(window int64) *spell {
	i := a.count
	for i > 0 && a.kept[i-1].window >= window {
		i--
	}
	if i < a.count && a.kept[i].window == window {
		return &a.kept[i]
	}
	if a.count == keptSpells {
		if i == 0 {
			return &a.kept[0]
		}
		i--
		copy(a.kept[:i], a.kept[1:])
	} else {
		copy(a.kept[i+1:], a.kept[i:a.count])
		a.count++
	}
	a.kept[i] = spell{window: window}
	return &a.kept[i]
}

// explained returns how many units above the limit a window may have. If the algorithm counts twice, what happened in
// the window before counts too, and if all of time is one window, what happened in it counts twice.
func (a *account) explained(s *spell) int64 {
	units := s.degraded + s.forgotten
	if !a.twice {
		return units
	}
	for i := range a.count {
		if before := &a.kept[i]; before.window == s.window-1 {
			units += before.degraded + before.forgotten
		}
	}
	if s.window == 0 { // the only window, see judge.Judge.Window
		units *= 2
	}
	return units
}

// at returns the account of a tenant's tier, and its window at a time, µs since 1970.
func (t *tenant) at(tier int, at int64) (*account, *spell) {
	a := &t.accounts[tier]
	return a, a.spell(t.judges[tier].Window(at))
}

// addDegraded adds units that the fallback limiter admitted at a time.
func (b *bounds) addDegraded(t *tenant, tier int, at, units int64) {
	_, s := t.at(tier, at)
	s.degraded += units
	b.degradedUnits += units
}

// addForgotten adds the units that the counter of a tier can have held when it was lost, at a time.
func (b *bounds) addForgotten(t *tenant, tier int, at, units int64) {
	_, s := t.at(tier, at)
	s.forgotten += units
	b.forgotten += units
}

// addOver adds units that were admitted above the limit at a time, and counts those that nothing explains.
func (b *bounds) addOver(t *tenant, tier int, at, over int64) {
	a, s := t.at(tier, at)
	before := max(s.over, a.explained(s))
	s.over += over
	b.unexplained += max(s.over-before, 0)
}
