package bench

import (
	"bytes"
	"context"
	"crypto/elliptic"
	"encoding/gob"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// The load of the figure about the limiter's step. Each call is for a random tenant.
const (
	callers       = 200
	apart         = 100 * time.Millisecond // mean time between two calls of a caller
	manyTenants   = 1000
	narrowTenants = 20 // further tenants, whose limits deny; one call in narrowShare is for one of them
	narrowShare   = 10
)

// crowd holds many callers that call one function concurrently, and the outcomes of their calls. Each caller has a
// connection of its own, as the clients of a server have. If callers never waited for the network, Go would poll the
// network too seldom, and answers of Redis would be read late.
type crowd struct {
	d            *deployment
	f            *inProcess
	wide, narrow [][]byte
	conns        []net.Conn

	mu                                                      sync.Mutex
	calls, wideDenied, narrowCalls, narrowAllowed, degraded int64
}

func newCrowd(deadline string) (*crowd, error) {
	d, err := deploy(tokentest.NewEC("one", elliptic.P256()), manyTenants, narrowTenants)
	if err != nil {
		return nil, err
	}
	c := &crowd{d: d}
	if c.f, err = d.here("SLUICE_REDIS_DEADLINE", deadline); err == nil {
		c.wide, err = d.calls("wide", manyTenants)
	}
	if err == nil {
		c.narrow, err = d.calls("narrow", narrowTenants)
	}
	if err == nil {
		err = c.connect()
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// connect connects the callers to the function.
func (c *crowd) connect() error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	for range callers {
		conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", l.Addr().String())
		if err != nil {
			return err
		}
		c.conns = append(c.conns, conn)
		served, err := l.Accept()
		if err != nil {
			return err
		}
		go c.serve(served) // returns when the caller's connection ends
	}
	return nil
}

// serve answers events until the connection ends. If the function returns an error, the answer is its text.
func (c *crowd) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	from, to := gob.NewDecoder(conn), gob.NewEncoder(conn)
	for {
		var event []byte
		if from.Decode(&event) != nil {
			return
		}
		answer, err := c.f.Invoke(context.Background(), event)
		if err != nil {
			answer = []byte(err.Error())
		}
		if to.Encode(answer) != nil {
			return
		}
	}
}

func (c *crowd) close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	if c.f != nil {
		_ = c.f.close()
	}
	c.d.close()
}

// run lets each caller make calls with random pauses, for the given time.
func (c *crowd) run(length time.Duration, seed uint64) error {
	errs := make([]error, len(c.conns))
	var all sync.WaitGroup
	began := time.Now()
	for i, conn := range c.conns {
		all.Go(func() {
			random, to, from := rand.New(rand.NewPCG(seed, uint64(i))), gob.NewEncoder(conn), gob.NewDecoder(conn)
			for at := time.Duration(0); errs[i] == nil; {
				if at += time.Duration(random.ExpFloat64() * float64(apart)); at >= length {
					return
				}
				time.Sleep(time.Until(began.Add(at)))
				events, narrow := c.wide, random.IntN(narrowShare) == 0
				if narrow {
					events = c.narrow
				}
				var answer []byte
				errs[i] = errors.Join(to.Encode(events[random.IntN(len(events))]), from.Decode(&answer))
				if errs[i] == nil {
					errs[i] = c.count(answer, narrow)
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// count counts the outcome of a call. It returns an error if the answer does not come from the limiter.
func (c *crowd) count(answer []byte, narrow bool) error {
	has := func(text string) bool { return bytes.Contains(answer, []byte(text)) }
	allowed, denied := has(`"Effect":"Allow"`), has(`"Effect":"Deny"`) && has(`"decision":"limited"`)
	if allowed == denied || !has(`"rateLimitPolicy":`) {
		return fmt.Errorf("an answer that is not the limiter's: %s", answer)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if has(`"storeFailed":true`) {
		c.degraded++
	}
	switch {
	case !narrow && denied: // units that were reserved for the call have expired while it waited for others
		c.wideDenied++
	case narrow:
		c.narrowCalls++
		if allowed {
			c.narrowAllowed++
		}
	}
	return nil
}

// warmUp makes calls until every JWT was verified once and all connections exist. Then it waits for the end of the
// present second, so that later calls are in other lines of metrics. It returns the number of the next second.
func (c *crowd) warmUp(length time.Duration) (second int64, err error) {
	for i, event := range append(c.wide[:len(c.wide):len(c.wide)], c.narrow...) {
		answer, err := c.f.Invoke(context.Background(), event)
		if err == nil {
			err = c.count(answer, i >= len(c.wide))
		}
		if err != nil {
			return 0, err
		}
	}
	if err := c.run(length, 1); err != nil {
		return 0, err
	}
	next := time.Now().Truncate(time.Second).Add(time.Second)
	time.Sleep(time.Until(next))
	return next.Unix(), nil
}

// verify returns an error if the calls were not the intended ones, or if Redis has counted others than those that were
// admitted.
func (c *crowd) verify() error {
	wide := c.calls - c.narrowCalls
	switch {
	case c.degraded > c.calls/2: // on a busy machine, answers of Redis come after its deadline
		return fmt.Errorf("%d of %d calls were decided without Redis", c.degraded, c.calls)
	case c.wideDenied > wide/100:
		return fmt.Errorf("%d of %d calls were denied by limits that are wide enough", c.wideDenied, wide)
	case c.narrowAllowed >= c.narrowCalls:
		return fmt.Errorf("none of %d calls of tenants with %d units each was denied", c.narrowCalls, narrowUnits)
	case c.degraded > 0:
		return nil // a late answer may have counted, so the counts need not agree
	case c.narrowAllowed != narrowUnits*narrowTenants:
		return fmt.Errorf("%d calls of %d tenants with %d units each were admitted", c.narrowAllowed, narrowTenants,
			narrowUnits)
	}
	return errors.Join(c.d.wantSpentUnits("wide", manyTenants, wide-c.wideDenied),
		c.d.wantSpentUnits("narrow", narrowTenants, c.narrowAllowed))
}

// concurrentFigure measures the 99th percentile of the time of the limiter's step while many callers call concurrently,
// by leases.
func concurrentFigure(short bool) (r Result, err error) {
	length, deadline := 10*time.Second, "" // the default deadline of the Redis store
	if short {
		length, deadline = time.Second, busyDeadline // a short run only checks the load
	}
	c, err := newCrowd(deadline)
	if err != nil {
		return r, err
	}
	defer c.close()
	second, err := c.warmUp(length / 2)
	if err != nil {
		return r, err
	}
	before := c.calls
	if err := c.run(length, 2); err != nil {
		return r, err
	}
	if err := c.f.close(); err != nil && c.degraded == 0 { // otherwise leases could not be given back
		return r, err
	}
	told, err := c.f.metrics.since(second)
	if err != nil {
		return r, err
	}
	took, calls := told.Limiter.all(), c.calls-before
	if told.Decisions != calls || int64(len(took)) != calls {
		return r, fmt.Errorf("metrics of %d decisions with %d times, want %d", told.Decisions, len(took), calls)
	}
	const millis = 1e3 // µs in a millisecond
	r.Value = quantile(took, 0.99) / millis
	r.note("p50 %.3f ms, p99.9 %.2f ms; %.0f calls/s; of all %d calls %d were decided without Redis; %d callers of "+
		"one process, on connections of their own, %d tenants with %d limits; the step is from the question to the "+
		"stores until the decision, by the function's own metric, which is exact to 9 %%", quantile(took, 0.5)/millis,
		quantile(took, 0.999)/millis, float64(calls)/length.Seconds(), c.calls, c.degraded, callers,
		manyTenants+narrowTenants, functionLimits)
	return r, c.verify()
}
