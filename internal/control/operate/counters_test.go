package operate_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

const actor = "arn:aws:iam::123456789012:user/ann"

// Guarantees that a reset puts a counter into the state of an unused one, on every store and for each algorithm, and
// changes no other counter: an operator who helps one tenant must not affect another.
func TestResetEmptiesOneCounter(t *testing.T) {
	eachStore(t, func(t *testing.T, store limit.Store) {
		w := newCellWorld(t, store)
		all := w.accepted("fixed", "sliding", "buckets", "log", "bucket", "long", "silent")
		for _, tenant := range []string{"acme", "other"} {
			for _, id := range all {
				if !w.spend(tenant, id, 700) {
					t.Fatalf("%s of %s denies the first 700 of 1000 units, want them allowed", id, tenant)
				}
			}
		}
		for i, id := range all {
			r, err := w.s.Reset(t.Context(), actor, &operate.Counters{Tenant: "acme", Limit: id,
				Reason: "their loop is fixed"})
			if err != nil {
				t.Fatalf("reset of %s: got the error %v, want none", id, err)
			}
			if c := r.Counters[0]; len(r.Counters) != 1 || c.Limit != id || c.Used != 0 || c.Remaining != 1000 ||
				*c.UsedBefore != 700 {
				t.Errorf("reset of %s: got %+v, and %d used before; want 0 used, 1000 left, 700 used before", id, c,
					*c.UsedBefore)
			}
			for j, later := range all {
				want := int64(700)
				if j <= i {
					want = 0
				}
				if got := w.used("acme", later); got != want {
					t.Errorf("after the reset of %s, %d of %s are used, want %d", id, got, later, want)
				}
				if got := w.used("other", later); got != 700 {
					t.Errorf("after the reset of %s of acme, %d of %s of another tenant are used, want 700", id, got,
						later)
				}
			}
			if id != "silent" && (!w.spend("acme", id, 1000) || w.spend("acme", id, 1)) {
				t.Errorf("after the reset, %s does not admit exactly 1000 units, want that it does", id)
			}
			if r, err := w.s.Reset(t.Context(), actor, &operate.Counters{Tenant: "acme", Limit: id,
				Reason: "again"}); err != nil || r.Counters[0].Used != 0 {
				t.Errorf("a second reset of %s: got %+v, error %v; want 0 used", id, r, err)
			}
		}
	})
}

func (w *cellWorld) used(tenant, id string) int64 {
	w.Helper()
	r, err := w.s.Peek(w.Context(), actor, &operate.Counters{Tenant: tenant, Limit: id})
	if err != nil {
		w.Fatal(err)
	}
	return r.Counters[0].Used
}

// Guarantees that a refund gives back the requested units, but never more than are used, on every store, so that
// refunds cannot create units.
func TestRefundGivesBack(t *testing.T) {
	eachStore(t, func(t *testing.T, store limit.Store) {
		w := newCellWorld(t, store)
		for _, id := range w.accepted("fixed", "sliding", "long", "silent") {
			w.spend("acme", id, 700)
			for _, step := range []struct{ units, used int64 }{{100, 600}, {1, 599}, {limit.MaxUnits, 0}, {5, 0}} {
				r, err := w.s.Refund(t.Context(), actor, &operate.Counters{Tenant: "acme", Limit: id, Units: step.units,
					Reason: "our fault"})
				if err != nil || r.Counters[0].Used != step.used {
					t.Fatalf("refund of %d to %s: %+v, %v; want %d used", step.units, id, r, err, step.used)
				}
			}
			if id != "silent" && (!w.spend("acme", id, 1000) || w.spend("acme", id, 1)) {
				t.Errorf("after the refunds, %s does not admit exactly 1000 units, want that it does", id)
			}
		}
	})
}

// Guarantees that each use is recorded before it has its effect, with actor and reason, and afterwards with its
// outcome.
func TestEachUseIsRecorded(t *testing.T) {
	store := memorytest.New(t)
	w := newCellWorld(t, store)
	w.spend("acme", "fixed", 5)
	for does, f := range map[string]func(context.Context, string, *operate.Counters) (*operate.CountersResponse,
		error){"peek": w.s.Peek, "reset": w.s.Reset} {
		r, err := f(t.Context(), actor, &operate.Counters{Tenant: "acme", Limit: "fixed", Reason: "why " + does})
		if err != nil {
			t.Fatal(err)
		}
		want := "1 begun by " + actor + ": why " + does + "\n2 done by " + actor + ": why " + does
		if got := strings.Join(w.record(r.Operation), "\n"); got != want {
			t.Errorf("%s left\n%s\nwant\n%s", does, got, want)
		}
	}
	w.spend("acme", "fixed", 5)
	s := w.service(store, away{})
	if _, err := s.Reset(t.Context(), actor, &operate.Counters{Tenant: "acme", Limit: "fixed",
		Reason: "x"}); codeOf(err) != operate.Unavailable {
		t.Errorf("a reset that cannot be recorded: got the error %v, want Unavailable", err)
	}
	if got := w.used("acme", "fixed"); got != 5 {
		t.Errorf("a reset that could not be recorded changed the counter: %d are used, want 5", got)
	}
}

// Guarantees that a failure of the store is recorded.
func TestAFailureIsRecorded(t *testing.T) {
	store := memorytest.New(t)
	w := newCellWorld(t, store)
	_, err := w.service(broken{store}, w.tables).Reset(t.Context(), actor, &operate.Counters{Tenant: "acme",
		Limit:  "fixed",
		Reason: "x"})
	if codeOf(err) != operate.Unavailable {
		t.Fatalf("a reset without a store: got the error %v, want Unavailable", err)
	}
	items, _, err := w.tables.List(t.Context(), control.Operations, "", 10)
	if err != nil || len(items) != 1 || !strings.Contains(string(items[0].Body), `"state":"refused"`) ||
		items[0].Version != 2 {
		t.Errorf("got the operations %+v, error %v; want one that was refused, of version 2", items, err)
	}
}

// broken is a store that can only peek.
type broken struct{ limit.Store }

func (broken) Decide(context.Context, *limit.Request, time.Time, *limit.Decision) error {
	return errAway
}

// away are tables that do not answer.
type away struct{ control.Tables }

func (away) Put(context.Context, control.Change) (control.Item, error) {
	return control.Item{}, errAway
}

// Guarantees that counters per value are found as for a request.
func TestCountersOfARequest(t *testing.T) {
	store := memorytest.New(t)
	w := newCellWorld(t, store)
	w.spend("acme", "person", 9)
	for subject, want := range map[string]int64{"ann": 9, "bob": 0} {
		r, err := w.s.Peek(t.Context(), actor, &operate.Counters{Tenant: "acme", Limit: "person", Path: "/things/1",
			Subject: subject})
		if err != nil || r.Counters[0].Used != want {
			t.Errorf("peek of %s: %+v, %v; want %d used", subject, r, err, want)
		}
	}
	r, err := w.s.Peek(t.Context(), actor, &operate.Counters{Tenant: "acme", Method: "PUT", Path: "/things/1"})
	if err != nil || len(r.Counters) != 10 { // without the limit per address
		t.Errorf("peek of a PUT shows %d counters, %v; want 10", len(r.Counters), err)
	}
	if r, err = w.s.Peek(t.Context(), actor, &operate.Counters{Tenant: "acme", Path: "/"}); err != nil ||
		len(r.Counters) != 9 {
		t.Errorf("peek of a GET of / shows %d counters, %v; want 9", len(r.Counters), err)
	}
}

// Guarantees that impossible operations are refused with an explanation, change nothing, and record nothing.
func TestRefusals(t *testing.T) {
	store := memorytest.New(t)
	w := newCellWorld(t, store)
	type do = func(context.Context, string, *operate.Counters) (*operate.CountersResponse, error)
	for name, c := range map[string]struct {
		do   do
		r    operate.Counters
		code operate.Code
		says string
	}{
		"tenant":        {w.s.Peek, operate.Counters{}, operate.Invalid, "tenant"},
		"nobody":        {w.s.Peek, operate.Counters{Tenant: "nobody"}, operate.NotFound, "has no tenant"},
		"unknown limit": {w.s.Peek, operate.Counters{Tenant: "acme", Limit: "x"}, operate.NotFound, "no limit"},
		"a key": {w.s.Peek, operate.Counters{Tenant: "acme", Path: "/", APIKey: "slk_secret"}, operate.Invalid,
			"not the key"},
		"no path": {w.s.Peek, operate.Counters{Tenant: "acme", Limit: "person"}, operate.Invalid, "needs a path"},
		"subject only": {w.s.Peek, operate.Counters{Tenant: "acme", Subject: "ann"}, operate.Invalid,
			"path is missing"},
		"odd path": {w.s.Peek, operate.Counters{Tenant: "acme", Path: "x"}, operate.Invalid, "path"},
		"long subject": {w.s.Peek, operate.Counters{Tenant: "acme", Path: "/", Subject: strings.Repeat("s", 200)},
			operate.Invalid, "subject"},
		"two line why": {w.s.Peek, operate.Counters{Tenant: "acme", Reason: "a\nb"}, operate.Invalid, "reason"},
		"peeked units": {w.s.Peek, operate.Counters{Tenant: "acme", Units: 1}, operate.Invalid, "units"},
		"no reason":    {w.s.Reset, operate.Counters{Tenant: "acme", Limit: "fixed"}, operate.Invalid, "reason"},
		"all limits":   {w.s.Reset, operate.Counters{Tenant: "acme", Reason: "x"}, operate.Invalid, "limit is missing"},
		"no units": {w.s.Refund, operate.Counters{Tenant: "acme", Limit: "fixed", Reason: "x"}, operate.Invalid,
			"units"},
		"negative units": {w.s.Refund, operate.Counters{Tenant: "acme", Limit: "fixed", Reason: "x", Units: -1},
			operate.Invalid, "units"},
		"bucket": {w.s.Refund, operate.Counters{Tenant: "acme", Limit: "bucket", Reason: "x", Units: 1},
			operate.Unsupported, "token_bucket cannot be refunded without a receipt"},
		"log": {w.s.Refund, operate.Counters{Tenant: "acme", Limit: "log", Reason: "x", Units: 1},
			operate.Unsupported, "sliding_log cannot be refunded without a receipt"},
		"buckets": {w.s.Refund, operate.Counters{Tenant: "acme", Limit: "buckets", Reason: "x", Units: 1},
			operate.Unsupported, "sliding_buckets cannot be refunded without a receipt"},
		"per address": {w.s.Peek, operate.Counters{Tenant: "acme", Limit: "client", Path: "/"}, operate.Invalid,
			"is per address"},
		"ipLimits": {w.s.Peek, operate.Counters{Tenant: "acme", Limit: "per-address", Path: "/"}, operate.NotFound,
			"no limit"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.do(t.Context(), actor, &c.r)
			if codeOf(err) != c.code || !strings.Contains(err.Error(), c.says) ||
				strings.Contains(err.Error(), "secret") {
				t.Errorf("%v, want %s with %q", err, c.code, c.says)
			}
		})
	}
}
