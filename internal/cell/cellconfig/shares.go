package cellconfig

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// maxSharedSets bounds the sets that are kept for tenants which have the same.
const maxSharedSets = 4096

// sharing is the shares in force, and what was divided by them. Limits are divided without any lock held, since that
// computes calendar periods; mu guards only the maps.
type sharing struct {
	cell    string
	doc     *shares.Document
	reaches func(home string) bool // see Config.Reaches
	log     *slog.Logger

	mu        sync.Mutex
	told      map[string]bool // homes that cannot be reached, and of which the log has it
	sets      map[setKey][]plan.Part
	anonymous map[*plan.Plan][]plan.Part
}

// setKey names a set as all tenants have it that are at home in the same cells.
type setKey struct {
	set  *plan.Set
	home shares.Key
}

// readShares makes the document that holds the state of the shares. A nil sharing grants all of each limit.
func readShares(c *Config, d *Document) (s *sharing, err error) {
	if d.Version == 0 {
		return nil, nil
	}
	if d.Deleted {
		return nil, errNoShares
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it cannot be read: %v", p)
		}
	}()
	state, err := shares.DecodeState(d.Body)
	if err != nil {
		return nil, err
	}
	doc := state.Document()
	if doc == nil { // there is no cell yet
		return nil, nil
	}
	return &sharing{cell: c.Cell, doc: doc, reaches: c.Reaches, log: c.Log, told: map[string]bool{},
		sets:      map[setKey][]plan.Part{},
		anonymous: map[*plan.Plan][]plan.Part{}}, nil
}

// divided is the tenant as the cell grants it; own is the number of limits that it shares with no other tenant.
func (s *sharing) divided(t *plan.Tenant, placed *shares.Placement) (out *plan.Tenant, own int) {
	v := s.doc.View(s.cell, t.ID, placed)
	key, shared := v.Key()
	return t.WithParts(func(set *plan.Set) []plan.Part {
		shared := shared && !slices.ContainsFunc(set.Limits, func(e *plan.Effective) bool { return e.Limit.AlignOwner })
		if !shared {
			parts := s.parts(v, t.Plan, t.ID, set)
			own += len(parts) * len(set.Limits)
			return parts
		}
		return remembered(s, s.sets, setKey{set, key}, maxSharedSets,
			func() []plan.Part { return s.parts(v, t.Plan, t.ID, set) })
	}), own
}

// remembered returns what a map of s has under the key. What is missing is made, without s.mu held, and put there; the
// map is emptied first if it has that many entries, which may be of plans that were replaced.
func remembered[K comparable](
	s *sharing, in map[K][]plan.Part, key K, most int, divide func() []plan.Part,
) []plan.Part {
	s.mu.Lock()
	parts, ok := in[key]
	s.mu.Unlock()
	if ok {
		return parts
	}
	made := divide()
	s.mu.Lock()
	defer s.mu.Unlock()
	if parts, ok = in[key]; ok { // another request has made them meanwhile
		return parts
	}
	if len(in) >= most {
		clear(in)
	}
	in[key] = made
	return made
}

// anonymousSet is the plan of calls without a credential as the cell grants it at now.
func (s *sharing) anonymousSet(p *plan.Plan, now int64) *plan.Set {
	parts := remembered(s, s.anonymous, p, 1, func() []plan.Part {
		return s.parts(s.doc.View(s.cell, "", nil), p.ID,
			"", p.Set())
	})
	i := 1
	for i < len(parts) && parts[i].From <= now {
		i++
	}
	return parts[i-1].Set
}

// parts are what the cell grants of the set, over time.
func (s *sharing) parts(v *shares.View, planID, owner string, set *plan.Set) []plan.Part {
	spans := make(map[*plan.Effective][]shares.Span, len(set.Limits))
	var edges []int64
	for _, e := range set.Limits {
		spans[e] = s.spans(v, planID, owner, e.Limit)
		for _, span := range spans[e] {
			edges = append(edges, span.From)
		}
	}
	if len(edges) == 0 {
		return []plan.Part{{Set: set}}
	}
	slices.Sort(edges)
	weight, all := v.Weight()
	var out []plan.Part
	for _, edge := range slices.Compact(edges) {
		out = append(out, plan.Part{From: edge, Set: set.WithShares(func(e *plan.Effective) plan.Share {
			in, until := shares.At(spans[e], edge)
			sh := plan.Share{Limit: in.Limit}
			switch {
			case in.Limit == e.Limit:
				return sh
			case e.Limit.Tiers[0].Calendar != nil && in.Limit != nil && in.Limit.Home != "":
				sh.Why = fmt.Sprintf("kept in cell %s, from which %s leases, epoch %d", in.Limit.Home, s.cell,
					s.doc.Epoch)
			case in.Limit != nil && in.Limit.Home != "":
				sh.Why = fmt.Sprintf("counted in cell %s for all cells, epoch %d", in.Limit.Home, s.doc.Epoch)
			case e.Limit.Tiers[0].Calendar != nil:
				sh.Why = fmt.Sprintf("kept in another cell than %s, epoch %d", s.cell, s.doc.Epoch)
			case v.KeptIn(planID, e.Limit) != "":
				sh.Why = fmt.Sprintf("counted in cell %s for all cells, and not granted to %s yet, epoch %d", v.Home(),
					s.cell, s.doc.Epoch)
			default:
				sh.Why = fmt.Sprintf("share %d/%d of cell %s, epoch %d", weight, all, s.cell, s.doc.Epoch)
			}
			if in.Limit == nil {
				if next, _ := shares.At(spans[e], until); next.Limit != nil {
					sh.Until = until
				}
			}
			return sh
		})})
	}
	return out
}

// spans are what the cell grants of one limit. A quota is whole where it is kept, and leased from there by the
// others, and so is a rate too small to be divided, which every cell asks for there. A cell that has no way to there
// grants none of it: it is as if the store were away, and since nobody could add up what local buckets of a whole
// cell grant in a month, the backstop grants nothing.
func (s *sharing) spans(v *shares.View, planID, owner string, l *limit.Limit) []shares.Span {
	if l.Tiers[0].Calendar == nil {
		out := v.Limit(planID, l, owner)
		if home := v.KeptIn(planID, l); home != "" && home != s.cell && (s.reaches == nil || !s.reaches(home)) {
			s.tell(home)
			for i := range out {
				out[i].Limit = unreached(l)
			}
		}
		return out
	}
	without := unreached(l)
	var out []shares.Span
	for _, h := range v.QuotaSpans(&l.Tiers[0]) {
		at := shares.Span{From: h.From, Limit: without}
		switch {
		case h.Home == "": // until its next period begins
		case h.Home == s.cell:
			at.Limit = l
		case s.reaches != nil && s.reaches(h.Home):
			at.Limit = l.KeptIn(h.Home)
		default:
			s.tell(h.Home)
		}
		out = append(out, at)
	}
	return out
}

// unreached is what a cell grants of a limit to whose home it has no way: nil for nothing.
func unreached(l *limit.Limit) *limit.Limit {
	if l.OnStoreFailure != limit.Open {
		return nil
	}
	off := *l
	off.Mode, off.Tiers = limit.Off, slices.Clone(l.Tiers)
	without, _ := limit.New(off) // what cannot be made grants nothing
	return without
}

// tell says once of a document that limits are kept where there is no way to.
func (s *sharing) tell(home string) {
	s.mu.Lock()
	told := s.told[home]
	s.told[home] = true
	s.mu.Unlock()
	if told {
		return
	}
	s.log.Warn("tenants' quotas, and limits too small to be divided, are kept in a cell whose counters this one has "+
		"no way to; it grants none of them", "home", home, "cell", s.cell)
}

// share divides a tenant that was resolved. missing is its placement where that must be read first. r.mu is held, but
// not while the tenant's limits are divided: what the caller knows of the cache may have changed when share returns.
func (r *Reader) share(e *entry, t *plan.Tenant) (out *plan.Tenant, missing cacheKey, err error) {
	if r.shares == nil || t == nil || t.Plan == "" {
		return t, missing, nil
	}
	if e.placedAt.kind == 0 || e.placedOf != t.ID {
		e.placedAt, e.placedOf = cacheKey{kind: cachedPlacement, id: shares.PlacementKey(t.ID)}, t.ID
	}
	p, found := r.find(e.placedAt)
	if found != isCurrent {
		missing = e.placedAt
	}
	if p == nil || (p.placed == nil && p.err != nil) { // where the tenant is served is not known
		if p != nil {
			err = p.err
		}
		return nil, missing, err
	}
	if e.divided == nil || e.dividedOf != t || e.dividedBy != r.shares || e.dividedAt != p.placed {
		by := r.shares
		r.mu.Unlock()
		divided, own := by.divided(t, p.placed)
		r.mu.Lock()
		// it was dropped meanwhile
		if now, ok := r.known.Peek(cacheKey{kind: cachedTenant, id: t.ID}); !ok || now != e {
			return divided, missing, nil
		}
		e.divided, e.dividedOf, e.dividedBy, e.dividedAt = divided, t, by, p.placed
		r.bytes += int64(own)*sharedLimitBytes - e.shared
		e.size, e.shared = e.size+int64(own)*sharedLimitBytes-e.shared, int64(own)*sharedLimitBytes
	}
	return e.divided, missing, nil
}

// sharedLimitBytes is what a divided limit takes that no other tenant has, roughly.
const sharedLimitBytes = 1000

// Grant is what a cell grants of a limit of a plan to a tenant that has no placement.
type Grant struct {
	Plan, Limit string
	Tier        int
	Whole       int64 // threshold, rate or units of all cells together
	Granted     int64 // of this cell's; of a homed limit, to the tenants that are at home here
	Homed       bool  // not divided: each tenant's is whole in one cell
}

// Grants is what the cell grants of the plan at now, by a document of the shares; nil is a cell that is alone. It is
// for metrics (per_cell_limit_effective) and for operators.
func Grants(doc *shares.Document, cell string, p *plan.Plan, now time.Time) []Grant {
	var v *shares.View
	if doc != nil {
		v = doc.View(cell, "", nil)
	}
	var out []Grant
	for _, e := range p.Set().Limits {
		quota := e.Limit.Tiers[0].Calendar != nil
		homed := doc != nil && (quota || v.Homed(p.ID, e.Limit))
		granted := e.Limit
		if !homed {
			in, _ := shares.At(v.Limit(p.ID, e.Limit, ""), now.UnixMicro())
			granted = in.Limit
		}
		for i := range e.Limit.Tiers {
			g := Grant{Plan: p.ID, Limit: e.Limit.ID, Tier: i, Whole: e.Limit.Tiers[i].Threshold, Homed: homed}
			if granted != nil {
				g.Granted = granted.Tiers[i].Threshold
			}
			out = append(out, g)
		}
	}
	return out
}

// maxGrants bounds the plans that are looked at for metrics.
const maxGrants = 100

// Grants is what the cell grants of the plans that are in the cache, at most 100 of them, by the shares in force. See
// [Grants].
func (r *Reader) Grants(now time.Time) []Grant {
	r.mu.Lock()
	var doc *shares.Document
	if r.shares != nil {
		doc = r.shares.doc
	}
	var plans []*plan.Plan
	for _, k := range r.known.Keys() {
		if e, ok := r.known.Peek(k); ok && k.kind == cachedPlan && e.plan != nil && len(plans) < maxGrants {
			plans = append(plans, e.plan)
		}
	}
	r.mu.Unlock() // requests do not wait for the arithmetic
	var out []Grant
	for _, p := range plans {
		out = append(out, Grants(doc, r.c.Cell, p, now)...)
	}
	slices.SortFunc(out, func(a, b Grant) int {
		return slices.Compare([]string{a.Plan, a.Limit}, []string{b.Plan, b.Limit})
	})
	return out
}

// Part is the mean of what is granted of each tier, in hundredths of a percent of the whole, rounded to the nearest;
// what is homed does not count. It reports false where there is nothing to take a mean of.
func Part(grants []Grant) (hundredths int64, ok bool) {
	sum, n := 0.0, 0
	for i := range grants {
		if g := &grants[i]; !g.Homed && g.Whole > 0 {
			sum += float64(g.Granted) / float64(g.Whole)
			n++
		}
	}
	if n == 0 {
		return 0, false
	}
	return int64(math.Round(sum / float64(n) * 10_000)), true
}

// Shares is the epoch and phase that are in force; 0 where there are none.
func (r *Reader) Shares() (epoch int64, phase shares.Phase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shares == nil {
		return 0, ""
	}
	return r.shares.doc.Epoch, r.shares.doc.Phase
}
