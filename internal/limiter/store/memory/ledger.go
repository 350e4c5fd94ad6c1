package memory

import (
	"context"
	"sync"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
)

var _ ledger.Ledger = (*Ledger)(nil)

// Ledger is a [ledger.Ledger] in memory, for instances in one process. It keeps an entry of some 200 bytes for each key
// that was ever used. The zero Ledger is empty and ready for use.
type Ledger struct {
	mu      sync.Mutex
	entries map[string]*ledger.Entry
}

// Claim implements [ledger.Ledger].
func (l *Ledger) Claim(_ context.Context, key string, c ledger.Claim) (ledger.Lease, error) {
	if err := c.Check(); err != nil {
		return ledger.Lease{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entry(key).Claim(&c), nil
}

// SetLimit implements [ledger.Ledger].
func (l *Ledger) SetLimit(_ context.Context, key string, units, from int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entry(key).SetLimit(units, from)
}

func (l *Ledger) entry(key string) *ledger.Entry {
	e := l.entries[key]
	if e == nil {
		if l.entries == nil {
			l.entries = make(map[string]*ledger.Entry)
		}
		e = new(ledger.Entry)
		l.entries[key] = e
	}
	return e
}
