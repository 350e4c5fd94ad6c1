package telemetry_test

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/telemetry"
)

// Guarantees that the board shows the sum of a counter, the current value of a level, and the percentiles of times, for
// each function and cell separately, however many goroutines count concurrently.
func TestBoard(t *testing.T) {
	b := telemetry.NewBoard()
	if all := b.All(); all == nil || len(all) != 0 {
		t.Errorf("All before anything was counted = %v, want an empty list that is not nil", all)
	}
	var counting sync.WaitGroup
	for range 8 {
		counting.Go(func() {
			for i := range 100 {
				b.Meter("applier", "eu-1").Count("documents_applied", 2)
				b.Meter("applier", "eu-1").Took("apply_seconds", time.Duration(i+1)*10*time.Millisecond)
			}
		})
	}
	counting.Wait()
	b.Meter("applier", "us-1").Count("documents_applied", 1)
	balancer := b.Meter("balancer", "")
	for _, n := range []int64{3, 4, 2} {
		balancer.Count("active_cell_count", n)
	}
	b.Meter("authorizer", "us-1").SetLevel("per_cell_limit_effective", 10)
	b.Meter("authorizer", "us-1").SetLevel("per_cell_limit_effective", 33.33)
	all := b.All()
	if len(all) != 5 || all[3] != (telemetry.MetricValue{Function: "authorizer", Cell: "us-1",
		Name: "per_cell_limit_effective", Unit: "Percent", Form: telemetry.Level, Value: 33.33, N: 1}) {
		t.Fatalf("%+v, want five, and of the authorizer what was said last", all)
	}
	all = slices.Delete(all, 3, 4)
	if got := all[0]; got.Name != "apply_seconds" || got.N != 800 || got.Unit != "Seconds" ||
		got.Form != telemetry.Spread ||
		math.Abs(got.Value/0.5-1) > 0.1 || math.Abs(got.P99/0.99-1) > 0.1 || math.Abs(got.Most-1) > 0.1 {
		t.Errorf("%+v, want times of 10 ms to 1 s", got)
	}
	for i, want := range []telemetry.MetricValue{
		{Function: "applier", Cell: "eu-1", Name: "documents_applied", Unit: "Count", Form: telemetry.Counted,
			Value: 1600, N: 800},
		{Function: "applier", Cell: "us-1", Name: "documents_applied", Unit: "Count", Form: telemetry.Counted, Value: 1,
			N: 1},
		{Function: "balancer", Name: "active_cell_count", Unit: "Count", Form: telemetry.Level, Value: 2, N: 3},
	} {
		if fmt.Sprint(all[i+1]) != fmt.Sprint(want) {
			t.Errorf("%+v, want %+v", all[i+1], want)
		}
	}
}
