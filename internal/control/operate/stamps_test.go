package operate_test

import (
	"context"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/plan"
	"slices"
	"strings"
	"testing"
	"time"
)

// Guarantees that the next free time of a leaky bucket is the present after a reset, and earlier after a refund, on
// every store; and that neither is a credit for later.
func TestALeakyBucketIsFreed(t *testing.T) {
	eachStore(t, func(t *testing.T, store limit.Store) {
		w := newCellWorld(t, store)
		if !w.spend("acme", "leaky", 500) || !w.spend("other", "leaky", 500) || w.spend("acme", "leaky", 1) {
			t.Fatal("500 of 1000 units a day are not followed by a denial, want one")
		}
		slot := func(tenant string) time.Duration {
			r, err := w.s.Peek(t.Context(), actor, &operate.Counters{Tenant: tenant, Limit: "leaky"})
			if err != nil {
				t.Fatal(err)
			}
			return r.Counters[0].ResetAt.Sub(r.At).Round(time.Hour)
		}
		r, err := w.s.Refund(t.Context(), actor, &operate.Counters{Tenant: "acme", Limit: "leaky", Units: 250,
			Reason: "our fault"})
		if err != nil || slot("acme") != 6*time.Hour || r.Counters[0].Used != 1000 {
			t.Fatalf("refund of 250: %+v, %v, and the slot is %s away, want 6h", r, err, slot("acme"))
		}
		for range 2 {
			r, err = w.s.Reset(t.Context(), actor, &operate.Counters{Tenant: "acme", Limit: "leaky",
				Reason: "their loop is fixed"})
			if err != nil || r.Counters[0].Used != 0 || slot("acme") != 0 {
				t.Fatalf("reset: got %+v, error %v, and a slot %s away; want 0 used, and a free slot", r, err,
					slot("acme"))
			}
		}
		if !w.spend("acme", "leaky", 1000) || w.spend("acme", "leaky", 1) || slot("acme") != 24*time.Hour {
			t.Errorf("after the reset the whole rate is not admitted once; the slot is %s away, want 24h", slot("acme"))
		}
		if slot("other") != 12*time.Hour {
			t.Errorf("another tenant's slot is %s away, want 12h", slot("other"))
		}
	})
}

// newClockedWorld returns a world whose time the test sets; a millisecond passes at each reading of the clock.
func newClockedWorld(t *testing.T) (*cellWorld, *time.Time) {
	t.Helper()
	store := memorytest.New(t)
	w := newCellWorld(t, store)
	now := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)
	w.now = func() time.Time {
		now = now.Add(time.Millisecond)
		return now
	}
	w.s = w.service(store, w.tables)
	return w, &now
}

// busy is a store in which another client charges before each correction, at the same time and a little later.
type busy struct {
	limit.Store
	more  []limit.Charge
	spent int64
}

func (b *busy) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if len(req.Leases) > 0 && len(b.more) > 0 {
		var other limit.Decision
		if err := b.Store.Decide(ctx, &limit.Request{Owner: req.Owner, Charges: b.more[:1]}, now, &other); err != nil {
			return err
		}
		if other.Allowed {
			b.spent += b.more[0].Cost
		}
		b.more = b.more[1:]
	}
	return b.Store.Decide(ctx, req, now, d)
}

// Guarantees that a reset ends, whatever others charge between its steps.
func TestOthersChargeMeanwhile(t *testing.T) {
	for _, id := range []string{"buckets", "log"} {
		w, now := newClockedWorld(t)
		for _, units := range []int64{40, 30, 20} {
			w.spend("acme", id, units)
			*now = now.Add(90 * time.Minute)
		}
		tenant, _ := w.config.Tenant("acme")
		set := tenant.Limits(*now)
		i := slices.IndexFunc(set.Limits, func(e *plan.Effective) bool { return e.Limit.ID == id })
		charge := limit.Charge{Limit: set.Limits[i].Limit, Cost: 7}
		b := &busy{Store: w.store, more: slices.Repeat([]limit.Charge{charge}, 5)}
		s := w.service(b, w.tables)
		r, err := s.Reset(t.Context(), actor, &operate.Counters{Tenant: "acme", Limit: id, Reason: "x"})
		if err != nil || r.Counters[0].Used != 0 || b.spent < 14 {
			t.Errorf("%s: a reset while %d are charged: got %+v, error %v; want 0 used", id, b.spent, r, err)
		}
		if id == "buckets" { // charges of others are in the bucket that is emptied
			continue
		}
		w.spend("acme", id, 1)
		b.more = slices.Repeat([]limit.Charge{{Limit: charge.Limit, Cost: 1}}, 100_000)
		if _, err = s.Reset(t.Context(), actor, &operate.Counters{Tenant: "acme", Limit: id,
			Reason: "x"}); codeOf(err) != operate.Conflict {
			t.Errorf("%s: a reset while others charge without an end: got the error %v, want a conflict", id, err)
		}
	}
}

// Guarantees the documented effect of a reset on units that are leased: those of a token bucket count as used until
// the lease ends; those of other algorithms may be spent in addition, or be given back once from what was counted
// later, and no more than their number. A peek says that what is used may be leased and not spent.
func TestResetWithLeasesOut(t *testing.T) {
	for _, id := range []string{"fixed", "sliding", "buckets", "log", "long", "bucket"} {
		w, now := newClockedWorld(t)
		owner := limit.Owner{Kind: limit.Tenant, Name: "acme"}
		tenant, _ := w.config.Tenant("acme")
		set := tenant.Limits(*now)
		ahead := limit.LeaseRequest{Need: 600, Ample: 100, Share: limit.ShareOne}
		if id == "buckets" || id == "log" {
			ahead.Life = (10 * time.Second).Microseconds()
		}
		g := w.decide(owner, set, id, ahead, 600).Lease(0)
		said := func(r *operate.CountersResponse) bool {
			return slices.ContainsFunc(r.Notes, func(n string) bool {
				return strings.Contains(n, "leased and not spent")
			})
		}
		r, err := w.s.Peek(t.Context(), actor, &operate.Counters{Tenant: "acme", Limit: id})
		if err != nil || r.Counters[0].Used != 700 || !said(r) {
			t.Fatalf("%s: with %d leased, a peek gives %+v, %v; want 700 used, and a word about leases", id,
				g.Units, r, err)
		}
		if r, err := w.s.Peek(t.Context(), actor, &operate.Counters{Tenant: "other",
			Limit: id}); err != nil || said(r) {
			t.Fatalf("%s: with nothing used, a peek gives %+v, %v; want no word about leases", id, r, err)
		}
		r, err = w.s.Reset(t.Context(), actor, &operate.Counters{Tenant: "acme", Limit: id, Reason: "x"})
		used := int64(0)
		if id == "bucket" {
			used = 100 + 600 // the units that a leasing decision needs are held too
		}
		if err != nil || g.Units != 100 || *r.Counters[0].UsedBefore != 700 || r.Counters[0].Used != used ||
			len(r.Notes) == 0 {
			t.Fatalf("%s: with %d leased, a reset gives %+v, %v; want %d used", id, g.Units, r, err, used)
		}
		admitted := int64(0)
		take := func() {
			for _, units := range []int64{500, 100, 10, 1} {
				for w.spend("acme", id, units) {
					admitted += units
				}
			}
		}
		take()
		// The instance with the lease has spent nothing.
		w.decide(owner, set, id, limit.LeaseRequest{Correction: -g.Units, CorrectionAt: g.At}, 0)
		take()
		if want := 1000 - used; admitted < want || admitted > 1000+g.Units {
			t.Errorf("%s: %d are admitted after a reset with %d leased, want %d..%d", id, admitted, g.Units, want,
				1000+g.Units)
		}
	}
}
