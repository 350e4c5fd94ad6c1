package memory_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

var (
	record     = flag.Bool("record", false, "write the digests of the scripts to testdata instead of comparing them")
	transcript = flag.Int64("transcript", -1,
		"print the transcript of the script with this number instead of comparing")
)

const digests = "testdata/decisions-71d6d5d.txt"

// Guarantees that decisions are the same as those of commit 71d6d5d: what the store remembers, how it counts, and what
// it answers. The numbers of token buckets do not change: such a change counts by another rule. The digests are those
// of that code. To find a difference, copy this file into internal/store/memory of that commit, change the import
// paths, and run the test there and here with -transcript.
func TestDecisionsAsOfCommit71d6d5d(t *testing.T) {
	soak.SkipUnderRace(t)
	const scripts, steps = 300, 400
	if *transcript >= 0 {
		runScript(t, uint64(*transcript), steps, os.Stdout)
		return
	}
	var got strings.Builder
	compared := uint64(scripts)
	if !*record {
		compared = min(compared, soak.Times(compared)) // a short run compares the first few
	}
	for seed := range compared {
		h := sha256.New()
		runScript(t, seed, steps, h)
		fmt.Fprintf(&got, "%d %x\n", seed, h.Sum(nil)[:8])
	}
	if *record {
		if err := os.WriteFile(digests, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(digests)
	if err != nil {
		t.Fatal(err)
	}
	before := strings.Split(string(want), "\n")
	if len(before) != scripts+1 {
		t.Fatalf("%s has %d scripts, want %d", digests, len(before)-1, scripts)
	}
	for i, line := range strings.Split(strings.TrimSuffix(got.String(), "\n"), "\n") {
		if line != before[i] {
			t.Errorf("script %d: decisions, or what they tell, have changed: %s, want %s", i, line, before[i])
		}
	}
}

// runScript makes random limits, and then decides, peeks and refunds, with a clock that sometimes steps back. The
// limits change while it runs. It writes all that a caller can read of the answers to out, one line for each step.
func runScript(tb testing.TB, seed uint64, steps int, out io.Writer) {
	r := rand.New(rand.NewPCG(seed, 71))
	s, err := memory.New(memory.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	limits := make([]*limit.Limit, 1+r.IntN(5))
	wanted := make([]limit.Limit, len(limits))
	for i := range limits {
		wanted[i] = scriptLimit(r, i)
		limits[i] = newLimit(tb, wanted[i])
	}
	owners := []limit.Owner{tenant(1), tenant(2), {Kind: limit.Address, Name: "a1"}, {Kind: limit.Anonymous}}
	now := start.Add(time.Duration(r.Int64N(int64(400 * 24 * time.Hour)))).Truncate(time.Microsecond)
	latest := now
	var d limit.Decision
	var receipts []*limit.Receipt
	var made []time.Time
	for step := range steps {
		now = stepClock(r, now, latest)
		if now.After(latest) {
			latest = now
		}
		if r.IntN(40) == 0 {
			i := r.IntN(len(limits))
			wanted[i].Tiers = append([]limit.Tier(nil), wanted[i].Tiers...)
			threshold := 2 + r.Int64N(12)
			if wanted[i].Tiers[0].Algorithm != limit.TokenBucket { // since then a change keeps what a bucket misses
				wanted[i].Tiers[0].Threshold = threshold
			}
			limits[i] = newLimit(tb, wanted[i])
		}
		fmt.Fprintf(out, "%d.%d ", seed, step)
		if i := len(receipts) - 1 - r.IntN(6); i >= 0 && now.Sub(made[i]) < 5*time.Minute && r.IntN(5) == 0 {
			back, err := s.Settle(tb.Context(), receipts[i], receipts[i].Without(r.Int64N(3)), now)
			if err != nil {
				tb.Fatal(err)
			}
			fmt.Fprintln(out, "refund", back.Returned)
			continue
		}
		req := limit.Request{Owner: owners[r.IntN(len(owners))]}
		for _, i := range r.Perm(len(limits))[:1+r.IntN(len(limits))] {
			c := limit.Charge{Limit: limits[i], Cost: 1 + r.Int64N(2)}
			if r.IntN(30) == 0 {
				c.Cost = 1 + r.Int64N(20)
			}
			if limits[i].Per != limit.PerTenant {
				c.Value = limit.ValueOf(fmt.Sprint("u", r.IntN(4)))
			}
			req.Charges = append(req.Charges, c)
		}
		decide := s.Decide
		if r.IntN(6) == 0 {
			decide = s.Peek
		}
		if err := decide(tb.Context(), &req, now, &d); err != nil {
			tb.Fatal(err)
		}
		writeDecision(out, &d)
		if d.Allowed && d.ID != (limit.ReceiptID{}) {
			receipts, made = append(receipts, d.Receipt()), append(made, now)
		}
	}
}

// stepClock returns the time of the next step, which is at most MaxSkew before the latest time so far.
func stepClock(r *rand.Rand, now, latest time.Time) time.Time {
	most := []time.Duration{time.Second, time.Second, time.Second, 40 * 24 * time.Hour,
		-4 * time.Second}[max(0, r.IntN(60)-55)]
	now = now.Add(time.Duration(r.Float64() * float64(most))).Truncate(time.Microsecond)
	if earliest := latest.Add(-limit.MaxSkew); now.Before(earliest) {
		return earliest
	}
	return now
}

func scriptLimit(r *rand.Rand, i int) limit.Limit {
	algorithms := limit.Algorithms()
	l := limit.Limit{ID: fmt.Sprint("l", i), MaxCost: 2, AlignOwner: r.IntN(4) == 0}
	if r.IntN(6) == 0 {
		l.Mode = limit.Shadow
	}
	if r.IntN(4) == 0 {
		l.Per = "subject"
	}
	for j := range 1 + r.IntN(2) {
		tier := limit.Tier{Algorithm: algorithms[r.IntN(len(algorithms))], Threshold: 2 + r.Int64N(12)}
		if tier.Algorithm == limit.Quota {
			tier.Calendar = &limit.Calendar{Every: limit.Day + limit.Every(r.IntN(3)), Location: time.UTC}
		} else {
			tier.Period = time.Duration(1+9*j+r.IntN(9)) * time.Second
		}
		if tier.Algorithm == limit.TokenBucket && r.IntN(2) == 0 {
			tier.Burst = 2 + r.Int64N(20)
		}
		l.Tiers = append(l.Tiers, tier)
	}
	if len(l.Tiers) == 2 && l.Tiers[0].Algorithm == limit.Quota && l.Tiers[1].Algorithm == limit.Quota {
		l.Tiers = l.Tiers[:1]
	}
	return l
}

func writeDecision(out io.Writer, d *limit.Decision) {
	fmt.Fprint(out, d.Allowed, d.Never, d.RetryAt, d.Fullest())
	for i := range d.Results {
		r := &d.Results[i]
		fmt.Fprint(out, "; ", r.Limit().ID, " ", r.Tier.Algorithm, " ", r.Cost, r.Charged, r.RetryAt, r.Admits,
			r.Never, r.Other,
			r.Used(), r.Remaining(), r.ResetAt(), r == d.Binding())
	}
	fmt.Fprintln(out)
}
