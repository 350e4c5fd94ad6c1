package simulate

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/accesslog"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// report makes the report from what the engine counted.
func (r *replay) report() *Report {
	e := r.engine
	t := e.tally
	t.closeMinute()
	sum := t.totals
	out := &Report{
		Requests: sum.requests, Allowed: sum.allowed, Denied: sum.denied, UnknownTenant: sum.unknown,
		Suspended: sum.suspended, NoRoute: sum.noRoute, ShadowDenied: sum.shadowDenied,
		Skipped: make(map[string]int64), OddLines: []OddLine{}, Logs: []string{}, Incomplete: []string{},
		Limits: []LimitReport{}, WorstMinutes: []Minute{},
		Tenants: e.tenants.report(r.Top), Addresses: e.addresses.report(r.Top), Timeline: t.timeline.report(),
	}
	if sum.requests > 0 {
		out.From, out.To = timeOf(t.from), timeOf(t.to)
	}
	for _, l := range t.limits {
		out.Limits = append(out.Limits, l.report(&t.timeline))
	}
	for i := range t.worst {
		out.WorstMinutes = append(out.WorstMinutes, t.worst[i].report())
	}
	out.LongestWait = t.longest.report()
	r.reportLines(out)
	out.Notes = append([]string{}, r.notes...)
	if sum.requests > 0 && noPlanApplied(t.limits) {
		out.Notes = append(out.Notes, "no limit of a plan applied to any request, so the report does not show what "+
			"the plans would deny. Say with --tenant-from where the tenant of a line is found, and with "+
			"--default-plan which plan a tenant gets that the plans file does not name")
	}
	return out
}

// noPlanApplied reports whether plans have limits and none of these limits applied to any request. The ipLimits do not
// count, because they apply to requests without a tenant, too.
func noPlanApplied(limits []*limitTally) bool {
	ofPlans := 0
	for _, l := range limits {
		if l.name.origin == originIP {
			continue
		}
		if ofPlans++; l.applied > 0 {
			return false
		}
	}
	return ofPlans > 0
}

// reportLines adds up the counts of the lines that were read.
func (r *replay) reportLines(out *Report) {
	for _, reason := range accesslog.Reasons() {
		out.Skipped[reason.String()] = 0
	}
	for _, l := range r.lines {
		out.Logs = append(out.Logs, l.name)
		out.Lines += l.read
		for reason, n := range l.skipped {
			out.Skipped[reason.String()] += n
			out.SkippedLines += n
		}
		out.OddLines = append(out.OddLines, l.odd[:min(len(l.odd), oddLinesKept-len(out.OddLines))]...)
		if l.failure != nil {
			out.Incomplete = append(out.Incomplete, l.failure.Error())
		}
	}
}

func (p *people) report(top int) Ranking {
	all := p.ranked()
	out := Ranking{Total: len(all) + int(p.others.Count), Exact: !p.pruned, Top: []Person{}, Others: p.others}
	for i, who := range all {
		if i < top {
			out.Top = append(out.Top, who.report())
		} else {
			out.Others.add(who)
		}
	}
	return out
}

func (p *person) report() Person {
	out := Person{
		Name: p.name, Plan: p.policy.plan, Requests: p.requests, Allowed: p.allowed, Denied: p.denied,
		ShadowDenied: p.shadowDenied, LongestWaitMS: millis(p.longestWait),
	}
	switch {
	case p.policy.unknown:
		out.Status = "unknown"
	case p.policy.tenant != nil && p.policy.tenant.Suspended:
		out.Status = "suspended"
	}
	if p.denied > 0 {
		out.FirstDenied, out.LastDenied = timeOf(p.firstDenied), timeOf(p.lastDenied)
	}
	return out
}

func (l *limitTally) report(t *timeline) LimitReport {
	out := LimitReport{
		ID: l.name.id, Origin: originNames[l.name.origin], Plan: l.name.plan, Mode: l.limit.Mode.String(),
		Rule: describe(l.limit), Applied: l.applied, Allowed: l.allowed, Denied: l.denied, ShadowDenied: l.shadowDenied,
		Never: l.never, LongestWaitMS: millis(l.longestWait),
	}
	if l.denied+l.shadowDenied == 0 {
		return out
	}
	out.FirstDenied, out.LastDenied = timeOf(l.firstDenied), timeOf(l.lastDenied)
	out.Timeline = make([]int64, len(t.points))
	for i := range t.points {
		for _, c := range t.points[i].limits {
			if c.limit == l.index {
				out.Timeline[i] = c.n
			}
		}
	}
	return out
}

func (m *minuteTally) report() Minute {
	out := Minute{
		At: *timeOf(m.minute * minuteMicros), Requests: m.requests, Allowed: m.allowed, Denied: m.denied,
		Limit: m.limit.name.id, Origin: originNames[m.limit.name.origin], Plan: m.limit.name.plan,
		LimitDenied: m.limitDenied,
		Address:     m.address.name, AddressDenied: m.addressed,
	}
	if m.who != nil {
		out.Tenant, out.TenantDenied = m.who.name, m.whoDenied
	}
	return out
}

func (w *longestWait) report() *Wait {
	if w.limit == nil {
		return nil
	}
	name := w.limit.name
	out := &Wait{MS: millis(w.wait), At: *timeOf(w.at), Limit: name.id, Origin: originNames[name.origin],
		Plan:    name.plan,
		Address: w.address.name}
	if w.who != nil {
		out.Tenant = w.who.name
	}
	return out
}

func (t *timeline) report() Timeline {
	out := Timeline{StepSeconds: t.width * 60, Points: make([]Point, len(t.points))}
	for i := range t.points {
		p := &t.points[i]
		out.Points[i] = Point{
			At: *timeOf(p.slot * t.width * minuteMicros), Allowed: p.allowed, Denied: p.denied, ShadowDenied: p.shadow,
			Other: p.other,
		}
	}
	return out
}

// describe describes a limit in words, as in "token_bucket 50 per 1s, burst 100".
func describe(l *limit.Limit) string {
	parts := make([]string, len(l.Tiers))
	for i := range l.Tiers {
		t := &l.Tiers[i]
		switch {
		case t.Calendar != nil:
			parts[i] = fmt.Sprintf("%s %d per %s", t.Algorithm, t.Threshold, t.Calendar)
		case t.Burst > 0 && t.Burst != t.Threshold:
			parts[i] = fmt.Sprintf("%s %d per %s, burst %d", t.Algorithm, t.Threshold, limit.DurationText(t.Period),
				t.Burst)
		default:
			parts[i] = fmt.Sprintf("%s %d per %s", t.Algorithm, t.Threshold, limit.DurationText(t.Period))
		}
	}
	text := strings.Join(parts, "; ")
	if l.Per != limit.PerTenant {
		text += ", per " + l.Per
	}
	return text
}

func timeOf(us int64) *time.Time {
	t := time.UnixMicro(us).UTC()
	return &t
}

// millis rounds µs up.
func millis(us int64) int64 { return (us + 999) / 1000 }
