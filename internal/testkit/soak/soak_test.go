package soak_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// A test that repeats 0 times holds nothing, and a factor that is misread would do less than was asked for.
func TestTimes(t *testing.T) {
	usual := map[int]int{1: 1, 9: 9, 29: 29, 150: 150}
	if testing.Short() {
		usual = map[int]int{1: 1, 9: 1, 29: 2, 150: 15}
	}
	for n, want := range usual {
		if got := soak.Times(n); got != want {
			t.Errorf("Times(%d) = %d, want %d", n, got, want)
		}
	}
	t.Setenv("SLUICE_SOAK", "20")
	if got := soak.Times(uint64(3)); got != 60 {
		t.Errorf("Times(3) with SLUICE_SOAK=20 = %d, want 60, also in a short run", got)
	}
	for _, bad := range []string{"", "0", "1001", "-1", "x"} {
		t.Setenv("SLUICE_SOAK", bad)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Times with SLUICE_SOAK=%q did not panic", bad)
				}
			}()
			soak.Times(1)
		}()
	}
}
