package memory_test

import (
	"log/slog"
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// newStore returns a store that holds at most maxBytes bytes; 0 selects the default.
func newStore(tb testing.TB, maxBytes int64) *memory.Store {
	tb.Helper()
	s, err := memory.New(memory.Config{MaxBytes: maxBytes, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestContract(t *testing.T) {
	limittest.RunStoreContract(t, limittest.Config{
		New:    func(tb testing.TB) limit.Store { return newStore(tb, 0) },
		Leases: true,
	})
}
