package dynamodb_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// storeOldLayout changes every item of the namespace whose sort key begins with prefix to layout version 1,
// in which a fixed_window had no count of the previous window.
func storeOldLayout(tb testing.TB, c *sdk.Client, namespace, prefix string) {
	tb.Helper()
	found := false
	for sk, item := range items(tb, c, namespace) {
		if !strings.HasPrefix(sk, prefix) {
			continue
		}
		found = true
		item["v"] = num(1)
		for _, counter := range item {
			if m, ok := counter.(*types.AttributeValueMemberM); ok && m.Value["o"] != nil {
				delete(m.Value, "o")
				delete(m.Value, "p")
			}
		}
		put(tb, c, item)
	}
	if !found {
		tb.Fatalf("no item has a sort key that begins with %q", prefix)
	}
}

// chargesOfEachForm returns charges of a counter of each algorithm: per tenant and per endpoint, which are in the
// shared item, and per subject, which are in the item of a value.
func chargesOfEachForm(tb testing.TB) (charges []limit.Charge) {
	tb.Helper()
	for _, per := range []string{"tenant", "endpoint", "subject"} {
		for i, a := range dynamodb.Counted() {
			tier := limit.Tier{Algorithm: a, Threshold: 1_000_000, Period: 10 * time.Second}
			if a.HasBuckets() {
				tier.Buckets = 3
			}
			if a.HasBurst() {
				tier.Threshold = 100 // several stores fill a larger bucket only up to 31/32
			}
			if a.HasCalendar() {
				tier.Period, tier.Calendar = 0, &limit.Calendar{Every: limit.Day, Location: time.UTC}
			}
			charge := limit.Charge{Cost: 1, Limit: must(tb, limit.Limit{ID: fmt.Sprint("l", i), Per: per,
				Tiers: []limit.Tier{tier}})}
			if per != limit.PerTenant {
				charge.Value = limit.ValueOf("a")
			}
			charges = append(charges, charge)
		}
	}
	return charges
}

// leaseRequests returns requests for the units of each charge, and for a lease if the algorithm has leases.
func leaseRequests(charges []limit.Charge) []limit.LeaseRequest {
	out := make([]limit.LeaseRequest, len(charges))
	for i, c := range charges {
		switch out[i].Need = c.Cost; c.Limit.Tiers[0].Algorithm {
		case limit.LeakyBucket:
		case limit.SlidingBuckets:
			out[i].Least, out[i].Life = 5, 500_000
		default:
			out[i].Least = 5
		}
	}
	return out
}

// Guarantees that every call that reads an item of an earlier layout version returns an error that says what to do, and
// that the item is neither decoded, nor changed, nor treated as an empty item.
func TestEarlierLayout(t *testing.T) {
	soak.SkipUnderRace(t)
	t.Parallel()
	client := server(t)
	all := chargesOfEachForm(t)
	n := len(dynamodb.Counted())
	for _, old := range []struct{ name, prefix string }{{"the shared item", "s"}, {"the item of a value", "v"},
		{"all items", ""}} {
		for i := range all {
			of, what := all[i:i+1], fmt.Sprintf("%s per %s", all[i].Limit.Tiers[0].Algorithm, all[i].Limit.Per)
			if shared := i < 2*n; old.prefix != "" && shared != (old.prefix == "s") {
				other := all[i%n] // in the other item, so that a decision is a transaction
				if shared {
					other = all[2*n+i%n]
				}
				of = []limit.Charge{all[i], other}
			}
			t.Run(old.name+"/"+what, func(t *testing.T) {
				t.Parallel()
				c := config(client)
				s := open(t, c)
				var d limit.Decision
				req := &limit.Request{Owner: acme, Charges: of}
				if err := s.Decide(t.Context(), req, noon, &d); err != nil || !d.Allowed {
					t.Fatalf("the first decision: %v, allowed %t; want it allowed", err, d.Allowed)
				}
				receipt := d.Receipt()
				storeOldLayout(t, client, c.Namespace, old.prefix)
				before := items(t, client, c.Namespace)
				leases := &limit.Request{Owner: acme, Charges: of, Leases: leaseRequests(of)}
				for who, s := range map[string]*dynamodb.Store{"one that knew the item": s, "a new one": open(t, c)} {
					for at, now := range map[string]time.Time{"at the same time": noon.Add(time.Millisecond),
						"in the next window": noon.Add(10 * time.Second),
						"long after":         noon.Add(40 * time.Hour)} {
						for call, err := range map[string]error{
							"a decision": s.Decide(t.Context(), req, now, &d),
							"a lease":    s.Decide(t.Context(), leases, now, &d),
							"a second peek": errors.Join(s.Peek(t.Context(), req, now, &d),
								s.Peek(t.Context(), req, now, &d)),
						} {
							if !errors.Is(err, limit.ErrUnreadable) || !strings.Contains(fmt.Sprint(err),
								"layout version is 1") ||
								!strings.Contains(fmt.Sprint(err), "delete the item") {
								t.Errorf("%s, by %s %s: %v, want that the layout version is 1, and what to do", call,
									who, at, err)
							}
						}
					}
					if _, err := s.Settle(t.Context(), receipt, nil, noon.Add(time.Millisecond)); !errors.Is(err,
						limit.ErrUnreadable) {
						t.Errorf("a refund by %s: %v, want ErrUnreadable", who, err)
					}
				}
				for sk, item := range items(t, client, c.Namespace) {
					if item["v"].(*types.AttributeValueMemberN).Value == "1" && !reflect.DeepEqual(item, before[sk]) {
						t.Errorf("a refused call has changed the item %q", sk)
					}
				}
				for _, charge := range of { // the charges of readable items came back
					if st := usedUnits(t, open(t, c), charge); st > 1 {
						t.Errorf("%d units of %s are used after one decision and several errors", st, charge.Limit.ID)
					}
				}
			})
		}
	}
}

// usedUnits returns how many units of a charge's counter are used long before its window ends, or 0 if it cannot be
// read.
func usedUnits(tb testing.TB, s *dynamodb.Store, charge limit.Charge) int64 {
	tb.Helper()
	var d limit.Decision
	err := s.Peek(tb.Context(), &limit.Request{Owner: acme, Charges: []limit.Charge{charge}},
		noon.Add(time.Millisecond), &d)
	switch {
	case errors.Is(err, limit.ErrUnreadable), charge.Limit.Tiers[0].Algorithm == limit.LeakyBucket:
		return 0
	case err != nil:
		tb.Fatal(err)
	}
	return d.Results[0].Used()
}

// Guarantees that the item of a refund by an earlier version is refused. Its existence says that the receipt was
// refunded, but not how the units came back.
func TestEarlierRefund(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := config(client)
	s := open(t, c)
	l := must(t, limit.Limit{ID: "even", Tiers: []limit.Tier{{Algorithm: limit.LeakyBucket, Threshold: 10,
		Period: 10 * time.Second}}})
	var first, second limit.Decision
	if err := errors.Join(s.Decide(t.Context(), requestOne(l), noon, &first),
		s.Decide(t.Context(), requestOne(l), noon.Add(time.Second), &second)); err != nil {
		t.Fatal(err)
	}
	// A refund of the first charge gives nothing back, by a plain write. A refund of the second charge gives back a
	// unit, by a transaction.
	for want, d := range []*limit.Decision{&first, &second} {
		if back, err := s.Settle(t.Context(), d.Receipt(), nil, noon.Add(time.Second)); err != nil ||
			back.Returned[0] != int64(want) {
			t.Fatalf("refund of charge %d: %+v, %v; want %d units", want+1, back, err, want)
		}
		storeOldLayout(t, client, c.Namespace, "r")
		if back, err := s.Settle(t.Context(), d.Receipt(), nil, noon.Add(time.Second)); !errors.Is(err,
			limit.ErrUnreadable) {
			t.Errorf("refund of charge %d, once more: %+v, %v; want ErrUnreadable", want+1, back, err)
		}
	}
}

// Guarantees that a counter that cannot be read fails only the requests that need it. The other counters of its item
// are decided on.
func TestOneBadCounter(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := config(client)
	s := open(t, c)
	good, bad := window(t, "good", 5), window(t, "bad", 5)
	both := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: good, Cost: 1}, {Limit: bad, Cost: 1}}}
	var d limit.Decision
	if err := s.Decide(t.Context(), both, noon, &d); err != nil {
		t.Fatal(err)
	}
	item := items(t, client, c.Namespace)["s0"]
	item["bad/f10000"] = num(7)
	put(t, client, item)
	for who, s := range map[string]*dynamodb.Store{"one that knew the item": s, "a new one": open(t, c)} {
		for _, now := range []time.Time{noon, noon.Add(10 * time.Second), noon.Add(time.Hour)} {
			if err := s.Decide(t.Context(), requestOne(good), now, &d); err != nil || !d.Allowed {
				t.Errorf("%s: a decision on the readable counter: %v, allowed %t; want it allowed", who, err, d.Allowed)
			}
			for _, req := range []*limit.Request{requestOne(bad), both} {
				if err := s.Decide(t.Context(), req, now, &d); !errors.Is(err, limit.ErrUnreadable) ||
					!strings.Contains(err.Error(), "bad/f10000") {
					t.Errorf("%s: the bad counter: %v, want an error that names it", who, err)
				}
			}
		}
	}
}
