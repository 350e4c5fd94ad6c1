package shared

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Row is one run and its score.
type Row struct {
	Scenario Scenario
	By       Limiter
	Score    Score
	Err      error
}

// Processes returns the runs of the table of processes: for each scenario one without leases and one with leases.
func Processes(algorithms []limit.Algorithm) []Row {
	var rows []Row
	for _, alg := range algorithms {
		scenarios := append(Published(alg, 1), Uneven(alg)...)
		for _, s := range append(scenarios, Published(alg, 10)...) {
			rows = append(rows, Row{Scenario: s, By: Naive}, Row{Scenario: s, By: Leased})
		}
	}
	return rows
}

// Pair is a scenario that is simulated twice: with the earlier rule of leases and with the present one.
type Pair struct {
	Scenario Scenario
	Old, New Score
	Err      error
}

// Simulations returns the runs in virtual time: the scenarios of Processes, and those that are too large for processes.
func Simulations(algorithms []limit.Algorithm) []Pair {
	var pairs []Pair
	for _, alg := range algorithms {
		scenarios := append(Published(alg, 1), Uneven(alg)...)
		scenarios = append(scenarios, Published(alg, 10)...)
		for _, s := range append(scenarios, Many(alg)...) {
			pairs = append(pairs, Pair{Scenario: s})
		}
	}
	return pairs
}

// Run makes both simulations.
func (p *Pair) Run(ctx context.Context, seed uint64, length Length) {
	if p.Old, p.Err = Simulate(ctx, &p.Scenario, OldRule, seed, length); p.Err == nil {
		p.New, p.Err = Simulate(ctx, &p.Scenario, Leased, seed, length)
	}
}

// PairHeading writes the names of the columns of pairs.
func PairHeading(w io.Writer) {
	fmt.Fprintf(w, "%-38s %17s %13s %13s %13s %13s\n", "", "calls/s", "over", "short %", "early %", "missed %")
	fmt.Fprintf(w, "%-38s", "workload")
	fmt.Fprintf(w, " %8s %8s", "old", "new")
	for range 4 {
		fmt.Fprintf(w, " %6s %6s", "old", "new")
	}
	fmt.Fprintf(w, " %9s\n", "requests")
}

// Write writes the pair as a line of the table.
func (p *Pair) Write(w io.Writer) {
	if p.Err != nil {
		fmt.Fprintf(w, "%-34s failed: %v\n", p.Scenario.Name, p.Err)
		return
	}
	old, now := &p.Old, &p.New
	fmt.Fprintf(w, "%-38s %8.1f %8.1f %6d %6d %6.2f %6.2f %6.2f %6.2f %6.2f %6.2f %9d\n", p.Scenario.Name,
		old.StoreOps, now.StoreOps,
		old.Over, now.Over, old.ShortPct, now.ShortPct, old.EarlyPct, now.EarlyPct, old.MissedPct, now.MissedPct,
		now.Requests)
}

// weight returns how much of the machine a run takes, as a part of capacity: 2 for 1,000 calls per second, or 0.5 for
// 1,000 decisions from leases per second, few of which are calls.
func (r *Row) weight() int {
	thousands := int(r.Scenario.Demand()/1000 + 0.5)
	if r.By == Naive {
		return min(thousands*2, capacity)
	}
	return min(max(thousands/2, 1), capacity)
}

const capacity = 10 // the largest sum of the weights of runs that run at the same time

// RunAll runs the rows in their order, several small ones at the same time. It calls each with every row, in order, as
// soon as the row is done.
func RunAll(ctx context.Context, rows []Row, seed uint64, length Length, each func(*Row)) {
	done := make([]chan struct{}, len(rows))
	for i := range done {
		done[i] = make(chan struct{})
	}
	var mu sync.Mutex
	room, used := sync.NewCond(&mu), 0
	go func() {
		for i := range rows {
			r, w := &rows[i], rows[i].weight()
			mu.Lock()
			for used+w > capacity {
				room.Wait()
			}
			used += w
			mu.Unlock()
			go func() {
				r.Score, r.Err = Run(ctx, &r.Scenario, r.By, seed, length)
				mu.Lock()
				used -= w
				mu.Unlock()
				room.Signal()
				close(done[i])
			}()
		}
	}()
	for i := range rows {
		<-done[i]
		each(&rows[i])
	}
}

const layout = "%-34s %-9s %9.1f %6d %8.2f %8.2f %8.2f %8.3f %8.3f %8.0f %9d %9d\n"

// Heading writes the names of the columns. [Score] says what they are.
func Heading(w io.Writer) {
	fmt.Fprintf(w, "%-34s %-9s %9s %6s %8s %8s %8s %8s %8s %8s %9s %9s\n",
		"workload", "limiter", "calls/s", "over", "short %", "early %", "missed %", "p95 ms", "p99 ms", "KB",
		"admitted", "requests")
}

// Write writes the row as a line of the table.
func (r *Row) Write(w io.Writer) {
	if r.Err != nil {
		fmt.Fprintf(w, "%-34s %-9s failed: %v\n", r.Scenario.Name, r.By, r.Err)
		return
	}
	g := &r.Score
	fmt.Fprintf(w, layout, r.Scenario.Name, r.By, g.StoreOps, g.Over, g.ShortPct, g.EarlyPct, g.MissedPct,
		float64(g.P95)/float64(time.Millisecond), float64(g.P99)/float64(time.Millisecond), float64(g.Memory)/1024,
		g.Admitted, g.Requests)
	if g.Late > lateness {
		fmt.Fprintf(w, "    (the machine was too busy: one request in a hundred was asked %s late or later)\n",
			g.Late.Round(time.Millisecond))
	}
}

// lateness is the value of Score.Late above which a load was not the intended one, because the machine was too busy.
const lateness = 50 * time.Millisecond

// Algorithms returns the algorithms with which the workload is run.
func Algorithms() []limit.Algorithm {
	return []limit.Algorithm{limit.FixedWindow, limit.TokenBucket, limit.SlidingWindow}
}
