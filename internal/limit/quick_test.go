package limit_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

// The quick way is a second implementation of the decision that is made most: were it more generous by a unit, every
// test of the slow one would stay green.
func TestQuick(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	weighed := 0
	for round := range 3000 {
		var limits []*limit.Limit
		for i := range 1 + rng.IntN(3) {
			l, err := limit.New(limit.Limit{ID: fmt.Sprint("l", i), MaxCost: 50, Tiers: []limit.Tier{{
				Algorithm: limit.TokenBucket, Period: time.Duration(1+rng.IntN(5000)) * time.Millisecond,
				Threshold: 1 + rng.Int64N(40), Burst: 1 + rng.Int64N(40),
			}}})
			if err != nil {
				t.Fatal(err)
			}
			limits = append(limits, l)
		}
		slow, quick := make([]limit.State, len(limits)), make([]limit.State, len(limits))
		now := int64(1_800_000_000_000_000)
		for step := range 20 {
			if now += rng.Int64N(2_000_000) - 100_000; rng.IntN(10) == 0 {
				now -= 3_000_000 // a clock that differs a little
			}
			req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"}}
			for _, l := range limits {
				req.Charges = append(req.Charges, limit.Charge{Limit: l, Cost: 1 + rng.Int64N(45)})
			}
			want := decideSlowly(req, now, slow)
			got, done := decideQuickly(req, now, quick)
			if !done {
				got = decideSlowly(req, now, quick)
			} else {
				weighed++
			}
			if g, w := describeDecision(got), describeDecision(want); g != w {
				t.Fatalf("round %d, step %d: the quick way says\n%s\nthe slow one\n%s", round, step, g, w)
			}
			for i := range slow {
				if slow[i].At != quick[i].At || slow[i].N != quick[i].N || slow[i].M != quick[i].M {
					t.Fatalf("round %d, step %d: state %d is %+v after the quick way, %+v after the slow one", round, step, i, quick[i], slow[i])
				}
			}
		}
	}
	if weighed < 10_000 {
		t.Errorf("only %d of 60000 decisions went the quick way: the test compares nothing", weighed)
	}
}

func decideSlowly(req *limit.Request, now int64, states []limit.State) *limit.Decision {
	d := new(limit.Decision)
	d.Begin(req, now)
	for i := range states {
		d.Evaluate(i, &states[i], true)
	}
	d.Settle()
	for i := range states {
		if d.Commits(i) {
			d.Commit(i, &states[i])
		}
	}
	return d
}

func decideQuickly(req *limit.Request, now int64, states []limit.State) (*limit.Decision, bool) {
	d := new(limit.Decision)
	d.Open(req, now)
	for i := range states {
		if !d.Weigh(&req.Charges[i].Limit.Tiers[0], &states[i]) {
			return d, false
		}
	}
	for i := range states {
		if d.Allowed {
			d.CommitWeighed(i, &states[i])
		}
	}
	return d, true
}

func describeDecision(d *limit.Decision) string {
	out := fmt.Sprintf("allowed %t never %t retry %d binding %s", d.Allowed, d.Never, d.RetryAt, d.Binding().Limit().ID)
	for i := range d.Results {
		r := &d.Results[i]
		out += fmt.Sprintf("\n%s admits %t never %t charged %d retry %d used %d reset %d",
			r.Limit().ID, r.Admits, r.Never, r.Charged, r.RetryAt, r.Used(), r.ResetAt())
	}
	for _, e := range d.Receipt().Entries() {
		out += fmt.Sprintf("\nreceipt %d of %d until %d", e.Units, e.Stamp(), d.Receipt().Until())
	}
	return out
}

// What is not as usual must be left to the slow way, which knows it.
func TestQuickLeavesTheRest(t *testing.T) {
	build := func(l limit.Limit) *limit.Limit {
		l.ID = "l"
		made, err := limit.New(l)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	bucket := limit.Tier{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 10}
	window := limit.Tier{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 10}
	usual := build(limit.Limit{Tiers: []limit.Tier{bucket}})
	const now = 1_800_000_000_000_000
	used := limit.State{At: now, N: usual.Tiers[0].Params(limit.Owner{}).Full, M: 10}
	for _, c := range []struct {
		name   string
		charge limit.Charge
		state  limit.State
		want   bool
	}{
		{"a bucket", limit.Charge{Limit: usual, Cost: 1}, used, true},
		{"no limit", limit.Charge{Cost: 1}, used, false},
		{"no cost", limit.Charge{Limit: usual}, used, false},
		{"a negative cost", limit.Charge{Limit: usual, Cost: -1}, used, false},
		{"never", limit.Charge{Limit: usual, Cost: 11}, used, false},
		{"a value", limit.Charge{Limit: usual, Cost: 1, Value: limit.ValueOf("x")}, used, false},
		{"never used", limit.Charge{Limit: usual, Cost: 1}, limit.State{}, false},
		{"another rate", limit.Charge{Limit: usual, Cost: 1}, limit.State{At: now, N: 5, M: 11}, false},
		{"ahead", limit.Charge{Limit: usual, Cost: 1}, limit.State{At: now + 6_000_000, N: 5, M: 10}, false},
		{"refunded", limit.Charge{Limit: usual, Cost: 1}, limit.State{At: now, N: 5, M: 10, Stamps: make([]limit.Stamp, 1)}, false},
		{"a shadow", limit.Charge{Limit: build(limit.Limit{Mode: limit.Shadow, Tiers: []limit.Tier{bucket}}), Cost: 1}, used, false},
		{"per subject", limit.Charge{Limit: build(limit.Limit{Per: "subject", Tiers: []limit.Tier{bucket}}), Cost: 1}, used, false},
		{"two tiers", limit.Charge{Limit: build(limit.Limit{Tiers: []limit.Tier{bucket, window}}), Cost: 1}, used, false},
		{"a window", limit.Charge{Limit: build(limit.Limit{Tiers: []limit.Tier{window}}), Cost: 1}, used, false},
	} {
		var tier *limit.Tier
		if c.charge.Limit != nil {
			tier = &c.charge.Limit.Tiers[0]
		}
		d := new(limit.Decision)
		req := &limit.Request{Charges: []limit.Charge{c.charge}}
		d.Open(req, now)
		if got := req.Quick() && d.Weigh(tier, &c.state); got != c.want {
			t.Errorf("%s: weighed %t, want %t", c.name, got, c.want)
		}
	}
	d, req := new(limit.Decision), &limit.Request{Charges: []limit.Charge{{Limit: usual, Cost: 1}}}
	if req.Ahead = make([]limit.Ahead, 1); req.Quick() {
		t.Error("a request for a lease is quick")
	}
	req.Ahead = nil
	d.Open(req, now)
	if other := build(limit.Limit{Tiers: []limit.Tier{bucket}}); d.Weigh(&other.Tiers[0], &used) {
		t.Error("a counter of another limit was weighed")
	}
}
