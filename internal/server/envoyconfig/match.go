package envoyconfig

import (
	"strings"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Entry is one entry of a request's descriptor.
type Entry struct{ Key, Value string }

// Match holds the rule that applies to one descriptor of a request. It can be reused, with its memory.
type Match struct {
	Rule *Rule // nil if no limit applies

	// StatsKey names the statistics of the descriptor: the rule's Path, or a text with values of the request, which may
	// hold any character. It is "" if Rule is nil.
	StatsKey string

	// Shared holds, for each entry that matched a wildcard with share_threshold, the wildcard's value, and "" for each
	// other entry. It is empty if no entry matched such a wildcard.
	Shared []string

	composite []byte
	steps     []step
}

// step says how one entry matched.
type step struct {
	node  *node
	exact bool // by key and value
	wild  bool // by a wildcard; otherwise, if not exact, by the key alone
}

// Match sets m to the rule that applies to a descriptor with these entries. It reports whether the domain is known.
func (c *Config) Match(domain string, entries []Entry, m *Match) (knownDomain bool) {
	m.Rule, m.StatsKey, m.Shared, m.steps = nil, "", m.Shared[:0], m.steps[:0]
	parent := c.domains[domain]
	if parent == nil {
		return false
	}
	for i := range entries {
		s := m.step(parent, &entries[i])
		if s.node == nil {
			return true
		}
		m.steps = append(m.steps, s)
		if parent = s.node; len(parent.children) == 0 && i < len(entries)-1 {
			return true
		}
	}
	if len(entries) == 0 || parent.rule == nil {
		return true
	}
	m.Rule = parent.rule
	m.share(entries)
	m.StatsKey = m.statsKey(domain, entries)
	return true
}

// step finds the child of parent that an entry matches.
func (m *Match) step(parent *node, e *Entry) step {
	m.composite = append(append(append(m.composite[:0], e.Key...), '_'), e.Value...)
	if n := parent.children[string(m.composite)]; n != nil {
		return step{node: n, exact: true}
	}
	if len(parent.wildcards) > 0 {
		text := string(m.composite)
		for i := range parent.wildcards {
			if w := &parent.wildcards[i]; w.matches(text) {
				return step{node: w.node, wild: true}
			}
		}
	}
	return step{node: parent.children[e.Key]}
}

// share sets m.Shared.
func (m *Match) share(entries []Entry) {
	for i := range m.steps {
		if !m.steps[i].shared() {
			continue
		}
		for len(m.Shared) < len(entries) {
			m.Shared = append(m.Shared, "")
		}
		m.Shared[i] = withoutKey(m.steps[i].node.key, entries[i].Key)
	}
}

// ByValue reports whether entry i matched by its value, and not by its key alone.
func (m *Match) ByValue(i int) bool { return i < len(m.steps) && (m.steps[i].exact || m.steps[i].wild) }

func (s *step) shared() bool { return s.wild && s.node.shareThreshold }

// withoutKey removes the key of an entry and "_" from the beginning of a composite key. If it does not begin so, it is
// returned whole.
func withoutKey(composite, key string) string {
	if rest, ok := strings.CutPrefix(composite, key); ok {
		if rest, ok = strings.CutPrefix(rest, "_"); ok {
			return rest
		}
	}
	return composite
}

// statsKey returns the value of StatsKey.
func (m *Match) statsKey(domain string, entries []Entry) string {
	if !m.Rule.DetailedMetric && m.plain(entries) {
		return m.Rule.Path
	}
	b := append(m.composite[:0], domain...)
	for i := range entries {
		e := &entries[i]
		b = append(append(b, '.'), e.Key...)
		value, underscore := m.metricValue(i, e)
		if value != "" || underscore {
			b = append(append(b, '_'), value...)
		}
	}
	m.composite = b
	return string(b)
}

// plain reports whether the rule's path names the statistics of the descriptor.
func (m *Match) plain(entries []Entry) bool {
	for i := range m.steps {
		s, e := &m.steps[i], &entries[i]
		switch {
		case s.exact:
			if e.Value == "" {
				return false
			}
		case s.wild:
			if s.node.valueToMetric && !s.node.shareThreshold || withoutKey(s.node.key, e.Key) == s.node.key {
				return false
			}
		case s.node.valueToMetric:
			return false
		}
	}
	return true
}

// metricValue returns the text for the value of entry i in the name of the statistics. The precedence is that of
// envoyproxy/ratelimit: detailed_metric, share_threshold, value_to_metric. If underscore is set, "_" precedes the value
// even if it is empty.
func (m *Match) metricValue(i int, e *Entry) (value string, underscore bool) {
	s := &m.steps[i]
	switch {
	case s.shared() && m.Shared[i] != "":
		return m.Shared[i], false
	case m.Rule.DetailedMetric:
		return e.Value, len(m.Shared) == 0
	case s.wild && !s.node.valueToMetric:
		return withoutKey(s.node.key, e.Key), false
	case s.wild, s.exact, s.node.valueToMetric:
		return e.Value, false
	}
	return "", false
}

// OverrideStatsKey returns the name of the statistics of a descriptor that sets its limit itself.
func OverrideStatsKey(domain string, entries []Entry) string {
	var b strings.Builder
	b.WriteString(domain)
	b.WriteByte('.')
	for i := range entries {
		if b.Len() > len(domain)+1 {
			b.WriteByte('.')
		}
		b.WriteString(entries[i].Key)
		if entries[i].Value != "" {
			b.WriteByte('_')
			b.WriteString(entries[i].Value)
		}
	}
	return b.String()
}

// AppendKey appends the name of the counters of a descriptor: the domain, and the key and value of each entry, as
// netstrings. shared is [Match.Shared]. Different descriptors have different names. In envoyproxy/ratelimit, two
// descriptors can share a counter because their texts are equal when joined by "_".
func AppendKey(b []byte, domain string, entries []Entry, shared []string) []byte {
	b = limit.AppendNetstring(b, domain)
	for i := range entries {
		value := entries[i].Value
		if i < len(shared) && shared[i] != "" {
			value = shared[i]
		}
		b = limit.AppendNetstring(limit.AppendNetstring(b, entries[i].Key), value)
	}
	return b
}
