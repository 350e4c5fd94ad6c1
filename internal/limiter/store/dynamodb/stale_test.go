package dynamodb_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// Guarantees that a process whose clock is behind, and that has not seen another process's charge, does not move a
// bucket's time back: its request is decided at the bucket's own time, as the core does. Without the condition on the
// field t its write would succeed. (A process that knows that the bucket's time is ahead does not write that time, but
// requires that it is unchanged. No test can observe that condition: the level at an earlier time is lower, so a charge
// that fits then fits at a later time, too.)
func TestStaleWriterKeepsTheTime(t *testing.T) {
	t.Parallel()
	// A process that finds a very recent charge assumes that others charge the bucket all the time, and writes other
	// conditions.
	for _, after := range []time.Duration{500 * time.Millisecond, time.Millisecond} {
		staleWriter(t, after)
	}
}

func staleWriter(t *testing.T, after time.Duration) {
	client := server(t)
	c := config(client)
	ahead, behind := open(t, c), open(t, c)
	model, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := must(t, limit.Limit{ID: "burst", MaxCost: 50,
		Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: 10, Burst: 100, Period: time.Second}}})
	for i, step := range []struct {
		s    limit.Store
		at   time.Duration
		cost int64
	}{
		{ahead, 0, 50}, {behind, after, 1}, // both processes have a copy of the bucket
		{ahead, 3 * time.Second, 1}, {behind, time.Second, 1}, {behind, 1500 * time.Millisecond, 50},
		{ahead, 3 * time.Second, 20},
	} {
		req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: step.cost}}}
		var got, want limit.Decision
		if err := step.s.Decide(t.Context(), req, noon.Add(step.at), &got); err != nil {
			t.Fatal(err)
		}
		if err := model.Decide(t.Context(), req, noon.Add(step.at), &want); err != nil {
			t.Fatal(err)
		}
		if summary(&got) != summary(&want) {
			t.Errorf("step %d, at %s: %s, want %s", i, step.at, summary(&got), summary(&want))
		}
	}
	bucket := items(t, client, c.Namespace)["s0"]["burst/t1000"].(*types.AttributeValueMemberM)
	if got, want := bucket.Value["t"].(*types.AttributeValueMemberN).Value,
		num(noon.Add(3*time.Second).UnixMicro()).(*types.AttributeValueMemberN).Value; got != want {
		t.Errorf("the bucket's time is %s, want %s: it does not move back", got, want)
	}
}

// Guarantees that a process whose clock is behind and that leases from a bucket does not move the bucket's time back.
// Its requests are decided at the bucket's own time, as the core does.
func TestStaleLeaseKeepsTheTime(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := config(client)
	s := open(t, c)
	model, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := must(t, limit.Limit{ID: "burst", MaxCost: 50, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: 10, Burst: 100, Period: time.Second},
	}})
	for i, at := range []time.Duration{0, 900 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond} {
		req := &limit.Request{
			Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: 20}},
			Leases: []limit.LeaseRequest{{Need: 20, Least: 2}},
		}
		var got, want limit.Decision
		if err := s.Decide(t.Context(), req, noon.Add(at), &got); err != nil {
			t.Fatal(err)
		}
		if err := model.Decide(t.Context(), req, noon.Add(at), &want); err != nil {
			t.Fatal(err)
		}
		if got, want := summary(&got)+grants(&got), summary(&want)+grants(&want); got != want {
			t.Errorf("step %d, at %s: %s, want %s", i, at, got, want)
		}
	}
	counters, err := dynamodb.Counters(items(t, client, c.Namespace)["s0"])
	if err != nil {
		t.Fatal(err)
	}
	latest := strconv.FormatInt(noon.Add(900*time.Millisecond).UnixMicro(), 10)
	if got := counters["burst/t1000"]["t"]; got != latest {
		t.Errorf("the bucket's time is %s, want %s: it does not move back", got, latest)
	}
}

// Guarantees that a process whose clock is behind, and that charges a bucket together with others, is not decided at a
// time after the bucket's own one. Others may have moved that time back since the process has read it, each by a
// little.
func TestStaleTimeOfAContendedBucket(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := config(client)
	behind, other := open(t, c), open(t, c)
	const rate = 100_000 // per second, so that the level rises by 100 units in a ms
	l := must(t, limit.Limit{ID: "burst", MaxCost: rate, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: rate, Burst: rate, Period: time.Second},
	}})
	latest := noon.Add(50 * time.Millisecond)
	late := latest.Add(-30 * time.Millisecond)
	ask := func(cost int64) *limit.Request {
		return &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: cost}}}
	}
	var d limit.Decision
	charge := func(s limit.Store, at time.Time, cost int64) {
		t.Helper()
		if err := s.Decide(t.Context(), ask(cost), at, &d); err != nil || !d.Allowed {
			t.Fatalf("a charge of %d: allowed %t, %v", cost, d.Allowed, err)
		}
	}
	charge(other, noon, 1)
	charge(behind, noon, 1) // notices that another process charges the bucket
	charge(other, noon, 50_000)
	alone := open(t, c) // has not seen another process charge the bucket, so it sets the bucket's time
	if err := alone.Peek(t.Context(), ask(1), latest, &d); err != nil {
		t.Fatal(err)
	}
	charge(alone, latest, d.Results[0].Remaining()-1000)
	if err := behind.Peek(t.Context(), ask(200), late, &d); err != nil || !d.Allowed {
		t.Fatalf("Peek: allowed %t, %v", d.Allowed, err)
	}
	var key map[string]types.AttributeValue
	for _, item := range items(t, client, c.Namespace) {
		key = map[string]types.AttributeValue{"PK": item["PK"], "SK": item["SK"]}
	}
	_, err := client.UpdateItem(t.Context(), &sdk.UpdateItemInput{
		TableName: aws.String(table), Key: key, UpdateExpression: aws.String("SET #c.t = :t"),
		ExpressionAttributeNames: map[string]string{"#c": "burst/t1000"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":t": num(latest.Add(-20 * time.Millisecond).UnixMicro()),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := behind.Decide(t.Context(), ask(200), late, &d); err != nil || d.Allowed {
		t.Errorf("allowed %t, %v; want a denial: at the bucket's time it was empty", d.Allowed, err)
	}
}

// Guarantees that ramps which two processes take of a full counter, the second without having seen the first one's, are
// bounded together by what comes free until they end. (If some units of a ramp can be spent at once, the condition for
// these units is as strict: where it holds, the count is at most what was seen, and fits when the ramp ends. No test
// can observe whether a condition contains both.)
func TestStaleRampsAreBoundedTogether(t *testing.T) {
	t.Parallel()
	client := server(t)
	for _, tier := range []limit.Tier{
		{Algorithm: limit.SlidingWindow, Threshold: 100, Period: 10 * time.Second},
		{Algorithm: limit.TokenBucket, Threshold: 100, Period: 10 * time.Second},
	} {
		c := config(client)
		first, second := open(t, c), open(t, c)
		l := must(t, limit.Limit{ID: "ramps", MaxCost: 100, Tiers: []limit.Tier{tier}})
		ask := func(s limit.Store, at time.Time, cost int64, ahead ...limit.LeaseRequest) *limit.Decision {
			t.Helper()
			var d limit.Decision
			if err := s.Decide(t.Context(), &limit.Request{Owner: acme,
				Charges: []limit.Charge{{Limit: l, Cost: cost}}, Leases: ahead}, at, &d); err != nil || !d.Allowed {
				t.Fatalf("%s: %v, allowed %t", tier.Algorithm, err, d.Allowed)
			}
			return &d
		}
		full := noon
		ask(first, noon, 100)
		if tier.Algorithm == limit.SlidingWindow {
			full = noon.Add(10100 * time.Millisecond) // the previous window still counts 99
			ask(first, full, 1)
		}
		ramp := limit.LeaseRequest{Least: 50, Ramp: true}
		var seen limit.Decision
		if err := second.Peek(t.Context(), &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: 1}}},
			full, &seen); err != nil || seen.Allowed {
			t.Fatalf("%s: a peek: %v, allowed %t; want a counter that is full", tier.Algorithm, err, seen.Allowed)
		}
		a := ask(first, full, 1, ramp).Lease(0)
		b := ask(second, full, 1, ramp).Lease(0)
		if a.Units == 0 || a.Upfront != 0 {
			t.Fatalf("%s: the first ramp has %d units, %d of them at once; want some that come free later",
				tier.Algorithm, a.Units, a.Upfront)
		}
		var end limit.Decision
		if err := open(t, c).Peek(t.Context(),
			&limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: 1}}}, time.UnixMicro(a.Until),
			&end); err != nil {
			t.Fatal(err)
		}
		if used := end.Results[0].Used(); used > 100 || b.Units > 0 {
			t.Errorf("%s: ramps of %d and %d units are granted, and %d of 100 are used when they end", tier.Algorithm,
				a.Units, b.Units, used)
		}
	}
}
