package localstack_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/localstack/stand"
)

const (
	callers  = 4
	callsFor = 15 * time.Second
)

// Guarantees that requests far below their limit are not denied by it, while four clients send requests to both cells
// in closed loops. It takes 20 s, and logs how many requests were answered per second.
func TestThroughput(t *testing.T) {
	s := open(t)
	id := unique("figures")
	apply(t, s, fmt.Sprintf("plans: [ { id: %s, limits: [ { id: far, algorithm: token_bucket, rate: 10000, period: "+
		"1s, burst: 10000 } ] } ]\ntenants: [ { id: %[1]s, plan: %[1]s } ]\n", id))
	k := key(t, s, id)
	for _, c := range s.Cells() {
		waitUntilKeyIsKnown(t, s, c.ID, k)
		waitFor(t, func(ctx context.Context) error { return warmUp(ctx, s, c.ID, k) })
	}
	var admitted, unread atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for i := range callers {
		all.Go(func() {
			for n := i; time.Since(began) < callsFor; n++ {
				cells := s.Cells()
				cell := cells[n%len(cells)].ID
				a, err := s.Call(t.Context(), cell, product, k)
				switch {
				case err == nil && a.Status == http.StatusOK:
					admitted.Add(1)
				case err == nil && a.Status == answer.Unidentified.Status() &&
					strings.Contains(a.Body, answer.Unidentified.Type()):
					unread.Add(1) // an environment that starts on a busy machine may read its first key too late
				default:
					t.Errorf("%s: %+v %v", cell, a, err)
					return
				}
			}
		})
	}
	all.Wait()
	took, answered := time.Since(began).Seconds(), admitted.Load()+unread.Load()
	t.Logf("%.1f calls/s; %d were admitted, and of %d the caller could not be identified in time",
		float64(answered)/took, admitted.Load(), unread.Load())
	if admitted.Load() <= unread.Load() {
		t.Errorf("of %d requests %d were admitted", answered, admitted.Load())
	}
}

// warmUp returns nil if a cell admits as many concurrent requests as there are callers. That many environments of its
// authorizer have then started.
func warmUp(ctx context.Context, s *stand.Stand, cell, key string) error {
	errs := make([]error, callers)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			a, err := s.Call(ctx, cell, product, key)
			if err == nil && a.Status != http.StatusOK {
				err = fmt.Errorf("%s: %d %s", cell, a.Status, a.Body)
			}
			errs[i] = err
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
