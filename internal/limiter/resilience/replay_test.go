package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
)

// spend decides n times, and fails the test if a request is denied.
func spend(t *testing.T, s limit.Store, req *limit.Request, n int) {
	t.Helper()
	var d limit.Decision
	for i := range n {
		if err := s.Decide(t.Context(), req, time.Now(), &d); err != nil || !d.Allowed {
			t.Fatalf("request %d of %d: err %v, allowed %v; want it allowed", i+1, n, err, d.Allowed)
		}
	}
}

// usedUnits returns how many units the store counts of the first tier of the request.
func usedUnits(t *testing.T, s limit.Store, req *limit.Request) int64 {
	t.Helper()
	var d limit.Decision
	if err := s.Peek(t.Context(), req, time.Now(), &d); err != nil {
		t.Fatal(err)
	}
	return d.Results[0].Used()
}

// Guarantees for every algorithm that the store is charged afterwards for what was admitted without it, in addition to
// what it had counted before.
func TestChargedBack(t *testing.T) {
	for _, c := range []struct {
		tier limit.Tier
		want int64
	}{
		{limit.Tier{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 100}, 50},
		{limit.Tier{Algorithm: limit.SlidingWindow, Period: time.Hour, Threshold: 100}, 50},
		{limit.Tier{Algorithm: limit.SlidingBuckets, Period: time.Hour, Threshold: 100}, 50},
		{limit.Tier{Algorithm: limit.SlidingLog, Period: time.Hour, Threshold: 100}, 50},
		{limit.Tier{Algorithm: limit.TokenBucket, Period: time.Hour, Threshold: 100}, 50},
		{limit.Tier{Algorithm: limit.LeakyBucket, Period: time.Hour, Threshold: 100}, 100}, // it is taken, or free
		{limit.Tier{Algorithm: limit.Quota, Threshold: 100, Calendar: &limit.Calendar{Every: limit.Month,
			Location: time.UTC}}, 50},
	} {
		for _, policy := range []limit.FailurePolicy{limit.Backstop, limit.Open} {
			synctest.Test(t, func(t *testing.T) {
				inner := newMemory(t)
				store := newFlaky(t, inner)
				s := newStore(t, resilience.FallbackConfig{Store: store, MaxInstances: 2})
				req := requestOf(newLimit(t, limit.Limit{ID: "l", OnStoreFailure: policy, Tiers: []limit.Tier{c.tier}}))
				n := 10
				if c.tier.Algorithm == limit.LeakyBucket {
					n = 1
				}
				spend(t, s, req, n)
				store.down.Store(true)
				spend(t, s, req, 40)
				store.down.Store(false)
				recoverFrom(t, s)
				if got := usedUnits(t, inner, req); got != c.want {
					t.Errorf("%s, %s: %d units used in the store, want %d", c.tier.Algorithm, policy, got, c.want)
				}
				if st := s.Stats(); st.ChargedBack != 40 || st.Dropped != 0 || st.Waiting != 0 {
					t.Errorf("%s, %s: stats %+v; want 40 units charged back, none dropped and none waiting",
						c.tier.Algorithm, policy, st)
				}
				if full, again := s.TakeFullest(), s.TakeFullest(); full != 10*c.want || again != 0 {
					t.Errorf("%s, %s: TakeFullest = %d thousandths, and the second time %d; want %d, and then 0",
						c.tier.Algorithm, policy, full, again, 10*c.want)
				}
			})
		}
	}
}

// Guarantees that the store is not charged for units that do not count any more: those of windows that have ended, and
// those that a bucket has refilled.
func TestOnlyOpenWindowsAreChargedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemory(t)
		store := newFlaky(t, inner)
		s := newStore(t, resilience.FallbackConfig{Store: store})
		bucket := limit.Tier{Algorithm: limit.TokenBucket, Period: 10 * time.Second, Threshold: 10}
		reqs := map[limit.Algorithm]*limit.Request{}
		for _, tier := range []limit.Tier{{Algorithm: limit.FixedWindow, Period: 10 * time.Second, Threshold: 10},
			{Algorithm: limit.SlidingLog, Period: 10 * time.Second, Threshold: 10}, bucket} {
			reqs[tier.Algorithm] = requestOf(newLimit(t, limit.Limit{ID: tier.Algorithm.String(),
				Tiers: []limit.Tier{tier}}))
		}
		store.down.Store(true)
		for _, req := range reqs {
			spend(t, s, req, 10)
		}
		pass(10*time.Second + time.Millisecond)
		for _, req := range reqs {
			spend(t, s, req, 2)
		}
		spend(t, s, reqs[limit.TokenBucket], 4) // six of ten are left
		pass(3 * time.Second)                   // three units are refilled
		store.down.Store(false)
		recoverFrom(t, s)
		for alg, want := range map[limit.Algorithm]int64{limit.FixedWindow: 2, limit.SlidingLog: 2,
			limit.TokenBucket: 3} {
			if got := usedUnits(t, inner, reqs[alg]); got != want {
				t.Errorf("%s: %d used in the store, want %d", alg, got, want)
			}
		}
	})
}

// Guarantees that units count from the time at which they were admitted, not from the time at which the store is
// charged for them.
func TestChargedBackAsOfThen(t *testing.T) {
	for _, tier := range []limit.Tier{{Algorithm: limit.SlidingLog, Period: 16 * time.Second, Threshold: 10},
		{Algorithm: limit.SlidingBuckets, Period: 16 * time.Second, Buckets: 16, Threshold: 10},
		{Algorithm: limit.SlidingWindow, Period: 16 * time.Second, Threshold: 10}} {
		synctest.Test(t, func(t *testing.T) {
			inner := newMemory(t)
			store := newFlaky(t, inner)
			s := newStore(t, resilience.FallbackConfig{Store: store})
			req := requestOf(newLimit(t, limit.Limit{ID: "l", Tiers: []limit.Tier{tier}}))
			pass(time.Until(time.Now().Truncate(16 * time.Second).Add(27 * time.Second))) // 11 s into a window
			store.down.Store(true)
			spend(t, s, req, 8)
			pass(9 * time.Second) // 4 s into the next one
			store.down.Store(false)
			recoverFrom(t, s)
			want := int64(8)
			if tier.Algorithm == limit.SlidingWindow {
				want = 6 // ⌈8·12/16⌉
			}
			if got := usedUnits(t, inner, req); got != want {
				t.Errorf("%s: %d used, want %d", tier.Algorithm, got, want)
			}
			pass(9 * time.Second)
			if tier.Algorithm == limit.SlidingWindow {
				want = 2
			} else {
				want = 0
			}
			if got := usedUnits(t, inner, req); got != want {
				t.Errorf("%s: %d used 18 s after they were admitted, want %d", tier.Algorithm, got, want)
			}
		})
	}
}

// ahead is a store whose clock is ahead.
type ahead struct {
	limit.Store
	by time.Duration
}

func (a ahead) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return a.Store.Decide(ctx, req, now.Add(a.by), d)
}

// Guarantees that units are counted in the window of the store's clock, not in that of the caller's.
func TestChargedBackByTheStoresClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemory(t)
		store := newFlaky(t, ahead{inner, 2 * time.Hour})
		s := newStore(t, resilience.FallbackConfig{Store: store})
		req := requestOf(newLimit(t, limit.Limit{ID: "l",
			Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 100}}}))
		spend(t, s, req, 1)
		store.down.Store(true)
		spend(t, s, req, 40)
		store.down.Store(false)
		recoverFrom(t, s)
		var d limit.Decision
		if err := inner.Peek(t.Context(), req, time.Now().Add(2*time.Hour), &d); err != nil ||
			d.Results[0].Used() != 41 {
			t.Errorf("err %v, %d used in the store's window, want 41", err, d.Results[0].Used())
		}
	})
}

// Guarantees that each value of a limit, and each limit of an owner, is charged to its own counter, also if the store
// failed twice.
func TestChargedBackApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemory(t)
		store := newFlaky(t, inner)
		s := newStore(t, resilience.FallbackConfig{Store: store})
		l := newLimit(t, limit.Limit{ID: "users", Per: "subject", Tiers: []limit.Tier{
			{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 100}, {Algorithm: limit.FixedWindow,
				Period: 24 * time.Hour, Threshold: 1000}}})
		of := func(who string) *limit.Request {
			return &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Value: limit.ValueOf(who), Cost: 1}}}
		}
		for round := range 2 {
			store.down.Store(true)
			spend(t, s, of("ann"), 3)
			pass(10 * time.Minute) // pending units of another slot
			spend(t, s, of("ann"), 4)
			spend(t, s, of("bob"), 5)
			store.down.Store(false)
			recoverFrom(t, s)
			if ann, bob := usedUnits(t, inner, of("ann")), usedUnits(t, inner, of("bob")); ann != int64(7*round+7) ||
				bob != int64(5*round+5) {
				t.Errorf("round %d: %d units of the first value and %d of the second are used, want each value "+
					"charged to its own counter", round, ann, bob)
			}
		}
	})
}

// Guarantees that quotas and rates of two stores are each charged to their own store.
func TestChargedBackToTwoStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rates, quotas := newMemory(t), newMemory(t)
		both, err := router.New(router.Config{Rates: router.Backend{Store: rates},
			Quotas: router.Backend{Store: quotas}})
		if err != nil {
			t.Fatal(err)
		}
		store := newFlaky(t, both)
		s := newStore(t, resilience.FallbackConfig{Store: store})
		rate := newLimit(t, limit.Limit{ID: "rate",
			Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 100}}})
		quota := newLimit(t, limit.Limit{ID: "quota", Tiers: []limit.Tier{
			{Algorithm: limit.Quota, Threshold: 100, Calendar: &limit.Calendar{Every: limit.Month,
				Location: time.UTC}}}})
		store.down.Store(true)
		spend(t, s, requestOf(rate, quota), 7)
		store.down.Store(false)
		recoverFrom(t, s)
		if r, q := usedUnits(t, rates, requestOf(rate)), usedUnits(t, quotas, requestOf(quota)); r != 7 || q != 7 {
			t.Errorf("%d and %d used, want 7 and 7", r, q)
		}
	})
}

// Guarantees that pending units of a store that fails are kept until it answers, while another store that answers is
// charged for its own: the replay peeks at each store before it charges it.
func TestOneOfTwoStoresIsAway(t *testing.T) {
	month := []limit.Tier{{Algorithm: limit.Quota, Threshold: 100, Calendar: &limit.Calendar{Every: limit.Month,
		Location: time.UTC}}}
	for _, quotaFirst := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			own, inner := newMemory(t), newMemory(t)
			home := newFlaky(t, inner)
			homes, err := router.New(router.Config{Rates: router.Backend{Store: own},
				Homes: map[string]router.Backend{"us": {Store: home}}})
			if err != nil {
				t.Fatal(err)
			}
			s := newStore(t, resilience.FallbackConfig{Store: homes})
			rate, quota := window(t, "rate", 100, limit.Backstop),
				newLimit(t, limit.Limit{ID: "quota", Tiers: month}).KeptIn("us")
			limits := []*limit.Limit{rate, quota}
			if quotaFirst {
				limits = []*limit.Limit{quota, rate}
			}
			home.down.Store(true)
			for _, name := range []string{"ann", "bob"} {
				req := requestOf(limits...)
				req.Owner.Name = name
				spend(t, s, req, 7)
			}
			of := func(name string, store limit.Store, l *limit.Limit) int64 {
				req := requestOf(l)
				req.Owner.Name = name
				return usedUnits(t, store, req)
			}
			other := requestOf(window(t, "other", 1000, limit.Backstop))
			for range 3 {
				pass(1100 * time.Millisecond)
				spend(t, s, other, 1) // the own store answers
				pass(200 * time.Millisecond)
			}
			synctest.Wait()
			if st := s.Stats(); st.Dropped != 0 || of("ann", own, rate) != 7 || of("bob", own, rate) != 7 {
				t.Errorf("while the home is away: %+v; %d and %d used in the own store, want 7 and 7", st,
					of("ann", own, rate), of("bob", own, rate))
			}
			home.down.Store(false)
			pass(1100 * time.Millisecond)
			recoverFrom(t, s)
			if a, b := of("ann", inner, quota), of("bob", inner, quota); a != 7 || b != 7 {
				t.Errorf("%d and %d used in the home, want 7 and 7", a, b)
			}
		})
	}
}

// Guarantees that one replay handles every owner, although a store that counts a part of each owner's units does not
// answer: the other store is charged for all of its units.
func TestEachOwnerHasItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, home := newMemory(t), newFlaky(t, nil)
		homes, err := router.New(router.Config{Rates: router.Backend{Store: own},
			Homes: map[string]router.Backend{"us": {Store: home}}})
		if err != nil {
			t.Fatal(err)
		}
		s := newStore(t, resilience.FallbackConfig{Store: homes})
		rate, quota := window(t, "rate", 100, limit.Backstop), keptInUS(t, 100, limit.Backstop)
		home.down.Store(true)
		names := []string{"ann", "bob", "cid", "dan"}
		for _, name := range names {
			req := requestOf(quota, rate)
			req.Owner.Name = name
			spend(t, s, req, 7)
		}
		// the own store answers, which starts the replay
		spend(t, s, requestOf(window(t, "other", 1000, limit.Backstop)), 1)
		pass(500 * time.Millisecond) // less than the pause before another replay
		synctest.Wait()
		for _, name := range names {
			req := requestOf(rate)
			req.Owner.Name = name
			if n := usedUnits(t, own, req); n != 7 {
				t.Errorf("%d units of %s are charged in the store that answers, want 7", n, name)
			}
		}
	})
}

// Guarantees that charges that were not sent are kept, and that charges that may have been sent are not sent again.
func TestUnsentIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemory(t)
		store := newFlaky(t, inner)
		charge := newFlaky(t, inner)
		s := newStore(t, resilience.FallbackConfig{Store: store, ReplayTo: charge})
		req := requestOf(newLimit(t, limit.Limit{ID: "l",
			Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: 24 * time.Hour, Threshold: 100}}}))
		answers := func() {
			t.Helper()
			pass(1100 * time.Millisecond)
			spend(t, s, requestOf(window(t, "other", 1000, limit.Backstop)), 1)
			pass(50 * time.Millisecond)
			synctest.Wait()
		}
		store.down.Store(true)
		spend(t, s, req, 7)
		store.down.Store(false)
		charge.fault = func() error { return fmt.Errorf("redis: %w", breaker.ErrOpen) }
		for range 3 {
			answers()
		}
		if st := s.Stats(); st.Waiting != 1 || st.Dropped != 0 || charge.asked.Load() != 3 {
			t.Errorf("stats %+v after %d calls that were not sent; want one owner waiting and nothing dropped after "+
				"3 calls", st, charge.asked.Load())
		}
		charge.fault = nil
		answers()
		if st := s.Stats(); st.Waiting != 0 || st.ChargedBack != 7 || usedUnits(t, inner, req) != 7 {
			t.Errorf("stats %+v, %d units used; want 7 charged back and used, and none waiting", st,
				usedUnits(t, inner, req))
		}

		store.down.Store(true)
		spend(t, s, req, 5)
		store.down.Store(false)
		charge.down.Store(true) // as if a lease answers while the store behind it still fails
		for range 3 {
			answers()
		}
		if st := s.Stats(); st.Waiting != 1 || st.Dropped != 0 {
			t.Errorf("stats %+v while the store does not answer; want all units kept", st)
		}
		charge.down.Store(false)
		answers()
		if st := s.Stats(); st.Waiting != 0 || st.Dropped != 0 || st.ChargedBack != 12 ||
			usedUnits(t, inner, req) != 12 {
			t.Errorf("stats %+v, %d units used; want 12 charged back", st, usedUnits(t, inner, req))
		}

		store.down.Store(true)
		spend(t, s, req, 5)
		store.down.Store(false)
		questions := 0
		charge.fault = func() error {
			if questions++; questions > 1 { // it fails exactly when it is charged
				return errGone
			}
			return nil
		}
		answers()
		charge.fault = nil
		answers()
		if st := s.Stats(); st.Waiting != 0 || st.Dropped != 5 || st.ChargedBack != 12 ||
			usedUnits(t, inner, req) != 12 {
			t.Errorf("stats %+v, %d units used; want 5 dropped", st, usedUnits(t, inner, req))
		}
	})
}

// Guarantees that the replay does not overload a store that answers again, and that in the end it charges the units of
// all owners.
func TestRecoveryIsNoStampede(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const owners = 300
		inner := newMemory(t)
		store := newFlaky(t, inner)
		s := newStore(t, resilience.FallbackConfig{Store: store})
		day := newLimit(t, limit.Limit{ID: "l",
			Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: 24 * time.Hour, Threshold: 100}}})
		req := requestOf(day)
		store.down.Store(true)
		for i := range owners {
			req.Owner.Name = fmt.Sprint(i)
			spend(t, s, req, 2)
		}
		store.down.Store(false)
		asked := store.asked.Load()
		spend(t, s, requestOf(day), 1)
		pass(time.Second)
		if n := store.asked.Load() - asked; n < 95 || n > 105 {
			t.Errorf("the replay charged the store %d times in the first second, want about 100", n)
		}
		pass(3 * time.Second)
		if st := s.Stats(); st.ChargedBack != 2*owners || st.Waiting != 0 {
			t.Errorf("%+v, want %d charged back", st, 2*owners)
		}
	})
}

// Guarantees that a store that answers decisions but fails replays is not called to replay with each decision.
func TestAReplayThatFailsIsNotRepeatedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemory(t)
		store, target := newFlaky(t, inner), newFlaky(t, inner)
		s := newStore(t, resilience.FallbackConfig{Store: store, ReplayTo: target})
		req := requestOf(window(t, "l", 100, limit.Backstop))
		store.down.Store(true)
		target.down.Store(true)
		spend(t, s, req, 7)
		store.down.Store(false)
		other := requestOf(window(t, "other", 1000, limit.Backstop))
		for second := range 3 {
			for range 9 {
				spend(t, s, other, 10)
				pass(100 * time.Millisecond)
			}
			if asked := target.asked.Load(); asked != int64(second+1) {
				t.Errorf("the store was asked to replay %d times in %d s, want once in a second", asked, second+1)
			}
			pass(100 * time.Millisecond)
		}
		target.down.Store(false)
		pass(time.Second)
		recoverFrom(t, s)
		if n := usedUnits(t, inner, req); n != 7 {
			t.Errorf("%d units are counted, want 7", n)
		}
	})
}

// Guarantees that Close replays the pending units, or reports what is left.
func TestClosePays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemory(t)
		store := newFlaky(t, inner)
		s := newStore(t, resilience.FallbackConfig{Store: store})
		req := requestOf(newLimit(t, limit.Limit{ID: "l",
			Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: 24 * time.Hour, Threshold: 100}}}))
		store.down.Store(true)
		for i := range 50 {
			req.Owner.Name = fmt.Sprint(i)
			spend(t, s, req, 1)
		}
		store.down.Store(false)
		spend(t, s, req, 1) // the replay begins, and is in progress
		pass(25 * time.Millisecond)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Close(gone); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "owners") {
			t.Errorf("Close with a cancelled context: %v; want context.Canceled, and how many owners are left", err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if st := s.Stats(); st.ChargedBack != 50 || st.Dropped != 0 || st.Waiting != 0 {
			t.Errorf("%+v, want 50 charged back", st)
		}
		spend(t, s, req, 1)
	})
}

// Guarantees that pending units take bounded memory, however long a store fails: units that do not count any more are
// forgotten, and units without memory are counted as dropped.
func TestOwedIsBounded(t *testing.T) {
	s := newStore(t, resilience.FallbackConfig{Store: newFailingStore(t), Bytes: 256 << 10})
	short := newLimit(t, limit.Limit{ID: "short", OnStoreFailure: limit.Open,
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 100}}})
	req, now := requestOf(short), noon
	var d limit.Decision
	for i := range 20_000 { // an owner each 20 ms, so 50 have an open window at a time
		req.Owner.Name = fmt.Sprint(i)
		now = now.Add(20 * time.Millisecond)
		if err := s.Decide(context.Background(), req, now, &d); err != nil {
			t.Fatal(err)
		}
	}
	if st := s.Stats(); st.Dropped != 0 || st.Bytes > 64<<10 {
		t.Errorf("stats %+v; want nothing dropped, and at most 64 KB: windows that have ended need no memory", st)
	}
	for i := range 1000 { // and a thousand owners at once
		req.Owner.Name = fmt.Sprint("new", i)
		if err := s.Decide(context.Background(), req, now, &d); err != nil {
			t.Fatal(err)
		}
	}
	if st := s.Stats(); st.Dropped == 0 || st.Waiting+st.Dropped < 1000 || st.Bytes > 64<<10 {
		t.Errorf("stats %+v; want all of a thousand owners waiting or counted as dropped", st)
	}
}

// hanging is a store whose calls last until their context ends.
type hanging struct {
	limit.Store
	hangs bool
}

func (h *hanging) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if h.hangs {
		<-ctx.Done()
		d.Clear(now.UnixMicro())
		return ctx.Err()
	}
	return h.Store.Decide(ctx, req, now, d)
}

// Guarantees that Close takes no longer than its context allows, whether the charge that hangs began before it or by
// it, and that lost units are counted.
func TestCloseOfTheFallbackIsBounded(t *testing.T) {
	for _, begun := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := newFlaky(t, nil)
			back := &hanging{Store: store, hangs: true}
			s := newStore(t, resilience.FallbackConfig{Store: store, ReplayTo: back})
			req := requestOf(window(t, "l", 100, limit.Backstop))
			store.down.Store(true)
			for i := range 3 {
				req.Owner.Name = fmt.Sprint(i)
				spend(t, s, req, 1)
			}
			if store.down.Store(false); begun {
				spend(t, s, req, 1)
				synctest.Wait()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			began := time.Now()
			err := s.Close(ctx)
			if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "owners") ||
				took != 300*time.Millisecond {
				t.Errorf("begun before %v: Close took %s: %v; want 300ms, and how many owners are left", begun, took,
					err)
			}
			if st := s.Stats(); st.Dropped != 1 || st.ChargedBack != 0 {
				t.Errorf("begun before %v: %+v; want the charge that hung dropped", begun, st)
			}
		})
	}
}

// Guarantees that TakeFullest returns by how much a counter exceeds its limit once the store is charged, also if a
// later one does not.
func TestTakeFullest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFlaky(t, newMemory(t))
		s := newStore(t, resilience.FallbackConfig{Store: store})
		req := requestOf(newLimit(t, limit.Limit{ID: "l", OnStoreFailure: limit.Open,
			Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 100}}}))
		other := requestOf(newLimit(t, limit.Limit{ID: "other", OnStoreFailure: limit.Open,
			Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 100}}}))
		spend(t, s, req, 60)
		if full := s.TakeFullest(); full != 0 {
			t.Errorf("TakeFullest = %d thousandths before anything was charged back, want 0", full)
		}
		store.down.Store(true)
		spend(t, s, req, 150)
		spend(t, s, other, 1)
		store.down.Store(false)
		recoverFrom(t, s)
		if full := s.TakeFullest(); full != 2100 {
			t.Errorf("TakeFullest = %d thousandths of the limit, want 2100", full)
		}
	})
}
