package bench

import (
	"bytes"
	"context"
	"crypto/elliptic"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// The load of the figures about the limiter's step. Each call is for a random tenant.
const (
	callers       = 200
	apart         = 100 * time.Millisecond // mean time between two calls of a caller
	manyTenants   = 1000
	narrowTenants = 20 // further tenants, whose limits deny; one call in narrowShare is for one of them
	narrowShare   = 10
)

// concurrentCallers holds many callers that call one function concurrently.
type concurrentCallers struct {
	d            *deployment
	f            *inProcess
	wide, narrow [][]byte
	callers      []net.Conn // the connection of each caller
	sum          tally      // outcomes of all calls so far
}

// tally counts the outcomes of calls.
type tally struct{ wide, wideDenied, narrow, narrowAllowed, degraded atomic.Int64 }

func newCrowd(pairs ...string) (*concurrentCallers, error) {
	d, err := deploy(tokentest.NewEC("one", elliptic.P256()), manyTenants, narrowTenants)
	if err != nil {
		return nil, err
	}
	c := &concurrentCallers{d: d}
	if c.f, err = d.here(pairs...); err == nil {
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

// connect gives each caller a connection of its own, as the clients of a server have. If callers never waited for the
// network, Go would poll the network too seldom, and answers of Redis would be read late.
func (c *concurrentCallers) connect() error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	for range callers {
		caller, err := new(net.Dialer).DialContext(context.Background(), "tcp", l.Addr().String())
		if err != nil {
			return err
		}
		c.callers = append(c.callers, caller)
		served, err := l.Accept()
		if err != nil {
			return err
		}
		go c.serve(served) // returns when the caller's connection ends
	}
	return nil
}

// serve answers events until the connection ends. If the function returns an error, the answer is its text.
func (c *concurrentCallers) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for {
		event, err := receive(conn)
		if err != nil {
			return
		}
		answer, err := c.f.Invoke(context.Background(), event)
		if err != nil {
			answer = []byte(err.Error())
		}
		if err := send(conn, answer); err != nil {
			return
		}
	}
}

func send(to io.Writer, text []byte) error {
	message := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(text)), uint32(len(text)))
	_, err := to.Write(append(message, text...))
	return err
}

func receive(from io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	text := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(from, text)
	return text, err
}

func (c *concurrentCallers) close() {
	for _, caller := range c.callers {
		_ = caller.Close()
	}
	if c.f != nil {
		_ = c.f.close()
	}
	c.d.close()
}

// run lets the callers make calls for the given time: each caller with random pauses or, if together is true, all
// callers at the same moments. It returns an error if a call fails, or if an answer does not come from the limiter.
func (c *concurrentCallers) run(length time.Duration, seed uint64, together bool) (*tally, error) {
	var t tally
	errs := make([]error, len(c.callers))
	var all sync.WaitGroup
	began := time.Now()
	for i, caller := range c.callers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for at := time.Duration(0); errs[i] == nil; {
				if together {
					at += apart
				} else {
					at += time.Duration(random.ExpFloat64() * float64(apart))
				}
				if at >= length {
					return
				}
				time.Sleep(time.Until(began.Add(at)))
				errs[i] = c.makeCall(&t, random, caller)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c.sum.wide.Add(t.wide.Load())
	c.sum.wideDenied.Add(t.wideDenied.Load())
	c.sum.narrow.Add(t.narrow.Load())
	c.sum.narrowAllowed.Add(t.narrowAllowed.Load())
	c.sum.degraded.Add(t.degraded.Load())
	return &t, nil
}

var (
	effectAllow  = []byte(`"Effect":"Allow"`)
	effectDeny   = []byte(`"Effect":"Deny"`)
	wasLimited   = []byte(`"decision":"limited"`)
	storeAway    = []byte(`"storeFailed":true`)
	policyHeader = []byte(`"rateLimitPolicy":`)
)

// makeCall makes one call.
func (c *concurrentCallers) makeCall(t *tally, random *rand.Rand, caller net.Conn) error {
	events, isNarrow := c.wide, random.IntN(narrowShare) == 0
	if isNarrow {
		events = c.narrow
	}
	if err := send(caller, events[random.IntN(len(events))]); err != nil {
		return err
	}
	answer, err := receive(caller)
	if err != nil {
		return err
	}
	allowed, denied := bytes.Contains(answer, effectAllow), bytes.Contains(answer, effectDeny) &&
		bytes.Contains(answer, wasLimited)
	if allowed == denied || !bytes.Contains(answer, policyHeader) {
		return fmt.Errorf("an answer that is not the limiter's: %s", answer)
	}
	if bytes.Contains(answer, storeAway) {
		t.degraded.Add(1)
	}
	switch {
	case !isNarrow && denied: // units that were reserved for the call have expired while it waited for others
		t.wideDenied.Add(1)
		fallthrough
	case !isNarrow:
		t.wide.Add(1)
	case allowed:
		t.narrowAllowed.Add(1)
		fallthrough
	default:
		t.narrow.Add(1)
	}
	return nil
}

// warmUp makes calls until every JWT was verified once and all connections exist. Then it waits for the end of the
// present second, so that later calls are in other lines of metrics. It returns the number of the next second.
func (c *concurrentCallers) warmUp(length time.Duration) (second int64, err error) {
	for _, events := range [][][]byte{c.wide, c.narrow} {
		for _, event := range events {
			if _, err := c.f.Invoke(context.Background(), event); err != nil {
				return 0, err
			}
		}
	}
	c.sum.wide.Add(manyTenants)
	c.sum.narrow.Add(narrowTenants)
	c.sum.narrowAllowed.Add(narrowTenants)
	if _, err := c.run(length, 1, false); err != nil {
		return 0, err
	}
	next := time.Now().Truncate(time.Second).Add(time.Second)
	time.Sleep(time.Until(next))
	return next.Unix(), nil
}

// closeAndCheckMetrics stops the function, and checks that the metrics that it wrote since the given second count the
// same decisions as t. If Redis was unavailable, stopping may fail, because leases could not be given back.
func (c *concurrentCallers) closeAndCheckMetrics(t *tally, second int64) (line, error) {
	if err := c.f.close(); err != nil && c.sum.degraded.Load() == 0 {
		return line{}, err
	}
	l, err := c.f.metrics.since(second)
	if calls := t.wide.Load() + t.narrow.Load(); err == nil && (l.Decisions != calls || l.Limiter.count() != calls) {
		err = fmt.Errorf("metrics of %d decisions with %d times, want %d", l.Decisions, l.Limiter.count(), calls)
	}
	return l, err
}

// counted checks that Redis has counted each call that was admitted, and no other.
func (c *concurrentCallers) counted() error {
	for _, of := range []struct {
		word    string
		tenants int
		calls   int64
	}{{"wide", manyTenants, c.sum.wide.Load() - c.sum.wideDenied.Load()}, {"narrow", narrowTenants,
		c.sum.narrowAllowed.Load()}} {
		spent, err := c.d.countSpentUnits(of.word, of.tenants)
		if err != nil {
			return err
		}
		if spent != of.calls {
			return fmt.Errorf("redis has counted %d units of %d admitted calls of %s tenants", spent, of.calls, of.word)
		}
	}
	return nil
}

const millis = 1e3 // µs in a millisecond

// concurrentFigure measures the 99th percentile of the time of the limiter's step while many callers call concurrently.
func concurrentFigure(short bool) (Result, error) {
	var r Result
	length, deadline := 10*time.Second, "" // the default deadline of the Redis store
	if short {
		length, deadline = time.Second, "2s" // a short run only checks the load, which must also work on a busy machine
	}
	for _, together := range []bool{false, true} {
		for _, leases := range []bool{true, false} {
			l, err := concurrent(&r, leases, together, length, deadline)
			if err != nil {
				return r, err
			}
			if leases && !together {
				r.Value = l.Limiter.quantile(0.99) / millis
			}
		}
	}
	r.note("%d callers of one process, on connections of their own, each %s on average after its last call, of %d "+
		"tenants with %d limits; the step is from the question to the stores until the decision, by the function's "+
		"own metric, which is exact to 9 %%",
		callers, apart, manyTenants+narrowTenants, functionLimits)
	return r, nil
}

func concurrent(r *Result, leases, together bool, length time.Duration, deadline string) (line, error) {
	c, err := newCrowd("SLUICE_LEASES", strconv.FormatBool(leases), "SLUICE_REDIS_DEADLINE", deadline)
	if err != nil {
		return line{}, err
	}
	defer c.close()
	second, err := c.warmUp(length / 2)
	if err != nil {
		return line{}, err
	}
	t, err := c.run(length, 2, together)
	if err != nil {
		return line{}, err
	}
	l, err := c.closeAndCheckMetrics(t, second)
	if err != nil {
		return l, err
	}
	r.note("%s, %s: %s", moments(together), means(leases), c.summary(t, &l, length))
	calls := t.wide.Load() + t.narrow.Load()
	switch answered := l.RedisCalls.count() - l.RedisErrors; {
	// On a busy machine, answers come after the deadline; all calls at the same moment make the machine busy. The note
	// says how many answers came in time.
	case !together && answered < calls/10:
		return l, fmt.Errorf("%d calls were decided by %d answers of Redis: %s", calls, answered,
			c.summary(t, &l, length))
	case t.wideDenied.Load() > calls/100:
		return l, fmt.Errorf("%d of %d calls were denied by limits that are wide enough", t.wideDenied.Load(),
			t.wide.Load())
	case c.sum.narrowAllowed.Load() >= c.sum.narrow.Load():
		return l, fmt.Errorf("none of %d calls of tenants with %d units each was denied", c.sum.narrow.Load(),
			narrowUnits)
	case c.sum.degraded.Load() > 0:
		return l, nil // a late answer may have counted, so the counts need not agree
	case c.sum.narrowAllowed.Load() != narrowUnits*narrowTenants:
		return l, fmt.Errorf("%d calls of %d tenants with %d units each were admitted", c.sum.narrowAllowed.Load(),
			narrowTenants, narrowUnits)
	}
	return l, c.counted()
}

func moments(together bool) string {
	if together {
		return "all at the same moments"
	}
	return "at random moments"
}

func means(leases bool) string {
	if leases {
		return "by leases, as is the default"
	}
	return "without leases"
}

func (c *concurrentCallers) summary(t *tally, l *line, length time.Duration) string {
	calls := t.wide.Load() + t.narrow.Load()
	var b strings.Builder
	fmt.Fprintf(&b, "p50 %.3f ms, p99 %.2f ms, p99.9 %.2f ms; %.0f calls/s, denied %d of %d of narrow tenants and "+
		"%d of %d of wide ones",
		l.Limiter.quantile(0.5)/millis, l.Limiter.quantile(0.99)/millis, l.Limiter.quantile(0.999)/millis,
		float64(calls)/length.Seconds(), t.narrow.Load()-t.narrowAllowed.Load(), t.narrow.Load(), t.wideDenied.Load(),
		t.wide.Load())
	fmt.Fprintf(&b, "; %d calls of Redis, p99 %.2f ms, %d failed; %d of %d decided without it",
		l.RedisCalls.count(), l.RedisCalls.quantile(0.99)/millis, l.RedisErrors, t.degraded.Load(), calls)
	return b.String()
}
