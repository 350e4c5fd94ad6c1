package redis

import (
	"context"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// UseCallerClock makes the store decide by the time that it is given, and not by the server's clock.
func (s *Store) UseCallerClock() { s.callerClock = true }

// GeneralOnly makes the store run decide.lua for every request.
func (s *Store) GeneralOnly() { s.generalOnly = true }

// OnAnswer makes the store call f for each reply that decides, with whether it is from decide.lua.
func (s *Store) OnAnswer(f func(general bool)) { s.onAnswer = f }

// SetSpace gives the store counters of its own.
func (s *Store) SetSpace(space string) { s.namespacePart = space }

// Space returns what SetSpace set.
func (s *Store) Space() string { return s.namespacePart }

// HasShapes reports whether generated scripts count by the algorithm.
func HasShapes(a limit.Algorithm) bool { return !algorithms[a].inSet }

// ForgetShapes makes room for the scripts of new shapes.
func ForgetShapes() {
	shapeScripts.Lock()
	defer shapeScripts.Unlock()
	shapeScripts.byKey = nil
}

// Run runs a script on one key, as decisions do.
func (s *Store) Run(ctx context.Context, source, key string) error {
	_, err := s.runScript(ctx, newScript(source), []any{nil, nil, 1, key})
	return err
}
