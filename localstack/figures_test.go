package localstack_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	callers  = 4
	callsFor = 15 * time.Second
)

// Guarantees that calls far below their limit are all admitted, and prints how many go through gateway and authorizer in a second, by four
// clients that call both cells in closed loops, and what memory LocalStack has then, its functions and stores included. It takes 20 s.
func TestThroughput(t *testing.T) {
	s := open(t)
	id := unique("figures")
	apply(t, s, fmt.Sprintf("plans: [ { id: %s, limits: [ { id: far, algorithm: token_bucket, rate: 10000, period: 1s, burst: 10000 } ] } ]\ntenants: [ { id: %[1]s, plan: %[1]s } ]\n", id))
	k := key(t, s, id)
	for _, c := range s.Cells() {
		known(t, s, c.ID, k)
	}
	var admitted atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for i := range callers {
		all.Go(func() {
			for n := i; time.Since(began) < callsFor; n++ {
				cells := s.Cells()
				cell := cells[n%len(cells)].ID
				a, err := s.Call(t.Context(), cell, product, k)
				if err != nil || a.Status != http.StatusOK {
					t.Errorf("%s: %+v %v", cell, a, err)
					return
				}
				admitted.Add(1)
			}
		})
	}
	all.Wait()
	took := time.Since(began).Seconds()
	if admitted.Load() < callers {
		t.Errorf("%d calls were admitted", admitted.Load())
	}
	fmt.Printf("figure localstack_rps %.1f /s -\n", float64(admitted.Load())/took)
	if !s.Ours() {
		t.Log("its memory is that of another machine or container")
		return
	}
	mb, err := s.Memory()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("figure localstack_mb %.0f MB -\n", mb)
}
