package simulate

import (
	"cmp"
	"slices"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
)

const (
	minuteMicros  = 60_000_000
	worstKept     = 10     // number of worst minutes that are kept
	maxRemembered = 65_536 // limits by their address in memory; boosts make new ones
)

// origin says which part of the plans file a limit is from.
type origin uint8

const (
	originIP origin = iota
	originPlan
	originAnonymous
)

var originNames = [...]string{"ipLimits", "plan", "anonymousPlan"}

// limitName identifies a limit in the report. Limits of different plans may have the same id.
type limitName struct {
	origin origin
	plan   string
	id     string
}

// limitTally counts what one limit did.
type limitTally struct {
	name  limitName
	limit *limit.Limit
	index int32

	applied, allowed, denied, shadowDenied, never int64
	firstDenied, lastDenied, longestWait          int64
	minute, minuteDenied                          int64
}

// tally counts outcomes over time. Records come in the order of time, so only one minute is open at a time.
type tally struct {
	now    int64 // µs
	totals totals
	from   int64
	to     int64

	limits []*limitTally
	byName map[limitName]*limitTally
	byPtr  map[*limit.Limit]*limitTally

	timeline timeline
	minute   minuteTally
	worst    []minuteTally
	longest  longestWait
}

type totals struct {
	requests, allowed, denied, shadowDenied, unknown, suspended, noRoute int64
}

// minuteTally counts the denials of one minute, and who and which limit had most of them.
type minuteTally struct {
	minute                            int64 // since 1970
	requests, allowed, denied         int64
	limit                             *limitTally
	who, address                      *person
	limitDenied, whoDenied, addressed int64
}

type longestWait struct {
	wait, at     int64
	limit        *limitTally
	who, address *person
}

// newTally returns a tally with a row for every limit of the file, so that a limit that never applies is in the report,
// too.
func newTally(config *plan.Config) *tally {
	t := &tally{byName: make(map[limitName]*limitTally), byPtr: make(map[*limit.Limit]*limitTally),
		timeline: newTimeline()}
	add := func(set *plan.Set, from origin, planID string) {
		if set == nil {
			return
		}
		for _, l := range set.Limits {
			t.row(l.Limit, from, planID)
		}
	}
	add(config.IPLimits(), originIP, "")
	for _, p := range config.Plans() {
		add(p.Set(), originPlan, p.ID)
	}
	add(config.Anonymous(), originAnonymous, config.AnonymousPlan())
	return t
}

// row returns the tally of a limit. A tenant's own version of a limit is counted together with the plan's.
func (t *tally) row(l *limit.Limit, from origin, planID string) *limitTally {
	if row := t.byPtr[l]; row != nil && row.name.origin == from && row.name.plan == planID {
		return row
	}
	name := limitName{from, planID, l.ID}
	row := t.byName[name]
	if row == nil {
		row = &limitTally{name: name, limit: l, index: int32(len(t.limits)), minute: -1}
		t.byName[name] = row
		t.limits = append(t.limits, row)
	}
	if len(t.byPtr) >= maxRemembered {
		clear(t.byPtr)
	}
	t.byPtr[l] = row
	return row
}

// begin sets the time of the next request.
func (t *tally) begin(now int64) {
	if t.totals.requests == 0 {
		t.from = now
		t.minute.minute = now / minuteMicros
	}
	t.now, t.to = now, now
	if minute := now / minuteMicros; minute != t.minute.minute {
		t.closeMinute()
		t.minute = minuteTally{minute: minute}
	}
}

// step counts the result of a decision for each of its limits. It reports whether a shadow limit would have denied a
// request that this step admitted.
func (t *tally) step(s *step, admitted bool) (shadowed bool) {
	if !s.asked {
		return false
	}
	results := s.dec.Results
	for i := range s.req.Charges {
		l := s.req.Charges[i].Limit
		row := t.row(l, s.origin, s.plan)
		row.applied++
		fits := true
		for _, r := range results[:len(l.Tiers)] {
			fits = fits && r.Admits
		}
		results = results[len(l.Tiers):]
		switch {
		case l.Mode == limit.Shadow && !fits && s.dec.Allowed:
			row.shadowDenied++
			row.note(t.now)
			t.timeline.deny(row.index, t.now)
			shadowed = true
		case admitted && fits:
			row.allowed++
		}
	}
	return shadowed
}

func (l *limitTally) note(now int64) {
	if l.firstDenied == 0 {
		l.firstDenied = now
	}
	l.lastDenied = now
}

func (t *tally) outcome(what outcome, shadowed bool) {
	t.totals.requests++
	t.minute.requests++
	t.timeline.add(t.now, what, shadowed)
	switch what {
	case allowed:
		t.totals.allowed++
		t.minute.allowed++
		if shadowed {
			t.totals.shadowDenied++
		}
	case denied:
		t.totals.denied++
		t.minute.denied++
	case unknownTenant:
		t.totals.unknown++
	case suspended:
		t.totals.suspended++
	case noRoute:
		t.totals.noRoute++
	}
}

// denial counts a denial for the binding limit, and returns the time to wait in microseconds.
func (t *tally) denial(s *step, address, who *person) (wait int64) {
	row := t.row(s.dec.Binding().Limit(), s.origin, s.plan)
	wait = s.dec.RetryAfter().Microseconds()
	row.denied++
	row.note(t.now)
	row.longestWait = max(row.longestWait, wait)
	if s.dec.Never {
		row.never++
	}
	if wait > t.longest.wait {
		t.longest = longestWait{wait, t.now, row, who, address}
	}
	t.timeline.deny(row.index, t.now)

	m := &t.minute
	if n := bump(&row.minute, &row.minuteDenied, m.minute); n > m.limitDenied {
		m.limit, m.limitDenied = row, n
	}
	if n := bump(&address.minute, &address.minuteDenied, m.minute); n > m.addressed {
		m.address, m.addressed = address, n
	}
	if who != nil {
		if n := bump(&who.minute, &who.minuteDenied, m.minute); n > m.whoDenied {
			m.who, m.whoDenied = who, n
		}
	}
	return wait
}

// bump adds 1 to the count of a minute; the count of a new minute begins with 1.
func bump(minute, count *int64, current int64) int64 {
	if *minute != current {
		*minute, *count = current, 0
	}
	*count++
	return *count
}

// closeMinute keeps the open minute if it is among the worst. Of equal minutes, the earlier one is kept.
func (t *tally) closeMinute() {
	if t.minute.denied == 0 {
		return
	}
	at, _ := slices.BinarySearchFunc(t.worst, t.minute, func(a, b minuteTally) int {
		return cmp.Or(cmp.Compare(b.denied, a.denied), cmp.Compare(a.minute, b.minute))
	})
	if at == worstKept {
		return
	}
	t.worst = slices.Insert(t.worst[:min(len(t.worst), worstKept-1)], at, t.minute)
}
