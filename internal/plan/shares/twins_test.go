package shares

import (
	"fmt"
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that the property tests can fail: each rule that a world breaks on purpose is detected.
func TestBrokenWorldsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("runs some hundred worlds")
	}
	for _, twin := range []struct {
		name  string
		wrong wrong
		of    []limit.Algorithm
	}{
		{"growth without grace", wrong{noGrace: true}, []limit.Algorithm{limit.FixedWindow, limit.SlidingLog}},
		{"growth in mid-window", wrong{midWindow: true}, []limit.Algorithm{limit.FixedWindow}},
		{"growth in mid-window, of sliding ones", wrong{midWindow: true}, []limit.Algorithm{limit.SlidingWindow,
			limit.SlidingBuckets, limit.SlidingLog}},
		{"a new bucket is full", wrong{fullBucket: true}, []limit.Algorithm{limit.TokenBucket}},
		{"an acknowledgement of an older epoch", wrong{anyAck: true}, []limit.Algorithm{limit.FixedWindow,
			limit.SlidingLog}},
		{"placements count at once", wrong{pinsAtOnce: true}, []limit.Algorithm{limit.FixedWindow, limit.SlidingLog}},
		{"a limit moves to other counters at once", wrong{movesAtOnce: true}, []limit.Algorithm{limit.FixedWindow,
			limit.TokenBucket, limit.LeakyBucket}},
		{"shares shrink when others grow", wrong{shrinkLater: true}, []limit.Algorithm{limit.FixedWindow,
			limit.SlidingBuckets}},
	} {
		for _, of := range twin.of {
			t.Run(fmt.Sprint(twin.name, "/", of), func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(60) { // the first ones find most mistakes
					w := populate(t, seed, of)
					w.wrong, w.longest = twin.wrong, 4*second
					w.run(5, w.takeFromAll)
					for range 6 {
						w.change()
						w.run(25, w.takeFromAll)
					}
					if len(w.violations()) > 0 {
						return
					}
				}
				t.Error("no run detects the broken rule, so the test could not fail")
			})
		}
	}
}
