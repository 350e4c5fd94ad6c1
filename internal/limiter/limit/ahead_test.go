package limit_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// leaseHolder takes leases of one counter, and keeps the state of that counter.
type leaseHolder struct {
	testing.TB
	l     *limit.Limit
	owner limit.Owner
	state limit.State
}

func newLeaseHolder(tb testing.TB, t limit.Tier) *leaseHolder {
	tb.Helper()
	return &leaseHolder{TB: tb, l: oneTier(tb, "l", t), owner: limit.Owner{Kind: limit.Tenant, Name: "acme"}}
}

// change gives the limit another threshold and burst. The counter's state stays.
func (k *leaseHolder) change(threshold, burst int64) {
	k.Helper()
	t := k.l.Tiers[0]
	k.l = oneTier(k, "l", limit.Tier{Algorithm: t.Algorithm, Period: t.Period, Threshold: threshold, Burst: burst,
		Buckets: t.Buckets, Calendar: t.Calendar})
}

func (k *leaseHolder) decide(now, cost int64, commit bool, ahead ...limit.LeaseRequest) *limit.Decision {
	k.Helper()
	req := &limit.Request{Owner: k.owner, Charges: []limit.Charge{{Limit: k.l, Cost: cost}}, Leases: ahead}
	if err := req.Check(); err != nil {
		k.Fatal(err)
	}
	d := new(limit.Decision)
	e := d.BeginChecked(req, now)
	e.Evaluate(0, &k.state, commit)
	e.Settle()
	if commit && d.Charges(0) {
		e.Charge(0, &k.state)
	}
	return d
}

// lease asks for units beyond a need, and fails the test unless it gets the lease want.
func (k *leaseHolder) lease(now int64, a limit.LeaseRequest, want limit.Lease) *limit.Decision {
	k.Helper()
	a.Share, a.Plenty = limit.ShareOne, limit.MaxUnits // so that the grant is a.Most
	d := k.decide(now, max(a.Need, 1), true, a)
	if got := d.Lease(0); !d.Allowed || got != want {
		k.Fatalf("at %d, lease request %+v: allowed %t, lease %+v; want it allowed, with lease %+v", now, a, d.Allowed,
			got, want)
	}
	return d
}

// wantRemaining fails the test unless that many units remain at the time.
func (k *leaseHolder) wantRemaining(now, want int64) {
	k.Helper()
	if got := k.decide(now, 1, false).Results[0].Remaining(); got != want {
		k.Errorf("at %d µs, %d units remain, want %d; state %+v", now, got, want, k.state)
	}
}

// spend charges units without a lease.
func (k *leaseHolder) spend(now, cost int64) *limit.Decision {
	k.Helper()
	d := k.decide(now, cost, true)
	if !d.Allowed {
		k.Fatalf("at %d µs a cost of %d is denied, want it allowed; state %+v", now, cost, k.state)
	}
	return d
}

// correct applies a correction of that many units, which were charged at a given time. The request that carries the
// correction needs no units.
func (k *leaseHolder) correct(now, units, at int64) {
	k.Helper()
	if d := k.decide(now, 1, true, limit.LeaseRequest{Correction: units, CorrectionAt: at}); !d.Allowed {
		k.Fatalf("at %d µs a request that needs nothing is denied, want it allowed", now)
	}
}

const (
	second = int64(1_000_000)
	minute = 60 * second
	noon   = 1_772_452_800 * second // 2026-03-02T12:00:00Z
)

var (
	window  = limit.Tier{Algorithm: limit.FixedWindow, Threshold: 100, Period: 10 * time.Second}
	sliding = limit.Tier{Algorithm: limit.SlidingWindow, Threshold: 100, Period: 10 * time.Second}
	buckets = limit.Tier{Algorithm: limit.SlidingBuckets, Threshold: 10, Period: 10 * time.Second, Buckets: 5}
	logged  = limit.Tier{Algorithm: limit.SlidingLog, Threshold: 10, Period: 10 * time.Second}
	// full after 2 s, with slots of 1 s
	bucket = limit.Tier{Algorithm: limit.TokenBucket, Threshold: 10, Burst: 20, Period: time.Second}
	daily  = limit.Tier{Algorithm: limit.Quota, Threshold: 100, Calendar: &limit.Calendar{Every: limit.Day,
		Location: time.UTC}}
	leaky = limit.Tier{Algorithm: limit.LeakyBucket, Threshold: 10, Period: time.Second}
)

// Guarantees that a request that needs nothing is admitted by a full counter, and by one that is below zero, unless its
// cost is above the capacity.
func TestNeedOfNothing(t *testing.T) {
	for _, tier := range []limit.Tier{window, sliding, daily, logged, buckets, bucket} {
		k := newLeaseHolder(t, tier)
		capacity := k.l.Tiers[0].Capacity()
		k.spend(noon, capacity)
		k.correct(noon, 3, noon)
		d := k.decide(noon, capacity, true, limit.LeaseRequest{Least: 5})
		if r := &d.Results[0]; !d.Allowed || !r.Admits || r.Charged != 0 || d.Lease(0).Units != 0 ||
			r.Remaining() != 0 {
			t.Errorf("%s: a request that needs nothing of a full counter: allowed %t, charged %d, lease %+v; want "+
				"it allowed, with nothing charged or leased", tier.Algorithm, d.Allowed, r.Charged, d.Lease(0))
		}
		if len(d.Receipt().Entries()) != 0 {
			t.Errorf("%s: nothing was charged, and the receipt has the entries %+v, want none", tier.Algorithm,
				d.Receipt().Entries())
		}
		if d := k.decide(noon, capacity+1, true, limit.LeaseRequest{}); d.Allowed || !d.Never {
			t.Errorf("%s: a cost above the capacity that needs nothing: allowed %t, never %t; want it never allowed",
				tier.Algorithm, d.Allowed, d.Never)
		}
	}
}

// Guarantees that leased units of a window end with it, and do not count in the next one.
func TestLeaseOfAWindow(t *testing.T) {
	for _, tt := range []struct {
		tier limit.Tier
		end  int64
	}{{window, noon + 10*second}, {daily, noon + 12*60*minute}} {
		k := newLeaseHolder(t, tt.tier)
		at := tt.end - 10*second
		if tt.tier.Algorithm == limit.Quota {
			at = noon - 12*60*minute
		}
		k.lease(noon+3*second, limit.LeaseRequest{Need: 10, Most: 40}, limit.Lease{Units: 40, Upfront: 40,
			Until: tt.end, At: at})
		k.wantRemaining(tt.end-1, 50)
		k.wantRemaining(tt.end, 100)
		k.correct(tt.end-1, -15, at)
		k.wantRemaining(tt.end-1, 65)
		k.correct(tt.end, -15, at) // the window has ended
		k.wantRemaining(tt.end, 100)
		k.spend(tt.end, 20)
		k.correct(tt.end, -15, at)
		k.wantRemaining(tt.end, 80)
	}
}

// Guarantees how leases and ramps of a sliding window count. 80 units were spent in the previous window. They weigh 60
// after a quarter of this window, and 50 when the ramp ends, after three eighths.
func TestLeaseOfASlidingWindow(t *testing.T) {
	start := func() *leaseHolder {
		k := newLeaseHolder(t, sliding)
		k.spend(noon-second, 80)
		return k
	}
	const now, ramp, end = noon + 2_500_000, noon + 3_750_000, noon + 10*second
	k := start()
	k.lease(now, limit.LeaseRequest{Most: 99}, limit.Lease{Units: 40, Upfront: 40, Until: end, At: noon})
	k.wantRemaining(now, 0)
	k.wantRemaining(ramp, 10) // only the weight of the previous window decreases
	k = start()
	k.lease(now, limit.LeaseRequest{Most: 99, Ramp: true}, limit.Lease{Units: 50, Upfront: 40, Until: ramp, At: noon})
	k.wantRemaining(ramp, 0)
	k.wantRemaining(end, 50) // the next window, in which they are the units of the previous one
	k = start()
	k.lease(now, limit.LeaseRequest{Need: 30, Most: 99, Ramp: true}, limit.Lease{Units: 20, Upfront: 10, Until: ramp,
		At: noon})
	// all units that become free by then are leased
	k.lease(now+1, limit.LeaseRequest{Most: 99, Ramp: true}, limit.Lease{Until: ramp, At: noon})
	k.lease(ramp, limit.LeaseRequest{Most: 99, Ramp: true}, limit.Lease{Units: 10, Until: noon + 5*second, At: noon})
	k = start()
	k.lease(now, limit.LeaseRequest{Most: 25, Ramp: true}, limit.Lease{Units: 25, Upfront: 25, Until: ramp, At: noon})
	k.correct(end-1, -5, noon)
	k.wantRemaining(end-1, 80-1) // a µs before the end, the 80 units of the previous window still weigh 1
	k.correct(end, -5, noon)
	k.wantRemaining(end, 100-15)
	k.correct(end+10*second, -5, noon) // the window ended long ago
	k.wantRemaining(end+10*second, 100)
}

// Guarantees that the last ramp of a window ends with it, however long its slot is.
func TestRampEndsWithTheWindow(t *testing.T) {
	// eight slots of 1.125 ms each
	k := newLeaseHolder(t, limit.Tier{Algorithm: limit.SlidingWindow, Threshold: 100, Period: 9 * time.Millisecond})
	k.spend(noon-1, 100)
	start := noon - noon%9000
	for at := start + 9000; at < start+18_000; at += 100 {
		d := k.decide(at, 1, false, limit.LeaseRequest{Ample: 99, Share: 1024, Ramp: true})
		if g := d.Lease(0); g.Until <= at || g.Until > start+18_000 || g.Until-at > 1125 {
			t.Fatalf("a ramp that starts %d µs into the window ends %d µs into it; want it to end later than it "+
				"starts, within 1125 µs, and with the window of 9000 µs", at-start-9000, g.Until-start-9000)
		}
	}
}

// Guarantees with which time leased units are stamped, and the need that is charged with them: in a sliding log with
// the end of the lease, and in sliding buckets with the bucket that contains this end.
func TestLeaseOfStamps(t *testing.T) {
	k := newLeaseHolder(t, logged)
	k.lease(noon, limit.LeaseRequest{Need: 2, Most: 4, Life: second}, limit.Lease{Units: 4, Upfront: 4, Until: noon +
		second, At: noon + second})
	k.wantRemaining(noon, 4)
	k.wantRemaining(noon+11*second-1, 4)
	k.wantRemaining(noon+11*second, 10)
	k.correct(noon+10*second, -3, noon+second) // units may be given back for as long as they count
	k.wantRemaining(noon+10*second, 7)
	k.correct(noon+10*second, -3, noon+second+1)
	k.wantRemaining(noon+10*second, 7)
	k.correct(noon+11*second, -3, noon+second)
	k.wantRemaining(noon+11*second, 10)

	k = newLeaseHolder(t, buckets)
	k.lease(noon+second, limit.LeaseRequest{Need: 2, Most: 4, Life: 3_500_000}, limit.Lease{Units: 4, Upfront: 4,
		Until: noon + 4_500_000, At: noon + 4*second})
	k.wantRemaining(noon+second, 4)
	k.wantRemaining(noon+16*second-1, 4)
	k.wantRemaining(noon+16*second, 10)
	k.correct(noon+16*second-1, -3, noon+4*second)
	k.wantRemaining(noon+16*second-1, 7)

	for _, tier := range []limit.Tier{logged, buckets} { // the units of two leases that end at one time have one stamp
		k = newLeaseHolder(t, tier)
		at := noon + 2*second
		k.lease(noon, limit.LeaseRequest{Most: 3, Life: 2 * second}, limit.Lease{Units: 3, Upfront: 3, Until: at,
			At: at})
		k.lease(noon+second, limit.LeaseRequest{Most: 3, Life: second}, limit.Lease{Units: 3, Upfront: 3, Until: at,
			At: at})
		k.correct(noon+second, -2, at)
		k.wantRemaining(noon+second, 6)
		k.correct(noon+second, -4, at)
		k.wantRemaining(noon+second, 10)
		if len(k.state.Log().Entries) != 0 {
			t.Errorf("%s: after all units were given back the counter has the entries %v, want none", tier.Algorithm,
				k.state.Log().Entries)
		}
	}
}

// slotOf returns the beginning and the end of acme's slot at noon.
func slotOf(k *leaseHolder) (start, end int64) {
	end = k.l.Tiers[0].LeaseEnd(k.owner.Name, noon)
	return end - k.l.Tiers[0].Params(k.owner).SlotLength, end
}

// Guarantees that leased units are held until the end of their slot: of a bucket of 20, refilled by 10 a second, 15 are
// leased. Until the slot ends, the bucket is full at 5.
func TestLeaseOfABucket(t *testing.T) {
	k := newLeaseHolder(t, bucket)
	start, end := slotOf(k)
	if end-start != second {
		t.Fatalf("the slot is %d µs long, want 1,000,000 (1 s)", end-start)
	}
	k.lease(start, limit.LeaseRequest{Most: 15}, limit.Lease{Units: 15, Upfront: 15, Until: end, At: end})
	k.wantRemaining(start, 5)
	k.wantRemaining(end-1, 5)
	k.wantRemaining(end, 5)
	k.wantRemaining(end+second/2, 10)
	k.wantRemaining(end+2*second, 20)
	k.spend(start+second/10, 5)
	k.wantRemaining(start+second/5, 1)
	k.wantRemaining(start+second*3/5, 5)
	k.wantRemaining(end, 5)
	// 8 of 15 units are given back. Until the slot ends, the bucket is full at 13.
	k.correct(start+second/5, -8, end)
	k.wantRemaining(start+second/5, 9)
	k.wantRemaining(end, 13) // 20 less the 7 units that are still held
	k.wantRemaining(end+second*7/10, 20)
}

// Guarantees that leased units which are given back after the end of their slot are added up to what the bucket would
// hold if they had never been leased.
func TestLateReturnToABucket(t *testing.T) {
	for _, tt := range []struct {
		name  string
		do    func(k *leaseHolder, end int64)
		after int64 // since the end of the slot
		want  int64
	}{
		{"at once", func(k *leaseHolder, end int64) { k.correct(end, -7, end) }, 0, 12},
		{"in two parts", func(k *leaseHolder, end int64) { k.correct(end, -3, end); k.correct(end, -4, end) }, 0, 12},
		{"no more than was held", func(k *leaseHolder, end int64) { k.correct(end, -18, end) }, 0, 20},
		{"no more than was held, in parts", func(k *leaseHolder, end int64) {
			k.correct(end, -8, end)
			k.correct(end, -8,
				end)
		}, 0, 20},
		{"twice all of it, once it was spent again", func(k *leaseHolder, end int64) {
			k.correct(end, -15, end)
			k.spend(end, 20)
			k.correct(end, -15, end)
		}, 0, 0},
		{"when a second's refill has come", func(k *leaseHolder, end int64) { k.correct(end+second/2, -7, end) },
			second / 2,
			17},
		{"when it is all but full", func(k *leaseHolder, end int64) {
			k.spend(end, 2)
			k.correct(end+999_999, -15,
				end)
		},
			second, 20},
		{"after it was full and spent again", func(k *leaseHolder, end int64) {
			k.wantRemaining(end+second*8/10, 13)
			k.spend(end+second*9/10, 14)
			k.correct(end+second*9/10, -7, end)
		}, second * 9 / 10, 6},
		{"a slot later", func(k *leaseHolder, end int64) { k.correct(end+second, -7, end) }, second, 15},
		{"of another slot", func(k *leaseHolder, end int64) {
			k.correct(end, -7, end-second)
			k.correct(end, -7,
				end+1)
		}, 0,
			5},
		{"beside new leases", func(k *leaseHolder, end int64) {
			k.lease(end, limit.LeaseRequest{Most: 5}, limit.Lease{Units: 5, Upfront: 5, Until: end + second,
				At: end + second})
			k.correct(end+second/10, -7, end)
		}, second / 10, 8},
		{"when new leases have been full", func(k *leaseHolder, end int64) {
			k.lease(end, limit.LeaseRequest{Most: 5}, limit.Lease{Units: 5, Upfront: 5, Until: end + second,
				At: end + second})
			k.wantRemaining(end+second*9/10, 9)
			k.spend(end+second*9/10, 9)
			k.correct(end+second*9/10, -10, end)
		}, second * 9 / 10, 6},
		{"beside what was refunded", func(k *leaseHolder, end int64) {
			r := k.spend(end, 5).Receipt()
			r.Entries()[0].GiveBack(&k.state, limit.MaxUnits, end)
			k.correct(end, -15, end)
		}, 0, 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := newLeaseHolder(t, bucket)
			start, end := slotOf(k)
			k.lease(start, limit.LeaseRequest{Most: 15}, limit.Lease{Units: 15, Upfront: 15, Until: end, At: end})
			tt.do(k, end)
			k.wantRemaining(end+tt.after, tt.want)
		})
	}
}

// Guarantees that a ramp leases the units that become free until the slot ends. The level is below zero until then.
func TestRampOfABucket(t *testing.T) {
	k := newLeaseHolder(t, bucket)
	start, end := slotOf(k)
	k.spend(start, 17)
	k.lease(start+second/5, limit.LeaseRequest{Need: 2, Most: 99, Ramp: true}, limit.Lease{Units: 11, Upfront: 3,
		Until: end, At: end})
	k.wantRemaining(start+second/5, 0)
	p := k.l.Tiers[0].Params(k.owner)
	if level := p.Full - k.state.TokenBucket().Missing; level != -8*p.Den {
		t.Errorf("the level of the bucket is %d, want %d", level, -8*p.Den)
	}
	k.lease(start+second/2, limit.LeaseRequest{Most: 99, Ramp: true}, limit.Lease{Until: end, At: end})
	if d := k.decide(start+second/2, 1, true); d.Allowed || d.RetryAt != end+second/10 {
		t.Errorf("denied until %d µs, want %d, a tenth of a second after the slot", d.RetryAt, end+second/10)
	}
	k.lease(end+second/2, limit.LeaseRequest{Most: 99, Ramp: true}, limit.Lease{Units: 10, Upfront: 5,
		Until: end + second, At: end + second})
}

// Guarantees that a cost that does not fit beside held units fits when they are no longer held, and that the denial
// names this time.
func TestRetryWhileUnitsAreHeld(t *testing.T) {
	k := newLeaseHolder(t, bucket)
	start, end := slotOf(k)
	k.lease(start, limit.LeaseRequest{Most: 15}, limit.Lease{Units: 15, Upfront: 15, Until: end, At: end})
	k.spend(start, 4) // 1 is left, and the bucket is full at 5
	for _, tt := range []struct{ cost, want int64 }{
		{2, start + second/10},
		{5, start + second*4/10},
		{6, end + second/10}, // without the lease it would be after half a second
		{20, end + second*15/10},
	} {
		d := k.decide(start, tt.cost, true)
		if d.Allowed || d.RetryAt != tt.want {
			t.Errorf("a cost of %d: allowed %t, RetryAt %d µs after the slot began; want a denial until %d", tt.cost,
				d.Allowed, d.RetryAt-start, tt.want-start)
		}
		if k.decide(tt.want-1, tt.cost, false).Allowed || !k.decide(tt.want, tt.cost, false).Allowed {
			t.Errorf("a cost of %d is admitted before %d, or denied at that time; want its first admission then",
				tt.cost, tt.want)
		}
	}
}

// Guarantees that FreshAt, from which on a store may forget a counter, is the time at which a bucket with held units is
// full. After the end of the slot this takes as long as the refill of all held units.
func TestFreshAtWhileUnitsAreHeld(t *testing.T) {
	skew := limit.MaxSkew.Microseconds()
	k := newLeaseHolder(t, bucket)
	start, end := slotOf(k)
	k.lease(start, limit.LeaseRequest{Most: 15}, limit.Lease{Units: 15, Upfront: 15, Until: end, At: end})
	tier := &k.l.Tiers[0]
	if got, want := tier.FreshAt(&k.state), end+15*second/10+skew; got != want {
		t.Errorf("15 of 20 units are held: FreshAt is %d µs after the end of the slot, want %d", got-end, want-end)
	}
	k.correct(start, -15, end)
	if got, want := tier.FreshAt(&k.state), start+skew; got != want {
		t.Errorf("all units are given back: FreshAt is %d µs after the beginning of the slot, want %d", got-start,
			want-start)
	}
	k = newLeaseHolder(t, logged)
	k.lease(noon, limit.LeaseRequest{Most: 4, Life: second}, limit.Lease{Units: 4, Upfront: 4, Until: noon + second,
		At: noon + second})
	if got, want := k.l.Tiers[0].FreshAt(&k.state), noon+11*second+skew; got != want {
		t.Errorf("a lease of a sliding log: FreshAt is %d µs after the lease, want %d", got-noon, want-noon)
	}
}

// Guarantees that units which were admitted without the store count at the time at which they were admitted, also above
// the limit, and that no number overflows.
func TestOwedUnits(t *testing.T) {
	for _, tt := range []struct {
		tier       limit.Tier
		at, now    int64
		owed, left int64 // units admitted without the store, and what remains now
	}{
		{window, noon, noon + second, 30, 70},
		{window, noon - 1, noon + second, 30, 100}, // in a window that has ended
		{window, noon, noon + second, 130, 0},
		{window, noon, noon + second, limit.MaxUnits, 0},
		{daily, noon - 60*minute, noon, 30, 70},
		{daily, noon - 13*60*minute, noon, 30, 100},
		{sliding, noon, noon + second, 30, 70},
		{sliding, noon - second, noon + 5*second, 30, 85}, // in the previous window, at half weight
		{sliding, noon - 11*second, noon + 5*second, 30, 100},
		{sliding, noon, noon + second, limit.MaxUnits, 0},
		{logged, noon, noon + second, 3, 7},
		{logged, noon - 9*second, noon + second - 1, 3, 7},
		{logged, noon - 9*second, noon + second, 3, 10},
		{logged, noon, noon, limit.MaxUnits, 0},
		{buckets, noon - 9*second, noon + second, 3, 7}, // in the bucket that began at -10 s and counts until 2 s
		{buckets, noon - 9*second, noon + 2*second, 3, 10},
		{bucket, noon, noon + second, 3, 17},
		{bucket, noon, noon + second, 30, 0},
		{bucket, noon - second, noon + second, 3, 20}, // has been refilled since
		{bucket, noon, noon, limit.MaxUnits, 0},
		{leaky, noon, noon, 1, 0},
		{leaky, noon - second, noon, 1, 10}, // has drained since
	} {
		k := newLeaseHolder(t, tt.tier)
		k.correct(tt.now, tt.owed, tt.at)
		k.wantRemaining(tt.now, tt.left)
		for range 3 {
			k.correct(tt.now, limit.MaxUnits, tt.now)
		}
		k.wantRemaining(tt.now, 0)
		k.wantRemaining(tt.now+5*60*minute*24*366, k.l.Tiers[0].Capacity()) // such units do not count for ever
	}
}

// Guarantees that a level below zero is refilled first: the bucket holds -10 after 30 units were admitted without the
// store.
func TestOwedByABucket(t *testing.T) {
	k := newLeaseHolder(t, bucket)
	k.correct(noon, 30, noon)
	d := k.decide(noon, 3, true)
	if want := noon + 13*second/10; d.Allowed || d.RetryAt != want {
		t.Errorf("at a level of -10, a cost of 3: allowed %t, retry after %d µs; want a denial, and a retry after %d",
			d.Allowed, d.RetryAt-noon, want-noon)
	}
	k.wantRemaining(noon+2*second, 10)
	k.wantRemaining(noon+3*second, 20)
	k.correct(noon, 1000, noon) // to -20, which is the lowest level
	k.wantRemaining(noon+2*second, 0)
	k.wantRemaining(noon+3*second, 10)
	if got, want := k.l.Tiers[0].FreshAt(&k.state), noon+4*second+limit.MaxSkew.Microseconds(); got != want {
		t.Errorf("at a level of -20, FreshAt is %d µs from now, want %d", got-noon, want-noon)
	}
}

// Guarantees that the next free time of a leaky bucket becomes later by the units that were admitted without the store,
// by a period at most.
func TestOwedByALeakyBucket(t *testing.T) {
	k := newLeaseHolder(t, leaky)
	k.correct(noon, 3, noon)
	if d := k.decide(noon, 1, true); d.Allowed || d.RetryAt != noon+3*second/10 {
		t.Errorf("3 units were admitted without the store: allowed %t, retry after %d µs; want a denial, and a "+
			"retry after 300000", d.Allowed, d.RetryAt-noon)
	}
	k.correct(noon, 4, noon)
	if d := k.decide(noon, 1, true); d.RetryAt != noon+7*second/10 {
		t.Errorf("7 units were admitted without the store: retry after %d µs, want 700000", d.RetryAt-noon)
	}
	k.correct(noon, 1000, noon)
	if d := k.decide(noon, 1, true); d.RetryAt != noon+second {
		t.Errorf("1007 units were admitted without the store: retry after %d µs, want 1000000", d.RetryAt-noon)
	}
}

// Guarantees that the next free time of a leaky bucket becomes earlier by the units that are given back, but not
// earlier than now: units that are given back cannot be saved up.
func TestGivesBackToALeakyBucket(t *testing.T) {
	k := newLeaseHolder(t, leaky)
	k.correct(noon, -limit.MaxUnits, noon)
	if k.state.Used() {
		t.Errorf("units were given back to an unused bucket: its state is %+v, want that of an unused one", k.state)
	}
	for _, step := range []struct{ back, at, wait int64 }{
		{3, noon, 5 * second / 10}, {1, noon, 4 * second / 10}, {2, noon + second/10, second / 10},
		{1, noon + second/10, 0}, {1, noon + second/10, 0}, {limit.MaxUnits, noon + second/2, 0},
	} {
		if step.back == 3 {
			k.spend(noon, 8)
		}
		k.correct(step.at, -step.back, step.at)
		if d := k.decide(step.at, 1, false); d.Allowed != (step.wait == 0) || !d.Allowed &&
			d.RetryAt != step.at+step.wait {
			t.Errorf("%d units were given back: allowed %t, retry after %d µs, want %d", step.back, d.Allowed,
				d.RetryAt-step.at, step.wait)
		}
	}
	k.spend(noon+second/2, 10)
	if d := k.decide(noon+second/2, 1, false); d.Allowed || d.RetryAt != noon+3*second/2 {
		t.Errorf("a request after all units of a period were admitted at once: allowed %t, retry after %d µs; want "+
			"a denial, and a retry after 1500000", d.Allowed, d.RetryAt-noon)
	}
	odd := limit.Tier{Algorithm: limit.LeakyBucket, Threshold: 7, Period: time.Second} // a unit takes 142857 1/7 µs
	k = newLeaseHolder(t, odd)
	k.spend(noon, 3)
	k.correct(noon, -1, noon)
	if d := k.decide(noon, 1, false); d.RetryAt != noon+285_715 { // 2/7 s, rounded up
		t.Errorf("1 of 3 units was given back at 7 per second: retry after %d µs, want 285715", d.RetryAt-noon)
	}
	k.correct(noon, -7, noon)
	if d := k.decide(noon, 1, false); !d.Allowed {
		t.Errorf("all units were given back: denied for %d µs, want it allowed", d.RetryAt-noon)
	}
}

// Guarantees that a peek with a correction answers as if the counter had been corrected, and changes nothing.
func TestPeekWithCorrection(t *testing.T) {
	for _, tier := range []limit.Tier{window, sliding, daily, logged, buckets, bucket} {
		k := newLeaseHolder(t, tier)
		k.spend(noon, 4)
		before := k.state.Clone()
		capacity := k.l.Tiers[0].Capacity()
		d := k.decide(noon, 1, false, limit.LeaseRequest{Correction: 3, CorrectionAt: noon})
		if got := d.Results[0].Remaining(); got != capacity-7 {
			t.Errorf("%s: 4 units were spent, and 3 are added by the peek's correction: %d remain, want %d",
				tier.Algorithm, got, capacity-7)
		}
		if !k.state.Equal(before) {
			t.Errorf("%s: a peek changed the state from %+v to %+v, want no change", tier.Algorithm, before, k.state)
		}
	}
}

// Guarantees that a counter does not fall below zero if more units are given back than it holds.
func TestGivesBackAtMostWhatIsThere(t *testing.T) {
	for _, tier := range []limit.Tier{window, sliding, daily, logged, buckets, bucket} {
		k := newLeaseHolder(t, tier)
		capacity := k.l.Tiers[0].Capacity()
		life := int64(0)
		if tier.Algorithm == limit.SlidingLog || tier.Algorithm == limit.SlidingBuckets {
			life = 2 * second
		}
		d := k.decide(noon, 1, true, limit.LeaseRequest{Ample: 5, Share: 1024, Life: life})
		for range 3 {
			k.correct(noon, -limit.MaxUnits, d.Lease(0).At)
		}
		k.wantRemaining(noon, capacity)
		k.spend(noon, capacity)
		k.wantRemaining(noon, 0)
	}
	k := newLeaseHolder(t, sliding)
	k.spend(noon, 5)
	next := noon + 10*second // the window of the 5 units is now the one before, and has its whole weight
	for range 2 {            // the units come back twice
		k.correct(next, -5, noon)
	}
	k.spend(next, 100)
	if d := k.decide(next, 1, false); d.Allowed || d.Results[0].Used() != 100 {
		t.Errorf("after 100 of 100 units: allowed %t, %d used; want a denial, and 100: the count of the window before "+
			"must not be below 0", d.Allowed, d.Results[0].Used())
	}
}

// Guarantees that a refund takes back units that the lease charged, and none that others spent. A receipt of leased
// units is refunded for as long as the lease counts: that of a bucket only until its slot ends, because after that the
// units are not held.
func TestRefundOfLeasedUnits(t *testing.T) {
	for _, tt := range []struct {
		tier     limit.Tier
		life     int64
		last     int64 // the last time at which a refund gives units back
		capacity int64
	}{
		{window, 0, noon + 10*second - 1, 100},
		{sliding, 0, noon + 20*second - 1, 100},
		{daily, 0, noon + 12*60*minute - 1, 100},
		{logged, 2 * second, noon + 12*second - 1, 10},
		{buckets, 2 * second, noon + 14*second - 1, 10},
		{bucket, 0, 0, 20},
	} {
		for late := range int64(2) {
			k := newLeaseHolder(t, tt.tier)
			last := tt.last
			if last == 0 {
				_, end := slotOf(k)
				last = end - 1
			}
			d := k.decide(noon, 3, true, limit.LeaseRequest{Need: 3, Ample: 5, Share: 1024, Life: tt.life})
			if !d.Allowed || d.Lease(0).Units != 5 {
				t.Fatalf("%s: allowed %t, lease %+v; want it allowed, with 5 units leased", tt.tier.Algorithm,
					d.Allowed, d.Lease(0))
			}
			lease := d.Leftover(0)
			lease.Units = 5
			now := noon + second/10
			var spent limit.Decision
			e := spent.BeginLeased(&limit.Request{Owner: k.owner, Charges: []limit.Charge{{Limit: k.l, Cost: 4}}}, now,
				limit.ReceiptID{Lo: 1})
			e.FromLeftover(0, &lease, 0)
			lease.Units -= e.ChargeLeftover(0)
			if lease.Units != 1 || !spent.Allowed || spent.Results[0].Charged != 4 {
				t.Fatalf("%s: 4 of 5 leased units were spent: %d are left, allowed %t, charged %d; want 1 left, "+
					"allowed, 4 charged", tt.tier.Algorithm, lease.Units, spent.Allowed, spent.Results[0].Charged)
			}
			for i, rec := range []*limit.Receipt{d.Receipt(), spent.Receipt()} {
				want := []int64{3, 4}[i] * (1 - late)
				if got := rec.Entries()[0].GiveBack(&k.state, limit.MaxUnits, last+late); got != want {
					t.Errorf("%s: refund %d, %d µs after the last time at which it gives units back, gives %d, want "+
						"%d", tt.tier.Algorithm, i+1, late, got, want)
				}
				if until := min(last+1, d.Now+limit.MaxReceiptAge.Microseconds()); rec.Until() < until {
					t.Errorf("%s: the receipt says Until %d, want at least %d, as long as its units can be refunded",
						tt.tier.Algorithm, rec.Until(), until)
				}
			}
			if late == 0 && tt.tier.Algorithm != limit.SlidingWindow {
				k.wantRemaining(last, tt.capacity-1) // one unit is still leased
			}
		}
	}
}

// Guarantees that held units do not make room for the refund of a plain charge, and that such a refund releases no held
// units.
func TestPlainRefundWhileUnitsAreHeld(t *testing.T) {
	k := newLeaseHolder(t, bucket)
	start, end := slotOf(k)
	plain := k.spend(start, 6).Receipt()
	k.lease(start, limit.LeaseRequest{Most: 10}, limit.Lease{Units: 10, Upfront: 10, Until: end, At: end})
	at := start + second*3/10 // 3 units were refilled: the bucket holds 7, and is full at 10
	if back := plain.Entries()[0].GiveBack(&k.state, limit.MaxUnits, at); back != 3 {
		t.Errorf("6 units were spent, 3 have been refilled since: a refund gives %d back, want 3", back)
	}
	k.wantRemaining(at, 10)
	k.wantRemaining(end, 10)
}

// Guarantees that the ramps of a bucket end together, even if a new burst has changed the length of the slots. If one
// ramp ended first, the other one would be spent against a level that still counts the first one.
func TestRampsEndTogetherThroughAChange(t *testing.T) {
	// slots of half a second
	k := newLeaseHolder(t, limit.Tier{Algorithm: limit.TokenBucket, Threshold: 10, Burst: 10, Period: time.Second})
	start, end := slotOf(k)
	k.spend(start, 10)
	k.lease(start, limit.LeaseRequest{Most: 3, Ramp: true}, limit.Lease{Units: 3, Until: end, At: end})
	k.change(10, 60) // slots of two seconds
	k.lease(start+second/10, limit.LeaseRequest{Most: 99, Ramp: true}, limit.Lease{Units: 52, Upfront: 48, Until: end,
		At: end}) // 10 spent and 3 leased units less what was refilled are missing
	k.lease(end, limit.LeaseRequest{Most: 1}, limit.Lease{Until: k.l.Tiers[0].LeaseEnd("acme", end),
		At: k.l.Tiers[0].LeaseEnd("acme", end)})
	k = newLeaseHolder(t, bucket)
	start, end = slotOf(k)
	k.spend(start, 20)
	k.lease(start, limit.LeaseRequest{Most: 3, Ramp: true}, limit.Lease{Units: 3, Until: end, At: end})
	k.change(10, 2) // slots of a tenth of a second
	k.lease(start+second/5, limit.LeaseRequest{Most: 99, Ramp: true}, limit.Lease{Until: end, At: end})
}

// Guarantees that a burst that becomes smaller than the held units leaves nothing to spend until the slot ends, and
// that the bucket refills after that.
func TestBurstShrinksBelowWhatIsHeld(t *testing.T) {
	k := newLeaseHolder(t, bucket)
	start, end := slotOf(k)
	k.lease(start, limit.LeaseRequest{Most: 15}, limit.Lease{Units: 15, Upfront: 15, Until: end, At: end})
	k.change(10, 5)
	k.wantRemaining(end-1, 0)
	k.wantRemaining(end+second, 0) // 10 units more than the burst were missing
	k.wantRemaining(end+second*3/2, 5)
	if d := k.decide(start, 5, true); d.Allowed || d.RetryAt != end+second*3/2 {
		t.Errorf("a cost of 5, the whole burst: allowed %t, retry %d µs after the slot; want a denial, and a retry "+
			"after 1500000", d.Allowed, d.RetryAt-end)
	}
	k.correct(start, -13, end) // at the same rate, so they come back: 2 units are held
	k.wantRemaining(start, 3)
	k.change(20, 20) // at another rate, so they do not
	k.correct(start, -2, end)
	k.wantRemaining(start, 18)
}

// Guarantees that units which were leased while the clock was far ahead are held for at most one slot, once the clock
// is right.
func TestHeldByAClockThatLeapt(t *testing.T) {
	k := newLeaseHolder(t, bucket)
	leapt := noon + 60*minute
	end := k.l.Tiers[0].LeaseEnd(k.owner.Name, leapt)
	k.lease(leapt, limit.LeaseRequest{Most: 15}, limit.Lease{Units: 15, Upfront: 15, Until: end, At: end})
	k.wantRemaining(noon, 5)
	k.spend(noon, 1) // repairs the state
	k.wantRemaining(noon+second-1, 5)
	k.wantRemaining(noon+second, 5)
	k.wantRemaining(noon+second+second/2, 10)
	k.correct(noon+second/2, -15, end) // the repair has removed the slot of these units
	k.wantRemaining(noon+second/2, 5)
	for _, tier := range []limit.Tier{logged, buckets} {
		k := newLeaseHolder(t, tier)
		d := k.decide(leapt, 1, true, limit.LeaseRequest{Ample: 4, Share: 1024, Life: 2 * second})
		k.wantRemaining(noon, 6)
		k.spend(noon, 1)
		k.wantRemaining(noon+20*second, 10)
		k.correct(noon, -4, d.Lease(0).At)
		k.wantRemaining(noon, 5)
	}
}

// Guarantees that units that a bucket charged while the clock was far ahead do not come back once the clock is right:
// nobody knows how much has been refilled since they were charged.
func TestRefundAfterTheClockLeapt(t *testing.T) {
	k := newLeaseHolder(t, bucket)
	receipt := k.spend(noon+60*minute, 5).Receipt()
	k.spend(noon, 2) // repairs the state
	if back := receipt.Entries()[0].GiveBack(&k.state, limit.MaxUnits, noon); back != 0 {
		t.Errorf("%d units come back, want 0", back)
	}
	k.wantRemaining(noon, 13)
}

// Guarantees that a level below zero stays the same when the rate is raised. If the rate is lowered, the bucket refills
// up to zero at the old rate. TestMissingAtAnotherRate tests the numbers.
func TestRateChangesUnderARamp(t *testing.T) {
	k := newLeaseHolder(t, bucket)
	start, end := slotOf(k)
	k.spend(start, 20)
	k.lease(start, limit.LeaseRequest{Most: 99, Ramp: true}, limit.Lease{Units: 10, Until: end, At: end})
	k.change(20, 20)
	if d := k.decide(start, 1, true); d.Allowed || d.RetryAt != start+11*second/20 {
		t.Errorf("at a level of -10, and 20 units a second: allowed %t, retry after %d µs; want a denial, and a "+
			"retry after 550000", d.Allowed, d.RetryAt-start)
	}
	k.change(7, 20)
	if d := k.decide(start, 1, true); d.Allowed || d.RetryAt != start+second+(second+6)/7 {
		t.Errorf("at a level of -10, and 7 units a second: allowed %t, retry after %d µs; want a denial, and a "+
			"retry after 1142858", d.Allowed, d.RetryAt-start)
	}
}

// Guarantees that a lease request with numbers that no store can count, or that the algorithm does not allow, is
// refused before anything is charged.
func TestCheckAhead(t *testing.T) {
	ok := func(tier limit.Tier, a limit.LeaseRequest) bool {
		l := oneTier(t, "l", tier)
		req := &limit.Request{Charges: []limit.Charge{{Limit: l, Cost: 5}}, Leases: []limit.LeaseRequest{a}}
		err := req.Check()
		if err != nil && !errors.Is(err, limit.ErrInvalidRequest) {
			t.Errorf("%s, lease request %+v: Check = %v, want ErrInvalidRequest", tier.Algorithm, a, err)
		}
		return err == nil
	}
	all := []limit.Tier{window, sliding, buckets, logged, bucket, leaky, daily}
	for _, tt := range []struct {
		name string
		ask  limit.LeaseRequest
		by   []limit.Algorithm // the algorithms that accept it
	}{
		{"nothing", limit.LeaseRequest{}, limit.Algorithms()},
		{"the cost", limit.LeaseRequest{Need: 5}, limit.Algorithms()},
		{"more than the cost", limit.LeaseRequest{Need: 6}, nil},
		{"less than nothing", limit.LeaseRequest{Need: -1}, nil},
		{"a lease", limit.LeaseRequest{Least: 1, Most: limit.MaxUnits, Ample: limit.MaxUnits, Plenty: limit.MaxUnits,
			Share: limit.ShareOne}, leasable},
		{"too large a lease", limit.LeaseRequest{Most: limit.MaxUnits + 1}, nil},
		{"a negative lease", limit.LeaseRequest{Least: -1}, nil},
		{"negative plenty", limit.LeaseRequest{Plenty: -1}, nil},
		{"too large an ample lease", limit.LeaseRequest{Ample: limit.MaxUnits + 1}, nil},
		{"more than the whole", limit.LeaseRequest{Share: limit.ShareOne + 1}, nil},
		{"a negative share", limit.LeaseRequest{Share: -1}, nil},
		{"a ramp", limit.LeaseRequest{Ramp: true}, []limit.Algorithm{limit.SlidingWindow, limit.TokenBucket}},
		{"a life", limit.LeaseRequest{Life: 1}, []limit.Algorithm{limit.SlidingLog, limit.SlidingBuckets}},
		{"a life of a period", limit.LeaseRequest{Life: 10 * second}, []limit.Algorithm{limit.SlidingLog,
			limit.SlidingBuckets}},
		{"a longer life", limit.LeaseRequest{Life: 10*second + 1}, nil},
		{"a negative life", limit.LeaseRequest{Life: -1}, nil},
		{"units given back", limit.LeaseRequest{Correction: -limit.MaxUnits, CorrectionAt: noon}, limit.Algorithms()},
		{"units owed", limit.LeaseRequest{Correction: limit.MaxUnits, CorrectionAt: noon}, limit.Algorithms()},
		{"too many units given back", limit.LeaseRequest{Correction: -limit.MaxUnits - 1}, nil},
		{"too many units owed", limit.LeaseRequest{Correction: limit.MaxUnits + 1}, nil},
	} {
		for _, tier := range all {
			if got, want := ok(tier, tt.ask), slices.Contains(tt.by, tier.Algorithm); got != want {
				t.Errorf("lease request with %s, of %s: accepted %t, want %t", tt.name, tier.Algorithm, got, want)
			}
		}
	}
	two := mustNew(t, limit.Limit{ID: "two", Tiers: []limit.Tier{window, daily}})
	for n := range 5 {
		req := &limit.Request{Charges: []limit.Charge{{Limit: two, Cost: 1}}, Leases: make([]limit.LeaseRequest, n)}
		if err := req.Check(); (err == nil) != (n == 0 || n == 2) {
			t.Errorf("Check of %d lease requests for two tiers = %v, want an error unless there are none or two", n,
				err)
		}
	}
}

// Guarantees that leases follow the decision over all tiers: a denial by one tier leases nothing of the others, and
// units of a shadow limit are leased only if that limit admits the request.
func TestLeaseOverSeveralTiers(t *testing.T) {
	narrow, shadow := window, window
	narrow.Threshold, shadow.Threshold = 10, 12
	limits := []*limit.Limit{oneTier(t, "wide", window), oneTier(t, "narrow", narrow),
		mustNew(t, limit.Limit{ID: "shadow", Mode: limit.Shadow, MaxCost: 10, Tiers: []limit.Tier{shadow}})}
	states := make([]limit.State, 3)
	decide := func(cost int64, ahead limit.LeaseRequest) *limit.Decision {
		req := &limit.Request{}
		for _, l := range limits {
			req.Charges = append(req.Charges, limit.Charge{Limit: l, Cost: cost})
			req.Leases = append(req.Leases, ahead)
		}
		return decideOn(req, noon, states)
	}
	d := decide(4, limit.LeaseRequest{Need: 4, Ample: 4, Share: 1024})
	for i, want := range []int64{4, 4, 4} {
		if g := d.Lease(i); g.Units != want || states[i].Window().Count != 8 {
			t.Errorf("limit %d: lease %+v and %d units used, want %d leased and 8 used", i, g,
				states[i].Window().Count, want)
		}
	}
	if d := decide(3, limit.LeaseRequest{Need: 3, Ample: 4, Share: 1024}); d.Allowed ||
		d.Lease(0).Units+d.Lease(1).Units+d.Lease(2).Units != 0 ||
		states[0].Window().Count != 8 || states[1].Window().Count != 8 || states[2].Window().Count != 8 {
		t.Errorf("2 units are left, and 3 are needed: allowed %t, states %+v; want a denial that leaves 8 units "+
			"used in each", d.Allowed, states)
	}
	states[1] = limit.WindowState{Start: states[1].Window().Start}.State()
	d = decide(5, limit.LeaseRequest{Need: 5, Ample: 1, Share: 1024}) // more than the shadow limit has
	if !d.Allowed || d.Lease(2) != (limit.Lease{}) || states[2].Window().Count != 8 || states[0].Window().Count != 14 {
		t.Errorf("a shadow limit that would deny: allowed %t, lease of the shadow limit %+v, states %+v; want it "+
			"allowed, no lease of the shadow limit, and 14 and 8 units used", d.Allowed, d.Lease(2), states)
	}
}
