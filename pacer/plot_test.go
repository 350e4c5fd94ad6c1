package pacer

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

var plots = flag.Bool("plots", false, "write the plots of docs/consumer.md anew")

// curve is a rate over time.
type curve struct {
	title string
	rates []float64 // units per second, in steps of plotStep
	want  []float64 // what the rate should be, in the same steps
}

const plotStep = 20 * ms

// plot draws curves below each other, as SVG.
func plot(curves []curve) []byte {
	const width, height, left, top = 720, 170, 60, 26
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" `+
		`font-size="12">`+"\n"+`<rect width="100%%" height="100%%" fill="white"/>`+"\n", width+left+20,
		len(curves)*(height+top+40))
	for i, c := range curves {
		most := 0.0
		for j := range c.rates {
			most = max(most, c.rates[j], c.want[j])
		}
		y0 := i*(height+top+40) + top
		at := func(values []float64) string {
			var points []string
			for j, v := range values {
				y := float64(y0) + height*(1-v/(1.1*most))
				for edge := range 2 { // a step for each interval
					x := left + float64(j+edge)*width/float64(len(values))
					points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
				}
			}
			return strings.Join(points, " ")
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", left, y0-8, c.title)
		for _, part := range []float64{0, 0.5, 1} {
			y := float64(y0) + height*(1-part/1.1)
			fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`+"\n", left, left+width, y, y)
			fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%.0f/s</text>`+"\n", left-6, y+4, part*most)
		}
		seconds := len(c.rates) * int(plotStep/ms) / 1000
		for s := range seconds + 1 {
			x := left + s*width/seconds
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%d s</text>`+"\n", x, y0+height+16, s)
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="#c60" stroke-dasharray="5 3"/>`+"\n", at(c.want))
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="#05a" stroke-width="1.5"/>`+"\n", at(c.rates))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// stepResponse is the step response of one sender to limits that change each second.
func stepResponse(t *testing.T) curve {
	c := curve{title: "One sender: the limit changes from 1,000/s to 500/s and to 1,500/s"}
	r := respond(t, 1000)
	for i, units := range []int64{1000, 500, 1500} {
		if i > 0 {
			r.c.supply.setLimit(PerSecond(units))
		}
		r.run(time.Second)
		for range time.Second / plotStep {
			c.want = append(c.want, float64(units))
		}
	}
	for at := time.Duration(0); at < r.now; at += plotStep {
		c.rates = append(c.rates, r.rate(at, at+plotStep))
	}
	return c
}

// demanded is the step response of one sender to a demand that begins in the middle of a window.
func demanded(t *testing.T) curve {
	c := curve{title: "One sender, 1,000/s: nobody asks for 300 ms, and then more than the limit"}
	r := respond(t, 1000)
	r.offered = 0
	r.run(300 * ms)
	r.offered = -1
	r.run(1700 * ms)
	for at := time.Duration(0); at < r.now; at += plotStep {
		c.rates = append(c.rates, r.rate(at, at+plotStep))
		c.want = append(c.want, 1000)
	}
	return c
}

// sharedResponse is the step response of 96 senders with a shared limit that is halved with notice.
func sharedResponse(demand string) curve {
	const limit, seconds, from, to = 9_600, 12, 7, 11
	c := curve{title: "96 senders: a shared limit is halved from 9,600/s to 4,800/s, demand: " + demand}
	m := simulation{limit: limit, seconds: seconds, demand: demands[demand](1.5 * limit), clocks: 5 * ms,
		guard: Guard{ClockError: 5 * ms, MaxDelay: 12 * ms}, random: rand.New(rand.NewPCG(1, 2)), cost: 1,
		smoothing: Spread, halveAt: 7500 * ms, granted: make([]int64, seconds*1000)}
	m.run()
	for at := from * time.Second; at < to*time.Second; at += plotStep {
		var n int64
		for _, units := range m.granted[at/ms : (at+plotStep)/ms] {
			n += units
		}
		want := float64(limit)
		if at >= 9*time.Second {
			want /= 2
		}
		c.rates = append(c.rates, float64(n)/plotStep.Seconds())
		c.want = append(c.want, want)
	}
	return c
}

// The plots of docs/consumer.md are what the code does: `make plots` writes them anew. On one sender the other tests of
// steps check the overshoot and the settling time. On 96 senders with an even demand, the rate is within 15 % of the
// limit from 100 ms after the step on, and never above it by more than 20 %, but for the end of each window, which the
// guard leaves out.
func TestPlots(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates 96 senders")
	}
	even := sharedResponse("even")
	for i, rate := range even.rates {
		into, off := time.Duration(i)*plotStep%time.Second, rate/even.want[i]-1
		if off > 0.20 || into >= 100*ms && into < 960*ms && (off > 0.15 || off < -0.15) {
			t.Errorf("%s into a window, the rate is %.0f/s, want %.0f/s", into, rate, even.want[i])
		}
	}
	for file, curves := range map[string][]curve{
		"../docs/consumer-one.svg":  {stepResponse(t), demanded(t)},
		"../docs/consumer-many.svg": {even, sharedResponse("80 % jump every 7 s")},
	} {
		got := plot(curves)
		if *plots {
			if err := os.WriteFile(file, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the code does: make plots", file)
		}
	}
}
