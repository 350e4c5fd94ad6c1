package dynamodb_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/soak"
	"github.com/sluicelimits/sluice/internal/store/memory"
)

// randomAhead asks for a lease of some tiers, gives back some of what is held, and owes now and then.
func randomAhead(r *rand.Rand, req *limit.Request, held map[string][]limit.Leftover, now, newest int64, rests bool) {
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
				if t.Algorithm == limit.TokenBucket && own[i].At <= newest { // this store does not take back what comes that late
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

func grants(d *limit.Decision) (out string) {
	for i := range d.Results {
		out += fmt.Sprintf("; grant %+v", d.Lease(i))
	}
	return out
}

// Leases, too, are what the memory grants, to the unit and the µs, however they are mixed with charges, refunds and
// corrections, by one writer: a bound that one of the two stores holds, the other does. Here no decision spans items.
func TestAheadAgreesWithMemory(t *testing.T) {
	const groups = 4 // side by side
	for first := range uint64(groups) {
		t.Run(fmt.Sprint("group ", first), func(t *testing.T) {
			t.Parallel()
			client := server(t)
			for seed := first; seed < soak.Times(uint64(40)); seed += groups {
				aheadAgreesWithMemory(t, client, seed)
			}
		})
	}
}

func aheadAgreesWithMemory(t *testing.T, client *sdk.Client, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 23))
	c := config(client)
	c.DenyFor = []time.Duration{0, -1}[seed%2]
	s := open(t, c)
	model, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	per := []string{"", "endpoint", "subject"}[r.IntN(3)]
	var limits []*limit.Limit
	for i := range 1 + r.IntN(3) {
		l := randomLimit(t, r, fmt.Sprintf("l%d", i))
		limits = append(limits, must(t, limit.Limit{ID: l.ID, Per: per, MaxCost: l.MaxCost, Mode: l.Mode, Tiers: []limit.Tier{{
			Algorithm: l.Tiers[0].Algorithm, Threshold: 4 * l.Tiers[0].Threshold, Period: l.Tiers[0].Period, Burst: 3 * l.Tiers[0].Burst,
			Buckets: l.Tiers[0].Buckets, Calendar: l.Tiers[0].Calendar,
		}}}))
	}
	rests := r.IntN(2) == 0 // a counter that nothing is taken from is not written, so it does not learn the time
	now := noon
	type pair struct{ ours, theirs *limit.Receipt }
	var receipts []pair
	held := map[string][]limit.Leftover{}
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
			limits[i] = changed(t, r, limits[i])
		case n == 32:
			s = open(t, c)
			now = now.Add(6 * time.Second)
		}
		newest = max(newest, now.UnixMicro())
		if len(receipts) > 0 && r.IntN(6) == 0 {
			i, units := r.IntN(len(receipts)), r.Int64N(4)
			ours, err := s.Refund(t.Context(), receipts[i].ours, units, now)
			theirs, err2 := model.Refund(t.Context(), receipts[i].theirs, units, now)
			trace += fmt.Sprintf("\n%2d %s refund %d of receipt %d: %v", step, now.Format("15:04:05.000000"), units, i, theirs)
			if err != nil || err2 != nil || !slices.Equal(ours.Units, theirs.Units) {
				t.Fatalf("seed %d: refund %v %v, want %v %v; script: %s%s", seed, ours, err, theirs, err2, describe(limits), trace)
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
			randomAhead(r, req, held, now.UnixMicro(), newest, rests)
		}
		var ours, theirs limit.Decision
		decide, same, what := s.Decide, model.Decide, "decide"
		if r.IntN(6) == 0 {
			decide, same, what = s.Peek, model.Peek, "peek"
		}
		if err := same(t.Context(), req, now, &theirs); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		trace += fmt.Sprintf("\n%2d %s %s %v %s%s", step, now.Format("02 15:04:05.000000"), what, req.Leases, summary(&theirs), grants(&theirs))
		if err := decide(t.Context(), req, now, &ours); err != nil {
			t.Fatalf("seed %d: %v%s", seed, err, trace)
		}
		if got, want := summary(&ours)+grants(&ours), summary(&theirs)+grants(&theirs); got != want {
			t.Fatalf("seed %d, step %d:\n got %s\nwant %s\nscript: %s%s", seed, step, got, want, describe(limits), trace)
		}
		if theirs.Allowed && what == "decide" {
			receipts = append(receipts, pair{ours.Receipt(), theirs.Receipt()})
			for i := range theirs.Results {
				if g := theirs.Lease(i); g.Units > 0 {
					key := theirs.Results[i].Tier.Identity() + theirs.Value(i).Text
					l, want := ours.Leftover(i), theirs.Leftover(i)
					if l.Units = g.Units; l.At != want.At || l.InStore() != want.InStore() {
						t.Fatalf("seed %d, step %d: a lease at %d that leaves %d, want %d and %d; script: %s%s", seed, step,
							l.At, l.InStore(), want.At, want.InStore(), describe(limits), trace)
					}
					held[key] = append(held[key], l)
				}
			}
		}
		if seed%7 == 0 {
			viewsAreItems(t, s, c.Namespace)
		}
	}
}
