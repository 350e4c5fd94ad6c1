package dynamodb_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sluicelimits/sluice/internal/limiter/lease/leasetest"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// addRandomLeases adds lease requests to a request. Some tiers get none. Some return units of the leases in held, or
// add units by a correction.
func addRandomLeases(
	r *rand.Rand, req *limit.Request, held map[string][]limit.Leftover, spent map[string]int64, now int64, rests bool,
) {
	for c := range req.Charges {
		charge := &req.Charges[c]
		for j := range charge.Limit.Tiers {
			t := &charge.Limit.Tiers[j]
			a := limit.LeaseRequest{Need: charge.Cost}
			if rests && r.IntN(3) == 0 {
				a.Need = r.Int64N(charge.Cost + 1)
			}
			leases := t.Algorithm != limit.LeakyBucket && r.IntN(4) > 0
			if leases {
				a.Least, a.Most, a.Ample, a.Plenty = r.Int64N(3), r.Int64N(8), r.Int64N(12), r.Int64N(10)
				a.Share = r.Int64N(limit.ShareOne + 1)
				switch t.Algorithm {
				case limit.TokenBucket, limit.SlidingWindow:
					a.Ramp = r.IntN(3) == 0
				case limit.SlidingBuckets:
					a.Life = r.Int64N(t.Period.Microseconds() + 1)
				}
			}
			key := t.Identity() + charge.Value.Text
			if own := held[key]; len(own) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(own))
				a.Correction, a.CorrectionAt = -1-r.Int64N(own[i].Units+1), own[i].At
				// this store loses late units of a token bucket that was charged without a lease after their slot
				if t.Algorithm == limit.TokenBucket && own[i].At <= spent[key] {
					a.Correction, a.CorrectionAt = 0, 0
				}
				held[key] = slices.Delete(own, i, i+1)
			} else if r.IntN(12) == 0 {
				a.Correction, a.CorrectionAt = 1+r.Int64N(4), now-r.Int64N(2_000_000)
			}
			req.Leases = append(req.Leases, a)
		}
	}
}

func leasesText(d *limit.Decision) (out string) {
	for i := range d.Results {
		out += fmt.Sprintf("; grant %+v", d.Lease(i))
	}
	return out
}

// Guarantees that the store grants exactly the leases that the memory store grants, to the unit and the µs, also
// between charges, refunds and corrections. A bound that holds for one of the two stores therefore holds for the other.
// One process decides, and no decision needs more than one item.
func TestLeasesAgreeWithMemory(t *testing.T) {
	soak.SkipUnderRace(t)
	const groups = 4 // groups of scripts that run in parallel
	for first := range uint64(groups) {
		t.Run(fmt.Sprint("group ", first), func(t *testing.T) {
			t.Parallel()
			client := server(t)
			for seed := first; seed < soak.Times(uint64(40)); seed += groups {
				leasesAgreeWithMemory(t, client, seed)
			}
		})
	}
}

func leasesAgreeWithMemory(t *testing.T, client *sdk.Client, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 23))
	c := config(client)
	c.DenyFor = []time.Duration{0, -1}[seed%2]
	s := open(t, c)
	model := memorytest.New(t)
	per := []string{"", "endpoint", "subject"}[r.IntN(3)]
	var limits []*limit.Limit
	for i := range 1 + r.IntN(3) {
		l := randomLimit(t, r, fmt.Sprintf("l%d", i))
		limits = append(limits, must(t, limit.Limit{ID: l.ID, Per: per, MaxCost: l.MaxCost, Mode: l.Mode,
			Tiers: []limit.Tier{{
				Algorithm: l.Tiers[0].Algorithm, Threshold: 4 * l.Tiers[0].Threshold, Period: l.Tiers[0].Period,
				Burst:   3 * l.Tiers[0].Burst,
				Buckets: l.Tiers[0].Buckets, Calendar: l.Tiers[0].Calendar,
			}}}))
	}
	rests := r.IntN(2) == 0 // a counter with a charge of zero is not written, so it does not learn the time
	now := noon
	type pair struct{ ours, theirs *limit.Receipt }
	var receipts []pair
	held := map[string][]limit.Leftover{}
	spent := map[string]int64{} // by counter, when it was last charged without a lease
	trace, newest := "", int64(0)
	for step := range 60 {
		switch n := r.IntN(40); {
		case n < 25:
			now = now.Add(time.Duration(r.Int64N(int64(400 * time.Millisecond))).Truncate(time.Microsecond))
		case n < 30 && !rests:
			now = now.Add(-time.Duration(r.Int64N(int64(50 * time.Millisecond))).Truncate(time.Microsecond))
		case n == 30:
			now = now.Add(time.Duration(r.IntN(20)) * time.Second)
		case n == 31:
			i := r.IntN(len(limits))
			limits[i] = changedLimit(t, r, limits[i])
		case n == 32:
			s = open(t, c)
			now = now.Add(6 * time.Second)
		}
		newest = max(newest, now.UnixMicro())
		if len(receipts) > 0 && r.IntN(6) == 0 {
			i, units := r.IntN(len(receipts)), r.Int64N(4)
			ours, err := s.Settle(t.Context(), receipts[i].ours, receipts[i].ours.Without(units), now)
			theirs, err2 := model.Settle(t.Context(), receipts[i].theirs, receipts[i].theirs.Without(units), now)
			trace += fmt.Sprintf("\n%2d %s refund %d of receipt %d: %v", step, now.Format("15:04:05.000000"), units, i,
				theirs)
			if err != nil || err2 != nil || !slices.Equal(ours.Returned, theirs.Returned) {
				t.Fatalf("seed %d: refund %v %v, want %v %v; script: %s%s", seed, ours, err, theirs, err2,
					describe(limits), trace)
			}
			continue
		}
		req := &limit.Request{Owner: acme}
		for _, l := range limits {
			if r.IntN(4) == 0 {
				continue
			}
			charge := limit.Charge{Limit: l, Cost: 1 + r.Int64N(3)}
			if l.Per != limit.PerTenant {
				charge.Value = limit.ValueOf("a")
			}
			req.Charges = append(req.Charges, charge)
		}
		if r.IntN(4) > 0 {
			addRandomLeases(r, req, held, spent, now.UnixMicro(), rests)
		}
		var ours, theirs limit.Decision
		decide, same, what := s.Decide, model.Decide, "decide"
		if r.IntN(6) == 0 {
			decide, same, what = s.Peek, model.Peek, "peek"
		}
		if err := same(t.Context(), req, now, &theirs); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		trace += fmt.Sprintf("\n%2d %s %s %v %s%s", step, now.Format("02 15:04:05.000000"), what, req.Leases,
			summary(&theirs), leasesText(&theirs))
		if err := decide(t.Context(), req, now, &ours); err != nil {
			t.Fatalf("seed %d: %v%s", seed, err, trace)
		}
		if got, want := summary(&ours)+leasesText(&ours), summary(&theirs)+leasesText(&theirs); got != want {
			t.Fatalf("seed %d, step %d:\n got %s\nwant %s\nscript: %s%s", seed, step, got, want, describe(limits),
				trace)
		}
		if theirs.Allowed && what == "decide" {
			receipts = append(receipts, pair{ours.Receipt(), theirs.Receipt()})
			for i := range theirs.Results {
				key := theirs.Results[i].Tier.Identity() + theirs.Value(i).Text
				if len(req.Leases) == 0 || req.Leases[i].Largest() == 0 {
					spent[key] = newest
				}
				if g := theirs.Lease(i); g.Units > 0 {
					l, want := ours.Leftover(i), theirs.Leftover(i)
					if l.Units = g.Units; l.At != want.At || l.InStore() != want.InStore() {
						t.Fatalf("seed %d, step %d: a lease at %d that leaves %d, want %d and %d; script: %s%s", seed,
							step,
							l.At, l.InStore(), want.At, want.InStore(), describe(limits), trace)
					}
					held[key] = append(held[key], l)
				}
			}
		}
		if seed%7 == 0 {
			copiesAreItems(t, s, c.Namespace)
		}
	}
}

// Guarantees that units of a token bucket that come back after their slot are no more than in the memory store, also if
// the process that gives them back has an old copy of the bucket, or gives them back twice. A return that does not
// notice what others have charged or given back since would fill the bucket twice.
func TestLateReturnsByOldCopies(t *testing.T) {
	t.Parallel()
	client := server(t)
	late := 0
	for seed := range soak.Times(uint64(60)) {
		late += lateReturnsByOldCopies(t, client, seed)
	}
	if late == 0 {
		t.Error("no unit came back late: the scripts show nothing")
	}
}

// Guarantees the same in the cases in which the bound depends on what another process has done since the copy was made.
func TestLateReturnsThatOthersCutShort(t *testing.T) {
	t.Parallel()
	client := server(t)
	const second, first = 1, 0
	type step struct {
		process           int
		need, lease, back int64         // units
		after             time.Duration // the slot of the lease of 10 units ends; below 0: before that
	}
	for name, steps := range map[string][]step{
		"given back by two": {{second, 29, 0, 0, -time.Second}, {first, 0, 10, 0, -time.Second},
			{second, 0, 1, 0, 10 * time.Millisecond}, {first, 0, 1, 0, 11 * time.Millisecond},
			{second, 0, 0, 10, 12 * time.Millisecond}, {first, 0, 0, 10, 13 * time.Millisecond}},
		"given back in the slot, too": {{second, 29, 0, 0, -time.Second}, {first, 0, 10, 0, -time.Second},
			{second, 0, 0, 10, -500 * time.Millisecond}, {first, 0, 1, 10, 10 * time.Millisecond}},
		"given back twice, after a charge": {{second, 29, 0, 0, -time.Second}, {first, 0, 10, 0, -time.Second},
			{second, 0, 1, 0, 10 * time.Millisecond}, {second, 5, 0, 0, 11 * time.Millisecond},
			{second, 0, 0, 10, 12 * time.Millisecond}, {second, 0, 0, 10, 13 * time.Millisecond}},
		"no room for both": {{first, 0, 10, 0, -time.Second}, {second, 0, 1, 0, 200 * time.Millisecond},
			{first, 0, 1, 0, 201 * time.Millisecond}, {second, 0, 0, 5, 202 * time.Millisecond},
			{first, 0, 0, 5, 203 * time.Millisecond}},
		"no room before a charge": {{first, 0, 10, 0, -time.Second}, {second, 0, 1, 0, 200 * time.Millisecond},
			{first, 0, 1, 0, 201 * time.Millisecond}, {second, 6, 0, 0, 202 * time.Millisecond},
			{first, 0, 0, 10, 203 * time.Millisecond}},
		// Both have seen that they charge the bucket at the same time, so they move its time only now and then.
		"given back by a clock at which the slot has not ended": {{first, 10, 0, 0, -7 * time.Millisecond},
			{second, 10, 0, 0, -6 * time.Millisecond}, {first, 0, 10, 0, -5 * time.Millisecond},
			{second, 0, 1, 0, time.Millisecond}, {first, 0, 1, 0, -4 * time.Millisecond},
			{second, 0, 8, 0, 2 * time.Millisecond}, {first, 5, 0, 10, -3 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(client)
			stores := []*dynamodb.Store{open(t, c), open(t, c)}
			model := memorytest.New(t)
			l := must(t, limit.Limit{ID: "l", MaxCost: 40, Tiers: []limit.Tier{{
				Algorithm: limit.TokenBucket, Threshold: 40, Burst: 40, Period: 4 * time.Second}}})
			end := l.Tiers[0].LeaseEnd(acme.Name, noon.UnixMicro()+l.Tiers[0].Leasing().Longest)
			for i, step := range steps {
				now := time.UnixMicro(end).Add(step.after)
				req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: max(step.need, 1)}},
					Leases: []limit.LeaseRequest{{Need: step.need, Least: step.lease, Correction: -step.back,
						CorrectionAt: end}}}
				var got, want limit.Decision
				if err := errors.Join(stores[step.process].Decide(t.Context(), req, now, &got),
					model.Decide(t.Context(), req, now, &want)); err != nil {
					t.Fatal(err)
				}
				if got.Allowed != want.Allowed || got.Lease(0) != want.Lease(0) {
					t.Fatalf("step %d: allowed %t, leased %+v; want %t, %+v", i, got.Allowed, got.Lease(0),
						want.Allowed, want.Lease(0))
				}
				req.Leases = nil
				if err := errors.Join(open(t, c).Peek(t.Context(), req, now, &got),
					model.Peek(t.Context(), req, now, &want)); err != nil {
					t.Fatal(err)
				}
				if got, want := got.Results[0].Remaining(), want.Results[0].Remaining(); got > want {
					t.Fatalf("step %d: %d units remain, want at most %d", i, got, want)
				}
			}
		})
	}
}

// lateReturnsByOldCopies has three processes take turns at a bucket, until one of them decides otherwise than the
// memory store because its copy is old. It returns how many decisions gave units back late.
func lateReturnsByOldCopies(t *testing.T, client *sdk.Client, seed uint64) (late int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 31))
	c := config(client)
	stores := []*dynamodb.Store{open(t, c), open(t, c), open(t, c)}
	model := memorytest.New(t)
	burst := 20 + r.Int64N(20)
	l := must(t, limit.Limit{ID: "l", MaxCost: burst, Tiers: []limit.Tier{{
		Algorithm: limit.TokenBucket, Threshold: burst, Burst: burst, Period: 4 * time.Second}}})
	var held []limit.Lease
	type pair struct{ ours, theirs *limit.Receipt }
	var receipts []pair
	lost := false // fewer units remained than in the memory store
	trace, now, mostLeased, longest := "", noon, 1+r.Int64N(burst), 1+r.Int64N(int64(3*time.Second))
	for range 40 {
		now = now.Add(time.Duration(r.Int64N(longest)).Truncate(time.Microsecond))
		a := limit.LeaseRequest{Need: r.Int64N(3), Share: limit.ShareOne}
		if r.IntN(4) > 0 {
			a.Least = r.Int64N(mostLeased)
			a.Ramp = a.Least > 0 && r.IntN(4) == 0
		}
		if len(held) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(held))
			a.Correction, a.CorrectionAt = -held[i].Units, held[i].At
			if r.IntN(3) > 0 {
				held = slices.Delete(held, i, i+1)
			}
			if a.CorrectionAt <= now.UnixMicro() {
				late++
			}
		}
		req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: max(a.Need, 1)}},
			Leases: []limit.LeaseRequest{a}}
		var got, want limit.Decision
		if err := errors.Join(stores[r.IntN(3)].Decide(t.Context(), req, now, &got),
			model.Decide(t.Context(), req, now, &want)); err != nil {
			t.Fatal(err)
		}
		trace += fmt.Sprintf("\n%s %+v: allowed %t, %+v", now.Format("05.000000"), a, got.Allowed, got.Lease(0))
		if got.Allowed != want.Allowed || got.Lease(0) != want.Lease(0) {
			return late
		}
		if g := got.Lease(0); g.Units > 0 {
			held = append(held, g)
		}
		if got.Allowed && a.Need > 0 {
			receipts = append(receipts, pair{got.Receipt(), want.Receipt()})
		}
		// A refund gives more back if the store has lost late units before, which it may.
		if i := r.IntN(4 * (len(receipts) + 1)); i < len(receipts) && !lost {
			ours, err := stores[r.IntN(3)].Settle(t.Context(), receipts[i].ours, receipts[i].ours.Without(2), now)
			theirs, err2 := model.Settle(t.Context(), receipts[i].theirs, receipts[i].theirs.Without(2), now)
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			trace += fmt.Sprintf("\nrefund %v, want %v", ours, theirs)
			if !slices.Equal(ours.Returned, theirs.Returned) {
				t.Fatalf("seed %d: a refund of %v, want %v; script of a bucket of %d in 4 s:%s", seed, ours, theirs,
					burst, trace)
			}
		}
		peek := &limit.Request{Owner: acme, Charges: req.Charges}
		if err := errors.Join(open(t, c).Peek(t.Context(), peek, now, &got),
			model.Peek(t.Context(), peek, now, &want)); err != nil {
			t.Fatal(err)
		}
		if got, want := got.Results[0].Remaining(), want.Results[0].Remaining(); got > want {
			t.Fatalf("seed %d: %d units remain, want at most %d; script of a bucket of %d in 4 s:%s", seed, got, want,
				burst, trace)
		} else if got < want {
			lost = true
		}
	}
	return late
}

// Guarantees that a bucket is removed from the item when two processes give its last units back, even if the second
// process has not seen that the first one gave its units back. A bucket with zero units would take room in the item
// until it expires.
func TestEmptyBucketIsRemoved(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := config(client)
	l := must(t, limit.Limit{ID: "b", MaxCost: 1, Tiers: []limit.Tier{
		{Algorithm: limit.SlidingBuckets, Threshold: 100, Period: time.Minute, Buckets: 6},
	}})
	ask := func(s limit.Store, lease limit.LeaseRequest) limit.Lease {
		t.Helper()
		var d limit.Decision
		req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: 1}},
			Leases: []limit.LeaseRequest{lease}}
		if err := s.Decide(t.Context(), req, noon, &d); err != nil || !d.Allowed {
			t.Fatalf("Decide with the lease request %+v: allowed %t, %v; want it allowed", lease, d.Allowed, err)
		}
		return d.Lease(0)
	}
	first, second := open(t, c), open(t, c)
	var leases []limit.Lease
	for _, s := range []limit.Store{first, second} {
		leases = append(leases, ask(s, limit.LeaseRequest{Least: 10, Life: time.Second.Microseconds()}))
	}
	if leases[0] != leases[1] || leases[0].Units != 10 {
		t.Fatalf("leases %+v, want two of 10 units at the same time", leases)
	}
	for _, s := range []limit.Store{first, second} {
		ask(s, limit.LeaseRequest{Correction: -10, CorrectionAt: leases[0].At})
	}
	counters, err := dynamodb.Counters(items(t, client, c.Namespace)["s0"])
	if err != nil {
		t.Fatal(err)
	}
	for name, fields := range counters {
		if len(fields) != 3 || fields["s"] != "0" {
			t.Errorf("counter %s is %v, want no bucket", name, fields)
		}
	}
}

// Guarantees that processes that lease a limit from DynamoDB admit nearly all of it, and that the waits that they name
// are right.
func TestLeasesGiveTheLimit(t *testing.T) {
	soak.SkipUnderRace(t)
	soak.SkipInQuick(t)
	c := config(server(t))
	leasetest.Run(t, func() limit.Store { return open(t, c) }, 12)
}

// Guarantees that a limit that is raised admits more at once.
func TestRaiseIsFeltAtOnce(t *testing.T) {
	t.Parallel()
	c := config(server(t))
	leasetest.Raise(t, func() limit.Store { return open(t, c) })
}
