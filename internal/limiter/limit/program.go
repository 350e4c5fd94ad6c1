package limit

import "slices"

// Program decides requests about one row of states. It holds what is the same for all these requests, worked out once:
// which limits they are for, and what each of the tiers needs. It is immutable, and safe for concurrent use. See
// [Program.Decide].
type Program struct {
	limits []*Limit // whole limits, in the order of their states
	rules  []rule   // one for each of their tiers
	ends   []int    // ends[n] is how many tiers the first n limits have
}

// rule is a tier of a Program.
type rule struct {
	tier    *Tier
	counts  algorithm
	charge  int16 // the index of the limit
	shadow  bool
	windows bool // the tier has windows or calendar periods
}

// NewProgram makes the Program for a row of states: state i is that of the counter of tiers[i]. No two of the tiers may
// have one counter, or Decide would charge it in two places. The Program ends before the first limit whose tiers are
// not side by side and in their order, whose states can grow, or which tells values apart.
func NewProgram(tiers []*Tier) *Program {
	p := &Program{ends: []int{0}}
	for len(p.rules) < len(tiers) {
		l := tiers[len(p.rules)].limit
		for i := range l.Tiers {
			t, at := &l.Tiers[i], p.ends[len(p.limits)]+i
			if at >= len(tiers) || tiers[at] != t || t.grows != nil || l.valued {
				return p
			}
			p.rules = append(p.rules, rule{t, t.counts, int16(len(p.limits)), l.Mode == Shadow, t.windows != nil})
		}
		p.limits = append(p.limits, l)
		p.ends = append(p.ends, len(p.rules))
	}
	return p
}

// Decide makes a whole decision at once: it does what the sequence from [Decision.Begin] to [Evaluation.Charge] does,
// or, without charge, the sequence without its last step.
//
// It reports false, and has changed nothing but d, if the decision needs more than that: if the request is not about
// the first limits of the Program in their order, names a value or leases, or may be wrong; if a state must be
// repaired; if a calendar period must be computed. The caller then goes through the sequence. Unlike Begin, Decide
// may be called under a lock.
func (p *Program) Decide(d *Decision, req *Request, now int64, states []State, charge bool) (decided bool) {
	if !p.begin(d, req, now) {
		return false
	}
	// Each of these loops is short, so that what it needs stays in registers.
	results := d.Results
	rules, states := p.rules[:len(results)], states[:len(results)]
	for i := range results {
		if !rules[i].counts.evaluate(&states[i], now, &results[i]) {
			return false
		}
	}
	for i := range results {
		if r := &results[i]; !r.Admits && !r.shadow {
			(*Evaluation)(d).Settle()
			return true
		}
	}
	d.Allowed = true
	if !charge {
		return true
	}
	for i := range results {
		if r := &results[i]; !r.shadow || d.shadowAdmits(i) {
			r.Charged = r.need
			rules[i].counts.charge(&states[i], now, r)
		}
	}
	return true
}

// begin is [Decision.Begin] for the Program.
func (p *Program) begin(d *Decision, req *Request, now int64) bool {
	if len(req.Charges) > len(p.limits) || len(req.Leases) > 0 || len(d.asked) > 0 {
		return false
	}
	for i, l := range p.limits[:len(req.Charges)] {
		c := &req.Charges[i]
		if c.Limit != l || c.Cost < 1 || c.Cost > l.costMost || c.Value.Kind != NoValue || c.Value.Text != "" {
			return false
		}
	}
	d.clearOutcome(req, now)
	rules, windows := p.rules[:p.ends[len(req.Charges)]], false
	if cap(d.Results) < len(rules) {
		d.Results = slices.Grow(d.Results, len(rules))
	}
	d.Results = d.Results[:len(rules)]
	for i := range rules {
		rule, r := &rules[i], &d.Results[i]
		r.clear(rule.tier, rule.charge, req.Charges[rule.charge].Cost, rule.shadow)
		windows = windows || rule.windows
	}
	return !windows || d.findWindows()
}

// findWindows sets the windows of the results. It reports false if a calendar period must be computed for that.
func (d *Decision) findWindows() bool {
	for i := range d.Results {
		r := &d.Results[i]
		w := r.Tier.windows
		if w == nil || r.hasWindow(d.Now) {
			continue
		}
		if r.Tier.Calendar != nil {
			return false
		}
		r.window = w.window(d.Owner.Name, d.Now)
	}
	return true
}
