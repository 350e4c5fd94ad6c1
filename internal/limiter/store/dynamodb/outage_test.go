package dynamodb_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

// fault makes a call, or fails instead. call makes the call.
type fault func(ctx context.Context, call func() error) error

var errRefused = errors.New("dial tcp 192.0.2.1:443: connect: connection refused")

// faults are ways in which DynamoDB can fail.
var faults = map[string]struct {
	fault
	mayCount bool // the table may have counted a call whose answer is lost
	partly   bool // some calls are answered, so the circuit breaker need not open
}{
	"throttled": {fault: func(context.Context,
		func() error) error {
		return &types.ProvisionedThroughputExceededException{}
	}},
	"stalled": {fault: func(ctx context.Context, _ func() error) error {
		<-ctx.Done()
		return ctx.Err()
	}},
	"refusing": {fault: func(context.Context, func() error) error { return errRefused }},
	"answers too late": {mayCount: true, fault: func(ctx context.Context, call func() error) error {
		_ = call() // the result of the call is lost
		<-ctx.Done()
		return ctx.Err()
	}},
	"replies get lost": {mayCount: true, fault: func(_ context.Context, call func() error) error {
		_ = call()
		return errors.New("read: connection reset by peer")
	}},
	"half of the calls stall": {partly: true, fault: func() fault {
		var n atomic.Int64
		return func(ctx context.Context, call func() error) error {
			if n.Add(1)%2 == 0 {
				return call()
			}
			<-ctx.Done()
			return ctx.Err()
		}
	}()},
}

// faulty is a client that has a fault, or none.
type faulty struct {
	*dynamodbtest.Bubble
	now atomic.Pointer[fault]
}

func (f *faulty) pass(ctx context.Context, call func() error) error {
	if now := f.now.Load(); now != nil {
		return (*now)(ctx, call)
	}
	return call()
}

func (f *faulty) UpdateItem(
	ctx context.Context, in *sdk.UpdateItemInput, o ...func(*sdk.Options),
) (out *sdk.UpdateItemOutput, err error) {
	err = f.pass(ctx, func() (err error) {
		out, err = f.Bubble.UpdateItem(ctx, in, o...)
		return err
	})
	return out, err
}

func (f *faulty) GetItem(
	ctx context.Context, in *sdk.GetItemInput, o ...func(*sdk.Options),
) (out *sdk.GetItemOutput, err error) {
	err = f.pass(ctx, func() (err error) {
		out, err = f.Bubble.GetItem(ctx, in, o...)
		return err
	})
	return out, err
}

// The times at which the fault begins and ends, and the load ends.
const (
	awayFrom  = 5 * time.Second
	awayUntil = 15 * time.Second
	// At the time healed, every circuit breaker has sent a probe: the longest cooldown is 4 s and a fifth.
	healed   = 22 * time.Second
	loadEnds = 26 * time.Second

	outageInstances = 3
	// of each limit, in a period that does not end during the test; about as many as are requested before the fault
	outageUnits = 240
)

// outageLoad holds the requests for one limit at all instances, and their outcomes.
type outageLoad struct {
	*testing.T
	policy limit.FailurePolicy
	req    *limit.Request
	began  time.Time

	mu                       sync.Mutex
	stored, degraded, closed int64 // units admitted with the store and without it; errors
	marked, early, late      int   // marked decisions: all, before the fault, after it
	slowest                  time.Duration
}

func (w *outageLoad) ask(store limit.Store) {
	var d limit.Decision
	at := time.Now()
	err := store.Decide(w.Context(), w.req, at, &d)
	took := time.Since(at)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slowest = max(w.slowest, took)
	if since := at.Sub(w.began); d.Degraded || err != nil {
		w.marked++
		if since < awayFrom-time.Second {
			w.early++
		}
		if since > healed {
			w.late++
		}
	}
	switch {
	case errors.Is(err, resilience.ErrFailClosed) && w.policy == limit.Closed:
		w.closed++
	case err != nil:
		w.Errorf("policy %d: %v", w.policy, err)
	case d.Allowed && d.Degraded:
		w.degraded++
	case d.Allowed:
		w.stored++
	}
}

// Guarantees that a failure of DynamoDB, of whatever kind, causes no errors and no waiting: each limit's onStoreFailure
// decides in time, says so, and stays within its bound. The circuit breaker makes no calls until the table is back, and
// the table is then charged for what was admitted meanwhile. Three instances run the whole store chain. The time is
// that of a synctest bubble, so a busy machine does not look like a slow call.
func TestOutage(t *testing.T) {
	for name, test := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &dynamodbtest.Meter{Client: server(t)}
			bubble, stop := dynamodbtest.NewBubble(m, 5*time.Millisecond)
			defer stop()
			c := config(m.Client)
			c.Timeout = dynamodb.DefaultTimeout
			client := &faulty{Bubble: bubble}
			c.Client = client
			synctest.Test(t, func(t *testing.T) {
				bubble.Enter()
				testOutage(t, c, client, test.fault, test.mayCount, test.partly)
			})
		})
	}
}

func testOutage(t *testing.T, c dynamodb.Config, client *faulty, away fault, mayCount, partly bool) {
	var ladders []*resilience.Chain
	for range outageInstances {
		l, err := resilience.NewChain(resilience.ChainConfig{
			Rates: resilience.NamedStore{Name: "dynamodb", Store: open(t, c)}, MaxInstances: outageInstances,
			Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ladders = append(ladders, l)
	}
	loads := map[limit.FailurePolicy]*outageLoad{}
	for policy, id := range map[limit.FailurePolicy]string{limit.Backstop: "backstop", limit.Open: "open",
		limit.Closed: "closed"} {
		l := must(t, limit.Limit{ID: id, OnStoreFailure: policy, Tiers: []limit.Tier{
			{Algorithm: limit.Quota, Threshold: outageUnits, Calendar: &limit.Calendar{Every: limit.Year,
				Location: time.UTC}}}})
		loads[policy] = &outageLoad{T: t, policy: policy, req: &limit.Request{Owner: acme,
			Charges: []limit.Charge{{Limit: l, Cost: 1}}}, began: time.Now()}
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		<-time.After(awayFrom)
		client.now.Store(&away)
		<-time.After(awayUntil - awayFrom)
		client.now.Store(nil)
	})
	for _, l := range ladders {
		for _, w := range loads {
			asking.Go(func() {
				tick := time.NewTicker(70 * time.Millisecond)
				defer tick.Stop()
				for time.Since(w.began) < loadEnds {
					<-tick.C
					asking.Go(func() { w.ask(l) })
				}
			})
		}
	}
	<-time.After(awayUntil - time.Second)
	for i, l := range ladders {
		if st := l.Breakers[0].Stats(); !partly && st.Opened == 0 {
			t.Errorf("instance %d, while the store does not answer: the stats of the breaker are %+v, want it open", i,
				st)
		}
	}
	asking.Wait()
	var sum resilience.FallbackStats
	var lost int64 // units that the table counts and nobody can spend: the call that leased or returned them failed
	for i, l := range ladders {
		if err := l.Close(t.Context()); err != nil {
			t.Errorf("instance %d: Close: %v", i, err)
		}
		if st := l.Breakers[0].Stats(); st.State != breaker.Closed || !partly && st.Refused == 0 {
			t.Errorf("instance %d, after the store answers again: the stats of the breaker are %+v, want it closed", i,
				st)
		}
		lost += l.Leases.Stats().Lost
		st := l.Stats()
		sum.ChargedBack, sum.Dropped, sum.Waiting = sum.ChargedBack+st.ChargedBack, sum.Dropped+st.Dropped,
			sum.Waiting+st.Waiting
	}
	for _, w := range loads {
		w.checkCounts(open(t, c), sum.Dropped, lost, mayCount)
		if w.marked == 0 && !partly {
			t.Errorf("policy %d: no decision is marked as degraded, want some", w.policy)
		}
	}
	// A charge that was sent during the failure is dropped: the one in progress when the failure began, and the circuit
	// breaker's probe.
	owed := loads[limit.Backstop].degraded + loads[limit.Open].degraded
	if sum.Waiting > 0 || sum.ChargedBack+sum.Dropped != owed || owed > 100 && sum.ChargedBack == 0 {
		t.Errorf("%d units were admitted without the store: %+v", owed, sum)
	}
}

// checkCounts checks the decisions of one limit, and that the table has counted what they admitted, except for the
// dropped units, and nothing beside that but lost units.
func (w *outageLoad) checkCounts(direct limit.Store, dropped, lost int64, mayCount bool) {
	w.Helper()
	var d limit.Decision
	if err := direct.Peek(w.Context(), w.req, time.Now(), &d); err != nil {
		w.Fatal(err)
	}
	used := d.Results[0].Used()
	id := w.req.Charges[0].Limit.ID
	w.Logf("%s: %d and %d units admitted with and without the store, which counts %d; %d decisions marked, %d of "+
		"them errors; the slowest took %s",
		id, w.stored, w.degraded, used, w.marked, w.closed, w.slowest)
	// a decision may wait for another request's call, and then make its own
	if longest := 2 * dynamodb.DefaultTimeout; w.slowest > longest {
		w.Errorf("%s: a decision took %s, want at most %s", id, w.slowest, longest)
	}
	if w.early > 0 || w.late > 0 {
		w.Errorf("%s: %d decisions are marked as degraded before the fault, and %d after it; want none", id, w.early,
			w.late)
	}
	without := map[limit.FailurePolicy]int64{limit.Backstop: 2 * outageUnits, limit.Open: int64(w.marked)}[w.policy]
	if w.stored > outageUnits || w.degraded > without {
		w.Errorf("%s: %d units admitted with the store, want at most %d; %d without it, want at most %d", id, w.stored,
			outageUnits,
			w.degraded, without)
	}
	if admitted := w.stored + w.degraded; used < admitted-dropped || !mayCount && used > admitted+lost {
		w.Errorf("%s: %d units were admitted, %d dropped, %d lost, and the store counts %d, which does not add up", id,
			admitted, dropped, lost, used)
	}
}
