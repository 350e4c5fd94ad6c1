package pacer

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

var figures = flag.String("figures", "", "simulate what figures of package bench need: short or long")

// saturated returns 96 instances under the four conditions for which the figures pacer_sim_* have goals: the demand is
// 1.2 times the limit and jumps to other instances, clocks are up to 100 ms ahead or behind, four instances die with
// units in hand, and the limit is halved in the middle.
func saturated(limit int64, seconds int) simulation {
	m := simulation{limit: limit, seconds: seconds, demand: demands["80 % jump every 7 s"](1.2 * float64(limit)),
		clocks: 100 * ms, guard: Guard{ClockError: 100 * ms, MaxDelay: 12 * ms}, kills: 4,
		halveAt: time.Duration(seconds)*time.Second/2 + 500*ms, random: rand.New(rand.NewPCG(1, uint64(limit)))}
	if limit < instances {
		m.cost = 1
	}
	return m
}

// contending returns 96 instances that all want twice their share.
func contending(limit int64, seconds, warmUp int, maxWait time.Duration) simulation {
	m := simulation{limit: limit, seconds: warmUp + seconds, maxWait: maxWait,
		warmUp: time.Duration(warmUp) * time.Second, demand: demands["even"](2 * float64(limit)),
		clocks: 10 * ms, guard: Guard{ClockError: 10 * ms, MaxDelay: 12 * ms},
		random: rand.New(rand.NewPCG(1, uint64(limit)))}
	if limit < instances {
		m.cost = 1
	}
	return m
}

// TestFigures prints the outcomes of the simulations from which package bench takes figures, as lines of JSON, if the
// flag -figures is given. At a limit of 10, an instance has one unit in ten seconds, so requests wait for up to a
// minute there. If they waited for two seconds, fewer would be waiting than there are units.
//
// Without the flag it only checks that the simulation of saturation works.
func TestFigures(t *testing.T) {
	if *figures == "" {
		m := saturated(10, 12)
		if r := m.run(); r.over != 0 || r.used < 0.5 || r.calls > 5 {
			t.Errorf("over %d, %.1f %% used, %.2f calls, want 0, most of the limit, and 5 at most", r.over,
				100*r.used, r.calls)
		}
		return
	}
	length := func(seconds int) int {
		if *figures == "short" {
			return 12
		}
		return seconds
	}
	show := func(kind string, m *simulation) {
		r := m.run()
		text, err := json.Marshal(map[string]any{"kind": kind, "limit": m.limit, "seconds": m.seconds, "over": r.over,
			"used": 100 * r.used, "calls": r.calls, "fairness": r.fairness})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(os.Stdout, "figure %s\n", text); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int64{10, 1000, 300_000, 2_000_000} {
		m := saturated(limit, length(60))
		if limit < instances {
			m.maxWait = time.Minute
		}
		show("saturation", &m)
	}
	impatient := saturated(10, length(60))
	show("saturation, waits of 2 s", &impatient)
	for _, f := range []struct {
		limit           int64
		seconds, warmUp int
		maxWait         time.Duration
	}{
		{10, 900, 60, time.Minute}, {1000, 400, 10, 2 * time.Second}, {300_000, 120, 10, 2 * time.Second},
	} {
		m := contending(f.limit, length(f.seconds), length(f.warmUp), f.maxWait)
		show("fairness", &m)
	}
}
