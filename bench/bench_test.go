package bench

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// scarce is how many units of a key are soon used up, so that a measurement is about denials.
const scarce = 100

// slow are token buckets that refill by about one unit a year, so that they admit their burst and no more.
var slow = [...]limit.Tier{
	{Algorithm: limit.TokenBucket, Period: 366 * 24 * time.Hour, Threshold: 1},
	{Algorithm: limit.TokenBucket, Period: 365 * 24 * time.Hour, Threshold: 1},
	{Algorithm: limit.TokenBucket, Period: 364 * 24 * time.Hour, Threshold: 1},
}

// benchmark spends b.N units, rounded up so that each key gets the same share, and checks that it did.
func benchmark(b *testing.B, units int, newContender func() (*contender, error)) {
	c, err := newContender()
	if err != nil {
		b.Fatal(err)
	}
	defer c.close()
	unit := c.unit()
	b.ReportAllocs()
	b.ResetTimer()
	perOp, err := c.trial((b.N + unit - 1) / unit * unit)
	b.StopTimer()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(perOp.wall, "ns/op")
	if err := c.verify(units); err != nil {
		b.Fatal(err)
	}
}

func openOurs(units int64, with ...limit.Tier) func() (*contender, error) {
	return func() (*contender, error) { return sluice(memoryKeys, units, with...) }
}

func openGoLimiter(units uint64) func() (*contender, error) {
	return func() (*contender, error) { return goLimiter(memoryKeys, units) }
}

func BenchmarkMemory(b *testing.B) {
	for _, bb := range []struct {
		name      string
		units     int
		contender func() (*contender, error)
	}{
		{"admit/sluice-1-limit", plenty, openOurs(plenty, tiers[:1]...)},
		{"admit/sluice-3-limits", plenty, openOurs(plenty, tiers[:]...)},
		{"admit/go-limiter", plenty, openGoLimiter(plenty)},
		{"deny/sluice-1-limit", scarce, openOurs(scarce, slow[:1]...)},
		{"deny/sluice-3-limits", scarce, openOurs(scarce, slow[:]...)},
		{"deny/go-limiter", scarce, openGoLimiter(scarce)},
	} {
		b.Run(bb.name, func(b *testing.B) { benchmark(b, bb.units, bb.contender) })
	}
}

func BenchmarkAuthorizerJWT(b *testing.B) {
	l, err := newJWTLoad()
	if err != nil {
		b.Fatal(err)
	}
	defer l.close()
	b.ReportAllocs()
	b.ResetTimer()
	if _, err := l.run(b.N); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	if err := l.verify(); err != nil {
		b.Fatal(err)
	}
}
