package lease_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// failingLater is a store that answers until the test makes it fail.
type failingLater struct {
	limit.Store
	gone bool
}

func (s *failingLater) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if s.gone {
		return errors.New("connection refused")
	}
	return s.Store.Decide(ctx, req, now, d)
}

// Guarantees that the error of Close is short and names no tenant, however many leases are lost.
func TestCloseIsBrief(t *testing.T) {
	below := &failingLater{Store: newMemory(t)}
	s, err := lease.New(lease.Config{Store: below, GiveBackEvery: -1, Clock: func() time.Time { return noon },
		Rule: greedy{}})
	if err != nil {
		t.Fatal(err)
	}
	l := window(t, "a", time.Hour, 10)
	const owners = 500
	for i := range owners {
		req := request(l)
		req.Owner.Name = fmt.Sprintf("tenant-%d", i)
		if d := decide(t, s, req, noon); !d.Allowed {
			t.Fatal("a request is denied, although no unit of its limit is used")
		}
	}
	below.gone = true
	err = s.Close(context.Background())
	if err == nil || len(err.Error()) > 1000 || strings.Contains(err.Error(), "tenant-") ||
		!strings.Contains(err.Error(), fmt.Sprint(owners-3, " returns more failed")) {
		t.Errorf("the error of Close is %q; want a short one without the name of a tenant, and with the number of "+
			"further failures", err)
	}
	if n := s.Stats().Lost; n != 9*owners {
		t.Errorf("%d units are counted as lost, want %d", n, 9*owners)
	}
}

// denyingLater is a store that denies every request once the test says so.
type denyingLater struct {
	limit.Store
	denies bool
}

func (s *denyingLater) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if s.denies {
		*d = limit.Decision{}
		return nil
	}
	return s.Store.Decide(ctx, req, now, d)
}

// Guarantees that units that the store does not take back, because it denies the call, count as lost. The metric of
// lost units would otherwise miss them.
func TestDeniedReturnsAreLost(t *testing.T) {
	below := &denyingLater{Store: newMemory(t)}
	s, err := lease.New(lease.Config{Store: below, GiveBackEvery: -1, Clock: func() time.Time { return noon },
		Rule: greedy{}})
	if err != nil {
		t.Fatal(err)
	}
	decide(t, s, request(window(t, "a", time.Hour, 10)), noon)
	below.denies = true
	if err := s.Close(t.Context()); err == nil {
		t.Error("Close returned nothing, want an error: the store has denied its call")
	}
	if stats := s.Stats(); stats.Lost != 9 || stats.Returned != 0 {
		t.Errorf("%d units are lost and %d returned, want 9 and 0", stats.Lost, stats.Returned)
	}
}
