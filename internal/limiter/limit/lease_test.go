package limit_test

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// fromLease decides a cost from a lease. If it is admitted, its units are taken from the lease.
func (k *leaseHolder) fromLease(now, cost int64, l *limit.Leftover, retryAt int64) *limit.Decision {
	k.Helper()
	d := new(limit.Decision)
	e := d.BeginLeased(&limit.Request{Owner: k.owner, Charges: []limit.Charge{{Limit: k.l, Cost: cost}}}, now,
		limit.ReceiptID{Lo: 7})
	e.FromLeftover(0, l, retryAt)
	if d.Charges(0) {
		l.Units -= e.ChargeLeftover(0)
	}
	return d
}

// Guarantees that a decision from a lease has the results that the store would have given if it had charged the units
// one by one.
func TestDecisionFromALease(t *testing.T) {
	for _, tier := range []limit.Tier{window, sliding, daily, logged, buckets, bucket} {
		k, plain := newLeaseHolder(t, tier), newLeaseHolder(t, tier)
		life := int64(0)
		if tier.Algorithm == limit.SlidingLog || tier.Algorithm == limit.SlidingBuckets {
			life = 2 * second
		}
		first := k.decide(noon, 2, true, limit.LeaseRequest{Need: 2, Ample: 5, Share: limit.ShareOne, Life: life})
		lease := first.Leftover(0)
		if lease.Units != 0 || lease.At != first.Lease(0).At || !lease.Known() || lease.Other() {
			t.Errorf("%s: before its units are added the lease is %+v; want no units, the time of the grant, and "+
				"Known", tier.Algorithm, lease)
		}
		if want := k.l.Tiers[0].Capacity() - 7; lease.InStore() != want {
			t.Errorf("%s: the lease says that %d units were left in the store, want %d", tier.Algorithm,
				lease.InStore(), want)
		}
		lease.Units = first.Lease(0).Units
		plain.spend(noon, 2)
		for _, cost := range []int64{1, 3, 1} {
			got, want := k.fromLease(noon, cost, &lease, 0), plain.spend(noon, cost)
			r, w := &got.Results[0], &want.Results[0]
			if !got.Allowed || r.Charged != cost || r.Used() != w.Used() || r.Remaining() != w.Remaining() {
				t.Errorf("%s, a cost of %d: allowed %t, charged %d, %d used, %d remain; want %d used, %d remain",
					tier.Algorithm, cost,
					got.Allowed, r.Charged, r.Used(), r.Remaining(), w.Used(), w.Remaining())
			}
			if got.ID != (limit.ReceiptID{Lo: 7}) || len(got.Receipt().Entries()) != 1 ||
				got.Receipt().Entries()[0].Units != cost {
				t.Errorf("%s, a cost of %d: the receipt %+v has the entries %+v, want one entry of the whole cost",
					tier.Algorithm, cost, got.ID, got.Receipt().Entries())
			}
		}
		if lease.Units != 0 {
			t.Errorf("%s: the lease has %d units left after all 5 were spent, want 0", tier.Algorithm, lease.Units)
		}
	}
}

// Guarantees that a denial by the holder of a lease, from what the store has told it, is like a denial of the store.
func TestDenialFromALease(t *testing.T) {
	k := newLeaseHolder(t, window)
	d := k.lease(noon, limit.LeaseRequest{Need: 90, Most: 50}, limit.Lease{Units: 10, Upfront: 10, Until: noon +
		10*second, At: noon})
	lease := d.Leftover(0)
	lease.Units = 10
	denied := k.fromLease(noon+second, 11, &lease, noon+10*second)
	if r := &denied.Results[0]; denied.Allowed || denied.Never || denied.RetryAt != noon+10*second ||
		denied.Binding() != r || r.Admits ||
		r.Remaining() != 10 || r.Charged != 0 || denied.RetryAfter() != 9*time.Second {
		t.Errorf("a cost of 11, with 10 units leased: decision %+v, result %+v; want a denial for 9 s that charges "+
			"nothing", denied, r)
	}
	never := k.fromLease(noon+second, 101, &lease, noon+10*second)
	if never.Allowed || !never.Never || never.RetryAt != 0 || never.RetryAfter() != 0 {
		t.Errorf("a cost of 101 of a limit of 100: allowed %t, never %t, retry at %d; want never allowed, without a "+
			"retry", never.Allowed, never.Never, never.RetryAt)
	}
	if lease.Units != 10 || len(denied.Receipt().Entries())+len(never.Receipt().Entries()) != 0 {
		t.Errorf("denials took %d leased units, want none", 10-lease.Units)
	}
}

// Guarantees that leases are spent all or nothing, and that a shadow limit denies nothing, as in the store.
func TestSeveralTiersFromLeases(t *testing.T) {
	limits := []*limit.Limit{oneTier(t, "wide", window),
		mustNew(t, limit.Limit{ID: "shadow", Mode: limit.Shadow, MaxCost: 10,
			Tiers: []limit.Tier{window, {Algorithm: limit.FixedWindow, Period: time.Minute, Threshold: 100}}})}
	req := &limit.Request{Charges: []limit.Charge{{Limit: limits[0], Cost: 2}, {Limit: limits[1], Cost: 2}}}
	ahead := *req
	ahead.Leases = []limit.LeaseRequest{{Least: 5}, {Least: 5}, {Least: 5}}
	told := decideOn(&ahead, noon, make([]limit.State, 3))
	var leases [3]limit.Leftover
	for i := range leases {
		leases[i] = told.Leftover(i)
		leases[i].Units = told.Lease(i).Units
	}
	d := new(limit.Decision)
	for _, tt := range []struct {
		retry   [3]int64
		allowed bool
		charged [3]int64
	}{
		{[3]int64{}, true, [3]int64{2, 2, 2}},
		// one tier of the shadow limit would deny, so none of its tiers is charged
		{[3]int64{0, 0, noon + 1}, true, [3]int64{2, 0, 0}},
		{[3]int64{noon + 1, 0, 0}, false, [3]int64{}},
	} {
		e := d.BeginLeased(req, noon, limit.ReceiptID{Lo: 1})
		for i, charge := range []int{0, 1, 1} {
			e.FromLeftover(charge, &leases[i], tt.retry[i])
			if d.ChargeIndex(i) != charge {
				t.Errorf("result %d belongs to charge %d, want %d", i, d.ChargeIndex(i), charge)
			}
		}
		for i := range leases {
			got := int64(0)
			if d.Charges(i) {
				got = e.ChargeLeftover(i)
			}
			if got != tt.charged[i] || d.Allowed != tt.allowed || d.Results[i].Shadow() != (i > 0) {
				t.Errorf("retry times %v, result %d: allowed %t, charged %d; want %t and %d", tt.retry, i, d.Allowed,
					got, tt.allowed, tt.charged[i])
			}
		}
	}
}

// Guarantees that units of an earlier lease keep the stamp at which they were charged, whatever later decisions of the
// store say.
func TestKeptUnitsAreGivenBackWhereTheyWere(t *testing.T) {
	for _, tier := range []limit.Tier{logged, buckets, bucket} {
		k := newLeaseHolder(t, tier)
		life := 2 * second
		if tier.Algorithm == limit.TokenBucket {
			life = 0
		}
		first := k.decide(noon, 1, true, limit.LeaseRequest{Ample: 5, Share: limit.ShareOne, Life: life})
		lease := first.Leftover(0)
		lease.Units = 5
		// a denial of the store, which has a result and grants nothing
		full := k.decide(noon+second/10, k.l.Tiers[0].Capacity(), true)
		at := lease.At
		lease = full.Leftover(0)
		lease.Keep(5, at)
		if lease.Units != 5 || lease.At != at {
			t.Fatalf("%s: the lease is %+v, want its 5 units with the time at which they were charged", tier.Algorithm,
				lease)
		}
		d := k.fromLease(noon+second/5, 3, &lease, 0)
		if got := d.Receipt().Entries()[0].GiveBack(&k.state, limit.MaxUnits, noon+second/5); got != 3 {
			t.Errorf("%s: a refund of 3 units that were spent from the lease gives %d back, want 3", tier.Algorithm,
				got)
		}
		k.correct(noon+second/5, -lease.Units, lease.At)
		k.wantRemaining(noon+second/5, k.l.Tiers[0].Capacity())
	}
}

// Guarantees that the zero Leftover has no units, and can be used.
func TestZeroLease(t *testing.T) {
	var l limit.Leftover
	l.Rebind(&newLeaseHolder(t, window).l.Tiers[0])
	l.Keep(0, noon)
	if l.Known() || l.InStore() != 0 || l.Units != 0 || l.Other() {
		t.Errorf("the zero Leftover: Known %t, %d left in the store, %+v; want no units, and not Known", l.Known(),
			l.InStore(), l)
	}
}

// Guarantees that a peek counts the units that the caller holds as available.
func TestPeekCreditsWhatIsInHand(t *testing.T) {
	for _, tt := range []struct {
		cost, hand int64
		allowed    bool
		left       int64
	}{{5, 0, false, 0}, {5, 4, false, 4}, {5, 5, true, 5}, {5, 9, true, 9}, {101, 100, false, 100}} {
		k := newLeaseHolder(t, window)
		k.spend(noon, 100)
		d := k.decide(noon, tt.cost, false)
		d.Revise().Credit(0, tt.hand)
		d.Revise().Settle()
		if d.Allowed != tt.allowed || d.Results[0].Remaining() != tt.left || (tt.cost > 100) != d.Never {
			t.Errorf("a cost of %d, and %d leased units held: allowed %t, never %t, %d remain; want allowed %t, %d "+
				"remain", tt.cost, tt.hand, d.Allowed, d.Never, d.Results[0].Remaining(), tt.allowed, tt.left)
		}
	}
}

// Guarantees that the end of a lease that the holder computes is the one that the store grants, for every owner and
// time.
func TestLeaseEndIsTheGrants(t *testing.T) {
	for _, tier := range []limit.Tier{window, sliding, daily, logged, buckets, bucket} {
		for _, owner := range []string{"acme", "zeta", ""} {
			k := newLeaseHolder(t, tier)
			k.l = mustNew(t, limit.Limit{ID: "l", AlignOwner: true, Tiers: []limit.Tier{tier}})
			k.owner.Name = owner
			for now := noon; now < noon+30*second; now += 777_777 {
				k.state = limit.State{}
				tier := &k.l.Tiers[0]
				for _, ramp := range []bool{false, true} {
					if ramp && tier.Algorithm != limit.SlidingWindow && tier.Algorithm != limit.TokenBucket {
						continue
					}
					g := k.decide(now, 1, true, limit.LeaseRequest{Ample: 3, Share: limit.ShareOne,
						Ramp: ramp}).Lease(0)
					want := tier.LeaseEnd(owner, now)
					if ramp {
						want = tier.RampEnd(owner, now)
					}
					if want == 0 {
						want = now // the request has no Life
					}
					if g.Until != want {
						t.Fatalf("%s, owner %q, at %d, ramp %t: the granted lease ends at %d, the holder computed "+
							"%d; want the same", tier.Algorithm, owner, now, ramp, g.Until, want)
					}
				}
			}
		}
	}
}

// Guarantees which units of a bucket count as held: those that were leased in the present slot and the needs that were
// charged with them, until the slot ends or they are given back.
func TestHeldOfABucket(t *testing.T) {
	k := newLeaseHolder(t, bucket)
	start, end := slotOf(k)
	held := func(now, want int64, a ...limit.LeaseRequest) {
		t.Helper()
		if got := k.decide(now, 1, true, a...).Leased(0); got != want {
			t.Errorf("%d units are held at %d, want %d", got, now, want)
		}
	}
	held(start, 0)
	held(start, 5, limit.LeaseRequest{Need: 1, Most: 4, Plenty: limit.MaxUnits, Share: limit.ShareOne})
	held(start, 7, limit.LeaseRequest{Most: 2, Plenty: limit.MaxUnits, Share: limit.ShareOne})
	held(start+1, 4, limit.LeaseRequest{Correction: -3, CorrectionAt: end})
	held(start+2, 4)
	held(end, 0)
	if got := k.l.Tiers[0].Leasing().Longest; got != end-start {
		t.Errorf("the longest lease is %d µs, want %d", got, end-start)
	}
	if d := newLeaseHolder(t, window).decide(noon, 1, true); d.Leased(0) != 0 {
		t.Errorf("Leased = %d for a fixed window, want 0: only buckets hold units", d.Leased(0))
	}
}
