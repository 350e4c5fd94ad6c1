package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev/simulate"
	"github.com/sluicelimits/sluice/internal/plan"
)

const (
	logAddresses = 1_000
	logPerSecond = 200 // lines
	perAddress   = 10  // units a minute
)

// logLoad is an access log, with the counts that its replay must report.
type logLoad struct {
	text    []byte
	lines   int64
	denied  int64 // requests that the limit denies
	options simulate.Options
}

// newLogLoad makes an access log in the Combined format, in order of time. It counts the requests that each address
// sends in a minute above its limit: a fixed window denies them. A few of them send most of the requests, as is usual.
func newLogLoad(lines int) (*logLoad, error) {
	random := rand.New(rand.NewPCG(1, 2)) // the same log each time
	var text bytes.Buffer
	type window struct {
		minute int64
		name   int
	}
	counts := make(map[window]int64)
	start := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	var stamp []byte
	second := -1
	l := &logLoad{lines: int64(lines)}
	for i := range lines {
		if s := i / logPerSecond; s != second {
			second = s
			stamp = start.Add(time.Duration(s)*time.Second).AppendFormat(stamp[:0], "02/Jan/2006:15:04:05 -0700")
		}
		name := min(random.IntN(logAddresses), random.IntN(logAddresses), random.IntN(logAddresses))
		fmt.Fprintf(&text, "10.%d.%d.%d - - [%s] \"GET /v1/orders/%d/items?page=%d HTTP/1.1\" 200 %d "+
			"\"https://shop.example/cart\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like "+
			"Gecko)\"\n",
			name>>16, name>>8&255, name&255, stamp, i%500, i%7, i%4000)
		w := window{int64(second) / 60, name}
		if counts[w]++; counts[w] > perAddress {
			l.denied++
		}
	}
	l.text = text.Bytes()
	config, err := plan.Parse(configyaml.Source("bench.yaml", fmt.Appendf(nil,
		"ipLimits: [ { id: per-address, tiers: [ { period: 1m, threshold: %d } ] } ]\n", perAddress)))
	if err != nil {
		return nil, err
	}
	l.options = simulate.Options{Config: config, Logs: []simulate.Log{{
		Name: "generated",
		Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l.text)), nil },
	}}}
	return l, nil
}

// run replays the log once and checks the report.
func (l *logLoad) run() error {
	r, err := simulate.Run(context.Background(), l.options)
	if err != nil {
		return err
	}
	if r.Requests != l.lines || r.Denied != l.denied || r.Allowed != l.lines-l.denied || r.SkippedLines != 0 {
		return fmt.Errorf("%d requests, %d allowed, %d denied, %d lines skipped; want %d, %d, %d, 0",
			r.Requests, r.Allowed, r.Denied, r.SkippedLines, l.lines, l.lines-l.denied, l.denied)
	}
	return nil
}

// BenchmarkSimulate measures how many lines are read, ordered, decided and counted per second of one processor.
func BenchmarkSimulate(b *testing.B) {
	lines := 300_000
	if testing.Short() {
		lines = 30_000
	}
	l := made[*logLoad](b)(newLogLoad(lines))
	if l.denied == 0 || l.denied*10 > 9*l.lines {
		b.Fatalf("%d of %d lines denied: want more of both admitted and denied lines", l.denied, l.lines)
	}
	for range *rounds {
		b.Run("sluice", func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			used := processorTime()
			for range b.N {
				if err := l.run(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(processorTime()-used)/float64(b.N)/float64(l.lines), "cpu-ns/op")
		})
	}
}
