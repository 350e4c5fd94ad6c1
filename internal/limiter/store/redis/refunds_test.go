package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// largeLimits returns one charge for every algorithm that admits more than one request at a time. Each limit has a
// million units. Their counters are in three packs, one of which belongs to a subject.
func largeLimits(tb testing.TB) []limit.Charge {
	tb.Helper()
	var charges []limit.Charge
	for i, a := range []limit.Algorithm{limit.TokenBucket, limit.FixedWindow, limit.SlidingWindow, limit.SlidingLog,
		limit.SlidingBuckets, limit.Quota} {
		t := limit.Tier{Algorithm: a, Threshold: min(1_000_000, limit.MaxLogEntries), Period: 24 * time.Hour}
		switch a {
		case limit.TokenBucket:
			t.Threshold, t.Burst = 1000, 1_000_000
		case limit.Quota:
			t.Period, t.Calendar = 0, &limit.Calendar{Every: limit.Month, Location: time.UTC, AnchorDay: 1}
		}
		l := limit.Limit{ID: a.String(), MaxCost: 3, Tiers: []limit.Tier{t}}
		c := limit.Charge{Cost: 1}
		if i%3 == 2 {
			l.Per, c.Value = "subject", limit.ValueOf("alice")
		}
		c.Limit = build(tb, l)
		charges = append(charges, c)
	}
	return charges
}

// charged charges cost units of each limit, and returns the receipt.
func charged(tb testing.TB, s *redis.Store, charges []limit.Charge, cost int64, now time.Time) (*limit.Receipt, error) {
	tb.Helper()
	own := make([]limit.Charge, len(charges))
	copy(own, charges)
	for i := range own {
		own[i].Cost = cost
	}
	var d limit.Decision
	if err := s.Decide(context.Background(), &limit.Request{Owner: acme, Charges: own}, now, &d); err != nil {
		return nil, err
	}
	if !d.Allowed {
		return nil, fmt.Errorf("denied by %s", d.Binding().Limit().ID)
	}
	return d.Receipt(), nil
}

// usedUnits returns the units that each of the charges' counters has counted.
func usedUnits(tb testing.TB, s *redis.Store, charges []limit.Charge, now time.Time) []int64 {
	tb.Helper()
	var d limit.Decision
	if err := s.Peek(tb.Context(), &limit.Request{Owner: acme, Charges: charges}, now, &d); err != nil {
		tb.Fatal(err)
	}
	out := make([]int64, len(d.Results))
	for i := range d.Results {
		out[i] = d.Results[i].Used()
	}
	return out
}

// Guarantees that concurrent refunds and charges of one tenant are counted exactly: with 64 callers that refund and 16
// that charge, no refund fails, each costs one script call, a charge costs no more, and in the end every counter holds
// what was charged and not given back.
func TestRefundsBesideCharges(t *testing.T) {
	const refunding, charging, each = 64, 16, 15
	server := redistest.Start(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	charges := largeLimits(t)
	kept := make([]atomic.Int64, len(charges))
	receipts := make(chan *limit.Receipt, refunding*each)
	spend := func(i int) *limit.Receipt {
		cost := int64(1 + i%3)
		r, err := charged(t, s, charges, cost, noon)
		if err != nil {
			t.Errorf("charge %d: %v", i, err)
			return nil
		}
		for i := range kept {
			kept[i].Add(cost)
		}
		return r
	}
	for i := range cap(receipts) {
		if r := spend(i); r != nil {
			receipts <- r
		}
	}
	close(receipts)
	giveBack := func(r *limit.Receipt) {
		back, err := s.Settle(t.Context(), r, nil, noon)
		if err != nil || back.Repeated || back.Expired {
			t.Errorf("refund: %+v, %v", back, err)
			return
		}
		for i, units := range back.Returned {
			kept[i].Add(-units)
		}
	}
	giveBack(<-receipts) // afterwards the server knows every script
	before := calls(t, server)
	var wg sync.WaitGroup
	for range refunding {
		wg.Go(func() {
			for r := range receipts {
				giveBack(r)
			}
		})
	}
	for range charging {
		wg.Go(func() {
			for i := range each {
				spend(i)
			}
		})
	}
	wg.Wait()
	const refunds = refunding*each - 1
	if got := calls(t, server) - before; got <= refunds || got > refunds+charging*each { // charges may share a call
		t.Errorf("%d calls of scripts for %d refunds and %d charges, want one for each refund, and at most one for "+
			"each charge", got, refunds, charging*each)
	}
	for i, units := range usedUnits(t, s, charges, noon) {
		if want := kept[i].Load(); units != want {
			t.Errorf("%s has counted %d units, want %d, those that were charged and not given back",
				charges[i].Limit.ID, units, want)
		}
	}
}

// calls returns how many scripts the server has run.
func calls(tb testing.TB, server *redistest.Server) (n int) {
	tb.Helper()
	info, err := server.Client(tb).Info(tb.Context(), "commandstats").Result()
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(info) {
		for _, name := range []string{"eval", "evalsha"} {
			var one int
			if _, err := fmt.Sscanf(line, "cmdstat_"+name+":calls=%d,", &one); err == nil {
				n += one
			}
		}
	}
	return n
}

// Guarantees that a refund whose reply was lost, and that may have been made, can be asked for again: nothing is given
// back twice, and what was not given back is given back then.
func TestRefundLostReply(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	s := openAt(t, redis.Config{Addrs: []string{p.addr}, Deadline: time.Second})
	direct := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	charges := largeLimits(t)
	warm, err := charged(t, s, charges, 1, noon)
	if err != nil {
		t.Fatal(err)
	}
	// makes sure that the server knows the script and the pool has a connection
	if _, err := s.Settle(t.Context(), warm, nil, noon); err != nil {
		t.Fatal(err)
	}
	start := usedUnits(t, direct, charges, noon)
	for _, cut := range []int64{0, 1, 5, 20, 60} {
		r, err := charged(t, direct, charges, 3, noon)
		if err != nil {
			t.Fatal(err)
		}
		p.cut.Store(cut)
		if back, err := s.Settle(t.Context(), r, nil, noon); err == nil {
			t.Errorf("a reply that is cut off after %d bytes is accepted, want an error: %+v", cut, back)
		}
		p.cut.Store(-1)
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		var back limit.Settlement
		err = redistest.Until(ctx, func() (err error) {
			back, err = s.Settle(ctx, r, nil, noon)
			return err
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if !back.Repeated {
			t.Errorf("after a reply that was cut after %d bytes the refund is %+v, want it repeated: the server had "+
				"made it", cut, back)
		}
		if got := fmt.Sprint(usedUnits(t, direct, charges, noon)); got != fmt.Sprint(start) {
			t.Errorf("after a charge of 3 and its refund the counters hold %s, want %v", got, start)
		}
	}
}

// Guarantees that a receipt still knows what was refunded since, after the lower of the two numbers that count a
// bucket's refunds, which is below 2^52, has started again at 0.
func TestRefundsBeyondTheLowerNumber(t *testing.T) {
	s := openAt(t, redis.Config{Addrs: []string{address(t)}})
	s.SetSpace(newSpace())
	const burst, tenth = 1 << 31, 1 << 31 / 10 // counted in millionths of a unit, so that 2.1 bursts are more than 2^52
	charges := []limit.Charge{{Cost: 1, Limit: build(t, limit.Limit{ID: "b", MaxCost: burst, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: 1, Burst: burst, Period: time.Second}}})}}
	charge := func(units int64) *limit.Receipt {
		r, err := charged(t, s, charges, units, noon)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	giveBack := func(r *limit.Receipt) {
		t.Helper()
		if back, err := s.Settle(t.Context(), r, nil, noon); err != nil || back.Returned[0] != r.Entries()[0].Units {
			t.Fatalf("refund: %+v, %v; want all %d units", back, err, r.Entries()[0].Units)
		}
	}
	giveBack(charge(burst))
	giveBack(charge(burst))
	first, second := charge(tenth), charge(tenth)
	giveBack(first)
	giveBack(second)
	if got := usedUnits(t, s, charges, noon); got[0] != 0 {
		t.Errorf("%d units are used, want 0", got[0])
	}
}

// Guarantees that a pack that cannot be read refuses a refund as it refuses a decision, and nothing is given back. A
// pack of another version stays as it is.
func TestRefundToAnUnreadablePack(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	charges := largeLimits(t)
	const key = "{rl:t4:acme,}"
	for name, tt := range map[string]struct {
		spoil func(pack string) string
		stays bool
	}{
		"an earlier version":    {func(p string) string { return "SLU1" + p[4:] }, true},
		"a later version":       {func(string) string { return "SLU9" }, true},
		"a text":                {func(string) string { return "42" }, false},
		"cut short":             {func(p string) string { return p[:len(p)-5] }, false},
		"bytes behind it":       {func(p string) string { return p + "abc" }, false},
		"more tiers than bytes": {func(p string) string { return p[:4] + "\xff\xff" + p[6:] }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := admin.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			r, err := charged(t, s, charges, 3, noon)
			if err != nil {
				t.Fatal(err)
			}
			good, err := admin.Get(t.Context(), key).Result()
			if err != nil {
				t.Fatal(err)
			}
			bad := tt.spoil(good)
			if err := admin.Set(t.Context(), key, bad, time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
			_, err = s.Settle(t.Context(), r, nil, noon)
			if !errors.Is(err, limit.ErrUnreadable) || !contains(err, key) || tt.stays && !contains(err, bad[:4]) {
				t.Errorf("%v; want ErrUnreadable, which names the key and the version", err)
			}
			if after := admin.Get(t.Context(), key).Val(); after != bad {
				t.Errorf("the refused refund has changed the pack to %q", after)
			}
			if ttl := admin.PTTL(t.Context(), key).Val(); (ttl > time.Minute) != tt.stays {
				t.Errorf("it is there for %s; want more than a minute: %t", ttl, tt.stays)
			}
			if err := admin.Set(t.Context(), key, good, time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
			if back, err := s.Settle(t.Context(), r, nil, noon); err != nil || back.Returned[0] != 3 || back.Repeated {
				t.Errorf("when the pack can be read: %+v, %v; want 3 units", back, err)
			}
		})
	}
}

// Guarantees that a refund of units that were spent from a lease gives back at most the units that the store still
// holds for the lease. Units that the caller has already given back are not given back again.
func TestRefundOfALeaseGivenBack(t *testing.T) {
	s := openAt(t, redis.Config{Addrs: []string{address(t)}})
	s.SetSpace(newSpace())
	charges := tenUnits(t)
	charges[0].Cost = 3
	var d limit.Decision
	ask := func(ahead limit.LeaseRequest) {
		t.Helper()
		req := &limit.Request{Owner: acme, Charges: charges, Leases: []limit.LeaseRequest{ahead}}
		if err := s.Decide(t.Context(), req, noon, &d); err != nil || !d.Allowed {
			t.Fatalf("allowed %t, %v", d.Allowed, err)
		}
	}
	ask(limit.LeaseRequest{Need: 3, Least: 5})
	r, g := d.Receipt(), d.Lease(0)
	if g.Units != 5 {
		t.Fatalf("%+v, want 5 units", g)
	}
	ask(limit.LeaseRequest{Correction: -7, CorrectionAt: g.At}) // one of the eight units is still held
	if back, err := s.Settle(t.Context(), r, nil, noon); err != nil || back.Returned[0] != 1 {
		t.Errorf("%+v, %v; want 1 unit", back, err)
	}
	if got := usedUnits(t, s, charges[:1], noon); got[0] != 0 {
		t.Errorf("%d units are used, want 0", got[0])
	}
}

// Guarantees that the receipt of a bucket that does not exist any more gives nothing back to a newer bucket in its
// place, if the newer one can tell: if the receipt notes a refund that the newer bucket does not know of, or after the
// clock has stepped back. Otherwise it cannot tell. See "refunds after a loss admit again no more than the loss does"
// in limittest.
func TestRefundToACounterMadeAnew(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	charges := []limit.Charge{{Cost: 1, Limit: build(t, limit.Limit{ID: "b", MaxCost: 10, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: 1, Burst: 10, Period: time.Second}}})}}
	charge := func(units int64, after time.Duration) *limit.Receipt {
		r, err := charged(t, s, charges, units, noon.Add(after))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, refund := range map[string]bool{"the clock stepped back": false, "it was refunded to": true} {
		again := time.Duration(0)
		if refund {
			if _, err := s.Settle(t.Context(), charge(3, 0), nil, noon); err != nil {
				t.Fatal(err)
			}
		} else {
			again = -2 * time.Second
		}
		r := charge(3, 0)
		if err := admin.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		charge(3, again)
		if back, err := s.Settle(t.Context(), r, nil, noon.Add(again)); err != nil || back.Returned[0] != 0 {
			t.Errorf("%s: %+v, %v; want nothing", name, back, err)
		}
		if got := usedUnits(t, s, charges, noon.Add(again)); got[0] != 3 {
			t.Errorf("%s: %d units are used, want 3", name, got[0])
		}
		if err := admin.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// Guarantees that the receipt of a request of hundreds of limits is refunded in one script call.
func TestRefundOfManyLimits(t *testing.T) {
	s := openAt(t, redis.Config{Addrs: []string{address(t)}})
	s.SetSpace(newSpace())
	var charges []limit.Charge
	for i := range 400 {
		l := limit.Limit{ID: fmt.Sprint("l", i), Per: "subject",
			Tiers: []limit.Tier{{Algorithm: limit.SlidingLog, Threshold: 10, Period: time.Hour}}}
		charges = append(charges, limit.Charge{Limit: build(t, l), Value: limit.ValueOf("alice"), Cost: 1})
	}
	r, err := charged(t, s, charges, 2, noon)
	if err != nil {
		t.Fatal(err)
	}
	back, err := s.Settle(t.Context(), r, r.Without(1), noon)
	if err != nil || len(back.Returned) != len(charges) {
		t.Fatalf("%d units, %v", len(back.Returned), err)
	}
	for i, n := range usedUnits(t, s, charges, noon) {
		if back.Returned[i] != 1 || n != 1 {
			t.Errorf("limit %d gives back %d and has counted %d, want 1 and 1", i, back.Returned[i], n)
		}
	}
}

// FuzzPack guarantees that a refund is an error that changes nothing, or changes only the records of its entries,
// whatever values are at the keys.
func FuzzPack(f *testing.F) {
	server := redistest.Start(f)
	admin := server.Client(f)
	s := openAt(f, redis.Config{Addrs: []string{server.Addr}})
	const key = "{rl:t4:acme,}"
	bucket := func(id string, a limit.Algorithm) limit.Charge {
		return limit.Charge{Cost: 1, Limit: build(f,
			limit.Limit{ID: id, Tiers: []limit.Tier{{Algorithm: a, Threshold: 10, Period: time.Second}}})}
	}
	refunded := []limit.Charge{bucket("a", limit.TokenBucket), bucket("b", limit.SlidingWindow),
		bucket("c", limit.LeakyBucket), bucket("d", limit.SlidingLog)}
	other := bucket("other", limit.FixedWindow)
	decide := func(tb testing.TB, charges []limit.Charge, ahead []limit.LeaseRequest) *limit.Receipt {
		var d limit.Decision
		if err := s.Decide(context.Background(), &limit.Request{Owner: acme, Charges: charges, Leases: ahead}, noon,
			&d); err != nil || !d.Allowed {
			tb.Fatalf("allowed %t, %v", d.Allowed, err)
		}
		return d.Receipt()
	}
	pack := func(tb testing.TB) string {
		value, err := admin.Get(context.Background(), key).Result()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
	look := func(tb testing.TB) string { // a peek at a limit that is not refunded
		var d limit.Decision
		if err := s.Peek(tb.Context(), &limit.Request{Owner: acme, Charges: []limit.Charge{other}}, noon,
			&d); err != nil {
			return "unreadable"
		}
		return render(&d)
	}
	receipts := []*limit.Receipt{decide(f, refunded, nil)}
	f.Add(pack(f), int64(1))
	flush := func(tb testing.TB) {
		if err := admin.FlushAll(context.Background()).Err(); err != nil {
			tb.Fatal(err)
		}
	}
	flush(f)
	receipts = append(receipts, decide(f, refunded, []limit.LeaseRequest{{Need: 1, Least: 3}, {Need: 1}, {Need: 1},
		{Need: 1, Least: 1, Life: 1000}}))
	f.Add(pack(f), int64(0))
	if _, err := s.Settle(context.Background(), decide(f, refunded[:1], nil), nil, noon); err != nil {
		f.Fatal(err)
	}
	decide(f, []limit.Charge{other}, nil) // moves the others from the front of the pack
	f.Add(pack(f), int64(0))
	f.Add("SLU7\xff\xff", int64(0))
	f.Add("", int64(3))
	f.Fuzz(func(t *testing.T, pack string, units int64) {
		if units < 0 || units > limit.MaxUnits {
			return
		}
		for _, r := range receipts {
			flush(t)
			decide(t, refunded, nil) // adds an entry of a log
			if err := admin.Set(t.Context(), key, pack, time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
			before := look(t)
			back, err := s.Settle(t.Context(), r, r.Without(units), noon.Add(time.Microsecond))
			after, gone := admin.Get(t.Context(), key).Result()
			if gone != nil {
				t.Fatal(gone)
			}
			if err != nil {
				if after != pack {
					t.Errorf("pack %q: the refund fails, but has changed the pack to %q", pack, after)
				}
				continue
			}
			for i, n := range back.Returned {
				if n < 0 || n > r.Entries()[i].Units {
					t.Errorf("pack %q: entry %d of %d units gives back %d", pack, i, r.Entries()[i].Units, n)
				}
			}
			if len(after) < len(pack) || len(after) > len(pack)+64 {
				t.Errorf("pack %q: %d bytes become %d", pack, len(pack), len(after))
			}
			if got := look(t); got != before {
				t.Errorf("pack %q: before the refund another limit's counter is %s, after it %s", pack, before, got)
			}
		}
	})
}
