package bench

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// benchmark spends b.N units, rounded up so that each key gets the same share, and checks that it did.
func benchmark(b *testing.B, units int, newContender func() (*contender, error)) {
	c, err := newContender()
	if err != nil {
		b.Fatal(err)
	}
	defer c.close()
	unit := c.unit()
	ops := (b.N + unit - 1) / unit * unit
	b.ReportAllocs()
	b.ResetTimer()
	perOp, admitted, err := c.trial(ops)
	b.StopTimer()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(perOp.wall, "ns/op")
	if err := c.verify(ops, admitted, units); err != nil {
		b.Fatal(err)
	}
}

func openOurs(units int64, with ...limit.Tier) func() (*contender, error) {
	return func() (*contender, error) { return sluice(units, with...) }
}

func BenchmarkMemory(b *testing.B) {
	for _, bb := range []struct {
		name      string
		units     int
		contender func() (*contender, error)
	}{
		{"admit/sluice-1-limit", plenty, openOurs(plenty, tiers[:1]...)},
		{"admit/sluice-3-limits", plenty, openOurs(plenty, tiers[:]...)},
		{"admit/go-limiter", plenty, func() (*contender, error) { return goLimiter(plenty) }},
		{"admit/x-time-rate", plenty, func() (*contender, error) { return timeRate(plenty) }},
		{"deny/sluice-1-limit", scarce, openOurs(scarce, slow[:1]...)},
		{"deny/sluice-3-limits", scarce, openOurs(scarce, slow[:]...)},
		{"deny/go-limiter", scarce, func() (*contender, error) { return goLimiter(scarce) }},
		{"deny/x-time-rate", scarce, func() (*contender, error) { return timeRate(scarce) }},
	} {
		b.Run(bb.name, func(b *testing.B) { benchmark(b, bb.units, bb.contender) })
	}
}

func BenchmarkAuthorizerJWT(b *testing.B) {
	l, err := newJWTLoad(tokentest.NewRSA("one"))
	if err != nil {
		b.Fatal(err)
	}
	defer l.close()
	event, err := l.d.call("wide-0")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	if _, err := l.run([][]byte{event}, b.N); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	if err := l.verify(); err != nil {
		b.Fatal(err)
	}
}
