package memory

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Guarantees that the memory of counters that were dropped is freed, and that the store's count of bytes says so.
func TestOwnerGivesRoomBack(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("the race detector's own memory is in the heap's figures")
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := limittest.MustNew(t, limit.Limit{ID: "subject", Per: "subject", Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: 1, Burst: 1, Period: time.Hour}}})
	for _, left := range []int{60_000, 30_000, 5000, 100, 9, 8, 1, 0} {
		var o *further
		took, counted := int64(math.MaxInt64), int64(0)
		for range 3 { // the least of some tries: what else the process allocates only adds
			before := heap()
			o = new(further)
			for i := range 100_000 {
				v := limit.ValueOf(fmt.Sprint("user-", i))
				o.add(s, &l.Tiers[0], v)
			}
			for len(o.counters) > left {
				o.sweep(math.MaxInt64, min(64, len(o.counters)-left))
			}
			if took, counted = min(took, heap()-before), o.bytes+furtherBytes; took <= counted*3/2+2048 {
				break
			}
		}
		if took > counted*3/2+2048 {
			t.Errorf("with %d of 100,000 counters left, the heap has grown by %d bytes, and the store's count is "+
				"%d; want them close to each other", left, took, counted)
		}
		for i := range o.counters {
			v := o.counters[i].value.Value
			if at := o.find(s, &l.Tiers[0], v); at != i {
				t.Fatalf("with %d counters left, %s is at index %d, but was found at %d", left, v.Text, i, at)
			}
		}
		runtime.KeepAlive(o)
	}
}

// Guarantees that receipts have different names after more than 2^32 numbers were used.
func TestManyReceipts(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	r, given := newRecord(limit.Owner{Kind: limit.Tenant, Name: "acme"}, 1), map[limit.ReceiptID]bool{}
	for _, issued := range []uint64{0, 1<<32 - 64, 1<<32 - 128, 2 << 32} {
		s.issued.Store(issued)
		r.receiptLow = 0 // the record takes new numbers
		for range 2 * receiptsAtOnce {
			given[s.nextID(r)] = true
		}
	}
	given[s.nextID(nil)] = true
	// the second and the third range overlap
	if want := 4*2*receiptsAtOnce - receiptsAtOnce + 1; len(given) != want {
		t.Errorf("%d different names, want %d", len(given), want)
	}
}
