package lease

import (
	"strconv"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
)

// BenchmarkFindCounter shows how scanLimit was chosen: it finds the last of that many counters by a scan, and by the
// map.
func BenchmarkFindCounter(b *testing.B) {
	for _, n := range []int{2, 4, scanLimit, 2 * scanLimit, 4 * scanLimit} {
		scanned, mapped := &ownerLeases{}, &ownerLeases{index: map[counterKey]*counter{}}
		var last *limit.Tier
		for i := range n {
			for _, o := range []*ownerLeases{scanned, mapped} {
				l := limittest.MustNew(b, limit.Limit{ID: "limit-" + strconv.Itoa(i), Tiers: []limit.Tier{
					{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 10},
				}})
				last = &l.Tiers[0]
				o.addCounter(last, limit.Value{})
			}
			scanned.index = nil
		}
		find := func(o *ownerLeases) func(b *testing.B) {
			return func(b *testing.B) {
				for b.Loop() {
					if o.findCounter(last, limit.Value{}, n) == nil {
						b.Fatal("not found")
					}
				}
			}
		}
		b.Run("scan/"+strconv.Itoa(n), find(scanned))
		b.Run("map/"+strconv.Itoa(n), find(mapped))
	}
}

// Guarantees that at most maxLostCalls calls are remembered, however many come while the others are asked about, and
// that a store that did not answer is left alone for findLostEvery.
func TestLostCallsAreBounded(t *testing.T) {
	var l lostCalls
	for i := range maxLostCalls {
		if !l.add(lostCall{maxCharged: int64(i)}) {
			t.Fatalf("call %d is refused, want %d calls remembered", i, maxLostCalls)
		}
	}
	if l.add(lostCall{}) {
		t.Errorf("more than %d calls are remembered", maxLostCalls)
	}
	start := clock.At(time.Unix(1_000_000, 0))
	asked := l.take(start)
	if len(asked) != maxLostCalls {
		t.Fatalf("%d calls are asked about, want all %d", len(asked), maxLostCalls)
	}
	const meanwhile = 5
	for range meanwhile {
		l.add(lostCall{})
	}
	tooMany := l.putBack(asked, start)
	if len(tooMany) != meanwhile || tooMany[0].maxCharged != maxLostCalls-meanwhile || len(l.calls) != maxLostCalls {
		t.Errorf("%d calls are remembered and %d have no room, want %d and the last %d of those put back", len(l.calls),
			len(tooMany), maxLostCalls, meanwhile)
	}
	if early := l.take(start.Add(findLostEvery / 2)); early != nil {
		t.Errorf("the store is asked about %d calls again at once", len(early))
	}
	if later := l.take(start.Add(findLostEvery)); len(later) != maxLostCalls {
		t.Errorf("later the store is asked about %d calls, want all", len(later))
	}
}
