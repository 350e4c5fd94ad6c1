package pacer_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/sluicelimits/sluice/pacer"
)

func open(tb testing.TB, c pacer.Config) *pacer.Pacer {
	tb.Helper()
	p, err := pacer.New(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

func BenchmarkAcquire(b *testing.B) {
	p := open(b, pacer.Config{Limit: pacer.PerSecond(pacer.MaxUnits)})
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Acquire(ctx, "key", 1); err != nil {
			b.Fatal(err)
		}
	}
}

// The limit is so small that all wait, and then so large that all are served.
func BenchmarkEnqueueAndServe(b *testing.B) {
	for _, keys := range []int{1, 100, 10_000} {
		b.Run(strconv.Itoa(keys), func(b *testing.B) {
			p := open(b, pacer.Config{Limit: pacer.Limit{Units: 1, Period: pacer.MaxPeriod}, MaxWaiting: 1 << 31})
			names := make([]string, keys)
			for i := range names {
				names[i] = "key-" + strconv.Itoa(i)
			}
			served := 0
			w := pacer.WakerFunc(func(pacer.Permit, error) { served++ })
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if _, err := p.Enqueue(names[i%keys], 1, pacer.Forever, w); err != nil {
					b.Fatal(err)
				}
			}
			if err := p.SetLimit(pacer.Limit{Units: pacer.MaxUnits, Period: pacer.MaxPeriod}); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if served != b.N {
				b.Fatalf("%d of %d served", served, b.N)
			}
		})
	}
}

func BenchmarkCancel(b *testing.B) {
	p := open(b, pacer.Config{Limit: pacer.Limit{Units: 1, Period: pacer.MaxPeriod}})
	w := pacer.WakerFunc(func(pacer.Permit, error) {})
	b.ReportAllocs()
	for b.Loop() {
		t, err := p.Enqueue("key", 1, pacer.Forever, w)
		if err != nil {
			b.Fatal(err)
		}
		p.Cancel(t)
	}
}
