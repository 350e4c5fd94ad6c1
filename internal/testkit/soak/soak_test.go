package soak_test

import (
	"os"
	"testing"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// A test that repeats 0 times holds nothing, and a factor that is misread would do less than was asked for.
func TestTimes(t *testing.T) {
	t.Setenv("SLUICE_SOAK", "") // so that it is restored
	if err := os.Unsetenv("SLUICE_SOAK"); err != nil {
		t.Fatal(err)
	}
	usual := map[int]int{1: 1, 9: 2, 29: 7, 150: 37}
	if testing.Short() {
		usual = map[int]int{1: 1, 9: 1, 29: 2, 150: 15}
	}
	for n, want := range usual {
		if got := soak.Times(n); got != want {
			t.Errorf("Times(%d) = %d, want %d", n, got, want)
		}
	}
	if soak.Full() {
		t.Error("a run without SLUICE_SOAK is a soak")
	}
	t.Setenv("SLUICE_SOAK", "20")
	if !soak.Full() {
		t.Error("a run with SLUICE_SOAK=20 is not a soak")
	}
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

// skipped is a test that records that it is skipped.
type skipped struct {
	testing.TB
	yes bool
}

func (s *skipped) Skip(...any) { s.yes = true }

// A test that make quick leaves out runs in all other runs.
func TestSkipInQuick(t *testing.T) {
	t.Setenv("SLUICE_QUICK", "1")
	s := skipped{TB: t}
	if soak.SkipInQuick(&s); s.yes != (testing.Short() && !soak.Full()) {
		t.Errorf("with SLUICE_QUICK the test is skipped: %v", s.yes)
	}
	if err := os.Unsetenv("SLUICE_QUICK"); err != nil {
		t.Fatal(err)
	}
	s.yes = false
	if soak.SkipInQuick(&s); s.yes {
		t.Error("without SLUICE_QUICK the test is skipped")
	}
}
