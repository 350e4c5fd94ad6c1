package pacer_test

import (
	"math/big"
	"slices"
	"time"
)

// model computes what a pacer must do in the simplest way: it looks at all tickets each time, and counts in fractions.
// Its times are multiples of a grid, and it is asked at each point of the grid.
type model struct {
	units         int64
	period        time.Duration
	before, after time.Duration // of each window: not used

	now     time.Duration // since 1970
	spent   map[int64]int64
	lost    int64 // number of a window without units; 0: none
	waiting []*modelTicket
	weights map[string]int64
	tags    map[string]*big.Rat
	virtual *big.Rat
	opened  int // how often windows were numbered anew
}

type modelTicket struct {
	id       int
	key      string
	cost     int64
	deadline time.Duration // since 1970; 0: none
}

// modelOutcome says how the wait of a ticket ended.
type modelOutcome struct {
	id   int
	what string // granted, expired or never
}

func newModel(units int64, period, before, after time.Duration) *model {
	return &model{units: units, period: period, before: before, after: after, spent: map[int64]int64{},
		weights: map[string]int64{}, tags: map[string]*big.Rat{}, virtual: new(big.Rat)}
}

func (m *model) window() int64 { return int64(m.now / m.period) }

// usable reports whether units may be granted at the present time.
func (m *model) usable() bool {
	into := m.now % m.period
	return into >= m.before && into < m.period-m.after && m.window() != m.lost
}

func (m *model) weight(key string) *big.Rat {
	if w := m.weights[key]; w != 0 {
		return new(big.Rat).SetInt64(w)
	}
	return new(big.Rat).SetInt64(1)
}

// tag returns the start tag of a key, which is not before the virtual time if the key had no tickets.
func (m *model) tag(key string) *big.Rat {
	if t := m.tags[key]; t != nil {
		return t
	}
	return m.virtual
}

func (m *model) add(t *modelTicket) {
	first := !slices.ContainsFunc(m.waiting, func(o *modelTicket) bool { return o.key == t.key })
	if tag := m.tags[t.key]; first && (tag == nil || tag.Cmp(m.virtual) < 0) {
		m.tags[t.key] = m.virtual
	}
	m.waiting = append(m.waiting, t)
}

// remove takes a ticket out, and reports whether it waited. If nobody waits any more, all keys are equal.
func (m *model) remove(id int) bool {
	i := slices.IndexFunc(m.waiting, func(t *modelTicket) bool { return t.id == id })
	if i < 0 {
		return false
	}
	m.waiting = slices.Delete(m.waiting, i, i+1)
	if len(m.waiting) == 0 {
		clear(m.tags)
	}
	return true
}

// earliest returns the time at which a cost would be granted if only the key's own tickets were ahead of it.
func (m *model) earliest(key string, cost int64) time.Duration {
	for _, t := range m.waiting {
		if t.key == key {
			cost += t.cost
		}
	}
	k, at := m.window(), m.now
	for {
		opens, closes := time.Duration(k)*m.period+m.before, time.Duration(k+1)*m.period-m.after
		free := max(m.units-m.spent[k], 0)
		if k == m.lost || m.now >= closes {
			free = 0
		}
		if cost -= free; cost <= 0 {
			return max(at, opens)
		}
		k++
	}
}

// turn returns the ticket that is served next. Of the first tickets of all keys, this is the one with the smallest tag,
// and of several with that tag the one that came first.
func (m *model) turn() *modelTicket {
	var best *modelTicket
	seen := map[string]bool{}
	for _, t := range m.waiting {
		if seen[t.key] {
			continue
		}
		seen[t.key] = true
		if best == nil || m.tag(t.key).Cmp(m.tag(best.key)) < 0 {
			best = t
		}
	}
	return best
}

// fits reports whether a cost can be granted at the present time, and charges it.
func (m *model) fits(cost int64) bool {
	if !m.usable() || m.spent[m.window()]+cost > m.units {
		return false
	}
	m.spent[m.window()] += cost
	return true
}

// serve grants and expires all tickets that are due at the present time.
func (m *model) serve() (out []modelOutcome) {
	for _, t := range slices.Clone(m.waiting) {
		if t.deadline != 0 && t.deadline < m.now {
			m.remove(t.id)
			out = append(out, modelOutcome{t.id, "expired"})
		}
	}
	for {
		t := m.turn()
		switch {
		case t == nil:
			return out
		case t.cost > m.units:
			m.remove(t.id)
			out = append(out, modelOutcome{t.id, "never"})
		case m.fits(t.cost):
			m.virtual = m.tag(t.key)
			m.tags[t.key] = new(big.Rat).Add(m.virtual, new(big.Rat).Quo(new(big.Rat).SetInt64(t.cost),
				m.weight(t.key)))
			m.remove(t.id)
			out = append(out, modelOutcome{t.id, "granted"})
		default:
			return out
		}
	}
}

// setLimit changes the limit. Windows of another length are numbered anew, and nothing is granted in the first of them.
func (m *model) setLimit(units int64, period time.Duration) {
	m.units = units
	if period != m.period {
		m.period = period
		m.renumber()
	}
}

// renumber forgets what was spent, and gives up the window of the present time.
func (m *model) renumber() {
	m.spent, m.lost = map[int64]int64{}, m.window()
	m.opened++
}

// giveBack returns units of a window, and reports whether others can still be granted them.
func (m *model) giveBack(units, window int64, opened int) bool {
	if window != m.window() || opened != m.opened || m.now >= time.Duration(window+1)*m.period-m.after {
		return false
	}
	m.spent[window] -= units
	return true
}
