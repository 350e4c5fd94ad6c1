package lease

import (
	"strconv"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// BenchmarkFindCounter shows how scanLimit was chosen: it finds the last of that many counters by a scan, and by the
// map.
func BenchmarkFindCounter(b *testing.B) {
	for _, n := range []int{2, 4, scanLimit, 2 * scanLimit, 4 * scanLimit} {
		scanned, mapped := &ownerLeases{}, &ownerLeases{index: map[counterKey]*counter{}}
		var last *limit.Tier
		for i := range n {
			for _, o := range []*ownerLeases{scanned, mapped} {
				l, err := limit.New(limit.Limit{ID: "limit-" + strconv.Itoa(i), Tiers: []limit.Tier{
					{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 10},
				}})
				if err != nil {
					b.Fatal(err)
				}
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
