package limittest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// StoredAt is the time at which [StoredCase.Fill] charges.
var StoredAt = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// StoredCase is a set of counters that together have every stored form. Tests make fixtures of it: [StoredCase.Fill]
// fills an empty store, and the stored data is committed once. Later versions of the store must read it.
type StoredCase struct {
	Name  string
	Owner limit.Owner // used by this case only

	// Charges lists, for each request in turn, every counter that Fill charges.
	Charges [][]limit.Charge

	fill func(c *StoredCase, ask asker, refund func(*limit.Receipt) error) error
}

// asker makes a decision, and returns an error unless the request is admitted. It takes one lease request for each tier
// of the charges, or none.
type asker func(after time.Duration, charges []limit.Charge, leases ...limit.LeaseRequest) (*limit.Decision, error)

// Fill charges the counters of the case in a store that does not have them yet.
func (c *StoredCase) Fill(ctx context.Context, s limit.Store) error {
	ask := func(after time.Duration, charges []limit.Charge, leases ...limit.LeaseRequest) (*limit.Decision, error) {
		d := new(limit.Decision)
		err := s.Decide(ctx, &limit.Request{Owner: c.Owner, Charges: charges, Leases: leases}, StoredAt.Add(after), d)
		if err == nil && !d.Allowed {
			err = fmt.Errorf("a charge of %s is denied", charges[0].Limit.ID)
		}
		return d, err
	}
	refund := func(r *limit.Receipt) error {
		back, err := s.Settle(ctx, r, r.Without(1), StoredAt.Add(time.Millisecond))
		if err == nil && (back.Repeated || len(back.Returned) == 0) {
			err = fmt.Errorf("the refund gave nothing back: %+v", back)
		}
		return err
	}
	if c.fill != nil {
		if err := c.fill(c, ask, refund); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		return nil
	}
	for i, charges := range c.Charges {
		for n := range 2 {
			if _, err := ask(time.Duration(2*i+n)*time.Second, charges); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
		}
	}
	return nil
}

// Stored returns the cases with the limits that the store accepts.
func Stored(tb testing.TB, accepts func(*limit.Limit) error) []StoredCase {
	tb.Helper()
	paris, err := time.LoadLocation("Europe/Paris")
	if err != nil {
		tb.Fatal(err)
	}
	tier := func(a limit.Algorithm, threshold int64, period time.Duration) limit.Tier {
		return limit.Tier{Algorithm: a, Threshold: threshold, Period: period}
	}
	charge := func(cost int64, value limit.Value, l limit.Limit) limit.Charge {
		l.MaxCost = 10
		return limit.Charge{Limit: MustNew(tb, l), Value: value, Cost: cost}
	}
	whole := func(cost int64, l limit.Limit) limit.Charge { return charge(cost, limit.Value{}, l) }
	one := func(id string, t limit.Tier) limit.Charge {
		return whole(1, limit.Limit{ID: id, Tiers: []limit.Tier{t}})
	}
	bucket := tier(limit.TokenBucket, 100, time.Second)
	bucket.Burst = 200
	month := limit.Tier{Algorithm: limit.Quota, Threshold: 1_000_000,
		Calendar: &limit.Calendar{Every: limit.Month, Location: paris, AnchorDay: 15}}
	windows := []limit.Charge{
		whole(2, limit.Limit{ID: "windows", AlignOwner: true, Tiers: []limit.Tier{
			tier(limit.FixedWindow, 20, time.Second), tier(limit.FixedWindow, 100, 10*time.Second)}}),
		one("sliding", tier(limit.SlidingWindow, 600, time.Minute)),
		one("burst", bucket),
		one("even", tier(limit.LeakyBucket, 50, time.Second)),
		one("monthly", month),
		whole(1, limit.Limit{ID: "tried", Mode: limit.Shadow,
			Tiers: []limit.Tier{tier(limit.FixedWindow, 1, time.Minute)}}),
	}
	stamps := []limit.Charge{
		one("steps", tier(limit.SlidingBuckets, 100, time.Minute)),
		one("log", tier(limit.SlidingLog, 100, time.Minute))}
	per := limit.Limit{ID: "person", Per: "subject", MaxValues: 2,
		Tiers: []limit.Tier{tier(limit.FixedWindow, 30, time.Hour), bucket}}
	route := limit.Limit{ID: "put-product", Per: "endpoint",
		Tiers: []limit.Tier{tier(limit.FixedWindow, 20, time.Minute)}}
	var routes [][]limit.Charge
	for i := range 24 {
		routes = append(routes, []limit.Charge{charge(1,
			limit.ValueOf(fmt.Sprintf("PUT /v1/organizations/{orgId}/product-%d/*", i)), route)})
	}
	cases := []StoredCase{
		{Name: "windows", Charges: [][]limit.Charge{windows}},
		{Name: "stamps", Charges: [][]limit.Charge{append(stamps, windows[2])}},
		{Name: "scoped", Charges: [][]limit.Charge{
			{windows[2], whole(1, limit.Limit{ID: "writes",
				Tiers: []limit.Tier{tier(limit.SlidingWindow, 60, time.Minute)}}), routes[0][0]}}},
		{Name: "values", Charges: [][]limit.Charge{ // the value "carol" is beyond MaxValues
			{windows[2], charge(1, limit.ValueOf("alice"), per)}, {charge(2, limit.Value{Kind: limit.ValueAbsent},
				per)},
			{charge(1, limit.ValueOf("bob"), per)}, {charge(3, limit.ValueOf("carol"), per)}}},
		{Name: "routes", Charges: routes},
		{Name: "leased", Charges: [][]limit.Charge{append(stamps, windows[:3]...)}, fill: func(c *StoredCase, ask asker,
			_ func(*limit.Receipt) error) error {
			var leases []limit.LeaseRequest
			for _, charge := range c.Charges[0] {
				for range charge.Limit.Tiers {
					leases = append(leases, limit.LeaseRequest{Need: charge.Cost, Least: 5})
				}
			}
			_, err := ask(0, c.Charges[0], leases...)
			return err
		}},
		{Name: "late", Charges: [][]limit.Charge{{windows[2]}}, fill: func(c *StoredCase, ask asker,
			_ func(*limit.Receipt) error) error {
			d, err := ask(0, c.Charges[0], limit.LeaseRequest{Need: 1, Least: 120})
			if err != nil {
				return err
			}
			g := d.Lease(0)
			_, err = ask(time.UnixMicro(g.Until).Sub(StoredAt)+time.Millisecond, c.Charges[0],
				limit.LeaseRequest{Need: 1, Least: 7,
					Correction: -30, CorrectionAt: g.At})
			return err
		}},
		{Name: "refunded", Charges: [][]limit.Charge{append(stamps, windows...)}, fill: func(c *StoredCase, ask asker,
			refund func(*limit.Receipt) error) error {
			if _, err := ask(-time.Second, c.Charges[0]); err != nil {
				return err
			}
			second, err := ask(0, c.Charges[0])
			if err != nil {
				return err
			}
			return refund(second.Receipt())
		}},
		{Name: "address", Owner: limit.Owner{Kind: limit.Address, Name: strings.Repeat("0f", 16)},
			Charges: [][]limit.Charge{{windows[2]}}},
	}
	for i := range cases {
		c := &cases[i]
		if c.Owner.Kind == 0 {
			c.Owner = limit.Owner{Kind: limit.Tenant, Name: "stored " + c.Name}
		}
		for j, charges := range c.Charges {
			var kept []limit.Charge
			for _, charge := range charges {
				if accepts(charge.Limit) == nil {
					kept = append(kept, charge)
				}
			}
			c.Charges[j] = kept
		}
	}
	return cases
}

// StoredLines returns a JSON array with one line for each element.
func StoredLines[T any](tb testing.TB, list []T) []byte {
	tb.Helper()
	lines := make([][]byte, len(list))
	for i := range list {
		var err error
		if lines[i], err = json.Marshal(&list[i]); err != nil {
			tb.Fatal(err)
		}
	}
	return fmt.Appendf(nil, "[\n%s\n]\n", bytes.Join(lines, []byte(",\n")))
}
