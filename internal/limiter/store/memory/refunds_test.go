package memory_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// monthly returns a quota of n units a month.
func monthly(tb testing.TB, n int64) *limit.Limit {
	tb.Helper()
	return newLimit(tb, limit.Limit{ID: "monthly", Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: n,
		Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC}}}})
}

// charge charges a unit of l. It fails tb if the store does not admit it.
func charge(tb testing.TB, s *memory.Store, owner limit.Owner, now time.Time, l *limit.Limit) *limit.Receipt {
	tb.Helper()
	var d limit.Decision
	req := limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: l, Cost: 1}}}
	if err := s.Decide(tb.Context(), &req, now, &d); err != nil || !d.Allowed {
		tb.Fatalf("a decision of %s at %s: allowed %t, %v; %d bytes", owner.Name, now, d.Allowed, err, s.Bytes())
	}
	return d.Receipt()
}

func usedOf(tb testing.TB, s *memory.Store, owner limit.Owner, now time.Time, l *limit.Limit) int64 {
	tb.Helper()
	var d limit.Decision
	req := limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: l, Cost: 1}}}
	if err := s.Peek(tb.Context(), &req, now, &d); err != nil {
		tb.Fatal(err)
	}
	return d.Results[0].Used()
}

// Guarantees that refunds do not take the memory of counters. After two million refunds within the life of a receipt,
// or with a clock that stands still, the store decides as before. A refused refund has given nothing back, and a refund
// is never made twice.
func TestRefundsNeverFailDecisions(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("one goroutine, and the race detector takes minutes for it")
	}
	const maxBytes = 64 << 20
	for _, tc := range []struct {
		name     string
		refunds  int
		between  int // decisions that are not refunded, for each one that is
		maxBytes int64
		step     time.Duration
		refused  bool
	}{
		{"every decision is refunded", 2_000_000, 0, maxBytes, 0, false},
		{"every decision is refunded, within five minutes", 200_000, 0, maxBytes, 1490 * time.Microsecond, false},
		{"few decisions are refunded", 15_000, 63, 4 << 20, 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.refunds > 1_000_000 {
				soak.SkipInQuick(t)
			}
			s, l, owner, now := newStore(t, tc.maxBytes), monthly(t, limit.MaxUnits), tenant(1), start
			kept, refused := int64(0), 0
			var last, lastRefused *limit.Receipt
			for range tc.refunds {
				now = now.Add(tc.step)
				for range tc.between {
					charge(t, s, owner, now, l)
					kept++
				}
				r := charge(t, s, owner, now, l)
				kept++
				back, err := s.Settle(t.Context(), r, nil, now)
				switch {
				case errors.Is(err, limit.ErrSettlementsFull):
					refused, lastRefused = refused+1, r
				case err != nil || len(back.Returned) != 1 || back.Returned[0] != 1 || back.Repeated:
					t.Fatalf("refund: %+v, %v", back, err)
				default:
					kept, last = kept-1, r
				}
			}
			if got := usedOf(t, s, owner, now, l); got != kept {
				t.Errorf("the quota has counted %d units, want %d, those that were charged and not given back", got,
					kept)
			}
			for i := range 1000 { // other owners must still get counters
				charge(t, s, tenant(2+i), now, l)
			}
			if (refused > 0) != tc.refused {
				t.Errorf("%d refunds of %d were refused, want some: %t", refused, tc.refunds, tc.refused)
			}
			if got := s.Bytes(); got > tc.maxBytes {
				t.Errorf("the store takes %d bytes, want at most %d", got, tc.maxBytes)
			}
			back, err := s.Settle(t.Context(), last, nil, now)
			if err != nil || !back.Repeated || back.Returned[0] != 0 {
				t.Errorf("a repeated refund gives back %+v, %v; want nothing", back, err)
			}
			if !tc.refused {
				return
			}
			if _, err := s.Settle(t.Context(), lastRefused, nil, now); !errors.Is(err, limit.ErrSettlementsFull) {
				t.Errorf("the refund that was refused, again: %v, want ErrSettlementsFull", err)
			}
			// Four minutes later the refund is still refused. It is made when the store has forgotten the first
			// refunds.
			now = now.Add(4 * time.Minute)
			late := charge(t, s, owner, now, l)
			if _, err := s.Settle(t.Context(), late, nil, now); !errors.Is(err, limit.ErrSettlementsFull) {
				t.Errorf("while all refunds are remembered: %v, want ErrSettlementsFull", err)
			}
			now, full := now.Add(2*time.Minute), s.Bytes()
			if back, err := s.Settle(t.Context(), late, nil, now); err != nil || back.Returned[0] != 1 {
				t.Errorf("when the first refunds are forgotten: %+v, %v; want a unit", back, err)
			}
			if freed := full - s.Bytes(); freed < tc.maxBytes/10 {
				t.Errorf("%d bytes are freed after all refunds but one have expired, want most of an eighth of %d",
					freed, tc.maxBytes)
			}
		})
	}
}

// Guarantees that no receipt gives anything back twice, whatever the clock does, however many receipts there are, and
// whichever counters are forgotten meanwhile.
func TestRefundedOnceWhateverTheClock(t *testing.T) {
	soak.SkipUnderRace(t)
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 23))
		s, l := newStore(t, 128<<10), monthly(t, limit.MaxUnits)
		passing := bucket(t, "passing", 1000, 1, time.Second)
		given := map[*limit.Receipt]bool{}
		var all []*limit.Receipt
		now, refunds, expired, full, repeated := start, 0, 0, 0, 0
		for step := range 60_000 {
			switch r.IntN(40) {
			case 0:
				now = now.Add(time.Duration(r.Int64N(int64(time.Minute))))
			case 1:
				now = now.Add(-time.Duration(r.Int64N(int64(40 * time.Second))))
			case 2:
				leap := time.Duration(r.Int64N(int64([]time.Duration{6 * time.Minute, time.Hour,
					40 * 24 * time.Hour}[r.IntN(3)])))
				if r.IntN(8) == 0 {
					now = now.Add(leap - 2*leap*time.Duration(r.IntN(2)))
				}
			case 3: // sweeps counters
				_, _ = spend(t, s, tenant(1000+step), now, passing)
			}
			if r.IntN(3) > 0 || len(all) == 0 {
				var d limit.Decision
				req := limit.Request{Owner: tenant(r.IntN(50)), Charges: []limit.Charge{{Limit: l, Cost: 1}}}
				if err := s.Decide(t.Context(), &req, now, &d); err == nil && d.Allowed {
					all = append(all, d.Receipt())
				}
				continue
			}
			receipt := all[max(r.IntN(len(all)), len(all)-1-r.IntN(200))]
			back, err := s.Settle(t.Context(), receipt, nil, now)
			switch {
			case errors.Is(err, limit.ErrSettlementsFull):
				full++
			case err != nil:
				t.Fatal(err)
			case back.Returned[0] > 0 && given[receipt]:
				t.Fatalf("seed %d, step %d: a receipt gives units back a second time", seed, step)
			case back.Returned[0] > 0:
				given[receipt] = true
				refunds++
			case back.Expired:
				expired++
			case back.Repeated:
				repeated++
			}
		}
		if refunds == 0 || expired == 0 || repeated == 0 {
			t.Errorf("seed %d: %d refunds, %d expired, %d repeated, %d refused: the script shows too little", seed,
				refunds, expired, repeated, full)
		}
	}
}

// Guarantees that a store distinguishes receipts of other stores from its own ones and from each other. A lease layer
// and a router pass such receipts to it.
func TestRefundsOfOtherStores(t *testing.T) {
	s, l, owner := newStore(t, 0), monthly(t, 1000), tenant(1)
	var receipts []*limit.Receipt
	for range 3 {
		other := newStore(t, 0)
		for range 100 {
			receipts = append(receipts, charge(t, other, owner, start, l))
			charge(t, s, owner, start, l)
		}
	}
	ids := map[limit.ReceiptID]bool{}
	for i, r := range receipts {
		ids[r.ID()] = true
		for again, want := range []string{"{[1] [0] [0] false false}", "{[0] [0] [0] true false}"} {
			if back, err := s.Settle(t.Context(), r, nil, start); err != nil || fmt.Sprint(back) != want {
				t.Fatalf("receipt %d, refund %d: %v, %v; want %s", i, again, back, err, want)
			}
		}
	}
	if len(ids) != len(receipts) || usedOf(t, s, owner, start, l) != 0 {
		t.Errorf("%d names of %d receipts; %d units are used, want 0", len(ids), len(receipts),
			usedOf(t, s, owner, start, l))
	}
}

// Guarantees that a bucket with a refund is remembered for as long as earlier receipts may be refunded, although the
// refund makes the bucket full earlier: the amount that such a receipt gives back depends on what was refunded since.
func TestRefundedBucketIsRemembered(t *testing.T) {
	s, l, owner := newStore(t, 0), bucket(t, "bucket", 1, 100, time.Second), tenant(1)
	spendUnits := func(after time.Duration, units int64) *limit.Receipt {
		var d limit.Decision
		req := limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: l, Cost: units}}}
		if err := s.Decide(t.Context(), &req, start.Add(after), &d); err != nil || !d.Allowed {
			t.Fatalf("%d units after %s: allowed %t, %v", units, after, d.Allowed, err)
		}
		return d.Receipt()
	}
	early, late := spendUnits(0, 50), spendUnits(0, 50)
	if back, err := s.Settle(t.Context(), early, nil, start); err != nil || back.Returned[0] != 50 {
		t.Fatalf("%+v, %v; want 50 units", back, err)
	}
	subject := newLimit(t, limit.Limit{ID: "subject", Per: "subject",
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 1,
			Period: time.Second}}})
	for i := range 100 { // each new counter makes the store look for counters that it may forget
		var d limit.Decision
		req := limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: subject,
			Value: limit.ValueOf(fmt.Sprint("user-", i)), Cost: 1}}}
		if err := s.Decide(t.Context(), &req, start.Add(56*time.Second), &d); err != nil {
			t.Fatal(err)
		}
	}
	spendUnits(57*time.Second, 100) // the bucket was full before
	if back, err := s.Settle(t.Context(), late, nil, start.Add(60*time.Second)); err != nil || back.Returned[0] != 0 {
		t.Errorf("%+v, %v; want nothing: without the charge the bucket would have been full, too", back, err)
	}
}
