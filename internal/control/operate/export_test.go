package operate

import (
	"context"
	"log/slog"
)

// NewTestMux returns a mux with one operation, which calls f with the actor.
func NewTestMux(path string, f func(actor string)) *Mux {
	var table []Operation
	add(&table, path, reads, rare, func(_ *struct{}, _ context.Context, actor string, _ *struct{}) (*string, error) {
		f(actor)
		return &actor, nil
	}, "")
	return newMux(&struct{}{}, slog.New(slog.DiscardHandler), table)
}
