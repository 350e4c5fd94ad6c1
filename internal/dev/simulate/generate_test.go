package simulate_test

import (
	"fmt"
	"io"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/simulate"
)

// generator is a log that is generated while it is read, so that its length needs no memory. It is sorted, with ten
// lines a second. Every other line is of one busy address; the rest is divided among 1,000 addresses.
type generator struct {
	lines  int             // lines to generate
	onRead func(bytes int) // may be nil
	made   int
	rest   []byte
	buf    []byte
}

const busy = "198.51.100.200"

func (g *generator) Read(p []byte) (int, error) {
	for len(g.rest) == 0 {
		if g.made == g.lines {
			return 0, io.EOF
		}
		g.buf = g.buf[:0]
		for range min(200, g.lines-g.made) {
			g.buf = appendLine(g.buf, g.made)
			g.made++
		}
		g.rest = g.buf
	}
	n := copy(p, g.rest)
	g.rest = g.rest[n:]
	if g.onRead != nil {
		g.onRead(n)
	}
	return n, nil
}

func (g *generator) Close() error { return nil }

var generatorStart = time.Date(2024, 3, 1, 0, 0, 0, 0, time.UTC)

func appendLine(dst []byte, i int) []byte {
	if i%2 == 0 {
		dst = append(dst, busy...)
	} else {
		dst = fmt.Appendf(dst, "10.0.%d.%d", i/2%1000/250, i/2%250)
	}
	dst = append(dst, " - - ["...)
	dst = generatorStart.Add(time.Duration(i/10)*time.Second).AppendFormat(dst, "02/Jan/2006:15:04:05 -0700")
	return fmt.Appendf(dst, `] "GET /v1/orders/%d/items?page=%d HTTP/1.1" 200 %d "https://shop.example/cart" `+
		`"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/125.0 Safari/537.36"`+"\n",
		i%500, i%7, i%4000)
}

// generatedPlans is a limit of which the benchmark knows the result: the busy address makes 5 requests a second, of
// which 2 are admitted.
const generatedPlans = `ipLimits: [ { id: per-address, tiers: [ { period: 1s, threshold: 2 } ] } ]`

func generatedLog(lines int) simulate.Log {
	return simulate.Log{Name: "generated", Open: func() (io.ReadCloser, error) { return &generator{lines: lines}, nil }}
}
