package bench

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// jwtLoad makes calls of one tenant with a JWT. All of them are admitted.
type jwtLoad struct {
	d     *deployment
	f     *inProcess
	event []byte
	calls int
}

func newJWTLoad() (*jwtLoad, error) {
	d, err := deploy(tokentest.NewRSA("one"), 1, 1)
	if err != nil {
		return nil, err
	}
	l := &jwtLoad{d: d}
	if l.event, err = d.call("wide-0"); err == nil {
		l.f, err = d.here("SLUICE_REDIS_DEADLINE", busyDeadline)
	}
	if err == nil {
		err = l.run(2000) // verifies the JWT, and gets leases
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *jwtLoad) close() {
	if l.f != nil {
		_ = l.f.close()
	}
	l.d.close()
}

// run makes n calls.
func (l *jwtLoad) run(n int) error {
	var answer []byte
	for range n {
		var err error
		if answer, err = l.f.Invoke(context.Background(), l.event); err != nil {
			return err
		}
	}
	l.calls += n
	return admitted(answer, "wide-0")
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
	if told.Decisions != int64(l.calls+narrowUnits+beyond) || told.Denied != beyond || told.Backstop != 0 {
		return fmt.Errorf("%d decisions, %d denied, %d by the backstop; want %d, %d, 0",
			told.Decisions, told.Denied, told.Backstop, l.calls+narrowUnits+beyond, beyond)
	}
	return l.d.wantSpentUnits("wide", 1, int64(l.calls))
}

// BenchmarkAuthorizerJWT measures a whole call, from the event to the answer. The call has a JWT, signed with RS256,
// that an earlier call had verified, and is charged to three limits that the function leases from Redis. The benchmark
// reports the processor time of its own process, which runs the function and the client of Redis. The time of the Redis
// server is not in it.
func BenchmarkAuthorizerJWT(b *testing.B) {
	l := made[*jwtLoad](b)(newJWTLoad())
	defer l.close()
	for range *rounds {
		b.Run("sluice", func(b *testing.B) {
			b.ReportAllocs()
			used := processorTime()
			if err := l.run(b.N); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(processorTime()-used)/float64(b.N), "cpu-ns/op")
		})
	}
	if err := l.verify(); err != nil {
		b.Fatal(err)
	}
}
