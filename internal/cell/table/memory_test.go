package table_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/cell/table/tabletest"
)

// Guarantees that the table in memory fulfils the contract of tables.
func TestContract(t *testing.T) {
	tabletest.Run(t, func(_ *testing.T, handles int) []table.Store {
		one := table.NewMemory(0)
		out := make([]table.Store, handles)
		for i := range out {
			out[i] = one
		}
		return out
	})
}

// Guarantees that the log is bounded and that the rest has no gap and at least the requested number of entries.
func TestLogIsBounded(t *testing.T) {
	memory := table.NewMemory(4)
	for v := range int64(50) {
		if _, err := memory.Apply(t.Context(), []table.Document{tabletest.Tenant("t", "p", v+1)}); err != nil {
			t.Fatal(err)
		}
		log, err := memory.Log(t.Context(), 0, v+1)
		if err != nil || int64(len(log)) < min(v+1, 4) || len(log) > 8 {
			t.Fatalf("%d entries after %d changes, %v; want 4 to 8", len(log), v+1, err)
		}
		for i := range log {
			if want := v + 2 - int64(len(log)-i); log[i].Seq != want {
				t.Fatalf("entry %d is number %d, want %d", i, log[i].Seq, want)
			}
		}
	}
}
