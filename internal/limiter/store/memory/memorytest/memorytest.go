// Package memorytest makes memory stores for tests.
package memorytest

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// New returns an empty store with the default configuration.
func New(tb testing.TB) *memory.Store {
	tb.Helper()
	s, err := memory.New(memory.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}
