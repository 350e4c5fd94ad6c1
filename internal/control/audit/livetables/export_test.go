package livetables

import (
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/call"
)

// RegisterPaged is Register with pages of at most pageBytes bytes.
func RegisterPaged(m *call.Mux, of string, tables audit.Tables, pageBytes int) {
	register(m, &served{of, tables, pageBytes})
}
