package memory_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

func address(i int) limit.Owner {
	return limit.Owner{Kind: limit.Address, Name: fmt.Sprintf("%032x", i)}
}

// daily returns an ipLimit whose counters stay in use for days.
func daily(tb testing.TB, threshold int64) *limit.Limit {
	tb.Helper()
	return newLimit(tb, limit.Limit{ID: "per-address", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: threshold, Period: 24 * time.Hour}}})
}

// flood lets that many addresses spend one unit each, and returns how many were admitted.
func flood(tb testing.TB, s *memory.Store, first, addresses int, now time.Time, limits ...*limit.Limit) (in int) {
	tb.Helper()
	for i := range addresses {
		ok, err := spend(tb, s, address(first+i), now, limits...)
		if err != nil {
			tb.Fatalf("address %d of %d: %v", i, addresses, err)
		}
		if ok {
			in++
		}
	}
	return in
}

// Guarantees that a counter which addresses share becomes free with its windows, also if the windows of each address
// begin at another time (align: tenant). The windows of the shared counter must not move with the address of the
// request.
func TestSharedCounterComesFree(t *testing.T) {
	soak.SkipUnderRace(t)
	for _, algorithm := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow} {
		t.Run(algorithm.String(), func(t *testing.T) {
			const threshold, periods = 100, 20
			l := newLimit(t, limit.Limit{ID: "aligned", AlignOwner: true, Tiers: []limit.Tier{
				{Algorithm: algorithm, Threshold: threshold, Period: time.Hour}}})
			s := newStore(t, 64<<10)
			flood(t, s, 0, 5000, start, daily(t, 1))
			in := 0
			for i := range periods * 60 {
				in += flood(t, s, 1_000_000+i*10, 10, start.Add(time.Duration(i)*time.Minute), l)
			}
			// There is at least one group. Nobody knows where its windows begin, so the first and the last one may be
			// shorter.
			if least := threshold * (periods - 2); in < least {
				t.Errorf("%d of the addresses without room were admitted in %d periods, want at least %d", in, periods,
					least)
			}
		})
	}
}

// Guarantees that an address that has a counter keeps it during a flood.
func TestFloodForgetsNoAddress(t *testing.T) {
	s, l := newStore(t, 256<<10), daily(t, 2)
	const early = 20
	flood(t, s, 0, early, start, l)
	flood(t, s, 1000, 5000, start, l)
	if in := flood(t, s, 0, early, start, l); in != early {
		t.Errorf("%d of %d addresses that have counters got their second unit, want all", in, early)
	}
	if in := flood(t, s, 0, early, start, l); in != 0 {
		t.Errorf("%d of %d addresses got a third unit of two, want none", in, early)
	}
}

// Guarantees that addresses without room share many counters, so that one address does not use up the limit of all
// others. The counter that an address shares differs from process to process, so nobody can choose a victim.
func TestNewAddressesShareManyCounters(t *testing.T) {
	soak.SkipUnderRace(t)
	const maxBytes = 8 << 20
	l := daily(t, 1)
	passed := func() string {
		s := newStore(t, maxBytes)
		flood(t, s, 0, 20_000, start, bucket(t, "filler", 1, 1, time.Hour))
		var in strings.Builder
		for i := range 2000 {
			ok, err := spend(t, s, address(1_000_000+i), start, l)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				fmt.Fprintln(&in, i)
			}
		}
		return in.String()
	}
	first, second := passed(), passed()
	if n := strings.Count(first, "\n"); n < 60 || n > 64 {
		t.Errorf("%d of 2000 addresses without a counter of their own are admitted; want at most 64, one for each "+
			"shared counter, and more than a few", n)
	}
	if first == second {
		t.Error("two stores assign the same shared counters to addresses: an attacker could find out which one a " +
			"victim has")
	}
}

// Guarantees that an address never gets more by sharing a counter: the units that the shared counter admitted still
// count when the address gets a counter of its own.
func TestAddressTakesItsSharedCounterAlong(t *testing.T) {
	for _, tier := range []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 4, Period: time.Hour},
		{Algorithm: limit.SlidingWindow, Threshold: 4, Period: time.Hour},
		{Algorithm: limit.SlidingLog, Threshold: 4, Period: time.Hour},
		{Algorithm: limit.SlidingBuckets, Threshold: 4, Period: time.Hour, Buckets: 4},
		{Algorithm: limit.TokenBucket, Threshold: 1, Burst: 4, Period: time.Hour},
	} {
		for _, aligned := range []bool{false, true} {
			if aligned && tier.Algorithm != limit.FixedWindow && tier.Algorithm != limit.SlidingWindow {
				continue
			}
			t.Run(fmt.Sprintf("%s, aligned to the owner %t", tier.Algorithm, aligned), func(t *testing.T) {
				s := newStore(t, 128<<10)
				l := newLimit(t, limit.Limit{ID: "kept", AlignOwner: aligned, Tiers: []limit.Tier{tier}})
				filler, passing := bucket(t, "filler", 1, 1, time.Minute), bucket(t, "passing", 1000, 1, time.Second)
				flood(t, s, 0, 2000, start, filler)
				late, n := address(7777), 0
				for range 3 {
					if ok, err := spend(t, s, late, start, l); err != nil {
						t.Fatal(err)
					} else if ok {
						n++
					}
				}
				if n != 3 {
					t.Fatalf("%d of 3 units are admitted in the shared counter, want all", n)
				}
				// the counters of the other addresses are like unused ones, and make room
				now := start.Add(5 * time.Minute)
				for i := range 400 { // each new owner makes the store sweep
					now = now.Add(200 * time.Millisecond)
					if _, err := spend(t, s, tenant(i), now, passing); err != nil && !errors.Is(err, limit.ErrFull) {
						t.Fatal(err)
					}
				}
				for range 8 {
					if ok, err := spend(t, s, late, now, l); err != nil {
						t.Fatal(err)
					} else if ok {
						n++
					}
				}
				if n != 4 {
					t.Errorf("%d units were admitted in one hour, in the shared counter and then in the address's "+
						"own, want at most 4", n)
				}
				if in := flood(t, s, 8888, 1, now, l); in != 1 {
					t.Error("the address was still counted in the shared counter, which has one unit left: so the " +
						"test shows nothing")
				}
				over := 80 * time.Minute // after this time most of what a sliding window admitted counts no longer
				if tier.Algorithm == limit.SlidingLog {
					over = 62 * time.Minute
				}
				if in := flood(t, s, 7777, 1, start.Add(over), l); in != 1 {
					t.Error("units that were admitted in the shared counter count for longer than the period")
				}
			})
		}
	}
}

// Guarantees that an address whose counter is used up gets no shared counter if it asks for a limit that it has no
// counter of yet.
func TestFloodDoesNotFreeAUsedUpCounter(t *testing.T) {
	s, used := newStore(t, 128<<10), daily(t, 1)
	other := newLimit(t, limit.Limit{ID: "writes", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 100, Period: 24 * time.Hour}}})
	if in := flood(t, s, 0, 1, start, used); in != 1 {
		t.Fatal("the first unit of an address is denied, want it admitted")
	}
	flood(t, s, 1000, 2000, start, used)
	if in := flood(t, s, 0, 1, start, used, other); in != 0 {
		t.Error("an address that has spent its unit got another one in a shared counter, want a denial")
	}
}

// Guarantees that a peek at a shared counter says what a decision would.
func TestPeekAtASharedCounter(t *testing.T) {
	s, l := newStore(t, 128<<10), daily(t, 1)
	flood(t, s, 0, 5000, start, l) // uses up the shared counters, too
	each := perValue(t, limit.Tier{Algorithm: limit.FixedWindow, Threshold: 1, Period: 24 * time.Hour})
	for _, owner := range []limit.Owner{{Kind: limit.Anonymous}, tenant(1)} {
		values(t, s, owner, each, 1000, 1, start) // uses up the shared counters of other values
	}
	lacking := []limit.Charge{{Limit: each, Value: limit.ValueOf("new"), Cost: 1}}
	for _, req := range []limit.Request{
		{Owner: address(9999), Charges: []limit.Charge{{Limit: l, Cost: 1}}},
		{Owner: limit.Owner{Kind: limit.Anonymous}, Charges: lacking},
		{Owner: tenant(1), Charges: lacking},
	} {
		var d limit.Decision
		if err := s.Peek(t.Context(), &req, start, &d); err != nil || d.Allowed {
			t.Errorf("owner kind %c: a peek says allowed %t, %v; want a denial, like that of the decision",
				req.Owner.Kind, d.Allowed, err)
		}
	}
}

// perValue returns a limit with a counter for each value, of which there may be very many.
func perValue(tb testing.TB, tier limit.Tier) *limit.Limit {
	tb.Helper()
	return newLimit(tb, limit.Limit{ID: "each", Per: "ip", MaxValues: 1_000_000, Tiers: []limit.Tier{tier}})
}

// values spends units of n values, one unit at a time and a µs apart, and returns how many were admitted.
func values(tb testing.TB, s *memory.Store, o limit.Owner, l *limit.Limit, n, units int, now time.Time) (admitted int) {
	tb.Helper()
	var d limit.Decision
	for i := range n * units {
		req := limit.Request{Owner: o, Charges: []limit.Charge{{Limit: l, Value: limit.ValueOf(fmt.Sprint(i % n)),
			Cost: 1}}}
		if err := s.Decide(tb.Context(), &req, now.Add(time.Duration(i)*time.Microsecond), &d); err != nil {
			tb.Fatalf("unit %d of value %d of %d: %v", i/n+1, i%n, n, err)
		}
		if d.Allowed {
			admitted++
		}
	}
	return admitted
}

// longLog is a tier that may keep an entry for each of many requests for a day.
var longLog = limit.Tier{Algorithm: limit.SlidingLog, Threshold: limit.MaxLogEntries, Period: 24 * time.Hour}

// Guarantees that the entries of sliding logs count as memory of addresses and anonymous calls: requests without a
// credential, however many, neither take the memory of tenants nor end in an error, which would leave the decision to
// onStoreFailure.
func TestFloodOfSlidingLogs(t *testing.T) {
	soak.SkipUnderRace(t)
	const maxBytes = 1 << 20
	all := newLimit(t, limit.Limit{ID: "all", Tiers: []limit.Tier{longLog}})
	for name, fill := range map[string]func(t *testing.T, s *memory.Store){
		"anonymous values": func(t *testing.T, s *memory.Store) {
			values(t, s, limit.Owner{Kind: limit.Anonymous}, perValue(t, longLog), 200, 500, start)
		},
		"one limit of all anonymous calls": func(t *testing.T, s *memory.Store) {
			flood(t, s, 0, 2000, start, daily(t, 1000))
			for i := range 2 * limit.MaxLogEntries {
				if _, err := spend(t, s, limit.Owner{Kind: limit.Anonymous},
					start.Add(time.Duration(i)*time.Microsecond), all); err != nil {
					t.Fatal(err)
				}
			}
		},
		"few addresses": func(t *testing.T, s *memory.Store) {
			for i := range 100 {
				flood(t, s, 0, 300, start.Add(time.Duration(i)*time.Millisecond), all)
			}
		},
		"many addresses": func(t *testing.T, s *memory.Store) {
			for i := range 10 {
				flood(t, s, 0, 3000, start.Add(time.Duration(i)*time.Millisecond), all, daily(t, 1000))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, maxBytes)
			fill(t, s)
			// The first counters of each limit are always made.
			if got := s.Bytes(); got < maxBytes/10 || got > maxBytes/4+2048 {
				t.Errorf("the flood takes %d bytes of %d, want a tenth at least, and a quarter at most", got, maxBytes)
			}
			wantExactForNewTenants(t, s, 1000)
		})
	}
}

// wantExactForNewTenants checks that the decisions for that many new tenants are exact.
func wantExactForNewTenants(tb testing.TB, s *memory.Store, tenants int) {
	tb.Helper()
	l := daily(tb, 2)
	for n := range 3 {
		for i := range tenants {
			if ok, err := spend(tb, s, tenant(1_000_000+i), start, l); ok != (n < 2) || err != nil {
				tb.Fatalf("tenant %d of %d, request %d of 2: allowed %t, %v", i, tenants, n+1, ok, err)
			}
		}
	}
}

// Guarantees that a sliding log without room is stricter than its limit, never looser: however small the memory is, an
// address never gets more than its threshold within a period. It gets at least one threshold and then has to wait for a
// period, so a flood does not deny an address for long that has a counter.
func TestSlidingLogsWithoutRoom(t *testing.T) {
	const threshold, period, addresses = 20, time.Minute, 30
	l := newLimit(t, limit.Limit{ID: "log", Tiers: []limit.Tier{
		{Algorithm: limit.SlidingLog, Threshold: threshold, Period: period}}})
	s := newStore(t, 128<<10)
	r := rand.New(rand.NewPCG(1, 2))
	flood(t, s, 0, addresses, start, l) // each address has a counter of its own
	flood(t, s, 1000, 500, start, daily(t, 1))
	admitted := make([][]time.Time, addresses)
	for i := range admitted {
		admitted[i] = []time.Time{start}
	}
	now := start
	for range 50_000 {
		now = now.Add(time.Duration(r.IntN(40)) * time.Millisecond)
		i := r.IntN(addresses)
		ok, err := spend(t, s, address(i), now, l)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			continue
		}
		admitted[i] = append(admitted[i], now)
		if n := len(admitted[i]) - 1 - threshold; n >= 0 && now.Sub(admitted[i][n]) < period {
			t.Fatalf("address %d: %d units in %s, want %d a %s", i, threshold+1, now.Sub(admitted[i][n]), threshold,
				period)
		}
	}
	// 1,000 s are 16 periods, and two periods admit at least one threshold.
	for i := range admitted {
		if n := len(admitted[i]); n < 8*threshold {
			t.Errorf("address %d was admitted %d times in %s, want %d at least", i, n, now.Sub(start), 8*threshold)
		}
	}
}

// Guarantees that one tenant cannot take the memory of all others, whatever its callers send. Otherwise a stolen key
// would be enough to make every new tenant be denied. What the tenant has spent stays counted.
func TestOneTenantLeavesRoomForOthers(t *testing.T) {
	soak.SkipUnderRace(t)
	const maxBytes = 1 << 20
	window := limit.Tier{Algorithm: limit.FixedWindow, Threshold: 1, Period: 24 * time.Hour}
	hog := func(t *testing.T, s *memory.Store, i, n int) {
		l := perValue(t, window)
		in := values(t, s, tenant(i), l, n, 1, start)
		if in < 200 || in > n/2 {
			t.Errorf("%d of %d values of one unit were admitted, want as many as have room, and one", in, n)
		}
		if again := values(t, s, tenant(i), l, n, 1, start); again != 0 {
			t.Errorf("%d values that have spent their only unit were admitted again, want none", again)
		}
	}
	for name, fill := range map[string]func(t *testing.T, s *memory.Store) (share int64){
		"values of one tenant": func(t *testing.T, s *memory.Store) int64 {
			hog(t, s, 1, 20_000)
			return 2
		},
		"values of two tenants": func(t *testing.T, s *memory.Store) int64 {
			hog(t, s, 1, 20_000)
			hog(t, s, 2, 20_000)
			return 4
		},
		"logs of values": func(t *testing.T, s *memory.Store) int64 {
			values(t, s, tenant(1), perValue(t, longLog), 50, 2000, start)
			return 2
		},
		"a log": func(t *testing.T, s *memory.Store) int64 {
			var limits []*limit.Limit
			for i := range 30 {
				limits = append(limits, newLimit(t, limit.Limit{ID: fmt.Sprint("log-", i),
					Tiers: []limit.Tier{longLog}}))
			}
			for i := range 3000 {
				if _, err := spend(t, s, tenant(1), start.Add(time.Duration(i)*time.Millisecond),
					limits...); err != nil {
					t.Fatal(err)
				}
			}
			return 2
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, maxBytes)
			share := fill(t, s)
			if got, free := s.Bytes(), maxBytes/share*3/4; got < maxBytes/4 || got > maxBytes-free {
				t.Errorf("%d bytes are taken of %d, want a quarter at least, and %d left", got, maxBytes, free)
			}
			wantExactForNewTenants(t, s, 300) // about 150 KB
		})
	}
}

// Guarantees that calls without a credential can invent values without taking the memory of tenants, and that addresses
// cannot make them be denied: a value without room shares a counter with some of the other values.
func TestFloodOfAnonymousValues(t *testing.T) {
	s := newStore(t, 512<<10)
	anonymous := limit.Owner{Kind: limit.Anonymous}
	l := newLimit(t, limit.Limit{ID: "each", Per: "ip", MaxValues: 1_000_000, Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 2, Period: 24 * time.Hour}}})
	all := newLimit(t, limit.Limit{ID: "all", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 1 << 30, Period: 24 * time.Hour}}})
	ask := func(i int) *limit.Decision {
		var d limit.Decision
		req := limit.Request{Owner: anonymous, Charges: []limit.Charge{{Limit: all, Cost: 1},
			{Limit: l, Cost: 1, Value: limit.ValueOf(fmt.Sprint(i))}}}
		if err := s.Decide(t.Context(), &req, start, &d); err != nil {
			t.Fatalf("value %d: %v", i, err)
		}
		return &d
	}
	flood(t, s, 0, 2000, start, daily(t, 1000))
	passed := 0
	for i := range 1000 {
		if ask(i).Allowed {
			passed++
		}
	}
	if passed != 64*2 {
		t.Errorf("%d of 1000 values without room passed, want two units of each of 64 shared counters", passed)
	}
	for i := range 10_000 {
		ask(i)
	}
	for i := range 400 {
		if ok, err := spend(t, s, tenant(i), start, daily(t, 1)); !ok || err != nil {
			t.Fatalf("tenant %d: allowed %t, %v", i, ok, err)
		}
	}
}

// Guarantees that a store that only counts addresses gives them all of its memory.
func TestUnidentifiedBytes(t *testing.T) {
	owners := func(share int64) int64 {
		s, err := memory.New(memory.Config{MaxBytes: 1 << 20, UnidentifiedBytes: share,
			Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		flood(t, s, 0, 5000, start, daily(t, 1000))
		return s.Bytes()
	}
	if part, all := owners(0), owners(1<<20); part > 1<<18 || all < 1<<19 || all > 1<<20 {
		t.Errorf("a flood takes %d bytes by default and %d with all of 1 MB, want at most a quarter, and most", part,
			all)
	}
	for _, bad := range []int64{-1, 1<<20 + 1} {
		if _, err := memory.New(memory.Config{MaxBytes: 1 << 20, UnidentifiedBytes: bad}); err == nil {
			t.Errorf("UnidentifiedBytes %d of %d bytes is accepted, want an error", bad, 1<<20)
		}
	}
}

// Guarantees that concurrent requests never exceed the limits of shared counters, while addresses get counters of their
// own again.
func TestSharedCountersAtOnce(t *testing.T) {
	const addresses, goroutines, capacity = 200, 16, 3
	s, l := newStore(t, 64<<10), daily(t, capacity)
	passing := bucket(t, "passing", 1000, 1, time.Second)
	var admitted [addresses]atomic.Int64
	var ticks atomic.Int64
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range 2000 {
				now := start.Add(time.Duration(ticks.Add(1)) * time.Millisecond)
				if i%2 == 0 {
					if _, err := spend(t, s, address(1_000_000+g*10_000+i), now, passing); err != nil {
						t.Error(err)
					}
					continue
				}
				n := (i*7 + g) % addresses
				ok, err := spend(t, s, address(n), now, l)
				if err != nil {
					t.Error(err)
				} else if ok {
					admitted[n].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for i := range admitted {
		if n := admitted[i].Load(); n > capacity {
			t.Errorf("address %d was admitted %d times, want at most %d", i, n, capacity)
		}
	}
	if got := s.Bytes(); got < 0 || got > 64<<10 {
		t.Errorf("the store takes %d bytes, want at most %d", got, 64<<10)
	}
}

// Guarantees that a flood is logged, once a minute.
func TestFloodIsLoggedOnceAMinute(t *testing.T) {
	var log bytes.Buffer
	s, err := memory.New(memory.Config{MaxBytes: 128 << 10, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	l := daily(t, 1000)
	flood(t, s, 0, 40, start, l)
	if log.Len() > 0 {
		t.Errorf("the store has room, but the log has lines, want none: %s", log.String())
	}
	for i := range 3 {
		flood(t, s, 1000*(i+1), 500, start.Add(time.Duration(i)*time.Minute), l)
	}
	if n := strings.Count(log.String(), "share counters"); n != 3 {
		t.Errorf("%d lines in three minutes, want 3:\n%s", n, log.String())
	}
	each := perValue(t, limit.Tier{Algorithm: limit.FixedWindow, Threshold: 1, Period: 24 * time.Hour})
	for i := range 3 {
		o := limit.Owner{Kind: limit.Tenant, Name: "acme\nx"}
		values(t, s, o, each, 1000, 1, start.Add(time.Duration(3+i)*time.Minute))
	}
	if n := strings.Count(log.String(), "tenant=acme%0Ax"); n != 3 {
		t.Errorf("%d lines about a tenant in three minutes, want 3:\n%s", n, log.String())
	}
}

// Guarantees that the error says why no decision was possible if tenants have filled the store.
func TestFullOfTenants(t *testing.T) {
	s, l := newStore(t, 64<<10), daily(t, 1)
	var err error
	for i := range 1000 {
		if _, err = spend(t, s, tenant(i), start, l); err != nil {
			break
		}
	}
	if !errors.Is(err, limit.ErrFull) || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("the error of a full store does not say why: %v", err)
	}
	if _, err := spend(t, s, address(1), start, l); err != nil {
		t.Errorf("an address in a store that is full of tenants: %v; want a shared counter", err)
	}
}
