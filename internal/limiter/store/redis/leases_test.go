package redis_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease/leasetest"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// tenUnits returns a charge of a token bucket of ten units that refills one unit per second.
func tenUnits(tb testing.TB) []limit.Charge {
	tb.Helper()
	return []limit.Charge{{Cost: 1, Limit: build(tb, limit.Limit{ID: "ten", Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: 1, Burst: 10, Period: time.Second}}})}}
}

// lease asks for units of the first charge's only tier, at a time after noon.
func lease(
	tb testing.TB, s *redis.Store, charges []limit.Charge, after time.Duration, units int64,
) (limit.Lease, error) {
	tb.Helper()
	var d limit.Decision
	req := &limit.Request{Owner: acme, Charges: charges, Leases: []limit.LeaseRequest{{Least: units}}}
	err := s.Decide(context.Background(), req, noon.Add(after), &d)
	return d.Lease(0), err
}

// Guarantees that damaged data about leases in a pack leads to an error that ends within a minute, or admits no more
// than the bucket has and is corrected after a slot.
func TestBadLeases(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	noonUs := noon.UnixMicro()
	for _, tt := range []struct {
		name         string
		until, units float64
		fails        bool
	}{
		{"less than nothing", float64(noonUs + 1e6), -1000, true},
		{"more than can be", float64(noonUs + 1e6), 1 << 50, true},
		{"endless", float64(noonUs + 1e6), math.Inf(1), true},
		{"no number", float64(noonUs + 1e6), math.NaN(), true},
		{"half a unit", float64(noonUs + 1e6), 0.5, true},
		{"until no time", math.NaN(), 5, true},
		{"until half a µs", float64(noonUs) + 0.5, 5, true},
		{"more than the bucket", float64(noonUs + 1e6), 1 << 40, false},
		{"nothing", float64(noonUs + 1e6), 0, false},
		{"for a hundred years", float64(noonUs + 1e15), 5, false},
		{"until long ago", -1e15, 5, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
			s.SetSpace(newSpace())
			charges := tenUnits(t)
			if g, err := lease(t, s, charges, 0, 5); err != nil || g.Units != 5 {
				t.Fatalf("%+v, %v; want 5 units", g, err)
			}
			key := "{rl:" + s.Space() + "t4:acme,}"
			pack, err := admin.Get(t.Context(), key).Bytes()
			digest := charges[0].Limit.Tiers[0].Digest()
			mark := bytes.Index(pack, append([]byte{197}, digest[:]...))
			if err != nil || mark < 0 {
				t.Fatalf("the pack is %q, %v; want it to say that units are leased", pack, err)
			}
			const state = 17 + 8 // where the numbers of a record begin
			binary.LittleEndian.PutUint64(pack[mark+state:], math.Float64bits(tt.until))
			binary.LittleEndian.PutUint64(pack[mark+state+8:], math.Float64bits(tt.units))
			if err := admin.Set(t.Context(), key, pack, 0).Err(); err != nil { // without an expiry
				t.Fatal(err)
			}
			spend := func(after time.Duration) (admitted int, failed error) {
				for range 20 {
					var d limit.Decision
					err := s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: charges}, noon.Add(after), &d)
					if d.Allowed {
						admitted++
					}
					if err != nil {
						failed = err
					}
				}
				return admitted, failed
			}
			n, err := spend(0)
			if tt.fails != (err != nil) || n > 5 {
				t.Errorf("%d admitted, %v; want at most the 5 that are left, and an error: %t", n, err, tt.fails)
			}
			if tt.fails {
				if n > 0 {
					t.Errorf("%d units are admitted between errors, which is more than the bucket has", n)
				}
				if _, err := lease(t, s, charges, 0, 5); err == nil {
					t.Error("a lease from a damaged pack succeeds, want an error")
				}
				if ttl, err := admin.PTTL(t.Context(), key).Result(); err != nil || ttl <= 0 || ttl > time.Minute {
					t.Errorf("it is there for %s, %v; want a minute at most", ttl, err)
				}
				return
			}
			if n, err := spend(30 * time.Second); n != 10 || err != nil {
				t.Errorf("half a minute later %d are admitted, %v; want 10", n, err)
			}
		})
	}
}

// Guarantees that a bucket does not refill in place of leased units, also for decisions without leases, and that it
// refills when their slot has ended.
func TestLeasedUnitsAreHeld(t *testing.T) {
	s := openAt(t, redis.Config{Addrs: []string{address(t)}})
	s.SetSpace(newSpace())
	charges := tenUnits(t)
	decide := func(after time.Duration) *limit.Decision {
		d := new(limit.Decision)
		if err := s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: charges}, noon.Add(after), d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	decide(0)
	decide(0)
	g, err := lease(t, s, charges, 0, 8)
	if err != nil || g.Units != 8 {
		t.Fatalf("%+v, %v; want the 8 units that are left", g, err)
	}
	ends := time.UnixMicro(g.Until).Sub(noon)
	if d := decide(ends - time.Microsecond); d.Results[0].Remaining() > 1 {
		t.Errorf("at its end %d remain; want what is not held and was refilled", d.Results[0].Remaining())
	}
	decide(ends + 10*time.Second)
	if d := decide(ends + 10*time.Second); d.Results[0].Remaining() != 8 {
		t.Errorf("after it %d remain; want 8", d.Results[0].Remaining())
	}
}

// Guarantees that a decision takes one round trip and runs one script, also over a bucket of which units are leased,
// and the first one over a value.
func TestDecisionIsOneCall(t *testing.T) {
	server := redistest.Start(t)
	s, admin := open(t, redis.Config{Addrs: []string{server.Addr}, Deadline: longDeadline}), server.Client(t)
	s.UseCallerClock()
	charges := tenUnits(t)
	if g, err := lease(t, s, charges, 0, 5); err != nil || g.Units != 5 {
		t.Fatalf("%+v, %v; want 5 units", g, err)
	}
	// calls decides once for each owner, and returns how many scripts the server ran.
	calls := func(owners ...limit.Owner) (n int) {
		if err := admin.ConfigResetStat(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		for _, o := range owners {
			if err := s.Decide(t.Context(), &limit.Request{Owner: o, Charges: charges}, noon,
				new(limit.Decision)); err != nil {
				t.Fatal(err)
			}
		}
		text, err := admin.Info(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ = strings.Cut(text, "cmdstat_evalsha:")
		if _, err := fmt.Sscanf(text, "calls=%d,", &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := calls(acme, acme); n != 2 {
		t.Errorf("2 decisions over a leased bucket ran %d scripts, want 2", n)
	}
	value := build(t, limit.Limit{ID: "user", Per: "subject", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Hour}}})
	charges = append(charges, limit.Charge{Limit: value, Value: limit.ValueOf("u"), Cost: 1})
	if n := calls(ownerNumber(1), ownerNumber(1)); n != 2 {
		t.Errorf("the first 2 decisions of another owner ran %d scripts, want 2", n)
	}
}

// Guarantees that a bucket does not refill in place of leased units after requests that do not name it, so that its
// record lies anywhere in the pack.
func TestLeasedUnitsAreHeldBehind(t *testing.T) {
	s := openAt(t, redis.Config{Addrs: []string{address(t)}})
	s.SetSpace(newSpace())
	bucket := tenUnits(t)[0]
	var all []limit.Charge
	for i := range 3 {
		all = append(all, limit.Charge{Cost: 1,
			Limit: build(t, limit.Limit{ID: fmt.Sprint("other-", i), Tiers: []limit.Tier{
				{Algorithm: limit.FixedWindow, Threshold: 100, Period: time.Hour}}})})
	}
	g, err := lease(t, s, []limit.Charge{bucket}, 0, 8)
	if err != nil || g.Units != 8 {
		t.Fatalf("%+v, %v; want 8 of 10 units", g, err)
	}
	ends := time.UnixMicro(g.Until)
	var d limit.Decision
	for _, charges := range [][]limit.Charge{all[:2], all[1:], all[:1], {bucket, all[0]}, all[1:],
		{all[1], bucket}} {
		err := s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: charges}, ends.Add(-time.Microsecond), &d)
		if err != nil {
			t.Fatal(err)
		}
		for i := range d.Results {
			if r := &d.Results[i]; r.Limit() == bucket.Limit && r.Remaining() > 1 {
				t.Errorf("with 8 units leased and others charged, %d of 10 remain, want at most 1", r.Remaining())
			}
		}
	}
}

// Guarantees that a sorted set that is empty for a moment, because all of its entries have ended, keeps its expiry.
// Without it the set would stay for good.
func TestStampsExpire(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	for _, a := range []limit.Algorithm{limit.SlidingLog, limit.SlidingBuckets} {
		t.Run(a.String(), func(t *testing.T) {
			s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
			s.SetSpace(newSpace())
			charges := []limit.Charge{{Cost: 1,
				Limit: build(t, limit.Limit{ID: "log",
					Tiers: []limit.Tier{{Algorithm: a, Threshold: 100, Period: time.Second}}})}}
			at := noon
			for _, step := range []time.Duration{0, 0, 5 * time.Second, 0, time.Second, 20 * time.Second} {
				at = at.Add(step)
				for _, ahead := range [][]limit.LeaseRequest{nil, {{Need: 1, Least: 2, Life: 500_000}}} {
					var d limit.Decision
					if err := s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: charges, Leases: ahead}, at,
						&d); err != nil {
						t.Fatal(err)
					}
					keys, err := admin.Keys(t.Context(), "{rl:"+s.Space()+"t4:acme,}*stamps*").Result()
					if err != nil || len(keys) != 1 {
						t.Fatalf("sorted sets %q, %v; want one", keys, err)
					}
					if ttl, err := admin.PTTL(t.Context(), keys[0]).Result(); err != nil || ttl <= 0 {
						t.Fatalf("%s from noon it expires in %s, %v; want some time", at.Sub(noon), ttl, err)
					}
				}
			}
		})
	}
}

// Guarantees that at its very start a sliding_window counts all of the previous window and no more, also if the period
// has no round tick.
func TestWeightAtTheStart(t *testing.T) {
	s := openAt(t, redis.Config{Addrs: []string{address(t)}})
	const period = 1_048_583 * time.Millisecond // a prime number
	charges := []limit.Charge{{Cost: 1, Limit: build(t, limit.Limit{ID: "odd", MaxCost: 1 << 20, Tiers: []limit.Tier{
		{Algorithm: limit.SlidingWindow, Threshold: 1 << 20, Period: period}}})}}
	start := noon.Truncate(time.Microsecond)
	start = time.UnixMicro(start.UnixMicro() - start.UnixMicro()%period.Microseconds())
	s.SetSpace(newSpace())
	for i, cost := range []int64{1<<20 - 1, 1} {
		charges[0].Cost = cost
		var d limit.Decision
		err := s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: charges},
			start.Add(time.Duration(i)*period), &d)
		if err != nil || !d.Allowed {
			t.Errorf("%d units %d windows later: allowed %t, %v", cost, i, d.Allowed, err)
		}
	}
}

// Guarantees that a request with leases of hundreds of limits is one script call.
func TestManyLeases(t *testing.T) {
	s := openAt(t, redis.Config{Addrs: []string{address(t)}})
	s.SetSpace(newSpace())
	req := &limit.Request{Owner: acme}
	for i := range 280 {
		l := build(t, limit.Limit{ID: fmt.Sprint("l", i),
			Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: 10, Period: time.Hour}}})
		req.Charges = append(req.Charges, limit.Charge{Limit: l, Cost: 1})
		req.Leases = append(req.Leases, limit.LeaseRequest{Need: 1, Least: 2})
	}
	var d limit.Decision
	if err := s.Decide(t.Context(), req, noon, &d); err != nil || !d.Allowed || d.Lease(279).Units != 2 {
		t.Errorf("allowed %t, %v, the last grant %+v; want 2 units of each", d.Allowed, err, d.Lease(279))
	}
	if n := strings.Count(render(&d), "Units:2 "); n != len(req.Charges) {
		t.Errorf("%d leases, want %d", n, len(req.Charges))
	}
}

// Guarantees that processes that lease a limit from Redis admit nearly all of it, and that the waits that they name are
// right.
func TestLeasesGiveTheLimit(t *testing.T) {
	soak.SkipUnderRace(t)
	server := redistest.Start(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	leasetest.Run(t, func() limit.Store { return s }, 30)
}

// Guarantees that a limit that is raised admits more at once.
func TestRaiseIsFeltAtOnce(t *testing.T) {
	server := redistest.Start(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	leasetest.Raise(t, func() limit.Store { return s })
}
