package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
)

const worstKept = 10 // number of worst minutes that are kept

// The parts of the plans file that a limit can be from.
const (
	originIP        = "ipLimits"
	originPlan      = "plan"
	originAnonymous = "anonymousPlan"
)

// limitName identifies a limit in the report. Limits of different plans may have the same id.
type limitName struct{ origin, plan, id string }

// limitTally counts what one limit did.
type limitTally struct {
	LimitReport
	inMinute minuteCount // denials
}

// tally counts outcomes in a report. Records come in the order of time, so only one minute is open at a time.
type tally struct {
	report *Report
	now    time.Time
	limits []*limitTally
	byName map[limitName]*limitTally

	minute  int64 // of now, since 1970
	open    Minute
	longest time.Duration
}

// minuteCount counts in the newest minute that it was told.
type minuteCount struct{ minute, n int64 }

func (c *minuteCount) add(minute int64) int64 {
	if c.minute != minute {
		*c = minuteCount{minute: minute}
	}
	c.n++
	return c.n
}

// newTally returns a tally with a row for every limit of the file, so that a limit that never applies is in the report,
// too.
func newTally(config *plan.Config) *tally {
	t := &tally{byName: make(map[limitName]*limitTally), minute: -1,
		report: &Report{Limits: []LimitReport{}, WorstMinutes: []Minute{}}}
	add := func(set *plan.Set, from, planID string) {
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
func (t *tally) row(l *limit.Limit, from, planID string) *limitTally {
	name := limitName{from, planID, l.ID}
	row := t.byName[name]
	if row == nil {
		row = &limitTally{LimitReport: LimitReport{
			ID: l.ID, Origin: from, Plan: planID, Mode: l.Mode.String(), Rule: describe(l),
		}}
		t.byName[name] = row
		t.limits = append(t.limits, row)
	}
	return row
}

// begin sets the time of the next request.
func (t *tally) begin(now time.Time) {
	t.now = now
	minute := now.Unix() / 60
	if minute == t.minute {
		return
	}
	t.closeMinute()
	if t.report.From == nil {
		first := now // so that only this time is on the heap
		t.report.From = &first
	}
	t.minute, t.open = minute, Minute{At: time.Unix(minute*60, 0).UTC()}
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
		row.Applied++
		fits := true
		for _, r := range results[:len(l.Tiers)] {
			fits = fits && r.Admits
		}
		results = results[len(l.Tiers):]
		switch {
		case l.Mode == limit.Shadow && !fits && s.dec.Allowed:
			t.note(row)
			row.ShadowDenied++
			shadowed = true
		case admitted && fits:
			row.Allowed++
		}
	}
	return shadowed
}

// note notes the time of a denial, including that of a shadow limit.
func (t *tally) note(l *limitTally) {
	if l.FirstDenied.IsZero() {
		l.FirstDenied = t.now
	}
	l.LastDenied = t.now
}

func (t *tally) outcome(what outcome, shadowed bool) {
	r := t.report
	r.Requests++
	t.open.Requests++
	switch what {
	case allowed:
		r.Allowed++
		t.open.Allowed++
		if shadowed {
			r.ShadowDenied++
		}
	case denied:
		r.Denied++
		t.open.Denied++
	case unknownTenant:
		r.UnknownTenant++
	case suspended:
		r.Suspended++
	case noRoute:
		r.NoRoute++
	}
}

// denial counts a denial for the binding limit, and returns the time to wait.
func (t *tally) denial(s *step, address, who *person) (wait time.Duration) {
	row := t.row(s.dec.Binding().Limit(), s.origin, s.plan)
	wait = s.dec.RetryAfter()
	t.note(row)
	row.Denied++
	row.LongestWaitMS = max(row.LongestWaitMS, millis(wait))
	if s.dec.Never {
		row.Never++
	}
	m := &t.open
	if n := row.inMinute.add(t.minute); n > m.LimitDenied {
		m.Limit, m.Origin, m.Plan, m.LimitDenied = row.ID, row.Origin, row.Plan, n
	}
	if n := address.inMinute.add(t.minute); n > m.AddressDenied {
		m.Address, m.AddressDenied = address.Name, n
	}
	tenant := ""
	if who != nil {
		tenant = who.Name
		if n := who.inMinute.add(t.minute); n > m.TenantDenied {
			m.Tenant, m.TenantDenied = tenant, n
		}
	}
	if wait > t.longest {
		t.longest = wait
		t.report.LongestWait = &Wait{MS: millis(wait), At: t.now, Limit: row.ID, Origin: row.Origin, Plan: row.Plan,
			Tenant: tenant, Address: address.Name}
	}
	return wait
}

// closeMinute keeps the open minute if it is among the worst. Of equal minutes, the earlier one is kept.
func (t *tally) closeMinute() {
	if t.open.Denied == 0 {
		return
	}
	worst := t.report.WorstMinutes
	at, _ := slices.BinarySearchFunc(worst, t.open, func(a, b Minute) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), a.At.Compare(b.At))
	})
	if at < worstKept {
		t.report.WorstMinutes = slices.Insert(worst[:min(len(worst), worstKept-1)], at, t.open)
	}
}

// end completes the report.
func (t *tally) end() *Report {
	r := t.report
	t.closeMinute()
	if r.From != nil {
		r.To = &t.now
	}
	for _, l := range t.limits {
		r.Limits = append(r.Limits, l.LimitReport)
	}
	return r
}

// noPlanApplied reports whether plans have limits and none of these limits applied to any request. The ipLimits do not
// count, because they apply to requests without a tenant, too.
func (t *tally) noPlanApplied() bool {
	ofPlans := false
	for _, l := range t.limits {
		if l.Origin != originIP && l.Applied > 0 {
			return false
		}
		ofPlans = ofPlans || l.Origin != originIP
	}
	return ofPlans
}

// describe describes a limit in words, as in "token_bucket 50 per 1s, burst 100".
func describe(l *limit.Limit) string {
	parts := make([]string, len(l.Tiers))
	for i := range l.Tiers {
		t := &l.Tiers[i]
		per := limit.DurationText(t.Period)
		if t.Calendar != nil {
			per = fmt.Sprint(t.Calendar)
		}
		parts[i] = fmt.Sprintf("%s %d%s per %s", t.Algorithm, t.Threshold, l.UnitSuffix(), per)
		if t.Calendar == nil && t.Burst > 0 && t.Burst != t.Threshold {
			parts[i] += fmt.Sprintf(", burst %d", t.Burst)
		}
	}
	text := strings.Join(parts, "; ")
	if l.Per != limit.PerTenant {
		text += ", per " + l.Per
	}
	return text
}

// millis rounds up.
func millis(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }
