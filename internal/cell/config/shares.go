package config

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// maxSharedSets is the largest number of divided sets that are kept for tenants with equal ones.
const maxSharedSets = 4096

// sharing holds the shares in force, and what was divided by them. Limits are divided without holding a lock, since
// that computes calendar periods; mu guards only the maps.
type sharing struct {
	cell    string
	doc     *shares.Document
	reaches func(home string) bool // see Config.Reaches
	log     *slog.Logger

	mu          sync.Mutex
	loggedHomes map[string]bool // home cells that were logged as unreachable
	sets        map[setKey][]plan.Part
	anonymous   map[*plan.Plan][]plan.Part
}

// setKey names a divided set. All tenants with the same set and the same home cells have it in common.
type setKey struct {
	set  *plan.Set
	home shares.Key
}

// readShares decodes the document with the state of the shares. A nil sharing grants all of each limit.
func readShares(c *Config, d *table.Document) (s *sharing, err error) {
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
	return &sharing{cell: c.Cell, doc: doc, reaches: c.Reaches, log: c.Log, loggedHomes: map[string]bool{},
		sets:      map[setKey][]plan.Part{},
		anonymous: map[*plan.Plan][]plan.Part{}}, nil
}

// divided returns the tenant with the parts that the cell grants. own is the number of limits that it shares with no
// other tenant.
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

// remembered returns the parts that the map has under the key. If there are none it makes them, without holding s.mu,
// and stores them. A map with most entries is emptied first; some may be of replaced plans.
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
	if parts, ok = in[key]; ok { // another request has made them in between
		return parts
	}
	if len(in) >= most {
		clear(in)
	}
	in[key] = made
	return made
}

// anonymousSet returns the plan of calls without a credential as the cell grants it at now.
func (s *sharing) anonymousSet(p *plan.Plan, now int64) *plan.Set {
	parts := remembered(s, s.anonymous, p, 1, func() []plan.Part {
		return s.parts(s.doc.View(s.cell, "", nil), p.ID, "", p.Set())
	})
	i := 1
	for i < len(parts) && parts[i].From <= now {
		i++
	}
	return parts[i-1].Set
}

// parts returns what the cell grants of the set, over time.
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

// spans returns what the cell grants of one limit. A quota is kept as a whole in one cell, and the others lease from
// it; a rate too small to be divided is also kept in one cell, and every cell asks that cell. A cell without access to
// that cell grants nothing, as if the store were unavailable; the backstop grants nothing either, since nobody could
// add up what the local buckets of a whole cell grant in a month.
func (s *sharing) spans(v *shares.View, planID, owner string, l *limit.Limit) []shares.Span {
	if l.Tiers[0].Calendar == nil {
		out := v.Limit(planID, l, owner)
		if home := v.KeptIn(planID, l); home != "" && home != s.cell && (s.reaches == nil || !s.reaches(home)) {
			s.logUnreachable(home)
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
		case h.Home == "": // nothing is granted until its next period begins
		case h.Home == s.cell:
			at.Limit = l
		case s.reaches != nil && s.reaches(h.Home):
			at.Limit = l.KeptIn(h.Home)
		default:
			s.logUnreachable(h.Home)
		}
		out = append(out, at)
	}
	return out
}

// unreached returns what a cell grants of a limit whose home it cannot reach; nil for nothing.
func unreached(l *limit.Limit) *limit.Limit {
	if l.OnStoreFailure != limit.Open {
		return nil
	}
	off := *l
	off.Mode, off.Tiers = limit.Off, slices.Clone(l.Tiers)
	without, _ := limit.New(off) // nil, if New refuses it, grants nothing
	return without
}

// logUnreachable logs, once for each home cell, that limits are kept in a cell that cannot be reached.
func (s *sharing) logUnreachable(home string) {
	s.mu.Lock()
	told := s.loggedHomes[home]
	s.loggedHomes[home] = true
	s.mu.Unlock()
	if told {
		return
	}
	s.log.Warn("this cell grants nothing of tenants' quotas, and of limits too small to be divided, that are kept "+
		"in a cell whose counters it cannot reach", "home", home, "cell", s.cell)
}

// share divides a resolved tenant. If its placement must be read first, share adds it to m; out is then divided by the
// placement that was last known, or nil if none is known. r.mu is held, except while the tenant's limits are divided:
// the cache may have changed when share returns.
func (r *Reader) share(e *entry, t *plan.Tenant, m *missing) (out *plan.Tenant, err error) {
	if r.shares == nil || t == nil || t.Plan == "" {
		return t, nil
	}
	if e.placedAt.kind == 0 || e.placedOf != t.ID {
		e.placedAt, e.placedOf = cacheKey{kind: cachedPlacement, id: shares.PlacementKey(t.ID)}, t.ID
	}
	p, found := r.find(e.placedAt)
	if found != isCurrent {
		m.add(e.placedAt)
	}
	if p == nil {
		return nil, nil
	}
	if p.placed == nil && p.err != nil { // which cells serve the tenant is unknown
		return nil, p.err
	}
	if e.divided == nil || e.dividedOf != t || e.dividedBy != r.shares || e.dividedAt != p.placed {
		by := r.shares
		r.mu.Unlock()
		divided, own := by.divided(t, p.placed)
		r.mu.Lock()
		// The entry was dropped from the cache in between.
		if now, ok := r.known.Peek(cacheKey{kind: cachedTenant, id: t.ID}); !ok || now != e {
			return divided, nil
		}
		e.divided, e.dividedOf, e.dividedBy, e.dividedAt = divided, t, by, p.placed
		r.bytes += int64(own)*sharedLimitBytes - e.shared
		e.size, e.shared = e.size+int64(own)*sharedLimitBytes-e.shared, int64(own)*sharedLimitBytes
	}
	return e.divided, nil
}

// sharedLimitBytes is a rough estimate of the memory of a divided limit that only one tenant has.
const sharedLimitBytes = 1000

// Grant says what a cell grants of a limit of a plan to a tenant without a placement.
type Grant struct {
	Plan, Limit string
	Tier        int
	Whole       int64 // threshold, rate or units of all cells together
	Granted     int64 // the part of this cell; for a homed limit: to tenants whose home is this cell
	Homed       bool  // not divided: counted as a whole in each tenant's home cell
}

// Grants returns what the cell grants of the plan at now, according to a document of the shares. A nil document means
// that the cell is alone. It is for metrics (per_cell_limit_effective) and for operators.
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

// maxGrants is the largest number of plans that Reader.Grants covers.
const maxGrants = 100

// Grants returns what the cell grants of the plans in the cache, at most 100 of them, by the shares in force. See
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
	r.mu.Unlock() // so that requests do not wait for the computation
	var out []Grant
	for _, p := range plans {
		out = append(out, Grants(doc, r.c.Cell, p, now)...)
	}
	slices.SortFunc(out, func(a, b Grant) int {
		return slices.Compare([]string{a.Plan, a.Limit}, []string{b.Plan, b.Limit})
	})
	return out
}

// Part returns the mean of the granted parts of all tiers, in hundredths of a percent, rounded to the nearest. Homed
// limits do not count. ok is false if there are no tiers to average.
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

// Shares returns the epoch and phase in force; 0 if there are none.
func (r *Reader) Shares() (epoch int64, phase shares.Phase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shares == nil {
		return 0, ""
	}
	return r.shares.doc.Epoch, r.shares.doc.Phase
}
