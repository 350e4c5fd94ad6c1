package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev/simulate"
	"github.com/sluicelimits/sluice/internal/plan"
)

const (
	logAddresses = 1_000
	logTenants   = 200
	logPerSecond = 200 // lines
	perAddress   = 10  // units a minute
	perTenant    = 40  // units a minute
)

// logLoad is an access log, with the counts that its replay must report.
type logLoad struct {
	text    []byte
	lines   int64
	denied  int64  // requests that the limit denies
	binding string // the limit's id; other limits deny nothing
	options simulate.Options
}

// newLogLoad makes an access log in the Combined format, in order of time. It counts the requests that each address (or
// tenant, in the user field) sends in a minute above its limit: a fixed window denies them. A few of them send most of
// the requests, as is usual.
func newLogLoad(lines int, tenants bool) (*logLoad, error) {
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
	l := &logLoad{lines: int64(lines), binding: "per-address"}
	names, units := logAddresses, int64(perAddress)
	if tenants {
		l.binding, names, units = "per-minute", logTenants, perTenant
	}
	for i := range lines {
		if s := i / logPerSecond; s != second {
			second = s
			stamp = start.Add(time.Duration(s)*time.Second).AppendFormat(stamp[:0], "02/Jan/2006:15:04:05 -0700")
		}
		name := min(random.IntN(names), random.IntN(names), random.IntN(names))
		user := "-"
		if tenants {
			user = fmt.Sprintf("tenant-%d", name)
		}
		fmt.Fprintf(&text, "10.%d.%d.%d - %s [%s] \"GET /v1/orders/%d/items?page=%d HTTP/1.1\" 200 %d "+
			"\"https://shop.example/cart\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like "+
			"Gecko)\"\n",
			name>>16, name>>8&255, name&255, user, stamp, i%500, i%7, i%4000)
		w := window{int64(second) / 60, name}
		if counts[w]++; counts[w] > units {
			l.denied++
		}
	}
	l.text = text.Bytes()
	config, err := plan.Parse(configyaml.Source("bench.yaml", []byte(logPlans(tenants))))
	if err != nil {
		return nil, err
	}
	l.options = simulate.Options{Config: config, Logs: []simulate.Log{{
		Name: "generated",
		Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l.text)), nil },
	}}}
	return l, nil
}

func logPlans(tenants bool) string {
	if !tenants {
		return fmt.Sprintf("ipLimits: [ { id: per-address, tiers: [ { period: 1m, threshold: %d } ] } ]\n", perAddress)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `plans:
  - id: pro
    limits:
      - { id: per-minute, tiers: [ { period: 1m, threshold: %d } ] }
      - id: orders
        match: { methods: [GET], pathPattern: "/v1/orders/**" }
        algorithm: token_bucket
        rate: 1000
        period: 1s
      - { id: monthly, quota: { units: 1000000000, every: month } }
tenants:
`, perTenant)
	for i := range logTenants {
		fmt.Fprintf(&b, "  - { id: tenant-%d, plan: pro }\n", i)
	}
	return b.String()
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
	for _, limit := range r.Limits {
		want := int64(0)
		if limit.ID == l.binding {
			want = l.denied
		}
		if limit.Denied != want {
			return fmt.Errorf("limit %s denied %d, want %d", limit.ID, limit.Denied, want)
		}
	}
	return nil
}

// linesPerSecond returns the median over the rounds: lines per second of processor time on one processor, and per
// second of wall time.
func (l *logLoad) linesPerSecond(rounds int) (processor, wall float64, err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var speeds, walls []float64
	for range rounds {
		runtime.GC()
		used, began := processorTime(), time.Now()
		if err := l.run(); err != nil {
			return 0, 0, err
		}
		speeds = append(speeds, float64(l.lines)/(processorTime()-used).Seconds())
		walls = append(walls, float64(l.lines)/time.Since(began).Seconds())
	}
	return median(speeds), median(walls), nil
}

// simulateFigure measures how many lines are read, ordered, decided and counted per second of processor time.
func simulateFigure(short bool) (Result, error) {
	lines, rounds := 300_000, 7
	if short {
		lines, rounds = 30_000, 1
	}
	var r Result
	for _, tenants := range []bool{false, true} {
		l, err := newLogLoad(lines, tenants)
		if err != nil {
			return r, err
		}
		if l.denied == 0 || l.denied*10 > 9*l.lines {
			return r, fmt.Errorf("%d of %d lines denied: want more of both admitted and denied lines", l.denied,
				l.lines)
		}
		speed, wall, err := l.linesPerSecond(rounds)
		if err != nil {
			return r, err
		}
		if tenants {
			r.note("by tenant in the user field, %d tenants, 3 limits each: %.0f lines/s", logTenants, speed)
			continue
		}
		r.Value = speed
		r.note("%d lines of %d addresses, one limit per address, %d denied as counted", l.lines, logAddresses, l.denied)
		r.note("by the time of one processor; by wall time %.0f lines/s", wall)
	}
	return r, nil
}
