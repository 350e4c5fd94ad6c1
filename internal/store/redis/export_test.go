package redis

import "context"

// UseCallerClock makes the store decide by the time that it is given instead of the server's.
func (s *Store) UseCallerClock() { s.callerClock = true }

// GeneralOnly makes the store ask decide.lua at once, without trying the script of the request's shape.
func (s *Store) GeneralOnly() { s.generalOnly = true }

// OnAnswer has f called for each answer, with whether it was decide.lua's.
func (s *Store) OnAnswer(f func(general bool)) { s.onAnswer = f }

// SetSpace gives the store counters of its own.
func (s *Store) SetSpace(space string) { s.namespacePart = space }

// Space is what SetSpace set.
func (s *Store) Space() string { return s.namespacePart }

// ForgetShapes makes room for the scripts of new shapes.
func ForgetShapes() {
	shapeScripts.Lock()
	defer shapeScripts.Unlock()
	shapeScripts.byKey = nil
}

// Run runs a script over one key, as decisions do.
func (s *Store) Run(ctx context.Context, source, key string) error {
	_, err := s.runScript(ctx, newScript(source), []any{nil, nil, 1, key})
	return err
}
