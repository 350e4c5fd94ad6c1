package dynamodb_test

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Guarantees that a process whose clock is behind by more than the time in which a bucket fills is not denied while
// other processes charge that bucket. Otherwise one process of many would deny the tenant although the bucket has room.
func TestSlowClock(t *testing.T) {
	soak.SkipUnderRace(t)
	t.Parallel()
	client := server(t)
	for name, tier := range map[string]limit.Tier{
		"a bucket with room":         {Algorithm: limit.TokenBucket, Threshold: 1000, Period: time.Second, Burst: 500},
		"a small bucket with room":   {Algorithm: limit.TokenBucket, Threshold: 300, Period: time.Second, Burst: 50},
		"a bucket that is half full": {Algorithm: limit.TokenBucket, Threshold: 1000, Period: time.Second, Burst: 500},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(client)
			fast, other, slow := open(t, c), open(t, c), open(t, c)
			l := must(t, limit.Limit{ID: "burst", MaxCost: 250, Tiers: []limit.Tier{tier}})
			req := func(cost int64) *limit.Request {
				return &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: cost}}}
			}
			var d limit.Decision
			denied := 0
			if name == "a bucket that is half full" {
				if err := fast.Decide(t.Context(), req(250), noon, &d); err != nil || !d.Allowed {
					t.Fatalf("a charge of half of the burst: %v, allowed %t; want it allowed", err, d.Allowed)
				}
			}
			for i := range 100 {
				now := noon.Add(time.Duration(i) * 20 * time.Millisecond)
				for _, s := range []*struct {
					who    string
					decide func(time.Time) error
				}{
					{"fast", func(at time.Time) error { return fast.Decide(t.Context(), req(1), at, &d) }},
					{"other", func(at time.Time) error {
						return other.Decide(t.Context(), req(1),
							at.Add(time.Millisecond), &d)
					}},
					{"slow", func(at time.Time) error {
						return slow.Decide(t.Context(), req(1), at.Add(-time.Second),
							&d)
					}},
				} {
					if err := s.decide(now); err != nil {
						t.Fatalf("%s at step %d: %v", s.who, i, err)
					}
					if !d.Allowed {
						denied++
						if denied < 4 {
							t.Errorf("%s at step %d: denied, although %d of %d units remain", s.who, i,
								d.Results[0].Remaining(), tier.Burst)
						}
					}
				}
			}
			if denied > 0 {
				t.Errorf("%d of 300 decisions are denied, want none", denied)
			}
		})
	}
}

// Guarantees that processes with different clocks that charge one bucket never admit too much together: in every
// interval between two decisions, at most the burst and what the rate refills in that time.
func TestBoundTogether(t *testing.T) {
	t.Parallel()
	client := server(t)
	const rate, burst, writers, each = 1000, 200, 8, 150
	c := config(client)
	l := must(t, limit.Limit{ID: "burst", MaxCost: 9, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: rate, Period: time.Second, Burst: burst},
	}})
	type spend struct{ at, units int64 }
	var mu sync.Mutex
	var spends []spend
	var wg sync.WaitGroup
	step := 0
	for w := range writers {
		s := open(t, c)
		r := rand.New(rand.NewPCG(uint64(w), 5))
		skew := time.Duration(w-writers/2) * 7 * time.Millisecond
		wg.Go(func() {
			var d limit.Decision
			for range each {
				mu.Lock()
				step++ // first less than the rate on average, then more
				at := noon.Add(time.Duration(step)*(2+time.Duration(step/400%2)*6)*time.Millisecond + skew)
				mu.Unlock()
				cost := 1 + r.Int64N(9)
				err := s.Decide(t.Context(), &limit.Request{Owner: acme,
					Charges: []limit.Charge{{Limit: l, Cost: cost}}}, at, &d)
				if err != nil && !errors.Is(err, dynamodb.ErrUndecided) {
					t.Error(err)
				}
				if err == nil && d.Allowed {
					mu.Lock()
					spends = append(spends, spend{d.Now, cost})
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	slices.SortFunc(spends, func(a, b spend) int { return cmp.Compare(a.at, b.at) })
	const late = 2 * writers * 8 * 1000 // µs by which clocks differ and decisions can overtake each other
	for i := range spends {
		units := int64(0)
		for j := i; j < len(spends); j++ {
			units += spends[j].units
			if most := burst + (spends[j].at-spends[i].at+late)*rate/1_000_000; units > most {
				t.Fatalf("%d units within %d µs, want at most %d", units, spends[j].at-spends[i].at, most)
			}
		}
	}
	if len(spends) < writers*each/4 {
		t.Errorf("%d of %d decisions were admitted: the script shows too little", len(spends), writers*each)
	}
}
