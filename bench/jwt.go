package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// jwtLoad makes calls of one tenant with JWTs. All of them are admitted.
type jwtLoad struct {
	d     *deployment
	f     *inProcess
	calls int
}

func newJWTLoad(signer *tokentest.Signer) (*jwtLoad, error) {
	d, err := deploy(signer, 1, 1)
	if err != nil {
		return nil, err
	}
	f, err := d.here("SLUICE_REDIS_DEADLINE", "2s")
	if err != nil {
		d.close()
		return nil, err
	}
	return &jwtLoad{d: d, f: f}, nil
}

func (l *jwtLoad) close() {
	_ = l.f.close()
	l.d.close()
}

// run makes a call for each event, in each round, and returns the processor time of a call in µs. It is the time of
// this process, which contains the function and its client of Redis, but not the server.
func (l *jwtLoad) run(events [][]byte, rounds int) (float64, error) {
	ctx := context.Background()
	var answer []byte
	began := processorTime()
	for range rounds {
		for _, event := range events {
			var err error
			if answer, err = l.f.Invoke(ctx, event); err != nil {
				return 0, err
			}
		}
	}
	took := processorTime() - began
	l.calls += rounds * len(events)
	o, err := read(answer, "wide-0")
	if err != nil {
		return 0, err
	}
	if !o.allowed() || o.Context["storeFailed"] != nil {
		return 0, fmt.Errorf("not admitted by a store: %s", answer)
	}
	return took.Seconds() * 1e6 / float64(rounds*len(events)), nil
}

// verify checks that each call was admitted and counted, and that the limiter denies calls above a limit.
func (l *jwtLoad) verify() error {
	narrow, err := l.d.call("narrow-0")
	if err != nil {
		return err
	}
	const beyond = 3
	for range narrowUnits + beyond {
		if _, err := l.f.Invoke(context.Background(), narrow); err != nil {
			return err
		}
	}
	if err := l.f.close(); err != nil {
		return err
	}
	told, err := l.f.metrics.since(0)
	if err != nil {
		return err
	}
	spent, err := l.d.countSpentUnits("wide", 1)
	switch {
	case err != nil:
		return err
	case told.Decisions != int64(l.calls+narrowUnits+beyond) || told.Denied != beyond || told.Backstop != 0:
		return fmt.Errorf("%d decisions, %d denied, %d by the backstop; want %d, %d, 0",
			told.Decisions, told.Denied, told.Backstop, l.calls+narrowUnits+beyond, beyond)
	case spent != int64(l.calls):
		return fmt.Errorf("redis has counted %d units of %d calls", spent, l.calls)
	}
	return nil
}

// jwtFigure measures the processor time of a whole call with a JWT that was verified before. The least of some runs is
// the figure.
func jwtFigure(short bool) (Result, error) {
	var r Result
	l, err := newJWTLoad(tokentest.NewRSA("one"))
	if err != nil {
		return r, err
	}
	defer l.close()
	event, err := l.d.call("wide-0")
	if err != nil {
		return r, err
	}
	events := [][]byte{event}
	if _, err := l.run(events, 2000); err != nil { // verifies the JWT, and gets leases
		return r, err
	}
	runs, each := 101, 5_000 // of many short runs, some are not disturbed by other programs
	if short {
		runs = 5
	}
	var times []float64
	for range runs {
		runtime.GC()
		took, err := l.run(events, each)
		if err != nil {
			return r, err
		}
		times = append(times, took)
	}
	r.Value = slices.Min(times)
	r.note("event to answer, JWT by RS256 seen before, 3 limits by leases of Redis: the least of %d runs of %d "+
		"calls, processor time; median %.1f µs",
		runs, each, median(times))
	const counted = 1000
	var failed error
	perRun := testing.AllocsPerRun(5, func() {
		if _, err := l.run(events, counted); err != nil {
			failed = err
		}
	})
	if failed != nil {
		return r, failed
	}
	r.note("%.0f allocations per call, of an event of %d bytes", perRun/counted, len(event))
	return r, l.verify()
}
