package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// errCorrected is the error of a request that one store has denied after another one had made its corrections. A denial
// would say that nothing was changed.
var errCorrected = fmt.Errorf("%w, after counters in another store were corrected", limit.ErrContended)

// Decide charges all limits of the request or none. See [limit.Store] and the package comment.
func (s *Store) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	split, only, err := s.split(req, now)
	switch {
	case err != nil:
		d.Clear(now.UnixMicro())
		return err
	case only != nil:
		return only.decide(ctx, req, now, d)
	}
	defer s.pool.Put(split)
	if onlyCorrects(req) {
		return split.correct(ctx, now, d)
	}
	return split.decide(ctx, now, d)
}

// Peek evaluates the request as Decide does, and charges nothing. See [limit.Store].
func (s *Store) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	split, only, err := s.split(req, now)
	switch {
	case err != nil:
		d.Clear(now.UnixMicro())
		return err
	case only != nil:
		return only.peek(ctx, req, now, d)
	}
	defer s.pool.Put(split)
	for _, p := range split.asked {
		if p.peek(ctx, now); p.err != nil {
			d.Clear(now.UnixMicro())
			return p.err
		}
	}
	split.join(d, now)
	return nil
}

// decide charges the parts in their order. If one of them denies or fails, those before it are undone. If undoing a
// part would leave a trace, all parts after the first are read before anything is charged.
func (s *splitRequest) decide(ctx context.Context, now time.Time, d *limit.Decision) error {
	last := max(len(s.asked)-1, 0)
	if slices.ContainsFunc(s.asked[:last], (*part).leavesTrace) {
		for _, p := range s.asked[1:] {
			p.peek(ctx, now)
		}
	}
	if slices.ContainsFunc(s.parts, (*part).refuses) {
		return s.refuse(ctx, now, d)
	}
	for i, p := range s.asked {
		if p.decide(ctx, now); !p.refuses() {
			continue
		}
		for _, charged := range s.asked[:i] {
			if charged.undo(ctx, now); p.err == nil && charged.corrects() {
				p.err = errCorrected
			}
		}
		return s.refuse(ctx, now, d)
	}
	s.join(d, now)
	return nil
}

// refuse completes a decision that charges nothing, because a part denies or has failed. It first reads the parts that
// were not called, so that a denial names a wait after which all limits have room. If any part denies, the decision is
// a denial: after an error, a fallback limiter might admit the request. If it is an error, the stores that were not
// called still make the corrections of their parts. The caller does not know which stores were called, and counts all
// corrections as made.
func (s *splitRequest) refuse(ctx context.Context, now time.Time, d *limit.Decision) error {
	var failed error
	isDenied := false
	for _, p := range s.parts {
		if !p.isKnown {
			p.peek(ctx, now)
		}
		if p.err == nil {
			isDenied = isDenied || !p.decision.Allowed
		} else if failed == nil {
			failed = p.err
		}
	}
	if !isDenied {
		for _, p := range s.asked {
			p.correctAlone(ctx, now)
		}
		d.Clear(now.UnixMicro())
		return failed
	}
	s.fillFailed(now)
	s.join(d, now)
	return nil
}

// correct lets all parts correct what they count, whatever the others answer, and waits for all of them.
func (s *splitRequest) correct(ctx context.Context, now time.Time, d *limit.Decision) error {
	var all sync.WaitGroup
	for _, p := range s.asked {
		all.Go(func() { p.decide(ctx, now) })
	}
	all.Wait()
	failed := make(correctionError, 0, len(s.asked))
	for _, p := range s.asked {
		failed = append(failed, p.err)
	}
	if errors.Join(failed...) != nil {
		d.Clear(now.UnixMicro())
		return failed
	}
	s.join(d, now)
	return nil
}

// correctionError is the error of a correction that at least one part is not known to have made. It has the error of
// each part that was asked, which is nil if the part is corrected.
type correctionError []error

// Error returns the errors of all parts.
func (e correctionError) Error() string {
	text := errors.Join(e...).Error()
	if slices.Contains(e, nil) {
		text += "; the counters in other stores are corrected"
	}
	return text
}

// Is reports whether the target is true of all parts: a caller that learns that a correction was not sent may send all
// of it again. "The store answered" is true of all parts if each part that failed says so.
func (e correctionError) Is(target error) bool {
	isTarget := func(part error) bool { return errors.Is(part, target) }
	isAway := func(part error) bool { return part != nil && !limit.Answered(part) }
	if limit.Answered(target) && !slices.ContainsFunc(e, isAway) {
		return slices.ContainsFunc(e, isTarget)
	}
	return !slices.ContainsFunc(e, func(part error) bool { return !isTarget(part) })
}
