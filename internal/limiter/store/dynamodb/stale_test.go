package dynamodb_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

// Where the table has the bucket that these tests charge.
const (
	tenantItem  = "s0"          // sort key of the item of limits that are per tenant
	burstBucket = "burst/t1000" // attribute of the limit "burst", a token bucket (t) whose period has 1,000 ms
	bucketTime  = "t"           // field of a bucket: the time of the last charge
)

// newBurst returns a limit "burst" per tenant.
func newBurst(t *testing.T, rate, burst, maxCost int64) *limit.Limit {
	t.Helper()
	return must(t, limit.Limit{ID: "burst", MaxCost: maxCost, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: rate, Burst: burst, Period: time.Second},
	}})
}

// wantBucketTime checks the time of the last charge of the bucket in the table.
func wantBucketTime(t *testing.T, client *sdk.Client, namespace string, want time.Time) {
	t.Helper()
	counters, err := dynamodb.Counters(items(t, client, namespace)[tenantItem])
	if err != nil {
		t.Fatal(err)
	}
	if got, want := counters[burstBucket][bucketTime], strconv.FormatInt(want.UnixMicro(), 10); got != want {
		t.Errorf("the bucket's time is %s µs, want %s: it must not move back", got, want)
	}
}

// Guarantees that a process whose clock is behind, and that has not seen another process's charge, does not move a
// bucket's time back: its request is decided at the bucket's own time, as the core does. Without the condition on the
// field t its write would succeed.
//
// A process that knows that the bucket's time is ahead does not write that time, but requires that it is unchanged. No
// test can observe that condition: the level at an earlier time is lower, so a charge that fits then fits at a later
// time, too.
func TestStaleWriterKeepsTheTime(t *testing.T) {
	t.Parallel()
	// A process that finds a very recent charge assumes that others charge the bucket all the time, and writes other
	// conditions.
	for _, after := range []time.Duration{500 * time.Millisecond, time.Millisecond} {
		t.Run(fmt.Sprintf("first charges %s apart", after), func(t *testing.T) { testStaleWriter(t, after) })
	}
}

// testStaleWriter has the process behind make its first charge so long after the first one of the process ahead.
func testStaleWriter(t *testing.T, after time.Duration) {
	client := server(t)
	c := config(client)
	ahead, behind := open(t, c), open(t, c)
	model := memorytest.New(t)
	l := newBurst(t, 10, 100, 50)
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
			t.Errorf("step %d, at %s: got the decision %s, want %s", i, step.at, summary(&got), summary(&want))
		}
	}
	wantBucketTime(t, client, c.Namespace, noon.Add(3*time.Second))
}

// Guarantees that a process whose clock is behind and that leases from a bucket does not move the bucket's time back.
// Its requests are decided at the bucket's own time, as the core does.
func TestStaleLeaseKeepsTheTime(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := config(client)
	s := open(t, c)
	model := memorytest.New(t)
	l := newBurst(t, 10, 100, 50)
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
		if got, want := summary(&got)+leasesText(&got), summary(&want)+leasesText(&want); got != want {
			t.Errorf("step %d, at %s: got the decision %s, want %s", i, at, got, want)
		}
	}
	wantBucketTime(t, client, c.Namespace, noon.Add(900*time.Millisecond))
}

// Guarantees that a process whose clock is behind, and that charges a bucket together with others, is not decided at a
// time after the bucket's own one. Others may have moved that time back since the process has read it, each by a
// little.
func TestStaleTimeOfAContendedBucket(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := config(client)
	behind, other := open(t, c), open(t, c)
	const (
		rate  = 100_000 // units per second, so that the level rises by 100 units in a millisecond
		left  = 1000    // units that are left at latest: what the bucket refills in 10 ms
		moved = 20 * time.Millisecond
	)
	// The bucket's time is latest, and is then moved back to latest − moved. At that time the bucket has 2,000 units
	// less than at latest, so it is empty. The process behind asks at late, which is before both.
	latest := noon.Add(50 * time.Millisecond)
	late := latest.Add(-moved - 10*time.Millisecond)
	l := newBurst(t, rate, rate, rate)
	ask := func(cost int64) *limit.Request {
		return &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: cost}}}
	}
	var d limit.Decision
	charge := func(s limit.Store, at time.Time, cost int64) {
		t.Helper()
		if err := s.Decide(t.Context(), ask(cost), at, &d); err != nil || !d.Allowed {
			t.Fatalf("a charge of %d: got allowed %t, error %v; want it allowed", cost, d.Allowed, err)
		}
	}
	charge(other, noon, 1)
	charge(behind, noon, 1) // notices that another process charges the bucket
	charge(other, noon, 50_000)
	alone := open(t, c) // has not seen another process charge the bucket, so it sets the bucket's time
	if err := alone.Peek(t.Context(), ask(1), latest, &d); err != nil {
		t.Fatal(err)
	}
	charge(alone, latest, d.Results[0].Remaining()-left)
	const cost = 200 // fits at latest, and not at latest − moved
	if err := behind.Peek(t.Context(), ask(cost), late, &d); err != nil || !d.Allowed {
		t.Fatalf("Peek: got allowed %t, error %v; want it allowed", d.Allowed, err)
	}
	var key map[string]types.AttributeValue
	for _, item := range items(t, client, c.Namespace) {
		key = map[string]types.AttributeValue{"PK": item["PK"], "SK": item["SK"]}
	}
	_, err := client.UpdateItem(t.Context(), &sdk.UpdateItemInput{
		TableName: aws.String(table), Key: key, UpdateExpression: aws.String("SET #bucket.#time = :time"),
		ExpressionAttributeNames: map[string]string{"#bucket": burstBucket, "#time": bucketTime},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":time": num(latest.Add(-moved).UnixMicro()),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := behind.Decide(t.Context(), ask(cost), late, &d); err != nil || d.Allowed {
		t.Errorf("got allowed %t, error %v; want a denial: at the bucket's time it was empty", d.Allowed, err)
	}
}

// Guarantees that two processes which lease ramps of a full counter get together at most the units that become free
// until the ramps end, even if the second process has not seen the first one's ramp. Here the first ramp takes all of
// these units, so the second process must get none.
//
// If some units of a ramp can be spent at once, the condition of the write for these units already implies the one for
// the end of the ramp. No test can observe whether a write has both conditions.
func TestStaleRampsAreBoundedTogether(t *testing.T) {
	t.Parallel()
	client := server(t)
	for _, tier := range []limit.Tier{
		{Algorithm: limit.SlidingWindow, Threshold: 100, Period: 10 * time.Second},
		{Algorithm: limit.TokenBucket, Threshold: 100, Period: 10 * time.Second},
	} {
		t.Run(tier.Algorithm.String(), func(t *testing.T) { testStaleRamps(t, client, tier) })
	}
}

// testStaleRamps leases ramps of a limit of 100 units in 10 s.
func testStaleRamps(t *testing.T, client *sdk.Client, tier limit.Tier) {
	c := config(client)
	first, second := open(t, c), open(t, c)
	l := must(t, limit.Limit{ID: "ramps", MaxCost: 100, Tiers: []limit.Tier{tier}})
	request := func(cost int64, leases ...limit.LeaseRequest) *limit.Request {
		return &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: cost}}, Leases: leases}
	}
	decide := func(s limit.Store, at time.Time, req *limit.Request) *limit.Decision {
		t.Helper()
		var d limit.Decision
		if err := s.Decide(t.Context(), req, at, &d); err != nil || !d.Allowed {
			t.Fatalf("a cost of %d: got allowed %t, error %v; want it allowed", req.Charges[0].Cost, d.Allowed, err)
		}
		return &d
	}
	full := noon
	decide(first, noon, request(100))
	if tier.Algorithm == limit.SlidingWindow {
		full = noon.Add(10100 * time.Millisecond) // the previous window still counts 99
		decide(first, full, request(1))
	}
	var seen limit.Decision
	if err := second.Peek(t.Context(), request(1), full, &seen); err != nil || seen.Allowed {
		t.Fatalf("a peek: got allowed %t, error %v; want a counter that is full", seen.Allowed, err)
	}
	// Until the slot ends, which is after 2 s at most, 20 units at most become free. A ramp of 50 takes all of them.
	ramp := limit.LeaseRequest{Least: 50, Ramp: true}
	a := decide(first, full, request(1, ramp)).Lease(0)
	b := decide(second, full, request(1, ramp)).Lease(0)
	if a.Units == 0 || a.Upfront != 0 {
		t.Fatalf("the first ramp has %d units, %d of them at once; want some that come free later", a.Units, a.Upfront)
	}
	var end limit.Decision
	if err := open(t, c).Peek(t.Context(), request(1), time.UnixMicro(a.Until), &end); err != nil {
		t.Fatal(err)
	}
	if used := end.Results[0].Used(); used > 100 || b.Units > 0 {
		t.Errorf("after a first ramp of %d units, the second has %d, and %d of 100 are used when they end; want a "+
			"second ramp without units, and at most 100 used", a.Units, b.Units, used)
	}
}

// Guarantees that a process whose copy of a sliding window is up to three windows old, while another process has
// charged any window since, weighs the count of the window just before the present one: neither none, nor that of an
// earlier window. It decides like the memory store, and leaves what the memory store leaves.
func TestStaleCopyOfASlidingWindow(t *testing.T) {
	t.Parallel()
	client := server(t)
	const period = 10 * time.Second
	l := must(t, limit.Limit{ID: "l", MaxCost: 100, Tiers: []limit.Tier{
		{Algorithm: limit.SlidingWindow, Threshold: 100, Period: period}}})
	request := func(cost int64) *limit.Request {
		return &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: cost}}}
	}
	for age := range 4 { // windows from the stale copy to the decision
		for charged := range age + 1 { // the window that the other process charges
			for _, kind := range []string{"one unit", "what remains", "a unit more than remains"} {
				c := config(client)
				stale, other := open(t, c), open(t, c)
				model := memorytest.New(t)
				both := func(s limit.Store, at time.Time, cost int64) (got, want limit.Decision) {
					if err := errors.Join(s.Decide(t.Context(), request(cost), at, &got),
						model.Decide(t.Context(), request(cost), at, &want)); err != nil {
						t.Fatal(err)
					}
					return got, want
				}
				both(stale, noon, 20)
				both(other, noon.Add(time.Duration(charged)*period+time.Second), 30)
				now := noon.Add(time.Duration(age)*period + 2500*time.Millisecond)
				var got, want limit.Decision
				if err := model.Peek(t.Context(), request(1), now, &want); err != nil {
					t.Fatal(err)
				}
				cost := int64(1)
				switch kind {
				case "what remains":
					cost = max(want.Results[0].Remaining(), 1)
				case "a unit more than remains":
					cost = want.Results[0].Remaining() + 1
				}
				if got, want = both(stale, now, cost); got.Allowed != want.Allowed {
					t.Errorf("a copy %d windows old, window %d charged, a cost of %s (%d): got allowed %t, want %t",
						age, charged, kind, cost, got.Allowed, want.Allowed)
				}
				if err := errors.Join(open(t, c).Peek(t.Context(), request(1), now, &got),
					model.Peek(t.Context(), request(1), now, &want)); err != nil {
					t.Fatal(err)
				}
				if summary(&got) != summary(&want) {
					t.Errorf("a copy %d windows old, window %d charged, after a cost of %s (%d): got %s, want %s", age,
						charged, kind, cost, summary(&got), summary(&want))
				}
			}
		}
	}
}
