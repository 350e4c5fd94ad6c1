package shares

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// splitTotal returns the share of each cell.
func splitTotal(total int64, cells []Weight) []int64 {
	out := make([]int64, len(cells))
	for i := range cells {
		out[i] = share(total, cells, i)
	}
	return out
}

func TestShare(t *testing.T) {
	for _, tc := range []struct {
		total   int64
		weights []int64
		want    []int64
	}{
		{100, []int64{1, 1, 1}, []int64{34, 33, 33}}, // ties in the order of the cells
		{100, []int64{1, 2, 4}, []int64{14, 29, 57}}, // 14.29, 28.57, 57.14: the largest remainder
		{2, []int64{1, 1, 1}, []int64{1, 1, 0}},
		{0, []int64{1, 5}, []int64{0, 0}},
		{7, []int64{3}, []int64{7}},
		{limit.MaxUnits, []int64{MaxWeight, MaxWeight - 1}, []int64{549756088766, 549755539010}},
	} {
		cells := make([]Weight, len(tc.weights))
		for i, w := range tc.weights {
			cells[i] = Weight{fmt.Sprint("c", i), w}
		}
		if got := splitTotal(tc.total, cells); !slices.Equal(got, tc.want) {
			t.Errorf("got the shares %v of %d units by the weights %v, want %v", got, tc.total, tc.weights, tc.want)
		}
	}
}

// FuzzShare guarantees that shares sum to the limit exactly, and that each differs from its exact part by less than
// one unit.
func FuzzShare(f *testing.F) {
	f.Add(int64(100), []byte{1, 1, 1})
	f.Add(int64(limit.MaxUnits), []byte{255, 0, 7, 9})
	f.Fuzz(func(t *testing.T, total int64, weights []byte) {
		total = min(max(total, 0), limit.MaxUnits)
		if len(weights) == 0 || len(weights) > MaxCells {
			return
		}
		cells, all := make([]Weight, len(weights)), int64(0)
		for i, w := range weights {
			cells[i] = Weight{fmt.Sprintf("c%02d", i), 1 + int64(w)*3921} // up to about a million
			all += cells[i].Weight
		}
		sum := int64(0)
		for i, got := range splitTotal(total, cells) {
			sum += got
			if part := total * cells[i].Weight; got*all <= part-all || got*all >= part+all {
				t.Errorf("a share of %d of %d units for %v, want less than one unit from the exact part", got, total,
					cells[i])
			}
		}
		if sum != total {
			t.Errorf("the shares of %d units sum to %d", total, sum)
		}
	})
}

func TestNeedsHome(t *testing.T) {
	three := []Weight{{"a", 1}, {"b", 1}, {"c", 1}}
	tier := func(a limit.Algorithm, threshold, burst int64) []limit.Tier {
		return []limit.Tier{{Algorithm: a, Period: time.Second, Threshold: threshold, Burst: burst}}
	}
	for _, tc := range []struct {
		name  string
		limit limit.Limit
		cells []Weight
		want  bool
	}{
		{"enough", limit.Limit{Tiers: tier(limit.FixedWindow, 15, 0), MaxCost: 5}, three, false},
		{"smallest share below the largest cost", limit.Limit{Tiers: tier(limit.FixedWindow, 14, 0), MaxCost: 5},
			three, true},
		{"one cell", limit.Limit{Tiers: tier(limit.FixedWindow, 1, 0), MaxCost: 5}, three[:1], false},
		{"a cost that is never admitted anyway", limit.Limit{Tiers: tier(limit.FixedWindow, 3, 0), MaxCost: 5},
			three[:2], true},
		{"burst", limit.Limit{Tiers: tier(limit.TokenBucket, 3, 15), MaxCost: 5}, three, false},
		{"burst too small", limit.Limit{Tiers: tier(limit.TokenBucket, 100, 14), MaxCost: 5}, three, true},
		{"no rate for a cell", limit.Limit{Tiers: tier(limit.TokenBucket, 2, 100)}, three, true},
		{"leaky bucket", limit.Limit{Tiers: tier(limit.LeakyBucket, 1000, 0)}, three, true},
		{"a share that cannot be counted exactly", limit.Limit{Tiers: []limit.Tier{
			{Algorithm: limit.TokenBucket, Period: 1000 * time.Hour, Threshold: 3_600_000,
				Burst: 4_000_000_000}}}, []Weight{{"a", 7}, {"b", 6}}, true},
		{"quota", limit.Limit{Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 1,
			Calendar: &limit.Calendar{Every: limit.Day, Location: time.UTC}}}}, three, false},
	} {
		tc.limit.ID = "x"
		l, err := limit.New(tc.limit)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if got := NeedsHome(l, tc.cells); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}

// Guarantees that homes are spread over the cells, and that a cell that joins takes some over but moves no others:
// each move costs a tenant a window.
func TestHomes(t *testing.T) {
	three := []Weight{{"eu-1", 1}, {"us-1", 1}, {"us-2", 1}}
	four := append(slices.Clone(three), Weight{"us-3", 1})
	count := map[string]int{}
	for i := range 3000 {
		tenant := fmt.Sprint("tenant-", i)
		before, after := homeOf(tenant, three, nil), homeOf(tenant, four, nil)
		if count[before]++; after != before && after != "us-3" {
			t.Fatalf("the home of %s moves from %s to %s, want no move, or one to the new cell us-3", tenant, before,
				after)
		}
	}
	for _, cell := range three {
		if n := count[cell.Cell]; n < 900 || n > 1100 {
			t.Errorf("%d of 3000 homes are in %s, want 900 to 1100", n, cell.Cell)
		}
	}
	if got := homeOf("acme", three, []string{"gone", "us-2", "eu-1"}); got != "us-2" {
		t.Errorf("the home of a pinned tenant is %s, want us-2, the first of its cells that exists", got)
	}
	if got := homeOf("acme", nil, []string{"gone"}); got != "" {
		t.Errorf("the home of a tenant that no cell serves is %s, want none", got)
	}
}

// Guarantees that homes never change: cells with different versions of the software must agree on them.
func TestHomesAreStable(t *testing.T) {
	var got []string
	for _, tenant := range []string{"", "acme", "globex", "Ünï"} {
		got = append(got, homeOf(tenant, []Weight{{"eu-1", 1}, {"us-1", 9}, {"us-2", 1}}, nil))
	}
	if s, want := strings.Join(got, " "), "us-1 us-1 us-2 eu-1"; s != want {
		t.Errorf("homes %s, want %s", s, want)
	}
}
