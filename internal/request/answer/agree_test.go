package answer_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// randomLimits returns one to three limits of one to three tiers each, of any algorithms. Their windows are seconds to
// minutes long.
func randomLimits(t *testing.T, rng *rand.Rand) []*limit.Limit {
	t.Helper()
	var out []*limit.Limit
	for i := range 1 + rng.IntN(3) {
		l := limit.Limit{ID: fmt.Sprint("l", i), MaxCost: 40, AlignOwner: rng.IntN(4) == 0}
		for range 1 + rng.IntN(3) {
			tier := limit.Tier{Algorithm: limit.Algorithms()[rng.IntN(len(limit.Algorithms()))],
				Threshold: 1 + rng.Int64N(30)}
			switch tier.Algorithm {
			case limit.Quota:
				tier.Calendar = &limit.Calendar{Every: limit.Day, Location: time.UTC}
			case limit.TokenBucket:
				tier.Burst = 1 + rng.Int64N(30)
				fallthrough
			default:
				tier.Period = time.Duration(1+rng.IntN(90_000)) * time.Millisecond
			}
			l.Tiers = append(l.Tiers, tier)
		}
		made, err := limit.New(l)
		if err != nil { // two quotas, for one
			continue
		}
		out = append(out, made)
	}
	return out
}

// tierHeader holds what the headers say of one tier: how many units are left, and in how many seconds there are more.
type tierHeader struct{ left, more int64 }

func readRateLimit(t *testing.T, field string) map[string]tierHeader {
	t.Helper()
	list, err := httpsfv.UnmarshalList([]string{field})
	if err != nil {
		t.Fatalf("%q: %v", field, err)
	}
	out := map[string]tierHeader{}
	for _, m := range list {
		item := m.(httpsfv.Item)
		r, _ := item.Params.Get("r")
		s, _ := item.Params.Get("t")
		out[item.Value.(string)] = tierHeader{r.(int64), s.(int64)}
	}
	return out
}

// Guarantees, for every algorithm and any number of limits and tiers: the parameter t is the number of whole seconds
// until more units are left than now; Retry-After is not before the t of any limit that denied; the same cost is
// admitted after Retry-After; and the body says the same as the headers.
func TestHeadersAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var denied, never, allowed int
	seen := map[limit.Algorithm]int{}
	for round := range soak.Times(1500) {
		limits := randomLimits(t, rng)
		if len(limits) == 0 {
			continue
		}
		store, now := newStore(t), noon.Add(time.Duration(rng.Int64N(int64(24*time.Hour))))
		jitter := []int{0, 0, 30, 100}[rng.IntN(4)]
		e := answer.Encoder{JitterPercent: jitter}
		for range 25 {
			now = now.Add(time.Duration(rng.Int64N(int64(5 * time.Second))))
			cost := 1 + rng.Int64N(8)
			d := decide(t, store, acme(), now, 1, cost, limits...)
			wait := answer.Wait{Micros: d.RetryAt - d.Now, Known: !d.Allowed && !d.Never}
			h := e.Header(nil, d, wait)
			says := readRateLimit(t, h.RateLimit)
			where := fmt.Sprintf("round %d, cost %d, allowed %t, %s, Retry-After %q", round, cost, d.Allowed,
				h.RateLimit, h.RetryAfter)

			var retry int64
			switch {
			case d.Allowed:
				allowed++
			case d.Never:
				never++
			default:
				denied++
				retry = readRetryAfter(t, &h, d, wait, jitter)
				if !peek(t, store, now.Add(time.Duration(retry)*time.Second), cost, limits...).Allowed {
					t.Fatalf("%s: the same cost is denied after Retry-After, want it admitted", where)
				}
			}
			if (retry == 0) != (h.RetryAfter == "") {
				t.Fatalf("%s: Retry-After is set without a known wait, or missing with one", where)
			}
			for i := range d.Results {
				r := &d.Results[i]
				seen[r.Tier.Algorithm]++
				name := answer.PolicyName(r.Tier, false)
				said, ok := says[name]
				if !ok || said.left != r.Remaining() || said.more < 1 {
					t.Fatalf("%s: RateLimit says %+v of %s, which has %d units left", where, said, name, r.Remaining())
				}
				if retry > 0 && !r.Admits && retry < said.more {
					t.Fatalf("%s: Retry-After is before the t of %s, which denied the request", where, name)
				}
				if said.left == r.Tier.Capacity() {
					continue // there will never be more
				}
				at := func(seconds int64) int64 {
					later := peek(t, store, now.Add(time.Duration(seconds)*time.Second), 1, limits...)
					return later.Results[i].Remaining()
				}
				if after := at(said.more); after <= said.left {
					t.Fatalf("%s: after the t of %s, %d units are left, want more than now (%s)", where, name, after,
						r.Tier.Algorithm)
				}
				if before := at(said.more - 1); before > said.left {
					t.Fatalf("%s: a second before the t of %s, %d units are left already, want no more than now (%s)",
						where, name, before, r.Tier.Algorithm)
				}
			}
		}
	}
	for _, a := range limit.Algorithms() {
		if seen[a] < soak.Times(1000) {
			t.Errorf("%s: only %d results were checked: the test shows too little", a, seen[a])
		}
	}
	if n := soak.Times(1000); allowed < n || denied < n || never < n {
		t.Errorf("%d allowed, %d denied, %d never allowed: the test shows too little", allowed, denied, never)
	}
}

// readRetryAfter checks that the header, the body and the decision have the same wait, and returns that of the header.
func readRetryAfter(t *testing.T, h *answer.Header, d *limit.Decision, wait answer.Wait, jitter int) int64 {
	t.Helper()
	retry, err := strconv.ParseInt(h.RetryAfter, 10, 64)
	if err != nil {
		t.Fatalf("Retry-After %q: %v", h.RetryAfter, err)
	}
	var body struct {
		Ms *int64 `json:"retry-after-ms"`
	}
	p := answer.Problem{Kind: answer.Limited, Decision: d, Wait: wait}
	if err := json.Unmarshal(p.Append(nil), &body); err != nil || body.Ms == nil {
		t.Fatalf("the body has no retry-after-ms: %v", err)
	}
	exact := d.RetryAt - d.Now
	if ms := *body.Ms; ms*1000 < exact || ms*1000 >= exact+1000 || retry*1000 < ms || jitter == 0 &&
		(retry-1)*1000 >= ms {
		t.Fatalf("the wait is %d µs; the body says %d ms and the header %d s, with up to %d%% of jitter", exact, ms,
			retry, jitter)
	}
	return retry
}

// peek returns the decision about the cost at a later time.
func peek(t *testing.T, s limit.Store, now time.Time, cost int64, limits ...*limit.Limit) *limit.Decision {
	t.Helper()
	req := &limit.Request{Owner: acme()}
	for _, l := range limits {
		req.Charges = append(req.Charges, limit.Charge{Limit: l, Cost: cost})
	}
	d := new(limit.Decision)
	if err := s.Peek(t.Context(), req, now, d); err != nil {
		t.Fatal(err)
	}
	return d
}
