package redis

import (
	"context"
	"runtime"
)

// UseCallerClock makes the store decide by the time that it is given, and not by the server's clock.
func (s *Store) UseCallerClock() { s.callerClock = true }

// SetSpace gives the store counters of its own.
func (s *Store) SetSpace(space string) { s.namespacePart = space }

// Space returns what SetSpace set.
func (s *Store) Space() string { return s.namespacePart }

// RepeatID makes the next decision have the id of the last one, so that it is as if that had arrived a second time.
func (s *Store) RepeatID() { s.serial.Add(^uint64(0)) }

// Gather makes the store send the next n commands of callers that do not shorten the deadline as one batch.
func (s *Store) Gather(n int) {
	s.batches.underWay.Add(1) // as if another caller's command were in progress
	s.batches.yield = func() {
		for s.Gathered() < n {
			runtime.Gosched()
		}
		s.batches.yield = runtime.Gosched
		s.batches.underWay.Add(-1)
	}
}

// Gathered returns how many commands are in the batch that further callers add commands to.
func (s *Store) Gathered() int {
	s.batches.mu.Lock()
	defer s.batches.mu.Unlock()
	if s.batches.open == nil {
		return 0
	}
	return len(s.batches.open.commands)
}

// Run runs a script on one key, as decisions do.
func (s *Store) Run(ctx context.Context, source, key string) error {
	within := withTimeout(ctx, s.deadline)
	defer within.release()
	_, err := s.runScript(within, newScript(source), []any{nil, nil, 1, key})
	return err
}
