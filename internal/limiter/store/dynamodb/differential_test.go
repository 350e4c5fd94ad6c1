package dynamodb_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// randomLimit returns a limit of a random algorithm that denies often.
func randomLimit(tb testing.TB, r *rand.Rand, id string) *limit.Limit {
	algorithms := dynamodb.Counted()
	t := limit.Tier{Algorithm: algorithms[r.IntN(len(algorithms))], Threshold: 1 + r.Int64N(12),
		Period: time.Duration(1+r.IntN(3000)) * time.Millisecond}
	if t.Algorithm.HasBurst() {
		t.Burst = 1 + r.Int64N(20)
	}
	if t.Algorithm.HasBuckets() {
		t.Buckets = 1 + r.IntN(30)
	}
	if t.Algorithm.HasCalendar() {
		t.Period, t.Calendar = 0, &limit.Calendar{Every: limit.Day, Location: time.UTC}
		t.Threshold += 40
	}
	l := limit.Limit{ID: id, MaxCost: 6, Tiers: []limit.Tier{t}, AlignOwner: r.IntN(2) == 0}
	if r.IntN(4) == 0 {
		l.Mode = limit.Shadow
	}
	if r.IntN(3) == 0 {
		l.Per = []string{"subject", "endpoint"}[r.IntN(2)]
	}
	return must(tb, l)
}

// changedLimit returns a limit with other numbers and the same identity.
func changedLimit(tb testing.TB, r *rand.Rand, l *limit.Limit) *limit.Limit {
	out := *l
	out.Tiers = slices.Clone(l.Tiers)
	out.Tiers[0].Threshold = 1 + r.Int64N(12)
	if out.Tiers[0].Algorithm.HasBurst() {
		out.Tiers[0].Burst = 1 + r.Int64N(20)
	}
	return must(tb, limit.Limit{ID: out.ID, Mode: out.Mode, Per: out.Per, MaxCost: out.MaxCost,
		AlignOwner: out.AlignOwner, Tiers: []limit.Tier{{
			Algorithm: out.Tiers[0].Algorithm, Threshold: out.Tiers[0].Threshold, Period: out.Tiers[0].Period,
			Burst:   out.Tiers[0].Burst,
			Buckets: out.Tiers[0].Buckets, Calendar: out.Tiers[0].Calendar,
		}}})
}

// summary returns everything that a caller can see of a decision, except the id of the receipt.
func summary(d *limit.Decision) string {
	out := fmt.Sprintf("allowed %t never %t retry %d", d.Allowed, d.Never, d.RetryAt)
	for i := range d.Results {
		r := &d.Results[i]
		out += fmt.Sprintf("; %s[%s] charged %d admits %t retry %d used %d remaining %d reset %d", r.Limit().ID,
			d.Value(i).Text, r.Charged, r.Admits, r.RetryAt, r.Used(), r.Remaining(), r.ResetAt())
	}
	return out
}

// Guarantees that the table and the memory store decide alike, to the µs and to the unit: charges, peeks, refunds,
// changed limits, clocks that step back a little or leap a day, shadow limits, values, and processes that start without
// copies. With a difference, a tenant would pay for what it did not get, or get what it did not pay for.
func TestAgreesWithMemory(t *testing.T) {
	soak.SkipUnderRace(t)
	const groups = 4 // groups of scripts that run in parallel
	for first := range uint64(groups) {
		t.Run(fmt.Sprint("group ", first), func(t *testing.T) {
			t.Parallel()
			client := server(t)
			for seed := first; seed < soak.Times(uint64(32)); seed += groups {
				agreesWithMemory(t, client, seed)
			}
		})
	}
}

func agreesWithMemory(t *testing.T, client *sdk.Client, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 11))
	c := config(client)
	c.DenyFor = []time.Duration{0, -1}[seed%2]
	s := open(t, c)
	model := memorytest.New(t)
	var limits []*limit.Limit
	for i := range 1 + r.IntN(4) {
		limits = append(limits, randomLimit(t, r, fmt.Sprintf("l%d", i)))
	}
	now, latest := noon, noon
	type pair struct{ ours, theirs *limit.Receipt }
	var receipts []pair
	trace := ""
	for step := range 60 {
		switch n := r.IntN(40); {
		case n < 25:
			now = now.Add(time.Duration(r.Int64N(int64(400 * time.Millisecond))).Truncate(time.Microsecond))
		case n < 30:
			now = now.Add(-time.Duration(r.Int64N(int64(300 * time.Millisecond))).Truncate(time.Microsecond))
		case n == 30:
			now = now.Add(time.Duration(r.IntN(20)) * time.Second)
		case n == 31:
			// Not further back, because the memory store forgets counters that were last used five seconds ago. The
			// contract tests larger leaps back.
			now = now.Add([]time.Duration{24 * time.Hour, -4 * time.Second}[r.IntN(2)])
		case n == 32:
			i := r.IntN(len(limits))
			limits[i] = changedLimit(t, r, limits[i])
		case n < 37 && n > 33: // the limit's align changes
			i := r.IntN(len(limits))
			moved := *limits[i]
			moved.AlignOwner = !moved.AlignOwner
			limits[i] = must(t, moved)
		case n == 33:
			// a process without copies, so long after the last charge that it assumes no other processes
			s = open(t, c)
			now = now.Add(6 * time.Second)
		}
		if latest = latest.Add(max(0, now.Sub(latest))); now.Before(latest.Add(-4 * time.Second)) {
			now = latest.Add(-4 * time.Second)
		}
		if len(receipts) > 0 && r.IntN(5) == 0 {
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
				charge.Value = limit.ValueOf([]string{"a", "b"}[r.IntN(2)])
			}
			req.Charges = append(req.Charges, charge)
		}
		var ours, theirs limit.Decision
		decide, same, what := s.Decide, model.Decide, "decide"
		if r.IntN(5) == 0 {
			decide, same, what = s.Peek, model.Peek, "peek"
		}
		if err := same(t.Context(), req, now, &theirs); err != nil {
			t.Fatal(err)
		}
		trace += fmt.Sprintf("\n%2d %s %s %s", step, now.Format("02 15:04:05.000000"), what, summary(&theirs))
		if err := decide(t.Context(), req, now, &ours); err != nil {
			t.Fatalf("seed %d: %v%s", seed, err, trace)
		}
		if got, want := summary(&ours), summary(&theirs); got != want {
			t.Fatalf("seed %d, step %d:\n got %s\nwant %s\nscript: %s%s", seed, step, got, want, describe(limits),
				trace)
		}
		if theirs.Allowed {
			receipts = append(receipts, pair{ours.Receipt(), theirs.Receipt()})
		}
		if seed%7 == 0 {
			copiesAreItems(t, s, c.Namespace)
		}
	}
}

func describe(limits []*limit.Limit) (out string) {
	for _, l := range limits {
		t := &l.Tiers[0]
		out += fmt.Sprintf("%s per %s mode %s %s %d/%s burst %d buckets %d; ", l.ID, l.Per, l.Mode, t.Algorithm,
			t.Threshold, t.Period, t.Burst, t.Buckets)
	}
	return out
}

// copiesAreItems requires that the copies that the store has read from the table equal the items.
func copiesAreItems(t *testing.T, s *dynamodb.Store, namespace string) {
	t.Helper()
	held := items(t, server(t), namespace)
	for sk, counters := range dynamodb.Remembered(s) {
		want, err := dynamodb.Counters(held[sk])
		if err != nil {
			t.Fatal(err)
		}
		if !maps.EqualFunc(counters, want, func(a, b map[string]string) bool { return reflect.DeepEqual(a, b) }) {
			t.Fatalf("item %q is remembered as %v, it holds %v", sk, counters, want)
		}
	}
}
