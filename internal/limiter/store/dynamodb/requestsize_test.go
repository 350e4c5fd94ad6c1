package dynamodb_test

import (
	"errors"
	"fmt"
	"net"
	"sort"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// kind makes limit number i of a plan that is as large as DynamoDB accepts.
type kind func(tb testing.TB, i int, threshold int64) *limit.Limit

func kindOf(a limit.Algorithm, per string) kind {
	return func(tb testing.TB, i int, threshold int64) *limit.Limit {
		t := limit.Tier{Algorithm: a, Threshold: threshold, Period: 24 * time.Hour}
		switch a {
		case limit.Quota:
			t.Period, t.Calendar = 0, &limit.Calendar{Every: limit.Day, Location: time.UTC}
		case limit.LeakyBucket: // a leaky_bucket admits one request at a time
			t.Period = time.Second
		}
		return must(tb, limit.Limit{ID: fmt.Sprint("l", i), Per: per, Tiers: []limit.Tier{t}})
	}
}

// mixKinds uses the kinds in turn.
func mixKinds(kinds ...kind) kind {
	return func(tb testing.TB, i int, threshold int64) *limit.Limit {
		return kinds[i%len(kinds)](tb, i, threshold)
	}
}

func kinds() map[string]kind {
	all := map[string]kind{}
	var mix []kind
	for _, per := range []string{"tenant", "endpoint", "subject"} {
		for _, a := range limit.Algorithms() {
			if a == limit.SlidingLog {
				continue
			}
			k := kindOf(a, per)
			mix = append(mix, k)
			if per != "endpoint" { // limits per endpoint share items with limits per tenant
				all[fmt.Sprintf("%s per %s", a, per)] = k
			}
		}
	}
	all["all of them"] = mixKinds(mix...)
	all["token buckets with leases beside windows, per subject"] = mixKinds(kindOf(limit.TokenBucket, "subject"),
		kindOf(limit.SlidingWindow, "subject"))
	all["sliding buckets of 128, per subject"] = func(tb testing.TB, i int, threshold int64) *limit.Limit {
		return must(tb, limit.Limit{ID: fmt.Sprint("l", i), Per: "subject", Tiers: []limit.Tier{
			{Algorithm: limit.SlidingBuckets, Threshold: threshold, Period: 24 * time.Hour,
				Buckets: limit.MaxBuckets}}})
	}
	all["sixteen tiers, per subject"] = func(tb testing.TB, i int, threshold int64) *limit.Limit {
		l := limit.Limit{ID: fmt.Sprint("l", i), Per: "subject"}
		for n := range limit.MaxTiers {
			l.Tiers = append(l.Tiers, limit.Tier{Algorithm: limit.TokenBucket, Threshold: threshold + int64(n),
				Period: time.Duration(n+1) * time.Hour})
		}
		return must(tb, l)
	}
	return all
}

func chargesOf(limits []*limit.Limit) (out []limit.Charge) {
	for _, l := range limits {
		c := limit.Charge{Limit: l, Cost: 1}
		if l.Per != limit.PerTenant {
			c.Value = limit.ValueOf("PUT /v1/organizations/{orgId}/product/*")
		}
		out = append(out, c)
	}
	return out
}

// largest returns as many limits as the store accepts in one request. It refuses one more.
func largest(tb testing.TB, s *dynamodb.Store, k kind) (limits []*limit.Limit) {
	tb.Helper()
	const most = 400
	for i := range most {
		limits = append(limits, k(tb, i, 1000))
	}
	n := sort.Search(most, func(n int) bool {
		err := s.AcceptsPlan(limits[:n+1], limits[:n+1])
		if err != nil && !errors.Is(err, limit.ErrTooLarge) {
			tb.Errorf("%d limits are refused by %v, want ErrTooLarge", n+1, err)
		}
		return err != nil
	})
	if n == most {
		tb.Fatalf("the store accepts %d limits in one request, want a bound on their number", n)
	}
	return limits[:n:n]
}

// Guarantees that the store can decide over every plan that it accepts, in whatever state the counters are: new, known,
// charged by other processes meanwhile, idle, of other windows, of another rate, with leases, and for a process without
// copies.
func TestLargestPlans(t *testing.T) {
	t.Parallel()
	client := server(t)
	least := map[string]int{"sixteen tiers, per subject": 5, "all of them": 99,
		"sliding buckets of 128, per subject": 60}
	for name, k := range kinds() {
		if soak.RaceEnabled && name != "all of them" { // other kinds use only one goroutine
			continue
		}
		for _, leases := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/leases %t", name, leases), func(t *testing.T) {
				t.Parallel()
				c := config(client)
				s, peer := open(t, c), open(t, c)
				limits := largest(t, s, k)
				t.Logf("%d limits", len(limits))
				if want := max(least[name], 1); len(limits) < want {
					t.Errorf("%d limits are accepted, want at least %d", len(limits), want)
				}
				changed := make([]*limit.Limit, len(limits))
				for i := range limits {
					changed[i] = k(t, i, 1001)
				}
				var last limit.Decision
				decide := func(what string, s *dynamodb.Store, limits []*limit.Limit, after time.Duration) {
					t.Helper()
					req := &limit.Request{Owner: acme, Charges: chargesOf(limits)}
					if leases {
						req.Leases = leasesOf(req.Charges, &last)
					}
					d := limit.Decision{}
					if err := retryReset(func() error {
						return s.Decide(t.Context(), req, noon.Add(after),
							&d)
					}); err != nil {
						t.Fatalf("%s: %v", what, err)
					} else if !d.Allowed {
						t.Fatalf("%s: the request is denied, want it allowed", what)
					}
					last = d
				}
				decide("new counters", s, limits, 0)
				decide("known counters", s, limits, time.Second)
				for i := range 3 {
					decide("a peer", peer, limits, time.Duration(2+2*i)*time.Second)
					decide("after a peer", s, limits, time.Duration(3+2*i)*time.Second)
				}
				refund := func(what string, s *dynamodb.Store, after time.Duration) {
					t.Helper()
					receipt := last.Receipt()
					if err := retryReset(func() error {
						_, err := s.Settle(t.Context(), receipt, nil,
							noon.Add(after))

						return err
					}); err != nil {
						t.Fatalf("%s: %v", what, err)
					}
				}
				refund("a refund", s, 8*time.Second)
				decide("after a refund", s, limits, 9*time.Second)
				decide("after a pause", s, limits, 10*time.Hour)
				decide("after a pause, by a peer", peer, limits, 10*time.Hour+2*time.Second)
				decide("at other rates", s, changed, 10*time.Hour+4*time.Second)
				decide("at other rates, once more", s, changed, 10*time.Hour+6*time.Second)
				decide("in the next window", s, changed, 36*time.Hour)
				decide("by a process that knows nothing", open(t, c), changed, 36*time.Hour+time.Second)
				decide("long after", s, changed, 100*time.Hour)
				refund("a refund by a process that knows nothing", open(t, c), 100*time.Hour)
			})
		}
	}
}

// retryReset repeats a call if the connection to DynamoDB Local was closed during a large reply, which sometimes
// happens.
func retryReset(call func() error) (err error) {
	for range 4 {
		if err = call(); !errors.Is(err, net.ErrClosed) {
			break
		}
	}
	return err
}

// leasesOf asks for a lease of each counter, and returns some of the units that the last decision leased.
func leasesOf(charges []limit.Charge, last *limit.Decision) (out []limit.LeaseRequest) {
	for _, c := range charges {
		for i := range c.Limit.Tiers {
			a := limit.LeaseRequest{Need: c.Cost, Least: 5}
			switch c.Limit.Tiers[i].Algorithm {
			case limit.LeakyBucket:
				a = limit.LeaseRequest{Need: c.Cost}
			case limit.SlidingBuckets:
				a.Life = 1_000_000
			}
			if g := last.Lease(len(out)); g.Units > 2 {
				a.Correction, a.CorrectionAt = -2, g.At
			}
			out = append(out, a)
		}
	}
	return out
}

// Guarantees that a decision over as many items as a transaction may write is made, also by a process that has to find
// the items first.
func TestLargestChain(t *testing.T) {
	soak.SkipUnderRace(t)
	t.Parallel()
	client := server(t)
	c := config(client)
	s := open(t, c)
	wide := func(tb testing.TB, i int, threshold int64) *limit.Limit { // each limit fills an item
		return must(tb, limit.Limit{ID: fmt.Sprint("l", i), Tiers: []limit.Tier{
			{Algorithm: limit.SlidingBuckets, Threshold: threshold, Period: time.Hour, Buckets: limit.MaxBuckets}}})
	}
	limits := largest(t, s, wide)
	var d limit.Decision
	for _, l := range limits {
		err := s.Decide(t.Context(), requestOne(l), noon, &d)
		for n := 0; errors.Is(err, dynamodb.ErrUndecided) && n < 3; n++ { // marking an item as full takes a try
			err = s.Decide(t.Context(), requestOne(l), noon, &d)
		}
		if err != nil || !d.Allowed {
			t.Fatalf("%s: %v, allowed %t", l.ID, err, d.Allowed)
		}
	}
	if n := len(items(t, client, c.Namespace)); n != len(limits) {
		t.Fatalf("the counters lie in %d items, want %d", n, len(limits))
	}
	for who, s := range map[string]*dynamodb.Store{"one that made them": s, "one that knows nothing": open(t, c)} {
		if err := s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: chargesOf(limits)}, noon.Add(time.Minute),
			&d); err != nil || !d.Allowed {
			t.Errorf("%s: %v, allowed %t", who, err, d.Allowed)
			continue
		}
		back, err := s.Settle(t.Context(), d.Receipt(), nil, noon.Add(time.Minute))
		if err != nil || back.Returned[0] != 1 {
			t.Errorf("%s: a refund gives back %v, %v; want all units", who, back.Returned, err)
		}
	}
}

// Guarantees that a request that is too large is an error that says so and that the store answered, that it charges
// nothing, and that nothing is sent for it.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	client := server(t)
	for _, per := range []string{"tenant", "subject"} {
		c := config(client)
		s := open(t, c)
		var limits []*limit.Limit
		for i := range 200 {
			limits = append(limits, kindOf(limit.FixedWindow, per)(t, i, 10))
		}
		for _, leases := range []bool{false, true} {
			req := &limit.Request{Owner: acme, Charges: chargesOf(limits)}
			if leases {
				req.Leases = leasesOf(req.Charges, &limit.Decision{})
			}
			var d limit.Decision
			if err := s.Decide(t.Context(), req, noon, &d); !errors.Is(err, limit.ErrTooLarge) ||
				!limit.Answered(err) || d.Allowed || len(d.Results) > 0 && d.Results[0].Charged > 0 {
				t.Errorf("200 limits per %s, leases %t: %v, allowed %t; want ErrTooLarge", per, leases, err, d.Allowed)
			}
		}
		if all := items(t, client, c.Namespace); len(all) > 0 {
			t.Errorf("per %s: a request that is too large has written %d items, want none", per, len(all))
		}
	}
	huge := make([]*limit.Limit, 100) // a request cannot have more than one of them
	for i := range huge {
		huge[i] = must(t, limit.Limit{ID: fmt.Sprint("l", i), Per: "subject", Tiers: []limit.Tier{
			{Algorithm: limit.SlidingBuckets, Threshold: 5, Period: time.Hour, Buckets: limit.MaxBuckets}}})
	}
	if err := open(t, config(client)).AcceptsPlan(huge, huge[:1]); !errors.Is(err, limit.ErrTooLarge) {
		t.Errorf("100 limits per subject of 128 buckets each: %v, want that they do not fit into an item", err)
	}
}
