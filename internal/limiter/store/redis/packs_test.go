package redis_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Guarantees that a bucket that was never used is full, also if it takes longer to fill than the time since 1970.
func TestUnusedBucketIsFull(t *testing.T) {
	s := openAt(t, redis.Config{Addrs: []string{address(t)}})
	s.SetSpace(newSpace())
	prepaid := build(t, limit.Limit{ID: "prepaid", MaxCost: 40_000, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: 1, Period: 24 * time.Hour, Burst: 40_000}}})
	beside := build(t, limit.Limit{ID: "beside", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Hour}}})
	shadow := build(t, limit.Limit{ID: "shadow", Mode: limit.Shadow, MaxCost: 40_000, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: 1, Period: 24 * time.Hour, Burst: 40_000}}})
	decide := func(charges ...limit.Charge) *limit.Decision {
		d := new(limit.Decision)
		if err := s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: charges}, noon, d); err != nil ||
			!d.Allowed {
			t.Fatalf("allowed %t, %v", d.Allowed, err)
		}
		return d
	}
	left := int64(40_000)
	for _, cost := range []int64{30_000, 1, 9_999} {
		left -= cost
		if d := decide(limit.Charge{Limit: prepaid, Cost: cost}); d.Results[0].Remaining() != left {
			t.Errorf("after a charge of %d there are %d left, want %d", cost, d.Results[0].Remaining(), left)
		}
	}
	// The record of a shadow limit that has not admitted is in the pack, and was never used.
	for _, cost := range []int64{40_001, 39_999, 1} {
		d := decide(limit.Charge{Limit: beside, Cost: 1}, limit.Charge{Limit: shadow, Cost: cost})
		if want := cost <= 40_000; d.Results[1].Admits != want {
			t.Errorf("a shadow that is full admits %d: %t, want %t", cost, d.Results[1].Admits, want)
		}
		if left := d.Results[1].Remaining(); cost == 1 && left != 0 {
			t.Errorf("a shadow limit that is used up has %d units left, want 0", left)
		}
	}
}

// Guarantees that units leased at the very µs at which the previous slot ends stay leased until the end of their own
// slot: the bucket does not refill in their place.
func TestLeaseAtTheEndOfASlot(t *testing.T) {
	s := openAt(t, redis.Config{Addrs: []string{address(t)}})
	s.SetSpace(newSpace())
	charges := []limit.Charge{{Cost: 1, Limit: build(t, limit.Limit{ID: "ten", Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: 10, Period: time.Second}}})}}
	ends := time.Duration(0)
	for _, units := range []int64{1, 5, 2, 6} { // the bucket is almost full when a slot of few units ends
		g, err := lease(t, s, charges, ends, units)
		if err != nil || g.Units != units {
			t.Fatalf("a lease at %s: %+v, %v; want %d units", ends, g, err, units)
		}
		last := ends
		if ends = time.UnixMicro(g.Until).Sub(noon); ends <= last {
			t.Fatalf("a lease at %s ends at %s, want the end of the slot", last, ends)
		}
		var d limit.Decision
		req := &limit.Request{Owner: acme, Charges: charges}
		if err := s.Peek(t.Context(), req, noon.Add(ends-time.Microsecond), &d); err != nil {
			t.Fatal(err)
		}
		if left := d.Results[0].Remaining(); left > 10-units {
			t.Errorf("a µs before the slot ends, %d of 10 units remain, and %d are leased; want at most 10 together",
				left, units)
		}
	}
}

// Guarantees that a pack drops the records of limits that requests do not name as soon as they can influence no
// decision, and not before, and that it does not grow forever.
func TestRecordsAreDropped(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	hour := func(i int) *limit.Limit {
		return build(t, limit.Limit{ID: fmt.Sprint("l", i), MaxCost: 10, Tiers: []limit.Tier{
			{Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Hour},
			{Algorithm: limit.TokenBucket, Threshold: 10, Period: 2 * time.Hour}}})
	}
	size := func() int64 {
		n, err := admin.StrLen(t.Context(), "{rl:t4:acme,}").Result()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	decide := func(at time.Time, limits ...*limit.Limit) bool {
		req := &limit.Request{Owner: acme}
		for _, l := range limits {
			req.Charges = append(req.Charges, limit.Charge{Limit: l, Cost: 10})
		}
		var d limit.Decision
		if err := s.Decide(t.Context(), req, at, &d); err != nil {
			t.Fatal(err)
		}
		return d.Allowed
	}
	var all []*limit.Limit
	for i := range 200 {
		all = append(all, hour(i))
	}
	if !decide(noon, all...) {
		t.Fatal("denied")
	}
	other := hour(1000)
	if !decide(noon, other) || size() < 200*2*(17+24) {
		t.Fatalf("the pack has %d bytes, too few for the records of 201 limits", size())
	}
	for _, at := range []time.Duration{time.Minute, 59 * time.Minute, 119 * time.Minute} {
		for _, l := range all {
			if decide(noon.Add(at), l) {
				t.Fatalf("%s later the record of %s is forgotten, want it kept", at, l.ID)
			}
		}
	}
	if !decide(noon.Add(9*time.Hour), other) || size() > 500 {
		t.Errorf("9 hours later the pack has %d bytes after a charge, want only the record of the charged limit",
			size())
	}
}

// Guarantees that a window is remembered for as long as it may overlap the windows of a limit whose align has changed:
// three periods from its start, however early the expiry of its pack was set.
func TestWindowsOutliveAChangeOfAlign(t *testing.T) {
	s := openAt(t, redis.Config{Addrs: []string{address(t)}})
	s.SetSpace(newSpace())
	l := limit.Limit{ID: "hourly", MaxCost: 10, Tiers: []limit.Tier{
		{Algorithm: limit.SlidingWindow, Threshold: 10, Period: time.Hour}}}
	clock := build(t, l)
	l.AlignOwner = true
	aligned := build(t, l)
	var others []*limit.Limit // each of them moves the records of all limits before it
	for i := range 2 {
		others = append(others, build(t, limit.Limit{ID: fmt.Sprint("other-", i), Tiers: []limit.Tier{
			{Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Second}}}))
	}
	owner := limit.Owner{Kind: limit.Tenant}
	for i := 0; ; i++ { // until the windows begin at about half past
		owner.Name = fmt.Sprint("tenant-", i)
		if at := aligned.Tiers[0].Params(owner).Offset / time.Minute.Microseconds(); at >= 25 && at < 35 {
			break
		}
	}
	decide := func(after time.Duration, l *limit.Limit, cost int64) *limit.Result {
		var d limit.Decision
		req := &limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: l, Cost: cost}}}
		if err := s.Decide(t.Context(), req, noon.Add(after), &d); err != nil || !d.Allowed {
			t.Fatalf("%s after noon: allowed %t, %v", after, d.Allowed, err)
		}
		return &d.Results[0]
	}
	decide(-10*time.Hour, clock, 1)
	decide(0, clock, 1) // sets the expiry
	decide(2*time.Hour+59*time.Minute, clock, 9)
	decide(3*time.Hour, others[0], 1)
	decide(4*time.Hour+2*time.Minute, others[1], 1)
	if used := decide(4*time.Hour+2*time.Minute, aligned, 1).Used(); used < 2 {
		t.Errorf("63 minutes after 9 units, in the next window on its own grid, the limit has used %d", used)
	}
}

// Guarantees that a pack has a largest size, that the error says so and charges nothing, and that the counters in the
// pack stay.
func TestPackIsFull(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("one goroutine, and the race detector takes half a minute for its 16,400 tiers")
	}
	s := openAt(t, redis.Config{Addrs: []string{address(t)}})
	s.SetSpace(newSpace())
	limits := func(from, n int) *limit.Request {
		req := &limit.Request{Owner: acme}
		for i := range n {
			l := limit.Limit{ID: fmt.Sprint("l", from+i)}
			for j := range limit.MaxTiers {
				l.Tiers = append(l.Tiers, limit.Tier{
					Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Duration(1+j) * time.Hour})
			}
			req.Charges = append(req.Charges, limit.Charge{Limit: build(t, l), Cost: 1})
		}
		return req
	}
	decide := func(req *limit.Request) (*limit.Decision, error) {
		d := new(limit.Decision)
		err := s.Decide(t.Context(), req, noon, d)
		return d, err
	}
	largest, one, more := limits(0, 1024), limits(0, 1), limits(3000, 1)
	for _, req := range []*limit.Request{largest, one, limits(2000, 1), largest} {
		if d, err := decide(req); err != nil || !d.Allowed {
			t.Fatalf("%d limits: allowed %t, %v", len(req.Charges), d.Allowed, err)
		}
	}
	d, err := decide(more)
	if !errors.Is(err, limit.ErrFull) || d.Allowed || !contains(err, "acme") || !contains(err, "16384 records") {
		t.Errorf("a limit beside 1,025: allowed %t, %v; want limit.ErrFull, with owner and bound", d.Allowed, err)
	}
	if err := s.Peek(t.Context(), largest, noon, d); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(d.Results, func(r limit.Result) bool { return r.Used() < 2 }) {
		t.Error("after the error, a counter that was charged twice has fewer than 2 units used")
	}
}

// Guarantees that every valid request fits into one script call, also with leases: it is decided, or its time limit
// ends.
func TestLargestRequests(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("one goroutine, and the race detector takes half a minute for its 16,400 tiers")
	}
	s := openAt(t, redis.Config{Addrs: []string{address(t)}})
	kinds := []struct {
		algorithm limit.Algorithm
		per       string
	}{{limit.SlidingLog, "subject"}, {limit.TokenBucket, limit.PerTenant}} // the most keys, and the most numbers
	if !testing.Short() {
		kinds = append(kinds, kinds[0], kinds[1])
		kinds[2].algorithm, kinds[3].algorithm = limit.FixedWindow, limit.Quota
	}
	for _, kind := range kinds {
		a, per := kind.algorithm, kind.per
		t.Run(fmt.Sprintf("%s per %s", a, per), func(t *testing.T) {
			s.SetSpace(newSpace())
			req := &limit.Request{Owner: acme}
			for i := range 1024 {
				l := limit.Limit{ID: fmt.Sprint("l", i), Per: per}
				for j := range limit.MaxTiers {
					tier := limit.Tier{Algorithm: a, Threshold: 10, Period: time.Duration(1+j) * time.Hour}
					if a == limit.Quota {
						tier.Period, tier.Calendar = 0, &limit.Calendar{Every: limit.Month, Location: time.UTC,
							AnchorDay: 1 + j}
					}
					l.Tiers = append(l.Tiers, tier)
				}
				c := limit.Charge{Limit: build(t, l), Cost: 1}
				if per != limit.PerTenant {
					c.Value = limit.ValueOf("bob")
				}
				req.Charges = append(req.Charges, c)
				for range limit.MaxTiers {
					req.Leases = append(req.Leases, limit.LeaseRequest{Need: 1, Least: 2})
				}
			}
			var d limit.Decision
			if err := s.Decide(t.Context(), req, noon, &d); err != nil || !d.Allowed {
				t.Fatalf("allowed %t, %v", d.Allowed, err)
			}
			leased := int64(0)
			for i := range d.Results {
				leased += d.Lease(i).Units
			}
			if want := int64(2 * len(d.Results)); leased != want {
				t.Errorf("%d units are leased, want %d", leased, want)
			}
			req.Leases = nil
			if err := s.Peek(t.Context(), req, noon, &d); err != nil {
				t.Errorf("a peek: %v", err)
			}
			for i := range d.Results {
				if r := &d.Results[i]; r.Used() != 3 {
					t.Fatalf("result %d has used %d, want 3", i, r.Used())
				}
			}
		})
	}
}

// Guarantees that a shadow limit that refuses writes nothing, also if one of its tiers admits: the value of a request
// that is not counted takes none of the counters that a limit has for its values.
func TestRefusedShadowWritesNothing(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redis.Config{Addrs: []string{server.Addr}})
	l := build(t, limit.Limit{ID: "tried", Mode: limit.Shadow, Per: "subject", MaxCost: 5, Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Minute},
		{Algorithm: limit.FixedWindow, Threshold: 4, Period: time.Second},
	}})
	d := new(limit.Decision)
	req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"}, Charges: []limit.Charge{
		{Limit: l, Value: limit.Value{Kind: limit.ValueIs, Text: "ann"}, Cost: 5}}}
	if err := s.Decide(t.Context(), req, time.Now(), d); err != nil || !d.Allowed || d.Results[1].Admits {
		t.Fatalf("allowed %t, %v; want allowed, and the second tier of the shadow limit refuses", d.Allowed, err)
	}
	if keys, err := server.Client(t).Keys(t.Context(), "*").Result(); err != nil || len(keys) > 0 {
		t.Errorf("keys %q, %v; want none", keys, err)
	}
}
