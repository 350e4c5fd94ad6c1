package livepage_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

var noon = time.Date(2026, 7, 14, 12, 0, 0, 0, time.UTC)

func afterNoon(d time.Duration) time.Time { return noon.Add(d) }

// dataAt returns the data of the page at the time now, without a configuration.
func dataAt(t *testing.T, r *livepage.Recorder, now time.Time) livepage.Data {
	t.Helper()
	return read(t, r, livepage.Status{Now: now})
}

func allow(at time.Time, tenant string) *livepage.Observation {
	return &livepage.Observation{At: at, Outcome: livepage.Allowed, Tenant: tenant, Method: "GET", Path: "/"}
}

// Guarantees that a request is counted for ten minutes, and no longer. If the ring did not empty a cell before reuse,
// the page would show old requests as new ones.
func TestTenMinutes(t *testing.T) {
	tests := []struct {
		name     string
		observed []time.Duration // after noon
		now      time.Duration
		want     uint64
	}{
		{"nothing", nil, 0, 0},
		{"now", []time.Duration{0}, 0, 1},
		{"the last of the ten minutes", []time.Duration{9 * time.Second}, 599 * time.Second, 1},
		{"one after the ten minutes", []time.Duration{9 * time.Second}, 600 * time.Second, 0},
		{"each second of twenty minutes", timesEvery(time.Second, 20*time.Minute), 20*time.Minute - time.Second, 600},
		{"another cell", []time.Duration{0, 60 * time.Second}, 60 * time.Second, 2},
		{"the same cell ten minutes later", []time.Duration{0, 600 * time.Second}, 600 * time.Second, 1},
		{"a gap of hours", []time.Duration{0, 5 * time.Hour}, 5 * time.Hour, 1},
		{"a little disorder", []time.Duration{3 * time.Second, 0, 2 * time.Second}, 4 * time.Second, 3},
		{"now before the newest", []time.Duration{0, 2 * time.Second}, 0, 2},
		{"the clock steps back an hour", []time.Duration{0, time.Second, -time.Hour, -time.Hour + time.Second},
			-time.Hour + time.Second, 4},
		{"an hour back, then twenty minutes", []time.Duration{0, -time.Hour, -40 * time.Minute}, -40 * time.Minute, 1},
		{"one leap of a century", []time.Duration{0, 100 * 365 * 24 * time.Hour, time.Second}, time.Second, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := livepage.NewRecorder()
			for _, d := range tt.observed {
				r.Observe(allow(afterNoon(d), "acme"))
			}
			d := dataAt(t, r, afterNoon(tt.now))
			if d.Totals.Requests != tt.want || d.Totals.Allowed != tt.want {
				t.Errorf("%d requests, %d allowed, want %d of both", d.Totals.Requests, d.Totals.Allowed, tt.want)
			}
			if tt.want > 0 && (len(d.Tenants) != 1 || d.Tenants[0].Counts.Allowed != tt.want) {
				t.Errorf("tenants are %+v, want acme with %d", d.Tenants, tt.want)
			}
		})
	}
}

func timesEvery(step, total time.Duration) (out []time.Duration) {
	for d := time.Duration(0); d < total; d += step {
		out = append(out, d)
	}
	return out
}

// Guarantees that every outcome is counted under its own name, and that the sum of these counts is the number of
// requests.
func TestOutcomes(t *testing.T) {
	r := livepage.NewRecorder()
	all := []livepage.Outcome{
		livepage.Allowed, livepage.Limited, livepage.IPLimited, livepage.Unauthorized, livepage.Forbidden,
		livepage.NotFound, livepage.StoreFailed,
	}
	for i, o := range all {
		for range i + 1 {
			r.Observe(&livepage.Observation{At: noon, Outcome: o})
		}
	}
	want := livepage.Counts{
		Requests: 28, Allowed: 1, Limited: 2, IPLimited: 3, Unauthorized: 4, Forbidden: 5, NotFound: 6, StoreFailed: 7,
		Degraded: 7, // including requests with an unknown outcome
	}
	d := dataAt(t, r, noon)
	if d.Totals != want {
		t.Errorf("the totals are %+v, want %+v", d.Totals, want)
	}
	if len(d.Tenants) != 1 || d.Tenants[0].Kind != livepage.KindNobody || d.Tenants[0].Counts != want {
		t.Errorf("tenant rows are %+v, want a single one of kind %q", d.Tenants, livepage.KindNobody)
	}
}

// Guarantees that a request which was decided without the store is counted under its own outcome, and as degraded in
// addition. Otherwise an outage during which the fallback limiter decides would look like one that stops all requests,
// or like no outage.
func TestDecidedWithoutTheStore(t *testing.T) {
	r := livepage.NewRecorder()
	acme := limit.Owner{Kind: limit.Tenant, Name: "acme"}
	s := newStore(t)
	small := newLimit(t, "small", limit.Enforce, window(1, time.Minute))
	ip := newLimit(t, "ip", limit.Enforce, window(9, time.Minute))
	decide := func(owner limit.Owner, degraded bool, l *limit.Limit) *limit.Decision {
		d := decided(t, s, owner, noon, l)
		d.Degraded = degraded
		return d
	}
	h := limit.Owner{Kind: limit.Address, Name: "h"}
	for _, o := range []livepage.Observation{
		// once
		{Outcome: livepage.Allowed, Tenant: "acme", Decision: decide(acme, true, small),
			IPDecision: decide(h, true, ip)},
		{Outcome: livepage.Limited, Tenant: "acme", Decision: decide(acme, true, small), Path: "/away"},
		{Outcome: livepage.Limited, Tenant: "acme", Decision: decide(acme, false, small), Path: "/back"},
		{Outcome: livepage.Allowed, IPDecision: decide(h, true, ip)},
		{Outcome: livepage.Allowed, IPDecision: decide(h, false, ip)},
		{Outcome: livepage.StoreFailed, Tenant: "acme"},
	} {
		o.At, o.Method = noon, "GET"
		r.Observe(&o)
	}
	d := dataAt(t, r, noon)
	want := livepage.Counts{Requests: 6, Allowed: 3, Limited: 2, StoreFailed: 1, Degraded: 4}
	if d.Totals != want {
		t.Errorf("totals %+v, want %+v", d.Totals, want)
	}
	if row := find(d, livepage.KindTenant, "acme"); row == nil || row.Counts.Degraded != 3 ||
		row.Counts.Requests != 4 {
		t.Errorf("acme is %+v, want 3 of 4 decided without the store", row)
	}
}

// Guarantees that memory does not grow with the number of names, and that no request is lost from the sums: names that
// do not fit are counted together as "others". A tenant whose own name is "others" is counted separately from them.
func TestTenantsAreBounded(t *testing.T) {
	r := livepage.NewRecorder()
	r.Observe(allow(noon, "others"))
	const extra = 50
	for i := range livepage.MaxTenants - 1 + extra {
		r.Observe(allow(noon, fmt.Sprintf("tenant-%d", i)))
	}
	r.Observe(allow(noon, strings.Repeat("x", limit.MaxNameBytes+1)))
	d := dataAt(t, r, noon)
	own, others := find(d, livepage.KindTenant, "others"), find(d, livepage.KindOthers, "")
	if own == nil || own.Counts.Requests != 1 || others == nil || others.Counts.Requests != extra+1 {
		t.Fatalf("the tenant named others is %+v, want 1 request; the other tenants are %+v, want %d", own, others,
			extra+1)
	}
	if busy := r.Busiest(noon); busy == "" || busy != d.Tenants[0].ID {
		t.Errorf("the busiest is %q, want the first of the page, %q", busy, d.Tenants[0].ID)
	}
	if listed := len(d.Tenants) - 1; listed != livepage.MaxTenantRows ||
		d.TenantsNotListed != livepage.MaxTenants-listed {
		t.Errorf("%d tenants are listed and %d not, want %d of %d", listed, d.TenantsNotListed, livepage.MaxTenantRows,
			livepage.MaxTenants)
	}

	// After ten minutes without requests, the table has room for new tenants.
	later := afterNoon(10*time.Minute + 10*time.Second)
	r.Observe(allow(later, "newcomer"))
	if row := find(dataAt(t, r, later), livepage.KindTenant, "newcomer"); row == nil || row.Counts.Requests != 1 {
		t.Errorf("a new tenant after ten minutes without requests is %+v, want a row with 1 request", row)
	}
}

func find(d livepage.Data, kind livepage.Kind, id string) *livepage.TenantRow {
	for i := range d.Tenants {
		if d.Tenants[i].Kind == kind && d.Tenants[i].ID == id {
			return &d.Tenants[i]
		}
	}
	return nil
}

// decided makes a decision with a real store.
func decided(t *testing.T, s limit.Store, owner limit.Owner, at time.Time, limits ...*limit.Limit) *limit.Decision {
	t.Helper()
	req := limit.Request{Owner: owner}
	for _, l := range limits {
		req.Charges = append(req.Charges, limit.Charge{Limit: l, Cost: 1})
	}
	d := new(limit.Decision)
	if err := s.Decide(context.Background(), &req, at, d); err != nil {
		t.Fatal(err)
	}
	return d
}

func newLimit(t *testing.T, id string, mode limit.Mode, tiers ...limit.Tier) *limit.Limit {
	t.Helper()
	l, err := limit.New(limit.Limit{ID: id, Mode: mode, Tiers: tiers})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func window(threshold int64, period time.Duration) limit.Tier {
	return limit.Tier{Algorithm: limit.FixedWindow, Threshold: threshold, Period: period}
}

func newStore(t *testing.T) limit.Store {
	t.Helper()
	s := memorytest.New(t)
	return s
}

// Guarantees that each request counts once for each limit that took part in its outcome. Operators change the limits
// that this table blames.
func TestLimitCounts(t *testing.T) {
	s := newStore(t)
	narrow := newLimit(t, "narrow", limit.Enforce, window(2, time.Minute), window(3, time.Hour))
	wide := newLimit(t, "wide", limit.Enforce, window(100, time.Minute))
	trial := newLimit(t, "trial", limit.Shadow, window(1, time.Minute))
	// the id of another limit, but before authentication
	address := newLimit(t, "narrow", limit.Enforce, window(6, time.Minute))
	r := livepage.NewRecorder()
	for range 8 {
		o := livepage.Observation{At: noon, Outcome: livepage.Allowed, Tenant: "acme", Method: "GET",
			Path: "/product/*"}
		o.IPDecision = decided(t, s, limit.Owner{Kind: limit.Address, Name: "h"}, noon, address)
		if !o.IPDecision.Allowed {
			o.Outcome, o.Tenant, o.Decision, o.IPDecision = livepage.IPLimited, "", o.IPDecision, nil
		} else if o.Decision = decided(t, s, limit.Owner{Kind: limit.Tenant, Name: "acme"}, noon, narrow, wide,
			trial); !o.Decision.Allowed {
			o.Outcome = livepage.Limited
		}
		r.Observe(&o)
	}
	d := dataAt(t, r, noon)
	want := []livepage.LimitRow{
		{Kind: livepage.KindIPLimit, ID: "narrow", Counts: livepage.LimitCounts{Allowed: 6, Denied: 2}},
		{Kind: livepage.KindLimit, ID: "narrow", Counts: livepage.LimitCounts{Allowed: 2, Denied: 4}},
		{Kind: livepage.KindLimit, ID: "trial", Counts: livepage.LimitCounts{Allowed: 1, ShadowDenied: 1}},
		{Kind: livepage.KindLimit, ID: "wide", Counts: livepage.LimitCounts{Allowed: 2}},
	}
	for i := range d.Limits {
		d.Limits[i].Modes = nil
	}
	if got, want := fmt.Sprintf("%+v", d.Limits), fmt.Sprintf("%+v", want); got != want {
		t.Errorf("limits are\n%s, want\n%s", got, want)
	}
	if got := find(d, livepage.KindNobody, ""); got == nil || got.Counts.IPLimited != 2 {
		t.Errorf("requests without a tenant are %+v, want 2 limited by address", got)
	}
}

// Guarantees that a denial names the tenant, the request, the binding limit and the wait. The tier named is the binding
// one, not the first one without room.
func TestDenials(t *testing.T) {
	s := newStore(t)
	l := newLimit(t, "put-product", limit.Enforce, window(1, 10*time.Second), window(1, 2*time.Minute))
	quota := newLimit(t, "monthly", limit.Enforce, limit.Tier{
		Algorithm: limit.Quota, Threshold: 1, Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC},
	})
	never := newLimit(t, "small", limit.Enforce, window(1, time.Second))
	acme := limit.Owner{Kind: limit.Tenant, Name: "acme"}
	for _, l := range []*limit.Limit{l, quota} {
		decided(t, s, acme, noon, l)
	}
	tooMuch := new(limit.Decision)
	req := limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: never, Cost: 2}}}
	if err := s.Decide(t.Context(), &req, noon, tooMuch); err != nil {
		t.Fatal(err)
	}
	long := "/" + strings.Repeat("é", 400)
	at := afterNoon(1500 * time.Microsecond)
	observations := []livepage.Observation{
		{Outcome: livepage.Limited, Tenant: "acme", Path: "/product/*", Decision: decided(t, s, acme, at, l)},
		{Outcome: livepage.Limited, Tenant: "acme", Path: "/", Decision: decided(t, s, acme, at, quota)},
		{Outcome: livepage.Limited, Tenant: "acme", Path: long, Decision: tooMuch},
		{Outcome: livepage.IPLimited, Path: "/"},
		{Outcome: livepage.Limited, Path: "/", Decision: &limit.Decision{Owner: limit.Owner{Kind: limit.Anonymous}}},
		{Outcome: livepage.Forbidden, Tenant: "acme"}, // not denied by a limit
		{Outcome: livepage.Limited, Tenant: "acme", Path: "/", Denied: livepage.Denied{Limit: "small",
			Reason: livepage.NotGranted, Wait: 1500 * time.Microsecond}},
		{Outcome: livepage.Limited, Tenant: "acme", Path: "/", Decision: tooMuch,
			Denied: livepage.Denied{Reason: livepage.NotGranted}},
		{Outcome: livepage.Limited, Tenant: "acme", Path: "/", Denied: livepage.Denied{Reason: livepage.Uncountable,
			Never: true}},
	}
	r := livepage.NewRecorder()
	for i := range observations {
		o := &observations[i]
		o.At, o.Method = at, "PUT"
		r.Observe(o)
	}
	month := time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC).Sub(at)
	want := []livepage.Denial{ // newest first
		{Kind: livepage.KindTenant, Tenant: "acme", Path: "/", Reason: "costs more than a limit can count", By: "plan",
			WaitMs: -1},
		{Kind: livepage.KindTenant, Tenant: "acme", Path: "/", Limit: "small", Tier: "1s",
			Reason: "not granted in this cell", By: "plan"},
		{Kind: livepage.KindTenant, Tenant: "acme", Path: "/", Limit: "small", Reason: "not granted in this cell",
			By: "plan", WaitMs: 2},
		{Kind: livepage.KindAnonymous, Path: "/", By: "plan"},
		{Kind: livepage.KindNobody, Path: "/", By: "ip_limits"},
		{Kind: livepage.KindTenant, Tenant: "acme", Path: "/" + strings.Repeat("é", 98) + "…", Limit: "small",
			Tier: "1s", By: "plan", WaitMs: -1},
		{Kind: livepage.KindTenant, Tenant: "acme", Path: "/", Limit: "monthly", Tier: "month", By: "plan",
			WaitMs: month.Milliseconds() + 1},
		{Kind: livepage.KindTenant, Tenant: "acme", Path: "/product/*", Limit: "put-product", Tier: "2m", By: "plan",
			WaitMs: 119_999},
	}
	d := dataAt(t, r, at)
	if len(d.Denials) != len(want) {
		t.Fatalf("%d denials, want %d: %+v", len(d.Denials), len(want), d.Denials)
	}
	for i := range want {
		want[i].AtMs, want[i].Method = at.UnixMilli(), "PUT"
		if d.Denials[i] != want[i] {
			t.Errorf("denial %d is\n%+v, want\n%+v", i, d.Denials[i], want[i])
		}
	}
}

// Guarantees that the list of denials holds the newest MaxDenials and no more.
func TestDenialsAreBounded(t *testing.T) {
	r := livepage.NewRecorder()
	for i := range 3*livepage.MaxDenials + 7 {
		r.Observe(&livepage.Observation{At: noon, Outcome: livepage.Limited, Path: fmt.Sprint(i)})
	}
	d := dataAt(t, r, noon)
	if n := len(d.Denials); n != livepage.MaxDenials {
		t.Fatalf("%d denials, want %d", n, livepage.MaxDenials)
	}
	for i := range d.Denials {
		if want := fmt.Sprint(3*livepage.MaxDenials + 6 - i); d.Denials[i].Path != want {
			t.Fatalf("denial %d is of path %q, want %q", i, d.Denials[i].Path, want)
		}
	}
}

// Guarantees that no request is lost or counted twice while the page is read. Run it with the race detector.
func TestConcurrentUse(t *testing.T) {
	r := livepage.NewRecorder()
	const workers, each = 8, 2000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				o := allow(afterNoon(time.Duration(i)*time.Millisecond), fmt.Sprintf("t%d", (w+i)%5))
				if i%3 == 0 {
					o.Outcome = livepage.Limited
				}
				r.Observe(o)
				if i%500 == 0 {
					dataAt(t, r, noon)
				}
			}
		})
	}
	wg.Wait()
	d := dataAt(t, r, afterNoon(2*time.Second))
	sum := uint64(0)
	for _, row := range d.Tenants {
		sum += row.Counts.Requests
	}
	if got := d.Totals.Requests; got != workers*each || sum != got {
		t.Errorf("%d requests in total, %d over the tenants, want %d", got, sum, workers*each)
	}
}

// Guarantees that Observe, which every request calls, allocates no memory.
func TestObserveDoesNotAllocate(t *testing.T) {
	s := newStore(t)
	d := decided(t, s, limit.Owner{Kind: limit.Tenant, Name: "acme"}, noon, newLimit(t, "a", limit.Enforce,
		window(9, time.Second)))
	r := livepage.NewRecorder()
	o := allow(noon, "acme")
	o.Decision = d
	if n := testing.AllocsPerRun(1000, func() { r.Observe(o) }); n != 0 {
		t.Errorf("observing an allowed request allocates %.1f times, want 0", n)
	}
	if got := dataAt(t, r, noon).Totals.Allowed; got != 1001 {
		t.Errorf("%d requests were counted, want 1001", got)
	}
}
