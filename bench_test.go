package sluice_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice"
)

// BenchmarkDecide measures a decision in memory, with the copy and the receipt that the caller keeps.
func BenchmarkDecide(b *testing.B) {
	l := open(b, strings.ReplaceAll(hourly, "500", "1000000000"), func(c *sluice.Config) { c.Now = time.Now })
	b.ReportAllocs()
	for b.Loop() {
		if d := l.Decide(context.Background(), acme, sluice.Request{Method: "GET", Path: "/product/1"}); !d.Allowed {
			b.Fatal(d.Reason)
		}
	}
}
