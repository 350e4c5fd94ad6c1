package ledger

import (
	"context"
	"sync"
)

var _ Ledger = (*Memory)(nil)

// Memory is a [Ledger] in memory, for instances in one process. Tests compare other ledgers with it. It keeps an entry
// of some 200 bytes for each key that was ever used. The zero Memory is empty and ready for use.
type Memory struct {
	mu      sync.Mutex
	entries map[string]*Entry
}

// Claim implements [Ledger].
func (m *Memory) Claim(_ context.Context, key string, c Claim) (Lease, error) {
	if err := c.Check(); err != nil {
		return Lease{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entry(key).Claim(&c), nil
}

// SetLimit implements [Ledger].
func (m *Memory) SetLimit(_ context.Context, key string, units, from int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entry(key).SetLimit(units, from)
}

func (m *Memory) entry(key string) *Entry {
	e := m.entries[key]
	if e == nil {
		if m.entries == nil {
			m.entries = make(map[string]*Entry)
		}
		e = new(Entry)
		m.entries[key] = e
	}
	return e
}
